"""Families of Hugging Face with an encoder: T5, mT5, UMT5; BERT, RoBERTa and what is built as they are (transformers 5.23)."""

from __future__ import annotations

from autoconfig.specs.models.config_reader import ConfigReader, norm_epsilon
from autoconfig.specs.models.families.traits import Fields, activation_name, layer_count, unsupported

T5_HEAD, BERT_HEADS = "ForConditionalGeneration", ("ForMaskedLM", "ForPreTraining", "LMHeadModel", "ForCausalLM")


def _architecture(cfg: ConfigReader, known: tuple[str, ...]) -> str:
    """The end of the class's name in `architectures`; the first known one where the file does not say it."""
    named = cfg.items("architectures", str) or []
    if not named:
        return known[0]
    found = next((end for end in known if named[0].endswith(end)), None)
    if found is None:
        raise unsupported(
            cfg, f"architectures is {named[0][:40]!r}; parameters are counted of classes ending in {', '.join(known)}"
        )
    return found


def t5(cfg: ConfigReader) -> Fields:
    """No biases, RMS norms, one table of relative positions in each stack (UMT5: in each layer). The embeddings are tied
    whatever the file says (configuration_t5.py, configuration_mt5.py, configuration_umt5.py)."""
    _architecture(cfg, (T5_HEAD,))
    encoder = layer_count(cfg, "num_layers", 6)
    decoder = layer_count(cfg, "num_decoder_layers", encoder)
    heads, own = cfg.integer("num_heads", 8), cfg.text("model_type")
    feed = cfg.text("feed_forward_proj", "relu" if own == "t5" else "gated-gelu")
    gated = cfg.boolean("is_gated_act", feed.startswith("gated-"))
    if cfg.text("dense_act_fn", "") == "xielu":
        raise unsupported(cfg, "dense_act_fn=xielu cannot be planned: its parameters in each layer are not modelled")
    if feed.removeprefix("gated-") not in ("relu", "gelu"):
        raise unsupported(cfg, f"feed_forward_proj={feed[:40]!r} cannot be planned; known are relu, gelu and gated-gelu")
    if gated and not feed.endswith("gelu"):
        raise unsupported(cfg, f"feed_forward_proj={feed[:40]!r} cannot be planned; of gated ones gated-gelu")
    return {
        "num_layers": encoder + decoder,
        "encoder_num_layers": encoder,
        "hidden_size": cfg.integer("d_model", 512),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": cfg.integer("d_kv", 64),
        "ffn_hidden_size": cfg.integer("d_ff", 2048 if own == "t5" else 1024),
        "vocab_size": cfg.integer("vocab_size"),
        "max_position_embeddings": cfg.integer("n_positions", 512),
        "gated_linear_unit": gated,
        "activation": "geglu" if gated else feed.removeprefix("gated-"),
        "normalization": "RMSNorm",
        "norm_epsilon": norm_epsilon(cfg),
        "position_embedding_type": "relative",
        "relative_attention_num_buckets": cfg.integer("relative_attention_num_buckets", 32),
        "relative_attention_in_every_layer": own == "umt5",
        "add_bias_linear": False,
    }


def bert(cfg: ConfigReader) -> Fields:
    """Learned positions, token types, biases, a norm behind each half of a layer and behind the embedding, and none behind the
    last layer; a linear layer with a norm and one bias for each word before the output."""
    head = _architecture(cfg, BERT_HEADS)
    if cfg.boolean("add_cross_attention", False) or cfg.boolean("use_task_id", False):
        raise unsupported(cfg, "add_cross_attention and use_task_id cannot be planned; both must be false")
    if cfg.text("position_embedding_type", "absolute") != "absolute":
        raise unsupported(cfg, "position_embedding_type must be absolute")
    hidden, heads = cfg.integer("hidden_size", 768), cfg.integer("num_attention_heads", 12)
    if hidden % heads:
        raise cfg.fail(f"hidden_size {hidden} is not a multiple of {heads} attention heads")
    if not cfg.boolean("tie_word_embeddings", True):
        raise unsupported(cfg, "tie_word_embeddings must be true: transformers holds two biases of each word otherwise")
    count = layer_count(cfg, "num_hidden_layers", 12)
    return {
        "num_layers": count,
        "encoder_num_layers": count,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": hidden // heads,
        "ffn_hidden_size": cfg.integer("intermediate_size", 4 * hidden),
        "vocab_size": cfg.integer("vocab_size"),
        "max_position_embeddings": cfg.integer("max_position_embeddings", 512),
        "activation": activation_name(cfg, "hidden_act", "gelu", False),
        "normalization": "LayerNorm",
        "norm_epsilon": norm_epsilon(cfg),
        "embedding_layernorm": True,
        "final_layernorm": False,
        "num_tokentypes": cfg.integer("type_vocab_size", 2),
        "output_layer_bias": True,
        "masked_lm_head": True,
        "bert_binary_head": head == "ForPreTraining",
    }


def roberta(_cfg: ConfigReader, fields: Fields) -> Fields:
    """As BERT; positions start behind the padding token's, so two rows are no positions."""
    return {"bert_binary_head": False, "default_seq_length": max(1, fields["max_position_embeddings"] - 2)}


def distilbert(cfg: ConfigReader) -> Fields:
    """BERT without token types, by other names of its keys."""
    names = {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "activation": "hidden_act",
    }
    usual = {"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}
    values = {**usual, **cfg.values()}
    return bert(ConfigReader({names.get(key, key): value for key, value in values.items()}, cfg.where)) | {"num_tokentypes": 0}
