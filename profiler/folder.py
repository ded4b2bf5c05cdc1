"""JobFolder: every file of a job, and no path spelt elsewhere.

FOLDER/<first 16 digits of the content hash>/
    job.json      what is to run (specs.job)
    result.json   what was measured (specs.measurement), written by the training core: the truth about the outcome
    launch.json   how it was started: command, time limit, attempt
    life.json     who watches over it now: process or Slurm job
    end.json      how the watched process ended: exit code, timeout, cancelled
    exit.json     the command's exit code, written by a Slurm job's script: not there where the script was cut short
    out.log       what the job printed
    nvml.jsonl    GPU memory, power, clocks beside a GPU job
    lock          held while a local job runs or waits for its turn
FOLDER/local.lock held by the one local job that runs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoconfig.specs.errors import FileError

if TYPE_CHECKING:  # not in the watcher of a job, which starts beside it: it would load NumPy
    from autoconfig.specs.job import Job

NAME_DIGITS = 16
STARTED = "started"
"""In life.json of a local job: its command was started, it does not wait any more."""
READ_LOG_BYTES = 64 * 1024
LOG_MOST_BYTES, LOG_KEPT_BYTES, LOG_LOOK_S = 64 * 2**20, 2**20, 1.0
"""A log that is longer is cut to its last part, looked at so often: a job that prints without end does not fill the disk."""
LOG_CUT = "... what came before is cut ...\n"


class FileOfJob:
    """The path of a file in the folder of a job."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: JobFolder, kind: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class JobFolder:
    """Paths of one job."""

    path: Path

    job_file = FileOfJob("job.json")
    result_file = FileOfJob("result.json")
    launch_file = FileOfJob("launch.json")
    life_file = FileOfJob("life.json")
    end_file = FileOfJob("end.json")
    exit_file = FileOfJob("exit.json")
    log_file = FileOfJob("out.log")
    nvml_file = FileOfJob("nvml.jsonl")
    lock_file = FileOfJob("lock")

    @property
    def turn_file(self) -> Path:
        return self.path.parent / "local.lock"

    @property
    def name(self) -> str:
        return self.path.name

    def job(self) -> Job:
        from autoconfig.specs.job import read_job

        return read_job(self.job_file)

    def last_lines(self, count: int = 8) -> list[str]:
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - READ_LOG_BYTES))
                lines = file.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.strip()][-count:]


def cut_logs(folder: Path, most: int = LOG_MOST_BYTES, kept: int = LOG_KEPT_BYTES) -> None:
    """Leave the last `kept` bytes of logs of more than `most`; what a job appends meanwhile may be lost. Nothing where they
    cannot be read or written."""
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_size <= most:
                continue
            with log.open("r+b") as file:
                file.seek(-kept, os.SEEK_END)
                last = file.read(kept)
                file.truncate(0)
            with log.open("ab") as file:
                file.write(LOG_CUT.encode() + last)


def folder_of(root: Path, job: Job) -> JobFolder:
    """The folder of this content under `root`; it need not exist. Its path is absolute: watchers and jobs work elsewhere."""
    return JobFolder(root.absolute() / job.content_hash[:NAME_DIGITS])


def prepare(root: Path, job: Job) -> JobFolder:
    """The job's folder with its job.json. Raises FileError where it cannot be written."""
    from autoconfig.specs.job import job_text

    folder = folder_of(root, job)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"job folder {str(folder.path)[:200]!r} cannot be made: {error.strerror or error}") from error
    if not folder.job_file.exists():
        write_text(folder.job_file, job_text(job))
    return folder


def write_text(path: Path, text: str) -> None:
    """Beside, then renamed: a reader sees the whole file or none. Raises FileError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FileError(f"{str(path)[:200]!r} cannot be written: {error.strerror or error}") from error


def write_json(path: Path, body: dict[str, Any]) -> None:
    """`write_text` of an object."""
    write_text(path, json.dumps(body, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """An object that we wrote; empty where there is none or it is torn."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


class FileLock:
    """An exclusive lock on a file. The lock belongs to the open file: a child process that inherits it holds it too."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def write(self, text: str) -> None:
        """What `holder` reads: who has the lock."""
        os.truncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Give up this process's hold; a child that inherited the lock keeps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take(path: Path) -> FileLock | None:
    """The lock, or None where another process has it. Raises FileError where the file cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FileError(f"lock {str(path)[:200]!r} cannot be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        hint = "name a folder on a local disk"
        raise FileError(f"{str(path)[:200]!r} cannot be locked: {error.strerror or error}; {hint}") from error
    return FileLock(path, descriptor)


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock."""
    if not path.exists():
        return False
    lock = take(path)
    if lock is None:
        return True
    lock.release()
    return False


def holder(path: Path) -> str:
    """What the holder wrote; empty where nothing can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
