"""Formulas of time on both sides of their conditions, worked out by hand; GPUs at a lower power limit, with other memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.software import StackTime, load_stack
from autoconfig.time_model.job import Links, collective_seconds, exposed_seconds, group_of, small_group_factor
from autoconfig.time_model.operators.kernels import (
    clock_ratio,
    flash_efficiency,
    grouped_gemm_seconds,
    host_floor_seconds,
    layer_launch_seconds,
    packed_pairs,
    residual_bytes,
    ring_correction_bytes,
    softmax_bytes,
    straggler_seconds,
    unfused_attention_seconds,
)
from autoconfig.time_model.operators.moe import expert_rows, permute_bytes, places_reached
from autoconfig.time_model.operators.operator import GemmShape, with_adapters
from autoconfig.time_model.operators.sparse import share_of_peak
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.costs import cache_table, graph_rows, head_dim
from autoconfig.time_model.serving.recurrent import decode_seconds, pointwise_bytes, widths
from autoconfig.time_model.serving.sparse import indexer_decode_seconds, sparse_prefill_seconds
from autoconfig.time_model.serving.steady import highest_utilisation_within, prompts_per_iteration, waiting_services
from autoconfig.time_model.step.rows import (
    block_recomputed_layers,
    bucketed_exposed_seconds,
    fsdp_seconds,
    p2p_message_bytes,
    p2p_seconds,
    pipeline_bubble_seconds,
)
from small_models import MODELS

H100, B200 = load_gpu("h100"), load_gpu("b200")
GPT, GATED, MLA, HYBRID = (ModelSpec(**MODELS[name]) for name in ("gpt", "gated", "mla", "hybrid"))
STACK = replace(StackTime(), host_floor_seconds=1e-3, moe_host_seconds=4e-4, expert_host_seconds=2e-4)


@pytest.mark.parametrize(("graphs", "experts", "more", "seconds"), [
    ((), 0, {}, 1e-3), ((), 4, {}, 1e-3 + 4e-4 + 4 * 1e-4), ((), 4, {"quantised": True}, 1e-3 + 4e-4 + 4 * 2e-4),
    ((), 4, {"overlapped": True}, 1e-3 + 2.2 * 8e-4), ((), 4, {"sublayer": "moe"}, 8e-4), ((), 0, {"sublayer": "mlp"}, 2.5e-4),
    (("full",), 4, {}, 0), (("full_iteration",), 4, {}, 0), (("attn",), 0, {}, 5e-5 + 2.5e-4), (("mlp",), 0, {}, 7.5e-4 + 5e-5),
    (("attn",), 4, {}, 5e-5 + 8e-4), (("moe_router",), 4, {}, 1e-3 + 5e-5 + 4e-4), (("moe",), 4, {}, 1e-3 + 4e-4 + 4 * 5e-5),
    (("mamba",), 0, {"sublayer": "mamba"}, 5e-5), (("attn",), 0, {"sublayer": "gdn"}, 5e-5),
    (("attn",), 0, {"sublayer": "mamba"}, 1e-3), (("mlp",), 0, {"sublayer": "mlp"}, 5e-5),
])  # fmt: skip
def test_what_the_host_launches(graphs, experts, more, seconds):
    """1 ms of a layer, a quarter of it the MLP's; routing 0.4 ms, an expert 0.2, half in 16 bits; a graphed part 50 us."""
    found = layer_launch_seconds(STACK, RunSettings(cuda_graphs=frozenset(graphs)), experts, **more)
    assert float(found) == pytest.approx(seconds)


def test_fused_experts_are_one_launch_and_a_short_part_is_not_made_longer_by_a_graph():
    assert float(layer_launch_seconds(STACK, RunSettings(fused_experts=True), 8)) == pytest.approx(1e-3 + 4e-4 + 1e-4)
    short = replace(STACK, host_floor_seconds=1e-5)
    assert float(layer_launch_seconds(short, RunSettings(cuda_graphs=frozenset({"attn", "mlp"})))) == pytest.approx(1e-5)


@pytest.mark.parametrize(("tp", "factor"), [(1, 1.0), (2, 1.15), (8, 1.15)])
def test_host_and_gpu_are_legs_of_a_triangle(tp, factor):
    forward, backward = host_floor_seconds(3.0, 6.4, tp, 4.0 / factor)
    assert forward == pytest.approx(5 - 3) and backward == pytest.approx((6.4**2 + 6.4**2) ** 0.5 - 6.4)


@pytest.mark.parametrize(("gpus", "share"), [(1, 0), (8, 0), (16, 0.01), (64, 0.03)])
def test_stragglers(gpus, share):
    assert straggler_seconds(10.0, gpus, 0.01) == pytest.approx(10 * share)


def test_kernels_by_hand():
    assert grouped_gemm_seconds(1.0, 96.0, 0.5) == 4.0 and grouped_gemm_seconds(1.0, 288.0, 0.8) == pytest.approx(4 / 3 / 0.8)
    assert packed_pairs(1024, 256) == 4 * 0.5 * 384**2 and packed_pairs(1024, 1000) == 0.5 * 1024**2
    assert ring_correction_bytes(100.0, 8.0, 4.0) == 7.5 * 800 * 3
    for dim, narrow in ((128, 1.0), (256, 1.0), (64, 64 / 114 * 178 / 128)):
        assert flash_efficiency(1000.0, dim, e=0.8, s0=1000.0, head_dim_half=50.0) == pytest.approx(0.4 * narrow)


@pytest.mark.parametrize(("hidden", "attention", "residual", "softmax"), [
    (0.1, 0.1, (7, 10), (9, 11)), (0.0, 0.0, (4, 6), (4, 6)),
])  # fmt: skip
def test_dropout_adds_its_traffic(hidden, attention, residual, softmax):
    numerics = Numerics(hidden_dropout=hidden, attention_dropout=attention)
    assert residual_bytes(10.0, StackTime(), numerics) == tuple(10 * each for each in residual)
    assert softmax_bytes(replace(StackTime(), softmax_slowdown=2.0), numerics) == tuple(2 * each for each in softmax)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("flops", [1e3, 1e9])
def test_unfused_attention_takes_the_longer_of_flops_and_scores(passes, flops):
    found = unfused_attention_seconds(
        100.0, 40.0, 120.0, flops_per_s=flops, rate=0.5, dim_half=40.0, hbm_bytes_per_s=1e3, pointwise=0.8, softmax_bytes=9.0,
        gemms_per_pass=passes,
    )  # fmt: skip
    traffic = 200 / 800
    each = [max(200 * dim / (flops * 0.5 * dim / (dim + 40)), traffic) for dim in (40, 120)]
    assert found == pytest.approx(900 / 800 + passes * sum(each))


@pytest.mark.parametrize(("dispatcher", "local", "padded", "each"), [
    ("alltoall", 1, False, 8), ("alltoall", 2, False, 16), ("alltoall", 2, True, 20), ("deepep", 4, False, 6),
    ("deepep", 4, True, 10), ("hybridep", 4, True, 6), ("allgather", 4, True, 12),
])  # fmt: skip
def test_copies_of_a_permuted_row(dispatcher, local, padded, each):
    assert permute_bytes(dispatcher, np.float64(local), padded=padded) == each


@pytest.mark.parametrize(("ep", "rows", "one"), [(4, 1200, 300), (16, 1200, 1200), (32, 1200, 1200)])
def test_rows_of_experts(ep, rows, one):
    assert expert_rows(100.0, 4, 16, ep=ep, etp=2, imbalance=1.5) == (rows, one)


@pytest.mark.parametrize(("places", "topk", "reached"), [(1, 8, 1), (2, 1, 1), (2, 2, 1.5), (4, 2, 1.75)])
def test_places_that_a_token_reaches(places, topk, reached):
    assert places_reached(places, topk) == pytest.approx(reached)


@pytest.mark.parametrize(("size", "stride", "domain", "local", "domains"), [
    (8, 1, 8, 8, 1), (16, 1, 8, 8, 2), (4, 4, 8, 2, 2), (4, 16, 8, 1, 4), (1, 64, 8, 1, 1), (6, 2, 8, 4, 2), (3, 3, 8, 2, 2),
])  # fmt: skip
def test_members_of_a_group_in_a_domain(size, stride, domain, local, domains):
    found = group_of(size, stride, domain)
    assert (float(found.local), float(found.domains)) == (local, domains)


LINKS = Links(
    link_bytes_per_s=400.0, nic_bytes_per_s=50.0, nic_hop_s=1.0, size_ranks=(2, 4, 8), size_alpha=(0.25, 0.5, 1.0),
    size_bandwidth=(0.5, 0.75, 1.0),
    collectives={kind: SimpleNamespace(alpha_s=8.0, link_share=0.5, sqrt_s=0.25) for kind in (
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")},
)  # fmt: skip


@pytest.mark.parametrize(("kind", "size", "stride", "seconds"), [
    # 10,000 bytes: 25 of the root; alpha 8 x (0.25, 0.5, 1); 200 B/s x (0.5, 0.75, 1) on the links, 50 a card
    ("all_gather", 2, 1, 2 + 5_000 / 100 + 25), ("all_reduce", 2, 1, 2 + 10_000 / 100 + 25),
    ("reduce_scatter", 4, 1, 4 + 7_500 / 150 + 25), ("all_gather", 8, 1, 8 + 8_750 / 200 + 25), ("all_gather", 1, 1, 0),
    ("all_gather", 4, 8, 4 + 3 + 7_500 / 50 + 25), ("all_reduce", 4, 8, 4 + 6 + 15_000 / 50 + 25),
    ("all_gather", 4, 4, 4 + 1 + 7_500 / 100 + 25), ("all_gather", 32, 2, 8 + 7 + 10_000 * 31 / 32 / 150 + 25),
    ("all_to_all", 4, 1, 4 + 7_500 / 150 + 25), ("all_to_all", 4, 4, 4 + 1 + max(2_500 / 100, 5_000 / 50) + 25),
    ("all_to_all", 16, 1, 8 + 1 + max(10_000 * 7 / 16 / 200, 5_000 / 50) + 25),
])  # fmt: skip
def test_collectives(kind, size, stride, seconds):
    """Inside a domain of 8 and over several: a hop for each further one, two of an all-reduce, and the cards of the members."""
    assert float(collective_seconds(kind, 10_000.0, group_of(size, stride, 8), LINKS)) == pytest.approx(seconds)


def test_constants_between_measured_sizes_are_linear_in_the_logarithm():
    assert [float(small_group_factor(n, (2.0, 8.0), (1.0, 3.0))) for n in (1, 2, 4, 8, 64)] == [1, 1, 2, 3, 3]


@pytest.mark.parametrize(("communication", "compute", "exposed"), [(4.0, 10.0, 1.0), (10.0, 4.0, 7.0), (4.0, 0.0, 4.0)])
def test_what_is_exposed_beside_compute(communication, compute, exposed):
    assert exposed_seconds(communication, compute, 0.25) == exposed


@pytest.mark.parametrize(("pp", "vpp", "overlap", "seconds"), [
    (1, 1, 0.7, 0), (4, 1, 0.7, 2 * (16 + 6)), (4, 2, 0.75, 2 * (8 + 6)), (2, 1, 0.0, 2 * (16 + 2)),
])  # fmt: skip
def test_sends_of_a_step(pp, vpp, overlap, seconds):
    """8 micro-batches: 2 m v, less what interleaving hides, and 2 (p - 1)."""
    assert float(p2p_seconds(2.0, pp, vpp, 8, overlap)) == pytest.approx(seconds)
    assert p2p_message_bytes(100.0, 8, 2, 4) == 400 and pipeline_bubble_seconds(3.0, 12.0, 3.0) == 3.0
    assert block_recomputed_layers(10.0, 2.0, 3) == 6 and block_recomputed_layers(5.0, 2.0, 3) == 5


@pytest.mark.parametrize(("compute", "buckets", "pp", "vpp", "late"), [
    (100.0, 4, 1, 1, 2.0), (3.0, 4, 1, 1, 5.0), (100.0, 1, 1, 1, 8.0), (100.0, 0, 1, 1, 8.0), (3.0, 4, 2, 2, 2.5),
    (1.0, 4, 2, 4, 6.0),
])  # fmt: skip
def test_reductions_beside_the_last_backward(compute, buckets, pp, vpp, late):
    """8 s in buckets: one is late, the others hide; of v chunks 1/v of that, never less than what p micro-batches leave; a
    quarter of what is hidden is exposed."""
    found = bucketed_exposed_seconds(8.0, compute, buckets, pp, vpp, overlaps=True, interference=0.25)
    assert float(found) == pytest.approx(late + 0.25 * (8 - late))
    assert bucketed_exposed_seconds(8.0, compute, buckets, pp, vpp, overlaps=False, interference=0.25) == 8.0


@pytest.mark.parametrize(("stage", "seconds"), [(0, 0), (2, 2 + 0.5 * 4), (3, 0.5 * 3 + (3 + 6 - 4) + 0.5 * 4)])
def test_traffic_of_sharded_layers(stage, seconds):
    """Gather 3 s, scatter 6 s, beside 5 s forward and 4 s backward; half of what is hidden is exposed."""
    assert float(fsdp_seconds(3.0, 6.0, 5.0, 4.0, stage=stage, interference=0.5)) == pytest.approx(seconds)


@pytest.mark.parametrize(("capability", "share"), [(9.0, 0.46), (9.9, 0.46), (None, 0.46), (10.0, 0.354), (12.0, 0.354)])
def test_rates_of_chosen_keys(capability, share):
    assert share_of_peak(replace(H100, compute_capability=capability)) == share


def test_chosen_keys_of_an_engine():
    """16 TB a second: FLOPs bind; 1 byte: memory. 6 heads of 12, 512 keys; 12 bytes and 3/8 of a key."""
    model = MLA.replace(dsa_indexer_n_heads=6, dsa_indexer_head_dim=12, dsa_indexer_topk=512)
    fp8, bf16 = 0.46 * H100.flops_per_s["fp8"], 0.46 * H100.flops_per_s["bf16"]
    fast, slow = (replace(H100, hbm_bytes_per_s=rate) for rate in (1e20, 1e3))
    assert indexer_decode_seconds(model, 3.0, 1000.0, fast) == pytest.approx(2 * 72 * 3000 / fp8 + 7.5e-6)
    assert indexer_decode_seconds(model, 3.0, 1000.0, slow) == pytest.approx(12 * 1.03125 * 3000 / 800 + 7.5e-6)
    chosen, before = 1000 * 512 - 0.5 * 512**2, 0.5 * 1000**2
    expected = 2 * (2 * 72 * before / fp8 + 8 * before / 800 + 2 * 24 * (72 + 6) * chosen / bf16) + 7.5e-6
    assert sparse_prefill_seconds(model, 2.0, 24.0, 1000.0, slow) == pytest.approx(expected)


def test_states_of_an_engine():
    """Mamba-2: 700 columns in, 240 rows out; Gated DeltaNet: 672 and 240; a state is read and written once."""
    assert widths(HYBRID, "mamba", 2) == (350, 120) and widths(HYBRID, "gdn", 1) == (672, 240)
    assert pointwise_bytes(HYBRID, "mamba", 2) == 8 * 96 + 4 * 448 / 2 + 4 * 120
    assert pointwise_bytes(HYBRID, "gdn", 1) == 8 * 96 + 4 * (2 * 88 + 240) + 4 * 240
    assert pointwise_bytes(HYBRID, "attention", 1) == 8 * 96 and pointwise_bytes(GATED, "mlp", 2) == 8 * 96 + 2 * 3 * 200 / 2
    state = 4 * 12 * 20 * 26 + 2 * 3 * 448 + 4 * 8 * 22 * 30 + 2 * 3 * 416
    job = SimpleNamespace(model=HYBRID, plan=EnginePlan(tp=2), gpu=replace(H100, hbm_bytes_per_s=1e6))
    assert decode_seconds(job, 5.0) == pytest.approx(5 * 2 * state / 2 / 0.8e6 + 2 * 5e-6)


@pytest.mark.parametrize(("sizes", "decode", "rows"), [
    ((), 7, 7), ((1, 4, 8), 4, 4), ((1, 4, 8), 5, 8), ((1, 4, 8), 8, 8), ((1, 4, 8), 9, 9), ((1, 4, 8), 0, 1),
])  # fmt: skip
def test_sequences_that_a_captured_graph_computes(sizes, decode, rows):
    assert float(graph_rows(sizes, np.float64(decode))) == rows


@pytest.mark.parametrize(("channels", "dim"), [(64, 64), (65, 128), (48, 64), (256, 128)])
def test_measured_heads(channels, dim):
    assert head_dim(GPT.replace(kv_channels=channels)) == dim


@pytest.mark.parametrize(("known", "found"), [
    (("nvfp4:64", "fp8:64"), "nvfp4:64"), (("fp8:64", "bf16:64"), "fp8:64"), (("bf16:64", "fp8:128"), "bf16:64"),
    (("fp8:128", "bf16:128"), "fp8:128"), (("bf16:128",), "bf16:128"),
])  # fmt: skip
def test_the_nearest_measured_cache(known, found):
    assert cache_table(dict.fromkeys(known), "nvfp4", 64) == found


def test_an_engines_matrix_units():
    """fp4 on Blackwell, fp8 for MXFP4's products, 16 bits where the GPU has no such unit."""
    a100 = load_gpu("a100-sxm-80gb")
    assert ideal.peak(a100, "fp8") == ideal.peak(a100, "nvfp4") == a100.flops_per_s["bf16"]
    assert ideal.peak(B200, "nvfp4") == B200.flops_per_s["fp4"] and ideal.peak(B200, "mxfp4") == B200.flops_per_s["fp8"]
    assert ideal.peak(B200, "int4") == B200.flops_per_s["bf16"] and ideal.peak(H100, "fp8_block") == H100.flops_per_s["fp8"]


def test_a_cluster_of_one_gpu_has_no_neighbours():
    assert cluster_of(H100, 1).num_nodes == 1 and float(group_of(1, 1, 8).domains) == 1


def parts(cluster: ClusterSpec) -> dict[str, float]:
    scenario = Scenario(
        model=load_model("llama3-8b"),
        cluster=cluster,
        numerics=Numerics(precision="bf16"),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=8192, global_batch_size=8),
    )
    plan = parse_plan("tp=1,pp=1,mbs=1", 8)
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    return {name: float(values[0, 0]) for name, values in estimate.parts.items()}


def test_clock_is_the_one_whose_power_is_the_limit():
    for duty in (0.3, 0.6, 0.9, 1.0):
        for limit in (300.0, 500.0, 700.0):
            f = float(clock_ratio(duty, limit, 700.0, 1000.0))
            busy = duty / (duty + f * (1.0 - duty))
            watts = 0.2 * 700.0 + busy * 1000.0 * f * max(f, 0.65) ** 2
            assert watts == pytest.approx(limit) or (f == 1.0 and watts < limit)
    assert clock_ratio(0.5, 700.0, 700.0, 1000.0) == 1.0  # 140 + 500 W


def test_clock_of_a_gpu_at_a_third_of_its_power():
    at, own = (clock_ratio(1.0, watts, 1400.0, 1900.0) for watts in (500.0, 1400.0))
    assert 617 / 2174 <= at / own <= 617 / 1600  # cuBLAS on GB300 (pull request 2023 of Meta's triton)


def test_less_power_slows_matrix_products_only():
    full, limited = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, power_limit_watts=500))
    slower = limited["gemm_seconds"] / full["gemm_seconds"]
    assert 1.1 < slower < (560 / 360) ** 0.5
    assert limited["flash_attention_seconds"] / full["flash_attention_seconds"] == pytest.approx(slower, rel=0.01)
    for name in ("pointwise_seconds", "optimizer_seconds", "gradient_reduction_seconds"):
        assert limited[name] <= full[name]


def test_slower_memory_slows_what_is_bound_by_it():
    full, slow = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, hbm_bytes_per_s=H100.hbm_bytes_per_s / 2))
    assert slow["pointwise_seconds"] / full["pointwise_seconds"] == pytest.approx(2.0, rel=0.1)
    assert 0.9 < slow["gemm_seconds"] / full["gemm_seconds"] <= 1.0  # less busy: a higher clock


@pytest.mark.parametrize(("gpu", "watts", "said"), [("h100", 701, "use 245 to 700 W"), ("h100", 200, "use 245 to 700 W"),
                                                     ("gh200-96gb", 500, "is not known")])  # fmt: skip
def test_limits_that_no_measurement_covers_are_refused(gpu, watts, said):
    with pytest.raises(InputError, match=said):
        cluster_of(load_gpu(gpu), 8, gpus_per_node=1, power_limit_watts=watts)


@pytest.mark.parametrize(("running", "drafted", "chunked", "prompts"), [
    (0, 0, False, 10), (100, 0, False, 9), (350, 1, False, 3), (10_000, 0, False, 2), (100, 0, True, 9), (50, 0, True, 9.5),
    (10_000, 1, True, 2.5),
])  # fmt: skip
def test_prompts_beside_running_sequences(running, drafted, chunked, prompts):
    """Prompts of 100 tokens in a budget of 1,000, of which decoding takes 750 at most."""
    lengths = SimpleNamespace(prompt=100.0, drafted=drafted)
    assert float(prompts_per_iteration(lengths, running, 1000.0, chunked)) == prompts
    assert prompts_per_iteration(SimpleNamespace(prompt=1e6, drafted=0), 0, 1000.0, False) == 1


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    """rho / (2 (1 - rho)) services: half of one at one half; with any patience a server is never busy all the time."""
    one = np.array([1.0])
    assert float(waiting_services(0.5, 1.0)) == 0.5 and float(highest_utilisation_within(0.5, one)[0]) == pytest.approx(0.5)
    assert float(highest_utilisation_within(4.5, one)[0]) == pytest.approx(0.9)
    assert 0.999 < float(highest_utilisation_within(1e30, one)[0]) < 1


def test_adapters_beside_linear_layers():
    """Rank 8: k to 8 and 8 to n beside the frozen layer."""
    gemm = GemmShape(name="linear_fc1", m=np.array([10.0]), n=np.array([30.0]), k=np.array([20.0]), groups=4.0)
    lora = SimpleNamespace(numerics=Numerics(peft="lora"))
    frozen, first, second = with_adapters(lora, [gemm])
    assert not frozen.trainable and (float(first.n[0]), float(first.k[0])) == (8, 20)
    assert (float(second.n[0]), float(second.k[0])) == (30, 8) and first.trainable and second.trainable
    assert with_adapters(SimpleNamespace(numerics=Numerics()), [gemm]) == [gemm]
