"""Iterations of a serving engine: limits that must hold exactly, and closed form against event-level simulation."""

import dataclasses
import heapq
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.iteration import (
    IterationTable,
    _linear,
    _position,
    constant_vector,
    iteration_features,
    iteration_parts,
    iteration_seconds,
)
from autoconfig.time_model.serving.rows import ServingJob, linear_seconds, reduce_seconds
from autoconfig.time_model.serving.simulation import (
    PromptBalance,
    Requests,
    SchedulerLimits,
    SimulatedStream,
    sampled_lengths,
    simulate,
)
from autoconfig.time_model.serving.steady import (
    Lengths,
    Pricer,
    busiest_prompts,
    generation,
    highest_utilisation_within,
    steady_state,
    tokens_per_step,
    waiting_services,
)
from autoconfig.time_model.serving.tables import (
    NO_CALIBRATION,
    EngineConstants,
    ServingCalibration,
    serving_tables_of,
    shipped_calibration,
)
from autoconfig.time_model.serving.workload import (
    DataSet,
    data_set_of_lengths,
    offline_requests,
    trtllm_bench_limits,
    trtllm_bench_table,
    tuned_batch,
)
from small_models import H100, H200
from tables import tabled


def job(name="llama3-8b", gpu=H100, engine="trtllm-1.2", constants=None, **plan):
    plan = {"weights": "fp8", "kv": "fp8", **plan}
    return ServingJob(
        model=load_model(name), gpu=gpu, plan=EnginePlan(**plan), engine=load_engine(engine),
        constants=constants or shipped_calibration().constants(load_engine(engine), gpu),
    )  # fmt: skip


def test_every_table_is_at_most_the_roofline():
    for gpu in ("a100-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb", "l40s-48gb", "rtx-pro-6000-96gb"):
        tables = serving_tables_of(load_gpu(gpu))
        for group in (tables.gemm, tables.decode_attention, tables.context_attention, tables.experts, tables.latent_attention):
            for name, table in group.items():
                assert np.exp(table.logs).max() <= 0.9501, (gpu, name)
                assert np.isfinite(table.logs).all()


def test_every_gpu_has_tables_or_a_refusal_that_names_those_that_have():
    for name in gpu_ids():
        try:
            serving_tables_of(load_gpu(name))
        except InputError as error:
            assert "h100-sxm-80gb" in str(error)


def test_a_chip_with_more_bandwidth_reads_its_cache_faster():
    """GH200 has no rows of its own: H100's shares on its own memory."""
    gh200 = load_gpu("gh200-96gb")
    assert serving_tables_of(gh200) is serving_tables_of(H100)
    slow = iteration_parts(job(), 512.0, 4096.0, 0.0, 1.0)["decode attention"]
    fast = iteration_parts(dataclasses.replace(job(), gpu=gh200), 512.0, 4096.0, 0.0, 1.0)["decode attention"]
    calibrated = job().constants.factor
    assert slow / fast == pytest.approx(gh200.hbm_bytes_per_s / H100.hbm_bytes_per_s)
    assert calibrated > 0


def reduced(gpu, ranks, total_bytes):
    """Seconds of an all-reduce within a node that is large enough."""
    return reduce_seconds(dataclasses.replace(job(gpu=gpu), gpus_per_node=72), ranks, total_bytes)


@pytest.mark.parametrize("name", ["h100-pcie-80gb", "h800-80gb", "a800-80gb", "h100-sxm-80gb"])
def test_an_all_reduce_takes_longer_over_a_slower_link(name):
    gpu, sizes = load_gpu(name), np.array([2.0**10, 2.0**14, 2.0**24, 2.0**30])
    rates = [1.0, 0.9, 0.5, 0.1]
    seconds = np.stack([reduced(dataclasses.replace(gpu, link_bytes_per_s=r * gpu.link_bytes_per_s), 8, sizes) for r in rates])
    assert (np.diff(seconds[:, 1:], axis=0) > 0).all() and (np.diff(seconds[:, 0]) >= 0).all()
    assert seconds[-1, 0] < 3 * seconds[0, 0]  # start-up is no matter of the link


def test_a_chip_with_another_link_has_its_own_all_reduce():
    """16.8 MB over 8 ranks: 122 us were measured on H100 SXM; the ring over PCIe's 64 GB/s takes 459 us, over H800's 147."""
    message = float(2**24)
    assert reduced(H100, 8, message) == pytest.approx(122.3e-6, rel=1e-3)
    assert reduced(load_gpu("gh200-96gb"), 4, message) == pytest.approx(reduced(H100, 4, message))
    for name, ring in (("h100-pcie-80gb", 459e-6), ("h800-80gb", 147e-6)):
        gpu = load_gpu(name)
        assert 1.75 * message / gpu.link_bytes_per_s == pytest.approx(ring, rel=1e-2)
        assert ring < reduced(gpu, 8, message) < 2.0 * ring
        sizes = 2.0 ** np.arange(20.0, 34.0)
        assert (reduced(gpu, 8, sizes) >= 1.75 * sizes / gpu.link_bytes_per_s * (1.0 - 1e-12)).all()


def test_an_all_reduce_beyond_the_measured_ranks_keeps_growing():
    """GB200 was measured on 2 and 4 ranks; B200, which has the same link, also on 8: its large messages are met within 20 %."""
    gb200, b200 = load_gpu("gb200"), load_gpu("b200")
    sizes = np.array([2.0**10, 2.0**20, 2.0**24, 2.0**30])
    seconds = np.stack([reduced(gb200, n, sizes) for n in (4, 8, 16, 32, 64, 72)])
    assert (np.diff(seconds, axis=0) > 0).all()
    assert seconds[1, [2, 3]] == pytest.approx(reduced(b200, 8, sizes[[2, 3]]), rel=0.2)
    assert seconds[-1, 3] / seconds[0, 3] == pytest.approx((71 / 72) / (3 / 4), rel=1e-3)


@pytest.mark.parametrize("name", ["h100", "h200", "b200", "gb200", "b300", "gb300"])
@pytest.mark.parametrize("tp", [1, 8])
def test_one_user_alone_is_served_no_slower_in_fp8_than_in_16_bits(name, tp):
    """At one row a GEMM reads its weights, half as many bytes in fp8; casting the activations takes less than that saves."""
    seconds = {w: float(iteration_seconds(job("llama3-70b", load_gpu(name), weights=w, tp=tp), 1.0, 1250.0, 0.0, 1.0))
               for w in ("bf16", "fp8")}  # fmt: skip
    assert seconds["fp8"] <= seconds["bf16"]


def test_weights_in_8_and_4_bits_cost_their_unpacking_where_they_were_not_measured():
    """H200 has no rows of int8: its 16-bit GEMM times what int8 saves on A100, where both were measured."""

    def saved(gpu, weights):
        given = [linear_seconds(job(gpu=gpu, weights=w), 1.0, 8192.0, 8192.0, w) for w in (weights, "bf16")]
        best = [ideal.gemm_seconds(1.0, 8192.0, 8192.0, w, gpu) for w in (weights, "bf16")]
        return given[0] / given[1] / (best[0] / best[1])

    for weights in ("int8", "int4"):
        assert saved(H200, weights) == pytest.approx(saved(load_gpu("a100"), weights), rel=1e-6)
        assert saved(H200, weights) > 1.1


def test_borrowed_shares_are_said():
    model = load_model("llama3-70b")

    def lines(name, weights, kv):
        gpu = load_gpu(name)
        return [remark.why for remark in borrowed_shares(serving_tables_of(gpu), model, gpu, [weights], [kv])]

    assert lines("h200", "fp8", "fp8") == []
    assert lines("h100-pcie", "bf16", "bf16") == ["operators of h100-sxm-80gb for h100-pcie-80gb, which has none of its own"]
    assert "int4" in lines("h200", "int4", "fp8")[0] and "a100-80gb" in lines("h200", "int4", "fp8")[0]
    assert "at fp8's share" in lines("h200", "nvfp4", "fp8")[0]
    assert lines("a100", "int4", "fp8") == ["cache in fp8, not measured on a100-80gb, at bf16's share of the roofline"]
    mixture, h200 = load_model("mixtral-8x7b"), load_gpu("h200")
    assert any(
        one.why.startswith("experts in int8") for one in borrowed_shares(serving_tables_of(h200), mixture, h200, ["int8"], [])
    )


def test_features_times_constants_are_the_iteration_and_its_parts():
    one = job("mixtral-8x7b", gpu=H200, tp=2)
    for work in ((64.0, 1500.0, 0.0, 1.0), (64.0, 1500.0, 3.0, 700.0)):
        whole = float(iteration_seconds(one, *work))
        assert sum(float(s) for s in iteration_parts(one, *work).values()) == pytest.approx(whole)
        assert whole >= float(iteration_features(one, *work) @ constant_vector(one.constants)) - 1e-12


def test_the_floor_of_an_eager_engine_holds_where_no_graph_runs():
    slow = EngineConstants(eager_layer_s=10e-3)
    decode, mixed = (4.0, 100.0, 0.0, 1.0), (4.0, 100.0, 1.0, 50.0)
    for engine, floors in (("trtllm-0.20", (0.32, 0.32)), ("trtllm-1.2", (0.0, 0.32)), ("trtllm-0.17", (0.0, 0.0))):
        one = job(engine=engine, constants=slow)
        for work, floor in zip((decode, mixed), floors, strict=True):
            seconds = float(iteration_seconds(one, *work))
            assert seconds == pytest.approx(floor) if floor else seconds < 0.1


def test_a_python_runtime_takes_time_for_every_sequence_beside_the_gpu():
    """Host and GPU overlap: 1 ms a sequence hides 2,000 sequences' operators, is nothing under the compiled runtime."""
    slow = EngineConstants(eager_layer_s=1e-3, eager_sequence_s=1e-3)
    many = (2000.0, 100.0, 0.0, 1.0)
    for engine, floor in (("trtllm-0.20", 2.032), ("trtllm-1.2", 2.0), ("trtllm-0.17", 0.0)):
        one = job(engine=engine, constants=slow)
        bare = float(iteration_seconds(job(engine=engine, constants=EngineConstants()), *many))
        whole = float(iteration_seconds(one, *many))
        assert bare < 0.5 and whole == pytest.approx(floor or bare)
        assert IterationTable(one).seconds(2000.0, 100.0, 0.0, 0.0, 1.0) == pytest.approx(whole, rel=0.05)
        prices = Pricer(lengths=Lengths(isl=50.0, osl=100.0)).prices(one)
        assert float(prices.seconds(2000.0, 1.0, 0.0, 1.0)) == pytest.approx(whole, rel=0.05)
        steady = generation(one, Lengths(isl=50.0, osl=100.0), 2000.0, 8192.0, chunked=False, bursts=True)
        assert float(steady.alone_seconds(constant_vector(slow))) == pytest.approx(whole, rel=0.05)


def test_max_utilisation_admits_more_than_a_guaranteed_cache():
    """Sequences of 100 + 200 tokens, a cache of 600: two whole ones, more while they are short."""
    one, count = IterationTable(job()), 40
    requests = Requests(arrival_s=np.zeros(count), isl=np.full(count, 100.0), osl=np.full(count, 200.0))
    limits = SchedulerLimits(batch=64, tokens=2048, kv_tokens=600.0)
    guaranteed, filled = (
        simulate(one, requests, limits),
        simulate(one, requests, dataclasses.replace(limits, admission="prompt")),
    )
    assert filled.duration_s < 0.9 * guaranteed.duration_s and np.isfinite(filled.e2e_s).all()


@pytest.mark.parametrize("bursts", [True, False])
@pytest.mark.parametrize("running", [8.0, 200.0])
def test_a_generation_prefills_every_prompt_and_decodes_every_token(bursts, running):
    lengths = Lengths(isl=700.0, osl=300.0)
    found = generation(job(), lengths, running, 8192.0, chunked=False, bursts=bursts)
    assert float(found.mixed + found.alone) == pytest.approx(299.0)
    assert running / 11 <= float(found.mixed) <= running
    assert float(found.seconds(constant_vector(job().constants))) > 0


@pytest.mark.parametrize(("running", "isl", "osl"), [(32, 1000.0, 500.0), (256, 1000.0, 500.0), (128, 200.0, 800.0)])
def test_closed_form_agrees_with_the_simulation(running, isl, osl):
    """A closed loop: throughput and time per token within 12 %: the simulation fills up and drains as well."""
    one, lengths = job(), Lengths(isl=isl, osl=osl)
    found = steady_state(Pricer(lengths=lengths).prices(one), lengths, float(running), 8192.0, 1, False, 0.0)
    rng = np.random.default_rng(1)
    count = 8 * running
    spread = Requests(arrival_s=np.zeros(count), isl=np.full(count, isl), osl=sampled_lengths(osl, 0.3, 10 * osl, count, rng))
    served = simulate(
        IterationTable(one), spread, SchedulerLimits(batch=running, tokens=8192, kv_tokens=1e9, chunked=False), users=running
    )
    last = np.arange(count) > count // 3
    assert served.requests_per_s == pytest.approx(float(found.requests_per_s), rel=0.12)
    assert np.nanmean(served.tpot_s[last]) == pytest.approx(float(found.tpot_s), rel=0.12)


@pytest.mark.parametrize("acceptance", [0.0, 0.7])
def test_drafts_cost_the_same_in_closed_form_and_simulation(acceptance):
    one, running, drafted = job("llama3-70b", H200, tp=8), 128, 4
    lengths = Lengths(isl=1000.0, osl=500.0, drafted=drafted, tokens_per_step=tokens_per_step(drafted, acceptance))
    found = steady_state(Pricer(lengths=lengths).prices(one), lengths, float(running), 8192.0, 1, False, 0.0)
    count = 6 * running
    osl = sampled_lengths(500.0, 0.3, 5000.0, count, np.random.default_rng(1))
    served = simulate(
        IterationTable(one), Requests(arrival_s=np.zeros(count), isl=np.full(count, 1000.0), osl=osl),
        SchedulerLimits(batch=running, tokens=8192, kv_tokens=1e9, chunked=False, steps_per_token=1.0 / lengths.tokens_per_step,
               checked=1.0 + drafted),
        users=running,
    )  # fmt: skip
    assert np.nanmean(served.tpot_s[count // 3 :]) == pytest.approx(float(found.tpot_s), rel=0.12)


@pytest.mark.parametrize("cached", [0.0, 0.5, 0.9])
def test_a_prefix_hit_saves_as_much_in_closed_form_and_simulation(cached):
    """Attention of the new tokens to the whole prompt: 1 - c^2 of the prompt's, however it is cut."""
    one, isl = job("llama3-70b", H200, tp=8), 64000.0
    prices = Pricer(lengths=Lengths(isl=isl, osl=2.0, cached=cached)).prices(one)
    requests = Requests(arrival_s=np.zeros(1), isl=np.full(1, isl * (1.0 - cached)), osl=np.ones(1), cached=isl * cached)
    table = IterationTable(one)
    whole = simulate(table, requests, SchedulerLimits(batch=1, tokens=65536, kv_tokens=1e6)).ttft_s[0]
    assert whole == pytest.approx(float(prices.seconds(0.0, 1.0, 1.0, isl * (1.0 - cached))), rel=0.03)
    parts = simulate(table, requests, SchedulerLimits(batch=1, tokens=6400, kv_tokens=1e6)).ttft_s[0]
    assert parts == pytest.approx(whole, rel=0.12)


def test_drafts_of_a_sequence_read_its_cache_once():
    """In every place that prices an iteration."""
    one, plain = job("llama3-70b", H200, tp=8), Lengths(isl=1000.0, osl=500.0)
    parts, alone = (iteration_parts(one, 256.0, plain.average, 0.0, 1.0, checked) for checked in (5.0, 1.0))
    assert float(parts["decode attention"]) == float(alone["decode attention"])
    assert float(parts["linear"]) > 1.3 * float(alone["linear"])
    whole = float(iteration_seconds(one, 256.0, plain.average, 0.0, 1.0, 5.0))
    assert float(sum(parts.values())) == pytest.approx(whole)
    assert float(Pricer(lengths=plain).prices(one).seconds(256.0, 5.0, 0.0, 1.0)) == pytest.approx(whole, rel=0.02)
    assert IterationTable(one).seconds(256.0, plain.average, 0.0, 0.0, 1.0, 5.0) == pytest.approx(whole, rel=0.03)
    found = generation(one, Lengths(isl=1000.0, osl=500.0, drafted=4.0), 256.0, 8192.0, chunked=False, bursts=False)
    assert float(found.alone_seconds(constant_vector(one.constants))) == pytest.approx(whole)


def test_the_simulation_serves_every_request_once_and_in_order():
    one = job()
    table = IterationTable(one)
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(0.05, 200))
    requests = Requests(arrival_s=arrivals, isl=np.full(200, 300.0), osl=np.full(200, 40.0))
    served = simulate(table, requests, SchedulerLimits(batch=64, tokens=2048, kv_tokens=64 * 340.0))
    assert np.isfinite(served.e2e_s).all() and (served.ttft_s > 0).all()
    assert np.allclose(served.e2e_s, served.ttft_s + served.tpot_s * 39.0)
    first = served.ttft_s + arrivals
    assert (np.diff(first) >= -1e-9).all()
    assert served.ttft_s.min() >= 0.9 * float(iteration_seconds(one, 0.0, 1.0, 1.0, 300.0))


@pytest.mark.parametrize("servers", [1, 4])
def test_waits_before_alike_servers(servers):
    """Against the queue itself, event by event."""
    rng, busy = np.random.default_rng(2), 0.8
    arrivals = np.cumsum(rng.exponential(1.0 / (busy * servers), 100_000))
    free, waited = [0.0] * servers, 0.0
    for arrival in arrivals.tolist():
        start = max(arrival, heapq.heappop(free))
        heapq.heappush(free, start + 1.0)
        waited += start - arrival
    assert float(waiting_services(busy, servers)) == pytest.approx(waited / len(arrivals), rel=0.1)
    at_most = highest_utilisation_within(float(waiting_services(busy, servers)), np.array([float(servers)]))
    assert at_most[0] == pytest.approx(busy)


def test_table_of_trtllm_bench_before_it_computed_limits():
    model = load_model("llama3-70b")
    assert trtllm_bench_table(model, EnginePlan(tp=2), 1000.0, 1000.0) == (256, 1024)
    assert trtllm_bench_table(model, EnginePlan(tp=2), 2048.0, 2048.0) == (2048, 1024)
    assert trtllm_bench_table(model, EnginePlan(tp=8), 128.0, 128.0) == (8192, 16384)
    assert trtllm_bench_table(model, EnginePlan(tp=4, pp=2), 128.0, 128.0) is None
    assert trtllm_bench_table(load_model("qwen3-32b"), EnginePlan(), 128.0, 128.0) is None


@pytest.mark.parametrize(("capacity", "batch"), [(143, 128), (144, 256), (671, 512), (1663, 1536), (1664, 1664), (2100, 2048)])
def test_batch_that_the_cpp_executor_sets_for_what_the_cache_holds(capacity, batch):
    assert tuned_batch(capacity) == batch


def test_limits_of_trtllm_bench_by_hand():
    """Llama-3.1-8B fp8 on H100, 1000 in and out: 0.95 (85.0e9 - 8.03e9) / (65,536 x 2,000) = 557.8 requests -> 640; 2,048."""
    one = job("llama3.1-8b")
    assert trtllm_bench_limits(one.model, one.plan, H100, one.formats, 1000.0, 1000.0) == (640, 2048)
    assert offline_requests(128, 128) == 30000 and offline_requests(7, 7) == 3000
    assert data_set_of_lengths(202, 214).output_cv == 1.0 and data_set_of_lengths(203, 214).output_cv == 0.0


def test_constants_come_from_the_nearest_generation_and_gpu():
    found = ServingCalibration(
        engines={"trtllm-0.17": {"host_s": 1e-3}},
        gpus={
            "trtllm-0.17": {"h100-sxm-80gb": {"all": 1.1}, "h200-sxm-141gb": {"all": 1.21}},
            "trtllm-0.14": {"h100-sxm-80gb": {"all": 1.2, "experts": 2.0}},
        },
        parents={"h200-sxm-141gb": "h100-sxm-80gb", "gh200-96gb": "h100-sxm-80gb"},
    )
    old = load_engine("trtllm-0.14")
    assert found.constants(old, H100).host_s == 1e-3
    assert found.factor(old, "h200-sxm-141gb") == pytest.approx(1.2 * 1.21 / 1.1)
    assert found.factor(old, "gh200-96gb") == 1.2
    assert found.factor(load_engine("trtllm-0.17"), "h100-sxm-80gb", "experts") == 1.0
    assert NO_CALIBRATION.constants(old, H100).factor == 1.0


def test_long_outputs_hold_the_cache_longer():
    """By hand: 100 in; outputs 200 on average, coefficient of variation 0.5: E[O^2]/E[O] = 250."""
    spread = DataSet(isl=100.0, osl=200.0, output_cv=0.5)
    assert spread.held_tokens("no_evict") == pytest.approx(350.0)
    assert spread.held_tokens("max_util") == pytest.approx(225.0)
    assert DataSet(isl=100.0, osl=200.0).held_tokens("no_evict") == 300.0


def test_speculation_follows_leviathan():
    assert tokens_per_step(0, 0.9) == 1.0
    assert tokens_per_step(3, 1.0) == 4.0
    assert tokens_per_step(2, 0.5) == pytest.approx(1 + 0.5 + 0.25)


class OneSecond:
    """A table of iterations that remembers what it was asked: sequences that decode, their mean length, prompts that end, new
    tokens, length of a prompt, tokens computed of each sequence, whole prompts that the new tokens' attention is worth."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, ...]] = []

    def seconds(self, *work: float) -> float:
        self.asked.append(tuple(round(one, 6) for one in work))
        return 1.0


def run(
    sizes: list[tuple[float, float]], *, arrival: list[float] | None = None, cached: float = 0.0, users: int | None = None,
    token_s: float = 0.0, **limits: Any,
) -> tuple[SimulatedStream, list[tuple[float, ...]]]:  # fmt: skip
    table, (isl, osl) = OneSecond(), np.array(sizes, dtype=float).T
    requests = Requests(arrival_s=np.array(arrival or [0.0] * len(isl)), isl=isl, osl=osl, cached=cached)
    given = {"batch": 2, "tokens": 100, "kv_tokens": 1000.0, **limits}
    found = simulate(table, requests, SchedulerLimits(**given), request_s=0.25, users=users, token_s=token_s)  # type: ignore[arg-type]
    return found, table.asked


THREE = [(60, 3), (60, 2), (50, 1)]
FIRST = (0, 0, 1, 100, 60, 1, 1.444444)  # one prompt of 60 ends, 40 tokens of the next: (40 / 60)^2 of its attention


def test_a_prompt_is_cut_where_the_iteration_is_full_and_a_third_request_waits_for_a_place():
    served, asked = run(THREE)
    assert asked == [FIRST, (1, 60, 1, 20, 60, 1, 0.555556), (2, 60.5, 0, 0, 1, 1, 0), (0, 0, 1, 50, 50, 1, 1)]
    assert (served.ttft_s - 0.25).tolist() == [1, 2, 4] and (served.e2e_s - 0.25).tolist() == [3, 3, 4]
    assert served.tpot_s[:2].tolist() == [1, 1] and np.isnan(served.tpot_s[2])
    assert (served.duration_s, served.iterations, served.requests_per_s) == (4.25, 4, 3 / 4.25)
    assert served.step_end_s.tolist() == [2.25, 3.25]
    assert served.step_tokens.tolist() == [1, 2] and served.step_s.tolist() == [1, 1]


def test_a_whole_cache_is_reserved_until_a_request_ends():
    """63 and 62 tokens with their outputs: both in 125, one after the other in 124, with what the third has left over."""
    assert run(THREE, kv_tokens=125.0)[1] == run(THREE)[1]
    served, asked = run(THREE, kv_tokens=124.0)
    assert asked == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 0, 0, 1, 1, 0), (0, 0, 1, 100, 55, 1, 1.64),
                     (1, 60, 1, 10, 50, 1, 0.36)]  # fmt: skip
    assert (served.e2e_s - 0.25).tolist() == [3, 5, 5]


def test_prompts_alone_are_asked_for_where_running_requests_may_pause():
    """60 + 60 in 120; one token less holds one prompt beside none."""
    assert run(THREE, kv_tokens=120.0, admission="prompt")[1][0] == FIRST
    assert run(THREE, kv_tokens=119.0, admission="prompt")[1][0] == (0, 0, 1, 60, 60, 1, 1)


def test_whole_prompts_wait_for_an_iteration_that_takes_them():
    _, asked = run(THREE, chunked=False)
    assert asked[:2] == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 1, 60, 60, 1, 1)]


def test_drafts_shorten_the_answer_and_take_tokens_of_the_iteration():
    """Two tokens a step, three computed: 5 tokens are the first and two steps; beside it 97 of the next prompt's 100."""
    served, asked = run([(60, 5), (100, 1)], steps_per_token=0.5, checked=3.0, arrival=[0.0, 0.5])
    assert asked == [(0, 0, 1, 60, 60, 3, 1), (1, 60, 0, 97, 100, 3, 0.9409), (1, 62, 1, 3, 100, 3, 0.0591)]
    assert (served.e2e_s - 0.25).tolist() == [3, 2.5]


def test_decoding_stops_where_a_request_arrives():
    served, asked = run([(60, 10), (50, 2)], arrival=[0.0, 3.5])
    assert asked == [(0, 0, 1, 60, 60, 1, 1), (1, 60, 0, 0, 1, 1, 0), (1, 63, 1, 50, 50, 1, 1), (2, 57, 0, 0, 1, 1, 0),
                     (1, 65, 0, 0, 1, 1, 0)]  # fmt: skip
    assert (served.ttft_s - 0.25).tolist() == [1, 1.5] and (served.e2e_s - 0.25).tolist() == [10, 2.5]


def test_a_cached_prefix_is_not_computed_but_held():
    """40 of 100 tokens are there: 60 new ones of a prompt of 100, which is 103 tokens with its output."""
    served, asked = run([(60, 3)], cached=40.0, kv_tokens=103.0)
    assert asked == [(0, 0, 1, 60, 100, 1, 0.84), (1, 100, 0, 0, 1, 1, 0)] and served.iterations == 3


def test_a_user_asks_again_when_he_has_his_answer():
    served, asked = run([(60, 2)] * 3, users=1)
    assert [work[0] for work in asked] == [0, 1] * 3 and (served.ttft_s - 0.25).tolist() == [1, 1, 1]
    assert served.duration_s == 3 * 2.25


DECODE, SECOND = (1, 60, 0, 0, 1, 1, 0), (1, 61, 0, 0, 1, 1, 0)


def test_prompts_that_go_alone_hold_decoding_up():
    served, asked = run([(60, 3), (50, 2)], arrival=[0.0, 1.5], alone=True)
    assert asked == [(0, 0, 1, 60, 60, 1, 1), DECODE, (0, 0, 1, 50, 50, 1, 1), (2, 55.5, 0, 0, 1, 1, 0)]
    assert (served.e2e_s - 0.25).tolist() == [4, 2.5] and (served.ttft_s - 0.25).tolist() == [1, 1.5]


def test_a_scheduler_one_step_behind_sees_a_request_an_iteration_later():
    """It is there in the second iteration; the third was put together when that began."""
    prompt = (50, 50, 1, 1)
    early, late = (run([(60, 5), (50, 2)], arrival=[0.0, 1.5], late=late)[1] for late in (False, True))
    assert early[:3] == [(0, 0, 1, 60, 60, 1, 1), DECODE, (1, 61, 1, *prompt)]
    assert late[:4] == [(0, 0, 1, 60, 60, 1, 1), DECODE, SECOND, (1, 62, 1, *prompt)]


def test_requests_are_looked_for_every_third_iteration():
    served, asked = run([(60, 10), (50, 2)], arrival=[0.0, 1.5], receive_every=3)
    assert [work[3] for work in asked[:5]] == [60, 0, 0, 0, 50] and served.ttft_s[1] - 0.25 == 3.5


def test_the_newest_sequence_is_thrown_out_where_the_cache_is_full_and_begins_again():
    """60 + 60 and two tokens each in 125; the first then runs alone, and the second comes back with 63 tokens and 6 to get."""
    served, asked = run([(60, 10), (60, 10)], tokens=200, kv_tokens=125.0, admission="prompt")
    assert asked[0] == (0, 0, 2, 120, 60, 1, 2) and (0, 0, 1, 63, 63, 1, 1) in asked
    assert (served.e2e_s - 0.25).tolist() == [10, 17] and (served.ttft_s - 0.25).tolist() == [1, 1]


def test_a_share_of_what_is_to_come_is_kept_free():
    """60 + 20 of the first, of whose 20 to come 0.7 count: 74, and 60 + 10 of the second; one token less takes it later."""
    sizes, arrival = [(60, 20), (60, 10)], [0.0, 0.5]
    assert run(sizes, arrival=arrival, kv_tokens=144.0, admission="estimated")[1][1][3] == 60
    assert run(sizes, arrival=arrival, kv_tokens=143.0, admission="estimated")[1][1][3] == 0


def test_ranks_that_step_together_take_as_long_as_the_busiest():
    """Two prompts, one a rank; then one sequence each; of three prompts one rank has two, cut at its 100 tokens."""
    assert run([(60, 2)] * 2, ranks=2)[1] == [(0, 0, 1, 60, 60, 1, 1), DECODE]
    assert run([(60, 1)] * 3, ranks=2, batch=3)[1] == [FIRST, (0, 0, 1, 20, 60, 1, 0.555556)]


def test_prompts_of_ranks_wait_for_each_other():
    """By hand, of py_executor.py: sequences decode from 1.25 s on; a prompt of one rank that comes at 2 s goes with the fifth
    iteration, at 5.25; prompts of both wait for two more iterations and go at 4.25."""
    begun = [(10, 30), (10, 30)]
    one = run([*begun, (10, 5)], arrival=[0.0, 0.0, 2.0], ranks=2, batch=4, balance=PromptBalance(5, 2))[0]
    both = run([*begun, (10, 5), (10, 5)], arrival=[0.0, 0.0, 2.0, 2.0], ranks=2, batch=4, balance=PromptBalance(5, 2))[0]
    assert one.ttft_s.tolist() == [1.25, 1.25, 4.25] and both.ttft_s.tolist() == [1.25, 1.25, 3.25, 3.25]


@pytest.mark.parametrize(("ranks", "mean"), [(1, 0.01), (8, 0.02), (4, 3.0)])
def test_the_busiest_rank_has_as_many_prompts_as_drawn(ranks, mean):
    """200,000 iterations drawn: the mean of the most that a rank has, where any has one."""
    most = np.random.default_rng(5).poisson(mean, (200_000, ranks)).max(axis=1)
    assert float(busiest_prompts(mean, ranks, 128.0)) == pytest.approx(most[most > 0].mean(), rel=0.01)


@pytest.mark.parametrize(("model", "isl", "osl"), [("gpt-oss-120b", 1000.0, 500.0), ("mixtral-8x7b", 4000.0, 300.0)])
def test_ranks_stop_for_the_prompts_of_each_other_in_closed_form_and_simulation(model, isl, osl):
    one, running, ranks, lengths = job(model, H200, adp=4, ep=4), 16, 4, Lengths(isl=isl, osl=osl)
    prices, count = Pricer(lengths=lengths).prices(one), 16 * 4 * 8
    together, apart = (steady_state(prices, lengths, float(running), 8192.0, ranks, False, 0.0, together=n) for n in (ranks, 1))
    answers = np.round(osl * np.random.default_rng(1).uniform(0.9, 1.1, count))
    limits = SchedulerLimits(batch=running * ranks, tokens=8192, kv_tokens=1e9, chunked=False, ranks=ranks)
    requests = Requests(arrival_s=np.zeros(count), isl=np.full(count, isl), osl=answers)
    tpot = np.nanmean(simulate(IterationTable(one), requests, limits, users=running * ranks).tpot_s[count // 3 :])
    assert tpot == pytest.approx(float(together.tpot_s), rel=0.15) and tpot > 1.2 * float(apart.tpot_s)


def test_a_burst_waits_for_the_tokeniser():
    """0.6 s a prompt of 60, one after the other."""
    served, _ = run([(60, 3), (60, 3)], token_s=0.01)
    assert served.ttft_s.tolist() == [1.85, 2.85]


@tabled
def test_tables_are_linear_between_their_points_and_constant_outside(x, place, value):
    assert list(_position([1.0, 2.0, 4.0], x)) == place
    if value is not None and x >= 1:
        assert _linear([1.0, 2.0, 4.0], [10.0, 20.0, 40.0], x) == value
