"""Stand-ins for torch.cuda on a machine without it: tensors meant for the GPU are made on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import megatron.core.tensor_parallel.random as megatron_random
import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Every function call that names a CUDA device gets the CPU instead."""

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if _is_cuda(named.get("device")):
            named["device"] = CPU
        if getattr(function, "__name__", "") in ("cuda", "pin_memory"):
            return arguments[0]
        return function(*(CPU if _is_cuda(value) else value for value in arguments), **named)


def _is_cuda(value: object) -> bool:
    return (isinstance(value, str) and value.startswith("cuda")) or (isinstance(value, torch.device) and value.type == "cuda")


class _Nothing:
    """A stream, an event, a context: takes every call and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None: ...


@contextlib.contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """megatron's calls of torch.cuda answer as one GPU would, on the CPU."""
    values: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: CPU,
        "device_count": lambda: 1,
        "set_device": lambda *_: None,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "current_stream": _Nothing,
        "default_stream": _Nothing,
        "stream": _Nothing,
        "Stream": _Nothing,
        "Event": _Nothing,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "manual_seed": torch.manual_seed,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        "memory_stats": lambda *_: {},
        "reset_peak_memory_stats": lambda *_: None,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: _Properties(),
        "FloatTensor": torch.FloatTensor,
        "HalfTensor": torch.HalfTensor,
        "BFloat16Tensor": torch.BFloat16Tensor,
    }
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(megatron_random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()))
        stack.enter_context(
            mock.patch.object(megatron_random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state))
        )
        stack.enter_context(mock.patch.object(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda _: None))
        all_to_all = _with_lists(torch.distributed.all_to_all_single)
        stack.enter_context(mock.patch.object(torch.distributed, "all_to_all_single", all_to_all))
        stack.enter_context(mock.patch.object(torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type)))
        stack.enter_context(mock.patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self))
        stack.enter_context(mock.patch.object(torch.nn.Module, "cuda", lambda self, *_, **__: self))
        stack.enter_context(OnCpu())
        yield


def _with_lists(plain: Any) -> Any:
    """gloo takes split sizes as lists only; megatron's dispatcher hands over tensors."""

    def called(*arguments: Any, **named: Any) -> Any:
        split = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in named.items() if k.endswith("split_sizes")}
        return plain(*arguments, **{**named, **split})

    return called


def _type_as_on_cuda(plain: Any) -> Any:
    """The distributed optimizer knows parameters by the text `torch.cuda.FloatTensor`."""

    def named(self: torch.Tensor, *arguments: Any, **others: Any) -> Any:
        if arguments or others:
            return plain(self, *arguments, **others)
        name = str(plain(self))
        return name if name.startswith("torch.cuda.") else name.replace("torch.", "torch.cuda.", 1)

    return named


class _Properties:
    major, minor, multi_processor_count, total_memory, name = 9, 0, 1, 1 << 30, "cpu"
