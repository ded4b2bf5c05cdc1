"""Attention over chosen keys (DSA) in a serving engine: the indexer reads all of its cached keys, attention the chosen ones.

Source: DeepSeek-V3.2 (arXiv:2512.02556), section 2.1; vLLM's and SGLang's sparse latent attention run prompts on the latents,
too, and the indexer in fp8. No measured row stands behind it. Symbols: specs/models/model.py.
"""

from __future__ import annotations

import numpy as np
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number, indexer_key_bytes
from autoconfig.time_model.operators.kernels import attended_pairs
from autoconfig.time_model.operators.sparse import share_of_peak

HBM = 0.8
"""Share of HBM's bandwidth at which the indexer's keys are read, that of other memory-bound kernels (docs/time_model.md)."""
KERNELS_S = 3 * 2.5e-6
"""Of one layer and iteration: scores, choice, and the table of the chosen blocks."""


def _rates(gpu: GpuSpec) -> tuple[float, float]:
    """FLOP/s that are reached in fp8 and in 16 bits."""
    share, wide = share_of_peak(gpu), gpu.sixteen_bit_flops_per_s
    return share * gpu.flops_per_s.get("fp8", wide), share * wide


def indexer_decode_seconds(model: ModelSpec, sequences: Number, length: Number, gpu: GpuSpec) -> Number:
    """One layer, one token of each sequence, whole on every rank: 2 n_I d_I FLOPs and one cached key for every token before."""
    flops = 2.0 * model.dsa_indexer_n_heads * model.dsa_indexer_head_dim * length * sequences
    moved = indexer_key_bytes(model) * length * sequences
    return np.maximum(flops / _rates(gpu)[0], moved / (HBM * gpu.hbm_bytes_per_s)) + KERNELS_S


def sparse_prefill_seconds(model: ModelSpec, prompts: Number, heads: Number, length: Number, gpu: GpuSpec) -> Number:
    """One layer, whole prompts: the indexer's scores of s^2 / 2 pairs, fp32 scores written and read once, and
    2 a (2 kv_r + d_r) FLOPs a pair of query and chosen key."""
    before, chosen = prompts * attended_pairs(length), prompts * attended_pairs(length, float(model.dsa_indexer_topk))
    low, high = _rates(gpu)
    index = 2.0 * model.dsa_indexer_n_heads * model.dsa_indexer_head_dim * before / low
    core = 2.0 * heads * (2 * model.kv_lora_rank + model.qk_pos_emb_head_dim) * chosen / high
    return index + 8.0 * before / (HBM * gpu.hbm_bytes_per_s) + core + KERNELS_S
