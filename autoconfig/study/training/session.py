"""Studies of training: from their question to what they measure, what was found, and a calibration file for later searches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from autoconfig.calibration.observe import Observation, refine
from autoconfig.planning.calibration_file import write_calibration
from autoconfig.planning.prices import price_for
from autoconfig.specs.errors import GIB, option
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE
from autoconfig.specs.layouts import on_front
from autoconfig.specs.scenario import Calibration, Scenario
from autoconfig.study import trials as names
from autoconfig.study.session import NothingFitsError, Options, Session, StudyKind
from autoconfig.study.training.candidates import Candidates, build, candidates_of
from autoconfig.study.training.proposal import CONFIDENCE, Belief, believe, results_of, scatter_between_jobs
from autoconfig.study.training.settings import StudySettings, on_this_device
from autoconfig.study.training.work import TrainingWork, full_job
from autoconfig.training.nearest import NothingLegal
from autoconfig.training.question import understand
from autoconfig.training.rank import rank

MAX_SHAPES = 12
SECONDS_PER_HOUR = 3600
MAX_UNMEASURED = 3


@dataclass(frozen=True, kw_only=True)
class Line:
    """One trial."""

    trial: int
    plan: str
    outcome: str
    predicted_s: float | None
    measured_s: float | None
    spread_s: float | None
    predicted_peak_gib: float | None
    measured_peak_gib: float | None
    message: str = ""

    @property
    def ratio(self) -> float | None:
        return self.measured_s / self.predicted_s if self.measured_s and self.predicted_s else None


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What was learned of one layer shape: measured over predicted, and on how many trials it rests."""

    shape: str
    ratio: float
    trials: int


@dataclass(frozen=True, kw_only=True)
class TrainingFound:
    """The state of a study."""

    name: str
    best: Line | None
    lines: tuple[Line, ...]
    """Measured ones fastest first, then the others in the order of trials."""
    prior_best: str
    unmeasured: tuple[tuple[str, float, float], ...]
    """(plan, corrected prediction, its spread) of the most promising plans that were not measured."""
    candidates: int
    correction: float | None
    scatter: float | None
    """Largest deviation from it, as a share."""
    memory_correction: float
    shapes: tuple[LayerShape, ...]
    front: tuple[int, ...]
    """Trials that no other measured one beats in both step time and free memory."""
    noise: float | None
    """Median spread of the timed steps over their median."""
    noise_between_jobs: float | None
    """Standard deviation of log step seconds between jobs of one plan, where plans were measured again."""
    tokens_per_money: float | None
    """Of the winner, where a price is known: tokens for one unit of the money that --price is in."""

    @property
    def measured_less(self) -> Line | None:
        """The fastest measured line where that is another plan than the winner: noise can make it so."""
        if self.best is None:
            return None
        like = [line for line in self.lines if line.outcome == self.best.outcome and line.measured_s is not None]
        return like[0] if like and like[0].plan != self.best.plan else None

    @property
    def measured(self) -> bool:
        """Whether there is a measured plan, or one composed of emulated ranks."""
        return any(line.measured_s is not None for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        body = {"schema_version": 1, **asdict(self), "confidence": CONFIDENCE}
        body["lines"] = [{**asdict(line), "ratio": line.ratio} for line in self.lines]
        body["unmeasured"] = [{"plan": p, "step_seconds": s, "spread": d} for p, s, d in self.unmeasured]
        return body


def _unmeasured(candidates: Candidates, belief: Belief, gone: set[int]) -> tuple[tuple[str, float, float], ...]:
    """(plan, believed seconds of a step, their deviation in logs) of the fastest that likely fit and were not tried."""
    order = [int(row) for row in np.argsort(belief.step_seconds, kind="stable")]
    left = [row for row in order if row not in gone and belief.memory.chance[row] > 0.5][:MAX_UNMEASURED]
    deviations = belief.posterior.log_sd
    return tuple((str(candidates.plans[row]), float(belief.step_seconds[row]), float(deviations[row])) for row in left)


def _front(measured: Sequence[Line]) -> tuple[int, ...]:
    """The trials of which none is both faster and smaller."""
    free = [-(line.measured_peak_gib or line.predicted_peak_gib or 0.0) for line in measured]
    keeps = on_front([line.measured_s or 0.0 for line in measured], free)
    return tuple(line.trial for line, keep in zip(measured, keeps, strict=True) if keep)


def _noise(measured: Sequence[Line]) -> float | None:
    """The median scatter of a job's own steps, as a share of its step; None where no job said it."""
    shares = [line.spread_s / line.measured_s for line in measured if line.spread_s is not None and line.measured_s]
    return statistics.median(shares) if shares else None


def _tokens_per_money(scenario: Scenario, best: Line | None, price_per_gpu_hour: float | None) -> float | None:
    if best is None or best.measured_s is None or not price_per_gpu_hour:
        return None
    money = best.measured_s / SECONDS_PER_HOUR * scenario.cluster.num_gpus * price_per_gpu_hour
    return scenario.workload.tokens_per_step / money


def _line(trial: FrozenTrial, candidates: Candidates) -> Line:
    attributes, row = trial.user_attrs, candidates.row_of(trial.params)
    return Line(
        trial=trial.number,
        plan=str(attributes.get(names.PLAN, "-")),
        outcome=names.outcome_of(trial),
        predicted_s=attributes.get(names.PREDICTED),
        measured_s=attributes.get(names.STEP_SECONDS),
        spread_s=attributes.get(names.SPREAD),
        predicted_peak_gib=None if row is None else float(candidates.peak_bytes[row]) / GIB,
        measured_peak_gib=attributes.get(names.PEAK_GIB),
        message=str(attributes.get(names.MESSAGE, "")),
    )


def _shapes(candidates: Candidates, trials: list[FrozenTrial]) -> tuple[LayerShape, ...]:
    """Median ratio by layer shape (tp, cp, ep, micro-batch, sp, recompute): what plans that share it share."""
    ratios: dict[str, list[float]] = {}
    for trial in trials:
        row, ratio = candidates.row_of(trial.params), trial.user_attrs.get(names.LOG_RATIO)
        if row is None or ratio is None:
            continue
        plan = candidates.plans[row]
        keys = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "mbs": plan.mbs, "sp": int(plan.sp)}
        shown = [f"{key}={value}" for key, value in keys.items() if key in ("tp", "mbs", "sp") or value != 1]
        ratios.setdefault(",".join([*shown, f"recompute={plan.recompute}"]), []).append(math.exp(ratio))
    found = [LayerShape(shape=k, ratio=statistics.median(v), trials=len(v)) for k, v in ratios.items()]
    return tuple(sorted(found, key=lambda shape: (-shape.trials, shape.shape))[:MAX_SHAPES])


def learned_calibration(session: Session[TrainingWork]) -> Calibration | None:
    """The calibration of the question, refined with what was measured; None where nothing was."""
    work = session.work
    plain = understand(replace(work.question.request, calibration="none")).scenario
    plain = replace(plain, cluster=work.scenario.cluster)
    observations = []
    for trial in names.stored_trials(session.study):
        row, seconds = work.candidates.row_of(trial.params), trial.user_attrs.get(names.STEP_SECONDS)
        if row is None or seconds is None or trial.user_attrs.get(names.OUTCOME) == names.EMULATED:
            continue
        alone = build([(plain, work.candidates.plans[row])])
        observations.append(
            Observation(
                id=f"{session.name}/{trial.number}",
                source=f"study {session.name}",
                model=plain.model.name,
                architecture=plain.cluster.gpu.architecture,
                gpu=plain.cluster.gpu.id,
                generation=plain.software.generation,
                moe=plain.model.is_moe,
                log_ratio=math.log(seconds / float(alone.predicted_s[0])),
                shares=(1.0, *(float(share) for share in alone.shares[0])),
            )
        )
    if not observations:
        return None
    return refine(work.scenario.calibration, observations, f"study-{session.name}-{len(observations)}")


class TrainingKind(StudyKind[StudySettings, TrainingWork]):
    """Studies of training plans."""

    command = "autoconfig search"
    settings = StudySettings

    def ask(self, settings: StudySettings, options: Options, table: Path | None = None) -> TrainingWork:
        settings, assumed = on_this_device(settings, table)
        question = understand(settings.request)
        scenario = question.scenario
        if settings.device_memory_bytes is not None:
            scenario = replace(scenario, cluster=replace(scenario.cluster, memory_bytes=settings.device_memory_bytes))
        if settings.device == "cpu" and table is None:
            gpu = replace(scenario.cluster.gpu, architecture=CPU_ARCHITECTURE)
            scenario = replace(scenario, cluster=replace(scenario.cluster, gpu=gpu))
        price_for(settings.request.price, scenario.cluster.gpu.id)
        excluded = question.constraints.excluded  # what the training core does not build: sharding beyond the optimizer's
        buildable = replace(question.constraints, excluded={**excluded, "fsdp": excluded.get("fsdp", frozenset()) | {2, 3}})
        ranking = rank(scenario, buildable, settings.request.memory_margin)
        if ranking.funnel.legal == 0:
            raise NothingFitsError(NothingLegal.of(question, ranking.space).message)
        if not len(ranking.row):
            raise NothingFitsError(
                f"no plan fits the memory limit: raise {option('device_memory')}, or see what autoconfig search says"
            )
        candidates = candidates_of(ranking)
        full_job(scenario, candidates.plans[0], settings)
        return TrainingWork(
            settings=settings,
            question=replace(question, scenario=scenario),
            candidates=candidates,
            assumed=(*question.assumed, *assumed),
            emulated=options.emulates(scenario.cluster.num_gpus),
        )

    def benchmark_python(self, python: str) -> str:
        return python

    def found(self, session: Session[TrainingWork], price: float | None = None) -> TrainingFound:
        trials, work = names.stored_trials(session.study), session.work
        candidates = work.candidates
        lines = [_line(trial, candidates) for trial in names.told(trials)]
        measured = sorted(
            (line for line in lines if line.measured_s is not None), key=lambda line: (line.measured_s, line.trial)
        )
        full = any(trial.user_attrs.get(names.OUTCOME) == names.MEASURED for trial in trials)
        results = results_of(trials, candidates, emulated=not full)
        belief = believe(candidates, results)
        best_plan = None if belief.best is None else str(candidates.plans[belief.best])
        gone = {result.row for result in results} | set(names.tried_in_vain(trials, candidates))
        middle, scatter = _middle_and_scatter(measured)
        best = next((line for line in measured if line.plan == best_plan and (line.outcome == names.MEASURED) == full), None)
        return TrainingFound(
            name=session.name,
            best=best,
            lines=(*measured, *(line for line in lines if line.measured_s is None)),
            prior_best=str(candidates.plans[0]),
            unmeasured=_unmeasured(candidates, belief, gone),
            candidates=len(candidates),
            correction=middle,
            scatter=scatter,
            memory_correction=belief.memory.correction,
            shapes=_shapes(candidates, trials),
            front=_front(measured) if work.settings.objective == "headroom" else (),
            noise=_noise(measured),
            noise_between_jobs=scatter_between_jobs(results) or None,
            tokens_per_money=_tokens_per_money(work.scenario, best, price),
        )

    def write_learned(self, session: Session[TrainingWork], target: Path) -> str | None:
        learned = learned_calibration(session)
        if learned is None:
            return None
        write_calibration(learned, target)
        return learned.version


def _middle_and_scatter(measured: Sequence[Line]) -> tuple[float | None, float | None]:
    """The median of measured over predicted, and the largest share by which one is off it."""
    ratios = [line.ratio for line in measured if line.ratio is not None]
    middle = statistics.median(ratios) if ratios else None
    return middle, max(abs(ratio / middle - 1) for ratio in ratios) if middle else None


TRAINING = TrainingKind()
