"""The norm of the layers where Transformer Engine is not installed."""

from __future__ import annotations

from typing import Any

import torch


class ParallelNorm:
    """torch's LayerNorm or RMSNorm, as `config.normalization` says, usable with sequence parallelism. megatron-core's
    WrappedTorchNorm refuses sequence parallelism because torch's norms do not mark their parameters: each tensor-parallel rank
    sees its share of the sequence, so the gradients of weight and bias must be summed over the ranks. megatron-core does that
    for every parameter with `sequence_parallel` set (finalize_model_grads.py), which is set here."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> torch.nn.Module:
        if config.layernorm_zero_centered_gamma:
            raise ValueError("layernorm_zero_centered_gamma needs Transformer Engine")
        kind = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}[config.normalization]
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm
