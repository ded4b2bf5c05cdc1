"""`python -m validation.diagnosis.sheet`: public cases of slow runs, false alarms on published runs, gains and calibration.

Cases stand in `tables/diagnosed_runs.csv`: the question as asked, the lines that the reporter posted, and what the cause was
(confirmed by a cure, a maintainer or arithmetic; inferred; open; control: nothing was wrong). No rule knows a case.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from autoconfig.diagnosis.answer import Diagnosis
from autoconfig.diagnosis.expectation import no_promise
from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.price import CALIBRATED, ONE_NODE, RELATED, SMALL, band_of, confidence_class, shipped_bands
from autoconfig.training.question import request_of
from validation.published import published_rows
from validation.sheets.figures import Line, share, table
from validation.sheets.training import predictions
from validation.sources import source_of

FIRST, AMONG, MOST_WRONG = 0.70, 0.90, 1
"""Asked for, of cases whose evidence is enough: right cause first, among three, and wrong ones first at most."""
MOST_FALSE, MOST_WITHHELD = 0.03, 0.10
"""Asked for, of published dense runs: called slow, and no promise given."""
DENSE = (CALIBRATED, RELATED, ONE_NODE, SMALL)


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A public case beside what is said of it."""

    row: Mapping[str, str]
    found: Diagnosis

    @property
    def rules(self) -> list[str]:
        """Of the named causes, in their order."""
        return [one.rule for one in self.found.causes]

    @property
    def is_control(self) -> bool:
        """Nothing was wrong."""
        return self.row["cause_status"] == "control"

    @property
    def enough(self) -> bool:
        """Whether the posted evidence settles the cause."""
        return self.row["evidence_enough"] == "yes"

    @property
    def right(self) -> bool:
        """The right cause first; of controls, and where the evidence is not enough, none that is wrong."""
        if self.is_control:
            return not self.rules
        return self.rules[:1] == [self.row["rule"]] if self.enough else not self.wrong

    @property
    def wrong(self) -> bool:
        """A cause first that it was not."""
        return bool(self.rules) and self.rules[0] != self.row["rule"]


def diagnosed(row: Mapping[str, str]) -> Diagnosis:
    """The diagnosis of a row of the table, as its reporter would ask."""
    given = dict(word.split("=", 1) for word in row["question"].split())
    text = row["evidence"].replace("\\n", "\n")
    files = {"evidence.log": text} if text.strip() else {}
    return diagnose_texts(files, row["plan"] or None, given, lambda: request_of(given), CheckRequest())


@cache
def reported() -> tuple[Reported, ...]:
    """Every public case that holds a line of evidence."""
    rows = [row for row in published_rows("diagnosed_runs") if row["evidence"].strip()]
    return tuple(Reported(row=row, found=diagnosed(row)) for row in rows)


def case_lines() -> Iterator[Line]:
    """Yield what the cases are held to."""
    faults = [one for one in reported() if one.enough and not one.is_control]
    among = [one for one in faults if one.row["rule"] in one.rules[:3]]
    yield Line(name="right cause first", rows=len(faults), reached=_share([one.right for one in faults]), least=FIRST)
    yield Line(name="right cause among three", rows=len(faults), reached=len(among) / len(faults), least=AMONG)
    wrong = sum(one.wrong for one in faults)
    yield Line(name="wrong cause first", rows=len(faults), reached=float(wrong), most=MOST_WRONG)
    controls = [one for one in reported() if one.is_control]
    yield Line(name="controls without a cause", rows=len(controls), reached=_share([one.right for one in controls]), least=1.0)
    rest = [one for one in reported() if not one.enough and not one.is_control]
    silent = _share([one.right for one in rest])
    yield Line(name="no wrong cause where evidence is short", rows=len(rest), reached=silent, least=1.0)


def _share(values: list[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A published run that somebody was content with, by its step alone."""

    id: str
    source: str
    level: str
    log_ratio: float
    """log(measured / predicted), with constants that have not seen the publisher."""
    edge: float
    """log of the upper end of its class."""
    withheld: bool
    """Nothing is promised of its class."""

    @property
    def above(self) -> bool:
        """Beyond the edge."""
        return self.log_ratio > self.edge


@cache
def alarms() -> tuple[Alarm, ...]:
    """Every published whole step of a dense class, with its publisher left out of the constants."""
    found = []
    for one in predictions("publisher"):
        scenario = one.run.case.scenario
        if scenario.model.is_moe or not source_of(one.source).whole_step:
            continue
        level = confidence_class(scenario, one.run.case.plan.cp)
        edge = math.log(band_of(level, shipped_bands()).p95)
        withheld = bool(no_promise(scenario, level))
        found.append(
            Alarm(id=one.run.case.id, source=one.source, level=level, log_ratio=one.log_ratio, edge=edge, withheld=withheld)
        )
    return tuple(found)


def alarm_lines() -> Iterator[Line]:
    """Yield what false alarms are held to."""
    dense = [one for one in alarms() if one.level in DENSE]
    slow = _share([one.above and not one.withheld for one in dense])
    yield Line(name="dense runs called slow, publisher left out", rows=len(dense), reached=slow, most=MOST_FALSE)
    withheld = _share([one.above and one.withheld for one in dense])
    yield Line(name="dense runs without a promise", rows=len(dense), reached=withheld, most=MOST_WITHHELD)


def page() -> str:
    """Return the figures as Markdown."""
    rows = [
        (one.row["id"], one.row["rule"] or "-", one.row["cause_status"], one.row["evidence_enough"], one.found.verdict,
         " ".join(one.rules) or "-", "right" if one.right else "wrong" if one.wrong else "none")
        for one in reported()
    ]  # fmt: skip
    lines = [(line.name, str(line.rows), _reached(line), _asked(line)) for line in (*case_lines(), *alarm_lines())]
    by_class = []
    for level in sorted({one.level for one in alarms()}):
        some = [one for one in alarms() if one.level == level]
        slow, withheld = ([one.above and one.withheld is kind for one in some] for kind in (False, True))
        by_class.append((level, str(len(some)), f"{math.exp(some[0].edge):.2f}", share(_share(slow)), share(_share(withheld))))
    return "\n".join(
        [
            table("case | cause | status | enough | verdict | named | is", rows),
            table("figure | rows | reached | asked", lines),
            table("class of dense runs | rows | edge | called slow | no promise", by_class),
        ]
    )


def _reached(line: Line) -> str:
    return f"{line.reached:.0f}" if line.most == MOST_WRONG else share(line.reached)


def _asked(line: Line) -> str:
    bound = f"at most {line.most}" if line.most is not None else f"at least {line.least}"
    return bound if line.holds else f"{bound}: missed"


if __name__ == "__main__":
    sys.stdout.write(page())
