"""The published runs and their predictions, with constants that have or have not seen them: errors of step times by source and
GPU, our first choice among measured plans, runs that came after the formulas."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

import numpy as np
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Calibration, Scenario
from autoconfig.time_model.predict import estimate_step_time

from autoconfig.calibration.observe import Observation, Run, gpu_name, observe
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.training_row import Case
from autoconfig.training.price import confidence_class
from validation.fit.steps import fit
from validation.published import Dropped, published_runs, useful_for_calibration
from validation.sources import HeldTo, bars_held, source_of

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
            known = _observations() if self.observed is None else self.observed
            kept = [observation for observation in known if not self._same(observation, key)]
            if len(kept) == len(known):
                self._fitted[key] = self._of_all(known)
            else:
                self._fitted[key] = fit(kept, "without " + ", ".join(key))
        return self._fitted[key]

    def _of_all(self, known: Sequence[Observation]) -> Calibration:
        if () not in self._fitted:
            self._fitted[()] = fit(known, "all published runs")
        return self._fitted[()]

    def applied(self, case: Case) -> Scenario:
        scenario = case.scenario
        found = self.of(case.source, scenario.model.name, scenario.cluster.gpu.id, scenario.software.release)
        return replace(scenario, calibration=found)

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
    return tuple(observe(run) for run in published_runs().runs if useful_for_calibration(run))


def predict_runs(runs: Sequence[Run], constants: Constants) -> list[Predicted]:
    """Every run with the constants that it may use."""
    settings = [constants.applied(run.case) for run in runs]
    steps = predict_steps([(scenario, run.case.plan) for scenario, run in zip(settings, runs, strict=True)])
    return [
        Predicted(run=run, step_seconds=step, level=confidence_class(scenario, run.case.plan.cp))
        for run, step, scenario in zip(runs, steps, settings, strict=True)
    ]


@cache
def predictions(leave_out: LeaveOut) -> tuple[Predicted, ...]:
    """Every published run that can be predicted."""
    return tuple(predict_runs(published_runs().runs, Constants(leave_out)))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of some runs: absolute share of the measured step, except bias, the median of predicted / measured - 1."""

    rows: int
    mean: float
    median: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """One source on one GPU."""

    source: str
    gpu: str
    rows: int
    """Rows in the published table."""
    all: Figures | None
    large: Figures | None
    uncovered: dict[str, int]
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A line to reach, and what was reached."""

    name: str
    leave_out: str
    most: float
    reached: Figures | None
    in_sample: bool = False
    """The constants have seen the rows: the line is printed and not judged."""
    median: float | None = None
    """Most median absolute error; None: not held."""
    bias: float | None = None
    """Most median error either way; None: not held."""

    @property
    def holds(self) -> bool | None:
        """None where the constants have seen the rows."""
        if self.in_sample:
            return None
        found = self.reached
        if found is None:
            return False
        reached = ((found.mean, self.most), (found.median, self.median), (abs(found.bias), self.bias))
        return all(most is None or figure <= most for figure, most in reached)

    @property
    def asked(self) -> dict[str, float]:
        """What is held beside the mean error, by its name."""
        return {name: most for name, most in (("median", self.median), ("bias", self.bias)) if most is not None}


def figures_of(errors: Sequence[tuple[str, float]]) -> Figures:
    """Of (id, predicted / measured - 1) of some runs; nan without any."""
    if not errors:
        return Figures(rows=0, mean=np.nan, median=np.nan, bias=np.nan, worst=np.nan, worst_id="")
    ratios = np.array([ratio for _, ratio in errors])
    absolute = np.abs(ratios)
    worst_id, worst = errors[int(absolute.argmax())]
    return Figures(
        rows=len(errors),
        mean=float(absolute.mean()),
        median=float(np.median(absolute)),
        bias=float(np.median(ratios)),
        worst=worst,
        worst_id=worst_id,
    )


def figures(predicted: Sequence[Predicted]) -> Figures | None:
    """Of step times; None without runs."""
    return figures_of([(p.run.case.id, p.ratio) for p in predicted]) if predicted else None


def is_large_dense(predicted: Predicted) -> bool:
    """Dense and above 1B parameters."""
    return predicted.run.large and not predicted.run.case.scenario.model.is_moe


def error_groups(predicted: Sequence[Predicted], dropped: Sequence[Dropped]) -> list[ErrorGroup]:
    """By source and GPU, in the order of the tables."""
    members: dict[tuple[str, str], list[Predicted]] = {}
    for p in predicted:
        members.setdefault((p.source, gpu_name(p.run.row)), []).append(p)
    lost: dict[tuple[str, str], list[Dropped]] = {}
    for d in dropped:
        lost.setdefault((d.source, d.gpu), []).append(d)
    return [_group(*key, members.get(key, []), lost.get(key, [])) for key in sorted({*members, *lost})]


def _group(source: str, gpu: str, members: Sequence[Predicted], lost: Sequence[Dropped]) -> ErrorGroup:
    return ErrorGroup(
        source=source,
        gpu=gpu,
        rows=len(members) + len(lost),
        all=figures(members),
        large=figures([p for p in members if is_large_dense(p)]),
        uncovered=dict(Counter(d.reason for d in lost).most_common()),
        points=tuple((p.run.measured_s, p.step_seconds) for p in members),
    )


def bars(predicted: Sequence[Predicted], leave_out: str | None) -> list[Bar]:
    """The bars of data/sources.toml that this way of leaving out answers; in-sample shows all of them, unjudged."""
    return [
        Bar(
            name=bar.name,
            leave_out=bar.leave_out,
            most=bar.most,
            reached=figures([p for p in predicted if p.run.large and _counts(bar, p)]),
            in_sample=leave_out is None,
            median=bar.median,
            bias=bar.bias,
        )
        for bar in bars_held()
        if leave_out in (None, bar.leave_out)
    ]


def _counts(bar: HeldTo, predicted: Predicted) -> bool:
    release = predicted.run.case.scenario.software.release
    counted = release >= bar.since and (not bar.before or release < bar.before)
    return bool(re.fullmatch(bar.match, predicted.source)) and source_of(predicted.source).whole_step and counted


def resisting(predicted: Iterable[Predicted], least: float = 0.15) -> list[Predicted]:
    """Large runs of calibrated sources whose error is above `least`, worst first."""
    return sorted((p for p in predicted if is_large_dense(p) and abs(p.ratio) > least), key=lambda p: -abs(p.ratio))


MIN_ROWS = 6
FIRST_CHOICES = 3


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """How the ranking of one source's groups went. Regret: measured time of the chosen plan over the best measured, less 1."""

    source: str
    constants: str
    groups: int
    rows: int
    spearman_median: float
    spearman_min: float
    regret_mean: float
    regret_max: float
    regret_first_three_mean: float
    regret_first_three_max: float
    mean_error: float


def decisions(predicted: Sequence[Predicted], leave_out: LeaveOut) -> list[Decisions]:
    """Every source with groups."""
    constants = "seen" if leave_out is None else "not seen"
    found = (
        _decide([p for p in predicted if p.source == source], constants) for source in sorted({p.source for p in predicted})
    )
    return [one for one in found if one is not None]


def _question(run: Run) -> tuple[object, ...]:
    scenario = run.case.scenario
    model, work = scenario.model, scenario.workload
    shape = (model.num_layers, model.hidden_size, model.num_attention_heads)
    return (*shape, scenario.cluster.num_gpus, work.seq_length, work.global_batch_size)


def _decide(rows: Sequence[Predicted], constants: str) -> Decisions | None:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, one in enumerate(rows):
        groups.setdefault(_question(one.run), []).append(index)
    large = [members for members in groups.values() if len(members) >= MIN_ROWS]
    if not large:
        return None
    measured = np.array([one.run.measured_s for one in rows])
    predicted = np.array([one.step_seconds for one in rows])
    kept = np.concatenate(large)
    ranks = [_spearman(measured[m], predicted[m]) for m in large]
    first = [_regret(measured[m], predicted[m], 1) for m in large]
    three = [_regret(measured[m], predicted[m], FIRST_CHOICES) for m in large]
    return Decisions(
        source=rows[0].source,
        constants=constants,
        groups=len(large),
        rows=len(kept),
        spearman_median=float(np.median(ranks)),
        spearman_min=float(np.min(ranks)),
        regret_mean=float(np.mean(first)),
        regret_max=float(np.max(first)),
        regret_first_three_mean=float(np.mean(three)),
        regret_first_three_max=float(np.max(three)),
        mean_error=float(np.abs(predicted[kept] / measured[kept] - 1).mean()),
    )


def _spearman(measured: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import rankdata

    a, b = rankdata(measured), rankdata(predicted)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _regret(measured: np.ndarray, predicted: np.ndarray, choices: int) -> float:
    order = np.argsort(predicted, kind="stable")[:choices]
    return float(measured[order].min() / measured.min() - 1)
