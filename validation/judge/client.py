"""Asks the judge in processes of its own, which import megatron once for any questions; runs our scripts before stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

from autoconfig.megatron.flag_table import words
from autoconfig.megatron.write import environment, mock_arguments

LAUNCHERS = ("torchrun", "scontrol")
STAND_IN = """#!{python}
import json, os, sys
if os.path.basename(sys.argv[0]) == "scontrol":
    print("node0")
else:
    print("LAUNCH " + json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the script would start."""

    launcher: list[str]
    arguments: list[str]
    environment: dict[str, str]


def launch_of(script: Path, **variables: str) -> Launch:
    """Run one of our scripts against stand-ins, as node 0. `variables` are those that a user may set."""
    node = {} if script.suffix == ".sbatch" else {"NODE_RANK": "0", "MASTER_ADDR": "node0"}
    with tempfile.TemporaryDirectory() as folder:
        for name in LAUNCHERS:
            _program(Path(folder, name), STAND_IN.format(python=sys.executable))
        _program(Path(folder, "srun"), SRUN)
        slurm = {"SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node[0-3]"}
        environment = {"PATH": f"{folder}:/usr/bin:/bin", **slurm, **node, **variables}
        done = subprocess.run(
            ["bash", str(script.resolve())],
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            timeout=60,
            check=False,
        )
        lines = [line.removeprefix("LAUNCH ") for line in done.stdout.splitlines() if line.startswith("LAUNCH ")]
        if done.returncode or len(lines) != 1:
            raise RuntimeError(f"{script.name}: {len(lines)} launches, exit {done.returncode}: {done.stderr.strip()[-300:]}")
    seen = json.loads(lines[0])
    program = next(i for i, word in enumerate(seen["arguments"]) if word.rsplit("/", 1)[-1].startswith("pretrain_"))
    return Launch(
        launcher=seen["arguments"][:program], arguments=seen["arguments"][program + 1 :], environment=seen["environment"]
    )


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


ROOT = Path(__file__).parents[2]


def settle() -> None:
    """In a judge's process: what megatron prints goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def answer(function: str, *question: Any) -> dict[str, Any]:
    """In a judge's process: a verdict of validation/judge/verdict.py as JSON has it."""
    from validation.judge import verdict

    found: dict[str, Any] = json.loads(json.dumps(asdict(getattr(verdict, function)(*question)), default=str))
    return found


class Judge:
    """`with Judge() as judge: judge.plan(scenario, plan)`: `count` processes that import megatron once each. The interpreter
    must be that of `make judge`."""

    def __init__(self, count: int = 1) -> None:
        os.environ["PYTHONHASHSEED"] = "0"  # of the processes: megatron-core prints sets in its messages, which the page quotes
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), settle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _asked(
        self, argument_list: Sequence[str], world_size: int, variables: Mapping[str, str], capability: float | None
    ) -> Future[dict[str, Any]]:
        return self._pool.submit(answer, "judge", [*argument_list], world_size, {**variables}, capability or 9.0)

    def arguments(
        self, argument_list: Sequence[str], world_size: int, variables: Mapping[str, str], capability: float | None
    ) -> dict[str, Any]:
        return self._asked(argument_list, world_size, variables, capability).result()

    def degrees(self, degrees: Mapping[str, int], *, sequence_parallel: bool) -> dict[str, Any]:
        """The verdict on the degrees of a recipe, on a stand-in model (verdict.judge_degrees)."""
        return self._pool.submit(answer, "judge_degrees", {**degrees}, sequence_parallel).result()

    def _run(self, scenario: Scenario, plan: TrainPlan, argument_list: Sequence[str]) -> Future[dict[str, Any]]:
        variables = {name: value for name, value in environment(scenario, plan).items() if value is not None}
        cluster = scenario.cluster
        return self._asked(argument_list, cluster.num_gpus, variables, cluster.gpu.compute_capability)

    def run(self, scenario: Scenario, plan: TrainPlan, argument_list: Sequence[str]) -> dict[str, Any]:
        """The verdict on arguments in the environment and on the GPUs of a plan."""
        return self._run(scenario, plan, argument_list).result()

    def plan(self, scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
        return self.run(scenario, plan, words(mock_arguments(scenario, plan)))

    def plans(self, questions: Sequence[tuple[Scenario, TrainPlan]]) -> list[dict[str, Any]]:
        """The verdicts on plans, in their order."""
        begun = [self._run(scenario, plan, words(mock_arguments(scenario, plan))) for scenario, plan in questions]
        return [one.result() for one in begun]
