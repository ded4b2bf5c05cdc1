"""The vocabulary that Megatron-LM's arguments say, or the best guess at it, which is said."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_aliases, model_names

OF_TYPE = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "TikTokenizer": 131072}
OF_TYPE |= {"BertWordPieceLowerCase": 30522, "BertWordPieceCase": 28996}  # words of bert-base-uncased and bert-large-cased
OF_PATCH = {"Qwen2Tokenizer": 151643, "IcetkGLM130BTokenizer": 150528}
"""Of Pai-Megatron-Patch (megatron_patch/tokenizer/__init__.py), whose scripts say how many they add (--extra-vocab-size)."""
OF_FAMILY = {"QwenTokenizer": 151936, "Llama3Tokenizer": 128256}
"""Where nothing else is known: the sizes of a family's models, which differ by less than 0.1 %."""
GPT2_VOCAB = 50257
TOKENIZERS = ("--tokenizer-model", "--tokenizer-name-or-path", "--tokenizer-path", "--vocab-file")
NAMES = ("--model-name", "--pretrained-checkpoint", "--load", "--wandb-exp-name", "--wandb-project", "--save")
SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "num_moe_experts")
ALIKE = ("gated_linear_unit", "untie_embeddings_and_output_weights")
"""What decides between models of the same shape."""
MIN_NAME = 5
"""Characters: shorter aliases (5b, 1t) are sizes that stand in many names."""


def vocabulary(a: Arguments, values: dict[str, Any], assumed: list[str]) -> int:
    """Tokens; what was guessed is said. In this order: --vocab-size, a size in the tokenizer's name, the tokenizer's type, a
    model that the tokenizer's name says, a tokenizer of autoconfig/data/tokenizers.toml, the script's variable VOCAB_SIZE, a
    model's name in other arguments (of the same width), a catalogue model of the same shape (of several the one with the same
    rotary base)."""
    given = a.count("--vocab-size")
    extra = (a.whole("--extra-vocab-size") or 0) + (a.whole("--vocab-extra-ids") or 0)
    if given:
        return given + extra
    number, why = _guess(a, values)
    if extra and number in {*OF_TYPE.values(), *OF_PATCH.values()}:
        number, why = number + extra, f"{why}, and {extra} more"
    assumed.append(f"vocabulary {number}{why} (--vocab-size)")
    return number


def _guess(a: Arguments, values: dict[str, Any]) -> tuple[int, str]:
    usual = "BertWordPieceLowerCase" if values.get("encoder_num_layers") else ""  # of pretrain_t5.py and pretrain_bert.py
    kind = _plain(a, "--tokenizer-type") or usual
    if said := next((number for name in TOKENIZERS for number in _said_in(_plain(a, name))), None):
        return said, ", which the tokenizer's name says"
    if kind in OF_TYPE:
        return OF_TYPE[kind], f", that of {kind}"
    if (patch := _plain(a, "--patch-tokenizer-type")) in OF_PATCH:
        return OF_PATCH[patch], f", that of {patch}"
    for model in _named(a, TOKENIZERS):
        return model.vocab_size, f", that of {model.name}, which the tokenizer's name says"
    written = (a.given[name].values for name in TOKENIZERS if name in a.given)
    for part in (part for texts in written if texts for part in _parts(texts[0]) if "$" not in part):
        for tokenizer, number in _tokenizers().items():
            if part == tokenizer or part.startswith((f"{tokenizer}-", f"{tokenizer}.")):
                return number, f", that of the tokenizer {tokenizer}"
    if re.fullmatch("[1-9][0-9]{3,6}", said_beside := a.variables.get("VOCAB_SIZE", "")):
        return int(said_beside), ", what the script's variable VOCAB_SIZE holds"
    for model in _named(a, NAMES):
        if model.hidden_size == values["hidden_size"]:
            return model.vocab_size, f", that of {model.name}, which an argument names"
    same = [model for model in map(load_model, model_names()) if all(getattr(model, key) == values.get(key) for key in SHAPE)]
    same = [model for model in same if all(getattr(model, key) == values.get(key) for key in ALIKE)] or same
    if not same and kind in OF_FAMILY:
        return OF_FAMILY[kind], f", that of most models with {kind}"
    if not same:
        return GPT2_VOCAB, ": a guess, GPT-2's: the file says neither a size nor a tokenizer that is known"
    base = values.get("rotary_base") if a.has("--rotary-base") else None  # Megatron's default is no evidence
    known = next((model for model in same if base and model.rotary_base == base), same[0])
    by_base = f" and rotary base ({base})" if base and len(same) > 1 and known.rotary_base == base else ""
    others = sorted({f"{model.name} has {model.vocab_size}" for model in same if model.vocab_size != known.vocab_size})
    beside = f"; {', '.join(others)}" if others and not by_base else ""
    return known.vocab_size, f", that of {known.name}, a model of the same shape{by_base}{beside}"


def _said_in(path: str) -> Iterator[int]:
    """The size in a tokenizer's name: `nordic_tokenizer_131072/vocab.json`."""
    for part in _parts(path):
        match = re.fullmatch(r"(?:.*-)?tokenizer(?:-.*)?-([1-9][0-9]{3,5})(?:\.[a-z]+)?", part)
        if match is not None:
            yield int(match[1])


@cache
def _tokenizers() -> dict[str, int]:
    text = (resources.files("autoconfig") / "data" / "tokenizers.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["entries"])


def _parts(text: str) -> list[str]:
    """The parts of a path or of an id `owner/name`, the last first, in small letters with - for _."""
    return text.lower().replace("_", "-").split("/")[::-1]


def _plain(a: Arguments, name: str) -> str:
    """The value, empty where there is none or it is not known; it is not counted as used."""
    found = a.given.get(name)
    if found is None or not found.values or found.value_positions[0] in a.unread:
        return ""
    return found.values[0]


def _named(a: Arguments, names: tuple[str, ...]) -> Iterator[ModelSpec]:
    """Catalogue models that values of these arguments name: `org/model`, or a path with a model's name as a part."""
    for name in names:
        if (found := model_in(_plain(a, name))) is not None:
            yield found


def model_in(text: str) -> ModelSpec | None:
    """The catalogue model that a name or path speaks of: `org/model-suffix`; None where there is none."""
    spellings = {name: canonical for name, canonical in model_aliases().items() if len(name) >= MIN_NAME and "/" not in name}
    for part in _parts(text):
        word = part.removeprefix("meta-")
        found = [spelling for spelling in spellings if word == spelling or word.startswith(f"{spelling}-")]
        if found:
            return load_model(spellings[max(found, key=len)])
    return None
