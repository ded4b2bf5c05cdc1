"""Which of many layouts take the same memory, so that formulas run once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.layouts import Layouts
from autoconfig.specs.plan import DEGREES, ENDS, SHARDING
from autoconfig.specs.scenario import Scenario

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STATE_COLUMNS = (*(key for key in DEGREES if key not in ("cp", "dp", "mbs")), *ENDS, *SHARDING)
"""Columns of layouts that weights, gradients and optimizer state depend on, beside dp x cp: many rows share them."""


def alike_in_state(layouts: Layouts) -> tuple[Ints, Ints]:
    """(first row of each group with the same weights, gradients and optimizer state on every stage, group of each row)."""
    return layouts.unique(*STATE_COLUMNS, also=[layouts.dp * layouts.cp])


def micro_batch_columns(scenario: Scenario, layouts: Layouts) -> list[npt.NDArray[Any]]:
    """What a layer's memory tells apart of micro-batch b and context parallelism c: the tokens s b / c, and whether b and c are
    above 1; b and c themselves where attention keeps masks, angles or gathered keys of a sequence (`activations.py`)."""
    memory = scenario.software.memory
    by_token = memory.attention_kernel == "flash" and memory.cp_comm_type == "p2p"
    by_token &= not (memory.torch_attention or memory.rope_copy_bytes)
    degrees = [np.greater(column, 1) if by_token else column for column in (layouts.mbs, layouts.cp)]
    return [layouts.mbs / layouts.cp, *degrees]


def alike_in_memory(scenario: Scenario, layouts: Layouts, limit: Floats) -> tuple[Ints, Ints]:
    """(first row of each group that holds the same bytes on every stage and has the same limit [n], group of each row): layouts
    that differ in b and c alone, b / c being the same, where no layer tells them apart."""
    also = [layouts.dp * layouts.cp, layouts.num_microbatches, limit, *micro_batch_columns(scenario, layouts)]
    return layouts.unique(*STATE_COLUMNS, "sp", also=also)
