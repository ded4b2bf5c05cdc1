"""Rows of the catalogues, as `autoconfig models`, `gpus` and `software` print them."""

from __future__ import annotations

from typing import Any

from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.models.model_catalogue import load_model, model_names
from autoconfig.specs.models.parameters import active_matmul_parameters, total_parameters
from autoconfig.specs.software.engine import engine_names, load_engine
from autoconfig.specs.software.software import load_stack, software_names


def model_rows() -> list[dict[str, Any]]:
    """One row per catalogue model."""
    rows = []
    for name in model_names():
        model = load_model(name)
        experts = f"{model.num_moe_experts} top {model.moe_router_topk}" if model.num_moe_experts else "-"
        rows.append(
            {
                "name": name,
                "parameters": total_parameters(model),
                "active": active_matmul_parameters(model),
                "layers": model.num_layers,
                "hidden": model.hidden_size,
                "heads": model.num_attention_heads,
                "kv_heads": model.num_query_groups,
                "ffn": model.moe_ffn_hidden_size or model.ffn_hidden_size,
                "experts": experts,
                "vocabulary": model.vocab_size,
                "sequence": model.default_seq_length or "-",
                "global_batch": model.default_global_batch_size or "-",
            }
        )
    return rows


def gpu_rows() -> list[dict[str, Any]]:
    """One row per GPU type: dense peaks in TFLOPS, bandwidths in GB/s per direction."""
    rows = []
    for name in gpu_ids():
        gpu = load_gpu(name)
        peak = {key: round(value / 1e12) for key, value in gpu.flops_per_s.items()}
        rows.append(
            {
                "id": name,
                "memory_gib": round(gpu.memory_bytes / GIB, 1),
                "memory_gb_per_s": round(gpu.hbm_bytes_per_s / 1e9),
                "bf16_tflops": peak.get("bf16", "-"),
                "fp8_tflops": peak.get("fp8", "-"),
                "link": gpu.link,
                "link_gb_per_s": round(gpu.link_bytes_per_s / 1e9),
                "link_domain": gpu.link_domain_size,
                "gpus_per_node": gpu.gpus_per_node,
                "network_gbit_per_s": round(gpu.nic_bytes_per_s * 8 / 1e9),
            }
        )
    return rows


def software_rows() -> list[dict[str, Any]]:
    """One row per software stack: what it saves, fuses and overlaps."""
    rows = []
    for name in software_names():
        stack = load_stack(name)
        memory, time = stack.memory, stack.time
        overlaps = [
            word
            for word, on in (
                ("gradient reduction", time.overlap_grad_reduce),
                ("parameter gather", time.overlap_param_gather),
                (f"TP {time.tp_overlap_share:.0%}", time.tp_overlap_share > 0),
                (f"p2p {time.p2p_overlap_share:.0%}", time.p2p_overlap_share > 0),
            )
            if on
        ]
        loss, norms = f"{memory.loss_bytes_per_logit:g} B/logit", f"norms {memory.norm_input_bytes:g} B"
        row = {"name": name, "year": stack.year, "saves": f"{memory.attention_kernel} attention, {loss}, {norms}"}
        row |= {"overlaps": ", ".join(overlaps) or "nothing", "also_called": ", ".join(stack.aliases) or "-"}
        rows.append({**row, "description": stack.description})
    return rows


def engine_rows() -> list[dict[str, Any]]:
    """One row per serving engine generation."""
    rows = []
    for engine in map(load_engine, engine_names()):
        row = {
            "name": engine.name,
            "framework": engine.framework,
            "year": engine.year,
            "constants_stand_in": engine.parent or "-",
        }
        row |= {"constants_stand_in": engine.parent or "-", "kv_memory_ratio": engine.kv_memory_ratio}
        rows.append({**row, "chunked_prefill": engine.chunked_prefill, "description": engine.description})
    return rows
