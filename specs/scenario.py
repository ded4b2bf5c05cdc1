"""Scenario: everything about a question but the plan. Memory model, time model and rules take it whole."""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.software.software import SoftwareStack


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is trained, on what, with which software; plans differ inside of it."""

    model: ModelSpec
    cluster: ClusterSpec
    numerics: Numerics
    software: SoftwareStack
    workload: Workload
