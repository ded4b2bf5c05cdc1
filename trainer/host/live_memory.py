"""Bytes of live tensors, counted by weak references to their storages: what torch's CUDA allocator counts, on a CPU or under
fake tensors.

Counted is every storage that an operator returns while the mode is on. Not counted: buffers inside one operator (a kernel's
workspace, gloo's), and the rounding of torch's CUDA allocator to 512 bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

OTHER = "activations"
"""Category of everything that nobody tagged."""


class LiveMemory(TorchDispatchMode):
    """Counts live bytes while entered; `peak` is the most at any moment since `reset_peak`. With a limit, an operator whose
    result takes the bytes above it raises torch.OutOfMemoryError, as CUDA's allocator does. Storages stay counted after leaving
    until they are freed."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.current = 0
        self.peak = 0
        self.by_category: dict[str, int] = {}
        self.peak_by_category: dict[str, int] = {}
        self.default_category = OTHER
        self._alive: dict[int, tuple[int, str]] = {}
        self._plain_resize: Callable[..., Any] | None = None

    def __enter__(self) -> LiveMemory:
        """Count from here on, and follow storages that change their size (megatron-core's output-discarding recomputation)."""
        plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = plain(storage, size)
            if storage._cdata in self._alive:
                self._resized(storage)
            return result

        self._plain_resize = plain
        torch.UntypedStorage.resize_ = resize
        super().__enter__()
        return self

    def __exit__(self, *arguments: Any) -> None:
        torch.UntypedStorage.resize_ = self._plain_resize
        super().__exit__(*arguments)

    def __torch_dispatch__(self, function: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
        output = function(*arguments, **(named or {}))
        if getattr(function, "is_view", False) and function is not torch.ops.aten.lift_fresh.default:
            return output  # no bytes are born; an unseen base is a collective's own buffer, as gloo's copy of a reduce-scatter
        for tensor in tree_iter(output):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        return output

    def add(self, tensor: torch.Tensor, category: str | None = None) -> None:
        """Count the tensor's storage, once. Raises torch.OutOfMemoryError above the limit."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = (0, category or self.default_category)
        weakref.finalize(storage, self._free, key)
        self._resized(storage)

    def tag(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """What these tensors' storages are held for, from now on. Counts those that were not seen."""
        for tensor in tensors:
            self.add(tensor, category)
            size, before = self._alive[tensor.untyped_storage()._cdata]
            self._move(before, -size)
            self._move(category, size)
            self._alive[tensor.untyped_storage()._cdata] = (size, category)

    def reset_peak(self) -> None:
        """Forget the peak: it is what is alive now."""
        self.peak = self.current
        self.peak_by_category = dict(self.by_category)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        size, category = self._alive[storage._cdata]
        new = storage.nbytes()
        self._alive[storage._cdata] = (new, category)
        self._move(category, new - size)
        self.current += new - size
        if self.limit_bytes is not None and self.current > self.limit_bytes and new > size:
            raise torch.OutOfMemoryError(
                f"out of memory: {new - size:,} bytes more make {self.current:,} live bytes; the limit is {self.limit_bytes:,}"
            )
        if self.current > self.peak:
            self.peak = self.current
            self.peak_by_category = dict(self.by_category)

    def _free(self, key: int) -> None:
        size, category = self._alive.pop(key, (0, OTHER))
        self.current -= size
        self._move(category, -size)

    def _move(self, category: str, size: int) -> None:
        self.by_category[category] = self.by_category.get(category, 0) + size
