"""Attention cores against plain softmax, the norm's marks, the order of context parallelism."""

import importlib.util
import math
import types

import pytest

if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch and megatron-core", allow_module_level=True)

import warnings

pytestmark = pytest.mark.torch

with warnings.catch_warnings():  # megatron-core warns of everything optional that is not installed
    warnings.simplefilter("ignore")
    import torch
    from autoconfig.trainer.host.limits import leave_out_compiler

    leave_out_compiler()
    from autoconfig.kernels.attention import FlashAttention, ParallelNorm, local_chunks, sequence_share


def config(**changes):
    values = {
        "context_parallel_size": 1, "tensor_model_parallel_size": 1, "attention_dropout": 0.0, "kv_channels": 8,
        "multi_latent_attention": False, "sequence_parallel": False, "window_size": None, "window_attn_skip_freq": None,
        "softmax_type": "vanilla", "layernorm_zero_centered_gamma": False, "normalization": "RMSNorm",
        "params_dtype": torch.float32,
    }  # fmt: skip
    return types.SimpleNamespace(**{**values, **changes})


def plain(q, k, v, scale, window=None):
    """[s, b, n, d] by the definition, every head apart."""
    s, _, n, _ = q.shape
    k, v = (t.repeat_interleave(n // t.size(2), dim=2) for t in (k, v))
    scores = torch.einsum("sbnd,tbnd->bnst", q, k) * scale
    row, column = torch.arange(s)[:, None], torch.arange(s)[None]
    hidden = (column > row) | (row - column > (s if window is None else window))
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("bnst,tbnd->sbnd", weights, v).flatten(2)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "value_width", "window"),
    [(4, 4, 8, 8, None), (4, 2, 8, 8, None), (4, 1, 8, 8, None), (4, 4, 12, 8, None), (4, 2, 8, 8, 3)],
    ids=["heads", "grouped", "one group", "MLA widths", "window"],
)
def test_attention_is_softmax(heads, groups, width, value_width, window):
    torch.manual_seed(0)
    q, k = torch.randn(16, 2, heads, width), torch.randn(16, 2, groups, width)
    v = torch.randn(16, 2, groups, value_width)
    inputs = [t.double().requires_grad_() for t in (q, k, v)]
    core = FlashAttention(
        config(window_size=None if window is None else (window, 0)), 1, None, "self", k_channels=width, v_channels=value_width
    )
    output = core(*inputs, None)
    assert output.shape == (16, 2, heads * value_width)
    expected = plain(*inputs, scale=width**-0.5, window=window)
    torch.testing.assert_close(output, expected)
    probe = torch.randn_like(output)
    for found, true in zip(torch.autograd.grad((output * probe).sum(), inputs),
                           torch.autograd.grad((expected * probe).sum(), inputs), strict=True):  # fmt: skip
        torch.testing.assert_close(found, true)


def test_attention_sinks_are_refused():
    with pytest.raises(ValueError, match="unfused"):
        FlashAttention(config(softmax_type="learnable"), 1, None, "self")


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_norm_marks_its_parameters(kind, parallel, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    norm = ParallelNorm(config(normalization=kind, sequence_parallel=parallel), 8, eps=1e-6)
    assert [parameter.sequence_parallel for parameter in norm.parameters()] == [parallel] * (2 if kind == "LayerNorm" else 1)
    assert norm.eps == 1e-6 and norm(torch.ones(2, 8)).shape == (2, 8)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_rank_holds_an_early_and_a_late_chunk(size):
    whole = torch.arange(16)[None]
    shares = [sequence_share(whole, rank, size, dim=1)[0] for rank in range(size)]
    assert sorted(torch.cat(shares).tolist()) == list(range(16))
    if size > 1:
        assert [int(share.sum()) for share in shares] == [120 // size] * size, "equal shares of the causal triangle"
        for rank, share in enumerate(shares):
            group = types.SimpleNamespace(size=lambda: size, rank=lambda rank=rank: rank)
            for chunk, start in local_chunks(share, group):
                assert chunk.tolist() == list(range(start, start + len(chunk)))
