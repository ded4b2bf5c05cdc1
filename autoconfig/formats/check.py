"""Any file of a run to the record that `autoconfig check` takes: scripts, argument lists, plan.json, other launchers' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from autoconfig.evidence.read import read_files
from autoconfig.formats.hooks.table import MAPPED
from autoconfig.formats.readers import (
    bridge,
    flagscale,
    gpt_neox,
    megatron_log,
    megatron_words,
    ms_swift,
    nemo,
    primus,
)
from autoconfig.formats.readers.hugging_face import axolotl, llama_factory, trl
from autoconfig.formats.recognise import MEGATRON, recognise
from autoconfig.formats.record import Document
from autoconfig.formats.writers.bridge import fine_tunes
from autoconfig.formats.writers.bridge import settings as settings_of_bridge
from autoconfig.formats.writers.trl import settings as settings_of_trl
from autoconfig.formats.writers.trl import unsharded
from autoconfig.megatron.check import CheckAnswer, check
from autoconfig.megatron.check_input import CheckInput, CheckRequest, accepted, read_check
from autoconfig.planning.export_files import priced_in
from autoconfig.planning.work import bounded
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_bytes, read_text

READERS: dict[str, Callable[[Document], CheckInput]] = {
    **{name: one.read for name, one in MAPPED.items()},
    "axolotl": axolotl.read,
    "bridge": bridge.read,
    "flagscale": flagscale.read,
    "gpt-neox": gpt_neox.read,
    "llama-factory": llama_factory.read,
    "megatron-log": megatron_log.read,
    "megatron-yaml": megatron_words.read,
    "ms-swift": ms_swift.read,
    "nemo": nemo.read,
    "primus": primus.read,
    "trl": trl.read,
}
HEAD_BYTES = 4_000_000
"""Of a log in front of the arguments that it prints: other ranks, containers and NCCL may speak first."""
WANTED = "a launch script, an argument list, a plan.json or a trainer's configuration (docs/check.md)"


def nothing_beside(name: str) -> str | None:
    """No file lies with a text."""
    return None


@bounded()
def read_any(text: str, request: CheckRequest, opened: Callable[[str], str | None] = nothing_beside) -> CheckInput:
    """The record of a file's text, of one of ours with the balance of experts that it was priced with; `opened`: texts of files
    that lie with it, by the names that it has for them. Raises InputError naming the format and what is missing."""
    found, priced = _read(text, request, opened), priced_in(text)
    scenario = found.question.scenario
    if priced is None or priced[1] is None or not scenario.model.is_moe:
        return found
    scenario = replace(scenario, numerics=replace(scenario.numerics, moe_imbalance=priced[1]))
    assumed = tuple(one for one in found.question.assumed if one.field != "moe_imbalance")
    return replace(found, question=replace(found.question, scenario=scenario, assumed=assumed))


def _read(text: str, request: CheckRequest, opened: Callable[[str], str | None]) -> CheckInput:
    name, values = recognise(text)
    if name in MEGATRON:
        found = read_check(text, request)
        numerics = found.question.scenario.numerics
        if unsharded(vars(numerics)):  # Megatron-LM has no arguments for what TRL alone keeps
            return replace(found, spelled=settings_of_trl)
        bridge_only = fine_tunes(found.question.scenario)  # adapters and packing: Megatron-LM has no arguments for them
        return replace(found, spelled=settings_of_bridge) if bridge_only else found
    try:
        source = READERS[name](Document(format=name, text=text, values=values, request=request, opened=opened))
        return accepted(source, request.without_effect)
    except InputError as error:
        if not error.args or not isinstance(error.args[0], str) or _given(request, error.field):
            raise
        error.args = (f"{name} file: {error.args[0]}", *error.args[1:])
        raise


def _given(request: CheckRequest, field: str | None) -> bool:
    """Whether the caller said the field that an error is about, and not the file."""
    return field is not None and getattr(request, field, None) is not None


def read_file(path: Path, request: CheckRequest) -> CheckInput:
    """The record of the file at `path`, with the files that it names and that lie in its folder or below. Raises InputError
    where it cannot be read."""

    def opened(name: str) -> str | None:
        named = PurePath(name)
        inside = [part for part in named.parts if part != named.anchor]
        if not inside or ".." in inside or not name.isprintable():
            return None
        files = (path.parent.joinpath(*inside), path.with_name(inside[-1]))
        found = next((file for file in files if file.is_file() and not file.samefile(path)), None)
        return None if found is None else read_text(found, WANTED)

    return read_any(_text_of(path), request, opened)


def _text_of(path: Path) -> str:
    """The text of a file; of a log, however long or packed, the arguments that it prints. Raises InputError."""
    head = read_bytes(path, WANTED, HEAD_BYTES, head=True)
    if b"- arguments -" in head or head.startswith(b"\x1f\x8b"):
        plans = read_files([path]).plans
        if plans:
            return plans[0].text
    return read_text(path, WANTED)


def check_file(path: Path, request: CheckRequest) -> CheckAnswer:
    """Check the file at `path`. Raises InputError where it cannot be read."""
    return check(read_file(path, request))
