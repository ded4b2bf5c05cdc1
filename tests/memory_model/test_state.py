"""Weights, gradients and optimizer state: the papers' bytes per parameter, and what divides them."""

import numpy as np
import pytest
from autoconfig.memory_model import state
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics

H100, B200 = load_gpu("h100"), load_gpu("b200")
BF16 = Numerics()


def group(shard: int = 8) -> state.ParameterGroup:
    return state.ParameterGroup(parameters=1000.0, gemm_weights=800.0, trainable=1000.0, shard=shard)


def total(numerics: Numerics, dist_opt: bool, fsdp: int = 0) -> float:
    parts = (
        state.weight_bytes(group(), numerics, H100, fsdp, False),
        state.gradient_bytes(group(), numerics, fsdp),
        state.optimizer_bytes(group(), numerics, dist_opt, fsdp, 0.0),
    )
    return float(sum(parts))


def test_mixed_precision_takes_18_bytes_and_zero_divides_them() -> None:
    """Narayanan et al. 2021, section 3.5 (18 bytes); Rajbhandari et al. 2020, figure 1 (what each ZeRO stage divides)."""
    assert total(BF16, dist_opt=False) == 18 * 1000
    assert total(BF16, dist_opt=True) == (2 + 4 + 12 / 8) * 1000
    assert total(BF16, dist_opt=False, fsdp=2) == (2 + (4 + 12) / 8) * 1000
    assert total(BF16, dist_opt=False, fsdp=3) == 18 / 8 * 1000
    assert total(Numerics(grad_reduce_dtype="bf16"), dist_opt=True) == (2 + 2 + 12 / 8) * 1000
    assert total(Numerics(precision="fp32"), dist_opt=False) == (4 + 4 + 8) * 1000


def test_precision_aware_optimizer_and_offload() -> None:
    small = Numerics(exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16", store_param_remainders=True)
    assert state.optimizer_bytes_per_parameter(small) == 2 + 2 + 2
    assert state.optimizer_bytes_per_parameter(BF16) == 12
    assert float(state.optimizer_bytes(group(), BF16, True, 0, 0.75)) == 12 / 8 * 1000 / 4


def test_fp8_weights() -> None:
    """Hopper keeps the transpose too, Blackwell does not; fp8_param_gather replaces the 16-bit weight of GEMMs."""
    plain, gathered = Numerics(precision="fp8"), Numerics(precision="fp8", fp8_param_gather=True)
    assert float(state.weight_bytes(group(), plain, H100, 0, False)) == 2 * 1000 + 2 * 800
    assert float(state.weight_bytes(group(), plain, B200, 0, False)) == 2 * 1000 + 800
    assert float(state.weight_bytes(group(), gathered, H100, 0, True)) == 2 * 200 + 2 * 800
    assert float(state.weight_bytes(group(), gathered, B200, 0, True)) == 2 * 200 + 800
    mxfp8 = Numerics(precision="fp8", fp8_recipe="mxfp8").format
    assert mxfp8.weight_copy_bytes(B200.compute_capability) == pytest.approx(2 * 33 / 32)


def test_step_temporary_only_with_16_bit_gradients() -> None:
    assert float(state.optimizer_step_bytes(group(), BF16)) == 0
    assert float(state.optimizer_step_bytes(group(), Numerics(grad_reduce_dtype="bf16"))) == 4 * 1000 / 8


def test_lora_adapters_of_llama() -> None:
    """Rank 8 on qkv, proj, fc1, fc2 of Llama-3-8B: sum of 8 (in + out) per matrix (Hu et al. 2021, section 4.1)."""
    model = load_model("llama3-8b")
    h, kv, f = 4096, 1024, 14336
    expected = 8 * ((h + h + 2 * kv) + (h + h) + (h + 2 * f) + (f + h))
    assert float(state.lora_parameters(model, Numerics(peft="lora", lora_rank=8), False, 1)) == expected
    halves = state.lora_parameters(model, Numerics(peft="lora", lora_rank=8), False, np.array([1, 2]))
    assert halves[1] < halves[0]
