"""examples/slurm_submit.py under a real Slurm: asks a real service, and training starts with its answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import start

pytestmark = pytest.mark.xdist_group("slurm")
ROOT = Path(__file__).parents[2]
QUESTION = (
    "model=gpt3-126m", "gpus=2", "gpu=h100-sxm-80gb", "software=megatron-local", "seq_length=32", "global_batch_size=4",
    "num_layers=2", "hidden_size=64", "num_attention_heads=4", "vocab_size=512", "precision=fp32", 'fix=["tp=2", "mbs=1"]',
)  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = start(f"sqlite:///{tmp_path_factory.mktemp('service')}/s.db", "--workers", "1", "--search-workers", "0")
    yield running
    running.stop()


def submit(service, folder: Path, *question: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MEGATRON_PATH": str(Path(__file__).with_name("cpu_program")),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, ROOT / "examples" / "slurm_submit.py", "--service", service.url, "--folder", folder]
    return subprocess.run(
        [*command, *question, "--", "--wait"], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_training_starts_with_the_answer(slurm, service, tmp_path):
    done = submit(service, tmp_path / "run", *QUESTION)
    log = "\n".join(file.read_text() for file in (tmp_path / "run").glob("*.log"))
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr + log
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "ran" and result["plan"].startswith("tp=2,") and result["step_seconds"] > 0
    assert result["plan"] in done.stderr and "calibration" in done.stderr
    assert len(result["ranks"]) == 2


def test_refusals_submit_nothing(service, tmp_path):
    for question, code, said in (
        (("model=lama3-70b", "gpus=2", "gpu=h100-sxm-80gb"), 2, "llama3-70b"),
        (("model=1t", "gpus=2", "gpu=l40s-48gb"), 3, "no plan fits"),
        (("model",), 2, "gpus=64"),
    ):
        done = submit(service, tmp_path / "none", *question)
        assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "none").exists()
