"""Each temporary against a figure worked out by hand: GPT-3 175B at s = 2048, b = 1 (T h = 25,165,824 elements)."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.memory_model import state as moments
from autoconfig.memory_model.activations import Shape
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.software.software import load_stack

GPT3 = load_model("gpt3-175b")
MIXTRAL = load_model("mixtral-8x7b")
STACK = load_stack("transformer-engine").memory
BF16 = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
T, H, V = 2048, 12288, 51200


def shape_of(tp: int = 8, sp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, mbs: int = 1) -> Shape:
    return Shape.of(seq_length=T, tp=tp, sp=sp, cp=cp, ep=ep, etp=etp, mbs=mbs)


@pytest.mark.parametrize(
    ("sp", "pp", "hidden_gradients"),
    [
        (0, 1, 2 * T * H),
        (1, 1, 2 * T * H + 2 * T * H + 2 * T * H / 8),
        (0, 4, 2 * T * H + 4 * T * H),
        (1, 4, 2 * T * H + 2 * T * H + 2 * T * H / 8 + 4 * T * H),
    ],
)
def test_output_layer_backward(sp: int, pp: int, hidden_gradients: float) -> None:
    stack = replace(STACK, logit_gradient_bytes=2.0)
    got = moments.output_layer_backward(GPT3, BF16, stack, V, shape_of(sp=sp), pp)
    assert got == pytest.approx(2 * T * V / 8 + 2 * V * H / 8 + hidden_gradients)


def test_every_prediction_depth_keeps_an_fp32_softmax() -> None:
    assert moments.mtp_loss(STACK, V, shape_of(), 1) == pytest.approx(4 * T * V / 8)
    assert moments.mtp_loss(STACK, V, shape_of(), 3) == pytest.approx(3 * 4 * T * V / 8)


@pytest.mark.parametrize(("ep", "copies"), [(1, 2), (4, 2), (8, 1)])
def test_expert_backward_sorts_only_several_local_experts(ep: int, copies: int) -> None:
    rows = 2 * T  # top-2, no tensor parallelism; Mixtral: 14,336 gated channels, hidden 4,096
    got = moments.expert_backward(MIXTRAL, BF16, shape_of(tp=1, sp=0, ep=ep))
    assert got == pytest.approx(2 * rows * (2 * 14336 + copies * 4096))


def test_mlp_backward() -> None:
    stack = replace(STACK, mlp_backward_buffers=1.0, mlp_backward_buffers_no_sp=1.7)
    both = moments.mlp_backward(GPT3, 4 * H, BF16, stack, shape_of(sp=np.array([0, 1])))
    assert both == pytest.approx([2 * T * (4 * H / 8 + 1.7 * H), 2 * T * (4 * H / 8 + H)])


def test_attention_backward_flash_and_context_parallel() -> None:
    flash = replace(STACK, attention_kernel="flash", cp_comm_type="p2p")
    alone = moments.attention_backward(GPT3, BF16, flash, shape_of())
    assert alone == pytest.approx(2 * T * H / 8 * 4 + 4 * T * H / 8)  # q, k, v, output in 16 bit; dq in fp32
    ring = moments.attention_backward(GPT3, BF16, flash, shape_of(cp=2))
    assert ring == pytest.approx(alone / 2 + 2 * 2 * T / 2 * 2 * H / 8)  # two blocks of keys and values in flight


def test_first_and_last_stage() -> None:
    assert moments.final_norm(GPT3, BF16, shape_of()) == pytest.approx(4 * T * H / 8)
    assert moments.embedding_dropout(GPT3, BF16, shape_of()) == 0
    assert moments.embedding_dropout(GPT3, replace(BF16, hidden_dropout=0.1), shape_of()) == pytest.approx(T * H / 8)
