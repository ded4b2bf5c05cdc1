"""NeMo 1: `trainer` and `model` of a Megatron GPT training (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""

from __future__ import annotations

from dataclasses import replace

from autoconfig.formats.readers.megatron_words import spelled
from autoconfig.formats.record import Document, from_words, not_known, word
from autoconfig.formats.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.values import Value
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.software.software import DEFAULT_STACK

SAME = (
    "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "kv_channels", "max_position_embeddings", "hidden_dropout", "attention_dropout",
    "make_vocab_size_divisible_by", "position_embedding_type", "normalization", "rotary_base", "moe_router_topk",
    "fp8_recipe", "moe_ffn_hidden_size",
)  # fmt: skip
RENAMED = {
    "encoder_seq_length": "--seq-length", "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "rotary_percentage": "--rotary-percent", "num_moe_experts": "--num-experts",
    "activations_checkpoint_granularity": "--recompute-granularity", "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers", "seq_len_interpolation_factor":
    "--rotary-seq-len-interpolation-factor", "override_vocab_size": "--vocab-size",
}  # fmt: skip
SWITCHES = {
    "sequence_parallel": "--sequence-parallel", "qk_layernorm": "--qk-layernorm", "overlap_p2p_comm": "",
    "fp32_residual_connection": "--fp32-residual-connection", "ub_tp_comm_overlap": "--tp-comm-overlap",
    "defer_embedding_wgrad_compute": "--defer-embedding-wgrad-compute",
}  # fmt: skip
ACTIVATIONS = {
    "gelu": "", "swiglu": "--swiglu", "fast-swiglu": "--swiglu", "geglu": "--geglu", "fast-geglu": "--geglu",
    "squared-relu": "--squared-relu",
}  # fmt: skip
FOREIGN = {
    "mm_cfg": "multi-modal models", "img_h": "vision models", "vision_pretraining_type": "vision models",
    "activations_checkpoint_recurrent": "models with recurrent blocks (Griffin)",
}  # fmt: skip
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "layernorm1p": "LayerNorm", "low_precision_layernorm": "LayerNorm"}


def read(document: Document) -> CheckInput:
    """The record. GPUs: trainer.devices x trainer.num_nodes. Raises InputError, UnsupportedError."""
    trainer, model = document.section("trainer"), document.section("model")
    for key, kind in FOREIGN.items():
        if model.has(key):
            raise UnsupportedError(f"{model.place(key)}: {kind} are not read; only language models of attention layers are")
    words: list[Value] = []
    for key in SAME:
        _add(words, model, key, f"--{key.replace('_', '-')}")
    for key, name in RENAMED.items():
        _add(words, model, key, name)
    for key, name in SWITCHES.items():
        if model.flag(key) and name:
            words.append(word(name))
    _shape(words, model)
    _precision(words, trainer, model)
    optimizer = model.word("optim.name") or ""
    if "distributed" in optimizer:
        words.append(word("--use-distributed-optimizer"))
        words += [word("--overlap-grad-reduce")] * model.flag("optim.overlap_grad_sync", default=True)
        words += [word("--overlap-param-gather")] * model.flag("optim.overlap_param_sync")
    _add(words, model, "tokenizer.model", "--tokenizer-model")
    own = (model.word("tokenizer.library") or "") == "megatron"  # else the name of a Hugging Face tokenizer
    _add(words, model, "tokenizer.type", "--tokenizer-type" if own else "--tokenizer-name-or-path")
    devices, nodes = trainer.whole("devices"), trainer.count("num_nodes")
    gpus = devices * nodes if devices and nodes and devices > 0 else None
    reason = "trainer.devices x trainer.num_nodes is not in the file"
    found = from_words(document, words, gpus, gpus_reason=reason, spell=spelled, software=DEFAULT_STACK)
    return replace(found, ignored=(*found.ignored, *(f"model.{path}" for path in model.unused())))


def _add(words: list[Value], section: Section, path: str, name: str) -> None:
    try:
        value = section.word(path)
    except InputError as error:
        words += [word(name), not_known(path, str(error))]
        return
    if value is None or (name == "--recompute-num-layers" and value == "0"):  # 0: nothing is recomputed by layers
        return
    if path == "normalization":
        value = NORMS.get(value.lower(), value)
    words += [word(name), word(value.lower() if path == "position_embedding_type" else value)]


def _shape(words: list[Value], model: Section) -> None:
    activation = model.word("activation") or "gelu"
    if activation not in ACTIVATIONS:
        raise UnsupportedError(f"{model.place('activation')} is {activation[:40]!r}: read are {', '.join(ACTIVATIONS)}")
    words += [word(ACTIVATIONS[activation])] if ACTIVATIONS[activation] else []
    groups = model.count("num_query_groups")
    if groups is not None:
        words += [word("--group-query-attention"), word("--num-query-groups"), word(groups)]
    if not model.flag("bias", default=True):
        words.append(word("--disable-bias-linear"))
    if not model.flag("share_embeddings_and_output_weights", default=True):
        words.append(word("--untie-embeddings-and-output-weights"))


def _precision(words: list[Value], trainer: Section, model: Section) -> None:
    precision = trainer.word("precision") or "32"
    known = {"bf16": "--bf16", "bf16-mixed": "--bf16", "16": "--fp16", "16-mixed": "--fp16", "32": "", "32-true": ""}
    if precision not in known:
        raise InputError(f"{trainer.place('precision')} is {precision[:40]!r}: use one of {', '.join(known)}")
    words += [word(known[precision])] if known[precision] else []
    if model.flag("fp8"):
        words += [word("--fp8-format"), word("hybrid" if model.flag("fp8_hybrid") else "e4m3")]
        words += [word("--fp8-param-gather")] * model.flag("fp8_params")
    if (model.word("grad_sync_dtype") or model.word("optim.grad_sync_dtype") or "") in ("bf16", "bfloat16"):
        words.append(word("--grad-reduce-in-bf16"))
