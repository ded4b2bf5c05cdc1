"""TRL's supervised fine-tuning (trl 1.16: SFTConfig, ModelConfig): its YAML, `trl sft`, and programs like its sft.py behind
accelerate, torchrun, deepspeed or python; arguments of transformers' Trainer in a file of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.accelerate import from_launcher, layout, settings_of_zero
from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.options import options_of, read_command
from autoconfig.formats.readers.hugging_face.preferences import KEYS, algorithm_of, not_supervised
from autoconfig.formats.readers.hugging_face.sharding import names_deepspeed, require_sharding
from autoconfig.formats.readers.hugging_face.trainer import keep_type, name_liger, settings, settings_of_fsdp, training
from autoconfig.formats.record import Document, Spell, TrainerRun, record
from autoconfig.formats.words import header_of
from autoconfig.formats.writers import trl
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.script import Script
from autoconfig.planning.export_files import MARK
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.parameters import dense_gemm_weights, total_parameters
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES
from autoconfig.training.space import Constraints

TRL = load_map("trl").more
DECISIVE = frozenset({"--model-name-or-path", "--config"})


def require_sft(keys: Mapping[str, object], program: str = "") -> None:
    """Raises UnsupportedError where the program or arguments are of another training than a Trainer's supervised one."""
    if algorithm := algorithm_of(program):
        raise UnsupportedError(not_supervised(program[-60:], algorithm))
    if others := sorted(set(keys) & KEYS):
        raise UnsupportedError(not_supervised(others[0]))
    if others := sorted(set(keys) & set(TRL["own_loop"])):
        raise UnsupportedError(f"{others[0]}: no option of Hugging Face's Trainer, but of a program with its own loop")


def read(document: Document) -> CheckInput:
    """Return the record. Model and GPUs: --model, --gpus, else the launcher, else the header that `export` wrote. Raises
    InputError, UnsupportedError."""
    if document.values is not None:
        require_sft(document.values)
        return _read(document, None, of_trl=bool(set(document.values) & set(TRL["own"])))
    script = read_command(document.text, document.request.settings, "TRL", DECISIVE, r"--[A-Za-z][\w-]*")
    values = options_of(script.argv)
    program = script.program or (script.before[-1] if script.before else "")
    require_sft(values, program)
    if (named := values.pop("config", None)) is not None:
        values = {**_config(document, str(named)), **values}
        require_sft(values)
    launch = _launcher(document, script, values)
    document = replace(document, values=values, launch=launch)
    if launch is None:
        require_sharding(document.section(), script.before)
    gpus = script.num_gpus if launch is None else None
    named_sft = "sft" in re.findall(r"[a-z]+", program.lower().rpartition("/")[2])
    return replace(_read(document, gpus, of_trl=named_sft), notes=script.notes)


def _mapping(document: Document, name: str) -> dict[str, Any] | None:
    """Return the mapping in a file beside the script; None where there is none. Raises InputError."""
    beside = document.beside(name)
    return beside.values if beside is not None and isinstance(beside.values, dict) else None


def _config(document: Document, name: str) -> dict[str, object]:
    """Return the YAML of `trl sft --config`. Raises InputError where it is not beside the script."""
    values = _mapping(document, name)
    if values is None:
        raise InputError(
            f"the settings stand in {name[:60]}, which the script names and which is not beside it: check that file"
        )
    return {str(key): value for key, value in values.items()}


def _launcher(document: Document, script: Script, values: dict[str, object]) -> Document | None:
    """Return what accelerate is told: by its own command, or by `trl sft`, which hands on what is accelerate's."""
    launch = from_launcher(script.before, document)
    name = values.pop("accelerate_config", None)
    own = {key: values.pop(key) for key in ("num_processes", "num_machines") if key in values}
    if name is None and not own:
        return launch
    file = {} if name is None else TRL["launches"].get(str(name)) or _mapping(document, str(name))
    if file is None:
        named = ", ".join(TRL["launches"])
        raise InputError(f"--accelerate_config {str(name)[:60]!r} is not beside the script: use one of TRL's own, {named}")
    return replace(document, format="accelerate", values={**file, **own})


def _read(document: Document, gpus: int | None, *, of_trl: bool) -> CheckInput:
    """Return the record. `of_trl`: the defaults are TRL's; else transformers' own, of a program around its Trainer."""
    head = header_of(document.text)
    if head is not None and document.launch is None:
        document = replace(document, launch=_written_with(document))
    section = document.section()
    typed, checkpointed = section.has("bf16", "fp16"), section.has("gradient_checkpointing")
    if of_trl and not typed:
        section.flat["bf16"] = True
    length = next((name for name in TRL["lengths"] if section.has(name)), TRL["lengths"][0])
    run = training(
        document,
        section,
        name=section.word("model_name_or_path"),
        kind="lora" if _trains_adapters(section) else "full",
        length=(length, TRL["length"] if of_trl else None),
        recompute=section.flag("gradient_checkpointing", default=of_trl),
        gpus=gpus,
    )
    _add_answers(section, run, length)
    run.assumed += _assumed_of_trl(typed) if of_trl else _assumed_of_trainer(section, checkpointed)
    run.ways = {**run.ways, "adapters": "use_peft: true"}
    spell, wish = _sharded(document, section, run, head.plan if head else "", of_trl=of_trl)
    return record(document, run, section, spell, wish)


def _assumed_of_trl(typed: bool) -> list[Remark]:
    """Return TRL's defaults; `typed`: the file says bf16 or fp16."""
    loss = "TRL's own from 1.7 on, which holds no logits (a release before: --loss plain)"
    precision = "the default of SFTConfig where neither bf16 nor fp16 is said (trl from 0.20 on)"
    return [Remark("loss", trl.LOSS, loss), *([] if typed else [Remark("precision", "bf16", precision)])]


def _assumed_of_trainer(section: Section, checkpointed: bool) -> list[Remark]:
    """Return defaults of transformers' Trainer that TRL has otherwise; `checkpointed`: the file says whether it recomputes."""
    remarks = []
    if not checkpointed:
        why = "the default of transformers' Trainer, whose program this is (trl's sft has it on)"
        remarks.append(Remark("gradient_checkpointing", False, why))
    if not section.has("bf16", "fp16", "torch_dtype", "dtype"):
        why = "transformers' own where neither bf16 nor fp16 is said (trl's sft has bf16)"
        remarks.append(Remark("precision", "fp32", why))
    return remarks


def _sharded(document: Document, section: Section, run: TrainerRun, plan: str, *, of_trl: bool) -> tuple[Spell, Constraints]:
    """Shard the run as its file, its launch or the plan of its header says; return the words for a plan, and the plans that
    these files can say."""
    own = run.options
    loss = trl.LOSS if of_trl else own.loss_fusion
    if names_deepspeed(section):
        run.options = replace(own, loss_fusion=loss)
        return settings, keep_type(section, run, DEEPSPEED.wish)
    by_file = bool(run.fsdp) and document.launch is None
    zero = _launch(document, run, plan)
    run.options = replace(run.options, compiled=own.compiled, loss_fusion=loss)  # beside buckets of accelerate's
    name_liger(section, run)
    wish = keep_type(section, run, DEEPSPEED.wish if zero else trl.WISH)
    if of_trl and (section.word("dtype", "torch_dtype") or "float32").lower() in ("float32", "fp32"):
        quantised = [section.flag(key) for key in ("load_in_4bit", "load_in_8bit")]
        _widen(run, frozen=section.flag("use_peft") and not any(quantised))
    return settings_of_zero if zero else settings_of_fsdp if by_file else trl.settings, wish


def _widen(run: TrainerRun, *, frozen: bool) -> None:
    """Add what is loaded in float32, and kept so: frozen weights, or what stays beside quantised ones."""
    if frozen and run.numerics["precision"] != "fp32" and run.software == trl.SOFTWARE:
        run.numerics = {**run.numerics, "frozen_dtype": "fp32"}
        run.assumed.append(note("frozen weights in float32, as trl loads them where the file does not say dtype: bfloat16"))
        if run.recompute == NONE:
            why = "which autocast saves for backward: more memory"
            most = 2.0 * total_parameters(run.model)
            run.not_modelled.append(Remark("casts of frozen fp32 weights", None, why, Effect.MORE_MEMORY, most))
    if run.numerics.get("frozen_dtype") in FROZEN_BYTES:
        why = "embedding, output layer and norms are loaded in float32 (dtype: bfloat16 says 16 bits): more memory"
        most = 2.0 * (
            total_parameters(run.model) - sum(dense_gemm_weights(run.model, kind, 1) for kind in run.model.layer_kinds)
        )
        run.not_modelled.append(Remark("dtype", None, why, Effect.MORE_MEMORY, most))


def _add_answers(section: Section, run: TrainerRun, length: str) -> None:
    """Beside the longest prompt the longest answer, where the program has an option for each: of the decoder, or behind it."""
    answer = section.count(TRL["answers"][length]) if length in TRL["answers"] else None
    if answer is not None and run.model.is_encoder_decoder:
        run.decoder_seq_length = answer
    elif answer is not None:
        run.seq_length += answer


def _trains_adapters(section: Section) -> bool:
    """Return whether adapters are trained: TRL's `use_peft`, or the word of a program around the Trainer for it (Qwen's
    finetune.py, FastChat's train_lora.py, LLaVA's)."""
    if section.flag("q_lora"):
        section.flat["load_in_4bit"] = True
    flags = [section.flag(name) for name in ("use_peft", "use_lora", "lora_enable", "q_lora")]
    return any(flags)


def _written_with(document: Document) -> Document | None:
    """Return the file of accelerate that `export` wrote with this one, where it is beside it. Raises InputError."""
    try:
        beside = document.beside(trl.LAUNCH)
        if beside is None or (isinstance(beside.values, dict) and "distributed_type" in beside.values):
            return beside
        raise InputError("it is no file of accelerate")
    except InputError as error:
        raise InputError(f"{trl.LAUNCH} beside it, which was written with it, cannot be used: {error}") from error


def _launch(document: Document, run: TrainerRun, written: str) -> bool:
    """Sharding as accelerate is told, else as the file itself says, else as the plan that `export` wrote into the header;
    whether it is DeepSpeed's."""
    run.software = trl.SOFTWARE
    if (launch := document.launch) is not None:
        section = launch.section()
        fields, odd = layout(section, run.assumed, document.request.gpus, launch.beside)
        recompute = fields.pop("recompute")
        for name, value in fields.items():
            setattr(run, name, run.gpus if value is None else value)
        run.recompute = recompute if recompute != NONE else run.recompute
        run.not_modelled += odd
        run.assumed.append(note(_told(document)))
        return run.software == "deepspeed"
    plan = parse_plan(written, run.gpus or 1) if written else None
    if run.fsdp or run.dist_opt:
        return False
    if plan is None or not plan.fsdp:
        run.assumed.append(note(f"weights on every GPU (an accelerate file that shards them, {trl.LAUNCH}, is not beside it)"))
        return False
    run.fsdp = plan.fsdp
    run.recompute = plan.recompute if plan.recompute != NONE else run.recompute
    why = f"{trl.LAUNCH}, which was written with it, is not beside it, and accelerate needs it"
    run.assumed.append(note(f"sharded as the plan in its header, fsdp={plan.fsdp}: {why}"))
    return False


def _told(document: Document) -> str:
    if MARK in document.text:
        return f"sharding and GPUs as {trl.LAUNCH} beside it says, which was written with it"
    return "sharding and GPUs as accelerate is told"
