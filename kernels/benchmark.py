"""`python -P -m autoconfig.kernels.benchmark --output FILE`: measure this machine's operators for the time model.

Writes an operator table (specs.operator_table) with everything that was measured and what the driver said meanwhile. The file
is whole at any moment: running the same command again goes on where it stopped. docs/kernels.md says what each number means.

    python -P -m autoconfig.kernels.benchmark --output gpu.json         a GPU, at most 8 minutes
    python -P -m autoconfig.kernels.benchmark --output cpu.json         a CPU, 15 seconds, with 2 gloo ranks (--ranks 1: 10)
    torchrun --nproc-per-node 8 -m autoconfig.kernels.benchmark --collectives --output gpu.json  adds collectives to the file

Exit codes: 0 measured (or stopped at the budget with a usable table), 2 the input cannot be used or the file not written,
130 Ctrl-C or SIGTERM (what was measured is kept).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from autoconfig.kernels.bench.collectives import CollectiveBench
from autoconfig.kernels.bench.compute import ComputeBench, default_precisions
from autoconfig.kernels.bench.device import BenchDevice, find_device, software, summary
from autoconfig.kernels.bench.state import Results
from autoconfig.kernels.bench.table import SETS
from autoconfig.kernels.nvml import slowed
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.files import check_output_path
from autoconfig.specs.hardware.operator_table import PRECISIONS, local_folder
from autoconfig.specs.import_path import with_import_path

BAD_INPUT, INTERRUPTED = 2, 130
COLLECTIVES_SHARE = 0.3
GRACE_S = 90.0
"""More than their budget that the ranks of the collectives get before they are ended."""
INSTALL = "pip install 'megatron-autoconfig[train]' (GPU: torch for your CUDA first)"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -P -m autoconfig.kernels.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--output", type=Path, metavar="FILE", help="operator table to write, .json; default: where --gpu local looks for it"
    )
    result.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU where torch sees one")
    result.add_argument("--set", choices=tuple(SETS), dest="set_name", help="sizes; default: quick on a GPU, cpu on a CPU")
    result.add_argument("--budget", type=duration, default=480.0, metavar="TIME", help="like 8m, 90s; default 8m")
    result.add_argument("--precision", type=precisions, metavar="LIST", help=f"comma-separated: {', '.join(PRECISIONS)}")
    result.add_argument("--threads", type=count, default=1, metavar="N", help="CPU: cores of one rank; default 1")
    result.add_argument(
        "--ranks", type=count, metavar="N", help="collectives over N ranks, 1: none; default: all GPUs, or 2 ranks of a CPU"
    )
    result.add_argument("--collectives", action="store_true", help="this process is a rank of torchrun: collectives only")
    result.add_argument("--fresh", action="store_true", help="start anew instead of going on with FILE")
    return result


def duration(text: str) -> float:
    """Seconds of `8m`, `90s` or `90`. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|m|h|)", text.strip().lower())
    seconds = float(found[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time like 8m or 90s, at most 24h")
    return seconds


def count(text: str) -> int:
    """A whole number from 1 to 4096. Raises ArgumentTypeError."""
    if not re.fullmatch(r"\d{1,4}", text) or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 to 4096")
    return int(text)


def precisions(text: str) -> tuple[str, ...]:
    """`bf16,fp8`. Raises ArgumentTypeError."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not names or any(name not in PRECISIONS for name in names):
        raise argparse.ArgumentTypeError(f"{text!r}: give a list of {', '.join(PRECISIONS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code."""
    options = parser().parse_args(arguments)
    try:
        if not options.collectives and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was measured is kept
        return _run(load_torch(), options)
    except KeyboardInterrupt:
        say("interrupted: run the same command again to go on")
        return INTERRUPTED
    except InputError as error:
        say(f"error: {error}")
        return BAD_INPUT


def load_torch() -> Any:
    """The torch module. Raises InputError where it, or scipy for the tables, is not installed."""
    try:
        importlib.import_module("scipy")
        return importlib.import_module("torch")
    except ImportError as error:
        raise InputError(
            f"torch and scipy cannot be imported by {sys.executable} ({error}): {INSTALL}, or run this with a Python that has "
            "it and hand the file to autoconfig with --gpu-table FILE"
        ) from error


def _ranks(options: argparse.Namespace, device: BenchDevice) -> int:
    ranks: int = device.count if device.type == "cuda" else min(device.count, 2)
    if options.ranks is not None:
        ranks = options.ranks
    if not options.collectives and device.type == "cuda" and ranks > device.count:
        raise InputError(f"--ranks {ranks}: this machine has {device.count} GPUs")
    return ranks


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be replaced: {error.strerror or error}") from error


def _run(torch: Any, options: argparse.Namespace) -> int:
    started = time.monotonic()
    if options.collectives and "RANK" not in os.environ:
        raise InputError(
            "--collectives runs under torchrun: torchrun --nproc-per-node N -m autoconfig.kernels.benchmark --collectives ...; "
            "or leave it out and say --ranks N"
        )
    device = find_device(torch, options.device, options.threads)
    torch.set_num_threads(options.threads)
    ranks = _ranks(options, device)
    path = _output(options, device)
    set_name = options.set_name or ("quick" if device.type == "cuda" else "cpu")
    results = Results(path, device, SETS[set_name], set_name, software(torch))
    if options.fresh and not options.collectives:
        _remove(path)
    found = results.resume()
    if options.collectives:
        return _rank(torch, options, results, started)
    say(f"{device.reported_name} as {device.id}" + (f"; going on with {found:,} measurements of {path}" if found else ""))
    share = COLLECTIVES_SHARE if ranks > 1 else 0.0
    done = _compute(torch, options, results, started + (1.0 - share) * options.budget)
    code = 0
    if ranks > 1:
        code, whole = _collectives(options, results, ranks, options.budget - (time.monotonic() - started))
        done = done and whole
    return code or _report(results, done)


def _output(options: argparse.Namespace, device: BenchDevice) -> Path:
    if options.output is not None:
        check_output_path(options.output, (".json",))
        return options.output
    folder = local_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder} cannot be made ({error.strerror}); say --output FILE") from error
    return folder / f"{device.id}.json"


def _compute(torch: Any, options: argparse.Namespace, results: Results, deadline: float) -> bool:
    device = torch.device(results.device.type)
    cuda = device.type == "cuda"
    wanted = options.precision or default_precisions(device.type, results.device.compute_capability)
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = "tf32" in wanted
    results.sample_driver("before")
    runner = ComputeBench(torch, device, results, wanted)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            done = runner.run(deadline, _progress)
    finally:
        results.sample_driver("after")
        saved = results.save(complete=False)
        if sys.stderr.isatty():
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    if not saved:
        raise InputError("the budget ended before copies and GEMMs were measured: give more with --budget")
    return done


def _collectives(options: argparse.Namespace, results: Results, ranks: int, budget: float) -> tuple[int, bool]:
    """Run torchrun on this machine, whose rank 0 adds to the file; (exit code, whether all was measured)."""
    if budget <= 0:
        results.missing.append("collectives")
        return 0, False
    files = ("--output", results.path, "--device", results.device.type, "--set", results.provenance["set"])
    limits = ("--budget", f"{budget:.3f}s", "--threads", options.threads)
    torchrun = (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    command = [str(word) for word in (*torchrun, "-m", "autoconfig.kernels.benchmark", "--collectives", *files, *limits)]
    environment = {
        **with_import_path({**os.environ}),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": str(options.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            say(f"collectives over {ranks} ranks")
            _, errors = process.communicate(timeout=budget + GRACE_S)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                say(f"error: the ranks of the collectives did not end within {budget + GRACE_S:.0f} s and were stopped")
                return 1, False
            raise
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.startswith("error: ")] or errors.strip().splitlines()[-1:]
        say(f"error: collectives failed: {(lines or ['no message'])[0].removeprefix('error: ')}")
        return BAD_INPUT if any(line.startswith("error: ") for line in errors.splitlines()) else 1, False
    results.resume()
    return 0, not results.missing


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM to torchrun and its ranks, a session of their own; then SIGKILL to whatever of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _rank(torch: Any, options: argparse.Namespace, results: Results, started: float) -> int:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if results.device.type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ["WORLD_SIZE"]) < 2:
        raise InputError("collectives need at least 2 ranks: torchrun --nproc-per-node 2 ...")
    if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != int(os.environ["WORLD_SIZE"]):
        raise InputError("collectives are measured inside one machine: torchrun --nnodes 1")
    if not results.points:
        raise InputError(f"{results.path} has no measurements yet: run it without --collectives first")
    results.missing = [group for group in results.missing if group != "collectives"]
    job = CollectiveBench(torch, device, results.sizes)
    try:
        for kind, ranks, size in job.points():
            if job.agree(float(time.monotonic() - started > options.budget)):
                results.missing.append("collectives")
                break
            key = (kind, ranks, size)
            if job.agree(float(results.has("collectives", key))):
                continue
            samples = job.time(kind, size, ranks)
            if job.rank == 0:
                results.add("collectives", key, summary(samples))
        if job.rank == 0:
            results.sample_driver("after")
            results.save(complete=False)
    finally:
        job.close()
    return 0


def _report(results: Results, done: bool) -> int:
    results.save(complete=done)
    table = results.table(complete=done) or {}
    for precision, gemm in table.get("gemm", {}).items():
        error = gemm.get("held_out")
        beside = f"; {error['rows']} shapes beside the grid within {error['table']['median']:.1f} % (median)" if error else ""
        say(f"GEMM {precision}: best {gemm['peak_flops_per_s'] * np.max(gemm['efficiency']) / 1e12:.4g} TFLOPS{beside}")
    say(f"copies: {table['copy_bytes_per_s'] / 1e9:.4g} GB/s read and written; launch {results.launch_s * 1e6:.3g} us")
    for line in results.skipped[:5]:
        say(f"not measured: {line}")
    for when in ("before", "after"):
        reasons = slowed(results.provenance[f"driver_{when}"] or {})
        if reasons:
            say(f"warning: the driver reported {', '.join(reasons)} {when} the measurements: they are slower than this GPU is")
    if not done:
        say(f"stopped at the budget; not measured: {', '.join(results.missing)}. Run the same command again to go on")
    say(f"written to {results.path}")
    return 0


def _progress(group: str, number: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{number:,} of {total:,}  {group:<30}", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """A line for people, on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
