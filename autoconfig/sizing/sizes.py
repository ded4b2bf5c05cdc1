"""Sizes of a family of models: those of the catalogue, and shapes between them; and how many tokens a size is trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

from autoconfig.specs.errors import InputError, UnknownNameError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import family_of_name, load_model, model_names
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.models.parameters import active_parameters, total_parameters

TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv:2203.15556), table 3: 20.0 tokens a parameter at
400 M, 20.2 at 1 B, 21.2 at 1 T. Measured on dense models; of mixtures it is taken of the parameters that a token passes, an
assumption."""
DEFAULT_FAMILY = "llama3"
STEPS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
"""Billions of parameters of sizes between those of the catalogue, times powers of ten."""
NEAR = 1.12
"""A size that is nearer than this to one of the catalogue is left out, a model of the catalogue nearer than SAME to another."""
SAME = 1.03
WIDTH_STEP, FFN_STEP, DEPTH_STEP = 1024, 256, 4
"""Multiples that widths, MLPs and depths have, so that tensor and pipeline parallelism divide them."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """One size that money may train."""

    model: str | Mapping[str, Any]
    """As a question names it."""
    name: str
    """The model's, or `llama3-style 100B`."""
    architecture: Mapping[str, object] = field(default_factory=dict)
    """What is changed of the model; empty for one of the catalogue."""
    parameters: float
    active_parameters: float
    """Those that one token passes; all of a dense model."""

    @property
    def optimal_tokens(self) -> float:
        """Compute-optimal number of tokens."""
        return TOKENS_PER_PARAMETER * self.active_parameters


def size_of(model: ModelSpec, named: str | Mapping[str, Any], name: str = "", **changes: object) -> ModelSize:
    """The size of a model that a question names so, after `changes`."""
    return ModelSize(
        model=named,
        name=name or model.name,
        architecture=changes,
        parameters=float(total_parameters(model)),
        active_parameters=float(active_parameters(model)),
    )


@cache
def sizes_of(family: str) -> tuple[ModelSize, ...]:
    """The sizes of a family, smallest first: one catalogue model of each size, and between neighbours that are dense and alike
    shapes of the STEPS. Raises InputError."""
    models = _members(family)
    found = [size_of(model, model.name) for model in models]
    for small, large in pairwise(models):
        if not any(model.is_moe or model.is_hybrid for model in (small, large)):
            found += _between(family, small, large)
    return tuple(sorted(found, key=lambda size: size.active_parameters))


def families() -> tuple[str, ...]:
    """Families of decoders in the catalogue."""
    return tuple(sorted({name for model in model_names() if (name := family_of_name(model)) and _decodes(load_model(model))}))


def _decodes(model: ModelSpec) -> bool:
    return not (model.is_encoder_decoder or model.is_encoder_only)


def _members(family: str) -> list[ModelSpec]:
    """Models of a family and of its later releases (llama3.1) with the same vocabulary, the first of each size; by the
    parameters that a token passes. Raises InputError."""
    known = families()
    wanted = family.strip().lower()
    if wanted not in known:
        raise UnknownNameError("family", family[:40], known, f"one of {', '.join(known)}", field="family")
    own = [load_model(name) for name in model_names() if family_of_name(name) == wanted]
    later = [load_model(name) for name in model_names() if (family_of_name(name) or "").startswith(f"{wanted}.")]
    models = [*own, *(model for model in later if model.vocab_size == own[0].vocab_size)]
    models.sort(key=lambda model: (len(model.name), model.name))
    kept: list[ModelSpec] = []
    for model in filter(_decodes, models):
        if all(_apart(model, other) > SAME for other in kept):
            kept.append(model)
    if not kept:
        raise InputError(f"{option('family')} {wanted} has no decoder in the catalogue", field="family")
    return sorted(kept, key=active_parameters)


def _apart(one: ModelSpec, other: ModelSpec) -> float:
    ratio = total_parameters(one) / total_parameters(other)
    return max(ratio, 1 / ratio)


def _between(family: str, small: ModelSpec, large: ModelSpec) -> list[ModelSize]:
    low, high = total_parameters(small), total_parameters(large)
    wanted = [step * 10.0**power for power in range(7, 14) for step in STEPS]
    found = []
    for parameters in (one for one in wanted if low * NEAR < one < high / NEAR):
        shape = interpolated(small, large, parameters)
        if shape is not None:
            model = apply_overrides(large, shape)
            found.append(size_of(model, large.name, f"{family}-style {parameters / 1e9:g}B", **shape))
    return found


def interpolated(small: ModelSpec, large: ModelSpec, parameters: float) -> dict[str, object] | None:
    """Depth, width, heads and MLP of about so many parameters between two models; the rest is the larger one's.

    Depth, width and the MLP's ratio to the width lie on the line between both in the logarithm of the parameters; of depths and
    widths that are whole multiples the pair is taken that, with the MLP that makes up the total, is nearest to that line. None
    where none comes within 3 % of the total."""
    low, high = (math.log(total_parameters(model)) for model in (small, large))
    share = (math.log(parameters) - low) / (high - low)
    line = [math.exp((1 - share) * math.log(a) + share * math.log(b)) for a, b in zip(_of(small), _of(large), strict=True)]
    best: tuple[float, dict[str, object]] | None = None
    for width in _multiples(line[1], WIDTH_STEP):
        for depth in _multiples(line[0], DEPTH_STEP):
            shape = _shape(large, depth, width, parameters)
            if shape is None:
                continue
            made = (depth, width, int(str(shape["ffn_hidden_size"])) / width)
            error = sum(abs(math.log(a / b)) for a, b in zip(made, line, strict=True))
            if best is None or error < best[0]:
                best = error, shape
    return None if best is None else best[1]


def _multiples(about: float, step: int) -> list[int]:
    """The two multiples below and the two above."""
    below = int(about) // step
    return [step * count for count in range(max(1, below - 1), below + 3)]


def _of(model: ModelSpec) -> tuple[float, float, float]:
    """Depth, width, ratio of the MLP to the width."""
    return float(model.num_layers), float(model.hidden_size), model.ffn_hidden_size / model.hidden_size


def _shape(like: ModelSpec, depth: int, width: int, parameters: float) -> dict[str, object] | None:
    """The fields of a model of this depth and width whose MLP makes up the total."""
    heads = width // like.kv_channels
    groups = min(like.num_query_groups, heads)
    if width % like.kv_channels or heads % groups:
        return None
    fields: dict[str, object] = {
        "num_layers": depth,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_query_groups": groups,
    }
    matrices = 3 if like.gated_linear_unit else 2
    without = (
        total_parameters(apply_overrides(like, {**fields, "ffn_hidden_size": FFN_STEP})) - depth * matrices * width * FFN_STEP
    )
    ffn = round((parameters - without) / (depth * matrices * width) / FFN_STEP) * FFN_STEP
    if ffn < width:
        return None
    total = without + depth * matrices * width * ffn
    return {**fields, "ffn_hidden_size": ffn} if abs(total / parameters - 1) < 0.03 else None
