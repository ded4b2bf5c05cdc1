"""Where userbuffers (Megatron's --tp-comm-overlap) run: one rule, for the price of a plan and for what is exported."""

from __future__ import annotations

from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import Numerics
from autoconfig.specs.software.software import SoftwareStack

BLACKWELL = 10.0
"""Compute capability."""


def userbuffers_know(model: ModelSpec, numerics: Numerics, stack: SoftwareStack) -> bool:
    """The stack overlaps tensor-parallel communication with GEMMs, and model and numerics are of a kind that it is made for.

    Dense models without multi-latent attention: Transformer Engine has buffers for qkv, proj, fc1 and fc2 only
    (transformer_engine/pytorch/module/base.py, initialize_ub), and NVIDIA's recipes leave it off in every mixture of experts
    (autoconfig/data/published/nvidia_recipes.csv, column tpovl). Megatron-LM refuses it in deterministic mode (validate_args).
    """
    plain = not (model.is_moe or model.multi_latent_attention or numerics.deterministic)
    return plain and stack.time.tp_overlap_share > 0


def userbuffers_run(
    model: ModelSpec, numerics: Numerics, stack: SoftwareStack, cluster: ClusterSpec, *, tp: Number, sp: Number, fsdp: Number
) -> Number:
    """Whether userbuffers run in a plan (scalars), or in each of many (columns).

    With sequence parallelism (validate_args) and inside one link domain. Not with FSDP on GPUs before Blackwell: there
    userbuffers want CUDA_DEVICE_MAX_CONNECTIONS to be 1, and FSDP wants it to be unset (validate_args).
    """
    one_connection = one_connection_needed(cluster)
    inside = (tp > 1) & (tp <= cluster.link_domain_size) & sp
    return userbuffers_know(model, numerics, stack) & inside & ((fsdp == 0) | (not one_connection))


def one_connection_needed(cluster: ClusterSpec) -> bool:
    """Kernels overlap in order only with CUDA_DEVICE_MAX_CONNECTIONS=1: GPUs before Blackwell (validate_args)."""
    capability = cluster.gpu.compute_capability
    return capability is None or capability < BLACKWELL
