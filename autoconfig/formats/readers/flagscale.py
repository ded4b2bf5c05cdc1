"""FlagScale: `system`, `model` and `data` of a training file (examples/*/conf/train), Megatron-LM's arguments in groups."""

from __future__ import annotations

from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.software.software import DEFAULT_STACK


def read(document: Document) -> CheckInput:
    """The record. GPUs: nnodes x nproc_per_node of an `experiment.runner` in the same file, else `--gpus`. Raises
    InputError."""
    values = document.values.get("train") or document.values
    runner = document.section("experiment.runner")
    nodes, each = runner.count("nnodes"), runner.count("nproc_per_node")
    section = document.section("train") if "train" in document.values else document.section()
    skip = [key for key in values if key not in ("system", "model", "data")]
    return read_words(document, section, nodes * each if nodes and each else None, skip=skip, software=DEFAULT_STACK)
