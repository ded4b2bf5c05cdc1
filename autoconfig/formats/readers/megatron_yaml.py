"""Megatron-LM's YAML: `MODEL_ARGS` of its functional tests, `ARGS` of its recipes of mixtures (examples/moe_recipes), and the
file of --yaml-cfg (examples/gpt3/gpt_config.yaml)."""

from __future__ import annotations

from autoconfig.formats.argument_names import MEGATRON_ARGUMENTS
from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document
from autoconfig.megatron.check_input import CheckInput


def read(document: Document) -> CheckInput:
    """The record. GPUs: `--gpus`, which such files do not say. Raises InputError."""
    whole = document.section()
    path = next((key for key in MEGATRON_ARGUMENTS if whole.has(key)), "")
    return read_words(document, document.section(path), None)
