"""Draws mutants of the pure packages, runs each against the tests that reach it and writes tests/mutants.json.

    python -m tools.mutants [--sample N] [--seed N] [--only PATH] [--afresh] [--jobs N]     (what `make mutants` runs)

Once, a run of TESTS writes down which test runs which functions (build/mutants/reach.json, made anew for a file of tests that
changes; a function that came since then is run by what runs the functions that name it). A mutant is then run against the tests
that reach its function, those of its own package first, cheap ones first, up to --budget seconds of them: the share of what
survives is never too small. Killed mutants are not run again while their file stays as it is (--afresh: they are).

tests/mutants.json has, by seed, the survivors and what killed the others (tried first the next time), and "reasons": one
sentence, written by hand, for each mutation that no test can notice. A reason whose mutation was killed is printed and goes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from tools.mutants.changes import ROOT, Mutant, drawn, names_by_owner
from tools.mutants.child import BrokenError, OutOfTimeError, ask, preload

FOLDER = ROOT / "build" / "mutants"
RECORD = ROOT / "tests" / "mutants.json"
TESTS = (
    "memory_model", "time_model", "specs", "training", "planning", "serving", "sizing", "runs", "calibration",
    "megatron/test_check.py", "trainer/test_schedules.py",
)  # fmt: skip
"""Of tests/: what runs in one process, without servers."""
BUDGET_S = 20.0
TIMEOUT_S, RECORD_S = 100, 900
"""Of the processor: a mutant that hangs is killed."""
SEED, SAMPLE = 16, 200
RECORDED = 75
"""Samples of at least this size are written to tests/mutants.json."""
NO_REASON = 'NO REASON YET: write a test, or why none can notice it under "reasons" in tests/mutants.json'
Reach = dict[str, tuple[float, list[tuple[str, str]]]]
"""Seconds and functions (path, owner) of each test."""
Names = dict[tuple[str, str], set[str]]
"""What each function (path, owner) mentions."""


def reach(jobs: int) -> Reach:
    """What each test runs, recorded again for the files of tests that changed."""
    kept = FOLDER / "reach.json"
    known = _read(kept)
    places = [ROOT / "tests" / name for name in TESTS]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.glob("test_*.py")))]
    hashes = {str(path.relative_to(ROOT)): _hash([path, path.with_name("tables.json")]) for path in files}
    todo = [name for name, value in hashes.items() if name not in known or known[name]["hash"] != value]
    with ThreadPoolExecutor(jobs) as pool:
        for name, found in zip(todo, pool.map(lambda name: ask({"files": [name]}, RECORD_S), todo), strict=True):
            if found["failed"]:
                raise RuntimeError(f"{found['failed']} fail without a mutation; mend them first")
            known[name] = {"hash": hashes[name], "tests": found["tests"]}
            kept.write_text(json.dumps({name: known[name] for name in hashes if name in known}), encoding="utf-8")
            print(f"reach of {len(found['tests'])} tests of {name}", flush=True)
    return {test: value for name in hashes for test, value in known[name]["tests"].items()}


def _hash(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.is_file())).hexdigest()[:16]


def selected(mutant: Mutant, tests: Reach, names: Names, budget_s: float) -> list[list[str]]:
    """Test ids to run, in two rounds: of files that name the function and of the package, then the others; each round by file,
    cheap ones first."""
    wanted, named = {(mutant.path, mutant.owner)}, tuple[str, ...]()
    if not any(wanted.intersection(map(tuple, owners)) for _, owners in tests.values()):  # it came since reach was recorded
        wanted |= {key for key, used in names.items() if mutant.owner.split(".")[-1] in used}
    if (mutant.path, mutant.owner) not in names:  # it runs on import: functions that name what it sets, files that may read it
        users = {key for key, used in names.items() if used.intersection(mutant.targets)}
        named = (*mutant.targets, f"{mutant.path.removesuffix('.py').replace('/', '.')} import ")
        wanted = users or {key for key in names if key[0] == mutant.path}
    reaching = {
        test: seconds
        for test, (seconds, owners) in tests.items()
        if wanted.intersection(map(tuple, owners)) or any(name in _text(_file(test)) for name in named)
    }
    own = f"tests/{mutant.path.removeprefix('autoconfig/').split('/')[0]}/", "tests/planning/"
    called = {owner.split(".")[-1] for _, owner in wanted}.union(named)

    def far(test: str) -> bool:
        return not (test.startswith(own) or any(name in _text(_file(test)) for name in called))

    rounds, left = [], budget_s
    for distant in (False, True):
        chosen = list[str]()
        for test in sorted((one for one in reaching if far(one) == distant), key=lambda one: reaching[one]):
            left -= reaching[test]
            if left >= 0 or not chosen:
                chosen.append(test)
        cost: dict[str, float] = {}
        for test in chosen:
            cost[_file(test)] = cost.get(_file(test), 0.0) + reaching[test]
        rounds.append(sorted(chosen, key=lambda one: (cost[_file(one)], _file(one), reaching[one])))
    return [chosen for chosen in rounds if chosen]


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def _file(test: str) -> str:
    return test.split("::")[0]


def killer_of(mutant: Mutant, tests: Reach, names: Names, budget_s: float, last: str | None) -> str | None:
    """The first test that fails with the mutation, or None."""
    rounds = selected(mutant, tests, names, budget_s)
    if last in tests:
        rounds = [[last], *rounds]
    for chosen in rounds:
        files = list(dict.fromkeys(map(_file, chosen)))
        killer = answered({"mutant": [mutant.path, mutant.number], "tests": chosen, "files": files}, TIMEOUT_S)
        if killer is not None:
            return killer
    return None


def answered(question: dict[str, Any], cpu_s: int) -> str | None:
    """The killer that a process names. A process that ran out of time is asked again with three times as much, one that broke
    or was ended from outside once more: what load did is neither a kill nor a survival."""
    for limit_s in (cpu_s, 3 * cpu_s):
        try:
            killer: str | None = ask(question, limit_s)["killer"]
            return killer
        except OutOfTimeError as error:
            last: RuntimeError = error
        except RuntimeError as error:
            last = error
    if isinstance(last, OutOfTimeError | BrokenError):
        return str(last).partition(":")[0]
    raise last


def state_of(mutant: Mutant) -> str:
    """What a result depends on; the tests may only have become better."""
    return _hash([ROOT / mutant.path])


def main() -> None:
    """Draw, run, print the survivors with their reasons and their share, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="how many mutants are drawn (0: all)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw")
    parser.add_argument("--only", default="", help="only files whose path starts with this; tests/mutants.json stays as it is")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of tests for a mutant")
    parser.add_argument("--afresh", action="store_true", help="run the mutants again that an earlier run killed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at once")
    asked = parser.parse_args()
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(FOLDER / "hypothesis")
    FOLDER.mkdir(parents=True, exist_ok=True)
    preload()
    chosen = [one for one in drawn(asked.seed, asked.sample) if one.path.startswith(asked.only)]
    record = _read(RECORD) or {"reasons": {}, "seeds": {}}
    before = {name: killer for run in record["seeds"].values() for name, killer in run["killed"].items()}
    tests, names = reach(asked.jobs), names_by_owner()
    place = FOLDER / "killed.json"
    known: dict[str, str] = {} if asked.afresh else _read(place)

    def run(mutant: Mutant) -> tuple[Mutant, str | None]:
        key = f"{mutant.name} {state_of(mutant)}"
        killer = known.get(key) or killer_of(mutant, tests, names, asked.budget, before.get(mutant.name))
        if killer:
            known[key] = killer
        return mutant, killer

    killed, survivors = dict[str, str](), list[Mutant]()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for count, (mutant, killer) in enumerate(pool.map(run, chosen), 1):
            if killer is None:
                survivors.append(mutant)
            else:
                killed[mutant.name] = killer
            place.write_text(json.dumps(dict(known), indent=0), encoding="utf-8")
            print(f"{count}/{len(chosen)} {'killed by ' + killer if killer else 'SURVIVES'}: {mutant.name}", flush=True)
    reasons: dict[str, str] = record["reasons"]
    share = 100 * len(survivors) / max(len(chosen), 1)
    print(f"seed {asked.seed}: {len(survivors)} of {len(chosen)} mutants survive ({share:.1f} %)")
    for mutant in survivors:
        print(f"  {mutant.name} (line {mutant.line}): {reasons.get(mutant.name, NO_REASON)}")
    for name in sorted(reasons.keys() & killed.keys()):
        print(f"  its reason goes, a test notices it: {name}: {reasons.pop(name)}")
    if asked.only or asked.budget != BUDGET_S or asked.sample < RECORDED:
        return
    record["seeds"][str(asked.seed)] = {
        "mutants": len(chosen),
        "percent": round(share, 1),
        "survivors": [one.name for one in survivors],
        "killed": killed,
    }
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


if __name__ == "__main__":
    main()
