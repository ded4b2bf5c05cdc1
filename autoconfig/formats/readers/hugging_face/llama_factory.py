"""LLaMA-Factory, whose trainer is Hugging Face's: its YAML (examples/train_* of hiyouga/LLaMA-Factory) and command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from autoconfig.formats.options import options_of, processes, read_command
from autoconfig.formats.readers.hugging_face.preferences import algorithm_of, not_supervised
from autoconfig.formats.readers.hugging_face.sharding import is_named, names_deepspeed, require_sharding
from autoconfig.formats.readers.hugging_face.trainer import keep_type, settings, training
from autoconfig.formats.record import Document, record
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError

STAGES = ("pt", "sft")
NO_DEEPSPEED = ("use_galore", "use_apollo")
DECISIVE = frozenset({"--model-name-or-path"})
_FILE = re.compile(r"(?:llamafactory-cli|lmf)\s+train\s+[\"']?([^\s\"';&|]+\.(?:ya?ml|json))")


def read(document: Document) -> CheckInput:
    """Return the record. GPUs: of a command line as the launcher says, else `--gpus`. Raises InputError, UnsupportedError."""
    if document.values is not None:
        return _read(document, None)
    if (file := _FILE.search(document.text)) and "--model_name_or_path" not in document.text:
        raise InputError(
            f"the settings stand in {file[1][:60]}, which the script names and which is not opened: check that file"
        )
    script = read_command(document.text, document.request.settings, "LLaMA-Factory", DECISIVE, r"--[A-Za-z][\w-]*")
    document = replace(document, values=options_of(script.argv))
    require_sharding(document.section(), script.before)
    by_itself = not any(part.rsplit("/", 1)[-1] in ("torchrun", "deepspeed", "accelerate", "srun") for part in script.before)
    gpus = _visible(script.variables) if by_itself and not script.program.endswith(".py") else script.num_gpus
    return replace(_read(document, gpus), notes=script.notes)


def _visible(variables: Mapping[str, object]) -> int | None:
    """Return GPUs of `llamafactory-cli train`, which starts torchrun over those of NPROC_PER_NODE, else over all that are
    visible, on NNODES nodes (src/llamafactory/launcher.py)."""
    if (started := processes(variables)) is not None:
        return started
    visible = [name for name in str(variables.get("CUDA_VISIBLE_DEVICES", "")).split(",") if name.strip()]
    return processes({**variables, "NPROC_PER_NODE": len(visible)}) if visible else None


def _read(document: Document, gpus: int | None) -> CheckInput:
    section = document.section()
    stage = section.word("stage") or "sft"
    if algorithm := algorithm_of(stage):
        raise UnsupportedError(not_supervised(f"{section.place('stage')} is {stage[:40]}", algorithm))
    if stage not in STAGES:
        raise UnsupportedError(f"{section.place('stage')} is {stage[:40]}: read are {', '.join(STAGES)}")
    if section.has("do_train") and not section.flag("do_train"):
        raise UnsupportedError(f"{section.place('do_train')} is false: nothing is trained; read is training")
    run = training(
        document,
        section,
        name=section.word("model_name_or_path"),
        kind=section.word("finetuning_type") or "lora",
        length=("cutoff_len", 2048),
        recompute=not section.flag("disable_gradient_checkpointing"),
        gpus=gpus,
    )
    if names_deepspeed(section) and (odd := [key for key in NO_DEEPSPEED if is_named(section, key)]):
        raise UnsupportedError(
            f"{section.place(odd[0])} with deepspeed: LLaMA-Factory stops, as its {odd[0][4:]} does not run with DeepSpeed "
            "(hparams/parser.py); drop one of them"
        )
    run.ways = {**run.ways, "adapters": "finetuning_type: lora"}
    return record(document, run, section, settings, keep_type(section, run))
