"""Recorded answers: what the product answers to some 70 questions and 60 requests; a refactoring is held to them.

    python -m tools.recorded_answers revisions BASE [OTHER] [--only PATTERN] [--keep FOLDER]

Two revisions (without OTHER: the files as they lie here) are checked out and installed, each in an environment of its own with
the dependencies of this one that runs its own files alone. Each is asked all questions of `questions/*.toml`, and one folder is
written for each: `command`, `exit_code`, `stdout`, `stderr` (numbered where several commands run one after another in one
folder), and under `files/` whatever was written. `autoconfig serve` is started on a free port; `status`, `headers` and `body`
of every request are recorded; the page is among them. Then both are compared: unified diffs, a summary, exit code 1 where
anything differs.

The product is only touched through its command, its files and its HTTP interface: nothing of it is imported, so that the
questions outlive any change of modules. Input files are those of the checkout that asks: all revisions get the same. Commands
run in an empty home, without the caller's environment variables, 160 columns wide, in UTC, with one thread for linear algebra
and one seed for Python's hashes.

Answers are recorded to the byte, but for what no two runs have alike (RULES in `record.py`) and what a question forgets, with
its reason; parquet files as their schema and CSV. A recording takes three to four minutes on two free cores.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tools.recorded_answers.compare import compare, report
from tools.recorded_answers.record import chosen, load, record_revision, say
from tools.revision import RevisionError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.recorded_answers", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("action", choices=("revisions",), help="record two revisions and compare them")
    parser.add_argument("base", help="a revision of git")
    parser.add_argument("other", nargs="?", help="another one; default: the files as they lie here")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="questions with such names, like 'search*'")
    parser.add_argument("--keep", type=Path, help="leave the recordings in this folder, as base and other")
    return parser


def revisions(base: str, other: str | None, pattern: str, keep: Path | None) -> int:
    """Record both, print what differs; 1 where something does."""
    questions, requests = chosen(*load(), pattern)
    with tempfile.TemporaryDirectory(prefix="revisions-") as name:
        place = Path(name)
        recordings = keep or place / "answers"
        for label, folder, revision in (("base", "a", base), ("other", "b", other)):
            # in folders with names of one length, so that lines break alike
            record_revision(revision, recordings / label, place / folder, questions, requests)
        comparison = compare(recordings / "base", recordings / "other")
    print("\n".join(report(comparison)))
    return 0 if comparison.alike() else 1


def main() -> int:
    """Do what the command line says; 1 where answers differ, 2 where it cannot be done."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return revisions(options.base, options.other, options.only, options.keep)
    except (ValueError, RevisionError) as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("stopped; nothing is left behind")
        return 130


if __name__ == "__main__":
    sys.exit(main())
