"""Numbers of rotary positions and of the router of experts: they change results, not time or memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from autoconfig.specs.errors import InputError, is_count, refuse
from autoconfig.specs.json_record import Keywords, NotNegative, Positive

ROPE_SCALINGS = ("llama3", "linear", "yarn", "other")
"""llama3: by wavelength (Llama 3.1); linear: positions over a factor; yarn: Peng et al. 2023 (arXiv:2309.00071); other: a way
that Megatron-LM has no arguments for."""
LLAMA3_ORIGINAL = 8192
"""Positions that llama3's scaling starts from; Megatron-LM has it fixed, like its wavelengths' factors 1 and 4
(rotary_pos_embedding.py, _apply_scaling)."""
YARN_ORIGINAL = 4096


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """One way of scaling. Raises InputError for numbers that no model can have."""

    type: Annotated[str, Keywords(enum=ROPE_SCALINGS)]
    factor: NotNegative = 1.0
    """How much longer sequences become."""
    original_max_position_embeddings: Positive = YARN_ORIGINAL
    """yarn: positions before scaling."""
    mscale: NotNegative = 1.0
    mscale_all_dim: NotNegative = 0.0
    """yarn: attention's temperature is mscale(factor, mscale) / mscale(factor, mscale_all_dim)."""
    truncate: bool = True
    """yarn: ends of the correction range are rounded to whole dimensions (GPT-OSS: not)."""

    def __post_init__(self) -> None:
        if self.type not in ROPE_SCALINGS:
            raise InputError(f"rope_scaling: type {self.type!r} is not one of {', '.join(ROPE_SCALINGS)}")
        for name in ("factor", "mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise InputError(f"rope_scaling: {name}={value!r} must be a number of at least 0")
        positions = self.original_max_position_embeddings
        if not isinstance(positions, int) or isinstance(positions, bool) or positions < 1:
            raise InputError(f"rope_scaling: original_max_position_embeddings={positions!r} must be a whole number from 1")
        if not isinstance(self.truncate, bool):
            raise InputError(f"rope_scaling: truncate={self.truncate!r} must be true or false")


SCORE_FUNCTIONS = ("softmax", "sigmoid")
LOAD_BALANCING = ("aux_loss", "seq_aux_loss")


def _from_0(value: object) -> bool:
    """Whether a value is a finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


@dataclass(frozen=True, kw_only=True)
class RouterNumbers:
    """Megatron's --moe-router-... and --moe-aux-loss-coeff. None: the model's source does not say. Raises InputError."""

    score_function: Annotated[str, Keywords(enum=SCORE_FUNCTIONS)]
    pre_softmax: bool = False
    """Softmax over all experts before the choice (Hugging Face: norm_topk_prob false), not over the chosen ones."""
    topk_scaling_factor: NotNegative | None = None
    """routed_scaling_factor."""
    num_groups: Positive | None = None
    """n_group: experts are chosen from group_topk (topk_group) of so many groups (DeepSeek)."""
    group_topk: Positive | None = None
    load_balancing_type: Annotated[str, Keywords(enum=LOAD_BALANCING)] = "aux_loss"
    aux_loss_coeff: NotNegative | None = None
    """router_aux_loss_coef, aux_loss_alpha."""
    bias_update_rate: NotNegative | None = None
    """Of the correction bias (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        for name, allowed in (("score_function", SCORE_FUNCTIONS), ("load_balancing_type", LOAD_BALANCING)):
            if getattr(self, name) not in allowed:
                raise InputError(f"router: {name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("topk_scaling_factor", "aux_loss_coeff", "bias_update_rate"):
            value = getattr(self, name)
            if value is not None and not _from_0(value):
                raise InputError(f"router: {name}={value!r} must be a number of at least 0, or left out")
        for name in ("num_groups", "group_topk"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise InputError(f"router: {name}={value!r} must be a whole number from 1, or left out")
        groups, topk = self.num_groups, self.group_topk
        refuse(
            (
                (groups or 0) < (topk or 0) or (groups is None) != (topk is None),
                f"router: num_groups={groups} and group_topk={topk}: both, the first larger",
            ),
            (not isinstance(self.pre_softmax, bool), f"router: pre_softmax={self.pre_softmax!r} must be true or false"),
        )


NUMBERS: Mapping[str, type[RopeScaling] | type[RouterNumbers]] = {"rope_scaling": RopeScaling, "router": RouterNumbers}
"""Fields of ModelSpec that are objects in JSON."""


def numbers_of(values: Mapping[str, Any]) -> dict[str, RopeScaling | RouterNumbers | None]:
    """NUMBERS as a model's JSON has them: null, or an object with their fields. Raises InputError."""
    found: dict[str, RopeScaling | RouterNumbers | None] = {}
    for name, kind in NUMBERS.items():
        value = values.get(name)
        try:
            found[name] = value if value is None or isinstance(value, kind) else kind(**value)
        except TypeError as error:
            raise InputError(f"{name}: {error}") from None
    return found
