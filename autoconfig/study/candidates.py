"""Candidates: the rows that a study may measure, each named by its parameters, which Optuna and its dashboard show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Value = str | int | float
Params = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a study may choose from: n rows, each named by its parameters."""

    params: tuple[Params, ...]
    """What distinguishes the rows; no two are the same."""

    def __len__(self) -> int:
        return len(self.params)

    @cached_property
    def _index(self) -> dict[tuple[tuple[str, Value], ...], int]:
        return {_key(params): row for row, params in enumerate(self.params)}

    @cached_property
    def choices(self) -> dict[str, tuple[Value, ...]]:
        """Parameter -> every value that occurs, sorted: the categorical distributions of the study."""
        found = {name: {params[name] for params in self.params} for name in self.params[0]}
        return {name: tuple(sorted(values, key=lambda v: (isinstance(v, str), v))) for name, values in found.items()}

    def row_of(self, params: Params) -> int | None:
        """The candidate with these parameters; None where there is none."""
        return self._index.get(_key(params))


def _key(params: Params) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))
