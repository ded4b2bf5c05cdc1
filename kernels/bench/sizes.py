"""Which sizes the benchmark measures: the shapes that plans produce, by device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Grids of one set. Axes rise; a table is priced between their points."""

    m: tuple[int, ...]
    """GEMM rows: tokens of a micro-batch on one rank."""
    nk: tuple[int, ...]
    """GEMM columns and inner size: hidden size, ffn width over tp, vocabulary over tp."""
    plan_shapes: tuple[tuple[int, int, int], ...]
    """(m, n, k) beside the grid: how far the table is off between its points."""
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    attention_rows: int
    """Batch x heads x length of one attention call, at least `least_parallel` x length."""
    least_parallel: int
    rows: tuple[int, ...]
    """Rows of one local expert."""
    widths: tuple[int, ...]
    """Grouped GEMM: square root of n k; measured with n = k."""
    groups: tuple[int, ...]
    """Local experts."""
    copy_bytes: tuple[int, ...]
    pointwise_shape: tuple[int, int]
    """(tokens, hidden size) of the memory-bound operators."""
    collective_bytes: tuple[int, ...]
    launches: int
    cap_s: float
    """Most seconds of one point, its warm-up not counted."""
    least_repetitions: int = 3
    most_repetitions: int = 20


_K = 1024
QUICK = Sizes(
    m=(128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    nk=(128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536),
    plan_shapes=(
        (2048, 4608, 12288),  # GPT-3 175B, tp 8: qkv, projection, fc1, fc2
        (2048, 12288, 1536),
        (2048, 6144, 12288),
        (2048, 12288, 6144),
        (4096, 9216, 12288),  # GPT-3 175B, tp 4, micro-batch 2
        (8192, 2560, 8192),  # Llama-3-70B, tp 4: qkv, fc1, fc2
        (8192, 14336, 8192),
        (8192, 8192, 7168),
        (8192, 6144, 4096),  # Llama-3-8B, tp 1: qkv, fc1, fc2, output layer
        (8192, 28672, 4096),
        (8192, 4096, 14336),
        (8192, 128256, 4096),
        (3072, 1920, 5120),  # no powers of two
        (6144, 13824, 5120),
    ),
    head_dims=(64, 96, 128, 192, 256),
    lengths=(1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    attention_rows=131_072,
    least_parallel=16,
    rows=(16, 64, 128, 256, 512, 1024, 2048, 4096),
    widths=(1024, 2048, 4096, 8192),
    groups=(1, 4, 16, 64),
    copy_bytes=(64 * _K**2, 256 * _K**2, _K**3),
    pointwise_shape=(8192, 8192),
    collective_bytes=(*(64 * _K * 4**i for i in range(7)), 512 * _K**2),
    launches=500,
    cap_s=0.5,
)
CPU = Sizes(
    m=(16, 64, 256, 1024),
    nk=(16, 64, 256, 1024),
    plan_shapes=((128, 192, 64), (128, 64, 128), (512, 384, 128), (512, 128, 512), (384, 768, 192), (768, 192, 768)),
    head_dims=(16, 64, 128),
    lengths=(64, 256, 1024),
    attention_rows=2048,
    least_parallel=2,
    rows=(16, 128, 512),
    widths=(64, 256, 512),
    groups=(1, 4),
    copy_bytes=(8 * _K**2, 64 * _K**2),
    pointwise_shape=(2048, 1024),
    collective_bytes=(4 * _K, 32 * _K, 256 * _K, 2 * _K**2),
    launches=300,
    cap_s=0.03,
)
TINY = Sizes(
    m=(16, 32, 64),
    nk=(16, 32, 64),
    plan_shapes=((48, 24, 40),),
    head_dims=(16, 32),
    lengths=(32, 64),
    attention_rows=64,
    least_parallel=1,
    rows=(8, 16),
    widths=(16, 32),
    groups=(1, 2),
    copy_bytes=(65_536,),
    pointwise_shape=(32, 64),
    collective_bytes=(1024, 4096, 16384),
    launches=20,
    cap_s=0.002,
)
SETS = {"quick": QUICK, "cpu": CPU, "tiny": TINY}
"""quick: a GPU, in minutes. cpu: one process, in seconds. tiny: the tests'."""


def coarse(axis: tuple[int, ...]) -> tuple[int, ...]:
    """Every second point of an axis, both ends kept: measured first, so that an early end leaves a whole table."""
    last = len(axis) - 1
    return tuple(value for i, value in enumerate(axis) if i == 0 or (last - i) % 2 == 0)
