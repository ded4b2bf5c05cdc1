"""`autoconfig search --profile` and `autoconfig studies`: measured answers."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from specs.errors import InputError

if TYPE_CHECKING:
    from autoconfig.question import Request
    from autoconfig.study.session import Options, Session
    from autoconfig.study.settings import StudySettings
    from autoconfig.study.worker import Control

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_FOLDER = "autoconfig-profile"
DEFAULT_BUDGET = "30m"
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130
NAMES = (
    "profile", "study", "resume", "budget", "storage", "folder", "device", "device_memory", "runner", "slurm", "partition",
    "account", "jobs", "job_timeout", "gpus_here", "steps", "warmup_steps", "objective", "seed", "python", "quiet",
    "save_calibration",
)  # fmt: skip
"""Options of a profiling search, as the command gets them."""
_STORED = frozenset({"device", "device_memory", "steps", "warmup_steps", "objective", "seed"})
"""Those of them that are stored with the question."""
_OF_THE_ANSWER = frozenset(("as_json", "top", "sort_by", "output", "report", "export", "force", "price", "tokens"))
_WITH_RESUME = (frozenset(NAMES) - _STORED) | _OF_THE_ANSWER
"""What may stand beside --resume without the question: nothing that is stored."""

_folder = click.option(
    "--folder", default=DEFAULT_FOLDER, show_default=True, type=click.Path(path_type=Path), help="Studies, jobs and logs."
)
_storage = click.option("--storage", metavar="URL", help="postgresql://... for many workers.  [default: SQLite in --folder]")


def runner_options(command: Command) -> Command:
    """How jobs run: shared by a profiling search and a worker that profiles."""
    own = (
        click.option(
            "--runner", type=click.Choice(("local", "slurm")), default="local", show_default=True,
            help="Jobs as processes of this machine, or through sbatch.",
        ),
        click.option("--slurm", multiple=True, metavar="OPTION", help="A further #SBATCH option, like --qos=low."),
        click.option("--partition", help="Slurm partition."),
        click.option("--account", help="Slurm account."),
        click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Slurm jobs at once."),
        click.option(
            "--gpus-here", type=click.IntRange(1), metavar="N",
            help="GPUs that jobs can have; below --gpus, ranks of each plan are emulated on one.  [default: --gpus]",
        ),
        click.option("--python", default=sys.executable, help="Interpreter with torch and megatron-core.  [default: this one]"),
    )  # fmt: skip
    for option in reversed(own):
        command = option(command)
    return command


def study_options(command: Command) -> Command:
    """What only a profiling search has."""
    own = (
        click.option("--profile", is_flag=True, help="Measure the most promising plans with short jobs; needs --study."),
        click.option("--study", metavar="NAME", help="With --profile: name of the study; one that is there goes on."),
        click.option("--resume", metavar="NAME", help="Go on with a study; its question is stored."),
        click.option("--budget", help=f"Like 30m, 2h, 16gpu-hours, 20trials.  [default: {DEFAULT_BUDGET}]"),
        _storage,
        _folder,
        click.option("--device", type=click.Choice(("cuda", "cpu")), help="Where jobs run.  [default: cuda]"),
        click.option("--device-memory", metavar="SIZE", help="Limit of each rank, like 2GiB.  [CPU: half of all, shared out]"),
        click.option("--job-timeout", default="1h", show_default=True, metavar="TIME", help="A job's most time."),
        click.option("--steps", type=int, default=5, show_default=True, help="Timed steps of a job."),
        click.option("--warmup-steps", type=int, default=2, show_default=True, help="Steps before them."),
        click.option(
            "--objective", type=click.Choice(("step", "headroom", "cost")), default="step", show_default=True,
            help="headroom: step time against free memory; cost: tokens per money, with --price.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of the study."),
        click.option("--quiet", is_flag=True, help="No progress."),
        click.option("--save-calibration", metavar="FILE", help="Write what was learned, for --calibration (.json)."),
    )  # fmt: skip
    command = runner_options(command)
    for option in reversed(own):
        command = option(command)
    return command


def wants_profile(options: dict[str, Any]) -> bool:
    """Whether the search is to measure. Raises InputError for options that only then mean something."""
    if options["profile"] or options["resume"]:
        return True
    if options["study"]:
        raise InputError("--study names a profiling study: say --profile too")
    source = click.get_current_context().get_parameter_source
    alone = [name for name in NAMES if source(name) not in (None, click.core.ParameterSource.DEFAULT)]
    if alone:
        raise InputError(f"--{alone[0].replace('_', '-')} is for a search that measures: say --profile --study NAME too")
    return False


def run_profile(ctx: click.Context, options: dict[str, Any], *, as_json: bool, model_given: bool) -> None:
    """The whole command."""
    from autoconfig.cli_options import request_of
    from autoconfig.study.screen import screen, show_found
    from autoconfig.study.session import check_question, lock_folder, make_runner, open_session
    from autoconfig.study.settings import parse_budget
    from autoconfig.study.storage import errors_of
    from autoconfig.study.worker import Control

    name, resume = _name(options, model_given)
    if not model_given:
        _refuse_half_a_question(ctx)
    budget = parse_budget(options["budget"] or DEFAULT_BUDGET)
    if options["save_calibration"]:
        from autoconfig.files import check_output_path

        check_output_path(Path(options["save_calibration"]), (".json",))
    given = settings_of_options(request_of(options), options) if model_given else None
    how = options_of_runner(
        options["folder"], options, storage_url=options["storage"], job_limit_s=job_limit_s(options)
    )
    say = (lambda text: None) if options["quiet"] else functools.partial(click.echo, err=True)
    if resume:
        _existing(how.folder, how.storage_url)
    with _nothing_fits(ctx):
        if given is not None:
            check_question(name, given, how)
    with lock_folder(how.folder):
        with _nothing_fits(ctx), _interrupted_early():
            session = open_session(name, given, how, resume=resume, say=say)
        if not options["quiet"]:
            click.echo(f"Assumed: {'; '.join(session.assumed)}", err=True)
        control, resume_command = Control(), f"autoconfig search --resume {shlex.quote(name)}{_same_place(options)}"
        with contextlib.closing(session), errors_of(how.url):
            runner = make_runner(session)
            with screen(quiet=options["quiet"]) as listener, _signals(control, resume_command, listener.say):
                worker = session.worker(runner, listener, budget, control=control)
                try:
                    reason = worker.run()
                except Exception:
                    if worker.abandon():
                        listener.say(f"what ran is ended, and begins again with: {resume_command}")
                    raise
            found = _report(session, options, reason, as_json)
        if not as_json:
            from autoconfig.cli import console

            show_found(console(), found, reason)
            click.echo(f"resume: {resume_command}", err=True)
        if control.finish or control.cancel:
            ctx.exit(EXIT_INTERRUPTED)


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


def _report(session: Session, options: dict[str, Any], reason: str, as_json: bool) -> Any:
    from autoconfig.calibration_file import write_calibration
    from autoconfig.study.report import found_json, learned_calibration, study_found

    found = study_found(session, options.get("price"))
    if as_json:
        click.echo(json.dumps({**found_json(found), "stopped": reason}, indent=2, allow_nan=False))
    if options["save_calibration"]:
        learned = learned_calibration(session)
        if learned is None:
            click.echo("nothing was measured, so there is no calibration to write", err=True)
        else:
            write_calibration(learned, Path(options["save_calibration"]))
            click.echo(f"calibration {learned.version} written to {options['save_calibration']}", err=True)
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
    given = ParameterSource.COMMANDLINE
    parts = [p for p in ctx.command.params if p.name not in _WITH_RESUME and ctx.get_parameter_source(p.name or "") is given]
    if parts:
        named = ", ".join(max(part.opts, key=len) for part in parts)
        raise InputError(f"--resume takes the stored question: leave out {named}, or repeat the whole question with --model")


def settings_of_options(request: Request, options: dict[str, Any]) -> StudySettings:
    """What is measured. `options` may leave out all but what was given. Raises InputError."""
    from autoconfig.study.settings import StudySettings, parse_size

    if options.get("gpus_at_most") is not None:
        raise InputError("--profile measures on one number of GPUs: say --gpus N in place of --gpus-at-most")
    if options.get("objective") == "cost" and not options.get("price"):
        raise InputError("--objective cost: say --price too, money per GPU and hour")
    memory = options.get("device_memory")
    kept = {name: options[name] for name in ("seed", "steps", "warmup_steps", "objective") if name in options}
    return StudySettings(
        request=request,
        device=options.get("device") or "cuda",
        device_memory_bytes=None if memory is None else parse_size(memory),
        **kept,
    )


def job_limit_s(options: dict[str, Any]) -> float:
    """Seconds of --job-timeout. Raises InputError."""
    from autoconfig.study.settings import parse_budget

    limit = parse_budget(options["job_timeout"]).seconds
    if limit is None:
        raise InputError(f"--job-timeout {options['job_timeout']}: give a time like 10m")
    return limit


def options_of_runner(folder: Path, options: dict[str, Any], **more: Any) -> Options:
    """Where jobs run, from `runner_options`. Raises InputError."""
    from autoconfig.study.session import Options
    from profiler.slurm import SlurmOptions

    if options["runner"] == "local" and options["jobs"] > 1:
        raise InputError(f"--jobs {options['jobs']}: jobs at once on one machine slow each other down; use --runner slurm")
    return Options(
        folder=folder,
        runner=options["runner"],
        python=options["python"],
        slots=options["jobs"],
        gpus_here=options["gpus_here"],
        slurm=SlurmOptions(partition=options["partition"], account=options["account"], extra=tuple(options["slurm"])),
        **more,
    )


@contextlib.contextmanager
def _signals(control: Control, resume_command: str, say: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C once: finish what runs; twice, or SIGTERM: cancel it."""

    def interrupt(*_: object) -> None:
        if control.finish:
            control.cancel = True
            say("cancelling what runs ...")
        else:
            control.finish = True
            say(f"finishing what runs; Ctrl-C again cancels it. Go on later with: {resume_command}")

    def terminate(*_: object) -> None:
        control.finish = control.cancel = True

    before = {number: signal.signal(number, handler) for number, handler in
              ((signal.SIGINT, interrupt), (signal.SIGTERM, terminate))}  # fmt: skip
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _same_place(options: dict[str, Any]) -> str:
    """Options of a resume that no storage keeps: where, and by what means."""
    parts = []
    if str(options["folder"]) != DEFAULT_FOLDER:
        parts.append(f"--folder {shlex.quote(str(options['folder']))}")
    if options["storage"]:
        parts.append("--storage URL")
    if options["python"] != sys.executable:
        parts.append(f"--python {shlex.quote(options['python'])}")
    if options["runner"] != "local":
        parts.append(f"--runner {options['runner']}")
    if options["gpus_here"]:
        parts.append(f"--gpus-here {options['gpus_here']}")
    return "".join(f" {part}" for part in parts)


@click.group("studies")
def studies_group() -> None:
    """Profiling studies: list, show, delete."""


@studies_group.command("list")
@_folder
@_storage
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def list_command(folder: Path, storage: str | None, as_json: bool) -> None:
    """Every study of a folder or storage."""
    from autoconfig.study.storage import list_studies, opened

    with opened(_existing(folder, storage)) as found:
        rows = [
            {
                "name": s.name, "model": s.model, "gpus": s.gpus, "trials": s.trials, "measured": s.measured,
                "running": s.running, "best_step_seconds": s.best_step_seconds,
                "started": s.started.isoformat(timespec="seconds") if s.started else None,
            }
            for s in list_studies(found)
        ]  # fmt: skip
    if as_json or rows:
        from autoconfig.cli import show_rows

        show_rows("studies", rows if as_json else [_readable(row) for row in rows], as_json)
    else:
        click.echo("no studies yet")


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    best = row["best_step_seconds"]
    shown = {**row, "best_step_seconds": None if best is None else f"{best:.4g}"}
    return {name: "-" if value is None else value for name, value in shown.items()}


@studies_group.command("show")
@click.argument("name")
@_folder
@_storage
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--save-calibration", metavar="FILE", help="Write what was learned, for --calibration (.json).")
def show_command(name: str, folder: Path, storage: str | None, as_json: bool, save_calibration: str | None) -> None:
    """What a study found: measured beside predicted."""
    from autoconfig.study.screen import show_found
    from autoconfig.study.session import Options, open_session
    from autoconfig.study.storage import errors_of

    url = _existing(folder, storage)
    how = Options(folder=folder, storage_url=url, python=sys.executable)
    session = open_session(name, None, how, resume=True, look_only=True)
    with contextlib.closing(session), errors_of(url):
        found = _report(session, {"save_calibration": save_calibration}, "not asked to run", as_json)
    if not as_json:
        from autoconfig.cli import console

        show_found(console(), found, "as stored")


@studies_group.command("delete")
@click.argument("name")
@_folder
@_storage
def delete_command(name: str, folder: Path, storage: str | None) -> None:
    """Forget a study. Job folders stay: what they measured is not measured again."""
    from autoconfig.study.deletion import forget
    from autoconfig.study.session import lock_folder
    from autoconfig.study.storage import opened

    url = _existing(folder, storage)
    with contextlib.nullcontext() if storage else lock_folder(folder), opened(url) as found:
        forget(found, name, folder, shared=storage is not None)
    click.echo(f"deleted study {name}; its jobs stay in {folder / 'jobs'}")


def _existing(folder: Path, storage: str | None) -> str:
    from autoconfig.study.storage import DATABASE, sqlite_url

    if storage is None and not (folder / DATABASE).exists():
        raise InputError(f"no studies in {folder} (no {DATABASE} there): name the folder with --folder, or say --storage URL")
    return storage or sqlite_url(folder)


def register(cli: click.Group) -> None:
    """Add the group."""
    cli.add_command(studies_group)
