"""Selective checkpointing by operator against torch's own: the tensors that torch keeps of a real layer under that policy."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model.activations import Shape, kept_by_operator
from autoconfig.memory_model.tables import layer_activations
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="torch comes with the dev extra; the formula is compared with torch's own policy")
SEQ, BATCH = 64, 2
MODEL = replace(
    load_model("llama3-8b"), hidden_size=256, num_attention_heads=8, num_query_groups=2, kv_channels=32, ffn_hidden_size=704
)


def kept_by_torch(model: ModelSpec) -> int:
    """Bytes that torch's selective checkpoint caches of one layer where every second matrix product is run again."""
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    aten, products = torch.ops.aten, Counter[str]()
    attention = {aten._scaled_dot_product_flash_attention_for_cpu.default}

    def policy(ctx, operator, *arguments, **options):
        phase = "again" if ctx.is_recompute else "forward"
        if operator == aten.mm.default:
            products[phase] += 1
        keep = operator in attention or (operator == aten.mm.default and products[phase] % 2)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    h, heads, kv, width = model.hidden_size, model.num_attention_heads, model.num_query_groups, model.kv_channels
    f = model.ffn_hidden_size

    def weight(rows, columns):
        return torch.randn(rows, columns, dtype=torch.bfloat16, requires_grad=True)

    q, k, v, o = weight(heads * width, h), weight(kv * width, h), weight(kv * width, h), weight(h, heads * width)
    first, gate, second = weight(f, h), weight(f, h), weight(h, f)

    def split(x, count):
        return x.view(BATCH, SEQ, count, width).transpose(1, 2).repeat_interleave(heads // count, dim=1)

    def layer(x):
        y = rms_norm(x, (h,))
        queries, keys, values = (y.flatten(0, 1) @ part.t() for part in (q, k, v))
        parts = split(queries, heads), split(keys, kv), split(values, kv)
        out = scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        x = x + (out.flatten(0, 1) @ o.t()).view_as(x)
        y = rms_norm(x, (h,)).flatten(0, 1)
        inside = silu(y @ first.t())
        if model.gated_linear_unit:
            inside = inside * (y @ gate.t())
        return x + (inside @ second.t()).view_as(x)

    contexts = create_selective_checkpoint_contexts(policy)
    x = torch.randn(BATCH, SEQ, h, dtype=torch.bfloat16, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False, context_fn=lambda: contexts)
    cached = torch.utils._pytree.tree_leaves(dict(contexts[0].storage))
    held = [getattr(leaf, "val", leaf) for leaf in cached]
    return x.nbytes + sum(leaf.nbytes for leaf in held if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("gated", [True, False])
def test_kept_bytes_are_those_that_torch_keeps(gated):
    model = replace(MODEL, gated_linear_unit=gated)
    shape = Shape.of(seq_length=SEQ, tp=1, sp=1, cp=1, ep=1, etp=1, mbs=BATCH)
    stack, numerics = load_stack("torchtitan"), Numerics()
    parts = layer_activations(model, "dense", numerics, stack.memory, shape, load_gpu("h100-sxm-80gb"))
    kept = kept_by_operator(model, "dense", numerics, shape, parts)
    assert float(sum(kept.kept.values())) == kept_by_torch(model)
    assert float(np.asarray(kept.back_in_mlp)) == pytest.approx(float(sum(parts.values()) - sum(kept.kept.values())))
