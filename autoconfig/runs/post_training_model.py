"""Names of models in tables of post-training runs, which follow no catalogue: `qwen2.5 7b math`, `QWEN3 4B (dense)`."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Literal

from autoconfig.runs.table import names_of
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_names, resolve_model
from autoconfig.specs.models.parameters import total_parameters

SAME_SHAPE = re.compile(
    r"(?<![-_ ])[-_ ]*+(base|instruct|chat|it|math|hf|bf16|thinking|dapo|v\d\.\d)(?=$|[-_ ])", re.IGNORECASE
)
"""Words of a checkpoint's name that change its weights and not its shape."""
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])(?:[-_ ]?a(\d+(?:\.\d+)?)b)?", re.IGNORECASE)
ALIKE = 0.25
"""Difference in ln(parameters) up to which a model of the name's family goes before a nearer one of another."""
Likeness = Literal["named", "of this shape", "nearest in size"]


@cache
def read_policy(name: str) -> tuple[ModelSpec, Likeness]:
    """Return the model and how it is like the name: of a name that no model has, the model of the catalogue nearest to the size
    in it. Raises UnknownNameError for a name without a size."""
    plain = re.sub(r"\([^()]*+\)", "", name).strip().split("/")[-1].lower()
    for spelling in (name, plain, *_shorter(plain)):
        if re.fullmatch(r"[0-9.]+[bmt]", spelling.lower()):
            continue  # of the catalogue's gpt3 family, which no one trains after
        try:
            model, notes = resolve_model(names_of("checkpoints").get(spelling, spelling))
        except AutoconfigError:
            continue
        if not model.name.startswith("gpt3-style"):
            return model, "named" if spelling == name and not notes else "of this shape"
    size = SIZE.search(plain.replace("_", "-"))
    if size is None:
        return load_model(plain), "named"  # raises: which names are like it
    parameters = float(size[1]) * (1e9 if size[2] == "b" else 1e6)
    return _closest(parameters, experts=size[3] is not None, family=plain), "nearest in size"


def _shorter(plain: str) -> list[str]:
    """Return the name without words that change no shape, blanks as hyphens, vision left out."""
    short = re.sub(r"vl(?=$|[-_ ])", "", plain)
    before = ""
    while before != short:
        before, short = short, SAME_SHAPE.sub("", short).strip(" -_")
    return [short, short.replace(" ", "-"), re.sub(r"^llama-?([23])", r"llama\1", short)]


def _closest(parameters: float, *, experts: bool, family: str) -> ModelSpec:
    """Return the decoder nearest in ln(parameters); one of the family where that is nearly as near."""

    def distance(entry: tuple[str, float]) -> float:
        return abs(math.log(entry[1] / parameters))

    word = re.match(r"[a-z]+", family)
    own = [entry for entry in _sizes(experts) if word and entry[0].startswith(word[0]) and distance(entry) < ALIKE]
    return load_model(min(own or _sizes(experts), key=distance)[0])


@cache
def _sizes(experts: bool) -> tuple[tuple[str, float], ...]:
    models = [load_model(name) for name in model_names()]
    plain = [m for m in models if m.is_moe == experts and not m.is_hybrid and not m.encoder_num_layers]
    return tuple((m.name, float(total_parameters(m))) for m in plain)
