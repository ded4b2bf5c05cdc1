"""megatron-core's `TransformerConfig` as Python, for programs that build the model themselves (judged by megatron-core)."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.words import NumericsWords, Settings, Written, foreign, head
from autoconfig.planning.export_files import remark
from autoconfig.specs.plan import OP, TrainPlan
from autoconfig.specs.scenario import Scenario, all_biases, not_buildable

NUMERICS: NumericsWords = {
    "precision": {"bf16", "fp16", "fp32", "fp8"},
    "fp8_recipe": {"delayed", "tensorwise", "blockwise", "mxfp8"},
    "fp8_param_gather": {False, True},
    "grad_reduce_dtype": {"fp32", "bf16"},
}
KEYS = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "recompute", "first", "last", "dist_opt")
_DTYPES = {"fp32": "torch.float32", "fp16": "torch.float16"}
_ACTIVATIONS = {"gelu": "F.gelu", "geglu": "F.gelu", "swiglu": "F.silu", "squared-relu": "squared_relu"}


def keywords(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Keyword -> Python expression as text, or a plain value."""
    m, n, recompute = scenario.model, scenario.numerics, plan.recompute
    dtype = _DTYPES.get(n.precision, "torch.bfloat16")
    found: dict[str, Any] = {
        "num_layers": m.num_layers,
        "hidden_size": m.hidden_size,
        "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads,
        "num_query_groups": m.num_query_groups,
        "kv_channels": m.kv_channels,
        "normalization": repr(m.normalization),
        "layernorm_epsilon": m.norm_epsilon or 1e-5,
        "activation_func": _ACTIVATIONS[m.activation],
        "gated_linear_unit": m.gated_linear_unit,
        "add_bias_linear": all_biases(m),
        "add_qkv_bias": m.add_qkv_bias,
        "bias_activation_fusion": False,
        "hidden_dropout": n.hidden_dropout,
        "attention_dropout": n.attention_dropout,
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "expert_tensor_parallel_size": plan.etp,
        "sequence_parallel": plan.sp,
        "params_dtype": dtype,
        "pipeline_dtype": dtype if plan.pp > 1 else None,
        "bf16": dtype == "torch.bfloat16",
        "fp16": dtype == "torch.float16",
        "num_layers_in_first_pipeline_stage": plan.first,
        "num_layers_in_last_pipeline_stage": plan.last,
        "recompute_granularity": None if recompute.granularity == "none" else repr(recompute.granularity),
        "recompute_method": repr(recompute.method) if recompute.method else None,
        "recompute_num_layers": recompute.num_layers or None,
    }
    if recompute.modules:
        found["recompute_modules"] = repr(list(recompute.modules))
    flags = dict(n.format.flags)
    for kind in ("fp8", "fp4"):
        if form := flags.get(f"{kind}-format"):
            found |= {kind: repr(form), f"{kind}_recipe": repr(flags[f"{kind}-recipe"])}
    if n.precision == "fp8":
        found["fp8_param"] = n.fp8_param_gather
    if m.is_moe:
        freq = m.moe_layer_freq
        found |= {
            "num_moe_experts": m.num_moe_experts,
            "moe_router_topk": m.moe_router_topk,
            "moe_ffn_hidden_size": m.moe_ffn_hidden_size,
            "moe_layer_freq": freq if isinstance(freq, int) else repr(list(freq)),
            "moe_shared_expert_intermediate_size": m.moe_shared_expert_intermediate_size or None,
            "moe_token_dispatcher_type": "'alltoall'",
            "moe_grouped_gemm": True,
        }
    return found


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The keywords that depend on the plan."""
    of_plan = ("parallel", "recompute", "pipeline", "params_dtype")
    return {key: (str(value),) for key, value in keywords(scenario, plan).items() if any(word in key for word in of_plan)}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What the config has no field for."""
    model = scenario.model
    found = foreign(scenario, plan, KEYS, NUMERICS) + ([f"recompute={plan.recompute}"] if OP in plan.recompute.modules else [])
    odd = not_buildable(model)
    if model.multi_latent_attention or model.is_hybrid or odd or model.mtp_num_layers:
        found.append(
            f"model {model.name}: its layers need other configs ({', '.join(odd) or 'latent attention, hybrids or MTP'})"
        )
    return found


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """transformer_config.py."""
    squared = ["from megatron.core.activations import squared_relu"] if scenario.model.activation == "squared-relu" else []
    lines = [f"    {key}={value}," for key, value in keywords(scenario, plan).items()]
    text = "\n".join(
        [
            f"# {remark(head(scenario, plan))}",
            "import torch",
            "import torch.nn.functional as F",
            *squared,
            "from megatron.core.transformer import TransformerConfig",
            "",
            "config = TransformerConfig(",
            *lines,
            ")",
            f"micro_batch_size, global_batch_size = {plan.mbs}, {scenario.workload.global_batch_size}",
            "",
        ]
    )
    model, workload = scenario.model, scenario.workload
    unsaid = (
        f"vocabulary {model.vocab_size}, positions and sequence length {workload.seq_length}: arguments of GPTModel",
        f"dist_opt={int(plan.dist_opt)}: DistributedDataParallelConfig and OptimizerConfig",
    )
    return Written(file_name="transformer_config.py", text=text, unsaid=unsaid)
