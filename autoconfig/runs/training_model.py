"""The model of a row of a table of runs."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.planning import resolve
from autoconfig.runs.cells import RunRow
from autoconfig.runs.table import CellError
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.pattern import parse_pattern, published_layers, scaled_pattern
from autoconfig.specs.remarks import Remark


@cache
def _families() -> list[dict[str, Any]]:
    text = (resources.files("autoconfig") / "data" / "model_families.json").read_text(encoding="utf-8")
    families: list[dict[str, Any]] = json.loads(text)
    return families


MIXTURES = "mixtral"
"""A name of the family that mixtures of an unknown name are read as: gated, without biases, as all of the catalogue but one."""


def family_of(row: RunRow) -> dict[str, Any]:
    """Return the first family of `data/model_families.json` whose pattern the model's name holds; the last one holds every
    name, but a mixture that no other one names is read as MIXTURES."""
    name = row.text("model").lower()
    family = _family_named(name)
    unknown = not family["pattern"] and "gpt" not in name
    return _family_named(MIXTURES) if unknown and row.count("experts") else family


def _family_named(name: str) -> dict[str, Any]:
    return next(family for family in _families() if re.search(family["pattern"], name))


@cache
def _catalogue_model(name: str) -> ModelSpec | None:
    try:
        return load_model(name)
    except InputError:
        return None


_BEHIND = re.compile(r"(?P<name>.{1,80}?)[-_ ](?:(?P<layers>[0-9]{1,4})[-_ ]?layers?|(?P<size>[0-9]{1,4}(?:\.[0-9]+)?)b)")
"""A number of layers, or a size in billions, behind a model's name."""
SIZE_REACHED = 0.2
"""A size behind a name is one that a depth reaches within this share of it; otherwise it means another shape."""


def _cut_model(row: RunRow) -> tuple[ModelSpec, int] | None:
    """Return a catalogue model with a number of layers or a size in billions behind its name, and how many layers the row
    means; None of another name. Raises CellError where no depth has about that size."""
    match = _BEHIND.fullmatch(row.text("model").lower())
    model = _catalogue_model(match["name"]) if match else None
    if match is None or model is None:
        return None
    layers, reached = row.count("layers"), ""
    if layers is None and match["layers"]:
        layers = int(match["layers"])
    elif layers is None:
        layers, reached = _layers_of_size(model, float(match["size"]) * 1e9)
    row.assume(f"{model.name} with {layers} layers{reached} ({row.text('model')[:60]})")
    return model, layers


def _layers_of_size(base: ModelSpec, parameters: float) -> tuple[int, str]:
    """Return the depth at which a model of this shape has about so many parameters, and the size reached, in words. Raises
    CellError where it is further off than SIZE_REACHED."""
    least = len(set(base.layer_kinds)) if base.is_hybrid else 1
    sizes = {n: total_parameters(base.replace(**_of_depth(base, n))) for n in range(least, 2 * base.num_layers + 1)}
    layers = min(sizes, key=lambda n: abs(sizes[n] - parameters))
    size = f"{sizes[layers] / 1e9:.3g} B parameters"
    if abs(sizes[layers] - parameters) > SIZE_REACHED * parameters:
        raise CellError(
            f"cell model asks for a {base.name} of {parameters / 1e9:g} B parameters: with {layers} layers it has {size}, and "
            "no other depth comes nearer; give layers, hidden, heads and ffn of the model that is meant"
        )
    return layers, f", {size}"


def read_model(row: RunRow) -> ModelSpec:
    """Return the architecture: the row's cells; what they lack from the catalogue model of that name, else its family.

    Raises InputError, of a name alone that no model has UnknownNameError."""
    if config := row.text("config"):
        model = _of_config(config, row.assumed)
        return _changed(model, row, row.count("layers") or model.num_layers)
    named = _catalogue_model(row.text("model"))
    cut = (named, row.count("layers")) if named else _cut_model(row)
    if cut is None:
        if row.text("model") and not any(row.text(key) for key in ("hidden", "heads", "layers")):
            load_model(row.text("model"))  # raises: which names are like it
        return _from_cells(row, None)
    model, layers = cut
    if other := _contradictions(row, model):
        row.assume(f"the shape of the columns, which is not {model.name}'s ({', '.join(other)})")
        return _from_cells(row, layers)
    if blank := [key for key in ("layers", "hidden", "heads") if not (layers if key == "layers" else row.text(key))]:
        row.assume(f"{', '.join(blank)} of {model.name}")
    return _changed(model, row, layers or model.num_layers)


def _of_config(text: str, assumed: list[Remark]) -> ModelSpec:
    """Return the model of a config.json's content. Raises CellError where the cell holds no JSON object."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CellError(f"cell config={text[:40]!r} is neither the JSON of a config.json nor the path of one beside the table")
    model, remarks = resolve.read_model(content, local_files=False)
    assumed += remarks
    return model


def _contradictions(row: RunRow, base: ModelSpec) -> list[str]:
    """Return the columns whose shape is not the model's, with both numbers."""
    ffn = base.moe_ffn_hidden_size if base.is_moe else base.ffn_hidden_size
    values: dict[str, tuple[int, ...]] = {
        "hidden": (base.hidden_size,),
        "heads": (base.num_attention_heads,),
        "experts": (base.num_moe_experts or 0,),
        "ffn": (ffn, base.ffn_hidden_size),
        **({} if base.multi_latent_attention else {"kv_channels": (base.kv_channels,)}),
    }
    cells = [(key, row.count(key), right) for key, right in values.items() if row.text(key)]
    return [f"{key} {value}, not {right[0]}" for key, value, right in cells if value not in right]


_CHANGED = {
    "layers": "num_layers",
    "encoder_layers": "encoder_num_layers",
    "vocab": "vocab_size",
    "kv_heads": "num_query_groups",
}
"""Columns in which a row may differ from the model that it names, and the model's fields: said where it does."""


def _changed(base: ModelSpec, row: RunRow, layers: int) -> ModelSpec:
    """Return the model with the depth, lengths and sizes that the row says; what differs is said."""
    changes = _of_depth(base, layers) | {"encoder_num_layers": _encoder_layers(base, row, layers)}
    changes["max_position_embeddings"] = max(row.count("seq") or 0, base.max_position_embeddings)
    changes["vocab_size"] = row.count("vocab") or base.vocab_size
    if (groups := row.count("kv_heads")) and not base.multi_latent_attention:
        changes["num_query_groups"] = groups
    if (tied := row.flag("tied_embeddings")) is not None:
        changes["untie_embeddings_and_output_weights"] = not tied
    changes = {field: value for field, value in changes.items() if getattr(base, field) != value}
    other = [f"{key} {changes[field]}, not {getattr(base, field)}" for key, field in _CHANGED.items() if field in changes]
    if pattern := changes.get("hybrid_layer_pattern"):  # counted as checkpoints and users do, not in sublayers
        other[0] = f"layers {published_layers(pattern)}, not {published_layers(base.hybrid_layer_pattern)}"
    if other:
        row.assume(f"{base.name} with {', '.join(other)}")
    if changes.keys() - {"max_position_embeddings"}:
        changes["published_parameters"] = None
    return base.replace(**changes) if changes else base


def _encoder_layers(base: ModelSpec, row: RunRow, layers: int) -> int:
    """Return the layers of the encoder, of `layers` in all. Raises InputError where the row does not say how they split."""
    if base.is_encoder_only:
        return layers
    encoder = row.count("encoder_layers")
    if base.is_encoder_decoder and layers != base.num_layers and encoder is None:
        raise InputError(f"cell encoder_layers is empty: {base.name} has not {layers} layers in all")
    return base.encoder_num_layers if encoder is None else encoder


def _of_depth(base: ModelSpec, layers: int) -> dict[str, Any]:
    """Return the fields of a model that change with its number of layers: of a hybrid its pattern and number of sublayers, for
    layers in sublayers or as checkpoints count them."""
    if base.is_hybrid:
        if layers in (base.num_layers, published_layers(base.hybrid_layer_pattern)):
            return {}
        pattern = scaled_pattern(base.hybrid_layer_pattern, layers)
        return {"hybrid_layer_pattern": pattern, "num_layers": len(parse_pattern(pattern).layers)}
    if layers == base.num_layers:
        return {}
    patterns = {name: pattern for name in PER_LAYER if isinstance(pattern := getattr(base, name), tuple)}
    longer = (1,) * max(0, layers - base.num_layers)
    return {"num_layers": layers, **{name: pattern[:layers] + longer for name, pattern in patterns.items()}}


def _from_cells(row: RunRow, layers: int | None) -> ModelSpec:
    """Return the architecture of the row's shape, with the traits of the name's family. Raises InputError."""
    family = family_of(row)
    if family["pattern"] and not re.search(family["pattern"], row.text("model").lower()):
        row.assume("gated experts and no biases, as mixtures of experts have them")
    hidden, heads = row.degree("hidden"), row.degree("heads")
    if hidden < heads:
        raise InputError(f"cells hidden={hidden} and heads={heads} are no shape of a model")
    traits = dict(family["traits"])
    usual = {
        "ffn": -(-8 * hidden // 3 // 256) * 256 if traits.get("gated_linear_unit") else 4 * hidden,
        "vocab": int(family["vocab_size"]),
    }
    row.assumed += [Remark(name, size, "") for name, size in usual.items() if not row.text(name)]
    if (tied := row.flag("tied_embeddings")) is not None:
        traits["untie_embeddings_and_output_weights"] = not tied
    experts, ffn = row.count("experts") or None, row.count("ffn") or usual["ffn"]
    shape = {
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
        "ffn_hidden_size": ffn,
        "vocab_size": usual["vocab"],
        **row.fields("model"),
    }
    return ModelSpec(
        name=row.text("model") or "model",
        num_layers=layers or row.degree("layers"),
        encoder_num_layers=row.count("encoder_layers") or 0,
        max_position_embeddings=row.degree("seq"),
        num_moe_experts=experts,
        moe_router_topk=row.degree("topk") if experts else 1,
        moe_ffn_hidden_size=ffn if experts else 0,
        **shape,
        **traits,
    )
