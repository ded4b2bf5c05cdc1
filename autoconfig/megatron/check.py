"""`autoconfig check`: is the run of a file legal, does it fit, how fast is it, and is there a better plan for the same job?"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.flag_table import older_names
from autoconfig.megatron.omissions import MissingOverlap, missing_overlaps, omissions, with_overlaps
from autoconfig.megatron.read import as_megatron_takes_it
from autoconfig.megatron.switches import switch_arguments
from autoconfig.megatron.write import environment, numerics_arguments, optimizer_arguments, overlap_arguments, plan_arguments
from autoconfig.planning.resolve import read_cluster
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.nearest import ANY, changed_keys, nearest_legal
from autoconfig.training.plan_rules import OWN_RULES, PipelineSplit, without_effect
from autoconfig.training.price import PlanReport, Violation, report_plan, violations
from autoconfig.training.rank import Ranking, plainest_first, rank
from autoconfig.training.remedies import Remedies, Remedy
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints

CLOSE = 0.01
"""Among plans this close to the fastest, the one with the fewest changed keys is named."""
WORTH_SAYING = 0.01
RING = "AC024"
GIVEN_IN_VAIN = ("--tp-comm-overlap", "--fp8-param-gather")
"""Switches that a file may give where they have no effect, so that its plan's own arguments do not hold them."""
Flags = dict[str, tuple[str, ...]]
NOT_DEEPSPEED = frozenset(
    {
        "--use-torch-fsdp2",
        "--torch-fsdp2-no-reshard-after-forward",
        "--no-gradient-accumulation-fusion",
        "--use-distributed-optimizer",
        "--expert-tensor-parallel-size",
        "--cp-comm-type",
    }
)
"""Arguments that Megatron-DeepSpeed does not know: its sharding is --zero-stage."""
MAX_COMPARED = 500
OLDER = {
    "megatron-lm-2021": ("vpp",),
    "megatron-lm-2022": ("vpp", "core_attn"),
    "megatron-deepspeed-2022": (),
    "megatron-deepspeed-2023": (),
}
"""Stacks whose arguments know no uneven stages and no recompute modules, and which of the newer plan keys they know."""
NO_OTHER_PLAN = "the file trains with Megatron-FSDP, which plans cannot say: nothing is proposed and nothing edited"
_NODES_VARIABLE = re.compile(r"--(?:nnodes|num[-_]nodes|nodes)[=\s]+\"?\$\{?([A-Za-z_]\w*)")
SHARDS_OPTIMIZER = "megatron-lm-2022"
"""The one of them that knows --use-distributed-optimizer."""
SPLIT_RULES = {
    "NV030": "the stages of the pipeline layout must be a multiple of pp",
    "NV031": "the pipeline layout must hold E first and L last, once each, and every decoder and MTP layer of the model",
    "NV024": "the layers, with embedding and loss counted as the flags say, must divide over the stages",
    "NV044": "the layers of a stage, with embedding and loss counted as the flags say, must be a multiple of vpp",
}
TRIED = 64
"""Numbers of GPUs that are tried for a plan that its own do not hold."""


@dataclass(frozen=True, kw_only=True)
class FlagChange:
    """One argument that differs: its values before and after; None where it is absent."""

    flag: str
    """The argument, or the key of a trainer's file."""
    old: tuple[str, ...] | None
    """Values in the file; empty: a switch that is given."""
    new: tuple[str, ...] | None
    """Values to write; None: remove it."""


@dataclass(frozen=True, kw_only=True)
class CheckAnswer:
    """Everything that `check` says of a file."""

    source: CheckInput
    violations: tuple[Violation, ...]
    nearest: TrainPlan | None = None
    """The nearest legal plan, where the file's is not legal."""
    report: PlanReport | None
    """The file's plan, priced; None where it is not legal."""
    better: PlanReport | None = None
    """The plan to change to, of those that a search ranks; None where the file's is as good as any."""
    changes: tuple[FlagChange, ...] = ()
    fixes: tuple[FlagChange, ...] = ()
    plans_ranked: int = 0
    environment: tuple[str, ...] = ()
    """Lines that the script needs for the better (else the nearest legal) plan and does not have."""
    missing: tuple[MissingOverlap, ...] = ()
    """Overlaps that the file's legal plan could have and that are not given."""
    omitted: tuple[str, ...] = ()
    """What the script leaves out that its job will miss, beside overlaps."""
    without_effect: tuple[str, ...] = ()
    """What the file's legal plan asks for to no effect."""
    remedies: tuple[Remedy, ...] = ()
    """What would make it fit, where nothing does with the asked chance."""

    @property
    def fit_chance_met(self) -> bool:
        """Whether the plan to change to, or to keep where there is none, has the asked chance to fit."""
        report = self.better or self.report
        return report is not None and report.confidence.fit_probability >= self.source.question.request.fit_chance

    @property
    def speedup(self) -> float | None:
        """Return step time of the file's plan over the better one's; None where one of them is not known."""
        if self.report is None or self.better is None:
            return None
        return self.report.step_seconds / self.better.step_seconds


def check(source: CheckInput) -> CheckAnswer:
    """Check what was read."""
    scenario, plan, margin = source.question.scenario, source.plan, source.question.request.memory_margin
    broken = tuple(_with_gpus_wanted(violation, source) for violation in file_violations(source))
    answer = CheckAnswer(source=source, violations=broken, report=None if broken else report_plan(scenario, plan, None, margin))
    if source.megatron_fsdp or source.undecided or (source.refused and len(broken) == len(source.refused)):
        return answer
    if answer.report is not None:
        answer = replace(
            answer,
            missing=missing_overlaps(scenario, plan) if source.script else (),
            omitted=omissions(source),
            without_effect=without_effect(scenario, plan),
        )
    answer = _with_plans(answer)
    return answer if answer.fit_chance_met else replace(answer, remedies=tuple(_remedies(source)))


def _with_plans(answer: CheckAnswer) -> CheckAnswer:
    """Return the answer with the nearest legal plan, where the file's is not legal, and with a better one."""
    source, scenario, request = answer.source, answer.source.question.scenario, answer.source.question.request
    even = scenario.software.name in OLDER or source.wish is not None
    wish, plan = source.wish or ANY, source.plan
    nearest = nearest_legal(scenario, plan, even_only=even, wish=wish) if answer.violations else None
    wanted = overlapped(source)
    ranking = rank(wanted, source.wish or _wish(scenario, plan), request.memory_margin)
    better = better_plan(ranking, plan, answer.report, request.fit_chance, even_only=source.wish is not None)
    return replace(
        answer,
        nearest=nearest,
        better=None if better is None else report_plan(wanted, better, None, request.memory_margin),
        changes=changes_from(source, better, wanted) if better else (),
        fixes=changes_from(source, nearest) if nearest else (),
        environment=missing_environment(source, better or nearest),
        plans_ranked=len(ranking.row),
    )


def _remedies(source: CheckInput) -> Iterator[Remedy]:
    """Return what would help, among plans that the file's format can say and in its words."""
    if source.wish is None or source.spelled is None:
        yield from Remedies(source.question).all()
        return
    before = source.spelled(source.question.scenario, source.plan)
    for remedy in Remedies(replace(source.question, constraints=source.wish), source.ways).all():
        if remedy.plan is None or remedy.scenario is None:
            yield remedy
            continue
        after = source.spelled(remedy.scenario, remedy.plan)
        changed = [" ".join((name, *texts)) for name, texts in after.items() if before.get(name) != texts]
        yield replace(remedy, said=", ".join(changed) or "the file's plan")


def overlapped(source: CheckInput) -> Scenario:
    """Return the file's scenario with every overlap that its software has: what other plans are ranked with, and written
    with."""
    scenario = source.question.scenario
    return with_overlaps(scenario) if source.script else scenario


def file_violations(source: CheckInput) -> tuple[Violation, ...]:
    """Return the rules that the file's plan breaks, and what of its arguments is refused whatever the plan."""
    return (*_broken(source), *source.refused)


def _broken(source: CheckInput) -> tuple[Violation, ...]:
    """Return the rules that the file's plan breaks."""
    plan = as_megatron_takes_it(source.plan) if source.megatron_fsdp else source.plan
    return (*plan_violations(source.question.scenario, plan, source.split), *source.also_broken)


def plan_violations(scenario: Scenario, plan: TrainPlan, split: PipelineSplit | None) -> list[Violation]:
    """Return the broken rules; where the file places the layers itself, the rules of that way of placing them."""
    broken = violations(scenario, plan)
    if split is None:
        return broken
    own = [Violation(rule=rule, text=SPLIT_RULES.get(rule, RULE_TEXT.get(rule, ""))) for rule in split.broken]
    return [violation for violation in broken if violation.rule not in OWN_RULES] + own


def _with_gpus_wanted(violation: Violation, source: CheckInput) -> Violation:
    """Return the violation with how many GPUs hold the plan, and how to say so, where the file's cannot."""
    if violation.rule != "AC005":
        return violation
    plan, cluster = source.plan, source.question.scenario.cluster
    unit = math.lcm(plan.tp * plan.cp * plan.pp, plan.ep * plan.etp * plan.pp)
    if cluster.num_gpus % unit == 0:
        return violation
    first = -(-cluster.num_gpus // unit) * unit
    enough = next((gpus for gpus in range(first, first + TRIED * unit, unit) if _legal_on(source, gpus)), None)
    own = source.script is not None and source.script.num_gpus == cluster.num_gpus and not source.resized
    here = f"the file's are {cluster.num_gpus:,}" if own else f"--gpus says {cluster.num_gpus:,}"
    hint = f"; this plan needs a multiple of {unit:,} GPUs, and {here}"
    if enough is None:
        return replace(violation, text=f"{violation.text}{hint}: none up to {first + (TRIED - 1) * unit:,} makes it legal")
    hint += f": say --gpus {enough}"
    if not own:
        return replace(violation, text=violation.text + hint)
    nodes = _NODES_VARIABLE.search(source.text)
    set_by_file = nodes and re.search(rf"^[^\S\n]*+(?:export\s++)?{nodes[1]}=[\"']?[0-9]", source.text, re.MULTILINE)
    if nodes and not set_by_file and enough % cluster.gpus_per_node == 0:
        hint += f" or --set {nodes[1]}={enough // cluster.gpus_per_node}"
    return replace(violation, text=violation.text + hint)


def _legal_on(source: CheckInput, gpus: int) -> bool:
    """Whether the file's plan, with the data parallelism that follows, is legal on so many GPUs of the same kind."""
    plan, question = source.plan, source.question
    try:
        cluster = read_cluster(replace(question.request, gpus=gpus), [])
    except InputError:
        return False
    wider = replace(source, plan=replace(plan, dp=gpus // (plan.tp * plan.pp * plan.cp)))
    return not _broken(replace(wider, question=replace(question, scenario=replace(question.scenario, cluster=cluster))))


def better_plan(
    ranking: Ranking, plan: TrainPlan, report: PlanReport | None, fit_chance: float, *, even_only: bool = False
) -> TrainPlan | None:
    """Return, of the plans with this chance to fit, the fastest, or among those as good as it the one nearest to `plan`; where
    none has it the likeliest, as a search does. None where `plan` itself is as good by that rule."""
    positions = np.flatnonzero(_sayable(ranking, even_only))
    if not len(positions):
        return None
    chances = ranking.fit_chances()[positions]
    own = report.confidence.fit_probability if report is not None and report.fits else 0.0
    if not (chances >= fit_chance).any():
        likeliest = int(np.argmax(chances))
        return None if own >= chances[likeliest] - WORTH_SAYING else ranking.plan(int(positions[likeliest]))
    positions = positions[chances >= fit_chance]
    fastest = float(ranking.step_seconds[positions[0]])
    if report is not None and own >= fit_chance and report.step_seconds <= fastest * (1 + WORTH_SAYING):
        return None
    each = positions[np.sort(np.unique(ranking.row[positions], return_index=True)[1])]  # the fastest of each layout
    if own >= fit_chance and plan == ranking.plan(int(plainest_first(replace(ranking, best=each)).best[0])):
        return None  # a search names it first: a little slower than the fastest, and plainer
    close = positions[ranking.step_seconds[positions] <= fastest * (1 + CLOSE)]
    candidates = [ranking.plan(int(position)) for position in close[:MAX_COMPARED]]
    return min(candidates, key=lambda candidate: len(changed_keys(candidate, plan)))


def _wish(scenario: Scenario, plan: TrainPlan) -> Constraints | None:
    """Return the sharding that older software has arguments for: DeepSpeed keeps its ZeRO stage, Megatron-LM of 2022 may shard
    the optimizer's state. None for other software."""
    if scenario.software.name not in OLDER:
        return None
    shards = scenario.software.name == SHARDS_OPTIMIZER
    return Constraints(fixed={"dist_opt": frozenset({plan.dist_opt, shards or plan.dist_opt}), "fsdp": frozenset({plan.fsdp})})


def _sayable(ranking: Ranking, even_only: bool) -> npt.NDArray[np.bool_]:
    """Return which plans the software of the file has arguments for: no uneven stages or modules before they existed."""
    ok = np.ones(len(ranking.row), bool)
    if ranking.scenario.software.name == "torchtitan":  # its tensor parallelism always divides the sequence, too
        ok &= (ranking.space.layouts.tp[ranking.row] == 1) | (ranking.space.layouts.sp[ranking.row] == 1)
    words = OLDER.get(ranking.scenario.software.name)
    if words is None and not even_only:
        return ok
    layouts, rows = ranking.space.layouts, ranking.row
    ok &= layouts.first[rows] * layouts.pp[rows] == ranking.scenario.model.num_layers
    ok &= (layouts.pp[rows] == 1) | (layouts.first[rows] == layouts.last[rows])
    if words is None:
        return ok
    if "vpp" not in words:
        ok &= layouts.vpp[rows] == 1
    sayable = [r.granularity != "selective" or (r.modules == ("core_attn",) and "core_attn" in words) for r in ranking.options]
    return ok & np.array(sayable)[ranking.option]


def plan_flags(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """Return the arguments that depend on the plan: name -> values, as the software of the scenario spells them."""
    parts = (plan_arguments, numerics_arguments, optimizer_arguments, overlap_arguments, switch_arguments)
    flags = {argument.flag: argument.values for part in parts for argument in part(scenario, plan)}
    flags |= {"--micro-batch-size": (str(plan.mbs),)}
    if scenario.software.name.startswith("megatron-deepspeed"):
        flags = {name: values for name, values in flags.items() if name not in NOT_DEEPSPEED}
        flags["--zero-stage"] = (str(plan.fsdp or int(plan.dist_opt)),)
    return flags


def flag_changes(before: Flags, after: Flags) -> tuple[FlagChange, ...]:
    """Return what to change in the arguments, in the order in which Megatron's arguments are written."""
    names = dict.fromkeys([*after, *before])
    changes = (FlagChange(flag=name, old=before.get(name), new=after.get(name)) for name in names)
    return tuple(change for change in changes if change.old != change.new)


def changes_from(source: CheckInput, plan: TrainPlan, wanted: Scenario | None = None) -> tuple[FlagChange, ...]:
    """Return the changes from the file's arguments to those of `plan`, in the `wanted` scenario (default: the file's own)."""
    scenario = source.question.scenario
    if source.spelled is not None:
        return flag_changes(source.spelled(scenario, source.plan), source.spelled(wanted or scenario, plan))
    before = plan_flags(scenario, source.plan)
    words = {word.partition("=")[0].replace("_", "-") for word in source.script.words()} if source.script else set()
    before |= {name: () for name in GIVEN_IN_VAIN if name in words}  # another plan may not start with it, or run with it
    if any(violation.rule == RING for violation in source.also_broken):  # the file's exchange is not the plan's own
        before.pop("--cp-comm-type", None)
        before |= {"--cp-comm-type": ("p2p",)} if "--cp-comm-type" in words else {}
    changes = flag_changes(before, plan_flags(wanted or scenario, plan))
    return tuple(replace(change, flag=_as_spelled(change.flag, words)) for change in changes)


def _as_spelled(flag: str, words: Collection[str]) -> str:
    """Return the name that the file itself has for an argument."""
    return next((name for name in older_names(flag) if name in words and flag not in words), flag)


def missing_environment(source: CheckInput, plan: TrainPlan | None) -> tuple[str, ...]:
    """Return lines of shell for what `plan` needs in its environment, and the file's plan does not, and the file does not
    set."""
    if plan is None or source.kind not in ("script", "arguments"):
        return ()
    scenario = source.question.scenario
    had = environment(scenario, source.plan)
    needs = {name: value for name, value in environment(scenario, plan).items() if had.get(name, "") != value}
    lines = [f"unset {name}" if value is None else f"export {name}={value}" for name, value in needs.items()]
    return tuple(line for line in lines if line.removeprefix("export ") not in source.text)


def target(answer: CheckAnswer) -> tuple[TrainPlan, Scenario]:
    """Return what `--apply-to` writes: the better plan, else the nearest legal one, else the file's with the overlaps that it
    lacks. Raises InputError where there is none."""
    source = answer.source
    if source.megatron_fsdp:
        raise InputError(f"--apply-to: {NO_OTHER_PLAN}")
    if source.refused:
        raise InputError(f"--apply-to: another plan would be refused, too; change this first: {source.refused[0].text}")
    if source.undecided:
        raise InputError(f"--apply-to: no plan is said to be better beside what is not known: {', '.join(source.undecided)}")
    if answer.better is not None:
        return answer.better.plan, overlapped(source)
    if answer.nearest is not None:
        return answer.nearest, source.question.scenario
    if answer.missing:
        return source.plan, overlapped(source)
    raise InputError("--apply-to: there is nothing to change: the plan is legal, fits, and no better one was found")
