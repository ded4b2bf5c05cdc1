"""Checkpoints and failures: bytes and seconds of a checkpoint, the best interval, and the share of time that trains.

With the seconds C that a checkpoint stops training and the mean time M that the whole job runs between two failures, a
checkpoint every T seconds costs the share C / T for writing and T / (2 M) for work done again. The sum is least at
T = sqrt(2 C M) (Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, section 2). A failure
stops the job for R seconds more, so that

    goodput = (1 - C / T - T / (2 M)) x M / (M + R)

Goodput is tokens per second of wall time over those of undisturbed training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoconfig.memory_model.state import lora_parameters, optimizer_bytes_per_parameter
from autoconfig.planning.request_fields import (
    DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE,
    DEFAULT_MTBF_HOURS_PER_GPU,
    DEFAULT_REPAIR_HOURS,
    DEFAULT_RESTART_SECONDS,
)
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How often things break, and how long it takes to be back."""

    mtbf_hours_per_gpu: float = DEFAULT_MTBF_HOURS_PER_GPU
    """Mean time between failures of one GPU with its share of the node, hours."""
    checkpoint_gb_per_s_per_node: float = DEFAULT_CHECKPOINT_GB_PER_S_PER_NODE
    """Bandwidth at which one node writes a checkpoint, GB/s."""
    restart_seconds: float = DEFAULT_RESTART_SECONDS
    repair_hours: float = DEFAULT_REPAIR_HOURS
    spares: int | None = None
    """GPUs kept idle to replace broken ones at once. None: a replacement is always at hand."""

    def __post_init__(self) -> None:
        for name, most in (("mtbf_hours_per_gpu", 1e9), ("checkpoint_gb_per_s_per_node", 1e6)):
            _check(name, getattr(self, name), most, above=True)
        for name, most in (("restart_seconds", 1e7), ("repair_hours", 1e5)):
            _check(name, getattr(self, name), most, above=False)
        if self.spares is not None and self.spares < 0:
            raise InputError(f"{self.spares} spares: give a number of GPUs, 0 or more")


def _check(name: str, value: float, most: float, *, above: bool) -> None:
    if not (math.isfinite(value) and (value > 0 if above else value >= 0) and value <= most):
        low = "above" if above else "from"
        raise InputError(f"{name.replace('_', ' ')} {value!r}: give a number {low} 0, at most {most:g}")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """What failures cost one job."""

    checkpoint_bytes: float
    checkpoint_seconds: float
    checkpoint_interval_seconds: float
    job_mtbf_seconds: float
    share: float
    """Time that trains over all time; 0 where failures leave none."""


def checkpoint_bytes(scenario: Scenario) -> float:
    """Weights and optimizer state of what is trained, the whole model or its adapters: what must be read to go on. Gradients
    and frozen weights are not kept.

    16-bit weights 2 bytes, and per parameter the master weight and both moments (memory_model.state).
    """
    model, numerics = scenario.model, scenario.numerics
    trained = float(total_parameters(model))
    if numerics.peft == "lora":
        trained = sum(float(lora_parameters(model, numerics, kind, 1)) for kind in model.layer_kinds)
    return trained * (numerics.activation_bytes + optimizer_bytes_per_parameter(numerics))


def goodput_of(scenario: Scenario, reliability: Reliability) -> Goodput:
    """Goodput of a job on the scenario's GPUs. Every node writes, and after a failure reads, its share of the checkpoint."""
    cluster = scenario.cluster
    nodes = math.ceil(cluster.num_gpus / cluster.gpus_per_node)
    mtbf = reliability.mtbf_hours_per_gpu * 3600 / cluster.num_gpus
    size = checkpoint_bytes(scenario)
    write = size / (reliability.checkpoint_gb_per_s_per_node * 1e9 * nodes)
    interval = math.sqrt(2 * write * mtbf)
    stopped = reliability.restart_seconds + write + waiting_seconds(reliability, cluster.gpus_per_node, mtbf)
    training = max(0.0, 1.0 - write / interval - interval / (2 * mtbf))
    return Goodput(
        checkpoint_bytes=size,
        checkpoint_seconds=write,
        checkpoint_interval_seconds=interval,
        job_mtbf_seconds=mtbf,
        share=training * mtbf / (mtbf + stopped),
    )


def waiting_seconds(reliability: Reliability, gpus_per_node: int, mtbf_seconds: float) -> float:
    """Mean seconds that a failure waits for a repair because no spare node is left.

    Nodes in repair are a Poisson number with mean repair time / MTBF; where they have taken all S spare nodes, the job waits
    for the first of S + 1 repairs (exponential), a repair time / (S + 1).
    """
    if reliability.spares is None:
        return 0.0
    spare_nodes, repair = reliability.spares // gpus_per_node, reliability.repair_hours * 3600
    mean = repair / mtbf_seconds
    term, some_left = math.exp(-mean), 0.0
    for count in range(spare_nodes):
        some_left += term
        term *= mean / (count + 1)
    return max(0.0, 1.0 - some_left) * repair / (spare_nodes + 1)
