"""The driver of vLLM's server: real processes; the HTTP side is a stand-in (`openai_stand_in.py`), in one test vLLM itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.profiler import vllm_server
from autoconfig.profiler.folder import prepare
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.outcome import Kind, outcome_of
from autoconfig.profiler.processes import group_members, marked
from autoconfig.profiler.runner import environment
from autoconfig.specs.job import Generation
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Workload
from job_help import make_job, wait_for, wait_until

from autoconfig.study.serving.work import HAS_VLLM, serving_command

pytestmark = pytest.mark.service

STAND_IN = Path(__file__).parents[1] / "helpers" / "openai_stand_in.py"
VLLM_PYTHON = os.environ.get("AUTOCONFIG_VLLM_PYTHON", sys.executable)
"""An interpreter that may have vLLM: it wants an environment of its own."""
PROMPT, NEW, BATCH = 8, 11, 3
TINY = load_model("qwen2.5-0.5b").replace(
    num_layers=2, hidden_size=128, num_attention_heads=2, num_query_groups=1, kv_channels=64, ffn_hidden_size=256,
    vocab_size=512, max_position_embeddings=128,
)  # fmt: skip


def generation_job(**changes):
    return make_job(
        model=changes.pop("model", TINY), plan=TrainPlan(tp=1, pp=1, dp=1, mbs=BATCH),
        workload=Workload(seq_length=PROMPT + NEW, global_batch_size=BATCH), numerics=Numerics(precision="fp32"),
        mode="generate", generation=Generation(prompt=PROMPT, new=NEW, engine="vllm", tokens=64), steps=2, warmup_steps=1,
        **changes,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Submit a job whose server behaves like this."""
    script = tmp_path / "python-with-vllm"
    script.write_text(f'#!/bin/bash\nexec {sys.executable} {STAND_IN} "$@"\n')
    script.chmod(0o755)

    def submit(behaviour="", **changes):
        monkeypatch.setenv("STAND_IN_SERVER", behaviour)
        runner = LocalRunner(serving_command(str(script), "vllm"), environment(1))
        folder = prepare(tmp_path / "jobs", generation_job(**changes))
        runner.submit(folder, 120.0)
        return runner, folder

    return submit


@pytest.mark.parametrize("behaviour", ["", "two at once"])
def test_a_server_is_started_loaded_and_ended_with_all_its_processes(run, behaviour):
    runner, folder = run(behaviour)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.MEASURED, outcome
    served = outcome.measurement.served
    assert served.requests == 2 * BATCH and len(served.tpot_samples) == 2 * BATCH
    assert served.ttft_seconds >= 0.05 and served.tpot_seconds >= 0.008
    seconds = outcome.measurement.step_seconds_samples
    assert served.output_tokens_per_second == pytest.approx(BATCH * NEW / min(seconds))
    assert marked(folder.path) == []


@pytest.mark.parametrize(("behaviour", "kind", "said"), [
    ("dies", Kind.FAILED, "no such device here"),
    ("out of memory", Kind.OUT_OF_MEMORY, "Tried to allocate"),
    ("refuses", Kind.FAILED, "too long for this model"),
    ("answers short", Kind.FAILED, f"{NEW - 1} tokens where {NEW}"),
])  # fmt: skip
def test_how_a_server_that_fails_ends_a_job(run, behaviour, kind, said):
    runner, folder = run(behaviour)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is kind and said in outcome.message, outcome
    assert marked(folder.path) == []


def test_a_cancelled_job_leaves_no_server(run):
    runner, folder = run("never up")
    wait_until(lambda: len(marked(folder.path)) >= 3, "driver, server and its child")
    runner.cancel(folder)
    assert marked(folder.path) == [] and outcome_of(folder).kind is Kind.CANCELLED


def test_a_group_is_gone_when_its_end_returns(monkeypatch):
    """Deaf to SIGTERM, with children."""
    monkeypatch.setattr(vllm_server, "GRACE_S", 0.5)
    deaf = ["bash", "-c", "trap '' TERM; sleep 60 & echo deaf; sleep 60"]
    process = subprocess.Popen(deaf, start_new_session=True, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"deaf\n" and len(group_members(process.pid)) >= 2
        vllm_server.end_group(process)
        assert group_members(process.pid) == []


@pytest.mark.skipif(
    subprocess.run([VLLM_PYTHON, "-c", HAS_VLLM], check=False).returncode != 0,
    reason="needs vLLM, in this environment or that of AUTOCONFIG_VLLM_PYTHON",
)
def test_vllm_itself_serves_a_tiny_model(tmp_path):
    runner = LocalRunner(serving_command(VLLM_PYTHON, "vllm"), environment(1))
    folder = prepare(tmp_path, generation_job())
    runner.submit(folder, 300.0)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.MEASURED, outcome
    served = outcome.measurement.served
    assert served.requests == 2 * BATCH and 0 < served.tpot_seconds < served.ttft_seconds
    assert marked(folder.path) == []
