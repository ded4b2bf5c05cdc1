"""Records the answers: one folder a question, in it exit code, standard output, standard error and the files written."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tools.recorded_answers.normalise import normalised, parquet_text
from tools.recorded_answers.process import Processes, environment
from tools.recorded_answers.question import HttpRequest, Question
from tools.revision import installed

Report = Callable[[str], None]
DETAILS = "recording.json"
"""How a recording was made; not compared."""


@dataclass(frozen=True)
class Recording:
    """Where answers go, how the product is called, and the texts of this run that are replaced."""

    folder: Path
    command: tuple[str, ...]
    processes: Processes
    place: Path
    hidden: dict[str, str]

    def write(self, question: str, name: str, text: str, forget: tuple[str, ...] = ()) -> None:
        """One file of an answer."""
        if any(fnmatch.fnmatch(name, pattern) for pattern in forget):
            text = "not recorded\n"
        path = self.folder / question / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(normalised(text, self.hidden).encode(errors="backslashreplace"))


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _as_text(name: str, raw: bytes) -> tuple[str, str]:
    """Name and text that a written file is recorded with: what is no text, by its length and hash."""
    if name.endswith(".parquet"):
        return f"{name}.csv", parquet_text(raw)
    try:
        return name, raw.decode()
    except UnicodeDecodeError:
        return f"{name}.binary", f"{len(raw)} bytes, SHA-256 {hashlib.sha256(raw).hexdigest()}\n"


def answer_question(question: Question, recording: Recording) -> None:
    """Run the commands of a question in a folder of their own, and record what they say and write."""
    folder = recording.place / question.name
    folder.mkdir()
    for path in question.input_files():
        shutil.copyfile(path, folder / path.name)
    for name, text in question.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    before = _contents(folder)
    for number, arguments in enumerate(question.run, start=1):
        suffix = f"-{number:02d}" if len(question.run) > 1 else ""
        said = recording.processes.run([*recording.command, *arguments], folder)
        called = " ".join(("autoconfig", *arguments))
        parts = {"command": f"{called}\n", "exit_code": f"{said.exit_code}\n", "stdout": said.stdout, "stderr": said.stderr}
        for part, text in parts.items():
            recording.write(question.name, f"{part}{suffix}", text, question.forget)
    for name, raw in _contents(folder).items():
        if before.get(name) != raw:
            shown, text = _as_text(name, raw)
            recording.write(question.name, f"files/{shown}", text, question.forget)


def _work(recording: Recording, questions: list[Question], requests: list[HttpRequest]) -> dict[str, Callable[[], None]]:
    """What there is to do, slow questions first."""
    from tools.recorded_answers.server import answer_requests

    work: dict[str, Callable[[], None]] = {}
    for question in sorted(questions, key=lambda one: not one.slow):
        work[question.name] = lambda question=question: answer_question(question, recording)  # type: ignore[misc]
    if requests:
        work = {"the service": lambda: answer_requests(requests, recording), **work}
    return work


def _home(place: Path) -> Path:
    """A home for the commands, in which matplotlib names the parts of its pictures alike each time."""
    home = place / ".home"
    (home / "matplotlib").mkdir(parents=True)
    (home / "matplotlib" / "matplotlibrc").write_text("svg.hashsalt: recorded\n", encoding="utf-8")
    return home


def _timed(task: Callable[[], None]) -> float:
    start = time.monotonic()
    task()
    return time.monotonic() - start


def _finish(work: dict[str, Callable[[], None]], jobs: int, processes: Processes, report: Report) -> dict[str, float]:
    """Do the work, `jobs` at once; seconds of each part. An error or Ctrl-C ends what runs."""
    seconds: dict[str, float] = {}
    with ThreadPoolExecutor(jobs) as pool:
        begun: dict[Future[float], str] = {pool.submit(_timed, task): name for name, task in work.items()}
        try:
            for future in as_completed(begun):
                name = begun[future]
                seconds[name] = future.result()
                report(f"{len(seconds)}/{len(work)}  {seconds[name]:6.1f} s  {name}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            processes.stop()
    return seconds


def record(
    folder: Path,
    command: tuple[str, ...],
    questions: list[Question],
    requests: list[HttpRequest],
    *,
    jobs: int,
    hidden: dict[str, str],
    report: Report,
) -> None:
    """Record the answers of a command into a folder, which must be new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="recorded-answers-", ignore_cleanup_errors=True) as name:
        place = Path(name).resolve()
        processes = Processes(environment(_home(place), dict(os.environ)))
        recording = Recording(folder, command, processes, place, {str(place): "<place>", **hidden})
        seconds = _finish(_work(recording, questions, requests), jobs, processes, report)
    details = {"command": command, "seconds": round(time.monotonic() - start, 1), "seconds_of": seconds}
    (folder / DETAILS).write_text(json.dumps(details, indent=1) + "\n", encoding="utf-8")


def record_revision(
    revision: str | None,
    folder: Path,
    place: Path,
    questions: list[Question],
    requests: list[HttpRequest],
    *,
    jobs: int,
    report: Report,
) -> None:
    """Record the answers of a revision (None: the files as they lie here); nothing of it stays but the recording."""
    with installed(revision, place) as (command, code):
        report(f"{revision or 'the files here'}: {command} runs {code}")
        hidden = {str(code): "<code>", str(place.resolve()): "<environment>"}
        record(folder, (str(command),), questions, requests, jobs=jobs, hidden=hidden, report=report)
