"""Parameters of T5, mT5 and BERT against the real megatron-core modules, all layers, on fake tensors."""

import warnings

import pytest
import torch.nn.functional as F
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import (
    embedding_parameters,
    final_norm_parameters,
    layer_parameters,
    output_bias_parameters,
    padded_vocab_size,
)
from autoconfig.trainer.host.cpu import cpu_for_cuda
from autoconfig.trainer.tracing.fake_ranks import fake_process_group, fake_tensors
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

pytestmark = pytest.mark.torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # no Apex
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.models.T5.t5_spec import decoder_model_with_local_spec, encoder_model_with_local_spec

SIZES = (
    *(f"t5-{size}" for size in ("220m", "3b", "11b", "23b", "41b")),
    *(f"mt5-{size}" for size in ("170m", "390m", "3b", "11b", "23b")),
    *(f"bert-{size}" for size in ("110m", "4b", "20b", "100b")),
)


def config(model: ModelSpec, layers: int, tp: int) -> TransformerConfig:
    return TransformerConfig(
        num_layers=layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        kv_channels=model.kv_channels,
        ffn_hidden_size=model.ffn_hidden_size,
        gated_linear_unit=model.gated_linear_unit,
        activation_func=F.gelu,
        bias_activation_fusion=False,
        add_bias_linear=model.add_bias_linear,
        tensor_model_parallel_size=tp,
        use_cpu_initialization=True,
        perform_initialization=False,
    )


def built(model: ModelSpec, tp: int) -> int:
    """Parameters of one rank of the real modules; the norm behind each stack is that of Transformer Engine's blocks."""
    common = {
        "vocab_size": int(padded_vocab_size(model, tp)),
        "max_sequence_length": model.max_position_embeddings,
        "share_embeddings_and_output_weights": True,
    }
    if model.is_encoder_only:
        whole = BertModel(
            config=config(model, model.num_layers, tp),
            num_tokentypes=model.num_tokentypes,
            transformer_layer_spec=bert_layer_local_spec,
            **common,
        )
        return sum(parameter.numel() for parameter in whole.parameters())
    encoder, decoder = model.encoder_num_layers, model.num_layers - model.encoder_num_layers
    specs = [
        TransformerBlockSubmodules([layer] * count, layer_norm=WrappedTorchNorm)
        for layer, count in ((encoder_model_with_local_spec(), encoder), (decoder_model_with_local_spec(), decoder))
    ]
    whole = T5Model(
        config=config(model, decoder, tp),
        encoder_config=config(model, encoder, tp),
        transformer_encoder_layer_spec=specs[0],
        transformer_decoder_layer_spec=specs[1],
        **common,
    )
    return sum(parameter.numel() for parameter in whole.parameters())


def counted(model: ModelSpec, tp: int) -> float:
    layers = sum(float(layer_parameters(model, kind, tp).dense) for kind in model.layer_kinds)
    ends = embedding_parameters(model, tp) + output_bias_parameters(model, tp)
    return layers + float(ends) + final_norm_parameters(model)


def equal(model: ModelSpec, tp: int) -> None:
    with warnings.catch_warnings(), cpu_for_cuda(), fake_process_group(0, tp):
        warnings.simplefilter("ignore")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
        model_parallel_cuda_manual_seed(1)
        with fake_tensors():
            found = built(model, tp)
    assert counted(model, tp) == found


QUICK = ("t5-220m", "mt5-3b", "bert-4b")
"""One of each kind; the other sizes, of the same modules, are for `make soak`."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.soak,)) for name in SIZES])
def test_every_size_of_the_old_tool_has_the_parameters_of_the_real_modules(name: str) -> None:
    equal(load_model(name), 1)


@pytest.mark.parametrize("name", ["t5-220m", "mt5-170m", "bert-110m"])
def test_a_rank_of_tensor_parallelism_has_them_too(name: str) -> None:
    equal(load_model(name), 2)


def test_stacks_of_other_depths_without_biases() -> None:
    equal(load_model("t5-220m").replace(num_layers=9, encoder_num_layers=4, gated_linear_unit=False, activation="gelu"), 1)
