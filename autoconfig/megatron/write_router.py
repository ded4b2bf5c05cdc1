"""The router and the norms' epsilon in Megatron-LM's flags: what the model's source publishes, and what it does not."""

from __future__ import annotations

from autoconfig.megatron.argument import Collector
from autoconfig.specs.models.model import ModelSpec

RECOMMENDED_COEFFICIENT = 0.01
"""Megatron-LM's own words at --moe-aux-loss-coeff: "a starting value of 1e-2 is recommended"."""


def router_arguments(out: Collector, model: ModelSpec) -> None:
    """How experts are scored, chosen and balanced; Megatron's defaults where the model's numbers are not known."""
    router = model.router
    bias = model.moe_router_enable_expert_bias
    score = "sigmoid" if bias else router.score_function if router else "softmax"
    out.add("moe-router-score-function", score, why="the correction bias needs it" if bias else "")
    if router is not None and router.pre_softmax:
        out.add("moe-router-pre-softmax", why="scores are the softmax over all experts")
    elif score == "softmax" and model.moe_router_topk == 1:
        out.add("moe-router-pre-softmax", why="with top-1 the softmax of one score would have no gradient")
    if router is not None and router.num_groups is not None and router.group_topk is not None:
        out.add("moe-router-num-groups", router.num_groups, why=f"experts are chosen from {router.group_topk} groups")
        out.add("moe-router-group-topk", router.group_topk)
    if router is not None and router.topk_scaling_factor is not None:
        out.add("moe-router-topk-scaling-factor", router.topk_scaling_factor, why="routed_scaling_factor")
    if bias:
        out.add("moe-router-enable-expert-bias")
        if router is not None and router.bias_update_rate is not None:
            out.add("moe-router-bias-update-rate", router.bias_update_rate)
    _balance(out, model)
    out.add("moe-router-dtype", "fp32")


def _balance(out: Collector, model: ModelSpec) -> None:
    router = model.router
    kind = router.load_balancing_type if router else "seq_aux_loss" if model.moe_router_enable_expert_bias else "aux_loss"
    known = router.aux_loss_coeff if router else None
    out.add("moe-router-load-balancing-type", kind)
    why = "" if known is not None else "Megatron-LM's recommended start: the model's own is not known"
    out.add("moe-aux-loss-coeff", RECOMMENDED_COEFFICIENT if known is None else known, why=why)


def not_written(model: ModelSpec) -> list[str]:
    """Arguments that this model may need and whose values are not known: they change no time and no memory."""
    found = []
    if model.normalization == "RMSNorm" and model.norm_epsilon is None:
        found.append("--norm-epsilon (Megatron's default is 1e-5)")
    if model.is_moe and model.router is None:
        names = ["score-function", "pre-softmax", "topk-scaling-factor", "num-groups", "group-topk"]
        names += ["bias-update-rate"] if model.moe_router_enable_expert_bias else []
        found += [f"--moe-router-{name}" for name in names]
    return found
