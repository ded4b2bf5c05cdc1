"""The models of `specs/catalogue/models/*.json`, by name, alias or unique prefix; and any other way to name a model.

`index.json` beside the model files maps every spelling to its file, so that loading one model reads two small files. It is
written by `write_index()`; a test holds it to the files. To add a model, add its file and run
`python -c "from autoconfig.specs.models.model_catalogue import write_index; write_index()"`.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import CatalogueError, UnknownNameError, UnsupportedError
from autoconfig.specs.models.gpt3_family import gpt3_style
from autoconfig.specs.models.huggingface import model_from_config
from autoconfig.specs.models.model import ModelSpec, rope_scaling_of, router_of
from autoconfig.specs.units import parse_count

FOLDER = Path(__file__).parents[1] / "catalogue" / "models"
INDEX = FOLDER / "index.json"
HINT = "autoconfig models lists them all; a size like 13b or the path of a Hugging Face config.json also works"

_SPEC_FIELDS = frozenset(f.name for f in fields(ModelSpec))
_FILE_ONLY = frozenset({"family", "aliases"})
_BARE_SIZE = re.compile(r"(?:gpt-?3?-)?([0-9.]+(?:e\+?[0-9]+)?[kmbgt]|[0-9]{7,24}|[0-9.]+e\+?[0-9]+)")
_VARIANT = re.compile(r"(.*?)\s*\(([^()]*)\)")
_VARIANTS: dict[str, dict[str, object]] = {"tokendrop": {}, "dropless": {}, "w/ mtp": {}, "w/o mtp": {"mtp_num_layers": 0}}
"""What NVIDIA's performance tables write behind a model's name, and what it changes in the architecture."""


_ENCODER_DECODER, _ENCODER = "an encoder-decoder model", "an encoder-only model"
_RLHF, _DIFFUSION = "a reinforcement-learning job, not a model", "a diffusion model"
_HYBRID = "a hybrid of attention and state-space layers"
_REFUSED_KINDS = {
    "t5": _ENCODER_DECODER,
    "mt5": _ENCODER_DECODER,
    "ul2": _ENCODER_DECODER,
    "bart": _ENCODER_DECODER,
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "rlhf": _RLHF,
    "grpo": _RLHF,
    "ppo": _RLHF,
    "flux": _DIFFUSION,
    "wan": _DIFFUSION,
    "mamba": _HYBRID,
    "jamba": _HYBRID,
    "nemotronh": _HYBRID,
    "nemotron-h": _HYBRID,
}
_REFUSED_NAME = re.compile(rf"({'|'.join(_REFUSED_KINDS)})(?![a-z])")


def model_names() -> list[str]:
    """Canonical names, sorted."""
    return sorted(set(_index().values()))


def model_aliases() -> dict[str, str]:
    """Every spelling that names a model (lower case, `-` for `_` and spaces) and its canonical name."""
    return dict(_index())


def load_model(name: str) -> ModelSpec:
    """The catalogue model with this name.

    Upper and lower case, `_`, space and `-` are the same. A prefix names a model when only one model starts with it and it does
    not end inside a number (`qwen3-235` does, `llama3-7` does not). What NVIDIA's tables put behind a name in parentheses
    (`(tokendrop)`, `(w/o MTP)`) is understood. Raises UnknownNameError with the nearest names.
    """
    text, changes = name.strip(), None
    match = _VARIANT.fullmatch(text)
    if match and match[2].strip().lower() in _VARIANTS:
        text, changes = match[1], _VARIANTS[match[2].strip().lower()]
    canonical = _find(_normalised(text))
    if canonical is None:
        raise UnknownNameError("model", name if len(name) <= 80 else f"{name[:77]}...", model_names(), HINT, field="model")
    model = _load(canonical)
    return model.replace(name=f"{model.name}*", **changes) if changes else model


def resolve_model(text: str, *, paths: bool = True) -> tuple[ModelSpec, list[str]]:
    """The model that `text` means: a catalogue name, else the path of a config.json or of its folder, else a bare size.

    Also returns the assumptions made, as sentences to print. Without `paths` no file is looked for, for questions that come
    over the network. Raises UnknownNameError for a word that is none of these, UnsupportedError for what is known and refused
    (T5, BERT, ...), FileError, InputError or UnsupportedError for a config.json or a size that cannot be used.
    """
    try:
        return load_model(text), []
    except UnknownNameError as unknown:
        if paths and _looks_like_path(text):
            model = model_from_config(text)
            return model, [f"model {model.name} is read from {text.strip()}"]
        refused = _REFUSED_NAME.match(_normalised(text))
        if refused:
            raise UnsupportedError(
                f"model {text.strip()[:80]!r} is {_REFUSED_KINDS[refused[1]]}; only decoder-only transformers can be planned"
            ) from unknown
        size = _BARE_SIZE.fullmatch(_normalised(text))
        if size is None or len(size[1]) > 24:
            raise
        return _from_size(text.strip(), size[1], unknown)


def _from_size(text: str, size: str, unknown: UnknownNameError) -> tuple[ModelSpec, list[str]]:
    if size.count(".") > 1 or size in (".", ""):
        raise unknown
    params = parse_count(size, "model size")
    for known in (f"{params / 1e9:g}b", f"{params / 1e12:g}t"):
        if known in _index():
            return load_model(known), []
    model = gpt3_style(params)
    assumed = (
        f"model {text} is not in the catalogue: GPT-3-style architecture with {model.num_layers} layers, "
        f"hidden {model.hidden_size}, {model.num_attention_heads} heads"
    )
    return model, [assumed]


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _find(wanted: str) -> str | None:
    """The canonical name for a normalised spelling; a unique prefix counts only where no number is cut in two."""
    index = _index()
    if wanted in index:
        return index[wanted]
    if len(wanted) < 3 or not wanted[0].isalpha():
        return None
    hits = {
        canonical
        for alias, canonical in index.items()
        if alias.startswith(wanted) and not (wanted[-1] in "0123456789." and alias[len(wanted)] in "0123456789.")
    }
    return hits.pop() if len(hits) == 1 else None


def _looks_like_path(text: str) -> bool:
    stripped = text.strip()
    if stripped.endswith(".json") or stripped.startswith(("/", "./", "../", "~")):
        return True
    try:
        return bool(stripped) and Path(stripped).exists()
    except (OSError, ValueError):
        return False


@cache
def _index() -> dict[str, str]:
    data: dict[str, str] = json.loads(INDEX.read_text(encoding="utf-8"))
    return data


@cache
def _load(canonical: str) -> ModelSpec:
    return _build(_read(FOLDER / f"{canonical}.json"), canonical)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogueError(f"models/{path.name} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CatalogueError(f"models/{path.name} is not a JSON object")
    return data


def _build(data: dict[str, Any], stem: str) -> ModelSpec:
    unknown = set(data) - _SPEC_FIELDS - _FILE_ONLY
    if unknown or data.get("name") != stem:
        raise CatalogueError(f"models/{stem}.json: name {data.get('name')!r}, unknown keys {sorted(unknown)}")
    values = {key: value for key, value in data.items() if key in _SPEC_FIELDS}
    if isinstance(values.get("moe_layer_freq"), list):
        values["moe_layer_freq"] = tuple(values["moe_layer_freq"])
    values["rope_scaling"] = rope_scaling_of(values.get("rope_scaling"))
    values["router"] = router_of(values.get("router"))
    return ModelSpec(**values)


def build_index() -> dict[str, str]:
    """Every spelling of every model file and its canonical name. Raises CatalogueError when two models share one."""
    index: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.json")):
        if path == INDEX:
            continue
        data = _read(path)
        for spelling in (data["name"], *data["aliases"]):
            key = _normalised(spelling)
            if index.setdefault(key, data["name"]) != data["name"]:
                raise CatalogueError(f"models: {key!r} names both {index[key]} and {data['name']}")
    return dict(sorted(index.items()))


def write_index() -> None:
    """Writes index.json anew from the model files."""
    INDEX.write_text(json.dumps(build_index(), indent=0) + "\n", encoding="utf-8")
    _index.cache_clear()
    _load.cache_clear()
