"""The log of live storages on sequences whose bytes are known; threads and memory of the trainer's processes are bounded."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.measurement import ExitCode
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Workload, endless_recomputation
from autoconfig.trainer.host import limits
from autoconfig.trainer.tracing.memory_log import MemoryLog

pytestmark = pytest.mark.torch

KIB = 1024


def kib(count: int) -> torch.Tensor:
    return torch.empty(count * KIB, dtype=torch.uint8)


def test_torch_compile_that_is_left_out_takes_what_torchs_own_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", torch.compile)
    limits.leave_out_compiler()
    assert torch.compile(kib, True) is torch.compile(kib, fullgraph=True) is kib
    assert torch.compile(dynamic=True)(kib) is torch.compile(None, True)(kib) is kib


def test_peak_is_the_largest_moment_not_the_sum() -> None:
    with MemoryLog() as log, log.phase("forward"):
        kept = kib(3)
        kib(5)  # dies at once
        later = kib(1)
    assert log.peak().bytes == 8 * KIB
    assert log.at(log.now - 1).bytes == 4 * KIB
    del kept, later


def test_views_and_repeated_looks_count_once() -> None:
    with MemoryLog() as log, log.phase("forward"):
        whole = kib(4)
        part = whole[: 2 * KIB].view(2, KIB)
        assert part.numel() == 2 * KIB
    assert log.peak().bytes == 4 * KIB


def test_activations_are_what_outlives_its_forward() -> None:
    with MemoryLog() as log:
        with log.phase("forward"):
            saved, scratch = kib(2), kib(4)
            del scratch
        with log.phase("backward"):
            gradient = kib(1)
            del saved, gradient
        at = log.peak()
    assert at.by_category["activations"] == 2 * KIB
    assert at.by_category["temporary"] == 4 * KIB


def test_received_for_a_forward_is_an_activation_and_for_a_backward_is_not() -> None:
    with MemoryLog() as log:
        with log.phase("forward"):
            pass
        received = kib(1)
        with log.phase("forward"):
            pass
        gradient = kib(2)
        with log.phase("backward"):
            at = log.now - 1
        del received, gradient
    assert log.at(at).by_category["activations"] == KIB
    assert log.at(at).by_category["temporary"] == 2 * KIB


def test_marked_storages_and_vocabulary_wide_tensors() -> None:
    with MemoryLog() as log:
        weight = kib(3)
        log.mark("weights", [weight, None])
        log.vocabulary = KIB
        with log.phase("forward"), log.scope("loss"):
            logits = kib(1).view(1, KIB)
            at = log.now - 1
            assert log.category(log.storages[-1]) == "logits"
        assert log.at(at).by_module["loss"]["logits"] == KIB
        assert log.at(at).by_category["weights"] == 3 * KIB
        del logits


def test_a_storage_that_shrinks_frees_its_bytes() -> None:
    with MemoryLog() as log, log.phase("forward"):
        tensor = kib(4)
        tensor.untyped_storage().resize_(0)
        assert log.at(log.now - 1).bytes == 0
        tensor.untyped_storage().resize_(4 * KIB)
        assert log.at(log.now - 1).bytes == 4 * KIB


def test_modules_own_what_their_forward_and_backward_make() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    with MemoryLog() as log:
        log.watch(model)
        with log.phase("forward"):
            out = model(torch.ones(2, 8))
        with log.phase("backward"):
            out.sum().backward()
    assert {record.module for record in log.storages if record.operator == "mm"} == {"0", "1"}
    assert {record.module for record in log.storages if log.phases[record.phase].kind == "backward"} >= {"0", "1"}


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
        "import os, sys; from autoconfig.trainer.host import limits; limits.machine_bytes = lambda: 5 * 2**30;"
        f"from autoconfig.trainer.__main__ import main; code = main(['--job', {str(tmp_path / 'job.json')!r}]);"
        "print('compiler' if 'torch._inductor.compile_fx' in sys.modules else 'no compiler', flush=True); os._exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == ExitCode.OUT_OF_MEMORY, done.stderr[-3000:]
    assert "can't allocate memory" in done.stderr
    assert done.stdout.splitlines()[-1] == "no compiler"


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
