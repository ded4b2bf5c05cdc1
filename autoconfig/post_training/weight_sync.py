"""Seconds in which new weights reach the engines, by method (data/post_training.toml, `[weight_sync]`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from autoconfig.post_training.frameworks import section
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import total_parameters


@dataclass(frozen=True, kw_only=True)
class SyncMethod:
    """Coefficients of one method; none falls with the number of replicas, as each handles all weights."""

    latency_s: float = 0.0
    seconds_per_gb: float = 0.0
    """Of weights as they are sent: gathered, copied or broadcast."""
    seconds_per_tensor: float = 0.0
    """Of each matrix or vector of a checkpoint: gathered, named and handed over on its own."""
    seconds_per_own_gb: float = 0.0
    """Of the part of a rank of tensor and pipeline parallelism, which it converts."""
    seconds_per_engine_gb: float = 0.0
    """Of what one GPU of an engine holds, which it is handed tensor by tensor."""
    host_seconds_per_gb: float = 0.0
    """More where sharded parameters wait on the host."""
    as_served: bool = False
    """Weights are sent in the engine's precision, in 16 bits otherwise."""


@cache
def load_method(name: str) -> SyncMethod:
    """Raises InputError for a method that is not known."""
    methods = section("weight_sync")
    if name not in methods:
        raise InputError(f"weight synchronisation {name[:40]!r}: use {', '.join(methods)}")
    return SyncMethod(**{key: value for key, value in methods[name].items() if key != "source"})


def weight_gigabytes(job: PostTrainingJob) -> float:
    """16-bit weights of the policy, 2 P bytes."""
    return 2.0 * float(total_parameters(job.policy)) / 1e9


def checkpoint_tensors(model: ModelSpec) -> int:
    """Matrices and vectors of the model's checkpoint as engines load it, without biases: four of attention and two norms a
    layer, three of an MLP and of each expert with its router, embedding, last norm and output layer."""
    experts = model.num_moe_experts or 0
    per_layer = 6 + (3 * experts + 1 if experts else 3)
    return model.num_layers * per_layer + 3


def method_of(job: PostTrainingJob, placement: Placement) -> str:
    """The job's own, or the framework's for these GPUs and this back end."""
    if job.sync_method:
        return job.sync_method
    back_end = "fsdp" if placement.train.fsdp else "megatron"
    return job.framework.sync[f"colocated_{back_end}" if placement.colocated else "split"]


def sync_seconds(job: PostTrainingJob, placement: Placement) -> float:
    """l + g G + t n + o 2P / (tp pp) + e G / (engine's tp pp) + h 2P: latency, G gigabytes sent, n tensors of the checkpoint,
    the part of a rank that trains, that of a GPU of an engine, and the host's part of sharded parameters that wait there.

    Engines wait until all weights are there, and every replica on either side handles all of them, so that more replicas
    take nothing off (NeMo-RL 8B on 8 GPUs 4 to 8 s, 70B on 64 14 to 26 s; verl 8B on 16 and 32 GPUs 3.0 and 3.3 s).
    """
    method, whole = load_method(method_of(job, placement)), weight_gigabytes(job)
    plan = placement.train
    sent = whole / 2.0 if method.as_served and placement.engine.weights.startswith("fp8") else whole
    waits = plan.fsdp > 0 and placement.offload and not placement.colocated
    return (
        method.latency_s
        + method.seconds_per_gb * sent
        + method.seconds_per_tensor * checkpoint_tensors(job.policy)
        + method.seconds_per_own_gb * whole / (plan.tp * plan.pp)
        + method.seconds_per_engine_gb * sent / (placement.engine.tp * placement.engine.pp)
        + (method.host_seconds_per_gb * whole if waits else 0.0)
    )
