"""GEMM, attention and memory-bound formulas: hand-computed values, limits and monotonicity."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack, software_names
from autoconfig.time_model.hardware.efficiency import COLLECTIVES, GemmEfficiency, efficiency_of
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
    grouped_gemm_share,
    host_floor_seconds,
    layer_launch_seconds,
    norm_bytes,
    pointwise_seconds,
    residual_bytes,
    ring_correction_bytes,
    softmax_bytes,
    straggler_ratio,
    straggler_seconds,
    unfused_attention_seconds,
    weight_gradient_seconds,
)
from autoconfig.time_model.operators.moe import domain_copies, expert_rows
from autoconfig.time_model.step.rows import optimizer_bytes_per_parameter, optimizer_seconds

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


def test_grouped_gemm_approaches_the_dense_rate_with_rows() -> None:
    assert grouped_gemm_share(400.0, 400.0) == 0.5
    one = {"constants": A100.gemm, **MACHINE}
    dense = gemm_seconds(8192, 4096, 4096, groups=4, **one)
    grouped = grouped_gemm_seconds(8192, 4096, 4096, 4, rows=8192, rows_half=400.0, **one)
    assert dense < grouped < 1.06 * dense
    few = grouped_gemm_seconds(128, 4096, 4096, 64, rows=128, rows_half=400.0, **one)
    assert few > 2 * gemm_seconds(128, 4096, 4096, groups=64, **one)


def test_weight_gradient_accumulation_counts_read_and_write() -> None:
    assert weight_gradient_seconds(1e9, grad_bytes=4, exposed=1.0, hbm_bytes_per_s=2e12) == pytest.approx(8e9 / 2e12)
    assert weight_gradient_seconds(1e9, grad_bytes=2, exposed=0.5, hbm_bytes_per_s=2e12) == pytest.approx(2e9 / 2e12)


def test_causal_and_sliding_pairs() -> None:
    assert attended_pairs(4096) == 4096**2 / 2
    assert attended_pairs(4096, 1024) == 4096 * 1024 - 1024**2 / 2
    assert attended_pairs(1024, 4096) == 1024**2 / 2


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
    stack = dataclasses.replace(TE, host_floor_seconds=1e-3)
    extra = host_floor_seconds(0.75e-3, 1.2e-3, 1, stack)
    assert extra == (pytest.approx(0.5e-3), pytest.approx(0.8e-3))  # 0.75, 1 and 1.25; 1.2, 1.6 and 2
    assert host_floor_seconds(0.0, 0.0, 8, stack) == (pytest.approx(1.15e-3), pytest.approx(1.84e-3))
    assert host_floor_seconds(1.0, 1.0, 1, stack)[0] < 1e-6
    assert host_floor_seconds(0.0, 0.0, 8, dataclasses.replace(stack, cuda_graphs=True)) == (0.0, 0.0)


def test_the_host_launches_every_expert() -> None:
    stack = dataclasses.replace(TE, host_floor_seconds=5e-4, moe_host_seconds=1e-3, expert_host_seconds=1e-4)
    assert layer_launch_seconds(stack, 0.0, graphed=False) == pytest.approx(5e-4)
    assert layer_launch_seconds(stack, 16.0, graphed=False) == pytest.approx(3.1e-3)
    assert layer_launch_seconds(stack, 16.0, graphed=True) == pytest.approx(1.6e-3)


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
        "numerics": Numerics(),
        "stack": TE,
        "gradient_bytes": 4,
        "hbm_bytes_per_s": 2e12,
        "host_bytes_per_s": 25e9,
        "cpu_memory_bytes_per_s": 50e9,
    }
    resident = optimizer_seconds(1e9, 0.0, 1, 0.0, **common)
    assert resident == pytest.approx(50e9 / 2e12 + 3e-3)
    assert optimizer_seconds(1e9, 0.0, 1, 1.0, **common) == pytest.approx(6e9 / 25e9 + 1.0 + 3e-3)
    assert resident < optimizer_seconds(1e9, 0.0, 1, 0.5, **common) < optimizer_seconds(1e9, 0.0, 1, 1.0, **common)


def test_expert_rows_are_conserved() -> None:
    rows, each = expert_rows(4096, 8, 128, ep=8, etp=1, imbalance=1.0)
    assert rows == 4096 * 8
    assert each * 128 / 8 == rows
    assert expert_rows(4096, 8, 128, ep=8, etp=2, imbalance=1.5)[0] == 2 * 1.5 * rows


def test_one_copy_per_domain() -> None:
    assert domain_copies(8, np.float64(1.0)) == 1.0
    assert domain_copies(1, np.float64(4.0)) == 1.0
    assert domain_copies(8, np.float64(2.0)) == pytest.approx((1 - 2.0**-8) * 2 / 8)


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
                reached = efficiency_of(gpu).quantised[form.peak]
                assert reached.recipe[form.recipe] > 0 and reached.cast_bytes[form.recipe] >= 1, (gpu.id, form)
