"""Hybrid models: the pattern string, exact counts, what a rank and a stage hold."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.layouts import layouts_of, stage_table
from autoconfig.specs.models.hybrid import delta_rule_flops_per_token, scan_flops_per_token, state_layer_bytes
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import (
    active_matmul_parameters,
    cross_attention_parameters,
    layer_parameters,
    model_flops_per_token,
    mtp_layer_parameters,
    total_parameters,
)
from autoconfig.specs.models.pattern import parse_pattern, pattern_letters, published_layers, scaled_pattern
from autoconfig.specs.plan import parse_plan
from small_models import BERT, GPT, HYBRID, MOE, T5
from tables import tabled

NANO, SUPER, NEXT = (load_model(name) for name in ("nemotron-3-nano", "nemotron-3-super", "qwen3-next-80b-a3b"))
WITH_PREDICTION = {
    "nemotron-3-nano": (31_577_940_288, 0),
    "nemotron-3-super": (120_668_707_840, 2_942_325_248),
    "qwen3-next-80b-a3b": (79_674_391_296, 81_324_862_720 - 79_674_391_296),
    "qwen3.5-35b-a3b": (34_660_610_688, 844_640_768),
    "qwen3.5-122b-a10b": (122_111_526_912, 2_523_679_232),
    "qwen3.5-397b-a17b": (396_346_350_336, 6_595_568_128),
    "qwen3.5-27b": (26_895_998_464, 424_699_392),
}


@pytest.mark.parametrize("name", WITH_PREDICTION)
def test_parameters_are_those_published(name: str) -> None:
    model, (main, prediction) = load_model(name), WITH_PREDICTION[name]
    assert total_parameters(model) == main == model.published_parameters
    assert total_parameters(model, mtp=True) == main + prediction


@pytest.mark.parametrize("name", WITH_PREDICTION)
def test_active_parameters_are_all_but_the_embedding_and_the_experts_not_chosen(name: str) -> None:
    """Norms, convolutions and heads' scalars are no matmuls: less than 0.1 %."""
    model = load_model(name).replace(mtp_num_layers=0)
    idle = (model.num_moe_experts or 0) - (model.moe_router_topk if model.is_moe else 0)
    one = (1 + model.gate_factor) * (model.moe_latent_size or model.hidden_size) * model.moe_ffn_hidden_size
    expected = total_parameters(model) - model.vocab_size * model.hidden_size - model.layer_kinds.count("moe") * idle * one
    assert 0 < expected / active_matmul_parameters(model) - 1 < 1e-3


def test_a_pattern_is_read_and_written() -> None:
    pattern = parse_pattern("ME|M*-|GE/*E/*E")
    assert pattern.segments == (("mamba", "moe"), ("mamba", "attention", "mlp"), ("gdn", "moe"))
    assert (pattern.mtp, pattern.depths) == (("attention", "moe"), 2)
    assert pattern_letters(pattern.layers) == "MEM*-GE"


@tabled
def test_patterns_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("*", r"\*")):
        parse_pattern(text)


@pytest.mark.parametrize(("changes", "says"), [
    ({"num_layers": 50}, "52 layers"), ({"mtp_num_layers": 1}, "prediction"), ({"num_moe_experts": None}, "go together"),
    ({"hybrid_layer_pattern": "|".join([NANO.hybrid_layer_pattern] * 2), "num_layers": 104}, "of a plan"),
    ({"mamba_num_heads": 60}, "multiple of mamba_num_groups"), ({"mamba_head_dim": 0}, "M needs"),
    ({"window_size": 128}, "not modelled in hybrids"),
])  # fmt: skip
def test_models_that_cannot_be_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        NANO.replace(**changes)


def test_a_rank_holds_its_share() -> None:
    """By hand from Nano's shapes: heads, groups and channels over tp, experts over ep; norms and latent projections whole."""
    mamba = layer_parameters(NANO, "mamba", tp=2)
    whole = 2688 * (2 * 4096 + 2 * 1024 + 64) + 5 * (4096 + 2048) + 3 * 64 + 4096 + 4096 * 2688
    assert float(mamba.dense) == whole / 2 + 2688
    assert float(layer_parameters(NANO, "moe", ep=8).experts) == 16 * 2 * 2688 * 1856
    latent = layer_parameters(SUPER, "moe", tp=2, ep=64)
    assert float(latent.experts) == 8 * 2 * 1024 * 2688
    assert float(latent.dense) == 4096 * 512 + 2 * 4096 * 1024 + 2 * 4096 * 5376 / 2 + 4096
    delta = layer_parameters(NEXT, "gdn", tp=2)
    assert float(delta.dense) == (2048 * (4096 + 8192 + 64) + 4 * 8192 + 64 + 4096 * 2048) / 2 + 128 + 2048
    attention = layer_parameters(NEXT, "attention")
    assert float(attention.dense) == 2048 * (2 * 4096 + 2 * 512) + 4096 * 2048 + 2 * 256 + 2048
    assert float(mtp_layer_parameters(SUPER).experts) == 512 * 2 * 1024 * 2688


def test_flops_of_a_token_count_attention_layers_and_scans() -> None:
    """6 a matmul parameter, 6 a d s of the 6 attention layers, 3 x the scan's forward of the 23 Mamba layers."""
    scan = 64 * (2 * 128 * 64 + 4 * 128 * 64) + 2 * 8 * 128 * 128
    expected = 6 * active_matmul_parameters(NANO) + 6 * 6 * 32 * 128 * 8192 + 3 * 23 * scan
    assert model_flops_per_token(NANO, 8192) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", ["pp=4", "pp=2,vpp=2", "pp=2,first=28,last=24", "pp=13"])
def test_every_stage_holds_its_part_of_the_pattern(text: str) -> None:
    plan = parse_plan(text, 1)
    table = stage_table(NANO, layouts_of([plan], NANO, 1))
    pp, vpp = plan.pp, plan.vpp
    sizes = [plan.first, plan.last] if plan.first and plan.last else [52 // pp] * pp
    held: list[list[str]] = [[] for _ in range(pp)]
    position = 0
    for _ in range(vpp):
        for stage, size in enumerate(sizes):
            held[stage] += NANO.layer_kinds[position : position + size // vpp]
            position += size // vpp
    assert position == 52
    for kind in ("mamba", "attention", "moe", "mlp"):
        assert table.layers_of(kind)[0].tolist() == [kinds.count(kind) for kinds in held]


def test_prediction_is_left_out_where_asked() -> None:
    assert total_parameters(SUPER.replace(mtp_num_layers=0), mtp=True) == total_parameters(SUPER)
    assert SUPER.mtp_kinds == ("attention", "moe")


@pytest.mark.parametrize(("model", "of"), [
    (GPT, ("dense",)), (MOE, ("dense", "moe")), (T5, ("encoder", "decoder")), (BERT, ("dense",)),
    (HYBRID, ("mamba", "attention", "gdn", "moe")),
])  # fmt: skip
def test_kinds_of_layers(model, of):
    assert model.kinds == of and model.is_encoder_only == (model is BERT) and model.is_encoder_decoder == (model is T5)
    assert model.has_dense_mlp == (model not in (MOE, HYBRID))
    assert model.attention_layers == (1 if model is HYBRID else 4)


@pytest.mark.parametrize(("freq", "moe", "slides"), [
    (1, (1, 1, 1, 1), (0, 0, 0, 0)), (2, (1, 0, 1, 0), (1, 0, 1, 0)), (3, (1, 0, 0, 1), (1, 1, 0, 1)),
    ((0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 1, 0)), (None, None, (1, 1, 1, 1)),
])  # fmt: skip
def test_which_layers_have_experts_and_which_slide(freq, moe, slides):
    """Megatron's --moe-layer-freq N: layers 0, N, 2 N ...; --window-attn-skip-freq N: layers N, 2 N, ... counted from 1 do not
    slide."""
    assert moe is None or MOE.replace(moe_layer_freq=freq).moe_pattern == moe
    assert GPT.replace(window_size=8, window_attn_skip_freq=freq).sliding_pattern == slides
    assert GPT.replace(window_attn_skip_freq=freq).sliding_pattern == (0, 0, 0, 0)


def test_a_state_of_recurrent_layers_in_bytes():
    """Mamba-2: 12 heads of 20 channels and 26 states in fp32, 3 columns of 240 + 2 x 4 x 26 channels in 16 bits; Gated
    DeltaNet: 8 heads of 22 x 30, 3 columns of 2 x 4 x 22 + 8 x 30."""
    assert state_layer_bytes(HYBRID, "mamba", 2) == (4 * 12 * 20 * 26 + 2 * 3 * (240 + 208)) / 2
    assert state_layer_bytes(HYBRID, "gdn", 1) == 4 * 8 * 22 * 30 + 2 * 3 * (176 + 240)
    assert state_layer_bytes(HYBRID, "attention", 1) == 0
    assert scan_flops_per_token(HYBRID) == 12 * (2 * 128 * 20 + 4 * 26 * 20) + 2 * 4 * 128 * 26
    assert delta_rule_flops_per_token(HYBRID) == 8 * (6 * 22 * 30 + 2 * 64 * (2 * 22 + 30))


@pytest.mark.parametrize(("pattern", "layers", "found", "units"), [
    ("M-*-", 4, "M-M-*-*-", 2), ("MMM*", 8, "MMM*MMM*", 4), ("MMM*", 4, "MMM*", 4), ("MMM*", 2, "M*", 4),
    ("MMM*/ME", 6, "MMM*MM/ME", 4), ("M*-", 3, "M*-", 3),
])  # fmt: skip
def test_a_mix_of_more_or_fewer_layers(pattern, layers, found, units):
    """Three quarters of 6 layers are 4.5: the larger remainder is the first kind's."""
    if pattern != "M-*-":
        assert scaled_pattern(pattern, layers) == found
    assert published_layers(pattern) == units


def test_parameters_of_depths_and_of_cross_attention():
    """A depth: its layer, 2 h x h, and the output layer again. Cross-attention on two ranks: q and proj over both, keys and
    values of half of the heads, their biases, a whole bias behind it and a norm."""
    shorter, depth = GPT.replace(num_layers=3), GPT.replace(mtp_num_layers=1)
    layer = active_matmul_parameters(GPT) - active_matmul_parameters(shorter)
    assert active_matmul_parameters(depth) - active_matmul_parameters(GPT) == layer + 2 * 96 * 96 + 1000 * 96
    weights = 96 * 240 / 2 + 96 * 2 * 40 + 240 * 96 / 2
    assert cross_attention_parameters(T5, 2) == weights + 240 / 2 + 2 * 40 + 96 + 2 * 96
