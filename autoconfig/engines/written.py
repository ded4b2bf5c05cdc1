"""An EngineStart in the flags of its engine, the same start for another engine, and how two differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoconfig.engines.flags import NAMES
from autoconfig.specs.engines.start import AUTO_LENGTH, EngineStart
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.serve_plan import EnginePlan

Flags = dict[str, str]
"""Flag -> value; empty for a switch."""
PROGRAMS = {"vllm": "vllm serve", "sglang": "python3 -m sglang.launch_server --model-path", "tensorrt-llm": "trtllm-serve"}
CACHES = {"vllm": {"fp8": "fp8", "nvfp4": "nvfp4"}, "sglang": {"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"}}


@dataclass(frozen=True, kw_only=True)
class WrittenStart:
    """A start command as text."""

    text: str
    unsaid: tuple[str, ...]
    """What the engine has no flag for, or reckons otherwise."""


def flags_of(start: EngineStart) -> Flags:
    """The command line that says all of a start but its model."""
    found = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _trtllm}[start.engine](start)
    return {name: "" if value is True else str(value) for name, value in found.items() if value not in (None, False, "")}


def _vllm(one: EngineStart) -> dict[str, Any]:
    length = "auto" if one.max_model_len == AUTO_LENGTH else one.max_model_len
    drafts: dict[str, Any] = {}
    if one.draft_tokens:
        drafts = {"method": one.draft_method, "num_speculative_tokens": one.draft_tokens}
        drafts |= {"model": one.draft_model.name} if one.draft_model else {}
    return {
        "--tensor-parallel-size": one.tp,
        "--pipeline-parallel-size": one.pp if one.pp > 1 else None,
        "--data-parallel-size": one.dp if one.dp > 1 else None,
        "--enable-expert-parallel": one.ep > 1,
        "--max-model-len": length,
        "--max-num-seqs": one.max_num_seqs,
        "--max-num-batched-tokens": one.max_num_batched_tokens,
        "--gpu-memory-utilization": one.memory_fraction,
        "--kv-cache-memory-bytes": one.kv_cache_bytes,
        "--kv-cache-dtype": CACHES["vllm"].get(one.kv or ""),
        "--block-size": one.block_size,
        "--no-enable-prefix-caching": one.prefix_caching is False,
        "--enforce-eager": bool(one.eager),
        "--max-cudagraph-capture-size": one.graph_max_batch,
        "--cpu-offload-gb": f"{one.cpu_offload_bytes / 2**30:g}" if one.cpu_offload_bytes else None,
        "--enable-lora": bool(one.lora_slots),
        "--max-loras": one.lora_slots or None,
        "--max-lora-rank": one.lora_rank,
        "--mamba-ssm-cache-dtype": one.state_dtype,
        "--speculative-config": f"'{json.dumps(drafts)}'" if drafts else None,
    }


def _sglang(one: EngineStart) -> dict[str, Any]:
    method = one.draft_method if one.draft_tokens else ""
    algorithm = {"mtp": "EAGLE", "eagle": "EAGLE3", "model": "STANDALONE", "ngram": "NGRAM"}.get(method)
    return {
        "--tp-size": one.tp,
        "--pp-size": one.pp if one.pp > 1 else None,
        "--dp-size": one.dp if one.dp > 1 else None,
        "--enable-dp-attention": one.attention_dp and one.dp > 1,
        "--ep-size": one.ep if one.ep > 1 else None,
        "--context-length": one.max_model_len if one.max_model_len != AUTO_LENGTH else None,
        "--max-running-requests": one.max_num_seqs,
        "--chunked-prefill-size": one.max_num_batched_tokens,
        "--mem-fraction-static": one.memory_fraction,
        "--max-total-tokens": one.max_total_tokens,
        "--kv-cache-dtype": CACHES["sglang"].get(one.kv or ""),
        "--page-size": one.block_size,
        "--disable-radix-cache": one.prefix_caching is False,
        "--disable-cuda-graph": bool(one.eager),
        "--cuda-graph-max-bs": one.graph_max_batch,
        "--enable-lora": bool(one.lora_slots),
        "--max-loras-per-batch": one.lora_slots or None,
        "--max-lora-rank": one.lora_rank,
        "--mamba-ssm-dtype": one.state_dtype,
        "--mamba-full-memory-ratio": one.state_ratio,
        "--max-mamba-cache-size": one.max_state_slots,
        "--swa-full-tokens-ratio": one.swa_ratio,
        "--speculative-algorithm": algorithm,
        "--speculative-num-draft-tokens": one.draft_tokens or None,
        "--speculative-draft-model-path": one.draft_model.name if one.draft_model else None,
    }


def _trtllm(one: EngineStart) -> dict[str, Any]:
    return {
        "--tp_size": one.tp,
        "--pp_size": one.pp if one.pp > 1 else None,
        "--ep_size": one.ep if one.ep > 1 else None,
        "--max_batch_size": one.max_num_seqs,
        "--max_num_tokens": one.max_num_batched_tokens,
        "--max_seq_len": one.max_model_len if one.max_model_len != AUTO_LENGTH else None,
        "--free_gpu_memory_fraction": one.memory_fraction,
    }


def llm_api_settings(one: EngineStart) -> dict[str, Any]:
    """What of a start TensorRT-LLM takes in its YAML."""
    cache = {"dtype": one.kv or None, "max_tokens": one.max_total_tokens, "enable_block_reuse": one.prefix_caching}
    drafts = {"decoding_type": {"mtp": "MTP", "eagle": "Eagle3", "ngram": "NGram"}.get(one.draft_method, "DraftTarget")}
    drafts |= {"num_nextn_predict_layers" if one.draft_method == "mtp" else "max_draft_len": one.draft_tokens}  # type: ignore[dict-item]
    found: dict[str, Any] = {
        "enable_attention_dp": True if one.attention_dp and one.dp > 1 else None,
        "kv_cache_config": {key: value for key, value in cache.items() if value is not None},
        "cuda_graph_config": {"max_batch_size": one.graph_max_batch} if one.graph_max_batch else {},
        "speculative_config": drafts if one.draft_tokens else {},
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def with_plan(start: EngineStart, plan: EnginePlan, engine: str = "") -> EngineStart:
    """The start with another layout, or the same one for another engine. Raises UnsupportedError where it has no words."""
    engine, dp = engine or start.engine, max(plan.adp, plan.replicas if plan.adp == 1 else 1)
    shares = plan.adp > 1
    if engine == "vllm":
        return start.replace(
            engine=engine, tp=plan.tp, pp=plan.pp, dp=dp, ep=plan.tp * dp if plan.ep > 1 else 1, attention_dp=False
        )
    tp = plan.tp * plan.adp
    if engine == "sglang":
        return start.replace(engine=engine, tp=tp, pp=plan.pp, dp=dp, ep=plan.ep, attention_dp=shares)
    if shares and plan.tp > 1:
        raise UnsupportedError(f"TensorRT-LLM's attention data parallelism has one GPU a rank, and {plan} has {plan.tp}")
    return start.replace(engine=engine, tp=tp, pp=plan.pp, dp=plan.adp, ep=plan.ep, attention_dp=shares)


def changed_flags(before: EngineStart, after: EngineStart) -> tuple[tuple[str, str, str], ...]:
    """(flag, value before, value after) of what differs; a switch is given or empty."""
    old, new = (_shown(one) for one in (before, after))
    return tuple(
        (name, old.get(name, ""), new.get(name, "")) for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)
    )


def _shown(one: EngineStart) -> Flags:
    flags = {name: value or "on" for name, value in flags_of(one).items()}
    if one.engine == "tensorrt-llm":
        flags |= {name: json.dumps(value) for name, value in llm_api_settings(one).items()}
    return flags


def converted(start: EngineStart, model: str, engine: str) -> WrittenStart:
    """The same start for another engine, as a script. Raises UnsupportedError for a layout that it has no words for."""
    plan, unsaid = start.plan, []
    sides = {"vllm": 1, "tensorrt-llm": 1, "sglang": plan.adp}
    seqs = start.max_num_seqs
    new = with_plan(start, plan, engine).replace(
        release="",
        max_num_seqs=seqs * sides[engine] // sides[start.engine] if seqs else None,
        memory_fraction=start.memory_fraction if engine == start.engine else None,
        kv_cache_bytes=start.kv_cache_bytes if engine == "vllm" else None,
        block_size=start.block_size if engine == start.engine else None,
    )
    if start.memory_fraction is not None and engine != start.engine:
        unsaid.append(f"memory share {start.memory_fraction:g}: {NAMES[engine]} reckons its own otherwise; its default is left")
    for name, value, why in _lost(start, engine):
        if value:
            unsaid.append(f"{name}: {why}")
    if engine == "vllm" and 1 < plan.ep < plan.tp * plan.adp:
        unsaid.append(f"ep={plan.ep}: vLLM's expert parallelism takes all {plan.tp * plan.adp} ranks")
    if plan.replicas > 1 and engine == "tensorrt-llm":
        unsaid.append(f"{plan.replicas} replicas: one instance each behind a router")
    return WrittenStart(text=command_text(new, model), unsaid=tuple(unsaid))


def _lost(start: EngineStart, engine: str) -> list[tuple[str, object, str]]:
    none = f"{NAMES[engine]} has no such flag"
    return [
        ("kv_cache_bytes", start.kv_cache_bytes if engine != "vllm" else None, none),
        ("num_gpu_blocks", start.num_gpu_blocks if engine != "vllm" else None, none),
        ("block_size", start.block_size if engine != start.engine else None, "blocks are the engine's own"),
        ("cpu_offload_bytes", start.cpu_offload_bytes if engine == "tensorrt-llm" else 0, none),
        ("eager", start.eager if engine == "tensorrt-llm" else None, "say cuda_graph_config: null in its YAML"),
        ("lora_slots", start.lora_slots if engine == "tensorrt-llm" else 0, "say lora_config in its YAML"),
        ("draft_method", start.draft_method if not start.draft_tokens else "", "its draft model is not in the catalogue"),
    ]


def command_text(start: EngineStart, model: str) -> str:
    """A script of one command, with the YAML that it needs written before."""
    lines = ["#!/usr/bin/env bash"]
    options = [f"{name} {value}".rstrip() for name, value in flags_of(start).items()]
    settings = llm_api_settings(start) if start.engine == "tensorrt-llm" else {}
    if settings:
        lines += ["cat > llm_api_options.yml << EOF", *_yaml(settings), "EOF"]
        options.append("--extra_llm_api_options llm_api_options.yml")
    return "\n".join([*lines, " \\\n  ".join([f"{PROGRAMS[start.engine]} {model}", *options]), ""])


def _yaml(values: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_yaml(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value) if isinstance(value, bool) else value}")
    return lines
