"""GPT-NeoX: one YAML (or a JSON-like one) with DeepSpeed's keys and the model's (data/maps/gpt_neox.toml)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from autoconfig.formats.hooks.deepspeed import not_modelled, sharding_of
from autoconfig.formats.mapped import fields_of, run_fields, wish_of
from autoconfig.formats.record import Document, TrainerRun, other_optimizer, record
from autoconfig.formats.words import Settings, flat
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.read_vocabulary import tokenizer_entries
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.optimizers import other_state
from autoconfig.training.plan_rules import spread_layers

NEOX = load_map("gpt_neox")
GPT2_VOCABULARY = 50_257
GPT2_TOKENIZERS = ("GPT2BPETokenizer", "HFGPT2Tokenizer")
"""Types of megatron/tokenizer/tokenizer.py that read GPT-2's vocabulary; the first is the default (neox_args.py)."""


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan."""
    more = {
        "stage": plan.fsdp or int(plan.dist_opt),
        "offloads": plan.offload > 0.0,
        "checkpoints": plan.recompute != NONE,
        "checkpointed": plan.recompute.num_layers,
    }
    return flat(written(NEOX, {**fields_of(scenario, plan), **more}))


def read(document: Document) -> CheckInput:
    """The record. Keys may have - or _. GPUs: `--gpus`. Raises InputError, UnsupportedError."""
    section = Section(_underscored(document.values), document.text, document.request.settings)
    assumed: list[Remark] = []
    _require_attention(section)
    reading = read_fields(NEOX, section)
    values = reading.fields
    values |= {"software": "gpt-neox", "gpus": None, "precision": _precision(section), "pp": max(1, values["pp"])}
    values["recompute"] = f"full:uniform:{values['checkpointed']}" if values["checkpoints"] else "none"
    if "accumulation" not in values and "global_batch" not in values:
        values["accumulation"] = 1
    model = _model(values, _vocabulary(section, assumed))
    odd = [*not_modelled(section), *reading.not_modelled]
    if other := other_optimizer(section, "optimizer.type"):
        odd.append(other_state("optimizer.type", other))
    stage = section.whole("zero_optimization.stage") or 0
    sharded = sharding_of(section, stage, assumed)
    run = TrainerRun(
        model=model,
        split=spread_layers(model.num_layers, values["pp"]) if model.num_layers % values["pp"] else None,
        table=NEOX.beside(load_map("deepspeed")),
        assumed=assumed,
        not_modelled=odd,
        **{**run_fields(values), **sharded},
    )
    return record(document, run, section, settings, wish_of(NEOX))


def _underscored(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InputError("this is no mapping of settings")
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _model(values: dict[str, Any], vocabulary: int) -> ModelSpec:
    """The model of the file's sizes."""
    hidden, gated = values["hidden_size"], values["activation"] != "gelu"
    usual = {"ffn_hidden_size": hidden * 8 // 3 if gated else 4 * hidden, "rotary_base": None}
    names = {one.name for one in fields(ModelSpec)} - {"hidden_dropout", "attention_dropout"}
    return ModelSpec(
        name="model of the file",
        kv_channels=hidden // values["num_attention_heads"],
        gated_linear_unit=gated,
        vocab_size=vocabulary,
        **{**usual, **{name: value for name, value in values.items() if name in names}},
    )


def _vocabulary(section: Section, assumed: list[Remark]) -> int:
    """Entries that the file gives, those of the tokenizer that vocab_file names, or GPT-2's. Raises InputError where a
    tokenizer of another type bears no name that is known."""
    if (entries := section.count("padded_vocab_size", "vocab_size")) is not None:
        return entries
    kind, file = section.word("tokenizer_type") or GPT2_TOKENIZERS[0], section.word("vocab_file") or ""
    named = tokenizer_entries(file)
    if named is None and file and kind not in GPT2_TOKENIZERS:
        raise InputError(
            f"{section.place('vocab_file')}: the vocabulary of {file[:80]!r} ({kind[:40]}) is not known; say --set vocab_size=N"
        )
    number = named or GPT2_VOCABULARY
    assumed.append(Remark("vocab_size", number, f"that of {file[:80] if named else 'GPT-2'}: --set vocab_size=N"))
    return number


def _require_attention(section: Section) -> None:
    """attention_config lists [[kinds], layers]: read is attention over all of the past, by whichever kernel. Raises
    UnsupportedError."""
    paths = [path for path in section.flat if path.startswith("attention_config")]
    section.used.update(paths)
    waiting: list[Any] = [section.flat[path] for path in paths]
    while waiting:
        kind = waiting.pop()
        waiting += kind if isinstance(kind, list) else []
        if isinstance(kind, str) and kind not in ("global", "flash", "all"):
            raise UnsupportedError(f"{section.place('attention_config')}: attention of kind {kind[:40]!r} is not read")


def _precision(section: Section) -> str:
    """The type in which the layers compute."""
    word = section.word("precision") or ""
    if word == "bfloat16" or section.flag("bf16.enabled") or section.word("fp16.type") == "bfloat16":
        return "bf16"
    return "fp16" if word == "fp16" or section.flag("fp16.enabled") or section.flag("fp16.fp16") else "fp32"
