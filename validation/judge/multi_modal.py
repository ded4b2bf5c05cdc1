"""Multi-modal classes of `transformers`, asked without data: which part of a file holds the language model, what of it they
take otherwise than its own class does, and the parameters of that language model. Read by validation/judge/families.py."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers  # type: ignore[import-not-found]
from autoconfig.specs.models.config_reader import TEXT_PARTS, TEXT_TYPES
from autoconfig.specs.models.families.table import FAMILIES
from transformers.models.auto import modeling_auto  # type: ignore[import-not-found]
from transformers.models.auto.configuration_auto import CONFIG_MAPPING as CONFIGS  # type: ignore[import-not-found]

LISTS = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM")
TIE = "tie_word_embeddings"
CORRECTION = "e_score_correction_bias"
"""A buffer that is published among the weights, and counted: here, by the readers of the families, and said on the page."""
NO_SHAPE = ("eos_token_id", "bos_token_id", "pad_token_id", "use_cache", "model_type")
WITHOUT_DEFAULTS = ("gemma4_assistant", "nougat")
"""Types whose configuration cannot be built without values."""
LAYERS = ("num_hidden_layers", "layer_types", "mlp_layer_types")


@contextmanager
def quietly() -> Iterator[None]:
    """On the meta device, without warnings."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@cache
def wholes() -> dict[str, str]:
    """Multi-modal model_type -> its class with an output layer."""
    names: dict[str, str] = {}
    for name in LISTS:
        for kind, named in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {}).items():
            if kind in CONFIGS and part(kind) and kind not in WITHOUT_DEFAULTS:
                names.setdefault(kind, named if isinstance(named, str) else named[0])
    return names


@cache
def part(kind: str) -> str:
    """The key of the language model in its files; empty where it has none."""
    return next((key for key in TEXT_PARTS if key in (getattr(CONFIGS[kind], "sub_configs", None) or {})), "")


@cache
def _usual(kind: str) -> str:
    return str(CONFIGS[kind]().to_json_string(use_diff=False))


def usual(kind: str) -> dict[str, Any]:
    """The file of the class's defaults."""
    return dict(CONFIGS[kind]._decode_special_floats(json.loads(_usual(kind))))


def facts() -> dict[str, dict[str, Any]]:
    """model_type -> what specs/models/config_reader.py (WHOLE) says of it."""
    table = {}
    for kind in sorted(wholes()):
        one: dict[str, Any] = {"class": wholes()[kind], "part": part(kind), "ties": "?" * 6}
        if (own := fixed(kind)) is not None:
            one["inner"] = own
        if own is None or own in FAMILIES or own in TEXT_TYPES:
            one["ties"] = ties(kind)
            one |= {"head": part(kind)} if head_inside(kind) else {}
        if filled := defaults(kind):
            one["defaults"] = filled
        table[kind] = one
    return table


def _part_of(kind: str, values: dict[str, Any]) -> Any:
    """The language model's configuration where the file says this of it."""
    with quietly():
        return getattr(CONFIGS[kind].from_dict({**usual(kind), part(kind): values}), part(kind))


def fixed(kind: str) -> str | None:
    """The model_type that its language model has whatever the file says; None where the file says it."""
    own = str(usual(kind)[part(kind)]["model_type"])
    other = "qwen2" if own != "qwen2" else "llama"
    try:
        built = type(_part_of(kind, {**usual(kind)[part(kind)], "model_type": other}))
        if built is type(getattr(CONFIGS[kind](), part(kind))):
            return own
    except Exception:  # a class that checks one part by the other
        return None if CONFIGS[kind].sub_configs[part(kind)].__name__ == "AutoConfig" else own
    models = [whole(kind, small(kind, text)) for text in ({}, {"model_type": other})]
    kinds = [None if model is None else type(model.get_decoder()) for model in models]
    return own if kinds[0] is not None and kinds[0] is kinds[1] else None


def head_inside(kind: str) -> bool:
    """Whether the output layer is that of its language model's own class, and not one beside that model."""
    model = whole(kind, small(kind))
    head = None if model is None else model.get_output_embeddings()
    return any("." in name for name, module in model.named_modules() if module is head) if head is not None else False


def defaults(kind: str) -> dict[str, Any]:
    """What it takes for keys that its language model's part leaves out, where that is not what that one's class takes."""
    spec = (getattr(CONFIGS[kind], "sub_configs_defaults", None) or {}).get(part(kind))
    kwargs = dict(getattr(spec, "init_kwargs", None) or {})
    own = usual(kind)[part(kind)]["model_type"]
    try:
        taken, alone = _part_of(kind, {"model_type": own}).to_dict(), CONFIGS[own]().to_dict()
    except Exception:
        return {}
    differ = [key for key in kwargs if key in taken and taken[key] == kwargs[key] != alone.get(key)]
    return {key: value for key, value in kwargs.items() if key not in NO_SHAPE} if differ else {}


def ties(kind: str) -> str:
    """A letter (T, F; ?: it cannot be built so) for true, false, nothing outside of its language model, for each of them true
    and false inside."""
    answers = [tied(kind, outer, inner) for outer in (True, False, None) for inner in (True, False)]
    return "".join("?" if one is None else "FT"[one] for one in answers)


def small(kind: str, text: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Its file with few layers; `text`: of its language model."""
    values = usual(kind)
    inner = {key: value for key, value in values[part(kind)].items() if key not in LAYERS[1:]}
    return {**values, part(kind): {**inner, **({LAYERS[0]: 2} if LAYERS[0] in inner else {}), **(text or {})}}


def said(file: Mapping[str, Any], key: str, outer: bool | None, inner: bool | None) -> dict[str, Any]:
    """The file with its ties as said; None: nothing."""
    values = {**file, TIE: outer, key: {**file[key], TIE: inner}}
    values[key] = {name: value for name, value in values[key].items() if name != TIE or value is not None}
    return {name: value for name, value in values.items() if name != TIE or value is not None}


@cache
def tied(kind: str, outer: bool | None, inner: bool | None) -> bool | None:
    """Whether the class's output layer is its embedding; None where it cannot be built so."""
    model = whole(kind, said(small(kind), part(kind), outer, inner))
    try:
        return None if model is None else model.get_output_embeddings().weight is model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):  # no such layer
        return None


DEPTHS = ("num_hidden_layers", "depth", "num_layers", "encoder_layers", "decoder_layers")
_deep: set[str] = set()
"""Types that are built with all layers of their towers only."""


def shallow(kind: str, file: Mapping[str, Any]) -> dict[str, Any]:
    """The file with two layers in each part but the language model, of which nothing is asked."""
    return {
        key: {name: min(x, 2) if name in DEPTHS and type(x) is int else x for name, x in value.items()}
        if isinstance(value, dict) and key != part(kind)
        else value
        for key, value in file.items()
    }


def whole(kind: str, file: Mapping[str, Any]) -> Any:
    """The class as it is built of this file, but for the depth of its towers; None where it builds none."""
    model = None if kind in _deep else _whole(kind, shallow(kind, file))
    if model is None and (model := _whole(kind, file)) is not None:
        _deep.add(kind)
    return model


def _whole(kind: str, file: Mapping[str, Any]) -> Any:
    try:
        with quietly():
            read = CONFIGS[kind]._decode_special_floats(copy.deepcopy(dict(file)))
            return getattr(transformers, wholes()[kind])(CONFIGS[kind].from_dict(read))
    except Exception:  # whatever a class says of a configuration that it does not know
        return None


def parameters(kind: str, file: Mapping[str, Any]) -> int | None:
    """Parameters of the language model inside the class, its embedding and output layer; None where it builds none."""
    if (model := whole(kind, file)) is None:
        return None
    parts = [model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()]
    counted = {id(one): one.numel() for one in parts[0].parameters()}
    counted |= {id(one): one.numel() for name, one in parts[0].named_buffers() if name.endswith(CORRECTION)}
    counted |= {id(one): one.numel() for module in parts[1:] if module is not None for one in module.parameters()}
    return sum(counted.values())
