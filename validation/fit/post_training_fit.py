"""Constants of post-training from measured steps: factors of the priced phases by framework, and a step's fixed seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import AutoconfigError
from scipy.optimize import least_squares

from autoconfig.post_training.frameworks import FACTORS, STANDARD_90, Constants, constants_of
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.phases import REST, Phases
from autoconfig.post_training.price import class_marks, priced_phases, scaled
from autoconfig.runs.post_training_row import read_case
from autoconfig.runs.table import Row, cell, number

MARKS = ("experts", "blackwell", "fsdp")
PRIOR = {"": (0.0, 0.2), "experts": (0.0, 0.25), "blackwell": (0.0, 0.2), "fsdp": (0.0, 0.2)}
"""Expected value and standard deviation of ln of a factor, and of what a mark adds to it: phases are priced before any
constant, so that a class with few runs stays near 1."""
FIXED = {
    "fixed_s": (3.0, 2.0),
    "seconds_per_sample": (0.005, 0.005),
    "seconds_per_gb": (0.05, 0.02),
    "split_seconds_per_gb": (0.03, 0.015),
}
"""Expected value and deviation of the seconds of a step beside its phases, by judgement; each framework's own runs decide
(NeMo-RL v0.4 to v0.6: 5 to 10 s and 0.04 to 0.06 s/GB; verl: what its printed phases leave of a step, 2 to 6 s)."""
OWN_FIXED = {
    ("nemo-rl", "seconds_per_sample"): (0.008, 0.004),
    ("verl", "seconds_per_sample"): (0.0005, 0.001),
    ("verl", "seconds_per_gb"): (0.02, 0.02),
}
"""FIXED of frameworks whose printed phases say more: NeMo-RL moves samples through one controller, verl's workers keep
theirs (8,192 samples leave 6 s beside the phases)."""
REST_NOISE = 0.03
"""Deviation of the seconds that printed phases leave of a step, as a share of the step."""
OLD = ("deepspeed-chat", "openrlhf", "nemo-aligner")
OLD_DEVIATION = 1.5
"""Of a factor of frameworks whose published runs are of 2023 and 2024: engines and batching of that time are not modelled."""
UNUSABLE = {"model", "gpu", "batch"}
"""Rows that do not say one of these are predicted and fitted on nothing."""
NOISE = 0.2
"""Deviation of ln(measured / predicted) of one run."""
PARTS = {
    "gen_s": "generation",
    "logprob_s": "logprob",
    "ref_s": "reference",
    "values_s": "values",
    "train_actor_s": "training",
    "train_critic_s": "critic_training",
}
"""Measured column -> the phase that it is."""
TOGETHER = ("nemo-rl", "other")
"""Frameworks that print one figure of the passes of policy and reference: NeMo-RL's policy_and_reference_logprobs, SkyRL's
fwd_logprobs_values_reward (the only one of `other` with such rows)."""
WHOLE = "train_s", ("training", "critic_training")
"""Column of all training together, and its phases: one after the other, or beside each other on GPUs of their own."""
MEASURED_KINDS = ("measured", "log_step")
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A measured step and its priced phases."""

    row: int
    framework: str
    model: str
    gpu: str
    marks: tuple[str, ...]
    job: PostTrainingJob
    placement: Placement
    priced: Phases
    missing: frozenset[str]
    """PostTrainingCase.missing."""
    engine_assumed: bool
    """The row does not say the engines' plan."""
    measured: Mapping[str, float]
    """step_s and PARTS, those that were measured; gen_s of an asynchronous run (the wait for it) is not among them."""

    def predicted(self, known: Constants) -> Phases:
        """Phases with the constants of its class."""
        return scaled(self.job, self.placement, self.priced, constants_of(known, self.framework, self.marks))


def names() -> list[str]:
    """The numbers of one framework, in the order of the fit."""
    factors = [phase if not mark else f"{phase}:{mark}" for phase in FACTORS for mark in ("", *MARKS)]
    return [*factors, *FIXED]


def fit(
    samples: Sequence[MeasuredStep], known: Constants | None = None, of: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Numbers of each framework, and of `all` for any other. Robust least squares of ln(measured / predicted).

    Where numbers are `known` already, only those of the frameworks `of` are fitted, and `all`.
    """
    constants = {name: dict(numbers) for name, numbers in (known or {}).items() if name not in (*of, "all")}
    for framework in sorted({sample.framework for sample in samples} - constants.keys()):
        constants[framework] = _fit([s for s in samples if s.framework == framework and not s.missing & UNUSABLE], framework)
    if new := [numbers for name, numbers in constants.items() if name not in OLD]:
        constants["all"] = {key: float(np.median([numbers[key] for numbers in new])) for key in names()}
    return constants


def _prior(key: str, framework: str) -> tuple[float, float]:
    """(expected value, deviation) of a number."""
    if key in FIXED:
        return OWN_FIXED.get((framework, key), FIXED[key])
    value, deviation = PRIOR[key.partition(":")[2]]
    if framework in OLD and ":" not in key:
        return value, OLD_DEVIATION
    return value, deviation


def _fit(samples: Sequence[MeasuredStep], framework: str) -> dict[str, float]:
    keys = names()
    prior, width = (np.array(column) for column in zip(*(_prior(key, framework) for key in keys), strict=True))
    told = [(s, weight, _unfitted(s), _rest(s)) for s, weight in zip(samples, _weights(samples), strict=True)]
    classes = {sample.marks for sample in samples}

    def numbers(x: Vector) -> dict[str, float]:
        return dict(zip(keys, (float(v) for v in x), strict=True))

    def residuals(x: Vector) -> Vector:
        every = {framework: numbers(x)}
        constants = {marks: constants_of(every, framework, marks) for marks in classes}
        solution: list[float] = []
        for sample, weight, unfitted, rest in told:
            phases = scaled(sample.job, sample.placement, sample.priced, constants[sample.marks])
            solution += [weight * error / NOISE for column, error in errors(sample, phases).items() if column not in unfitted]
            if rest is not None:
                solution.append(weight * (rest - phases.of(REST)) / (REST_NOISE * sample.measured["step_s"]))
        return np.array([*_robust(np.array(solution)), *((x - prior) / width)])

    low = np.array([0.0 if key in FIXED else -3.0 for key in keys])
    start = np.maximum(prior, low + 1e-6)
    return numbers(least_squares(residuals, start, bounds=(low, np.inf)).x)


def _robust(residuals: Vector, scale: float = 1.5) -> Vector:
    """Residuals whose squares are the Cauchy loss s^2 ln(1 + (r/s)^2): the pull of a run falls as 1/r, so that one odd run (a
    complaint in an issue thread, four times as slow) decides nothing against the priors, which stay squares."""
    return np.sign(residuals) * scale * np.sqrt(np.log1p((residuals / scale) ** 2))


def hidden_rounds(sample: MeasuredStep) -> bool:
    """Dynamic sampling generates until enough groups are left, in rounds that no table counts: what generation takes of such a
    step says nothing of the engine."""
    return sample.job.algorithm.name == "dapo"


def _unfitted(sample: MeasuredStep) -> tuple[str, ...]:
    """Columns that say nothing of the constants: the length of responses decides generation."""
    return ("gen_s", "step_s") if hidden_rounds(sample) or "lengths" in sample.missing else ()


def _rest(sample: MeasuredStep) -> float | None:
    """Seconds of a synchronous step that its phases leave, where all of them were measured; None where one was not."""
    phases = sample.priced
    columns = [column for column, name in PARTS.items() if getattr(phases, name) > 0]
    if sample.placement.staleness or phases.reward or any(name not in sample.measured for name in ("step_s", *columns)):
        return None
    return max(sample.measured["step_s"] - sum(sample.measured[name] for name in columns) - phases.weight_sync, 0.0)


def _weights(samples: Sequence[MeasuredStep]) -> list[float]:
    """Runs of one model and GPU count as the square root of their number: they err together."""
    groups = Counter((s.framework, s.model, s.gpu) for s in samples)
    return [groups[s.framework, s.model, s.gpu] ** -0.25 for s in samples]


def errors(sample: MeasuredStep, phases: Phases) -> dict[str, float]:
    """ln(measured / predicted) of the step and of each part that was measured."""
    predicted = {column: _told(column, sample, phases) for column in sample.measured}
    return {name: float(np.log(s / predicted[name])) for name, s in sample.measured.items() if predicted[name] > 0}


def _told(column: str, sample: MeasuredStep, phases: Phases) -> float:
    """What is predicted of a measured column."""
    if column == "step_s":
        return phases.total
    if column == WHOLE[0]:
        both = [phases.of((name,)) for name in WHOLE[1]]
        return max(both) if sample.placement.critic_gpus else sum(both)
    if column == "logprob_s" and sample.framework in TOGETHER and "ref_s" not in sample.measured:
        return phases.of(("logprob", "reference"))
    return phases.of((PARTS[column],))


MISSED = 0.1
"""Share of steps outside of a band."""


def scatter(errors_of_models: Sequence[float]) -> float:
    """Standard deviation of the normal law whose 90 % band holds a step whose model nobody has measured, from the errors
    ln(measured / predicted) of runs whose models had been left out.

    Half of the band is the quantile (1 - a)(1 + 1/n) of their sizes, a = 0.1: split conformal prediction (Lei et al. 2018,
    arXiv:1604.04173, theorem 2), which holds a run that is exchangeable with these in at least 1 - a of cases whatever law
    they follow; between two runs linear.
    """
    share = min((1.0 - MISSED) * (1.0 + 1.0 / len(errors_of_models)), 1.0)
    return float(np.quantile(np.abs(np.array(errors_of_models)), share, method="hazen")) / STANDARD_90


def samples_of(rows: Sequence[Row]) -> list[MeasuredStep]:
    """Measured steps of a table that can be priced; rows of kind `ci_bound` (upper bounds) and `claim` are none."""
    samples = []
    for index, row in enumerate(rows):
        if cell(row, "kind") not in MEASURED_KINDS:
            continue
        with suppress(AutoconfigError):
            case = read_case(row)
            priced, _ = priced_phases(case.job, case.placement)
            if measured := measured_seconds(row, case.placement.staleness > 0):
                sample = MeasuredStep(
                    row=index,
                    framework=case.job.framework.name,
                    model=case.job.policy.name,
                    gpu=case.job.gpu.id,
                    marks=class_marks(case.job, case.placement),
                    job=case.job,
                    placement=case.placement,
                    priced=priced,
                    missing=case.missing,
                    engine_assumed="rollout_plan" in case.unsaid,
                    measured=measured,
                )
                samples.append(sample)
    return samples


def measured_seconds(row: Row, asynchronous: bool) -> dict[str, float]:
    """step_s and PARTS of a row, those that were measured; an asynchronous run's gen_s is the wait for it, which is no
    phase."""
    seconds = {name: number(row, name) for name in ("step_s", *PARTS, WHOLE[0]) if cell(row, name)}
    return {name: s for name, s in seconds.items() if s is not None and s > 0 and not (asynchronous and name == "gen_s")}
