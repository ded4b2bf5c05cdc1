"""ModelSpec -> Megatron-LM's flags. What Megatron-LM has no flag for is refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from autoconfig.specs.errors import UnsupportedError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_numbers import YARN_ORIGINAL
from autoconfig.specs.scenario import Scenario, all_biases, not_buildable

GROUPS = ("model", "plan", "batch", "numerics", "optimizer", "overlap", "data", "run")
"""Sections of a script, in the order in which they are written."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A flag with its values (none for a switch)."""

    group: str
    flag: str
    values: tuple[str, ...] = ()
    comment: str = ""
    """What it means here; one line, shown behind the flag in a script."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.flag, *self.values)


class Collector:
    """Collects the arguments of one group: `add("num-layers", 96, why="...")`; None and False leave an argument out."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.arguments: list[Argument] = []

    def add(self, name: str, *values: object, why: str = "") -> None:
        if not any(value is None or value is False for value in values):
            texts = tuple(str(value) for value in values if value is not True)
            self.arguments.append(Argument(group=self.group, flag=f"--{name}", values=texts, comment=why))


def words(arguments: Iterable[Argument]) -> list[str]:
    """The argument list that the training process receives."""
    return [word for argument in arguments for word in argument.words]


SENTINELS = 100
"""Words of the vocabulary that stand for what T5's samples leave out: --vocab-extra-ids of Megatron-LM's own example."""
PIPELINE_OF_T5 = (
    "pipeline parallelism is not supported for T5 from megatron-core 0.14 on (pretrain_t5.py refuses it), and scripts are "
    "written for 0.19: take a plan with pp=1"
)
RECOMMENDED_COEFFICIENT = 0.01
"""Megatron-LM's own words at --moe-aux-loss-coeff: "a starting value of 1e-2 is recommended"."""


def model_arguments(scenario: Scenario) -> list[Argument]:
    """Shape, attention, positions, experts. Raises UnsupportedError for what Megatron-LM cannot build."""
    model = scenario.model
    encoder = unwritable(model) if model.encoder_num_layers else ()
    if found := (*not_buildable(model, encoders=True, gemma=is_gemma(model)), *encoder):
        raise UnsupportedError(
            f"{model.name} has {' and '.join(found)}: Megatron-LM has no argument for it, so no launch script is written; "
            f"plans can still be searched, and {option('format')} plan writes plan.json"
        )
    out = Collector("model")
    _layers(out, model)
    out.add("hidden-size", model.hidden_size)
    out.add("ffn-hidden-size", model.ffn_hidden_size)
    out.add("num-attention-heads", model.num_attention_heads)
    _attention(out, model)
    out.add("max-position-embeddings", max(model.max_position_embeddings, scenario.workload.seq_length))
    _positions(out, model)
    _norm_and_activation(out, model)
    out.add("untie-embeddings-and-output-weights", model.untie_embeddings_and_output_weights)
    out.add("make-vocab-size-divisible-by", model.make_vocab_size_divisible_by, why="times tp: the vocabulary's padding")
    if model.is_hybrid:
        _recurrent(out, model)
    if model.is_moe:
        _experts(out, scenario)
    out.add("mtp-use-repeated-layer", model.mtp_use_repeated_layer, why="all depths are one layer")
    out.add("mtp-num-layers", model.mtp_num_layers or None, why="multi-token prediction, on the last stage")
    return out.arguments


def unwritable(model: ModelSpec) -> list[str]:
    """What of a model with an encoder pretrain_t5.py and pretrain_bert.py (megatron-core 0.19) have no argument for."""
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


def _layers(out: Collector, model: ModelSpec) -> None:
    if model.is_encoder_decoder:
        out.add("encoder-num-layers", model.encoder_num_layers)
        out.add("decoder-num-layers", model.num_layers - model.encoder_num_layers, why="pretrain_t5.py: as many as the encoder")
        out.add("relative-attention-num-buckets", model.relative_attention_num_buckets or None)
        return
    out.add("num-layers", None if model.is_hybrid else model.num_layers)  # a hybrid's pattern sets it
    out.add("bert-no-binary-head", model.is_encoder_only and not model.bert_binary_head, why="no next-sentence head")


def is_gemma(model: ModelSpec) -> bool:
    """Known by its gated GELU in a decoder with RMS norms: weights of norms count from 1, embeddings are times h ** 0.5."""
    return model.activation == "geglu" and model.normalization == "RMSNorm" and not model.encoder_num_layers


def vocabulary_words(model: ModelSpec) -> tuple[int, int]:
    """(--vocab-size, --vocab-extra-ids); together the model's vocabulary."""
    extra = SENTINELS if model.is_encoder_decoder and model.vocab_size > SENTINELS else 0
    return model.vocab_size - extra, extra


def _attention(out: Collector, model: ModelSpec) -> None:
    out.add("kv-channels", model.kv_channels)
    if model.multi_latent_attention:
        out.add("multi-latent-attention")
        out.add("q-lora-rank", model.q_lora_rank)
        out.add("kv-lora-rank", model.kv_lora_rank)
        out.add("qk-head-dim", model.qk_head_dim)
        out.add("qk-pos-emb-head-dim", model.qk_pos_emb_head_dim)
        out.add("v-head-dim", model.v_head_dim)
        out.add("qk-layernorm", why="norms of the two latents")
        _indexer(out, model)
    else:
        if model.num_query_groups != model.num_attention_heads:
            out.add("group-query-attention")
            out.add("num-query-groups", model.num_query_groups)
        out.add("qk-layernorm", model.qk_layernorm)
    if model.window_size is not None:
        out.add("window-size", f"{model.window_size},0", why="sliding-window attention")
        frequency = model.window_attn_skip_freq
        out.add("window-attn-skip-freq", pattern_text(frequency) if isinstance(frequency, tuple) else frequency)
    out.add("attention-output-gate", model.attention_output_gate)
    out.add("softmax-type", "learnable" if model.attention_sinks else None, why="one learned logit per head")


INDEXER_LOSS = 0.01
"""The starting value for auxiliary losses (RECOMMENDED_COEFFICIENT): none is published for the indexer's."""


def _indexer(out: Collector, model: ModelSpec) -> None:
    """Sparse attention. Without its loss the indexer is never trained; without fused kernels every score is kept."""
    if not model.is_sparse:
        return
    out.add("experimental-attention-variant", "dsa", why="sparse attention over the keys that an indexer chooses")
    for name in ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"):
        out.add(name.replace("_", "-"), getattr(model, name))
    out.add("dsa-indexer-rope-interleaved", model.dsa_indexer_rope_interleaved)
    out.add("dsa-indexer-loss-coeff", INDEXER_LOSS, why="a start: no value is published; 0 leaves the indexer untrained")
    out.add("dsa-indexer-use-sparse-loss", why="the loss is of the chosen keys, as memory and time are counted")
    out.add("dsa-kernel-backend", "cudnn", why="fused kernels, as memory and time are counted; or tilelang")
    out.add("no-rope-fusion", why="not supported with sparse attention")


HYBRID_SPEC = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


def _recurrent(out: Collector, model: ModelSpec) -> None:
    """Mamba-2 and Gated DeltaNet; the pattern itself is of the plan, whose stages it shows."""
    out.add("spec", *HYBRID_SPEC, why="layers by --hybrid-layer-pattern")
    names: tuple[str, ...] = ()
    if "mamba" in model.kinds:
        names += ("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups")
    if "gdn" in model.kinds:
        names += ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        names += ("linear_conv_kernel_dim",)
    for name in names:
        out.add(name.replace("_", "-"), getattr(model, name))


def _positions(out: Collector, model: ModelSpec) -> None:
    kind = model.position_embedding_type
    latent = model.multi_latent_attention
    rotary = kind in ("rope", "yarn")
    out.add("position-embedding-type", "rope" if latent and rotary else kind)
    out.add("rope-type", kind if latent and rotary else None)
    if not rotary:
        return
    out.add("rotary-base", model.rotary_base, why="rope_theta")
    percent = None if model.rotary_percent == 1 else model.rotary_percent
    out.add("rotary-percent", percent, why="share of a head's channels that rotate")
    scaling = model.rope_scaling
    if scaling is None or unsaid_scaling(model):
        return
    if scaling.type == "llama3":
        out.add("use-rope-scaling", why="Llama 3.1's scaling of positions")
        out.add("rope-scaling-factor", scaling.factor)
    elif scaling.type == "linear":
        out.add("rotary-seq-len-interpolation-factor", int(scaling.factor))
    else:
        out.add("rotary-scaling-factor", scaling.factor, why="YaRN")
        out.add("mscale", scaling.mscale)
        out.add("mscale-all-dim", scaling.mscale_all_dim)
        if not latent:
            out.add("yarn-original-max-position-embeddings", scaling.original_max_position_embeddings)
            out.add("no-yarn-correction-range-round-to-int", not scaling.truncate)


def unsaid_scaling(model: ModelSpec) -> str:
    """Why Megatron-LM 0.19 has no arguments for how the model scales its rotary positions; empty where it has."""
    scaling = model.rope_scaling
    if scaling is None:
        return ""
    if scaling.type == "linear" and scaling.factor != int(scaling.factor):
        return f"linear with factor {scaling.factor:g}: the argument takes whole numbers"
    if scaling.type == "yarn" and model.multi_latent_attention:
        usual = scaling.original_max_position_embeddings == YARN_ORIGINAL and scaling.truncate
        return "" if usual else f"YaRN from other than {YARN_ORIGINAL} positions, or without rounding, in latent attention"
    return "a way that is not llama3, linear or YaRN with its usual constants" if scaling.type == "other" else ""


def _norm_and_activation(out: Collector, model: ModelSpec) -> None:
    out.add("normalization", model.normalization)
    out.add("norm-epsilon", model.norm_epsilon)
    if model.clamped_swiglu:
        out.add("quick-geglu", why="gpt-oss: x * sigmoid(1.702 x), clamped, times the other half plus one")
        out.add("glu-linear-offset", "1.0")
        out.add("activation-func-clamp-value", "7.0")
    elif model.activation == "swiglu":
        out.add("swiglu")
    elif model.activation == "geglu":
        out.add("quick-geglu", why="its GELU is x * sigmoid(1.702 x): Megatron-LM has no other gated one")
        out.add("apply-layernorm-1p", is_gemma(model), why="weights of norms count from 1")
        out.add("use-mup", is_gemma(model), why="for the next line alone: of its own width, nothing else is scaled")
        out.add("mup-embedding-mult", f"{model.hidden_size**0.5:.6g}" if is_gemma(model) else None, why="hidden_size ** 0.5")
        out.add("mup-attn-scale-power", 0.5 if is_gemma(model) else None, why="scores over kv_channels ** 0.5, as without mup")
    elif model.activation == "squared-relu":
        out.add("squared-relu")
        out.add("use-fused-weighted-squared-relu", model.is_moe, why="experts keep one product less, as memory is counted")
        out.add("no-bias-gelu-fusion", all_biases(model), why="the fused kernel knows GELU only")
    out.add("disable-bias-linear", not all_biases(model))
    out.add("add-qkv-bias", not all_biases(model) and model.add_qkv_bias)


def pattern_text(pattern: tuple[int, ...]) -> str:
    """Megatron's list expression: ([0]*3+[1]*58)."""
    runs = [(value, len(list(group))) for value, group in groupby(pattern)]
    if len(runs) > 8:
        return "[" + ",".join(map(str, pattern)) + "]"
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"


def _experts(out: Collector, scenario: Scenario) -> None:
    model, numerics = scenario.model, scenario.numerics
    out.add("num-experts", model.num_moe_experts)
    out.add("moe-router-topk", model.moe_router_topk)
    out.add("moe-ffn-hidden-size", model.moe_ffn_hidden_size)
    out.add("moe-latent-size", model.moe_latent_size, why="experts and dispatch on this width")
    if model.is_hybrid:
        pass  # the pattern says where they are
    elif isinstance(model.moe_layer_freq, int):
        out.add("moe-layer-freq", model.moe_layer_freq)
    else:
        out.add("moe-layer-freq", pattern_text(model.moe_layer_freq), why="1: a mixture-of-experts layer, 0: a dense one")
    if model.moe_shared_expert_intermediate_size:
        out.add("moe-shared-expert-intermediate-size", model.moe_shared_expert_intermediate_size)
        out.add("moe-shared-expert-gate", model.moe_shared_expert_gate)
    router_arguments(out, model)
    out.add("moe-grouped-gemm")
    out.add("moe-expert-capacity-factor", numerics.moe_capacity_factor)
    out.add("moe-pad-expert-input-to-capacity", numerics.moe_capacity_factor is not None)


def router_arguments(out: Collector, model: ModelSpec) -> None:
    """How experts are scored, chosen and balanced; Megatron's defaults where the model's numbers are not known."""
    router = model.router
    bias = model.moe_router_enable_expert_bias
    score = "sigmoid" if bias else router.score_function if router else "softmax"
    out.add("moe-router-score-function", score, why="the correction bias needs it" if bias else "")
    if router is not None and router.pre_softmax:
        out.add("moe-router-pre-softmax", why="scores are the softmax over all experts")
    elif score == "softmax" and model.moe_router_topk == 1:
        out.add("moe-router-pre-softmax", why="with top-1 the softmax of one score would have no gradient")
    if router is not None and router.num_groups is not None and router.group_topk is not None:
        out.add("moe-router-num-groups", router.num_groups, why=f"experts are chosen from {router.group_topk} groups")
        out.add("moe-router-group-topk", router.group_topk)
    out.add("moe-router-topk-scaling-factor", router and router.topk_scaling_factor, why="routed_scaling_factor")
    out.add("moe-router-enable-expert-bias", bias)
    out.add("moe-router-bias-update-rate", router.bias_update_rate if router and bias else None)
    kind = router.load_balancing_type if router else "seq_aux_loss" if bias else "aux_loss"
    known = router.aux_loss_coeff if router else None
    out.add("moe-router-load-balancing-type", kind)
    why = "" if known is not None else "Megatron-LM's recommended start: the model's own is not known"
    out.add("moe-aux-loss-coeff", RECOMMENDED_COEFFICIENT if known is None else known, why=why)
    out.add("moe-router-dtype", "fp32")


def unsaid(model: ModelSpec) -> list[str]:
    """What of the model a script leaves out because Megatron-LM 0.19 has no argument for it: of positions, and of Gemma 2 and 3
    (transformers, models/gemma2 and gemma3)."""
    scaling = unsaid_scaling(model)
    found = [f"scaling of rotary positions, {scaling}"] if scaling else []
    if not is_gemma(model) or model.num_layernorms_per_layer < 4:
        return found
    found.append("norms behind attention and MLP; the job that starts has two a layer, a little less work than planned")
    if model.qk_layernorm:
        return [*found, "rotary positions of their own in sliding layers (Gemma 3: base 10000, not scaled)"]
    return [*found, "caps of scores and logits by tanh (Gemma 2: 50 and 30)"]


def not_written(model: ModelSpec) -> list[str]:
    """Arguments that this model may need and whose values are not known: they change no time and no memory."""
    found = []
    if model.normalization == "RMSNorm" and model.norm_epsilon is None:
        found.append("--norm-epsilon (Megatron's default is 1e-5)")
    if model.is_moe and model.router is None:
        names = ["score-function", "pre-softmax", "topk-scaling-factor", "num-groups", "group-topk"]
        names += ["bias-update-rate"] if model.moe_router_enable_expert_bias else []
        found += [f"--moe-router-{name}" for name in names]
    if is_gemma(model) and model.num_layernorms_per_layer == 4:
        found.append("--softmax-scale (query_pre_attn_scalar ** -0.5, where that is not kv_channels)")
    return found
