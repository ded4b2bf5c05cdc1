"""Records the answers: one folder a question, in it exit code, standard output, standard error and the files written."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tools.revision import installed

_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
RULES: tuple[tuple[str, str], ...] = (
    # elapsed seconds: in the texts of searches and traces, and in their JSON, where predicted seconds have longer names
    (r"\b(ranked|priced|traced) in [\d.]+ s\b", r"\1 in <seconds> s"),
    (rf'("seconds": ?){_NUMBER}', r"\1<seconds>"),
    (r'("seconds_by_phase": ?)\{[^{}]*\}', r"\1<seconds>"),
    # dates with a time, with or without a zone: 2026-01-31T23:59:59.123456+00:00
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
    # the address of the service that was started
    (r"\b127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    # identities of searches; keys of the service, and their identities in a table
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\bac_[0-9a-f]{12}_[\w-]{43}", "<key>"),
    (r"(?m)^[0-9a-f]{12}(?=  )", "<key id>"),
    # what marks the scripts of one page as its own
    (r"\bnonce(-|=\")[\w+/]{43}=", r"nonce\1<nonce>"),
)
_RULES = tuple((re.compile(pattern), word) for pattern, word in RULES)


def normalised(text: str, hidden: dict[str, str]) -> str:
    """The text by the rules; `hidden` are texts of this recording (its folders), longest first, and words for them."""
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, hidden[secret])
    for pattern, word in _RULES:
        text = pattern.sub(word, text)
    return text


def parquet_text(raw: bytes) -> str:
    """A parquet file as its schema and its rows as CSV; numbers with all their digits."""
    import pyarrow.csv
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(io.BytesIO(raw))
    rows = io.BytesIO()
    pyarrow.csv.write_csv(table, rows)
    return f"{table.schema.to_string(show_schema_metadata=False)}\n{rows.getvalue().decode()}"


PATIENCE = 1800.0
"""Seconds that one command may take: some take minutes where the machine is shared."""


@dataclass
class Processes:
    """Starts processes and can end them all: Ctrl-C leaves nothing behind."""

    environment: dict[str, str]
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def start(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.stopped:
                raise RuntimeError("the recording was stopped")
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self.running.add(process)
        return process

    def run(self, command: list[str], folder: Path) -> dict[str, str]:
        """Exit code (`timeout` where it took too long) and both streams."""
        process = self.start(command, folder)
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
            code = str(process.returncode)
        except subprocess.TimeoutExpired:
            _kill(process, signal.SIGKILL)
            stdout, stderr = process.communicate()
            code = "timeout"
        finally:
            self.ended(process)
        streams = {"stdout": stdout, "stderr": stderr}
        return {"exit_code": f"{code}\n", **{name: raw.decode(errors="backslashreplace") for name, raw in streams.items()}}

    def ended(self, process: subprocess.Popen[bytes]) -> None:
        _kill(process, signal.SIGKILL)
        with self.lock:
            self.running.discard(process)

    def stop(self) -> None:
        """End every process, those in groups of their own too (jobs of studies), and start no other."""
        with self.lock:
            self.stopped = True
            left = list(self.running)
        for process in left:
            _kill(process, signal.SIGKILL)
        for one in psutil.process_iter(["environ"]):  # whose home is that of this recording: nobody else's are
            if (one.info["environ"] or {}).get("HOME") == self.environment["HOME"]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    one.kill()


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def environment(home: Path, inherited: dict[str, str]) -> dict[str, str]:
    """What commands see: little, and the same everywhere. One thread, so that sums are added up in one order. Python's hashes
    of texts have one seed: the order of a set of names would differ from run to run."""
    kept_variables = {name: inherited[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in inherited}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    fixed = {"COLUMNS": "160", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC", "PYTHONHASHSEED": "0"}
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "MPLCONFIGDIR": str(home / "matplotlib")}
    return {**kept_variables, **threads, **fixed, **places, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}


HERE = Path(__file__).parent
QUESTIONS = HERE / "questions"
INPUTS = (HERE / "inputs", HERE.parents[1] / "tests" / "megatron")
"""Of this checkout, whichever revision is asked, so that all revisions get the same files; the second holds `scripts/`."""


@dataclass(frozen=True)
class Question:
    """Commands that run one after another in one folder of their own."""

    name: str
    run: tuple[tuple[str, ...], ...]
    """Arguments of the command, one tuple a run."""
    inputs: tuple[str, ...] = ()
    """Patterns of files of INPUTS, copied flat into the folder."""
    texts: dict[str, str] = field(default_factory=dict)
    forget: tuple[str, ...] = ()
    """Patterns of recorded files that no two runs have alike; the question says why in a comment."""
    slow: bool = False

    def input_files(self) -> list[Path]:
        files = [path for pattern in self.inputs for folder in INPUTS for path in sorted(folder.glob(pattern))]
        if len(files) < len(self.inputs):
            raise ValueError(f"{self.name}: not every pattern of {self.inputs} names a file of {', '.join(map(str, INPUTS))}")
        return files


@dataclass(frozen=True)
class HttpRequest:
    """One request to the running service."""

    name: str
    path: str
    """`{NAME}` stands for the id in the answer to the request of that name."""
    method: str = "GET"
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    until: str = ""
    """Asked again until the answer has this text."""
    keep: str = ""
    """A pattern: only lines with it are recorded."""
    without: tuple[str, ...] = ()
    """Headers that no two runs have alike, in small letters."""


def _question(row: dict[str, Any]) -> Question:
    commands = row["run"] if isinstance(row["run"], list) else [row["run"]]
    fields = {**row, "run": tuple(tuple(shlex.split(one)) for one in commands)}
    for name in ("inputs", "forget"):
        fields[name] = tuple(fields.get(name, ()))
    return Question(**fields)


def _request(row: dict[str, Any]) -> HttpRequest:
    fields = {key: value for key, value in row.items() if key not in ("json", "text")}
    headers = dict(fields.pop("headers", {}))
    fields["without"] = tuple(fields.get("without", ()))
    if "json" in row or "text" in row:
        fields["body"] = (json.dumps(row["json"]) if "json" in row else str(row["text"])).encode()
        fields.setdefault("method", "POST")
        headers.setdefault("Content-Type", "application/json")
    return HttpRequest(**fields, headers=headers)


def load(folder: Path = QUESTIONS) -> tuple[list[Question], list[HttpRequest]]:
    """Every question and request, in the order of the files; names are unique."""
    questions: list[Question] = []
    requests: list[HttpRequest] = []
    for file in sorted(folder.glob("*.toml")):
        rows = tomllib.loads(file.read_text(encoding="utf-8"))
        questions += [_question(row) for row in rows.get("question", [])]
        requests += [_request(row) for row in rows.get("request", [])]
    names = [question.name for question in questions] + [request.name for request in requests]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"questions with the same name: {', '.join(twice)}")
    return questions, requests


def chosen(questions: list[Question], requests: list[HttpRequest], pattern: str) -> tuple[list[Question], list[HttpRequest]]:
    """Those whose name is like the pattern (`search*`). Requests build on one another, so one of them asks for all."""
    named = [one for one in questions if fnmatch.fnmatch(one.name, pattern)]
    requested = any(fnmatch.fnmatch(request.name, pattern) for request in requests)
    if not named and not requested:
        raise ValueError(f"no question is named like {pattern!r}")
    return named, requests if requested else []


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


JOBS = 2
"""Commands at once."""


@dataclass(frozen=True)
class Recording:
    """Where answers go, how the product is called, and the texts of this run that are replaced."""

    folder: Path
    command: tuple[str, ...]
    processes: Processes
    place: Path
    hidden: dict[str, str]

    def write(self, question: str, name: str, text: str, forget: tuple[str, ...] = ()) -> None:
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
        streams = recording.processes.run([*recording.command, *arguments], folder)
        for part, text in {"command": f"{' '.join(('autoconfig', *arguments))}\n", **streams}.items():
            recording.write(question.name, f"{part}{suffix}", text, question.forget)
    for name, raw in _contents(folder).items():
        if before.get(name) != raw:
            shown, text = _as_text(name, raw)
            recording.write(question.name, f"files/{shown}", text, question.forget)


def _work(recording: Recording, questions: list[Question], requests: list[HttpRequest]) -> dict[str, Callable[[], None]]:
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


def _finish(work: dict[str, Callable[[], None]], processes: Processes) -> None:
    """Do the work, JOBS at once, with a line for each part. An error or Ctrl-C ends what runs."""
    with ThreadPoolExecutor(JOBS) as pool:
        begun: dict[Future[float], str] = {pool.submit(_timed, task): name for name, task in work.items()}
        try:
            for number, future in enumerate(as_completed(begun), 1):
                say(f"{number}/{len(work)}  {future.result():6.1f} s  {begun[future]}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            processes.stop()


def record_revision(
    revision: str | None, folder: Path, place: Path, questions: list[Question], requests: list[HttpRequest]
) -> None:
    """Record the answers of a revision (None: the files as they lie here) into a folder, which must be new or empty; nothing
    else of it stays."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix="recorded-answers-", ignore_cleanup_errors=True)
    with installed(revision, place) as (command, code), temporary as name:
        say(f"{revision or 'the files here'}: {command} runs {code}")
        here = Path(name).resolve()
        processes = Processes(environment(_home(here), dict(os.environ)))
        hidden = {str(here): "<place>", str(code): "<code>", str(place.resolve()): "<environment>"}
        recording = Recording(folder, (str(command),), processes, here, hidden)
        _finish(_work(recording, questions, requests), processes)
