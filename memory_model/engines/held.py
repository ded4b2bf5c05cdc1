"""Weights as a serving engine holds them: those of the files, padded as its kernels want them, with what it adds to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from autoconfig.memory_model.serving import StageWeights, weight_parts_bytes
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.engines.towers import tower_of
from autoconfig.specs.models.hybrid import gdn_gemms, gdn_parameters, mamba_gemms, mamba_parameters
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import kv_heads_per_rank, query_columns
from autoconfig.specs.software.engine import module_formats

RECURRENT = {"gdn": (gdn_parameters, gdn_gemms), "mamba": (mamba_parameters, mamba_gemms)}
VOCABULARY_MULTIPLE = 64
"""Rows to which vLLM and SGLang pad the embedding (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""
MXFP4_PADDING = ((12.0, 128, 256), (10.0, 256, 256), (9.0, 256, 64), (0.0, 128, 256))
"""From compute capability on: multiples of the experts' width on a rank and of their input. Marlin before Hopper and on
consumers' cards, Triton's swizzled layout on Hopper (measured: 13.47 GiB of gpt-oss-20b), FlashInfer on Blackwell (vLLM,
layers/quantization/mxfp4.py and fused_moe/oracle/mxfp4.py)."""


def sublayers_of_layer(model: ModelSpec) -> int:
    """Of a hybrid 2 where each layer is a mixer and an MLP or experts; else 1."""
    second = set(model.layer_kinds[1::2])
    return 2 if model.is_hybrid and second <= {"mlp", "moe"} and not set(model.layer_kinds[::2]) & {"mlp", "moe"} else 1


def stages(start: EngineStart) -> list[StageWeights]:
    """The pipeline's stages. vLLM gives the layers that do not divide to stages before the last (distributed/utils.py,
    get_pp_indices), SGLang and TensorRT-LLM to the last ones."""
    unit = sublayers_of_layer(start.model)
    layers, pp = start.model.num_layers // unit, start.pp
    sizes = [layers // pp] * pp
    for place in range(layers % pp):
        sizes[-2 - place if start.engine == "vllm" else -1 - place] += 1
    found, first = [], 0
    for index, size in enumerate(sizes):
        held = tuple(range(first * unit, (first + size) * unit))
        found.append(StageWeights(layers=held, embedding=index == 0, output=index == pp - 1))
        first += size
    return found


def held_weights(start: EngineStart, stage: StageWeights) -> dict[str, float]:
    """Bytes of one GPU of a stage by part: as memory_model.serving.weight_parts_bytes, vocabulary and experts padded, and
    beside them rotary tables, small parameters of recurrent layers, vision tower, adapters and draft."""
    model = start.model.replace(make_vocab_size_divisible_by=VOCABULARY_MULTIPLE)
    plan = start.plan
    if start.attention_dp and start.dp > 1:  # attention alone is whole on its ranks; dense layers are cut by all of them
        whole = weight_parts_bytes(model, plan.replace(tp=start.tp, adp=1), start.formats, stage)
        parts = {**whole, "attention": weight_parts_bytes(model, plan, start.formats, stage)["attention"]}
    else:
        parts = weight_parts_bytes(model, plan, start.formats, stage)
    parts["experts"] *= _padding(start)
    parts["norms, routers and tables"] = parts.pop("norms and routers") + _small(start, stage)
    tower = tower_of(start.model)
    if tower and stage.embedding and not start.language_only:
        parts["vision tower"] = 2.0 * tower.parameters / start.tp
    if start.lora_slots:
        parts["adapters"] = start.lora_slots * lora_bytes(start, stage)
    if start.draft_method in ("mtp", "eagle", "model") and start.draft_tokens and stage.output:
        parts["draft"] = draft_bytes(start)
    return parts


def _padding(start: EngineStart) -> float:
    """Times the experts' bytes that the padded ones take: 1 but for mxfp4."""
    model = start.model
    if not model.is_moe or not start.formats.experts.startswith("mxfp4"):
        return 1.0
    capability = start.gpu.compute_capability or 0.0
    _, width, inputs = next(row for row in MXFP4_PADDING if capability >= row[0])
    share = model.moe_ffn_hidden_size * start.ep / (start.tp * (1 if start.attention_dp else start.dp))
    padded = np.ceil(share / width) * width * np.ceil(model.hidden_size / inputs) * inputs
    return float(padded / (share * model.hidden_size))


def _small(start: EngineStart, stage: StageWeights) -> float:
    """Rotary tables (positions x rotated channels, 16 bits; one for all layers), biases, convolutions and steps of recurrent
    layers."""
    model, tp = start.model, start.attention_tp
    rotary = 0.0
    if model.position_embedding_type in ("rope", "yarn"):
        channels = model.qk_pos_emb_head_dim if model.multi_latent_attention else model.kv_channels * model.rotary_percent
        rotary = 2.0 * max(start.max_model_len or 0, model.max_position_embeddings) * channels
    total = rotary
    for layer in stage.layers:
        kind = model.layer_kinds[layer]
        if kind in RECURRENT:
            parameters, gemms = RECURRENT[kind]
            total += 2.0 * float(parameters(model, tp) - sum(gemms(model, tp).values()))
        elif kind == "moe" and model.moe_expert_bias:
            ranks = start.tp * (1 if start.attention_dp else start.dp)
            width = model.gate_factor * model.moe_ffn_hidden_size * start.ep / ranks + model.hidden_size
            total += 2.0 * (model.num_moe_experts or 0) / start.ep * width
    return total


def lora_bytes(start: EngineStart, stage: StageWeights) -> float:
    """One slot of adapters on one GPU: 2 r (inputs + outputs) of every linear layer that a rank holds; the first matrix is
    whole where the layer's outputs are cut, the second where its inputs are (vLLM, lora/layers)."""
    model, rank, tp = start.model, start.lora_rank or 16, start.tp
    h = model.hidden_size
    attention = 3 * h + (query_columns(model) + 2.0 * float(kv_heads_per_rank(model, tp)) * model.kv_channels * tp) / tp
    attention += model.query_size / tp + h
    mlp = model.gate_factor * (h + model.ffn_hidden_size / tp) + model.ffn_hidden_size / tp + h
    each = model.gate_factor * (h + model.moe_ffn_hidden_size / tp) + model.moe_ffn_hidden_size / tp + h
    total = 0.0
    for layer in stage.layers:
        kind = model.layer_kinds[layer]
        total += attention if kind in ("attention", "dense", "moe") and not (model.is_hybrid and kind == "moe") else 0.0
        total += mlp if kind in ("dense", "mlp") else 0.0
        total += each * (model.num_moe_experts or 0) if kind == "moe" else 0.0
    return 2.0 * rank * total


def draft_bytes(start: EngineStart) -> float:
    """Weights of the draft on one GPU. mtp: a layer like the last and a projection of 2 h to h; eagle and model: the draft's
    own layers, embedding and output layer, over tp."""
    if start.draft_model is not None:
        draft = start.draft_model
        formats = module_formats(draft, start.draft_weights, start.gpu)
        plan = replace(start.plan, ep=1, adp=1, tp=start.tp, pp=1)
        stage = StageWeights(layers=tuple(range(draft.num_layers)), embedding=True, output=True)
        return sum(weight_parts_bytes(draft, plan, formats, stage).values())
    model = start.model
    unit = sublayers_of_layer(model)
    last = StageWeights(layers=tuple(range(model.num_layers - unit, model.num_layers)), embedding=False, output=False)
    layer = sum(weight_parts_bytes(model, start.plan, start.formats, last).values())
    return layer + 2.0 * 2.0 * model.hidden_size**2
