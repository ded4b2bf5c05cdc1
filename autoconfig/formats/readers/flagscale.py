"""FlagScale: `system`, `model` and `data` of a training file (examples/*/conf/train), Megatron-LM's arguments in groups."""

from __future__ import annotations

from autoconfig.formats.readers.megatron_words import read_words
from autoconfig.formats.record import Document
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.software.software import DEFAULT_STACK


def read(document: Document) -> CheckInput:
    """The record. GPUs: nnodes x nproc_per_node of an `experiment.runner` in the same file, else `--gpus`. Raises
    InputError, UnsupportedError."""
    values = document.values.get("train") or document.values
    runner = document.section("experiment.runner")
    nodes, each = runner.count("nnodes"), runner.count("nproc_per_node")
    section = document.section("train") if "train" in document.values else document.section()
    if any(section.flag(key) for key in section.flat if key.rpartition(".")[2] == "enable_hetero"):
        raise UnsupportedError("enable_hetero: stages on unlike GPUs are not read; one type of GPU runs every stage here")
    if section.has("data.tokenizer.tokenizer_path") and not section.has("data.tokenizer.tokenizer_type"):
        raise UnsupportedError(
            f"{section.place('data.tokenizer.tokenizer_path')} without tokenizer_type: of FlagScale's other programs "
            "(train_rwkv.py and its kin), whose model the file does not say"
        )
    _ffn(section)
    skip = [key for key in values if key not in ("system", "model", "data")]
    return read_words(document, section, nodes * each if nodes and each else None, node=each, skip=skip, software=DEFAULT_STACK)


def _ffn(section: Section) -> None:
    """FlagScale's own width of the MLP: 8/3 h times `hidden_dim_multiplier`, up to a multiple of `multiple_of`
    (flagscale/train/arguments.py)."""
    hidden, multiple = section.count("model.hidden_size"), section.count("model.multiple_of")
    if hidden is None or multiple is None or section.has("model.ffn_hidden_size"):
        return
    width = int(int(4 * hidden * 2 / 3) * (section.number("model.hidden_dim_multiplier") or 1.0))
    section.flat["model.ffn_hidden_size"] = multiple * -(-width // multiple)
    for key in ("multiple_of", "hidden_dim_multiplier"):
        section.flat.pop(f"model.{key}", None)
