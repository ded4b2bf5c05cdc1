"""`autoconfig predict IN.csv --output OUT.csv`: a prediction for every row of a table of runs.

Rows are read by `training_row.read_case`, grouped by everything but the plan, and priced together. A row whose plan is not
whole (full_plan = 0, or a missing cell) gets the best legal completion and the range of all completions. A row that cannot be
predicted keeps its line, empty, with the reason.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from autoconfig.megatron.check import file_violations
from autoconfig.megatron.check_input import CheckInput
from autoconfig.memory_model.after_step import allocated_after_step
from autoconfig.memory_model.predict import allocator_bytes, estimate_memory, fit_probability
from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.progress import Progress
from autoconfig.planning.request_fields import VARIANT
from autoconfig.planning.resolve import field_names
from autoconfig.runs.cells import read_flag
from autoconfig.runs.encoder_row import is_encoder_table, training_row_of
from autoconfig.runs.predicted import FAILED, cells_of, distinct_rows
from autoconfig.runs.table import CONFIG, CellError, Row, TableKind, cell, columns_of, unread_columns
from autoconfig.runs.training_row import Case, read_case, read_partial
from autoconfig.specs.errors import GIB, AutoconfigError, InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Remark, sentences
from autoconfig.specs.scenario import Calibration, Scenario
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.confidence import Confidence, least_confident
from autoconfig.training.plan_rules import broken_as_published, broken_rules
from autoconfig.training.price import Violation, flops_per_step
from autoconfig.training.rank import rank
from autoconfig.training.rules import RULE_TEXT

TEXT_COLUMNS = ("id", "pred_confidence", "pred_note")
MAX_WORKERS = 8
MIN_ROWS_FOR_WORKERS = 2_000
"""Below it starting processes costs more than it saves."""
ROWS_PER_BLOCK = 1_000


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one row gets. None where it could not be predicted; `note` says why, or what was assumed."""

    id: str
    step_seconds: float | None = None
    confidence: Confidence | None = None
    tokens_per_second_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    peak_gib: float | None = None
    after_step_gib: float | None = None
    """Allocated when the step has ended (Megatron-LM's mem-allocated-bytes)."""
    fits: bool | None = None
    note: str = ""

    def cells(self) -> dict[str, str]:
        return cells_of(self, "training")


COLUMNS = tuple(Prediction(id="").cells())


def predict_file(
    source: Path, target: Path, calibration: Calibration | None = None, progress: Progress | None = None
) -> tuple[list[Prediction], str]:
    """`TableKind.predict` of a table of training runs, by several processes where it is long."""
    workers = min(MAX_WORKERS, os.cpu_count() or 1)
    return TRAINING_RUNS.predict(source, target, lambda rows: predict_rows(rows, calibration, progress, workers=workers))


def read_table(source: Path) -> list[dict[str, str]]:
    """Rows of a table of training runs. Raises FileError where it cannot be read, InputError where it is no such table."""
    return TRAINING_RUNS.read(source)[1]


def unread(source: Path) -> str:
    """A remark about columns of a table of training runs that nothing reads; empty where all are known."""
    return unread_columns(TRAINING_RUNS.read(source)[0], known_columns())


@cache
def known_columns() -> frozenset[str]:
    """Return the columns of a table of training runs."""
    return columns_of("training") | set(field_names(VARIANT))


TRAINING_RUNS = TableKind(
    needed=lambda columns: {"gpu"} if {"model", CONFIG} & {*columns} else {"gpu", "hidden", "heads", "layers", "seq"},
    known=known_columns,
    other=(
        is_encoder_table,
        training_row_of,
        columns_of("training") | columns_of("encoders") | columns_of("encoders_measured"),
    ),
    said="a model of the catalogue by name needs no shape; the columns are those of columns.training in "
    "autoconfig/data/run_tables.toml, or Megatron's names of them (global_batch_size)",
    megatron_names=True,
)


def predict_rows(
    rows: Sequence[Row], calibration: Calibration | None = None, progress: Progress | None = None, workers: int = 1
) -> list[Prediction]:
    """Return a prediction per row, in order, with the shipped calibration unless another is given. Rows that ask the same are
    answered once; many rows by `workers` processes."""
    asked, numbers = distinct_rows(rows, "training")
    answers: dict[int, Prediction] = {}
    with closing(_answers(asked, calibration or shipped(), workers)) as predictions:
        for count, (number, prediction) in enumerate(predictions, 1):
            answers[number] = prediction
            if progress is not None and count % 100 == 0:
                progress(f"{count:,} of {len(asked):,} different rows")
    return [replace(answers[number], id=cell(row, "id")) for row, number in zip(rows, numbers, strict=True)]


def _answers(rows: Sequence[Row], calibration: Calibration, workers: int) -> Generator[tuple[int, Prediction], None, None]:
    if workers < 2 or len(rows) < MIN_ROWS_FOR_WORKERS:
        yield from _predict_distinct(rows, calibration)
        return
    blocks = [(start, rows[start : start + ROWS_PER_BLOCK]) for start in range(0, len(rows), ROWS_PER_BLOCK)]
    work = partial(_predict_block, calibration)
    ignored = signal.SIGINT, signal.SIG_IGN  # interrupts are the parent's; leaving the pool ends the processes
    with get_context("spawn").Pool(workers, signal.signal, ignored) as pool:
        for (start, _), predictions in zip(blocks, pool.imap(work, [block for _, block in blocks]), strict=True):
            yield from ((start + number, prediction) for number, prediction in predictions)


def _predict_block(calibration: Calibration, rows: Sequence[Row]) -> list[tuple[int, Prediction]]:
    return list(_predict_distinct(rows, calibration))


_Asked = tuple[int, Row, Case]
"""(number, row, the question behind it)."""


def _predict_distinct(rows: Sequence[Row], calibration: Calibration) -> Iterator[tuple[int, Prediction]]:
    groups: dict[Scenario, list[_Asked]] = {}
    for number, row in enumerate(rows):
        try:
            if read_flag("full_plan", cell(row, "full_plan")) is False:
                raise InputError("the plan is not whole")
            case = read_case(row, calibration)
            alike = case.scenario.on(num_gpus=case.scenario.cluster.gpus_per_node).with_batch(1)  # columns of the layouts
            groups.setdefault(alike, []).append((number, row, case))
        except CellError as error:
            yield number, Prediction(id=cell(row, "id"), note=f"{FAILED}{error}")
        except AutoconfigError as error:
            yield number, _completed(row, str(error), calibration)
    for scenario, members in groups.items():
        yield from _predict_group(scenario, members)


def _predict_group(scenario: Scenario, members: Sequence[_Asked]) -> Iterator[tuple[int, Prediction]]:
    """Rows of one model, software and kind of cluster, priced in one call; one by one where that fails."""
    try:
        yield from list(_price(scenario, members))
    except AutoconfigError as error:
        if len(members) > 1:
            for member in members:
                yield from _predict_group(scenario, [member])
        else:
            yield members[0][0], Prediction(id=members[0][2].id, note=f"{FAILED}{error}")


def predict_plan(source: CheckInput, name: str, calibration: Calibration) -> Prediction:
    """The prediction of the plan of a file that `check` reads; of an illegal one with the rules. Raises InputError."""
    scenario = replace(source.question.scenario, calibration=calibration)
    remarks = (*source.question.assumed, *(replace(one, field=f"not modelled: {one.field}") for one in source.not_modelled))
    case = Case(id=name, source=source.kind, scenario=scenario, plan=source.plan, assumed=remarks)
    return next(_price(scenario, [(0, {}, case)], file_violations(source)))[1]


def _price(
    scenario: Scenario, members: Sequence[_Asked], violations: Sequence[Violation] | None = None
) -> Iterator[tuple[int, Prediction]]:
    """Return predictions of rows of one model; `violations`: what the only one breaks, where that is known already."""
    plans = [case.plan for _, _, case in members]
    batches = [case.scenario.workload.global_batch_size for _, _, case in members]
    gpus = [case.scenario.cluster.num_gpus for _, _, case in members]
    recomputes = list(dict.fromkeys(plan.recompute for plan in plans))
    layouts = scenario.layouts(plans, batches, gpus)
    memory = estimate_memory(scenario, layouts, recomputes)
    time = estimate_step_time(scenario, layouts, recomputes)
    texts = {violation.rule: violation.text for violation in violations or ()}
    broken = [list(texts)] if violations is not None else broken_rules(scenario, plans, gpus, batches)
    after = {last: allocated_after_step(scenario, layouts, last=last) for last in {_asks_last(row) for _, row, _ in members}}
    for index, (number, row, case) in enumerate(members):
        own, plan = case.scenario, case.plan
        at = index, recomputes.index(plan.recompute)
        step = float(time.step_seconds[at])
        confidence = Confidence.of(own, step, float(memory.fit_probability[at]), plan.cp)
        peak = peak_bytes(own, plan, row, float(memory.peak_bytes[at]))
        published = broken_as_published(scenario.model.num_layers, plan, broken[index])
        rules = [*case.broken, *(texts or published)]
        if rules:
            confidence = least_confident(confidence, step)
        after_step = float(after[_asks_last(row)][index])
        priced = _prediction(own, plan, row, step, confidence, peak, after_step, bool(memory.fits[at]))
        yield number, replace(priced, id=case.id, note=_note(rules, case.assumed, texts))


def _note(rules: Sequence[str], assumed: Sequence[Remark], texts: Mapping[str, str]) -> str:
    named = (f"{rule} ({texts.get(rule) or RULE_TEXT[rule]})" for rule in dict.fromkeys(rules))
    breaks = ["breaks " + "; ".join(named)] if rules else []
    return "; ".join([*breaks, *(["assumed: " + ", ".join(sentences(assumed))] if assumed else [])])


def _asks_last(row: Row) -> bool:
    return cell(row, "peak_rank").lower() == "last"


def peak_bytes(scenario: Scenario, plan: TrainPlan, row: Row, worst: float | None = None) -> float:
    """Predicted peak of the rank (`peak_rank`) and of the kind (`peak_kind`) that the row asks for; `worst` is the worst
    stage's, where it is known already."""
    last = _asks_last(row) and plan.pp > 1
    if worst is None or last:
        memory = estimate_memory(scenario, scenario.layouts([plan]), [plan.recompute], detail=last)
        worst = float(memory.peak_bytes[0, 0]) if memory.per_stage_bytes is None else float(memory.per_stage_bytes[0, 0, -1])
    return worst + (float(allocator_bytes(worst)) if cell(row, "peak_kind").lower() == "reserved" else 0.0)


def _prediction(
    scenario: Scenario,
    plan: TrainPlan,
    row: Row,
    step: float,
    confidence: Confidence,
    peak_bytes: float,
    after_step: float,
    fits: bool,
) -> Prediction:
    gpus = scenario.cluster.num_gpus
    flops = flops_per_step(scenario, cell(row, "flops_convention"), plan.recompute) / step / gpus
    return Prediction(
        id="",
        step_seconds=step,
        confidence=confidence,
        tflops_per_gpu=flops / 1e12,
        tokens_per_second_per_gpu=scenario.workload.tokens_per_step / step / gpus,
        mfu=flops / scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision),
        peak_gib=peak_bytes / GIB,
        after_step_gib=after_step / GIB,
        fits=fits,
    )


def _completed(row: Row, reason: str, calibration: Calibration) -> Prediction:
    """The best legal completion of a plan that is not whole; its band reaches to the median of all that fit."""
    row_id = cell(row, "id")
    try:
        partial = read_partial(row, calibration)
        scenario = partial.scenario
        ranking = rank(scenario, partial.constraints)
    except AutoconfigError as error:
        reasons = dict.fromkeys((reason, str(error)))
        return Prediction(id=row_id, note=f"{FAILED}{'; '.join(reasons)}")
    if not len(ranking.best):
        if ranking.closest is None:
            return Prediction(id=row_id, note=f"{FAILED}{reason}; no completion is legal")
        plan = ranking.plan_of(ranking.closest)
        case = Case(id=row_id, source=cell(row, "source"), scenario=scenario, plan=plan, assumed=partial.assumed)
        [(_, least)] = _price(scenario, [(0, row, case)])
        return replace(least, note=f"{reason}; no legal completion fits, the nearest to it is {plan}; {least.note}")
    step, peak, limit = (float(column[0]) for column in (ranking.step_seconds, ranking.peak_bytes, ranking.limit_bytes))
    likely = float(fit_probability(peak, limit, scenario.cluster.memory_bytes))
    confidence = Confidence.of(scenario, step, likely, ranking.plan(0).cp)
    middle = float(np.median(ranking.step_seconds[ranking.best]))
    confidence = replace(
        confidence, step_seconds_p95=max(confidence.step_seconds_p95, middle), level="plan completed by search"
    )
    note = f"{reason}; best of {len(ranking.best):,} completions: {ranking.plan(0)}"
    note += "; assumed: " + ", ".join(sentences(partial.assumed)) if partial.assumed else ""
    after_step = float(allocated_after_step(scenario, scenario.layouts([ranking.plan(0)]), last=_asks_last(row))[0])
    return replace(_prediction(scenario, ranking.plan(0), row, step, confidence, peak, after_step, True), id=row_id, note=note)
