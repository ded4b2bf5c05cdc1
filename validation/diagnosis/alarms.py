"""`python -m validation.diagnosis.alarms`: published runs that their step alone would call slow, and the edges of classes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoconfig.diagnosis.expectation import edges, no_promise
from autoconfig.training.price import band_of, shipped_bands
from validation.sheets.figures import Line, share, table
from validation.sheets.training import predictions
from validation.sources import source_of

MOST_FALSE, MOST_WITHHELD = 0.03, 0.10
"""Asked for, of published dense runs: called slow, and no promise given."""
EDGE_PERCENTILE = 97


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A published run that somebody was content with, by its step alone."""

    id: str
    source: str
    gpu: str
    software: str
    level: str
    moe: bool
    log_ratio: float
    """log(measured / predicted), with constants that have not seen the publisher."""
    p95: float
    edge: float
    """Logs of the upper end of the class's band, and of what is called slow."""
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
    """Every published whole step, with its publisher left out of the constants."""
    return tuple(_alarms())


def _alarms() -> Iterator[Alarm]:
    for one in predictions("publisher"):
        if not source_of(one.source).whole_step:
            continue
        scenario = one.run.case.scenario
        p95 = band_of(one.level, shipped_bands()).p95
        yield Alarm(
            id=one.run.case.id,
            source=one.source,
            gpu=scenario.cluster.gpu.id,
            software=scenario.software.name,
            level=one.level,
            moe=scenario.model.is_moe,
            log_ratio=one.log_ratio,
            p95=math.log(p95),
            edge=math.log(max(p95, edges().get(one.level, 0.0))),
            withheld=bool(no_promise(scenario, one.level)),
        )


def share_of(values: Sequence[bool]) -> float:
    """Return the share that is true; nan of none."""
    return sum(values) / len(values) if values else math.nan


def alarm_lines() -> Iterator[Line]:
    """Yield what false alarms are held to."""
    dense = [one for one in alarms() if not one.moe]
    slow, withheld = share_of([one.slow for one in dense]), share_of([one.not_promised for one in dense])
    yield Line(name="dense runs called slow, publisher left out", rows=len(dense), reached=slow, most=MOST_FALSE)
    yield Line(name="dense runs without a promise", rows=len(dense), reached=withheld, most=MOST_WITHHELD)


def by_class() -> str:
    """Return a table of the classes."""
    rows = []
    for level in sorted({one.level for one in alarms()}):
        some = [one for one in alarms() if one.level == level]
        far = math.exp(float(np.percentile([one.log_ratio for one in some], EDGE_PERCENTILE)))
        ends = [f"{math.exp(some[0].p95):.2f}", f"{far:.3f}", f"{math.exp(some[0].edge):.2f}"]
        shares = [share(share_of([one.slow for one in some])), share(share_of([one.not_promised for one in some]))]
        rows.append((level, str(len(some)), *ends, *shares))
    return table("class | rows | end of the band | 3 % lie beyond | edge | called slow | no promise", rows)


if __name__ == "__main__":
    sys.stdout.write(by_class())
