"""LLaMA-Factory's YAML (examples/train_* of hiyouga/LLaMA-Factory), whose trainer is Hugging Face's."""

from __future__ import annotations

from autoconfig.formats.readers.hugging_face import keep_type, settings, training
from autoconfig.formats.record import Document, record
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import UnsupportedError

STAGES = ("pt", "sft")


def read(document: Document) -> CheckInput:
    """The record. GPUs: `--gpus`. Raises InputError, UnsupportedError."""
    section = document.section()
    stage = section.word("stage") or "sft"
    if stage not in STAGES:
        raise UnsupportedError(f"{section.place('stage')} is {stage[:40]}: read are {', '.join(STAGES)}")
    run = training(
        document, section, name=section.word("model_name_or_path"), kind=section.word("finetuning_type") or "lora",
        length=("cutoff_len", 2048), recompute=not section.flag("disable_gradient_checkpointing"), gpus=None,
    )  # fmt: skip
    return record(document, run, section, settings, keep_type(section, run))
