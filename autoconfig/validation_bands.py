"""Bands whose quantiles come from the other sources, and how many left-out runs they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoconfig.confidence import CALIBRATED, CLASSES, MOE, ONE_NODE, RELATED, SMALL, UNFAMILIAR, Band, band_of
from autoconfig.validation_runs import Predicted, paper_of

POOLED = "pooled"
NOT_FOR_BANDS = {
    "Korthikanti2022-Table4-layer": "one layer, no step",
    "Megatron-LM-golden-values": "launch-bound CI runs of tiny models",
    "stas00-upgrade-gpus": "optimizer on the CPU",
}
"""Sources of something else than a training step that a plan is made for. Their coverage is printed beside."""
FINE_TUNING = (" SFT", " LoRA")
"""NVIDIA's fine-tuning rows: packed sequences of unknown lengths, so that the question itself is not known."""
QUANTILES = (0.05, 0.95)
RELIABLE_ROWS = 2.0
"""A source of n rows weighs n / (n + RELIABLE_ROWS): one row says little of how its source scatters."""
LARGE_RUNS = (CALIBRATED, RELATED)
EVERY_DENSE = (*LARGE_RUNS, ONE_NODE, SMALL)
EVIDENCE = {CALIBRATED: LARGE_RUNS, RELATED: LARGE_RUNS, ONE_NODE: EVERY_DENSE, SMALL: EVERY_DENSE}
"""Class -> classes whose runs make its band; a class that is not named stands alone. The two classes of large runs scatter
alike; small and short runs borrow from them, because one paper holds nearly all of their rows."""
FEW_SOURCES = (MOE, UNFAMILIAR)
"""Classes whose sources differ more than their rows: their band must also hold a source that nobody has seen. With K sources
the next one lies beyond all of them with probability 1 / (K + 1): half of that goes to each end (Lee, Barber and Willett 2023,
arXiv:2306.06342, hierarchical conformal prediction). The pooled band, which stands in where a class has no sources of its own,
is made the same way."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many runs of a class lie inside bands that know other sources only."""

    level: str
    rows: int
    sources: int
    inside: float
    """Share, every source with equal weight."""
    inside_by_row: float
    half_width: float
    """Median of half of (p95 - p5), every row with equal weight."""
    half_width_by_source: float
    """The same, every source with equal weight."""


def weighted_quantile(values: npt.ArrayLike, weights: npt.ArrayLike, share: float) -> float:
    """The value below which `share` of the weight lies; between values linear in the weight's midpoints."""
    data, weight = np.asarray(values, float), np.asarray(weights, float)
    order = np.argsort(data, kind="stable")
    data, weight = data[order], weight[order]
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    return float(np.interp(share, middle, data))


def of_training(source: str) -> bool:
    """Whether a source's runs are training steps that a band can speak about."""
    return source not in NOT_FOR_BANDS and not any(task in source for task in FINE_TUNING)


def band_from(predicted: Sequence[Predicted], few_sources: bool = False) -> Band:
    """Quantiles of measured over predicted; sources weigh by RELIABLE_ROWS. `few_sources`: all the same, with room for one that
    is unseen."""
    sources = sorted({p.source for p in predicted})
    count = {source: sum(p.source == source for p in predicted) for source in sources}
    logs = [p.log_ratio for p in predicted]
    weights = [1.0 / (count[p.source] + (0.0 if few_sources else RELIABLE_ROWS)) for p in predicted]
    beyond = 0.5 / (len(sources) + 1) if few_sources else 0.0
    shares = [min(max((q - beyond) / (1 - 2 * beyond), 0.0), 1.0) for q in QUANTILES]
    low, high = (float(np.exp(weighted_quantile(logs, weights, share))) for share in shares)
    return Band(p5=low, p95=high, rows=len(predicted), sources=tuple(sources))


def bands_of(predicted: Sequence[Predicted]) -> dict[str, Band]:
    """A band per class that has evidence, and the pooled one."""
    found = {POOLED: band_from(predicted, few_sources=True)}
    for level in CLASSES:
        rows = [p for p in predicted if p.level in EVIDENCE.get(level, (level,))]
        if rows:
            found[level] = band_from(rows, few_sources=level in FEW_SOURCES)
    return found


def coverage(predicted: Sequence[Predicted]) -> list[Coverage]:
    """Pooled first, then by class."""
    inside: dict[str, bool] = {}
    width: dict[str, float] = {}
    by_source = {source: [p for p in predicted if p.source == source] for source in sorted({p.source for p in predicted})}
    for source, rows in by_source.items():
        bands: Mapping[str, Band] = bands_of([p for p in predicted if paper_of(p.source) != paper_of(source)])
        for p in rows:
            band = band_of(p.level, bands)
            inside[_key(p)] = band.p5 <= np.exp(p.log_ratio) <= band.p95
            width[_key(p)] = (band.p95 - band.p5) / 2
    levels = [level for level in CLASSES if any(p.level == level for p in predicted)]
    return [_count(POOLED, predicted, inside, width)] + [
        _count(level, [p for p in predicted if p.level == level], inside, width) for level in levels
    ]


def _key(predicted: Predicted) -> str:
    return f"{predicted.source} {id(predicted.run)}"


def _count(level: str, rows: Sequence[Predicted], inside: Mapping[str, bool], width: Mapping[str, float]) -> Coverage:
    sources = sorted({p.source for p in rows})
    shares = [_mean(inside[_key(p)] for p in rows if p.source == source) for source in sources]
    count = {source: sum(p.source == source for p in rows) for source in sources}
    widths = [width[_key(p)] for p in rows]
    return Coverage(
        level=level,
        rows=len(rows),
        sources=len(sources),
        inside=_mean(shares),
        inside_by_row=_mean(inside[_key(p)] for p in rows),
        half_width=float(np.median(widths)),
        half_width_by_source=weighted_quantile(widths, [1 / count[p.source] for p in rows], 0.5),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([float(value) for value in values]))
