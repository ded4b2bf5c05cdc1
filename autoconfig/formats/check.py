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
from autoconfig.formats.writers.bridge import fine_tunes
from autoconfig.formats.writers.bridge import settings as settings_of_bridge
from autoconfig.formats.writers.trl import LAUNCH, unsharded
from autoconfig.formats.writers.trl import settings as settings_of_trl
from autoconfig.megatron.check import CheckAnswer, check
from autoconfig.megatron.check_input import CheckInput, CheckRequest, read_check
from autoconfig.planning.export_files import HEADER_CHARACTERS, MARK, priced_in
from autoconfig.planning.work import bounded
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_text

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


@bounded()
def read_any(text: str, request: CheckRequest, launch: str | None = None) -> CheckInput:
    """The record of a file's text, of one of ours with the balance of experts that it was priced with; `launch`: the text of
    the accelerate file that was written with it. Raises InputError naming the format and what is missing."""
    found, priced = _read(text, request, launch), priced_in(text)
    scenario = found.question.scenario
    if priced is None or priced[1] is None or not scenario.model.is_moe:
        return found
    scenario = replace(scenario, numerics=replace(scenario.numerics, moe_imbalance=priced[1]))
    assumed = tuple(one for one in found.question.assumed if one.field != "moe_imbalance")
    return replace(found, question=replace(found.question, scenario=scenario, assumed=assumed))


def _read(text: str, request: CheckRequest, launch: str | None) -> CheckInput:
    name, values = recognise(text)
    if name in MEGATRON:
        found = read_check(text, request)
        numerics = found.question.scenario.numerics
        if unsharded(vars(numerics)):  # Megatron-LM has no arguments for what TRL alone keeps
            return replace(found, spelled=settings_of_trl)
        bridge_only = fine_tunes(found.question.scenario)  # adapters and packing: Megatron-LM has no arguments for them
        return replace(found, spelled=settings_of_bridge) if bridge_only else found
    try:
        beside = None if launch is None else _launch(launch, request)
        return READERS[name](Document(format=name, text=text, values=values, request=request, launch=beside))
    except InputError as error:
        if not error.args or not isinstance(error.args[0], str) or _given(request, error.field):
            raise
        error.args = (f"{name} file: {error.args[0]}", *error.args[1:])
        raise


def _given(request: CheckRequest, field: str | None) -> bool:
    """Whether the caller said the field that an error is about, and not the file."""
    return field is not None and getattr(request, field, None) is not None


def _launch(text: str, request: CheckRequest) -> Document:
    """The file of accelerate beside another one; nothing but itself says its values. Raises InputError."""
    try:
        name, values = recognise(text)
        if name != "accelerate":
            raise InputError(f"it is a {name} file")
    except InputError as error:
        raise InputError(f"{LAUNCH} beside it, which was written with it, cannot be used: {error}") from error
    return Document(format=name, text=text, values=values, request=replace(request, settings={}))


def read_file(path: Path, request: CheckRequest) -> CheckInput:
    """The record of the file at `path`, with the accelerate file beside it where `export` wrote both. Raises InputError where
    it cannot be read."""
    text, beside = read_text(path, WANTED), path.with_name(LAUNCH)
    exported = MARK in text[:HEADER_CHARACTERS] and path.name != LAUNCH and beside.is_file()
    return read_any(text, replace(request, file_name=path.name), read_text(beside, WANTED) if exported else None)


def check_file(path: Path, request: CheckRequest) -> CheckAnswer:
    """Check the file at `path`. Raises InputError where it cannot be read."""
    return check(read_file(path, request))
