"""Single numbers and rules of the catalogue by hand, where a slip would hide in an answer."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import _layers_on_the_line, load_model
from autoconfig.specs.models.parameters import layer_parameters
from autoconfig.specs.scenario import FORMATS
from autoconfig.specs.software.engine import KV_BYTES, WEIGHT_BYTES, supports
from small_models import MODELS

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
    assert len(rows) == 10


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


@pytest.mark.parametrize(("text", "ambiguous"), [("h100-pcie-80g", False), ("h10", True), ("nothing", False)])
def test_a_gpu_whose_name_is_cut_off(text, ambiguous):
    with pytest.raises(UnknownNameError) as caught:
        load_gpu(text)
    assert ("ambiguous" in str(caught.value)) == ambiguous


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


@pytest.mark.parametrize(("model_type", "key"), [
    ("gpt2", "n_inner"), ("gptj", "n_inner"), ("codegen", "n_inner"), ("gpt_bigcode", "n_inner"),
    ("gpt_neo", "intermediate_size"),
])  # fmt: skip
def test_an_mlp_is_four_times_as_wide_where_its_width_is_left_out(model_type, key):
    config = {name: value for name, value in CONFIGS[model_type][0].items() if name != key}
    assert model_from_mapping(config, model_type, model_type).ffn_hidden_size == 4 * 96


def test_shared_experts_have_a_limit():
    with pytest.raises(InputError, match="100000"):
        model_from_mapping(CONFIGS["dots1"][0] | {"n_shared_experts": 100_001}, "config.json", "model")
