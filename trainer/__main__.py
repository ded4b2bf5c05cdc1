"""`python -P -m autoconfig.trainer --job job.json [--output DIR]`, one process per rank.

torchrun starts them with PYTHONSAFEPATH=1.

Exit codes: specs/measurement.py. Nothing heavy is imported before the job was read.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.job import Job, read_job
from autoconfig.specs.measurement import ExitCode
from autoconfig.trainer.host.limits import leave_out_compiler, limit_process
from autoconfig.trainer.result_file import ResultFile, say


def main(arguments: list[str] | None = None) -> ExitCode:
    """Read the job, check what it needs, run it. Returns this process's exit code."""
    options = _options(arguments)
    try:
        job = read_job(options.job)
    except InputError as error:
        kind = "file" if isinstance(error, FileError) else "job"
        return _fail(ExitCode.BAD_JOB, f"bad {kind}: {error}")
    result = ResultFile(options.output or options.job.resolve().parent)
    if (full := _cannot_write(result)) is not None:
        return _fail(ExitCode.DISK, full)
    limit_process(job)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron-LM's order of kernels for tensor-parallel overlap
    warnings.simplefilter("ignore")  # megatron-core warns at import of everything optional that is not installed
    try:
        if job.device == "cpu":
            leave_out_compiler()
        import megatron.core  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        return _fail(ExitCode.MISSING_PACKAGE, f"{error}; install the training core: pip install 'megatron-autoconfig[train]'")
    if (missing := _missing_engine(job)) is not None:
        return _fail(ExitCode.MISSING_PACKAGE, missing)
    from autoconfig.trainer.process import run_process

    return run_process(job, result, options.peer_timeout)


def _cannot_write(result: ResultFile) -> str | None:
    """Rank 0 takes an old result away and tries the folder, before anything costs time."""
    if os.environ.get("RANK", "0") != "0":
        return None
    try:
        result.prepare()
    except OSError as error:
        return f"disk: {result.path.parent} cannot be written to: {error.strerror or error}"
    return None


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m autoconfig.trainer", description=__doc__, allow_abbrev=False)
    parser.add_argument("--job", type=Path, required=True, help="job.json (specs/schemas/job.schema.json)")
    parser.add_argument("--output", type=Path, help="folder of result.json; default: the folder of job.json")
    parser.add_argument(
        "--peer-timeout", type=_seconds, default=600.0, metavar="SECONDS", help="silence after which a rank is lost (600)"
    )
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text}: give 1 to 86,400 seconds")
    return value


def _missing_engine(job: Job) -> str | None:
    from autoconfig.trainer.host.cpu import transformer_engine_is_there

    if job.software == "transformer-engine" and not transformer_engine_is_there():
        return (
            "software transformer-engine needs the package transformer-engine, which is not installed: "
            "pip install 'megatron-autoconfig[gpu]', or run the job with software megatron-local"
        )
    return None


def _fail(code: ExitCode, message: str) -> ExitCode:
    """Every rank says why it ends: torchrun ends the others at the first that does, maybe before they come to speak."""
    rank = os.environ.get("RANK", "0")
    say(message if rank == "0" else f"rank {rank}: {message}")
    return code


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no waiting for process groups that hold a dead peer
