"""Seconds by phase in logs of verl (`timing_s/gen:45.2`), NeMo-RL (`• generation: 45.20s`) and OpenRLHF, whole optimizer steps
in those of TRL, and what they say of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autoconfig.evidence.read import read_files
from autoconfig.evidence.records import Evidence, PhaseSeconds, StepLine
from autoconfig.formats.post_training.check import check_file
from autoconfig.formats.post_training.run import map_of_framework
from autoconfig.post_training.calibration import BELIEVED, LEAST, MOST, StepCalibration
from autoconfig.post_training.frameworks import FACTORS
from autoconfig.post_training.phases import REST, Phases
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_bytes

MAX_BYTES = 50_000_000
PRINTING = ("verl", "nemo-rl", "openrlhf", "trl")
"""Frameworks whose logs are read; the `log` of the map of each says which phase a printed name is."""
LENGTHS = ("response_length/mean", "response_length", "completions/mean_length")
"""Mean length of responses, as verl, OpenRLHF and TRL name it."""
WHOLE = "step"
"""Stands for the whole step."""
PROMPTS = "prompt_length/mean"
_NEMO_LENGTH = re.compile(r"Mean Generation Length:\s*([0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class MeasuredLog:
    """Medians over the printed steps, the first left out where there are several."""

    framework: str
    steps: int
    seconds: Mapping[str, float]
    """By phase; `passes`: log-probabilities of policy and reference together; `step`; `update`: an optimizer step of it."""
    prompt_tokens: int | None = None
    response_tokens: int | None = None


def read_log(path: Path) -> MeasuredLog:
    """Read the steps of a log, by the readers of `diagnose`. Raises FileError, InputError where no step is printed."""
    return log_of(read_files([path]), _generated(path))


def log_of(evidence: Evidence, generated: Sequence[float] = ()) -> MeasuredLog:
    """Return the medians of what a log holds; `generated`: mean lengths of responses that are in no step's line."""
    for framework in PRINTING:
        if steps := [step for step in evidence.steps if step.format == framework and step.seconds]:
            return _measured(framework, steps[1:] or steps, evidence.phases, generated)
    raise InputError(
        "the log prints no step: wanted are lines with timing_s/... (verl), NeMo-RL's block \"Timing\", OpenRLHF's lines "
        "`Global step` with timing/step_total (since 0.9.10), or TRL's with step_time"
    )


def _measured(
    framework: str, steps: Sequence[StepLine], phases: Sequence[PhaseSeconds], generated: Sequence[float]
) -> MeasuredLog:
    """Return the medians of these steps and of the phases that are printed beside them."""
    printed, seconds = _by_step(framework, phases), []
    for step in steps:
        key = step.origin.file, step.origin.line if framework == "verl" else step.step
        seconds.append({**step.fields, **printed.get(key, {}), WHOLE: step.seconds or 0.0})
    means = (_mean(steps, name) for name in LENGTHS)
    return MeasuredLog(
        framework=framework,
        steps=len(steps),
        seconds=_medians(seconds, map_of_framework(framework).more["log"]),
        prompt_tokens=_mean(steps, PROMPTS),
        response_tokens=next(filter(None, means), None) or (round(median(generated)) if generated else None),
    )


def _generated(path: Path) -> list[float]:
    """Return the mean lengths of responses that NeMo-RL prints on lines of their own."""
    text = read_bytes(path, "a log of a run", MAX_BYTES, head=True).decode("utf-8", errors="replace")
    return [float(value) for value in _NEMO_LENGTH.findall(text)]


def _by_step(framework: str, phases: Sequence[PhaseSeconds]) -> dict[tuple[str, int | None], dict[str, float]]:
    """Return seconds of phases by their printed names, by the line of verl that holds them or the block of NeMo-RL."""
    seconds: dict[tuple[str, int | None], dict[str, float]] = {}
    for one in phases:
        key = one.origin.file, one.origin.line if framework == "verl" else one.step
        seconds.setdefault(key, {})[one.name] = one.seconds
    return seconds


def _mean(steps: Sequence[StepLine], name: str) -> int | None:
    values = [step.fields[name] for step in steps if name in step.fields]
    return max(1, round(median(values))) if values else None


def _medians(steps: list[dict[str, float]], named: Mapping[str, str]) -> dict[str, float]:
    medians = {}
    for name, phase in named.items():
        values = [step[name] for step in steps if step.get(name, 0.0) > 0]
        if values:
            medians[phase] = median(values)
    return medians


def calibrate(log: Path, run: Path, given: Mapping[str, Any]) -> tuple[StepCalibration, Phases, MeasuredLog]:
    """Compare a log with the file that started its run; mean lengths of the log are used. Raises InputError where the file
    is not legal, of another framework, or says another job."""
    measured = read_log(log)
    lengths = {"prompt_length": measured.prompt_tokens, "response_length": measured.response_tokens}
    checked = check_file(run, {**given, **{key: value for key, value in lengths.items() if value}})
    if checked.priced is None or checked.job is None:
        raise InputError(f"the run's file is not legal: {checked.broken[0]}")
    if checked.run.framework != measured.framework:
        raise InputError(f"the log is of {measured.framework}, the run's file of {checked.run.framework}")
    phases = checked.priced.phases
    if "update" in measured.seconds:  # optimizer steps alone: every phase is off as the step is
        step = _ratio("a step", measured.seconds["update"] * checked.job.updates, phases.total)
        factors = dict.fromkeys((*FACTORS, "other"), step)
    else:
        factors = _factors(measured.seconds, phases)
    calibration = StepCalibration(
        framework=measured.framework,
        model=checked.job.policy.name,
        gpu=checked.job.gpu.id,
        steps=measured.steps,
        prompt_tokens=measured.prompt_tokens or 0,
        response_tokens=measured.response_tokens or 0,
        **factors,
    )
    return calibration, phases, measured


def _factors(seconds: Mapping[str, float], phases: Phases) -> dict[str, float]:
    """Return measured over predicted seconds of generation, of all passes, of training and of the rest of a step."""
    passes = {"logprob": phases.logprob, "reference": phases.reference, "values": phases.values}
    forward = [(seconds[name], told) for name, told in passes.items() if name in seconds and told > 0]
    if "passes" in seconds:
        forward = [(seconds["passes"], phases.logprob + phases.reference)]
    measured, told = sum(pair[0] for pair in forward), sum(pair[1] for pair in forward)
    phased = seconds.get("generation", phases.generation) + measured
    phased += sum(seconds.get(name, 0.0) for name in ("training", "critic_training", "weight_sync", "reward"))
    rest, priced_rest = seconds.get("step", 0.0) - phased, phases.of(REST)
    return {
        "generation": _ratio("generation", seconds.get("generation"), phases.generation),
        "forward": _ratio("log-probabilities", measured, told),
        "training": _ratio("training", seconds.get("training"), phases.training),
        "other": min(max(rest / priced_rest, LEAST), MOST) if rest > 0 and priced_rest > 0 and "step" in seconds else 1.0,
    }


def _ratio(name: str, measured: float | None, told: float) -> float:
    if not measured or told <= 0:
        return 1.0
    factor = measured / told
    if not 1.0 / BELIEVED <= factor <= BELIEVED:
        raise InputError(
            f"{name} took {measured:.4g} s, {factor:.3g} times the {told:.4g} s that are predicted; beyond {BELIEVED:g} times "
            "nothing is believed: is the log of the run that the file starts, on that GPU, and in seconds?"
        )
    return factor
