"""Which layouts an engine has no arguments for: the search leaves them out and the exporter names them."""

from __future__ import annotations

from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec


def limit(engine: EngineSpec, plan: EnginePlan) -> str:
    """What the engine cannot say of this plan and what to try; empty where it can say all of it.

    TensorRT-LLM 1.3, llm_args.py: enable_attention_dp has no size of its own, it splits all of tensor_parallel_size. vLLM 0.33,
    parallel.py: --enable-expert-parallel takes all ranks of tensor and data parallelism. megatron-core 0.19.2, text generation
    server: no option for a quantised cache or for attention data parallelism.
    """
    if engine.framework == "tensorrt-llm" and plan.adp > 1 and plan.tp > 1:
        return "TensorRT-LLM's attention data parallelism has one GPU a rank; --fix tp=1 or --fix adp=1"
    if engine.framework == "vllm" and plan.ep not in (1, plan.tp * plan.adp):
        return f"vLLM's expert parallelism takes all ranks of a stage; --fix ep={plan.tp * plan.adp} or --fix ep=1"
    if engine.framework == "megatron" and (plan.kv != "bf16" or plan.adp > 1):
        return "megatron inference has a cache of 16 bits and no attention data parallelism; --fix kv=bf16, --fix adp=1"
    return ""


def least_tokens(engine: EngineSpec, plan: EnginePlan, batch: Number) -> Number:
    """Tokens of an iteration below which the engine does not start with `batch` sequences of an instance.

    vLLM 0.33, scheduler.py: max_num_batched_tokens is at least max_num_seqs, which all stages of a rank share.
    """
    return batch / plan.adp if engine.framework == "vllm" else 0.0 * batch


def require_runs(engine: EngineSpec, plan: EnginePlan, *, disaggregated: bool) -> None:
    """Raises UnsupportedError where the engine has no arguments for the plan."""
    why = limit(engine, plan)
    if not why and engine.framework == "megatron" and disaggregated:
        why = "megatron inference is not exported disaggregated; --aggregated-only"
    if not why and engine.framework == "megatron" and plan.weights not in ("bf16", "fp8"):
        why = "megatron inference is exported with bf16 or fp8 weights; --fix weights=bf16"
    if why:
        raise UnsupportedError(f"{plan}: {why}")
