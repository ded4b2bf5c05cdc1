"""Scenario: everything about a question but the plan. Memory model, time model and rules take it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.specs.calibration import DOCUMENTED_DEFAULTS, Calibration
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.layouts import Layouts, layouts_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.software.software import SoftwareStack


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is trained, on what, with which software; plans differ inside of it."""

    model: ModelSpec
    cluster: ClusterSpec
    numerics: Numerics
    software: SoftwareStack
    workload: Workload
    calibration: Calibration = field(default=DOCUMENTED_DEFAULTS, hash=False)
    """What measured runs say of the formulas; none unless given."""

    def layouts(self, plans: Sequence[TrainPlan]) -> Layouts:
        """The plans as columns, of the scenario's size. Raises PlanError where stages or micro-batches are not whole."""
        return layouts_of(plans, self.model, self.workload.global_batch_size, self.cluster.num_gpus)

    def on(self, **cluster: Any) -> Scenario:
        """The same on another cluster: `num_gpus` and other fields of ClusterSpec. Raises InputError as ClusterSpec does."""
        return replace(self, cluster=replace(self.cluster, **cluster))

    def with_batch(self, global_batch_size: int) -> Scenario:
        """The same with another global batch. Raises InputError as Workload does."""
        return replace(self, workload=replace(self.workload, global_batch_size=global_batch_size))
