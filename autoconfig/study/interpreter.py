"""The interpreter that runs jobs: what it has, asked of itself."""

from __future__ import annotations

import functools
import subprocess

from autoconfig.profiler.errors import RunnerError

TOO_FEW_GPUS = 14
HAS_TORCH = f"""
import importlib.util as u, sys
if not all(map(u.find_spec, ("torch", "megatron.core"))): sys.exit(1)
if int(sys.argv[1]):
    import torch
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    print(found)
    sys.exit({TOO_FEW_GPUS} if found < int(sys.argv[1]) else 0)
"""
"""Asked of the jobs' interpreter, with the number of GPUs that a job needs."""
PYTHON_S = 120.0
"""What its answer may take: torch lies on a busy file system, maybe."""


def asked(python: str, question: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the interpreter answers to a short program. Raises RunnerError where it cannot be started."""
    try:
        command = [python, "-c", question, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PYTHON_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(f"--python {python} cannot be started: {getattr(error, 'strerror', None) or error}") from error


@functools.cache
def check_python(python: str, gpus: int) -> None:
    """The interpreter has torch and megatron-core, and finds so many GPUs. Raises RunnerError; asked once in a process."""
    done = asked(python, HAS_TORCH, str(gpus))
    if done.returncode == TOO_FEW_GPUS:
        found = int(done.stdout.split()[-1])
        fewer = f"--gpus-here {found} emulates ranks of each plan on one GPU" if found else "--device cpu measures on this CPU"
        raise RunnerError(
            f"no job can be measured here: torch finds {found or 'no'} usable GPU{'s' * (found > 1)}, jobs need {gpus}; "
            f"{fewer}, --runner slurm asks a cluster"
        )
    if done.returncode:
        raise RunnerError(
            f"{python} has no torch with megatron-core: pip install 'megatron-autoconfig[train]', or name another with --python"
        )
