"""`autoconfig calibrate --gpu local`, `--gpu local` and `--gpu-table`: one command, then this machine's rates."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autoconfig.specs.hardware.local_gpu import cpu_name
from autoconfig.specs.hardware.operator_table import COMMAND, KIND, local_folder

from autoconfig.calibration import local as local_benchmark

HAS_TORCH = importlib.util.find_spec("torch") is not None
QUESTION = (
    "--model",
    "gpt3-1.7b",
    "--num-layers",
    "4",
    "--hidden-size",
    "256",
    "--num-attention-heads",
    "4",
    "--seq-length",
    "256",
    "--global-batch-size",
    "16",
    "--gpus",
    "2",
)


def cpu_table(rate: float = 1e11) -> dict[str, Any]:
    """A CPU whose GEMMs run at `rate`, whatever their shape."""

    def flat(names: tuple[str, ...]) -> dict[str, Any]:
        values: Any = 1.0
        for _ in names:
            values = [values, values]
        return {"axes": {name: [16, 4096] for name in names}, "efficiency": values, "peak_flops_per_s": rate, "use": True}

    terms = {"alpha_s": [1e-4], "link_share": [0.5], "sqrt_s": [0.0], "use": True}
    spec = {
        "id": "cpu-test",
        "name": "Test",
        "vendor": "cpu",
        "architecture": "cpu",
        "compute_capability": None,
        "memory_bytes": 4 * 2**30,
        "hbm_bytes_per_s": 2e10,
        "flops_per_s": {"bf16": rate, "fp32": rate},
        "num_sms": 1,
        "link": "shared memory",
        "link_bytes_per_s": 1e9,
        "link_domain_size": 2,
        "gpus_per_node": 2,
        "nic_bytes_per_s": 1e9,
        "sources": {},
    }
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu-table", "/nowhere"), "does not exist"),
        (("--gpu-table", "README.md"), "is not an operator table"),
        (("--gpu-table", "{table}", "--gpu", "h100"), "is not what --gpu-table is about (cpu-test)"),
        (("--gpu-table", "{table}", "--cluster", "docs/examples/cluster.json"), "give either --cluster"),
        (("--gpu-table", "{table}", "--precision", "fp8"), "fp8"),
    ],
)
def test_tables_that_cannot_be_used(
    autoconfig: SimpleNamespace, table: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(autoconfig.root)
    result = autoconfig.run("search", *QUESTION, *(text.format(table=table) for text in arguments))
    assert result.exit_code == 2 and said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing was given"),
        (("runs.csv", "--gpu", "local"), "not MEASUREMENTS and --gpu local"),
        (("--gpu", "h100"), "'h100' is not 'local'"),
        (("--gpu-table", "{table}", "--output", "x.json"), "there is no --output"),
        (("--gpu-table", "{table}", "--budget", "1m"), "belong to --gpu local"),
        (("--gpu-table", "{table}", "--calibration", "none"), "measured, not fitted"),
        (("runs.csv",), "say --output FILE.json"),
    ],
)
def test_calibrate_takes_one_of_three(autoconfig: SimpleNamespace, table: Path, arguments: tuple[str, ...], said: str) -> None:
    result = autoconfig.run("calibrate", *(text.format(table=table) for text in arguments))
    assert result.exit_code == 2 and said in result.stderr


def test_the_benchmark_is_started_as_a_process_with_these_options(
    autoconfig: SimpleNamespace, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(local_benchmark, "run_benchmark", lambda options: seen.append(options) or 2)
    assert autoconfig.run("calibrate", "--gpu", "local", "--budget", "90s", "--fresh").exit_code == 2
    assert seen == [("--budget", "90s", "--fresh")]


# Both environments are tested: a plain one has no torch (the message), that of `make test` has it (the real run below).
@pytest.mark.skipif(HAS_TORCH, reason="the message where torch is missing needs an environment without it")
def test_without_torch_the_benchmark_says_so(autoconfig: SimpleNamespace, table: Path) -> None:
    done = autoconfig.process("calibrate", "--gpu", "local")
    assert done.returncode == 2 and b"torch cannot be imported" in done.stderr and b"Traceback" not in done.stderr


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
