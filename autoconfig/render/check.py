"""The answer of `check` on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from rich.console import Console
from rich.markup import escape

from autoconfig.formats.check import READERS
from autoconfig.formats.convert import Converted
from autoconfig.formats.edit import line_of, line_of_rule
from autoconfig.megatron.check import NO_OTHER_PLAN, CheckAnswer, FlagChange
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.omissions import MissingOverlap
from autoconfig.render.blocks import NO, START, Blocks
from autoconfig.render.plan_table import asked_text
from autoconfig.render.question_json import AnswerJson, QuestionJson, question_json
from autoconfig.render.screen import brief, seconds_text, show_table
from autoconfig.render.training import show_assumed, show_question, show_remedies, speed_text
from autoconfig.render.training_json import PlanJson, PlanReportJson, report_json
from autoconfig.specs.errors import GIB, chance_text, option_name
from autoconfig.specs.json_record import Keywords, Natural, NotNegative
from autoconfig.specs.plan_names import named_plan
from autoconfig.specs.remarks import Effect, Remark, RemarkJson, records, sentences
from autoconfig.training.answer import signed_seconds
from autoconfig.training.price import PlanReport, Violation
from autoconfig.training.rank import RESOLUTION

STAGES_SHOWN = 16
KINDS = ("script", "arguments", "plan", *READERS)


@dataclass(frozen=True, kw_only=True)
class ChangedLineJson(FlagChange):
    """One argument that differs, and where it stands."""

    line: Natural | None
    """Line of the file, from 1; null where the argument does not stand in it."""


@dataclass(frozen=True, kw_only=True)
class BrokenRuleJson(Violation):
    """A rule that the file breaks, and where."""

    line: Natural | None
    """Line of the file, from 1, of the argument that the rule is about; null where none of them stands in it."""


@dataclass(frozen=True, kw_only=True)
class NearestLegalJson(PlanJson):
    """The legal plan with the fewest changed keys."""

    changes: tuple[ChangedLineJson, ...]
    """What to change in the arguments, line by line."""


@dataclass(frozen=True, kw_only=True)
class BetterPlanJson(PlanReportJson):
    """The plan to change to."""

    changes: tuple[ChangedLineJson, ...]
    """What to change in the arguments, line by line."""
    speedup: float | None
    """Step time of the file's plan over this one's."""


@dataclass(frozen=True, kw_only=True)
class FileKindJson(AnswerJson):
    """What was read."""

    kind: Annotated[str, Keywords(enum=KINDS)]
    """What the file is."""


@dataclass(frozen=True, kw_only=True)
class CheckJson(PlanJson, QuestionJson, FileKindJson):
    """Whether the run of a file is legal, fits, how fast it is, and the better plan. Sizes are GiB, times seconds."""

    layers_per_stage: tuple[Natural, ...] | None
    """Where the file places the layers itself: decoder layers of each pipeline stage; else null."""
    unknown_arguments: tuple[str, ...]
    """Arguments that no Megatron-LM version knows: not taken into account."""
    not_modelled_arguments: tuple[str, ...]
    """Arguments that change memory, time or the model and that no formula reads, with what they change."""
    not_modelled: tuple[RemarkJson, ...]
    """The same as records."""
    ignored_arguments: tuple[str, ...]
    """Known arguments without effect on the answer: data, paths, logging, ..."""
    notes: tuple[str, ...]
    """What the reading of a script left out, with its line."""
    legal: bool
    """Whether the file breaks no rule."""
    rejected_by: tuple[BrokenRuleJson, ...]
    nearest_legal: NearestLegalJson | None
    """Null where the plan is legal or nothing is."""
    fits: bool | None
    """Whether every stage fits; null where the plan is not legal, over the limit with something not modelled that needs less
    memory, such as weights in fewer bits than 16, or within it with something that needs more, and maybe too much."""
    report: PlanReportJson | None
    """Everything predicted for the file's plan; null where it is not legal."""
    better: BetterPlanJson | None
    """Null where the file's plan is as good as any, or nothing fits."""
    missing_overlap: tuple[MissingOverlap, ...]
    """Overlaps that are legal for the file's plan and not given: `--apply-to` writes them."""
    omitted: tuple[str, ...]
    """What the script leaves out that its job will miss, with what it costs."""
    without_effect: tuple[str, ...]
    """What the file's plan asks for to no effect."""
    environment: tuple[str, ...]
    """Lines of shell that the script needs for the better (else the nearest legal) plan and does not have."""
    plans_ranked: Natural
    """Plans that fit and were compared."""
    fit_chance: NotNegative
    """The least chance to fit that was asked for of the better plan."""
    fit_chance_met: bool
    """The better plan reaches it, or the file's where none is better. False: no plan does, the likeliest is named."""
    remedies: tuple[str, ...]
    """Where no plan reaches it: changes that were tried, with their outcome."""


@dataclass(frozen=True, kw_only=True)
class ConvertedJson(PlanJson, AnswerJson):
    """A plan as a file of another launcher."""

    kind: Annotated[str, Keywords(enum=KINDS)]
    """What the file was."""
    format: str
    """What it is now."""
    file_name: str
    """A usual name for such a file."""
    text: str
    """The file."""
    unsaid: tuple[str, ...]
    """What stands elsewhere in that launcher (a model beside a DeepSpeed file), or is lost."""


def converted_json(found: Converted) -> ConvertedJson:
    """The whole answer of `convert`."""
    plan, batch = found.source.plan, found.source.question.scenario.workload.global_batch_size
    return ConvertedJson(
        kind=found.source.kind,
        format=found.format,
        plan=named_plan(plan, batch),
        short=str(plan),
        file_name=found.written.file_name,
        text=found.written.text,
        unsaid=found.unsaid,
    )


def check_json(answer: CheckAnswer) -> CheckJson:
    """The whole answer."""
    source, report, better, nearest = answer.source, answer.report, answer.better, answer.nearest
    question = source.question
    batch = question.scenario.workload.global_batch_size
    if nearest is not None:
        legal = NearestLegalJson(plan=named_plan(nearest, batch), short=str(nearest), changes=_lines(source, answer.fixes))
    if better is not None:
        found = BetterPlanJson(
            **vars(report_json(better, question)), changes=_lines(source, answer.changes), speedup=answer.speedup
        )
    return CheckJson(
        kind=source.kind,
        **vars(question_json(question)),
        plan=named_plan(source.plan, batch),
        short=str(source.plan),
        layers_per_stage=source.split.layers if source.split else None,
        unknown_arguments=sentences(source.unknown),
        not_modelled_arguments=sentences(source.not_modelled),
        not_modelled=records(source.not_modelled),
        ignored_arguments=source.ignored,
        notes=source.notes,
        legal=not answer.violations,
        rejected_by=tuple(
            BrokenRuleJson(**vars(one), line=line_of_rule(source, one, answer.fixes)) for one in answer.violations
        ),
        nearest_legal=legal if nearest else None,
        fits=None if report is None or no_verdict(answer) else report.fits,
        report=None if report is None else report_json(report, question),
        better=found if better else None,
        missing_overlap=answer.missing,
        omitted=answer.omitted,
        without_effect=answer.without_effect,
        environment=answer.environment,
        plans_ranked=answer.plans_ranked,
        fit_chance=question.request.fit_chance,
        fit_chance_met=answer.fit_chance_met,
        remedies=tuple(str(remedy) for remedy in answer.remedies),
    )


def _lines(source: CheckInput, changes: Iterable[FlagChange]) -> tuple[ChangedLineJson, ...]:
    return tuple(ChangedLineJson(**vars(one), line=line_of(source, one.flag)) for one in changes)


def no_verdict(answer: CheckAnswer) -> bool:
    """Whether the memory predicted is only a bound on the wrong side of the limit (over it, where something not modelled needs
    less; within it, where something needs more), or hangs on a key that nothing knows."""
    if answer.report is None:
        return False
    worst, limit = answer.report.worst_stage.peak_bytes, answer.report.limit_bytes
    beyond = worst + answer.source.more_bytes > limit if answer.report.fits else answer.source.needs_less
    return bool(answer.source.undecided) or beyond


def show_check(console: Console, answer: CheckAnswer) -> None:
    """START or NO, legal, fits, how fast, better; of what else there is as much as a first screen holds, or all of it where the
    console is verbose."""
    source = answer.source
    whole = bool(getattr(console, "verbose", False))
    shown = Blocks(rows=max(len(answer.changes), len(answer.fixes)) if whole else CHANGES_SHOWN)
    shown.draw(lambda out: show_question(out, source.question) if whole else out.print(asked_text(source.question)))
    shown.say(START if _may_start(answer) else NO, _legality(answer))
    deciding = [one for one in source.unknown if one.effect is Effect.EVERYTHING]
    _yellow(shown, "Left out of this verdict, as Megatron-LM does not know it", deciding)
    if answer.violations:
        shown.draw(lambda out: _show_nearest(out, answer, shown.rows))
    if answer.report is not None:
        shown.print(_fits(answer, answer.report))
        shown.print(speed_text(answer.report))
    shown.draw(lambda out: _show_better(out, answer, shown.rows))
    _notes(shown, answer)
    shown.draw(lambda out: show_assumed(out, source.question))
    if not whole:
        writes = "--apply-to FILE writes it | " if answer.changes or answer.missing else ""
        shown.say("next", f"{writes}--verbose: stages, notes, all arguments")
    others = [one for one in source.unknown if one not in deciding]
    _yellow(shown, "Unknown arguments, not taken into account", others)
    shown.show(console)


def _may_start(answer: CheckAnswer) -> bool:
    """Whether the file's plan is legal and fits."""
    return answer.report is not None and answer.report.fits and not answer.violations and not no_verdict(answer)


def _yellow(shown: Blocks, head: str, remarks: Sequence[Remark]) -> None:
    """A warning with its remarks; nothing without any."""
    if remarks:
        shown.print(f"[yellow]{head}:[/yellow] {escape('; '.join(sentences(remarks)))}")


def _notes(shown: Blocks, answer: CheckAnswer) -> None:
    """What the file does not say, or says without effect, and what of it no formula takes into account."""
    source = answer.source
    for one in answer.missing:
        shown.print(f"Not given: [bold]{one.flag}[/bold] would save {seconds_text(one.saved_seconds)} a step.", spare=1)
    for text in answer.omitted:
        shown.print(f"Not given: {escape(text)}", spare=2)
    for text in answer.without_effect:
        shown.print(f"Note: {escape(text)}", spare=3)
    if answer.report is not None:
        shown.print(_stages(answer.report, source.question.scenario.cluster.memory_bytes), spare=5)
    for text in sentences(source.not_modelled):
        shown.print(f"[yellow]Not modelled:[/yellow] {escape(text)}")
    shown.draw(lambda out: brief(out, "From the file", source.notes), spare=6 if source.notes else 0)
    ignored = f"Arguments without effect on the answer ({len(source.ignored)})"
    shown.draw(lambda out: brief(out, ignored, source.ignored), spare=7 if source.ignored else 0)


CHANGES_SHOWN = 8
"""Of a file's arguments, on a first screen."""


def _of_arguments(answer: CheckAnswer) -> bool:
    """Not legal for arguments alone that no plan changes."""
    return bool(answer.violations) and len(answer.violations) == len(answer.source.refused)


def _legality(answer: CheckAnswer) -> str:
    """The plan, and the rules that it breaks."""
    plan = f"Plan [bold]{escape(str(answer.source.plan))}[/bold]"
    if not answer.violations:
        return f"{plan} [bold green]Legal.[/bold green]"
    rules = [f"  {violation.rule}: {escape(violation.text)}" for violation in answer.violations]
    return "\n".join([f"{plan} [bold red]Not legal:[/bold red]", *rules])


def _show_nearest(console: Console, answer: CheckAnswer, rows: int) -> None:
    """The nearest legal plan with what it changes in the file."""
    if answer.source.megatron_fsdp or _of_arguments(answer):
        return
    if answer.nearest is None:
        among = " among those that the file's format has words for" if answer.source.wish is not None else ""
        console.print(f"No plan is legal for this model, number of GPUs and global batch{among}; change one of them.")
        return
    console.print(f"The nearest legal plan is [bold]{escape(str(answer.nearest))}[/bold]:")
    _change_table(console, answer.fixes, rows)
    if answer.better is None:
        _show_environment(console, answer)


def _fits(answer: CheckAnswer, report: PlanReport) -> str:
    """Whether the file's plan fits, or why nobody can say."""
    worst = report.worst_stage
    if answer.source.undecided:
        what = ", ".join(answer.source.undecided)
        unknown = [one.field for one in answer.source.unknown if one.field in answer.source.undecided]
        way_out = f" ({option_name('without_effect')} {escape(unknown[0])} says: nothing)" if unknown else ""
        return (
            f"[bold]No verdict on memory[/bold]: not known is {escape(what)}, and what it does to memory{way_out}; "
            f"without it {worst.peak_bytes / GIB:.1f} GiB on stage {worst.stage}, of {report.limit_bytes / GIB:.1f}."
        )
    if no_verdict(answer):
        effect, bound = (Effect.MORE_MEMORY, "at least") if report.fits else (Effect.LESS_MEMORY, "at most")
        remarks = (*answer.source.not_modelled, *(answer.source.question.assumed if report.fits else ()))
        what = "; ".join(sentences(one for one in remarks if one.effect is effect))
        return (
            f"[bold]No verdict on memory[/bold]: not modelled is {escape(what)}; {bound} {worst.peak_bytes / GIB:.1f} GiB, "
            f"without it, on stage {worst.stage}, of {report.limit_bytes / GIB:.1f}."
        )
    verdict = "[bold green]Fits[/bold green]" if report.fits else "[bold red]Does not fit[/bold red]"
    return (
        f"{verdict}: stage {worst.stage} needs {worst.peak_bytes / GIB:.1f} GiB of {report.limit_bytes / GIB:.1f}; "
        f"chance to fit {chance_text(report.confidence.fit_probability)}."
    )


def _stages(report: PlanReport, device_bytes: float) -> str:
    """Peak memory of every stage."""
    peaks = [f"{stage.peak_bytes / GIB:.1f}" for stage in report.stages]
    shown = ", ".join(peaks) if len(peaks) <= STAGES_SHOWN else f"{', '.join(peaks[: STAGES_SHOWN - 1])}, ..., {peaks[-1]}"
    return (
        f"Peak by stage, GiB: {shown}, of {report.limit_bytes / GIB:.1f} "
        f"({device_bytes / GIB:.1f} on the device less allocator, NCCL and CUDA context)"
    )


def _show_better(console: Console, answer: CheckAnswer, rows: int) -> None:
    """The better plan with `rows` of what it changes in the file, or why there is none."""
    better = answer.better
    if answer.source.megatron_fsdp:
        console.print(f"No other plan: {NO_OTHER_PLAN}. Drop --use-megatron-fsdp to see the plans without it.")
        return
    if better is None:
        if no_verdict(answer):
            return
        if _of_arguments(answer):
            console.print("Another plan would be refused, too: change these arguments first.")
        elif answer.plans_ranked == 0:
            own = answer.report is not None and answer.report.fits
            console.print("No other plan fits." if own else "No plan fits. What was tried instead:")
            show_remedies(console, answer.remedies)
        elif answer.report is not None:
            console.print(f"No better plan {_among(answer)}{_unlikely(answer)}.")
            _show_what_helps(console, answer)
        return
    console.print(
        f"[bold]Better[/bold] {_among(answer)}: [bold]{escape(str(better.plan))}[/bold]: step "
        f"{seconds_text(better.step_seconds)}, {better.tokens_per_second_per_gpu:,.0f} tokens/s/GPU, peak "
        f"{better.peak_bytes / GIB:.1f} of {better.limit_bytes / GIB:.1f} GiB, chance to fit "
        f"{chance_text(better.confidence.fit_probability)}{_unlikely(answer)}"
    )
    _show_what_helps(console, answer)
    if answer.speedup is not None and answer.report is not None:
        console.print(_what_it_buys(answer.report, better, answer.speedup))
    _change_table(console, answer.changes, rows)
    _show_environment(console, answer)


def _among(answer: CheckAnswer) -> str:
    count = answer.plans_ranked
    return f"among {count:,} plans that fit" if count != 1 else "(one plan fits)"


def _unlikely(answer: CheckAnswer) -> str:
    """Where no plan has the asked chance to fit."""
    asked = answer.source.question.request.fit_chance
    return "" if answer.fit_chance_met else f" (the likeliest: none has --fit-chance {asked * 100:.6g}%)"


def _show_what_helps(console: Console, answer: CheckAnswer) -> None:
    if helps := next((str(remedy) for remedy in answer.remedies if remedy.fits), ""):
        console.print(f"What would reach it: {escape(helps)}")


def _what_it_buys(report: PlanReport, better: PlanReport, speedup: float) -> str:
    seconds, memory = better.step_seconds - report.step_seconds, (better.peak_bytes - report.peak_bytes) / GIB
    if speedup >= 1:
        tie = " (a tie: closer than the model can tell apart)" if speedup - 1 < RESOLUTION else ""
        time = f"It is {speedup - 1:.1%} faster{tie}: {signed_seconds(seconds)} a step"
    else:
        chances = (chance_text(one.confidence.fit_probability) for one in (better, report))
        fits = f"Its chance to fit is {' in place of '.join(chances)}, and it" if report.fits else "It fits, and"
        time = f"{fits} takes {1 / speedup - 1:.1%} longer: {signed_seconds(seconds)} a step"
    return f"{time}, {memory:+.1f} GiB on the worst stage."


def _show_environment(console: Console, answer: CheckAnswer) -> None:
    for line in answer.environment:
        console.print(f"It also needs, in front of the launch: [bold]{escape(line)}[/bold]")


def _change_table(console: Console, changes: tuple[FlagChange, ...], shown: int) -> None:
    columns = ("argument", "old", "new")
    rows = [[one.flag, _cell(one.old), _cell(one.new)] for one in changes]
    if not rows:
        console.print("  The file has no words for what that plan changes.")
        return
    show_table(console, columns, rows[:shown], left=columns, below=("new",))
    if len(rows) > shown:
        console.print(f"{len(rows) - shown} more changes (--verbose; --apply-to FILE writes them all)", style="dim")


def _cell(values: tuple[str, ...] | None) -> str:
    if values is None:
        return "[dim](absent)[/dim]"
    return escape(" ".join(values)) or "(given)"
