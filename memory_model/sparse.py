"""What attention over chosen keys (DSA) saves and needs in backward, in bytes on one rank: with fused kernels and the
indexer's loss on the chosen keys, as exported scripts run it (--dsa-kernel-backend, --dsa-indexer-use-sparse-loss).

Attention runs on the latents themselves: a query has kv_r + d_r channels, and there is one key of as many for all heads. The
indexer is whole on every rank. Source: megatron-core 0.19.2, transformer/experimental_attention_variant/absorbed_mla.py and
dsa.py; no measured peak stands behind it. Symbols: specs/models/model.py; T, u, t: activations.Shape.
"""

from __future__ import annotations

import numpy as np
from autoconfig.memory_model.activations import Number, Shape
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics


def latent_channels(model: ModelSpec) -> int:
    """kv_r + d_r: channels of a query and of the one key."""
    return model.kv_lora_rank + model.qk_pos_emb_head_dim


def absorbed_query_key(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Queries before and behind the product with the keys' up projection, 2 T a (d_n + kv_r + d_r) / t, and the one key of all
    heads, 2 T (kv_r + d_r)."""
    heads, wide = model.num_attention_heads / shape.tp, latent_channels(model)
    return numerics.activation_bytes * shape.tokens * (heads * (model.qk_head_dim + wide) + wide)


def indexer(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Queries, weights of the heads, and the key before and behind its norm, 2 T (n_I d_I + n_I + 2 d_I), the numbers of the
    chosen keys, 4 T K, and with sequence parallelism the gathered inputs, 2 T (h + q_r)."""
    own = model.dsa_indexer_n_heads * (model.dsa_indexer_head_dim + 1) + 2 * model.dsa_indexer_head_dim
    gathered = np.where(np.greater(shape.sp, 1), model.hidden_size + (model.q_lora_rank or 0), 0)
    chosen = 4.0 * np.minimum(model.dsa_indexer_topk, shape.sequence)
    return shape.tokens * (numerics.activation_bytes * (own + gathered) + chosen)


def latent_output(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Attention's output before the values' up projection: 2 T a kv_r / t."""
    return numerics.activation_bytes * shape.tokens * model.num_attention_heads / shape.tp * model.kv_lora_rank


def sparse_attention_activations(model: ModelSpec, numerics: Numerics, shape: Shape) -> dict[str, Number]:
    """What an attention block with an indexer saves instead of, or beside, what activations.attention_activations says."""
    return {
        "query_key_value": absorbed_query_key(model, numerics, shape),
        "indexer": indexer(model, numerics, shape),
        "latent_output": latent_output(model, numerics, shape),
    }


def sparse_attention_backward(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """Gradients of the queries, of the output before and behind the up projection, and of the key in fp32 (many queries add to
    it): 2 T a (2 kv_r + d_r + d_v) / t + 4 T (kv_r + d_r); of the indexer's queries and key, 2 T n_I d_I + 4 T d_I; its scores
    of the chosen keys with their gradient and target, fp32, 12 T K."""
    heads, dim = model.num_attention_heads / shape.tp, model.dsa_indexer_head_dim
    wide = heads * (latent_channels(model) + model.kv_lora_rank + model.v_head_dim) + model.dsa_indexer_n_heads * dim
    fp32 = 4.0 * (latent_channels(model) + dim) + 12.0 * np.minimum(model.dsa_indexer_topk, shape.sequence)
    return shape.tokens * (numerics.activation_bytes * wide + fp32)
