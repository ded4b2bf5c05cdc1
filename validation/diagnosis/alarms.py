"""`python -m validation.diagnosis.alarms`: published runs that their step alone would call slow, and the edges of classes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autoconfig.diagnosis.expectation import edges, no_promise
from autoconfig.training.confidence import band_of, shipped_bands
from validation.sheets.figures import Line, share, share_line, table
from validation.sheets.training import predictions, publisher_of
from validation.sources import source_of

MOST_FALSE, MOST_WITHHELD = 0.03, 0.10
"""Asked for, of published dense runs: called slow, and no promise given."""
EDGE_PERCENTILE = 97
LEAST_ROWS = 30
"""Of other publishers; fewer have no 97th percentile, and the band's end is the edge."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A published run that somebody was content with, by its step alone."""

    source: str
    gpu: str
    software: str
    level: str
    moe: bool
    log_ratio: float
    """log(measured / predicted), with constants that have not seen the publisher."""
    p95: float
    """Log of the upper end of the class's band."""
    edge: float
    """Log of what is called slow, from runs of other publishers (`left_out_edge`)."""
    withheld: bool
    """Nothing is promised of its class."""

    @property
    def slow(self) -> bool:
        """Whether it is called slow."""
        return self.log_ratio > self.edge and not self.withheld

    @property
    def not_promised(self) -> bool:
        """Whether it is above its band, and not called slow."""
        return self.log_ratio > self.p95 and not self.slow


@cache
def alarms() -> tuple[Alarm, ...]:
    """Every published whole step, with its publisher left out of the constants and of the edge that it is judged by."""
    seen = tuple(_alarms())
    edges_of = {
        (level, publisher): left_out_edge(seen, level, publisher)
        for level, publisher in {(one.level, publisher_of(one.source)) for one in seen}
    }
    return tuple(replace(one, edge=edges_of[one.level, publisher_of(one.source)]) for one in seen)


def left_out_edge(seen: Sequence[Alarm], level: str, publisher: str) -> float:
    """Log of what EDGE_PERCENTILE of the class's runs of other publishers do not exceed, at least the band's end, which alone
    counts where they have fewer than LEAST_ROWS."""
    others = [one.log_ratio for one in seen if one.level == level and publisher_of(one.source) != publisher]
    p95 = next(one.p95 for one in seen if one.level == level)
    return max(p95, float(np.percentile(others, EDGE_PERCENTILE))) if len(others) >= LEAST_ROWS else p95


def _alarms() -> Iterator[Alarm]:
    for one in predictions("publisher"):
        if not source_of(one.source).whole_step:
            continue
        scenario = one.run.case.scenario
        p95 = band_of(one.level, shipped_bands()).p95
        yield Alarm(
            source=one.source,
            gpu=scenario.cluster.gpu.id,
            software=scenario.software.name,
            level=one.level,
            moe=scenario.model.is_moe,
            log_ratio=one.log_ratio,
            p95=math.log(p95),
            edge=math.log(p95),
            withheld=bool(no_promise(scenario, one.level)),
        )


def share_of(values: Sequence[bool]) -> float:
    """Return the share that is true; nan of none."""
    return sum(values) / len(values) if values else math.nan


def alarm_lines() -> Iterator[Line]:
    """Yield what false alarms are held to."""
    dense = [one for one in alarms() if not one.moe]
    yield share_line("dense runs called slow, publisher left out", [one.slow for one in dense], most=MOST_FALSE)
    yield share_line("dense runs without a promise", [one.not_promised for one in dense], most=MOST_WITHHELD)


def publishers_alike() -> str:
    """Return in a sentence what of dense runs is called slow where each publisher counts once, whatever it has published."""
    by_publisher: dict[str, list[bool]] = {}
    for one in alarms():
        if not one.moe:
            by_publisher.setdefault(publisher_of(one.source), []).append(one.slow)
    shares = [share_of(slow) for slow in by_publisher.values()]
    mean = share(sum(shares) / len(shares))
    return f"Of dense runs {mean} are called slow where each of {len(shares)} publishers counts once.\n"


def by_class() -> str:
    """Return a table of the classes: the edge that is shipped, and those that each publisher's runs are judged by here."""
    rows = []
    for level in sorted({one.level for one in alarms()}):
        some = [one for one in alarms() if one.level == level]
        far = math.exp(float(np.percentile([one.log_ratio for one in some], EDGE_PERCENTILE)))
        p95 = math.exp(some[0].p95)
        ends = [f"{p95:.2f}", f"{far:.3f}", f"{max(p95, edges().get(level, 0.0)):.2f}"]
        judged = sorted({f"{math.exp(one.edge):.2f}" for one in some})
        ends.append(judged[0] if len(judged) == 1 else f"{judged[0]} to {judged[-1]}")
        shares = [share(share_of([one.slow for one in some])), share(share_of([one.not_promised for one in some]))]
        rows.append((level, str(len(some)), *ends, *shares))
    return table(
        "class | rows | end of the band | 3 % lie beyond | edge | edge of other publishers | called slow | no promise", rows
    )


if __name__ == "__main__":
    sys.stdout.write(by_class())
