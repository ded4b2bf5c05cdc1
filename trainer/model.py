"""The real megatron-core GPT model of a Job: configuration, layer specification, model chunks.

`transformer_config` turns ModelSpec, TrainPlan and Numerics into megatron-core's TransformerConfig; `model_chunks` builds this
rank's share, one GPTModel per virtual pipeline chunk. With Transformer Engine its layers are used; without it megatron-core's
local ones, in which norm and attention core come from `kernels/`.

Rotary positions of ModelSpec `yarn` are built as plain `rope` outside MLA: the same shapes and the same work, other angles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from autoconfig.kernels.attention import FlashAttention, ParallelNorm, UnfusedAttention
from autoconfig.specs.errors import PlanError, UnsupportedError, refuse
from autoconfig.specs.job import Job
from autoconfig.specs.layouts import layout_text
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.scenario import all_biases, endless_recomputation, not_buildable
from megatron.core import parallel_state
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Type of weights and activations by Megatron's flag; none of them: fp32."""
_FUSED_ACTIVATIONS = {"gelu": F.gelu, "swiglu": F.silu, "geglu": F.gelu}
_ACTIVATIONS = {**_FUSED_ACTIVATIONS, "squared-relu": squared_relu}


def transformer_config(job: Job, *, initialize: bool = True, traced: bool = False) -> TransformerConfig:
    """megatron-core's configuration of the job. `initialize` False leaves weights as allocated and unmarked (fake tensors);
    `traced`: T5, BERT and hybrids can be built, which traces do (trainer/tracing/encoders.py, hybrids.py).
    Raises UnsupportedError for what megatron-core cannot build, PlanError with megatron-core's own words for a plan that it
    refuses."""
    _refuse(job, traced)
    kind = MLATransformerConfig if job.model.multi_latent_attention else TransformerConfig
    values = {**_architecture(job.model), **_experts(job), **_parallelism(job), **_numerics(job), **_kernels(job)}
    values["perform_initialization"] = initialize
    if job.device == "cpu":  # trainer/weights.py sets every weight by its name
        values |= dict.fromkeys(("init_method", "output_layer_init_method", "embedding_init_method"), _as_allocated)
    try:
        return kind(**values)
    except (AssertionError, ValueError) as error:
        raise PlanError(f"{job.plan}: megatron-core refuses it: {error}") from error


def _as_allocated(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _refuse(job: Job, traced: bool) -> None:
    model, plan, length = job.model, job.plan, job.workload.seq_length
    local, kernel = job.software == "megatron-local", job.attention_kernel
    parts, endless = not_buildable(model, encoders=traced), endless_recomputation(model, plan.recompute.modules)
    refuse(
        (
            model.is_hybrid and not traced,
            f"{model.name} is a hybrid: the training core builds megatron-core's GPT model only",
        ),
        (parts, f"{model.name} has {' and '.join(parts)}: megatron-core's GPT model cannot be built with it"),
        (model.is_sparse, f"{model.name} has sparse attention (DSA), whose fused kernels need a GPU: no trace of it"),
        (plan.fsdp or plan.offload, f"{plan}: the training core runs neither fsdp nor offload; leave them out of the plan"),
        (job.numerics.peft != "none", f"peft {job.numerics.peft}: the training core trains all weights"),
        (
            job.workload.packed_length is not None,
            f"packed_length {job.workload.packed_length}: samples of the training core are one sequence",
        ),
        (
            local and job.numerics.precision == "fp8",
            "precision fp8 needs software transformer-engine; megatron-local runs bf16, fp16 and fp32",
        ),
        (
            local and model.attention_sinks and kernel == "flash",
            f"{model.name} has attention sinks: megatron-local needs attention_kernel unfused for them",
        ),
        (local and kernel == "unfused" and plan.cp > 1, f"{plan}: context parallelism needs attention_kernel flash"),
        (endless is not None, f"{plan}: {endless}"),
        error=UnsupportedError,
    )
    refuse(
        (plan.sp and plan.tp == 1, f"{plan}: sequence parallelism divides over tensor-parallel ranks and needs tp above 1"),
        (
            length % (2 * plan.cp if plan.cp > 1 else 1) or length % (plan.tp * plan.cp),
            f"seq_length={length} must be a multiple of tp x cp = {plan.tp * plan.cp} (and of 2 x cp with cp)",
        ),
        error=PlanError,
    )


def _architecture(model: ModelSpec) -> dict[str, Any]:
    values: dict[str, Any] = {
        "num_layers": model.num_layers - (model.encoder_num_layers if model.is_encoder_decoder else 0),
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "kv_channels": model.kv_channels,
        "ffn_hidden_size": model.ffn_hidden_size,
        "normalization": model.normalization,
        "gated_linear_unit": model.gated_linear_unit,
        "activation_func": _ACTIVATIONS[model.activation],
        "add_bias_linear": all_biases(model),
        "add_qkv_bias": model.add_qkv_bias,
        "qk_layernorm": model.qk_layernorm or model.multi_latent_attention,
        "window_size": (model.window_size, 0) if model.window_size is not None else None,
        "window_attn_skip_freq": model.window_attn_skip_freq,
        "softmax_type": "learnable" if model.attention_sinks else "vanilla",
        "mtp_num_layers": model.mtp_num_layers or None,
    }
    if model.clamped_swiglu:
        values |= {"activation_func": quick_gelu, "glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}
    if model.multi_latent_attention:
        for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            values[name] = getattr(model, name)
        values["rope_type"] = "yarn" if model.position_embedding_type == "yarn" else "rope"
    return values


def _experts(job: Job) -> dict[str, Any]:
    """Routing as the exported launch scripts have it (autoconfig/megatron/write_model.py)."""
    model, capacity = job.model, job.numerics.moe_capacity_factor
    if not model.is_moe:
        return {}
    frequency = model.moe_layer_freq
    biased = model.moe_router_enable_expert_bias
    return {
        "num_moe_experts": model.num_moe_experts,
        "moe_router_topk": model.moe_router_topk,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
        "moe_layer_freq": frequency if isinstance(frequency, int) else list(frequency),
        "moe_shared_expert_intermediate_size": model.moe_shared_expert_intermediate_size or None,
        "moe_shared_expert_gate": model.moe_shared_expert_gate,
        "moe_router_score_function": "sigmoid" if biased else "softmax",
        "moe_router_enable_expert_bias": biased,
        "moe_router_load_balancing_type": "seq_aux_loss" if biased else "aux_loss",
        "moe_aux_loss_coeff": 1e-4 if biased else 1e-2,
        "moe_router_pre_softmax": not biased and model.moe_router_topk == 1,
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": job.software == "transformer-engine",
        "moe_expert_capacity_factor": capacity,
        "moe_pad_expert_input_to_capacity": capacity is not None,
    }


def _parallelism(job: Job) -> dict[str, Any]:
    plan = job.plan
    layout = layout_text(job.model, plan)
    values: dict[str, Any] = {
        "tensor_model_parallel_size": plan.tp,
        "pipeline_model_parallel_size": plan.pp,
        "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else None,
        "context_parallel_size": plan.cp,
        "expert_model_parallel_size": plan.ep,
        "expert_tensor_parallel_size": plan.etp,
        "sequence_parallel": plan.sp,
        "num_layers_in_first_pipeline_stage": plan.first if plan.pp > 1 and not layout else None,
        "num_layers_in_last_pipeline_stage": plan.last if plan.pp > 1 and not layout else None,
        "deallocate_pipeline_outputs": True,
        "overlap_p2p_comm": plan.vpp > 1,
        "batch_p2p_comm": plan.vpp == 1,
    }
    if layout:  # older releases of megatron-core do not know the field
        values["pipeline_model_parallel_layout"] = layout
    if plan.cp > 1:
        values["cp_comm_type"] = "p2p" if job.software == "transformer-engine" else "all_gather"
    recompute = plan.recompute
    if recompute.granularity != "none":
        values["recompute_granularity"] = recompute.granularity
    if recompute.granularity == "selective":
        values["recompute_modules"] = list(recompute.modules)
    elif recompute.granularity == "full":
        values |= {"recompute_method": recompute.method, "recompute_num_layers": recompute.num_layers}
    return values


def _numerics(job: Job) -> dict[str, Any]:
    numerics, flags = job.numerics, dict(job.numerics.format.flags)
    dtype = next((dtype for flag, dtype in DTYPES.items() if flag in flags), torch.float32)
    values: dict[str, Any] = {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "fp16": dtype is torch.float16,
        "attention_dropout": numerics.attention_dropout,
        "hidden_dropout": numerics.hidden_dropout,
        "deterministic_mode": numerics.deterministic,
    }
    if "fp8-format" in flags:
        values |= {
            "fp8": flags["fp8-format"],
            "fp8_recipe": flags["fp8-recipe"],
            "fp8_param": numerics.fp8_param_gather,
            "fp8_amax_history_len": 1024,
            "fp8_amax_compute_algo": "max",
        }
    return values


def _kernels(job: Job) -> dict[str, Any]:
    """What is fused. megatron-core's torch.compile fusions only on CUDA: on a CPU they cost a compiler run and win nothing."""
    engine, cuda = job.software == "transformer-engine", job.device == "cuda"
    rotates = job.model.position_embedding_type in ("rope", "yarn") and not job.model.multi_latent_attention
    return {
        "transformer_impl": "transformer_engine" if engine else "local",
        "use_cpu_initialization": False,
        "bias_activation_fusion": cuda and job.model.activation in _FUSED_ACTIVATIONS,
        "bias_dropout_fusion": cuda and not (job.model.is_moe and all_biases(job.model)),  # grouped experts refuse it
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "gradient_accumulation_fusion": engine,
        "apply_rope_fusion": engine and rotates,
        "moe_permute_fusion": engine and job.model.is_moe,
    }


def model_chunks(
    job: Job,
    config: TransformerConfig,
    *,
    own_attention: bool = True,
    build: Callable[[Job, TransformerConfig, int | None], Any] | None = None,
) -> list[Any]:
    """This rank's GPTModel per virtual pipeline chunk, in the parameters' type; on a CPU not initialised. megatron-core's
    parallel state must exist, with the plan's sizes. Without `own_attention` the attention core is megatron-core's, which reads
    a KV cache. `build` makes a chunk of another model."""
    chunks = []
    with default_dtype(config.params_dtype):
        for chunk in range(job.plan.vpp):
            stage = chunk if job.plan.vpp > 1 else None
            chunks.append(_chunk(job, config, stage, own_attention) if build is None else build(job, config, stage))
    for model in chunks:
        for parameter in model.parameters():  # the router makes its weight in fp32 whatever the configuration says
            if parameter.dtype != config.params_dtype:
                parameter.data = parameter.data.to(config.params_dtype)
    return chunks


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default type, for modules that ask nothing else (position embeddings)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _chunk(job: Job, config: TransformerConfig, vp_stage: int | None, own_attention: bool) -> GPTModel:
    model, engine = job.model, job.software == "transformer-engine"
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    block = get_gpt_decoder_block_spec(config, engine, normalization=model.normalization, vp_stage=vp_stage)
    block = _with_our_operators(job, block, own_attention)
    depths = None
    if model.mtp_num_layers:
        depths = _with_our_operators(job, get_gpt_mtp_block_spec(config, block, engine, vp_stage=vp_stage), own_attention)
    position = "learned_absolute" if model.position_embedding_type == "learned_absolute" else "rope"
    return GPTModel(
        config=config,
        transformer_layer_spec=block,
        vocab_size=int(padded_vocab_size(model, job.plan.tp)),
        max_sequence_length=max(model.max_position_embeddings, job.workload.seq_length),
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        position_embedding_type="none" if model.position_embedding_type == "none" else position,
        **_rotary(model),
        mtp_block_spec=depths,
        vp_stage=vp_stage,
    )


def _rotary(model: ModelSpec) -> dict[str, Any]:
    scaled = model.rope_scaling is not None and model.rope_scaling.type == "llama3"
    found: dict[str, Any] = {"rotary_percent": model.rotary_percent, "rope_scaling": scaled}
    if model.rotary_base is not None:
        found["rotary_base"] = model.rotary_base
    if scaled and model.rope_scaling is not None:
        found["rope_scaling_factor"] = model.rope_scaling.factor
    return found


def _with_our_operators(job: Job, spec: Any, own_attention: bool) -> Any:
    """The same specification with our norm and attention core where megatron-core's local ones stand."""
    attention = FlashAttention if job.attention_kernel == "flash" else UnfusedAttention
    return substituted(spec, {WrappedTorchNorm: ParallelNorm, **({DotProductAttention: attention} if own_attention else {})})


def substituted(spec: Any, by: dict[Any, Any]) -> Any:
    """A copy of a tree of ModuleSpecs, submodule dataclasses, partials and lists, with the classes of `by` exchanged."""
    for old, new in by.items():
        if spec is old:
            return new
    if isinstance(spec, list):
        return [substituted(item, by) for item in spec]
    if isinstance(spec, functools.partial):
        named = {key: substituted(value, by) for key, value in spec.keywords.items()}
        return functools.partial(substituted(spec.func, by), *spec.args, **named)
    if isinstance(spec, ModuleSpec) or (dataclasses.is_dataclass(spec) and type(spec).__name__.endswith("Submodules")):
        values = {f.name: substituted(getattr(spec, f.name), by) for f in dataclasses.fields(spec) if f.init}
        copy: Any = dataclasses.replace
        return copy(spec, **values)
    return spec
