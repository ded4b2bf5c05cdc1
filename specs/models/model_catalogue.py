"""The models of `specs/catalogue/models/*.json`, by name, alias or unique prefix; and any other way to name a model.

`index.json` beside the model files maps every spelling to its file, so that loading one model reads two small files. It is
written by `write_index()`; a test holds it to the files. To add a model, add its file and run
`python -c "from autoconfig.specs.models.model_catalogue import write_index; write_index()"`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import CatalogueError, FileError, InputError, UnknownNameError, UnsupportedError, nearest, option
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.models.model_numbers import numbers_of
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.published import Published, find_published, published_length
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.units import parse_count

MIN_PARAMETERS = 10e6
MAX_PARAMETERS = 100e12
VOCAB_SIZE = 51_200
SEQ_LENGTH = 2_048


@dataclass(frozen=True)
class _Shape:
    parameters: float
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    source: str


_BROWN = "Brown et al. 2020, Table 2.1"
_NARAYANAN = "Narayanan et al. 2021, Table 1"
_FAMILY = (
    _Shape(125e6, 12, 768, 12, _BROWN),
    _Shape(350e6, 24, 1024, 16, _BROWN),
    _Shape(760e6, 24, 1536, 16, _BROWN),
    _Shape(1.3e9, 24, 2048, 16, _BROWN + " (24 heads of 128 there do not make 2048: 16 taken)"),
    _Shape(2.7e9, 32, 2560, 32, _BROWN),
    _Shape(6.7e9, 32, 4096, 32, _BROWN),
    _Shape(13e9, 40, 5120, 40, _BROWN + " (width 5140 there is not 40 x 128: 5120 taken)"),
    _Shape(18.4e9, 40, 6144, 48, _NARAYANAN),
    _Shape(39.1e9, 48, 8192, 64, _NARAYANAN),
    _Shape(76.1e9, 60, 10240, 80, _NARAYANAN),
    _Shape(145.6e9, 80, 12288, 96, _NARAYANAN),
    _Shape(175e9, 96, 12288, 96, _BROWN),
    _Shape(310.1e9, 96, 16384, 128, _NARAYANAN),
    _Shape(529.6e9, 105, 20480, 128, _NARAYANAN),
    _Shape(1008e9, 128, 25600, 160, _NARAYANAN),
)
_BATCHES = (
    (1.7e9, 512),
    (3.6e9, 512),
    (7.5e9, 512),
    (18.4e9, 1024),
    (39.1e9, 1536),
    (76.1e9, 1792),
    (145.6e9, 2304),
    (310.1e9, 2160),
    (529.6e9, 2520),
    (1008e9, 3072),
)
_TOLERANCE = 0.03
_UNEVEN = 0.05
"""Preference for depths that 4 pipeline stages divide, in units of relative depth."""


def gpt3_style(params: float) -> ModelSpec:
    """A GPT-3-style model of about `params` parameters (51,200 padded words, sequence 2,048, learned positions, GeLU, tied).

    Raises InputError outside 10 million to 100 trillion.
    """
    if not (isinstance(params, (int, float)) and MIN_PARAMETERS <= params <= MAX_PARAMETERS):
        raise InputError(
            f"a model of {_size_name(params)} parameters is outside 10m to 100t (10 million to 100 trillion); "
            "write sizes like 350m, 13b or 1.5t"
        )
    shape = next((s for s in _FAMILY if math.isclose(s.parameters, params, rel_tol=1e-3)), None) or _interpolated(params)
    return _model(shape, f"gpt3-style-{_size_name(params)}", params)


def _model(shape: _Shape, name: str, params: float) -> ModelSpec:
    batch = min(_BATCHES, key=lambda known: abs(math.log(known[0] / params)))
    return ModelSpec(
        name=name,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_attention_heads,
        kv_channels=shape.hidden_size // shape.num_attention_heads,
        ffn_hidden_size=4 * shape.hidden_size,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=SEQ_LENGTH,
        default_seq_length=SEQ_LENGTH,
        default_global_batch_size=batch[1],
        sources={
            "*": shape.source,
            "vocab_size": "Narayanan et al. 2021, section 5: V = 51,200, s = 2,048",
            "default_global_batch_size": f"that of the {batch[0] / 1e9:g}B model of Narayanan et al. 2021, Table 1",
        },
    )


def _interpolated(params: float) -> _Shape:
    """Layers near the family's line in log-log; width a multiple of the head size, so that the total is nearest `params`.

    Among shapes within 3 % the one nearest the family's depth wins; if none is, the nearest total wins.
    """
    wanted_layers = _layers_on_the_line(params)
    head = 32 if params < 50e6 else 64 if params < 1e9 else 128
    heads_step = 8 if params >= 5e9 else 4 if params >= 2e9 else 2 if params >= 3e8 else 1
    low, high = max(1, math.floor(wanted_layers * 0.75)), math.ceil(wanted_layers * 1.3) + 1
    step = 2 if wanted_layers >= 12 else 1
    candidates: list[tuple[tuple[bool, float], _Shape]] = []
    for layers in range(-(-low // step) * step, high + step, step):
        ideal = _width_for(params, layers) / (head * heads_step)
        for count in {max(1, math.floor(ideal)), max(1, math.ceil(ideal))}:
            heads = count * heads_step
            shape = _Shape(
                params,
                layers,
                heads * head,
                heads,
                "interpolated between the published GPT-3 and Megatron sizes "
                f"({_BROWN}; {_NARAYANAN}): depth on their line, head size {head}, width to meet the total",
            )
            error = abs(total_parameters(_model(shape, "candidate", params)) / params - 1)
            distance = abs(math.log(layers / wanted_layers)) + error + (_UNEVEN if layers % 4 and wanted_layers >= 12 else 0)
            candidates.append(((error > _TOLERANCE, error if error > _TOLERANCE else distance), shape))
    return min(candidates, key=lambda pair: pair[0])[1]


def _layers_on_the_line(params: float) -> float:
    """Depth between the two neighbours of `params` in log-log; outside the family, the line of its last (first) four."""
    points = [(math.log(s.parameters), math.log(s.num_layers)) for s in _FAMILY]
    at = math.log(params)
    upper = next((i for i, point in enumerate(points) if point[0] >= at), len(points) - 1)
    upper = max(upper, 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    if at > x1:
        x0, y0 = points[-4]
    elif at < x0:
        x1, y1 = points[3]
    return max(1.0, math.exp(y0 + (y1 - y0) * (at - x0) / (x1 - x0)))


def _width_for(params: float, layers: int) -> float:
    """Positive root h of 12 l h^2 + (13 l + V + s) h = P (Narayanan et al. 2021, equation 2)."""
    linear = 13 * layers + VOCAB_SIZE + SEQ_LENGTH
    return (math.sqrt(linear**2 + 48 * layers * params) - linear) / (24 * layers)


def _size_name(params: float) -> str:
    for factor, suffix in ((1e12, "t"), (1e9, "b"), (1e6, "m")):
        if params >= factor:
            return f"{params / factor:.6g}{suffix}"
    return f"{params:g}"


FOLDER = Path(__file__).parents[1] / "catalogue" / "models"
INDEX = FOLDER / "index.json"
HINT = "autoconfig models lists them all; a size like 13b or the path of a Hugging Face config.json also works"

_SPEC_FIELDS = frozenset(f.name for f in fields(ModelSpec))
_FILE_ONLY = frozenset({"family", "aliases"})
_BARE_SIZE = re.compile(r"(?:gpt-?3?-)?([0-9.]+(?:e\+?[0-9]+)?[kmbgt]|[0-9]{7,24}|[0-9.]+e\+?[0-9]+)")
_VARIANT = re.compile(r"\(([^()]*)\)$")
_VARIANTS: dict[str, dict[str, object]] = {"tokendrop": {}, "dropless": {}, "w/ mtp": {}, "w/o mtp": {"mtp_num_layers": 0}}
"""What NVIDIA's performance tables write behind a model's name, and what it changes in the architecture."""


def model_names() -> list[str]:
    """Canonical names, sorted."""
    return sorted(set(_index().values()))


def model_aliases() -> dict[str, str]:
    """Every spelling that names a model (lower case, `-` for `_` and spaces) and its canonical name."""
    return dict(_index())


def family_of_name(name: str) -> str | None:
    """The family that a catalogue model's file says; None for other names. A changed one (llama3-8b*) is of the same."""
    canonical = _index().get(_normalised(name.rstrip("*")))
    return None if canonical is None else str(_read(FOLDER / f"{canonical}.json")["family"])


def load_model(name: str) -> ModelSpec:
    """The catalogue model with this name.

    Upper and lower case, `_`, space and `-` are the same. A prefix names a model when only one model (or one and its later
    releases: `qwen3-235`) starts with it and it does not end inside a number (`llama3-7` does). What NVIDIA's tables put
    behind a name in parentheses (`(tokendrop)`, `(w/o MTP)`) is understood, and the id of a published checkpoint of it
    (published_checkpoint). Raises UnknownNameError with the nearest names.
    """
    text, changes = name.strip(), None
    match = _VARIANT.search(text)
    if match and match[1].strip().lower() in _VARIANTS:
        text, changes = text[: match.start()].rstrip(), _VARIANTS[match[1].strip().lower()]
    canonical = _find(_normalised(text))
    length = published_length(_normalised(text))
    own: dict[str, Any] = {} if length is None else {"max_position_embeddings": length}
    if canonical is None and (published := published_checkpoint(text)):
        return _load(published.model).replace(**dict(published.shape), **own)
    if canonical is None:
        given = name if len(name) <= 80 else f"{name[:77]}..."
        known = model_names() if nearest(given, model_names()) else _index()
        raise UnknownNameError("model", given, known, HINT, field="model")
    model = _load(canonical)
    model = model.replace(**own) if own else model
    return model.replace(name=f"{model.name}*", **changes) if changes else model


def published_checkpoint(name: str) -> Published | None:
    """The published checkpoint of this id (`Qwen/Qwen3-8B-AWQ`, `RedHatAI/...-FP8-dynamic`) or address of one; None where the
    table knows none."""
    address = _ADDRESS.fullmatch(name.strip())
    return find_published(_normalised(address[1] if address else name), _index())


_ON_HUB = re.compile(r"(?:https://huggingface\.co/|\bHF )([\w.-]+/[\w.-]+)")


def hub_id(name: str) -> str:
    """Id on Hugging Face's hub of a catalogue model's checkpoint, as its source says; empty for other names, changed models and
    those whose source is none."""
    canonical = _index().get(_normalised(name))
    found = _ON_HUB.search(_load(canonical).sources.get("*", "")) if canonical else None
    return found[1] if found else ""


_ADDRESS = re.compile(r"https?://[^/\s]+/(?:models/)?([\w.-]+/[\w.-]+)(?:[/?#].*)?")
"""Of a model's page on a hub: its id."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(
    text: str, *, paths: bool = True, like: str | None = None, download: bool = False
) -> tuple[ModelSpec, list[Remark]]:
    """The model that `text` means: a catalogue name, a hub's id or address of one, else the path of a config.json or of its
    folder (read as one of the family `like`), with `download` the config.json of a hub's id, else a bare size.

    Also returns the assumptions made. Without `paths` no file is looked for, for questions that come
    over the network. Raises UnknownNameError for a word that is none of these, UnsupportedError for what is known and refused
    (T5, BERT, ...), FileError, InputError or UnsupportedError for a config.json or a size that cannot be used.
    """
    if address := _ADDRESS.fullmatch(text.strip()):
        text = address[1]
    try:
        model = load_model(text)
        if like is not None:
            raise InputError(f"{option('like')} is for a config.json, and {model.name} is in the catalogue: drop it")
        return model, []
    except UnknownNameError as unknown:
        from autoconfig.specs.models.huggingface import read_config, refused_kind  # not for a name: a start is shorter

        if paths and _looks_like_path(text):
            model, notes = read_config(text, like)
            return model, [Remark("model", model.name, f"read from {text.strip()}", Effect.EVERYTHING), *notes]
        refused, size = refused_kind(_own_name(text)), _BARE_SIZE.fullmatch(_normalised(text))
        if refused and size is None:
            others = "another model" if "not modelled" in refused else "a decoder-only transformer"
            raise UnsupportedError(
                f"model {text.strip()[:80]!r} is {refused}; plan {others}: a catalogue name (autoconfig models), a size like "
                "13b, or a config.json"
            ) from unknown
        if _HUB_ID.fullmatch(text.strip()):
            return _from_hub(text.strip(), unknown, like=like, download=download, local=paths)
        if size is None or len(size[1]) > 24:
            if re.fullmatch("[0-9]{1,4}", text.strip()):
                said = f"unknown model {text.strip()!r}; did you mean {text.strip()}b, in billions?"
                raise InputError(said, field="model") from unknown
            raise
        return _from_size(text.strip(), size[1], unknown)


def _from_hub(
    name: str, unknown: UnknownNameError, *, like: str | None, download: bool, local: bool
) -> tuple[ModelSpec, list[Remark]]:
    """The config.json of a hub's model. Raises InputError where it was not asked for or cannot be fetched, UnknownNameError for
    a caller over the network (not `local`), who can only give it."""
    alike = [one for one in unknown.nearest if _numbers(one) == _numbers(name)]  # of other numbers is another model
    if not local:
        asks = "give its config.json as the model, a JSON object"
        raise UnknownNameError("model", name[:80], alike, asks, field="model") from unknown
    if not download:
        meant = f" (did you mean {alike[0]}?)" if alike else ""
        raise InputError(
            f"model {name[:80]} is not in the catalogue{meant}: give its config.json, or say {option('download')} to fetch "
            "that",
            field="model",
        ) from unknown
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise InputError(
            f"{option('download')} needs the package huggingface_hub: pip install huggingface_hub, or give the config.json of "
            f"{name[:80]}",
            field="download",
        ) from error
    try:
        file = hf_hub_download(name, "config.json")
    except Exception as error:  # the hub's own errors, those of requests and of the file system
        reason = str(error).strip().splitlines()
        raise FileError(
            f"{option('download')}: config.json of {name[:80]} cannot be fetched ({reason[0][:200] if reason else error!r}); "
            "give the file itself",
            field="download",
        ) from error
    from autoconfig.specs.models.huggingface import read_config

    model, notes = read_config(file, like)
    model = model.replace(name=name.rpartition("/")[2])
    return model, [Remark("model", model.name, f"the config.json of {name}, as downloaded", Effect.EVERYTHING), *notes]


def _own_name(text: str) -> str:
    """Normalised, without the publisher of a hub's id."""
    return _normalised(text.rpartition("/")[2] if _HUB_ID.fullmatch(text.strip()) else text)


def _numbers(name: str) -> list[str]:
    return sorted(re.findall(r"[0-9]+(?:\.[0-9]+)?", name))


def config_file_of(text: str) -> Path | None:
    """The config.json that `text` means as a model; None where it is a catalogue name or a size. Raises FileError."""
    try:
        load_model(text)
    except UnknownNameError:
        from autoconfig.specs.models.huggingface import config_file

        return config_file(text) if _looks_like_path(text) else None
    return None


def _from_size(text: str, size: str, unknown: UnknownNameError) -> tuple[ModelSpec, list[Remark]]:
    if size.count(".") > 1 or size in (".", ""):
        raise unknown
    params = parse_count(size, "model size")
    for known in (f"{params / 1e9:g}b", f"{params / 1e12:g}t"):
        if known in _index():
            return load_model(known), []
    model = gpt3_style(params)
    why = (
        f"not in the catalogue: GPT-3-style architecture with {model.num_layers} layers, hidden {model.hidden_size}, "
        f"{model.num_attention_heads} heads"
    )
    return model, [Remark("model", text, why, Effect.EVERYTHING)]


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _find(wanted: str) -> str | None:
    """The canonical name for a normalised spelling; a unique prefix counts only where no number is cut in two."""
    index = _index()
    if wanted in index:
        return index[wanted]
    from autoconfig.specs.models.huggingface import refused_kind

    if len(wanted) < 3 or not wanted[0].isalpha() or refused_kind(wanted, whole=True):
        return None
    hits = {
        canonical
        for alias, canonical in index.items()
        if alias.startswith(wanted) and not (wanted[-1] in "0123456789." and alias[len(wanted)] in "0123456789.")
    }
    shortest = min(hits, key=len, default=None)  # qwen3-235b-a22b, not its later release qwen3-235b-a22b-2507
    return shortest if shortest and all(name.startswith(shortest) for name in hits) else None


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
    return dict(json.loads(INDEX.read_text(encoding="utf-8")))


@cache
def _load(canonical: str) -> ModelSpec:
    return _build(_read(FOLDER / f"{canonical}.json"), canonical)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogueError(f"models/{path.name} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CatalogueError(f"models/{path.name} is not a JSON object")
    return data


def _build(data: dict[str, Any], stem: str) -> ModelSpec:
    unknown = set(data) - _SPEC_FIELDS - _FILE_ONLY
    if unknown or data.get("name") != stem:
        raise CatalogueError(f"models/{stem}.json: name {data.get('name')!r}, unknown keys {sorted(unknown)}")
    values = {key: value for key, value in data.items() if key in _SPEC_FIELDS}
    values |= {key: tuple(values[key]) for key in PER_LAYER if isinstance(values.get(key), list)}
    return ModelSpec(**{**values, **numbers_of(values)})


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
