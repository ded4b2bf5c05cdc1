"""One model: its family and parameters, and what the count leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from autoconfig.planning.resolve import read_checkpoint, read_model
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.json_record import Keywords, Positive
from autoconfig.specs.models.huggingface import model_type_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import family_of_name
from autoconfig.specs.models.parameters import expert_parameters, mtp_depths_held, total_parameters
from autoconfig.specs.remarks import AssumedJson, Effect, assumed_json


@dataclass(frozen=True, kw_only=True)
class ModelCountJson(AssumedJson):
    """What `autoconfig model --json` prints."""

    schema_version: Annotated[int, Keywords(const=2)] = 2
    name: str
    family: str
    """Of the catalogue, or a config.json's model_type; gpt3 for a bare size."""
    parameters: Positive
    """All, the vocabulary unpadded, as the model's publisher counts: exact."""
    active_parameters: Positive
    """Those that one token passes: of the routed experts only the chosen ones."""
    left_out: tuple[str, ...]
    """What the model has beside them, or its file says and the count does not take."""
    quantised: str = ""
    """How a quantised checkpoint stores its weights; empty for 16 bits."""


def describe(
    model: str | Mapping[str, Any], *, local_files: bool = True, like: str | None = None, download: bool = False
) -> ModelCountJson:
    """A catalogue name, a size, the path of a config.json or (a mapping) its content, read as one of the family `like` where
    given. Raises InputError, and UnsupportedError with the reason where the model cannot be planned."""
    spec, remarks = read_model(model, local_files=local_files, like=like, download=download)
    total = total_parameters(spec)
    return ModelCountJson(
        name=spec.name,
        family=like or _family(model, spec),
        parameters=total,
        active_parameters=active_parameters(spec),
        left_out=(*(one.why for one in remarks if one.effect is Effect.LEFT_OUT), *_left_out(spec, total)),
        **assumed_json(one for one in remarks if one.effect is not Effect.LEFT_OUT),
        quantised=_quantised(model, local_files=local_files),
    )


def _quantised(model: str | Mapping[str, Any], *, local_files: bool) -> str:
    """A count needs no format, so that one which is not read is only said."""
    try:
        checkpoint = read_checkpoint(model, local_files=local_files)
    except UnsupportedError as error:
        return error.text
    return "" if checkpoint is None else str(checkpoint)


def _family(given: str | Mapping[str, Any], spec: ModelSpec) -> str:
    if not isinstance(given, str):
        return str(given.get("model_type", ""))
    if (family := family_of_name(spec.name)) is not None:
        return family
    path = Path(given.strip()).expanduser()
    return model_type_of(path) if path.exists() else "gpt3"


def active_parameters(spec: ModelSpec) -> int:
    """Parameters that one token passes: all but the routed experts that it does not reach, in all layers."""
    experts = (spec.num_moe_experts or spec.moe_router_topk) - spec.moe_router_topk
    idle = round(spec.layer_kinds.count("moe") * experts * float(expert_parameters(spec, 1))) if spec.is_moe else 0
    return total_parameters(spec) - idle


def _left_out(spec: ModelSpec, total: int) -> tuple[str, ...]:
    depths = mtp_depths_held(spec)
    if not depths:
        return ()
    more = total_parameters(spec, mtp=True) - total
    return (f"{depths} multi-token-prediction depth{'s' * (depths > 1)}: {more:,} parameters",)


def model_text(found: ModelCountJson) -> str:
    """For a person."""
    lines = [f"{found.name} ({found.family}): {found.parameters:,} parameters, {found.active_parameters:,} active"]
    lines += [f"quantised: {found.quantised}"] * bool(found.quantised)
    lines += [f"left out: {text}" for text in found.left_out]
    return "\n".join([*lines, *(f"assumed: {text}" for text in found.assumed)])


def model_json_text(found: ModelCountJson) -> str:
    """The same as JSON, for the service."""
    from autoconfig.specs.json_record import to_json

    return json.dumps(to_json(found), allow_nan=False)
