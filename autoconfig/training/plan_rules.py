"""Which rules of `autoconfig/training/rules.py` whole plans break: one plan, or a table of plans of one model at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoconfig.specs.errors import InputError, PlanError
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.models.parameters import norms_apart
from autoconfig.specs.plan import DEGREES, ENDS, SHARDING, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.recompute_rules import recompute_rule
from autoconfig.training.rules import RULES

IDLE = (
    "recomputing layernorm frees nothing here: {software} fuses the norms before attention and dense MLPs into the matrices "
    "behind them, and {model} has no other; leave layernorm out"
)
MAX_LETTERS = 100_000
_GROUP = re.compile(r"\(([^()]+)\)\*([0-9]{1,6})")
_LETTER = re.compile(r"([EtmL])\*([0-9]{1,6})")
_WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
OWN_RULES = frozenset({"NV024", "NV026", "NV044", "NV027", "AC033"})
"""Rules about even and uneven stages that do not apply where a layout or the account-for flags place every layer."""


@dataclass(frozen=True, kw_only=True)
class PipelineSplit:
    """The decoder layers of every pipeline rank, and the rules that the split breaks by itself."""

    vpp: int
    layers: tuple[int, ...]
    broken: tuple[str, ...] = ()
    text: str = ""

    @property
    def even_inside(self) -> bool:
        """The ranks between the first and the last hold alike."""
        return len(set(self.layers[1:-1])) <= 1

    def ends(self, num_layers: int) -> tuple[int | None, int | None]:
        """(first, last) of the plan that stands for the split; None, None for even stages."""
        pp = len(self.layers)
        if len(set(self.layers)) == 1 or pp == 1 or sum(self.layers) != num_layers:
            return None, None
        if self.even_inside and min(self.layers) > 0:
            return self.layers[0], self.layers[-1]
        if num_layers % pp == 0 or num_layers < pp:
            return None, None
        for middle in (-(-num_layers // pp), num_layers // pp):
            rest = num_layers - middle * (pp - 2)
            if rest >= 2:
                first = min(max(self.layers[0], 1), rest - 1)
                return first, rest - first
        return None, None


def split_of_layout(text: str, pp: int, num_layers: int, mtp_layers: int) -> PipelineSplit:
    """The split that a layout gives. Raises InputError for text that is no layout; what Megatron refuses is in `broken`."""
    chunks = layout_chunks(text)
    broken = []
    if len(chunks) % pp:
        raise InputError(
            f"pipeline layout {_short(text)} has {len(chunks)} stages, no multiple of pp {pp} (NV030); add or remove stages (|)"
        )
    flat = "".join(chunks)
    right_ends = flat.startswith("E") and flat.endswith("L") and flat.count("E") == 1 and flat.count("L") == 1
    if not right_ends or flat.count("t") != num_layers or flat.count("m") not in (mtp_layers, 0):
        broken.append("NV031")
    layers = [0] * pp
    for position, chunk in enumerate(chunks):
        layers[position % pp] += chunk.count("t")
    return PipelineSplit(vpp=len(chunks) // pp, layers=tuple(layers), broken=tuple(broken), text=text)


def layout_chunks(text: str) -> list[str]:
    """The chunks of a layout string, or of a list of lists of words, as letters. Raises InputError naming what is odd."""
    if text.strip().startswith("["):
        return _chunks_of_list(text)
    letters = text.replace(",", "").replace(" ", "")
    for pattern in (_GROUP, _LETTER):
        if sum(len(m[1]) * int(m[2]) for m in pattern.finditer(letters)) > MAX_LETTERS:
            raise InputError(f"pipeline layout {_short(text)} repeats to more than {MAX_LETTERS:,} letters")
        letters = pattern.sub(lambda m: m[1] * int(m[2]), letters)
    odd = set(letters) - set("EtmL|")
    if odd or not letters:
        raise InputError(
            f"pipeline layout {_short(text)}: {''.join(sorted(odd)) or 'nothing'} cannot be read; use E, t, m, L, | between "
            "stages, and x*3 or (xx|)*3"
        )
    return letters.split("|")


def _chunks_of_list(text: str) -> list[str]:
    try:
        rows = ast.literal_eval(text)
        return ["".join(_WORDS[word] for word in row) for row in rows]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise InputError(f"pipeline layout {_short(text)} is no whole list of lists of {', '.join(_WORDS)}") from None


def split_by_accounting(num_layers: int, pp: int, vpp: int, *, embedding: bool, loss: bool) -> PipelineSplit:
    """Embedding and / or loss count as a layer of the first / last chunk (account_for_..._in_pipeline_split)."""
    counted = num_layers + int(embedding) + int(loss)
    broken = ("NV024",) if counted % pp else ("NV044",) if counted // pp % vpp else ()
    layers = [counted // pp] * pp
    layers[0] -= int(embedding)
    layers[-1] -= int(loss)
    return PipelineSplit(vpp=vpp, layers=tuple(layers), broken=broken)


def spread_layers(num_layers: int, pp: int) -> PipelineSplit:
    """The stages of DeepSpeed, which takes any number of layers: the first ones hold one more (deepspeed/runtime/utils.py,
    partition_uniform, and partition_balanced with equal weights)."""
    return PipelineSplit(vpp=1, layers=tuple(num_layers // pp + int(rank < num_layers % pp) for rank in range(pp)))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def broken_rules(
    scenario: Scenario, plans: Sequence[TrainPlan], gpus: Sequence[int] = (), batches: Sequence[int] = ()
) -> list[list[str]]:
    """The ids of the rules that each plan breaks, in the order of the rules. `gpus` and `batches` are those of each plan; not
    given, the scenario's."""
    layers = [_whole_stages(scenario, plan) for plan in plans]
    columns = {key: np.array([getattr(plan, key) for plan in plans]) for key in (*DEGREES, "sp", *SHARDING)}
    columns["num_gpus"] = np.array(list(gpus) or [scenario.cluster.num_gpus] * len(plans))
    found = [
        [*["AC005"] * (plan.world_size != count), *_broken_split(scenario, plan, stages)]
        for plan, stages, count in zip(plans, layers, columns["num_gpus"].tolist(), strict=True)
    ]
    columns["first"], columns["last"] = (np.array([stages[end] if stages else 1 for stages in layers]) for end in (0, -1))
    columns["global_batch_size"] = np.array(list(batches) or [scenario.workload.global_batch_size] * len(plans))
    for rule in RULES:
        for number in np.flatnonzero(~np.broadcast_to(rule.legal(scenario, columns), len(plans))):
            if layers[number] or {*ENDS}.isdisjoint(rule.needs):
                found[number].append(rule.id)
    for plan, stages, broken in zip(plans, layers, found, strict=True):
        broken += filter(None, (recompute_rule(scenario, plan.recompute), _too_many_layers(plan, stages)))
    return list(map(list, map(dict.fromkeys, found)))


def _whole_stages(scenario: Scenario, plan: TrainPlan) -> tuple[int, ...]:
    """Layers of each stage; none where they do not fall into stages."""
    try:
        return stage_layers(scenario.model, plan)
    except PlanError:
        return ()


def _too_many_layers(plan: TrainPlan, stages: tuple[int, ...]) -> str | None:
    """Return the rule that full recomputation of more layers than a stage, or a model chunk, has breaks; None without."""
    if not stages or plan.recompute.granularity != "full":
        return None
    most = max(stages) // plan.vpp if plan.recompute.method == "block" else max(stages)
    return "NV111" if plan.recompute.num_layers > most else None


def _broken_split(scenario: Scenario, plan: TrainPlan, stages: tuple[int, ...]) -> tuple[str, ...]:
    """The rule that a plan breaks whose layers do not fall into stages; none where they do."""
    if stages:
        return ()
    both = plan.first is not None and plan.last is not None
    unseen = plan.pp == 1 and both and (plan.first or 0) + (plan.last or 0) != scenario.model.num_layers
    return ("AC007",) if unseen else ("NV024",)


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


def is_idle(scenario: Scenario, module: str) -> bool:
    """Whether recomputing a module that may be named frees nothing: `layernorm` where no norm is a module of its own."""
    fused = scenario.software.memory.norms_fused
    return module == "layernorm" and not any(any(norms_apart(scenario.model, kind, fused)) for kind in scenario.model.kinds)


def without_effect(scenario: Scenario, plan: TrainPlan) -> tuple[str, ...]:
    """What a legal plan asks for to no effect."""
    idle = any(is_idle(scenario, module) for module in plan.recompute.modules)
    return (IDLE.format(software=scenario.software.name, model=scenario.model.name),) if idle else ()
