"""What `diagnose` is given: files in any order, a PLAN, options; to one diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autoconfig.diagnosis.answer import Diagnosis, diagnose
from autoconfig.diagnosis.doubt import without_unnamed_bars
from autoconfig.diagnosis.expectation import Expectation, expectation_of
from autoconfig.diagnosis.launch_files import is_launch_file
from autoconfig.diagnosis.measured import RATES, GivenStep
from autoconfig.diagnosis.same_job import batch_of, require_comparable, require_same_job, same_run_as
from autoconfig.evidence.read import read_files, read_texts
from autoconfig.evidence.records import WITH_ORIGIN, Evidence, Origin
from autoconfig.formats.check import read_any, read_file
from autoconfig.megatron.check import changes_from, file_violations
from autoconfig.megatron.check_input import CheckInput, CheckRequest, check_request
from autoconfig.planning.request_fields import DIAGNOSE
from autoconfig.planning.resolve import check_bounds, field_values
from autoconfig.specs.errors import InputError, PlanError, option
from autoconfig.training.question import Request, request_of, understand

MOST_LOGS = 2
"""Logs of steps that are compared: a good and a bad one."""
LAUNCH = "launch"


@dataclass(frozen=True, kw_only=True)
class GivenWords:
    """The words of a question, sorted."""

    files: tuple[Path, ...]
    plan: str | None


def sorted_words(words: Sequence[str]) -> GivenWords:
    """Files and the PLAN among words. Raises InputError for a word that is neither, and for two plans."""
    files, plans = [], []
    for word in words:
        path = Path(word)
        try:
            there = path.exists()
        except (OSError, ValueError):  # a name too long, or with NUL
            there = False
        if there:
            files.append(path)
        elif "=" in word and "/" not in word.partition("=")[0]:
            plans.append(word)
        else:
            raise InputError(f"{word[:80]!r} is no file, and no PLAN like tp=8,pp=2,mbs=1: check the path")
    if len(plans) > 1:
        raise InputError(f"two plans: {plans[0][:60]} and {plans[1][:60]}; give one")
    return GivenWords(files=tuple(files), plan=plans[0] if plans else None)


def given_of(given: Mapping[str, Any]) -> GivenStep:
    """What the caller says of the step. Raises InputError for two ways at once, and for numbers out of bounds."""
    fields = [field for field in DIAGNOSE if field.name in GivenStep.__dataclass_fields__]
    step = GivenStep(**field_values(fields, given))
    check_bounds(fields, step)
    named = [name for name, value in vars(step).items() if value is not None]
    if len(named) > 1:
        raise InputError(f"give one of {option(named[0])} and {option(named[1])}: each says how long a step takes")
    return step


@dataclass(frozen=True, kw_only=True)
class PlanSource:
    """How what says the plan is read."""

    plan: str | None
    """In its short form; None: a file says it."""
    request: Callable[[], Request]
    """The question that a PLAN is of. Raises InputError."""
    check: CheckRequest
    """What the caller says beside a launch file, or the arguments that a log prints."""
    read: Callable[[str], CheckInput]
    """The launch file of this name. Raises InputError."""
    given: frozenset[str] = frozenset()
    """Fields of the question that the caller says: an error of one of them is his."""
    names_model: bool = False
    """A model and a number of GPUs are given."""


def _said(given: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in given.items() if value is not None)


def diagnose_files(words: Sequence[str], given: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis of the files and the PLAN among `words`, with the options of a question. Raises InputError."""
    said, step = sorted_words(words), given_of(given)
    check = check_request(given)
    asked = PlanSource(
        plan=said.plan,
        request=lambda: request_of(given),
        check=check,
        read=lambda name: read_file(Path(name), check),
        given=_said(given),
        names_model=given.get("model") is not None and given.get("gpus") is not None,
    )
    return diagnosed(read_files(said.files, is_launch_file), asked, step)


def diagnose_texts(
    files: Mapping[str, str], plan: str | None, given: Mapping[str, Any], request: Callable[[], Request], check: CheckRequest
) -> Diagnosis:
    """The same of texts by name, for callers over the network: `request` is the question of a plan, `check` what is said beside
    a launch file. Raises InputError."""
    asked = PlanSource(
        plan=plan, request=request, check=check, read=lambda name: read_any(files[name], check), given=_said(given)
    )
    return diagnosed(read_texts(files, is_launch_file), asked, given_of(given))


def diagnosed(evidence: Evidence, asked: PlanSource, step: GivenStep) -> Diagnosis:
    """Return the diagnosis of evidence that was read; the plan is the PLAN, that of the launch file among the files, or of the
    arguments that a log prints. Raises InputError."""
    launch = [one.name for one in evidence.files if one.kind == LAUNCH]
    if asked.plan is not None and launch:
        _require_no_plan(launch[0], asked)
        evidence, launch = _with_remark(evidence, launch, "says no plan"), []
    if len(launch) > 1:
        raise InputError(f"{launch[0]} and {launch[1]} are both launch files: give the run's own")
    if not evidence.files and step == GivenStep():
        raise InputError(f"nothing to diagnose: give the run's log, or say how long a step takes ({option('step')} 8.1s)")
    if (plain := without_unnamed_bars(evidence)) is not None:
        names = {line.origin.file for line in evidence.steps} - {line.origin.file for line in plain.steps}
        evidence = _with_remark(plain, tuple(names), "a progress bar without a name: nothing says that it is of training steps")
    evidence = _one_log_a_run(evidence)
    now, before = _two_runs(evidence)
    expectation, unread = _expected_or_why(evidence, asked, launch, batch_of(now))
    if expectation is not None:
        require_same_job(now, expectation, own_plan=asked.plan is None and not launch)
    if before is not None:
        require_comparable(now, before)
    return diagnose(now, expectation, step, before, unread=unread)


def _expected_or_why(
    evidence: Evidence, asked: PlanSource, launch: Sequence[str], batch: int | None
) -> tuple[Expectation | None, str]:
    """Return the price of the run's plan, or why its source cannot be read. Raises InputError where the caller says it."""
    try:
        return _expected(evidence, asked, launch, batch), ""
    except InputError as error:
        source = launch[0] if launch else evidence.plans[-1].origin.file if evidence.plans else ""
        if asked.plan is not None or not source or error.field in asked.given:
            raise
        return None, f"the plan of {source} cannot be read: {error}"


def _require_no_plan(name: str, asked: PlanSource) -> None:
    """Raises InputError where a file says a plan beside the PLAN."""
    try:
        asked.read(name)
    except InputError:
        return
    raise InputError(f"{name} and {(asked.plan or '')[:60]} both say a plan: give one of them")


def _with_remark(evidence: Evidence, names: Sequence[str], remark: str) -> Evidence:
    """The evidence with a remark beside these files."""
    files = (replace(one, remarks=(*one.remarks, remark)) if one.name in names else one for one in evidence.files)
    return replace(evidence, files=tuple(files))


def _expected(evidence: Evidence, asked: PlanSource, launch: Sequence[str], batch: int | None) -> Expectation | None:
    """The price of the run's plan; None where nothing says the plan. `batch`: sequences of a step, as the log says them, for a
    question that does not. Raises InputError where what says the plan cannot be read."""
    if asked.plan is not None:
        request = asked.request()
        if request.global_batch_size is None and batch is not None:
            request = replace(request, global_batch_size=batch)
        question = understand(request)
        try:
            return expectation_of(question, question.scenario.read_plan(asked.plan))
        except PlanError as error:
            raise InputError(f"the plan {asked.plan[:80]} cannot be priced: {error}") from error
    if launch:
        return _of_file(asked.read(launch[0]), launch[0])
    if evidence.plans:
        return _of_file(read_any(evidence.plans[-1].text, asked.check))
    if asked.names_model:
        raise InputError(
            f"{option('model')} and {option('gpus')} are of a PLAN: write it behind them, like tp=8,pp=2,mbs=1, or give the "
            "launch file"
        )
    return None


_LEVEL_2 = re.compile(r"timing[-_]log[-_]level[\"',:= ]{1,8}2(?!\d)")


def _of_file(source: CheckInput, file: str = "") -> Expectation:
    """The price of a file's plan; a run that is there needs no permission. `file`: name of a launch file."""
    broken = bool(file_violations(source))
    expected = expectation_of(source.question, source.plan, broken=broken, changes=partial(changes_from, source))
    for number, line in enumerate(source.text.splitlines() if file else (), 1):
        if (asked := _LEVEL_2.search(line)) and "#" not in line[: asked.start()]:
            return replace(expected, level_2_timers=Origin(file=file, line=number, text=asked[0]))
    return expected


def _one_log_a_run(evidence: Evidence) -> Evidence:
    """The evidence with the steps of one log for each run: of several that are of one run that which says most of them."""
    names = list(dict.fromkeys(line.origin.file for line in evidence.steps))
    runs = {name: evidence.of_file(name) for name in names} if len(names) > 1 else {}
    ranked = sorted(runs, key=lambda name: (-_measures(runs[name]), names.index(name)))
    for place, name in enumerate(ranked):
        fuller = next((one for one in ranked[:place] if one in runs and same_run_as(runs[name], runs[one])), None)
        if fuller is not None:
            del runs[name]
            steps = tuple(line for line in evidence.steps if line.origin.file != name)
            remark = f"of the same run as {fuller}, whose steps are taken"
            evidence = _with_remark(replace(evidence, steps=steps), (name,), remark)
    return evidence


def _measures(run: Evidence) -> int:
    """How many ways a log says how long its steps take."""
    return sum(any(getattr(line, name) for line in run.steps) for name in ("seconds", "elapsed", *RATES))


def _two_runs(evidence: Evidence) -> tuple[Evidence, Evidence | None]:
    """(the run, its earlier self): of two logs of steps the first is the good one. Raises InputError for more than two."""
    logs = list(dict.fromkeys(line.origin.file for line in evidence.steps))
    if len(logs) < MOST_LOGS:
        return evidence, None
    if len(logs) > MOST_LOGS:
        raise InputError(f"{len(logs)} logs of steps ({', '.join(logs[:3])}, ...): give one, or a good and a bad one")
    return _without(evidence, logs[0]), evidence.of_file(logs[0])


def _without(evidence: Evidence, name: str) -> Evidence:
    """The evidence of all files but one; the list of files stays whole."""
    kept: dict[str, Any] = {
        kind: tuple(one for one in getattr(evidence, kind) if one.origin.file != name) for kind in WITH_ORIGIN
    }
    return replace(evidence, **kept)
