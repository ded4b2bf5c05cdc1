"""Keys of other families, other names of a key, ties outside of a language model: as the classes of transformers take them."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.huggingface import config_notes, model_from_mapping
from autoconfig.specs.models.parameters import total_parameters

GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 6, "vocab_size": 1003, "n_positions": 64}


def test_keys_of_other_families_are_left_out_and_named():
    plain, more = (total_parameters(model_from_mapping(one, "f", "m")) for one in (GPT2, {**GPT2, "head_dim": 24}))
    assert plain == more
    assert config_notes({**GPT2, "head_dim": 24}) == ["left out: head_dim, which GPT2LMHeadModel of transformers does not read"]
    assert config_notes(GPT2) == []


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


@pytest.mark.parametrize(
    ("kind", "outer", "inner", "tied"),
    [
        ("mistral3", True, False, True), ("mistral3", False, True, False), ("llava", False, True, True),
        ("llava", True, None, True),
    ],
)
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
