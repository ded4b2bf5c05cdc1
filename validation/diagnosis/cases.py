"""Public cases of slow runs.

They stand in `tables/diagnosed_runs.csv`: the question as asked, the lines that the reporter posted, and what the cause was
(confirmed by a cure, a maintainer or arithmetic; inferred; open; control: nothing was wrong). No rule knows a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from autoconfig.diagnosis.answer import NO_PROMISE, NOT_ENOUGH, Diagnosis
from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of
from validation.published import published_rows
from validation.sheets.figures import Line, share_line

FIRST, AMONG, MOST_WRONG = 0.70, 0.90, 1
"""Asked for, of cases whose evidence is enough: right cause first, among three, and wrong ones first at most."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A public case beside what is said of it."""

    row: Mapping[str, str]
    found: Diagnosis

    @property
    def rules(self) -> list[str]:
        """Rules of the named causes, in their order."""
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
        """The right cause first; of controls none; where the evidence is not enough the cause, or that nothing is said and what
        would settle it."""
        if self.is_control:
            return not self.rules
        if self.rules or self.enough:
            return self.rules[:1] == [self.row["rule"]]
        withheld = self.found.verdict in (NOT_ENOUGH, NO_PROMISE)
        return withheld and any(self.row["rule"] in one.rules for one in self.found.missing)

    @property
    def wrong(self) -> bool:
        """A cause first that it was not."""
        return bool(self.rules) and self.rules[0] != self.row["rule"]


def diagnosed(row: Mapping[str, str]) -> Diagnosis:
    """The diagnosis of a row of the table, as its reporter would ask."""
    question = dict(word.split("=", 1) for word in row["question"].split())
    text = row["evidence"].replace("\\n", "\n")
    files = {"evidence.log": text} if text.strip() else {}
    return diagnose_texts(files, row["plan"] or None, question, lambda: request_of(question), CheckRequest())


@cache
def reported() -> tuple[Reported, ...]:
    """Every public case that holds a line of evidence."""
    rows = [row for row in published_rows("diagnosed_runs") if row["evidence"].strip()]
    return tuple(Reported(row=row, found=diagnosed(row)) for row in rows)


def case_lines() -> Iterator[Line]:
    """Yield what the cases are held to."""
    controls = [one.right for one in reported() if one.is_control]
    enough, rest = ([one for one in reported() if one.enough == said and not one.is_control] for said in (True, False))
    yield share_line("right cause first", [one.right for one in enough], FIRST)
    yield share_line("right cause among three", [one.row["rule"] in one.rules[:3] for one in enough], AMONG)
    wrong = sum(one.wrong for one in enough)
    yield Line(name="wrong cause first", rows=len(enough), reached=float(wrong), most=MOST_WRONG)
    yield share_line("controls without a cause", controls, 1.0)
    yield share_line("not said, and what is missing said", [one.right for one in rest], 1.0)
