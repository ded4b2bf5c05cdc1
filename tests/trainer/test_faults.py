"""Every way a job can end: exit code, message, a whole result or none, and no process left. Most are processes that import
torch: `make judge` runs them all, `make test` a few.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.measurement import RESULT_FILE, ExitCode, read_measurement
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Workload

from autoconfig.evidence.read import read_texts

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torchrun")]
ROOT = Path(__file__).parents[2]
FORMATS = ("trainer", "trainer-warm-up")
TINY = ModelSpec(
    name="tiny", num_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=512, ffn_hidden_size=256, num_query_groups=4,
    kv_channels=16,
)  # fmt: skip


def job(plan: str = "tp=1", processes: int = 1, **changes) -> Job:
    values = {
        "model": TINY, "plan": parse_plan(plan, processes), "workload": Workload(seq_length=32, global_batch_size=4),
        "numerics": Numerics(precision="fp32"), "device": "cpu", "steps": 2, "warmup_steps": 2,
    }  # fmt: skip
    return Job(**{**values, **changes})


def alone(folder: Path, text: str, *options: str, path: str = "", python: str = sys.executable, **popen):
    """One process, without torchrun: its exit code is seen."""
    (folder / "job.json").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "RANK", "WORLD_"))}
    environment |= {"PYTHONPATH": f"{path}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, "-P", "-m", "autoconfig.trainer", "--job", str(folder / "job.json"), *options],
        env=environment, capture_output=True, text=True, timeout=300, check=False, **popen,
    )  # fmt: skip


@pytest.fixture
def torchrun_job(start, tmp_path):
    """go(job, *options) -> (running torchrun, its result's path)."""

    def go(what: Job, *options: str) -> tuple[subprocess.Popen, Path]:
        (tmp_path / "job.json").write_text(job_text(what))
        command = ("-m", "autoconfig.trainer", "--job", str(tmp_path / "job.json"), "--output", str(tmp_path / "out"), *options)
        return start(what.num_processes, *command), tmp_path / "out" / RESULT_FILE

    return go


def ranks(run: subprocess.Popen) -> list[int]:
    """Process ids of the ranks, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        rank = [value for value in environment if value.startswith(b"RANK=")]
        if parent == str(run.pid) and rank:
            found[int(rank[0].partition(b"=")[2])] = int(entry.name)
    return [pid for _, pid in sorted(found.items())]


def wait_for_step(run: subprocess.Popen) -> list[int]:
    """The ranks' process ids once the first step is done."""
    for line in run.stdout:
        if line.startswith("step 1/"):
            return ranks(run)
    pytest.fail(f"no step: {run.stderr.read()[-3000:]}")


def assert_gone(pids: list[int], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, f"still there: {pids}"
        time.sleep(0.1)


def test_a_run_without_torchrun_ends_with_a_result(tmp_path):
    (tmp_path / RESULT_FILE).write_text("old")
    done = alone(tmp_path, job_text(job()))
    assert done.returncode == ExitCode.RAN, done.stderr
    found = read_measurement(tmp_path / RESULT_FILE)
    assert (found.status, found.exit_code, found.job_hash) == ("ran", 0, job().content_hash)
    assert len(found.step_seconds_samples) == len(found.warmup_seconds) == 2 and len(found.losses) == 4
    printed = {
        name: [line.seconds for line in read_texts({"log": done.stdout}).steps if line.format == name] for name in FORMATS
    }
    assert printed["trainer"] == pytest.approx(found.step_seconds_samples, rel=1e-3), "as `diagnose` reads the log of a job"
    assert printed["trainer-warm-up"] == pytest.approx(found.warmup_seconds, rel=1e-3)
    figures = found.ranks[0]
    assert sum(figures.bytes_by_category.values()) == figures.peak_allocated_bytes > figures.state_bytes > 0
    assert set(figures.phase_seconds) == {"forward", "backward", "gradient_reduction", "optimizer", "other"}
    assert sum(figures.phase_seconds.values()) == pytest.approx(sum(found.step_seconds_samples) / 2, rel=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json", RESULT_FILE]
    state = {name: size for name, size in figures.bytes_by_category.items() if name != "activations"}
    parameters = total_parameters(TINY)
    assert state["weights"] == pytest.approx(4 * parameters, rel=0.002), "fp32, padded by the gradient buffer's rules"
    assert state["optimizer"] == pytest.approx(2 * state["weights"], rel=0.002)


@pytest.mark.parametrize(("what", "said"), [
    pytest.param(
        job("tp=2,dp=3", 6, workload=Workload(seq_length=32, global_batch_size=6)),
        "2 x 1 x 1 x 3 = 6 processes, this job has 1", marks=pytest.mark.judge,
    ),
    (job("recompute=selective:mlp"), "never ends"),
])  # fmt: skip
def test_a_plan_that_cannot_run(tmp_path, ready, what, said):
    done = alone(tmp_path, job_text(what), python=ready)
    assert done.returncode == ExitCode.BAD_JOB and "Traceback" not in done.stderr, done.stderr
    found = read_measurement(tmp_path / RESULT_FILE)
    assert (found.status, found.exit_code, found.step_seconds) == ("failed", 2, None) and said in found.message


@pytest.mark.judge
def test_missing_packages(tmp_path):
    done = alone(tmp_path, job_text(job(software="transformer-engine")))
    assert done.returncode == ExitCode.MISSING_PACKAGE and "megatron-autoconfig[gpu]" in done.stderr
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "__init__.py").write_text("raise ModuleNotFoundError('No module named megatron')")
    done = alone(tmp_path, job_text(job()), path=str(tmp_path))
    assert done.returncode == ExitCode.MISSING_PACKAGE and "megatron-autoconfig[train]" in done.stderr
    assert not (tmp_path / RESULT_FILE).exists()


@pytest.mark.judge
def test_out_of_memory_on_one_rank_ends_all(torchrun_job):
    """Stage 0 holds three of four layers and the embeddings: the limit lies between the two stages' peaks."""
    run, path = torchrun_job(job("pp=2,first=3,last=1", 2, device_memory_bytes=6_500_000))
    _, err = run.communicate(timeout=300)
    assert run.returncode == 1 and err.count("exitcode") and ": 10 " in err, err[-3000:]
    found = read_measurement(path)
    assert (found.status, found.exit_code, found.step_seconds) == ("oom", 10, None)
    assert "rank 0: out of memory" in found.message and "the limit is 6,500,000" in found.message
    assert [figures.rank for figures in found.ranks] == [0, 1]
    assert found.ranks[1].peak_allocated_bytes <= 6_500_000


@pytest.mark.judge
def test_a_dead_peer_ends_the_others(torchrun_job):
    run, path = torchrun_job(job("dp=2", 2, steps=100_000), "--peer-timeout", "60")
    pids = wait_for_step(run)
    os.kill(pids[1], signal.SIGKILL)
    run.communicate(timeout=300)
    found = read_measurement(path)
    assert (found.status, found.exit_code) == ("failed", 11), found.message
    assert found.ranks[0].rank == 0 and len(found.losses) >= 1
    assert_gone(pids)


@pytest.mark.judge
def test_a_silent_peer_is_lost_after_the_timeout(torchrun_job):
    run, path = torchrun_job(job("dp=2", 2, steps=100_000), "--peer-timeout", "3")
    pids = wait_for_step(run)
    os.kill(pids[1], signal.SIGSTOP)
    assert_gone(pids[:1])
    os.kill(pids[1], signal.SIGKILL)
    run.communicate(timeout=300)
    found = read_measurement(path)
    assert (found.status, found.exit_code) == ("failed", 11), found.message
    assert_gone(pids)


@pytest.mark.judge
@pytest.mark.parametrize("target", ["torchrun", "one rank"])
def test_sigterm_leaves_nothing(torchrun_job, target):
    run, path = torchrun_job(job("dp=2", 2, steps=100_000))
    pids = wait_for_step(run)
    os.kill(run.pid if target == "torchrun" else pids[1], signal.SIGTERM)
    _, err = run.communicate(timeout=300)
    assert "nothing is written" in err and "Traceback" not in err.partition("torch/distributed")[0]
    assert not path.exists() and list(path.parent.iterdir()) == []
    assert_gone(pids)


@pytest.mark.judge
def test_torchrun_killed_leaves_no_rank(torchrun_job):
    run, path = torchrun_job(job("dp=2", 2, steps=100_000))
    pids = wait_for_step(run)
    run.kill()
    assert_gone(pids)
    assert not path.exists() or json.loads(path.read_text())["exit_code"] == ExitCode.PEER_LOST


def test_a_rank_at_its_end_does_not_wait_for_a_dead_rank_0(monkeypatch):
    import torch.distributed as dist
    from autoconfig.trainer import peers
    from autoconfig.trainer.peers import Failure

    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.2)
    store = dist.TCPStore("localhost", 0, 1, is_master=True)
    told = Failure(ExitCode.PEER_LOST, "rank 0 died")
    store.set("failed", told.text())
    assert peers.Peers(store.clone(), 1, 2, timeout_seconds=10_000.0).finish(None) == ExitCode.PEER_LOST


def test_a_peer_that_was_told_to_end_is_not_lost(monkeypatch):
    """Rank 0 sees the closed connection before its own SIGTERM: nothing is written all the same."""
    import torch.distributed as dist
    from autoconfig.trainer import peers
    from autoconfig.trainer.peers import Failure

    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.2)
    store = dist.TCPStore("localhost", 0, 1, is_master=True)
    store.set("terminated", str(int(ExitCode.TERMINATED)))
    rank_0 = peers.Peers(store.clone(), 0, 2, timeout_seconds=10.0)
    rank_0.write = lambda *_: pytest.fail("a result was written")
    assert rank_0.finish(Failure(ExitCode.PEER_LOST, "Connection closed by peer")) == ExitCode.TERMINATED
