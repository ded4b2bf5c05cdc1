"""AMD's Primus: an experiment whose module `pre_trainer` names a model file and overrides Megatron-LM's arguments."""

from __future__ import annotations

import re

from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document, model_named
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.software.software import DEFAULT_STACK


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
    model = None
    if not section.has("num_layers") or not section.has("hidden_size"):
        model = model_named(document, name, [], f"modules.{found[0]}.model is not in the file")
    return read_words(document, section, None, model=model, software=DEFAULT_STACK)
