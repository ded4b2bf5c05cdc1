"""ModelSpec: the architecture of one transformer, in Megatron's flag names.

Symbols of the papers, tied to the fields once (used in every formula's docstring):

    L  num_layers            h  hidden_size          a  num_attention_heads   d  kv_channels (head dim)
    f  ffn_hidden_size       V  vocab_size           n_kv  num_query_groups   q = a d,  kv = n_kv d
    G  2 if gated_linear_unit else 1                 E  num_moe_experts       k  moe_router_topk
    f_e  moe_ffn_hidden_size                         f_s  moe_shared_expert_intermediate_size
    q_r, kv_r  q_lora_rank, kv_lora_rank             d_n, d_r, d_v  qk_head_dim, qk_pos_emb_head_dim, v_head_dim
    l  moe_latent_size                               n_I, d_I, K  dsa_indexer_n_heads, dsa_indexer_head_dim, dsa_indexer_topk
    H, p, n, g  mamba_num_heads, mamba_head_dim, mamba_state_dim, mamba_num_groups             d_i = H p
    H_k, H_v, d_k, d_v  linear_num_key_heads, ..._value_heads, linear_key_head_dim, ..._value_head_dim (Gated DeltaNet)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from autoconfig.specs.errors import InputError, refuse
from autoconfig.specs.json_record import Keywords, Positive
from autoconfig.specs.models.model_numbers import RopeScaling, RouterNumbers
from autoconfig.specs.models.pattern import HybridPattern, parse_pattern, published_layers

ACTIVATIONS = ("gelu", "swiglu", "geglu", "squared-relu", "relu")
POSITION_EMBEDDINGS = ("learned_absolute", "rope", "yarn", "alibi", "relative", "none")
DENSE_KINDS = ("dense", "encoder", "decoder")
"""Kinds of layers with attention and a dense MLP."""
PER_LAYER = ("moe_layer_freq", "window_attn_skip_freq")
"""Fields that are one number, or one for each layer."""
MAX_DIMENSION = 2**31
MAX_PARAMETERS = 10**18


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model. Raises InputError when built from numbers that no model can have."""

    name: str
    num_layers: int
    """Of all stacks: those of an encoder count too."""
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    """As published, before Megatron pads it to a multiple of make_vocab_size_divisible_by x tp."""
    ffn_hidden_size: int
    num_query_groups: int
    """Key/value heads; equal to num_attention_heads without grouped-query attention."""
    kv_channels: int
    """Width of one attention head."""
    max_position_embeddings: int = 4096
    gated_linear_unit: bool = False
    activation: str = "gelu"
    normalization: str = "LayerNorm"
    norm_epsilon: Annotated[float, Keywords(exclusiveMinimum=0, exclusiveMaximum=1)] | None = None
    """None where it is not known; it changes results, not time or memory."""
    layernorm_bias: bool = True
    """False for LayerNorm with a weight only (MPT); RMSNorm never has a bias."""
    position_embedding_type: str = "learned_absolute"
    rotary_base: Positive | None = None
    """rope_theta; None where it is not known, or positions are not rotary."""
    rotary_percent: Annotated[float, Keywords(exclusiveMinimum=0, maximum=1)] = 1.0
    """Share of a head's channels that rotate."""
    rope_scaling: RopeScaling | None = None
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    add_attention_output_bias: bool = False
    add_mlp_bias: bool = False
    """Of the dense MLP and the shared expert, where not every linear layer has biases (GPT-J)."""
    qk_layernorm: bool = False
    qk_layernorm_full: bool = False
    """Norms over all channels of queries and of keys, not over those of a head (OLMo 2)."""
    untie_embeddings_and_output_weights: bool = False
    make_vocab_size_divisible_by: int = 128
    parallel_attention: bool = False
    """Attention and MLP read the same norm and are summed (Falcon)."""
    num_layernorms_per_layer: int = 2
    embedding_layernorm: bool = False
    """A norm right after the embedding (BLOOM)."""
    final_layernorm: bool = True
    """A norm behind the last layer of each stack; BERT's layers as published end with their own."""

    encoder_num_layers: int = 0
    """The first so many layers are an encoder's, whose tokens see the whole sequence. The others are a decoder with
    cross-attention over the encoder's output (T5); where there are none, the model is an encoder alone (BERT)."""
    relative_attention_num_buckets: int = 0
    """Position biases of each head (T5, `relative`): one table for each stack."""
    relative_attention_in_every_layer: bool = False
    """A table for each layer instead (UMT5)."""
    num_tokentypes: int = 0
    """Embeddings of token types (BERT: 2)."""
    output_layer_bias: bool = False
    """One bias for each word (T5 of Megatron, BERT)."""
    masked_lm_head: bool = False
    """A linear layer of h, an activation and a norm before the output layer (BERT)."""
    bert_binary_head: bool = False
    """A pooler of h and two classes over the first token (BERT's next sentence)."""
    attention_sinks: bool = False
    """One learned logit per head (GPT-OSS)."""
    window_size: int | None = None
    """Tokens of sliding-window attention, None for full attention."""
    window_attn_skip_freq: int | tuple[Annotated[int, Keywords(enum=(0, 1))], ...] | None = None
    """Every n-th layer is full attention, the others sliding; or of each layer 1 where it slides, else 0; None: all layers
    slide if window_size is set."""

    num_moe_experts: int | None = None
    moe_router_topk: int = 1
    moe_ffn_hidden_size: int = 0
    moe_shared_expert_intermediate_size: int = 0
    moe_shared_expert_gate: bool = False
    moe_router_bias: bool = False
    """The router's linear layer has a bias (GPT-OSS)."""
    moe_router_enable_expert_bias: bool = False
    """One correction bias per expert, published among the weights, not trained by gradient (DeepSeek-V3)."""
    router: RouterNumbers | None = None
    """None where they are not known."""
    moe_expert_bias: bool = False
    """The experts' linear layers have biases (GPT-OSS)."""
    moe_layer_freq: int | tuple[Annotated[int, Keywords(enum=(0, 1))], ...] = 1
    """Megatron's --moe-layer-freq: every n-th layer is MoE, or 0/1 per layer."""
    moe_latent_size: int | None = None
    """Width of the routed experts' input and output, and of dispatch (Nemotron-3 Super); None: hidden_size."""

    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 0
    qk_head_dim: int = 0
    qk_pos_emb_head_dim: int = 0
    v_head_dim: int = 0
    dsa_indexer_n_heads: int = 0
    """Heads of the indexer that chooses the keys of each query (sparse attention, DSA: DeepSeek-V3.2); 0: none are left out."""
    dsa_indexer_head_dim: int = 0
    dsa_indexer_topk: int = 0
    """Keys that one query attends to."""
    dsa_indexer_rope_interleaved: bool = False
    attention_output_gate: bool = False
    """Attention's output is multiplied by a gate, as many channels more as queries have (Qwen3-Next)."""

    hybrid_layer_pattern: str = ""
    """Megatron's pattern of a hybrid model, one letter a layer (specs/models/pattern.py), without pipeline segments; empty
    where every layer is attention and an MLP or experts."""
    mamba_num_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state_dim: int = 0
    mamba_num_groups: int = 0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 4
    """Taps of the causal convolution, of Mamba-2 too."""

    mtp_num_layers: int = 0
    """Multi-token-prediction depths that are trained beside the main model (DeepSeek-V3: 1)."""
    mtp_use_repeated_layer: bool = False
    """All depths share the weights of one (Nemotron-3 Super)."""

    default_seq_length: int | None = None
    default_decoder_seq_length: int | None = None
    default_global_batch_size: int | None = None
    published_parameters: int | None = None
    """Total parameters as published, counted without the MTP modules unless the source says so."""
    model_type: str = field(default="", compare=False)
    """Of the config.json that it was read from; empty for others."""
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)
    """Field name or `*` -> where the number is published."""

    def __post_init__(self) -> None:
        _check_positive(self)
        _check_choices(self)
        _check_windows(self)
        if self.num_moe_experts is not None:
            _check_moe(self)
        if self.hybrid_layer_pattern:
            _check_hybrid(self)
        if self.encoder_num_layers:
            _check_encoder(self)
        indexer = (self.dsa_indexer_n_heads, self.dsa_indexer_head_dim, self.dsa_indexer_topk)
        whole = all(indexer) and self.q_lora_rank and self.dsa_indexer_head_dim >= self.qk_pos_emb_head_dim
        refuse(
            (
                self.multi_latent_attention and min(self.kv_lora_rank, self.qk_head_dim, self.v_head_dim) < 1,
                f"{self.name}: multi-latent attention needs kv_lora_rank, qk_head_dim and v_head_dim",
            ),
            (
                any(indexer) and not whole,
                f"{self.name}: sparse attention needs multi-latent attention with q_lora_rank, and dsa_indexer_n_heads, "
                "dsa_indexer_topk and dsa_indexer_head_dim (at least qk_pos_emb_head_dim)",
            ),
        )

    @property
    def is_sparse(self) -> bool:
        """An indexer chooses the keys of each query (DSA); attention then runs on the latents themselves."""
        return self.dsa_indexer_topk > 0

    @property
    def query_size(self) -> int:
        """q = a d; with MLA a (d_n + d_r): channels of all query heads."""
        return self.num_attention_heads * self.query_head_dim

    @property
    def query_head_dim(self) -> int:
        """Channels of one query or key head as the attention kernel sees them."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim if self.multi_latent_attention else self.kv_channels

    @property
    def value_head_dim(self) -> int:
        """Channels of one value head."""
        return self.v_head_dim if self.multi_latent_attention else self.kv_channels

    @property
    def gate_factor(self) -> int:
        """G: 2 for gated linear units (SwiGLU, GeGLU), whose first matrix is twice as wide, else 1."""
        return 2 if self.gated_linear_unit else 1

    @property
    def is_moe(self) -> bool:
        return self.num_moe_experts is not None

    @cached_property
    def moe_pattern(self) -> tuple[int, ...]:
        """1 for each mixture-of-experts layer, 0 for each dense one; length num_layers."""
        if not self.is_moe or self.is_hybrid:
            return tuple(int(kind == "moe") for kind in self.layer_kinds)
        if isinstance(self.moe_layer_freq, int):
            return tuple(int(i % self.moe_layer_freq == 0) for i in range(self.num_layers))
        return self.moe_layer_freq

    @cached_property
    def sliding_pattern(self) -> tuple[int, ...]:
        """1 for each layer with sliding-window attention, 0 for each with full attention; length num_layers."""
        if self.window_size is None:
            return (0,) * self.num_layers
        if self.window_attn_skip_freq is None:
            return (1,) * self.num_layers
        if isinstance(self.window_attn_skip_freq, tuple):
            return self.window_attn_skip_freq
        return tuple(int((i + 1) % self.window_attn_skip_freq != 0) for i in range(self.num_layers))

    @property
    def clamped_swiglu(self) -> bool:
        """gpt-oss, known by sinks and biased experts: its SwiGLU is clamped at 7 with alpha 1.702 (openai/gpt-oss,
        gpt_oss/torch/model.py, swiglu); its arithmetic costs what any SwiGLU's does. megatron-core: a quick GeGLU."""
        return self.activation == "swiglu" and self.attention_sinks and self.moe_expert_bias

    @property
    def is_hybrid(self) -> bool:
        """Layers are single sublayers, by `hybrid_layer_pattern`."""
        return bool(self.hybrid_layer_pattern)

    @cached_property
    def sublayers_per_layer(self) -> int:
        """Layers here in a layer as checkpoints and GPTModel count: 2 where every mixer has its MLP behind it, else 1."""
        return self.num_layers // published_layers(self.hybrid_layer_pattern) if self.is_hybrid else 1

    @property
    def is_encoder_decoder(self) -> bool:
        """An encoder and a decoder that reads it (T5)."""
        return 0 < self.encoder_num_layers < self.num_layers

    def stack(self, kind: str) -> ModelSpec:
        """The encoder, or the decoder without its cross-attention, as a model of its own; of other models itself."""
        if not self.is_encoder_decoder:
            return self
        encoder = self.encoder_num_layers
        layers = encoder if kind == "encoder" else self.num_layers - encoder
        return self.replace(num_layers=layers, encoder_num_layers=encoder if kind == "encoder" else 0)

    @property
    def is_encoder_only(self) -> bool:
        """Every token sees the whole sequence (BERT)."""
        return self.encoder_num_layers == self.num_layers

    @property
    def pattern(self) -> HybridPattern:
        """Of a hybrid."""
        return parse_pattern(self.hybrid_layer_pattern)

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """Of each layer: dense or moe (attention and what is behind it), encoder or decoder where both are there; of a hybrid
        the kinds of specs/models/pattern.py."""
        if self.is_hybrid:
            return self.pattern.layers
        if self.is_encoder_decoder:
            encoder = self.encoder_num_layers
            return ("encoder",) * encoder + ("decoder",) * (self.num_layers - encoder)
        return tuple("moe" if moe else "dense" for moe in (self.moe_pattern if self.is_moe else (0,) * self.num_layers))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that layers may have, the first one most often; of a mixture of experts always dense and moe."""
        if self.is_encoder_decoder:
            return ("encoder", "decoder")
        if not self.is_hybrid:
            return ("dense", "moe") if self.is_moe else ("dense",)
        return tuple(dict.fromkeys((*self.layer_kinds, *self.mtp_kinds)))

    @property
    def mtp_kinds(self) -> tuple[str, ...]:
        """Kinds of the layers of one multi-token-prediction depth."""
        return self.pattern.mtp if self.is_hybrid else (self.layer_kinds[-1],)

    @property
    def attention_layers(self) -> int:
        """Layers with attention, multi-token prediction left out."""
        return self.layer_kinds.count("attention") if self.is_hybrid else self.num_layers

    @property
    def has_dense_mlp(self) -> bool:
        """Some layer has an MLP of ffn_hidden_size."""
        return bool({*DENSE_KINDS, "mlp"} & {*self.layer_kinds, *self.mtp_kinds})

    @property
    def expert_width(self) -> int:
        """Channels in and out of the routed experts: the latent width where there is one, else h."""
        return self.moe_latent_size or self.hidden_size

    def replace(self, **changes: object) -> ModelSpec:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


_WHOLE = [f.name for f in dataclasses.fields(ModelSpec) if f.type == "int"]
_COUNTS = [f.name for f in dataclasses.fields(ModelSpec) if f.name in _WHOLE and f.default == 0]
_COUNTS += ["moe_router_topk", "num_layernorms_per_layer"]
_OPTIONAL = [f.name for f in dataclasses.fields(ModelSpec) if f.type in ("int | None", "Positive | None")]


def _check_positive(model: ModelSpec) -> None:
    for name in (*_WHOLE, *_OPTIONAL):
        value, low = getattr(model, name), 0 if name in _COUNTS else 1
        most, optional = MAX_PARAMETERS if name == "published_parameters" else MAX_DIMENSION - 1, name in _OPTIONAL
        whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= most
        if not whole and not (optional and value is None):
            or_none = ", or left out" if optional else ""
            raise InputError(f"{model.name}: {name}={value!r} must be a whole number from {low} to {most}{or_none}")
    percent, epsilon = model.rotary_percent, model.norm_epsilon
    refuse(
        (
            not isinstance(percent, int | float) or not 0 < percent <= 1,
            f"{model.name}: rotary_percent={percent!r} must be above 0 and at most 1",
        ),
        (
            epsilon is not None and not (isinstance(epsilon, float) and 0 < epsilon < 1),
            f"{model.name}: norm_epsilon={epsilon!r} must be above 0 and below 1, or left out",
        ),
        (model.num_layers > 10_000, f"{model.name}: num_layers={model.num_layers} is more than 10,000"),
        (
            not model.multi_latent_attention and model.num_attention_heads % model.num_query_groups,
            f"{model.name}: num_query_groups={model.num_query_groups} does not divide "
            f"num_attention_heads={model.num_attention_heads}",
        ),
    )


def _check_choices(model: ModelSpec) -> None:
    for name, allowed in (
        ("activation", ACTIVATIONS),
        ("position_embedding_type", POSITION_EMBEDDINGS),
        ("normalization", ("LayerNorm", "RMSNorm")),
    ):
        if getattr(model, name) not in allowed:
            raise InputError(f"{model.name}: {name}={getattr(model, name)!r} is not one of {', '.join(allowed)}")


def _check_windows(model: ModelSpec) -> None:
    given = model.window_attn_skip_freq
    if isinstance(given, tuple):
        if len(given) != model.num_layers or set(given) - {0, 1}:
            raise InputError(f"{model.name}: window_attn_skip_freq must be {model.num_layers} zeros and ones, or one number")
    elif given is not None and (not isinstance(given, int) or isinstance(given, bool) or not 1 <= given < MAX_DIMENSION):
        raise InputError(
            f"{model.name}: window_attn_skip_freq={given!r} must be a whole number from 1 to {MAX_DIMENSION - 1}, or left out"
        )


def _check_moe(model: ModelSpec) -> None:
    experts = model.num_moe_experts or 0
    if experts < 1 or not 1 <= model.moe_router_topk <= experts or model.moe_ffn_hidden_size < 1:
        raise InputError(
            f"{model.name}: {experts} experts, top-k {model.moe_router_topk}, moe_ffn_hidden_size "
            f"{model.moe_ffn_hidden_size}: need at least one expert, 1 <= top-k <= experts and a positive size"
        )
    if isinstance(model.moe_layer_freq, int):
        if model.moe_layer_freq < 1:
            raise InputError(f"{model.name}: moe_layer_freq={model.moe_layer_freq} must be at least 1")
    elif len(model.moe_layer_freq) != model.num_layers or set(model.moe_layer_freq) - {0, 1}:
        raise InputError(f"{model.name}: moe_layer_freq must be {model.num_layers} zeros and ones")


def _check_hybrid(model: ModelSpec) -> None:
    pattern, name = model.pattern, model.name
    kinds = {*pattern.layers, *pattern.mtp}
    mamba = (model.mamba_num_heads, model.mamba_head_dim, model.mamba_state_dim, model.mamba_num_groups)
    delta = (model.linear_num_key_heads, model.linear_num_value_heads, model.linear_key_head_dim, model.linear_value_head_dim)
    refuse(
        (len(pattern.segments) > 1, f"{name}: pipeline segments (|) are of a plan, not of the model's hybrid_layer_pattern"),
        (
            len(pattern.layers) != model.num_layers or model.mtp_num_layers not in (0, pattern.depths),
            f"{name}: hybrid_layer_pattern has {len(pattern.layers)} layers and {pattern.depths} multi-token-prediction "
            f"depths behind a /, but num_layers={model.num_layers} and mtp_num_layers={model.mtp_num_layers}",
        ),
        (("moe" in kinds) != model.is_moe, f"{name}: E in hybrid_layer_pattern and num_moe_experts go together"),
        (
            model.multi_latent_attention
            or model.parallel_attention
            or model.num_layernorms_per_layer != 2
            or model.window_size,
            f"{name}: latent or parallel attention, windows and other than one norm a sublayer are not modelled in hybrids",
        ),
        (
            "mamba" in kinds and (min(mamba) < 1 or model.mamba_num_heads % model.mamba_num_groups),
            f"{name}: M needs mamba_num_heads, a multiple of mamba_num_groups, mamba_head_dim and mamba_state_dim",
        ),
        (
            "gdn" in kinds and (min(delta) < 1 or model.linear_num_value_heads % model.linear_num_key_heads),
            f"{name}: G needs linear_num_value_heads, a multiple of linear_num_key_heads, and both linear head dims",
        ),
    )


def _check_encoder(model: ModelSpec) -> None:
    other = {
        "experts": model.is_moe,
        "a hybrid pattern": model.is_hybrid,
        "multi-latent attention": model.multi_latent_attention,
        "multi-token prediction": model.mtp_num_layers > 0,
        "sliding windows": model.window_size is not None and model.is_encoder_decoder,
    }
    beside = [name for name, holds in other.items() if holds]
    refuse(
        (
            model.encoder_num_layers > model.num_layers,
            f"{model.name}: encoder_num_layers={model.encoder_num_layers} is more than num_layers={model.num_layers}, the "
            "layers of encoder and decoder together",
        ),
        (beside, f"{model.name}: an encoder with {' and '.join(beside)} is not modelled"),
    )
