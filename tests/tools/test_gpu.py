"""`make gpu`: the jobs it lists are legal, and its parts run, resume and stop on a CPU with small models."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import ExitCode, read_measurement
from autoconfig.specs.models.model_catalogue import load_model

from autoconfig.accuracy.memory import gpu_runs
from autoconfig.accuracy.sheets import gpu_sheet
from tools import gpu

ROOT = Path(__file__).parents[2]
needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None,
    reason="torch and megatron-core are not installed",
)


def test_ranks_cover_the_named_plans_first_middle_and_last() -> None:
    jobs = [job for _, job in gpu.rank_jobs("cuda", "megatron-local", small=False)]
    assert len({job.content_hash for job in jobs}) == len(jobs) == 3 * (3 * 3 + 3 + 2 + 1 + 3)
    names = {(job.model.name, job.plan.tp, job.plan.pp) for job in jobs}
    assert {("gpt3-175b", 8, 8), ("gpt3-175b", 8, 16), ("gpt3-175b", 4, 16), ("llama3-70b", 4, 4), ("llama3-70b", 8, 2),
            ("llama3-8b", 1, 1), ("mixtral-8x7b", 1, 4)} == names  # fmt: skip
    for job in jobs:
        assert job.rank is not None and job.numerics.precision == "bf16" and job.num_microbatches == 2 * job.plan.pp
        stage = job.rank // (job.plan.tp * job.plan.cp * job.plan.dp)
        assert stage in (0, job.plan.pp // 2, job.plan.pp - 1)
    assert {job.plan.ep for job in jobs if job.model.is_moe} == {8}


def test_the_sweep_rises_in_micro_batch_for_each_recomputation() -> None:
    series = list(gpu.sweep_series("cuda", "megatron-local", small=False))
    assert len(series) == 3
    for jobs in series:
        assert [job.plan.mbs for _, job in jobs] == list(gpu.MICRO_BATCHES)
        assert len({str(job.plan.recompute) for _, job in jobs}) == 1 and {job.num_microbatches for _, job in jobs} == {2}
    assert load_model(gpu.SWEEP_MODEL).num_layers == series[0][0][1].model.num_layers


@needs_megatron
def test_a_sweep_ends_each_series_out_of_memory_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(gpu, "MICRO_BATCHES", (1, 64, 128))
    monkeypatch.setattr(gpu, "RECOMPUTE", ("none",))
    command = ["--part", "sweep", "--device", "cpu", "--set", "tiny", "--output", str(tmp_path)]
    assert gpu.main([*command, "--budget", "1s"]) == 0 and "3 left" in capsys.readouterr().err
    assert gpu.main(command) == 0
    summary = json.loads(next(tmp_path.glob("*/sweep/summary.json")).read_text())
    assert [row["status"] for row in summary["jobs"]] == ["ran", "oom"] and summary["complete"]
    assert summary["jobs"][0]["peak_allocated_bytes"] > 0 and summary["jobs"][0]["step_seconds"] > 0
    assert summary["stack"] == "megatron-local" and not summary["transformer_engine_confirmed"]
    monkeypatch.setattr(gpu.Jobs, "_process", lambda *_: pytest.fail("a job with a result was run again"))
    assert gpu.main(command) == 0


@needs_megatron
def test_validate_reads_what_a_cpu_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, emulated ranks and runs of a CPU: all predicted, the same plan once to fit and once not."""
    monkeypatch.setattr(gpu, "MICRO_BATCHES", (1, 64))
    monkeypatch.setattr(gpu, "RECOMPUTE", ("none",))
    for part in gpu.PARTS:
        command = ["--part", part, "--device", "cpu", "--set", "tiny", "--output", str(tmp_path)]
        assert gpu.main(command) == 0
    runs = gpu_runs(tmp_path)
    assert len(runs) == 2 + 2 and {run.part for run in runs} == {"ranks", "sweep"}
    assert all(run.agrees for run in runs)
    places = [path for part in ("ranks", "sweep") for path in sorted(tmp_path.glob(f"*/{part}/*/result.json"))]
    results = [read_measurement(path) for path in places]
    for run, found in zip(runs, results, strict=True):  # no bar: a CPU's kernels keep other tensors than a GPU's
        print(f"{run.plan}: {run.measured_gib} GiB, {run.predicted_gib} predicted")
        ran = run.status == "ran"
        assert run.measured_gib == (found.ranks[0].peak_allocated_bytes / 2**30 if ran else None)
        assert (run.measured_seconds is not None and run.measured_seconds > 0) == ran
    assert sum(run.predicted_seconds is not None for run in runs) == 1 + 2
    lines = gpu_sheet(runs).lines
    assert len(lines) == 4 and sum("out of memory" in line for line in lines) == 1 and all("right" in line for line in lines)


def test_validate_without_results_or_with_a_strange_folder(tmp_path: Path) -> None:
    assert gpu_runs(tmp_path) == ()
    with pytest.raises(InputError, match="is no folder"):
        gpu_runs(tmp_path / "none")
    (tmp_path / "some-gpu" / "ranks" / "0").mkdir(parents=True)
    (tmp_path / "some-gpu" / "ranks" / "0" / "result.json").write_text("{}")
    with pytest.raises(InputError, match="PART=kernels"):
        gpu_runs(tmp_path)


@needs_megatron
def test_a_job_without_a_result_is_named_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    def process(_: gpu.Jobs, place: Path, limit_s: float) -> int:
        (place / "log.txt").write_text("trainer: no such thing\n")
        return ExitCode.CRASHED

    monkeypatch.setattr(gpu.Jobs, "_process", process)
    assert gpu.main(["--part", "ranks", "--device", "cpu", "--set", "tiny", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("no result: tiny gpt3-126m") == 4 and "exit code 1, trainer: no such thing" in said


@pytest.mark.parametrize(("part", "python", "said"), [("kernels", "/no/such/python", "make gpu needs a Python with torch")])
def test_make_says_what_it_needs(part: str, python: str, said: str) -> None:
    command = ["make", "-s", "gpu", f"PART={part}", f"GPU_PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and said in done.stderr
