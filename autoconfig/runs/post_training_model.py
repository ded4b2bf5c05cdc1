"""Names of models in tables of post-training runs, which follow no catalogue: `qwen2.5 7b math`, `QWEN3 4B (dense)`."""

from __future__ import annotations

import math
import re
from functools import cache

from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, model_names, resolve_model
from autoconfig.specs.models.parameters import total_parameters

SAME_SHAPE = re.compile(r"[-_ ]*(base|instruct|chat|it|math|hf|bf16|thinking|dapo|v\d\.\d)(?=$|[-_ ])", re.IGNORECASE)
"""Words of a checkpoint's name that change its weights and not its shape."""
SPELLINGS = {
    "dsv3": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-1.5b": "qwen2.5-1.5b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "qwen2-1.5b": "qwen2.5-1.5b",
    "qwen2-0.5b": "qwen2.5-0.5b",
}
"""Checkpoints whose shape is that of another (their config.json: layers, hidden size, heads, MLP)."""
USUAL = "qwen2.5-7b"
"""Where nothing of a name can be read: the model that most published post-training runs train."""
USUAL_FAMILY = "qwen"
"""Where only a size can be read."""
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)\s*b(?![a-z0-9])(?:[-_ ]?a(\d+(?:\.\d+)?)b)?", re.IGNORECASE)


@cache
def read_policy(name: str) -> tuple[ModelSpec, str]:
    """(model, remark; empty where the name is the catalogue's). Always answers: what cannot be read is priced as the model of
    the catalogue nearest in size, of the same family where there is one."""
    plain = re.sub(r"\(.*?\)", "", name).strip().split("/")[-1].lower()
    for spelling in (name, plain, *_shorter(plain)):
        if re.fullmatch(r"[0-9.]+[bmt]", spelling.lower()):
            continue
        try:
            model, notes = resolve_model(SPELLINGS.get(spelling, spelling))
        except AutoconfigError:
            continue
        if model.name.startswith("gpt3-style"):
            continue
        return model, "" if spelling == name and not notes else f"model {name[:60]} priced as {model.name}"
    return _nearest(name, plain)


def _shorter(plain: str) -> list[str]:
    """The name without words that change no shape, blanks as hyphens, vision left out."""
    found = re.sub(r"vl(?=$|[-_ ])", "", plain)
    before = ""
    while before != found:
        before, found = found, SAME_SHAPE.sub("", found).strip(" -_")
    return [found, found.replace(" ", "-"), re.sub(r"^llama-?([23])", r"llama\1", found)]


def _nearest(name: str, plain: str) -> tuple[ModelSpec, str]:
    size = SIZE.search(plain.replace("_", "-"))
    if size is None:
        model = load_model(USUAL)
        return model, f"architecture of {name[:60]} not known: priced as {model.name}"
    wanted, experts = float(size[1]) * 1e9, size[2] is not None
    family = re.match(r"[a-z]+", plain)
    model = _closest(wanted, experts, family[0] if family else USUAL_FAMILY)
    return model, f"architecture of {name[:60]} not known: priced as {model.name}, nearest in size"


def _closest(parameters: float, experts: bool, family: str) -> ModelSpec:
    """The plain decoder nearest in ln(parameters); one of the family where that is within a quarter."""

    def distance(entry: tuple[str, float]) -> float:
        return abs(math.log(entry[1] / parameters))

    every = _sizes(experts)
    own = [entry for entry in every if family and entry[0].startswith(family) and distance(entry) < 0.25]
    return load_model(min(own or every, key=distance)[0])


@cache
def _sizes(experts: bool) -> tuple[tuple[str, float], ...]:
    models = [load_model(name) for name in model_names()]
    return tuple((m.name, float(total_parameters(m))) for m in models if m.is_moe == experts and not m.is_hybrid)
