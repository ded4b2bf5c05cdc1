"""The recomputation options that the search combines with every layout, derived from the model, never from a table."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from autoconfig.specs.layouts import Layouts, middle_layers
from autoconfig.specs.recompute import MODULES, NONE, Recompute
from autoconfig.specs.scenario import Scenario
from autoconfig.training.rules import recompute_fits_layers, recompute_rule
from autoconfig.training.space import Constraints

MODULES_TOGETHER = 2
"""Selective options name up to this many modules, besides all output-discarding ones together."""
OUTPUT_DISCARDING = ("layernorm", "mla_up_proj", "moe_act")


def recompute_options(scenario: Scenario, constraints: Constraints, max_layers: int) -> list[Recompute]:
    """none; selective by one or two modules and by all output-discarding ones; full uniform and block by layer count.

    `max_layers` is the largest number of layers on one stage. Counts run 1, 2, 3, 4, then in steps of about a quarter.
    """
    excluded = constraints.excluded.get("recompute", frozenset())
    if "recompute" in constraints.fixed:
        return [o for o in sorted(constraints.fixed["recompute"] - excluded, key=str) if recompute_rule(scenario, o) is None]
    options = [NONE]
    modules = [m for m in MODULES if recompute_rule(scenario, Recompute("selective", (m,))) is None]
    for size in range(1, MODULES_TOGETHER + 1):
        options += [Recompute("selective", chosen) for chosen in combinations(modules, size)]
    discarding = tuple(m for m in OUTPUT_DISCARDING if m in modules)
    if len(discarding) > MODULES_TOGETHER:
        options.append(Recompute("selective", discarding))
    counts = layer_counts(max_layers)
    options += [Recompute("full", (), "block", n) for n in counts if n < max_layers]
    options += [Recompute("full", (), "uniform", n) for n in counts if n & (n - 1) == 0]
    return [option for option in options if option not in excluded]


def layer_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 5, 6, 8, 10, 12, 15, ... up to `most`."""
    counts, n = [], 1
    while n <= most:
        counts.append(n)
        n = max(n + 1, n * 5 // 4)
    return counts


def legal_mask(options: list[Recompute], layouts: Layouts, scenario: Scenario) -> npt.NDArray[np.bool_]:
    """[n, R]: the option is legal for the layout (NV111).

    A block as large as the chunk is the same as uniform, so it is left out.
    """
    middle = middle_layers(scenario.model, layouts)
    last = np.where(layouts.pp > 1, layouts.last, layouts.first)
    largest = np.maximum(np.maximum(layouts.first, last), middle)
    chunk = largest // layouts.vpp
    mask = np.ones((len(layouts), len(options)), bool)
    for r, option in enumerate(options):
        if option.granularity == "full":
            mask[:, r] = recompute_fits_layers(option, chunk, chunk)
            if option.method == "block":
                mask[:, r] &= option.num_layers < chunk
    return mask
