"""Models whose sizes are all different, so that a formula with a wrong one gives another number; and the pages' letters."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.huggingface import config_notes
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentence
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.job import TrainingJob, shapes_of

SIZES = {
    "name": "small", "num_layers": 4, "hidden_size": 96, "num_attention_heads": 24, "num_query_groups": 8, "kv_channels": 10,
    "ffn_hidden_size": 200, "vocab_size": 1000, "position_embedding_type": "rope",
}  # fmt: skip
EXPERTS = {"num_moe_experts": 16, "moe_router_topk": 3, "moe_ffn_hidden_size": 56, "moe_shared_expert_intermediate_size": 88}
LATENT_SIZES = {
    "multi_latent_attention": True, "q_lora_rank": 44, "kv_lora_rank": 36, "qk_head_dim": 14, "qk_pos_emb_head_dim": 6,
    "v_head_dim": 18,
}  # fmt: skip
HYBRID_SIZES = {
    "hybrid_layer_pattern": "M*GE", "mamba_num_heads": 12, "mamba_head_dim": 20, "mamba_state_dim": 26, "mamba_num_groups": 4,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 22, "linear_value_head_dim": 30, **EXPERTS,
}  # fmt: skip
GATED_SIZES = {"gated_linear_unit": True, "activation": "swiglu"}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZES, "gated": SIZES | GATED_SIZES, "moe": SIZES | GATED_SIZES | EXPERTS, "mla": SIZES | GATED_SIZES | LATENT_SIZES,
    "hybrid": SIZES | HYBRID_SIZES, "latent moe": SIZES | EXPERTS | {"moe_latent_size": 40},
    "gpt-oss": SIZES | GATED_SIZES | EXPERTS | {"attention_sinks": True, "moe_expert_bias": True},
    "t5": SIZES | {"encoder_num_layers": 2}, "bert": SIZES | {"encoder_num_layers": 4, "masked_lm_head": True},
}  # fmt: skip
GPT, GATED, MOE, MLA, HYBRID, _, GPT_OSS, T5, BERT = (ModelSpec(**sizes) for sizes in MODELS.values())
A100, H100, H200, B200, MI300X = map(load_gpu, ("a100-sxm-80gb", "h100", "h200", "b200", "mi300x"))
ENCODER_TOKENS = 48
"""Of a sample, in formulas of two stacks."""


def symbols(model: ModelSpec, numerics: Numerics, plan: dict[str, int], sequence: int) -> dict[str, Any]:
    """Letters of docs/memory_model.md and docs/time_model.md: T, h, a, d, n, f, G, V, L, t, u, E, k, fe, R as there; q = a d,
    kv = max(n / t, 1) t d; w bytes of an activation (the pages' 2), g8 of a GEMM's saved input (1 in fp8), x = etp, p = pp;
    Q and W: channels of Gated DeltaNet's keys and values; Te, se: of the encoder."""
    s, b, c, t = sequence, plan["mbs"], plan["cp"], plan["tp"]
    u, tokens, w = t if plan["sp"] else 1, s * b / c, 4 if numerics.precision == "fp32" else 2
    factor = numerics.moe_capacity_factor or numerics.moe_imbalance or 1.0
    return {
        "s": s, "b": b, "c": c, "t": t, "u": u, "T": tokens, "w": w, "g8": 1 if numerics.precision == "fp8" else w,
        "x": plan["etp"], "ep": plan["ep"], "p": plan["pp"], "h": model.hidden_size, "a": model.num_attention_heads,
        "d": model.kv_channels, "q": model.num_attention_heads * model.kv_channels,
        "kv": max(model.num_query_groups, t) * model.kv_channels, "ak": max(model.num_query_groups, t),
        "f": model.ffn_hidden_size, "G": 2 if model.gated_linear_unit else 1, "V": math.ceil(1000 / (128 * t)) * 128 * t,
        "E": model.num_moe_experts, "k": model.moe_router_topk, "fe": model.moe_ffn_hidden_size,
        "fs": model.moe_shared_expert_intermediate_size, "l": model.moe_latent_size,
        "R": factor * plan["etp"] * model.moe_router_topk * tokens / u, "Te": ENCODER_TOKENS * b / c, "se": ENCODER_TOKENS,
        "qr": model.q_lora_rank, "kvr": model.kv_lora_rank, "dn": model.qk_head_dim, "dr": model.qk_pos_emb_head_dim,
        "dv": model.v_head_dim, "H": model.mamba_num_heads, "di": model.mamba_num_heads * model.mamba_head_dim,
        "gn": model.mamba_num_groups * model.mamba_state_dim, "ns": model.mamba_state_dim, "g": model.mamba_num_groups,
        "dk": model.linear_key_head_dim, "Q": model.linear_num_key_heads * model.linear_key_head_dim,
        "Hv": model.linear_num_value_heads, "W": model.linear_num_value_heads * model.linear_value_head_dim,
        "drop": numerics.hidden_dropout > 0, "adrop": numerics.attention_dropout > 0, "max": max,
    }  # fmt: skip


def scenario(name="gpt", change=None, batch=32, seq=64, gpus=16, given=None, stack=None, **numerics) -> Scenario:
    """A small model of 4 layers, 24 heads, 8 groups on 16 GPUs; `change`: of the model, `stack`: of the software."""
    model = ModelSpec(**MODELS[name]).replace(**(change or {}))
    return Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), gpus), numerics=Numerics(**numerics),
        given=GivenSettings(**given or {}),
        software=replace(load_stack("transformer-engine"), **(stack or {})),
        workload=Workload(seq_length=seq, global_batch_size=batch),
    )  # fmt: skip


def noted(config: Mapping[str, Any]) -> list[str]:
    """What is said of a config.json's values, in the order of reading."""
    return [sentence(remark) for remark in config_notes(config)]


def job_and_shapes(
    text: str, gpus: int = 8, model: str = "llama3-8b", seq: int = 32768, **numerics: Any
) -> tuple[TrainingJob, Any]:
    """Return the job of a catalogue model on H100 and the shapes of a plan of it."""
    scenario = Scenario(
        model=load_model(model),
        cluster=cluster_of(load_gpu("h100"), gpus),
        numerics=Numerics(**numerics),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=seq, global_batch_size=64),
    )
    job = TrainingJob.of(scenario)
    return job, shapes_of(scenario.layouts([parse_plan(text, gpus)]), job)
