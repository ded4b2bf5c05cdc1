"""Operator: one line of a layer with its seconds; and the batched pricing of many GEMMs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import (
    gemm_bytes,
    gemm_flops,
    gemm_seconds,
    grouped_gemm_seconds,
    pointwise_seconds,
    weight_gradient_seconds,
)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Seconds of one operator of one layer and micro-batch, on one rank. Arrays over shapes."""

    name: str
    formula: str
    """Public function of time_model that priced it: the part that it is booked under."""
    layer: str = "all"
    """all, or a kind of layer (ModelSpec.kinds): the layers that have it; head, embedding or mtp: outside of the layers."""
    modules: tuple[str, ...] = ()
    """Recompute modules (specs.plan) whose recomputation runs it again."""
    again: Number = 1.0
    """Share of its forward that selective recomputation by operator (specs.plan.OP) runs again."""
    forward: Number = 0.0
    dgrad: Number = 0.0
    """Gradient of the input; for operators without weights the whole backward."""
    wgrad: Number = 0.0
    flops: Number = 0.0
    """Forward FLOPs."""
    traffic: Number = 0.0
    """Forward bytes: of HBM, or sent where the operator communicates."""
    peak_flops_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GemmShape:
    """One linear layer on one rank: [m, k] x [k, n], `groups` of them (local experts)."""

    name: str
    m: Number
    n: Number
    k: Number
    groups: Number = 1.0
    layer: str = "all"
    modules: tuple[str, ...] = ()
    again: Number = 1.0
    """As in Operator."""
    layer_precision: bool = True
    """In the layers' precision (fp8 under fp8); False: 16 bits."""
    trainable: bool = True
    input_gradient: bool = True
    """False where the input is detached."""
    grouped: bool = False
    in_fp8: bool = False
    """Where the layers are in NVFP4 this one is in MXFP8."""


def price_gemms(job: TrainingJob, x: Shapes, gemms: Sequence[GemmShape]) -> list[Operator]:
    """Forward (m, n, k), input gradient (m, k, n) and weight gradient (n, k, m) of many linear layers, one call per precision.

    Under fp8 an operand is one byte; frozen weights have no weight gradient. Grouped GEMMs (grouped_gemm_seconds) are priced
    from one dense GEMM of all their rows. Shapes that have tokens and tp in common share the price of what is not grouped.
    """
    token, rank, sharded = (np.unique(column, return_inverse=True)[1] for column in (x.tokens, x.tp, x.sharded_tokens))
    alike = np.unique((token * len(x.tp) + sharded) * len(x.tp) + rank, return_index=True, return_inverse=True)[1:]
    together: dict[tuple[bool, bool], list[int]] = {}
    for i, gemm in enumerate(gemms):
        together.setdefault((job.quantised and gemm.layer_precision, gemm.grouped), []).append(i)
    result: dict[int, Operator] = {}
    for (low, grouped), mine in together.items():
        result.update(zip(mine, _price_alike(job, [gemms[i] for i in mine], low, grouped, alike), strict=True))
        if kept := [i for i in mine if low and kept_share(job, gemms[i].layer)]:
            wide = _price_alike(job, [gemms[i] for i in kept], False, grouped, alike)
            result |= {i: _mixed(job, gemms[i], result[i], other) for i, other in zip(kept, wide, strict=True)}
    return [result[i] for i in range(len(gemms))]


KEPT_LAYERS = 14 / 88
"""Last layers of Nemotron-3-Super that its NVFP4 recipe keeps in 16 bits (te_quant.cfg of Megatron-Bridge); of other hybrids as
many in proportion."""


def kept_share(job: TrainingJob, layer: str) -> float:
    """Share of a hybrid's layers of this kind whose GEMMs stay in 16 bits under NVFP4: its last ones, and those of
    multi-token prediction."""
    kinds, depths = job.model.layer_kinds, job.model.mtp_kinds * job.model.mtp_num_layers
    if job.quantises_attention or layer not in (*kinds, *depths):
        return 0.0
    kept = (*kinds[len(kinds) - round(KEPT_LAYERS * len(kinds)) :], *depths)
    return kept.count(layer) / (*kinds, *depths).count(layer)


def _mixed(job: TrainingJob, gemm: GemmShape, low: Operator, wide: Operator) -> Operator:
    """A hybrid's linear layer under NVFP4: in some of its layers in 16 bits, in the others in 4, or in 8 (`in_fp8`)."""
    share, slower = kept_share(job, gemm.layer), job.fp4_over_fp8 if gemm.in_fp8 else 1.0
    means = {
        name: share * getattr(wide, name) + (1.0 - share) * slower * getattr(low, name)
        for name in ("forward", "dgrad", "wgrad")
    }
    return replace(low, **means)


def _price_alike(
    job: TrainingJob, gemms: Sequence[GemmShape], low: bool, grouped: bool, alike: tuple[Index, Index]
) -> list[Operator]:
    """GEMMs of one precision, all grouped or none. `alike`: a shape of each kind, and for every shape its kind."""
    sizes = np.stack(
        [[np.broadcast_to(getattr(g, field), np.shape(gemms[0].m)) for g in gemms] for field in ("m", "n", "k", "groups")]
    )
    first, kind = alike
    if grouped or not np.array_equal(sizes[..., first][..., kind], sizes):
        first = kind = np.arange(sizes.shape[-1])
    m, n, k, groups = sizes[..., first]
    table = job.gpu.tables.gemm.get(job.table_precision(low))
    forward, element = job.gemm_rate(low, table), job.numerics.format.operand_bytes if low else float(job.activation_bytes)
    backward = forward * (job.reached.backward if low and table is not None else 1.0)
    once = np.ones_like(groups)
    all_rows, number = (m * groups, np.stack([once, once, groups])) if grouped else (m, groups)
    seconds = gemm_seconds(
        np.stack([all_rows, all_rows, n]),
        np.stack([n, k, k]),
        np.stack([k, n, m]),
        groups=number,
        flops_per_s=np.array([forward, backward, backward])[:, None, None],
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        num_sms=job.cluster.gpu.num_sms,
        constants=job.gpu.gemm,
        element_bytes=element,
        table=table,
    )
    if grouped:
        measured = job.gpu.tables.grouped_gemm.get(job.table_precision(low))
        if measured is not None:
            reached = job.flops_per_s * measured.at(m, np.sqrt(n * k), groups)
            seconds = np.broadcast_to(gemm_flops(m, n, k) * groups / reached, seconds.shape)
        else:
            seconds = grouped_gemm_seconds(seconds, m, job.software.grouped_gemm_share, groups)
        seconds = job.factors.moe * seconds
    flops, traffic = gemm_flops(m, n, k) * groups, gemm_bytes(m, n, k, element) * groups
    seconds, flops, traffic = seconds[..., kind], flops[:, kind], traffic[:, kind]
    return [
        Operator(
            name=g.name,
            formula="grouped_gemm_seconds" if grouped else "gemm_seconds",
            layer=g.layer,
            modules=g.modules,
            again=g.again,
            forward=seconds[0, i],
            dgrad=seconds[1, i] if g.input_gradient else 0.0 * seconds[1, i],
            wgrad=seconds[2, i] if g.trainable else 0.0 * seconds[2, i],
            flops=flops[i],
            traffic=traffic[i],
            peak_flops_per_s=forward,
        )
        for i, g in enumerate(gemms)
    ]


def memory_bound(
    job: TrainingJob,
    name: str,
    traffic: tuple[Number, Number],
    *,
    layer: str = "all",
    modules: tuple[str, ...] = (),
    launches: tuple[Number, Number] = (0.0, 0.0),
) -> Operator:
    """An Operator from (forward, backward) traffic at 16-bit activations, priced by pointwise.pointwise_seconds."""
    forward, backward = (
        pointwise_seconds(
            part * job.width_factor,
            count,
            hbm_bytes_per_s=job.hbm_bytes_per_s,
            efficiency=job.gpu.hbm_pointwise,
            launch_s=job.gpu.launch_s,
            factor=job.software.pointwise_slowdown,
        )
        for part, count in zip(traffic, launches, strict=True)
    )
    return Operator(
        name=name,
        formula="pointwise_seconds",
        layer=layer,
        modules=modules,
        forward=forward,
        dgrad=backward,
        traffic=traffic[0] * job.width_factor,
    )


def gradient_accumulation(job: TrainingJob, name: str, gemms: Sequence[GemmShape], layer: str = "all") -> Operator:
    """The main-gradient traffic of all trainable weights among `gemms`, as one Operator."""
    weights = sum((g.n * g.k * g.groups for g in gemms if g.trainable), 0.0)
    return Operator(
        name=name,
        formula="weight_gradient_seconds",
        layer=layer,
        wgrad=weight_gradient_seconds(
            weights, grad_bytes=job.gradient_bytes, exposed=job.gpu.accumulate_exposed, hbm_bytes_per_s=job.hbm_bytes_per_s
        ),
    )


def fp8_casts(
    job: TrainingJob,
    name: str,
    gemms: Sequence[GemmShape],
    layer: str = "all",
    modules: tuple[str, ...] = (),
    *,
    fused: bool = False,
) -> list[Operator]:
    """Casts of every GEMM's input (forward) and output gradient (backward) to the layers' format; none in 16 bits. `fused`:
    only what enters the first and the last of them from outside. Experts that are not fused are cast one by one:
    amax, its scale and the cast by tensor, amax and the cast of NVFP4, one kernel else, one for all with delayed scaling
    (`cast_kernels` of the format); starts in other layers are counted with the layer's. Source: counting, Transformer Engine's
    csrc/extensions/cast.cpp (multi_tensor_quantize_impl) and csrc/quantizer.cpp; no measurement."""
    if not job.quantised:
        return []
    recipe, share = job.numerics.format.recipe, 1.0 - kept_share(job, layer)
    cast = job.reached.cast_bytes[recipe] * share
    low = [g for g in gemms if g.layer_precision]
    forward = sum(g.m * g.k * g.groups for g in (low[:1] if fused else low))
    backward = sum(g.m * g.n * g.groups for g in (low[-1:] if fused else low))
    starts = 0.0 if fused else share * job.numerics.format.cast_kernels * sum(g.groups for g in low if g.grouped)
    traffic = cast * forward, cast * backward
    return [memory_bound(job, name, traffic, layer=layer, modules=modules, launches=(starts, starts))]


DEQUANTISATION = {"nf4": 3.0, "nf4_single": 1.0, "int8": 2.0, "fp8": 1.0}
"""Kernels a matrix: the maxima in fp32 and their offset, the weights; the weights; their cast and the product with the scales;
both at once. Source: bitsandbytes 0.50, functional.py (dequantize_4bit) and autograd/_functions.py (MatMul8bitLt.backward)."""


def dequantisation(
    job: TrainingJob, name: str, gemms: Sequence[GemmShape], layer: str = "all", modules: tuple[str, ...] = ()
) -> list[Operator]:
    """16-bit copies of the frozen matrices before their products: n bytes read and 2 written an element, in forward and in
    backward (which needs them for the input's gradient); none where they are frozen in 16 bits. int8 is priced so, too: its
    product in 8 bits, which forward has instead, quantises the input and returns to 16 bits."""
    if not job.numerics.freezes_quantised:
        return []
    frozen = job.numerics.frozen_dtype
    mine = [g for g in gemms if ".lora_" not in g.name]
    weights = sum(g.n * g.k for g in mine)
    gate = job.model.gate_factor
    apart = {"linear_qkv": 3, "linear_fc1": gate}  # matrices of transformers in one of Megatron's
    starts = DEQUANTISATION[frozen] * sum(apart.get(g.name, 1) for g in mine)
    traffic = (FROZEN_BYTES[frozen] + 2.0) * weights
    return [memory_bound(job, name, (traffic, traffic), layer=layer, modules=modules, launches=(starts, starts))]


def with_adapters(job: TrainingJob, gemms: Sequence[GemmShape]) -> list[GemmShape]:
    """Under LoRA: the linear layers frozen, and beside each target a pair of low-rank ones (Hu et al. 2021, section 4.1).

    Matrices A (r x k) and B (n x r) in 16 bits; how tensor parallelism splits A is neglected.
    """
    if job.numerics.peft != "lora":
        return list(gemms)
    rank, result = float(job.numerics.lora_rank), []
    for g in gemms:
        result.append(GemmShape(**{**g.__dict__, "trainable": False}))
        if g.name in job.numerics.lora_target_modules:
            common = {**g.__dict__, "layer_precision": False}
            result.append(GemmShape(**{**common, "name": f"{g.name}.lora_a", "n": rank + 0 * g.n}))
            result.append(GemmShape(**{**common, "name": f"{g.name}.lora_b", "k": rank + 0 * g.k}))
    return result
