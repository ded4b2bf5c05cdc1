"""State of a stage: weights, gradients, optimizer, adapters; parameters of the first and the last stage."""

import numpy as np
import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.memory_model.state import (
    ParameterGroup,
    end_parameters,
    fsdp_unit_bytes,
    gradient_bytes,
    lora_parameters,
    on_gpu,
    optimizer_bytes,
    optimizer_bytes_per_parameter,
    optimizer_step_bytes,
    weight_bytes,
)
from autoconfig.memory_model.tables import _parameter_groups, stage_terms
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import stage_table
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackMemory, load_stack
from small_models import MODELS
from small_models import scenario as small
from tables import tabled

H100, B200 = load_gpu("h100"), load_gpu("b200")
NUMERICS = Numerics()
GPT, MOE = ModelSpec(**MODELS["gpt"]), ModelSpec(**MODELS["moe"])
T, H, V = 4096, 96, 1024
GROUP = ParameterGroup(parameters=1000.0, gemm_weights=800.0, trainable=1000.0, shard=8)


def total(numerics: Numerics, dist_opt: bool, fsdp: int = 0) -> float:
    parts = (
        weight_bytes(GROUP, numerics, StackMemory(), H100, fsdp, False),
        gradient_bytes(GROUP, numerics, StackMemory(), fsdp),
    )
    return float(sum(parts) + optimizer_bytes(GROUP, numerics, dist_opt, fsdp, 0.0))


def test_mixed_precision_takes_18_bytes_and_zero_divides_them() -> None:
    """Narayanan et al. 2021, section 3.5 (18 bytes); Rajbhandari et al. 2020, figure 1 (what each ZeRO stage divides)."""
    assert total(NUMERICS, dist_opt=False) == 18 * 1000
    assert total(NUMERICS, dist_opt=True) == (2 + 4 + 12 / 8) * 1000
    assert total(NUMERICS, dist_opt=False, fsdp=2) == (2 + (4 + 12) / 8) * 1000
    assert total(NUMERICS, dist_opt=False, fsdp=3) == 18 / 8 * 1000
    assert total(Numerics(grad_reduce_dtype="bf16"), dist_opt=True) == (2 + 2 + 12 / 8) * 1000
    assert total(Numerics(precision="fp32"), dist_opt=False) == (4 + 4 + 8) * 1000


def test_lora_adapters_of_llama() -> None:
    """Rank 8 on qkv, proj, fc1, fc2 of Llama-3-8B: sum of 8 (in + out) per matrix (Hu et al. 2021, section 4.1)."""
    model = load_model("llama3-8b")
    h, kv, f = 4096, 1024, 14336
    expected = 8 * ((h + h + 2 * kv) + (h + h) + (h + 2 * f) + (f + h))
    assert float(lora_parameters(model, Numerics(peft="lora", lora_rank=8), "dense", 1)) == expected
    halves = lora_parameters(model, Numerics(peft="lora", lora_rank=8), "dense", np.array([1, 2]))
    assert halves[1] < halves[0]


@pytest.mark.parametrize(("numerics", "gpu", "fsdp", "gather", "expected"), [
    ({}, H100, 0, False, 2000), ({}, H100, 2, False, 2000), ({}, H100, 3, False, 250),
    ({"precision": "fp32"}, H100, 0, False, 4000),
    ({"precision": "fp8"}, H100, 0, False, 2000 + 1600), ({"precision": "fp8"}, B200, 0, False, 2000 + 800),
    ({"precision": "fp8"}, B200, 0, True, 2000 - 800),
    ({"precision": "fp8"}, B200, 3, True, 1200 / 8), ({"precision": "fp8"}, H100, 0, True, 2000),
    ({"precision": "fp8", "fp8_recipe": "mxfp8"}, B200, 0, False, 2000 + 2 * 33 / 32 * 800),
])  # fmt: skip
def test_bytes_of_weights(numerics, gpu, fsdp, gather, expected):
    """fp8 copies in one orientation from Blackwell on, in two before; gathered in fp8 they take the 16-bit weight's place."""
    assert weight_bytes(GROUP, Numerics(**numerics), StackMemory(), gpu, fsdp, gather) == expected


@pytest.mark.parametrize(("gather", "expected"), [(False, 2000), (True, 2000 - 800)])
def test_a_stack_that_caches_no_quantised_weights_keeps_one_form_of_them(gather: bool, expected: float) -> None:
    """Transformer Engine without a transpose cache: MLPerf's Llama-2-70B LoRA holds 70 GB of weights on an H200 of 141 GB."""
    stack = StackMemory(caches_quantised_weights=False)
    assert weight_bytes(GROUP, Numerics(precision="fp8"), stack, H100, 0, gather) == expected


@pytest.mark.parametrize(("numerics", "each"), [
    ({"precision": "nvfp4"}, 2 * (1 / 2 + 1 / 16)), ({"precision": "fp8", "fp8_recipe": "mxfp8"}, 2 * (1 + 1 / 32)),
])  # fmt: skip
def test_weights_scaled_in_blocks_that_replace_the_16_bits_are_kept_along_rows_and_columns(numerics, each):
    """Whether a stack caches or not: columns have scales of their own."""
    for caches in (False, True):
        stack = StackMemory(caches_quantised_weights=caches)
        assert weight_bytes(GROUP, Numerics(**numerics), stack, B200, 0, True) == pytest.approx(2000 + 800 * (each - 2))


@pytest.mark.parametrize(("numerics", "each"), [
    ({}, 12), ({"precision": "fp32"}, 8), ({"store_param_remainders": True}, 10), ({"main_params_dtype": "fp16"}, 10),
    ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp8"}, 4 + 2 + 1),
])  # fmt: skip
def test_bytes_of_the_optimizers_state(numerics, each):
    found = Numerics(**numerics)
    assert optimizer_bytes_per_parameter(found) == each
    shared = ((True, 0, 0, 8), (False, 0, 0, 1), (False, 2, 0, 8), (True, 0, 0.75, 32), (False, 3, 0, 8))
    for dist_opt, fsdp, offload, share in shared:
        assert optimizer_bytes(GROUP, found, dist_opt, fsdp, offload) == each * 1000 / share


def test_gradients_and_their_copies():
    half = Numerics(grad_reduce_dtype="bf16")
    assert [float(gradient_bytes(GROUP, NUMERICS, StackMemory(), fsdp)) for fsdp in (0, 2, 3)] == [4000, 500, 500]
    assert gradient_bytes(GROUP, half, StackMemory(), 0) == 2000
    plain = StackMemory()
    assert float(optimizer_step_bytes(GROUP, NUMERICS, plain, 0)) == 0
    assert float(optimizer_step_bytes(GROUP, half, plain, 0)) == 4 * 1000 / 8
    assert [float(fsdp_unit_bytes(100.0, 100.0, half, fsdp)) for fsdp in (3, 2)] == [100 * 2 * (2 + 2), 100 * 2 * 2]


@tabled
def test_parameters_of_the_first_and_the_last_stage(untied, depths, pp, copies):
    """1,024 padded words of 96 channels; a norm of 2 x 96."""
    model = GPT.replace(untie_embeddings_and_output_weights=untied, mtp_num_layers=depths)
    layouts = small().layouts([parse_plan(f"pp={pp}", 16)])
    found = end_parameters(model, layouts, stage_table(model, layouts, every=True))[0]
    assert found[0] - (192 + copies * V * H) * (pp == 1) == V * H and found[-1] - V * H * (pp == 1) == 192 + copies * V * H


@pytest.mark.parametrize(("pp", "share"), [(1, 0.25), (2, 1.0)])
def test_layers_whose_activations_wait_on_the_host(pp, share):
    assert on_gpu(small(given={"offload_layers": 3}), pp, {"dense": 8.0})["dense"] == 8 * share


def test_weights_that_fp8_gemms_read_are_those_of_all_kinds_of_layers():
    """Two dense layers and two of experts: attention, both MLPs; 16 experts in a group of their own."""
    model = MOE.replace(moe_layer_freq=2)
    layouts = small("moe").layouts([parse_plan("tp=2,ep=4", 16)])
    dense, experts = _parameter_groups(model, NUMERICS, layouts, stage_table(model, layouts, every=True))
    attention, mlp, shared = (96 * 400 + 240 * 96) / 2, 3 * 96 * 200 / 2, 3 * 96 * 88 / 2
    assert float(dense.gemm_weights[0, 0]) == pytest.approx(4 * attention + 2 * mlp + 2 * shared)
    assert float(experts.gemm_weights[0, 0]) == pytest.approx(2 * 16 / 4 * 3 * 96 * 56, rel=0.02)


@pytest.mark.parametrize(("fsdp", "of_weights", "of_adapters"), [(3, 2 * 2, 2 * (2 + 4)), (2, 0, 2 * 4), (0, 0, 0)])
def test_frozen_layers_that_are_whole_have_no_gradients(fsdp, of_weights, of_adapters):
    model = load_model("llama3-8b")
    scenario = Scenario(
        model=model, cluster=cluster_of(load_gpu("rtx4090"), 4), numerics=Numerics(peft="lora", grad_reduce_dtype="fp32"),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=2048, global_batch_size=128),
    )  # fmt: skip
    layouts = scenario.layouts([parse_plan(f"tp=1,mbs=1,dist_opt=0,fsdp={fsdp}", 4)])
    layer = 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096
    adapters = float(lora_parameters(model, scenario.numerics, "dense", 1))
    found = stage_terms(scenario, layouts, every=True).state_parts["fsdp_unit_bytes"][0, 0]
    assert found == layer * of_weights + adapters * of_adapters


@tabled
def test_all_gpus_together_hold_the_optimizers_state_of_each_parameter_once(text):
    """12 bytes of each, however it is sharded; norms and routers, 0.01 %, are whole on each tensor-parallel rank."""
    plan, model = parse_plan(text, 64), load_model("mixtral-8x7b")
    scenario = Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), 64), numerics=Numerics(), software=load_stack("transformer-engine"),
        workload=Workload(seq_length=4096, global_batch_size=64),
    )  # fmt: skip
    found = estimate_memory(scenario, scenario.layouts([plan]), [NONE], detail=True)
    assert found.parts["optimizer_bytes"][0, 0].sum() * 64 / plan.pp == pytest.approx(12 * total_parameters(model), rel=1e-3)


@pytest.mark.parametrize("plan", ["tp=1,pp=1", "tp=2,pp=4"])
def test_adapters_add_their_weights_gradients_and_state_and_the_rest_has_none(plan):
    """Llama-3-8B, rank 16 on all linear layers: 16 (in + out) each, 2 + 4 + 12 / dp bytes; a stage has 32 / pp layers."""
    parts = {}
    for peft in ("none", "lora"):
        numerics = Numerics(peft=peft, lora_rank=16)
        scenario = Scenario(
            model=load_model("llama3-8b"), cluster=cluster_of(H100, 8), numerics=numerics,
            software=load_stack("transformer-engine"), workload=Workload(seq_length=4096, global_batch_size=64),
        )  # fmt: skip
        found = estimate_memory(scenario, scenario.layouts([parse_plan(f"{plan},mbs=1", 8)]), [NONE], detail=True)
        parts[peft] = {name: float(value[0, 0, 0]) for name, value in found.parts.items()}
    read = parse_plan(plan, 8)
    t, h, kv, f = read.tp, 4096, 1024, 14336
    adapters = 16 * ((h + (h + 2 * kv) / t) + (h / t + h) + (h + 2 * f / t) + (f / t + h)) * 32 / read.pp
    assert parts["lora"]["weight_bytes"] - parts["none"]["weight_bytes"] == pytest.approx(2 * adapters)
    assert parts["lora"]["gradient_bytes"] == pytest.approx(4 * adapters)
    assert parts["lora"]["optimizer_bytes"] == pytest.approx(12 * adapters / read.dp)


@pytest.mark.parametrize(("stack", "waiting"), [("megatron-local", 2), ("transformer-engine", 0)])
def test_where_weight_gradients_are_apart_two_gradients_wait_beside_the_loss(stack, waiting):
    """With a pipeline: the one that is being sent and the one before it, each of a micro-batch's hidden states in 16 bits."""
    found = {}
    for pp in (1, 2):
        scenario = Scenario(
            model=load_model("llama3-8b"), cluster=cluster_of(H100, 8), numerics=Numerics(), software=load_stack(stack),
            workload=Workload(seq_length=1024, global_batch_size=8),
        )  # fmt: skip
        found[pp] = stage_terms(scenario, scenario.layouts([parse_plan(f"tp=1,pp={pp},mbs=1", 8)]), every=True).loss[0, -1]
    assert found[2] - found[1] == waiting * 2 * 1024 * 4096
