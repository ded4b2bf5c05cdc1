"""Published training steps and their predictions, with constants that have or have not seen them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Calibration, Scenario
from autoconfig.specs.software.software import SoftwareStack, load_stack
from autoconfig.time_model.predict import estimate_step_time

from autoconfig.calibration.observe import Observation, Run, gpu_name, observe, run_of
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.training_row import Case
from autoconfig.training.confidence import class_of_seen
from validation.fit.steps import fit
from validation.published import published_rows, published_runs, useful_for_calibration
from validation.sheets.figures import Figures, Line, error_line, figures_of
from validation.sources import HeldTo, bars_held, source_of, unknown_stack

LeaveOut = Literal["source", "model", "pair", "release", "publisher"] | None
"""What the constants may not have seen: nothing, the run's source, the run's model in that source, its model on its GPU, its
release (the newest ones together), or the run's source with NVIDIA's tables of all GPUs as one."""
NEWEST = "nemo-26.06"
"""Releases from here on are one generation: full-iteration graphs and fused experts."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One run beside its prediction."""

    run: Run
    step_seconds: float
    level: str

    @property
    def ratio(self) -> float:
        return self.step_seconds / self.run.measured_s - 1.0

    @cached_property
    def log_ratio(self) -> float:
        return math.log(self.run.measured_s / self.step_seconds)

    @cached_property
    def source(self) -> str:
        return self.run.case.source


def predict_steps(cases: Sequence[tuple[Scenario, TrainPlan]]) -> list[float]:
    """Step seconds of plans, priced together where only the plan, the number of GPUs and the batch differ."""
    groups: dict[Scenario, list[int]] = {}
    for index, (scenario, _) in enumerate(cases):
        alike = scenario.on(num_gpus=scenario.cluster.gpus_per_node).with_batch(1)  # columns of the layouts
        groups.setdefault(alike, []).append(index)
    steps = [0.0] * len(cases)
    for alike, members in groups.items():
        settings, plans = zip(*(cases[index] for index in members), strict=True)
        recomputes = list(dict.fromkeys(plan.recompute for plan in plans))
        batches, gpus = zip(*((s.workload.global_batch_size, s.cluster.num_gpus) for s in settings), strict=True)
        estimate = estimate_step_time(alike, alike.layouts(plans, batches, gpus), recomputes)
        for row, (index, plan) in enumerate(zip(members, plans, strict=True)):
            steps[index] = float(estimate.step_seconds[row, recomputes.index(plan.recompute)])
    return steps


Key = tuple[str, ...]


@dataclass
class Constants:
    """The calibration for each run: the shipped one, or one fitted without the run's source or model, each fitted once."""

    leave_out: LeaveOut
    observed: tuple[Observation, ...] | None = None
    """What they are fitted on; None: the published runs."""
    _fitted: dict[Key, Calibration] = field(default_factory=dict)

    def of(self, source: str, model: str, gpu: str = "", release: str = "") -> Calibration:
        if self.leave_out is None:
            return shipped()
        key = self._key(source, model, gpu, release)
        if key not in self._fitted:
            observations = _observations() if self.observed is None else self.observed
            others = [observation for observation in observations if not self._same(observation, key)]
            if len(others) == len(observations):
                self._fitted[key] = self._of_all(observations)
            else:
                self._fitted[key] = fit(others, "without " + ", ".join(key))
        return self._fitted[key]

    def _of_all(self, observations: Sequence[Observation]) -> Calibration:
        if () not in self._fitted:
            self._fitted[()] = fit(observations, "all published runs")
        return self._fitted[()]

    def applied(self, case: Case) -> Scenario:
        scenario = case.scenario
        calibration = self.of(case.source, scenario.model.name, scenario.cluster.gpu.id, scenario.software.release)
        return replace(scenario, calibration=calibration)

    def _same(self, observation: Observation, key: Key) -> bool:
        return self._key(observation.source, observation.model, observation.gpu, observation.release) == key

    def _key(self, source: str, model: str, gpu: str, release: str) -> Key:
        """What is left out together. A catalogue model with changed numbers (deepseek-v3*) is the same model."""
        if self.leave_out == "source":
            return (paper_of(source),)
        if self.leave_out == "publisher":
            return (publisher_of(source),)
        if self.leave_out == "release":
            return (_table_of(source), NEWEST if release >= NEWEST else release)
        return (_table_of(source), model.rstrip("*"), *((gpu,) if self.leave_out == "pair" else ()))


def paper_of(source: str) -> str:
    """The paper or repository of a source: tables of one (InternEvo-flops, InternEvo-throughput) leave together. NVIDIA's
    tables are apart here, by GPU and precision, and leave together under leave-one-model-out."""
    return source if " " in source else source.split("-")[0]


def publisher_of(source: str) -> str:
    """`paper_of`, with NVIDIA's tables of all GPUs as one."""
    return paper_of(_table_of(source))


def _table_of(source: str) -> str:
    return source_of(source).publisher or source


@cache
def _observations() -> tuple[Observation, ...]:
    return tuple(observe(run) for run in published_runs() if useful_for_calibration(run))


def predict_runs(runs: Sequence[Run], constants: Constants) -> list[Predicted]:
    """Every run with the constants that it may use."""
    settings = [constants.applied(run.case) for run in runs]
    steps = predict_steps([(scenario, run.case.plan) for scenario, run in zip(settings, runs, strict=True)])
    return [
        Predicted(run=run, step_seconds=step, level=class_of_seen(scenario, run.case.plan.cp))
        for run, step, scenario in zip(runs, steps, settings, strict=True)
    ]


@cache
def predictions(leave_out: LeaveOut) -> tuple[Predicted, ...]:
    """Every published run that can be predicted."""
    return tuple(predict_runs(published_runs(), Constants(leave_out)))


@cache
def unseen_runs() -> tuple[Run, ...]:
    """Runs that were added after the formulas: they are in no fit and in no band. Raises ValueError for one that is no run."""
    runs = []
    for row in published_rows("unseen_measurements"):
        run = run_of(row)
        if not isinstance(run, Run):
            raise ValueError(f"{row['id']}: {run}")
        runs.append(run)
    return tuple(runs)


def generic(stack: SoftwareStack) -> SoftwareStack:
    """Return the stack with the rates and the calibration of the generic one of its kind; one without a kind stays as it is."""
    kinds = unknown_stack()
    name = kinds.generic.get(stack.priced_as or stack.name)
    if name is None:
        return stack
    kind = load_stack(name)
    rates = {rate: getattr(kind.time, rate) for rate in kinds.rates}
    return replace(stack, generation=kind.generation, parent=kind.parent, time=replace(stack.time, **rates))


@cache
def with_publisher_unknown() -> tuple[Predicted, ...]:
    """Every whole step with the generic stack of its kind and constants that have not seen its publisher."""
    runs = []
    for run in (*published_runs(), *unseen_runs()):
        scenario = run.case.scenario
        if source_of(run.case.source).whole_step:
            case = replace(run.case, scenario=replace(scenario, software=generic(scenario.software)))
            runs.append(replace(run, case=case))
    return tuple(predict_runs(runs, Constants("publisher")))


def by_gpu(predicted: Sequence[Predicted]) -> Iterator[tuple[str, str, float]]:
    """Yield (source and GPU, id, predicted / measured - 1) of each run."""
    return ((f"{p.source}, {gpu_name(p.run.row)}", p.run.case.id, p.ratio) for p in predicted)


def errors_of(predicted: Sequence[Predicted]) -> list[tuple[str, float]]:
    """Return (id, predicted / measured - 1) of each run."""
    return [(p.run.case.id, p.ratio) for p in predicted]


def bar_lines() -> list[Line]:
    """Return every bar of validation/sources.toml, with what its own rule leaves out and with the publisher unknown."""
    return [line for bar in bars_held() for line in _lines_of(bar)]


def _lines_of(bar: HeldTo) -> Iterator[Line]:
    seen = [*predictions(bar.leave_out), *(_unseen(bar.leave_out) if bar.longest else ())]
    own, name = _figures(bar, seen), f"{bar.name}, without its {bar.leave_out}"
    ends = (("mean error", own.mean, bar.most), ("median error", own.median, bar.median), ("bias", abs(own.bias), bar.bias))
    for what, reached, most in ends:
        if most is not None:
            yield Line(name=f"{name}: {what}", rows=own.rows, reached=reached, most=most)
    blind, most = _figures(bar, with_publisher_unknown()), unknown_stack().times_bar * bar.most
    yield Line(name=f"{bar.name}, publisher unknown: mean error", rows=blind.rows, reached=blind.mean, most=most)


def _figures(bar: HeldTo, predicted: Sequence[Predicted]) -> Figures:
    return figures_of(errors_of([p for p in predicted if p.run.large and _counts(bar, p)]))


@cache
def _unseen(leave_out: LeaveOut) -> tuple[Predicted, ...]:
    return tuple(predict_runs(unseen_runs(), Constants(leave_out)))


def _counts(bar: HeldTo, predicted: Predicted) -> bool:
    scenario = predicted.run.case.scenario
    release = scenario.software.release
    counted = release >= bar.since and (not bar.before or release < bar.before)
    short = not bar.longest or scenario.workload.seq_length <= bar.longest
    return bool(re.fullmatch(bar.match, predicted.source)) and source_of(predicted.source).whole_step and counted and short


MIN_ROWS = 6
FIRST_CHOICES = 3
FIRST_THREE_REGRET = 0.01


def regret_lines(predicted: Sequence[Predicted]) -> Iterator[Line]:
    """Yield what the measured time of our first choice, and of the best of our first three, is over the best measured, less 1:
    the mean over questions (an architecture, GPUs, sequence and batch) of at least MIN_ROWS timed plans, for each source that
    is held to it."""
    for source in sorted({p.source for p in predicted if source_of(p.source).regret is not None}):
        groups: dict[tuple[object, ...], list[Predicted]] = {}
        for p in (p for p in predicted if p.source == source):
            groups.setdefault(question_of(p.run.case), []).append(p)
        members = [group for group in groups.values() if len(group) >= MIN_ROWS]
        ends = (("first choice", 1, source_of(source).regret), ("best of three", FIRST_CHOICES, FIRST_THREE_REGRET))
        for name, choices, most in ends if members else ():
            yield error_line(f"{source}, mean regret of the {name}", [_regret(group, choices) for group in members], most)


def question_of(case: Case) -> tuple[object, ...]:
    """Architecture, GPUs, sequence and batch, by which plans are alternatives."""
    model, work = case.scenario.model, case.scenario.workload
    shape = (model.num_layers, model.hidden_size, model.num_attention_heads)
    return (*shape, case.scenario.cluster.num_gpus, work.seq_length, work.global_batch_size)


def _regret(group: Sequence[Predicted], choices: int) -> float:
    chosen = sorted(group, key=lambda p: p.step_seconds)[:choices]
    return min(p.run.measured_s for p in chosen) / min(p.run.measured_s for p in group) - 1
