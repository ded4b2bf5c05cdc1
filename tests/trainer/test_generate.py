"""Generation jobs of the training core: the same answers whatever the tensor parallelism, memory limits, what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.job import Generation, Job, job_text
from autoconfig.specs.measurement import ExitCode, read_measurement
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Workload

pytest.importorskip("megatron.core", reason="the training core generates with megatron-core")
ROOT = Path(__file__).parents[2]
TINY = load_model("qwen2.5-0.5b").replace(
    num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=2, kv_channels=16, ffn_hidden_size=128, vocab_size=256
)


def make_job(tp=1, pp=1, **changes):
    values = {
        "model": TINY, "plan": TrainPlan(tp=tp, pp=pp, dp=1, mbs=3), "workload": Workload(seq_length=14, global_batch_size=3),
        "numerics": Numerics(precision="fp32"), "device": "cpu", "mode": "generate", "generation": Generation(prompt=8, new=6),
        "steps": 2, "warmup_steps": 1,
    }  # fmt: skip
    return Job(**{**values, **changes})


def run(folder, job):
    """(exit code of the launcher, result)."""
    folder.mkdir()
    (folder / "job.json").write_text(job_text(job))
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={job.num_processes}", "--standalone"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [*launcher, "-m", "autoconfig.trainer", "--job", str(folder / "job.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (folder / "result.json").exists(), done.stderr
    return read_measurement(folder / "result.json")


def test_tensor_ranks_generate_what_one_rank_does(tmp_path):
    alone, two = run(tmp_path / "1", make_job()), run(tmp_path / "2", make_job(tp=2))
    assert alone.status == two.status == "ran" and len(two.ranks) == 2
    assert alone.served.answers_digest == two.served.answers_digest
    for found in (alone.served, two.served):
        assert found.requests == 6 and len(found.ttft_samples) == len(found.tpot_samples) == 2
        expected = 3 * 6 / (found.ttft_seconds + 5 * found.tpot_seconds)
        assert found.output_tokens_per_second == pytest.approx(expected)
    weights = [found.ranks[0].bytes_by_category["weights"] for found in (alone, two)]
    assert weights[1] < 0.6 * weights[0]
    assert len(alone.step_seconds_samples) == 2 and len(alone.warmup_seconds) == 1


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"device_memory_bytes": 300_000}, ExitCode.OUT_OF_MEMORY, "the limit is 300,000"),
        ({"generation": Generation(prompt=8, new=6, engine="vllm")}, ExitCode.BAD_JOB, "generation.engine=megatron"),
    ],
)
def test_how_a_generation_that_cannot_run_ends(changes, code, said, tmp_path):
    found = run(tmp_path / "job", make_job(**changes))
    assert found.exit_code == code and said in found.message and found.served is None
    assert json.loads((tmp_path / "job" / "job.json").read_text())["mode"] == "generate"
