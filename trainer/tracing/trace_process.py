"""The process behind `autoconfig trace`: a request on standard input, one line of JSON per traced rank on standard output.

    python -P -m autoconfig.trainer.trace_process < request.json

The first line is `{"versions": {...}}`, the others are RankTraces (specs/job.py). What is wrong with the request goes to
standard error in one line, with the exit codes of specs/measurement.py.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import platform
import sys
import warnings
from typing import Any

from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.job import MAX_PROCESSES, TraceRequest, read_request
from autoconfig.specs.measurement import ExitCode
from autoconfig.trainer.host.limits import leave_out_compiler, limit_memory


def main() -> int:
    """Trace every rank of the request."""
    try:
        return _trace(read_request(sys.stdin.read()))
    except ImportError as error:
        name = (error.name or str(error)).split(".")[0]
        print(f"{name} cannot be imported ({error}); pip install 'megatron-autoconfig[train]'", file=sys.stderr)
        return ExitCode.MISSING_PACKAGE
    except AutoconfigError as error:
        print(error, file=sys.stderr)
        return ExitCode.BAD_JOB


def _trace(request: TraceRequest) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # fake tensors compute nothing
    limit_memory(MAX_PROCESSES)
    warnings.simplefilter("ignore")
    leave_out_compiler()  # compiled kernels are stood in for
    import megatron.core
    import torch
    from autoconfig.trainer.tracing.trace import trace_rank

    gc.freeze()  # what is imported stays: only among what a trace makes is there garbage to look for
    versions = {"python": platform.python_version(), "torch": torch.__version__, "megatron-core": megatron.core.__version__}
    _say({"versions": versions})
    for rank in request.ranks:
        _say(dataclasses.asdict(trace_rank(request, rank)))
    gc.freeze()  # nor is the end of the process the time to look for it
    return ExitCode.RAN


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
