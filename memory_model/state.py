"""Model state: weights, gradients and optimizer state of one rank.

Bytes per parameter follow Narayanan et al. 2021 (16-bit weights 2, fp32 main gradients 4, fp32 master weights and two
moments 12: 18 in all) and Rajbhandari et al. 2020 (ZeRO: what is divided over how many ranks). Megatron's distributed
optimizer is ZeRO-1 over dp x cp ranks for dense parameters and over the expert data-parallel ranks for experts
(megatron-core distributed/param_and_grad_buffer.py; measured: dividing by dp alone is 46-116 % high with cp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.activations import Number, Shape, norm_input_bytes
from autoconfig.memory_model.sparse import sparse_attention_backward
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.layouts import Layouts, StageTable
from autoconfig.specs.models.model import DENSE_KINDS, ModelSpec
from autoconfig.specs.models.parameters import (
    attention_gemms,
    embedding_parameters,
    final_norm_parameters,
    kv_heads_per_rank,
    largest_matrices,
    mlp_gemms,
    output_bias_parameters,
    output_layer_parameters,
)
from autoconfig.specs.scenario import TYPE_BYTES, Numerics, Scenario
from autoconfig.specs.software.bitsandbytes import BNB_BLOCK, FROZEN_BYTES, MOMENT_BYTES, MOMENT_SCALE, ROW_SCALES
from autoconfig.specs.software.optimizers import MOMENTS_KEPT
from autoconfig.specs.software.software import StackMemory


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Trained (or frozen) parameters of one rank that share one sharding."""

    parameters: Number
    """Of one rank, before data-parallel sharding."""
    gemm_weights: Number
    """Those that fp8 GEMMs read."""
    trainable: Number
    """Those with gradients and optimizer state; all of them unless LoRA."""
    shard: Number
    """Ranks over which data-parallel sharding divides."""
    rows: Number = 0.0
    """Of the linear layers' weights, where each has a scale (frozen in int8)."""
    embedding: Number = 0.0
    """Trained parameters of the embedding's table."""


def weight_bytes(
    group: ParameterGroup,
    numerics: Numerics,
    stack: StackMemory,
    gpu: GpuSpec,
    fsdp: Number,
    fp8_gather: Number,
) -> Number:
    """Weights: 2 bytes (4 in fp32), fp8 copies for GEMMs, divided over the group with FSDP (ZeRO-3).

    The shards of torch's FSDP under a mixed-precision policy are the optimizer's fp32 weights: what is trained has 16 bits as
    long as its unit is gathered (`fsdp.unit_bytes`) and none beside.

    Frozen weights kept in fp32 under autocast take 4 (`frozen_dtype`); linear layers frozen in nf4 0.516 with double
    quantisation and 0.5625 without, in int8 and fp8 1 and 4 a row (FROZEN_BYTES of specs/scenario.py).

    fp8 keeps the 16-bit weight and caches the fp8 one; with `fp8_gather` (specs.fp8_gather) the fp8 one replaces it. Where the
    stack caches none, the other orientations are made for each GEMM; not of MXFP8 and NVFP4, whose columns are scaled in blocks
    of their own and cannot be made from the rows (Transformer Engine, mxfp8_tensor.py and nvfp4_tensor.py: _columnwise_data).
    """
    wide = numerics.activation_bytes
    total = wide * group.parameters
    if numerics.frozen_dtype == "fp32":
        total = total + (TYPE_BYTES["fp32"] - wide) * (group.parameters - group.trainable)
    if numerics.freezes_quantised:
        scales = TYPE_BYTES["fp32"] * group.rows if numerics.frozen_dtype in ROW_SCALES else 0.0
        total = total + (FROZEN_BYTES[numerics.frozen_dtype] - wide) * group.gemm_weights + scales
    if numerics.format.quantised:
        kept = numerics.format.weight_copy_bytes(gpu.compute_capability)
        alone = kept if stack.caches_quantised_weights else 0.0
        both = stack.caches_quantised_weights or numerics.format.both_orientations
        gathered = kept if both else numerics.format.saved_bytes
        total = total + group.gemm_weights * np.where(fp8_gather, gathered - 2, alone)
    if stack.torch_native:
        own = wide * group.trainable if has_masters(numerics) else 0.0
        return np.where(np.greater(fsdp, 0), (total - own) / group.shard, total)
    return np.where(np.equal(fsdp, 3), total / group.shard, total)


def gradient_bytes(group: ParameterGroup, numerics: Numerics, stack: StackMemory, fsdp: Number) -> Number:
    """The gradient buffer: 4 bytes with fp32 reduction, 2 with bf16; divided over the group from ZeRO-2 (fsdp 2, 3) on.

    Where the shards are fp32 weights (`weight_bytes`) their gradients have that type, whatever they are reduced in
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce: orig_dtype)."""
    total = TYPE_BYTES[numerics.grad_reduce_dtype] * group.trainable
    sharded = TYPE_BYTES["fp32"] * group.trainable if stack.torch_native and has_masters(numerics) else total
    return np.where(np.greater(fsdp, 0), sharded / group.shard, total)


def has_masters(numerics: Numerics) -> bool:
    """The optimizer keeps fp32 weights beside those of 16 bits."""
    return numerics.precision != "fp32" and not numerics.weights_are_masters


def optimizer_bytes_per_parameter(numerics: Numerics) -> float:
    """Master weight and two moments: 12 in fp32; less with the precision-aware optimizer; 8 when weights are fp32 already; 4
    where the 16-bit weights are their own masters. Moments in 8 bits are 2.03 of it, wherever they are; of Adafactor's factored
    moment nothing counts, of Muon's matrices one moment."""
    moments = MOMENTS_KEPT.get(numerics.optimizer, 2)
    if numerics.weights_are_masters:
        return moments * (MOMENT_BYTES + MOMENT_SCALE if numerics.narrow_moments else numerics.activation_bytes)
    master = 2 if numerics.store_param_remainders else TYPE_BYTES[numerics.main_params_dtype]
    if numerics.precision == "fp32":
        master = 0
    if numerics.narrow_moments:
        return master + 2.0 * (MOMENT_BYTES + MOMENT_SCALE)
    kept = (TYPE_BYTES[numerics.exp_avg_dtype], TYPE_BYTES[numerics.exp_avg_sq_dtype])[:moments]
    return float(master + sum(kept))


def optimizer_bytes(group: ParameterGroup, numerics: Numerics, dist_opt: Number, fsdp: Number, offload: Number) -> Number:
    """Optimizer state on the GPU: per-parameter bytes, divided over the group when sharded, less the share kept on the CPU.

    Of moments in 8 bits the embedding's are fp32 (transformers/trainer.py, create_optimizer: optim_bits 32 of nn.Embedding).
    Paged ones are in pages that the driver moves to the host when memory is short: only their maxima must be on the GPU.
    """
    total = optimizer_bytes_per_parameter(numerics) * group.trainable
    if numerics.narrow_moments:
        total = total + 2.0 * (TYPE_BYTES["fp32"] - MOMENT_BYTES - MOMENT_SCALE) * group.embedding
    if numerics.optimizer == "paged_adam8bit":
        total = total - 2.0 * (MOMENT_BYTES * (group.trainable - group.embedding) + TYPE_BYTES["fp32"] * group.embedding)
    if numerics.optimizer == "muon":  # AdamW of embedding, output layer, norms and biases
        second = numerics.activation_bytes if numerics.weights_are_masters else TYPE_BYTES[numerics.exp_avg_sq_dtype]
        total = total + second * np.maximum(group.trainable - group.gemm_weights, 0.0)
    total = total * (1 - np.asarray(offload))
    return np.where(np.logical_or(dist_opt, np.greater(fsdp, 0)), total / group.shard, total)


def optimizer_step_bytes(group: ParameterGroup, numerics: Numerics, stack: StackMemory, fsdp: Number) -> Number:
    """Temporary of the optimizer step: 16-bit gradients of the shard are cast to fp32 (findings: + 4 P / shard); not where
    weights and moments have 16 bits, too, nor where FSDP's shards are fp32.

    Of torch's plain optimizers, which run over lists of tensors, the square roots of all second moments in their type; torch's
    own FSDP has tensors of a kind that these lists do not take, one after another. Source: torch/optim/adam.py,
    _multi_tensor_adam (exp_avg_sq_sqrt), and optimizer.py, _foreach_supported_types; the fused ones have none.
    """
    if not stack.torch_native:
        cast = numerics.grad_reduce_dtype != "fp32" and not numerics.weights_are_masters
        return (4.0 if cast else 0.0) * group.trainable / group.shard
    cast = np.logical_and(numerics.grad_reduce_dtype != "fp32" and not numerics.weights_are_masters, np.equal(fsdp, 0))
    total = np.where(cast, 4.0 * group.trainable / group.shard, 0.0 * group.trainable)
    lists = stack.foreach_optimizer and numerics.optimizer == "adamw"
    width = numerics.activation_bytes if numerics.weights_are_masters else TYPE_BYTES[numerics.exp_avg_sq_dtype]
    return total + np.where(np.logical_and(lists, np.equal(fsdp, 0)), width * group.trainable, 0.0)


def on_gpu(scenario: Scenario, pp: Number, in_flight: Mapping[str, Number]) -> dict[str, Number]:
    """Layers in flight by kind whose saved activations are on the GPU at the peak: (L - N) / L of them where those of N of L
    layers wait in host memory, which one pipeline stage can (NV036).

    Source: Transformer Engine 2.x, pytorch/cpu_offload.py (AsyncDoubleBufferGroupOffloadHandler): the copies of the i-th of N
    layers are dropped L i / N layers into forward, all of them before the loss, and come back as backward frees the others.
    """
    layers = scenario.model.num_layers
    share = np.where(np.equal(pp, 1), (layers - scenario.settings().offload_layers) / layers, 1.0)
    return {kind: held * share for kind, held in in_flight.items()}


def fsdp_unit_bytes(held: Number, trained: Number, numerics: Numerics, fsdp: Number) -> Number:
    """Unsharded layers alive at once: two with prefetch, their weights (frozen ones as they are stored) and the gradients of
    what is trained of them (ZeRO-3), these gradients only (ZeRO-2)."""
    gradients = 2.0 * TYPE_BYTES[numerics.grad_reduce_dtype] * trained
    wide = numerics.activation_bytes
    frozen = FROZEN_BYTES.get(numerics.frozen_dtype, wide) * (held - trained)
    weights = np.where(np.equal(fsdp, 3), 2.0 * (frozen + wide * trained), 0.0)
    return weights + np.where(np.greater(fsdp, 0), gradients, 0.0)


def held_and_trained(model: ModelSpec, numerics: Numerics, kind: str, tp: Number, parameters: Number) -> tuple[Number, Number]:
    """Parameters of one layer of this kind on one rank, of which LoRA trains the adapters alone, which it adds to them."""
    parameters = parameters + 0.0 * np.asarray(tp)
    if numerics.peft != "lora":
        return parameters, parameters
    adapters = lora_parameters(model, numerics, kind, tp)
    return parameters + adapters, adapters


def lora_parameters(model: ModelSpec, numerics: Numerics, kind: str, tp: Number) -> Number:
    """Adapter parameters of one layer on one rank: rank x (in + out) per target matrix, the parallel side divided by tp.

    Source: Hu et al. 2021, section 4.1; adapters on experts are not modelled (MoE layers get attention adapters only), nor on
    recurrent layers of hybrids.
    """
    tp = np.asarray(tp, float)
    h, rank = model.hidden_size, numerics.lora_rank
    attention, total = {name: size for name, size in attention_gemms(model, 1).items() if "indexer" not in name}, 0.0 * tp
    if kind not in (*DENSE_KINDS, "moe", "attention") or (model.is_hybrid and kind == "moe"):
        attention = {}
    if attention and "linear_qkv" in numerics.lora_target_modules:
        total = total + sum(rank * (h + w / h / tp) for name, w in attention.items() if name != "linear_proj")
    if attention and "linear_proj" in numerics.lora_target_modules:
        total = total + rank * (attention["linear_proj"] / h / tp + h)
    if kind not in (*DENSE_KINDS, "mlp"):
        return total
    mlp = mlp_gemms(model, model.ffn_hidden_size, 1)
    if "linear_fc1" in numerics.lora_target_modules:
        total = total + rank * (h + mlp["linear_fc1"] / h / tp)
    if "linear_fc2" in numerics.lora_target_modules:
        total = total + rank * (mlp["linear_fc2"] / h / tp + h)
    return total


def dequantised_weight(model: ModelSpec, numerics: Numerics, tp: Number, part: str) -> Number:
    """The 16-bit copy of the largest frozen matrix of a layer's attention or mlp (`part`) beside its product, in forward and
    again in backward: 2 bytes an element; of NF4 with double quantisation beside the maxima in fp32, 4 / 64. 0 where no linear
    layer is quantised.

    Source: bitsandbytes 0.50, autograd/_functions.py (MatMul4Bit, MatMul8bitLt) and functional.py (dequantize_4bit).
    """
    if not numerics.freezes_quantised:
        return 0.0 * np.asarray(tp)
    maxima = 4.0 / BNB_BLOCK if numerics.frozen_dtype == "nf4" else 0.0
    attention, mlp = largest_matrices(model, tp)
    return (numerics.activation_bytes + maxima) * (mlp if part == "mlp" else attention)


def workspace_bytes(stack: StackMemory, dist_opt: Number, fsdp: Number, ranks: Number) -> Number:
    """GEMM and attention workspaces, and DeepSpeed's buckets, that stay allocated among the tensors; of the software. Without
    ZeRO there are none; `ranks`: over which it shards."""
    several, sizes = np.greater(ranks, 1), stack.bucket_bytes
    early, late = np.where(several, sizes[0], sizes[2]), np.where(several, sizes[1], sizes[3])
    buckets = np.where(np.logical_or(dist_opt, np.equal(fsdp, 2)), early, np.where(np.equal(fsdp, 3), late, 0))
    return stack.workspace_bytes + buckets


def dummy_weight_gradients(stack: StackMemory, numerics: Numerics, gemm_weights: tuple[Number, ...]) -> Number:
    """Cached dummy wgrads of Transformer Engine with fused gradient accumulation: 2 bytes x the GEMM weights of ONE layer,
    one buffer per shape (transformer_engine/pytorch/module/base.py get_dummy_wgrad; without it 2.7 % low on SimuMax); none
    where the weights are frozen."""
    cached = stack.dummy_wgrads and numerics.trains_all
    return (2.0 if cached else 0.0) * sum(gemm_weights)


def mlp_backward(model: ModelSpec, ffn: int, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """2 T (G f / t + c h): gradient of fc1's output beside hidden-size buffers (findings: c = 1 with SP, 1.7 without)."""
    c = np.where(np.greater(shape.sp, 1), stack.mlp_backward_buffers, stack.mlp_backward_buffers_no_sp)
    total = numerics.activation_bytes * shape.tokens * (model.gate_factor * ffn / shape.tp + c * model.hidden_size)
    return total + made_gradients(model, ffn, numerics, stack, shape.tp, 1)


def made_gradients(model: ModelSpec, ffn: int, numerics: Numerics, stack: StackMemory, tp: Number, matrices: int) -> Number:
    """Where gradients are tensors that backward makes: 2 f h / t for each of the first `matrices` matrices of an MLP that it
    has gone through; none of frozen ones."""
    if not stack.frees_gradients or not numerics.trains_all:
        return 0.0 * np.asarray(tp)
    return numerics.activation_bytes * matrices * ffn * model.hidden_size / np.asarray(tp)


def attention_backward(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Gradients of q, k, v and of the output; flash adds an fp32 accumulator of dq (Dao 2023, section 3.1), unfused attention
    two 16-bit gradients per score; ring context parallelism two key/value blocks in flight. DSA: sparse_attention_backward."""
    if model.is_sparse:
        return sparse_attention_backward(model, numerics, shape)
    heads = model.num_attention_heads / shape.tp
    kv = kv_heads_per_rank(model, shape.tp) if not model.multi_latent_attention else heads
    qkv = heads * model.query_head_dim + kv * (model.query_head_dim + model.value_head_dim)
    out = heads * model.value_head_dim
    total = numerics.activation_bytes * shape.tokens * (qkv + out)
    if stack.attention_kernel == "flash":
        total = total + 4.0 * shape.tokens * heads * model.query_head_dim
    else:
        total = total + stack.score_backward_bytes * numerics.activation_bytes / 2 * shape.tokens * shape.sequence * heads
    if not (model.is_moe or model.is_hybrid):
        matrices = model.gate_factor + 1
        total = total + made_gradients(model, model.ffn_hidden_size, numerics, stack, shape.tp, matrices)
    ring = stack.cp_comm_type == "p2p"
    blocks = 2 * numerics.activation_bytes * shape.tokens * kv * (model.query_head_dim + model.value_head_dim)
    return total + np.where(np.greater(shape.cp, 1), blocks if ring else shape.cp * blocks / 2, 0.0)


def logits_per_rank(stack: StackMemory, vocab: Number, shape: Shape) -> Number:
    """T V / t logits of one rank, or T V where the stack gathers them before the loss."""
    return shape.tokens * vocab / (shape.tp if stack.logits_sharded else 1.0)


def retained_logits(stack: StackMemory, vocab: Number, shape: Shape, pp: Number) -> Number:
    """Logits of earlier micro-batches that a schedule's output buffers still hold: 0 but for stacks that say so.

    A last stage of torch's pipelines holds 2 T V / t until the micro-batch's backward ends (pipelining/stage.py, fwd_cache and
    backward_one_chunk); a compiled loss reads the same tensor, which is counted there."""
    own = 2.0 * np.logical_and(stack.torch_native and stack.loss_bytes_per_logit > 4.0, np.greater(pp, 1))
    return (stack.retained_logit_bytes + own) * logits_per_rank(stack, vocab, shape)


def stage_buffers(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """2 T h / u: one input, or one gradient, that a stage of torch's pipelines receives; 0 with other software. It has a tensor
    for every micro-batch of one run of the schedule, made once; inputs in flight are counted as activations.

    Source: torch/distributed/pipelining/stage.py, _setup_forward_recv_info and _setup_backward_recv_info."""
    each = numerics.activation_bytes * shape.tokens * model.hidden_size / shape.sp
    return each if stack.torch_native else 0.0 * each


def loss(stack: StackMemory, vocab: Number, shape: Shape) -> Number:
    """Logits at the loss: 6 T V / t (16-bit and fp32, softmax in place; findings: 33 % wrong with 2); by stack 0 to 20."""
    plain = stack.loss_bytes_per_logit
    per_logit = np.where(np.greater(shape.tp, 1), stack.tp_loss_bytes_per_logit or plain, plain)
    return per_logit * logits_per_rank(stack, vocab, shape)


def output_layer_backward(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, vocab: Number, shape: Shape, pp: Number
) -> Number:
    """2 T V / t + 2 V h / t + 2 T h, with SP 2 T h (gathered input) + 2 T h / u (scattered gradient), with PP 4 T h (send and
    receive buffers): the logits' gradient, a weight gradient (a dummy one where accumulation is fused, none of a frozen layer),
    hidden-size gradients (findings: 4.2 % wrong without)."""
    wide = numerics.activation_bytes
    hidden = wide * shape.tokens * model.hidden_size
    total = stack.logit_gradient_bytes * wide / 2 * logits_per_rank(stack, vocab, shape) + hidden
    total = total + (2.0 * vocab * model.hidden_size / shape.tp if numerics.trains_all else 0.0)
    total = total + np.where(np.greater(shape.sp, 1), hidden + hidden / shape.sp, 0.0)
    return total + np.where(np.greater(pp, 1), 2.0 * hidden, 0.0)


def embedding_backward(
    model: ModelSpec, numerics: Numerics, stack: StackMemory, vocab: Number, shape: Shape, pp: Number
) -> Number:
    """First stage, when the last micro-batch's activations are gone: 2 V h / t + H, with PP the next gradient H_u (H = 2 T h);
    of DTensors (stack) with TP 2 V h more, the whole table's gradient of which the rank copies its part.

    The gradient of the embedding's table is a whole tensor in every stack (torch's embedding_dense_backward): fused
    accumulation knows linear layers only. Read off traces of megatron-core 0.16.1 with both stacks. A frozen table has none.
    """
    hidden = numerics.activation_bytes * shape.tokens * model.hidden_size
    trained = numerics.activation_bytes if numerics.trains_all else 0.0
    table = trained * vocab * model.hidden_size * (1.0 / np.asarray(shape.tp))
    table = table + whole_table_gradient(model, numerics, stack, vocab, shape.tp)
    return table + hidden + np.where(np.greater(pp, 1), hidden / shape.sp, 0.0)


def whole_table_gradient(model: ModelSpec, numerics: Numerics, stack: StackMemory, vocab: Number, tp: Number) -> Number:
    """2 V h with TP where DTensors (stack) make the whole table's gradient on each rank; else 0."""
    made = np.logical_and(stack.dtensor_parallel and numerics.trains_all, np.greater(tp, 1))
    return np.where(made, numerics.activation_bytes * vocab * model.hidden_size, 0.0)


def tied_weight_gradient(model: ModelSpec, numerics: Numerics, vocab: Number, shape: Shape, pp: Number) -> Number:
    """2 V h / t: with tied embeddings on one stage the output layer's gradient (where accumulation is fused a dummy) waits for
    the embedding's, because autograd adds the two; none of a frozen one."""
    table = numerics.activation_bytes * vocab * model.hidden_size / shape.tp
    tied = np.logical_and(not model.untie_embeddings_and_output_weights and numerics.trains_all, np.equal(pp, 1))
    return np.where(tied, table, 0.0)


def end_parameters(model: ModelSpec, layouts: Layouts, stages: StageTable) -> Number:
    """[n, S]: parameters of the embedding on the first stage, of final norm and output layer on the last. A tied output layer
    is a copy of its own where pp > 1, and MTP depths need a copy of the embedding there (megatron-core
    models/gpt/gpt_model.py)."""
    tp, pp = layouts.tp[:, None], layouts.pp[:, None]
    head = output_layer_parameters(model, tp)
    untied = model.untie_embeddings_and_output_weights
    copies = np.where(np.logical_or(untied, pp > 1), 1, 0)
    copies = copies + np.where(np.logical_and(model.mtp_num_layers > 0, pp > 1), int(untied), 0)
    last = copies * head + final_norm_parameters(model) + output_bias_parameters(model, tp)
    return stages.is_first * embedding_parameters(model, tp) + stages.is_last * last


def output_unit(model: ModelSpec, tp: Number, table: Number) -> Number:
    """Parameters of the output layer, unless its `table` is the embedding's, of its biases and of the norm before it."""
    return table * output_layer_parameters(model, tp) + final_norm_parameters(model) + output_bias_parameters(model, tp)


def final_norm(model: ModelSpec, numerics: Numerics, stack: StackMemory, shape: Shape) -> Number:
    """Input and output of the norm before the output layer, 4 T h / u; the input in fp32 is 4 T h / u more, the output where
    GEMMs save it gathered 2 T h, and not before a frozen output layer, which has no gradient that reads it. Of each
    multi-token-prediction depth 10 T h / u more: the embedding that its norm reads, both normed inputs of its projection, input
    and output of its own last norm (megatron-core 0.19.2, transformer/multi_token_prediction.py)."""
    depth = numerics.activation_bytes * shape.tokens * model.hidden_size / shape.sp
    output = np.asarray(shape.sp) if stack.saves_gathered_inputs else 1.0
    output = output if numerics.trains_all else 0.0
    inputs = norm_input_bytes(numerics, stack) / numerics.activation_bytes
    return (output + inputs + 5.0 * model.mtp_num_layers) * depth


def masked_lm_head(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """BERT: outputs of the linear layer, the activation and the norm before the output layer, 6 T h / u."""
    each = numerics.activation_bytes * shape.tokens * model.hidden_size / shape.sp
    return 3.0 * each if model.masked_lm_head else 0.0 * each


def embedding_dropout(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """First stage: one byte per element of the dropout after the embedding, T h / u."""
    return (1.0 if numerics.hidden_dropout > 0 else 0.0) * shape.tokens * model.hidden_size / shape.sp


def mtp_loss(stack: StackMemory, vocab: Number, shape: Shape, depths: int) -> Number:
    """Every multi-token-prediction depth keeps of its loss until backward what is not its 16-bit logits: 4 T V / t of fp32
    softmax, 2 T V / t where a fused loss writes the 16-bit gradient instead (engineering knowledge)."""
    kept = min(max(stack.loss_bytes_per_logit - 2.0, 2.0), 4.0)
    return kept * depths * logits_per_rank(stack, vocab, shape)
