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
