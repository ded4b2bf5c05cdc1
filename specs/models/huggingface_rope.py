"""Rotary positions in a Hugging Face config.json -> ModelSpec fields.

Keys and defaults follow `transformers` 4.57, modeling_rope_utils.py; `rope_parameters` is how version 5 writes them.
"""

from __future__ import annotations

from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.model import LLAMA3_ORIGINAL, YARN_ORIGINAL, RopeScaling

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": float(LLAMA3_ORIGINAL)}
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0}
"""What Megatron-LM has fixed, or fixed for multi-latent attention."""


def rotary_fields(cfg: ConfigReader, base: int = 10_000, percent: float = 1.0) -> dict[str, Any]:
    """position_embedding_type, rotary_base, rotary_percent, rope_scaling; `base`, `percent`: the family's for absent keys."""
    scaling = _scaling(cfg.section("rope_scaling") if "rope_scaling" in cfg else cfg.section("rope_parameters"))
    return {
        "position_embedding_type": "yarn" if scaling is not None and scaling.type == "yarn" else "rope",
        "rotary_base": _base(cfg, base),
        "rotary_percent": _percent(cfg, percent),
        "rope_scaling": scaling,
    }


def _base(cfg: ConfigReader, default: int) -> int:
    for reader, key in ((cfg, "rope_theta"), (cfg.section("rope_parameters"), "rope_theta"), (cfg, "rotary_emb_base")):
        if key in reader:
            value = reader.number(key)
            if value < 1 or value >= 2**31 or value != int(value):
                raise reader.fail(f"{key}={value:g} must be a whole number from 1 (Megatron-LM's --rotary-base takes no other)")
            return int(value)
    return default


def _percent(cfg: ConfigReader, default: float) -> float:
    for reader, key in (
        (cfg, "partial_rotary_factor"),
        (cfg.section("rope_parameters"), "partial_rotary_factor"),
        (cfg, "rotary_pct"),
    ):
        if key in reader:
            value = reader.number(key)
            if not 0 < value <= 1:
                raise reader.fail(f"{key}={value:g} must be above 0 and at most 1")
            return value
    return default


def _scaling(section: ConfigReader) -> RopeScaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    factor = section.number("factor", 1.0)
    if kind == "linear":
        return RopeScaling(type="linear", factor=factor)
    if kind == "llama3":
        usual = all(section.number(key, value) == value for key, value in _LLAMA3.items())
        return RopeScaling(type="llama3" if usual else "other", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            type="yarn" if all(section.number(key, value) == value for key, value in _YARN.items()) else "other",
            factor=factor,
            original_max_position_embeddings=section.integer("original_max_position_embeddings", YARN_ORIGINAL),
            mscale=section.number("mscale", 1.0),
            mscale_all_dim=section.number("mscale_all_dim", 0.0),
            truncate=section.boolean("truncate", True),
        )
    return RopeScaling(type="other", factor=factor)
