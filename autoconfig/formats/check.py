"""Any file of a run to the record that `autoconfig check` takes: scripts, argument lists, plan.json, other launchers' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autoconfig.formats.readers import (
    accelerate,
    bridge,
    deepspeed,
    flagscale,
    gpt_neox,
    hugging_face,
    llama_factory,
    megatron_yaml,
    ms_swift,
    nanotron,
    nemo,
    primus,
    torchtitan,
)
from autoconfig.formats.recognise import MEGATRON, recognise
from autoconfig.formats.record import Document
from autoconfig.formats.writers.bridge import settings as settings_of_bridge
from autoconfig.megatron.check import CheckAnswer, check
from autoconfig.megatron.check_input import CheckInput, CheckRequest, read_check, read_text
from autoconfig.specs.errors import InputError

READERS: dict[str, Callable[[Document], CheckInput]] = {
    "accelerate": accelerate.read,
    "bridge": bridge.read,
    "deepspeed": deepspeed.read,
    "flagscale": flagscale.read,
    "gpt-neox": gpt_neox.read,
    "llama-factory": llama_factory.read,
    "megatron-yaml": megatron_yaml.read,
    "ms-swift": ms_swift.read,
    "nanotron": nanotron.read,
    "nemo": nemo.read,
    "primus": primus.read,
    "torchtitan": torchtitan.read,
    "trl": hugging_face.read_trl,
}
WANTED = "a launch script, an argument list, a plan.json or a trainer's configuration (docs/check.md)"


def read_any(text: str, request: CheckRequest) -> CheckInput:
    """The record of a file's text. Raises InputError naming the format and what is missing."""
    name, values = recognise(text)
    if name in MEGATRON:
        found = read_check(text, request)
        adapters = found.question.scenario.numerics.peft != "none"  # for which Megatron-LM has no arguments, Bridge has
        return replace(found, spelled=settings_of_bridge) if adapters else found
    try:
        return READERS[name](Document(format=name, text=text, values=values, request=request))
    except InputError as error:
        if not error.args or not isinstance(error.args[0], str) or _given(request, error.field):
            raise
        error.args = (f"{name} file: {error.args[0]}", *error.args[1:])
        raise


def _given(request: CheckRequest, field: str | None) -> bool:
    """Whether the caller said the field that an error is about, and not the file."""
    return field is not None and getattr(request, field, None) is not None


def read_file(path: Path, request: CheckRequest) -> CheckInput:
    """The record of the file at `path`. Raises InputError where it cannot be read."""
    return read_any(read_text(path, WANTED), request)


def check_file(path: Path, request: CheckRequest) -> CheckAnswer:
    """Check the file at `path`. Raises InputError where it cannot be read."""
    return check(read_file(path, request))
