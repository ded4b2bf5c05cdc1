"""A benchmark of N users: one number in `predict --inference` and `deployments`; the columns of a row; terms by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.engines.plan import ServedPlan, StartOptions
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import WEIGHT_BYTES, load_engine, module_formats
from autoconfig.time_model.serving.ideal import experts_bounds
from autoconfig.time_model.serving.iteration import (
    IterationTable,
    constant_vector,
    iteration_features,
    iteration_parts,
    iteration_seconds,
)
from autoconfig.time_model.serving.rows import TILE_ROWS, ServingJob, experts_seconds
from autoconfig.time_model.serving.scheduler import scheduler_limits
from autoconfig.time_model.serving.simulation import uniform_lengths
from autoconfig.time_model.serving.tables import EngineConstants, PooledTerms, StepTerms, shipped_calibration

from autoconfig.runs.predict_serving import best_setup, open_loop, predict_rows, server_of, set_up
from autoconfig.runs.serving_row import read_case
from autoconfig.serving.answer import answer
from autoconfig.serving.closed_loop import bands_text
from autoconfig.serving.deployment import near_capacity
from autoconfig.serving.request import ServeRequest

ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100-SXM-80GB", "n_gpus": "1", "tp": "1", "isl": "1024", "osl": "256", "weights": "fp8",
    "kv": "fp8", "backend": "vllm", "scenario": "concurrency 16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "users", "gpus"), [("vllm", 16, 1), ("sglang", 64, 2), ("trtllm-1.2", 8, 1), ("vllm", 256, 4)]
)
def test_a_row_and_a_deployment_say_the_same(engine, users, gpus):
    row = {**ROW, "backend": engine, "scenario": f"concurrency {users}", "n_gpus": f"{gpus}", "tp": f"{gpus}",
           "max_num_batched_tokens": "8192"}  # fmt: skip
    (said,) = predict_rows([row])
    fixed = (f"tp={gpus}", "pp=1", "weights=fp8", "kv=fp8", f"batch={users}", "tokens=8192")
    asked = ServeRequest(model="llama3.1-8b", gpu="h100", gpus=gpus, engine=engine, isl=1024, osl=256, fix=fixed, simulate=0,
                         tpot_s=60.0, disaggregated=False)  # fmt: skip
    found = answer(asked).reports[0].benchmark
    assert (found.users, found.requests, found.range_ratio) == (users, 10 * users, 0.8)
    assert found.ttft_seconds * 1e3 == pytest.approx(said.ttft_ms) and found.tpot_seconds * 1e3 == pytest.approx(said.tpot_ms)
    assert found.tokens_per_second_per_gpu == pytest.approx(said.out_tok_s_gpu)


def test_columns_of_a_benchmark():
    plain = read_case(ROW)
    assert (plain.load, plain.requests, plain.range_ratio, plain.receive_every) == ("closed", 160, 0.8, 1)
    given = {"requests": "64", "range_ratio": "1", "max_num_batched_tokens": "4096", "recv_interval": "10",
             "kv_fraction": "0.5",
             "speculative": "mtp 3 0.8", "max_num_seqs": "8"}  # fmt: skip
    case = read_case({**ROW, **given})
    assert (case.requests, case.range_ratio, case.tokens, case.receive_every) == (64, 1.0, 4096, 10)
    assert (case.kv_fraction, case.drafted, case.acceptance, case.max_batch) == (0.5, 3, 0.8, 8)
    assert read_case({**ROW, "speculative": "none"}).drafted == 0 and read_case({**ROW, "speculative": "eagle-2"}).drafted == 2
    for name, wrong in (("range_ratio", "1.2"), ("kv_fraction", "0"), ("speculative", "yes please"), ("recv_interval", "0")):
        with pytest.raises(InputError, match=name):
            read_case({**ROW, name: wrong})


COLUMNS = {
    "requests": "16", "range_ratio": "0.2", "max_num_batched_tokens": "512", "max_num_seqs": "8", "recv_interval": "50",
    "kv_fraction": "0.35", "speculative": "mtp 2 0.8", "checkpoint": "nvidia/Llama-3.1-8B-Instruct-FP8",
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_of_a_benchmark_changes_the_answer(name):
    row = {**ROW, "isl": "2048", "weights": "bf16", "kv": "bf16", "scenario": "concurrency 32"}
    plain, other = predict_rows([row, {**row, name: COLUMNS[name]}])
    figures = [(one.ttft_ms, one.tpot_ms, one.max_concurrency) for one in (plain, other)]
    assert None not in figures[1] and figures[0] != figures[1]


def test_blank_degrees_beside_users_are_one():
    moe = {**ROW, "model": "Qwen3-30B-A3B", "n_gpus": "4", "tp": "4"}
    blank, one = predict_rows([moe, {**moe, "ep": "1", "attn_dp": "1"}])
    assert (blank.ttft_ms, blank.tpot_ms) == (one.ttft_ms, one.tpot_ms)


def test_a_release_that_schedules_synchronously_waits_for_its_host():
    """vLLM before 0.14: one host time more in every step, and no step in which a request waits for the next."""
    job = _job(synchronous_step_s=2e-3)
    assert replace(job, synchronous=True).launches_s == pytest.approx(job.launches_s + 2e-3)
    old, new = (read_case({**ROW, "backend_version": version}) for version in ("0.11.0", "0.15.1"))
    jobs = [set_up(case, case.plans[0], shipped_calibration()).job for case in (old, new)]
    assert [job.synchronous for job in jobs] == [True, False]
    limits = [scheduler_limits(job.engine, batch=1, tokens=1, kv_tokens=1.0, synchronous=job.synchronous) for job in jobs]
    assert [one.late for one in limits] == [False, True]


def test_what_columns_do_to_the_figures():
    """Drafts that are accepted shorten TPOT, few sequences at once lengthen TTFT, a long look-out too, alike lengths none."""
    base, drafts, few, rare = predict_rows(
        [ROW, {**ROW, "speculative": "mtp 3 0.9"}, {**ROW, "max_num_seqs": "4"}, {**ROW, "recv_interval": "200"}]
    )
    assert drafts.tpot_ms < 0.6 * base.tpot_ms and few.ttft_ms > 3 * base.ttft_ms and few.tpot_ms < base.tpot_ms
    assert rare.ttft_ms > 1.5 * base.ttft_ms
    moe = {**ROW, "model": "gpt-oss-120b", "weights": "mxfp4", "n_gpus": "8", "tp": "8"}
    assert [(plan.adp, plan.ep) for plan in read_case(moe).plans] == [(1, 1)]
    assert len(read_case({**moe, "scenario": "offline", "backend": "trtllm"}).plans) > 1
    assert "nine in ten measured TPOT" in base.note.split(";")[0]


def test_a_checkpoint_names_the_formats():
    row = {**ROW, "model": "DeepSeek-R1", "gpu": "B200", "n_gpus": "8", "tp": "8", "weights": "fp4"}
    some = read_case({**row, "checkpoint": "nvidia/DeepSeek-R1-0528-FP4"})
    assert some.checkpoint is not None and some.checkpoint.formats(some.model).attention == "bf16"
    assert read_case(row).checkpoint is None


def test_a_load_near_the_capacity_is_a_range():
    """Users who ask for about all of the cache: TTFT of a cache a tenth smaller and larger; elsewhere none. So at a rate."""
    users = [{**ROW, "model": "Qwen3-32B", "isl": "8192", "osl": "1024", "scenario": f"concurrency {n}"} for n in (8, 40, 60)]
    few, near, many = predict_rows(users)
    assert few.ttft_range_ms is None and many.ttft_range_ms is None and "requests wait" in many.note
    low, high = near.ttft_range_ms
    assert low <= near.ttft_ms <= high and high > 1.3 * low and near.note.startswith("a range: users ask for")
    assert near.cells()["pred_ttft_range_ms"] == f"{low:.6g} to {high:.6g}"
    rate = {**ROW, "scenario": "online", "kind": "online_qps", "offered_qps": "1000", "requests": "300"}
    most = float(re.search(r"takes ([0-9.e+]+) requests/s at most", predict_rows([rate])[0].note)[1])
    half, full = predict_rows([{**rate, "offered_qps": str(most / 2)}, {**rate, "offered_qps": str(most)}])
    assert half.ttft_range_ms is None and full.ttft_range_ms[0] <= full.ttft_ms <= full.ttft_range_ms[1]
    assert full.note.startswith("a range: 1.00 of the")


def test_the_most_that_a_server_takes_is_what_it_serves_when_more_comes():
    """Of requests of one length that come at random, in the second half of a run far above the most: not in step."""
    lengths, formats = {"isl": "1000", "osl": "300"}, {"weights": "bf16", "kv": "bf16"}
    load = {"scenario": "online", "kind": "online_qps", "max_num_seqs": "128", "offered_qps": "18"}
    row = {**ROW, "model": "Qwen3-8B", **formats, **lengths, **load}
    case = read_case(row)
    setup = best_setup(case, shipped_calibration())
    served = open_loop(case, setup).served
    ended = np.sort(served.arrival_s + served.e2e_s)
    first, last = len(ended) // 2, len(ended) * 19 // 20
    most = server_of(case, setup).most_requests_per_s()
    assert most == pytest.approx((last - first) / (ended[last] - ended[first]), rel=0.05)
    for share, said in ((0.8, ""), (0.95, "a range"), (1.2, "the queue grows without end")):
        found = predict_rows([{**row, "offered_qps": f"{share * most:.3f}"}])[0]
        assert (found.ttft_range_ms is not None) == (said == "a range") and said in found.note


def test_a_deployment_near_its_most_is_a_range():
    """Asked for 20 requests a second, then for as many as a queue that is never empty is served (about 33), and for 10."""
    asked = ServeRequest(model="llama3.1-8b", gpu="h100", gpus=1, engine="vllm", isl=1024, osl=256, rate=20.0, simulate=1,
                         fix=("tp=1", "weights=fp8", "kv=fp8"), tpot_s=60.0, disaggregated=False)  # fmt: skip
    found = answer(asked)
    one = found.reports[0]
    for rate, near in ((10.0, False), (33.0, True)):
        latency = near_capacity(replace(found.question, rate=rate), one).latency
        assert (latency.ttft_range_seconds is not None) == near
    low, high = latency.ttft_range_seconds
    assert low < high and latency.tpot_range_seconds[0] < latency.tpot_range_seconds[1]


def test_bands_say_what_was_measured():
    constants = EngineConstants(bands={"tpot": (0.8, 1.3)})
    said = "nine in ten measured TPOT 0.80 to 1.30 times what is said"
    assert bands_text(EngineConstants()) == "" and bands_text(constants) == said
    unseen = replace(constants, unseen="turing")
    assert bands_text(unseen) == f"no measured run on a GPU of this generation (turing): {said}"
    old, new = predict_rows(
        [{**ROW, "gpu": gpu, "model": "Qwen3-4B", "weights": "bf16", "kv": "bf16"} for gpu in ("T4", "H200")]
    )
    assert old.note.startswith("no measured run on a GPU of this generation (turing)") and new.note.startswith("nine in ten")


def test_a_benchmark_that_needs_more_memory_than_the_default_is_priced_at_more():
    """DeepSeek-R1's 168 GB a GPU on four B200: not at SGLang's own share, but at 0.95."""
    row = {**ROW, "model": "DeepSeek-R1", "gpu": "B200", "n_gpus": "4", "tp": "4", "backend": "sglang", "kv": "bf16"}
    found, given = predict_rows([row, {**row, "kv_fraction": "0.95"}])
    assert found.fits is False and found.note.startswith("does not fit at the engine's own share of memory; priced at 0.95")
    assert given.fits and found.tpot_ms == given.tpot_ms
    none = predict_rows([{**row, "n_gpus": "2", "tp": "2"}])[0]
    assert none.fits is False and none.tpot_ms is None


def test_lengths_of_a_benchmark():
    found = uniform_lengths(1000.0, 0.8, 100_000, np.random.default_rng(1))
    assert (found.min(), found.max()) == (800, 1000) and found.mean() == pytest.approx(900, rel=1e-3)
    assert set(uniform_lengths(1000.0, 1.0, 5, np.random.default_rng(1)).tolist()) == {1000.0}


@pytest.mark.parametrize(
    ("engine", "gpu", "release", "limits"),
    [
        ("vllm", "h100", "", (1024, 8192)), ("vllm", "l40s", "", (256, 2048)), ("vllm", "a100", "0.11", (256, 2048)),
        ("vllm", "a100", "0.8.5", (1024, 8192)), ("vllm", "b200", "0.11", (1024, 8192)),
        ("sglang", "rtx-4090", "0.5.6", (1024, 2048)), ("sglang", "h200", "", (1024, 8192)),
        ("trtllm-1.2", "h100", "", (2048, 8192)),
    ],
)  # fmt: skip
def test_limits_of_the_scheduler_by_card_and_release(engine, gpu, release, limits):
    model, one = load_model("llama3.1-8b"), load_gpu(gpu)
    plan, options = EnginePlan(tp=1, weights="bf16", kv="bf16"), StartOptions(release=release)
    formats = module_formats(model, "bf16", one)
    served = ServedPlan(model=model, plan=plan, formats=formats, gpu=one, engine=load_engine(engine), options=options)
    assert served.limits() == limits


def test_users_beyond_the_engines_sequences_wait():
    """An A100 runs 256 sequences by default: 300 users wait, 200 do not."""
    row = {**ROW, "gpu": "A100-SXM-80GB", "weights": "bf16", "kv": "bf16", "isl": "64", "osl": "64"}
    few, many, more = predict_rows(
        [{**row, "scenario": "concurrency 200"}, {**row, "scenario": "concurrency 512"},
         {**row, "scenario": "concurrency 512", "max_num_seqs": "512"}]
    )  # fmt: skip
    assert many.ttft_ms > 1.5 * more.ttft_ms and few.ttft_ms < more.ttft_ms and many.tpot_ms < more.tpot_ms


def _job(**terms) -> ServingJob:
    model, gpu = load_model("deepseek-v3"), load_gpu("h200")
    plan = EnginePlan(tp=1, adp=8, ep=8, weights="fp8", kv="bf16")
    return ServingJob(model=model, gpu=gpu, plan=plan, engine=load_engine("vllm"),
                      constants=EngineConstants(layer_s=1e-6, terms=StepTerms(**terms)))  # fmt: skip


def test_experts_are_bytes_and_arithmetic():
    """Of 8 x 64 tokens, 8 experts each, 16 rows an expert of 256, 32 on a rank; fp8 blocks; rows pass twice."""
    job = _job(experts={"fp8_block": 0.5}, experts_rows=2.0, experts_arithmetic={"fp8_block": 4.0})
    memory, arithmetic = (float(x) for x in experts_seconds(job, np.float64(64.0)))
    active = 32 * (1 - np.exp(-16.0))
    compute, _ = experts_bounds(16.0, 32.0, active, 7168.0, 2048.0, "fp8_block", job.gpu)
    weights, rows = 3 * active * 7168 * 2048 * WEIGHT_BYTES["fp8_block"], 4 * 16 * 32 * (7168 + 2048)
    assert memory == pytest.approx((0.5 * weights + 2.0 * rows) / job.gpu.hbm_bytes_per_s)
    assert arithmetic == pytest.approx(4.0 * compute * (1 + TILE_ROWS * active / (16 * 32)))


def test_launches_of_a_step_by_kind():
    """61 layers of 1 us, 58 MoE layers of 20 and 50 us under attention data parallelism; prompts 2 ms and 61 of 0.1."""
    job = _job(moe_layer_s={"fp8_block": 20e-6}, gathered_layer_s=50e-6, eager_step_s=2e-3, eager_layer_s=1e-4)
    assert job.launches_s == pytest.approx(61e-6 + 58 * 70e-6) and job.prompts_s == pytest.approx(2e-3 + 61e-4)
    bare = replace(job, constants=EngineConstants(terms=StepTerms()))
    alone, mixed = (
        float(iteration_seconds(job, 8.0, 512.0, p, 512.0) - iteration_seconds(bare, 8.0, 512.0, p, 512.0)) for p in (0.0, 1.0)
    )
    assert alone == pytest.approx(job.launches_s) and mixed == pytest.approx(job.launches_s + job.prompts_s)
    graphed = float(iteration_seconds(job, 8.0, 512.0, 1.0, 504.0) - iteration_seconds(bare, 8.0, 512.0, 1.0, 504.0))
    assert graphed == pytest.approx(job.launches_s)  # 512 tokens are in vLLM's piecewise graphs
    table = IterationTable(job)
    assert table.seconds(8.0, 512.0, 1.0, 505.0, 505.0) - table.seconds(8.0, 512.0, 1.0, 504.0, 505.0) > 0.9 * job.prompts_s
    parts = iteration_parts(job, 8.0, 512.0, 1.0, 512.0)
    whole = float(iteration_features(job, 8.0, 512.0, 1.0, 512.0) @ constant_vector(job.constants))
    assert float(sum(parts.values())) == pytest.approx(whole)
    looked_up = IterationTable(job).seconds(8.0, 512.0, 1.0, 512.0, 512.0)
    assert looked_up == pytest.approx(whole, rel=0.02)


def test_factors_of_parts():
    """Half of what linear layers and decode attention take beyond the roofline, three times the prompts' attention."""
    plain, slow, best = (
        _job(),
        _job(linear=0.5, prefill_attention={"latent": 3.0}, decode_attention=0.5),
        _job(linear=0.0, decode_attention=0.0),
    )
    for name in ("linear", "output layer", "decode attention", "prefill attention"):
        a, b, least = (float(iteration_parts(job, 8.0, 512.0, 1.0, 512.0)[name]) for job in (slow, plain, best))
        if name == "prefill attention":
            assert a == pytest.approx(3.0 * b) and least == b
        else:
            assert least < b and a == pytest.approx((b + least) / 2), name
    twice = _job(pointwise=2.0)
    a, b = (float(iteration_parts(job, 8.0, 512.0, 1.0, 512.0)["pointwise"]) for job in (twice, plain))
    assert b < a < 2.0 * b


def test_pooled_terms_are_products():
    gpu = load_gpu("b200")
    deviations = {"linear": {"engine:vllm": 1.1, "architecture:blackwell": 0.9, "architecture:hopper": 7.0},
                  "experts": {"kind:nvfp4": 0.5, "engine:sglang": 7.0}}  # fmt: skip
    pooled = PooledTerms(engines=("vllm",), values={"linear": 0.8, "experts": 0.9, "request_s": 0.01}, deviations=deviations)
    found = pooled.constants("vllm", gpu)
    assert found.terms.linear == pytest.approx(0.8 * 1.1 * 0.9) and found.request_s == 0.01
    assert found.terms.experts["nvfp4"] == pytest.approx(0.45) and found.terms.experts["bf16"] == pytest.approx(0.9)


def test_shipped_constants_are_plausible():
    """Engines of one kind, hosts hidden, bands no wider than promised."""
    shipped = shipped_calibration()
    for name in ("vllm", "sglang"):
        found = shipped.constants(load_engine(name), load_gpu("h200"))
        assert found.terms is not None and found.host_s == 0.0 and 0.3 < found.terms.linear < 1.3
        (low, high), (least, most) = found.bands["tpot"], found.bands["ttft"]
        assert 0.70 <= low < 1 < high <= 1.45 and 0.60 <= least < 1 < most <= 1.90
    assert shipped.constants(load_engine("trtllm-1.2"), load_gpu("h200")).terms is None
