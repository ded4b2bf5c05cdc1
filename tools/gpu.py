"""`make gpu PART=kernels|ranks|sweep`: what a GPU is measured for, part by part, each in 8 minutes or less and resumable.

    python -P -m tools.gpu --part kernels|ranks|sweep [--budget 8m] [--output DIR] [--device cpu --set tiny]

kernels writes `DIR/<device>/kernels.json` (kernels.benchmark). ranks and sweep run jobs of autoconfig.trainer, each in
`DIR/<device>/<part>/<hash of the job>/` with job.json, result.json and its log; jobs that have a result are not run again.
`summary.json` beside them lists every job with its outcome, peak memory and seconds, and what the driver said meanwhile.
`--device cpu --set tiny` does the same with small models on a CPU. Exit codes: 0 done or stopped at the budget, 1 a job
crashed, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autoconfig.kernels import benchmark, nvml
from autoconfig.kernels.bench.device import BenchDevice, find_device, software
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import write_text
from autoconfig.specs.import_path import with_import_path
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.measurement import RESULT_FILE, ExitCode, Measurement, read_measurement
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Workload

MICROBATCHES_PER_STAGE = 2
"""Micro-batches of an emulated rank over pipeline stages: enough that the first stage holds all that it ever holds."""
RECOMPUTE = ("selective:core_attn", "full:uniform:1", "none")
"""Most useful first: `none` of the large models is often out of memory, which is a result too."""


@dataclass(frozen=True)
class Case:
    """One model and plan whose ranks are emulated; `gpus` sets dp."""

    model: str
    gpus: int
    plan: str
    seq_length: int


CASES = (
    Case("gpt3-175b", 1024, "tp=8,pp=8,mbs=1,sp=1", 2048),
    Case("gpt3-175b", 1024, "tp=8,pp=16,mbs=1,sp=1", 2048),
    Case("gpt3-175b", 1024, "tp=4,pp=16,mbs=1,sp=1", 2048),
    Case("llama3-70b", 64, "tp=4,pp=4,mbs=1,sp=1", 8192),
    Case("llama3-70b", 64, "tp=8,pp=2,mbs=1,sp=1", 8192),
    Case("llama3-8b", 8, "tp=1,pp=1,mbs=1", 8192),
    Case("mixtral-8x7b", 64, "tp=1,pp=4,ep=8,mbs=1", 4096),
)
TINY_CASES = (Case("gpt3-126m", 4, "tp=1,pp=2,mbs=1", 64),)
NUMERICS = Numerics(precision="bf16", attention_dropout=0.0, hidden_dropout=0.0)
SWEEP_MODEL, SWEEP_SEQ_LENGTH = "gpt3-1.7b", 2048
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
TINY_LIMIT_BYTES = 16 * 2**20


def tiny(model: ModelSpec) -> ModelSpec:
    """Two layers, so that a CPU runs it in seconds."""
    sizes = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4, "num_query_groups": 4}
    return model.replace(name=f"tiny {model.name}", **sizes, kv_channels=16, vocab_size=512)


Series = list[tuple[str, Job]]
"""Jobs by name."""


def rank_jobs(device: str, software: str, *, small: bool) -> Series:
    """First and last stage of every case, by recomputation: the first rank of each (rank order tp-cp-ep-dp-pp, Megatron's
    parallel_state.py)."""
    emulated = partial(Job, numerics=NUMERICS, device=device, software=software, mode="emulate", steps=2, warmup_steps=1)
    jobs = []
    for recompute in RECOMPUTE[: 2 if small else None]:
        for case in TINY_CASES if small else CASES:
            model = tiny(load_model(case.model)) if small else load_model(case.model)
            plan = parse_plan(f"{case.plan},recompute={recompute}", case.gpus)
            stage_layers(model, plan)
            batch = MICROBATCHES_PER_STAGE * plan.pp * plan.mbs * plan.dp
            work = Workload(seq_length=case.seq_length, global_batch_size=batch)
            for stage in sorted({0, plan.pp - 1}):
                job = emulated(model=model, plan=plan, workload=work, rank=stage * plan.tp * plan.cp * plan.dp)
                jobs.append((f"{model.name} {plan} stage {stage}", job))
    return jobs


def sweep_series(device: str, software: str, *, small: bool) -> Iterator[Series]:
    """By recomputation: jobs of rising micro-batch on one GPU; the first that does not fit ends its series."""
    model, limit = (tiny(load_model(SWEEP_MODEL)), TINY_LIMIT_BYTES) if small else (load_model(SWEEP_MODEL), None)
    length, steps, warmup = (64, 2, 1) if small else (SWEEP_SEQ_LENGTH, 5, 2)
    timed = partial(Job, model=model, numerics=NUMERICS, device=device, software=software, device_memory_bytes=limit)
    for recompute in RECOMPUTE:
        series = []
        for mbs in MICRO_BATCHES:
            plan = parse_plan(f"tp=1,pp=1,mbs={mbs},recompute={recompute}", 1)
            work = Workload(seq_length=length, global_batch_size=2 * mbs)
            series.append((f"{model.name} {plan}", timed(plan=plan, workload=work, steps=steps, warmup_steps=warmup)))
        yield series


ROOT = Path(__file__).resolve().parents[1]
PARTS = ("kernels", "ranks", "sweep")
JOB_LIMIT_S = 240.0
GRACE_S = 15.0
MIN_S = 20.0
FINAL = ("ran", "oom")
WATCHED = ("sm_clock_mhz", "power_w", "temperature_c")
WATCH_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        torch = benchmark.load_torch()
        device = find_device(torch, options.device, 1)
        folder = options.output / device.id
        folder.mkdir(parents=True, exist_ok=True)
        if options.part == "kernels":
            own = ["--output", str(folder / "kernels.json"), "--device", options.device, "--budget", f"{options.budget}s"]
            return benchmark.main([*own, *(["--set", options.set_name] if options.set_name else [])])
        return Jobs(torch, device, folder / options.part, options.budget).run(options.part, small=options.set_name == "tiny")
    except KeyboardInterrupt:
        benchmark.say("interrupted: run the same command again to go on")
        return benchmark.INTERRUPTED
    except (InputError, OSError) as error:
        benchmark.say(f"error: {error}")
        return benchmark.BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -P -m tools.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--part", choices=PARTS, required=True)
    result.add_argument("--budget", type=benchmark.duration, default=470.0, metavar="TIME", help="like 8m; default 470s")
    result.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "gpu", metavar="DIR")
    result.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cuda")
    result.add_argument("--set", choices=("quick", "cpu", "tiny"), dest="set_name", help="tiny: small shapes and models")
    return result


class Jobs:
    """Runs jobs one after the other until the budget ends."""

    def __init__(self, torch: Any, device: BenchDevice, folder: Path, budget_s: float) -> None:
        self.device, self.folder, self.deadline = device, folder, time.monotonic() + budget_s
        self.software = "transformer-engine" if device.type == "cuda" and find_spec("transformer_engine") else "megatron-local"
        self.versions, self.left, self.crashed = software(torch), 0, 0
        self.rows: list[dict[str, Any]] = []
        folder.mkdir(exist_ok=True)

    def run(self, part: str, *, small: bool) -> int:
        before = self._driver()
        try:
            kinds: dict[str, Any] = {"device": self.device.type, "software": self.software, "small": small}
            for series in [[job] for job in rank_jobs(**kinds)] if part == "ranks" else sweep_series(**kinds):
                for name, job in series:
                    outcome = self._one(name, job)
                    if outcome is not None and outcome.status == "oom":
                        break
        finally:
            self._write_summary(part, before)
        left = f", {self.left} left: run the same command again" if self.left else ""
        benchmark.say(f"{len(self.rows)} results in {self.folder}{left}")
        return 1 if self.crashed else 0

    def _one(self, name: str, job: Job) -> Measurement | None:
        """The job's outcome, run where there is none yet; None where the budget is spent or it left no result."""
        place = self.folder / job.content_hash[:16]
        measurement = self._outcome(place, job)
        if measurement is None:
            remaining = self.deadline - time.monotonic()
            if remaining < MIN_S:
                self.left += 1
                return None
            place.mkdir(exist_ok=True)
            write_text(place / "job.json", job_text(job))
            with self._watched(place):
                code = self._process(place, min(remaining, JOB_LIMIT_S))
            measurement = self._outcome(place, job)
            if measurement is None:
                lines = (place / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
                benchmark.say(", ".join([f"no result: {name}: exit code {code}", *(line[:200] for line in lines[-1:])]))
                self.crashed += 1
                return None
        self.rows.append(_row(name, job, measurement))
        peak = f"{measurement.peak_allocated_bytes / 2**30:.3f} GiB" if measurement.peak_allocated_bytes else "-"
        step = f"{measurement.step_seconds:.3f} s" if measurement.step_seconds else "-"
        benchmark.say(f"{measurement.status:>6}  {peak:>10}  {step:>9}  {name}")
        return measurement

    def _outcome(self, place: Path, job: Job) -> Measurement | None:
        try:
            measurement = read_measurement(place / RESULT_FILE)
        except InputError:
            return None
        return measurement if measurement.status in FINAL and measurement.job_hash == job.content_hash else None

    def _process(self, place: Path, limit_s: float) -> int:
        """The training core with its output in log.txt; its exit code. Raises KeyboardInterrupt with the process ended."""
        command = [sys.executable, "-P", "-m", "autoconfig.trainer", "--job", str(place / "job.json")]
        environment = {**with_import_path({**os.environ}), "PYTHONSAFEPATH": "1"}
        with (place / "log.txt").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=place)
            try:
                return process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return int(ExitCode.TERMINATED)
            except BaseException:
                _end(process)
                raise

    @contextlib.contextmanager
    def _watched(self, place: Path) -> Iterator[None]:
        """Clock, power and temperature while the job runs, in driver.csv beside it."""
        over = threading.Event()

        def watch() -> None:
            with (place / "driver.csv").open("w", encoding="utf-8") as out:
                print("seconds", *WATCHED, sep=",", file=out)
                start = time.monotonic()
                while not over.wait(WATCH_S):
                    values = self._driver() or {}
                    print(f"{time.monotonic() - start:.1f}", *(values.get(name) for name in WATCHED), sep=",", file=out)

        watcher = threading.Thread(target=watch)
        if self.device.type == "cuda":
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if watcher.ident is not None:
                watcher.join()

    def _driver(self) -> dict[str, Any] | None:
        return nvml.sample(self.device.uuid) if self.device.type == "cuda" else None

    def _write_summary(self, part: str, before: dict[str, Any] | None) -> None:
        body = {
            "schema_version": 1,
            "part": part,
            "device": self.device.as_json(),
            "software": self.versions,
            "stack": self.software,
            "transformer_engine_confirmed": self.software == "transformer-engine",
            "driver_before": before,
            "driver_after": self._driver(),
            "complete": not self.left and not self.crashed,
            "jobs": self.rows,
        }
        write_text(self.folder / "summary.json", json.dumps(body, indent=1) + "\n")


def _row(name: str, job: Job, measurement: Measurement) -> dict[str, Any]:
    return {
        "name": name,
        "job_hash": measurement.job_hash,
        "plan": str(job.plan),
        "rank": job.rank,
        "status": measurement.status,
        "peak_allocated_bytes": measurement.peak_allocated_bytes,
        "peak_reserved_bytes": max((r.peak_reserved_bytes or 0 for r in measurement.ranks), default=0) or None,
        "step_seconds": measurement.step_seconds,
        "step_seconds_spread": measurement.step_seconds_spread,
        "attention_kernel": measurement.attention_kernel,
        "versions": measurement.versions,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
