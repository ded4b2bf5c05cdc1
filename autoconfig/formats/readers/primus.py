"""AMD's Primus: an experiment whose module `pre_trainer` names a model file and overrides Megatron-LM's arguments."""

from __future__ import annotations

import re

from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document, model_named
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.software.software import DEFAULT_STACK

DEFAULTS = {"bf16": True, "use_distributed_optimizer": True}
"""What pre_trainer.yaml sets and an experiment need not say (primus/configs/modules/megatron/pre_trainer.yaml and
trainer_base.yaml, fd1eeabb)."""


def read(document: Document) -> CheckInput:
    """The record. GPUs: `--gpus`. `${NAME:default}` counts as its default. Raises InputError, UnsupportedError."""
    modules = document.values.get("modules")
    found = [name for name, module in (modules or {}).items() if isinstance(module, dict) and "framework" in module]
    if not found:
        raise InputError("modules: no module with a framework is there; give the experiment file of a pre-training")
    module = document.section(f"modules.{found[0]}")
    framework = module.word("framework")
    if framework != "megatron":
        raise UnsupportedError(f"modules.{found[0]}.framework is {framework!r}: of Primus only megatron is read")
    name = re.sub(r"\.ya?ml$", "", module.word("model") or "").replace("_", "-")
    section = document.section(f"modules.{found[0]}.overrides")
    if (kind := section.word("model_type") or "gpt") not in ("gpt", "mamba", "hybrid"):
        raise UnsupportedError(f"{section.place('model_type')} is {kind[:40]!r}: only language models are read")
    for key, value in DEFAULTS.items():
        if not section.has(key) and not (key == "bf16" and section.has("fp16")):
            section.flat[key] = value
    model = None
    if not section.has("num_layers") or not section.has("hidden_size"):
        model = model_named(document, name, [], f"modules.{found[0]}.model is not in the file")
    return read_words(document, section, None, model=model, software=DEFAULT_STACK)
