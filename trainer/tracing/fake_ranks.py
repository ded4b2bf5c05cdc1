"""One process that stands for one rank of a job of any size: a process group without peers, and routing of a stated size.

torch's `fake` backend answers every collective at once and sends nothing. Megatron builds its groups as in the real job, so
that every module has the sizes and every rank the place that it will have there. Its all-to-all dispatcher asks the routing
map how many rows go where: inside `fixed_routing` it is told, as fake tensors have no values to route by.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core.distributed.param_and_grad_buffer as param_and_grad_buffer
import megatron.core.tensor_parallel.random as megatron_random
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.moe.token_dispatcher as token_dispatcher
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from autoconfig.trainer.host.cpu import patched
from autoconfig.trainer.host.timers import Apart
from autoconfig.trainer.tracing.stand_in import StandIn
from megatron.core import parallel_state
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """`torch.distributed` is initialised as `rank` of `world_size`; undone on leaving, megatron's groups with it."""
    names = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}
    plain = dist.new_group

    def new_group(*arguments: Any, **named: Any) -> Any:
        """Gloo groups, which megatron makes beside the others for checkpoints, would look for their peers."""
        return plain(*arguments, **{**named, "backend": "fake"})

    def all_gather_object(everyone: list[Any], own: Any, *_: Any, **__: Any) -> None:
        """Objects are asked about settings that all ranks share."""
        everyone[:] = [own] * len(everyone)

    stand_ins = [
        (dist, "new_group", new_group),
        (dist, "all_gather_object", all_gather_object),
        (param_and_grad_buffer, "_coalescing_manager", _one_by_one),
        _router_losses(),
    ]
    with mock.patch.dict(os.environ, names), patched(stand_ins):
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_global_memory_buffer()
            dist.destroy_process_group()


BRINGING = {
    **dict.fromkeys(("_allgather_base", "all_gather_single", "alltoall_base", "all_to_all_single"), False),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), True),
}
"""Methods of torch's process groups that bring values of peers, by the names of torch up to 2.12 and since; whether each rank
gets its own part only."""


@contextlib.contextmanager
def made_up_by(apart: Apart) -> Iterator[None]:
    """What collectives bring from peers is what this rank has itself; the copies are noted in `apart`."""

    def filled(name: str, own_part: bool) -> tuple[Any, str, Any]:
        plain = getattr(dist.ProcessGroup, name)

        def called(group: Any, output: torch.Tensor, values: torch.Tensor, *rest: Any, **named: Any) -> Any:
            work = plain(group, output, values, *rest, **named)
            lies_there = output.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
            if not lies_there and output.numel() and values.numel():
                with torch.no_grad(), apart.span():
                    start = group.rank() * output.numel() if own_part else 0
                    _repeat(output.view(-1), values.reshape(-1)[start:])
            return work

        return dist.ProcessGroup, name, called

    there = [(name, own_part) for name, own_part in BRINGING.items() if hasattr(dist.ProcessGroup, name)]
    with patched([filled(*each) for each in there]):
        yield


def _repeat(output: torch.Tensor, values: torch.Tensor) -> None:
    """Fill `output` with `values` over and over: every rank has brought the same."""
    values = values[: len(output)]
    whole = len(output) // len(values) * len(values)
    output[:whole].view(-1, len(values)).copy_(values)
    output[whole:].copy_(values[: len(output) - whole])


def _router_losses() -> tuple[Any, str, Any]:
    """An empty table of the routers' losses: megatron-core keeps one as long as the process lives, sized by its first model."""
    if hasattr(moe_utils, "_MOE_LAYER_WISE_LOGGING_TRACKER"):  # megatron-core 0.16
        return moe_utils, "_MOE_LAYER_WISE_LOGGING_TRACKER", {}
    return importlib.import_module("megatron.core.transformer.moe.moe_logging"), "_MOE_METRICS_TRACKER", None


@contextlib.contextmanager
def _one_by_one(*_: Any, **__: Any) -> Iterator[Any]:
    """In place of torch's manager that joins collectives into one call, which neither fake tensors nor the CPU know."""
    yield SimpleNamespace(wait=lambda: None)


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside have shapes and storages of the right size, and no data. What megatron-core does that fake tensors
    cannot is stood in for: forks of the random-number tracker, and changing a module's type in place."""
    stand_ins = [
        (megatron_random.CudaRNGStatesTracker, "fork", lambda *_, **__: contextlib.nullcontext()),
        (torch.nn.Module, "bfloat16", functools.partialmethod(_converted, torch.bfloat16)),
        (torch.nn.Module, "half", functools.partialmethod(_converted, torch.float16)),
        # copying between storages makes tensors of them that the fake mode would remember, storages and all
        (torch.UntypedStorage, "copy_", lambda storage, *_: storage),
    ]
    with patched(stand_ins), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def _converted(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """`module.to(dtype)`: shared parameters stay shared, and attributes that megatron-core set on them stay."""
    made: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or not parameter.is_floating_point() or parameter.dtype == dtype:
                continue
            if id(parameter) not in made:
                new = torch.nn.Parameter(parameter.detach().to(dtype), requires_grad=parameter.requires_grad)
                new.__dict__.update({key: value for key, value in vars(parameter).items() if not key.startswith("_")})
                made[id(parameter)] = new
            part._parameters[name] = made[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.to(dtype)
    return module


Counts = npt.NDArray[np.int64]


def _masked_select(x: torch.Tensor, mask: torch.Tensor, count: int) -> Any:
    """Saves what torch's masked_select saves; the number of selected elements is given."""
    return x.new_empty(count), (x, mask)


def _sort_chunks(x: torch.Tensor) -> Any:
    """Splits, and joins in another order: one new tensor each way, nothing saved."""
    return torch.empty_like(x), ()


def spread(total: int, parts: int) -> Counts:
    """`total` in `parts` whole numbers that differ by one at most."""
    counts = np.full(parts, total // parts, np.int64)
    counts[: total % parts] += 1
    return counts


@contextlib.contextmanager
def fixed_routing(imbalance: float = 1.0, *, values: bool = False) -> Iterator[None]:
    """`imbalance`: rows that this rank's experts receive over a balanced load. `values`: tensors have some, so that only the
    counts are fixed."""

    def preprocess(self: Any, routing_map: torch.Tensor) -> Counts:
        """Counts as numpy arrays, which the dispatcher takes where it expects tensors on the CPU."""
        rows, group = routing_map.size(0) * self.config.moe_router_topk, self.ep_size * self.tp_size
        if self.drop_and_pad:
            factor = self.config.moe_expert_capacity_factor
            self.capacity = moe_utils.get_capacity(num_tokens=rows, num_experts=self.num_experts, capacity_factor=factor)
            self.num_out_tokens = self.capacity * self.num_experts
            return np.full(self.num_local_experts, self.capacity * group, np.int64)
        received = round(rows * (imbalance if group > 1 else 1.0))
        self.num_out_tokens = rows
        if group > 1:
            self.input_splits = spread(rows, self.ep_size)
            self.output_splits = spread(received, self.ep_size)
            self.output_splits_tp = np.full(self.tp_size, received, np.int64)
        by_expert = spread(received * self.tp_size, self.num_local_experts)
        if self.num_local_experts > 1:
            chunks = np.stack([spread(int(count), group) for count in by_expert], axis=1)
            self.num_global_tokens_per_local_expert = chunks
        return by_expert

    plain = token_dispatcher.permute

    def permute(tokens: Any, routing_map: Any, *arguments: Any, **named: Any) -> Any:
        count = named.get("num_out_tokens")

        with mock.patch.object(torch.Tensor, "masked_select", lambda x, mask: StandIn.apply(_masked_select, x, mask, count)):
            return plain(tokens, routing_map, *arguments, **named)

    def sort_chunks(x: Any, *_: Any, probs: Any = None, **__: Any) -> Any:
        return StandIn.apply(_sort_chunks, x), None if probs is None else StandIn.apply(_sort_chunks, probs)

    dispatcher = token_dispatcher.MoEAlltoAllTokenDispatcher
    stand_ins: list[tuple[Any, str, Any]] = [
        (dispatcher, "preprocess", preprocess),
        (dispatcher, "_maybe_dtoh_and_synchronize", lambda self, point, counts=None: counts),
    ]
    if not values:
        stand_ins += [(token_dispatcher, "permute", permute), (token_dispatcher, "sort_chunks_by_idxs", sort_chunks)]
    with patched(stand_ins):
        try:
            yield
        finally:
            moe_utils.get_moe_layer_wise_logging_tracker().clear()  # it is of this run's number of layers
