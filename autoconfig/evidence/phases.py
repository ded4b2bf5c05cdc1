"""Phases of a step of reinforcement learning, as verl and NeMo-RL print them."""

from __future__ import annotations

import re

from autoconfig.evidence.grammar import number, pairs_of
from autoconfig.evidence.records import MOST_TEXT, Origin, PhaseSeconds, StepLine
from autoconfig.evidence.scan import Passage

_TIMING = "timing_s/"
_PHASE = re.compile(r"^[^\w]{0,12}([A-Za-z_][\w/ .-]{0,80}): ([\d.]{1,15})s(?: \(([\d.]{1,9})%\))?\s{0,4}$")


def of_line(rest: str, step: int, origin: Origin) -> list[PhaseSeconds]:
    """verl's phases, `timing_s/gen:4.1 - ...`; the whole step is none of them."""
    records = []
    for key, text in pairs_of("dash", rest):
        name = key.removeprefix("- ").removeprefix(_TIMING)
        seconds = number(text)
        if _TIMING in key and seconds is not None and name != "step":
            records.append(PhaseSeconds(origin=origin, name=name, seconds=seconds, step=step))
    return records


def of_block(block: Passage, ordinal: int, file: str) -> tuple[StepLine, list[PhaseSeconds]]:
    """NeMo-RL's step and its phases; `ordinal` counts the steps of the log, which these lines do not name."""
    match = block.format.pattern.search(block.head.decode("utf-8", "replace"))
    seconds = float(match["seconds"]) if match else 0.0
    head = Origin(file=file, line=block.number, text=block.head.decode("utf-8", "replace").strip()[:MOST_TEXT])
    records = []
    for line_number, raw in block.rows:
        line = raw.decode("utf-8", "replace")
        if (one := _PHASE.match(line)) is not None:
            origin = Origin(file=file, line=line_number, text=line.strip()[:MOST_TEXT])
            share = float(one[3]) / 100 if one[3] else None
            records.append(PhaseSeconds(origin=origin, name=one[1], seconds=float(one[2]), step=ordinal, share=share))
    return StepLine(origin=head, format=block.format.name, step=ordinal, seconds=seconds), records
