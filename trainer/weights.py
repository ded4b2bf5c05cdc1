"""Weights that depend on the seed and on the parameter's name only, never on how the model is divided; batches alike.

Every parameter is drawn whole and cut: two plans of one job start from the same model, so that their losses must agree. Used on
the CPU, where models are small; on CUDA megatron-core's own initialisation divides the work.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from autoconfig.kernels.attention import sequence_share
from autoconfig.specs.job import Job
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import padded_vocab_size
from megatron.core import parallel_state
from torch import Tensor

INIT_STD = 0.02
"""Megatron-LM's --init-method-std; divided by sqrt(2 L) for the projections back into the residual stream."""
_BACK = re.compile(r"(linear_proj|linear_fc2)\.weight$")
_LAYER = re.compile(r"((?:^|.*\.)layers)\.\d+$")
_EXPERT = re.compile(r"(.*local_experts)\.(\d+)\.(.*)")


def set_weights(chunks: list[torch.nn.Module], model: ModelSpec, seed: int) -> None:
    """Fill every parameter: matrices normal, norms one, biases zero."""
    with torch.no_grad():
        for name, parameter in global_parameters(chunks, model):
            parameter.copy_(local_share(_whole(name, parameter, model, seed), name, parameter, model))


def global_parameters(chunks: list[torch.nn.Module], model: ModelSpec) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Every parameter of this rank with its name in the undivided model: layers and experts numbered through. The output layer
    of tied embeddings is the word embedding, also where it is a copy on the last stage."""
    for chunk in chunks:
        layers = {name: module.layer_number - 1 for name, module in chunk.named_modules() if hasattr(module, "layer_number")}
        for name, parameter in chunk.named_parameters():
            yield _global_name(name, layers, model), parameter


def _global_name(name: str, layers: dict[str, int], model: ModelSpec) -> str:
    parts, renamed = name.split("."), []
    for end, part in enumerate(parts, start=1):
        prefix = ".".join(parts[:end])
        renamed.append(str(layers[prefix]) if _LAYER.match(prefix) and prefix in layers else part)
    text = ".".join(renamed).removeprefix("module.")
    expert = _EXPERT.match(text)
    if expert:
        per_rank = (model.num_moe_experts or 0) // parallel_state.get_expert_model_parallel_world_size()
        number = parallel_state.get_expert_model_parallel_rank() * per_rank + int(expert[2])
        text = f"{expert[1]}.{number}.{expert[3]}"
    if text == "output_layer.weight" and not model.untie_embeddings_and_output_weights:
        text = "embedding.word_embeddings.weight"
    return text


def _whole(name: str, parameter: torch.nn.Parameter, model: ModelSpec, seed: int) -> torch.Tensor:
    shape = list(parameter.shape)
    if is_divided(parameter):
        shape[parameter.partition_dim] *= tensor_group(parameter)[1]
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1 and "softmax_offset" not in name:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7]))
    std = INIT_STD / math.sqrt(2 * model.num_layers) if _BACK.search(name) else INIT_STD
    return torch.randn(shape, generator=generator, dtype=torch.float32).mul_(std)


def is_divided(parameter: Any) -> bool:
    """Whether tensor-parallel ranks hold shares of it."""
    return bool(getattr(parameter, "tensor_model_parallel", False))


def tensor_group(parameter: Any) -> tuple[int, int]:
    """Rank and size of the group that divides the parameter: experts have their own (expert tensor parallelism)."""
    if getattr(parameter, "allreduce", True):
        return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
    return parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_tensor_parallel_world_size()


def local_share(whole: torch.Tensor, name: str, parameter: Any, model: ModelSpec) -> torch.Tensor:
    """This rank's part of a whole parameter. The gated first matrix of an MLP is two matrices, each divided."""
    if not is_divided(parameter):
        return whole
    rank, size = tensor_group(parameter)
    if "linear_fc1" in name and model.gated_linear_unit:
        gate_and_up = whole.unflatten(0, (2, -1))
        return gate_and_up.chunk(size, dim=1)[rank].flatten(0, 1)
    return whole.chunk(size, dim=parameter.partition_dim)[rank]


def microbatches(job: Job, step: int, device: torch.device | str) -> Iterator[dict[str, Tensor]]:
    """This data-parallel rank's micro-batches of one step, divided over context-parallel ranks. `tokens`, `labels`,
    `position_ids`: [mbs, s / cp], int64. Micro-batch i of rank r holds the samples (i dp + r) mbs onwards. An emulated rank's
    words are all of its own share of the vocabulary: others' rows would be zeros without the peers that hold them."""
    rank, place = parallel_state.get_data_parallel_rank(), parallel_state.get_context_parallel_rank()
    for number in range(job.num_microbatches):
        first = (number * job.plan.dp + rank) * job.plan.mbs
        whole = torch.stack([sample(job, step, first + i) for i in range(job.plan.mbs)])
        positions = torch.arange(job.workload.seq_length).expand(job.plan.mbs, -1)
        tokens = whole[:, :-1]
        if job.mode == "emulate":
            share = int(padded_vocab_size(job.model, job.plan.tp)) // job.plan.tp
            tokens = tokens % share + parallel_state.get_tensor_model_parallel_rank() * share
        batch = {"tokens": tokens, "labels": whole[:, 1:], "position_ids": positions}
        yield {key: sequence_share(value, place, job.plan.cp, dim=1).to(device) for key, value in batch.items()}


def sample(job: Job, step: int, number: int) -> Tensor:
    """[s + 1] token ids, uniform over the vocabulary."""
    seed = (job.seed * 1_000_003 + step) * 1_000_003 + number
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randint(job.model.vocab_size, (job.workload.seq_length + 1,), generator=generator)


def enough_microbatches(job: Job, stage: int = 0) -> Job:
    """The job with as many micro-batches as bring the schedule of this pipeline stage into its steady state: what is in flight
    is the same. Stage r of 1F1B holds at most p - r of them, interleaving at most 2 (p - 1) + (v - 1) p + 1 chunks, which 2 p
    micro-batches cover."""
    plan = job.plan
    wanted = plan.pp - stage + 1 if plan.vpp == 1 else 2 * plan.pp
    return job.shortened(num_microbatches=min(wanted, job.num_microbatches))
