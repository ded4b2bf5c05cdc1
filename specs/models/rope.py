"""RopeScaling: how a model stretches its rotary positions beyond the length that it was first trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoconfig.specs.errors import InputError

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

    type: str
    factor: float = 1.0
    """How much longer sequences become."""
    original_max_position_embeddings: int = YARN_ORIGINAL
    """yarn: positions before scaling."""
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
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


def rope_scaling_of(value: object) -> RopeScaling | None:
    """What a JSON file holds as `rope_scaling`: null, or an object with RopeScaling's fields. Raises InputError."""
    if value is None or isinstance(value, RopeScaling):
        return value
    try:
        return RopeScaling(**value)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(f"rope_scaling: {error}") from None
