"""The real T5Model and BertModel of megatron-core for a job that is traced (trace.py), with Transformer Engine's
layers. Layers are those of megatron-core's GPT with BERT's padding mask; a decoder's have cross-attention besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.job import Job
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.trainer.tracing.te_stand_ins import SpecProvider
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.transformer.attention import CrossAttention, CrossAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig


class PaddedBert(BertModel):
    """BertModel with the mask of today's Transformer Engine, one number a token."""

    def _sanity_check_attention_and_get_attn_mask_dimension(self) -> str:
        return "b11s"


def encoder_chunk(job: Job, config: TransformerConfig, vp_stage: int | None) -> Any:
    """This rank's chunk. Raises UnsupportedError without Transformer Engine."""
    model = job.model
    if job.software != "transformer-engine":
        raise UnsupportedError(f"{model.name} has an encoder: it is traced with software transformer-engine")
    common: dict[str, Any] = {
        "vocab_size": int(padded_vocab_size(model, job.plan.tp)),
        "max_sequence_length": max(model.max_position_embeddings, job.workload.seq_length),
        "share_embeddings_and_output_weights": not model.untie_embeddings_and_output_weights,
        "parallel_output": True,
    }
    if model.is_encoder_only:
        first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
        block = get_gpt_decoder_block_spec(config, True, normalization=model.normalization, vp_stage=vp_stage)
        return PaddedBert(
            config=config,
            num_tokentypes=model.num_tokentypes,
            transformer_layer_spec=block,
            add_binary_head=model.bert_binary_head,
            pre_process=first,
            post_process=last,
            vp_stage=vp_stage,
            **common,
        )
    encoder = deepcopy(config)
    encoder.num_layers = model.encoder_num_layers
    blocks = [get_gpt_decoder_block_spec(one, True, normalization=model.normalization) for one in (encoder, config)]
    crossed = dataclasses.replace(blocks[1], layer_specs=[_crossed(layer) for layer in blocks[1].layer_specs])
    return T5Model(
        config=config,
        encoder_config=encoder,
        transformer_encoder_layer_spec=blocks[0],
        transformer_decoder_layer_spec=crossed,
        **common,
    )


def _crossed(layer: ModuleSpec) -> ModuleSpec:
    """A layer of GPT with attention over the encoder's output behind its own (megatron-core models/T5/t5_spec.py)."""
    backend = SpecProvider()
    cross = ModuleSpec(
        module=CrossAttention,
        params={"attn_mask_type": AttnMaskType.padding},
        submodules=CrossAttentionSubmodules(
            linear_q=backend.column_parallel_linear(),
            linear_kv=backend.column_parallel_linear(),
            core_attention=backend.core_attention(),
            linear_proj=backend.row_parallel_linear(),
        ),
    )
    submodules = dataclasses.replace(
        layer.submodules,
        pre_cross_attn_layernorm=backend.layer_norm(),
        cross_attention=cross,
        cross_attn_bda=get_bias_dropout_add,
    )
    return ModuleSpec(module=layer.module, params=layer.params, submodules=submodules)


def encoder_forward(job: Job, data: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
    """One micro-batch, as pretrain_t5.py and pretrain_bert.py hand it over."""
    batch = next(data)
    tokens, labels = batch["tokens"], batch["labels"]
    if job.model.is_encoder_only:
        output = model(tokens, torch.ones_like(tokens), tokentype_ids=torch.zeros_like(tokens), lm_labels=labels)
    else:
        short = job.workload.tokens_of("decoder")
        padding = torch.zeros((tokens.size(0), 1, tokens.size(1)), dtype=torch.bool, device=tokens.device)
        decoder = tokens[:, :short].contiguous()
        masks = (padding, padding[..., :short], padding)
        output = model(tokens, decoder, *masks, lm_labels=labels[:, :short].contiguous())
    return output, encoder_loss


def encoder_loss(output: Any) -> Any:
    """Of BERT both losses; sum over tokens, their number, the mean to report."""
    words, classes = output if isinstance(output, tuple) else (output, None)
    total = words.float().sum()
    if classes is not None:
        total = total + torch.nn.functional.cross_entropy(
            classes.view(-1, 2).float(), torch.zeros(classes.size(0), dtype=torch.long, device=classes.device)
        )
    count = torch.tensor(words.numel(), dtype=torch.int, device=words.device)
    return total, count, {"loss": total.detach() / count}
