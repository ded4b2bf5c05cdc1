"""One process that stands for one rank of a job of any size: a process group without peers.

    with fake_process_group(rank=1023, world_size=1024): ...

torch's `fake` backend answers every collective at once and sends nothing. Megatron builds its groups as in the real job, so
that every module has the sizes and every rank the place that it will have there.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core.distributed.param_and_grad_buffer as param_and_grad_buffer
import megatron.core.tensor_parallel.random as megatron_random
import torch
import torch.distributed as dist
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

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, names))
        stack.enter_context(mock.patch.object(dist, "new_group", new_group))
        stack.enter_context(mock.patch.object(dist, "all_gather_object", all_gather_object))
        stack.enter_context(mock.patch.object(param_and_grad_buffer, "_coalescing_manager", _one_by_one))
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_global_memory_buffer()
            dist.destroy_process_group()


@contextlib.contextmanager
def _one_by_one(*_: Any, **__: Any) -> Iterator[Any]:
    """In place of torch's manager that joins collectives into one call, which neither fake tensors nor the CPU know."""
    yield SimpleNamespace(wait=lambda: None)


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside have shapes and storages of the right size, and no data. What megatron-core does that fake tensors
    cannot is stood in for: forks of the random-number tracker, and changing a module's type in place."""
    with contextlib.ExitStack() as stack:
        tracker = megatron_random.CudaRNGStatesTracker
        stack.enter_context(mock.patch.object(tracker, "fork", lambda *_, **__: contextlib.nullcontext()))
        for name, dtype in (("bfloat16", torch.bfloat16), ("half", torch.float16)):
            stack.enter_context(mock.patch.object(torch.nn.Module, name, functools.partialmethod(_converted, dtype)))
        # copying between storages makes tensors of them that the fake mode would remember, storages and all
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
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
