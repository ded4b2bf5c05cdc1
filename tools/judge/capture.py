"""What a launch script of ours hands to Megatron: the script runs under a PATH whose launchers only print what they are given.

Only scripts that this project wrote are ever run; `autoconfig check` reads foreign scripts without running them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

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
    """torchrun's own arguments."""
    arguments: list[str]
    """What follows the training program."""
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
    program = next(i for i, word in enumerate(seen["arguments"]) if word.endswith("pretrain_gpt.py"))
    return Launch(
        launcher=seen["arguments"][:program], arguments=seen["arguments"][program + 1 :], environment=seen["environment"]
    )


def _program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
