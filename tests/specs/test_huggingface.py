"""Models from Hugging Face configs."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.errors import AutoconfigError, FileError, InputError, UnsupportedError
from autoconfig.specs.models.config_reader import ConfigReader, rotary_fields
from autoconfig.specs.models.families import encoders, hybrids, rules
from autoconfig.specs.models.families.table import FAMILIES
from autoconfig.specs.models.huggingface import model_from_config, model_from_mapping, read_like
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.model_numbers import RopeScaling
from autoconfig.specs.models.parameters import total_parameters
from hypothesis import given
from hypothesis import strategies as st
from small_models import noted
from tables import table, tabled

DATA = json.loads((Path(__file__).parent / "huggingface_configs.json").read_text(encoding="utf-8"))
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {name: (row["config"], row["parameters"]) for name, row in DATA.items()}
"""The keys that decide the architecture, as the models' own config.json have them, and the published parameter count."""
LLAMA, GPT_OSS, DEEPSEEK_V3, MPT_7B = (PUBLISHED[name][0] for name in ("llama3-8b", "gpt-oss-20b", "deepseek-v3", "mpt-7b"))


def write(folder: Path, config: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("module", [encoders, hybrids, rules], ids=lambda one: one.__name__)
def test_a_row_of_the_table_names_every_function(module) -> None:
    rows = (Path(rules.__file__).parents[2] / "catalogue" / "families.toml").read_text(encoding="utf-8")
    own = {name for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    assert {name for name in own if not name.startswith("_") and not re.search(rf'"{name}"|{name} =', rows)} == set()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str, tmp_path: Path) -> None:
    config, parameters = PUBLISHED[name]
    assert total_parameters(model_from_config(write(tmp_path, config))) == parameters


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in PUBLISHED
        if name not in ("gpt2", "falcon-7b", "bloom-560m", "opt-125m", "mpt-7b", "phi3-mini", "gemma-7b", "gemma2-9b")
    ],
)
def test_the_config_is_the_catalogue_model(name: str, tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, PUBLISHED[name][0]))
    known = load_model(name)
    only_ours = {
        "name": known.name,
        "published_parameters": known.published_parameters,
        "default_seq_length": known.default_seq_length,
        "default_global_batch_size": known.default_global_batch_size,
    }
    if name == "deepseek-v3":  # the catalogue's are those of its training (arXiv:2412.19437), config.json's alpha is another
        trained = {"aux_loss_coeff": known.router.aux_loss_coeff, "bias_update_rate": known.router.bias_update_rate}
        assert model.router.aux_loss_coeff == 0.001
        only_ours["router"] = dataclasses.replace(model.router, **trained)
    assert model.replace(**only_ours).moe_pattern == known.moe_pattern
    assert model.replace(**only_ours, moe_layer_freq=known.moe_layer_freq) == known


def test_biases_windows_and_experts(tmp_path: Path) -> None:
    assert model_from_config(write(tmp_path, LLAMA | {"attention_bias": True, "mlp_bias": True})).add_bias_linear
    attention = model_from_config(write(tmp_path, LLAMA | {"attention_bias": True}))
    assert attention.add_qkv_bias and attention.add_attention_output_bias and not attention.add_bias_linear
    oss = model_from_config(write(tmp_path, GPT_OSS))
    assert oss.sliding_pattern[:4] == (1, 0, 1, 0) and oss.attention_sinks and oss.position_embedding_type == "yarn"
    step = dict(PUBLISHED["qwen3-30b-a3b"][0]) | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_hidden_layers": 6}
    assert model_from_config(write(tmp_path, step)).moe_pattern == (0, 1, 0, 0, 0, 1)
    gemma2 = model_from_config(write(tmp_path, PUBLISHED["gemma2-9b"][0]))
    assert gemma2.num_layernorms_per_layer == 4 and gemma2.sliding_pattern[:2] == (1, 0)


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(("changes", "base", "percent", "scaling"), [
    ({}, 500_000, 1.0, None),
    ({"rope_theta": None}, 10_000, 1.0, None),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": 2e6, "rope_type": "default"}}, 2_000_000, 1.0, None),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 500_000, 1.0, RopeScaling(type="linear", factor=4.0)),
    ({"rope_scaling": LLAMA3_SCALING}, 500_000, 1.0, RopeScaling(type="llama3", factor=8.0)),
    (
        {"rope_scaling": {**LLAMA3_SCALING, "original_max_position_embeddings": 4096}},
        500_000,
        1.0,
        RopeScaling(type="other", factor=8.0),
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 500_000, 1.0, RopeScaling(type="other", factor=2.0)),
    (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        500_000,
        1.0,
        RopeScaling(type="yarn", factor=4.0, original_max_position_embeddings=32768),
    ),
    ({"partial_rotary_factor": 0.5}, 500_000, 0.5, None),
])  # fmt: skip
def test_rotary_positions(
    changes: dict[str, object], base: int, percent: float, scaling: RopeScaling | None, tmp_path: Path
) -> None:
    model = model_from_config(write(tmp_path, LLAMA | changes))
    assert (model.rotary_base, model.rotary_percent, model.rope_scaling) == (base, percent, scaling)
    assert model.position_embedding_type == ("yarn" if scaling and scaling.type == "yarn" else "rope")


def test_families_have_bases_of_their_own(tmp_path: Path) -> None:
    found = {}
    for name in ("mixtral-8x7b", "gpt-oss-20b", "gpt-neox-20b", "nemotron4-340b", "mistral-7b"):
        config = {k: v for k, v in PUBLISHED[name][0].items() if not k.startswith(("rope", "rotary", "partial"))}
        model = model_from_config(write(tmp_path, config))
        found[name] = (model.rotary_base, model.rotary_percent)
    assert found == {
        "mixtral-8x7b": (1_000_000, 1.0), "gpt-oss-20b": (150_000, 1.0), "gpt-neox-20b": (10_000, 0.25),
        "nemotron4-340b": (10_000, 0.5), "mistral-7b": (10_000, 1.0),
    }  # fmt: skip


def test_folder_name_and_absent_keys(tmp_path: Path) -> None:
    folder = tmp_path / "my model!"
    folder.mkdir()
    write(folder, LLAMA)
    assert model_from_config(folder).name == "my-model"
    assert model_from_config(str(folder / "config.json")).name == "my-model"
    assert model_from_config(write(tmp_path, LLAMA, "big.json")).name == "big"


UNSUPPORTED = {
    "bart": ({"model_type": "bart", "d_model": 512}, "encoder-decoder"),
    "albert": ({"model_type": "albert", "hidden_size": 768}, "encoder-only"),
    "llava": ({"model_type": "llava", "text_config": {}}, "multi-modal"),
    "mamba": ({"model_type": "mamba"}, "state-space"),
    "unknown": ({"model_type": "zzz" * 30}, "does not know"),
    "text_config": (LLAMA | {"text_config": {"hidden_size": 1}}, "text_config"),
    "encoder_decoder": (LLAMA | {"is_encoder_decoder": True}, "decoder-only"),
    "activation": (LLAMA | {"hidden_act": "tanh"}, "tanh"),
    "layer_kind": (GPT_OSS | {"layer_types": ["linear_attention"] * 24}, "linear_attention"),
    "opt-350m": ({"model_type": "opt", "hidden_size": 1024, "do_layer_norm_before": False}, "OPT-350m"),
    "mpt": (MPT_7B | {"attn_config": {"alibi": False}}, "ALiBi"),
    "mla bias": (DEEPSEEK_V3 | {"attention_bias": True}, "attention_bias"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_architectures_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    config, reason = UNSUPPORTED[name]
    with pytest.raises(UnsupportedError, match=reason):
        model_from_config(write(tmp_path, config))


def test_biases_of_the_mlp_alone_are_counted(tmp_path: Path) -> None:
    plain, biased = (model_from_config(write(tmp_path, LLAMA | {"mlp_bias": given})) for given in (False, True))
    widths = 2 * plain.ffn_hidden_size + plain.hidden_size
    assert total_parameters(biased) - total_parameters(plain) == plain.num_layers * widths


@tabled
def test_wrong_values_are_input_errors_that_name_the_file(changes: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        model_from_config(write(tmp_path, LLAMA | changes))
    assert "config" in str(caught.value) or "num_query_groups" in str(caught.value)


@pytest.mark.parametrize(("content", "kind"), [
    (b"", InputError), (b"{", InputError), (b'{"model_type": "llama", "hidden', InputError), (b"[1, 2]", InputError),
    (b"null", InputError), (b'"text"', InputError), (b"3", InputError), (b"\xff\xfe\x00\x01binary\x80", FileError),
    (bytes(range(256)), FileError), (b"[" * 200_000, InputError), (b'{"a":' * 100_000, InputError),
    (b'{"hidden_size": ' + b"9" * 10_000 + b"}", InputError), (b"{}", InputError), (b" " * (2**24 + 1), FileError),
    (b'{"model_type": "llama", "x": NaN}', InputError), (b"\xef\xbb\xbf{}", InputError),
])  # fmt: skip
def test_bad_files(content: bytes, kind: type[InputError], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        model_from_config(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = sorted({key for config, _ in PUBLISHED.values() for key in config} - {"model_type"})


@given(st.sampled_from(sorted(PUBLISHED)), st.dictionaries(st.sampled_from(KEYS), st.integers(-3, 300) | JSON, max_size=5))
def test_any_damage_to_a_published_config_gives_a_model_or_our_error(
    tmp_path: Path, name: str, damage: dict[str, object]
) -> None:
    assert_model_or_error(write(tmp_path, PUBLISHED[name][0] | damage))


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "model_type", "is_encoder_decoder", "text_config"]) | st.text(max_size=6),
        JSON | st.sampled_from(sorted(FAMILIES)),
        max_size=8,
    )
)
def test_any_json_object_gives_a_model_or_our_error(tmp_path: Path, config: dict[str, object]) -> None:
    assert_model_or_error(write(tmp_path, config))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_give_our_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(AutoconfigError):
        model_from_config(path)


def assert_model_or_error(path: Path) -> None:
    try:
        model = model_from_config(path)
    except AutoconfigError as error:
        assert str(error)
    else:
        assert isinstance(model, ModelSpec) and total_parameters(model) > 0


OF_RELEASE_4 = json.loads((Path(__file__).parent / "configs_of_transformers_4.json").read_text(encoding="utf-8"))["files"]


@pytest.mark.parametrize("model_type", OF_RELEASE_4)
def test_files_saved_by_transformers_4_give_the_count_of_their_class(model_type: str, tmp_path: Path) -> None:
    parameters, config = OF_RELEASE_4[model_type]
    if model_type == "mt5":  # release 4 unties it where the file says so, as this one does; release 5 never: a note says it
        assert f"has {config['vocab_size'] * config['d_model']:,} (" in noted(config)[0]
        parameters -= config["vocab_size"] * config["d_model"]
    assert total_parameters(model_from_config(write(tmp_path, config))) == parameters


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
def test_t5_is_tied_and_gated_as_its_class_reads_it(model_type: str) -> None:
    small = {**OF_RELEASE_4["umt5"][1], "model_type": model_type}
    one = model_from_mapping({**small, "tie_word_embeddings": False}, "x", "x")
    assert not one.untie_embeddings_and_output_weights and noted(small) == []
    for said, gated in ((True, True), (False, False), (None, False)):
        assert model_from_mapping({**small, "is_gated_act": said}, "x", "x").gated_linear_unit == gated
    with pytest.raises(UnsupportedError, match="of gated ones gated-gelu"):
        model_from_mapping({**small, "is_gated_act": True, "feed_forward_proj": "relu"}, "x", "x")


GEMMA3_4B = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
             "sliding_window": 1024}  # fmt: skip
"""text_config of google/gemma-3-4b-it: all else is left to the class."""


def test_keys_that_are_left_out_are_what_the_class_takes(tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, GEMMA3_4B))
    assert total_parameters(model) == load_model("gemma3-4b").published_parameters
    assert (model.window_size, model.sliding_pattern) == (1024, load_model("gemma3-4b").sliding_pattern)
    half = {key: value for key, value in DEEPSEEK_V3.items() if key not in ("n_routed_experts", "n_shared_experts")}
    assert total_parameters(model_from_config(write(tmp_path, half))) == 671_026_419_200


@pytest.mark.parametrize(("config", "sliding"), [
    ({"sliding_window": 512}, 6), ({"sliding_window": 512, "sliding_window_pattern": "LG"}, 4), ({"sliding_window": None}, 0),
    ({"sliding_window": 512, "sliding_window_pattern": 2, "layer_types": ["full_attention"] * 8}, 0),
])  # fmt: skip
def test_windows_that_the_file_does_not_place_are_where_the_class_has_them(
    config: dict[str, Any], sliding: int, tmp_path: Path
) -> None:
    llama = {**LLAMA, "model_type": "exaone4", "num_hidden_layers": 8}
    assert sum(model_from_config(write(tmp_path, {**llama, **config})).sliding_pattern) == sliding


SPARSE = {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}


def test_sparse_attention_is_read_with_its_indexer(tmp_path: Path) -> None:
    model = model_from_config(write(tmp_path, SPARSE))
    assert total_parameters(model) == 671_877_944_064 and model.is_sparse and not model.dsa_indexer_rope_interleaved
    dense = model_from_config(write(tmp_path, DEEPSEEK_V3))
    per_layer = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128
    assert total_parameters(model) - total_parameters(dense) == 61 * per_layer


@tabled
def test_sparse_attention_that_is_not_modelled_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"take over the keys|layer_types|sparse attention needs"):
        model_from_config(write(tmp_path, {**SPARSE, "model_type": "glm_moe_dsa", **changes}))


COUNTS = json.loads((Path(__file__).parent / "family_counts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model_type", sorted(COUNTS))
def test_small_models_of_every_family_count_what_transformers_counts(model_type: str) -> None:
    """Parameters of the class of `transformers` itself, recorded by validation/judge/families.py (`make families`)."""
    base, parameters, *others = COUNTS[model_type]
    for changes, count in ([{}, parameters], *others):
        left_out = changes if isinstance(changes, str) else ""
        config = {key: value for key, value in base.items() if key != left_out} | ({} if left_out else changes)
        assert total_parameters(model_from_mapping(config, model_type, model_type)) == count, changes


def test_every_family_is_counted_by_its_class() -> None:
    assert set(FAMILIES) - set(COUNTS) == {"kimi_k2"}, "built by code of its own repository, as DeepSeek-V3"


CLASS_DEFAULTS = table(__file__, "class_defaults")
"""Family -> keys of a large file, and what fields take of those that are left out: configurations of transformers 5.23."""


@pytest.mark.parametrize("family", CLASS_DEFAULTS)
@pytest.mark.parametrize("like", [False, True])
def test_numbers_that_a_large_file_leaves_out_are_those_of_its_class(family: str, like: bool) -> None:
    said, expected = CLASS_DEFAULTS[family]
    model = read_like(said, "x", "x", family)[0] if like else model_from_mapping({"model_type": family, **said}, "x", "x")
    assert {name: getattr(model, name) for name in expected} == expected


def test_of_a_multi_modal_file_the_language_model_is_read() -> None:
    for key in ("text_config", "llm_config", "language_config"):
        found = model_from_mapping({"model_type": "two_eyes", key: LLAMA, "hidden_size": 7, "vision_config": {}}, "x", "x")
        assert total_parameters(found) == PUBLISHED["llama3-8b"][1]
    tied = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    found = model_from_mapping({"model_type": "two_eyes", "text_config": tied, "tie_word_embeddings": True}, "x", "x")
    assert not found.untie_embeddings_and_output_weights
    assert noted({"model_type": "two_eyes", "text_config": LLAMA, "audio_config": {"x": 1}})[0].count("audio") == 1


def test_a_nemotron_h_without_heads_of_keys_has_its_class_ones() -> None:
    said = {"model_type": "nemotron_h", "hidden_size": 2048, "num_attention_heads": 32, "vocab_size": 131072}
    model = model_from_mapping({**said, "hybrid_override_pattern": "M*-", "intermediate_size": 4096}, "x", "x")
    assert (model.kv_channels, model.num_query_groups) == (128, 8)


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
def test_what_a_config_leaves_out_is_the_default_of_transformers_class(model_type, key, name, value):
    """Qwen2MoeConfig, Qwen3MoeConfig and XGLMConfig of transformers 5."""
    config = {other: given for other, given in CONFIGS[model_type][0].items() if other != key}
    config |= {"num_experts": 16, "num_local_experts": 16} if "moe" in model_type else {}
    assert getattr(model_from_mapping(config, model_type, model_type), name) == value


@pytest.mark.parametrize(("section", "scaling"), [
    ({"rope_type": "yarn", "factor": 4.0}, "yarn"), ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 32}, "yarn"),
    ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16}, "other"), ({"type": "yarn", "beta_slow": 2}, "other"),
    ({"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}, "llama3"),
    ({"rope_type": "llama3", "low_freq_factor": 2}, "other"), ({"rope_type": "llama3", "high_freq_factor": 8}, "other"),
    ({"rope_type": "default"}, None),
])  # fmt: skip
def test_scalings_that_megatron_has_arguments_for(section, scaling):
    """megatron-core: yarn has beta_fast 32 and beta_slow 1, _apply_scaling factors 1 and 4 and 8,192 positions."""
    found = rotary_fields(ConfigReader({"rope_scaling": section}, "x"))["rope_scaling"]
    assert (found and found.type) == scaling


GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 6, "vocab_size": 1003, "n_positions": 64}


def test_keys_of_other_families_are_left_out_and_named():
    plain, more = (total_parameters(model_from_mapping(one, "f", "m")) for one in (GPT2, {**GPT2, "head_dim": 24}))
    assert plain == more
    assert noted({**GPT2, "head_dim": 24}) == ["left out: head_dim, which GPT2LMHeadModel of transformers does not read"]
    assert noted(GPT2) == []


def test_other_names_of_a_key_are_the_key():
    renamed = {key: value for key, value in GPT2.items() if key != "n_positions"} | {"max_position_embeddings": 64}
    assert model_from_mapping(renamed, "f", "m") == model_from_mapping(GPT2, "f", "m")
    with pytest.raises(InputError, match="n_positions 64 and max_position_embeddings 128"):
        model_from_mapping({**GPT2, "max_position_embeddings": 128}, "f", "m")
    with pytest.raises(InputError, match="give num_layers"):
        model_from_mapping({"model_type": "t5", "num_hidden_layers": 24, "hidden_size": 1024}, "f", "m")


def test_two_numbers_of_experts_are_refused():
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 1003}
    with pytest.raises(InputError, match="give one of them"):
        model_from_mapping({"model_type": "dots1", **sizes, "n_routed_experts": 8, "num_experts": 16}, "f", "m")


@tabled
def test_ties_of_a_language_model_inside_a_file(kind, outer, inner, tied):
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 1003}
    sizes |= {"num_key_value_heads": 6, "max_position_embeddings": 64, "head_dim": 16}
    text = {"model_type": "mistral", **sizes, "tie_word_embeddings": inner}
    config = {"model_type": kind, "text_config": text, "vision_config": {}, "tie_word_embeddings": outer}
    assert model_from_mapping(config, "f", "m").untie_embeddings_and_output_weights == (not tied)


def test_ties_that_contradict_in_a_file_whose_class_is_not_known_are_refused():
    text = {"model_type": "mistral", "tie_word_embeddings": False}
    with pytest.raises(InputError, match="which one holds is not known"):
        model_from_mapping({"model_type": "new_vl", "text_config": text, "tie_word_embeddings": True}, "f", "m")


SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 1003}
SMALL_LLAMA = {"model_type": "llama", **SIZES, "max_position_embeddings": 64}


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_layers", "cross_attention_layers", "add_cross_attention"])
def test_parts_beside_the_layers_are_named_where_a_class_does_not_build_them(key):
    """Its class in transformers has as many parameters with the key as without it."""
    assert noted({**SMALL_LLAMA, key: [1] if key.endswith("n_layers") else 1 if key[-1] == "s" else True}) == [
        f"left out: {key}, which LlamaForCausalLM of transformers does not read"
    ]
    assert noted({**SMALL_LLAMA, key: 0 if key[-1] == "s" else False}) == noted(SMALL_LLAMA) == []


@tabled
def test_a_tie_that_a_multi_modal_file_does_not_say_is_told_where_its_class_has_another(kind, inner, says):
    """As transformers 5.23 builds the classes (specs/catalogue/huggingface_classes.json)."""
    text = {**SMALL_LLAMA, "model_type": "mistral", "num_key_value_heads": 3, "tie_word_embeddings": inner}
    notes = noted({"model_type": kind, "text_config": text, "vision_config": {"depth": 2}})
    assert notes[0].startswith("left out: the vision parts of a multi-modal model")
    assert len(notes) == 1 + bool(says)
    if says:
        assert says in notes[1] and (f"{1003 * 96:,} parameters" in notes[1] or "not known" in says)


OVIS2 = {
    "model_type": "ovis2", "text_config": {**SMALL_LLAMA, "model_type": "qwen2", "num_key_value_heads": 3},
    "vision_config": {"depth": 2}, "tie_word_embeddings": False, "hidden_size": 96,
}  # fmt: skip


def test_an_output_layer_that_does_not_fit_its_language_model_is_refused():
    with pytest.raises(InputError, match=r"says hidden_size 128 for the output layer of ovis2.* is 96: one does not fit"):
        noted({**OVIS2, "hidden_size": 128})
    assert len(noted({**OVIS2, "hidden_size": 128, "tie_word_embeddings": True})) == 1


INSIDE = {**SIZES, "num_hidden_layers": 5, "num_key_value_heads": 3, "max_position_embeddings": 64}


def count(kind, **said):
    """Parameters of the language model inside a multi-modal file."""
    text = {"model_type": f"{kind}_text", **INSIDE, "tie_word_embeddings": False, **said}
    return total_parameters(model_from_mapping({"model_type": kind, "text_config": text}, "f", "m"))


@tabled
def test_a_language_model_inside_a_file_has_defaults_and_keys_of_its_own(kind, said, parameters):
    """Counts of the classes of transformers 5.23, on the meta device (validation/judge/families.py)."""
    assert count(kind, **said) == parameters


MIXERS = {**SIZES, "model_type": "nemotron_h", "num_key_value_heads": 3, "head_dim": 16, "mamba_num_heads": 8}
MIXERS |= {"mamba_head_dim": 16, "ssm_state_size": 8}


@tabled
def test_nemotron_h_has_the_names_that_its_class_takes(said, parameters):
    assert total_parameters(model_from_mapping({**MIXERS, **said}, "f", "m")) == parameters


@tabled
def test_nemotron_h_with_two_that_differ_is_refused(said, why):
    with pytest.raises(InputError, match=why):
        model_from_mapping({**MIXERS, "layers_block_type": ["mamba"], **said}, "f", "m")


@tabled
def test_what_a_class_builds_otherwise_is_refused(family, said, why):
    whole = COUNTS[family][0]
    assert total_parameters(model_from_mapping(whole, "f", "m")) == COUNTS[family][1]
    with pytest.raises(InputError, match=why):
        model_from_mapping({**whole, **said}, "f", "m")


@pytest.mark.parametrize(
    ("family", "said"),
    [("granitemoe", {"shared_intermediate_size": 64}), ("dots1", {"mlp_layer_types": ["sparse"] * 5})],
)
def test_keys_of_a_sibling_family_are_left_out_and_named(family, said):
    whole = {**COUNTS[family][0], **said}
    assert total_parameters(model_from_mapping(whole, "f", "m")) == COUNTS[family][1]
    assert any(next(iter(said)) in note for note in noted(whole))


def inside(kind, text, **outer):
    """A multi-modal file with this language model."""
    return {"model_type": kind, "text_config": text, **outer}


@pytest.mark.parametrize(
    "said", [{"num_local_experts": 8}, {"num_local_experts": 8, "num_experts": None}, {"n_routed_experts": 4}]
)
def test_a_number_of_experts_under_a_name_of_other_families_is_refused(said):
    """The class of qwen2_moe passes over it, and builds its default of 60 experts."""
    whole = {key: value for key, value in COUNTS["qwen2_moe"][0].items() if key != "num_experts"}
    with pytest.raises(InputError, match=r"which Qwen2MoeForCausalLM of transformers does not read.*give num_experts"):
        model_from_mapping({**whole, **said}, "f", "m")
    assert (
        total_parameters(model_from_mapping({**whole, **said, "num_experts": 8, **dict.fromkeys(said, 8)}, "f", "m"))
        == (COUNTS["qwen2_moe"][1])
    )


def test_other_names_of_the_number_of_experts_that_a_class_takes_are_read():
    whole = {key: value for key, value in COUNTS["deepseek_v3"][0].items() if key != "n_routed_experts"}
    assert total_parameters(model_from_mapping({**whole, "num_local_experts": 8}, "f", "m")) == COUNTS["deepseek_v3"][1]


@tabled
def test_another_class_of_a_language_model_inside_a_file_is_named(said, part):
    file = inside("llava", {**SMALL_LLAMA, **said}, vision_config={"depth": 2}, tie_word_embeddings=False)
    assert part in noted(file)[1] and len(noted(file)) == 2
    assert len(noted(inside("llava", SMALL_LLAMA, vision_config={"depth": 2}, tie_word_embeddings=False))) == 1


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (inside("grounding-dino", {"model_type": "bert"}), "grounding-dino of transformers has no class of a language model"),
        (inside("vision-text-dual-encoder", {"model_type": "bert"}), "has no class of a language model"),
        (
            inside("new_vl", SMALL_LLAMA, llm_config={**SMALL_LLAMA, "num_hidden_layers": 3}),
            "which is the language model is not known",
        ),
        (
            {"model_type": "llava", "llm_config": SMALL_LLAMA},
            "the class of llava reads text_config, and the file has llm_config",
        ),
        (inside("llava", {**COUNTS["phi"][0]}), "puts an output layer of its own on phi"),
        (inside("qwen2_audio", {**COUNTS["t5"][0]}), "puts an output layer of its own on t5"),
        (inside("gemma3", SMALL_LLAMA), "builds gemma3_text, whatever model_type says: 'llama'"),
    ],
)
def test_a_file_whose_language_model_is_not_known_is_refused(file, why):
    with pytest.raises(InputError, match=why):
        model_from_mapping(file, "f", "m")
    assert model_from_mapping(inside("new_vl", SMALL_LLAMA, llm_config=SMALL_LLAMA), "f", "m").num_layers == 2
