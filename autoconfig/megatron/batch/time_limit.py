"""How long a job takes, as its launch script says it to Slurm and to Megatron-LM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from autoconfig.megatron.write import MOCK_STEPS
from autoconfig.training.price import PlanReport

STARTING_MINUTES = 30
"""An assumption: container, data, compilation and communicators, before the first step."""
SAVING_MINUTES = 15
"""An assumption: the last checkpoint before a time limit, and the end of all ranks."""
MINUTES_PER_HOUR, MINUTES_PER_DAY = 60, 24 * 60


def job_minutes(report: PlanReport | None) -> int:
    """Return how long the job may take: the steps of the tokens asked for, else those of a smoke test, at the slow end of the
    90 % band, and the start."""
    steps = MOCK_STEPS if report is None or report.steps_to_train is None else report.steps_to_train
    seconds = 0.0 if report is None else report.confidence.step_seconds_p95 * steps
    return STARTING_MINUTES + math.ceil(seconds / 60.0)


def given_minutes(slurm: Sequence[str]) -> int | None:
    """Return the time limit among further #SBATCH options, in minutes (man sbatch, --time); None where there is none, or no
    end."""
    words = [word for one in slurm for word in one.replace("=", " ", 1).split()]
    limits = [value for name, value in itertools.pairwise(words) if name in ("--time", "-t")]
    days, dash, clock = limits[-1].rpartition("-") if limits else ("", "", "")
    parts = clock.split(":")
    if len(parts) > 3 or not all(part.isdecimal() for part in (*parts, *([days] if dash else []))):
        return None
    numbers = [int(part) for part in parts]
    if dash:  # days-hours, days-hours:minutes, days-hours:minutes:seconds
        hours, minutes = [*numbers, 0][:2]
        return int(days) * MINUTES_PER_DAY + hours * MINUTES_PER_HOUR + minutes
    return numbers[0] * MINUTES_PER_HOUR + numbers[1] if len(numbers) == 3 else numbers[0]


def has_time(slurm: Sequence[str]) -> bool:
    """Whether further #SBATCH options set the time limit themselves."""
    first = [one.replace("=", " ", 1).split(" ")[0] for one in slurm]
    return any(word in ("--time", "-t") or (word.startswith("-t") and word[2:3].isdigit()) for word in first)


def slurm_time(minutes: int) -> str:
    """Return minutes as sbatch takes them: a number up to a day, then days-hours:minutes."""
    if minutes <= MINUTES_PER_DAY:
        return str(minutes)
    days, rest = divmod(minutes, MINUTES_PER_DAY)
    return f"{days}-{rest // MINUTES_PER_HOUR:02d}:{rest % MINUTES_PER_HOUR:02d}"


def how_long(report: PlanReport | None, slurm: Sequence[str]) -> list[str]:
    """Return what stands in the script of its time limit."""
    steps = None if report is None else report.steps_to_train
    if report is None or steps is None:
        if has_time(slurm):
            return []
        return ["--time is that of the smoke test: a real job needs its own (sbatch --time 7-0)."]
    needed, limit = job_minutes(report), given_minutes(slurm)
    margin = f"{slurm_time(needed)} at the slow end of the band with {STARTING_MINUTES} minutes to start"
    slow = f"{steps:,} steps take {report.days_to_train:,.3g} days, {margin}"
    if not has_time(slurm):
        return [f"--time: {slow}; cut it to what your partition allows (sbatch --time 2-0)."]
    if limit is None or limit >= needed:
        return [f"{slow}."]
    jobs = math.ceil(needed / max(1, limit - STARTING_MINUTES - SAVING_MINUTES))
    return [
        f"{slow}: more than --time {slurm_time(limit)}. Submit it about {jobs:,} times with --dependency=singleton and "
        "CHECKPOINT_DIR set: each job saves before its limit, and the next goes on."
    ]
