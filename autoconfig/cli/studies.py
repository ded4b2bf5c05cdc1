"""`autoconfig studies`: the studies of a folder or storage."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli.main import EXIT_INTERRUPTED, EXIT_NOTHING_FITS, console, given_options, print_json, show_rows
from autoconfig.cli.options import json_option, option, options
from autoconfig.planning import request_fields as fields
from autoconfig.planning.prices import price_for
from autoconfig.planning.request_fields import FOLDER, SAVE_CALIBRATION, STORAGE
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences
from autoconfig.study.settings import Budget, parse_budget, parse_time

if TYPE_CHECKING:
    from autoconfig.render.study import Words
    from autoconfig.study.serving.work import ServingSettings
    from autoconfig.study.session import Options, Session, StudyKind
    from autoconfig.study.settings import MeasuredQuestion
    from autoconfig.study.worker import Control

_PRINTED = {field.name for field in (*fields.QUESTION, *fields.SEARCH, *fields.SERVING) if field.printed}
_WITH_RESUME = {*field_names(fields.PROFILE, fields.OUTPUT), *_PRINTED, "as_json", "inference"} - {*field_names(fields.STORED)}
"""What may stand beside --resume without the question: nothing that is stored."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a profiling search is about."""

    kind: StudyKind[Any, Any]
    words: Words
    settings: Callable[[], MeasuredQuestion]
    """What the options ask. Raises InputError."""


def training(options: dict[str, Any]) -> Profile:
    """Studies of training plans."""
    from autoconfig.render.study import TrainingWords
    from autoconfig.study.training.session import TRAINING
    from autoconfig.study.training.settings import settings_of_options
    from autoconfig.training.question import request_of

    return Profile(kind=TRAINING, words=TrainingWords(), settings=lambda: settings_of_options(request_of(options), options))


def run_profile(ctx: click.Context, options: dict[str, Any], asked: Profile, *, as_json: bool) -> None:
    """The whole command."""
    from autoconfig.study.session import NothingFitsError, lock_folder
    from autoconfig.study.storage import check_url
    from autoconfig.study.worker import JobsFailError

    model_given = options["model"] is not None
    if options["storage"] is not None:
        check_url(options["storage"])
    name, resume = _name(options, model_given)
    if not model_given:
        _refuse_half_a_question(ctx)
    budget = parse_budget(options["budget"] or fields.DEFAULT_BUDGET)
    if options["save_calibration"]:
        from autoconfig.specs.files import check_output_path

        check_output_path(Path(options["save_calibration"]), (".json",))
    given = asked.settings() if model_given else None
    prices = fields.PRICE.value(options["price"])
    limit = parse_time(options["job_timeout"])
    how = options_of_runner(options["folder"], options, storage_url=options["storage"], job_limit_s=limit)
    say = (lambda text: None) if options["quiet"] else functools.partial(click.echo, err=True)
    if resume:
        existing_storage(how.folder, how.storage_url)
    with _exits_with_3(ctx, NothingFitsError):
        if given is not None:
            asked.kind.check(name, given, how)
    with lock_folder(how.folder):
        with _exits_with_3(ctx, NothingFitsError), _interrupted_early():
            session = asked.kind.open(name, given, how, resume=resume, say=say)
        if not options["quiet"]:
            click.echo(f"Assumed: {'; '.join(sentences(session.work.assumed))}", err=True)
        again = f"{asked.kind.command} --resume {shlex.quote(name)}{_same_place(options)}"
        with _exits_with_3(ctx, JobsFailError):
            control, reason, found = _worked_on(session, budget, asked, options, again, prices, as_json=as_json)
        if not as_json:
            asked.words.show(console(), found, reason)
            click.echo(f"resume: {again}", err=True)
        if control.finish or control.cancel:
            ctx.exit(EXIT_INTERRUPTED)
        if not found.measured:
            click.echo(f"nothing was measured ({reason})", err=True)
            ctx.exit(EXIT_NOTHING_FITS)


def _worked_on(
    session: Session[Any],
    budget: Budget,
    asked: Profile,
    options: dict[str, Any],
    again: str,
    prices: float | str | None,
    *,
    as_json: bool,
) -> tuple[Control, str, Any]:
    """(what signals said, why it stopped, what was found); the session is closed. `again`: the command that goes on."""
    from autoconfig.render.study import screen
    from autoconfig.study.storage import errors_of
    from autoconfig.study.worker import Control

    control = Control()
    with contextlib.closing(session), errors_of(session.options.url):
        price = price_for(prices, session.work.gpu)
        runner = session.runner()
        with screen(asked.words, quiet=options["quiet"]) as listener, _signals(control, again, listener.say):
            worker = session.worker(runner, listener, budget, control=control)
            try:
                reason = worker.run()
            except Exception:
                if worker.abandon():
                    listener.say(f"what ran is ended, and begins again with: {again}")
                raise
        return control, reason, report(asked.kind, session, options["save_calibration"], reason, as_json, price)


@contextlib.contextmanager
def _interrupted_early() -> Iterator[None]:
    """Ctrl-C before the first job, most likely while a CPU's operators are measured, which is not kept in parts."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("before the first job: the same command begins again", err=True)
        raise


@contextlib.contextmanager
def _exits_with_3(ctx: click.Context, *kinds: type[InputError]) -> Iterator[None]:
    """A question without an answer: no plan fits, or nothing can be measured."""
    try:
        yield
    except kinds as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)


def report(
    kind: StudyKind[Any, Any],
    session: Session[Any],
    save_calibration: str | None,
    reason: str,
    as_json: bool,
    price: float | None = None,
) -> Any:
    """What a session's study found, printed as JSON or not at all, and the file of what was learned."""
    found = kind.found(session, price)
    if as_json:
        print_json({**found.to_json(), "stopped": reason})
    if save_calibration:
        learned = kind.write_learned(session, Path(save_calibration))
        if learned is None:
            click.echo("nothing was measured, so there is no calibration to write", err=True)
        else:
            click.echo(f"calibration {learned} written to {save_calibration}", err=True)
    return found


def _name(options: dict[str, Any], model_given: bool) -> tuple[str, bool]:
    if options["resume"]:
        if options["study"] and options["study"] != options["resume"]:
            raise InputError(f"--resume {options['resume']} and --study {options['study']} name two studies; give one")
        return options["resume"], True
    if not options["study"]:
        raise InputError("a profiling search has a name: say --study NAME (or --resume NAME to go on with one)")
    if not model_given:
        raise InputError("--profile needs a question: say --model and --gpus; --resume NAME takes a stored one")
    return options["study"], False


def _refuse_half_a_question(ctx: click.Context) -> None:
    """--resume takes the stored question: other parts of one beside it would go unread. Raises InputError."""
    given = given_options(ctx) - _WITH_RESUME
    parts = [param for param in ctx.command.params if param.name in given]
    if parts:
        named = ", ".join(max(part.opts, key=len) for part in parts)
        raise InputError(f"--resume takes the stored question: leave out {named}, or repeat the whole question with --model")


def options_of_runner(folder: Path, options: dict[str, Any], **more: Any) -> Options:
    """Where jobs run, from the fields of RUNNER. Raises InputError."""
    from autoconfig.profiler.slurm import SlurmOptions
    from autoconfig.study.session import Options

    if options["runner"] == "local" and options["jobs"] > 1:
        raise InputError(
            f"--jobs {options['jobs']}: jobs at once on one machine slow each other down; use --runner slurm or ray"
        )
    if options["ray_address"] and options["runner"] != "ray":
        raise InputError(f"--ray-address {options['ray_address']} is for --runner ray: say that too, or leave it out")
    return Options(
        folder=folder,
        runner=options["runner"],
        python=options["python"],
        slots=options["jobs"],
        gpus_here=options.get("gpus_here"),
        slurm=SlurmOptions(partition=options["partition"], account=options["account"], extra=tuple(options["slurm"])),
        ray_address=options["ray_address"],
        **more,
    )


@contextlib.contextmanager
def _signals(control: Control, resume_command: str, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C once: finish what runs; twice, SIGTERM, or a terminal that is closed (SIGHUP; not under nohup): cancel it."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def interrupt(*_: object) -> None:
        if control.finish:
            control.cancel = True
            say("cancelling what runs ...")
        else:
            control.finish = True
            say(f"finishing what runs; Ctrl-C again cancels it. Go on later with: {resume_command}")

    def terminate(*_: object) -> None:
        control.finish = control.cancel = True

    def hang_up(*_: object) -> None:
        for descriptor in terminals:
            if not os.isatty(descriptor):  # what is written to a closed terminal is an error, and nobody reads it
                _to_nowhere(descriptor)
        terminate()

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = hang_up
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _same_place(options: dict[str, Any]) -> str:
    """Options of a resume that no storage keeps: where, and by what means."""
    parts = []
    if str(options["folder"]) != fields.DEFAULT_FOLDER:
        parts.append(f"--folder {shlex.quote(str(options['folder']))}")
    if options["storage"]:
        parts.append("--storage URL")
    if options["python"] != sys.executable:
        parts.append(f"--python {shlex.quote(options['python'])}")
    if options["runner"] != "local":
        parts.append(f"--runner {options['runner']}")
    if options["ray_address"]:
        parts.append(f"--ray-address {shlex.quote(options['ray_address'])}")
    if options.get("gpus_here"):
        parts.append(f"--gpus-here {options['gpus_here']}")
    return "".join(f" {part}" for part in parts)


def existing_storage(folder: Path, storage: str | None) -> str:
    """The storage's URL. Raises InputError where it cannot be one, or the folder has none."""
    from autoconfig.study.storage import DATABASE, check_url, sqlite_url

    if storage is not None:
        check_url(storage)
    if storage is None and not (folder / DATABASE).exists():
        raise InputError(f"no studies in {folder} (no {DATABASE} there): name the folder with --folder, or say --storage URL")
    return storage or sqlite_url(folder)


CPU_LENGTHS = {"isl": 64, "osl": 16}
"""Tokens of a request on a CPU where none were given: jobs of seconds."""


def serving(options: dict[str, Any]) -> Profile:
    """Studies of deployments."""
    from autoconfig.render.study import ServingWords
    from autoconfig.study.serving.session import SERVING

    return Profile(kind=SERVING, words=ServingWords(), settings=lambda: settings_of(options))


def settings_of(options: dict[str, Any]) -> ServingSettings:
    """What is measured. Raises InputError."""
    from autoconfig.serving.request import DEFAULT_TOKENS, request_of
    from autoconfig.specs.units import parse_size
    from autoconfig.study.serving.work import ENGINES, ServingSettings

    given = given_options(click.get_current_context())
    asked = dict(options)
    if "engine" not in given:
        asked["engine"] = ENGINES[0]
    device = options["device"] or "cuda"
    if device == "cpu":
        if given & {"gpu", "gpus_per_node"}:
            raise InputError("--device cpu measures this machine: leave --gpu and --gpus-per-node out")
        asked |= {name: tokens for name, tokens in CPU_LENGTHS.items() if name not in given}
    asked |= {name: DEFAULT_TOKENS for name in CPU_LENGTHS if asked[name] is None}
    memory = options["device_memory"]
    return ServingSettings(
        request=request_of(asked),
        device=device,
        device_memory_bytes=None if memory is None else parse_size(memory),
        seed=options["seed"],
        steps=options["steps"],
        warmup_steps=options["warmup_steps"],
    )


def check_answer_options(options: dict[str, Any]) -> None:
    """Raises InputError for options of an answer that a study does not give."""
    for name in ("export", "report"):
        if options[name] is not None:
            raise InputError(f"--{name} is not for --profile: search again with --fix, the study's tp and batch")


@click.group("studies")
def studies_command() -> None:
    """Profiling studies: list, show, delete."""


@studies_command.command("list")
@options((FOLDER, STORAGE))
@json_option
def list_command(folder: Path, storage: str | None, as_json: bool) -> None:
    """Every study of a folder or storage."""
    from autoconfig.study.storage import list_studies, opened

    with opened(existing_storage(folder, storage)) as found:
        rows = [
            {**vars(one), "started": one.started.isoformat(timespec="seconds") if one.started else None}
            for one in list_studies(found)
        ]
    if as_json or rows:
        show_rows("studies", rows if as_json else [_readable(row) for row in rows], as_json)
    else:
        click.echo("no studies yet")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    best = {name: row[name] for name in ("best_step_seconds", "best_tokens_per_s_per_gpu")}
    shown = {**row, **{name: None if value is None else f"{value:.4g}" for name, value in best.items()}}
    return {name: "-" if value is None else value for name, value in shown.items()}


@studies_command.command("show")
@click.argument("name")
@options((FOLDER, STORAGE))
@json_option
@option(SAVE_CALIBRATION)
def show_command(name: str, folder: Path, storage: str | None, as_json: bool, save_calibration: str | None) -> None:
    """What a study found: measured beside predicted."""
    from autoconfig.study.session import Options
    from autoconfig.study.storage import errors_of, kind_stored, opened

    url = existing_storage(folder, storage)
    with opened(url) as database:
        stored = kind_stored(database, name)
    asked = (serving if stored == "inference" else training)({})
    how = Options(folder=folder, storage_url=url, python=sys.executable)
    session = asked.kind.open(name, None, how, resume=True, look_only=True)
    with contextlib.closing(session), errors_of(url):
        found = report(asked.kind, session, save_calibration, "not asked to run", as_json)
    if not as_json:
        asked.words.show(console(), found, "as stored")


@studies_command.command("delete")
@click.argument("name")
@options((FOLDER, STORAGE))
@click.option("--force", is_flag=True, help="With --storage: even while searches are at it; they end, and say why.")
def delete_command(name: str, folder: Path, storage: str | None, force: bool) -> None:
    """Forget a study. Job folders stay: what they measured is not measured again."""
    from autoconfig.study.session import forget, lock_folder
    from autoconfig.study.storage import opened

    url = existing_storage(folder, storage)
    with contextlib.nullcontext() if storage else lock_folder(folder), opened(url) as found:
        forget(found, name, folder, shared=storage is not None, force=force)
    click.echo(f"deleted study {name}; its jobs stay in {folder / 'jobs'}")
