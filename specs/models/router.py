"""RouterNumbers: how a model's router scores, picks and balances experts. They change results, not time or memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoconfig.specs.errors import InputError

SCORE_FUNCTIONS = ("softmax", "sigmoid")
LOAD_BALANCING = ("aux_loss", "seq_aux_loss")


@dataclass(frozen=True, kw_only=True)
class RouterNumbers:
    """Megatron's --moe-router-... and --moe-aux-loss-coeff. None: the model's source does not say. Raises InputError."""

    score_function: str
    pre_softmax: bool = False
    """Softmax over all experts before the choice (Hugging Face: norm_topk_prob false), not over the chosen ones."""
    topk_scaling_factor: float | None = None
    """routed_scaling_factor."""
    num_groups: int | None = None
    """n_group: experts are chosen from group_topk (topk_group) of so many groups (DeepSeek)."""
    group_topk: int | None = None
    load_balancing_type: str = "aux_loss"
    aux_loss_coeff: float | None = None
    """router_aux_loss_coef, aux_loss_alpha."""
    bias_update_rate: float | None = None
    """Of the correction bias (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        for name, allowed in (("score_function", SCORE_FUNCTIONS), ("load_balancing_type", LOAD_BALANCING)):
            if getattr(self, name) not in allowed:
                raise InputError(f"router: {name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in ("topk_scaling_factor", "aux_loss_coeff", "bias_update_rate"):
            value = getattr(self, name)
            real = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (real and math.isfinite(value) and value >= 0):
                raise InputError(f"router: {name}={value!r} must be a number of at least 0, or left out")
        for name in ("num_groups", "group_topk"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InputError(f"router: {name}={value!r} must be a whole number from 1, or left out")
        if (self.num_groups or 0) < (self.group_topk or 0) or (self.num_groups is None) != (self.group_topk is None):
            raise InputError(f"router: num_groups={self.num_groups} and group_topk={self.group_topk}: both, the first larger")
        if not isinstance(self.pre_softmax, bool):
            raise InputError(f"router: pre_softmax={self.pre_softmax!r} must be true or false")


def router_of(value: object) -> RouterNumbers | None:
    """What a JSON file holds as `router`: null, or an object with RouterNumbers' fields. Raises InputError."""
    if value is None or isinstance(value, RouterNumbers):
        return value
    try:
        return RouterNumbers(**value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"router: {error}") from None
