"""Attention over chosen keys (DSA): what is saved, against tensors of megatron-core's absorbed latent attention by hand."""

import numpy as np
import pytest
from autoconfig.memory_model.activations import Shape, kept_under_selective
from autoconfig.memory_model.serving import kv_layer_bytes
from autoconfig.memory_model.sparse import indexer, sparse_attention_backward
from autoconfig.memory_model.tables import layer_activations
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack
from small_models import MODELS as SMALL

MODEL, STACK, GPU = load_model("deepseek-v3.2"), load_stack("transformer-engine"), load_gpu("b200")
S, TP = 4096, 4


def saved(sp: bool, seq: int = S) -> dict[str, float]:
    shape = Shape.of(seq_length=seq, tp=TP, sp=sp, cp=1, ep=1, etp=1, mbs=1)
    parts = layer_activations(MODEL, "moe", Numerics(), STACK.memory, shape, GPU)
    return {name: float(np.asarray(size)) for name, size in parts.items()}


def test_saved_tensors_are_those_counted_by_hand() -> None:
    parts, heads = saved(sp=False), 128 / TP
    assert parts["query_key_value"] == S * 2 * (heads * (128 + 576) + 576)
    assert parts["latent_output"] == S * 2 * heads * 512
    assert parts["attention_scores"] == S * 4 * heads
    assert parts["indexer"] == S * (2 * (64 * 128 + 64 + 2 * 128) + 4 * 2048)
    assert saved(sp=True)["indexer"] - parts["indexer"] == S * 2 * (7168 + 1536), "gathered inputs of the indexer"
    assert saved(sp=False, seq=1024)["indexer"] == 1024 * (2 * (64 * 128 + 64 + 2 * 128) + 4 * 1024), "all keys there are"


def test_chosen_keys_of_a_small_model() -> None:
    """With sequence parallelism the gathered inputs beside; of fewer tokens than the top-k, all of them."""
    model = ModelSpec(**SMALL["mla"]).replace(dsa_indexer_n_heads=6, dsa_indexer_head_dim=12, dsa_indexer_topk=512)
    own, latent = 6 * 12 + 6 + 2 * 12, 36 + 6
    for tp, tokens, wanted in ((1, S, 2 * own + 4 * 512), (2, S, 2 * (own + 96 + 44) + 4 * 512), (1, 64, 2 * own + 4 * 64)):
        shape = Shape.of(seq_length=tokens, tp=tp, sp=tp > 1, cp=1, ep=1, etp=1, mbs=1)
        assert indexer(model, Numerics(), shape) == tokens * wanted
    expected = S * (2 * (12 * (latent + 36 + 18) + 6 * 12) + 4 * (latent + 12) + 12 * 512)
    halves = Shape.of(seq_length=S, tp=2, sp=False, cp=1, ep=1, etp=1, mbs=1)
    assert sparse_attention_backward(model, Numerics(), halves) == expected


def test_recomputing_core_attention_frees_the_indexer_and_keeps_what_goes_in() -> None:
    parts = saved(sp=True)
    kept = kept_under_selective(parts, ("core_attn",), STACK.memory).kept
    assert kept["indexer"] == kept["latent_output"] == kept["attention_scores"] == 0
    assert kept["query_key_value"] == parts["query_key_value"]


@pytest.mark.parametrize(("kv", "size"), [("bf16", 1152 + 132), ("fp8", 656 + 132)])
def test_a_cached_token_holds_the_latent_and_the_indexers_key(kv: str, size: int) -> None:
    assert [kv_layer_bytes(MODEL, tp, kv) for tp in (1, 8)] == [size, size], "whole on every rank"
    assert kv_layer_bytes(load_model("deepseek-v3"), 1, "bf16") == 1152
