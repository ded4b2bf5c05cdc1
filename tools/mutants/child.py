"""One pytest process: with one mutation in memory, or writing down which test runs which functions.

Asked `{"mutant": [path, number], "files": [...], "tests": [...]}`, it collects the files and runs these tests in this order up
to the first failure; the answer is `{"killer": id or null}`. Without "tests" it runs all tests of the files, and the answer is
`{"tests": {id: [seconds, [[path, owner], ...]]}, "failed": [...]}`. Nothing is written to the tree; processes that a test
starts run the code as it is.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from tools.mutants.changes import PACKAGES, ROOT, mutated

PRELOADED = (
    "hypothesis.strategies", "numpy", "scipy.optimize", "scipy.stats", "pandas", "jsonschema", "click.testing", "rich.table",
    "yaml",
)  # fmt: skip
MEMORY_BYTES = 8 * 2**30
"""Of one process: a mutant that asks for more fails its test instead of the machine."""
PREFIXES = tuple(f"{ROOT}/{package}/" for package in PACKAGES)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: Path, number: int) -> None:
        super().__init__(name, str(path))
        self.number = number

    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(Path(self.path).read_text(encoding="utf-8"), self.number), self.path, "exec")


class MutantFinder(MetaPathFinder):
    """Finds the mutated module before everyone else."""

    def __init__(self, path: str, number: int) -> None:
        self.path, self.number = ROOT / path, number
        module = path.removesuffix(".py").replace("/", ".")
        self.name = module if module.startswith("autoconfig.") else f"autoconfig.{module}"

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=_Loader(fullname, self.path, self.number))


class _Chosen:
    """Runs the asked tests in the asked order and remembers the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.place = {name: place for place, name in enumerate(tests)}
        self.killer: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.place), key=lambda one: self.place[one.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.killer is None:
            self.killer = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.killer is None:
            self.killer = report.nodeid


class _Recorder:
    """Which functions of the pure packages each test runs, its fixtures included; caches are emptied before each."""

    def __init__(self) -> None:
        self.now = set[CodeType]()
        self.of_fixture: dict[str, set[CodeType]] = {}
        self.tests: dict[str, tuple[float, set[CodeType]]] = {}
        self.failed: list[str] = []
        self.modules, self.caches = 0, list[Any]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += [report.nodeid] * report.failed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed += [report.nodeid] * report.failed

    def trace(self, frame: FrameType, event: str, _: Any) -> None:
        self.now.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        outer, self.now = self.now, set()
        try:
            return (yield)
        finally:
            self.of_fixture.setdefault(fixturedef.argname, set()).update(self.now)
            self.now = outer | self.now

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if self.modules != len(sys.modules):  # looking through all objects takes longer than most tests
            self.modules, self.caches = len(sys.modules), list(_caches())
        for one in self.caches:
            one.cache_clear()
        self.now = set()
        start = time.process_time()
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            fixtures = (self.of_fixture.get(name, set()) for name in getattr(item, "fixturenames", ()))
            self.tests[item.nodeid] = time.process_time() - start, self.now.union(*fixtures)

    def answer(self) -> dict[str, Any]:
        return {name: [round(seconds, 3), _owners(codes)] for name, (seconds, codes) in self.tests.items()}


def _caches() -> Iterator[Any]:
    """What functools.cache keeps of the project and of its tests."""
    for one in gc.get_objects():
        if type(one).__name__ == "_lru_cache_wrapper":
            place = getattr(one, "__module__", None) or ""
            if place.startswith("autoconfig.") or "test_" in place:
                yield one


def _owners(codes: set[CodeType]) -> list[tuple[str, str]]:
    """(path, function or method) of the pure packages; what a function defines inside counts as its own."""
    pure = [(str(Path(one.co_filename).resolve()), one.co_qualname) for one in codes]
    found = {
        (str(Path(path).relative_to(ROOT)), name.split(".<locals>")[0]) for path, name in pure if path.startswith(PREFIXES)
    }
    return sorted(found)


def preload() -> None:
    """What tests import beside the project, once for all processes that are forked from here."""
    for name in PRELOADED:
        importlib.import_module(name)


class OutOfTimeError(RuntimeError):
    """A process used up its time of the processor."""


class BrokenError(RuntimeError):
    """A process ended itself without an answer: with all the memory that it may have, pytest itself breaks."""


def ask(question: dict[str, Any], cpu_s: int) -> dict[str, Any]:
    """The answer of a process forked from this one. Raises OutOfTimeError where it took more than `cpu_s` of the processor
    (waiting for a busy machine is no such time), BrokenError where it broke, RuntimeError where it was ended from outside."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(question, cpu_s, sender))
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
        return found
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            raise OutOfTimeError(f"no answer within {cpu_s} s of the processor") from None
        kind = BrokenError if (process.exitcode or 0) > 0 else RuntimeError
        raise kind(f"a process of pytest ended with {process.exitcode}: {question}") from None
    finally:
        process.join()
        receiver.close()


def _work(question: dict[str, Any], cpu_s: int, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 10))  # SIGXCPU at the first limit: other ends differ
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        sender.send(answer(question))


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Runs pytest here."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0", *question["files"]]
    if "tests" not in question:
        recorder = _Recorder()
        ended = int(pytest.main(options, plugins=[recorder]))
        return {"tests": recorder.answer(), "failed": recorder.failed or [f"pytest ended with {ended}"] * (ended not in (0, 5))}
    sys.meta_path.insert(0, MutantFinder(*question["mutant"]))
    chosen = _Chosen(question["tests"])
    status = pytest.main(["-x", *options], plugins=[chosen])
    return {"killer": chosen.killer or (None if status in (0, 5) else f"pytest ended with {int(status)}")}
