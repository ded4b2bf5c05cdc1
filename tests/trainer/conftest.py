"""Needs torch and megatron-core (`make test` installs them); without them these tests are not collected."""

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from ready_python import ranks, ready_python

ROOT = Path(__file__).parents[2]
collect_ignore_glob = []

if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():  # megatron-core warns of everything optional that is not installed
        warnings.simplefilter("ignore")
        from autoconfig.trainer.host.limits import leave_out_compiler

        leave_out_compiler()
        import autoconfig.trainer.tracing.encoders
        import autoconfig.trainer.training  # noqa: F401


MAX_BYTES = 6 * 2**30
"""Private memory of this process and of each one that it starts: a runaway ends as an error, not as a dead machine."""
TORCHRUN = f"""
import ctypes, runpy
ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})  # PR_SET_PDEATHSIG: when pytest is killed, no torchrun stays behind
runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def bounded():
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES if soft < 0 else min(soft, MAX_BYTES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def environment(**more: str) -> dict[str, str]:
    """Of a process as the documentation starts it; the repository's root takes the place of an installation."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **more}


def torchrun(processes: int, *command: str) -> list[str]:
    return [sys.executable, "-c", TORCHRUN, "--standalone", f"--nproc-per-node={processes}", *command]


@pytest.fixture(scope="session")
def ready(tmp_path_factory):
    """The path of an interpreter that has imported torch and megatron-core already (helpers/ready_python.py)."""
    with ready_python(tmp_path_factory.mktemp("ready")) as program:
        yield str(program)


@pytest.fixture(scope="session")
def start():
    """start(processes, *command) -> a running torchrun, its output piped."""
    started = []

    def go(processes: int, *command: str, **options) -> subprocess.Popen:
        run = subprocess.Popen(
            torchrun(processes, *command), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            **options,
        )  # fmt: skip
        started.append(run)
        return run

    yield go
    for run in started:
        if run.poll() is None:  # torchrun hands SIGTERM to its ranks
            run.terminate()
        run.communicate()


@pytest.fixture(scope="session")
def answers(ready, tmp_path_factory):
    """answers(processes, {name: job text}) -> what agreement_worker.py found."""

    def ask(processes: int, cases: dict[str, str]) -> dict:
        folder = tmp_path_factory.mktemp(f"agreement{processes}")
        (folder / "cases.json").write_text(json.dumps(cases))
        command = ranks(ready, processes, str(Path(__file__).with_name("agreement_worker.py")), str(folder))
        run = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=400, check=False)
        if run.returncode:
            pytest.fail(f"exit {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-12000:]}")
        return json.loads((folder / "answers.json").read_text())

    return ask
