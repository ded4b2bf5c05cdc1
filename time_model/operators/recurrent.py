"""Recurrent layers of hybrid models, operator by operator: Mamba-2 and Gated DeltaNet."""

from __future__ import annotations

import numpy as np
from autoconfig.specs.models.hybrid import (
    delta_rule_flops_per_token,
    gdn_convolved,
    gdn_projected,
    gdn_values,
    mamba_convolved,
    mamba_inner,
    mamba_projected,
    scan_flops_per_token,
)
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.collectives import collective_seconds
from autoconfig.time_model.job import Shapes, TrainingJob
from autoconfig.time_model.operators.kernels import norm_bytes, residual_bytes
from autoconfig.time_model.operators.layer import BlockCollectives, block_communication, norm_modules
from autoconfig.time_model.operators.operator import GemmShape, Operator, memory_bound

RECURRENT = ("mamba", "gdn")
PROJECTED = {"mamba": mamba_projected, "gdn": gdn_projected}
"""Columns of in_proj."""
INNER = {"mamba": mamba_inner, "gdn": gdn_values}
"""Channels of the core's output, which out_proj reads."""
CONVOLVED = {"mamba": mamba_convolved, "gdn": gdn_convolved}


def recurrent_gemm_shapes(job: TrainingJob, x: Shapes, kind: str) -> list[GemmShape]:
    """in_proj and out_proj, divided over tp like qkv and its projection."""
    h = job.model.hidden_size + 0.0 * x.tokens
    return [
        GemmShape(name=f"{kind}.in_proj", m=x.tokens, n=PROJECTED[kind](job.model) / x.tp, k=h, layer=kind),
        GemmShape(
            name=f"{kind}.out_proj", m=x.tokens, n=h, k=INNER[kind](job.model) / x.tp, layer=kind, in_fp8=kind == "mamba"
        ),
    ]


def scan_seconds(flops: Number, *, flops_per_s: float) -> Number:
    """Forward of Mamba-2's chunked scan: FLOPs over the reached rate, one sequence or many. Source: operator tables of
    aiconfigurator 0.8.0 (GB200, mamba_chunk_scan_combined: one sequence of 8,192 tokens takes 0.35 to 0.41 ms with 64 heads of
    64 x 128, 0.65 to 0.99 with 128; four sequences with 64 heads 1.27 to 1.53)."""
    return flops / flops_per_s


def delta_rule_seconds(flops: Number, *, flops_per_s: float) -> Number:
    """Forward of the chunked gated delta rule: FLOPs over the reached rate. Source: operator tables of aiconfigurator-core
    0.12.0 (a token and value head of 128 x 128: B200 1.66 ns, GB200 2.36, H100 2.6)."""
    return flops / flops_per_s


def convolution_seconds(elements: Number, *, hbm_bytes_per_s: float, efficiency: float) -> Number:
    """Causal convolution over the tokens: 4 bytes an element (read and write) at a share of HBM. Source: operator tables of
    aiconfigurator-core 0.12.0 (causal_conv1d: 0.47 on Blackwell, 0.73 on H100)."""
    return 4.0 * elements / (hbm_bytes_per_s * efficiency)


def recurrent_operators(
    job: TrainingJob, x: Shapes, kind: str, hidden: BlockCollectives, column: list[Operator]
) -> list[Operator]:
    """Everything of one layer but its linear layers and casts: core, convolution, gated norm, copies, norm and residual,
    communication. Heads are divided over tp and, after an all-to-all, over cp."""
    model, stack = job.model, job.software
    inner, columns = INNER[kind](model) / x.tp, PROJECTED[kind](model) / x.tp
    copied = np.where(x.mbs > 1.0, 4.0 * x.tokens * (columns + inner), 0.0)
    residual = x.sharded_tokens * model.hidden_size
    exchange = _exchange_seconds(job, x, columns + inner)
    return [
        _core(job, x, kind),
        _convolution(job, x, kind),
        memory_bound(job, f"{kind} layout copies", (copied, copied), layer=kind),
        memory_bound(job, f"{kind} gated norm", (4.0 * x.tokens * inner, 8.0 * x.tokens * inner), layer=kind),
        memory_bound(job, f"{kind} input norm", norm_bytes(residual, stack), layer=kind, modules=norm_modules(job, kind)[0]),
        memory_bound(job, f"{kind} residual", residual_bytes(residual, stack, job.numerics), layer=kind),
        Operator(
            name=f"{kind} context-parallel exchange",
            formula="cp_communication_seconds",
            layer=kind,
            forward=exchange,
            dgrad=exchange,
        ),
        block_communication(job, x, f"{kind} communication", hidden, hidden, column, layer=kind),
    ]


def _core(job: TrainingJob, x: Shapes, kind: str) -> Operator:
    """Scan or delta rule. Backward: gradients and the forward's states again, a multiple of forward per GPU generation."""
    reached, peak = job.gpu.recurrent, job.flops_per_s
    if kind == "mamba":
        flops = scan_flops_per_token(job.model) / x.tp * x.tokens
        forward = scan_seconds(flops, flops_per_s=peak * reached.scan)
        name, formula = "mamba scan", "scan_seconds"
    else:
        flops = delta_rule_flops_per_token(job.model) / x.tp * x.tokens
        forward = delta_rule_seconds(flops, flops_per_s=peak * reached.delta_rule)
        name, formula = "gdn delta rule", "delta_rule_seconds"
    return Operator(
        name=name,
        formula=formula,
        layer=kind,
        forward=forward,
        dgrad=reached.backward * forward,
        flops=flops,
        peak_flops_per_s=peak,
    )


def _convolution(job: TrainingJob, x: Shapes, kind: str) -> Operator:
    """Backward three times forward: gradient read, input read again, its gradient written, and the taps' gradient."""
    elements = job.width_factor * x.tokens * CONVOLVED[kind](job.model) / x.tp
    forward = convolution_seconds(elements, hbm_bytes_per_s=job.hbm_bytes_per_s, efficiency=job.gpu.recurrent.convolution)
    return Operator(
        name=f"{kind} convolution",
        formula="convolution_seconds",
        layer=kind,
        forward=forward,
        dgrad=3.0 * forward,
        traffic=4.0 * elements,
    )


def _exchange_seconds(job: TrainingJob, x: Shapes, channels: Number) -> Number:
    """All-to-all of in_proj's output to shards of heads, and of the core's output back, one way of both; 0 without cp.

    Source: megatron-core 0.19.2, ssm/mamba_context_parallel.py; Jacobs et al. 2023 (DeepSpeed-Ulysses)."""
    if float(np.max(x.cp)) == 1.0:
        return 0.0 * x.cp
    total = x.tokens * channels * job.activation_bytes
    return np.where(x.cp > 1.0, collective_seconds("all_to_all", total, x.context_group, job.links), 0.0)
