"""TRL's supervised fine-tuning (trl 1.16: SFTConfig, ModelConfig): its YAML, `trl sft`, and programs like its sft.py behind
accelerate, torchrun, deepspeed or python; arguments of transformers' Trainer in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.formats.header import header_of
from autoconfig.formats.readers.accelerate import from_launcher, layout, not_modelled, settings_of_zero
from autoconfig.formats.readers.hugging_face.sharding import names_deepspeed, require_sharding
from autoconfig.formats.readers.hugging_face.trainer import MORE, keep_type, name_liger, settings, settings_of_fsdp, training
from autoconfig.formats.readers.options import options_of, read_command
from autoconfig.formats.record import Document, TrainerRun, record
from autoconfig.formats.writers import trl
from autoconfig.formats.writers.deepspeed import WISH as ZERO
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.script import Script
from autoconfig.planning.export_files import MARK
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES

LENGTH = 1024
"""trl.SFTConfig.max_length."""
DECISIVE = frozenset({"--model-name-or-path", "--config"})
PAIRS = frozenset(
    {"beta", "max_prompt_length", "precompute_ref_log_probs", "desirable_weight", "center_rewards_coefficient", "rpo_alpha"}
)
"""Arguments of TRL's trainers of preferences and rewards (DPO, KTO, ORPO, reward models) that its SFTConfig lacks."""
NO_TRAINER = frozenset({"with_tracking", "checkpointing_steps", "use_slow_tokenizer", "dataset_mixer_list", "dataset_mix_dir"})
"""Arguments of programs with a loop of their own (open-instruct's finetune.py, transformers' run_clm_no_trainer.py), whose
other names are the Trainer's and whose defaults are not."""
_OF_TRL: dict[str, Mapping[str, Any]] = {
    "single_gpu": {"distributed_type": "NO", "num_processes": 1},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "fsdp1": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1}},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}},
    **{f"zero{n}": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": n}} for n in (1, 2, 3)},
}
"""trl/accelerate_configs of trl 1.16, but for the number of processes, 8 in each."""


def require_sft(keys: Mapping[str, object]) -> None:
    """Raises UnsupportedError where arguments are of another training than a Trainer's supervised one."""
    if others := sorted(set(keys) & PAIRS):
        raise UnsupportedError(f"{others[0]}: training on preferences compares samples and holds further models; read is SFT")
    if others := sorted(set(keys) & NO_TRAINER):
        raise UnsupportedError(f"{others[0]}: no option of Hugging Face's Trainer, but of a program with its own loop")


def read(document: Document) -> CheckInput:
    """The record. Model and GPUs: --model, --gpus, else the launcher, else the header that `export` wrote. Raises InputError,
    UnsupportedError."""
    if document.values is not None:
        require_sft(document.values)
        return _read(document, None)
    script = read_command(document.text, document.request.settings, "TRL", DECISIVE, r"--[A-Za-z][\w-]*")
    values = options_of(script.argv)
    require_sft(values)
    if (named := values.pop("config", None)) is not None:
        values = {**_config(document, str(named)), **values}
    launch = _launcher(document, script, values)
    document = replace(document, values=values, launch=launch)
    if launch is None:
        require_sharding(document.section(), script.before)
    gpus = script.num_gpus if launch is None else None
    return replace(_read(document, gpus), notes=script.notes)


def _config(document: Document, name: str) -> dict[str, object]:
    """The YAML of `trl sft --config`, where it is beside the script. Raises InputError."""
    beside = document.beside(name)
    if beside is None or not isinstance(beside.values, dict):
        raise InputError(
            f"the settings stand in {name[:60]}, which the script names and which is not beside it: check that file"
        )
    return {str(key): value for key, value in beside.values.items()}


def _launcher(document: Document, script: Script, values: dict[str, object]) -> Document | None:
    """What accelerate is told: by its own command, or by `trl sft`, which hands on what is accelerate's."""
    launch = from_launcher(script.before, document)
    name = values.pop("accelerate_config", None)
    own = {key: values.pop(key) for key in ("num_processes", "num_machines") if key in values}
    if name is None and not own:
        return launch
    found = _OF_TRL.get(str(name))
    if name is not None and found is None:
        beside = document.beside(str(name))
        if beside is None or not isinstance(beside.values, dict):
            named = ", ".join(_OF_TRL)
            raise InputError(f"--accelerate_config {str(name)[:60]!r} is not beside the script: use one of TRL's own, {named}")
        found = beside.values
    return replace(document, format="accelerate", values={**(found or {}), **own})


def _read(document: Document, gpus: int | None) -> CheckInput:
    head = header_of(document.text)
    if head is not None and document.launch is None:
        document = replace(document, launch=_written_with(document))
    section = document.section()
    length = "max_length" if section.has("max_length") else "max_seq_length"  # of TRL before 0.16
    plain = not section.has("bf16", "fp16")
    if plain:
        section.flat["bf16"] = True
    run = training(
        document,
        section,
        name=section.word("model_name_or_path"),
        kind="lora" if section.flag("use_peft") else "full",
        length=(length, LENGTH),
        recompute=section.flag("gradient_checkpointing", default=True),
        gpus=gpus,
    )
    run.ways = {**run.ways, "adapters": "use_peft: true"}
    if plain:
        run.assumed.append(
            Remark("precision", "bf16", "the default of SFTConfig where neither bf16 nor fp16 is said (trl from 0.20 on)")
        )
    wide = (section.word("dtype", "torch_dtype") or "float32").lower() in ("float32", "fp32")
    if names_deepspeed(section):
        return record(document, run, section, settings, keep_type(section, run, ZERO))
    sharded = bool(run.fsdp)
    zero = _launch(document, run, head.plan if head else "")
    name_liger(section, run)
    wish = keep_type(section, run, ZERO if zero else trl.WISH)
    frozen = section.flag("use_peft") and not any(section.flag(key) for key in ("load_in_4bit", "load_in_8bit"))
    if wide and frozen and run.numerics["precision"] != "fp32" and run.software == trl.SOFTWARE:
        run.numerics = {**run.numerics, "frozen_dtype": "fp32"}
        run.assumed.append(note("frozen weights in float32, as trl loads them where the file does not say dtype: bfloat16"))
        if run.recompute == NONE:
            why = "which autocast saves for backward: more memory"
            run.not_modelled.append(Remark("casts of frozen fp32 weights", None, why, MORE))
    if wide and run.numerics.get("frozen_dtype") in FROZEN_BYTES:
        why = "embedding, output layer and norms are loaded in float32 (dtype: bfloat16 says 16 bits): more memory"
        run.not_modelled.append(Remark("dtype", None, why, MORE))
    spell = settings_of_zero if zero else settings_of_fsdp if sharded and document.launch is None else trl.settings
    return record(document, run, section, spell, wish)


def _written_with(document: Document) -> Document | None:
    """The file of accelerate that `export` wrote with this one, where it is beside it. Raises InputError."""
    try:
        beside = document.beside(trl.LAUNCH)
        if beside is not None and not (isinstance(beside.values, dict) and "distributed_type" in beside.values):
            raise InputError("it is no file of accelerate")
    except InputError as error:
        raise InputError(f"{trl.LAUNCH} beside it, which was written with it, cannot be used: {error}") from error
    return beside


def _launch(document: Document, run: TrainerRun, written: str) -> bool:
    """Sharding as accelerate is told, else as the file itself says, else as the plan that `export` wrote into the header;
    whether it is DeepSpeed's."""
    run.software = trl.SOFTWARE
    if (launch := document.launch) is not None:
        section = launch.section()
        found = layout(section, document.request.gpus, launch.beside)
        recompute = found.pop("recompute")
        for name, value in found.items():
            setattr(run, name, run.gpus if value is None else value)
        run.recompute = recompute if recompute != NONE else run.recompute
        run.not_modelled += not_modelled(section)
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
