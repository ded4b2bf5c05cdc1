"""A runaway ends as an error: threads and memory of the training core's processes are bounded."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.measurement import ExitCode
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Workload, endless_recomputation
from autoconfig.trainer.host import limits

ROOT = Path(__file__).parents[2]
GIB = 2**30
TINY = load_model("gpt3-126m").replace(
    num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=4, kv_channels=16, ffn_hidden_size=256, vocab_size=512
)


def job(**changes) -> Job:
    values = {"model": TINY, "plan": parse_plan("tp=1", 1), "workload": Workload(seq_length=32, global_batch_size=2)}
    return Job(**{**values, "device": "cpu", "steps": 1, "warmup_steps": 1, **changes})


def test_ranks_share_the_machine_and_a_tighter_limit_stays(monkeypatch):
    monkeypatch.setattr(limits, "machine_bytes", lambda: 10 * GIB)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    for processes, most, expected in ((2, None, 4 * GIB), (2, 3 * GIB, 3 * GIB), (1, None, 3 * GIB)):
        assert limits.limit_memory(processes, most) == expected
        assert resource.getrlimit(resource.RLIMIT_DATA) == (expected, hard)


def test_ranks_of_several_take_one_thread_each_and_gpus_are_left_alone(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits.limit_process(job(device="cuda", plan=parse_plan("dp=2", 2)))
    assert "OMP_NUM_THREADS" not in os.environ and resource.getrlimit(resource.RLIMIT_DATA) == before
    limits.limit_process(job())
    assert "OMP_NUM_THREADS" not in os.environ
    limits.limit_process(job(plan=parse_plan("dp=2", 2), mode="emulate", rank=1))
    assert os.environ.pop("OMP_NUM_THREADS") == "1"


def test_a_job_beyond_the_machine_ends_as_out_of_memory(tmp_path):
    """As on a machine of 5 GB: the logits of 100,000 tokens do not fit."""
    big = job(plan=parse_plan("mbs=64", 1), workload=Workload(seq_length=2048, global_batch_size=64),
              model=TINY.replace(vocab_size=32768))  # fmt: skip
    (tmp_path / "job.json").write_text(job_text(big))
    code = (
        "import os; from autoconfig.trainer.host import limits; limits.machine_bytes = lambda: 5 * 2**30;"
        f"from autoconfig.trainer.__main__ import main; os._exit(main(['--job', {str(tmp_path / 'job.json')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == ExitCode.OUT_OF_MEMORY, done.stderr[-3000:]
    assert "can't allocate memory" in done.stderr


def test_groups_are_gone_after_a_run():
    """megatron-core makes some thirty groups a job; each of gloo's keeps threads as long as it lives."""
    import torch.distributed as dist
    from autoconfig.trainer.host.cpu import cpu_for_cuda
    from autoconfig.trainer.optimizer import parallel_groups

    with cpu_for_cuda():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            threads = []
            for _ in range(3):
                with parallel_groups(job(), 60.0):
                    pass
                threads.append(len(os.listdir("/proc/self/task")))
            assert threads[2] <= threads[0] + 2
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize(("modules", "biases", "endless"), [(("mlp",), True, True), (("mlp",), False, False),
                                                            (("core_attn",), True, False)])  # fmt: skip
def test_which_recomputation_never_ends(modules, biases, endless):
    assert (endless_recomputation(TINY.replace(add_bias_linear=biases), modules) is not None) == endless
