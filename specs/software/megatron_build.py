"""What Megatron runs, one rule each for memory, time and export: models that megatron-core cannot build, where weights are kept
and gathered in fp8, where userbuffers (--tp-comm-overlap) run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.numerics import Numerics
from autoconfig.specs.software.software import SoftwareStack


def all_biases(model: ModelSpec) -> bool:
    """Megatron's add_bias_linear: attention output, MLP, experts and router have biases, all or none."""
    return model.add_bias_linear or (model.add_attention_output_bias and model.moe_expert_bias)


def not_buildable(model: ModelSpec) -> list[str]:
    """What of this architecture Megatron has no setting for, in words; empty where it can be built."""
    reasons = {
        "alibi positions": model.position_embedding_type == "alibi",
        "attention and MLP in parallel": model.parallel_attention,
        "a norm behind the embedding": model.embedding_layernorm,
        "a LayerNorm without bias": model.normalization == "LayerNorm" and not model.layernorm_bias,
        f"the activation {model.activation}": model.activation in ("geglu", "relu"),
        "norms behind attention and MLP (four a layer)": model.num_layernorms_per_layer > 2 and not model.parallel_attention,
        "biases in some linear layers only": model.add_attention_output_bias != all_biases(model) and not model.add_bias_linear,
    }
    return [reason for reason, holds in reasons.items() if holds]


def endless_recomputation(model: ModelSpec, modules: Sequence[str]) -> str | None:
    """Why this selective recomputation never ends in megatron-core, or None.

    An MLP with biases returns its last bias, a parameter, as an output of `checkpoint` (tensor_parallel/random.py,
    0.16.1 and 0.19.2); autograd then takes the checkpoint for the parameter's history, and its backward runs itself again.
    """
    if "mlp" not in modules or not all_biases(model) or 0 not in model.moe_pattern:
        return None
    return (
        "recomputing mlp where linear layers have biases never ends in megatron-core (the checkpoint returns the bias, a "
        "parameter, as its output); take full recomputation, or other modules"
    )


def gathers_fp8(numerics: Numerics, stack: SoftwareStack, fsdp: Number) -> Number:
    """Whether fp8_param_gather holds in a plan (scalar fsdp), or in each of many (a column).

    Megatron-LM switches it off under torch FSDP2 and gathers in bf16 (megatron/training/arguments.py of 0.19.2, validate_args:
    "FSDP2 FP8 param gather is not supported yet in TE 2.0"). Megatron-FSDP keeps it (core/distributed/fsdp).
    """
    return numerics.fp8_param_gather & (np.equal(fsdp, 0) | stack.supports_fp8_param_gather_with_fsdp)


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
