"""Activation memory against Korthikanti et al. 2022 (arXiv:2205.05198): Table 2 exactly, Figure 7, section 4.2.3."""

import numpy as np
import pytest
from autoconfig.memory_model.activations import Shape, chunks_in_flight, kept_under_selective, layer_activations, layer_input
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack

FP16 = Numerics(precision="fp16", attention_dropout=0.1, hidden_dropout=0.1)
STACK = load_stack("megatron-lm-2022").memory
A100 = load_gpu("a100-80gb")
MODELS = ("gpt3-22b", "gpt3-175b", "gpt3-530b", "gpt3-1t")


def kept(model: ModelSpec, tp: int, sp: bool, modules: tuple[str, ...], mbs: int = 1) -> float:
    """Bytes per layer without the norm statistics, which the paper ignores (section 4.1)."""
    shape = Shape.of(seq_length=2048, tp=tp, sp=sp, cp=1, ep=1, etp=1, mbs=mbs)
    parts = layer_activations(model, False, FP16, STACK, shape, A100)
    left = dict(kept_under_selective(parts, modules, STACK).kept)
    del left["norm_statistics"]
    return float(sum(left.values()))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 4])
def test_table_2(name: str, tp: int, mbs: int) -> None:
    model = load_model(name)
    s, b, h, a, t = 2048, mbs, model.hidden_size, model.num_attention_heads, tp
    scores = 5 * a * s / h
    assert kept(model, 1, False, (), b) == pytest.approx(s * b * h * (34 + scores), rel=1e-12)
    assert kept(model, t, False, (), b) == pytest.approx(s * b * h * (10 + 24 / t + scores / t), rel=1e-12)
    assert kept(model, t, True, (), b) == pytest.approx(s * b * h / t * (34 + scores), rel=1e-12)
    assert kept(model, t, False, ("core_attn",), b) == pytest.approx(s * b * h * (10 + 24 / t), rel=1e-12)
    assert kept(model, t, True, ("core_attn",), b) == pytest.approx(s * b * h * 34 / t, rel=1e-12)
    shape = Shape.of(seq_length=s, tp=t, sp=False, cp=1, ep=1, etp=1, mbs=b)
    assert float(layer_input(model, FP16, shape)) == s * b * h * 2


FIGURE_7 = {
    # percent of the tensor-parallel baseline: sequence parallelism, selective, both, full (digitised by calculon-ai/calculon
    # calculon/llm/validation.py seqsel_fig7; rows KM-0002 to KM-0020 of the published table)
    "gpt3-22b": (66.84, 49.42, 16.18, 7.64),
    "gpt3-175b": (62.04, 56.53, 18.49, 8.71),
    "gpt3-530b": (58.31, 62.04, 20.27, 9.42),
    "gpt3-1t": (58.31, 62.04, 20.27, 9.42),
}


@pytest.mark.parametrize("name", MODELS)
def test_figure_7_and_the_five_fold_saving(name: str) -> None:
    model = load_model(name)
    base = kept(model, 8, False, ())
    full = 2 * 2048 * model.hidden_size
    ours = (kept(model, 8, True, ()), kept(model, 8, False, ("core_attn",)), kept(model, 8, True, ("core_attn",)), full)
    published = FIGURE_7[name]
    for got, want in zip(ours, published, strict=True):
        assert 100 * got / base == pytest.approx(want, abs=0.15)
    assert 4.5 <= base / ours[2] <= 6.5, "about five times less (abstract and section 6.1)"


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (8, 1), (8, 3), (35, 3), (64, 1)])
def test_first_stage_of_the_pipeline(pp: int, vpp: int) -> None:
    """Section 4.2.3: the first stage holds L layers, interleaved L (1 + (p - 1)/(p v))."""
    layers = pp * vpp * 2
    chunks = float(chunks_in_flight(pp, vpp, np.array(0), 10_000))
    expected = layers if vpp == 1 else layers * (1 + (pp - 1) / (pp * vpp))
    assert chunks * layers / (pp * vpp) == pytest.approx(expected, rel=1e-12)
