"""Recorded answers: what the product answers to some 70 questions and 60 requests; a refactoring is held to them.

    python -m tools.recorded_answers record FOLDER [--command CMD | --revision REV] [--only PATTERN] [--quick] [-j 2]
    python -m tools.recorded_answers compare OLD NEW [--common] [--context 3] [--lines 200] [--replace PATTERN TEXT]
    python -m tools.recorded_answers revisions BASE [OTHER] [--only PATTERN] [--quick] [-j 2] [--keep FOLDER]

`record` asks the command `autoconfig` (or `--command`, or a revision's own) all questions of `questions/*.toml` and writes
one folder for each: `command`, `exit_code`, `stdout`, `stderr` (numbered where several commands run one after another in one
folder), and under `files/` whatever was written. It also starts `autoconfig serve` on a free port and records `status`,
`headers` and `body` of every request; the page is among them. `compare` prints unified diffs and a summary, and exits with 1
where anything differs. An intended change can be said beforehand: `--replace PATTERN TEXT` is applied to the old answers.
`revisions` checks out two revisions (without OTHER: the files as they lie here), installs each in an environment of its own
with the dependencies of this one, makes sure that it runs its own files alone, records both, and compares them.

The product is only touched through its command, its files and its HTTP interface: nothing of it is imported, so that the
questions outlive any change of modules. Input files are those of the checkout that asks: all revisions get the same. Commands
run in an empty home, without the caller's environment variables, 160 columns wide, in UTC, with one thread for linear algebra
and one seed for Python's hashes.

Answers are recorded to the byte, but for what no two runs have alike (RULES in `record.py`) and what a question forgets, with
its reason; parquet files as their schema and CSV. A recording takes three to four minutes on two free cores, about half of it
`validate`, `predict` and jobs of studies: `--quick` leaves these out, and `compare --common` compares what is left.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tools.recorded_answers import compare
from tools.recorded_answers.record import chosen, load, record, record_revision, say
from tools.revision import RevisionError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.recorded_answers", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="action", required=True)
    recording = commands.add_parser("record", help="record the answers of a command or a revision")
    recording.add_argument("folder", type=Path)
    asked = recording.add_mutually_exclusive_group()
    asked.add_argument("--command", help="the command, like 'python -m autoconfig'; default: autoconfig beside this Python")
    asked.add_argument("--revision", help="a revision of git, in an environment of its own")
    comparing = commands.add_parser("compare", help="compare two recordings; exit code 1 where they differ")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    both = commands.add_parser("revisions", help="record two revisions and compare them")
    both.add_argument("base", help="a revision of git")
    both.add_argument("other", nargs="?", help="another one; default: the files as they lie here")
    both.add_argument("--keep", type=Path, help="leave the recordings in this folder, as base and other")
    comparing.add_argument("--common", action="store_true", help="only questions that both recordings have")
    for one in (recording, both):
        one.add_argument("--only", default="*", metavar="PATTERN", help="questions with such names, like 'search*'")
        one.add_argument("--quick", action="store_true", help="leave out the questions that take long")
        one.add_argument("-j", "--jobs", type=int, default=2, help="commands at once (default: 2)")
    for one in (comparing, both):
        one.add_argument("--context", type=int, default=3, help="lines around a difference (default: 3)")
        one.add_argument("--lines", type=int, default=200, help="most lines of one file's diff (default: 200)")
        one.add_argument(
            "--replace",
            nargs=2,
            action="append",
            default=[],
            metavar=("PATTERN", "TEXT"),
            help="an intended change, applied to the old answers; repeat",
        )
    return parser


def _default_command() -> str:
    beside = Path(sys.executable).with_name("autoconfig")
    found = str(beside) if beside.exists() else shutil.which("autoconfig")
    if found is None:
        raise ValueError("no command autoconfig beside this Python or on PATH; say --command")
    return found


def _record(arguments: argparse.Namespace) -> int:
    questions, requests = chosen(*load(), arguments.only, quick=arguments.quick)
    if arguments.revision is None:
        command = tuple(shlex.split(arguments.command or _default_command()))
        record(arguments.folder, command, questions, requests, jobs=arguments.jobs, hidden={})
    else:
        with tempfile.TemporaryDirectory(prefix="revisions-") as place:
            record_revision(arguments.revision, arguments.folder, Path(place) / "a", questions, requests, jobs=arguments.jobs)
    return 0


def _compare(old: Path, new: Path, arguments: argparse.Namespace) -> int:
    replaced = tuple(tuple(pair) for pair in arguments.replace)
    found = compare.compare(old, new, replaced, common=getattr(arguments, "common", False))
    for line in compare.report(found, arguments.context, arguments.lines):
        print(line)
    return 0 if found.alike() else 1


def _revisions(arguments: argparse.Namespace) -> int:
    questions, requests = chosen(*load(), arguments.only, quick=arguments.quick)
    with tempfile.TemporaryDirectory(prefix="revisions-") as name:
        place = Path(name)
        kept = arguments.keep or place / "answers"
        for label, folder, revision in (("base", "a", arguments.base), ("other", "b", arguments.other)):
            record_revision(  # in folders with names of one length, so that lines break alike
                revision, kept / label, place / folder, questions, requests, jobs=arguments.jobs
            )
        return _compare(kept / "base", kept / "other", arguments)


def main() -> int:
    """Do what the command line says; 1 where answers differ, 2 where it cannot be done."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.action == "compare":
            return _compare(arguments.old, arguments.new, arguments)
        return _record(arguments) if arguments.action == "record" else _revisions(arguments)
    except (ValueError, RevisionError) as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; nothing is left behind")
        return 130


if __name__ == "__main__":
    sys.exit(main())
