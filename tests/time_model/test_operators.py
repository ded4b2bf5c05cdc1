"""GEMM, attention, memory-bound, collective, pipeline and data-parallel formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.run_settings import RunSettings, read_graphs
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack, software_names
from autoconfig.time_model.hardware.efficiency import COLLECTIVES, CollectiveEfficiency, GemmEfficiency, efficiency_of
from autoconfig.time_model.job import (
    Links,
    TrainingJob,
    collective_seconds,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    exposed_seconds,
    group_of,
    pipeline_crosses,
    rate_share,
    ring_factor,
    send_seconds,
    tensor_group,
)
from autoconfig.time_model.operators.kernels import (
    activation_bytes,
    attended_pairs,
    flash_attention_flops,
    flash_attention_seconds,
    flash_efficiency,
    gemm_bytes,
    gemm_flops,
    gemm_seconds,
    host_floor_seconds,
    layer_launch_seconds,
    norm_bytes,
    packed_pairs,
    pointwise_seconds,
    residual_bytes,
    ring_correction_bytes,
    softmax_bytes,
    straggler_ratio,
    straggler_seconds,
    unfused_attention_seconds,
    weight_gradient_seconds,
)
from autoconfig.time_model.operators.layer import tp_communication_seconds
from autoconfig.time_model.operators.listing import explain_operators
from autoconfig.time_model.operators.moe import expert_rows, places_reached
from autoconfig.time_model.step.rows import (
    block_recomputed_layers,
    bucketed_exposed_seconds,
    embedding_gradient_seconds,
    fsdp_seconds,
    optimizer_bytes_per_parameter,
    optimizer_seconds,
    p2p_message_bytes,
    p2p_seconds,
    pipeline_bubble_seconds,
    reduction_communication,
)

PERFECT = GemmEfficiency(e=1.0, k0_elements=0.0, t0_s=0.0, eb=1.0, r1=1.0, r2=1.0)
MACHINE = {"flops_per_s": 312e12, "hbm_bytes_per_s": 2.0e12, "num_sms": 108}
A100 = efficiency_of(load_gpu("a100-80gb"))
TE = load_stack("transformer-engine").time


def test_gemm_of_whole_waves_on_a_perfect_machine_runs_at_peak() -> None:
    # 108 tiles of 128 x 128: 12 x 9 tiles, one wave; 2 m n k / P by hand.
    m, n, k = 12 * 128, 9 * 128, 4096
    seconds = gemm_seconds(m, n, k, constants=PERFECT, **MACHINE)
    assert seconds == pytest.approx(2 * m * n * k / 312e12)


def test_gemm_pays_a_whole_wave_for_one_tile_too_many() -> None:
    only_128 = dataclasses.replace(PERFECT, r1=1.0, r2=1e-9)  # 64-wide tiles are out of the question
    full = gemm_seconds(12 * 128, 9 * 128, 4096, constants=only_128, **MACHINE)
    more = gemm_seconds(12 * 128, 9 * 128 + 1, 4096, constants=only_128, **MACHINE)
    assert more > 1.4 * full


def test_gemm_start_up_depth_and_memory_bound() -> None:
    c = A100.gemm
    assert gemm_seconds(1, 1, 1, constants=c, **MACHINE) >= c.t0_s
    slim = gemm_seconds(16, 8192, 8192, constants=c, **MACHINE)
    assert slim == pytest.approx(c.t0_s + gemm_bytes(16, 8192, 8192) / (c.eb * 2.0e12))
    size = np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
    rate = gemm_flops(size, size, size) / gemm_seconds(size, size, size, constants=c, **MACHINE)
    assert np.all(np.diff(rate) > 0)
    assert np.all(rate < 312e12 * c.e)
    assert rate[-1] > 0.8 * 312e12  # operator tables: 0.84 of peak at large shapes (findings, section 5)


def test_weight_gradient_accumulation_counts_read_and_write() -> None:
    assert weight_gradient_seconds(1e9, grad_bytes=4, exposed=1.0, hbm_bytes_per_s=2e12) == pytest.approx(8e9 / 2e12)
    assert weight_gradient_seconds(1e9, grad_bytes=2, exposed=0.5, hbm_bytes_per_s=2e12) == pytest.approx(2e9 / 2e12)


def test_causal_and_sliding_pairs() -> None:
    assert attended_pairs(4096) == 4096**2 / 2
    assert attended_pairs(4096, 1024) == 4096 * 1024 - 1024**2 / 2
    assert attended_pairs(1024, 4096) == 1024**2 / 2


def test_packed_sequences_attend_within_themselves() -> None:
    # 16 sequences of 256 tokens, each with its own causal half and tiles of 128 rows at its ends
    assert packed_pairs(4096, 256) == 16 * (256 + 128) ** 2 / 2
    assert packed_pairs(4096, 256, 300) == 16 * (384 * 300 - 300**2 / 2)
    assert packed_pairs(4096, 4000) == attended_pairs(4096), "never more than one sequence"


def test_flash_attention_flops_and_rate() -> None:
    # 4 b a s^2 d / 2 for one head of 128 channels, s = 2048
    assert flash_attention_flops(attended_pairs(2048), 1, 1, 128, 128) == 4 * 2048**2 * 128 / 2
    assert flash_efficiency(900, 128, e=0.6, s0=900, head_dim_half=50) == pytest.approx(0.3)
    assert flash_efficiency(1e12, 64, e=1.0, s0=900, head_dim_half=50) == pytest.approx(0.78, abs=0.01)  # findings, section 2
    assert flash_efficiency(1e12, 192, e=1.0, s0=900, head_dim_half=50) == pytest.approx(1.0)
    assert flash_attention_seconds(1e12, 0.5, flops_per_s=312e12, start_s=3e-6) == pytest.approx(3e-6 + 1e12 / 156e12)


def test_unfused_attention_adds_score_traffic() -> None:
    machine = {"flops_per_s": 312e12, "hbm_bytes_per_s": 2e12, "pointwise": 0.8, "rate": 0.62, "dim_half": 40.0}
    base = unfused_attention_seconds(1e9, 128, 128, softmax_bytes=0.0, gemms_per_pass=1, **machine)
    compute = 2e9 * 128 / (312e12 * 0.62 * 128 / 168)
    assert base == pytest.approx(2 * max(compute, 2e9 / 1.6e12))
    dropped = unfused_attention_seconds(1e9, 128, 128, softmax_bytes=9.0, gemms_per_pass=1, **machine)
    assert dropped - base == pytest.approx(9e9 / 1.6e12)


def test_ring_correction_vanishes_without_ring() -> None:
    assert ring_correction_bytes(4096, 1024, 1) == 0
    assert ring_correction_bytes(1, 1, 3) == 15


def test_layer_traffic_matches_the_published_byte_counts() -> None:
    # findings, section 2: 22 bytes forward, 44 backward per element with dropout; 16 and 36 without.
    for dropout, forward, backward in ((0.1, 22, 44), (0.0, 16, 36)):
        numerics = Numerics(hidden_dropout=dropout, attention_dropout=dropout)
        norm, residual = norm_bytes(1.0, TE), residual_bytes(1.0, TE, numerics)
        assert (2 * (norm[0] + residual[0]), 2 * (norm[1] + residual[1])) == (forward, backward)
    assert activation_bytes(1.0, False, TE) == (4, 8)
    assert activation_bytes(1.0, True, TE) == (6, 10)
    assert softmax_bytes(TE, Numerics()) == (9, 11)
    assert softmax_bytes(TE, Numerics(attention_dropout=0.0)) == (4, 6)


def test_pointwise_is_bytes_over_bandwidth_plus_launches() -> None:
    seconds = pointwise_seconds(1.6e9, 10, hbm_bytes_per_s=2e12, efficiency=0.8, launch_s=3e-6, factor=1.5)
    assert seconds == pytest.approx(1.5e-3 + 30e-6)


def test_host_and_gpu_combine_as_a_root_of_squares_and_graphs_need_no_host() -> None:
    extra = host_floor_seconds(0.75e-3, 1.2e-3, 1, 1e-3)
    assert extra == (pytest.approx(0.5e-3), pytest.approx(0.8e-3))  # 0.75, 1 and 1.25; 1.2, 1.6 and 2
    assert host_floor_seconds(0.0, 0.0, 8, 1e-3) == (pytest.approx(1.15e-3), pytest.approx(1.84e-3))
    assert host_floor_seconds(1.0, 1.0, 1, 1e-3)[0] < 1e-6
    for graphs in ("full", "full_iteration"):
        assert layer_launch_seconds(TE, RunSettings(cuda_graphs=read_graphs(graphs)), 16.0) == 0.0


def test_the_host_launches_every_expert() -> None:
    stack = dataclasses.replace(TE, host_floor_seconds=5e-4, moe_host_seconds=1e-3, expert_host_seconds=1e-4)
    plain, graphed = RunSettings(), RunSettings(cuda_graphs=read_graphs("attn moe_router moe_preprocess"))
    assert layer_launch_seconds(stack, plain) == pytest.approx(5e-4)
    assert layer_launch_seconds(stack, plain, 16.0, quantised=True) == pytest.approx(3.1e-3)
    assert layer_launch_seconds(stack, plain, 16.0) == pytest.approx(2.3e-3)
    assert layer_launch_seconds(stack, plain, 1.0) == pytest.approx(1.55e-3)
    assert layer_launch_seconds(stack, graphed, 16.0, quantised=True) == pytest.approx(1.7e-3)
    assert layer_launch_seconds(stack, plain, 16.0, overlapped=1.0) == pytest.approx(5e-4 + 2.2 * 1.8e-3)


def test_stragglers_grow_per_doubling() -> None:
    assert straggler_ratio(8, 0.01) == 1.0
    assert straggler_ratio(1, 0.01) == 1.0
    assert straggler_ratio(64, 0.01) == pytest.approx(1.03)
    assert straggler_seconds(10.0, 16, 0.01) == pytest.approx(0.1)


def test_optimizer_traffic_and_offload() -> None:
    assert optimizer_bytes_per_parameter(Numerics(), TE) == 50  # findings, section 2
    small = Numerics(exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16")
    assert optimizer_bytes_per_parameter(small, TE) == 42
    common = {
        "numerics": Numerics(), "stack": TE, "gradient_bytes": 4, "hbm_bytes_per_s": 2e12, "host_bytes_per_s": 25e9,
        "cpu_memory_bytes_per_s": 50e9,
    }  # fmt: skip
    resident = optimizer_seconds(1e9, 0.0, 1, 0.0, **common)
    assert resident == pytest.approx(50e9 / 2e12 + 3e-3)
    assert optimizer_seconds(1e9, 0.0, 1, 1.0, **common) == pytest.approx(6e9 / 25e9 + 1.0 + 3e-3)
    assert resident < optimizer_seconds(1e9, 0.0, 1, 0.5, **common) < optimizer_seconds(1e9, 0.0, 1, 1.0, **common)


def test_expert_rows_are_conserved() -> None:
    rows, each = expert_rows(4096, 8, 128, ep=8, etp=1, imbalance=1.0)
    assert rows == 4096 * 8
    assert each * 128 / 8 == rows
    assert expert_rows(4096, 8, 128, ep=8, etp=2, imbalance=1.5)[0] == 2 * 1.5 * rows


def test_a_token_reaches_each_place_once() -> None:
    assert places_reached(1.0, 8) == 1.0 and places_reached(4.0, 1) == pytest.approx(1.0)
    assert places_reached(2.0, 8) == pytest.approx((1 - 2.0**-8) * 2)


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_gpu_has_sane_constants(gpu_id: str) -> None:
    gpu = efficiency_of(load_gpu(gpu_id))
    assert gpu.level in ("calibrated", "default")
    assert 0.4 < gpu.gemm.e <= 1 and 0.4 < gpu.gemm.eb <= 1 and 0 < gpu.hbm_pointwise <= 1 and 0 < gpu.nic_efficiency <= 1
    assert set(gpu.collectives) == set(COLLECTIVES)


def test_levels_say_what_was_inherited() -> None:
    assert efficiency_of(load_gpu("h100")).level == "calibrated"
    volta = efficiency_of(load_gpu("v100-32gb"))
    assert (volta.level, volta.origin) == ("default", "default")
    assert efficiency_of(load_gpu("a6000-48gb")).level == "default"


def test_every_measured_software_name_has_a_stack() -> None:
    measured = """alephalpha-torch-2023 colossalai deepspeed gpt-neox internevo litgpt llm-foundry-fsdp megatron megatron-core
    megatron-core-0.14 megatron-core-2025 megatron-deepspeed-2022 megatron-deepspeed-2023 megatron-lm-2021 megatron-lm-2022
    nanotron nemo nemo-23.08.03 nemo-24.03.01 nemo-24.07 nemo-25.04 nemo-25.04.rc2 nemo-25.07 nemo-25.09 nemo-25.11
    nemo-or-maxtext nnscaler torchtitan transformers-deepspeed"""
    for name in measured.split():
        assert load_stack(name).time.host_floor_seconds > 0
    for name in software_names():
        assert load_stack(name).sources["time"]


def test_every_quantised_format_has_its_rate_and_casts_for_every_gpu() -> None:
    """A format without them could not be priced on some GPU."""
    from autoconfig.specs.hardware.cluster import gpu_ids
    from autoconfig.specs.scenario import FORMATS

    for form in (form for form in FORMATS.values() if form.quantised):
        for gpu in map(load_gpu, gpu_ids()):
            if form.peak in gpu.flops_per_s:
                precision = "nvfp4" if form.peak == "fp4" else "fp8"
                numerics = Numerics(precision=precision, fp8_recipe=form.recipe if precision == "fp8" else "delayed")
                workload = Workload(seq_length=2048, global_batch_size=8)
                scenario = Scenario(
                    model=load_model("llama3-8b"), cluster=cluster_of(gpu, 8), numerics=numerics,
                    software=load_stack("nemo-26.06"), workload=workload,
                )  # fmt: skip
                reached = TrainingJob.of(scenario).reached
                assert reached.recipe[form.recipe] > 0 and reached.cast_bytes[form.recipe] >= 1, (gpu.id, form)


IDEAL = CollectiveEfficiency(alpha_s=0.0, link_share=1.0, sqrt_s=0.0)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
LINKS = Links(
    link_bytes_per_s=300e9, nic_bytes_per_s=20e9, nic_hop_s=0.0, collectives=dict.fromkeys(KINDS, IDEAL),
    size_ranks=(2.0, 4.0, 8.0), size_alpha=(1.0, 1.0, 1.0), size_bandwidth=(1.0, 1.0, 1.0),
)  # fmt: skip


def test_ring_volumes() -> None:
    assert ring_factor("all_reduce", 8) == pytest.approx(2 * 7 / 8)
    assert ring_factor("all_gather", 4) == ring_factor("reduce_scatter", 4) == pytest.approx(3 / 4)
    reduce = collective_seconds("all_reduce", 8e9, group_of(8, 1, 8), LINKS)
    assert reduce == pytest.approx(2 * 7 / 8 * 8e9 / 300e9)
    parts = [collective_seconds(kind, 8e9, group_of(8, 1, 8), LINKS) for kind in ("reduce_scatter", "all_gather")]
    assert sum(parts) == pytest.approx(reduce)  # an all-reduce is a reduce-scatter and an all-gather
    assert collective_seconds("all_reduce", 8e9, group_of(1, 1, 8), LINKS) == 0.0


def test_network_ring_uses_the_cards_of_its_members_in_a_node() -> None:
    # 16 ranks, stride 8: one member a node, one card. Stride 1: eight members, eight cards (160 GB/s, below the link's 300).
    alone = collective_seconds("all_gather", 1e9, group_of(16, 8, 8), LINKS)
    together = collective_seconds("all_gather", 1e9, group_of(16, 1, 8), LINKS)
    assert alone == pytest.approx(15 / 16 * 1e9 / 20e9)
    assert together == pytest.approx(15 / 16 * 1e9 / 160e9)
    inside = collective_seconds("all_gather", 1e9, group_of(8, 1, 8), LINKS)
    assert inside < together < alone


def test_all_to_all_over_nodes_is_bound_by_the_own_card() -> None:
    seconds = collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS)
    assert seconds == pytest.approx(56 / 64 * 1e9 / 20e9)
    assert collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS) == pytest.approx(7 / 8 * 1e9 / 300e9)
    assert collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS, outside_share=0.5) == pytest.approx(seconds / 2)
    inside = collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS, inside_share=0.5)
    assert inside == pytest.approx(7 / 16 * 1e9 / 300e9)


def test_a_ring_on_slow_wires_takes_less_of_the_gpu() -> None:
    assert rate_share("all_gather", group_of(8, 1, 8), LINKS) == 1.0
    assert rate_share("all_gather", group_of(16, 8, 8), LINKS) == pytest.approx(20 / 300)
    assert rate_share("all_gather", group_of(16, 1, 8), LINKS) == pytest.approx(160 / 300)


def test_sends_and_overlap() -> None:
    assert send_seconds(1e9, True, LINKS) == pytest.approx(0.05)
    assert send_seconds(1e9, False, LINKS) == pytest.approx(1e9 / 300e9)
    assert exposed_seconds(3.0, 0.0, 0.25) == 3.0
    assert exposed_seconds(3.0, 5.0, 0.25) == pytest.approx(0.75)
    assert exposed_seconds(3.0, 2.0, 0.0) == pytest.approx(1.0)
    assert exposed_seconds(3.0, 5.0, 1.0) == 3.0  # interference 1 is no overlap


def test_megatron_rank_order_decides_the_links() -> None:
    model, cluster = load_model("gpt3-175b"), cluster_of(load_gpu("a100-80gb"), 1024)
    plans = [parse_plan(text, 1024) for text in ("tp=8,pp=8", "tp=2,cp=2,pp=8", "tp=16,pp=8", "tp=1,pp=1")]
    layouts = layouts_of(plans, model, 1024)
    assert tensor_group(layouts, cluster).local.tolist() == [8, 2, 8, 1]
    assert tensor_group(layouts, cluster).domains.tolist() == [1, 1, 2, 1]
    assert context_group(layouts, cluster).local.tolist() == [1, 2, 1, 1]
    assert data_group(layouts, cluster).size.tolist() == [16, 64, 8, 1024]
    assert data_group(layouts, cluster).local.tolist() == [1, 4, 1, 8]
    assert pipeline_crosses(layouts, cluster).tolist() == [True] * 4


def test_expert_groups_are_carved_out_of_the_data_parallel_ranks() -> None:
    model, cluster = load_model("mixtral-8x7b"), cluster_of(load_gpu("h100"), 64)
    layouts = layouts_of([parse_plan("tp=2,pp=2,ep=8,mbs=1,sp=1", 64)], model, 256)
    group = expert_group(layouts, cluster)
    assert (group.size.item(), group.local.item()) == (8, 8)
    rest = expert_data_group(layouts, cluster)  # edp = tp cp dp / (etp ep) = 2 x 16 / 8
    assert (rest.size.item(), rest.local.item()) == (4, 1)
    sliced = layouts_of([parse_plan("tp=2,pp=2,ep=8,etp=2,mbs=1,sp=1", 64)], model, 256)
    assert expert_group(sliced, cluster).local.item() == 4  # every second rank: 4 of 8 share a node


def test_bubble_is_narayanans() -> None:
    # Narayanan et al. 2021, section 2.2: bubble over ideal time = (p - 1) / (m v) for equal stages.
    for p, m, v in ((8, 64, 1), (8, 64, 3), (64, 512, 1)):
        stage = 0.37
        bubble = pipeline_bubble_seconds(stage, p * stage, v)
        assert bubble / (m * stage) == pytest.approx((p - 1) / (m * v))
    assert pipeline_bubble_seconds(0.5, 0.5, 1) == 0.0


def test_p2p_terms() -> None:
    assert p2p_message_bytes(2048, 12288, 2, 8) == 2048 * 12288 * 2 / 8
    assert p2p_seconds(1e-3, 1, 1, 64, 0.7) == 0.0
    assert p2p_seconds(1e-3, 8, 1, 64, 0.7) == pytest.approx(1e-3 * (2 * 64 + 14))  # hidden only where interleaved
    assert p2p_seconds(1e-3, 8, 3, 64, 0.7) == pytest.approx(1e-3 * (2 * 64 * 3 * 0.3 + 14))


def test_block_recomputation_counts_layers_per_chunk() -> None:
    assert block_recomputed_layers(12, 3, 2) == 6
    assert block_recomputed_layers(12, 3, 100) == 12


def test_tp_communication_overlaps_where_the_software_does() -> None:
    common = {"all_reduce": (2.0, 2.0), "gather": (1.0, 1.0), "scatter": (1.0, 1.0), "dgrad": 10.0, "wgrad": 10.0}
    shown = tp_communication_seconds(**common, sp=False, asynchronous=False, interference=0.25, hidden=0.0)
    behind = tp_communication_seconds(**common, sp=False, asynchronous=True, interference=0.25, hidden=0.0)
    assert shown == (2.0, 2.0)
    assert behind == (2.0, pytest.approx(0.5))
    sharded = tp_communication_seconds(**common, sp=True, asynchronous=True, interference=0.25, hidden=0.0)
    assert sharded == (2.0, pytest.approx(1.5))
    userbuffers = tp_communication_seconds(**common, sp=True, asynchronous=True, interference=0.25, hidden=0.6)
    assert userbuffers == (pytest.approx(0.8), pytest.approx(0.6))


def test_data_parallel_exposure() -> None:
    shown = bucketed_exposed_seconds(4.0, 10.0, 8, 8, 1, overlaps=False, interference=0.0)
    assert shown == 4.0
    assert bucketed_exposed_seconds(4.0, 10.0, 8, 8, 1, overlaps=True, interference=0.0) == pytest.approx(0.5)  # last bucket
    assert bucketed_exposed_seconds(4.0, 1.0, 8, 8, 1, overlaps=True, interference=0.0) == pytest.approx(3.0)
    assert bucketed_exposed_seconds(4.0, 1.0, 8, 8, 4, overlaps=True, interference=0.0) == pytest.approx(0.75)
    assert bucketed_exposed_seconds(40.0, 1.0, 8, 8, 4, overlaps=True, interference=0.0) == pytest.approx(32.0)
    work = (0.0, 1.0, 3.0, 9.0)
    exposed = np.array([bucketed_exposed_seconds(4.0, w, 8, 8, 2, overlaps=True, interference=0.25) for w in work])
    assert np.all(np.diff(exposed) <= 0) and exposed[0] <= 4.0


def test_sharded_reduction_moves_half_of_an_all_reduce() -> None:
    group = group_of(16, 8, 8)
    whole = reduction_communication(1e9, group, LINKS, 4, False)
    assert reduction_communication(1e9, group, LINKS, 4, True) == pytest.approx(whole / 2)
    assert reduction_communication(1e9, group, LINKS, 2, False) == pytest.approx(whole / 2)
    assert embedding_gradient_seconds(1e9, 1, True, 4, LINKS) == 0.0
    assert embedding_gradient_seconds(1e9, 4, True, 4, LINKS) == pytest.approx(0.2)


def test_fsdp_stages() -> None:
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=0, interference=0.5) == 0.0
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=2, interference=0.5) == pytest.approx(1.0)
    assert fsdp_seconds(1.0, 2.0, 5.0, 10.0, stage=3, interference=0.5) == pytest.approx(0.5 + 1.5)
    assert fsdp_seconds(10.0, 20.0, 5.0, 10.0, stage=3, interference=0.0) == pytest.approx(5.0 + 20.0)


def test_default_stack_overlaps_and_old_ones_do_not() -> None:
    new, old = load_stack("transformer-engine").time, load_stack("megatron-lm-2021").time
    assert (new.tp_overlap_share, new.p2p_overlap_share, new.overlap_grad_reduce, new.overlap_param_gather) == (
        0.6, 0.7, True, True,
    )  # fmt: skip
    assert (old.tp_overlap_share, old.p2p_overlap_share, old.overlap_grad_reduce, old.tp_async_backward) == (
        0.0, 0.0, False, False,
    )  # fmt: skip


def test_only_kinds_of_layers_that_the_model_has_wait_for_the_host() -> None:
    model, cluster = load_model("mixtral-8x7b"), cluster_of(load_gpu("h100"), 64)
    workload = Workload(seq_length=4096, global_batch_size=256)
    stack = load_stack("transformer-engine")
    scenario = Scenario(model=model, cluster=cluster, numerics=Numerics(), software=stack, workload=workload)
    rows = explain_operators(scenario, parse_plan("tp=1,pp=2,ep=8,mbs=1", 64))
    assert {row.layer for row in rows if row.operator == "launches by the host"} == {"moe"}
