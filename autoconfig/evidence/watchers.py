"""What watches a run beside its log: scores of ranks, stacks of threads."""

from __future__ import annotations

import re

from autoconfig.evidence.records import MOST_TEXT, Origin, SlowestRank, StackSample
from autoconfig.evidence.scan import Passage

_SCORED = re.compile(r"Rank=(\d{1,7}) Node=\S{1,200} Score=([\d.]{1,8})")
MOST_FRAMES = 80


def scores(block: Passage, file: str) -> list[SlowestRank]:
    """The least and the largest score of NVIDIA's resiliency extension, with the ranks that have them; empty for fewer than two
    ranks."""
    kind = block.format.pattern.search(block.head.decode("utf-8", "replace"))
    scores_of = {}
    for number, raw in block.rows:
        line = raw.decode("utf-8", "replace")
        if (one := _SCORED.search(line)) is not None:
            scores_of[int(one[1])] = (float(one[2]), Origin(file=file, line=number, text=line.strip()[:MOST_TEXT]))
    if len(scores_of) < 2 or kind is None:
        return []
    low, high = min(scores_of, key=lambda rank: scores_of[rank][0]), max(scores_of, key=lambda rank: scores_of[rank][0])
    return [
        SlowestRank(
            origin=scores_of[low][1],
            figure=f"{kind['kind']}_performance",
            least=scores_of[low][0],
            least_rank=low,
            most=scores_of[high][0],
            most_rank=high,
        )
    ]


def stack(block: Passage, file: str) -> list[StackSample]:
    """The frames of a thread, the innermost first; empty where none is printed."""
    frames = [raw.decode("utf-8", "replace").strip() for _, raw in block.rows]
    origin = Origin(file=file, line=block.number, text=block.head.decode("utf-8", "replace").strip()[:MOST_TEXT])
    return [StackSample(origin=origin, frames=tuple(frames[:MOST_FRAMES]))] if frames else []
