"""`python -m validation.diagnosis.switches` writes tables/switch_pairs.csv: pairs of published rows that differ in one switch,
and how well the planner's gain of it follows the measured one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from autoconfig.diagnosis.answer import LEAST_EDGE
from autoconfig.diagnosis.gain import step_after
from validation.published import write_list
from validation.sheets.figures import Line, share, share_line, table
from validation.sheets.training import Predicted, predictions
from validation.sources import source_of

LIST = Path(__file__).parents[1] / "tables" / "switch_pairs.csv"
SWITCHES = (
    *("recompute", "sp", "precision", "attention", "attention_kernel", "norm_kernel", "transformer_impl", "loss_fusion"),
    *("optimizer_shard", "fsdp", "grad_dtype", "overlap", "cuda_graph", "moe_routing", "offload", "dispatcher"),
)
"""Columns of the tables that say what a run switches on, not how it is laid out or what it trains."""
SAME_RUN = (
    *("id", "source_ref", "notes", "status", "assumed", "peak_kind", "peak_rank", "peak_mem_gib", "full_plan", "dp"),
    *("flops_convention", "gpu_mem_gb"),
)
"""Columns that say nothing of the run's speed."""
SIGN, NEAR, WITHIN = 0.95, 0.70, 0.08
"""Asked for: pairs whose sign is right, and pairs whose gain is within so much of the measured one."""


@dataclass(frozen=True, kw_only=True)
class SwitchPair:
    """Two rows, and what the switch saves of the first one's step."""

    first: str
    second: str
    source: str
    switch: str
    change: str
    measured: float
    predicted: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the measured gain is more than two starts of one job differ by."""
        return abs(self.measured) > LEAST_EDGE

    @property
    def right_sign(self) -> bool:
        """Whether the planner says faster of what is faster."""
        return (self.measured > 0) == (self.predicted > 0)

    @property
    def near(self) -> bool:
        """Whether both gains are WITHIN of each other."""
        return abs(self.measured - self.predicted) <= WITHIN


def _cells(row: Mapping[str, str]) -> dict[str, str]:
    return {
        name: (value or "").strip() for name, value in row.items() if name not in SAME_RUN and not name.startswith("metric_")
    }


def _released(text: str) -> str:
    """A kernel's name without its release: another release of the same kernel is no switch."""
    return re.sub(r"v?[\d.]+$", "", text)


@cache
def pairs() -> tuple[SwitchPair, ...]:
    """Every pair, in the order of SWITCHES and of the tables."""
    runs = [(one, _cells(one.run.row)) for one in predictions(None) if source_of(one.source).whole_step]
    return tuple(pair for switch in SWITCHES for pair in _pairs_of(switch, runs))


def _pairs_of(switch: str, runs: list[tuple[Predicted, dict[str, str]]]) -> Iterator[SwitchPair]:
    alike: dict[tuple[tuple[str, str], ...], dict[str, Predicted]] = {}
    for one, cells in runs:
        rest = tuple(sorted((name, value) for name, value in cells.items() if name != switch))
        alike.setdefault(rest, {}).setdefault(cells.get(switch, ""), one)
    for values in alike.values():
        for (old, one), (new, other) in combinations(values.items(), 2):
            if not switch.endswith("kernel") or _released(old) != _released(new):
                yield _pair(switch, f"{old or 'none'} -> {new or 'none'}", one, other)


def _pair(switch: str, change: str, one: Predicted, other: Predicted) -> SwitchPair:
    measured = one.run.measured_s
    after = step_after(measured, {"step": one.step_seconds}, {"step": other.step_seconds}, {})
    return SwitchPair(
        first=one.run.case.id,
        second=other.run.case.id,
        source=one.source,
        switch=switch,
        change=change,
        measured=1 - other.run.measured_s / measured,
        predicted=1 - after / measured,
    )


def pair_lines() -> Iterator[Line]:
    """Yield what gains are held to."""
    yield share_line("sign of a switch's gain", [one.right_sign for one in pairs() if one.beyond_noise], SIGN)
    yield share_line("gain within 8 points", [one.near for one in pairs()], NEAR)


def listed() -> list[list[str]]:
    """Return the pairs as they stand in the list."""
    return [[one.first, one.second, one.source, one.switch, one.change] for one in pairs()]


def by_switch() -> str:
    """Return a table of the switches."""
    rows = []
    for switch in dict.fromkeys(one.switch for one in pairs()):
        some = [one for one in pairs() if one.switch == switch]
        clear = [one.right_sign for one in some if one.beyond_noise]
        near = share(sum(one.near for one in some) / len(some))
        rows.append((switch, str(len(some)), f"{sum(clear)} of {len(clear)}", near))
    return table("switch | pairs | sign right | within 8 points", rows)


if __name__ == "__main__":
    write_list(LIST, ("first", "second", "source", "switch", "change"), listed())
