"""The benchmark as a process on the CPU with tiny shapes: the table, resuming, Ctrl-C, bad output, faults."""

import contextlib
import importlib.util
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoconfig.kernels import benchmark
from autoconfig.kernels.bench.state import Results
from autoconfig.kernels.bench.table import SETS
from autoconfig.specs.hardware.operator_table import gpu_of_table, read_operator_table
from autoconfig.time_model.hardware.efficiency import efficiency_of
from autoconfig.time_model.operators.kernels import gemm_seconds
from background import started
from tables import tabled

ROOT = Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("kernels benchmark")]
TINY = SETS["tiny"]
TINY_RUN = ("--device", "cpu", "--set", "tiny", "--ranks", "1")


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    own = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-P", "-m", "autoconfig.kernels.benchmark", *arguments]
    return started(subprocess.Popen(command, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"))


def run(*arguments: str) -> tuple[int, str]:
    """In this process: (exit code, what it said)."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            code = benchmark.main(arguments)
        except SystemExit as error:  # argparse
            code = int(str(error.code))
    return code, said.getvalue()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run as a process of its own, with collectives over two gloo ranks."""
    path = tmp_path_factory.mktemp("benchmark") / "cpu.json"
    process = start("--device", "cpu", "--set", "tiny", "--ranks", "2", "--output", str(path))
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and out == "" and "written to" in errors, errors
    return path


def processes_about(path: Path) -> list[str]:
    """Command lines of running processes that name the path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(path) in line]


@needs_torch
def test_a_run_gives_a_table_that_prices_what_was_measured(measured: Path) -> None:
    data = read_operator_table(measured)
    assert data["complete"] and data["missing"] == [] and data["skipped"] == []
    assert set(data["gemm"]) == set(data["attention"]) == set(data["grouped_gemm"]) == {"bf16", "fp32"}
    gpu = gpu_of_table(data, measured)
    e = efficiency_of(gpu)
    for precision in ("bf16", "fp32"):
        points = {tuple(row[:3]): row[3] for row in data["points"][f"gemm.{precision}"]["rows"]}
        assert set(points) == set(itertools.product(TINY.m, TINY.nk, TINY.nk))
        for key, seconds in points.items():
            price = gemm_seconds(
                *(np.array([float(x)]) for x in key), flops_per_s=gpu.flops_per_s[precision],
                hbm_bytes_per_s=gpu.hbm_bytes_per_s, num_sms=gpu.num_sms, constants=e.gemm, table=e.tables.gemm[precision],
            )  # fmt: skip
            assert float(price[0]) == pytest.approx(seconds, rel=1e-4)
    assert 0 < e.hbm_pointwise < 8 and 0 < e.launch_s < 1e-3 and gpu.architecture == "cpu"


@needs_torch
def test_collectives_over_gloo(measured: Path) -> None:
    data = read_operator_table(measured)
    assert data["collectives"]["axes"] == {"ranks": [2]}
    assert set(data["collectives"]["kinds"]) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    rows = data["points"]["collectives"]["rows"]
    assert {(row[0], row[2]) for row in rows} == set(
        itertools.product(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"), TINY.collective_bytes)
    )
    assert all(0 < row[3] < 10 for row in rows)
    assert data["constants"]["p2p"]["link_share"] > 0


@needs_torch
def test_the_same_command_goes_on_and_measures_only_what_is_missing(measured: Path, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    data = json.loads(measured.read_text())
    gone = data["points"]["gemm.fp32"]["rows"].pop()
    data["points"]["gemm.fp32"]["rows"][0][3] = 0.5
    path.write_text(json.dumps(data))
    code, errors = run(*TINY_RUN, "--output", str(path))
    assert code == 0 and "going on with" in errors
    rows = {tuple(row[:3]): row[3] for row in read_operator_table(path)["points"]["gemm.fp32"]["rows"]}
    assert tuple(gone[:3]) in rows and 0.5 in rows.values()
    assert read_operator_table(path)["points"]["collectives"] == data["points"]["collectives"]
    code, errors = run(*TINY_RUN, "--output", str(path), "--fresh")
    assert code == 0 and "going on" not in errors
    assert 0.5 not in {row[3] for row in read_operator_table(path)["points"]["gemm.fp32"]["rows"]}


@needs_torch
def test_a_file_of_another_machine_is_not_gone_on_with(measured: Path, tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(measured.read_text().replace('"threads": 1', '"threads": 7'))
    before = path.read_text()
    code, errors = run(*TINY_RUN, "--output", str(path))
    assert code == 2 and "threads 7, now 1" in errors and "--fresh" in errors and path.read_text() == before


@needs_torch
def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, added = tmp_path / "cpu.json", Results.add

    def add(self: Results, group: str, key: Any, timing: Any) -> None:
        added(self, group, key, timing)
        if sum(map(len, self.points.values())) == 40:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Results, "add", add)
    code, errors = run(*TINY_RUN, "--output", str(path))
    assert code == 130 and "run the same command again" in errors
    data = read_operator_table(path)
    assert not data["complete"] and sum(len(group["rows"]) for group in data["points"].values()) == 40
    monkeypatch.undo()
    code, errors = run(*TINY_RUN, "--output", str(path))
    assert code == 0 and "going on with 40 measurements" in errors and read_operator_table(path)["complete"]
    assert [p.name for p in tmp_path.iterdir()] == ["cpu.json"]


@needs_torch
def test_sigterm_beside_running_ranks_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    assert run(*TINY_RUN, "--output", str(path))[0] == 0
    process = start("--device", "cpu", "--set", "tiny", "--ranks", "2", "--output", str(path))
    assert process.stderr is not None
    while "collectives over 2 ranks" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors and "run the same command again" in errors
    assert processes_about(path) == [] and read_operator_table(path)["gemm"]


@needs_torch
def test_a_spent_budget_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpu.json"
    code, errors = run(*TINY_RUN, "--budget", "0.001s", "--output", str(path))
    assert code == 2 and "give more with --budget" in errors and not path.exists()
    assert run(*TINY_RUN, "--precision", "bf16", "--output", str(path))[0] == 0
    code, errors = run(*TINY_RUN, "--precision", "bf16,fp32", "--budget", "0.001s", "--output", str(path))
    assert code == 0 and "stopped at the budget; not measured: " in errors and "gemm.fp32" in errors
    data = read_operator_table(path)
    assert not data["complete"] and "attention.fp32" in data["missing"] and set(data["gemm"]) == {"bf16"}


@needs_torch
@tabled
def test_bad_input(arguments: tuple[str, ...], said: str) -> None:
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this is the message of a machine without a GPU")
    code, errors = run(*arguments)
    assert code == 2 and said in errors


@needs_torch
def test_a_rank_without_measurements_or_peers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ("--device", "cpu", "--set", "tiny", "--collectives", "--output", str(tmp_path / "x.json"))
    for world, local, said in (
        ("1", "1", "at least 2 ranks"),
        ("4", "2", "--nnodes 1"),
        ("2", "2", "without --collectives first"),
    ):
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", local)):
            monkeypatch.setenv(name, value)
        code, errors = run(*common)
        assert code == 2 and said in errors


def test_without_torch_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert benchmark.main(["--output", "/tmp/x.json"]) == 2
    said = capsys.readouterr().err
    assert "megatron-autoconfig[train]" in said and "--gpu-table" in said
