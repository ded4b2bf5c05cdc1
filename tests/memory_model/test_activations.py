"""Activations: micro-batches in flight, what a layer saves (published tables, by hand), what recomputation keeps."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from autoconfig.memory_model.activations import (
    Shape,
    checkpoints_per_chunk,
    chunk_counts,
    chunks_in_flight,
    kept_by_operator,
    kept_under_selective,
    layer_input,
    recomputed_layers_per_chunk,
    returning_layers,
    warmup_chunks,
)
from autoconfig.memory_model.serving import kv_layer_bytes
from autoconfig.memory_model.sparse import indexer, sparse_attention_backward
from autoconfig.memory_model.tables import layer_activations, stage_terms
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.layouts import chunk_layers, layouts_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute, parse_plan
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackMemory, load_stack
from small_models import A100, MODELS
from small_models import MODELS as SMALL

from autoconfig.training.question import Request, understand


@pytest.mark.parametrize(("pp", "stage", "m", "expected"), [(8, 0, 64, 8), (8, 7, 64, 1), (8, 0, 3, 3), (1, 0, 9, 1)])
def test_one_forward_one_backward(pp: int, stage: int, m: int, expected: int) -> None:
    assert int(chunks_in_flight(pp, 1, np.array(stage), m)) == expected


def test_findings_example() -> None:
    """p 8, v 6, m 64: 55, 53, ... 41 chunks over the stages (findings-memory, section 4)."""
    assert list(chunks_in_flight(8, 6, np.arange(8), 64)) == [55, 53, 51, 49, 47, 45, 43, 41]
    assert list(warmup_chunks(8, 6, np.arange(8), 2)) == [12] * 8, "never more than there are"


FP16 = Numerics(precision="fp16", attention_dropout=0.1, hidden_dropout=0.1)
STACK = load_stack("megatron-lm-2022").memory
PUBLISHED = ("gpt3-22b", "gpt3-175b", "gpt3-530b", "gpt3-1t")


def kept(model: ModelSpec, tp: int, sp: bool, modules: tuple[str, ...], mbs: int = 1) -> float:
    """Bytes per layer without the norm statistics, which the paper ignores (section 4.1)."""
    shape = Shape.of(seq_length=2048, tp=tp, sp=sp, cp=1, ep=1, etp=1, mbs=mbs)
    parts = layer_activations(model, "dense", FP16, STACK, shape, A100)
    left = dict(kept_under_selective(parts, modules, STACK).kept)
    del left["norm_statistics"]
    return float(sum(left.values()))


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 4])
def test_table_2(name: str, tp: int, mbs: int) -> None:
    model = load_model(name)
    s, b, h, a, t = 2048, mbs, model.hidden_size, model.num_attention_heads, tp
    scores = 5 * a * s / h
    assert kept(model, 1, False, (), b) == pytest.approx(s * b * h * (34 + scores), rel=1e-12)
    assert kept(model, t, False, (), b) == pytest.approx(s * b * h * (10 + 24 / t + scores / t), rel=1e-12)
    assert kept(model, t, True, (), b) == pytest.approx(s * b * h / t * (34 + scores), rel=1e-12)
    assert kept(model, t, False, ("core_attn",), b) == pytest.approx(s * b * h * (10 + 24 / t), rel=1e-12)
    assert kept(model, t, True, ("core_attn",), b) == pytest.approx(s * b * h * 34 / t, rel=1e-12)
    shape = Shape.of(seq_length=s, tp=t, sp=False, cp=1, ep=1, etp=1, mbs=b)
    assert float(layer_input(model, FP16, shape)) == s * b * h * 2


FIGURE_7 = {
    # percent of the tensor-parallel baseline: sequence parallelism, selective, both, full (digitised by calculon-ai/calculon
    # calculon/llm/validation.py seqsel_fig7; rows KM-0002 to KM-0020 of the published table)
    "gpt3-22b": (66.84, 49.42, 16.18, 7.64),
    "gpt3-175b": (62.04, 56.53, 18.49, 8.71),
    "gpt3-530b": (58.31, 62.04, 20.27, 9.42),
    "gpt3-1t": (58.31, 62.04, 20.27, 9.42),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_figure_7_and_the_five_fold_saving(name: str) -> None:
    model = load_model(name)
    base = kept(model, 8, False, ())
    full = 2 * 2048 * model.hidden_size
    ours = (kept(model, 8, True, ()), kept(model, 8, False, ("core_attn",)), kept(model, 8, True, ("core_attn",)), full)
    published = FIGURE_7[name]
    for got, want in zip(ours, published, strict=True):
        assert 100 * got / base == pytest.approx(want, abs=0.15)
    assert 4.5 <= base / ours[2] <= 6.5, "about five times less (abstract and section 6.1)"


@pytest.mark.parametrize("text", ["pp=4,vpp=4,first=16,last=13", "pp=16,vpp=2,first=3,last=2", "pp=8,vpp=4,first=7,last=6"])
@pytest.mark.parametrize("batch", [16, 64])
def test_layers_in_flight_are_those_of_the_chunks_that_a_layout_places(text: str, batch: int) -> None:
    """Every chunk in flight holds its own layers of each kind, also the shorter first and last one."""
    model, plan = load_model("deepseek-v3"), parse_plan(f"tp=1,ep=1,mbs=1,dp=1,{text}", 64)
    scenario = understand(Request(model="deepseek-v3", gpus=64, global_batch_size=batch)).scenario
    terms = stage_terms(scenario, layouts_of([plan], model, batch), every=True)
    chunks, position = chunk_layers(model, plan), 0
    wanted = {kind: [0.0] * plan.pp for kind in ("dense", "moe")}
    for number, sizes in enumerate(chunks):
        for stage, size in enumerate(sizes):
            held = chunks_in_flight(plan.pp, plan.vpp, np.array(stage), batch)
            for kind in model.layer_kinds[position : position + size]:
                wanted[kind][stage] += float(chunk_counts(plan.pp, plan.vpp, held, number))
            position += size
    wanted["moe"][-1] += 1.0  # the prediction depth, in the last chunk, of which one micro-batch is in flight
    for kind, layers in wanted.items():
        np.testing.assert_array_equal(terms.layers_in_flight[kind][0], layers)


def test_a_hybrids_sublayers_save_what_is_read_in_their_code() -> None:
    """By hand, bf16, tp 2 with SP, T = 8192: norm's input, output and fp32 inverse deviation, then the sublayer's own."""
    numerics = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
    shape = Shape.of(seq_length=8192, tp=2, sp=True, cp=1, ep=8, etp=1, mbs=1)
    stack, gpu, t = load_stack("transformer-engine").memory, load_gpu("h100"), 8192.0

    def saved(name: str, kind: str) -> float:
        return float(sum(layer_activations(load_model(name), kind, numerics, stack, shape, gpu).values()))

    nano = 2 * t * (2 * 2688 / 2 + (2 * 4096 + 2 * 1024 + 64) / 2 + 3 * 4096 / 2) + 4 * t / 2
    assert saved("nemotron-3-nano", "mamba") == pytest.approx(nano, rel=1e-12)
    q, v = 16 * 128, 32 * 128
    columns = (2 * q + 2 * v + 2 * 32) + 2 * q + (2 * v + 2 * v + 2 * 32) + 3 * v + 64 * 32  # in_proj, norms, copies, behind, A
    delta = 2 * t * 2 * 2048 / 2 + 2 * t * columns / 2 + 4 * t * (2 * 16 + 32 + 32) / 2 + 4 * t / 2
    assert saved("qwen3-next-80b-a3b", "gdn") == pytest.approx(delta, rel=1e-12)
    parts = layer_activations(load_model("nemotron-3-super"), "moe", numerics, stack, shape, gpu)
    assert float(parts["expert_input"]) == 2 * 22 * t / 2 * 1024 * (
        numerics.moe_capacity_factor or numerics.moe_imbalance or 1.0
    )
    assert float(parts["latent_experts"]) == 2 * t / 2 * 1024
    gated = layer_activations(load_model("qwen3-next-80b-a3b"), "attention", numerics, stack, shape, gpu)
    assert float(gated["attention_gate"]) == 2 * 2 * t * 4096 / 2


@pytest.mark.parametrize(
    ("apart", "attention", "mlp"), [((0.0, 0.0), 0.0, 0.0), ((0.0, 0.5), 0.0, 4.0), ((0.5, 0.5), 4.0, 4.0)]
)
def test_only_norms_that_stand_apart_are_recomputed(apart, attention, mlp):
    layer = kept_under_selective({"norm_outputs": np.array([8.0])}, ("layernorm",), STACK, apart)
    assert layer.kept["norm_outputs"] == 8.0 - attention - mlp
    assert (layer.back_in_attention, layer.back_in_mlp) == (attention, mlp)


def test_norms_of_both_halves_are_freed_together():
    """Latent attention: `layernorm` frees the norm before attention, `mlp` the one that is fused into the MLP."""
    parts = {"norm_outputs": np.array([8.0]), "query_key_value": np.array([9.0]), "mlp_inside": np.array([5.0])}
    stack = load_stack("transformer-engine").memory
    for modules, left in ((("layernorm",), 4.0), (("mlp",), 4.0), (("layernorm", "mlp"), 0.0)):
        assert kept_under_selective(parts, modules, stack, (0.5, 0.0)).kept["norm_outputs"] == left


@pytest.mark.parametrize(("layers", "group", "kept"), [(6, 3, 2), (7, 3, 3), (8, 3, 3), (2, 3, 1), (7, 1, 7)])
def test_uniform_recomputation_keeps_an_input_of_a_last_short_group_too(layers, group, kept):
    recompute = SimpleNamespace(granularity="full", method="uniform", num_layers=group)
    assert checkpoints_per_chunk(recompute, np.array([layers])).tolist() == [kept]


@pytest.mark.parametrize("count", [checkpoints_per_chunk, recomputed_layers_per_chunk, returning_layers])
def test_only_full_recomputation_keeps_checkpoints_and_runs_layers_again(count):
    assert count(Recompute.parse("selective:core_attn"), np.array([4, 8])).tolist() == [0, 0]


def test_returning_layers_of_full_recomputation():
    """A uniform group at most; of block one layer where all are recomputed, none where some are left alone."""
    layers = np.array([4, 6, 8])
    for text, expected in (("uniform:6", [4, 6, 6]), ("block:6", [1, 1, 0]), ("block:1", [0, 0, 0])):
        assert returning_layers(Recompute.parse(f"full:{text}"), layers).tolist() == expected


@pytest.mark.parametrize(
    "text",
    ["tp=1,pp=1,mbs=2", "tp=4,pp=1,mbs=1,sp=1", "tp=4,pp=1,mbs=1", "tp=2,pp=1,cp=2,mbs=1,sp=1", "tp=2,pp=1,ep=4,mbs=1,sp=1"],
)
@pytest.mark.parametrize("kind", ["gpt", "gated", "mla", "moe", "qwen3"])
def test_what_recomputation_by_operator_keeps(kind, text):
    """Its line in docs/memory_model.md, in 16 bits: the layer's input, q and v, output and logsumexp of attention, the first
    product of a dense MLP, a gated MLP's last one, and both reduced outputs of tensor parallelism; of a mixture the router's
    product, one of its shared experts', and with expert parallelism the 3 rows a token that it sends and those, 1.5 times as
    many, that arrive; Qwen3, of normed queries and keys, exchanges them again."""
    moe = kind in ("moe", "qwen3")
    model, plan = ModelSpec(**MODELS["moe" if moe else kind]), parse_plan(text, 8)
    numerics, memory = Numerics(moe_imbalance=1.5 if moe else None), load_stack("torchtitan").memory
    if moe:
        model = model.replace(moe_router_topk=3, moe_shared_expert_intermediate_size=56, qk_layernorm=kind == "qwen3")
    shape = Shape.of(seq_length=240, tp=plan.tp, sp=plan.sp, cp=plan.cp, ep=plan.ep, etp=1, mbs=plan.mbs)
    layer = "moe" if moe else "dense"
    kept = kept_by_operator(model, layer, numerics, shape, layer_activations(model, layer, numerics, memory, shape, A100)).kept
    t, u, tokens, h = plan.tp, plan.tp if plan.sp else 1, 240 * plan.mbs / plan.cp, 96
    q, v, out = (24 * 20, 24 * 18, 24 * 18) if kind == "mla" else (240, 80, 240)
    expected = 2 * tokens * h / u + 2 * tokens * (q + v) / t + 2 * tokens * out / t + 4 * tokens * 24 / t
    expected += 4 * tokens * h / u if t > 1 else 0
    if moe:
        sent = 2 * 2.5 * 3 * tokens * h / u if plan.ep > 1 and kind == "moe" else 0
        expected += 2 * tokens * (model.num_moe_experts + 56 / t) + sent
    else:
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
    kept = kept_by_operator(ModelSpec(**MODELS["hybrid"]), "mamba", Numerics(), None, {"a": 7.0})
    assert (kept.kept, kept.back_in_mlp, kept.back_in_attention) == ({"a": 7.0}, 0.0, 0.0)


def test_inputs_of_frozen_matrices_are_kept_for_their_adapters_only():
    """A frozen matrix's gradient needs its weights alone; an adapter's first matrix reads the same input: 2 T h of a norm's
    output each, 2 T q of attention's (which its own backward reads in any case), 2 T f of the activation's."""
    model, shape = load_model("llama3-8b"), Shape.of(seq_length=1024, tp=1, sp=False, cp=1, ep=1, etp=1, mbs=1)

    def parts(**changes: Any) -> dict[str, float]:
        numerics = Numerics(attention_dropout=0.0, hidden_dropout=0.0, **changes)
        return layer_activations(model, "dense", numerics, StackMemory(), shape, load_gpu("h100"))

    full, every = parts(), parts(peft="lora")
    some = parts(peft="lora", lora_target_modules=("linear_qkv", "linear_proj"))
    assert every == full
    kept = {name: float(full[name] - some[name]) for name in full if full[name] != some[name]}
    assert kept == {"norm_outputs": 2 * 1024 * 4096, "mlp_inside": 2 * 1024 * 14336}


MODEL, SPARSE_STACK, GPU = load_model("deepseek-v3.2"), load_stack("transformer-engine"), load_gpu("b200")
S, TP = 4096, 4


def saved(sp: bool, seq: int = S) -> dict[str, float]:
    shape = Shape.of(seq_length=seq, tp=TP, sp=sp, cp=1, ep=1, etp=1, mbs=1)
    parts = layer_activations(MODEL, "moe", Numerics(), SPARSE_STACK.memory, shape, GPU)
    return {name: float(np.asarray(size)) for name, size in parts.items()}


def test_saved_tensors_are_those_counted_by_hand() -> None:
    parts, heads = saved(sp=False), 128 / TP
    assert parts["query_key_value"] == S * 2 * (heads * (128 + 576) + 576)
    assert parts["latent_output"] == S * 2 * heads * 512
    assert parts["attention_scores"] == S * 4 * heads
    assert parts["indexer"] == S * (2 * (64 * 128 + 64 + 2 * 128) + 4 * 2048)
    assert saved(sp=True)["indexer"] - parts["indexer"] == S * 2 * (7168 + 1536), "gathered inputs of the indexer"
    assert saved(sp=False, seq=1024)["indexer"] == 1024 * (2 * (64 * 128 + 64 + 2 * 128) + 4 * 1024), "all keys there are"


def test_chosen_keys_of_a_small_model() -> None:
    """With sequence parallelism the gathered inputs beside; of fewer tokens than the top-k, all of them."""
    model = ModelSpec(**SMALL["mla"]).replace(dsa_indexer_n_heads=6, dsa_indexer_head_dim=12, dsa_indexer_topk=512)
    own, latent = 6 * 12 + 6 + 2 * 12, 36 + 6
    for tp, tokens, wanted in ((1, S, 2 * own + 4 * 512), (2, S, 2 * (own + 96 + 44) + 4 * 512), (1, 64, 2 * own + 4 * 64)):
        shape = Shape.of(seq_length=tokens, tp=tp, sp=tp > 1, cp=1, ep=1, etp=1, mbs=1)
        assert indexer(model, Numerics(), shape) == tokens * wanted
    expected = S * (2 * (12 * (latent + 36 + 18) + 6 * 12) + 4 * (latent + 12) + 12 * 512)
    halves = Shape.of(seq_length=S, tp=2, sp=False, cp=1, ep=1, etp=1, mbs=1)
    assert sparse_attention_backward(model, Numerics(), halves) == expected


def test_recomputing_core_attention_frees_the_indexer_and_keeps_what_goes_in() -> None:
    parts = saved(sp=True)
    kept_of = kept_under_selective(parts, ("core_attn",), SPARSE_STACK.memory).kept
    assert kept_of["indexer"] == kept_of["latent_output"] == kept_of["attention_scores"] == 0
    assert kept_of["query_key_value"] == parts["query_key_value"]


@pytest.mark.parametrize(("kv", "size"), [("bf16", 1152 + 132), ("fp8", 656 + 132)])
def test_a_cached_token_holds_the_latent_and_the_indexers_key(kv: str, size: int) -> None:
    assert [kv_layer_bytes(MODEL, tp, kv) for tp in (1, 8)] == [size, size], "whole on every rank"
    assert kv_layer_bytes(load_model("deepseek-v3"), 1, "bf16") == 1152
