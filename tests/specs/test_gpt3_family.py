"""Bare sizes become GPT-3-style architectures near the size that was asked for."""

import math

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import MAX_PARAMETERS, MIN_PARAMETERS, gpt3_style
from autoconfig.specs.models.parameters import total_parameters
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("params", "layers", "hidden", "heads"),
    [
        (125e6, 12, 768, 12),
        (350e6, 24, 1024, 16),
        (1.3e9, 24, 2048, 16),
        (2.7e9, 32, 2560, 32),
        (6.7e9, 32, 4096, 32),
        (13e9, 40, 5120, 40),
        (175e9, 96, 12288, 96),
        (1008e9, 128, 25600, 160),
    ],
)
def test_sizes_of_the_papers_get_their_shape(params: float, layers: int, hidden: int, heads: int) -> None:
    model = gpt3_style(params)
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (layers, hidden, heads)
    assert "Brown" in model.sources["*"] or "Narayanan" in model.sources["*"]


@settings(max_examples=200, deadline=None)
@given(st.floats(math.log10(MIN_PARAMETERS), math.log10(MAX_PARAMETERS)))
def test_total_is_within_five_percent(exponent: float) -> None:
    params = min(max(10**exponent, MIN_PARAMETERS), MAX_PARAMETERS)
    model = gpt3_style(params)
    assert total_parameters(model) == pytest.approx(params, rel=0.05)
    assert model.hidden_size == model.num_attention_heads * model.kv_channels
    assert model.ffn_hidden_size == 4 * model.hidden_size


def test_large_sizes_have_heads_for_tensor_parallelism() -> None:
    for params in (5e9, 8e9, 30e9, 100e9, 250e9, 2e12):
        model = gpt3_style(params)
        assert model.num_attention_heads % 8 == 0 and model.kv_channels == 128


def test_depth_grows_with_size() -> None:
    depths = [gpt3_style(params).num_layers for params in (20e6, 100e6, 1e9, 10e9, 100e9, 1e12, 10e12)]
    assert depths == sorted(depths)


def test_the_name_says_it_is_style() -> None:
    assert gpt3_style(13e9).name == "gpt3-style-13b"
    assert gpt3_style(2.5e12).name == "gpt3-style-2.5t"


@pytest.mark.parametrize("params", [0, -1, 9e6, 101e12, math.inf, math.nan])
def test_sizes_out_of_range_are_refused_with_the_range(params: float) -> None:
    with pytest.raises(InputError, match="10m to 100t"):
        gpt3_style(params)
