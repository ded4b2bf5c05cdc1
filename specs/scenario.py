"""Scenario: everything about a question but the plan. Memory model, time model and rules take it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
