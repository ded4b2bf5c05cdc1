"""`autoconfig trace`: what the real megatron-core code holds on chosen ranks, beside what the formula predicts.

Direction of calls: `trace_plan` -> rules and formula (evaluate) -> the training core in its own processes (trace_process) ->
`compare`, which puts the formula's parts into the trace's categories.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.memory_model.activations import Shape, flash_package_runs
from autoconfig.memory_model.state import logits_per_rank
from autoconfig.specs.errors import AutoconfigError, InputError, UnsupportedError, option
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.job import (
    CATEGORIES,
    MAX_PROCESSES,
    Job,
    RankTrace,
    TraceRequest,
    ranks_of_stages,
    read_rank,
    read_stages,
    request_text,
)
from autoconfig.specs.measurement import ExitCode
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario, endless_recomputation
from autoconfig.specs.software.software import SoftwareStack
from autoconfig.training.price import StageMemory, report_plan, violations
from autoconfig.training.question import Question, Request, understand

MODULE = "autoconfig.trainer.tracing.trace_process"


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Every traced rank in order, and the versions that traced them."""

    versions: dict[str, str]
    ranks: tuple[RankTrace, ...]


def run_traces(request: TraceRequest, done: Callable[[RankTrace], None], python: str = sys.executable) -> Traces:
    """Trace the request's ranks with the interpreter `python`; `done` is told of each. Raises InputError for what the training
    core refuses and for a missing torch or megatron-core; on any way out no process stays behind."""
    ranks = list(dict.fromkeys(request.ranks))
    count = min(MAX_PROCESSES, len(ranks))
    lines: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    versions: dict[str, str] = {}
    found: dict[int, RankTrace] = {}
    with _processes([replace(request, ranks=tuple(ranks[i::count])) for i in range(count)], python, lines) as running:
        open_processes = len(running)
        while open_processes:
            number, line = lines.get()
            if line is None:
                open_processes -= 1
                _check_end(running[number])
            elif "versions" in line:
                versions = line["versions"]
            else:
                trace = read_rank(line)
                found[trace.rank] = trace
                done(trace)
    return Traces(versions=versions, ranks=tuple(found[rank] for rank in ranks))


@contextmanager
def _processes(requests: list[TraceRequest], python: str, lines: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per request; its lines, and None at its end, go to the queue with its number."""
    running: list[subprocess.Popen[str]] = []
    try:
        for number, request in enumerate(requests):
            running.append(_start(request, python))
            threading.Thread(target=_read, args=(number, running[number], lines), daemon=True).start()
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _start(request: TraceRequest, python: str) -> subprocess.Popen[str]:
    try:
        process = subprocess.Popen(
            [python, "-P", "-m", MODULE],
            env=with_import_path({**os.environ}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise InputError(f"{option('python')} {python!r} cannot be started: {error.strerror or error}") from error
    assert process.stdin is not None
    try:
        process.stdin.write(request_text(request))
        process.stdin.close()
    except BrokenPipeError:
        pass  # it says why on standard error
    return process


def _read(number: int, process: subprocess.Popen[str], lines: Any) -> None:
    assert process.stdout is not None
    with process.stdout as said:
        for text in said:
            if text.startswith("{"):
                lines.put((number, json.loads(text)))
    lines.put((number, None))


def _check_end(process: subprocess.Popen[str]) -> None:
    """Raise what the process said when it did not end well."""
    assert process.stderr is not None
    said, code = process.stderr.read().strip(), process.wait()
    if code in (ExitCode.BAD_JOB, ExitCode.MISSING_PACKAGE):
        raise InputError(said.splitlines()[-1])
    if f"No module named {MODULE}" in said or "No module named 'autoconfig" in said:
        raise InputError(
            f"{option('python')}: that interpreter has no autoconfig; pip install 'megatron-autoconfig[train]' there"
        )
    if code:
        raise AutoconfigError(f"the trace ended with exit code {code}: {said[-2000:]}")


LOCAL, ENGINE = "megatron-local", "transformer-engine"
ENGINE_GENERATIONS = ("megatron-core", "nemo")
TEMPORARY = (
    *("dummy_weight_gradients", "workspace_bytes", "fsdp_unit_bytes", "gather_buffer", "mlp_backward", "attention_backward"),
    *("output_layer_backward", "embedding_backward", "tied_weight_gradient", "optimizer_step_bytes", "recomputed_activations"),
)
CATEGORY_OF_PART = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "loss": "logits",
} | dict.fromkeys(TEMPORARY, "temporary")
"""Parts of the formula -> categories of the trace; every part that is not named here is an activation."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One category of one rank; bytes."""

    term: str
    traced: float
    formula: float
    parts: dict[str, float]
    """The formula's parts in it."""


@dataclass(frozen=True, kw_only=True)
class RankComparison:
    """One traced rank and its stage in the formula."""

    trace: RankTrace
    stage: StageMemory
    differences: tuple[Difference, ...]

    @property
    def ratio(self) -> float:
        """Formula over trace."""
        return self.stage.peak_bytes / self.trace.peak_bytes


@dataclass(frozen=True, kw_only=True)
class TraceAnswer:
    """The answer of one `trace`."""

    question: Question
    plan: TrainPlan
    stack: str
    versions: dict[str, str]
    ranks: tuple[RankComparison, ...]

    @property
    def stages(self) -> tuple[int, ...]:
        """Pipeline stages of which a rank was traced."""
        return tuple(sorted({rank.trace.pipeline_stage for rank in self.ranks}))

    @property
    def left_out(self) -> tuple[int, ...]:
        """Pipeline stages of which none was."""
        return tuple(stage for stage in range(self.plan.pp) if stage not in self.stages)


def trace_plan(
    request: Request,
    plan_text: str,
    ranks: tuple[int, ...],
    done: Callable[[RankTrace], None],
    started: Callable[[int], None],
    python: str,
    stages: str | None = None,
) -> TraceAnswer:
    """Trace ranks of one plan; `started` is told how many. Raises InputError.

    Without ranks those of pipeline stages: where `stages` says which, the first and the last rank of each; else the first rank
    of the first, a middle and the last stage.
    """
    if ranks and stages is not None:
        raise InputError(f"{option('rank')} and {option('stages')}: say one of them")
    question = understand(request)
    scenario = question.scenario
    plan = legal_plan(scenario, plan_text)
    chosen = ranks or ranks_of_stages(plan, read_stages(stages, plan), both_ends=stages is not None)
    wanted = trace_request(scenario, plan, chosen)
    started(len(wanted.ranks))
    found = run_traces(wanted, done, python)
    return TraceAnswer(
        question=question, plan=plan, stack=wanted.job.software, versions=found.versions, ranks=compare(scenario, plan, found)
    )


def legal_plan(scenario: Scenario, plan_text: str) -> TrainPlan:
    """The plan. Raises InputError with the rules that it breaks, UnsupportedError for a plan that never ends."""
    plan = scenario.read_plan(plan_text)
    broken = violations(scenario, plan)
    if broken:
        raise InputError(f"{plan} is not legal: " + "; ".join(f"{v.rule} {v.text}" for v in broken[:3]))
    if (endless := endless_recomputation(scenario.model, plan.recompute.modules)) is not None:
        raise UnsupportedError(f"{plan}: {endless}")
    return plan


def trace_request(scenario: Scenario, plan: TrainPlan, ranks: tuple[int, ...]) -> TraceRequest:
    """What the training core is asked. Raises UnsupportedError for what it cannot build."""
    job = Job(
        model=scenario.model,
        plan=plan,
        workload=scenario.workload,
        numerics=scenario.numerics,
        software=core_stack(scenario.software),
        attention_kernel=scenario.software.memory.attention_kernel,
    )
    memory = scenario.software.memory
    copies = memory.flash_copies_output and flash_package_runs(scenario.cluster.gpu, scenario.numerics)
    return TraceRequest(job=job, ranks=ranks, memory=memory, copies_attention_output=copies)


def core_stack(stack: SoftwareStack) -> str:
    """The training core's name for a stack of the catalogue. Raises UnsupportedError."""
    if stack.name.startswith(LOCAL):
        return LOCAL
    if stack.generation in ENGINE_GENERATIONS and stack.memory.attention_kernel == "flash":
        return ENGINE
    raise UnsupportedError(
        f"software {stack.name}: the training core builds megatron-core with or without Transformer Engine; "
        f"say {option('software')} {ENGINE} or {option('software')} {LOCAL}"
    )


def compare(scenario: Scenario, plan: TrainPlan, found: Traces) -> tuple[RankComparison, ...]:
    """Each traced rank beside its stage in the formula."""
    stages = report_plan(scenario, plan).stages
    pairs = [(trace, stages[trace.pipeline_stage]) for trace in found.ranks]
    return tuple(
        RankComparison(trace=trace, stage=stage, differences=_differences(scenario, plan, trace, stage))
        for trace, stage in pairs
    )


def _differences(scenario: Scenario, plan: TrainPlan, trace: RankTrace, stage: StageMemory) -> tuple[Difference, ...]:
    parts: dict[str, dict[str, float]] = {category: {} for category in CATEGORIES}
    for name, size in stage.parts.items():
        category = CATEGORY_OF_PART.get(name, "activations")
        if name == "output_layer_backward":  # the logits' own gradient is as wide as the vocabulary
            logits = min(size, _logit_gradient(scenario, plan))
            parts["logits"]["logit_gradient"] = logits
            size -= logits
        parts[category][name] = size
    return tuple(
        Difference(term=c, traced=float(trace.by_category[c]), formula=sum(parts[c].values()), parts=parts[c])
        for c in CATEGORIES
    )


def _logit_gradient(scenario: Scenario, plan: TrainPlan) -> float:
    shape = Shape.of(
        seq_length=scenario.workload.seq_length, tp=plan.tp, sp=plan.sp, cp=plan.cp, ep=plan.ep, etp=plan.etp, mbs=plan.mbs
    )
    memory = scenario.software.memory
    wide = memory.logit_gradient_bytes * scenario.numerics.activation_bytes / 2
    return float(wide * logits_per_rank(memory, padded_vocab_size(scenario.model, plan.tp), shape))
