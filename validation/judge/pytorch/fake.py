"""One rank of a torch job without a GPU: real modules on fake tensors behind torch's fake process group, counted by torch's own
MemTracker.

What stands in, and why:
- CUDA's kernels of RMSNorm and of flash attention's backward, where the CPU's have other tensors: the fused norm saves its
  input and the deviations (ATen/native/native_functions.yaml, _fused_rms_norm: CUDA), flash attention keeps an fp32 accumulator
  of the queries' gradient while it runs (Dao 2023, section 3.1).
- Triton's kernels of fused losses and of the order of experts' rows.
- torchtitan's data loaders and loggers, which are not installed; its models and its parallelize functions are used as they are.
- DTensor's propagation of shapes, which runs on tensors of whole size that no device holds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor.compile_fx  # before the modules that are made up, of which it would take triton for a real one
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

NOT_NEEDED = ("torchdata", "datasets", "triton", "torch.utils.tensorboard")
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class _MadeUp(types.ModuleType):
    """A module whose every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A made-up module where it, or the package that it is in, is one of NOT_NEEDED."""
        if any(name == other or name.startswith(f"{other}.") for other in NOT_NEEDED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        """A module whose every name is an empty class."""
        return _MadeUp(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Let it have submodules."""
        module.__path__ = []


@functools.cache
def _forget_torchtitan() -> None:
    """Drop what others imported of it: torchtitan settles on a kind of device when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchtitan"]:
        del sys.modules[name]


@functools.cache
def torchtitan(name: str) -> Any:
    """The module torchtitan.NAME, on a CPU and without the packages that are not installed."""
    _forget_torchtitan()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    sys.modules["torch.utils.tensorboard"] = _MadeUp("torch.utils.tensorboard")
    logging.getLogger().setLevel(logging.ERROR)
    try:
        with mock.patch.object(torch._utils, "_get_available_device_type", lambda: "cpu"):
            return importlib.import_module(f"torchtitan.{name}")
    finally:
        sys.meta_path.remove(finder)
        del sys.modules["torch.utils.tensorboard"]


class _FusedNorm(torch.autograd.Function):
    """The tensors of CUDA's fused RMSNorm: input, weight and fp32 deviations are kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Values are not computed."""
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of the input and of the weight."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class FusedLoss(torch.autograd.Function):
    """The tensors of Liger's fused linear cross entropy, whose kernels are Triton's: logits of T h / V tokens at a time become
    their own gradient; those of the input and of the weight are made in forward (arXiv:2410.10989, section 3.2)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Values are not computed."""
        made, own = torch.zeros_like(x), torch.zeros_like(weight)
        rows = max(1, x.shape[0] * weight.shape[1] // weight.shape[0])
        for start in range(0, x.shape[0], rows):
            part = x[start : start + rows]
            logits = part @ weight.t()
            made[start : start + rows] = logits @ weight
            own.addmm_(logits.t(), part)
        ctx.save_for_backward(made, own)
        return x.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both gradients as forward made them."""
        made, own = ctx.saved_tensors
        return made.mul_(gradients[0]), own.mul_(gradients[0])


def _rms_norm(x: torch.Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if weight is not None and x.dtype == weight.dtype:
        return _FusedNorm.apply(x, weight)
    return torch.rms_norm(x, shape, weight, eps)


class Tracker(MemTracker):
    """MemTracker with what CUDA's flash attention holds while its backward runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operator, beside an fp32 tensor of the queries' size where it is that backward."""
        held = None
        if func is FLASH_BACKWARD:
            query = args[1]
            size = {"dtype": torch.float32, "device": query.device}
            held = super().__torch_dispatch__(torch.ops.aten.empty.memory_format, (), (list(query.shape),), size)
        output = super().__torch_dispatch__(func, types, args, kwargs)
        del held
        return output

    def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> tuple[int, int]:
        for parameter in module.parameters():
            if not parameter.requires_grad:  # it has no gradient that a hook could wait for
                self._param_to_grad_hook_handles.setdefault(
                    parameter, (RemovableHandle(OrderedDict()), RemovableHandle(OrderedDict()))
                )
        return super()._track_module_params_and_buffers(module, install_grad_hooks)

    def peak(self) -> int:
        """Bytes of tensors at the highest moment since the tracker was entered."""
        return int(sum(self._peak_mem.values()))


def _apart(plain: Any) -> Any:
    @functools.wraps(plain)
    def called(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return plain(*arguments, **named)

    return called


@contextlib.contextmanager
def balanced(rows: int) -> Iterator[None]:
    """Experts of torchtitan get equal shares of `rows`, which fake tensors do not count: the numbers that it asks the device
    for, and CUDA's histogram and Triton's indices, whose values nobody reads."""

    def shares(tensor: torch.Tensor) -> list[int]:
        return [rows // tensor.numel()] * tensor.numel()

    def histogram(x: torch.Tensor, bins: int = 100, **_: Any) -> torch.Tensor:
        return torch.empty(bins, dtype=x.dtype)

    def indices(*arguments: Any) -> torch.Tensor:
        return torch.full((arguments[-1],), -1, dtype=torch.int32)

    with (
        mock.patch.object(FakeTensor, "tolist", shares),
        mock.patch.object(torch, "histc", histogram),
        mock.patch.object(torchtitan("models.moe.kernels"), "fill_indices_wrapper", indices),
    ):
        yield


@contextlib.contextmanager
def fake_rank(rank: int, world_size: int) -> Iterator[FakeTensorMode]:
    """This process stands for `rank` of `world_size`; tensors that are made inside the mode that is handed out hold nothing."""
    name = "_propagate_tensor_meta_non_cached"
    stand_ins = [
        mock.patch.object(ShardingPropagator, name, _apart(getattr(ShardingPropagator, name))),
        mock.patch.object(torch.nn.functional, "rms_norm", _rms_norm),
        mock.patch.object(torch._utils, "_get_available_device_type", lambda: "cpu"),
        mock.patch.object(torch.nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor),
    ]
    with contextlib.ExitStack() as stack:
        for stand_in in stand_ins:
            stack.enter_context(stand_in)
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            yield FakeTensorMode(allow_non_fake_inputs=True)
        finally:
            dist.destroy_process_group()
            _clear_sharding_prop_cache()  # it names the groups that are gone
