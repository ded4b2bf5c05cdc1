"""What a run switches on or off of its software: kernels and overlaps, as launch arguments and tables of runs say it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from autoconfig.specs.software.software import SoftwareStack, StackTime

LOSS_BYTES = {"none": 6.0, "native": 10.0, "overwrite": 2.0}
"""Fusion of the loss -> bytes per logit (docs/memory_model.md, part `loss`)."""
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
    overlaps: frozenset[str] | None = None
    """Those that are on, every other one is off: some of GRAD_REDUCE, PARAM_GATHER, TP_OVERLAP."""
    cuda_graphs: bool = False


@cache
def with_options(stack: SoftwareStack, options: StackOptions) -> SoftwareStack:
    """The stack with the kernels and overlaps of a run: what they save, and what they read and write."""
    memory, time, on = stack.memory, stack.time, options.overlaps
    if options.attention_kernel in SOFTMAX_SLOWDOWN:
        memory = replace(memory, attention_kernel="unfused")
        time = replace(time, softmax_slowdown=SOFTMAX_SLOWDOWN[options.attention_kernel])
    elif options.attention_kernel:
        memory = replace(memory, attention_kernel="flash")
        generation = FLASH_GENERATION.get(options.attention_kernel, time.attention_generation)
        time = replace(time, attention_generation=generation)
    if options.loss_fusion in LOSS_BYTES:
        memory = replace(memory, loss_bytes_per_logit=LOSS_BYTES[options.loss_fusion])
    if options.fused_rms_norm:
        fused = StackTime()
        memory = replace(memory, norm_input_bytes=2.0)
        time = replace(time, norm_forward_bytes=fused.norm_forward_bytes, norm_backward_bytes=fused.norm_backward_bytes)
    if on is not None:
        share = max(time.tp_overlap_share, USERBUFFERS_SHARE) if TP_OVERLAP in on else 0.0
        time = replace(
            time, overlap_grad_reduce=GRAD_REDUCE in on, overlap_param_gather=PARAM_GATHER in on, tp_overlap_share=share
        )
    if options.cuda_graphs:
        time = replace(time, cuda_graphs=True)
    return replace(stack, memory=memory, time=time)
