"""Whether files are of one job: what each of them says of its model, its batch, its sequences and its GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from autoconfig.diagnosis.expectation import Expectation
from autoconfig.evidence.records import DumpedPlan, Evidence, Origin, StepLine
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.scenario import Workload

ALIKE = 0.03
"""Tokens of a step differ by less where they are the same: logs print them with three digits."""
PADDED = frozenset(("megatron-iteration", "nanotron", "internevo", "nemo", "nemo-bar"))
"""Formats whose tokens are whole sequences; others count what they hold."""
SCATTER = 0.01
"""Samples of the steps of one batch differ by less."""


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """What a log says of its job; None where it does not."""

    batch: int | None
    """Sequences of a step."""
    sequence: int | None
    """Tokens of one."""
    tokens: float | None
    """Of a step."""
    world: int | None
    """GPUs."""


def batch_of(run: Evidence) -> int | None:
    """Sequences of a step, as a run's log prints them, or as the samples that it has consumed say; None where it does neither,
    or where they are not the same in all lines."""
    sizes = {line.batch_size for line in run.steps if line.batch_size}
    if len(sizes) == 1:
        return sizes.pop()
    each = None if sizes else _of_a_step(run.steps, "samples")
    return round(each) if each is not None and abs(each - round(each)) < SCATTER else None


def size_of(run: Evidence) -> JobSize:
    """The size of the job of a run's log."""
    values = run.plans[-1].values if run.plans else {}
    batch = batch_of(run) or _whole(values, "global_batch_size")
    lengths = {length for line in run.steps if (length := _sequence(line))}  # several where short sequences come first
    sequence = lengths.pop() if len(lengths) == 1 else _whole(values, "seq_length")
    padded = tuple(line for line in run.steps if line.format in PADDED)
    tokens = _of_a_step(padded, "tokens") or (batch * sequence if batch and sequence else None)
    return JobSize(batch=batch, sequence=sequence, tokens=tokens, world=run.plans[-1].world_size if run.plans else None)


def _of_a_step(lines: tuple[StepLine, ...], name: str) -> float | None:
    """Growth of a count from step to step; None where it is not the same for all."""
    counts = [(line.step, float(value)) for line in lines if line.step is not None and (value := getattr(line, name))]
    grown = [(later - earlier) / (at - then) for (then, earlier), (at, later) in pairwise(counts) if at > then]
    if not grown:
        return None
    usual = statistics.median(grown)
    return usual if usual > 0 and all(abs(one / usual - 1) <= ALIKE for one in grown) else None


def tokens_of_steps(lines: Sequence[StepLine]) -> list[tuple[StepLine, float]]:
    """Tokens of a step by the count of those consumed so far."""
    counts = [(line, line.step, line.tokens) for line in lines if line.step is not None and line.tokens]
    return [
        (line, (tokens - before) / (step - then))
        for (_, then, before), (line, step, tokens) in pairwise(counts)
        if step > then and tokens > before
    ]


def _sequence(line: StepLine) -> int | None:
    """Tokens of a sequence, where a line has consumed both."""
    if not line.samples or not line.tokens:
        return None
    each = line.tokens / line.samples
    return round(each) if abs(each - round(each)) < SCATTER else None


def _whole(values: dict[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else None


def require_same_job(run: Evidence, expectation: Expectation, *, own_plan: bool) -> None:
    """Raises InputError where a log is of another model, batch, sequence, layout or number of GPUs than the plan; `own_plan`:
    that of the arguments which the log itself prints."""
    scenario = expectation.scenario
    assert scenario is not None
    _require_same_batch(run, scenario.workload)
    for dump in run.plans:
        if dump.world_size and dump.world_size != scenario.cluster.num_gpus:
            gpus = scenario.cluster.num_gpus
            _refuse(dump.origin.file, f"a world size of {dump.world_size:,}", f"{gpus:,} GPUs", "gpus", dump.world_size)
        if not own_plan:
            _require_same_plan(dump, expectation)
    _require_ranks(run, scenario.cluster.num_gpus)


def _require_same_batch(run: Evidence, workload: Workload) -> None:
    """Raises InputError where a log is of another batch or sequence."""
    file = next(chain((one.origin for one in run.steps), (one.origin for one in run.plans)), Origin(file="")).file
    size, batch, long = size_of(run), workload.global_batch_size, workload.seq_length
    ramped = any(one.values.get("rampup_batch_size", "None") != "None" for one in run.plans)
    if size.batch not in (None, batch) and not ramped:
        _refuse(file, f"a global batch of {size.batch:,}", f"{batch:,}", "global_batch_size", size.batch or 0)
    if size.sequence not in (None, long):
        _refuse(file, f"sequences of {size.sequence:,} tokens", f"{long:,}", "seq_length", size.sequence or 0)
    if size.batch is None and size.tokens is not None and not ramped and not workload.decoder_seq_length:
        _require_tokens(file, size.tokens, float(batch * long))


def _refuse(file: str, printed: str, planned: str, field: str, value: int) -> None:
    raise InputError(
        f"{file!r} prints {printed}, and the plan is of {planned}: give the files of one job, or {option(field)} {value}",
        field=field,
    )


def _require_tokens(file: str, tokens: float, planned: float) -> None:
    if abs(tokens / planned - 1) > ALIKE:
        raise InputError(
            f"{file!r} counts {tokens:,.0f} tokens a step, and the plan is of {planned:,.0f}: give the files of one job, or "
            f"{option('global_batch_size')} and {option('seq_length')} as it ran",
            field="global_batch_size",
        )


def _require_same_plan(dump: DumpedPlan, expectation: Expectation) -> None:
    """Raises InputError where the arguments that a log prints have other sizes than the plan's model and layout."""
    scenario, plan = expectation.scenario, expectation.plan
    assert scenario is not None and plan is not None
    pairs = {
        "hidden_size": scenario.model.hidden_size,
        "num_attention_heads": scenario.model.num_attention_heads,
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "micro_batch_size": plan.mbs,
    }
    if _whole(dump.values, "encoder_num_layers") in (None, _whole(dump.values, "num_layers")):
        pairs["num_layers"] = scenario.model.num_layers
    for name, value in pairs.items():
        printed = _whole(dump.values, name)
        if printed is not None and printed != value:
            raise InputError(
                f"{dump.origin.file!r} prints {name} {printed:,}, and the plan is of {value:,}: give the files of one job; the "
                "log alone says its own plan"
            )


def _ranks(run: Evidence) -> Iterator[tuple[int, str]]:
    """(rank, file) of every rank that the evidence names."""
    for timer in run.timers:
        yield from ((rank, timer.origin.file) for rank in timer.by_rank)
    yield from ((line.rank, line.origin.file) for line in run.memory if line.rank is not None)
    yield from ((one.most_rank, one.origin.file) for one in run.slowest)


def _require_ranks(run: Evidence, gpus: int) -> None:
    rank, file = max(_ranks(run), default=(0, ""))
    if rank >= gpus:
        raise InputError(
            f"{file!r} names rank {rank:,}, and the plan is of {gpus:,} GPUs: give the files of one job, or {option('gpus')} N",
            field="gpus",
        )


ZONE_S = 900.0
"""Clocks of one moment differ by whole quarters of an hour: some print local time."""
SAME_MOMENT_S = 2.0
"""A line is printed and a scalar is written within so much of each other, where they are of one step."""
LEAST_SHARED = 3


def same_run_as(run: Evidence, other: Evidence) -> bool:
    """Whether two logs are of one run: the steps that both print are printed at the same moments, or take the same time to the
    last digit, as two hosts of a run print them."""
    if _scattered(mine := _seconds_by_step(run)) and mine == _seconds_by_step(other):
        return True
    here, there = ({line.step: line.at for line in one.steps if line.step is not None and line.at} for one in (run, other))
    apart = [here[step] - there[step] for step in here.keys() & there.keys()]
    if len(apart) < LEAST_SHARED or 2 * len(apart) < min(len(here), len(there)):
        return False
    usual = statistics.median(apart)
    zone = round(usual / ZONE_S) * ZONE_S
    return abs(usual - zone) <= SAME_MOMENT_S and all(abs(one - usual) <= SAME_MOMENT_S for one in apart)


def _seconds_by_step(run: Evidence) -> dict[int, float]:
    return {line.step: line.seconds for line in run.steps if line.step is not None and line.seconds}


def _scattered(seconds: dict[int, float]) -> bool:
    """Whether steps differ as those of real runs do, so that two runs have no series in common."""
    return len(set(seconds.values())) >= LEAST_SHARED and 2 * len(set(seconds.values())) > len(seconds)


def require_comparable(now: Evidence, before: Evidence) -> None:
    """Raises InputError where two logs are of steps of other sizes: their seconds say nothing of each other."""
    one, other = size_of(now), size_of(before)
    sizes = (
        ("a global batch of {:,}", one.batch, other.batch),
        ("sequences of {:,} tokens", one.sequence, other.sequence),
        ("a world size of {:,}", one.world, other.world),
        ("{:,.0f} tokens a step", one.tokens, other.tokens),
    )
    for words, new, old in sizes:
        if new is not None and old is not None and abs(new / old - 1) > (ALIKE if isinstance(new, float) else 0.0):
            files = [run.steps[0].origin.file if run.steps else "" for run in (before, now)]
            raise InputError(
                f"{files[0]!r} has {words.format(old)} and {files[1]!r} {words.format(new)}: their steps cannot be compared; "
                "give two logs of one job, or the plan and one log"
            )
