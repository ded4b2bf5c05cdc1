"""The vocabulary that Megatron-LM's arguments say: a number, or the exact name of a tokenizer; else it is asked for."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_aliases, published_checkpoint
from autoconfig.specs.remarks import Remark

SETTING = "vocab_size"
"""`--set vocab_size=N` says the vocabulary of a file that does not."""
FAR = 0.1
"""Share by which --vocab-size may differ from the tokenizer's entries: padding and added words."""
TOKENIZERS = (
    "--tokenizer-model",
    "--tokenizer-name-or-path",
    "--tokenizer-path",
    "--hf-tokenizer-path",
    "--tokenizer-file",
    "--vocab-file",
)
OF_ANY_TOKENIZER = frozenset({"tokenizer", "vocab", "merges", "bpe-vocab", "vocab-with-fim-tokens"})
"""What files are called that say nothing of whose they are: their folder's name counts."""
_OWN_FOLDER = re.compile("(?!gpt|bpe|hf-)[a-z0-9.-]+-tokenizers?")


def vocabulary(a: Arguments, values: dict[str, Any], assumed: list[Remark]) -> int:
    """Return the entries of the vocabulary, and note where they come from: --vocab-size, `--set vocab_size=N`, the tokenizer's
    exact name, a type that reads one vocabulary only. Raises InputError where none of them says it."""
    extra = (a.whole("--extra-vocab-size") or 0) + (a.whole("--vocab-extra-ids") or 0)
    kind = _of_type(a, values)
    if size := a.count("--vocab-size"):
        if kind is not None and "--tokenizer-type" in a.given and abs(kind[0] / size - 1) > FAR:
            why = (
                "which Megatron-LM itself reads for NullTokenizer only: it takes the "
                f"{kind[0]} of {kind[1]} where its file is the usual one: write that if so"
            )
            assumed.append(Remark("vocab_size", size, why))
        return size + extra
    number, why = _without_a_size(a, kind, extra)
    assumed.append(Remark("vocab_size", number, why))
    return number


def _without_a_size(a: Arguments, kind: tuple[int, str] | None, extra: int) -> tuple[int, str]:
    """Return (entries, why) where --vocab-size is not given; a type's are those without the `extra` ones. Raises InputError."""
    size = a.variables.get(SETTING, "")
    if size.isdecimal() and size[0] != "0" and 3 <= len(size) <= 7:
        return int(size), "as --set says"
    names = [name for text in TOKENIZERS if (name := _written(a, text))]
    for name in names:
        if (number := _table("entries").get(_name(name))) is not None:
            return number, f"that of the tokenizer {_name(name)}"
    if kind is not None:
        return kind[0] + extra, f"that of {kind[1]}{f', and {extra} more' if extra else ''}"
    for name in names:
        if (model := model_in(name)) is not None:
            return model.vocab_size, f"that of {model.name}, which the tokenizer's name says"
    raise _not_known(a)


def _of_type(a: Arguments, values: dict[str, Any]) -> tuple[int, str] | None:
    """Return (entries, type) of a tokenizer's type that reads one vocabulary; None for others, and where its file has a name of
    its own (`v4_alpha.model`, `europa-tokenizer/vocab.json`)."""
    if (patch := _known(a, "--patch-tokenizer-type")) in _table("patch_types"):
        return _table("patch_types")[patch], patch
    kind, files = _known(a, "--tokenizer-type"), [text for name in TOKENIZERS if (text := _written(a, name))]
    if not kind and "--vocab-file" in a.given and not any(map(model_in, files)):
        # `args_defaults` of pretrain_gpt.py, pretrain_t5.py and pretrain_bert.py
        kind = "BertWordPieceLowerCase" if values.get("encoder_num_layers") else "GPT2BPETokenizer"
    if kind not in _table("types") or any(_is_own(kind, file) for file in files):
        return None
    return _table("types")[kind], kind


def _is_own(kind: str, path: str) -> bool:
    """Whether a file of a type that may read any is not the usual one; what a variable names is taken for that."""
    if "$" in path:
        return False
    if kind == "Llama2Tokenizer":
        return path.endswith(".model") and _parts(path)[0] != "tokenizer" and "llama" not in path.lower()
    return kind == "GPT2BPETokenizer" and any(map(_OWN_FOLDER.fullmatch, _parts(path)))


def _not_known(a: Arguments) -> InputError:
    words = [f"{name} {value}" for name in ("--tokenizer-type", *TOKENIZERS) if (value := _written(a, name))]
    text = f"{' '.join(words)[:160]} names none that is known by this exact name" if words else "the file names no tokenizer"
    return InputError(
        f"the vocabulary is not known: {text}; pass --set {SETTING}=N, or add --vocab-size N to the arguments, or --model NAME"
    )


def tokenizer_entries(text: str) -> int | None:
    """Return the entries of the vocabulary of a tokenizer's name or path; None where the table does not hold it."""
    name = _name(text)
    if name in _table("entries"):
        return _table("entries")[name]
    return None if (model := model_in(text)) is None else model.vocab_size


def model_in(text: str) -> ModelSpec | None:
    """Return the catalogue's model that the last part of a name or path is, or `owner/name`; None where there is none."""
    parts = _parts(text)
    for name in ("/".join(parts[1::-1]), _name(text)):
        if name in model_aliases() or ("/" in name and published_checkpoint(name) is not None):
            return load_model(name)
    return None


def _name(text: str) -> str:
    """Return the last part of a path or id that says whose tokenizer it is; empty where only a variable does."""
    return next((part for part in _parts(text)[:2] if part not in OF_ANY_TOKENIZER), "").partition("$")[0]


def _parts(text: str) -> list[str]:
    """Return the parts of a path or of an id `owner/name`, the last first, in small letters with - for _."""
    first, *rest = text.rstrip("/").lower().replace("_", "-").split("/")[::-1]
    return [first.removesuffix(".json").removesuffix(".model"), *rest]


def _known(a: Arguments, name: str) -> str:
    """Return an argument's value, which is not counted as used; empty where there is none or it is not known."""
    argument = a.given.get(name)
    return "" if argument is None or (argument.values and argument.value_positions[0] in a.unread) else _written(a, name)


def _written(a: Arguments, name: str) -> str:
    """Return the value as it stands in the file, variables that are not known and all."""
    argument = a.given.get(name)
    return argument.values[0] if argument is not None and argument.values else ""


@cache
def _table(section: str) -> dict[str, int]:
    text = (resources.files("autoconfig") / "data" / "tokenizers.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)[section])
