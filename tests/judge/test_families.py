"""Parameters of every family of Hugging Face that is read, against the class itself on torch's meta device: as `transformers`
configures it, and small with one field after another changed. Equal, or refused; never another number."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.config_reader import CLASSES as SHIPPED
from autoconfig.specs.models.config_reader import TEXT_TYPES
from autoconfig.specs.models.families.table import ENCODERS, FAMILIES
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from small_models import noted

from autoconfig.formats.projections import BY_TYPE

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
families = pytest.importorskip("validation.judge.families")
CLASSES, CONFIGS, SMALL = families.classes(), families.CONFIGS, families.SMALL
built, loaded, variants = families.built, families.loaded, families.variants
NO_CLASS = {"kimi_k2": "built by code of its own repository, as DeepSeek-V3"}
TYPES = sorted((set(FAMILIES) - set(NO_CLASS)) | set(TEXT_TYPES))
"""With language models inside a multi-modal file, which are as another family's and have defaults and keys of their own."""


def compare(model_type: str) -> tuple[int, list[str], list[str]]:
    """(exact, wrong, refused) of the variants that `transformers` builds."""
    exact, wrong, refused = 0, [], []
    for changes in variants(model_type):
        if (found := built(model_type, changes)) is None:
            continue
        config, count = found
        try:
            ours = total_parameters(model_from_mapping(config, model_type, model_type))
        except InputError as error:
            refused.append(f"{changes}: {error}")
            continue
        if ours == count:
            exact += 1
        else:
            wrong.append(f"{changes}: {ours:,}, the class has {count:,} ({ours - count:+,})")
    return exact, wrong, refused


@pytest.mark.parametrize("model_type", TYPES)
def test_parameters_are_those_of_the_class(model_type: str) -> None:
    exact, wrong, refused = compare(model_type)
    assert wrong == []
    assert exact >= 3, refused


@pytest.mark.parametrize("model_type", sorted(set(BY_TYPE) & set(FAMILIES)))
def test_adapters_get_the_names_of_linear_layers(model_type: str) -> None:
    """Each name that PEFT is told ends that of a linear layer of every kind, and together they end all but the output layer."""
    config = families.CONFIGS[model_type]()
    small = {name: value for name, value in SMALL.items() if hasattr(config, name)}
    model = next(one for one in (families.module(model_type, small), families.module(model_type, {})) if one is not None)
    linear = [name for name, one in model.named_modules() if type(one).__name__ in LINEAR and ".0." in name]
    told = [name for names in BY_TYPE[model_type].values() for name in names]
    assert linear and [one for one in linear if sum(f".{one}".endswith(f".{name}") for name in told) != 1] == []
    assert [name for name in told if not any(f".{one}".endswith(f".{name}") for one in linear)] == []


LINEAR = ("Linear", "Conv1D", "FalconLinear")
NO_SHAPE = (
    *("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "problem_type", "_name_or_path"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "chunk_size_feed_forward"),
)


@cache
def small_file(model_type: str) -> tuple[dict[str, Any], int]:
    """The small model's config.json, which the class itself loads, and its parameters."""
    found = families.small(model_type)
    assert found is not None and loaded(model_type, found[0]) == found[1]
    return found


@pytest.mark.parametrize("model_type", TYPES)
def test_a_key_that_is_left_out_is_what_the_class_takes_or_asked_for(model_type: str) -> None:
    whole, wrong = small_file(model_type)[0], []
    for key in sorted(set(whole) - set(NO_SHAPE)):
        wrong += differs(model_type, {name: value for name, value in whole.items() if name != key}, key)
    assert wrong == []


@pytest.mark.parametrize("model_type", TYPES)
def test_a_null_is_what_the_class_takes_it_for_or_asked_for(model_type: str) -> None:
    whole, wrong = small_file(model_type)[0], []
    for key in sorted(set(whole) - set(NO_SHAPE)):
        wrong += differs(model_type, {**whole, key: None}, key)
    assert wrong == []


def differs(model_type: str, config: dict[str, Any], key: str) -> list[str]:
    """What is wrong with our count of this config.json: nothing where it is refused, or the class does not load it."""
    try:
        ours = total_parameters(model_from_mapping(config, model_type, model_type))
    except InputError:
        return []
    count = loaded(model_type, config)
    return [f"{key}: {ours:,}, the class has {count:,}"] if count not in (None, ours) else []


SHAPE = (
    *("window_size", "window_attn_skip_freq", "moe_router_topk", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("max_position_embeddings", "ffn_hidden_size", "num_moe_experts", "moe_layer_freq"),
)
"""Fields that decide memory or time and not always a number of parameters."""


@pytest.mark.parametrize("model_type", TYPES)
def test_a_key_that_is_left_out_gives_the_windows_and_widths_of_the_class(model_type: str) -> None:
    """Of the small model, and of one with sliding and full layers where the class knows both."""
    whole = small_file(model_type)[0]
    kinds = ["sliding_attention", "full_attention"] * len(whole.get("layer_types") or ())
    mixed = {**whole, "layer_types": kinds[: len(kinds) // 2]}
    wrong = []
    for file in (whole, mixed) if "sliding_window" in whole and kinds else (whole,):
        for key in sorted(set(file) - set(NO_SHAPE)):
            less = {name: value for name, value in file.items() if name != key}
            try:
                ours = model_from_mapping(less, model_type, model_type)
                config = CONFIGS[model_type].from_dict(CONFIGS[model_type]._decode_special_floats(dict(less)))
                theirs = model_from_mapping(json.loads(config.to_json_string(use_diff=False)), model_type, model_type)
            except Exception:  # refused, or no file of the class: held above
                continue
            pairs = {name: (getattr(ours, name), getattr(theirs, name)) for name in SHAPE}
            wrong += [f"{key}: {name} is {a}, of the class {b}" for name, (a, b) in pairs.items() if a != b]
    assert wrong == []


def ours(config: dict[str, Any], model_type: str) -> int | None:
    """Parameters; None where it is refused."""
    try:
        return total_parameters(model_from_mapping(config, model_type, model_type))
    except InputError:
        return None


@pytest.mark.parametrize("model_type", TYPES)
def test_keys_of_other_families_that_are_counted_are_the_class_s(model_type: str) -> None:
    assert foreign_keys_that_differ(model_type, every=False) == []


@pytest.mark.soak
@pytest.mark.parametrize("model_type", TYPES)
def test_keys_of_other_families_that_the_class_counts_are_counted(model_type: str) -> None:
    assert foreign_keys_that_differ(model_type, every=True) == []


def foreign_keys_that_differ(model_type: str, *, every: bool) -> list[str]:
    """Keys with which the class has another number than ours; of `every` key, or of those that change ours."""
    wrong = []
    for key, config, without in families.foreign(model_type):
        if (count := ours(config, model_type)) is None or (count == without and not every):
            continue
        if (its := loaded(model_type, config)) not in (count, None):
            wrong.append(f"{key}: {count}, the class has {its}")
    return wrong


@pytest.mark.parametrize("model_type", sorted(families.same_keys()))
def test_another_name_of_a_key_is_the_key_and_two_that_differ_are_refused(model_type: str) -> None:
    config, count = small_file(model_type)
    told = 0
    for other, key in families.same_keys()[model_type].items():
        if type(config.get(key)) is not int:
            continue
        renamed = {name: value for name, value in config.items() if name != key} | {other: config[key]}
        assert ours(renamed, model_type) in (loaded(model_type, renamed), None), other
        told += ours(renamed, model_type) == count
        assert ours({**config, other: config[key] + 1}, model_type) is None, other
    assert told or model_type in NAMED_FLAGS


NAMED_FLAGS = ("internlm3",)
"""Types whose other names are those of switches only."""


def test_what_is_written_down_is_of_this_release() -> None:
    recorded = {name: rows[1] for name, rows in json.loads(families.COUNTS.read_text(encoding="utf-8")).items()}
    assert {name: small_file(name)[1] for name in recorded} == recorded, "make families"
    assert families.PAGE.read_text(encoding="utf-8") == families.page(), "make families"


def test_the_class_of_every_type_is_known_without_transformers() -> None:
    assert families.KNOWN_CLASSES.read_text(encoding="utf-8") == families.known_classes()
    assert {name for name in CLASSES.values() if name} <= set(SHIPPED.values())


HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - set(ENCODERS) - set(NO_CLASS)))
def test_a_class_without_output_layer_has_the_parameters_that_its_note_says(model_type: str) -> None:
    small = small_file(model_type)[0]
    for end in HEADS:
        name = CLASSES[model_type].removesuffix("ForCausalLM").removesuffix("LMHeadModel") + end
        note = (noted({**small, "architectures": [name]}) or [""])[0]
        if " itself has " in note and hasattr(transformers, name):
            count = loaded(model_type, small, name)
            assert count is None or f"{name} itself has {count:,} parameters" in note


OF_RELEASE_4 = Path(__file__).parents[1] / "specs" / "configs_of_transformers_4.json"


@pytest.mark.parametrize("model_type", sorted(json.loads(OF_RELEASE_4.read_text(encoding="utf-8"))["files"]))
def test_files_saved_by_transformers_4_are_the_same_model_in_this_release(model_type: str) -> None:
    parameters, config = json.loads(OF_RELEASE_4.read_text(encoding="utf-8"))["files"][model_type]
    if model_type == "mt5":  # its files say tie_word_embeddings false, as its published weights are; release 5 ties them always
        config = {**config, "tie_word_embeddings": True}
        parameters -= 1003 * 96
    assert loaded(model_type, config) in (None, parameters)


CATALOGUE = json.loads((Path(__file__).parent / "catalogue_configs.json").read_text(encoding="utf-8"))
"""Models of the catalogue whose config.json this project does not hold, as changes to the defaults of their class."""


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_models_of_the_catalogue_count_what_their_class_has(name: str) -> None:
    changes = dict(CATALOGUE[name])
    model_type = changes.pop("model_type")
    kinds = {"mamba": "linear_attention", "attention": "full_attention"}
    if "layer_types" in changes:
        changes["layer_types"] = [kinds[kind] for kind in changes["layer_types"]]
    found = built(model_type, changes)
    assert found is not None and total_parameters(load_model(name)) == found[1]
    assert total_parameters(model_from_mapping(found[0], name, name)) == found[1]


def test_every_other_text_class_is_refused_with_a_reason() -> None:
    assert len(FAMILIES) >= 85
    for model_type in sorted(set(CLASSES) - set(FAMILIES)):
        with pytest.raises(InputError, match=r"model_type|has (text|vision|audio)_config|is_encoder_decoder"):
            model_from_mapping({"model_type": model_type}, "config.json", "model")
