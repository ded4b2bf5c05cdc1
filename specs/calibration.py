"""Calibration: a few factors per (GPU architecture, software generation), fitted on measured runs; a part of the scenario.

A factor is seconds over the formula's seconds: `step` of the whole step, the others of one kind of operator.
`time_model.calibration` finds the entry of a scenario and holds the one that ships.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

POOL = "*"
"""Generation name of the entry that stands in where neither a generation nor an ancestor has one."""
DEFAULTS_VERSION = "documented-defaults"
MOST = 4.0
"""Factors beyond 1/MOST to MOST are not believed: fitting stops there, and a file that holds one is refused."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Seconds over the formula's, by what they scale."""

    step: float = 1.0
    memory: float = 1.0
    """Memory-bound chains."""
    communication: float = 1.0
    attention: float = 1.0
    moe: float = 1.0
    """Grouped GEMMs, routing, permutation."""
    host: float = 1.0
    """The host's floor per layer."""


NAMES = tuple(f.name for f in fields(Factors))


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """The runs of one cluster's own that an entry was refined on, and how they scatter around it."""

    runs: int
    log_sd: float
    """Scatter of log(measured / predicted) around the refined entry."""
    degrees_of_freedom: float
    """Runs less the effective number of factors that they determined."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What was fitted for one (architecture, generation)."""

    architecture: str
    generation: str
    kind: str = "dense"
    """dense or moe: mixtures of experts have factors of their own."""
    factors: Factors
    log_sd: dict[str, float] = field(default_factory=dict)
    """Posterior standard deviation of each factor's logarithm; the prior's where the runs do not determine it."""
    determined: tuple[str, ...] = ()
    """Factors that the runs narrowed to less than half of their prior's width."""
    rows: tuple[str, ...] = ()
    """Ids of the measured runs behind it."""
    sources: tuple[str, ...] = ()
    own: OwnRuns | None = None
    """None: published runs, of clusters that are not the user's."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All entries and a version that answers name."""

    version: str
    entries: tuple[Entry, ...] = ()


DOCUMENTED_DEFAULTS = Calibration(version=DEFAULTS_VERSION)
"""No calibration: every factor is 1."""
