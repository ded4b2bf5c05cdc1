"""Asks the judge, a process of its own (`python -m validation.judge.client`): one import of megatron for any questions.

It reads and answers lines of JSON: {"arguments": ["--num-layers", "2"], "world_size": 8, "environment": {}, "capability": 9.0},
or {"degrees": {"gpus": 16, "tp": 2, ...}, "sequence_parallel": false}; the answer is a Verdict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
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


class Judge:
    """`with Judge() as judge: judge.plan(setting, plan)`. The interpreter must be that of `make judge`."""

    def __init__(self, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", "validation.judge.client"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # megatron-core prints sets in its messages, which the page quotes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def arguments(
        self, argument_list: Sequence[str], world_size: int, variables: Mapping[str, str], capability: float | None
    ) -> dict[str, Any]:
        question = {"arguments": list(argument_list), "world_size": world_size, "environment": dict(variables)}
        return self._ask({**question, "capability": capability})

    def degrees(self, degrees: Mapping[str, int], *, sequence_parallel: bool) -> dict[str, Any]:
        """The verdict on the degrees of a recipe, on a stand-in model (verdict.judge_degrees)."""
        return self._ask({"degrees": dict(degrees), "sequence_parallel": sequence_parallel})

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the judge died; run `.venv-judge/bin/python -m validation.judge.client` to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def plan(self, scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
        return self.run(scenario, plan, words(mock_arguments(scenario, plan)))

    def run(self, scenario: Scenario, plan: TrainPlan, argument_list: Sequence[str]) -> dict[str, Any]:
        """The verdict on arguments in the environment and on the GPUs of a plan."""
        variables = {name: value for name, value in environment(scenario, plan).items() if value is not None}
        cluster = scenario.cluster
        return self.arguments(argument_list, cluster.num_gpus, variables, cluster.gpu.compute_capability)


class Judges:
    """Several judges side by side; answers come in the order of the questions."""

    def __init__(self, count: int = 2, python: str = sys.executable) -> None:
        self._judges = [Judge(python) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for judge in self._judges:
            judge.__exit__()

    def plans(self, questions: Sequence[tuple[Scenario, TrainPlan]]) -> list[dict[str, Any]]:
        count = len(self._judges)

        def share(number: int) -> list[dict[str, Any]]:
            return [self._judges[number].plan(scenario, plan) for scenario, plan in questions[number::count]]

        shares = list(self._pool.map(share, range(count)))
        return [shares[i % count][i // count] for i in range(len(questions))]


def main() -> None:
    """Answer until the input ends. Everything but answers goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from validation.judge.verdict import judge, judge_degrees

    for line in sys.stdin:
        question = json.loads(line)
        if "degrees" in question:
            verdict = judge_degrees(question["degrees"], question["sequence_parallel"])
        else:
            world, variables = question["world_size"], question.get("environment", {})
            verdict = judge(question["arguments"], world, variables, question.get("capability") or 9.0)
        answers.write(json.dumps(asdict(verdict), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
