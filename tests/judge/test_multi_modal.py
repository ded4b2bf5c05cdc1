"""Language models inside multi-modal files, and numbers under names that are not the family's own: a random walk over files,
each counted as the class itself builds it, or refused, or with a line that says the difference to the unit. `pytest -m soak`
walks further."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.config_reader import EXPERT_KEYS, FLAT, TEXT_TYPES, WHOLE
from autoconfig.specs.models.families.table import ENCODERS, FAMILIES
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.parameters import total_parameters
from small_models import noted

pytest.importorskip("transformers")
families = pytest.importorskip("validation.judge.families")
multi_modal = pytest.importorskip("validation.judge.multi_modal")
CONFIGS = families.CONFIGS
TIE = multi_modal.TIE
TYPES = sorted((set(FAMILIES) & set(CONFIGS) & set(families.classes())) | set(TEXT_TYPES))
FACTS = {kind: facts for kind, facts in WHOLE.items() if set(facts["ties"]) != {"?"}}
INNER = sorted(set(TYPES) - set(ENCODERS))
WIDTHS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
STEPS, LONG = 8, 60
"""Files of a walk, and of a long one."""


def inner_types(kind: str) -> list[str]:
    """Language models that its class builds and that are read here."""
    own = str(multi_modal.usual(kind)[FACTS[kind]["part"]]["model_type"])
    return [own] * (own in TYPES) if "inner" in FACTS[kind] else [*[own] * 9 * (own in TYPES), *INNER]


def small_text(kind: str) -> dict[str, Any] | None:
    """A small language model of that type, without lists of its layers."""
    found = families.small(kind)
    return None if found is None else {key: value for key, value in found[0].items() if key not in multi_modal.LAYERS[1:]}


def files(kind: str, rng: random.Random, steps: int) -> Iterator[dict[str, Any]]:
    """Random files: ties said, null or not said in both parts, keys left out, other language models."""
    part, usual = FACTS[kind]["part"], multi_modal.usual(kind)
    for _ in range(steps if inner_types(kind) else 0):
        if (text := small_text(rng.choice(inner_types(kind)))) is None:
            continue
        if rng.random() < 0.5:  # parts that must have one width
            text |= {key: usual[part][key] for key in WIDTHS if key in usual[part]}
        for key in rng.sample(sorted(set(text) - {"model_type"}), rng.choice((0, 0, 1, 3))):
            del text[key]
        file = {**{key: value for key, value in usual.items() if key != TIE}, part: {**text}}
        if "hidden_size" in file and "hidden_size" in text:  # of the output layer, which no other width of the model fits
            file["hidden_size"] = text["hidden_size"]
        for values in (file, file[part]):
            values.pop(TIE, None)
            values |= rng.choice(({TIE: True}, {TIE: False}, {}, {TIE: None}))
        if kind in FLAT and rng.random() < 0.5:
            file = {**{key: value for key, value in file.items() if key != part}, **{k: v for k, v in text.items() if k != TIE}}
            file["model_type"] = kind
        yield file


def ours(file: dict[str, Any]) -> int | None:
    """Parameters of the class by our count and by what our lines say of it; None where it is refused."""
    try:
        count = total_parameters(model_from_mapping(file, "f", "m"))
        for number, more in re.findall(r"([\d,]+) parameters (more|fewer)", " ".join(noted(file))):
            count += int(number.replace(",", "")) * (-1 if more == "more" else 1)
    except InputError:
        return None
    return count


def walk(kind: str, steps: int) -> None:
    counted, wrong = 0, []
    for file in files(kind, random.Random(f"{kind} {steps}"), steps):
        count = ours(file)
        if count is not None and (its := multi_modal.parameters(kind, file)) is not None:
            counted += 1
            text = file.get(FACTS[kind]["part"], file)
            wrong += [f"{file.get(TIE, '-')} around {text}: {count:,}, the class has {its:,}"] if its != count else []
    assert wrong == []
    assert counted or not inner_types(kind) or steps < LONG


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_a_walk_over_files_with_a_language_model(kind: str) -> None:
    walk(kind, STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", sorted(FACTS))
def test_a_long_walk_over_files_with_a_language_model(kind: str) -> None:
    walk(kind, LONG)


@pytest.mark.parametrize("kind", TYPES)
def test_a_number_of_experts_under_another_name_is_the_class_s_or_refused(kind: str) -> None:
    config = families.small(kind)[0]
    own, wrong = [key for key in EXPERT_KEYS if key in config], []
    less = {key: value for key, value in config.items() if key not in own}
    for key in set(EXPERT_KEYS) - set(own):
        for number in (0, 4, 8):
            for file in (less, {**less, **dict.fromkeys(own)}, config):
                count = ours({**file, key: number})
                its = None if count is None else families.loaded(kind, {**file, key: number})
                wrong += [f"{key} {number} of {own}: {count:,}, the class has {its:,}"] if its not in (None, count) else []
    assert wrong == []


def same_lists() -> dict[str, list[str]]:
    """model_type -> names of its list of kinds of layers, where its configuration takes more than one (`attribute_map`)."""
    found = {}
    for name in families.KNOWN:
        pairs = sorted((CONFIGS[name].attribute_map or {}).items())
        if lists := [pair for pair in pairs if all("layer" in one and "type" in one for one in pair)]:
            found[name] = sorted({one for pair in lists for one in pair})
    return found


@pytest.mark.parametrize("kind", sorted(same_lists()))
def test_two_lists_of_layers_that_differ_are_refused(kind: str) -> None:
    """And where only one of them is there, the count is the class's."""
    names = same_lists()[kind]
    first, second = (["mamba", one, "mamba", one, "mamba"] for one in ("attention", "mamba"))
    config = families.small(kind)[0]
    config = {key: value for key, value in config.items() if key not in names}
    assert len(names) == 2 and ours({**config, names[0]: first, names[1]: second}) is None
    for name in names:
        for kinds in (first, second):
            assert ours({**config, name: kinds}) == families.loaded(kind, {**config, name: kinds}) is not None


def test_every_type_with_a_language_model_is_known_or_refused() -> None:
    """Types of files whose class has no output layer over words (detectors, dual encoders) are no language models."""
    others = [kind for kind in CONFIGS if kind not in WHOLE and multi_modal.part(kind)]
    assert len(others) >= 20 and set(WHOLE) == set(multi_modal.wholes())
    for kind in others:
        file = {"model_type": kind, multi_modal.part(kind): {"model_type": "bert", "vocab_size": 1003}}
        with pytest.raises(InputError, match="has no class of a language model"):
            model_from_mapping(file, "f", "m")
