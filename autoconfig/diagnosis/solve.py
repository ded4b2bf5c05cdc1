"""Which value of one thing (the rate of a link, the load of the busiest expert, the clock) explains a measured step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from autoconfig.diagnosis.expectation import expected_seconds
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

CLOSE = 1e-3
"""Share of the step at which a search ends."""
MOST_HALVINGS = 40
LEAST_RATE = 2.5e7
"""Bytes per second below which no link of a cluster runs (a fifth of gigabit Ethernet)."""
MOST_IMBALANCE = 32.0
LEAST_CLOCK = 0.1
"""Share of the full clock; below it a GPU is idle."""


@dataclass(frozen=True, kw_only=True)
class LinkClass:
    """A kind of link, by the rate that collectives reach on it: bytes per second of one GPU, one direction."""

    name: str
    low: float
    high: float


LINK_CLASSES = (
    LinkClass(name="gigabit Ethernet", low=0.05e9, high=0.16e9),
    LinkClass(name="10 Gb/s Ethernet", low=0.5e9, high=1.4e9),
    LinkClass(name="25 Gb/s Ethernet, or a 100 Gb/s card that four GPUs share", low=1.8e9, high=3.3e9),
    LinkClass(name="50 Gb/s Ethernet, or a 200 Gb/s card that four GPUs share", low=4.5e9, high=6.5e9),
    LinkClass(name="PCIe 3 x16, or one 100 Gb/s card", low=8.0e9, high=13.5e9),
    LinkClass(name="PCIe 4 x16, or one 200 Gb/s card", low=17.0e9, high=27.0e9),
    LinkClass(name="PCIe 5 x16, or one 400 Gb/s card", low=35.0e9, high=55.0e9),
)
"""Rates of the standards (IEEE 802.3; PCIe 3, 4 and 5 with 16 lanes: 15.8, 31.5 and 63 GB/s) at the 60 to 90 % that NCCL's
collectives reach of them."""


def link_class(rate: float) -> str:
    """The kind of link that runs at this rate (bytes per second and GPU); empty between two kinds."""
    return next((one.name for one in LINK_CLASSES if one.low <= rate <= one.high), "")


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The value of one thing that explains a step."""

    what: str
    value: float
    expected: float
    """The value that the plan was priced with."""
    scenario: Scenario
    """The scenario with this value."""

    @property
    def ratio(self) -> float:
        """Value over the expected one."""
        return self.value / self.expected


def with_link(scenario: Scenario, rate: float) -> Scenario:
    """The scenario with links inside a node at this rate; the network is as fast as that at most."""
    return scenario.on(link_bytes_per_s=rate, nic_bytes_per_s=min(rate, scenario.cluster.nic_bytes_per_s))


def with_network(scenario: Scenario, rate: float) -> Scenario:
    """The scenario with a network of this rate per GPU."""
    return scenario.on(nic_bytes_per_s=rate)


def with_imbalance(scenario: Scenario, load: float) -> Scenario:
    """The scenario whose busiest rank of experts has this multiple of its share."""
    return replace(scenario, numerics=replace(scenario.numerics, moe_imbalance=load))


def with_clock(scenario: Scenario, share: float) -> Scenario:
    """The scenario whose GEMMs and attention run at this share of the clock (memory has a clock of its own)."""
    gpu = scenario.cluster.gpu
    slower = {name: rate * share for name, rate in gpu.flops_per_s.items()}
    return scenario.on(gpu=replace(gpu, flops_per_s=slower))


def slow_network(scenario: Scenario, plan: TrainPlan, measured: float) -> Solved | None:
    """The rate of the network at which the step takes as long as measured; None where no rate explains it, or the run has one
    node."""
    cluster = scenario.cluster
    if cluster.num_gpus <= cluster.link_domain_size:
        return None
    return _solved("network", with_network, scenario, plan, measured, cluster.nic_bytes_per_s, LEAST_RATE)


def slow_link(scenario: Scenario, plan: TrainPlan, measured: float) -> Solved | None:
    """The rate of the links inside a node that explains the step; None where none does, or there is one GPU."""
    cluster = scenario.cluster
    if cluster.num_gpus == 1:
        return None
    return _solved("links", with_link, scenario, plan, measured, cluster.link_bytes_per_s, LEAST_RATE)


def imbalance(scenario: Scenario, plan: TrainPlan, measured: float) -> Solved | None:
    """The load of the busiest rank of experts that explains the step; None for dense models, experts on one rank, or experts
    that drop tokens."""
    numerics = scenario.numerics
    if not scenario.model.is_moe or plan.ep == 1 or numerics.moe_capacity_factor is not None:
        return None
    start = numerics.moe_imbalance or scenario.software.time.moe_imbalance
    return _solved("load of the busiest rank of experts", with_imbalance, scenario, plan, measured, start, MOST_IMBALANCE)


def slow_clock(scenario: Scenario, plan: TrainPlan, measured: float) -> Solved | None:
    """The share of the full clock that explains the step; None where none does."""
    return _solved("clock", with_clock, scenario, plan, measured, 1.0, LEAST_CLOCK)


def _solved(
    what: str,
    change: Callable[[Scenario, float], Scenario],
    scenario: Scenario,
    plan: TrainPlan,
    measured: float,
    start: float,
    end: float,
) -> Solved | None:
    """The value between `start` and `end` (either may be the larger) that makes the step as long as measured, by halving its
    logarithm; the step must grow from `start` to `end`."""

    def seconds(value: float) -> float:
        return expected_seconds(change(scenario, value), plan)

    try:
        if not seconds(start) < measured <= seconds(end):
            return None
        low, high = math.log(start), math.log(end)
        for _ in range(MOST_HALVINGS):
            middle = (low + high) / 2
            found = seconds(math.exp(middle))
            if abs(found / measured - 1) < CLOSE:
                break
            low, high = (middle, high) if found < measured else (low, middle)
    except InputError:  # a rule between model and hardware that the changed scenario breaks
        return None
    value = math.exp(middle)
    return Solved(what=what, value=value, expected=start, scenario=change(scenario, value))
