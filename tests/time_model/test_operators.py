"""GEMM, attention and memory-bound kernels, launches by the host, and the constants of GPUs and stacks."""

import dataclasses
import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, StackTime, load_stack, software_names, with_options
from autoconfig.time_model.collectives import Group, collective_seconds
from autoconfig.time_model.hardware.efficiency import COLLECTIVES, GemmEfficiency, efficiency_of
from autoconfig.time_model.job import Shapes, TrainingJob, shapes_of
from autoconfig.time_model.operators.kernels import (
    activation_bytes,
    attended_pairs,
    flash_attention_flops,
    flash_attention_seconds,
    flash_efficiency,
    gemm_bytes,
    gemm_flops,
    gemm_seconds,
    grouped_gemm_seconds,
    host_floor_seconds,
    layer_launch_seconds,
    norm_bytes,
    packed_pairs,
    pointwise_seconds,
    residual_bytes,
    ring_correction_bytes,
    softmax_bytes,
    straggler_seconds,
    unfused_attention_seconds,
    weight_gradient_seconds,
)
from autoconfig.time_model.operators.layer import (
    BlockCollectives,
    core_attention,
    cp_communication_seconds,
    tp_communication_seconds,
)
from autoconfig.time_model.operators.layer_table import mtp_projection_shape, price_operators
from autoconfig.time_model.operators.listing import OperatorRow, explain_operators
from autoconfig.time_model.operators.operator import GemmShape, Operator, with_adapters
from autoconfig.time_model.operators.sparse import share_of_peak
from autoconfig.time_model.serving.sparse import indexer_decode_seconds, sparse_prefill_seconds
from small_models import ENCODER_TOKENS, H100, MLA, MODELS, job_and_shapes, symbols

from autoconfig.training.question import Request, understand

PERFECT = GemmEfficiency(e=1.0, k0_elements=0.0, t0_s=0.0, eb=1.0, r1=1.0, r2=1.0)
MACHINE = {"flops_per_s": 312e12, "hbm_bytes_per_s": 2.0e12, "num_sms": 108}
A100 = efficiency_of(load_gpu("a100-80gb"))
TE = load_stack("transformer-engine").time


def test_gemm_pays_a_whole_wave_for_one_tile_too_many() -> None:
    only_128 = dataclasses.replace(PERFECT, r1=1.0, r2=1e-9)  # 64-wide tiles are out of the question
    full = gemm_seconds(12 * 128, 9 * 128, 4096, constants=only_128, **MACHINE)
    assert gemm_seconds(12 * 128, 9 * 128 + 1, 4096, constants=only_128, **MACHINE) > 1.4 * full


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


def test_only_kinds_of_layers_that_the_model_has_wait_for_the_host() -> None:
    model, cluster = load_model("mixtral-8x7b"), cluster_of(load_gpu("h100"), 64)
    workload = Workload(seq_length=4096, global_batch_size=256)
    stack = load_stack("transformer-engine")
    scenario = Scenario(model=model, cluster=cluster, numerics=Numerics(), software=stack, workload=workload)
    rows = explain_operators(scenario, parse_plan("tp=1,pp=2,ep=8,mbs=1", 64))
    assert {row.layer for row in rows if row.operator == "launches by the host"} == {"moe"}


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


@pytest.mark.parametrize(("settings", "experts", "more", "waits"), [
    (RunSettings(), 4, {"dropless": True}, 9e-4), (RunSettings(), 1, {"dropless": True}, 3e-4), (RunSettings(), 4, {}, 0),
    (RunSettings(), 0, {"dropless": True}, 0), (RunSettings(), 4, {"dropless": True, "overlapped": True}, 0),
    (RunSettings(dispatcher="hybridep"), 4, {"dropless": True}, 0),
    (RunSettings(cuda_graphs=frozenset({"moe_preprocess"})), 4, {"dropless": True}, 0),
])  # fmt: skip
def test_what_all_to_all_asks_of_the_host(settings, experts, more, waits):
    """0.9 ms where several experts' rows are sorted, a third with one; nothing dense, where tokens drop, under EP overlap, by
    other dispatchers and where a graph prepares the rows."""
    without, found = (
        layer_launch_seconds(replace(STACK, alltoall_host_seconds=s), settings, experts, **more) for s in (0.0, 9e-4)
    )
    assert float(found - without) == pytest.approx(waits)


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


def test_adapters_beside_linear_layers():
    """Rank 8: k to 8 and 8 to n beside the frozen layer."""
    gemm = GemmShape(name="linear_fc1", m=np.array([10.0]), n=np.array([30.0]), k=np.array([20.0]), groups=4.0)
    lora = SimpleNamespace(numerics=Numerics(peft="lora"))
    frozen, first, second = with_adapters(lora, [gemm])
    assert not frozen.trainable and (float(first.n[0]), float(first.k[0])) == (8, 20)
    assert (float(second.n[0]), float(second.k[0])) == (30, 8) and first.trainable and second.trainable
    assert with_adapters(SimpleNamespace(numerics=Numerics()), [gemm]) == [gemm]


@pytest.mark.parametrize(
    ("frozen", "stored", "kernels"),
    [("nf4", 0.5 + 1 / 64 + 4 / 16384, 3), ("nf4_single", 0.5625, 1), ("int8", 1, 2), ("fp8", 1, 1)],
)
def test_frozen_weights_are_made_16_bits_before_each_product(frozen, stored, kernels):
    """Llama-3-8B: what is stored is read and 2 bytes written an element, in forward and in backward; kernels a matrix."""
    job, x = job_and_shapes("tp=1,mbs=1", peft="lora", frozen_dtype=frozen)
    plain, _ = job_and_shapes("tp=1,mbs=1", peft="lora")
    found, before = ({op.name: op for op in price_operators(one, x, BlockCollectives(one, x, 4096.0))} for one in (job, plain))
    assert set(found) - set(before) == {"attention dequantisation", "mlp dequantisation"}
    rate = job.hbm_bytes_per_s * job.gpu.hbm_pointwise
    for name, weights, matrices in (("attention", 2 * 4096 * (4096 + 1024), 4), ("mlp", 3 * 4096 * 14336, 3)):
        op = found[f"{name} dequantisation"]
        traffic = (stored + 2) * weights
        assert op.traffic[0] == pytest.approx(traffic) and not np.any(op.wgrad) and op.forward[0] == op.dgrad[0]
        slower = job.software.pointwise_slowdown
        assert op.forward[0] == pytest.approx(slower * traffic / rate + kernels * matrices * job.gpu.launch_s, rel=1e-6)


@pytest.mark.parametrize("cp", [2, 4])
def test_the_ring_sends_keys_and_values_forward_and_their_gradients_too_backward(cp):
    """8,192 tokens a rank; 8 key and 8 value heads of 128 channels in 16 bits are 4,096 bytes a token, sent to all others."""
    job, x = job_and_shapes(f"tp=1,cp={cp}", seq=8192 * cp)
    idle = SimpleNamespace(forward=np.zeros(1), dgrad=np.zeros(1))
    forward, backward = cp_communication_seconds(job, x, idle)
    rate = job.links.collectives["p2p"].link_share * job.links.link_bytes_per_s
    assert backward[0] - forward[0] == pytest.approx((cp - 1) * 8192 * 4096 / rate)
    busy = SimpleNamespace(forward=np.full(1, 1e3), dgrad=np.full(1, 1e3))
    hidden, _ = cp_communication_seconds(job, x, busy)
    alpha, share = job.links.collectives["p2p"].alpha_s, job.software.overlap_interference
    assert forward[0] - hidden[0] == pytest.approx((1 - share) * (cp - 1) * (alpha + 8192 * 4096 / rate))


def test_flash_attention_computes_five_products_backward_where_forward_has_two():
    """Dao 2023, section 3.1; start-up is nothing at 32k tokens."""
    job, x = job_and_shapes("tp=1")
    core = core_attention(job, x)
    assert core.dgrad[0] / core.forward[0] == pytest.approx(2.5 / job.gpu.attention.backward, rel=1e-3)
    assert core.flops[0] == 2 * 2 * 128 * 32 * 32768**2 / 2  # two products of 2 d FLOPs for each seen pair and head


@pytest.mark.parametrize(("gpu", "faster"), [("h100", 1.0), ("b200", 1 / 0.35)])
def test_torchtitan_asks_for_the_kernels_of_cudnn_on_blackwell(gpu, faster):
    """torchtitan 0.2.2, models/attention.py; FlashAttention-2 reaches 0.35 of their rate there (gpu_efficiency.json)."""
    seconds = []
    for options in (StackOptions(), StackOptions(attention_kernel="flash_attention2")):
        scenario = Scenario(
            model=load_model("llama3-8b"), cluster=cluster_of(load_gpu(gpu), 8), numerics=Numerics(),
            software=with_options(load_stack("torchtitan"), options),
            workload=Workload(seq_length=32768, global_batch_size=64),
        )  # fmt: skip
        job = TrainingJob.of(scenario)
        seconds.append(core_attention(job, shapes_of(scenario.layouts([parse_plan("tp=1", 8)]), job)).forward[0])
    assert seconds[1] / seconds[0] == pytest.approx(faster, rel=0.02)


def test_a_prediction_depth_projects_two_hidden_states_to_one():
    job, shapes = SimpleNamespace(model=SimpleNamespace(hidden_size=7168)), SimpleNamespace(tokens=np.array([4096.0]), tp=8.0)
    found = mtp_projection_shape(job, shapes)
    assert (found.n, found.k.tolist(), found.m.tolist()) == (7168 / 8, [2 * 7168], [4096.0])


def test_userbuffers_hide_six_tenths_of_tensor_parallel_communication():
    stack = load_stack("transformer-engine")
    plain = replace(stack, time=replace(stack.time, tp_overlap_share=0.0))
    share = {
        on: with_options(plain, StackOptions(overlaps=frozenset({"tp-comm-overlap"} if on else ()))).time.tp_overlap_share
        for on in (True, False)
    }
    assert share == {True: 0.6, False: 0.0}  # docs/time_model.md, tp_overlap_share
    better = replace(stack, time=replace(stack.time, tp_overlap_share=0.8))
    assert with_options(better, StackOptions(overlaps=frozenset({"tp-comm-overlap"}))).time.tp_overlap_share == 0.8


@pytest.mark.parametrize(("sublayer", "share"), [("attention", 1.0), ("gdn", 1.0), ("mamba", 1.0), ("mlp", 0.25)])
def test_a_single_sublayer_is_launched_without_experts(sublayer, share):
    stack = replace(load_stack("transformer-engine").time, host_floor_seconds=1e-3)
    found = layer_launch_seconds(stack, RunSettings(), np.array([0.0, 16.0]), sublayer=sublayer)
    assert found.tolist() == pytest.approx([share * 1e-3] * 2)


def test_unfused_attention_computes_all_scores_of_keys_and_of_values():
    """The mask saves nothing; queries and keys of latent attention are 192 wide, values 128."""
    scenario = Scenario(
        model=load_model("deepseek-v2-lite"), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("megatron-lm-2022"), workload=Workload(seq_length=4096, global_batch_size=64),
    )  # fmt: skip
    job = TrainingJob.of(scenario)
    core = core_attention(job, shapes_of(scenario.layouts([parse_plan("tp=1,ep=8", 8)]), job))
    assert core.flops[0] == 2 * (192 + 128) * 16 * 4096**2


def test_gemm_of_whole_waves_on_a_perfect_machine_runs_at_peak() -> None:
    # 108 tiles of 128 x 128: 12 x 9 tiles, one wave; 2 m n k / P by hand.
    m, n, k = 12 * 128, 9 * 128, 4096
    assert gemm_seconds(m, n, k, constants=PERFECT, **MACHINE) == pytest.approx(2 * m * n * k / 312e12)


PLANS = (
    {"mbs": 1, "tp": 1, "sp": 0, "cp": 1, "ep": 1, "etp": 1, "pp": 1},
    {"mbs": 3, "tp": 4, "sp": 1, "cp": 2, "ep": 2, "etp": 2, "pp": 1},
    {"mbs": 2, "tp": 4, "sp": 0, "cp": 1, "ep": 16, "etp": 1, "pp": 1},
    {"mbs": 1, "tp": 16, "sp": 1, "cp": 4, "ep": 4, "etp": 1, "pp": 1},
)
NUMERICS = {
    "bf16": Numerics(moe_imbalance=1.5, attention_dropout=0.1, hidden_dropout=0.1),
    "fp32": Numerics(precision="fp32", attention_dropout=0.0, hidden_dropout=0.0, moe_capacity_factor=1.25),
    "fp8": Numerics(precision="fp8", attention_dropout=0.0, hidden_dropout=0.0, moe_imbalance=1.5),
}
ROWS = json.loads(Path(__file__).with_name("operator_formulas.json").read_text(encoding="utf-8"))
"""In the pages' letters (small_models.symbols):

gemms: model, changes, name, rows m, columns n, depth k, number of them.
memory_bound: model, changes, name, bytes forward and backward at 16 bits, launches of both.
communication: model, changes, name, seconds forward and backward. AR, AG, RS: tensor-parallel collectives of so many bytes;
EA2A, XAG, XRS: experts'; ex: what is exposed of communication beside compute, dgrad and wgrad a linear layer's gradients.
"""


Case = tuple[TrainingJob, Shapes, dict[str, Operator], dict[str, Any]]


@cache
def priced(model: str, changes: str, plan: int, numerics: str) -> Case:
    """The job, its one shape, its operators by name and layer, and the letters."""
    spec = ModelSpec(**{**MODELS[model], **json.loads(changes)})
    degrees = PLANS[plan]
    tokens = {"seq_length": ENCODER_TOKENS, "decoder_seq_length": 240} if model == "t5" else {"seq_length": 240}
    scenario = Scenario(
        model=spec, cluster=cluster_of(load_gpu("h100"), 64), numerics=NUMERICS[numerics],
        software=load_stack("transformer-engine"),
        workload=Workload(global_batch_size=192, **tokens),
    )  # fmt: skip
    letters = symbols(spec, NUMERICS[numerics], degrees, 240)
    job = TrainingJob.of(scenario)
    x = shapes_of(scenario.layouts([parse_plan(",".join(f"{key}={value}" for key, value in degrees.items()), 64)]), job)
    found = price_operators(job, x, BlockCollectives(job, x, float(spec.hidden_size)))
    operators = {op.name: op for op in found} | {f"{op.layer} {op.name}": op for op in found}
    return job, x, operators, letters


def each(rows: list[list[Any]]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: f"{row[0]} {row[2]}")


def cases(row: list[Any]) -> Any:
    """Everything of the row's model on each plan in each precision, and the row's name."""
    for plan, numerics in itertools.product(range(len(PLANS)), NUMERICS):
        yield *priced(row[0], json.dumps(row[1]), plan, numerics), (plan, numerics, row[2])


def value(formula: str, letters: dict[str, Any]) -> float:
    return float(eval(formula, {}, letters))


@each(ROWS["gemms"])
def test_linear_layers_have_their_shapes(row: list[Any]) -> None:
    for job, _, operators, letters, case in cases(row):
        op = operators[row[2]]
        m, n, k, count = (value(text, letters) for text in row[3:])
        assert op.flops[0] == pytest.approx(count * 2 * m * n * k), case
        low = job.quantised and row[2] not in ("router", "logits", "masked LM dense")
        element = 1 if low else letters["w"]
        assert op.traffic[0] == pytest.approx(count * element * (m * k + k * n + m * n)), case


@each(ROWS["memory_bound"])
def test_memory_bound_operators_move_their_bytes(row: list[Any]) -> None:
    for job, _, operators, letters, case in cases(row):
        op, launches = operators[row[2]], row[5:] or [0, 0]
        rate = job.hbm_bytes_per_s * job.gpu.hbm_pointwise / job.software.pointwise_slowdown
        for seconds, formula, count in zip((op.forward, op.dgrad), row[3:5], launches, strict=True):
            moved = (float(seconds[0]) - count * job.gpu.launch_s) * rate
            assert moved == pytest.approx(letters["w"] / 2 * value(formula, letters), rel=1e-9, abs=1e-3), case


def collectives(job: TrainingJob, x: Shapes, operators: dict[str, Operator]) -> dict[str, Any]:
    """Seconds of collectives by their bytes, and what they hide behind."""

    def seconds(kind: str, group: Group) -> Any:
        return lambda total: float(collective_seconds(kind, total, group, job.links)[0])

    def exposed(communication: float, compute: float) -> float:
        share = job.software.overlap_interference
        return max(communication - compute, 0.0) + share * min(communication, compute)

    short = {"AR": "all_reduce", "AG": "all_gather", "RS": "reduce_scatter"}
    return {
        **{name: seconds(kind, x.tensor_group) for name, kind in short.items()},
        "A2A": seconds("all_to_all", x.context_group), "EA2A": seconds("all_to_all", x.expert_group), "ex": exposed,
        "XAG": seconds("all_gather", x.expert_tensor_group), "XRS": seconds("reduce_scatter", x.expert_tensor_group),
        "dgrad": lambda name: float(operators[name].dgrad[0]), "wgrad": lambda name: float(operators[name].wgrad[0]),
    }  # fmt: skip


@each(ROWS["communication"])
def test_communication_moves_its_bytes(row: list[Any]) -> None:
    for job, x, operators, letters, case in cases(row):
        op, known = operators[row[2]], letters | collectives(job, x, operators)
        known["hidden"] = 0.6 if letters["u"] > 1 and letters["t"] <= 8 else 0.0  # by userbuffers, inside a link domain
        for seconds, formula in zip((op.forward, op.dgrad), row[3:5], strict=True):
            assert float(seconds[0]) == pytest.approx(value(formula, known), rel=1e-9, abs=1e-15), case


MODEL, S, K = load_model("deepseek-v3.2"), 8192, 2048


def rows(gpu: str, text: str = "tp=1,pp=16,ep=64,mbs=1,first=4,last=1", seq: int = S) -> dict[str, OperatorRow]:
    request = Request(model="deepseek-v3.2", gpus=1024, gpu=gpu, seq_length=seq, global_batch_size=1024)
    found = explain_operators(understand(request).scenario, parse_plan(text, 1024))
    return {row.operator: row for row in found if row.layer in ("all", "moe")}


def test_flops_are_those_of_the_pairs() -> None:
    found, chosen, before = rows("b200"), S * K - K * K / 2, S * S / 2
    assert found["core attention"].forward_flops == pytest.approx(2 * 128 * (576 + 512) * chosen)
    assert found["indexer scores"].forward_flops == pytest.approx(2 * 64 * 128 * before)
    assert found["indexer loss"].forward_flops == pytest.approx(2 * 128 * 576 * chosen)
    short = rows("b200", seq=1024)
    assert short["core attention"].forward_flops == pytest.approx(2 * 128 * (576 + 512) * 1024**2 / 2), "every key is chosen"


@pytest.mark.parametrize(("gpu", "milliseconds"), [("gb200", 7.4), ("h100", 14.6)])
def test_forward_takes_what_the_module_was_measured_to_take(gpu: str, milliseconds: float) -> None:
    """aiconfigurator-core 0.12.0: the whole module of DeepSeek-V3.2 over 8,192 tokens, in short bursts: at full clock."""
    request = Request(model="deepseek-v3.2", gpus=1024, gpu=gpu, seq_length=S, global_batch_size=1024)
    job = TrainingJob.of(understand(request).scenario)
    x = shapes_of(job.scenario.layouts([parse_plan("tp=1,pp=16,ep=64,mbs=1,first=4,last=1", 1024)]), job)
    starts = ("linear_q_", "linear_kv_", "linear_proj", "indexer.", "core attention", "indexer scores", "choice of keys")
    found = [op for op in price_operators(job, x, BlockCollectives(job, x, 7168.0)) if op.name.startswith(starts)]
    assert float(sum(op.forward for op in found)[0]) == pytest.approx(milliseconds / 1e3, rel=0.03)


def test_the_indexer_is_whole_on_every_rank_and_its_inputs_have_no_gradient() -> None:
    one, four = rows("b200"), rows("b200", "tp=4,pp=16,ep=16,mbs=1,sp=1,first=4,last=1")
    assert one["indexer.linear_wq_b"].forward_flops == four["indexer.linear_wq_b"].forward_flops == 2 * S * 1536 * 64 * 128
    assert one["indexer scores"].forward_flops == four["indexer scores"].forward_flops
    assert four["core attention"].forward_flops == one["core attention"].forward_flops / 4
    assert one["indexer.linear_wk"].dgrad_seconds == 0 < one["indexer.linear_wk"].wgrad_seconds
    assert one["linear_q_down_proj"].dgrad_seconds > 0
    assert "indexer communication" in four and "indexer communication" not in one


def test_model_flops_count_the_chosen_keys() -> None:
    dense = MODEL.replace(dsa_indexer_n_heads=0, dsa_indexer_head_dim=0, dsa_indexer_topk=0)
    assert model_flops_per_token(MODEL, 131_072) < 0.4 * model_flops_per_token(dense, 131_072)
    more = model_flops_per_token(MODEL, 65_536) - model_flops_per_token(MODEL, 32_768)
    assert more == pytest.approx(62 * 64 * 128 * 32_768), "beyond K keys only the indexer's scores grow"


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
