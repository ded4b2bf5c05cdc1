"""SoftwareStack: which tensors a training stack saves, what it fuses, what it overlaps. Data in
`specs/catalogue/software/*.json`; a file may extend another and say only what differs.

A stack is an input with a printed default, never a correction factor: one stack does not describe another
(docs/memory_model.md). `memory` fields are read by memory_model, `time` fields by time_model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import CatalogueError, UnknownNameError

DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep")
"""How tokens reach their experts: to every rank, a copy for each expert, or a copy for each rank and link domain."""


BucketBytes = tuple[int, int, int, int]
"""Under ZeRO's stages 1 and 2, under stage 3, and both of one rank alone."""


@dataclass(frozen=True, kw_only=True)
class StackMemory:
    """What the stack keeps. Bytes are per element at 16-bit activations unless said."""

    attention_kernel: str = "flash"
    """flash (logsumexp saved) or unfused (score matrix saved)."""
    score_bytes: float = 2.0
    """Unfused attention, no dropout: bytes saved per score (a s^2 b / t of them)."""
    score_dropout_bytes: float = 3.0
    """Unfused attention with dropout: bytes more per score (mask 1, dropped scores 2)."""
    attention_mask_bytes: float = 0.0
    """Unfused attention: bytes of a mask per s^2, kept per layer and micro-batch."""
    expands_kv: bool = False
    """Keys and values are repeated to all heads before attention and saved so (GQA saves nothing)."""
    torch_attention: bool = False
    """Flash attention is torch's scaled_dot_product_attention (kernels/attention.py): values are padded to the width of keys,
    and context parallelism keeps gathered keys and values, masks, and the output of each chunk."""
    rope_copy_bytes: float = 0.0
    """Bytes more per rotated query or key element where RoPE is not fused; cosine and sine are kept then too."""
    norm_input_bytes: float = 2.0
    """Saved per norm and input element: 2 fused; more where fp32 copies are kept."""
    norm_statistics_bytes: float = 4.0
    """Saved per norm and token and statistic (one for RMSNorm, two for LayerNorm)."""
    saves_gathered_inputs: bool = False
    """With sequence parallelism, GEMMs save their gathered input (T h) rather than the local part, to be gathered again."""
    dtensor_parallel: bool = False
    """Tensor parallelism by DTensors: each rank makes the whole embedding table's gradient before it takes its part, and
    a partial sum is copied by rank before it is scattered."""
    gated_activation_extra_bytes: float = 0.0
    """Gated MLP, unfused: bytes saved more per ffn channel beside fc1 output (2 G) and fc2 input (2)."""
    scored_row_bytes: float = 0.0
    """Of a mixture's rows: kept per element where the router's scores multiply them outside of the experts."""
    fp8_gemm_inputs: bool = True
    """Under fp8 the inputs of GEMMs are saved in one byte."""
    fp8_activation_input: bool = False
    """Under fp8 the input of SwiGLU is saved in one byte, too (Megatron's --activation-func-fp8-input-store)."""
    caches_quantised_weights: bool = True
    """Quantised copies of the weights stay from one micro-batch to the next, in every orientation that the GPU needs."""
    loss_bytes_per_logit: float = 6.0
    """Alive per logit at the loss (2 fused in place, 4, 6 Megatron's default, 10 with its `native` fusion)."""
    logit_gradient_bytes: float = 2.0
    """Alive per logit in the backward of the output layer (0 where logits are computed in chunks)."""
    logits_sharded: bool = True
    """Logits stay divided over tensor-parallel ranks; False: gathered before the loss."""
    retained_logit_bytes: float = 0.0
    """Per logit of the last stage: outputs of earlier micro-batches that the schedule's buffers still hold."""
    tp_loss_bytes_per_logit: float = 0.0
    """Alive per logit of a rank instead, where tp is above 1."""
    separate_weight_gradients: bool = False
    """Each weight's gradient is a tensor of its own before it is added to the gradient buffer, and gathered inputs live in one
    buffer that is kept (megatron-core without Transformer Engine): see `memory_model.transients_unfused`."""
    dummy_wgrads: bool = True
    """Cached dummy weight gradients of one layer (gradient accumulation fused into wgrad)."""
    workspace_bytes: int = 0
    """GEMM and attention workspaces that stay allocated."""
    model_parallel_reserved_gib: float = 0.0
    """GiB of the device that tensors cannot take where tp or pp is above 1, beside context, NCCL and allocator: fitted on
    out-of-memory labels where a stack has some."""
    flash_copies_output: bool = False
    """Where the flash-attention package runs (not cuDNN), its output is transposed and kept twice above micro-batch 1."""
    cp_comm_type: str = "p2p"
    """How context parallelism exchanges keys and values: p2p, a2a or allgather."""
    mlp_backward_buffers: float = 1.0
    """Hidden-size buffers alive in the MLP's backward with sequence parallelism (findings: c = 1 with SP)."""
    mlp_backward_buffers_no_sp: float = 1.7
    """The same without sequence parallelism (c = 1.7)."""
    norms_fused: bool = True
    """The norms before attention and MLP are fused into the matrices behind them (Transformer Engine): recomputing `mlp` drops
    its norm's output too, and `layernorm` finds no module there (`parameters.norms_apart`)."""
    score_backward_bytes: float = 4.0
    """Unfused attention: bytes per score alive in its backward beside what is saved (two 16-bit gradients)."""
    score_dropped_bytes: float = 2.0
    """Unfused attention: saved bytes per score that are free again when those are alive."""
    bucket_bytes: BucketBytes = (0, 0, 0, 0)
    """Of DeepSpeed's buckets that stay allocated (function bucket_bytes)."""
    fragments: float = 0.0
    """Share of the allocated bytes that the allocator loses beside what every run loses."""
    frees_gradients: bool = False
    """Gradients are tensors that backward makes and zero_grad drops (torch's set_to_none), not a buffer that stays: in a step
    of one micro-batch none is there before backward."""
    torch_native: bool = False
    """fsdp is torch's FSDP: its shards are the fp32 weights that the optimizer steps; what it holds beside them comes and goes
    by the moment (memory_model/fsdp.py). Pipelines are torch's (`state.stage_buffers`, `state.retained_logits`)."""
    ends_are_units: bool = False
    """torch's FSDP wraps the embedding and the output layer as units of their own; False: they are the root's, which stays
    gathered from the start of forward to the end of backward."""
    mixture_ends_are_units: bool = False
    """The same of mixtures of experts alone."""
    foreach_optimizer: bool = False
    """torch.optim's plain AdamW, whose lists of tensors hold the roots of all second moments at once; False: a fused one."""
    default_grad_dtype: str = "fp32"
    default_fsdp_grad_dtype: str = ""
    """The same where its usual FSDP run differs."""
    default_fp8_param_gather: bool = False
    """The stack's usual fp8 run keeps and gathers weights in fp8."""


@dataclass(frozen=True, kw_only=True)
class SoftwareStack:
    """One named stack."""

    name: str
    description: str
    year: int
    generation: str
    """Calibration group: constants are fitted per (GPU, generation)."""
    parent: str | None = None
    """Generation whose constants stand in where this one has none."""
    release: str = ""
    """A dated release: what its runs switch on by default stands in catalogue/software/releases.csv."""
    priced_as: str = ""
    """The release whose constants it has, where it has no file of its own."""
    aliases: tuple[str, ...] = ()
    least_compute_capability: float = 0.0
    """GPUs below it cannot run the stack (Transformer Engine and flash attention 2 need 8.0)."""
    supports_fp8: bool = True
    supports_fsdp: bool = True
    sharding: str = "megatron"
    """Whose rules hold for fsdp 2 and 3: megatron (torch FSDP2 in Megatron-LM), deepspeed (ZeRO-2 and ZeRO-3) or torch (FSDP2
    in a trainer of its own, beside any other parallelism)."""
    supports_fsdp_with_tied_embeddings: bool = False
    """Megatron's torch FSDP2 needs an output layer of its own (NV100)."""
    supports_fp8_param_gather_with_fsdp: bool = False
    """Its FSDP keeps and gathers weights in fp8: Megatron-FSDP does, torch FSDP2 does not (`gathers_fp8`)."""
    supports_distributed_optimizer: bool = True
    supports_selective_recompute: bool = True
    recomputes_by_operator: bool = False
    """Selective recomputation is `selective:op` (specs.plan.OP) and nothing else."""
    supports_output_discarding: bool = True
    """Selective recomputation has `layernorm`, `mla_up_proj` and `moe_act`, whose outputs are discarded
    (CheckpointWithoutOutput of megatron-core 0.12 and later)."""
    supports_mlp_recompute_with_biases: bool = True
    """megatron-core's local layers: not (rule AC011)."""
    supports_encoder_decoder_pipeline: bool = False
    """Stages of an encoder and a decoder (T5): Megatron-LM before megatron-core 0.14 (rule AC021)."""
    supports_pipeline_layout: bool = False
    """Stages by --pipeline-model-parallel-layout (megatron-core 0.13.0 and later)."""
    supports_context_parallel: bool = True
    context_parallel_needs_fsdp: bool = False
    """Its sequences are divided over ranks of FSDP only (accelerate's ParallelismConfig with torch's context_parallel)."""
    stages_beyond_micro_batches: float = 1e9
    """How many more stages than micro-batches its 1F1B schedule takes: Megatron's any, torch's none."""
    ddp_stands_alone: bool = False
    """Data parallelism without sharding (fsdp=0) stands beside no other parallelism (rule AC031)."""
    tp_divides_sequences: bool = False
    """Tensor parallelism divides the sequence, too (rule AC032)."""
    supports_zero3_with_experts: bool = False
    """Its experts are modules of torch (transformers'), which ZeRO-3 gathers layer by layer, not DeepSpeed's MoE layers."""
    supports_sequence_parallel: bool = True
    supports_model_parallel: bool = True
    """Tensor and pipeline parallelism; without it a stack shards data-parallel ranks only (rule AC018)."""
    memory: StackMemory
    time: StackTime
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        if self.memory.attention_kernel not in ("flash", "unfused"):
            raise CatalogueError(f"stack {self.name}: attention_kernel {self.memory.attention_kernel!r}")
        if self.memory.cp_comm_type not in ("p2p", "a2a", "allgather"):
            raise CatalogueError(f"stack {self.name}: cp_comm_type {self.memory.cp_comm_type!r}")
        if self.sharding not in ("megatron", "deepspeed", "torch"):
            raise CatalogueError(f"stack {self.name}: sharding {self.sharding!r}")
        kernels = self.time.attention_generation, self.time.attention_generation_blackwell or "flash3"
        if not set(kernels) <= {"flash1", "flash2", "flash3"}:
            raise CatalogueError(f"stack {self.name}: attention_generation {kernels!r}")
        named = (self.time.moe_dispatcher, self.time.moe_dispatcher_wide)
        if not set(named) <= {"", *DISPATCHERS} or not self.time.moe_dispatcher:
            raise CatalogueError(f"stack {self.name}: moe dispatchers {named!r}")

    @property
    def supports_sparse_attention(self) -> bool:
        """DSA: today's megatron-core, or Megatron-Bridge with such a one."""
        return self.name == "transformer-engine" or self.release >= "nemo-26.02"


@dataclass(frozen=True, kw_only=True)
class StackTime:
    """What the stack fuses, overlaps and costs on the host; constants of time_model that depend on software, not on the GPU.

    Traffic is in bytes per element at 16-bit activations, one pass over HBM; forward and backward apart.
    """

    gemm_derate: float = 1.0
    """Whole-run GEMM rate over the operator tables' short bursts (clocks under load, kernel choice)."""
    pointwise_slowdown: float = 1.0
    """Time of memory-bound chains over their bytes at the GPU's HBM efficiency; above 1 for unfused torch code."""
    norm_forward_bytes: float = 4.0
    norm_backward_bytes: float = 12.0
    """Per norm and element of its input."""
    residual_forward_bytes: float = 4.0
    residual_backward_bytes: float = 6.0
    """Per bias-and-residual addition and element."""
    dropout_forward_bytes: float = 3.0
    dropout_backward_bytes: float = 4.0
    """More per residual addition and element where hidden dropout is on."""
    qkv_copy_forward_bytes: float = 4.0
    qkv_copy_backward_bytes: float = 5.5
    """Per element of q, k, v and attention output: splits, transposes, bias."""
    rope_bytes: float = 4.0
    """Per rotated query or key element, each way."""
    activation_forward_bytes: float = 4.0
    activation_backward_bytes: float = 8.0
    """Per ffn channel without gate (GELU, squared ReLU)."""
    gated_forward_bytes: float = 6.0
    gated_backward_bytes: float = 10.0
    """Per ffn channel with gate (SwiGLU, GeGLU)."""
    forward_launches: float = 10.0
    backward_launches: float = 14.0
    """Memory-bound kernels of one layer, each with a start-up time."""
    attention_generation: str = "flash3"
    """Kernel generation of fused attention: flash1, flash2 or flash3 (FA3, cuDNN); its rates are the GPU's."""
    attention_generation_blackwell: str = ""
    """The same from compute capability 10 on, where the software asks for other kernels there."""
    softmax_slowdown: float = 1.0
    """Unfused attention: traffic of softmax and dropout over that of the fused kernels."""
    tp_async_backward: bool = True
    """Backward all-reduce (or reduce-scatter) of tensor parallelism runs beside the weight gradient."""
    tp_overlap_share: float = 0.0
    """Share of tensor-parallel communication hidden under GEMMs with sequence parallelism inside a link domain
    (userbuffers)."""
    cp_overlap_share: float = 0.8
    """Share of the attention time of a ring step that can hide the next block's transfer."""
    scatter_gather: bool = True
    """Pipeline sends are divided over tensor-parallel ranks even without sequence parallelism."""
    p2p_overlap_share: float = 0.0
    """Share of pipeline sends hidden where the schedule is interleaved."""
    overlap_grad_reduce: bool = True
    """Gradient reduction runs beside the last micro-batch's backward."""
    overlap_param_gather: bool = True
    """Parameter gather runs beside the first micro-batch's forward."""
    overlap_interference: float = 0.25
    """Share of hidden communication that is still exposed: it takes memory bandwidth and SMs from the kernels beside it."""
    host_floor_seconds: float = 0.0005
    """Least time of one layer's forward: what the host needs to launch it. Backward: 1.6 times as much."""
    step_host_seconds: float = 0.0
    """What the host needs once a step beside launching layers: batches, gradient norm, optimizer, logs. Hidden where no launch
    is waited for."""
    loss_traffic_bytes: float = 44.0
    """Traffic per logit of cross entropy, forward and backward: 44 unfused, 14 fused."""
    optimizer_extra_bytes: float = 26.0
    """Traffic per parameter beside one read and write of master weight and moments: gradient norm, scaling, copies."""
    optimizer_fixed_seconds: float = 0.003
    """Step overhead: gradient-norm and overflow synchronisation, launches."""
    optimizer_seconds_per_rank: float = 0.0
    """More per data-parallel rank where the sharded optimizer broadcasts owner by owner."""
    straggler_growth: float = 0.001
    """Step time grows by this share per doubling of the GPUs beyond 8."""
    moe_dispatcher: str = "alltoall"
    """How tokens reach their experts: alltoall (a copy per expert), deepep or hybridep (a copy per rank and link domain)."""
    moe_dispatcher_wide: str = ""
    """The same in link domains of more than one 8-GPU board (NVL72); empty: as moe_dispatcher."""
    moe_ep_overlap: bool = False
    """The usual dropless run on 8-GPU boards overlaps dispatch and combine with another micro-batch (Megatron's
    overlap_moe_expert_parallel_comm)."""
    moe_host_seconds: float = 0.0009
    """More than host_floor_seconds for the forward of a layer with experts: router, permutation, dispatch."""
    alltoall_host_seconds: float = 0.0
    """More than moe_host_seconds where dropless experts are reached by all-to-all and nothing hides it: counts of rows, summed
    and fetched by the host, splits, the sorting of what arrives. A third with one local expert, which sorts nothing."""
    expert_host_seconds: float = 0.000115
    """The same per local expert under a quantised format: its launches and casts of its own; half of it in 16 bits. This and
    the next four: python -m validation.fit.refit_mixtures."""
    ep_overlap_hides: float = 0.85
    """Share of dispatch and combine that the combined 1F1B schedule hides."""
    ep_overlap_host: float = 2.2
    """Host time of router and experts under that schedule, over the plain one's: each node runs an autograd of its own."""
    grouped_gemm_share: float = 0.86
    """Rate of a grouped GEMM of many rows over one dense GEMM of all of them."""
    hybridep_link_share: float = 0.87
    """Share of the links' rate that HybridEP's copies to others reach among 8 ranks (its table; operators/moe.py)."""
    sink_attention_slowdown: float = 3.6
    """Time of attention with learned sinks over plain attention."""
    full_iteration_graphs: bool = False
    """Dense models on NVIDIA's GPUs replay the whole iteration as one CUDA graph."""
    fp8_attention: bool = False
    """The usual quantised run of a dense model on NVIDIA's GPUs has its attention in fp8."""
    moe_graphs_wide: bool = False
    """In wide link domains attention, router and permutation are replayed as CUDA graphs; experts are launched."""
    moe_imbalance: float = 1.15
    """Rows of the busiest expert rank over the mean where a dropless router is trained on data. Pairs of the same plan with
    forced balance and with data differ by 9 to 25 % of the step (MoE model zoo, Qwen3-235B on H100, ep 8)."""

    forced_routing_in_turn: bool = False
    """Where a run forces its router's balance (an imbalance of 1), token i goes to experts i k to i k + k - 1 in turn, which
    lie on few ranks, not to experts that are drawn."""


DEFAULT_STACK = "transformer-engine"
SUPPORT_FLAGS = {f.name: f.default for f in fields(SoftwareStack) if f.type in ("bool", "float") or f.name == "sharding"}
"""What a stack can do, inherited by stacks that extend it, and what holds where no file says so."""


@cache
def _raw(name: str) -> dict[str, Any]:
    text = (resources.files("autoconfig.specs") / "catalogue" / "software" / f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    if data["name"] != name:
        raise CatalogueError(f"software/{name}.json says its name is {data['name']!r}")
    if "extends" in data:
        base = _raw(data["extends"])
        for part in ("memory", "time", "sources"):
            data[part] = {**base.get(part, {}), **data.get(part, {})}
        for flag, usual in SUPPORT_FLAGS.items():
            data.setdefault(flag, base.get(flag, usual))
    return data


def software_names() -> list[str]:
    """Canonical names, sorted."""
    folder = resources.files("autoconfig.specs") / "catalogue" / "software"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


_RELEASE = re.compile(r"nemo-[0-9]{2}\.(0[1-9]|1[0-2])(\.[0-9]{2})?")
_SHORT_POINT = re.compile(r"(nemo-[0-9]{2}\.[0-9]{2}\.)([0-9])")
_OF_A_MONTH = re.compile(r"(.+?)(?:-main)?-20[0-9]{2}-(?:0[1-9]|1[0-2])")
"""A stack without releases as of a month: torchtitan-2026-05, automodel-main-2026-06."""


def is_release(name: str) -> bool:
    """Whether this is the name of a dated release, known or not: nemo-YY.MM or a point release of it."""
    return _RELEASE.fullmatch(name) is not None


def _releases() -> list[str]:
    """Dated releases, oldest first."""
    return [name for name in software_names() if _raw(name).get("release")]


@cache
def newest_release() -> str:
    """The last dated release that has a file."""
    return max(name for name in software_names() if is_release(name))


@cache
def load_stack(name: str) -> SoftwareStack:
    """The stack with this canonical name or alias; a release without a file is priced as the one before it. Raises
    UnknownNameError with the nearest names."""
    wanted = name.strip().lower()
    if short := _SHORT_POINT.fullmatch(wanted):  # 26.06.1 is 26.06.01
        wanted = f"{short[1]}0{short[2]}"
    if wanted in software_names():
        return _build(_raw(wanted))
    for candidate in software_names():
        if wanted in _raw(candidate).get("aliases", ()):
            return _build(_raw(candidate))
    if is_release(wanted) and (older := [known for known in _releases() if known <= wanted]):
        stack = _build(_raw(older[-1]))
        said = f"{stack.description}; priced as {stack.name}"
        return replace(stack, name=wanted, release=wanted, priced_as=stack.name, description=said)
    if (month := _OF_A_MONTH.fullmatch(wanted)) and not is_release(month[1]):
        return load_stack(month[1])
    raise UnknownNameError("software stack", name, software_names(), "autoconfig software lists them all", field="software")


def _build(data: dict[str, Any]) -> SoftwareStack:
    return SoftwareStack(
        **{key: data[key] for key in ("name", "description", "year", "generation")},
        parent=data.get("parent"),
        release=data.get("release", ""),
        aliases=tuple(data.get("aliases", ())),
        **{flag: data.get(flag, usual) for flag, usual in SUPPORT_FLAGS.items()},
        memory=StackMemory(**_known(StackMemory, data.get("memory", {}), data["name"])),
        time=StackTime(**_known(StackTime, data.get("time", {}), data["name"])),
        sources=data.get("sources", {}),
    )


def _known(kind: type, values: dict[str, Any], name: str) -> dict[str, Any]:
    unknown = set(values) - {f.name for f in fields(kind)}
    if unknown:
        raise CatalogueError(f"software/{name}.json: unknown keys {sorted(unknown)}")
    return values


LOSS_BYTES = {
    **{"none": 6.0, "native": 10.0, "te": 4.0, "overwrite": 2.0},
    **{"eager": 14.0, "compiled": 4.0, "chunked": 3.5, "fused": 0.0, "in_place": 6.0},
}
"""Fusion of the loss -> bytes per logit (docs/memory_model.md, part `loss`). eager: torch's cross entropy of 16-bit logits (2)
that a loop holds while backward runs and that are cast to fp32: log-softmax (4), and in backward its gradient and that of its
input (4 each); without the logits, as torchtitan and transformers' Trainer run it, 12 (torch-eager.json; both are torch's own
tracker's, validation/judge/pytorch/plans.py). compiled: the partitioner keeps the 16-bit logits alone
(torch._functorch.partitioners), beside which backward writes their gradient. chunked: 16-bit
logits, and the other 12 bytes of one of eight chunks (torchtune's CEWithChunkedOutputLoss where its chunks are compiled, else
CHUNKS_IN_FP32). fused: with the output layer, whose
logits are never held (Liger, arXiv:2410.10989, section 3; Cut Cross-Entropy). in_place: 16-bit logits and their fp32 copy, that
becomes the gradient (Liger's cross entropy alone, section 3.2)."""
CHUNKS_IN_FP32 = 6.5
"""The same of chunks that are not compiled: 16-bit logits, every chunk's log-softmax, and the last one's fp32 copy (torch's
tracker, validation/judge/pytorch/plans.py)."""
OF_LOSS = ("loss_bytes_per_logit", "tp_loss_bytes_per_logit", "logit_gradient_bytes")
"""What a loss over all logits in fp32 keeps, of the stack that has it: torch-eager, else Megatron's default."""
FRAGMENTS = 0.023
"""Share of the allocated bytes that the allocator loses more without expandable segments: 5.3 % reserved over allocated at the
peak of a mixture's log (61.9 of 65.2 GiB), less the 3 % that are counted for every run."""
CHAINS = {True: "torchtitan", False: "torch-eager"}
"""Whether torch.compile runs -> the stack whose chains of small kernels are priced."""
OF_CHAINS = (
    *("pointwise_slowdown", "norm_forward_bytes", "norm_backward_bytes", "rope_bytes"),
    *("gated_forward_bytes", "gated_backward_bytes"),
)
BUCKETS_IN_FLIGHT = 4.5
"""Of DeepSpeed's buckets, as many are there at once where they are reduced beside the backward (overlap_comm): 9 GB at 5e8
elements of both in 16 bits (transformers, docs/source/en/deepspeed.md, of overlap_comm)."""


OWN_BUCKET = 500_000_000
"""Elements of each of DeepSpeed's buckets where its configuration says none (runtime/zero/config.py: reduce_bucket_size,
allgather_bucket_size)."""


def bucket_bytes(reduce: float, allgather: float, *, overlaps: bool | None) -> BucketBytes:
    """Bytes of DeepSpeed's buckets of so many 16-bit elements under ZeRO's stages 1 and 2, and under stage 3, which gathers
    weights by layers, in no bucket; without overlap the one that gradients are gathered in (runtime/zero/stage_1_and_2.py,
    ipg_buffer). Then the same of one rank, of which nothing is reduced or gathered (all_gather_dp_groups passes it over): these
    buffers alone, two at stages 1 and 2 with overlap. `overlaps`: overlap_comm; None: it is not said, and on at stage 3 alone
    (runtime/zero/config.py, overlap_comm_valid)."""
    early, late = (overlaps, overlaps) if overlaps is not None else (False, True)
    part = round(2 * reduce)
    return (
        round(2 * BUCKETS_IN_FLIGHT * (reduce + allgather)) if early else part,
        round(2 * BUCKETS_IN_FLIGHT * reduce) if late else part,
        2 * part if early else part,
        part,
    )


GRAD_REDUCE, PARAM_GATHER, TP_OVERLAP = "overlap-grad-reduce", "overlap-param-gather", "tp-comm-overlap"
USERBUFFERS_SHARE = 0.6
"""Share of tensor-parallel communication that userbuffers hide (docs/time_model.md, tp_overlap_share)."""
SOFTMAX_SLOWDOWN = {"unfused": 1.0, "fused": 1.0, "torch": 5.7}
"""Unfused attention: traffic of softmax over the fused kernel's; torch's own 2.6 x 2.2 (findings, section 4)."""
FLASH_GENERATION = {"flash_attentionv1.0.8": "flash1", "flash_attention2": "flash2", "FA3": "flash3", "FA4": "flash3"}
"""Attention kernel -> kernel generation of the time model."""


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Options of one run; those that are not given stay as the software has them."""

    attention_kernel: str = ""
    """`flash`, or one of SOFTMAX_SLOWDOWN or FLASH_GENERATION."""
    fused_rms_norm: bool = False
    loss_fusion: str = ""
    """One of LOSS_BYTES."""
    compiled: bool | None = None
    """torch.compile of the layers: chains of norms, rotation and activation save what they read, in 16 bits, and read and
    write it once; False: layers as torch-eager has them; None: as the software has them."""
    async_tp: bool | None = None
    """Tensor parallelism's communication runs beside its GEMMs."""
    bucket_bytes: BucketBytes | None = None
    """Of DeepSpeed's buckets."""
    expandable_segments: bool | None = None
    overlaps: frozenset[str] | None = None
    """Those that are on, every other one is off: some of GRAD_REDUCE, PARAM_GATHER, TP_OVERLAP."""


@cache
def with_options(stack: SoftwareStack, options: StackOptions) -> SoftwareStack:
    """The stack with the kernels and overlaps of a run: what they save, and what they read and write."""
    return replace(stack, memory=_memory_with(stack, options), time=_time_with(stack.time, options))


def _memory_with(stack: SoftwareStack, options: StackOptions) -> StackMemory:
    """What the kernels of a run save."""
    memory = stack.memory
    if options.attention_kernel:
        kernel = "unfused" if options.attention_kernel in SOFTMAX_SLOWDOWN else "flash"
        memory = replace(memory, attention_kernel=kernel)
    memory = _with_loss(memory, stack, options)
    if options.compiled:
        memory = replace(memory, norm_input_bytes=2.0, rope_copy_bytes=0.0, gated_activation_extra_bytes=0.0)
        memory = replace(memory, scored_row_bytes=min(memory.scored_row_bytes, 2.0))
    if options.bucket_bytes is not None:
        memory = replace(memory, bucket_bytes=options.bucket_bytes)
    if options.expandable_segments is not None:
        memory = replace(memory, fragments=0.0 if options.expandable_segments else FRAGMENTS)
    return replace(memory, norm_input_bytes=2.0) if options.fused_rms_norm else memory


def _with_loss(memory: StackMemory, stack: SoftwareStack, options: StackOptions) -> StackMemory:
    """What the loss of a run saves of the logits."""
    loss = options.loss_fusion
    if loss == "plain":
        plain = StackMemory() if stack.sharding == "megatron" else load_stack(CHAINS[False]).memory
        return replace(memory, **{name: getattr(plain, name) for name in OF_LOSS})
    if loss not in LOSS_BYTES:
        return memory
    tp_loss = memory.tp_loss_bytes_per_logit if loss == "eager" else 0.0
    in_fp32 = CHUNKS_IN_FP32 if loss == "chunked" and not options.compiled else LOSS_BYTES[loss]
    memory = replace(memory, loss_bytes_per_logit=in_fp32, tp_loss_bytes_per_logit=tp_loss)
    return replace(memory, logit_gradient_bytes=0.0 if loss == "fused" else StackMemory.logit_gradient_bytes)


def _time_with(time: StackTime, options: StackOptions) -> StackTime:
    """What the kernels and overlaps of a run read, write and hide."""
    kernel, on = options.attention_kernel, options.overlaps
    if kernel in SOFTMAX_SLOWDOWN:
        time = replace(time, softmax_slowdown=SOFTMAX_SLOWDOWN[kernel])
    elif kernel:
        generation = FLASH_GENERATION.get(kernel, time.attention_generation)
        time = replace(time, attention_generation=generation, attention_generation_blackwell="")
    if options.compiled is not None:
        time = replace(time, **{name: getattr(load_stack(CHAINS[options.compiled]).time, name) for name in OF_CHAINS})
    if options.async_tp is not None:
        time = replace(time, tp_overlap_share=USERBUFFERS_SHARE if options.async_tp else 0.0)
    if options.fused_rms_norm:
        fused = StackTime()
        time = replace(time, norm_forward_bytes=fused.norm_forward_bytes, norm_backward_bytes=fused.norm_backward_bytes)
    if on is None:
        return time
    share = max(time.tp_overlap_share, USERBUFFERS_SHARE) if TP_OVERLAP in on else 0.0
    return replace(time, overlap_grad_reduce=GRAD_REDUCE in on, overlap_param_gather=PARAM_GATHER in on, tp_overlap_share=share)
