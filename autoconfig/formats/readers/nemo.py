"""NeMo 1: `trainer` and `model` of a Megatron GPT training (examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoconfig.formats.argument_names import argument_name
from autoconfig.formats.record import Document, from_words, not_known, other_optimizer, word
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.megatron.check import plan_flags
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.commands import Value
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.training.space import Constraints

SAME = (
    "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "kv_channels", "max_position_embeddings", "hidden_dropout", "attention_dropout",
    "make_vocab_size_divisible_by", "position_embedding_type", "normalization", "rotary_base", "moe_router_topk",
    "fp8_recipe", "moe_ffn_hidden_size",
)  # fmt: skip
RENAMED = {
    "encoder_seq_length": "--seq-length",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "rotary_percentage": "--rotary-percent",
    "num_moe_experts": "--num-experts",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
    "seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "override_vocab_size": "--vocab-size",
}
SWITCHES = {
    "sequence_parallel": "--sequence-parallel",
    "qk_layernorm": "--qk-layernorm",
    "overlap_p2p_comm": "",
    "fp32_residual_connection": "--fp32-residual-connection",
    "ub_tp_comm_overlap": "--tp-comm-overlap",
    "defer_embedding_wgrad_compute": "--defer-embedding-wgrad-compute",
}
ACTIVATIONS = {
    "gelu": "",
    "swiglu": "--swiglu",
    "fast-swiglu": "--swiglu",
    "geglu": "--geglu",
    "fast-geglu": "--geglu",
    "squared-relu": "--squared-relu",
}
FOREIGN = {
    "encoder": "encoders and decoders with fields of their own (T5)",
    "mm_cfg": "multi-modal models",
    "img_h": "vision models",
    "vision_pretraining_type": "vision models",
    "num_kv_heads": "heads that only neuronx-nemo-megatron's layers share (NeMo: num_query_groups)",
    "activations_checkpoint_recurrent": "models with recurrent blocks (Griffin)",
}
OF_FULL = ("activations_checkpoint_method", "activations_checkpoint_num_layers")
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "layernorm1p": "LayerNorm", "low_precision_layernorm": "LayerNorm"}


def _every_layer_alike(model: Section) -> bool:
    """Selective recomputation with `uniform`: NeMo 1's own layers then all have it, whatever the number beside it
    (ParallelTransformer.__init__ of nemo/collections/nlp/modules/common/megatron/transformer.py), and Megatron-Core's
    TransformerConfig takes the method, too."""
    selective = model.word("activations_checkpoint_granularity") == "selective"
    return selective and (model.word(OF_FULL[0]) or "uniform") == "uniform"


def read(document: Document) -> CheckInput:
    """The record. GPUs: trainer.devices x trainer.num_nodes. Raises InputError, UnsupportedError."""
    trainer, model = document.section("trainer"), document.section("model")
    _refuse_foreign(model)
    words: list[Value] = []
    for key, name in ({key: f"--{key.replace('_', '-')}" for key in SAME} | RENAMED).items():
        if key not in OF_FULL or not _every_layer_alike(model):
            _add(words, model, key, name)
    _experts(words, model)
    for key, name in SWITCHES.items():
        if model.flag(key) and name:
            words.append(word(name))
    _shape(words, model)
    _precision(words, trainer, model)
    _optimizer(words, model)
    _add(words, model, "tokenizer.model", "--tokenizer-model")
    own = (model.word("tokenizer.library") or "") == "megatron"  # else the name of a Hugging Face tokenizer
    _add(words, model, "tokenizer.type", "--tokenizer-type" if own else "--tokenizer-name-or-path")
    devices, nodes = trainer.whole("devices"), trainer.count("num_nodes")
    gpus = devices * nodes if devices and nodes and devices > 0 else None
    reason = "trainer.devices x trainer.num_nodes is not in the file"
    node = devices if gpus else None
    found = from_words(document, words, gpus, gpus_reason=reason, node=node, spell=settings, software=DEFAULT_STACK)
    ignored = (*found.ignored, *(f"model.{path}" for path in model.unused()))
    return replace(found, ignored=ignored, wish=_wish(found.question.scenario, found.plan))


def _refuse_foreign(model: Section) -> None:
    """Raises UnsupportedError for a model of another kind, or with another kind of attention."""
    for key, kind in FOREIGN.items():
        if model.has(key):
            raise UnsupportedError(f"{model.place(key)}: {kind} are not read; only language models of attention layers are")
    if (kind := model.word("attention_type") or "multihead") != "multihead":
        raise UnsupportedError(f"{model.place('attention_type')}: attention of kind {kind[:40]} is not read here")


def settings(scenario: Scenario, plan: TrainPlan) -> dict[str, tuple[str, ...]]:
    """What a plan is in NeMo's words, by path."""
    flags, recompute = plan_flags(scenario, plan), plan.recompute
    given = {f"model.{key}": flag in flags for key, flag in (("sequence_parallel", "--sequence-parallel"), *OVERLAPS.items())}
    found: dict[str, object] = {
        "model.micro_batch_size": plan.mbs,
        "model.tensor_model_parallel_size": plan.tp,
        "model.pipeline_model_parallel_size": plan.pp,
        "model.context_parallel_size": plan.cp,
        "model.expert_model_parallel_size": plan.ep,
        "model.virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else "null",
        "model.activations_checkpoint_granularity": "null" if recompute == NONE else recompute.granularity,
        "model.activations_checkpoint_method": recompute.method or "null",
        "model.activations_checkpoint_num_layers": recompute.num_layers or "null",
        "model.optim.name": "mcore_distributed_optim" if plan.dist_opt else "fused_adam",
    }
    texts = {path: str(value) for path, value in found.items()} | {path: str(on).lower() for path, on in given.items()}
    return {path: (text,) for path, text in texts.items()}


OVERLAPS = {
    "ub_tp_comm_overlap": "--tp-comm-overlap",
    "optim.overlap_grad_sync": "--overlap-grad-reduce",
    "optim.overlap_param_sync": "--overlap-param-gather",
}


def _wish(scenario: Scenario, plan: TrainPlan) -> Constraints:
    """Plans that NeMo 1 has words for: no modules to recompute but attention's core; experts are divided as the layers are."""
    layers = range(1, scenario.model.num_layers + 1)
    whole = {Recompute("full", (), method, count) for method in ("block", "uniform") for count in layers}
    known = {NONE, Recompute("selective", ("core_attn",)), *whole, plan.recompute}
    fixed: dict[str, frozenset[Any]] = {"recompute": frozenset(known)}
    fixed |= {"fsdp": frozenset({plan.fsdp}), "offload": frozenset({plan.offload})}
    if scenario.model.is_moe:
        fixed |= {"tp": frozenset({plan.tp}), "etp": frozenset({plan.etp})}
    return Constraints(fixed=fixed)


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


def _experts(words: list[Value], model: Section) -> None:
    """Fields of TransformerConfig, which takes all of the model's that bear their names (build_transformer_config of
    megatron_base_model.py): the words of Megatron-LM that are called the same."""
    for key in [key for key in model.flat if key.startswith("moe_") and key not in SAME]:
        if known_arguments().get(argument_name(key)) is None:
            continue
        if isinstance(model.flat[key], bool):
            words += [word(argument_name(key))] * model.flag(key)
        else:
            _add(words, model, key, argument_name(key))


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


def _optimizer(words: list[Value], model: Section) -> None:
    if "distributed" in (model.word("optim.name") or ""):
        words.append(word("--use-distributed-optimizer"))
        words += [word("--overlap-grad-reduce")] * model.flag("optim.overlap_grad_sync", default=True)
        words += [word("--overlap-param-gather")] * model.flag("optim.overlap_param_sync")
    if other := other_optimizer(model, "optim.name"):
        words += [word("--optimizer"), word(other)]


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
