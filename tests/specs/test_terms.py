"""Single numbers and rules of the catalogue by hand, where a slip would hide in an answer."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from autoconfig.specs.errors import CatalogueError, InputError, UnknownNameError, parse_count
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping
from autoconfig.specs.job import MAX_TOKENS, Generation, ranks_of_stages
from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import MAX_DIMENSION, ModelSpec
from autoconfig.specs.models.model_catalogue import (
    _FAMILY,
    _build,
    _layers_on_the_line,
    _width_for,
    gpt3_style,
    load_model,
    resolve_model,
)
from autoconfig.specs.models.module_names import _attention
from autoconfig.specs.models.parameters import layer_parameters, model_flops_per_token
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import FORMATS, Numerics
from autoconfig.specs.software.checkpoint import ALGORITHMS, _algorithm
from autoconfig.specs.software.engine import KV_BYTES, RELEASED, WEIGHT_BYTES, _month, _release, supports
from small_models import MODELS
from tables import tabled

PUBLISHED = Path(__file__).parents[1] / "time_model" / "published" / "narayanan_table1.csv"


def test_bytes_of_formats_with_their_scales():
    """Block scales of the OCP MX specification (one byte for 32), NVFP4 (one for 16), DeepSeek-V3 (fp32 for 128 x 128), AWQ
    (16 bits for 128)."""
    blocks = {"fp8_block": 1.000244140625, "nvfp4": 0.5625, "mxfp4": 0.53125, "mxfp4_weight_only": 0.53125, "int4": 0.515625}
    assert {"bf16": 2, "fp8": 1, "int8": 1, **blocks} == WEIGHT_BYTES
    assert KV_BYTES == {"bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5625}
    found = {recipe or precision: (form.operand_bytes, form.saved_bytes, form.gathered_bytes, form.activation_bytes)
             for (precision, recipe), form in FORMATS.items()}  # fmt: skip
    assert found["mxfp8"] == (1, 1.03125, 2, 2) and found["nvfp4"] == (0.5625, 0.5625, 2, 2)
    assert found["bf16"] == found["fp16"] == (2, 2, 2, 2) and found["fp32"][:2] == (4, 4) and found["fp32"][3] == 4


@pytest.mark.parametrize(("capability", "known"), [
    (None, {"bf16", "int4", "mxfp4"}), (8.0, {"bf16", "int4", "mxfp4"}), (8.9, {"bf16", "int4", "mxfp4", "fp8", "fp8_block"}),
    (10.0, {"bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4"}),
])  # fmt: skip
def test_formats_that_matrix_units_multiply(capability, known):
    gpu = replace(load_gpu("h100"), compute_capability=capability)
    assert {name for name in ("bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4") if supports(gpu, name)} == known


def test_sizes_of_narayanans_table_1():
    with PUBLISHED.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        model = load_model(row["model"].lower().replace("gpt-", ""))
        assert (model.num_layers, model.hidden_size, model.num_attention_heads) == tuple(
            int(row[name]) for name in ("layers", "hidden", "heads")
        ), row["model"]
        billions = float(row["model"].removeprefix("GPT-")[:-1]) * (1000 if row["model"].endswith("T") else 1)
        assert gpt3_style(billions * 1e9).default_global_batch_size == int(row["gbs"])
    assert len(rows) == 10


def test_sizes_between_which_depths_are_read_are_those_of_both_papers():
    """Brown et al. 2020, Table 2.1, with the widths that its heads of 64 to 128 make; Narayanan et al. 2021, Table 1."""
    brown = {
        125e6: (12, 768, 12), 350e6: (24, 1024, 16), 760e6: (24, 1536, 16), 1.3e9: (24, 2048, 16), 2.7e9: (32, 2560, 32),
        6.7e9: (32, 4096, 32), 13e9: (40, 5120, 40), 175e9: (96, 12288, 96),
    }  # fmt: skip
    with PUBLISHED.open(encoding="utf-8") as lines:
        largest = list(csv.DictReader(lines))[-7:]
    sizes = (18.4e9, 39.1e9, 76.1e9, 145.6e9, 310.1e9, 529.6e9, 1008e9)
    narayanan = [tuple(int(row[name]) for name in ("layers", "hidden", "heads")) for row in largest]
    found = {shape.parameters: (shape.num_layers, shape.hidden_size, shape.num_attention_heads) for shape in _FAMILY}
    assert found == brown | dict(zip(sizes, narayanan, strict=True))


@pytest.mark.parametrize(("params", "layers"), [(125e6, 12), (1.3e9, 24), (175e9, 96)])
def test_the_width_solves_equation_2_of_narayanan(params, layers):
    """P = 12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h), with V = 51,200 and s = 2,048."""
    h = _width_for(params, layers)
    assert 12 * layers * h**2 * (1 + 13 / (12 * h) + (51_200 + 2_048) / (12 * layers * h)) == pytest.approx(params, rel=1e-9)


def test_depth_between_published_sizes_is_on_their_line():
    """6.7B and 13B have 32 and 40 layers: half way in logarithms the mean of theirs; beyond 1T the line of the last four."""
    assert _layers_on_the_line(6.7e9) == pytest.approx(32) and _layers_on_the_line(13e9) == pytest.approx(40)
    assert _layers_on_the_line((6.7e9 * 13e9) ** 0.5) == pytest.approx((32 * 40) ** 0.5)
    far = _layers_on_the_line(1008e9 * 10) / 128
    assert far == pytest.approx(10 ** (math.log(128 / 80) / math.log(1008 / 145.6)), rel=0.2)
    assert _layers_on_the_line(1e3) == 1.0


@pytest.mark.parametrize("text", ["1.2.3b", ".b", "..b", "gpt3-.b"])
def test_numbers_that_are_none_are_unknown_names(text):
    with pytest.raises(UnknownNameError):
        load_model(text)
    with pytest.raises(UnknownNameError if text.count(".") > 1 else InputError):
        resolve_model(text, paths=False)


@pytest.mark.parametrize(("etp", "ep"), [(1, 1), (2, 1), (1, 4), (4, 2)])
def test_biases_of_experts_are_divided_as_their_columns_are(etp, ep):
    """fc1 h x 2 f and its bias over etp, fc2 f x h over etp with a whole bias of h."""
    found = layer_parameters(ModelSpec(**MODELS["gpt-oss"]), "moe", 1, etp, ep).experts
    assert float(found) == 16 / ep * ((96 * 2 * 56 + 56 * 96 + 2 * 56) / etp + 96)


@pytest.mark.parametrize(("change", "legal"), [
    ({"num_moe_experts": 1, "moe_router_topk": 1}, True), ({"num_moe_experts": 0}, False), ({"moe_router_topk": 17}, False),
    ({"moe_router_topk": 16}, True), ({"moe_ffn_hidden_size": 0}, False), ({"moe_ffn_hidden_size": 1}, True),
    ({"moe_layer_freq": 0}, False), ({"moe_layer_freq": 1}, True), ({"moe_layer_freq": (0, 1, 1)}, False),
    ({"moe_layer_freq": (0, 1, 1, 0)}, True), ({"rotary_percent": 1}, True), ({"rotary_percent": 1.1}, False),
    ({"rotary_percent": 0}, False), ({"norm_epsilon": 1.0}, False), ({"norm_epsilon": 0.5}, True),
    ({"num_layers": 10_001}, False), ({"num_query_groups": 7}, False),
    ({"hidden_size": 1}, True), ({"hidden_size": 0}, False), ({"window_size": 1}, True),
    ({"window_attn_skip_freq": 1}, True), ({"window_attn_skip_freq": 0}, False), ({"window_attn_skip_freq": True}, False),
    ({"window_attn_skip_freq": MAX_DIMENSION - 1}, True), ({"window_attn_skip_freq": MAX_DIMENSION}, False),
    ({"window_attn_skip_freq": (0, 1, 1, 0)}, True), ({"window_attn_skip_freq": (0, 1, 1)}, False),
    ({"window_attn_skip_freq": (0, 1, 1, 2)}, False),
])  # fmt: skip
def test_limits_of_a_models_numbers(change, legal):
    spec = {**MODELS["moe"], **change}
    if legal:
        ModelSpec(**spec)
    else:
        with pytest.raises(InputError):
            ModelSpec(**spec)


CONFIGS = json.loads((Path(__file__).parent / "family_counts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("model_type", "change", "pattern"), [
    ("cwm", {"layer_types": None, "sliding_window": 64}, (0, 1, 1, 1, 0)),
    ("gpt_oss", {"layer_types": None, "sliding_window": 64}, (1, 0, 1, 0, 1)),
])  # fmt: skip
def test_layers_that_slide_where_no_list_says_which(model_type, change, pattern):
    config = {key: value for key, value in (CONFIGS[model_type][0] | change).items() if value is not None}
    assert tuple(map(int, model_from_mapping(config, model_type, model_type).sliding_pattern)) == pattern


def test_two_of_robertas_positions_are_none():
    config = CONFIGS["roberta"][0] | {"max_position_embeddings": 66}
    assert model_from_mapping(config, "roberta", "roberta").default_seq_length == 64


@tabled
def test_an_mlp_is_four_times_as_wide_where_its_width_is_left_out(model_type, key):
    config = {name: value for name, value in CONFIGS[model_type][0].items() if name != key}
    assert model_from_mapping(config, model_type, model_type).ffn_hidden_size == 4 * 96


def test_shared_experts_have_a_limit():
    with pytest.raises(InputError, match="100000"):
        model_from_mapping(CONFIGS["dots1"][0] | {"n_shared_experts": 100_001}, "config.json", "model")


@tabled
def test_numbers_of_a_cluster_that_are_not_believed(key, most):
    with pytest.raises(InputError, match=f"{key}={most * 3 // 2} must be .*(at most|from 1 to) {most:,}$"):
        cluster_from_mapping({"gpu": "h100", "num_gpus": 8, key: most * 3 // 2})


@pytest.mark.parametrize(("change", "legal"), [
    ({"prompt": 1, "new": 2}, True), ({"prompt": 0}, False), ({"new": 1}, False), ({"prompt": MAX_TOKENS}, True),
    ({"new": MAX_TOKENS}, True), ({"new": MAX_TOKENS + 1}, False), ({"prompt": MAX_TOKENS + 1}, False), ({"tokens": 1}, True),
    ({"tokens": 0}, False), ({"tokens": MAX_TOKENS}, True), ({"tokens": MAX_TOKENS + 1}, False), ({"engine": "none"}, False),
])  # fmt: skip
def test_limits_of_a_generation(change, legal):
    given = {"prompt": 8, "new": 8} | change
    if legal:
        Generation(**given)
    else:
        with pytest.raises(InputError):
            Generation(**given)


def test_counts_are_positive_and_words_give_their_power_of_a_thousand():
    found = [parse_count(text) for text in ("4096", "7k", "350M", "300b", "2g", "1.5T", "2e12")]
    assert found == [4096, 7e3, 350e6, 300e9, 2e9, 1.5e12, 2e12]
    for text in ("0", "0b", "1e400", "-1", "1.5.1", ""):
        with pytest.raises(InputError):
            parse_count(text)


def test_a_release_has_its_own_month_and_one_outside_of_them_that_of_the_nearest():
    for name, date in RELEASED.items():
        year, month = map(int, date.split("-"))
        assert _month(_release(name)) == 12 * year + month, name
    dated = sorted(map(_release, RELEASED))
    assert _month(dated[0] - 1) == _month(dated[0]) and _month(dated[-1] + 99) == _month(dated[-1])


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_head_dim", "v_head_dim"])
def test_latent_attention_needs_all_of_its_widths(key):
    with pytest.raises(InputError, match="needs kv_lora_rank, qk_head_dim and v_head_dim"):
        ModelSpec(**{**MODELS["mla"], key: 0})


@tabled
def test_what_a_config_leaves_out_is_the_default_of_transformers_class(model_type, key, name, value):
    """Qwen2MoeConfig, Qwen3MoeConfig and XGLMConfig of transformers 5."""
    config = {other: given for other, given in CONFIGS[model_type][0].items() if other != key}
    config |= {"num_experts": 16, "num_local_experts": 16} if "moe" in model_type else {}
    assert getattr(model_from_mapping(config, model_type, model_type), name) == value


@pytest.mark.parametrize(("change", "legal"), [({}, True), ({"sparkle": 1}, False), ({"name": "other"}, False)])
def test_a_catalogue_file_has_its_own_name_and_known_keys(change, legal):
    data = {**MODELS["gpt"], "name": "small"} | change
    if legal:
        assert _build(data, "small").hidden_size == 96
    else:
        with pytest.raises(CatalogueError, match=r"sparkle|'other'"):
            _build(data, "small")


@pytest.mark.parametrize(("name", "count"), [
    ("gpt", 96 * (24 + 2 * 8) * 10 + 24 * 10 * 96),
    ("mla", 96 * 44 + 44 * 24 * (14 + 6) + 96 * (36 + 6) + 36 * 24 * (14 + 18) + 24 * 18 * 96),
])  # fmt: skip
def test_modules_of_attention_hold_all_its_weights(name, count):
    assert sum(weights for _, _, weights in _attention(ModelSpec(**MODELS[name]), "layers.0")) == count


@pytest.mark.parametrize(("convention", "seen"), [("causal", 125), ("full", 250)])
@pytest.mark.parametrize(("frozen", "passes"), [(False, 3), (True, 2)])
def test_flops_of_encoder_and_decoder_by_hand(convention, seen, frozen, passes):
    """Two layers each, 1,000 and 250 tokens; heads have 240 channels, keys and values 80 each. Of a token of the encoder:
    4 FLOPs a pair and channel forward, twice that backward; a quarter of a decoder's token beside it."""
    model = ModelSpec(**MODELS["t5"])
    attention, mlp, cross = 96 * (240 + 160) + 240 * 96, 2 * 96 * 200, 96 * 240 + 240 * 96
    weights = 2 * (attention + mlp) + 2 * 96 * 160 + 0.25 * (2 * (attention + cross + mlp) + 1000 * 96)
    pairs = 2 * 1000 + 0.25 * 2 * (seen + 1000)
    found = model_flops_per_token(model, 1000, convention, frozen=frozen, decoder_seq_length=250)
    assert found == pytest.approx(2 * passes * weights + 3 * 4 * 240 * pairs)


@tabled
def test_limits_of_numerics(change, legal):
    if legal:
        Numerics(**change)
    else:
        with pytest.raises(InputError):
            Numerics(**change)


def test_bytes_of_modelopts_algorithms_with_their_scales():
    """fp32 for 128 x 128, a byte for 16 or 32, 16 bits for 128."""
    found = {name: stored.bytes for name, stored in ALGORITHMS.items()}
    blocks, nvfp4, mxfp4, awq = 1 + 4 / 16384, 0.5625, 0.53125, 0.515625
    assert {name for name, each in found.items() if each == awq} == {"W4A16_AWQ", "W4A8_AWQ"}
    assert {found[name] for name in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8")} == {nvfp4}
    assert {found[name] for name in ("MXFP4", "W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8")} == {mxfp4}
    assert {found[name] for name in ("FP8_BLOCK_SCALES", "FP8_PB_WO", "FP8_PB_REAL")} == {blocks}
    assert {found[name] for name in ("FP8", "W8A8_SQ_PER_CHANNEL", "INT8_SQ", "FP8_PER_CHANNEL_PER_TOKEN")} == {1}
    for group, each in ((0, awq), (64, 0.53125), (32, 0.5625)):
        config = {"quant_algo": "w4a16_awq"} | ({"group_size": group} if group else {})
        assert _algorithm(ConfigReader(config, "here")).bytes == each


def test_ranks_that_stand_for_stages_are_the_first_and_the_last_of_each():
    """Stages of 8 of 32 ranks follow each other; a stage of one rank has one."""
    plan = parse_plan("tp=2,pp=4,mbs=1", 32)
    assert ranks_of_stages(plan, (0, 2), both_ends=True) == (0, 7, 16, 23)
    assert ranks_of_stages(plan, (1, 3), both_ends=False) == (8, 24)
    assert ranks_of_stages(parse_plan("pp=4,mbs=1", 4), (0, 3), both_ends=True) == (0, 3)
