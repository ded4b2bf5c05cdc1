"""The formula against the bytes of the real T5Model, BertModel, HybridModel and GPTModel of megatron-core, on fake tensors."""

import pytest
from autoconfig.specs.plan import parse_plan

from autoconfig.core.trace import Traces, compare, trace_request
from autoconfig.training.question import Request, understand

JOBS = [
    ("t5-11b", 8, "tp=8,mbs=4,sp=1", (0,)),
    ("t5-3b", 16, "tp=2,mbs=8,recompute=full:uniform:1", (0,)),
    ("bert-20b", 64, "tp=8,pp=4,mbs=4,sp=1", (0, 63)),
    ("bert-4b", 8, "tp=1,pp=4,mbs=2", (0, 7)),
    ("nemotron-3-nano", 16, "tp=1,pp=2,ep=8,mbs=1", (0, 15)),
    ("nemotron-3-nano", 16, "tp=2,pp=2,ep=4,mbs=2,sp=1", (0, 15)),
    ("nemotron-3-nano", 16, "tp=1,pp=2,ep=8,mbs=2,recompute=selective:layernorm", (0, 15)),
    ("nemotron-3-nano", 16, "tp=1,pp=2,ep=8,mbs=2,recompute=selective:layernorm+moe_act,first=25,last=27", (0, 15)),
    ("qwen3-next-80b-a3b", 64, "tp=1,pp=4,ep=16,mbs=1", (0, 16, 63)),
    ("qwen3-next-80b-a3b", 64, "tp=2,pp=4,ep=8,mbs=2,sp=1", (0, 63)),
    ("llama3-8b", 8, "tp=2,pp=2,mbs=2,sp=1,recompute=selective:layernorm", (0, 7)),
    ("gpt-oss-20b", 16, "tp=1,pp=2,ep=4,mbs=1,recompute=selective:layernorm", (0, 15)),
    ("gpt-oss-120b", 64, "tp=1,pp=4,ep=16,mbs=1", (0, 63)),
    ("gpt-oss-120b", 64, "tp=2,pp=4,ep=8,mbs=2,sp=1", (0, 63)),
]


@pytest.mark.filterwarnings("ignore")  # of torch and megatron-core at import
@pytest.mark.parametrize(("model", "gpus", "text", "ranks"), JOBS, ids=[f"{job[0]}-{job[2]}" for job in JOBS])
def test_formula_equals_the_trace(model, gpus, text, ranks):
    from autoconfig.trainer.tracing.trace import trace_rank

    scenario = understand(Request(model=model, gpus=gpus, gpu="h100", software="transformer-engine")).scenario
    plan = parse_plan(text, gpus)
    request = trace_request(scenario, plan, ranks)
    traces = Traces(versions={}, ranks=tuple(trace_rank(request, rank) for rank in ranks))
    for rank in compare(scenario, plan, traces):
        terms = {difference.term: difference for difference in rank.differences}
        print(f"{model} {plan} rank {rank.trace.rank}: {rank.trace.peak_bytes / 2**30:.3f} GiB {rank.ratio - 1:+.2%}")
        assert rank.ratio == pytest.approx(1.0, abs=0.02)
        assert terms["activations"].formula == pytest.approx(terms["activations"].traced, rel=0.05)
        for name in ("weights", "gradients", "optimizer"):
            assert terms[name].formula == pytest.approx(terms[name].traced, rel=1e-6)
