"""Serving answers as JSON. Sizes are GiB, times seconds; the schema is autoconfig/schemas/serve.schema.json."""

from __future__ import annotations

from typing import Any

from autoconfig.memory_model.serving import ServingMemory
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.deployment import DeploymentReport, Latency
from autoconfig.serving.simulate import summary
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.specs.units import GIB
from autoconfig.time_model.serving.workload import Trace


def serve_json(answer: ServeAnswer) -> dict[str, Any]:
    """The whole answer."""
    q, d = answer.question, answer.deployments
    return {
        "schema_version": 1,
        "question": {
            "model": q.model.name,
            "gpu": q.gpu.id,
            "num_gpus": q.num_gpus,
            "gpus_per_node": q.gpus_per_node,
            "engine": q.engine.name,
            "isl": q.lengths.isl,
            "osl": q.lengths.osl,
            "isl_stddev": q.workload.isl_stddev,
            "osl_stddev": q.workload.osl_stddev,
            "longest_tokens": q.workload.longest_tokens,
            "trace": _trace(q.workload) if isinstance(q.workload, Trace) else None,
            "ttft_limit_seconds": q.ttft_s,
            "tpot_limit_seconds": q.tpot_s,
            "requests_per_second": q.rate or None,
            "goal": q.goal,
            "chunked_prefill": q.chunked,
            "assumed": list(q.assumed),
        },
        "funnel": {
            "layouts": len(d.layouts),
            "enumerated": d.enumerated,
            "fit": d.fit,
            "meet_limits": len(d.order),
            "seconds": round(d.seconds, 4),
        },
        "deployments": [deployment_json(one) for one in answer.reports],
        "pareto": [deployment_json(one) for one in answer.pareto],
        "included": [
            {"plan": text, "deployment": deployment_json(one) if one else None, "why_not": why}
            for text, one, why in answer.included
        ],
        "why": list(answer.why),
        "sensitivity": list(answer.sensitivity),
        "nearest": deployment_json(answer.nearest) if answer.nearest else None,
        "miss": answer.infeasible,
    }


def _trace(trace: Trace) -> dict[str, Any]:
    return {
        "requests": len(trace.arrival_s),
        "seconds": float(trace.arrival_s[-1]),
        "input_tokens": summary(trace.input_tokens),
        "output_tokens": summary(trace.output_tokens),
    }


def deployment_json(one: DeploymentReport) -> dict[str, Any]:
    """One deployment."""
    m = one.memory
    return {
        "plan": str(one.plan),
        **_plan(one.plan),
        "gpus": one.gpus,
        "users": one.concurrency,
        "requests_per_second": one.requests_per_s,
        "tokens_per_second_per_gpu": one.tokens_per_s_per_gpu,
        "tokens_per_second_per_user": one.tokens_per_s_per_user or None,
        "ttft_seconds": one.ttft_s,
        "tpot_seconds": one.tpot_s or None,
        "max_concurrency": one.max_concurrency,
        "max_concurrency_longest": one.max_concurrency_longest,
        "cost_per_million_tokens": one.cost_per_million_tokens,
        "memory_gib": {**_memory(m), "kv_longest_sequence": one.longest_bytes / GIB},
        "prefill_memory_gib": _memory(one.prefill_memory) if one.prefill_memory else None,
        "weights_gib": {name: size / GIB for name, size in one.weight_parts.items()},
        "decode_step_seconds": one.step_parts,
        "prompt_step_seconds": one.mixed_parts,
        "simulated": _latency(one.latency) if one.latency else None,
    }


def _memory(m: ServingMemory) -> dict[str, float]:
    return {
        "device": float(m.device_bytes) / GIB,
        "weights": float(m.weights_bytes) / GIB,
        "activations": float(m.activation_bytes) / GIB,
        "runtime": float(m.runtime_bytes) / GIB,
        "kv_pool": float(m.kv_pool_bytes) / GIB,
        "kept_free": float(m.kept_free_bytes) / GIB,
        "kv_per_sequence": float(m.kv_bytes_per_sequence) / GIB,
    }


def _plan(plan: ServePlan) -> dict[str, Any]:
    return {"decode": _engine(plan.decode), "prefill": _engine(plan.prefill) if plan.prefill else None}


def _engine(plan: EnginePlan) -> dict[str, Any]:
    return {
        "tensor_parallel_size": plan.tp,
        "pipeline_parallel_size": plan.pp,
        "expert_parallel_size": plan.ep,
        "attention_data_parallel_size": plan.adp,
        "weight_format": plan.weights,
        "kv_cache_format": plan.kv,
        "max_batch_size": plan.batch,
        "max_num_tokens": plan.tokens,
        "num_replicas": plan.replicas,
    }


def _latency(found: Latency) -> dict[str, Any]:
    return {
        "requests": found.requests,
        "ttft_seconds": found.ttft_s,
        "tpot_seconds": found.tpot_s,
        "itl_seconds": found.itl_s,
        "e2e_seconds": found.e2e_s,
        "tokens_per_second_per_gpu": found.tokens_per_s_per_gpu,
        "goodput_ratio": found.goodput_ratio,
    }
