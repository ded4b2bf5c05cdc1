"""Calibration factors fitted on observations of many sources, parents before children."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from autoconfig.specs.scenario import NAMES, POOL, Calibration, Entry, Factors
from autoconfig.time_model.hardware.efficiency import parents

from autoconfig.calibration.calibrate import named
from autoconfig.calibration.observe import OF_THE_MIXTURE, PRIOR_LOG_SD, Observation, fit_one, observe
from validation.published import published_runs, useful_for_calibration

Key = tuple[str, str, str]
"""(architecture, generation, kind)."""


def fit(observations: Sequence[Observation], version: str) -> Calibration:
    """Entries for every (architecture, generation, dense or moe) that has runs: parents before children, dense before moe. The
    GPUs of an architecture share them: what tells them apart is their datasheet and the clock that their power allows."""
    entries: dict[Key, Entry] = {}
    for architecture in sorted({o.architecture for o in observations}):
        here = [o for o in observations if o.architecture == architecture]
        dense = [o for o in here if not o.moe]
        entries[architecture, POOL, "dense"] = _pool(dense, architecture)
        for moe, generation in sorted(
            {(o.moe, o.generation) for o in here}, key=lambda key: (key[0], len([*_lineage(key[1])]), key[1])
        ):
            mine = [o for o in here if (o.moe, o.generation) == (moe, generation)]
            pool = _pool([o for o in dense if o.generation != generation], architecture)
            prior = _prior(architecture, generation, moe, entries, pool)
            kind = "moe" if moe else "dense"
            entries[architecture, generation, kind] = fit_one(mine, prior, (architecture, generation, kind))
    return Calibration(version=version, entries=tuple(entries.values()))


def _pool(rows: Sequence[Observation], architecture: str) -> Entry:
    """What stands in for a generation without ancestors: the median step factor over the generations, each the median of its
    sources, drawn towards 1 by the prior as by one more generation."""
    medians = []
    for generation in sorted({row.generation for row in rows}):
        mine = [row for row in rows if row.generation == generation]
        by_source = [
            np.median([r.log_ratio for r in mine if r.source == source]) for source in sorted({r.source for r in mine})
        ]
        medians.append(float(np.median(by_source)))
    value = float(np.median([*medians, 0.0]))
    return Entry(
        architecture=architecture,
        generation=POOL,
        factors=Factors(step=float(np.exp(value))),
        log_sd={**PRIOR_LOG_SD, "step": PRIOR_LOG_SD["step"]},
        sources=tuple(sorted({row.source for row in rows})),
    )


def _lineage(generation: str) -> Iterator[str]:
    """Yield a generation, its parent, and so on."""
    name: str | None = generation
    while name is not None:
        yield name
        name = parents().get(name)


def _prior(architecture: str, generation: str, moe: bool, entries: Mapping[Key, Entry], pool: Entry) -> npt.NDArray[np.float64]:
    """Logarithms of the factors to start from: for moe the same generation's dense entry; the nearest ancestor; the pool."""
    keys = [(name, kind) for name in _lineage(generation) for kind in (("moe", "dense") if moe else ("dense",))]
    known = (entries.get((architecture, *key)) for key in keys if moe or key[0] != generation)
    entry = next((one for one in known if one is not None), pool)
    own = OF_THE_MIXTURE if moe and entry.kind == "dense" else ()
    return np.log([1.0 if name in own else getattr(entry.factors, name) for name in NAMES])


def published_calibration() -> Calibration:
    """Fit the published runs that `useful_for_calibration` lets in."""
    runs = [run for run in published_runs() if useful_for_calibration(run)]
    return named(fit([observe(run) for run in runs], ""), "published", runs)
