"""`autoconfig calibrate` and `--calibration`: a user's runs, bad files, the shipped files; this machine's rates."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.local_gpu import cpu_name
from autoconfig.specs.hardware.operator_table import COMMAND, KIND, local_folder
from autoconfig.specs.scenario import DOCUMENTED_DEFAULTS, NAMES, Calibration
from autoconfig.time_model.predict import estimate_step_time
from tables import tabled, write

from autoconfig.calibration.calibrate import calibrate_file
from autoconfig.calibration.observe import Observation, Run, observe, predicted_seconds, refine, run_of
from autoconfig.planning.calibration_file import named_calibration, parse, read_calibration, shipped, to_json, write_calibration
from autoconfig.runs.training_row import read_case
from autoconfig.training.confidence import Confidence, shipped_bands
from validation.fit.steps import published_calibration
from validation.published import published_rows
from validation.sheets.bands import banded, bands_of, strangers_of_one_node

SLOWER = 1.2
ROWS = [row for row in published_rows() if row["source"] == "Narayanan2021-Table1"]


def as_measured(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """A simulated cluster: our uncalibrated prediction, 20 % slower, within 1 % of noise."""
    noise = np.random.default_rng(7).normal(0, 0.01, len(rows))
    cases = [read_case(row) for row in rows]
    steps = [predicted_seconds(case.scenario, case.plan) * SLOWER * math.exp(e) for case, e in zip(cases, noise, strict=True)]
    return [
        row | {"id": f"own-{n}", "metric_step_s": f"{step:.6g}", "metric_tflops_per_gpu": ""}
        for n, (row, step) in enumerate(zip(rows, steps, strict=True))
    ]


def mean_error(rows: list[dict[str, str]], name: str | None) -> float:
    calibration = named_calibration(name)
    cases = [read_case(row) for row in rows]
    found = [predicted_seconds(replace(case.scenario, calibration=calibration), case.plan) for case in cases]
    return float(np.mean([abs(p / float(row["metric_step_s"]) - 1) for p, row in zip(found, rows, strict=True)]))


@pytest.mark.parametrize("base", ["none", None])
def test_three_rows_halve_the_error_on_the_others(base: str | None, autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    runs = as_measured(ROWS)
    source, target = write(tmp_path / "runs.csv", runs[:3]), tmp_path / "mine.json"
    options = ["--calibration", base] if base else []
    result = autoconfig.run("calibrate", str(source), "--output", str(target), *options)
    assert result.exit_code == 0, result.stderr
    assert mean_error(runs[3:], str(target)) < mean_error(runs[3:], base) / 2
    assert "3 runs" in result.stdout


def test_undetermined_factors_stay_and_are_named(tmp_path: Path) -> None:
    source = write(tmp_path / "runs.csv", as_measured(ROWS)[:3])
    found, count = calibrate_file(source, DOCUMENTED_DEFAULTS)
    assert count == 3
    (entry,) = found.entries
    assert "step" in entry.determined
    kept = [name for name in NAMES if name not in entry.determined]
    assert "moe" in kept
    assert entry.factors.moe == 1.0
    scenario = replace(read_case(ROWS[3]).scenario, calibration=found)
    text = Confidence.of(scenario, 1.0, 1.0).calibrated_on
    assert found.version in text and "not determined" in text
    assert all(name in text for name in kept if name != "moe")


def width(found: Calibration) -> float:
    confidence = Confidence.of(replace(read_case(ROWS[4]).scenario, calibration=found), 1.0, 1.0)
    return math.log(confidence.step_seconds_p95 / confidence.step_seconds_p5)


def test_own_runs_narrow_the_band_as_far_as_they_agree(tmp_path: Path) -> None:
    steady = as_measured(ROWS)
    three, _ = calibrate_file(write(tmp_path / "a.csv", steady[:3]))
    eight, _ = calibrate_file(write(tmp_path / "b.csv", steady[:8]))
    wild = [
        row | {"metric_step_s": str(float(row["metric_step_s"]) * math.exp(0.3 * (-1) ** n))} for n, row in enumerate(steady)
    ]
    loose, _ = calibrate_file(write(tmp_path / "c.csv", wild[:8]))
    assert width(eight) < 0.85 * width(three) < 0.85 * width(shipped())
    assert width(loose) > 1.2 * width(shipped())
    assert width(read_calibration_of(eight, tmp_path)) == pytest.approx(width(eight))
    assert all(entry.own is None for entry in shipped().entries)


@pytest.mark.parametrize("own", [
    {"runs": 0, "log_sd": 0.1, "degrees_of_freedom": 0}, {"runs": 3, "log_sd": -1, "degrees_of_freedom": 2},
    {"runs": 3, "log_sd": 0.1, "degrees_of_freedom": 9}, {"runs": 3, "log_sd": math.nan, "degrees_of_freedom": 2},
    {"runs": 3}, [], {"runs": math.inf, "log_sd": 0.1, "degrees_of_freedom": 1},
])  # fmt: skip
def test_absurd_own_runs_are_refused(own: object) -> None:
    data = to_json(shipped())
    data["entries"][0]["own"] = own
    with pytest.raises(InputError, match=r"own|malformed"):
        parse(data, "mine.json")


@pytest.mark.parametrize("part", ["factors", "log_sd"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 10**400])
def test_figures_of_a_calibration_are_plausible(part: str, value: float) -> None:
    data = to_json(shipped())
    data["entries"][0][part]["step"] = value
    with pytest.raises(InputError, match=r"mine\.json: (factor|log_sd|an entry)"):
        parse(data, "mine.json")


def test_versions_name_the_runs(tmp_path: Path) -> None:
    runs = as_measured(ROWS)
    first, _ = calibrate_file(write(tmp_path / "a.csv", runs[:3]))
    again, _ = calibrate_file(write(tmp_path / "b.csv", runs[:3]))
    other, _ = calibrate_file(write(tmp_path / "c.csv", runs[1:4]))
    assert first.version == again.version != other.version
    assert "-3-" in first.version
    write_calibration(first, tmp_path / "a.json")
    assert read_calibration(tmp_path / "a.json").version == first.version


def test_every_answer_names_the_calibration(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    question = ["--model", "22b", "--gpus", "8", "--gpu", "a100-80gb", "--software", "megatron-lm-2021"]
    mine, _ = calibrate_file(write(tmp_path / "runs.csv", as_measured(ROWS)[:3]), DOCUMENTED_DEFAULTS)
    write_calibration(mine, tmp_path / "mine.json")
    seconds = {}
    versions = {None: shipped().version, "none": "documented-defaults", str(tmp_path / "mine.json"): mine.version}
    for name, version in versions.items():
        options = ["--calibration", name] if name else []
        search = autoconfig.json("search", *question, *options, "--top", "1")
        assert search["calibration"] == version
        assert version in search["plans"][0]["confidence"]["calibrated_on"]
        assert version in autoconfig.run("search", *question, *options).stdout.replace("\n", "")
        explain = autoconfig.json("explain", *question, *options, search["plans"][0]["short"])
        assert explain["calibration"] == version
        assert explain["step_seconds"] == pytest.approx(search["plans"][0]["step_seconds"])
        seconds[version] = autoconfig.json("explain", *question, *options, "tp=8,pp=1,mbs=1")["step_seconds"]
    assert seconds[mine.version] == pytest.approx(SLOWER * seconds["documented-defaults"], rel=0.03)


@pytest.mark.parametrize("text", [
    "", "{}", "[]", "nonsense", '{"schema_version": 1, "entries": [{}], "version": "x"}', "[" * 9999,
])  # fmt: skip
def test_bad_calibrations_are_refused(text: str, autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    for command in (["search", "--model", "22b", "--gpus", "8"], ["predict", "x.csv", "--output", str(tmp_path / "o.csv")]):
        result = autoconfig.run(*command, "--calibration", str(bad))
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("error: ")
    missing = autoconfig.run("search", "--model", "22b", "--gpus", "8", "--calibration", str(tmp_path / "no.json"))
    assert missing.exit_code == 2


def test_tables_without_a_usable_run_are_refused(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    source = write(tmp_path / "runs.csv", [row | {"metric_tflops_per_gpu": ""} for row in ROWS])
    result = autoconfig.run("calibrate", str(source), "--output", str(tmp_path / "out.json"))
    assert result.exit_code == 2
    assert "none of its" in result.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("absurd", [{"metric_mfu": "55"}, {"metric_step_s": "1e9"}])
def test_absurd_measurements_are_not_used_and_said(absurd: dict[str, str], autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    blank = {"metric_step_s": "", "metric_tokens_per_s_per_gpu": "", "metric_tflops_per_gpu": "", "metric_mfu": ""}
    good = as_measured(ROWS)[0]
    bad = good | blank | absurd | {"id": "bad"}
    target = tmp_path / "out.json"
    result = autoconfig.run("calibrate", str(write(tmp_path / "runs.csv", [good, bad])), "--output", str(target))
    assert result.exit_code == 0
    assert "from 1 run," in result.stdout and "1 runs" not in result.stdout
    assert "warning: not used, row bad" in result.stderr and "units" in result.stderr
    alone, _ = calibrate_file(write(tmp_path / "good.csv", [good]))
    assert read_calibration(target).entries == read_calibration_of(alone, tmp_path).entries
    result = autoconfig.run("calibrate", str(write(tmp_path / "bad.csv", [bad])), "--output", str(tmp_path / "none.json"))
    assert result.exit_code == 2 and "units" in result.stderr
    assert not (tmp_path / "none.json").exists()


@tabled
def test_rows_that_contradict_themselves_are_refused_with_both_numbers(
    change: dict[str, str], numbers: tuple[str, str], autoconfig: SimpleNamespace, tmp_path: Path
) -> None:
    good, other = as_measured(ROWS)[:2]
    bad, target = other | change | {"id": "bad"}, tmp_path / "out.json"
    result = autoconfig.run("calibrate", str(write(tmp_path / "runs.csv", [good, bad])), "--output", str(target))
    assert result.exit_code == 0 and "from 1 run," in result.stdout
    assert "row bad: it contradicts itself" in result.stderr and all(text in result.stderr for text in numbers)
    alone = autoconfig.run("calibrate", str(write(tmp_path / "bad.csv", [bad])), "--output", str(tmp_path / "none.json"))
    assert alone.exit_code == 2 and "contradicts itself" in alone.stderr and not (tmp_path / "none.json").exists()


def read_calibration_of(found: Calibration, folder: Path) -> Calibration:
    write_calibration(found, folder / "again.json")
    return read_calibration(folder / "again.json")


@pytest.mark.judge
@pytest.mark.xdist_group("validate")  # the worker that has observed the published runs
def test_the_shipped_calibration_is_a_fresh_fit() -> None:
    fresh, committed = published_calibration(), shipped()
    assert fresh.version == committed.version, "run `make calibration`"
    for a, b in zip(fresh.entries, committed.entries, strict=True):
        assert (a.architecture, a.generation, a.kind, a.rows) == (b.architecture, b.generation, b.kind, b.rows)
        for name in NAMES:
            assert getattr(a.factors, name) == pytest.approx(getattr(b.factors, name), abs=1e-3)


@pytest.mark.judge
@pytest.mark.xdist_group("validate")  # the worker that has observed the published runs
def test_the_shipped_bands_are_fresh() -> None:
    for name, band in bands_of(banded(), strangers_of_one_node()).items():
        committed = shipped_bands()[name]
        assert (band.p5, band.p95) == pytest.approx((committed.p5, committed.p95), abs=1e-3), "run `make calibration`"
        assert (band.rows, band.sources) == (committed.rows, committed.sources)


@pytest.mark.parametrize("rows", [8, 80, 800])
def test_a_source_weighs_eight_runs_however_many_it_has(rows: int) -> None:
    """Eight runs of one source 4 % slower than predicted, any number of another's 4 % faster: neither side wins."""

    def runs(source: str, count: int, log_ratio: float) -> list[Observation]:
        seen = Observation(
            id=source, source=source, model="m", architecture="hopper", gpu="h100", generation="g", moe=False,
            log_ratio=log_ratio, shares=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        )  # fmt: skip
        return [seen] * count

    (entry,) = refine(Calibration(version="none", entries=()), runs("a", 8, 0.04) + runs("b", rows, -0.04), "test").entries
    assert entry.factors.step == pytest.approx(1.0, abs=1e-12)


def test_the_host_counts_by_how_much_the_step_follows_it() -> None:
    """Where the GPU waits the step is the host's; where it does not, root(G^2 + H^2) - G = H^2 / 2G follows H twice as fast as
    its share says, less what a GPU that waits gains in clock."""

    def share(seq: int) -> tuple[float, float]:
        row = {
            "id": "x", "model": "gpt3-1.7b", "gpu": "h100", "gpus": "1", "seq": str(seq), "gbs": "32", "mbs": "1", "tp": "1",
            "pp": "1", "precision": "bf16", "software": "transformer-engine", "metric_step_s": "1", "recompute": "none",
        }  # fmt: skip
        run = run_of(row)
        assert isinstance(run, Run)
        case = run.case
        parts = estimate_step_time(case.scenario, case.scenario.layouts([case.plan]), [case.plan.recompute], detail=True)
        waiting = sum(float(parts.parts[name][0, 0]) for name in ("host_floor_seconds", "step_launch_seconds"))
        return observe(run).shares[NAMES.index("host")], waiting / float(parts.step_seconds[0, 0])

    bound, added = share(256)
    assert added < bound < 1.0 and bound == pytest.approx(0.97, abs=0.03)
    hidden, added = share(16384)
    assert 1.3 * added < hidden <= 2.0 * added and hidden < 0.1


HAS_TORCH = importlib.util.find_spec("torch") is not None
QUESTION = (
    "--model", "gpt3-1.7b", "--num-layers", "4", "--hidden-size", "256", "--num-attention-heads", "4", "--seq-length", "256",
    "--global-batch-size", "16", "--gpus", "2",
)  # fmt: skip


def cpu_table(rate: float = 1e11) -> dict[str, Any]:
    """A CPU whose GEMMs run at `rate`, whatever their shape."""

    def flat(names: tuple[str, ...]) -> dict[str, Any]:
        values: Any = 1.0
        for _ in names:
            values = [values, values]
        return {"axes": {name: [16, 4096] for name in names}, "efficiency": values, "peak_flops_per_s": rate, "use": True}

    terms = {"alpha_s": [1e-4], "link_share": [0.5], "sqrt_s": [0.0], "use": True}
    spec = {
        "id": "cpu-test", "name": "Test", "vendor": "cpu", "architecture": "cpu", "compute_capability": None,
        "memory_bytes": 4 * 2**30, "hbm_bytes_per_s": 2e10, "flops_per_s": {"bf16": rate, "fp32": rate}, "num_sms": 1,
        "link": "shared memory", "link_bytes_per_s": 1e9, "link_domain_size": 2, "gpus_per_node": 2, "nic_bytes_per_s": 1e9,
        "sources": {},
    }  # fmt: skip
    return {
        "schema_version": 1,
        "kind": KIND,
        "gpu": "cpu-test",
        "gpu_spec": spec,
        "device": {"type": "cpu", "reported_name": cpu_name(), "memory_bytes": 4 * 2**30},
        "gemm": {"bf16": flat(("m", "n", "k"))},
        "attention": {},
        "grouped_gemm": {},
        "collectives": {"axes": {"ranks": [2]}, "link_bytes_per_s": 1e9, "kinds": {"all_reduce": terms}},
        "constants": {"hbm": {"pointwise": 0.5, "launch_s": 1e-6}, "p2p": {"alpha_s": 1e-4, "link_share": 0.5}},
    }


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(cpu_table()))
    return path


def test_without_a_table_the_message_names_the_command(autoconfig: SimpleNamespace, table: Path) -> None:
    result = autoconfig.run("search", *QUESTION, "--gpu", "local")
    assert result.exit_code == 2 and COMMAND in result.stderr


def test_a_table_is_kept_once_and_found_by_gpu_local(autoconfig: SimpleNamespace, table: Path) -> None:
    result = autoconfig.run("calibrate", "--gpu-table", str(table))
    assert result.exit_code == 0 and "--gpu local" in result.stdout
    kept = local_folder() / "cpu-test.json"
    assert json.loads(kept.read_text()) == cpu_table()
    by_name, by_file = (
        autoconfig.json("search", *QUESTION, *option) for option in (("--gpu", "local"), ("--gpu-table", str(table)))
    )
    assert by_name["plans"] == by_file["plans"] and by_name["cluster"]["gpu"] == "cpu-test"
    assert any("megatron-local" in line for line in by_name["assumed"]) and any(
        str(kept) in line for line in by_name["assumed"]
    )


def test_prices_follow_the_measured_rates(autoconfig: SimpleNamespace, table: Path, tmp_path: Path) -> None:
    plan, parts = "tp=1,dp=2,mbs=1", {}
    for name, rate in (("slow", 1e10), ("fast", 1e11)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(cpu_table(rate)))
        body = autoconfig.json("explain", plan, *QUESTION, "--gpu-table", str(path))
        parts[name] = body["time"]["breakdown_seconds"]
    assert parts["slow"]["gemm_seconds"] == pytest.approx(10 * parts["fast"]["gemm_seconds"], rel=1e-6)
    assert parts["slow"]["pointwise_seconds"] == pytest.approx(parts["fast"]["pointwise_seconds"], rel=1e-6)


def test_an_exported_plan_of_a_measured_machine_is_read_back(autoconfig: SimpleNamespace, table: Path, tmp_path: Path) -> None:
    assert autoconfig.run("calibrate", "--gpu-table", str(table)).exit_code == 0
    out = tmp_path / "run"
    result = autoconfig.run("export", "tp=1,dp=2", *QUESTION, "--gpu", "local", "--output", str(out))
    assert result.exit_code == 0, result.stderr
    assert autoconfig.run("check", str(out / "plan.json")).exit_code == 0


@tabled
def test_tables_that_cannot_be_used(
    autoconfig: SimpleNamespace, table: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(autoconfig.root)
    result = autoconfig.run("search", *QUESTION, *(text.format(table=table) for text in arguments))
    assert result.exit_code == 2 and said in result.stderr


# Both environments are tested: a plain one has no torch (the message), that of `make test` has it (the real run below).
@pytest.mark.service
@pytest.mark.skipif(HAS_TORCH, reason="the message where torch is missing needs an environment without it")
def test_without_torch_the_benchmark_says_so(autoconfig: SimpleNamespace, table: Path) -> None:
    done = autoconfig.process("calibrate", "--gpu", "local")
    assert done.returncode == 2 and b"torch cannot be imported" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.service
@pytest.mark.soak
@pytest.mark.skipif(not HAS_TORCH, reason="a real benchmark needs torch; make test installs it")
def test_one_command_and_gpu_local_works(autoconfig: SimpleNamespace, table: Path) -> None:
    """For real, on this machine's CPU."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this asks for the CPU's table: where there is a GPU, `--gpu local` measures that instead")
    done = autoconfig.process("calibrate", "--gpu", "local")
    assert done.returncode == 0 and b"autoconfig search" in done.stdout, done.stderr
    body = autoconfig.json("search", *QUESTION, "--gpu", "local")
    assert body["cluster"]["gpu"].startswith("cpu-") and 1e-3 < body["plans"][0]["step_seconds"] < 1e3
