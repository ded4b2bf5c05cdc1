"""The vocabulary that Megatron-LM's arguments say, or the best guess, which is said; none where guesses differ too much."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_aliases, model_names
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import Remark

SETTING = "vocab_size"
"""`--set vocab_size=N` says the vocabulary of a file that does not."""
TOLERANCE = 0.015
"""Share of the parameters by which a guess may be wrong; beyond it the file has to say the vocabulary."""
FAR = 0.1
"""Share by which --vocab-size may differ from the tokenizer's entries: padding and added words."""
SMALLEST, LARGEST = 32_000, 262_144
"""Entries of Llama 2's and of Gemma 3's tokenizer, between which those of today's models lie."""
DOUBLE = 64_000
"""Of MAP-Neo, Yi and others, whose file SentencePiece calls tokenizer.model as well."""
TOKENIZERS = (
    "--tokenizer-model",
    "--tokenizer-name-or-path",
    "--tokenizer-path",
    "--hf-tokenizer-path",
    "--tokenizer-file",
    "--vocab-file",
)
NAMES = ("--model-name", "--model-type-hf", "--pretrained-checkpoint", "--load", "--save", "--wandb-exp-name")
SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "num_query_groups", "num_moe_experts")
ALIKE = ("gated_linear_unit", "untie_embeddings_and_output_weights", "qk_layernorm", "add_qkv_bias", "normalization")
"""What decides between models of the same shape."""
MIN_NAME = 5
"""Characters: shorter aliases (5b, 1t) are sizes that stand in many names."""
DIGIT = re.compile("[0-9]")
"""Of a name that says one model also in front of other words: Mistral-Medium is no Mistral 7B, as `mistral` alone is."""
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*")
"""Of a script: often copied from another model's, with its words."""
GENERIC = re.compile(
    r"[^$<{]*+[$<{].*|(?:[^-.]*+[-.])*?(?:tokenizers?|path|model|vocab|merges|your.*)(?:[-.].*)?|(?:hf|ckpt|checkpoint|model)s?",
    re.DOTALL,
)
"""A last part of a tokenizer's path that names none: `tokenizer.model`, `<path to tokenizer>`, `$TOKENIZER`."""
SENTENCE_PIECE = re.compile(r"(?:.*/)?tokenizer\.model")
"""What the file of Llama 2's tokenizer is called, and where llama-like models keep theirs."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A vocabulary and why it is that; `others`: what it may be as well."""

    number: int
    why: str
    others: tuple[int, ...] = ()


def vocabulary(a: Arguments, values: dict[str, Any], assumed: list[Remark]) -> int:
    """Tokens; what was guessed is said. In this order: --vocab-size, `--set vocab_size=N`, a size in the tokenizer's name, a
    tokenizer or model that the tokenizer's name says, the tokenizer's type, the script's variable VOCAB_SIZE, a model's name in
    other arguments (of the same width), a catalogue model of the same shape (of several the one with the same rotary base), the
    one family of models of which the file speaks. Raises InputError where what is left to guess from differs by more than
    TOLERANCE of the parameters."""
    given = a.count("--vocab-size")
    extra = (a.whole("--extra-vocab-size") or 0) + (a.whole("--vocab-extra-ids") or 0)
    if given:
        if (decided := _own_entries(a)) is not None and abs(decided / given - 1) > FAR:
            why = (
                "which Megatron-LM itself reads for NullTokenizer only: it takes the "
                f"{decided} of {_plain(a, '--tokenizer-type')} where its file is the usual one: write that if so"
            )
            assumed.append(Remark("vocab_size", given, why))
        return given + extra
    found = _said(a, values) or _shape(a, values) or _nothing(a, values)
    number, why = found.number, found.why
    if extra and number in {*_table("types").values(), *_table("patch_types").values()}:
        number, why = number + extra, f"{why}, and {extra} more"
    _require_alike(a, values, found)
    assumed.append(Remark("vocab_size", number, why.removeprefix(", ")))
    return number


def _own_entries(a: Arguments) -> int | None:
    """Entries of a tokenizer whose type reads one vocabulary only, and whose file has no name of its own."""
    kind = _plain(a, "--tokenizer-type")
    files = [text for name in TOKENIZERS if (text := _written(a, name))]
    return None if any(_is_own(kind, file) for file in files) else _table("types").get(kind)


def _require_alike(a: Arguments, values: dict[str, Any], found: Guess) -> None:
    """Raises InputError where the vocabularies that it may be are too far from the guessed one."""
    if not found.others:
        return
    model = ModelSpec(name="model of the file", vocab_size=found.number, **values)
    whole = total_parameters(model)
    wrong = max(abs(total_parameters(model.replace(vocab_size=other)) / whole - 1) for other in found.others)
    if wrong <= TOLERANCE:
        return
    words = [f"{name} {value}" for name in ("--tokenizer-type", *TOKENIZERS) if (value := _written(a, name))]
    said = f"{' '.join(words)[:160]} does not say it" if words else "the file names no tokenizer"
    comments = (family for text in a.spoken for family in _families(COMMENT.findall(text)))
    said += next((f" (a comment speaks of {name}, which has {number:,})" for number, name in comments), "")
    raise InputError(
        f"the vocabulary is not known: {said}, and what it may be ({min(found.number, *found.others):,} to "
        f"{max(found.number, *found.others):,}) changes the parameters by {wrong * 100:.0f} %; add --vocab-size N to the "
        f"arguments, or pass --set {SETTING}=N, or --model NAME"
    )


def _said(a: Arguments, values: dict[str, Any]) -> Guess | None:
    """The vocabulary of a tokenizer or a model that the file names."""
    if re.fullmatch("[1-9][0-9]{2,6}", own := a.variables.get(SETTING, "")):
        return Guess(number=int(own), why=", as --set says")
    if said := next((number for name in TOKENIZERS for number in _said_in(_plain(a, name))), None):
        return Guess(number=said, why=", which the tokenizer's name says")
    written = [text for name in TOKENIZERS if (text := _written(a, name))]
    for tokenizer, number in (found for text in written for found in _entries(text)):
        return Guess(number=number, why=f", that of the tokenizer {tokenizer}")
    if (patch := _plain(a, "--patch-tokenizer-type")) in _table("patch_types"):
        return Guess(number=_table("patch_types")[patch], why=f", that of {patch}")
    usual = "BertWordPieceLowerCase" if values.get("encoder_num_layers") else ""  # of pretrain_t5.py and pretrain_bert.py
    kind = _plain(a, "--tokenizer-type") or usual
    if kind in _table("types") and not any(_is_own(kind, text) for text in written):
        return Guess(number=_table("types")[kind], why=f", that of {kind}")
    for model in _named(a, TOKENIZERS):
        return Guess(number=model.vocab_size, why=f", that of {model.name}, which the tokenizer's name says")
    for number, family in _families(part for text in written for part in _parts(text)):  # the name before its owner's
        return Guess(number=number, why=f", that of {family}, which the tokenizer's name says")
    if re.fullmatch("[1-9][0-9]{3,6}", said_beside := a.variables.get("VOCAB_SIZE", "")):
        return Guess(number=int(said_beside), why=", what the script's variable VOCAB_SIZE holds")
    of_type = _of_type(kind)
    for model in _named(a, NAMES):
        if model.hidden_size == values["hidden_size"] and (of_type is None or _is_near(model.vocab_size, of_type.number)):
            return Guess(number=model.vocab_size, why=f", that of {model.name}, which an argument names")
    if of_type is not None and ((alike := _shape(a, values)) is None or not _is_near(alike.number, of_type.number)):
        return of_type
    return None


def _of_type(kind: str) -> Guess | None:
    """The vocabulary of the family whose name a type bears that reads nothing else: QwenTokenizerFS, DeepSeekV2Tokenizer."""
    family = re.sub("(?i)_?tokenizer.*", "", "" if kind in _table("types") else kind)
    found = next(_families([family]), None)
    return found and Guess(number=found[0], why=f", that of {found[1]}, which --tokenizer-type {kind[:40]} says")


def _shape(a: Arguments, values: dict[str, Any]) -> Guess | None:
    """The vocabulary of catalogue models of the same shape, of these those alike in what else the file says."""
    same = [model for model in map(load_model, model_names()) if all(getattr(model, key) == values.get(key) for key in SHAPE)]
    same = [model for model in same if bool(model.encoder_num_layers) == bool(values.get("encoder_num_layers"))]
    same = [model for model in same if model.multi_latent_attention or model.kv_channels == values["kv_channels"]]
    for key in ALIKE:
        same = [model for model in same if getattr(model, key) == values.get(key)] or same
    if not same:
        return None
    base = values.get("rotary_base") if a.has("--rotary-base") else None  # Megatron's default is no evidence
    spoken = _spoken(a)
    if of_base := [model for model in same if base and model.rotary_base == base]:
        reason = f" and rotary base ({base})" if len(same) > 1 else ""
        same = of_base
    elif spoken and (of_words := [model for model in same if _is_near(model.vocab_size, spoken.number)]):
        reason = f" and of {spoken.why}" if len(same) > 1 else ""
        same = of_words
    else:
        reason = f"; {spoken.why}, has another" if spoken else ""
        same = [*same, same[0].replace(name=spoken.why, vocab_size=spoken.number)] if spoken else same
    known, others = same[0], [model for model in same if model.vocab_size != same[0].vocab_size]
    beside = "".join(f"; {model.name} has {model.vocab_size}" for model in others)
    why = f", that of {known.name}, a model of the same shape{reason}{beside}"
    return Guess(number=known.vocab_size, why=why, others=tuple(model.vocab_size for model in others))


def _spoken(a: Arguments) -> Guess | None:
    """The one family of models of which the tokenizer's type, the file's name or its text speaks."""
    if (kind := _plain(a, "--tokenizer-type")) in _table("family_types"):
        return Guess(number=_table("family_types")[kind], why=f"most models with {kind}")
    own = any(_has_own_name(text) for name in TOKENIZERS if (text := _plain(a, name)))
    for text in a.spoken:
        found = dict(_families([COMMENT.sub("", text) if own else text]))
        number, family = next(iter(found.items()), (0, ""))
        if family and all(_is_near(number, other) for other in found):
            return Guess(number=number, why=f"{family}, the only family of which the file speaks")
    return None


def _is_near(number: int, other: int) -> bool:
    """The same vocabulary, padded or not."""
    return abs(number / other - 1) < 0.01


def _nothing(a: Arguments, values: dict[str, Any]) -> Guess:
    """Where neither a name nor the shape says it: the family of which the file speaks, the program's default."""
    kind = _plain(a, "--tokenizer-type")
    files = [text for name in TOKENIZERS if (text := _written(a, name))]
    own = any(_is_own("Llama2Tokenizer", text) for text in files)
    if (spoken := _spoken(a)) is not None and not own:
        return Guess(number=spoken.number, why=f", that of {spoken.why}")
    named = any(name in a.given for name in TOKENIZERS if name != "--vocab-file")
    if "--tokenizer-type" not in a.given and not named and not any(file.endswith(".model") for file in files):
        number = _table("types")["GPT2BPETokenizer"]
        return Guess(number=number, why=", that of GPT2BPETokenizer, the default of pretrain_gpt.py")
    llama_like = values["gated_linear_unit"] and values["normalization"] == "RMSNorm"
    if llama_like and ("SentencePiece" in kind or kind == "") and any(map(SENTENCE_PIECE.fullmatch, files)):
        why = ", Llama 2's: a guess from the tokenizer's file name and the gated model"
        named = any("llama" in file.lower() for file in files)
        return Guess(number=SMALLEST, why=why, others=() if named else (DOUBLE,))
    middle = (SMALLEST + LARGEST) // 2
    return Guess(number=middle, why=": a guess between those of today's tokenizers", others=(SMALLEST, LARGEST))


def _families(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(entries, the name as it is written) of every word of these texts that names a family of models, the first one first."""
    for text in texts:
        for word in dict.fromkeys(re.findall(r"[a-z][a-z0-9.-]*", text.lower().replace("_", "-"))):
            if not word.endswith("tokenizer") and (found := _family(word)) is not None:
                yield found


@cache
def _family(word: str) -> tuple[int, str] | None:
    """That of the first part of a word like `pretrain-llama3-8b.sh` that begins with the name of a family."""
    for start in (0, *(match.end() for match in re.finditer(r"[-.]", word))):
        for pattern, number in _patterns():
            if match := pattern.match(word, start):
                return number, match[0].strip("-.")
    return None


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], int], ...]:
    return tuple((re.compile(pattern), number) for pattern, number in _table("families").items())


def _has_own_name(text: str) -> bool:
    """A tokenizer that is called something: what other lines say of a model says nothing of it."""
    return bool(text) and not GENERIC.fullmatch(_parts(text.rstrip("/"))[0])


def _is_own(kind: str, path: str) -> bool:
    """A file that these types read as well as Llama 2's and GPT-2's: a SentencePiece model with a name of its own
    (`v4_alpha.model`), a vocabulary in a tokenizer's folder with a name of its own (`europa-tokenizer/vocab.json`)."""
    if "$" in path:
        return False
    if kind == "Llama2Tokenizer":
        return path.endswith(".model") and not SENTENCE_PIECE.fullmatch(path) and "llama" not in path.lower()
    named = re.compile("(?!gpt|bpe|hf-)[a-z0-9.-]+-tokenizers?")
    return kind == "GPT2BPETokenizer" and any(map(named.fullmatch, _parts(path)))


def _said_in(path: str) -> Iterator[int]:
    """The size in a tokenizer's name: `nordic_tokenizer_131072/vocab.json`, `nemotron_2_256k.model` (thousands)."""
    for part in _parts(path):
        match = re.fullmatch(r"(?:.*-)?tokenizer(?:-.*)?-([1-9][0-9]{3,5})(?:\.[a-z]+)?", part)
        if match is not None:
            yield int(match[1])
        match = re.fullmatch(r".*[a-z.-]([1-9][0-9]{1,2})k\.(?:model|json|vocab\.json)", part)
        if match is not None:
            yield int(match[1]) * 1000


@cache
def _table(section: str) -> dict[str, int]:
    text = (resources.files("autoconfig") / "data" / "tokenizers.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)[section])


def _parts(text: str) -> list[str]:
    """The parts of a path or of an id `owner/name`, the last first, in small letters with - for _."""
    return text.lower().replace("_", "-").split("/")[::-1]


def _plain(a: Arguments, name: str) -> str:
    """The value, empty where there is none or it is not known; it is not counted as used."""
    found = a.given.get(name)
    if found is None or not found.values or found.value_positions[0] in a.unread:
        return ""
    return found.values[0]


def _written(a: Arguments, name: str) -> str:
    """The value as it stands in the file, variables that are not known and all."""
    found = a.given.get(name)
    return found.values[0] if found is not None and found.values else ""


def _entries(text: str) -> Iterator[tuple[str, int]]:
    """(name, entries) of the tokenizers of the table that a name or path speaks of."""
    for part in (part for part in _parts(text) if "$" not in part):
        for tokenizer, number in _table("entries").items():
            if part == tokenizer or part.startswith((f"{tokenizer}-", f"{tokenizer}.")):
                yield tokenizer, number


def tokenizer_entries(text: str) -> int | None:
    """Entries of the vocabulary of a tokenizer's name or path; None where it says none that is known."""
    for number in _said_in(text):
        return number
    for _, number in _entries(text):
        return number
    if (model := model_in(text)) is not None:
        return model.vocab_size
    return next((number for number, _ in _families(_parts(text))), None)


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
        if "distill" in word and word not in spellings:  # what DeepSeek-R1 taught is no DeepSeek-R1
            continue
        found = [one for one in spellings if word == one or (word.startswith(f"{one}-") and DIGIT.search(one))]
        if found and not _speaks_of_another(word, max(found, key=len), spellings):
            return load_model(spellings[max(found, key=len)])
    return None


def _speaks_of_another(word: str, spelling: str, spellings: Mapping[str, str]) -> bool:
    """Whether another model is named behind a model's name: DeepSeek-R1-0528-Qwen3-8B is a Qwen3 8B that R1 taught."""
    rest = f"{word.removeprefix(spelling)}-"
    return any(f"-{other}-" in rest for other, canonical in spellings.items() if canonical != spellings[spelling])
