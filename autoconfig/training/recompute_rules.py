"""Which recomputations Megatron runs: the rules on a whole plan, beside those over columns of plans (rules.py).

A rule stands in one place. Its decorator says where Megatron refuses such a plan (ENFORCED_IN) and which line of Megatron-LM
d98e8a64 or Megatron-Bridge 067f987d does. Its check's docstring is its text; a second paragraph says why the judge (arguments
to schedule, on a machine without GPU) accepts what the rule forbids, or where exactly that is refused. Ids that start with NV
are of a catalogue whose other lines are `autoconfig/data/megatron_constraints.csv`: what no plan of a search can break. Ids
that start with AC are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoconfig.specs.plan import OUTPUT_DISCARDING, Recompute
from autoconfig.specs.run_settings import FULL_ITERATION
from autoconfig.specs.scenario import Scenario, all_biases

Broken = Callable[[Scenario, Recompute], bool]
JUDGED = ("arguments", "config", "groups", "schedule")
"""Refused by megatron-core before a GPU is needed: parsing and validation, TransformerConfig and OptimizerConfig, process
groups, the pipeline schedule's own checks."""
ENFORCED_IN = (*JUDGED, "kernels", "run time", "nowhere")
"""kernels: layers or collectives that cannot be built or called; run time: a check in the layers; nowhere: Megatron runs
something else than the plan says."""


@dataclass(frozen=True, kw_only=True)
class PlanRule:
    """One legality rule."""

    id: str
    text: str
    """What must hold, in Megatron's words."""
    enforced_in: str
    """Where Megatron refuses such a plan, one of ENFORCED_IN; `docs/legality.md` shows it against the real megatron-core."""
    reason: str = ""
    """Why the judge accepts it, or where exactly it is refused."""
    source: str = ""
    """Where Megatron's source has it; empty for a rule of ours."""


def documented(check: Callable[..., object], rule_id: str, enforced_in: str, source: str = "") -> dict[str, str]:
    """Return the fields of a PlanRule: text and reason are the two paragraphs of the check's docstring."""
    text, _, reason = (check.__doc__ or "").partition("\n\n")
    text, reason = (" ".join(part.split()).removesuffix(".") for part in (text, reason))
    return {"id": rule_id, "text": text, "enforced_in": enforced_in, "reason": reason, "source": source}


PLAN_RULES: list[PlanRule] = []
_CHECKS: list[tuple[str, Broken]] = []


def _rule(rule_id: str, enforced_in: str, source: str = "") -> Callable[[Broken], Broken]:
    """Register a check, which says whether a recomputation breaks the rule."""

    def register(function: Broken) -> Broken:
        PLAN_RULES.append(PlanRule(**documented(function, rule_id, enforced_in, source)))
        _CHECKS.append((rule_id, function))
        return function

    return register


def recompute_rule(scenario: Scenario, recompute: Recompute) -> str | None:
    """Return the first rule that forbids this recomputation for model and precision, whatever the layout; None when legal."""
    return next((rule for rule, broken in _CHECKS if broken(scenario, recompute)), None)


def _graphs(s: Scenario) -> frozenset[str]:
    """Return the parts of a layer that CUDA graphs were asked for; none of the full iteration, nor of a run that is read."""
    return frozenset() if s.given.of_a_run else (s.given.cuda_graphs or frozenset()) - {FULL_ITERATION}


def asks_offload(s: Scenario) -> bool:
    """Whether a search was asked for activations in host memory."""
    return bool(s.given.offload_layers) and not s.given.of_a_run


def asks_overlap(s: Scenario) -> bool:
    """Whether a search was asked for the overlap of the experts' communication."""
    return bool(s.given.ep_overlap) and not s.given.of_a_run


@_rule("NV081", "config", "megatron/core/transformer/transformer_config.py:3021-3032")
def overlapped_experts(s: Scenario, r: Recompute) -> bool:
    """EP overlap excludes full recomputation and recomputing moe."""
    return asks_overlap(s) and (r.granularity == "full" or "moe" in r.modules)


@_rule("NV122", "config", "megatron/core/transformer/transformer_config.py:1896")
def offloaded_activations(s: Scenario, r: Recompute) -> bool:
    """Offloaded activations exclude recomputation."""
    return asks_offload(s) and r.granularity != "none"


@_rule("NV146", "config", "megatron/core/transformer/transformer_config.py:2856")
def graphs_of_layers(s: Scenario, r: Recompute) -> bool:
    """full recomputation needs CUDA graphs to be off or of the full iteration."""
    return bool(_graphs(s)) and r.granularity == "full"


@_rule("NV152", "config", "megatron/core/transformer/transformer_config.py:2862")
def graphs_of_routers(s: Scenario, r: Recompute) -> bool:
    """recomputing moe excludes CUDA graphs of moe_router."""
    return "moe_router" in _graphs(s) and "moe" in r.modules


@_rule("AC012", "config")
def words_of_the_software(s: Scenario, r: Recompute) -> bool:
    """selective recomputation is by modules (selective:core_attn) in Megatron and most stacks, by operator (selective:op) in
    torchtitan, whose full one is of each layer (full:uniform:1)."""
    own = s.software.recomputes_by_operator
    other_full = r.granularity == "full" and r != Recompute("full", (), "uniform", 1)
    if own and not s.given.of_a_run and other_full:
        return True
    return bool(r.modules) and (r.by_operator != own or (own and len(set(r.modules)) > 1))


@_rule("NV115", "config", "megatron/core/transformer/transformer_config.py:1969")
def latent_projections(s: Scenario, r: Recompute) -> bool:
    """recomputing mla_up_proj needs multi-latent attention."""
    return "mla_up_proj" in r.modules and not s.model.multi_latent_attention


@_rule("NV114", "config", "megatron/core/transformer/transformer_config.py:1964")
def expert_activations(s: Scenario, r: Recompute) -> bool:
    """recomputing moe_act needs a mixture of experts (grouped GEMM)."""
    return "moe_act" in r.modules and not s.model.is_moe


@_rule("NV118", "config", "megatron/core/transformer/transformer_config.py:2000")
def delayed_scaling(s: Scenario, r: Recompute) -> bool:
    """recomputing moe_act or layernorm is refused with the delayed fp8 recipe."""
    delayed = s.numerics.precision == "fp8" and s.numerics.fp8_recipe == "delayed"
    return delayed and not {"moe_act", "layernorm"}.isdisjoint(r.modules)


@_rule("AC006", "nowhere")
def present_experts(s: Scenario, r: Recompute) -> bool:
    """recomputing moe or shared_experts needs a mixture of experts that has them.

    modules that are not there are passed over; the plan would not say what runs."""
    if not s.model.is_moe:
        return not {"moe", "shared_experts"}.isdisjoint(r.modules)
    return "shared_experts" in r.modules and not s.model.moe_shared_expert_intermediate_size


@_rule("AC004", "nowhere")
def present_mlp(s: Scenario, r: Recompute) -> bool:
    """recomputing mlp needs a layer with a dense MLP.

    a module that is not there is passed over; the plan would not say what runs."""
    return "mlp" in r.modules and not s.model.has_dense_mlp


@_rule("AC011", "run time")
def mlp_with_biases(s: Scenario, r: Recompute) -> bool:
    """recomputing mlp in layers with biases needs Transformer Engine's layers.

    the local MLP returns its bias, a parameter, as an output of the checkpoint, whose backward then calls itself without end.
    """
    return "mlp" in r.modules and all_biases(s.model) and not s.software.supports_mlp_recompute_with_biases


@_rule("NV121", "run time", "megatron/core/transformer/multi_token_prediction.py:1625")
def further_tokens(s: Scenario, r: Recompute) -> bool:
    """uniform full recomputation needs groups of 1 layer in a model with multi-token prediction.

    the multi-token-prediction layer asserts it in its first forward."""
    return bool(s.model.mtp_num_layers) and r.method == "uniform" and r.num_layers > 1


@_rule("AC010", "nowhere")
def known_modules(s: Scenario, r: Recompute) -> bool:
    """this software stack has no selective recomputation of these modules (software before megatron-core 0.12: of layernorm,
    mla_up_proj and moe_act; some stacks: of none).

    what a software stack has is ours to know."""
    discarding = not s.software.supports_output_discarding and not set(OUTPUT_DISCARDING).isdisjoint(r.modules)
    return discarding or (bool(r.modules) and not s.software.supports_selective_recompute)


def recompute_fits_layers(
    recompute: Recompute, chunk_layers: npt.NDArray[Any], stage_layers: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """full recomputation needs a number of layers from 1 to the layers of a stage (block: of a model chunk).

    Megatron's documentation; larger numbers run as all layers, so the plan would not say what runs."""
    if recompute.granularity != "full":
        return np.ones(len(chunk_layers), bool)
    return recompute.num_layers <= (stage_layers if recompute.method == "uniform" else chunk_layers)


PLAN_RULES += [
    PlanRule(
        **documented(recompute_fits_layers, "NV111", "nowhere", "megatron/core/transformer/transformer_config.py:1913-1925")
    ),
    PlanRule(
        id="AC007",
        text="first and last together need pp above 1",
        enforced_in="nowhere",
        reason="with pp 1 Megatron builds as many layers as last says and trains a smaller model without a word",
    ),
    PlanRule(
        id="AC005",
        text="the plan's tp x pp x cp x dp must be the number of GPUs",
        enforced_in="nowhere",
        reason="Megatron has no argument for dp: it takes what is left of the GPUs",
    ),
]
"""Checked where stages are counted (plan_rules.py)."""
