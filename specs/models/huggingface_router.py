"""Router and norm epsilon in a Hugging Face config.json -> ModelSpec fields. What a file does not say stays unknown."""

from __future__ import annotations

from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.model import RouterNumbers


def norm_epsilon(cfg: ConfigReader) -> float | None:
    """The norms' epsilon; None where the file does not say it."""
    key = next((key for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps") if key in cfg), None)
    return None if key is None else cfg.number(key)


def softmax_router(cfg: ConfigReader, normalises: bool | None) -> dict[str, Any]:
    """`normalises`: whether the family normalises the chosen scores (Mixtral: always); None where norm_topk_prob says it."""
    if normalises is None and "norm_topk_prob" not in cfg:
        return {}
    over_all = not (cfg.boolean("norm_topk_prob", True) if normalises is None else normalises)
    coefficient = cfg.number("router_aux_loss_coef") if "router_aux_loss_coef" in cfg else None
    return {"router": RouterNumbers(score_function="softmax", pre_softmax=over_all, aux_loss_coeff=coefficient)}


def deepseek_router(cfg: ConfigReader) -> dict[str, Any]:
    """DeepSeek-V3's norm_topk_prob is true, and Megatron's sigmoid scores are normalised always."""
    if "scoring_func" not in cfg:
        return {}
    score, grouped = cfg.text("scoring_func"), cfg.text("topk_method", "") in ("group_limited_greedy", "noaux_tc")
    groups = cfg.optional_integer("n_group") if grouped else None
    return {
        "router": RouterNumbers(
            score_function=score,
            pre_softmax=score == "softmax" and not cfg.boolean("norm_topk_prob", False),
            topk_scaling_factor=cfg.number("routed_scaling_factor", 1.0),
            num_groups=groups,
            group_topk=cfg.optional_integer("topk_group") if groups else None,
            load_balancing_type="seq_aux_loss" if cfg.boolean("seq_aux", True) else "aux_loss",
            aux_loss_coeff=cfg.number("aux_loss_alpha") if "aux_loss_alpha" in cfg else None,
        )
    }
