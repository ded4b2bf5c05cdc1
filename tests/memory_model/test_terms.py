"""Single terms of the memory table by hand, where a slip would hide in a sum."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.memory_model.activations import (
    Shape,
    checkpoints_per_chunk,
    kept_by_operator,
    kept_under_selective,
    norm_statistics,
    recomputed_layers_per_chunk,
    returning_layers,
)
from autoconfig.memory_model.after_step import STAYS, allocated_after_step, unsplit_bytes
from autoconfig.memory_model.experts import router
from autoconfig.memory_model.peaks import PeakTables
from autoconfig.memory_model.predict import NCCL_BYTES_PER_GROUP, allocatable_bytes, estimate_memory, nccl_bytes
from autoconfig.memory_model.serving import weight_parts_bytes
from autoconfig.memory_model.state import fsdp_unit_bytes, lora_parameters
from autoconfig.memory_model.tables import layer_activations, stage_terms
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import padded_vocab_size, total_parameters
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import module_formats
from autoconfig.specs.software.software import load_stack
from small_models import MODELS

H100 = load_gpu("h100")
SHAPE = Shape.of(seq_length=1024, tp=4, sp=1, cp=2, ep=1, etp=1, mbs=3)  # 1,536 tokens, over 4 ranks where sequence parallel


def test_norms_keep_mean_and_deviation_or_one_of_them():
    model = load_model("llama3-8b")
    memory = replace(load_stack("transformer-engine").memory, norm_statistics_bytes=4.0)
    assert norm_statistics(model, memory, SHAPE) == 2 * 4 * 1536 / 4  # two norms, inverse rms in fp32
    assert norm_statistics(replace(model, normalization="LayerNorm"), memory, SHAPE) == 2 * (4 + 4) * 1536 / 4


def test_a_router_keeps_logits_probabilities_and_map_and_the_places_of_routed_tokens():
    model = load_model("mixtral-8x7b")  # 8 experts, 2 a token
    assert router(model, SHAPE) == 1536 / 4 * ((4 + 4 + 1) * 8 + 4 * 2)


@pytest.mark.parametrize(("layers", "group", "kept"), [(6, 3, 2), (7, 3, 3), (8, 3, 3), (2, 3, 1), (7, 1, 7)])
def test_uniform_recomputation_keeps_an_input_of_a_last_short_group_too(layers, group, kept):
    recompute = SimpleNamespace(granularity="full", method="uniform", num_layers=group)
    assert checkpoints_per_chunk(recompute, np.array([layers])).tolist() == [kept]


@pytest.mark.parametrize("count", [checkpoints_per_chunk, recomputed_layers_per_chunk, returning_layers])
def test_only_full_recomputation_keeps_checkpoints_and_runs_layers_again(count):
    assert count(Recompute.parse("selective:core_attn"), np.array([4, 8])).tolist() == [0, 0]


def test_sharded_data_parallelism_holds_two_whole_layers():
    numerics = Numerics(grad_reduce_dtype="fp32")
    assert fsdp_unit_bytes(100.0, 100.0, numerics, 3) == 100 * 2 * (2 + 4)  # 16-bit weights, fp32 gradients
    assert fsdp_unit_bytes(100.0, 100.0, numerics, 2) == 100 * 2 * 4
    assert fsdp_unit_bytes(100.0, 100.0, numerics, 0) == 0


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


def test_every_kind_of_parallelism_has_its_communicators_a_pipeline_two():
    assert nccl_bytes(1, 1, 1, 1, 1) == 0
    for place in (0, 2, 3, 4):
        assert nccl_bytes(*(8 if i == place else 1 for i in range(5))) == NCCL_BYTES_PER_GROUP
    assert nccl_bytes(1, 4, 1, 1, 1) == 2 * NCCL_BYTES_PER_GROUP
    assert nccl_bytes(2, 2, 2, 2, 2) == 6 * NCCL_BYTES_PER_GROUP


def test_tensors_get_what_context_communicators_and_the_allocator_leave():
    """80 GiB, a tenth kept free, half a GiB of context, 1.5 GiB of NCCL; 3 % of what is allocated is reserved beside it."""
    assert allocatable_bytes(80 * GIB, 1.5 * GIB, 0.1) == pytest.approx((80 * 0.9 - 0.5 - 1.5) * GIB / 1.03)


@pytest.mark.parametrize("text", [
    "tp=1,pp=1,ep=8", "tp=4,pp=1,ep=8,sp=1", "tp=4,pp=2,ep=2,etp=2,sp=1", "tp=2,pp=1,cp=4,ep=8,sp=1", "tp=8,pp=1,ep=1,sp=1",
    "tp=8,pp=2,ep=4,etp=1,sp=1",
])  # fmt: skip
def test_all_gpus_together_hold_the_optimizers_state_of_each_parameter_once(text):
    """12 bytes of each, however it is sharded; norms and routers, 0.01 %, are whole on each tensor-parallel rank."""
    plan, model = parse_plan(text, 64), load_model("mixtral-8x7b")
    scenario = Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), 64), numerics=Numerics(), software=load_stack("transformer-engine"),
        workload=Workload(seq_length=4096, global_batch_size=64),
    )  # fmt: skip
    found = estimate_memory(scenario, scenario.layouts([plan]), [NONE], detail=True)
    held = found.parts["optimizer_bytes"][0, 0].sum() * 64 / plan.pp
    assert held == pytest.approx(12 * total_parameters(model), rel=1e-3)


def test_returning_layers_of_full_recomputation():
    """A uniform group at most; of block one layer where all are recomputed, none where some are left alone."""
    layers = np.array([4, 6, 8])
    for text, expected in (("uniform:6", [4, 6, 6]), ("block:6", [1, 1, 0]), ("block:1", [0, 0, 0])):
        assert returning_layers(Recompute.parse(f"full:{text}"), layers).tolist() == expected
    assert returning_layers(Recompute.parse("selective:mlp"), layers).tolist() == [0, 0, 0]


@pytest.mark.parametrize("text", ["tp=1,pp=1,mbs=2", "tp=4,pp=1,mbs=1,sp=1", "tp=4,pp=1,mbs=1", "tp=2,pp=1,cp=2,mbs=1,sp=1"])
@pytest.mark.parametrize("kind", ["gpt", "gated", "mla", "moe"])
def test_what_recomputation_by_operator_keeps(kind, text):
    """Its line in docs/memory_model.md, in 16 bits: the layer's input, q and v, output and logsumexp of attention, the first
    product of a dense MLP, a gated MLP's last one, and both reduced outputs of tensor parallelism."""
    model, plan = ModelSpec(**MODELS[kind]), parse_plan(text, 8)
    numerics, memory = Numerics(), load_stack("torchtitan").memory
    shape = Shape.of(seq_length=240, tp=plan.tp, sp=plan.sp, cp=plan.cp, ep=1, etp=1, mbs=plan.mbs)
    layer = "moe" if kind == "moe" else "dense"
    kept = kept_by_operator(model, layer, numerics, shape, layer_activations(model, layer, numerics, memory, shape, H100)).kept
    t, u, tokens, h = plan.tp, plan.tp if plan.sp else 1, 240 * plan.mbs / plan.cp, 96
    q, v, out = (24 * 20, 24 * 18, 24 * 18) if kind == "mla" else (240, 80, 240)
    expected = 2 * tokens * h / u + 2 * tokens * (q + v) / t + 2 * tokens * out / t + 4 * tokens * 24 / t
    expected += 4 * tokens * h / u if t > 1 else 0
    if kind != "moe":
        expected += 2 * tokens * 200 / t + (0 if kind == "gpt" else 2 * tokens * h)
    assert float(sum(kept.values())) == pytest.approx(expected)


@pytest.mark.parametrize(("attends", "left"), [(True, 5.0), (False, 0.0)])
def test_recomputing_an_mlp_frees_the_output_of_its_fused_norm(attends, left):
    """One of a layer's two norms; the one norm of a hybrid's MLP, which is a layer of its own."""
    stack = load_stack("transformer-engine").memory
    parts = {"norm_outputs": 10.0, "mlp_inside": 7.0} | ({"query_key_value": 3.0} if attends else {})
    layer = kept_under_selective(parts, ("mlp",), stack, (0.0, 0.0))
    assert (layer.kept["norm_outputs"], layer.kept["mlp_inside"]) == (left, 0.0)
    assert layer.back_in_mlp == 17.0 - left


def test_recomputation_by_operator_leaves_hybrids_alone():
    kept = kept_by_operator(ModelSpec(**MODELS["hybrid"]), "mamba", Numerics(), SHAPE, {"a": 7.0})
    assert (kept.kept, kept.back_in_mlp, kept.back_in_attention) == ({"a": 7.0}, 0.0, 0.0)


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


@pytest.mark.parametrize(("name", "weights"), [("mixtral-8x7b", 46_702_792_704), ("llama3-8b", 8_030_261_248)])
def test_a_served_model_holds_its_parameters_once(name, weights):
    """Published counts in 16 bits, less the final norm; a quarter on each of four ranks but for norms and routers."""
    model = load_model(name)
    formats = module_formats(model, "bf16", H100)
    parts = weight_parts_bytes(model, EnginePlan(), formats)
    assert sum(parts.values()) == pytest.approx(2 * (weights - 4096), rel=1e-12)
    shared = 2 * (2 * 4096 + (8 * 4096 if model.is_moe else 0)) * 32
    assert parts["norms and routers"] == shared
    quarter = weight_parts_bytes(model, EnginePlan(tp=4), formats)
    assert sum(quarter.values()) == pytest.approx((2 * (weights - 4096) - shared) / 4 + shared, rel=1e-3)


@pytest.mark.parametrize(("text", "ranks"), [("dist_opt=0", 1), ("dist_opt=1", 8), ("dist_opt=0,fsdp=2", 8)])
def test_blocks_of_the_allocator_are_those_of_a_ranks_part(text, ranks):
    """GPT-3 126M: 12 layers of qkv, projection, fc1 and fc2, and the embedding, tied on one stage."""
    scenario = Scenario(
        model=load_model("gpt3-126m"), cluster=cluster_of(load_gpu("a100-80gb"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=2048, global_batch_size=64),
    )  # fmt: skip
    layouts = scenario.layouts([parse_plan(f"tp=1,pp=1,mbs=1,{text}", 8)])
    state = stage_terms(scenario, layouts, every=True).state_parts
    held = sum(float(state[name][0, 0]) for name in STAYS)
    layer = (768 * 2304.0, 768 * 768.0, 768 * 3072.0, 3072 * 768.0)
    table = 768.0 * padded_vocab_size(scenario.model, 1) + 768 * 2048  # and positions
    beside = unsplit_bytes(((table,), *(layer,) * 12), 2, (4, 4, 4), ranks)
    assert allocated_after_step(scenario, layouts)[0] == pytest.approx(held + beside)


def test_blocks_by_hand():
    """3.25 Mi elements. Weights, 6.5 MiB, leave 13.5 of a segment of 20 MiB; 13 MiB of fp32 take these (0.5 is lost) or a
    segment of their own of 14 MiB (1 MiB is lost)."""
    layers = ((3.25 * 2**20,),)
    assert unsplit_bytes(layers, 2, (4, 4), 1) == 1.5 * 2**20
    assert unsplit_bytes(layers, 2, (4, 4, 4), 1) == 2.5 * 2**20
    assert unsplit_bytes(layers, 2, (4, 4, 4), 2) == 0.5 * 2**20  # no weights; three times 6.5 MiB of 20


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


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (2, 2), (4, 4)])
def test_no_option_saves_an_input_of_each_chunk_in_flight(pp, chunks):
    """Under full recomputation: 8,192 tokens of 4,096 channels in 16 bits for each micro-batch that the first stage holds."""
    scenario = Scenario(
        model=load_model("llama3-8b"), cluster=cluster_of(H100, 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=8192, global_batch_size=64),
    )  # fmt: skip
    layouts = scenario.layouts([parse_plan(f"tp=1,pp={pp},mbs=1", 8)])
    tables, terms = (
        PeakTables.of(scenario, layouts, [Recompute.parse("full:uniform:8")]),
        stage_terms(scenario, layouts, every=False),
    )
    least, state = tables._least(terms, np.array([0]))[0], terms.state[0]
    assert least == pytest.approx(max(state[0] + chunks * 2 * 8192 * 4096, state.max()), rel=1e-9)
