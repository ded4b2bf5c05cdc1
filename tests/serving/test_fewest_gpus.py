"""The fewest GPUs under a load, against exhaustive search: every layout, every number of replicas, every pair of pools."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.time_model.serving.steady import Pricer, highest_utilisation_within

from autoconfig.serving.answer import answer
from autoconfig.serving.disaggregated import Decode, Prefill
from autoconfig.serving.price import price
from autoconfig.serving.question import understand
from autoconfig.serving.rank import SPARE, rank
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.space import loads

MOST = 12


def drawn(seed: int) -> ServeRequest:
    """A question of one model whose load takes a few GPUs."""
    rng = np.random.default_rng(seed)
    model, gpu, speed = [
        ("llama3-8b", "l40s", 3.0), ("llama3-8b", "h100", 30.0), ("qwen2.5-14b", "a100-80gb", 6.0), ("llama3-70b", "h200", 6.0),
        ("qwen3-30b-a3b", "h100", 12.0), ("mixtral-8x7b", "h100", 8.0),
    ][rng.integers(6)]  # fmt: skip
    return ServeRequest(
        model=model,
        gpu=gpu,
        gpus=MOST,
        engine=str(rng.choice(["vllm", "sglang", "trtllm-1.2"])),
        isl=int(rng.integers(200, 6000)),
        osl=int(rng.integers(50, 800)),
        rate=float(np.round(speed * rng.uniform(0.2, 2.5), 2)),
        ttft_s=float(rng.choice([0.3, 1.0, 3.0])),
        tpot_s=float(rng.choice([0.02, 0.04, 0.08])),
        disaggregated=bool(rng.integers(2)),
        goal="gpus",
        fix=("weights=fp8", "kv=fp8") if gpu != "a100-80gb" else ("weights=bf16",),
    )


def exhaustive(request: ServeRequest) -> int | None:
    """Fewest GPUs of any deployment that carries the load within the limits in closed form; None: none of MOST does."""
    question = understand(request)
    pricer, rate, wanted = Pricer(lengths=question.lengths), request.rate, request.rate / SPARE
    jobs = [question.job(plan) for size in range(1, MOST + 1) for plan in question.layouts(gpus=size) if plan.replicas == 1]
    jobs = [job for job in jobs if loads(job)]
    best = MOST + 1
    for job in jobs:
        rows = price(question, pricer, job, 0)
        for tokens in np.unique(rows.tokens) if rows else ():
            some = rows.take(np.flatnonzero(rows.tokens == tokens))
            for count in range(1, MOST // job.plan.size + 1):
                carried = [x for x, tpot in zip(some.each, some.tpot_s, strict=True) if tpot <= request.tpot_s]
                if not carried or count * max(carried) < wanted:
                    continue
                at = next(i for i, x in enumerate(some.each) if count * x >= rate)
                if some.random_ttft_s[at] <= request.ttft_s and some.tpot_s[at] <= request.tpot_s:
                    best = min(best, count * job.plan.size)
    if question.disaggregated:
        best = min(best, exhaustive_pools(question, pricer, jobs, wanted))
    return best if best <= MOST else None


def exhaustive_pools(question, pricer, jobs, wanted) -> int:
    """The same of separate prefill and decode instances of any two layouts."""
    batches = np.unique(np.round(np.exp2(np.arange(0.0, 13.01, 0.125))))
    best = MOST + 1
    decodes = [(job, Decode.of(question, pricer, job, batches)) for job in jobs]
    for gpus in (8, MOST):  # within a node the cache goes over its link
        for job in jobs:
            if question.prefill_lacks_bytes(job.plan) > 0:
                continue
            first = Prefill.of(replace(question, num_gpus=gpus), pricer, job, 0)
            for prefills in range(1, gpus // job.plan.size + 1):
                wait = (question.ttft_s - first.sent_s) / first.prompt_s - 1.0
                if wait <= 0:
                    continue
                share = min(0.9, highest_utilisation_within(wait, np.array([float(prefills * first.at_once)]))[0])
                if share * prefills * first.requests_per_s < wanted:
                    continue
                for other, second in decodes:
                    if second is None or (other.plan.weights, other.plan.kv) != (job.plan.weights, job.plan.kv):
                        continue
                    for count in range(1, (gpus - prefills * job.plan.size) // other.plan.size + 1):
                        within = second.step_s / question.lengths.tokens_per_step <= question.tpot_s
                        if (count * second.requests_per_s[within] >= wanted).any():
                            best = min(best, prefills * job.plan.size + count * other.plan.size)
                            break
    return best


@pytest.mark.parametrize("seed", [pytest.param(i, marks=pytest.mark.long if i < 8 else pytest.mark.soak) for i in range(30)])
def test_the_fewest_gpus_are_those_of_exhaustive_search(seed):
    request = replace(drawn(seed), simulate=0)
    found, least = answer(request), exhaustive(request)
    assert (found.reports[0].gpus if found.reports else None) == least


@pytest.mark.judge
@pytest.mark.parametrize("seed", [pytest.param(i, marks=() if i < 3 else pytest.mark.soak) for i in range(30)])
def test_on_one_gpu_fewer_no_deployment_keeps_the_limits_in_the_simulation(seed):
    """The question asked of every smaller number of GPUs has no answer; of that number it has the same."""
    request = drawn(seed)
    found = answer(request)
    counts = [gpus for gpus in range(1, MOST + 1) if answer(replace(request, gpus=gpus)).reports]
    assert (found.reports[0].gpus if found.reports else None) == (counts[0] if counts else None)


@pytest.mark.parametrize("rate", [0.0, 6.0])
def test_every_deployment_books_the_gpus_of_its_plan(rate):
    """Both pools, none of those that neither uses; seven GPUs, so that instances of two and four do not fill them."""
    request = ServeRequest(model="llama3-70b", gpu="h200", gpus=7, isl=2000, osl=200, rate=rate, ttft_s=2.0, tpot_s=0.05)
    found = rank(replace(understand(request), aggregated=False).in_means())
    plans = [found.plan(row) for row in range(0, len(found.columns.gpus), 7)]
    assert {one.decode.size for one in plans} >= {1, 2, 4} and all(one.prefill for one in plans)
    assert [one.gpus for one in plans] == found.columns.gpus[::7].tolist()
