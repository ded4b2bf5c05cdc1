"""The trace on megatron-core 0.19.2: the same bytes as the formula that was read off 0.16.1."""

import warnings

import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

from autoconfig.core.trace import compare, trace_request
from autoconfig.core.trace_process import Traces

with warnings.catch_warnings():  # torch and megatron-core warn at import
    warnings.simplefilter("ignore")
    from autoconfig.trainer.tracing.trace import trace_rank


@pytest.mark.parametrize(
    ("model", "software", "gpus", "text"),
    [
        ("llama3-8b", "megatron-local-flash", 8, "tp=2,pp=2,mbs=1,sp=1"),
        ("llama3-8b", "megatron-local-flash", 8, "tp=2,pp=2,mbs=1,sp=1,recompute=full:uniform:1"),
        ("llama3-8b", "transformer-engine", 8, "tp=2,pp=1,mbs=1,sp=1"),
        ("mixtral-8x7b", "megatron-local-flash", 16, "tp=2,pp=2,ep=4,mbs=1,sp=1"),
    ],
)
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
