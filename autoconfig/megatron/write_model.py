"""ModelSpec -> the facts of Megatron-LM's flags (flag_table.py). What Megatron-LM has no flag for is refused, never dropped."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from autoconfig.megatron.flag_table import Argument, Facts, written
from autoconfig.specs.errors import UnsupportedError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_numbers import YARN_ORIGINAL
from autoconfig.specs.scenario import Scenario, all_biases, not_buildable

SENTINELS = 100
"""Words of the vocabulary that stand for what T5's samples leave out: --vocab-extra-ids of Megatron-LM's own example."""
RECOMMENDED_COEFFICIENT = 0.01
"""Megatron-LM's own words at --moe-aux-loss-coeff: "a starting value of 1e-2 is recommended"."""
HYBRID_SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


def model_arguments(scenario: Scenario) -> list[Argument]:
    """Return shape, attention, positions and experts. Raises UnsupportedError for what Megatron-LM cannot build."""
    model = scenario.model
    encoder = unwritable(model) if model.encoder_num_layers else ()
    if lacking := (*not_buildable(model, encoders=True, gemma=is_gemma(model)), *encoder):
        raise UnsupportedError(
            f"{model.name} has {' and '.join(lacking)}: Megatron-LM has no argument for it, so no launch script is written; "
            f"plans can still be searched, and {option('format')} plan writes plan.json"
        )
    facts = {
        "encoder_decoder": model.is_encoder_decoder,
        "decoder_num_layers": model.num_layers - model.encoder_num_layers,
        "relative_buckets": model.relative_attention_num_buckets or None,
        "own_layers": None if model.is_hybrid or model.is_encoder_decoder else model.num_layers,  # a hybrid's pattern sets it
        "no_binary_head": model.is_encoder_only and not model.bert_binary_head,
        "positions": max(model.max_position_embeddings, scenario.workload.seq_length),
        "hybrid_spec": HYBRID_SPEC,
        "mamba": "mamba" in model.kinds,
        "gdn": "gdn" in model.kinds,
        "capacity": scenario.numerics.moe_capacity_factor if model.is_moe else None,
        **_attention(model),
        **_positions(model),
        **_activation(model),
        **_experts(model),
        **_router(model),
    }
    return written("model", Facts(facts, model, model.rope_scaling))


def _attention(model: ModelSpec) -> dict[str, Any]:
    dense, frequency = not model.multi_latent_attention, model.window_attn_skip_freq
    return {
        "dense_attention": dense,
        "grouped": dense and model.num_query_groups != model.num_attention_heads,
        "window": None if model.window_size is None else f"{model.window_size},0",
        "window_frequency": pattern_text(frequency) if isinstance(frequency, tuple) else frequency,
        "softmax": "learnable" if model.attention_sinks else None,
    }


def _positions(model: ModelSpec) -> dict[str, Any]:
    kind, latent, scaling = model.position_embedding_type, model.multi_latent_attention, model.rope_scaling
    rotary = kind in ("rope", "yarn")
    way = scaling.type if rotary and scaling is not None and not unsaid_scaling(model) else ""
    return {
        "positions_by": "rope" if latent and rotary else kind,
        "rope_type": kind if latent and rotary else None,
        "rotary": rotary,
        "part_of_head": None if model.rotary_percent == 1 else model.rotary_percent,
        **{name: way == name for name in ("llama3", "linear", "yarn")},
        "whole_factor": int(scaling.factor) if scaling is not None and way == "linear" else None,
        "plain_yarn": way == "yarn" and not latent,
        "not_truncated": scaling is not None and not scaling.truncate,
    }


def _activation(model: ModelSpec) -> dict[str, Any]:
    return {
        "swiglu": model.activation == "swiglu" and not model.clamped_swiglu,
        "geglu": model.activation == "geglu",
        "squared_relu": model.activation == "squared-relu",
        "gemma": is_gemma(model),
        "root_of_width": f"{model.hidden_size**0.5:.6g}",
        "all_biases": all_biases(model),
        "no_biases": not all_biases(model),
    }


def _experts(model: ModelSpec) -> dict[str, Any]:
    frequency = None if model.is_hybrid else model.moe_layer_freq  # a hybrid's pattern says where they are
    uneven = isinstance(frequency, tuple)
    return {
        "layer_frequency": pattern_text(frequency) if isinstance(frequency, tuple) else frequency,
        "frequency_why": "1: a mixture-of-experts layer, 0: a dense one" if uneven else "",
        "shared_width": (model.moe_shared_expert_intermediate_size or None) if model.is_moe else None,
    }


def _router(model: ModelSpec) -> dict[str, Any]:
    """Return how experts are scored, chosen and balanced; Megatron's defaults where the model's numbers are not known."""
    bias, router = model.moe_router_enable_expert_bias, model.router
    score = "sigmoid" if bias else router.score_function if router else "softmax"
    single = score == "softmax" and model.moe_router_topk == 1
    facts = {
        "score_function": score,
        "score_why": "the correction bias needs it" if bias else "",
        "pre_softmax": single,
        "pre_softmax_why": "with top-1 the softmax of one score would have no gradient",
        "load_balancing_type": "seq_aux_loss" if bias else "aux_loss",
        "aux_loss_coeff": RECOMMENDED_COEFFICIENT,
        "aux_loss_why": "Megatron-LM's recommended start: the model's own is not known",
    } | dict.fromkeys(("router_groups", "group_topk", "topk_scaling_factor", "bias_update_rate"))
    if router is None:
        return facts
    if router.pre_softmax:
        facts |= {"pre_softmax": True, "pre_softmax_why": "scores are the softmax over all experts"}
    if router.num_groups is not None and router.group_topk is not None:
        facts |= {"router_groups": router.num_groups, "group_topk": router.group_topk}
    if router.aux_loss_coeff is not None:
        facts |= {"aux_loss_coeff": router.aux_loss_coeff, "aux_loss_why": ""}
    return facts | {
        "load_balancing_type": router.load_balancing_type,
        "topk_scaling_factor": router.topk_scaling_factor,
        "bias_update_rate": router.bias_update_rate if bias else None,
    }


def unwritable(model: ModelSpec) -> list[str]:
    """Return what of a model with an encoder pretrain_t5.py and pretrain_bert.py (megatron-core 0.19) have no argument for."""
    reasons = {
        "no bias behind the output layer": not model.output_layer_bias,
        "no norm behind its last layer": not model.final_layernorm,
    }
    if model.is_encoder_decoder:
        uneven = 2 * model.encoder_num_layers != model.num_layers
        reasons |= {
            "an encoder and a decoder of different depths": uneven,
            "a table of relative positions in every layer": model.relative_attention_in_every_layer,
            "token types": model.num_tokentypes > 0,
        }
    else:
        reasons |= {
            "no masked-language-model head": not model.masked_lm_head,
            f"{model.num_tokentypes} token types": model.num_tokentypes != (2 if model.bert_binary_head else 0),
        }
    return [reason for reason, holds in reasons.items() if holds]


def is_gemma(model: ModelSpec) -> bool:
    """Whether a model is a Gemma, known by its gated GELU in a decoder with RMS norms: weights of norms count from 1,
    embeddings are times h ** 0.5."""
    return model.activation == "geglu" and model.normalization == "RMSNorm" and not model.encoder_num_layers


def vocabulary_words(model: ModelSpec) -> tuple[int, int]:
    """Return (--vocab-size, --vocab-extra-ids); together the model's vocabulary."""
    extra = SENTINELS if model.is_encoder_decoder and model.vocab_size > SENTINELS else 0
    return model.vocab_size - extra, extra


def unsaid_scaling(model: ModelSpec) -> str:
    """Return why Megatron-LM 0.19 has no arguments for how the model scales its rotary positions; empty where it has."""
    scaling = model.rope_scaling
    if scaling is None:
        return ""
    if scaling.type == "linear" and scaling.factor != int(scaling.factor):
        return f"linear with factor {scaling.factor:g}: the argument takes whole numbers"
    if scaling.type == "yarn" and model.multi_latent_attention:
        usual = scaling.original_max_position_embeddings == YARN_ORIGINAL and scaling.truncate
        return "" if usual else f"YaRN from other than {YARN_ORIGINAL} positions, or without rounding, in latent attention"
    return "a way that is not llama3, linear or YaRN with its usual constants" if scaling.type == "other" else ""


def pattern_text(pattern: tuple[int, ...]) -> str:
    """Return Megatron's list expression: ([0]*3+[1]*58)."""
    runs = [(value, len(list(group))) for value, group in groupby(pattern)]
    if len(runs) > 8:
        return "[" + ",".join(map(str, pattern)) + "]"
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"


def unsaid(model: ModelSpec) -> list[str]:
    """Return what of the model a script leaves out because Megatron-LM 0.19 has no argument for it: of positions, and of Gemma
    2 and 3 (transformers, models/gemma2 and gemma3)."""
    scaling = unsaid_scaling(model)
    reasons = [f"scaling of rotary positions, {scaling}"] if scaling else []
    if not is_gemma(model) or model.num_layernorms_per_layer < 4:
        return reasons
    reasons.append("norms behind attention and MLP; the job that starts has two a layer, a little less work than planned")
    if model.qk_layernorm:
        return [*reasons, "rotary positions of their own in sliding layers (Gemma 3: base 10000, not scaled)"]
    return [*reasons, "caps of scores and logits by tanh (Gemma 2: 50 and 30)"]


def not_written(model: ModelSpec) -> list[str]:
    """Return arguments that this model may need and whose values are not known: they change no time and no memory."""
    flags = []
    if model.normalization == "RMSNorm" and model.norm_epsilon is None:
        flags.append("--norm-epsilon (Megatron's default is 1e-5)")
    if model.is_moe and model.router is None:
        names = ["score-function", "pre-softmax", "topk-scaling-factor", "num-groups", "group-topk"]
        names += ["bias-update-rate"] if model.moe_router_enable_expert_bias else []
        flags += [f"--moe-router-{name}" for name in names]
    if is_gemma(model) and model.num_layernorms_per_layer == 4:
        flags.append("--softmax-scale (query_pre_attn_scalar ** -0.5, where that is not kv_channels)")
    return flags
