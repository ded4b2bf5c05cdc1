"""What the first comment of a trainer's file that `export` wrote says (writers/words.py: head)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoconfig.planning.export_files import HEADER_CHARACTERS, MARK

_HEAD = re.compile(
    rf"^{re.escape(MARK)}: (?P<model>\S+) on (?P<gpus>[\d,]+) x (?P<gpu>[a-z0-9.-]+), sequence [\d,]+"
    r"(?: packed from sequences of (?P<packed>[\d,]+))?, global batch [\d,]+(?:, priced as software \S+)?; plan (?P<plan>\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a trainer's own settings do not say."""

    model: str
    gpus: int
    gpu: str
    packed_length: int | None
    plan: str


def header_of(text: str) -> Header | None:
    """The header; None in files of others."""
    found = _HEAD.search(text[:HEADER_CHARACTERS])
    if found is None:
        return None
    gpus, packed = (None if text is None else int(text.replace(",", "")) for text in (found["gpus"], found["packed"]))
    return Header(model=found["model"], gpus=gpus or 1, gpu=found["gpu"], packed_length=packed, plan=found["plan"])
