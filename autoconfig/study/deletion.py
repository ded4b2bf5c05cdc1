"""A study is forgotten: its trials, the jobs that a killed search left running, its measured operators. Job folders stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optuna.storages import RDBStorage
from optuna.trial import TrialState

from autoconfig.profiler.folder import JobFolder, read_json
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.runner import Runner
from autoconfig.profiler.slurm import SlurmOptions, SlurmRunner
from autoconfig.specs.errors import InputError
from autoconfig.specs.job import Job
from autoconfig.study import trials as names
from autoconfig.study.session import JOBS, owner_of
from autoconfig.study.storage import DATABASE, delete_study, list_studies, opened, sqlite_url, study_id
from autoconfig.study.this_machine import forget_operators


def forget(storage: RDBStorage, name: str, folder: Path, *, shared: bool, force: bool = False) -> None:
    """Delete a study. `shared`: the storage is not the folder's own, whose lock the caller holds; then other workers may be at
    it, and no job is ended: while trials run it is refused, but with `force`. Raises UnknownNameError, InputError, FileError,
    RunnerError."""
    trials = storage.get_all_trials(study_id(storage, name), deepcopy=False)
    running = [t for t in trials if t.state == TrialState.RUNNING]
    if shared and running and not force:
        owners = sorted({str(t.user_attrs.get(names.OWNER, "unknown")) for t in running})
        raise InputError(
            f"study {name} has {len(running)} running trial{'s' * (len(running) > 1)} (of {', '.join(owners[:4])}): end the "
            "searches at it first; --force deletes it all the same, which ends them"
        )
    if not shared:
        ours = [t for t in running if t.user_attrs.get(names.OWNER) == owner_of(folder)]
        _end_jobs([JobFolder(folder.absolute() / JOBS / t.user_attrs[names.JOB]) for t in ours if names.JOB in t.user_attrs])
    delete_study(storage, name)
    left = {study.name for study in list_studies(storage)}
    if shared and (folder / DATABASE).exists():
        with opened(sqlite_url(folder)) as own:
            left |= {study.name for study in list_studies(own)}
    forget_operators(folder, name, left)


def _end_jobs(folders: Sequence[JobFolder]) -> None:
    for folder in folders:
        slurm = read_json(folder.launch_file).get("runner") == SlurmRunner.name
        runner: Runner = SlurmRunner(_none, SlurmOptions()) if slurm else LocalRunner(_none)
        runner.cancel(folder)


def _none(folder: JobFolder, job: Job) -> list[str]:
    raise AssertionError("nothing is started here")
