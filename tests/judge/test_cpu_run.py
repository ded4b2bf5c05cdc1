"""Exported scripts of tiny models train with megatron-core's own trainer, no GPU; its trace gives the formula's bytes."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

from autoconfig.core.trace import Traces, compare, trace_request
from autoconfig.formats.export import export_texts
from autoconfig.megatron.batch.scripts import TORCHRUN_SCRIPT
from autoconfig.planning.export_files import write_export
from autoconfig.training.question import Request, understand

ROOT = Path(__file__).parents[2]
TINY = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}
GQA = {**TINY, "num_query_groups": 2, "kv_channels": 16, "ffn_hidden_size": 128}
WITHOUT_GPU = (
    "--distributed-backend", "gloo", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion",
    "--no-masked-softmax-fusion", "--use-cpu-initialization", "--num-workers", "0",
)  # fmt: skip
"""Added on the command line: what needs NCCL, Apex or CUDA kernels is off; everything else is what the script says."""
RUNS = [
    ("gpt3-126m", TINY, "tp=1,pp=2,vpp=2,mbs=1", "fp32"),
    ("llama3-8b", GQA, "tp=2,pp=1,mbs=1", "bf16"),
    ("llama3-8b", GQA, "tp=1,pp=2,mbs=1,first=3,last=1,recompute=full:uniform:1", "bf16"),
    ("mixtral-8x7b", GQA | {"moe_ffn_hidden_size": 128}, "tp=1,pp=1,ep=2,mbs=1", "fp32"),
]


@pytest.mark.parametrize(("model", "architecture", "text", "precision"), RUNS)
def test_an_exported_script_trains_three_steps(tmp_path, model, architecture, text, precision):
    question = understand(
        Request(
            model=model, gpus=2, gpu="h100-sxm-80gb", software="megatron-local", seq_length=64, global_batch_size=8,
            architecture=architecture, numerics={"precision": precision},
        )
    )  # fmt: skip
    write_export(tmp_path, export_texts(question.scenario, parse_plan(text, 2), None, "megatron"))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MEGATRON_PATH": str(ROOT / "tools" / "cpu_run"),
        "TRAIN_STEPS": "3",
        "MASTER_PORT": str(20000 + os.getpid() % 20000),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        ["bash", tmp_path / TORCHRUN_SCRIPT, *WITHOUT_GPU],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    losses = [float(value) for value in re.findall(r"iteration +\d+/ +3 .*lm loss: (\S+)", run.stdout)]
    assert run.returncode == 0 and len(losses) == 3, (run.stdout[-2000:], run.stderr[-3000:])
    assert all(6.0 < loss < 6.5 for loss in losses), "a model of 512 tokens that knows nothing has ln 512 = 6.24"


with warnings.catch_warnings():  # torch and megatron-core warn at import
    warnings.simplefilter("ignore")
    from autoconfig.trainer.tracing.trace import trace_rank


@pytest.mark.parametrize(("model", "software", "gpus", "text"), [
    ("llama3-8b", "megatron-local-flash", 8, "tp=2,pp=2,mbs=1,sp=1"),
    ("llama3-8b", "megatron-local-flash", 8, "tp=2,pp=2,mbs=1,sp=1,recompute=full:uniform:1"),
    ("llama3-8b", "transformer-engine", 8, "tp=2,pp=1,mbs=1,sp=1"),
    ("mixtral-8x7b", "megatron-local-flash", 16, "tp=2,pp=2,ep=4,mbs=1,sp=1"),
])  # fmt: skip
def test_formula_equals_trace(model: str, software: str, gpus: int, text: str) -> None:
    plan = parse_plan(text, gpus)
    scenario = Scenario(
        model=load_model(model).replace(num_layers=4),
        cluster=cluster_of(load_gpu("h100-sxm-80gb"), gpus),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0),
        software=load_stack(software),
        workload=Workload(seq_length=4096, global_batch_size=8 * plan.dp),
    )
    last = (plan.pp - 1) * (gpus // plan.pp)
    request = trace_request(scenario, plan, tuple(sorted({0, last})))
    ranks = tuple(trace_rank(request, rank) for rank in request.ranks)
    for rank in compare(scenario, plan, Traces(versions={}, ranks=ranks)):
        print(f"{model} {software} {text} rank {rank.trace.rank}: {rank.ratio - 1:+.2%}")
        assert rank.ratio == pytest.approx(1.0, abs=0.01)
