"""Architecture numbers as flags: what they change of a model."""

import pytest
from autoconfig.specs.errors import AutoconfigError, InputError, UnknownNameError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.overrides import BOOLEAN_FIELDS, INTEGER_FIELDS, apply_overrides
from autoconfig.specs.models.parameters import total_parameters
from hypothesis import given
from hypothesis import strategies as st

GPT, LLAMA3_8B = load_model("175b"), load_model("llama3-8b")


def test_nothing_given_is_the_model_itself() -> None:
    assert apply_overrides(GPT, {}) is GPT
    assert apply_overrides(GPT, {"num_layers": None, "hidden_size": 12288}) is GPT


def test_name_sources_and_count_say_it_was_changed() -> None:
    model = apply_overrides(GPT, {"num_layers": 48})
    assert (model.name, model.num_layers, model.published_parameters) == ("gpt3-175b*", 48, None)
    assert model.sources["num_layers"] == "given by the user"
    assert apply_overrides(model, {"num_layers": 24}).name == "gpt3-175b*"


def test_width_carries_heads_size_and_mlp_where_derived() -> None:
    model = apply_overrides(GPT, {"hidden_size": 8192, "num_attention_heads": 64})
    assert (model.kv_channels, model.ffn_hidden_size, model.num_query_groups) == (128, 32768, 64)
    model = apply_overrides(LLAMA3_8B, {"hidden_size": 8192})
    assert (model.kv_channels, model.ffn_hidden_size, model.num_query_groups) == (256, 14336, 8)


def test_independent_head_size_stays() -> None:
    model = apply_overrides(load_model("qwen3-32b"), {"num_attention_heads": 32})
    assert (model.kv_channels, model.num_query_groups) == (128, 8)


def test_given_numbers_win_over_derived_ones() -> None:
    model = apply_overrides(GPT, {"hidden_size": 8192, "ffn_hidden_size": 1000, "kv_channels": 64, "num_query_groups": 8})
    assert (model.kv_channels, model.ffn_hidden_size, model.num_query_groups) == (64, 1000, 8)


def test_experts() -> None:
    moe = apply_overrides(LLAMA3_8B, {"num_moe_experts": 8})
    assert (moe.num_moe_experts, moe.moe_router_topk, moe.moe_ffn_hidden_size) == (8, 2, 14336)
    mixtral = apply_overrides(load_model("mixtral-8x7b"), {"ffn_hidden_size": 4096})
    assert mixtral.moe_ffn_hidden_size == 4096
    dense = apply_overrides(load_model("mixtral-8x7b"), {"num_moe_experts": 0})
    assert not dense.is_moe and total_parameters(dense) == load_model("mistral-7b").published_parameters


def test_first_dense_layers_are_kept_when_depth_changes() -> None:
    model = apply_overrides(load_model("deepseek-v3"), {"num_layers": 8})
    assert model.moe_pattern == (0, 0, 0, 1, 1, 1, 1, 1)


def test_sequence_moves_learned_positions() -> None:
    model = apply_overrides(GPT, {"seq_length": 8192})
    assert (model.default_seq_length, model.max_position_embeddings) == (8192, 8192)
    assert apply_overrides(LLAMA3_8B, {"seq_length": 4096}).max_position_embeddings == 8192


def test_text_digits_and_booleans() -> None:
    model = apply_overrides(GPT, {"num_layers": "4", "untie_embeddings_and_output_weights": True, "gated_linear_unit": True})
    assert (model.num_layers, model.untie_embeddings_and_output_weights, model.activation) == (4, True, "geglu")


@pytest.mark.parametrize("changes", [
    {"num_layers": 0}, {"num_layers": -1}, {"num_layers": 1.5}, {"num_layers": "many"}, {"num_layers": True},
    {"hidden_size": 12289}, {"num_query_groups": 7}, {"num_layers": 10**30}, {"num_attention_heads": 0},
    {"num_moe_experts": 4, "moe_router_topk": 5}, {"add_bias_linear": 1}, {"kv_channels": [1]},
])  # fmt: skip
def test_numbers_no_model_can_have(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        apply_overrides(GPT, changes)


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="num_layers"):
        apply_overrides(GPT, {"num_layer": 4})


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


def test_one_head_is_as_wide_as_the_model():
    model = ModelSpec(
        name="x", num_layers=2, hidden_size=96, num_attention_heads=6, num_query_groups=6, kv_channels=16, ffn_hidden_size=80,
        vocab_size=64,
    )  # fmt: skip
    one = apply_overrides(model, {"num_attention_heads": 1})
    assert (one.num_query_groups, one.kv_channels) == (1, 96)
