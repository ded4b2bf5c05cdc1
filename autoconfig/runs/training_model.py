"""The model of a row of a table of runs."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.planning import resolve
from autoconfig.runs.table import (
    CellError,
    Row,
    cell,
    count_of,
    degree,
    flag,
    whole,
)
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.pattern import parse_pattern, published_layers, scaled_pattern
from autoconfig.specs.remarks import Remark, note


@cache
def _families() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "model_families.json").read_text(encoding="utf-8")
    families: list[dict[str, Any]] = json.loads(text)
    return families


MIXTURES = "mixtral"
"""A name of the family that mixtures of an unknown name are read as: gated, without biases, as all of the catalogue but one."""


def family_of(row: Row) -> dict[str, Any]:
    """The first family of `data/model_families.json` whose pattern the model's name holds; the last one holds every name,
    but a mixture that no other one names is read as MIXTURES."""
    name = cell(row, "model").lower()
    found = next(family for family in _families() if re.search(family["pattern"], name))
    unknown = not found["pattern"] and not re.search("gpt", name)
    return next(f for f in _families() if re.search(f["pattern"], MIXTURES)) if unknown and whole(row, "experts", 0) else found


@cache
def _catalogue_model(name: str) -> ModelSpec | None:
    try:
        return load_model(name)
    except InputError:
        return None


_LAYERS_BEHIND = re.compile(r"(.{1,80}?)[-_ ]([0-9]{1,4})[-_ ]?layers?")
_SIZE_BEHIND = re.compile(r"(.{1,80}?)[-_ ]([0-9]{1,4}(?:\.[0-9]+)?)b")


SIZE_REACHED = 0.2
"""A size behind a name is one that a depth reaches within this share of it; otherwise it means another shape."""


def _cut_model(row: Row, assumed: list[Remark]) -> tuple[ModelSpec | None, Row]:
    """A catalogue model with a number of layers or a size in billions behind its name, and the row with that many layers.
    Raises CellError where no depth has about that size."""
    name = cell(row, "model").lower()
    for pattern in (_LAYERS_BEHIND, _SIZE_BEHIND):
        match = pattern.fullmatch(name)
        known = _catalogue_model(match[1]) if match else None
        if match is None or known is None:
            continue
        reached = ""
        if not cell(row, "layers"):
            layers = match[2]
            if pattern is _SIZE_BEHIND:
                layers, reached = _layers_of_size(known, float(layers) * 1e9)
            row = {**row, "layers": layers}
        assumed.append(note(f"{known.name} with {cell(row, 'layers')} layers{reached} ({cell(row, 'model')[:60]})"))
        return known, row
    return None, row


def _layers_of_size(known: ModelSpec, parameters: float) -> tuple[str, str]:
    """The depth at which a model of this shape has about so many parameters, and the size reached, in words. Raises CellError
    where it is further off than SIZE_REACHED."""
    least = len(set(known.layer_kinds)) if known.is_hybrid else 1
    sizes = {n: total_parameters(_with_layers(known, n)) for n in range(least, 2 * known.num_layers + 1)}
    layers = min(sizes, key=lambda n: abs(sizes[n] - parameters))
    size = f"{sizes[layers] / 1e9:.3g} B parameters"
    if abs(sizes[layers] - parameters) > SIZE_REACHED * parameters:
        raise CellError(
            f"cell model asks for a {known.name} of {parameters / 1e9:g} B parameters: with {layers} layers it has {size}, and "
            "no other depth comes nearer; give layers, hidden, heads and ffn of the model that is meant"
        )
    return str(layers), f", {size}"


def _with_layers(known: ModelSpec, layers: int) -> ModelSpec:
    return _changed(known, {"layers": str(layers)}, [])


def read_model(row: Row, assumed: list[Remark]) -> ModelSpec:
    """The architecture: the row's cells; what they lack from the catalogue model of that name, else its family.

    Raises InputError, of a name alone that no model has UnknownNameError."""
    if config := cell(row, "config"):
        return _changed(_of_config(config, assumed), row, assumed)
    known = _catalogue_model(cell(row, "model"))
    if known is None:
        known, row = _cut_model(row, assumed)
    if known is None:
        if cell(row, "model") and not any(cell(row, key) for key in ("hidden", "heads", "layers")):
            load_model(cell(row, "model"))  # raises: which names are like it
        return _from_cells(row, assumed)
    if other := _contradictions(row, known):
        assumed.append(note(f"the shape of the columns, which is not {known.name}'s ({', '.join(other)})"))
        return _from_cells(row, assumed)
    if blank := [key for key in ("layers", "hidden", "heads") if not cell(row, key)]:
        assumed.append(note(f"{', '.join(blank)} of {known.name}"))
    return _changed(known, row, assumed)


def _of_config(text: str, assumed: list[Remark]) -> ModelSpec:
    """The model of a config.json's content. Raises CellError where the cell holds no JSON object."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CellError(f"cell config={text[:40]!r} is neither the JSON of a config.json nor the path of one beside the table")
    model, notes = resolve.read_model(content, local_files=False)
    assumed += notes
    return model


def _contradictions(row: Row, known: ModelSpec) -> list[str]:
    ffn = known.moe_ffn_hidden_size if known.is_moe else known.ffn_hidden_size
    values: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("hidden", (known.hidden_size,)),
        ("heads", (known.num_attention_heads,)),
        ("experts", (known.num_moe_experts or 0,)),
        ("ffn", (ffn, known.ffn_hidden_size)),
        *((("kv_channels", (known.kv_channels,)),) if not known.multi_latent_attention else ()),
    )
    given = [(key, whole(row, key), right) for key, right in values if cell(row, key)]
    return [f"{key} {value}, not {right[0]}" for key, value, right in given if value not in right]


def _changed(known: ModelSpec, row: Row, assumed: list[Remark]) -> ModelSpec:
    changes: dict[str, Any] = {}
    layers, seq = count_of(row, "layers") or known.num_layers, count_of(row, "seq") or 0
    if known.is_hybrid:
        changes |= _changed_pattern(known, layers)
    elif layers != known.num_layers:
        changes["num_layers"] = layers
        for name in PER_LAYER:
            if isinstance(pattern := getattr(known, name), tuple):
                changes[name] = pattern[:layers] + (1,) * max(0, layers - known.num_layers)
    changes["encoder_num_layers"] = _encoder_layers(known, row, layers)
    if seq > known.max_position_embeddings:
        changes["max_position_embeddings"] = seq
    if vocab := count_of(row, "vocab"):
        changes["vocab_size"] = vocab
    if (groups := count_of(row, "kv_heads")) and not known.multi_latent_attention:
        changes["num_query_groups"] = groups
    if (tied := flag(row, "tied_embeddings")) is not None:
        changes["untie_embeddings_and_output_weights"] = not tied
    changes = {key: value for key, value in changes.items() if getattr(known, key) != value}
    cells = (
        ("layers", "num_layers"),
        ("encoder_layers", "encoder_num_layers"),
        ("vocab", "vocab_size"),
        ("kv_heads", "num_query_groups"),
    )
    other = [f"{key} {changes[name]}, not {getattr(known, name)}" for key, name in cells if name in changes]
    if pattern := changes.get("hybrid_layer_pattern"):  # counted as checkpoints and users do, not in sublayers
        other[0] = f"layers {published_layers(pattern)}, not {published_layers(known.hybrid_layer_pattern)}"
    if other:
        assumed.append(note(f"{known.name} with {', '.join(other)}"))
    if changes.keys() - {"max_position_embeddings"}:
        changes["published_parameters"] = None
    return known.replace(**changes) if changes else known


def _encoder_layers(known: ModelSpec, row: Row, layers: int) -> int:
    """Of `layers` in all. Raises InputError where the row does not say how they split."""
    if known.is_encoder_only:
        return layers
    if known.is_encoder_decoder and layers != known.num_layers and not cell(row, "encoder_layers"):
        raise InputError(f"cell encoder_layers is empty: {known.name} has not {layers} layers in all")
    return whole(row, "encoder_layers", known.encoder_num_layers)


def _changed_pattern(known: ModelSpec, layers: int) -> dict[str, Any]:
    """A hybrid's pattern and number of sublayers for a number of layers, in sublayers or as checkpoints count them."""
    if layers in (known.num_layers, published_layers(known.hybrid_layer_pattern)):
        return {}
    pattern = scaled_pattern(known.hybrid_layer_pattern, layers)
    return {"hybrid_layer_pattern": pattern, "num_layers": len(parse_pattern(pattern).layers)}


def _from_cells(row: Row, assumed: list[Remark]) -> ModelSpec:
    family = family_of(row)
    if family["pattern"] and not re.search(family["pattern"], cell(row, "model").lower()):
        assumed.append(note("gated experts and no biases, as mixtures of experts have them"))
    hidden, heads = degree(row, "hidden", None), degree(row, "heads", None)
    width = degree(row, "kv_channels", max(1, hidden // heads))
    if hidden < heads:
        raise InputError(f"cells hidden={hidden} and heads={heads} are no shape of a model")
    traits = dict(family["traits"])
    ffn, vocab = count_of(row, "ffn"), count_of(row, "vocab")
    if ffn is None:
        ffn = -(-8 * hidden // 3 // 256) * 256 if traits.get("gated_linear_unit") else 4 * hidden
        assumed.append(Remark("ffn", ffn, ""))
    if vocab is None:
        vocab = int(family["vocab_size"])
        assumed.append(Remark("vocab", vocab, ""))
    if (tied := flag(row, "tied_embeddings")) is not None:
        traits["untie_embeddings_and_output_weights"] = not tied
    experts = whole(row, "experts", 0) or None
    return ModelSpec(
        name=cell(row, "model") or "model",
        num_layers=degree(row, "layers", None),
        encoder_num_layers=whole(row, "encoder_layers", 0),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=degree(row, "kv_heads", heads),
        kv_channels=width,
        ffn_hidden_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=degree(row, "seq", None),
        num_moe_experts=experts,
        moe_router_topk=degree(row, "topk") if experts else 1,
        moe_ffn_hidden_size=ffn if experts else 0,
        **traits,
    )
