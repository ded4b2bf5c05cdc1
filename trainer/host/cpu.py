"""Stand-ins for torch.cuda on a machine without it: tensors meant for the GPU are made on the CPU.

megatron-core asks for CUDA by name in some forty places. `cpu_for_cuda` answers each as one GPU would, on the CPU, and takes
every answer back on leaving. It changes no line of megatron-core. What it covers, with megatron-core 0.16.1 and 0.19.2:

- devices: every call that names `cuda` gets the CPU; `Tensor.cuda`, `Module.cuda` and pinning do nothing;
- random numbers: the CUDA generator is the CPU's (the tracker's forks work; only their states live in one generator);
- streams and events: accept every call and do nothing, as everything on a CPU happens in order;
- gloo: all-to-all with split sizes in tensors; gathers of uneven sizes; sends that outlive the output the schedule frees;
- `Tensor.type()`: the distributed optimizer knows parameters by the text `torch.cuda.FloatTensor`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import megatron.core.tensor_parallel.random as megatron_random
import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.multi_latent_attention as multi_latent_attention
import torch
from megatron.core.pipeline_parallel import p2p_communication
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Every function call that names a CUDA device gets the CPU instead."""

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        if _is_cuda(named.get("device")):
            named["device"] = CPU
        named.pop("pin_memory", None)
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


class _Properties:
    major, minor, multi_processor_count, total_memory, name = 9, 0, 1, 1 << 30, "cpu"


@contextlib.contextmanager
def patched(stand_ins: Iterable[tuple[Any, str, Any]], *, create: bool = False) -> Iterator[None]:
    """(owner, name, stand-in): each takes its place inside, and is put back on leaving."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in stand_ins:
            stack.enter_context(mock.patch.object(owner, name, value, create=create))
        yield


@contextlib.contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """megatron's calls of torch.cuda answer as one GPU would, on the CPU. Everything is put back on leaving."""
    logger = logging.getLogger(megatron_random.__name__)
    with contextlib.ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)  # it warns that the CPU's generator moved while it forked the GPU's: here they are one
        stack.enter_context(patched(_stand_ins()))
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # dynamo's guards ask the CUDA driver
        stack.enter_context(OnCpu())
        yield


def _stand_ins() -> list[tuple[Any, str, Any]]:
    cuda: list[tuple[str, Any]] = [
        ("is_available", lambda: True),
        ("current_device", lambda: CPU),
        ("device_count", lambda: 1),
        *((name, lambda *_: None) for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats")),
        *((name, _Nothing) for name in ("current_stream", "default_stream", "stream", "Stream", "Event")),
        ("get_rng_state", lambda *_, **__: torch.get_rng_state()),
        ("set_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
        ("manual_seed", torch.manual_seed),
        *((f"{most}memory_{kind}", lambda *_: 0) for most in ("", "max_") for kind in ("allocated", "reserved")),
        ("memory_stats", lambda *_: {}),
        ("get_device_capability", lambda *_: (9, 0)),
        ("get_device_properties", lambda *_: _Properties()),
        ("FloatTensor", torch.FloatTensor),
        ("HalfTensor", torch.HalfTensor),
        ("BFloat16Tensor", torch.BFloat16Tensor),
    ]
    collectives = torch.distributed
    return [
        *((torch.cuda, name, value) for name, value in cuda),
        (megatron_random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
        (megatron_random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
        (torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda _: None),
        (p2p_communication, "_p2p_ops", _sends_copies(p2p_communication._p2p_ops)),
        (collectives, "all_to_all_single", _with_lists(collectives.all_to_all_single)),
        (collectives, "all_gather", _of_any_sizes(collectives.all_gather)),
        (collectives, "reduce_scatter", _scatters_any_sizes(collectives.reduce_scatter)),
        (torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type)),
        (torch.Tensor, "cuda", lambda self, *_, **__: self),
        (torch.nn.Module, "cuda", lambda self, *_, **__: self),
    ]


def _sends_copies(plain: Any) -> Any:
    """The interleaved schedule frees a stage's output right after posting its send, safe in stream order on CUDA only: gloo
    would send freed memory. The copies live as long as the send, and no memory counter sees them."""

    def called(*, tensor_send_prev: Any, tensor_send_next: Any, **named: Any) -> Any:
        with _disable_current_modes():
            sent = {
                "tensor_send_prev": None if tensor_send_prev is None else tensor_send_prev.detach().clone(),
                "tensor_send_next": None if tensor_send_next is None else tensor_send_next.detach().clone(),
            }
        return plain(**sent, **named)

    return called


def _with_lists(plain: Any) -> Any:
    """gloo takes split sizes as lists only; megatron's dispatcher hands over tensors."""

    def called(*arguments: Any, **named: Any) -> Any:
        split = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in named.items() if k.endswith("split_sizes")}
        return plain(*arguments, **{**named, **split})

    return called


def _of_any_sizes(plain: Any) -> Any:
    """gloo gathers equal sizes only; experts that are tensor-parallel gather as many rows as each rank was sent."""

    def called(outputs: list[torch.Tensor], tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        rows = [output.size(0) if output.dim() else 0 for output in outputs]
        if len(set(rows)) == 1:
            return plain(outputs, tensor, *arguments, **named)
        with _disable_current_modes():
            padded = [output.new_zeros(max(rows), *output.shape[1:]) for output in outputs]
            mine = torch.zeros_like(padded[0])
            mine[: tensor.size(0)] = tensor
            plain(padded, mine, *arguments, **named)
            for output, whole in zip(outputs, padded, strict=True):
                output.copy_(whole[: output.size(0)])
        return None

    return called


def _scatters_any_sizes(plain: Any) -> Any:
    """The same backward: each rank keeps the sum of its own rows."""

    def called(output: torch.Tensor, inputs: list[torch.Tensor], *arguments: Any, **named: Any) -> Any:
        rows = [tensor.size(0) if tensor.dim() else 0 for tensor in inputs]
        if len(set(rows)) == 1:
            return plain(output, inputs, *arguments, **named)
        with _disable_current_modes():
            padded = [tensor.new_zeros(max(rows), *tensor.shape[1:]) for tensor in inputs]
            for whole, tensor in zip(padded, inputs, strict=True):
                whole[: tensor.size(0)] = tensor
            mine = torch.zeros_like(padded[0])
            plain(mine, padded, *arguments, **named)
            output.copy_(mine[: output.size(0)])
        return None

    return called


def _type_as_on_cuda(plain: Any) -> Any:
    """The distributed optimizer knows parameters by the text `torch.cuda.FloatTensor`."""

    def named(self: torch.Tensor, *arguments: Any, **others: Any) -> Any:
        if arguments or others:
            return plain(self, *arguments, **others)
        name = str(plain(self))
        return name if name.startswith("torch.cuda.") else name.replace("torch.", "torch.cuda.", 1)

    return named


def transformer_engine_is_there() -> bool:
    """Whether Transformer Engine can be imported."""
    return importlib.util.find_spec("transformer_engine") is not None


@contextlib.contextmanager
def without_engine() -> Iterator[None]:
    """megatron-core's local layers work without Transformer Engine; nothing is changed where it is installed."""
    stand_ins = [
        (moe_utils, "te_general_gemm", None),
        (multi_latent_attention, "HAVE_TE", False),
        (megatron_random, "FP8GlobalStateManager", SimpleNamespace(is_fp8_enabled=lambda: False)),
        (megatron_random, "fp8_autocast", lambda **_: contextlib.nullcontext()),
        (megatron_random, "activation_recompute_forward", lambda **_: contextlib.nullcontext()),
    ]
    with patched([] if transformer_engine_is_there() else stand_ins, create=True):
        yield
