"""`check --apply-to`: the improved script. Only the changed arguments are edited, in place; every other byte stays, but for the
comments in which a script of our own speaks of its plan.

A value is replaced where its characters stand in the file: behind the argument, or in the assignment of the variable that it
comes from. What is to be written is read again first; where it does not give the wanted plan, nothing is written and the
changes are listed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from autoconfig.maps.spans import Span, quoted, replaced
from autoconfig.megatron.argument_list import Arguments, Given, split_arguments
from autoconfig.megatron.batch.scripts import argument_line, story
from autoconfig.megatron.check import (
    CheckAnswer,
    FlagChange,
    Flags,
    changes_from,
    missing_environment,
    plan_flags,
    target,
)
from autoconfig.megatron.check_input import CheckInput, CheckRequest, read_check
from autoconfig.megatron.export import plan_text
from autoconfig.megatron.flag_table import Argument, older_names
from autoconfig.megatron.read_plan import CHUNKS_PER_RANK, FIRST, FOR_EMBEDDING, FOR_LOSS, LAST, LAYERS_PER_CHUNK, LAYOUT
from autoconfig.megatron.shell.commands import Value, text_of
from autoconfig.megatron.write import overlap_arguments, train_arguments
from autoconfig.planning.export_files import MARK, remark
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.files import write_atomically
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport, report_plan

STAGES = (LAYERS_PER_CHUNK, CHUNKS_PER_RANK, LAYOUT, FIRST, LAST, FOR_EMBEDDING, FOR_LOSS)
RECOMPUTE = (
    *("--checkpoint-activations", "--checkpoint-num-layers", "--activations-checkpoint-method"),
    *("--activations-checkpoint-num-layers", "--recompute-activations", "--recompute-granularity"),
    *("--recompute-method", "--recompute-num-layers", "--recompute-modules"),
)
ANCHORS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--num-layers",
    "--hidden-size",
)
OF_THE_PLAN = ("Plan:", "Predicted ", "Calibration:", "Largest parts of the step:", "WARNING: this plan", "fp8_param_gather:")
"""How the lines of the head begin that change with the plan (scripts.story)."""
_ARGUMENT = re.compile(r"    (--[a-z0-9-]+)(?P<values>(?: \S++)*+)(?:  # .*)?")


def apply_to(
    answer: CheckAnswer,
    request: CheckRequest,
    path: Path,
    *,
    improve: Callable[[CheckAnswer, CheckRequest], str],
    force: bool = False,
) -> None:
    """Write the file as `improve` makes it to `path`. Raises InputError where it cannot be edited, FileError where it cannot be
    written."""
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"--apply-to {str(path)[:200]!r}: name a file in a folder that exists")
    if path.exists() and not force:
        raise FileError(f"--apply-to {str(path)[:200]!r} exists: name another file, or say --force to replace it")
    text = improve(answer, request)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    write_atomically(path, lambda file: file.write_bytes(text.encode("utf-8")))
    if mode is not None:
        path.chmod(mode)


def improved_text(answer: CheckAnswer, request: CheckRequest) -> str:
    """Return the text of a script, an argument list or a plan.json with the better plan in it. Raises InputError listing the
    changes where it cannot be edited."""
    source = answer.source
    plan, scenario = target(answer)
    question = source.question
    report = report_plan(scenario, plan, None, question.request.memory_margin)
    if source.kind == "plan":
        return plan_text(scenario, plan, report)
    return edited_text(source, plan, report, request, scenario)


def edited_text(
    source: CheckInput, plan: TrainPlan, report: PlanReport | None, request: CheckRequest, wanted: Scenario | None = None
) -> str:
    """Return a script's or argument list's text with `plan` in it, in the `wanted` scenario (default: the file's own overlaps),
    read again before it is returned. Raises InputError."""
    scenario = wanted or source.question.scenario
    changes = changes_from(source, plan, scenario)
    script = source.script
    assert script is not None
    arguments = split_arguments(script.words(), script.unread())
    gpus = scenario.cluster.num_gpus
    if script.num_gpus not in (None, gpus):
        starts = FlagChange(flag="GPUs that the script starts", old=(str(script.num_gpus),), new=(str(gpus),))
        raise refusal("no single number of it says how many GPUs it starts", (*changes, starts, _batch(source, scenario)))
    text = _Editor(source.text, script.argv, arguments, changes).text(plan_flags(scenario, plan))
    changes = (*changes, *(FlagChange(flag=name, old=(old,), new=(new,)) for name, old, new in source.resized))
    if any(line.startswith(MARK) for line in text.splitlines()[:12]):  # written by `export`
        text = refreshed(text, scenario, plan, report)
    if source.kind == "script":
        text = _with_environment(text, missing_environment(source, plan))
    again = read_check(text, request)
    if again.question.scenario.workload != scenario.workload:
        changes = (*changes, _batch(again, scenario))
    if reason := slip_of(again, plan, scenario):
        raise refusal(reason, changes)
    if _others(again, changes) != _others(source, changes):
        raise refusal("the changes touch arguments that are not the plan's", changes)
    return text


def slip_of(again: CheckInput, plan: TrainPlan, wanted: Scenario) -> str:
    """Return what an edited file says that was not asked for; empty where it is right."""
    read = again.question.scenario
    if again.plan != plan:
        return f"with the changes the file reads as {again.plan}, not as {plan}"
    if read.workload != wanted.workload:
        batches = f"{read.workload.global_batch_size} samples, not {wanted.workload.global_batch_size}"
        return f"the file works out its batch or sequence from what is changed: a step becomes {batches}"
    same = read.model == wanted.model and read.cluster == wanted.cluster and read.numerics == wanted.numerics
    if same and same_software(read, wanted, plan):
        return ""
    return "with the changes the file reads as another model, cluster, precision or software"


def _batch(source: CheckInput, wanted: Scenario) -> FlagChange:
    """Return the batch of a step that the file comes to, and the one that is wanted."""
    had = source.question.scenario.workload.global_batch_size
    return FlagChange(flag="--global-batch-size", old=(str(had),), new=(str(wanted.workload.global_batch_size),))


def same_software(read: Scenario, wanted: Scenario, plan: TrainPlan) -> bool:
    """Return whether two scenarios have the same stack, but for overlaps that `plan` cannot have and of which its arguments
    therefore say nothing."""
    a, b = read.software, wanted.software
    overlaps = {name: getattr(b.time, name) for name in ("overlap_grad_reduce", "overlap_param_gather", "tp_overlap_share")}
    written = overlap_arguments(read, plan) == overlap_arguments(wanted, plan)
    return written and replace(a, time=replace(a.time, **overlaps)) == b


def _others(source: CheckInput, changes: Iterable[FlagChange]) -> set[str]:
    others = {f"{one.field} {one.value or ''}".strip() for one in source.unknown} | {*source.ignored}
    return others - {change.flag for change in changes}


def _with_environment(text: str, exports: Sequence[str]) -> str:
    """Return the script with these lines in front of its first command."""
    lines = text.splitlines(keepends=True)
    first = next((at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    return "".join([*lines[:first], *(f"{export}\n" for export in exports), *lines[first:]])


def refusal(reason: str, changes: Iterable[FlagChange]) -> InputError:
    """Return why nothing was written, and what to change by hand."""
    lines = "; ".join(change_text(change) for change in changes)
    return InputError(f"--apply-to: the file cannot be edited: {reason}. Nothing was written; change by hand: {lines}")


def change_text(change: FlagChange) -> str:
    """Return `--flag old -> new`; added and removed flags say so."""
    old, new = " ".join(change.old or ()), " ".join(change.new or ())
    if change.new is None:
        return f"{change.flag}{' ' + old if old else ''} -> (remove)"
    if change.old is None:
        return f"(add) {change.flag}{' ' + new if new else ''}"
    return f"{change.flag} {old} -> {new}"


class _Editor:
    """Collects the edits of one file."""

    def __init__(self, text: str, argv: Sequence[Value], arguments: Arguments, changes: Sequence[FlagChange]) -> None:
        self.before, self.argv, self.given, self.changes = text, argv, arguments.given, changes
        self.edits: set[tuple[Span, str]] = set()
        self.added: list[str] = []

    def text(self, wanted: Flags) -> str:
        """Return the edited text; of stages and recomputation exactly the `wanted` arguments are left where one of them
        changes."""
        for change in self.changes:
            self._change(change)
        for family in (STAGES, RECOMPUTE):
            if any(change.flag in family for change in self.changes):
                for flag in family:
                    if flag not in wanted and flag in self.given:
                        self._remove(self.given[flag])
                self._add_missing(family, wanted)
        if self.added:
            self._insert()
        try:
            return replaced(self.before, self.edits)
        except ValueError as error:
            raise refusal(str(error), self.changes) from None

    def _add_missing(self, family: Sequence[str], wanted: Flags) -> None:
        """Add what an older or shorter spelling said, and says no more (--recompute-activations)."""
        changed = {change.flag for change in self.changes}
        for flag, values in wanted.items():
            if flag in family and flag not in self.given and flag not in changed:
                self.added.append(" ".join([flag, *values]))

    def _change(self, change: FlagChange) -> None:
        names = (change.flag, *older_names(change.flag))
        argument = next((self.given[name] for name in names if name in self.given), None)
        if change.new is None:
            if argument is not None:
                self._remove(argument)
        elif argument is None:
            self.added.append(" ".join([change.flag, *change.new]))
        elif change.new:
            self._replace(argument, change.new)

    def _replace(self, argument: Given, values: Sequence[str]) -> None:
        """Replace values one by one where they stand; where their number differs, all of them in the place of the first."""
        positions = argument.value_positions
        if not positions:
            raise refusal(f"{argument.name} has no value to replace", self.changes)
        if len(positions) == len(values):
            for position, value in zip(positions, values, strict=True):
                self.edits.add((self._span(position, argument.name, joined=position == argument.position), value))
            return
        first, *others = (quoted(self.before, self._span(position, argument.name)) for position in positions)
        if positions[0] == argument.position or self.before[first[0] - 1 : first[0]] not in (" ", "\t", "\n"):
            raise refusal(f"the values of {argument.name} do not stand apart", self.changes)
        self.edits |= {(first, " ".join(values)), *((span, "") for span in others)}

    def _remove(self, argument: Given) -> None:
        positions = {argument.position, *argument.value_positions}
        self.edits |= {(quoted(self.before, self._span(position, argument.name)), "") for position in positions}

    def _insert(self) -> None:
        text = self.before
        for anchor in ANCHORS:
            if anchor not in self.given:
                continue
            start, end = self._span(self.given[anchor].position, anchor)
            if ((start, end), "") in self.edits or (start > 0 and text[start - 1] in "\"'"):
                continue
            line_start = text.rfind("\n", 0, start) + 1
            indent = text[line_start:start]
            between = " "
            if not indent.strip():
                line = text[start:].partition("\n")[0].rstrip("\r")
                continued = text[: max(0, line_start - 1)].endswith("\\") or line.endswith("\\")
                between = (" \\\n" if continued else "\n") + indent
            self.edits.add(((start, start), "".join(f"{words}{between}" for words in self.added)))
            return
        raise refusal("there is no place to add arguments", self.changes)

    def _span(self, position: int, name: str, *, joined: bool = False) -> tuple[int, int]:
        """Return where the characters of a word stand in the file; with `joined`, those behind `=`."""
        value = self.argv[position]
        origin = [place for piece in value if piece.text for place in (piece.origin or (None,))]
        if joined:
            origin = origin[text_of(value).index("=") + 1 :]
        places = [place for place in origin if place is not None]
        if not origin or len(places) != len(origin) or places != list(range(places[0], places[0] + len(places))):
            raise refusal(f"{name} comes from something that is worked out ({text_of(value)[:40]})", self.changes)
        return places[0], places[-1] + 1


def place_of(source: CheckInput, flag: str) -> int | None:
    """Return where in the text the value of an argument of a script or an argument list stands, else the argument; None where
    neither does."""
    script = source.script
    assert script is not None
    arguments = split_arguments(script.words(), script.unread()).given
    argument = next((arguments[name] for name in (flag, *older_names(flag)) if name in arguments), None)
    if argument is None:
        return None
    for position in (*argument.value_positions, argument.position):
        places = [place for piece in script.argv[position] for place in piece.origin if place is not None]
        if places:
            return places[-1]
    return None


def refreshed(text: str, scenario: Scenario, plan: TrainPlan, report: PlanReport | None) -> str:
    """Return the text with the head and the comments of arguments for `plan`."""
    lines = text.split("\n")
    mark = next(at for at, line in enumerate(lines) if line.startswith(MARK))
    end = next((at for at in range(mark, len(lines)) if not lines[at].startswith("#")), len(lines))
    name = lines[mark].removeprefix(f"{MARK}: ").rpartition(", tp=")[0] or remark(scenario.model.name)
    head = [line for line in lines[mark + 1 : end] if not line.startswith(tuple(f"# {start}" for start in OF_THE_PLAN))]
    new = [f"# {remark(line)}" for line in story(scenario, plan, report) if line.startswith(OF_THE_PLAN)]
    written = {argument.flag: argument for argument in train_arguments(scenario, plan)}
    rest = [_with_comment(line, written) for line in lines[end:]]
    return "\n".join([*lines[:mark], f"{MARK}: {name}, {plan}", *head[:2], *new, *head[2:], *rest])


def _with_comment(line: str, written: dict[str, Argument]) -> str:
    """Return an argument's line as `export` writes it, where it holds one argument of the plan with just its values."""
    match = _ARGUMENT.fullmatch(line)
    argument = written.get(match[1]) if match else None
    if match is None or argument is None:
        return line
    plain = match["values"].replace("'", "").split()
    return argument_line(argument) if tuple(plain) == argument.values else line
