"""`python -m validation.sheets.strangers`: runs of publishers that nothing here was fitted to, asked as a user's table is.

Rows of `tables/strangers_training.csv` as their collector wrote them down, and once more with what their sources state about
settings (`tables/strangers_facts.csv`: a row, a column, its value and where it stands). The constants are the shipped ones, of
NVIDIA's own rows those that have seen no row of NVIDIA's. Says errors by publisher, model and GPU, the share of steps inside
the 90 % band and its half-width, errors of the peak, and how often `fits` is right of whole plans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from autoconfig.runs.predict import Prediction, predict_rows
from autoconfig.runs.table import cell, number
from validation.published import published_rows
from validation.sheets.figures import Figures, Line, figures_of, share, table
from validation.sheets.training import Constants

MOST_MEAN, MOST_MEDIAN, LEAST_FITS = 0.12, 0.08, 0.95
"""Asked for: mean and median error of the step, and how often a whole plan's fit is right."""
INSIDE = (0.85, 0.95)
"""Asked for: share of the steps inside their 90 % band."""
OF_NVIDIA = "Megatron-Bridge"
"""How the sources of NVIDIA's own runs begin; MLPerf's are of its partners as well as its own."""
A_TABLE_OF_NVIDIA = "NVIDIA 2026 H100 dense TP"
"""A source of `sources.toml` whose publisher is NVIDIA."""
RAN = ("ran", "")


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Every row with its prediction."""

    rows: tuple[Mapping[str, str], ...]
    predictions: tuple[Prediction, ...]

    def steps(self) -> list[tuple[str, str, float, bool]]:
        """Return (group, id, predicted / measured step - 1, inside the band) of each row with a step time."""
        found = []
        for row, p in zip(self.rows, self.predictions, strict=True):
            measured = number(row, "metric_step_s")
            if measured and p.step_seconds is not None and p.confidence is not None:
                inside = p.confidence.step_seconds_p5 <= measured <= p.confidence.step_seconds_p95
                group = f"{cell(row, 'source')}, {cell(row, 'model')}, {cell(row, 'gpu')}"
                found.append((group, cell(row, "id"), p.step_seconds / measured - 1, inside))
        return found

    def peaks(self) -> list[tuple[str, float]]:
        """Return (id, predicted / measured peak - 1) of each row with a measured peak."""
        pairs = zip(self.rows, self.predictions, strict=True)
        known = [(cell(row, "id"), p.peak_gib, number(row, "peak_mem_gib")) for row, p in pairs]
        return [(id, peak / measured - 1) for id, peak, measured in known if peak is not None and measured]

    def verdicts(self) -> list[bool]:
        """Return whether `fits` is right, of each row with a whole plan."""
        pairs = zip(self.rows, self.predictions, strict=True)
        whole = [(row, p) for row, p in pairs if cell(row, "full_plan") == "1" and p.fits is not None]
        return [p.fits == (bool(number(row, "metric_step_s")) and cell(row, "status") in RAN) for row, p in whole]

    def half_widths(self) -> list[float]:
        """Return half the 90 % band over the prediction, of each row with one."""
        bands = [(p.confidence, p.step_seconds) for p in self.predictions if p.confidence is not None and p.step_seconds]
        return [(band.step_seconds_p95 - band.step_seconds_p5) / 2 / step for band, step in bands]

    @property
    def unread(self) -> list[str]:
        """Id and reason of each row without a prediction."""
        return [f"{p.id}: {p.note}" for p in self.predictions if p.step_seconds is None]


@cache
def strangers(*, facts: bool) -> Sheet:
    """Predict every row, with what its source states of its settings or as it was collected."""
    stated: dict[str, dict[str, str]] = {}
    for fact in published_rows("strangers_facts") if facts else ():
        stated.setdefault(fact["id"], {})[fact["column"]] = fact["value"]
    rows = [{**row, **stated.get(row["id"], {})} for row in published_rows("strangers_training")]
    ours = [cell(row, "source").startswith(OF_NVIDIA) for row in rows]
    unseen = Constants("publisher").of(A_TABLE_OF_NVIDIA, "")
    found: dict[int, Prediction] = {}
    for is_own, constants in ((False, None), (True, unseen)):
        mine = [row for row, own in zip(rows, ours, strict=True) if own == is_own]
        found |= {id(row): p for row, p in zip(mine, predict_rows(mine, constants), strict=True)}
    return Sheet(rows=tuple(rows), predictions=tuple(found[id(row)] for row in rows))


def lines(sheet: Sheet, what: str) -> Iterator[Line]:
    """Yield what is held to."""
    steps = sheet.steps()
    figures = figures_of([(id, error) for _, id, error, _ in steps])
    yield Line(name=f"{what}: mean error of the step", rows=figures.rows, reached=figures.mean, most=MOST_MEAN)
    yield Line(name=f"{what}: median error of the step", rows=figures.rows, reached=figures.median, most=MOST_MEDIAN)
    inside = float(np.mean([inside for *_, inside in steps]))
    yield Line(name=f"{what}: inside the 90 % band", rows=len(steps), reached=inside, least=INSIDE[0])
    right = sheet.verdicts()
    yield Line(name=f"{what}: fit right, whole plans", rows=len(right), reached=float(np.mean(right)), least=LEAST_FITS)


def groups(sheet: Sheet) -> list[tuple[str, Figures, float]]:
    """Return the figures and the share inside the band, by publisher, model and GPU."""
    members: dict[str, list[tuple[str, float, bool]]] = {}
    for group, id, error, inside in sheet.steps():
        members.setdefault(group, []).append((id, error, inside))
    return [
        (name, figures_of([(id, error) for id, error, _ in some]), float(np.mean([inside for *_, inside in some])))
        for name, some in sorted(members.items())
    ]


STRANGERS = {"strangers, as their sources state their settings": True, "strangers, as collected": False}
"""What is said of the sheet -> whether the facts of the sources are in it."""


def page() -> str:
    """Return the figures as Markdown."""
    parts = []
    for what, facts in STRANGERS.items():
        sheet = strangers(facts=facts)
        rows = [
            (name, str(f.rows), share(f.mean), share(f.median), share(f.bias, "+.1%"), share(inside, ".0%"))
            for name, f, inside in groups(sheet)
        ]
        parts.append(table(f"{what} | rows | mean | median | bias | inside", rows))
        bars = [(line.name, str(line.rows), share(line.reached), _bar(line)) for line in lines(sheet, what)]
        parts.append(table("figure | rows | reached | asked", bars))
        peaks = figures_of(sheet.peaks())
        parts.append(
            f"Peak: {peaks.rows} rows, mean {share(peaks.mean)}, median {share(peaks.median)}; half-width of the bands "
        )
        parts.append(f"{share(float(np.median(sheet.half_widths())))} in the middle.\n")
        parts += [f"- {line}\n" for line in sheet.unread]
    return "\n".join(parts)


def _bar(line: Line) -> str:
    asked = f"at most {share(line.most)}" if line.most is not None else f"at least {share(line.least)}"
    return asked if line.holds else f"{asked}: missed"


if __name__ == "__main__":
    sys.stdout.write(page())
