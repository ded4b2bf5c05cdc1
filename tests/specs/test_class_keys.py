"""Keys of other families, other names of a key, ties outside of a language model: as the classes of transformers take them."""

import json
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.parameters import total_parameters
from small_models import noted
from tables import tabled

COUNTS = json.loads((Path(__file__).parent / "family_counts.json").read_text(encoding="utf-8"))
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
LLAMA = {"model_type": "llama", **SIZES, "max_position_embeddings": 64}


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_layers", "cross_attention_layers", "add_cross_attention"])
def test_parts_beside_the_layers_are_named_where_a_class_does_not_build_them(key):
    """Its class in transformers has as many parameters with the key as without it."""
    assert noted({**LLAMA, key: [1] if key.endswith("n_layers") else 1 if key[-1] == "s" else True}) == [
        f"left out: {key}, which LlamaForCausalLM of transformers does not read"
    ]
    assert noted({**LLAMA, key: 0 if key[-1] == "s" else False}) == noted(LLAMA) == []


@tabled
def test_a_tie_that_a_multi_modal_file_does_not_say_is_told_where_its_class_has_another(kind, inner, says):
    """As transformers 5.23 builds the classes (specs/catalogue/huggingface_classes.json)."""
    text = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 3, "tie_word_embeddings": inner}
    notes = noted({"model_type": kind, "text_config": text, "vision_config": {"depth": 2}})
    assert notes[0].startswith("left out: the vision parts of a multi-modal model")
    assert len(notes) == 1 + bool(says)
    if says:
        assert says in notes[1] and (f"{1003 * 96:,} parameters" in notes[1] or "not known" in says)


OVIS2 = {
    "model_type": "ovis2", "text_config": {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 3},
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
    file = inside("llava", {**LLAMA, **said}, vision_config={"depth": 2}, tie_word_embeddings=False)
    assert part in noted(file)[1] and len(noted(file)) == 2
    assert len(noted(inside("llava", LLAMA, vision_config={"depth": 2}, tie_word_embeddings=False))) == 1


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (inside("grounding-dino", {"model_type": "bert"}), "grounding-dino of transformers has no class of a language model"),
        (inside("vision-text-dual-encoder", {"model_type": "bert"}), "has no class of a language model"),
        (inside("new_vl", LLAMA, llm_config={**LLAMA, "num_hidden_layers": 3}), "which is the language model is not known"),
        ({"model_type": "llava", "llm_config": LLAMA}, "the class of llava reads text_config, and the file has llm_config"),
        (inside("llava", {**COUNTS["phi"][0]}), "puts an output layer of its own on phi"),
        (inside("qwen2_audio", {**COUNTS["t5"][0]}), "puts an output layer of its own on t5"),
        (inside("gemma3", LLAMA), "builds gemma3_text, whatever model_type says: 'llama'"),
    ],
)
def test_a_file_whose_language_model_is_not_known_is_refused(file, why):
    with pytest.raises(InputError, match=why):
        model_from_mapping(file, "f", "m")
    assert model_from_mapping(inside("new_vl", LLAMA, llm_config=LLAMA), "f", "m").num_layers == 2
