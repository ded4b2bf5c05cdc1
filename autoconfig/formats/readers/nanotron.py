"""nanotron's YAML: parallelism, tokens, optimizer, the model's numbers (huggingface/nanotron, examples/config_*.yaml)."""

from __future__ import annotations

import re
from typing import Any

from autoconfig.formats.record import Document, TrainerRun, model_named, needed, other_optimizer, record
from autoconfig.formats.writers.nanotron import WISH, settings
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Remark
from autoconfig.specs.software.optimizers import other_state
from autoconfig.training.plan_rules import PipelineSplit


def read(document: Document) -> CheckInput:
    """The record. GPUs: dp x tp x pp x cp. Raises InputError, UnsupportedError."""
    section = document.section()
    assumed: list[Remark] = []
    model = _model(document, assumed)
    tp, pp = section.count("parallelism.tp") or 1, section.count("parallelism.pp") or 1
    cp, dp = section.count("parallelism.context_parallel_size") or 1, section.count("parallelism.dp")
    stage = section.whole("optimizer.zero_stage") or 0
    if stage not in (0, 1):
        raise InputError(f"{section.place('optimizer.zero_stage')} is {stage}: nanotron has 0 and 1")
    run = TrainerRun(
        model=model,
        software="nanotron",
        gpus=dp * tp * pp * cp if dp else None,
        tp=tp,
        pp=pp,
        split=_uneven_stages(model, pp),
        cp=cp,
        ep=section.count("parallelism.expert_parallel_size") or 1,
        sp=(section.word("parallelism.tp_mode") or "ALL_REDUCE").upper() == "REDUCE_SCATTER",
        micro_batch=needed(section.count("tokens.micro_batch_size"), section, "tokens.micro_batch_size"),
        accumulation=section.count("tokens.batch_accumulation_per_replica") or 1,
        seq_length=needed(section.count("tokens.sequence_length"), section, "tokens.sequence_length"),
        dist_opt=stage == 1,
        numerics=_numerics(section),
        assumed=assumed,
        recompute=Recompute("full", (), "uniform", 1) if section.flag("parallelism.recompute_layer") else NONE,
    )
    if other := other_optimizer(section, name := "optimizer.optimizer_factory.name"):
        run.not_modelled.append(other_state(name, other))
    section.used |= {path for path in section.flat if path.startswith("model.m")}  # read by Hugging Face's families
    return record(document, run, section, settings, WISH)


def _uneven_stages(model: ModelSpec, pp: int) -> PipelineSplit | None:
    """The layers of each stage where pp does not divide them; None where it does, as the search counts them.

    A stage takes blocks until its cumulative cost exceeds its share of the whole: 4 a d_head h + 3 f h of a layer, V h of the
    output layer. Source: nanotron models/base.py (build_model) and models/llama.py, qwen.py (get_block_compute_costs).
    """
    if model.num_layers % pp == 0:
        return None
    h = model.hidden_size
    layer = 4 * model.num_attention_heads * (h // model.num_attention_heads) * h + 3 * model.ffn_hidden_size * h
    output = model.vocab_size * h
    total = model.num_layers * layer + output
    stages, stage = [0] * pp, 0
    for number in range(1, model.num_layers + 1):
        stages[stage] += 1
        stage += number * layer * pp > total * (stage + 1)
    return PipelineSplit(vpp=1, layers=tuple(stages))


def _model(document: Document, assumed: list[Remark]) -> ModelSpec:
    if document.request.model is not None:
        return model_named(document, None, assumed)
    values = (document.values.get("model") or {}).get("model_config")
    if not isinstance(values, dict):
        raise InputError("model.model_config is not in the file: add it, or say --model NAME")
    if values.get("moe_num_experts") not in (None, 1) or isinstance(values.get("moe_config"), dict):
        raise UnsupportedError("model.model_config: mixtures of experts of nanotron are not read")
    _require_known(values)
    family = "qwen2" if values.get("is_qwen2_config") else "llama"
    shared = {"attention_bias": False} if family == "llama" else {}
    model = model_from_mapping({**shared, **values, "model_type": family}, "model.model_config", "model of the file")
    divisor = (document.values.get("model") or {}).get("make_vocab_size_divisible_by")
    return model.replace(make_vocab_size_divisible_by=divisor) if type(divisor) is int and divisor > 0 else model


OTHER_CLASSES = re.compile(r"is_(?!llama|qwen2)\w+_config")
OTHER_LAYERS = (
    "activation_function",
    "layer_norm_epsilon",
    "sinusoidal_position_embedding",
    "ssm_cfg",
    "d_model",
    "sliding_window_size",
)
"""Fields of nanotron's Starcoder2, XGLM and Mamba that neither LlamaConfig nor Qwen2Config has (config/models_config.py)."""


def _require_known(values: dict[str, Any]) -> None:
    """Raises UnsupportedError for a model of another class than nanotron's Llama and Qwen2."""
    odd = (key for key in values if values[key] and (key in OTHER_LAYERS or OTHER_CLASSES.fullmatch(str(key))))
    other = next(odd, None)
    if other is not None:
        raise UnsupportedError(
            f"model.model_config.{other}: this is no Llama or Qwen2 of nanotron, and no other of its models is read: say "
            "--model NAME or --model config.json"
        )


def _numerics(section: Section) -> dict[str, Any]:
    dtype = section.word("model.dtype") or "bfloat16"  # ModelArgs.__post_init__ of nanotron/config/config.py
    known = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    if dtype not in known:
        raise InputError(f"{section.place('model.dtype')} is {dtype[:40]!r}: use one of {', '.join(known)}")
    wide = section.flag("optimizer.accumulate_grad_in_fp32")
    return {"precision": known[dtype], "grad_reduce_dtype": "fp32" if wide else "bf16"}
