"""Every model file loads, says where its numbers come from, and sums to its published parameter count."""

import csv
import json
import math
from pathlib import Path

import pytest
from autoconfig.specs.errors import AutoconfigError, CatalogueError, InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.files import replace_section
from autoconfig.specs.models.huggingface import huggingface_config
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import (
    _FAMILY,
    FOLDER,
    INDEX,
    _build,
    _layers_on_the_line,
    _width_for,
    build_index,
    gpt3_style,
    load_model,
    model_aliases,
    model_names,
    resolve_model,
)
from autoconfig.specs.models.module_names import _attention
from autoconfig.specs.models.overrides import BOOLEAN_FIELDS, INTEGER_FIELDS, apply_overrides
from autoconfig.specs.models.parameters import (
    active_matmul_parameters,
    layer_parameters,
    model_flops_per_token,
    norms_apart,
    total_parameters,
)
from autoconfig.specs.remarks import sentences
from hypothesis import given
from hypothesis import strategies as st
from small_models import GPT, MODELS
from tables import table, tabled

FILES = sorted(path.stem for path in FOLDER.glob("*.json") if path != INDEX)
GPT_J_BIASES = 28 * (16_384 + 4_096) + 50_400  # its spec leaves them out
EXACT = table(__file__, "published_parameters") | {"gpt-j-6b": 6_050_882_784 - GPT_J_BIASES}
"""Published to the unit: safetensors totals, model cards, papers; written here a second time on purpose."""
# Narayanan et al. 2021, Table 1, and the Megatron-LM README
ROUNDED_BILLIONS = table(__file__, "rounded_billions")


@pytest.mark.parametrize("name", FILES)
def test_every_file_loads_with_sources_and_its_published_count(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.sources["*"]
    assert total_parameters(model) == model.published_parameters
    assert model.default_seq_length is not None and model.default_seq_length <= model.max_position_embeddings
    assert (
        model.default_global_batch_size is None or "default_global_batch_size" in model.sources or model.name.startswith("gpt3")
    )


@pytest.mark.parametrize(("name", "parameters"), EXACT.items())
def test_counts_published_to_the_unit(name: str, parameters: int) -> None:
    assert total_parameters(load_model(name)) == parameters


@pytest.mark.parametrize(("name", "billions"), ROUNDED_BILLIONS.items())
def test_megatron_table_sizes_round_to_the_published_ones(name: str, billions: float) -> None:
    assert round(total_parameters(load_model(name)) / 1e9, 1) == billions


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("gpt3-")])
def test_gpt3_family_follows_narayanan_equation_2(name: str) -> None:
    m = load_model(name)
    layers, h, s = m.num_layers, m.hidden_size, m.max_position_embeddings
    formula = 12 * layers * h**2 + 13 * layers * h + (m.vocab_size + s) * h
    assert total_parameters(m) == formula + 2 * h


def test_175b_is_that_of_the_megatron_papers() -> None:
    m = load_model("175b")
    assert (m.num_layers, m.hidden_size, m.num_attention_heads, m.vocab_size) == (96, 12288, 96, 51200)
    assert (m.default_seq_length, m.default_global_batch_size) == (2048, 1536)


@tabled
def test_kin_of_the_same_shape_turns_otherwise(name: str, base: str, rotary_base: int, positions: int, untied: bool) -> None:
    """rope_theta, positions and ties of config.json, written here a second time; the shapes are the base's."""
    model, kin = load_model(name), load_model(base)
    assert (model.rotary_base, model.max_position_embeddings) == (rotary_base, positions)
    assert model.untie_embeddings_and_output_weights is untied and kin.rotary_base == 1_000_000
    more = model.vocab_size * model.hidden_size * (untied - kin.untie_embeddings_and_output_weights)
    assert total_parameters(model) == total_parameters(kin) + more


def test_without_mtp_is_another_model() -> None:
    assert load_model("DeepSeekV3 (w/ MTP)").mtp_num_layers == 1
    without = load_model("DeepSeekV3 (w/o MTP)")
    assert without.mtp_num_layers == 0 and without.name == "deepseek-v3*"


@pytest.mark.parametrize(
    "text", ["banana", "", "llama", "llama3-7", "gpt3-1", "Mixtral-8x22B-G8T8", "llama3_70b-12layers", "175b (x)", "(", "\0"]
)
def test_unknown_names(text: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown model"):
        load_model(text)


def test_a_typo_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("mixtrall-8x7b")
    assert "mixtral-8x7b" in caught.value.nearest


def test_the_index_is_the_files() -> None:
    assert json.loads(INDEX.read_text(encoding="utf-8")) == build_index(), "run specs.model_catalogue.write_index()"
    assert model_names() == FILES
    assert all(alias == alias.lower() and " " not in alias and "_" not in alias for alias in model_aliases())


def test_resolve_a_bare_size_says_what_was_assumed() -> None:
    model, assumed = resolve_model("13b")
    assert model.name == "gpt3-style-13b"
    assert sentences(assumed) == (
        "model 13b, not in the catalogue: GPT-3-style architecture with 40 layers, hidden 5120, 40 heads (--model)",
    )


@tabled
def test_resolve_other_ways_to_write_a_size(text: str, name: str) -> None:
    assert resolve_model(text)[0].name == name


def test_resolve_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
                "num_hidden_layers": 32, "num_attention_heads": 32,
            }
        ),
        encoding="utf-8",
    )  # fmt: skip
    for path in (folder, folder / "config.json"):
        model, assumed = resolve_model(str(path))
        assert (model.name, total_parameters(model)) == ("my-llama", 6_738_415_616)
        assert str(path) in assumed[0].why


@pytest.mark.parametrize("text", ["UL2", "bart-large", "roberta-base", "GRPO", "WAN2.1_14B (diffusion)", "nemotronh_56b"])
def test_resolve_refuses_what_is_no_decoder_with_the_reason(text: str) -> None:
    with pytest.raises(UnsupportedError, match="plan a decoder-only transformer"):
        resolve_model(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "compressed keys"),
        ("DeepSeek-V4-Pro", "compressed keys"),
        ("zai-org/GLM-5.2-FP8", "keys chosen by a layer before"),
        ("nvidia/GLM-5.3-NVFP4", "keys chosen by a layer before"),
        ("moonshotai/Kimi-K3", "linear attention"),
        ("google/gemma-4-26B-A4B", "other heads"),
    ],
)
def test_models_that_no_formula_has_are_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{reason}.*not modelled; plan another model"):
        resolve_model(text)


def test_the_largest_nemotron_has_the_parameters_of_its_name() -> None:
    """Nemotron-3-Ultra-550B-A55B: 48 Mamba-2 layers, 48 of experts, 12 of attention."""
    model = load_model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16")
    assert [model.layer_kinds.count(kind) for kind in ("mamba", "moe", "attention")] == [48, 48, 12]
    assert total_parameters(model) / 1e9 == pytest.approx(550, rel=0.005)
    output = model.vocab_size * model.hidden_size
    assert (active_matmul_parameters(model) - output) / 1e9 == pytest.approx(55, rel=0.02)


@pytest.mark.parametrize("text", [
    "", "banana", "5", "175", "1..2b", "-5b", "500t", "0b", "1e400", "9" * 5000, "a/b", "x\0y", "/nope/config.json", "~",
    "é" * 300, ".",
])  # fmt: skip
def test_resolve_refuses_everything_else(text: str) -> None:
    with pytest.raises(AutoconfigError) as caught:
        resolve_model(text)
    assert isinstance(caught.value, InputError) and len(str(caught.value)) < 600


@pytest.mark.parametrize("params", [0, -1, 9e6, 101e12, math.inf, math.nan])
def test_sizes_out_of_range_are_refused_with_the_range(params: float) -> None:
    with pytest.raises(InputError, match="10m to 100t"):
        gpt3_style(params)


def test_a_section_is_put_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<begin>\nold\n<end>\nafter\n")
    replace_section(page, "<begin>", "<end>", "new\nlines")
    assert page.read_text() == "before\n<begin>\nnew\nlines\n<end>\nafter\n"


def test_the_epsilon_of_norms_is_written_as_the_model_has_it() -> None:
    model = load_model("llama3-8b")
    assert huggingface_config(model.replace(norm_epsilon=3e-6))["rms_norm_eps"] == 3e-6
    assert huggingface_config(model.replace(norm_epsilon=None))["rms_norm_eps"] == 1e-5


@pytest.mark.parametrize(
    ("model", "kind", "fused", "apart"),
    [
        ("llama3-8b", "dense", True, (0.0, 0.0)),
        ("llama3-8b", "dense", False, (0.5, 0.5)),
        ("mixtral-8x7b", "moe", True, (0.0, 0.5)),
        ("deepseek-v3", "moe", True, (0.5, 0.5)),
        ("deepseek-v3", "dense", True, (0.5, 0.0)),
        ("nemotron-3-nano", "mamba", True, (0.0, 0.0)),
        ("nemotron-3-nano", "attention", True, (0.0, 0.0)),
        ("nemotron-3-nano", "moe", True, (0.0, 1.0)),
        ("nemotron-3-nano", "mamba", False, (0.0, 0.0)),
        ("nemotron-3-nano", "attention", False, (1.0, 0.0)),
        ("nemotron-3-nano", "moe", False, (0.0, 1.0)),
        ("qwen3-next-80b-a3b", "gdn", True, (0.0, 0.0)),
        ("qwen3-next-80b-a3b", "gdn", False, (1.0, 0.0)),
        ("t5-11b", "decoder", True, (0.0, 0.0)),
        ("t5-11b", "encoder", False, (0.5, 0.5)),
        ("t5-11b", "decoder", False, (1 / 3, 1 / 3)),
    ],
)
def test_norms_that_are_modules_of_their_own(model, kind, fused, apart):
    assert norms_apart(load_model(model), kind, fused) == apart


PUBLISHED = Path(__file__).parents[1] / "time_model" / "published" / "narayanan_table1.csv"


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


@pytest.mark.parametrize(("billions", "batch"), [
    (1, 512), (1.7, 512), (3.6, 512), (7.5, 512), (18.4, 1024), (39.1, 1536), (76.1, 1792), (145.6, 2304), (310.1, 2160),
    (529.6, 2520), (1008, 3072), (9000, 3072),
])  # fmt: skip
def test_a_gpt_trains_with_the_batch_of_narayanans_nearest_size(billions, batch):
    """Narayanan et al. 2021, Table 1."""
    assert gpt3_style(billions * 1e9).default_global_batch_size == batch


GPT3, LLAMA3_8B = load_model("175b"), load_model("llama3-8b")


def test_nothing_given_is_the_model_itself() -> None:
    assert apply_overrides(GPT3, {}) is GPT3
    assert apply_overrides(GPT3, {"num_layers": None, "hidden_size": 12288}) is GPT3


def test_name_sources_and_count_say_it_was_changed() -> None:
    model = apply_overrides(GPT3, {"num_layers": 48})
    assert (model.name, model.num_layers, model.published_parameters) == ("gpt3-175b*", 48, None)
    assert model.sources["num_layers"] == "given by the user"
    assert apply_overrides(model, {"num_layers": 24}).name == "gpt3-175b*"


def test_text_digits_and_booleans() -> None:
    model = apply_overrides(GPT3, {"num_layers": "4", "untie_embeddings_and_output_weights": True, "gated_linear_unit": True})
    assert (model.num_layers, model.untie_embeddings_and_output_weights, model.activation) == (4, True, "geglu")


@pytest.mark.parametrize("changes", [
    {"num_layers": 0}, {"num_layers": -1}, {"num_layers": 1.5}, {"num_layers": "many"}, {"num_layers": True},
    {"hidden_size": 12289}, {"num_query_groups": 7}, {"num_layers": 10**30}, {"num_attention_heads": 0},
    {"num_moe_experts": 4, "moe_router_topk": 5}, {"add_bias_linear": 1}, {"kv_channels": [1]},
])  # fmt: skip
def test_numbers_no_model_can_have(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        apply_overrides(GPT3, changes)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="num_layers"):
        apply_overrides(GPT3, {"num_layer": 4})


@given(
    st.sampled_from(["175b", "llama3-8b", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b"]),
    st.dictionaries(
        st.sampled_from([*INTEGER_FIELDS, *BOOLEAN_FIELDS]),
        st.one_of(st.integers(-2, 200), st.integers(), st.booleans(), st.none(), st.text(max_size=3)),
        max_size=4,
    ),
)
def test_any_override_gives_a_model_or_our_error(name: str, changes: dict[str, object]) -> None:
    try:
        model = apply_overrides(load_model(name), changes)
    except AutoconfigError as error:
        assert str(error)
    else:
        assert isinstance(model, ModelSpec) and total_parameters(model) > 0


@pytest.mark.parametrize(("model", "change", "expected"), [
    (GPT, {"num_attention_heads": 48, "num_query_groups": 8}, {"num_attention_heads": 48, "kv_channels": 10}),
    ("gpt3-175b", {"hidden_size": 6144}, {"kv_channels": 64, "ffn_hidden_size": 4 * 6144}),
    ("gpt3-175b", {"num_attention_heads": 48}, {"kv_channels": 256, "num_query_groups": 48}),
    ("gpt3-175b", {"default_seq_length": 4096}, {"max_position_embeddings": 4096}),
    ("gpt3-175b", {"default_seq_length": 1024}, {"max_position_embeddings": 1024}),
    ("llama3-8b", {"default_seq_length": 1024}, {"max_position_embeddings": 8192}),
    ("llama3-8b", {"default_seq_length": 65536}, {"max_position_embeddings": 65536}),
    ("llama3-8b", {"num_moe_experts": 8}, {"moe_router_topk": 2, "moe_ffn_hidden_size": 14336}),
    ("llama3-8b", {"num_moe_experts": 1}, {"moe_router_topk": 1, "moe_ffn_hidden_size": 14336}),
    ("llama3-8b", {"num_moe_experts": 8, "ffn_hidden_size": 1024}, {"moe_ffn_hidden_size": 1024}),
    ("gpt3-175b", {"gated_linear_unit": True}, {"activation": "geglu"}),
    ("llama3-8b", {"gated_linear_unit": False}, {"activation": "gelu"}),
    ("mixtral-8x7b", {"num_moe_experts": 0}, {"num_moe_experts": None, "moe_layer_freq": 1}),
    ("deepseek-v3", {"num_layers": 5}, {"moe_layer_freq": (0, 0, 0, 1, 1)}),
    ("llama3-8b", {"num_layers": "16"}, {"num_layers": 16, "published_parameters": None, "name": "llama3-8b*"}),
])  # fmt: skip
def test_what_follows_a_changed_number(model, change, expected):
    """Heads share the width where they did, an MLP of four widths stays one, and experts are as wide as the MLP was."""
    found = apply_overrides(load_model(model) if isinstance(model, str) else model, change)
    assert {name: getattr(found, name) for name in expected} == expected
