"""Fixtures of the application's tests: questions, rankings, the command line."""

import json
import os  # isort: split

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read as NumPy starts: the tests' workers use every core already
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and as torch does
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # containers set it, and each of our processes would compile the tree again

import gc
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from _pytest.mark.expression import Expression
from autoconfig.specs.scenario import Scenario

from autoconfig.training.question import Request, understand

sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background of a shell; what the tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: what is printed in a pipe is as wide as it says
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))  # tests are no packages
sys.path.insert(0, str(ROOT / "tests" / "helpers" / "runs"))
TIERS = {"service", "browser", "torch", "slurm", "ray", "judge", "soak"}
"""Markers of tests that `make fast` leaves out (pyproject.toml says what each is)."""
MAX_ID = 100
SMALL = {"seq_length": 1024, "global_batch_size": 32, "gpu": "a100-80gb"}
MODELS = {
    "dense": {"model": "gpt3-1.7b", "architecture": {"num_layers": 6, "hidden_size": 768, "num_attention_heads": 12}},
    "odd": {
        "model": "llama3-8b",
        "architecture": {
            "num_layers": 7, "hidden_size": 1536, "num_attention_heads": 12, "num_query_groups": 6, "ffn_hidden_size": 3072,
        },
    },
    "moe": {"model": "mixtral-8x7b", "architecture": {"num_layers": 4}},
    "mla": {"model": "deepseek-v2-lite", "architecture": {"num_layers": 9}},
}  # fmt: skip
"""Small questions: a few layers, so that everything can be listed by brute force."""


def make_request(name: str = "dense", **changes: Any) -> Request:
    """A small question by the name of its model."""
    return Request(**{"gpus": 8, **SMALL, **MODELS[name], **changes})


def make_scenario(name: str = "dense", **changes: Any) -> Scenario:
    return understand(make_request(name, **changes)).scenario


for profile, examples in (("few", 40), ("soak", 5_000)):
    everything = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(profile, max_examples=examples, deadline=None, suppress_health_check=everything)
hypothesis.settings.load_profile("soak" if "AUTOCONFIG_SOAK" in os.environ else "few")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are marked as a whole are not read where `-m "not ..."` leaves them out: what they import takes longer than
    the tests that are left."""
    if not config.option.markexpr.startswith("not "):
        return None
    chosen = Expression.compile(config.option.markexpr)
    files = sorted(collection_path.rglob("test_*.py")) if collection_path.is_dir() else [collection_path]
    return (bool(files) and not any(chosen.evaluate(lambda name, **_: name in _marks(file)) for file in files)) or None  # noqa: B023


def _marks(file: Path) -> list[str]:
    """Tiers that the line or lines `pytestmark = ...` of a file name."""
    found = re.search(r"^pytestmark = (\[\n.*?^\]|[^\n]*)", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return re.findall(r"pytest\.mark\.(\w+)", found[1]) if found else []


QUICK = {"bash", "diff", "fc-list", "file", "git", "nvidia-smi"}
"""Programs that a test without a marker may start (`fc-list`: Matplotlib, once, where it has no list of fonts yet)."""
unmarked = False
"""Whether the test that runs is one: it starts nothing else and opens no connection."""


def _guarded(act: Callable[..., Any]) -> Callable[..., Any]:
    def guard(this: Any, what: Any, *more: Any, **options: Any) -> Any:
        program = Path(os.fsdecode(what if isinstance(what, str | bytes | os.PathLike) else what[0])).name
        assert not unmarked or program in QUICK, f"a test without a marker has to do with {what}: @pytest.mark.service"
        return act(this, what, *more, **options)

    return guard


for owner, name in ((subprocess.Popen, "__init__"), (socket.socket, "connect"), (socket.socket, "bind")):
    setattr(owner, name, _guarded(getattr(owner, name)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global unmarked
    unmarked = TIERS.isdisjoint(mark.name for mark in item.iter_markers())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A test that fails, or whose fixture does, leaves no process behind. Fixtures of others may end beside it."""
    global unmarked
    unmarked = False
    try:
        return (yield)
    finally:
        if (background := sys.modules.get("background")) is not None:
            background.end_all()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every property is tried on few examples in `make test`, and again on many in `make soak`."""
    for item in items if "AUTOCONFIG_SOAK" in os.environ else ():
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.soak)


def pytest_collection_finish() -> None:
    """What the tests are made of stays to the end: the collector passes over it no more."""
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """A short name for a value whose text is long: a megabyte of brackets is sent to every worker, and printed."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID:
        shown = val.decode(errors="replace") if isinstance(val, bytes) else val
        return f"{shown[:20].encode('unicode_escape').decode()}...{len(val)}"
    return None


@pytest.fixture(scope="session")
def request_of() -> Callable[..., Request]:
    return make_request


@pytest.fixture(scope="session")
def scenario_of() -> Callable[..., Scenario]:
    return make_scenario


@pytest.fixture(scope="session")
def autoconfig() -> SimpleNamespace:
    """`autoconfig.run(...)` in process, `.json(...)` its answer, `.process(...)` for real."""
    from command_line import run_in_process, run_process

    def answer(*arguments: str) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(run_in_process(*arguments, "--json").stdout)
        return body

    return SimpleNamespace(run=run_in_process, json=answer, process=run_process, root=ROOT)
