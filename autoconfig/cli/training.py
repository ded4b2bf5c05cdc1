"""The commands about one training question: search, explain, export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli.main import (
    EXIT_BAD_INPUT,
    EXIT_NOTHING_FITS,
    console,
    done_first,
    print_json,
    say_not_exported,
    slurm_options,
    wants_profile,
)
from autoconfig.cli.options import ManyOptions, json_option, option, options, plan_argument, verbose_option
from autoconfig.cli.progress import clear_progress, progress
from autoconfig.cli.time_limit import time_limit
from autoconfig.planning import request_fields as fields
from autoconfig.planning.commands import command_line
from autoconfig.planning.resolve import Field, Fields, field_names
from autoconfig.specs.errors import InputError, chance_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoconfig.formats.export import Export
    from autoconfig.megatron.check_input import CheckInput
    from autoconfig.training.answer import Explanation, SearchAnswer
    from autoconfig.training.question import Question


PLAN_KEYS = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "vpp": "", "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size", "etp": "--expert-tensor-parallel-size", "dp": "", "mbs": "--micro-batch-size",
    "sp": "", "fsdp": "", "recompute": "",
}  # fmt: skip
"""Key of a plan -> Megatron's argument, where it is the same number."""


def _plan_options(command: Any) -> Any:
    """`--tp 8` and `--tensor-model-parallel-size 8` for `--fix tp=8`."""
    for key, megatron in reversed(PLAN_KEYS.items()):
        field = Field(
            key,
            f"As --fix {key}={'none' if key == 'recompute' else 8}; repeat for more.",
            many=True,
            group="plan",
            metavar="SPEC" if key == "recompute" else "N",
        )
        command = option(field, *([megatron] if megatron else []))(command)
    return command


@click.command("search", cls=ManyOptions)
@options([replace(field, many=field.name in fields.COMPARED or field.many) for field in fields.QUESTION])
@options(fields.SEARCH)
@_plan_options
@options(fields.OUTPUT, fields.PROFILE)
@json_option
@verbose_option
@click.pass_context
def search_command(ctx: click.Context, /, as_json: bool, verbose: bool, **given: Any) -> None:
    """Rank the plans that fit, best first. Several --gpu or --precision compare.

    autoconfig search --model 175b --gpus 1024
    """
    given["fix"] += tuple(f"{key}={value}" for key in PLAN_KEYS for value in given.pop(key))
    asked = fields.several(given)
    include = _plans_of_files(asked[0])
    asked = [{**one, "include": include} for one in asked]
    if len(asked) > 1:
        _compare(asked, as_json=as_json)
        return
    given = asked[0]
    if wants_profile(ctx, field_names(fields.SLURM) if given["export"] is not None else ()):
        _profiled(ctx, given, as_json=as_json)
        return
    answer, lines = _answered(given)
    exported = done_first(lambda: _exported(answer, given)) if given["export"] is not None and answer.plans else None
    _show_answer(answer, as_json=as_json)
    for line in lines:
        click.echo(line, err=True)
    if not answer.plans:
        unsaid = given["format"] is not None and answer.ranking.funnel.fit > 0
        none = "nothing fits" if answer.nothing_legal is None else "no plan is legal"
        say_not_exported(given["export"], f"{given['format']} can say none of the plans that fit" if unsaid else none)
        ctx.exit(EXIT_NOTHING_FITS)
    if exported is not None:
        _show_export(exported(), err=as_json)
        _show_chance(answer, given, err=as_json)


def _profiled(ctx: click.Context, given: dict[str, Any], *, as_json: bool) -> None:
    """Run the study that --profile asks for. Raises InputError for options of the answer alone."""
    from autoconfig.cli.studies import run_profile, training

    if named := [name for name in ("output", "report", "export", "format") if given[name] is not None]:
        raise InputError(f"--{named[0]} is not for --profile: export what a study found with autoconfig export PLAN")
    run_profile(ctx, given, training(given), as_json=as_json)


def _show_answer(answer: SearchAnswer, *, as_json: bool) -> None:
    if as_json:
        from autoconfig.render.training_json import search_json

        print_json(search_json(answer))
    else:
        from autoconfig.render.first.search import show

        show(console(), answer, _same_question("explain", answer.question))


def _answered(given: dict[str, Any]) -> tuple[SearchAnswer, list[str]]:
    """The answer, with the files of --output and --report written, and sentences to say below it."""
    output, report, export, force, _ = (given[field.name] for field in fields.OUTPUT)
    _check_files(output, report, export, force=force)
    answer, lines = _searched(given, whole=output is not None)
    clear_progress()
    if output is not None:
        from autoconfig.render.training import write_table

        write_table(answer.ranking, Path(output))
        click.echo(f"{len(answer.ranking.row):,} plans written to {output}", err=True)
    if report is not None:
        from autoconfig.render.html import write_report

        write_report(answer, Path(report), _same_question("search", answer.question, fields.SEARCH), progress())
        clear_progress()
        click.echo(f"report written to {report}", err=True)
    return answer, lines


def _exported(answer: SearchAnswer, given: Mapping[str, Any]) -> Export:
    """The first plan's files, written. Raises InputError."""
    from autoconfig.formats.export import export_plan

    first, form = answer.plans[0].report, given["format"] or "megatron"
    scenario, slurm = answer.question.scenario, slurm_options(given)
    return export_plan(scenario, first.plan, first, given["export"], form, force=given["force"], slurm=slurm)


def _check_files(output: str | None, report: str | None, export: str | None, *, force: bool) -> None:
    """Fail before the search, not after it. Raises FileError."""
    if output is not None:
        from autoconfig.render.training import check_table_path

        check_table_path(Path(output))
    if report is not None:
        from autoconfig.render.html import check_report_path

        check_report_path(Path(report))
    if export is not None:
        from autoconfig.formats.export import check_export_folder

        check_export_folder(export, force=force)


def _searched(given: dict[str, Any], *, whole: bool) -> tuple[SearchAnswer, list[str]]:
    """The answer, with --format of what the format can say, and sentences to say below it: what is left out, and who trains."""
    from autoconfig.training.answer import answer as search
    from autoconfig.training.question import request_of

    shown = progress()
    if given["format"] is None:
        found = search(request_of(given), shown, whole=whole)
        scenario = found.question.scenario
        adapters = scenario.numerics.peft != "none"
        megatrons = scenario.software.sharding == "megatron"
        if (adapters or scenario.workload.packed_length is not None) and given["software"] is None and megatrons:
            how = "" if "fsdp" in found.question.constraints.fixed else ", without FSDP"
            what = f"{'adapters' if adapters else 'packed samples'} as Megatron-Bridge trains them{how}"
            return found, [f"{what}; --format trl ranks what TRL and accelerate run"]
        return found, []
    from autoconfig.formats.narrow import search_format

    return search_format(given, given["format"], shown, whole=whole)


def _compare(asked: list[dict[str, Any]], *, as_json: bool) -> None:
    """The best plan of each GPU and precision. Raises InputError for what one search only can write or measure."""
    if named := [name for name in ("output", "report", "export", "profile", "format") if asked[0][name]]:
        raise InputError(f"--{named[0]} is for one --gpu and one --precision")
    from autoconfig.training.answer import compare

    progress()
    answers, refused = compare(asked)
    clear_progress()
    if as_json:
        from autoconfig.render.training_json import search_json

        print_json({"schema_version": 2, "compared": [search_json(answer) for answer in answers]})
    else:
        from autoconfig.render.first.search import show_comparison

        show_comparison(console(), answers)
    for reason in refused:  # what one GPU cannot run, the others may
        click.echo(f"left out: {reason}", err=True)
    if not any(answer.plans for answer in answers):
        click.get_current_context().exit(EXIT_NOTHING_FITS)


@click.command("export", cls=ManyOptions)
@plan_argument
@options(fields.QUESTION, fields.EXPORT)
@click.pass_context
def export_command(ctx: click.Context, /, plan: str, **given: Any) -> None:
    """Write launch scripts and plan.json for one PLAN.

    Exit code 0: written; 2: not legal, or cannot be written; 3: does not fit, nothing written.

    autoconfig export --model 175b --gpus 1024 --output run tp=8,pp=8,mbs=1,sp=1
    """
    from autoconfig.formats.export import export_named, place_of
    from autoconfig.training.question import request_of

    output, form, force, too_large = (given[name] for name in ("output", "format", "force", "even_if_too_large"))
    slurm, place = slurm_options(given), place_of(form, given["image"], given["queue"])
    export = export_named(request_of(given), plan, output, form, force=force, too_large=too_large, slurm=slurm, place=place)
    if not export.files:
        click.echo(f"error: {export.too_large}; nothing was written (--even-if-too-large writes it all the same)", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    _show_export(export)


def _file_named(text: str) -> Path | None:
    """The file that stands where a plan is asked for; None for a plan."""
    try:
        return Path(text) if text and Path(text).is_file() else None
    except (OSError, ValueError):  # a name too long, or with NUL
        return None


def _read_file(file: Path, given: Mapping[str, Any]) -> CheckInput:
    """What a launch script or a trainer's configuration says; the command's options say what it does not."""
    from autoconfig.formats.check import read_file
    from autoconfig.megatron.check_input import check_request

    request = check_request(given)
    with time_limit(file):
        return read_file(file, request)


def _plans_of_files(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What --include names, with the plan of every file in its place. Raises InputError for a file that Megatron refuses."""
    found = []
    for text in given["include"]:
        if file := _file_named(text):
            source = _read_file(file, given)
            source.require_taken()
            text = str(source.plan)
        found.append(text)
    return tuple(found)


@click.command("explain", cls=ManyOptions)
@plan_argument
@click.argument("other", type=str, required=False)
@options(fields.QUESTION, (fields.BINDS, *fields.SET))
@json_option
@verbose_option
@click.pass_context
def explain_command(ctx: click.Context, /, plan: str, other: str | None, as_json: bool, verbose: bool, **given: Any) -> None:
    """Memory per stage and part, time per part, of one PLAN or the plan of a FILE that `check` reads; of two the difference.

    autoconfig explain --model 175b --gpus 1024 tp=8,pp=8,mbs=1,sp=1
    """
    plans = [plan] if other is None else [plan, other]
    if given["set"] and not any(map(_file_named, plans)):
        raise InputError(f"--set is for what a FILE leaves open, and {plan[:60]} is no file", field="set")
    binds = given["binds"] and other is None
    explained = [_explained(one, given, binds=binds) for one in plans]
    if as_json:
        from autoconfig.render.training_json import explain_json

        answers = list(map(explain_json, explained))
        print_json(answers[0] if other is None else {"schema_version": 2, "compared": answers})
    elif other is None:
        from autoconfig.render.training import show_explain

        show_explain(console(), explained[0])
    else:
        from autoconfig.render.first.two_plans import show_two

        show_two(console(), explained[0], explained[1])
    if not all(one.included.legal for one in explained):
        ctx.exit(EXIT_BAD_INPUT)
    if not any(one.included.report is None or one.included.report.fits for one in explained):
        ctx.exit(EXIT_NOTHING_FITS)


def _explained(plan: str, given: Mapping[str, Any], *, binds: bool) -> Explanation:
    """One plan, or that of a file, in full."""
    from autoconfig.training.answer import explain, explain_plan
    from autoconfig.training.question import request_of

    file = _file_named(plan)
    if file is None:
        return explain(request_of(given), plan, binds=binds)
    from autoconfig.megatron.check import file_violations

    source = _read_file(file, given)
    with time_limit(file):
        broken = file_violations(source)
        return explain_plan(source.question, source.plan, binds=binds, broken=broken)


def _show_chance(answer: SearchAnswer, given: Mapping[str, Any], *, err: bool) -> None:
    """The chance to fit of what was exported, and the command that exports the safe choice in its place."""
    first, safe = answer.plans[0].report, answer.safe
    click.echo(f"chance to fit {chance_text(first.confidence.fit_probability)}: {first.plan}", err=err)
    if safe is None or safe.confidence.fit_probability <= first.confidence.fit_probability or safe.plan == first.plan:
        return
    command = _same_question("export", answer.question, fields.EXPORT, {**given, "output": given["export"], "force": False})
    longer = safe.step_seconds / first.step_seconds - 1
    click.echo(
        f"safe choice, chance to fit {chance_text(safe.confidence.fit_probability)}, step {longer:+.1%}: {command} {safe.plan}",
        err=err,
    )


def _same_question(command: str, question: Question, more: Fields = (), values: Mapping[str, Any] | None = None) -> str:
    """Another command on this question, which says what the search found for it (--vary, --gpus-at-most, --format): with the
    options of `more`, by what `values` hold."""
    from autoconfig.training.question import values_of

    request = question.request
    gpus = None if request.cluster is not None else question.scenario.cluster.num_gpus
    return command_line(command, (*fields.QUESTION, *more), {**(values or {}), **values_of(request), "gpus": gpus})


def _show_export(export: Export, *, err: bool = False) -> None:
    """What was written and the one command to run."""
    if export.too_large:
        click.echo(f"warning: {export.too_large}", err=True)
    click.echo(f"wrote {', '.join(map(str, export.files))}", err=err)
    if export.replaced:
        click.echo(export.replaced, err=True)
    if export.note:
        click.echo(f"note: {export.note}", err=err)
    click.echo(f"run: {export.command}", err=err)
