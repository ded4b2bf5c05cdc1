"""Which rules of `autoconfig/training/rules.py` whole plans break: one plan, or a table of plans of one model at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoconfig.specs.errors import PlanError
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.pipeline_split import OWN_RULES, split_by_accounting
from autoconfig.training.rules import RULES, recompute_rule

_KEYS = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "dist_opt", "fsdp", "offload")
_ENDS = frozenset({"first", "last"})


def broken_rules(
    scenario: Scenario, plans: Sequence[TrainPlan], gpus: Sequence[int] = (), batches: Sequence[int] = ()
) -> list[list[str]]:
    """The ids of the rules that each plan breaks, in the order of the rules. `gpus` and `batches` are those of each plan; not
    given, the scenario's."""
    counts = list(gpus) or [scenario.cluster.num_gpus] * len(plans)
    found: list[list[str]] = [["AC005"] * (plan.world_size != count) for plan, count in zip(plans, counts, strict=True)]
    layers: list[tuple[int, ...]] = []
    for plan, broken in zip(plans, found, strict=True):
        try:
            layers.append(stage_layers(scenario.model, plan))
        except PlanError:
            layers.append(())
            broken.append(_broken_split(scenario, plan))
    columns = {key: np.array([getattr(plan, key) for plan in plans]) for key in _KEYS}
    columns["first"], columns["last"] = (np.array([stages[end] if stages else 1 for stages in layers]) for end in (0, -1))
    columns["num_gpus"] = np.array(counts)
    columns["global_batch_size"] = np.array(list(batches) or [scenario.workload.global_batch_size] * len(plans))
    for rule in RULES:
        legal = rule.legal(scenario, columns)
        if legal.all():
            continue
        for number in np.flatnonzero(~np.broadcast_to(legal, len(plans))):
            if layers[number] or not _ENDS & set(rule.needs):
                found[number].append(rule.id)
    for plan, stages, broken in zip(plans, layers, found, strict=True):
        if forbidden := recompute_rule(scenario, plan.recompute):
            broken.append(forbidden)
        if stages and plan.recompute.granularity == "full":
            most = max(stages) // plan.vpp if plan.recompute.method == "block" else max(stages)
            if plan.recompute.num_layers > most:
                broken.append("NV111")
    return [list(dict.fromkeys(broken)) for broken in found]


def _broken_split(scenario: Scenario, plan: TrainPlan) -> str:
    """The rule that a plan breaks whose layers do not fall into stages."""
    both = plan.first is not None and plan.last is not None
    unseen = plan.pp == 1 and both and (plan.first or 0) + (plan.last or 0) != scenario.model.num_layers
    return "AC007" if unseen else "NV024"


def broken_as_published(num_layers: int, plan: TrainPlan, broken: Sequence[str]) -> list[str]:
    """What of `broken` holds against a published plan whose uneven stages we worked out (`measured.even_ends`). Where its ends
    hold a layer less because embedding or loss counts as one (Megatron's account_for_..._in_pipeline_split, which the tables do
    not name and a plan cannot say), the rules of that split; other uneven stages in chunks are placed by a layout
    (--pipeline-model-parallel-layout), as NVIDIA's DeepSeek recipes do."""
    placed = plan.first is not None and (plan.vpp > 1 or _accounted(num_layers, plan))
    return [rule for rule in broken if not (placed and rule in OWN_RULES)]


def _accounted(num_layers: int, plan: TrainPlan) -> bool:
    """The ends are those of a split that counts embedding or loss as a layer."""
    for embedding, loss in ((True, True), (False, True), (True, False)):
        split = split_by_accounting(num_layers, plan.pp, plan.vpp, embedding=embedding, loss=loss)
        if not split.broken and split.ends(num_layers) == (plan.first, plan.last):
            return True
    return False
