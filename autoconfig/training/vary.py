"""Other switches of a run: which make the first plan fastest, where that is asked (`--vary`), and what each does to a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from autoconfig.memory_model.predict import estimate_memory
from autoconfig.planning.request_fields import SWITCHES
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.json_record import AboveZero
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.run_settings import FULL_ITERATION, FUSED, RunSettings
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DISPATCHERS
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.price import PlanReport, violations
from autoconfig.training.question import Question, Variant, understand
from autoconfig.training.rank import Ranking, rank
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.switches import graphs_text

VALUES: dict[str, tuple[str | bool, ...]] = {
    "dispatcher": DISPATCHERS,
    "cuda_graphs": ("none", "attn,moe_router,moe_preprocess", "full_iteration"),
    "ep_overlap": (True, False),
    "fused_experts": (True, False),
    "fp8_attention": (True, False),
    "fp8_output": (True, False),
}
"""What each switch is tried with, in this order."""
MAX_ROUNDS = 3
FEW = 8
"""So many settings of the switches are all tried: the one that is best alone may exclude the best pair."""
UNCHANGED = "as the software has them"


def names_to_vary(texts: Sequence[str]) -> tuple[str, ...]:
    """Fields of SWITCHES, in their order, of words with commas between them. Raises InputError."""
    words = [word.strip().lower().replace("-", "_") for text in texts for word in text.split(",") if word.strip()]
    if odd := [word for word in words if word not in VALUES]:
        known = ", ".join(name.replace("_", "-") for name in VALUES)
        raise InputError(f"{option('vary')} {odd[0][:40]!r}: use {known}, with commas between them", field="vary")
    if not words:
        raise InputError(f"{option('vary')}: name the switches to try, like dispatcher,ep-overlap", field="vary")
    return tuple(name for name in field_names(SWITCHES) if name in words)


class Variation:
    """The search with those switches that are varied: one after the other, each with all its values and the best of the others,
    until none changes; of few settings all."""

    def __init__(
        self, question: Question, ranked: Callable[[Question], Ranking], progress: Callable[[str], None] | None = None
    ) -> None:
        """Search with the switches as they are. Raises InputError where one of those that vary is given."""
        self.question, self.ranked, self.progress = question, ranked, progress
        self.names = names_to_vary(question.request.vary)
        if given := [name for name in self.names if question.request.switches.get(name) is not None]:
            name = given[0].replace("_", "-")
            raise InputError(f"give either {option(given[0])} or {option('vary')} {name}, not both", field="vary")
        self._say(UNCHANGED)
        self.best, self.ranking = question, ranked(question)
        self.first, self.least = self.ranking, _first_step(self.ranking)
        self.tried = {UNCHANGED: Variant(UNCHANGED, self.least, _why_none(self.ranking, self.first))}

    def outcome(self) -> tuple[Question, Ranking]:
        """The question with the switches whose first plan is fastest, and its ranking; the question holds what was tried.
        Raises InputError where no value of a switch is of use to the model."""
        for turn in range(MAX_ROUNDS):
            before = self.least
            for name in self.names:
                refused = [error for value in VALUES[name] if (error := self._attempt({name: value})) is not None]
                if len(refused) == len(VALUES[name]):
                    raise refused[-1]
            if (turn and self.least == before) or len(self.names) == 1:
                break
        if 1 < math.prod(len(VALUES[name]) for name in self.names) <= FEW:
            for values in product(*(VALUES[name] for name in self.names)):
                self._attempt(dict(zip(self.names, values, strict=True)))
        chosen = _said(self.best.request.switches, self.names) or UNCHANGED
        variants = sorted(self.tried.values(), key=lambda one: (one.step_seconds, one.words != chosen))
        request = replace(self.question.request, switches=self.best.request.switches)
        return replace(self.best, request=request, varied=tuple(variants)), self.ranking

    def _say(self, words: str) -> None:
        if self.progress is not None:
            self.progress(words)

    def _attempt(self, changes: Mapping[str, str | bool]) -> InputError | None:
        """Search with the best switches and these changes; the reason where they cannot be."""
        switches = {**self.best.request.switches, **changes}
        words = _said(switches, self.names)
        try:
            other = understand(replace(self.best.request, switches=switches))
            same = other.scenario.settings() == self.best.scenario.settings()
        except InputError as error:
            self.tried[words] = Variant(words, math.inf, str(error))
            return error
        if same or words in self.tried:
            return None
        self._say(words)
        ranking = self.ranked(other)
        step = _first_step(ranking)
        self.tried[words] = Variant(words, step, _why_none(ranking, self.first))
        if step < self.least:
            self.best, self.ranking, self.least = other, ranking, step
        return None


def _first_step(ranking: Ranking) -> float:
    return float(ranking.step_seconds[int(ranking.best[0])]) if len(ranking.best) else math.inf


def _why_none(ranking: Ranking, first: Ranking) -> str:
    """Why a setting of the switches has no plan: too large, or the rule that forbids most of what is legal without it; empty
    where it has one."""
    if len(ranking.best):
        return ""
    if ranking.funnel.legal:
        return "no plan fits"
    before = first.funnel.rejected_by_rule
    more = {rule: count - before.get(rule, 0) for rule, count in ranking.funnel.rejected_by_rule.items()}
    rule = max(more, key=lambda rule: more[rule])
    return f"no legal plan ({rule}: {RULE_TEXT[rule]})" if rule in RULE_TEXT else "no legal plan"


def _said(switches: Mapping[str, object], names: Sequence[str]) -> str:
    given = [(name.replace("_", "-"), switches[name]) for name in names if switches.get(name) is not None]
    words = ((name, ("off", "on")[value] if isinstance(value, bool) else value) for name, value in given)
    return ", ".join(f"{name} {word}" for name, word in words)


def varied_remarks(question: Question) -> tuple[Remark, ...]:
    """What was tried; nothing where nothing was asked."""
    if not question.varied:
        return ()
    chosen = "none is possible" if math.isinf(question.varied[0].step_seconds) else f"fastest with {question.varied[0].words}"
    why = f"{chosen}. First plans: {'; '.join(map(str, question.varied))}"
    return (Remark("vary", question.varied[0].words, why, Effect.EVERYTHING),)


PARTS = frozenset({"attn", "moe_router", "moe_preprocess"})
"""What is replayed of a layer whose experts are launched."""


WORTH_NAMING = 0.005
"""Least change of a dense model's step: where the GPU is never idle, graphs change nothing."""


DECISIVE = 0.05
"""Share of the step above which a switch is named on the first screen."""
OTHER_DISPATCHER = "deepep"
"""Of mixtures whose tokens reach their experts by collectives: the library that runs on the most clusters."""


@dataclass(frozen=True, kw_only=True)
class SwitchGain:
    """What one other switch makes of a plan's step."""

    change: str
    """The switch and its other value."""
    step_seconds: AboveZero
    """Time of the step with it."""
    ratio: AboveZero
    """Step time with it over that without."""

    @property
    def decides(self) -> bool:
        """It moves the step by more than DECISIVE."""
        return abs(self.ratio - 1.0) > DECISIVE

    @classmethod
    def of_dispatcher(cls, question: Question, first: PlanReport) -> SwitchGain | None:
        """What the fastest plan of the question takes under OTHER_DISPATCHER, beside the first plan without it: expert
        parallelism that costs too much by collectives may be the best there. None where the question names a dispatcher or
        varies it, where the first plan has another than `alltoall`, of software that is not Megatron's, where the GPUs do not
        run it, and within DECISIVE."""
        scenario, request = question.scenario, question.request
        asked = scenario.given.dispatcher is not None or bool(request.vary) or scenario.software.sharding != "megatron"
        if asked or not scenario.model.is_moe or scenario.settings(first.plan).dispatcher != "alltoall":
            return None
        changed = replace(scenario, given=replace(scenario.given, dispatcher=OTHER_DISPATCHER))
        try:
            ranking = rank(changed, question.constraints, request.memory_margin, 1, request.fit_chance)
        except InputError:  # of another vendor's GPUs
            return None
        if not len(ranking.best) or not ranking.fit_chance_met:
            return None
        seconds = float(ranking.step_seconds[ranking.best[0]])
        gain = cls(change=f"--dispatcher {OTHER_DISPATCHER}", step_seconds=seconds, ratio=seconds / first.step_seconds)
        return gain if gain.ratio <= 1.0 - DECISIVE else None


@dataclass(frozen=True)
class OtherSwitches:
    """A legal plan with one switch changed at a time: each other CUDA-graph scope and, of a mixture of experts, each other
    dispatcher, overlap and kernel that Megatron runs with it."""

    scenario: Scenario
    plan: TrainPlan

    def gains(self) -> list[SwitchGain]:
        """The step under each of them; of dense models those that change it by WORTH_NAMING."""
        return [gain for _, gain in self._each()]

    def deciding(self) -> tuple[SwitchGain, ...]:
        """Of each switch the other value that makes the quickest step, where it moves the step by more than DECISIVE; what
        moves most first."""
        best: dict[str, SwitchGain] = {}
        for name, gain in self._each():
            best[name] = min(gain, best.get(name, gain), key=lambda one: one.ratio)
        return tuple(sorted((gain for gain in best.values() if gain.decides), key=lambda gain: -abs(gain.ratio - 1.0)))

    def _each(self) -> Iterator[tuple[str, SwitchGain]]:
        """(the switch, what its other value does)."""
        scenario, plan = self.scenario, self.plan
        today = _step_seconds(scenario, plan)
        for text, change in _other_switches(scenario, scenario.settings(plan)):
            changed = replace(scenario, given=replace(scenario.given, **change))
            try:
                settings = changed.settings(plan)
            except InputError:  # of another vendor's GPUs
                continue
            taken = all(getattr(settings, name) == value for name, value in change.items())
            if not taken or violations(changed, plan):
                continue
            seconds = _step_seconds(changed, plan)
            if scenario.model.is_moe or abs(seconds / today - 1.0) >= WORTH_NAMING:
                yield next(iter(change)), SwitchGain(change=text, step_seconds=seconds, ratio=seconds / today)


def with_fp8(question: Question, report: PlanReport) -> SwitchGain | None:
    """The step of a plan in 16 bits with the layers' GEMMs in fp8, as the software usually scales it on this GPU; None where
    these run no fp8, where weights are frozen, where the plan is not legal or does not fit so, and within DECISIVE."""
    scenario, request = question.scenario, question.request
    if scenario.numerics.precision not in ("bf16", "fp16") or not scenario.numerics.trains_all:
        return None
    try:
        asked = replace(request, numerics={**request.numerics, "precision": "fp8"}, vary=(), include=())
        changed = replace(scenario, numerics=understand(asked).scenario.numerics)
        changed.cluster.gpu.peak_flops_per_s(changed.numerics.gemm_precision)
    except InputError:
        return None
    plan = report.plan
    seconds = _step_seconds(changed, plan)
    ratio = seconds / report.step_seconds
    if abs(ratio - 1.0) <= DECISIVE or violations(changed, plan):
        return None
    if not estimate_memory(changed, changed.layouts([plan]), [plan.recompute], margin=request.memory_margin).fits[0, 0]:
        return None
    recipe = changed.numerics.fp8_recipe
    return SwitchGain(change=f"fp8 ({recipe} scaling)", step_seconds=seconds, ratio=ratio)


def _other_switches(scenario: Scenario, now: RunSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    if not scenario.model.is_moe:
        yield from _other_graphs(now, {"full-iteration": frozenset({FULL_ITERATION}), "no": frozenset()})
        return
    for name in DISPATCHERS:
        if name != now.dispatcher:
            yield f"{name} instead of {now.dispatcher}", {"dispatcher": name}
    numerics = scenario.numerics
    whole = {"full-iteration": frozenset({FULL_ITERATION})}
    sizes_known = numerics.moe_capacity_factor is not None or now.static_sizes
    yield from _other_graphs(now, {**(whole if sizes_known else {}), "partial": PARTS, "no": frozenset()})
    yield f"{'without' if now.ep_overlap else 'with'} EP overlap", {"ep_overlap": not now.ep_overlap}
    if now.fused_experts or numerics.format.recipe == FUSED:
        yield f"experts {'not ' if now.fused_experts else ''}fused", {"fused_experts": not now.fused_experts}
    if numerics.format.quantised:
        yield f"attention {'not ' if now.fp8_attention else ''}in fp8", {"fp8_attention": not now.fp8_attention}


def _other_graphs(now: RunSettings, scopes: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, scope in scopes.items():
        if scope != now.cuda_graphs:
            parts = f" ({' '.join(sorted(scope))})" if kind == "partial" else ""
            yield f"{kind} CUDA graphs{parts} instead of {graphs_text(now)}", {"cuda_graphs": scope}


def _step_seconds(scenario: Scenario, plan: TrainPlan) -> float:
    return float(estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute]).step_seconds[0, 0])
