"""State of a stage: weights, gradients, optimizer, adapters; parameters of the first and the last stage."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.fsdp import ACCUMULATED, FIRST_LAYER, LAYERS, NEXT_LAYER, OUTPUT, Units, unit_bytes
from autoconfig.memory_model.peaks import MOMENTS
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
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackMemory, load_stack
from small_models import B200, GPT, H100, MOE
from small_models import scenario as small
from tables import tabled

NUMERICS = Numerics()
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


NO_DROPOUT = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
UNITS = Units(layer=100.0, layer_trained=100.0, stage=900.0, stage_trained=900.0, embedding=400.0, output=300.0, shard=8.0)
ONE = {"whole": False, "syncs_late": False, "several": True}


def found(units: Units = UNITS, **changes: object) -> dict[str, float]:
    options = {"apart": True, "tied": False, **ONE, **changes}
    return {name: float(size) for name, size in unit_bytes(units, NO_DROPOUT, **options).items()}  # type: ignore[arg-type]


def test_units_of_their_own() -> None:
    """2 bytes of what is gathered, 4 of what is reduced; torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py."""
    assert found() == {
        "loss": 2 * 300,
        "output_layer_backward": 2 * (300 + 100),
        OUTPUT: (2 + 4) * 300 + 2 * 100,
        LAYERS: 2 * 2 * 100 + 4 * 300,
        NEXT_LAYER: 2 * 2 * 100 + 4 * 100,
        FIRST_LAYER: 2 * (100 + 400) + 4 * 100,
        "embedding_backward": 4 * 400,
        ACCUMULATED: 0,
    }


def test_of_a_single_micro_batch_no_gradient_is_there_before_its_layer() -> None:
    several, single = found(), found(several=False)
    changes = {name: single[name] - several[name] for name in several}
    made = {OUTPUT: 4 * 300 / 8, LAYERS: 4 * 300 / 8, NEXT_LAYER: 4 * (300 + 100) / 8, FIRST_LAYER: -4 * (100 + 400) / 8}
    assert changes == {name: made.get(name, 0.0) for name in several}


def test_units_of_the_root_stay_gathered() -> None:
    """The loss of Hugging Face models is made inside the root, whose backward gathers a layer first. A tied matrix has two
    gradients and their sum."""
    root = found(apart=False)
    assert root["loss"] == 2 * (400 + 300 + 100) and root[LAYERS] == 2 * (400 + 300) + 2 * 300 + 2 * 2 * 100
    one_matrix = replace(UNITS, output=1.0)  # the norm alone
    tied = found(one_matrix, apart=False, tied=True)
    assert tied["embedding_backward"] == 2 * 1 + 2 * 401 + 4 * 100 + 2 * 400


def test_the_whole_tables_gradient_is_gone_when_a_rank_s_part_is_reduced() -> None:
    """The moment holds it: 900 bytes are not there beside the reduction of 4 * 400, and 2 * 400 + 4 * 100 come first."""
    whole = replace(UNITS, whole_table=900.0)
    assert found(whole)["embedding_backward"] == 2 * 400 + 4 * 100 > 4 * 400 - 900
    assert found(whole, several=False)["embedding_backward"] == 2 * 400 + 4 * 100 - 4 * 400 / 8


def test_a_table_that_each_rank_reduces_whole_waits_whole_in_pipelines() -> None:
    """500 bytes of 16 bits are 250 parameters, 100 of them other ranks'; no part is copied before the reduction."""
    whole = replace(UNITS, embedding=150.0, whole_table=500.0)
    assert found(whole, syncs_late=True)[LAYERS] == (2 + 4) * 900 + 4 * (250 - 150)
    assert found(whole, syncs_late=True)["embedding_backward"] == (2 + 4) * 900 + 4 * (250 - 150) - 2 * 150


def test_without_reshard_and_in_pipelines() -> None:
    """All of the stage is gathered at the loss; in a pipeline as long as it runs, beside whole fp32 gradients."""
    assert found(whole=True)["loss"] == 2 * 900 and found(whole=True)[NEXT_LAYER] == 2 * (900 - 300 - 100) + 4 * 100
    all_held = found(syncs_late=True, all_held=True)
    assert all_held[LAYERS] == 2 * 900 and all_held[ACCUMULATED] == 4 * 900 and found(syncs_late=True)[ACCUMULATED] == 0
    assert found(syncs_late=True)[LAYERS] == (2 + 4) * 900 and found(syncs_late=True, several=False)[LAYERS] == 2 * 900


@pytest.mark.parametrize("stack", ["torchtitan", "torch-eager", "prime-rl", "nanotron"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-0.6b", "mixtral-8x7b"])
def test_the_search_and_the_detailed_sum_agree(stack: str, count: int, model: str) -> None:
    """Plans of every moment: with short sequences the embedding's and the first layer's decide."""
    moments = set()
    for length in (128, 8192):
        asked = Scenario(
            model=load_model(model), cluster=cluster_of(load_gpu("h100"), 8), numerics=NO_DROPOUT, software=load_stack(stack),
            workload=Workload(seq_length=length, global_batch_size=8 * count),
        )  # fmt: skip
        texts = ("mbs=1,fsdp=3", "mbs=1,fsdp=2", "mbs=1", "tp=2,mbs=2,fsdp=3", "pp=2,mbs=1,fsdp=3", "pp=4,mbs=1,fsdp=2")
        layouts = asked.layouts([asked.read_plan(text) for text in texts])
        recomputes = [
            asked.read_plan(f"mbs=1,recompute={text}").recompute for text in ("none", "full:uniform:1", "selective:op")
        ]
        detailed, quick = (estimate_memory(asked, layouts, recomputes, detail=detail) for detail in (True, False))
        assert np.allclose(detailed.peak_bytes, quick.peak_bytes, rtol=1e-12)
        assert np.allclose(sum(detailed.parts.values()), detailed.per_stage_bytes, rtol=1e-12)
        moments |= {MOMENTS[int(number)] for number in np.unique(detailed.moment)}
    assert {"loss", "mlp_backward"} <= moments or stack == "nanotron"


def test_ends_of_automodel_are_units_of_mixtures_alone() -> None:
    """components/moe/parallelizer.py shards embedding and output layer alone; the dense parallelizer leaves them to the root,
    whose weights stay gathered through the layers' backward."""
    for name, own in (("llama3-8b", False), ("qwen3-30b-a3b", True)):
        sizes = []
        for software in ("automodel", "torchtitan"):
            asked = Scenario(
                model=load_model(name),
                cluster=cluster_of(load_gpu("h100"), 8),
                numerics=NO_DROPOUT,
                software=load_stack(software),
                workload=Workload(seq_length=2048, global_batch_size=8),
            )
            layouts = asked.layouts([asked.read_plan("mbs=1,fsdp=3")])
            sizes.append(float(stage_terms(asked, layouts, every=True).unit_bytes[LAYERS][0, 0]))
        assert (sizes[0] == sizes[1]) == own
