"""Results of `make gpu` beside their predictions: those of `search` on the same device without a calibration of its own.

benchmarks/gpu/<device>/kernels.json                     the operator table of a device that the catalogue does not have
benchmarks/gpu/<device>/ranks|sweep|runs/<name>/{job,result}.json
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoconfig.core.emulate import COMPUTE_PARTS, micro_batch_seconds
from autoconfig.specs.errors import GIB, FileError, InputError
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of, gpu_ids, load_gpu
from autoconfig.specs.hardware.operator_table import gpu_of_table, read_operator_table
from autoconfig.specs.job import Job, pipeline_stage, read_job
from autoconfig.specs.measurement import RESULT_FILE, Measurement, read_measurement
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import load_stack
from autoconfig.training.price import report_plan

PARTS = ("ranks", "sweep", "runs")
"""`runs`: jobs of your own, one folder each with job.json and the result.json that torchrun left."""
COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"
"""Where a checkout keeps them; an installed package has none."""


@dataclass(frozen=True, kw_only=True)
class GpuRun:
    """One job: an emulated rank (seconds of one micro-batch's compute) or a whole run (seconds of a step)."""

    device: str
    part: str
    model: str
    plan: str
    rank: int | None
    status: str
    measured_gib: float | None
    predicted_gib: float
    limit_gib: float
    measured_seconds: float | None
    predicted_seconds: float | None
    """None for emulated stages but the last: the time model prices the stage that decides, as a rule the last one."""

    @property
    def agrees(self) -> bool:
        return (self.predicted_gib <= self.limit_gib) == (self.status == "ran")


def gpu_runs(folder: Path | None) -> tuple[GpuRun, ...]:
    """Every result below `folder`; None: those of this checkout, where there are some. Raises InputError for a folder that is
    not there, a device without operator table, and files that cannot be read."""
    if folder is None:
        return gpu_runs(COMMITTED) if COMMITTED.is_dir() else ()
    if not folder.is_dir():
        raise FileError(f"--gpu-runs {str(folder)[:200]!r} is no folder; make gpu PART=ranks writes benchmarks/gpu")
    runs = []
    for device in sorted(path for path in folder.iterdir() if path.is_dir()):
        results = [(part, path) for part in PARTS for path in sorted((device / part).glob(f"*/{RESULT_FILE}"))]
        if results:
            gpu = _gpu(device)
            runs += [run for part, path in results for run in _run(device.name, part, path, gpu)]
    return tuple(runs)


def _gpu(folder: Path) -> GpuSpec:
    if folder.name in gpu_ids():
        return load_gpu(folder.name)
    table = folder / "kernels.json"
    if table.exists():
        return gpu_of_table(read_operator_table(table), table)
    raise InputError(
        f"{str(folder)[:200]} has no kernels.json, and the catalogue has no GPU of that name; make gpu PART=kernels writes it"
    )


def _run(device: str, part: str, path: Path, gpu: GpuSpec) -> Iterator[GpuRun]:
    job, measurement = read_job(path.with_name("job.json")), read_measurement(path)
    if measurement.status not in ("ran", "oom"):
        return
    if measurement.job_hash != job.content_hash:
        raise InputError(f"{str(path)[:200]} is not the result of the job.json beside it; remove the folder and run make gpu")
    scenario = scenario_of(job, gpu)
    report = report_plan(scenario, job.plan)
    emulated = job.mode == "emulate" and job.rank is not None
    stage = pipeline_stage(job.plan, job.rank) if emulated and job.rank is not None else None
    peak = report.peak_bytes if stage is None else report.stages[stage].peak_bytes
    seconds: float | None = report.step_seconds
    if stage is not None:
        seconds = sum(report.time_parts.get(name, 0.0) for name in COMPUTE_PARTS) / job.num_microbatches
        seconds = seconds if stage == job.plan.pp - 1 else None
    yield GpuRun(
        device=device,
        part=part,
        model=job.model.name,
        plan=str(job.plan),
        rank=job.rank,
        status=measurement.status,
        measured_gib=max(r.peak_allocated_bytes for r in measurement.ranks) / GIB if measurement.status == "ran" else None,
        predicted_gib=peak / GIB,
        limit_gib=(job.device_memory_bytes or report.limit_bytes) / GIB,
        measured_seconds=_measured_seconds(job, scenario, measurement),
        predicted_seconds=seconds,
    )


def scenario_of(job: Job, gpu: GpuSpec) -> Scenario:
    """The question that the job answers."""
    local = "megatron-local-flash" if job.attention_kernel == "flash" else "megatron-local"
    return Scenario(
        model=job.model,
        cluster=cluster_of(gpu, job.plan.world_size),
        numerics=job.numerics,
        software=load_stack(local if job.software == "megatron-local" else job.software),
        workload=job.workload,
    )


def _measured_seconds(job: Job, scenario: Scenario, measurement: Measurement) -> float | None:
    if measurement.status != "ran":
        return None
    if job.mode == "emulate" and job.rank is not None:
        return micro_batch_seconds(scenario, job.plan, job.rank, measurement.ranks[0])
    return measurement.step_seconds
