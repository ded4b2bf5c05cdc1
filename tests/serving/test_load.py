"""Closed form and simulation of the same deployment: they agree below saturation, and an answer keeps the limits it names."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest

from autoconfig.render.first.deployments import show
from autoconfig.render.screen import Screen
from autoconfig.render.serving import show_answer
from autoconfig.serving.answer import answer
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.question import understand
from autoconfig.serving.rank import rank
from autoconfig.serving.request import ServeRequest

SIZES = (
    {"gpus": 2, "isl": 1000, "osl": 500, "engine": "vllm", "fix": ("tp=2", "weights=fp8", "kv=fp8", "tokens=512")},
    {"gpus": 4, "isl": 2000, "osl": 200, "fix": ("tp=4", "pp=1", "weights=fp8", "kv=fp8", "tokens=4096")},
    {"gpus": 4, "isl": 200, "osl": 1000, "engine": "sglang", "fix": ("tp=4", "pp=1", "weights=bf16", "kv=bf16", "tokens=512")},
)
FULL = ServeRequest(model="llama3-70b", gpu="h200", gpus=8, isl=1000, osl=1000)


def asked(**given) -> ServeRequest:
    return ServeRequest(**{"model": "llama3-70b", "gpu": "h200", "disaggregated": False, "top": 1, "simulate": 1, **given})


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES, ids=lambda size: size["isl"])
def test_table_and_simulation_agree_below_saturation_and_grow_with_the_rate(size):
    most = answer(asked(**size, simulate=0)).reports[0].requests_per_s
    seen = []
    for share in (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        (one,) = answer(asked(**size, rate=share * most)).reports
        simulated = one.latency
        assert one.ttft_s == pytest.approx(simulated.ttft_seconds.mean, rel=0.35), share
        assert one.tpot_s == pytest.approx(simulated.tpot_seconds.mean, rel=0.1), share
        assert one.concurrency == pytest.approx(share * most * simulated.e2e_seconds.mean, rel=0.15, abs=1.0), share
        seen.append((one.concurrency, one.tpot_s, one.ttft_s))
    assert (np.diff(np.array(seen), axis=0) >= 0).all() and seen[-1][0] > 10 * seen[0][0]


def test_a_load_finds_the_state_that_a_system_reaches_from_empty():
    """512 tokens an iteration: 470 users on each of two instances carry 9.5 requests a second as well, and wait a minute."""
    found = rank(understand(asked(gpus=8, isl=1000, osl=500, engine="vllm", rate=9.5)))
    c = found.columns
    pairs = np.isin(c.layout, [i for i, plan in enumerate(found.layouts) if plan.tp == 2])
    two = (c.replicas == 2) & (c.tokens == 512) & pairs
    assert two.sum() >= 3 and c.ttft_s[two].max() < 0.5 and c.batch[two].max() < 150
    spare = c.most_batch * c.replicas / (c.batch * c.replicas)
    assert (c.requests_per_s == 9.5).all() and (spare >= 1.0).all() and spare.max() > 5.0


@pytest.mark.parametrize(
    ("ttft", "tpot", "more"), [(0.3, None, {}), (0.1, 0.04, {}), (0.2, None, {"osl": 100, "isl_stddev": 800})]
)
def test_the_recommended_of_a_full_queue_keeps_the_limits_in_the_simulation(ttft, tpot, more):
    best = answer(replace(FULL, ttft_s=ttft, tpot_s=tpot, **more)).reports[0].latency
    assert best.ttft_seconds.mean <= ttft and best.tpot_seconds.mean <= (tpot or np.inf) and best.goodput_ratio > 0.4


VARIED = ServeRequest(
    model="llama3-8b", gpu="h100", gpus=1, isl=4000, osl=100, isl_stddev=4000, osl_stddev=100, ttft_s=0.24,
    fix=("weights=fp8", "kv=bf16"),
)  # fmt: skip


def test_closer_limits_are_asked_of_the_closed_form_where_the_simulation_breaks_them():
    """Prompts of 4,000 +- 4,000 tokens: 221 ms in closed form and 249 in the simulation with 45 users."""
    within = answer(VARIED)
    assert within.reports[0].latency.ttft_seconds.mean <= 0.24
    assert "in closed form: others break the limits" in within.sensitivity[0]
    other = answer(replace(VARIED, fix=()))
    assert other.reports[0].tokens_per_s_per_gpu >= within.reports[0].tokens_per_s_per_gpu
    none = answer(replace(VARIED, fix=(*VARIED.fix, "batch=45")))
    assert not none.reports and none.nearest.ttft_s < 0.24 < none.nearest.latency.ttft_seconds.mean
    assert "in the simulation the nearest deployment misses by" in none.infeasible and "--rate" not in none.infeasible


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize(("isl", "osl", "batch"), [(4000, 100, 512), (1500, 300, 512), (500, 1000, 256)])
def test_table_and_simulation_agree_on_the_first_token_of_a_full_queue(isl, osl, batch, spread):
    """Also where prompts take most of the time: 4,000 tokens in, 100 out, 1.8 s beside 0.5 where each was let queue."""
    (one,) = answer(asked(gpus=8, isl=isl, osl=osl, isl_stddev=spread * isl, osl_stddev=spread * osl,
                          fix=("tp=1", "pp=1", "weights=fp8", "kv=fp8", f"batch={batch // 8}"))).reports  # fmt: skip
    assert one.ttft_s == pytest.approx(one.latency.ttft_seconds.mean, rel=0.25)
    assert one.tpot_s == pytest.approx(one.latency.tpot_seconds.mean, rel=0.05)


LIGHT = ServeRequest(
    model="llama3-8b", gpu="h100", gpus=2, isl=1000, osl=300, isl_stddev=800, osl_stddev=200, simulate=2, top=2
)


@pytest.mark.long
def test_limits_of_percentiles_are_kept_in_the_simulation():
    """A limit of p99 costs throughput where bursts break it, and is said as what it is."""
    asked = replace(LIGHT, rate=20.0)
    free = answer(asked).reports[0]
    assert free.latency.ttft_seconds.p99 > 0.1 > free.latency.ttft_seconds.mean
    found = answer(replace(asked, ttft_p99_s=0.1))
    assert found.reports[0].latency.ttft_seconds.p99 <= 0.1 and found.question.ttft_s is None
    assert found.reports[0].tokens_per_s_per_gpu <= free.tokens_per_s_per_gpu
    assert "within TTFT p99 <= 100 ms" in found.why[0]
    assert serve_json(found).question.percentile_limits_seconds == {"ttft_p99": 0.1}
    none = answer(replace(asked, ttft_p99_s=0.06))
    assert not none.reports and "in the simulation the nearest" in none.infeasible and "(TTFT p99" in none.infeasible
    assert re.match(r"limits are met by none of \d+ deployments that were tried", none.infeasible)
    below = answer(replace(asked, ttft_p99_s=0.01))  # already beyond it in closed form, which knows means
    assert re.search(r"\(mean TTFT [\d.]+ ms, with TTFT p99 at most 10\)", below.infeasible)
    steady = answer(replace(LIGHT, gpus=1, tpot_p95_s=0.01)).reports[0]
    assert steady.latency.tpot_seconds.p95 <= 0.01 < answer(replace(LIGHT, gpus=1)).reports[0].latency.tpot_seconds.p95


@pytest.mark.parametrize(("gpus", "held"), [(8, True), (2, False)])
def test_what_the_simulation_refuted_is_marked_and_counted(gpus, held):
    """The deployment on two GPUs does most tokens/s/GPU and breaks the limit: nothing may say that it is within it."""
    load = {"isl": 1000, "osl": 500, "rate": 3.0, "ttft_p99_s": 0.5, "tpot_p99_s": 0.04}
    load["fix"] = ("weights=fp8", "kv=fp8", "tokens=2048", "pp=1", "tp=2")
    found = answer(asked(gpu="h100", gpus=gpus, engine="vllm", simulate=3, top=3, **load))
    (refuted,) = [one for one in found.simulated if one.latency.ttft_seconds.p99 > 0.5]
    file = io.StringIO()
    show_answer(Screen(file=file, width=180), found)
    text = file.getvalue()
    frontier = [
        line for line in text.partition("Pareto frontier")[2].splitlines() if line.rstrip().endswith(f" {refuted.plan}")
    ]
    assert len(frontier) == 1 and "ms !" in frontier[0]
    kept, all_of = len(found.simulated) - 1, len(found.simulated)
    assert f"meet the limits in closed form, {kept} of {all_of} tried in the simulation" in text and "tables are means" in text
    assert bool(found.reports) == held == (kept > 0)
    if held:
        assert refuted.tokens_per_s_per_gpu > found.reports[0].tokens_per_s_per_gpu
        assert found.why[0].startswith(f"most tokens/s/GPU of the {kept} that are within TTFT p99 <= 500 ms")
        assert f"of {all_of} simulated" in found.why[0]
        assert any(f"closed form: {refuted.plan}, in the simulation TTFT p99" in line for line in found.why)


def test_a_limit_is_out_of_reach_only_where_the_fastest_of_each_tp_breaks_it():
    """What is first by throughput has tp=1, at any number of instances; of tp=2 and 4 some are within the limit."""
    asked_of = {"model": "llama3-8b", "gpu": "h100", "gpus": 8, "isl": 2000, "osl": 300, "fix": ("kv=fp8", "weights=fp8")}
    found = answer(asked(**asked_of, rate=40.0, ttft_p95_s=0.09))
    assert found.reports and found.reports[0].latency.ttft_seconds.p95 <= 0.09
    assert found.reports[0].plan.decode.tp > 1 and any(one.plan.decode.tp == 1 for one in found.simulated)


ONE_SIZE = {"model": "llama3-8b", "gpu": "h100", "gpus": 8, "isl": 2000, "osl": 300}


def test_the_fewest_gpus_that_keep_a_limit_in_the_simulation():
    """One GPU carries the mean load, and bursts break the limit on fewer than seven."""
    found = answer(asked(**ONE_SIZE, fix=("tp=1", "pp=1", "weights=fp8", "kv=fp8"), rate=10.0, ttft_p99_s=0.09))
    assert found.reports[0].gpus == 7 and found.reports[0].latency.ttft_seconds.p99 <= 0.09
    assert found.sensitivity[0].endswith("on fewer than 7 bursts break the limits in the simulation")


@pytest.mark.parametrize(("tails", "least"), [({}, 8), ({"tpot_p95_s": 0.1}, 200), ({"ttft_p99_s": 100.0}, 1000)])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_limited_percentile_has_ten_requests_beyond_it(rate, tails, least):
    few = answer(replace(LIGHT, gpus=1, fix=("batch=2",), top=1, simulate=1, tpot_s=1.0, rate=rate, **tails))
    counted = few.reports[0].latency.requests
    assert least <= counted < max(2 * least, 30)
    trace = [{"timestamp": 500 * i, "input_length": 900, "output_length": 90} for i in range(40)]
    found = answer(replace(LIGHT, gpus=1, isl=None, osl=None, isl_stddev=None, osl_stddev=None, trace=trace, top=1, **tails))
    file = io.StringIO()
    show_answer(Screen(file=file, width=180), found)
    said = re.search(r"(T\w+ p9\d) rests on the (\d) slowest of 40 requests", file.getvalue())
    assert (said is not None) == bool(tails) and (not said or said[2] == {"TPOT p95": "2", "TTFT p99": "1"}[said[1]])


@pytest.mark.long
@pytest.mark.parametrize(("gpus", "rate", "most"), [(8, 1000.0, 236), (230, 1000.0, 236), (3, 1000.0, 236), (1, 8.0, 2)])
def test_gpus_that_are_named_as_a_remedy_carry_the_load(gpus, rate, most):
    """The fewest that do, whether they fill nodes or not."""
    load = {"isl": 1000, "osl": 500, "rate": rate, "ttft_s": 1.0}
    ask = asked(gpu="h100", gpus=gpus, engine="vllm", simulate=0, fix=("weights=fp8",), **load)
    text = answer(ask).infeasible
    assert f"not carry {rate:,.0f} requests/s" in text
    named = int(re.search(r"GPUs carry it: --gpus ([\d,]+)", text)[1].replace(",", ""))
    assert named == most and answer(replace(ask, gpus=named)).deployments.carries
    assert not answer(replace(ask, gpus=named - 1)).deployments.carries


@pytest.mark.long
def test_no_rate_is_named_as_within_limits_that_were_not_judged_at_it():
    ask = replace(FULL, isl=2000, osl=300, ttft_p99_s=0.16, top=1, simulate=1)
    some, much = answer(replace(ask, rate=7.14)).infeasible, answer(replace(ask, rate=40.0)).infeasible
    assert "requests/s" not in some and "a lower --rate" in some
    assert "carries 7.14" in much and "whether the limits are met there is not known" in much


def test_the_answer_fits_a_screen_and_all_of_it_is_shown_when_asked():
    found, texts = answer(replace(FULL, ttft_s=0.3, tpot_s=0.05)), []
    for verbose in (False, True):
        file = io.StringIO()
        show(Screen(file=file, width=180, verbose=verbose), found)
        texts.append(file.getvalue().splitlines())
    assert len(texts[0]) <= 24 and sum(line.startswith("START ") for line in texts[0][:3]) == 1
    said = [sum(line.startswith("  simulated ") for line in text) for text in texts]
    assert said == [0, 3]
    assert str(found.reports[0].plan) in "".join(line.strip() for line in texts[0])
    assert all(str(one.plan) in "".join(line.strip() for line in texts[1]) for one in (*found.reports, *found.pareto))
