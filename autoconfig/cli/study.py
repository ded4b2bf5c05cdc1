"""`autoconfig search --profile`: measured answers."""

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

from autoconfig.cli.main import EXIT_INTERRUPTED, EXIT_NOTHING_FITS, console, given_options, print_json
from autoconfig.planning import request_fields as fields
from autoconfig.planning.resolve import field_names
from autoconfig.specs.errors import InputError
from autoconfig.study.settings import Budget, parse_budget, parse_time

if TYPE_CHECKING:
    from autoconfig.render.study import Words
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
    from autoconfig.study.session import lock_folder
    from autoconfig.study.storage import check_url

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
    limit = parse_time(options["job_timeout"])
    how = options_of_runner(options["folder"], options, storage_url=options["storage"], job_limit_s=limit)
    say = (lambda text: None) if options["quiet"] else functools.partial(click.echo, err=True)
    if resume:
        existing_storage(how.folder, how.storage_url)
    with _nothing_fits(ctx):
        if given is not None:
            asked.kind.check(name, given, how)
    with lock_folder(how.folder):
        with _nothing_fits(ctx), _interrupted_early():
            session = asked.kind.open(name, given, how, resume=resume, say=say)
        if not options["quiet"]:
            click.echo(f"Assumed: {'; '.join(session.work.assumed)}", err=True)
        again = f"{asked.kind.command} --resume {shlex.quote(name)}{_same_place(options)}"
        control, reason, found = _worked_on(session, budget, asked, options, again, as_json=as_json)
        if not as_json:
            asked.words.show(console(), found, reason)
            click.echo(f"resume: {again}", err=True)
        if control.finish or control.cancel:
            ctx.exit(EXIT_INTERRUPTED)


def _worked_on(
    session: Session[Any], budget: Budget, asked: Profile, options: dict[str, Any], again: str, *, as_json: bool
) -> tuple[Control, str, Any]:
    """(what signals said, why it stopped, what was found); the session is closed. `again`: the command that goes on."""
    from autoconfig.render.study import screen
    from autoconfig.study.storage import errors_of
    from autoconfig.study.worker import Control

    control = Control()
    with contextlib.closing(session), errors_of(session.options.url):
        runner = session.runner()
        with screen(asked.words, quiet=options["quiet"]) as listener, _signals(control, again, listener.say):
            worker = session.worker(runner, listener, budget, control=control)
            try:
                reason = worker.run()
            except Exception:
                if worker.abandon():
                    listener.say(f"what ran is ended, and begins again with: {again}")
                raise
        return control, reason, report(asked.kind, session, options["save_calibration"], reason, as_json, options.get("price"))


@contextlib.contextmanager
def _interrupted_early() -> Iterator[None]:
    """Ctrl-C before the first job, most likely while a CPU's operators are measured, which is not kept in parts."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("before the first job: the same command begins again", err=True)
        raise


@contextlib.contextmanager
def _nothing_fits(ctx: click.Context) -> Iterator[None]:
    """Exit code 3 where no plan fits."""
    from autoconfig.study.session import NothingFitsError

    try:
        yield
    except NothingFitsError as error:
        click.echo(f"error: {error}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)


def report(
    kind: StudyKind[Any, Any], session: Session[Any], save_calibration: str | None, reason: str, as_json: bool,
    price: float | None = None,
) -> Any:  # fmt: skip
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
        raise InputError(f"--jobs {options['jobs']}: jobs at once on one machine slow each other down; use --runner slurm")
    return Options(
        folder=folder,
        runner=options["runner"],
        python=options["python"],
        slots=options["jobs"],
        gpus_here=options.get("gpus_here"),
        slurm=SlurmOptions(partition=options["partition"], account=options["account"], extra=tuple(options["slurm"])),
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
