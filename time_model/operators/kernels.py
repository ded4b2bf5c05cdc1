"""Seconds of single kernels: matrix products, attention, memory-bound chains; the clock that a power limit leaves to matrix
units, and what the host needs to launch them."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import StackTime
from autoconfig.time_model.hardware.efficiency import GemmEfficiency, GridTable

TILES = ((256, 128, 0, 0), (128, 256, 0, 0), (128, 128, 1, 0), (128, 64, 1, 1), (64, 128, 1, 1), (64, 64, 1, 2))
"""Thread-block tiles (rows, columns) of cuBLAS, and how often the small-tile losses r1 and r2 apply to each."""


def gemm_seconds(
    m: Number,
    n: Number,
    k: Number,
    *,
    flops_per_s: Number,
    hbm_bytes_per_s: float,
    num_sms: int,
    constants: GemmEfficiency,
    element_bytes: Number = 2.0,
    groups: Number = 1.0,
    table: GridTable | None = None,
) -> Number:
    """C[m, n] = A[m, k] B[k, n], `groups` of them in one launch: by the GPU's table where given, else by the closed form
    start-up + max(best tile, traffic).

    Table: `flops_per_s` is the peak that its shares count from, or, where it corrects the closed form, what that takes.
    Tile (a, b): ceil(groups ceil(m/a) ceil(n/b) / SMs) waves, each SMs tiles of 2 a b k FLOPs at the rate
    P e k/(k + k0) r, r = r1^i r2^j for small tiles. Traffic: groups (m k + k n + m n) elements at eb of HBM. The waves are
    why a slightly larger matrix can take a whole wave longer; k/(k + k0) is the pipeline fill of one tile.
    Source: closed form of the project's findings on public measurements, section 2, fitted to operator tables of
    aiconfigurator-core 0.12.0 (median error 2-5 % for m >= 512 and n, k >= 256). Assumes one kernel at a time.
    """
    if table is not None and not table.over_formula:
        return groups * table_gemm_seconds(m, n, k, flops_per_s=flops_per_s, table=table)
    a, b, r = tile_table(constants, np.ndim(m))
    waves = np.ceil(np.ceil(m / a) * np.ceil(n / b) * groups / num_sms)
    waves *= a * b / r
    tiled = waves.min(axis=0) * (2.0 * num_sms) * k / (flops_per_s * constants.e * k / (k + constants.k0_elements))
    traffic = gemm_bytes(m, n, k, element_bytes) * groups / (constants.eb * hbm_bytes_per_s)
    seconds = constants.t0_s + np.maximum(tiled, traffic)
    return seconds if table is None else seconds / table.at(m, n, k)


def table_gemm_seconds(m: Number, n: Number, k: Number, *, flops_per_s: Number, table: GridTable) -> Number:
    """FLOPs over peak x measured efficiency. A size below the table costs as much as its smallest one; above, efficiency stays.

    Source: operator rows of aiconfigurator-core 0.12.0 (data/operators); held-out errors in docs/time_model.md.
    """
    m, n, k = (np.maximum(size, table.least(axis)) for axis, size in enumerate((m, n, k)))
    return gemm_flops(m, n, k) / (flops_per_s * table.at(m, n, k))


def tile_table(constants: GemmEfficiency, ndim: int) -> tuple[Number, Number, Number]:
    """Rows, columns and relative rate of each tile, shaped to broadcast in front of `ndim` axes."""
    shape = (len(TILES),) + (1,) * ndim
    table = np.array(TILES, dtype=np.float64)
    rate = constants.r1 ** table[:, 2] * constants.r2 ** table[:, 3]
    return table[:, 0].reshape(shape), table[:, 1].reshape(shape), rate.reshape(shape)


GROUPED_ROWS_LOST = 96.0
"""Rows of one expert that tiles and padding lose (findings on mixtures of
2026, section 3; set by hand there, `grouped_gemm_share` was fitted beside it)."""


def grouped_gemm_seconds(dense: Number, rows: Number, share: float, groups: Number = 2.0) -> Number:
    """A grouped GEMM from `dense`, the seconds of one dense GEMM of all its rows: dense / (g m/(m + m0)), m rows of one expert.

    A rank with one expert runs that dense GEMM itself: Transformer Engine starts one cuBLAS GEMM for each group
    (multi_stream_cublas_gemm in transformer_engine/common/gemm/cublaslt_gemm.cu). The weight gradient is as many dense GEMMs as
    there are experts, at the same share. Any precision, one launch for each expert or one for all: what the launches cost
    stands in the host's time. Source: steps of NVIDIA's mixtures of 2025 and 2026 (docs/time_model.md, Experts); tables of
    fused inference layers are 50 % too slow at narrow experts and
    25 % too fast at wide ones.
    """
    return np.where(np.asarray(groups) > 1.0, dense * (rows + GROUPED_ROWS_LOST) / (share * rows), dense)


def gemm_flops(m: Number, n: Number, k: Number) -> Number:
    """2 m n k: one multiplication and one addition per product."""
    return 2.0 * m * n * k


def gemm_bytes(m: Number, n: Number, k: Number, element_bytes: Number = 2.0) -> Number:
    """Operands read and result written once: (m k + k n + m n) elements."""
    return element_bytes * (m * k + k * n + m * n)


def weight_gradient_seconds(weights: Number, *, grad_bytes: float, exposed: float, hbm_bytes_per_s: float) -> Number:
    """Accumulation of a weight gradient into the main gradient buffer, per micro-batch: read and write, 2 x grad_bytes
    a weight.

    `exposed` is the share that the GEMM's epilogue does not hide. Source: findings on public measurements, section 2 (fp32:
    8 bytes per weight, 70 % exposed); Megatron's gradient accumulation fusion.
    """
    return 2.0 * grad_bytes * weights * exposed / hbm_bytes_per_s


WINDOW_TILES = 256.0
"""Rows that a window costs beside its width: whole tiles (aiconfigurator-core 0.12.0: a window of 128 at 4k costs 28 to 50 % of
full attention, not 6 %)."""


def attended_pairs(seq_length: Number, window: Number | None = None) -> Number:
    """Query-key pairs of one head and sample under a causal mask: s^2 / 2; with a window w < s: s w - w^2 / 2."""
    full = 0.5 * seq_length * seq_length
    if window is None:
        return full
    return np.where(window < seq_length, seq_length * window - 0.5 * window * window, full)


PACKED_TILES = 128.0
"""Rows of queries and of keys that the first and last tile of each packed sequence computes in vain, together (Dao 2023,
FlashAttention-2, section 3.3: blocks of 128 queries and 128 keys)."""


def packed_pairs(seq_length: Number, packed_length: Number, window: Number | None = None) -> Number:
    """Query-key pairs of one head and sample that holds s / l sequences of l tokens, each with its own causal mask and whole
    tiles: s / l pairs(l + PACKED_TILES), never more than of one sequence."""
    each = attended_pairs(packed_length + PACKED_TILES, window)
    return np.minimum(seq_length / packed_length * each, attended_pairs(seq_length, window))


def flash_attention_flops(pairs: Number, heads: Number, batch: Number, query_dim: Number, value_dim: Number) -> Number:
    """Forward FLOPs: scores 2 d_q and values 2 d_v per pair, head and sample (4 b a s^2 d / 2 where both dims are d)."""
    return 2.0 * (query_dim + value_dim) * pairs * heads * batch


def flash_efficiency(length: Number, head_dim: float, *, e: float, s0: float, head_dim_half: float) -> Number:
    """Share of peak: e s/(s + s0), times d/(d + d0) normalised to 1 at d = 128 and never above.

    `length` is what one kernel call sees of the sequence. d0 = 50 gives 0.78 at d = 64. Source: findings on public
    measurements, sections 2 and 5 (within 5 % from s = 2k, 15 % at 1k).
    """
    narrow = min(1.0, head_dim / (head_dim + head_dim_half) * (128.0 + head_dim_half) / 128.0)
    return e * narrow * length / (length + s0)


def table_flash_efficiency(length: Number, head_dim: float, table: GridTable) -> Number:
    """Measured share of peak of the causal forward pass at this head dim and length.

    Source: prefill rows of aiconfigurator-core 0.12.0, launch and idle tail taken off (data/operators). Outside of the measured
    head dims and lengths (64 to 256, 1k to 16k) the nearest counts.
    """
    return table.at(np.full(np.shape(length), float(head_dim)), length)


def flash_tail_seconds(length: Number, head_dim: float, table: GridTable) -> Number:
    """What the last wave of a causal attention kernel leaves idle: grows with the length, not with batch or heads."""
    if table.tails is None:
        return 0.0 * length
    return length * np.interp(np.log(head_dim), table.axes[0], table.tails)


def flash_attention_seconds(flops: Number, efficiency: Number, *, flops_per_s: float, start_s: float) -> Number:
    """FLOPs over the reached rate, plus a start-up. Backward: 2.5 x the FLOPs at `backward` x the efficiency (the caller's)."""
    return start_s + flops / (flops_per_s * efficiency)


def unfused_attention_seconds(
    scores: Number,
    query_dim: float,
    value_dim: float,
    *,
    flops_per_s: float,
    rate: float,
    dim_half: float,
    hbm_bytes_per_s: float,
    pointwise: float,
    softmax_bytes: float,
    gemms_per_pass: int,
) -> Number:
    """Two batched GEMMs per pass (`gemms_per_pass` 1 forward, 2 backward), then softmax and dropout over all scores.

    Each GEMM: the longer of 2 d FLOPs per score at rate d/(d + dim_half) of peak, and 2 bytes of score traffic. `scores` counts
    a s^2 b of a rank, the masked half included. softmax_bytes per score: 4 forward (+5 dropout), 6 backward (+5).
    Source: findings on public measurements, section 2; Korthikanti et al. 2022, section 4.1 (which tensors).
    """
    total = scores * softmax_bytes / (hbm_bytes_per_s * pointwise)
    for dim in (query_dim, value_dim):
        compute = 2.0 * scores * dim / (flops_per_s * rate * dim / (dim + dim_half))
        traffic = 2.0 * scores / (hbm_bytes_per_s * pointwise)
        total = total + gemms_per_pass * np.maximum(compute, traffic)
    return total


def ring_correction_bytes(tokens: Number, channels: Number, ring: Number) -> Number:
    """Traffic of merging partial results of ring attention: 10 bytes per output element and further step.

    fp32 result read and written, 16-bit partial read; under the load-balanced causal split half of the later steps
    touch half of the tokens, hence 3/4 (Liu et al. 2023, Ring Attention; Transformer Engine context_parallel.py).
    """
    return 0.75 * 10.0 * tokens * channels * (ring - 1.0)


def pointwise_seconds(
    traffic_bytes: Number,
    launches: float = 0.0,
    *,
    hbm_bytes_per_s: float,
    efficiency: float,
    launch_s: float,
    factor: float = 1.0,
) -> Number:
    """bytes / (HBM x efficiency) x factor + launches x start-up.

    Source: findings on public measurements, sections 2 and 4 (efficiency 0.8; factor 1.3-1.5 for unfused torch code; 3
    us a launch).
    """
    return traffic_bytes * factor / (hbm_bytes_per_s * efficiency) + launches * launch_s


def norm_bytes(elements: Number, stack: StackTime) -> tuple[Number, Number]:
    """(forward, backward) traffic of one norm over `elements` inputs."""
    return stack.norm_forward_bytes * elements, stack.norm_backward_bytes * elements


def residual_bytes(elements: Number, stack: StackTime, numerics: Numerics) -> tuple[Number, Number]:
    """(forward, backward) traffic of one bias-dropout-add; without hidden dropout the mask and its pass fall away."""
    on = 1.0 if numerics.hidden_dropout else 0.0
    return (
        (stack.residual_forward_bytes + on * stack.dropout_forward_bytes) * elements,
        (stack.residual_backward_bytes + on * stack.dropout_backward_bytes) * elements,
    )


def activation_bytes(channels: Number, gated: bool, stack: StackTime) -> tuple[Number, Number]:
    """(forward, backward) traffic of the activation function over `channels` = tokens x ffn width of a rank.

    GELU reads and writes 2 bytes; SwiGLU reads 4 and writes 2; backward reads the gradient too and writes as much as was read.
    """
    if gated:
        return stack.gated_forward_bytes * channels, stack.gated_backward_bytes * channels
    return stack.activation_forward_bytes * channels, stack.activation_backward_bytes * channels


def softmax_bytes(stack: StackTime, numerics: Numerics) -> tuple[float, float]:
    """(forward, backward) traffic per score of unfused softmax and dropout: 4 + 5 and 6 + 5 bytes, times the stack's factor.

    Source: findings on public measurements, section 2.
    """
    on = 5.0 if numerics.attention_dropout else 0.0
    return (4.0 + on) * stack.softmax_slowdown, (6.0 + on) * stack.softmax_slowdown


BACKWARD_OVER_FORWARD = 1.6
WITH_TENSOR_PARALLELISM = 1.15


GRAPHED_S = 5e-5
"""What the host still needs for a part that is replayed as a CUDA graph (findings on mixtures of
2026, section 3; set by hand there, not fitted)."""
MLP_SHARE = 0.25
"""Of a dense layer's launches, those of its MLP (assumed; the prototype of those findings took 0.3 of attention's)."""
LATENT_LAUNCHES = 1.75
"""Launches of multi-latent attention over those of attention with one projection: down-projections and norms of the latents,
up-projections, halves split, rotated and joined again (counted in megatron-core 0.19.2, transformer/multi_latent_attention.py:
14 modules and copies where attention.py has 8)."""


SORTS_NOTHING = 1.0 / 3.0
"""Of all-to-all's host time, what is left with one local expert: 18 of 22 operators, and none of four splits into a chunk of
each rank and expert (counted in megatron-core 0.19.2; the share is assumed)."""


def layer_launch_seconds(
    stack: StackTime,
    settings: RunSettings,
    experts: Number = 0.0,
    *,
    overlapped: Number = 0.0,
    quantised: bool = False,
    sublayer: str = "",
    latent: bool = False,
    shared: bool = False,
    dropless: bool = False,
) -> Number:
    """Forward time that the host needs to launch one layer: attention and MLP (c), or attention, routing and each local expert.

    `experts`: local experts, 0 in a dense layer; `latent`: attention is multi-latent; `shared`: shared experts beside the
    routed ones, an MLP more; `dropless`: all-to-all's splits are known of no step before it (`alltoall_host_seconds`). A
    graphed part costs GRAPHED_S, a full-iteration graph nothing. Experts in 16 bits have no quantised tensors: half. One
    launch serves fused experts. Under the combined 1F1B schedule every node runs an autograd of its own
    (`ep_overlap_host`). Source: attention, 94 launch-bound CI runs (validation/fit/host_floor.py); experts, fitted on
    NVIDIA's mixtures of 2025 and 2026, one value for every GPU and release (docs/time_model.md, Host).
    """
    experts = np.asarray(experts, dtype=np.float64)
    if settings.full_iteration or "full" in settings.cuda_graphs:
        return 0.0 * experts

    def part(name: str, seconds: float) -> float:
        return min(GRAPHED_S, seconds) if settings.graphed(name) else seconds

    c = stack.host_floor_seconds
    if sublayer in ("attention", "gdn", "mamba", "mlp"):
        name = {"mamba": "mamba", "mlp": "mlp"}.get(sublayer, "attn")
        return 0.0 * experts + part(name, MLP_SHARE * c if sublayer == "mlp" else c)
    attention = (1.0 - MLP_SHARE) * c
    more = (LATENT_LAUNCHES - 1.0) * attention if latent else 0.0
    dense = part("attn", attention + more) + part("mlp", MLP_SHARE * c)
    single = stack.expert_host_seconds * (1.0 if quantised else 0.5)
    launches = np.minimum(experts, 1.0) if settings.fused_experts else experts
    routed = part("moe_router", stack.moe_host_seconds) + part("moe", single) * launches
    routed = routed * np.where(overlapped, stack.ep_overlap_host, 1.0)
    if settings.dispatcher == "alltoall" and dropless and not settings.graphed("moe_preprocess"):
        sorting = np.where(experts > 1.0, 1.0, SORTS_NOTHING) * stack.alltoall_host_seconds
        routed = routed + np.where(overlapped, 0.0, sorting)
    beside = part("moe", MLP_SHARE * c) if shared else 0.0
    return np.where(experts > 0.0, (0.0 if sublayer else part("attn", c + more)) + routed + beside, dense)


def host_floor_seconds(gpu_forward: Number, gpu_backward: Number, tp: Number, launches: Number) -> tuple[Number, Number]:
    """Extra (forward, backward) time of one layer because the host has to launch it.

    The host needs `launches` seconds for a layer's forward and 1.6 times as many for its backward, both x 1.15 with
    tensor parallelism. sqrt(GPU^2 + host^2) - GPU: where both take alike, short kernels wait for the
    host and long ones for the GPU, and neither hides the other wholly; far apart, the longer decides. Source: vTrain's
    single-node runs, whose layers take 3.8, 5.2, 7.0 and 11.7 ms where the GPU needs 1.9, 3.4, 6.0 and 11.5 and the host 3.5
    (docs/time_model.md, Host).
    """
    host = launches * np.where(np.asarray(tp) > 1, WITH_TENSOR_PARALLELISM, 1.0)
    return np.hypot(gpu_forward, host) - gpu_forward, np.hypot(gpu_backward, BACKWARD_OVER_FORWARD * host) - gpu_backward


CHECKPOINT_SHARE = 0.42
"""Host time of one checkpointed part and micro-batch beside what runs again, over that of a layer's launches: states of the
random generators fetched from the GPU, set and set back, and an autograd of its own. Differences of runs whose GPU waits for
the host: Qwen3-4B on an H200 at 1,024 tokens, 0.9 ms a layer for core attention, 0.8 beside the forward for whole layers
(Megatron-Bridge course); Moonlight on 8 H100, 0.65 for core attention, 0.35 for the experts' activation, 0.6 a part for that
and two norms (Megatron-Bridge, skill of activation recomputation, August 2026): 0.6 of the 1.43 ms of megatron-core."""
CHECKPOINTED_PARTS = {"layernorm": 2.0}
"""Parts of a layer that one name of --recompute-modules checkpoints, where it is not one."""


def recompute_host_seconds(gpu_backward: Number, host_backward: Number, gpu_again: Number, host_again: Number) -> Number:
    """What running a part again adds to a layer's backward of `gpu_backward` and `host_backward` seconds: root of the squares
    of the longer GPU and host times, less that of the shorter (host_floor_seconds)."""
    return np.hypot(gpu_backward + gpu_again, host_backward + host_again) - np.hypot(gpu_backward, host_backward)


def step_launch_seconds(step: Number, waiting: Number, host_s: float) -> Number:
    """What the host's work once a step (batches, gradient norm and its wait, the optimizer's launches, logs) adds to a step in
    which the GPU waits `waiting` seconds for launches of layers: with GPU time G = step - waiting and host time
    H = sqrt(step^2 - G^2) it is sqrt(G^2 + (H + t0)^2) - step. A GPU that is never waited for hides nearly all of it.

    t0: median of step time less launches of layers over launch-bound runs of Megatron-LM's CI, H100 50 ms, A100 81 ms
    (`python -m validation.fit.host_floor`).
    """
    gpu = step - waiting
    host = np.sqrt(np.maximum(step * step - gpu * gpu, 0.0))
    return np.hypot(gpu, host + host_s) - step


FIXED_SHARE = 0.2
"""Of the GPU's own limit, what does not follow the clock: leakage, memory, links (an idle H100 draws a tenth). Source of both
constants: cuBLAS on GB300 at 500 of 1,400 W reaches 617 TFLOPS, 28 to 39 % of the 1,600 to 2,174 at 1,400 W
(github.com/facebookexperimental/triton, pull request 2023); the formula gives 32 %."""
KNEE = 0.65
"""Clock, over that of short benchmarks, below which the voltage is as low as it gets."""
STEPS = 8
"""Of Newton's method, which starts above the root of a convex function (1e-9 after six)."""


def clock_ratio(duty: Number, limit_watts: float, own_watts: float, tensor_watts: float) -> Number:
    """Clock of matrix products over their clock in short benchmarks, where they are busy for a share `duty` of the time.

    Power is P0 + d W f V^2 (dynamic power of CMOS): W watts of matrix units that are always busy at f = 1, V = max(f, KNEE),
    P0 = FIXED_SHARE of the GPU's own limit. It is at most the limit: d f V^2 <= b = (limit - P0) / W. Slower products are busy
    for longer, d = duty / (duty + f (1 - duty)), so f solves duty f V^2 = b (duty + f (1 - duty)); never above 1. Assumes that
    power is averaged over a layer at least, and that all other work draws P0 alone. W: gpu_efficiency.json.
    """
    d = np.clip(np.asarray(duty, dtype=np.float64), 1e-6, 1.0)
    b = (limit_watts - FIXED_SHARE * own_watts) / tensor_watts
    f = np.ones_like(d)
    for _ in range(STEPS):
        f = f - (d * f**3 - b * (d + f * (1.0 - d))) / np.maximum(3.0 * d * f**2 - b * (1.0 - d), 1e-9)
    lowest = b * d / np.maximum(d * KNEE**2 - b * (1.0 - d), 1e-9)
    return np.where(d <= b, 1.0, np.where(f < KNEE, lowest, f))


def straggler_ratio(num_gpus: Number, growth: float) -> Number:
    """Step time over that on one 8-GPU node: 1 + g log2(GPUs / 8). Source: findings on public measurements, sections 2
    and 4."""
    return 1.0 + growth * np.maximum(np.log2(np.asarray(num_gpus) / 8.0), 0.0)


def straggler_seconds(step_seconds: Number, num_gpus: Number, growth: float) -> Number:
    """What waiting for the slowest rank adds to a step."""
    return step_seconds * (straggler_ratio(num_gpus, growth) - 1.0)
