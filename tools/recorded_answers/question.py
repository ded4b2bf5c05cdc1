"""The questions as the files in `questions/` hold them: command lines with their input files, and HTTP requests."""

from __future__ import annotations

import fnmatch
import json
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """Further input files: name and text."""
    forget: tuple[str, ...] = ()
    """Patterns of recorded files that no two runs have alike; the question says why in a comment."""
    slow: bool = False
    """Begun first, so that nothing waits for it at the end."""

    def input_files(self) -> list[Path]:
        """The committed input files."""
        found = [path for pattern in self.inputs for folder in INPUTS for path in sorted(folder.glob(pattern))]
        if len(found) < len(self.inputs):
            raise ValueError(f"{self.name}: not every pattern of {self.inputs} names a file of {', '.join(map(str, INPUTS))}")
        return found


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
    given = {**row, "run": tuple(tuple(shlex.split(one)) for one in commands)}
    for name in ("inputs", "forget"):
        given[name] = tuple(given.get(name, ()))
    return Question(**given)


def _request(row: dict[str, Any]) -> HttpRequest:
    """A body is a table (`json`) or the text itself (`text`)."""
    given = {key: value for key, value in row.items() if key not in ("json", "text")}
    headers = dict(given.pop("headers", {}))
    given["without"] = tuple(given.get("without", ()))
    if "json" in row or "text" in row:
        given["body"] = (json.dumps(row["json"]) if "json" in row else str(row["text"])).encode()
        given.setdefault("method", "POST")
        headers.setdefault("Content-Type", "application/json")
    return HttpRequest(**given, headers=headers)


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


def chosen(
    questions: list[Question], requests: list[HttpRequest], pattern: str, *, quick: bool = False
) -> tuple[list[Question], list[HttpRequest]]:
    """Those whose name is like the pattern (`search*`); `quick`: none that is slow.

    Requests build on one another, so one of them asks for all.
    """
    found = [one for one in questions if fnmatch.fnmatch(one.name, pattern) and not (quick and one.slow)]
    asked = any(fnmatch.fnmatch(request.name, pattern) for request in requests)
    if not found and not asked:
        raise ValueError(f"no question is named like {pattern!r}")
    return found, requests if asked else []
