"""Which storages are alive at which moment of a training step, by category and by module, on real or on fake tensors.

A dispatch mode sees every tensor that an operator returns; weak references see every storage die. Both go to a log, and all
questions are answered from the log afterwards, so that a storage's category may depend on what became of it: an activation is
what was born in a forward pass and still lived when that pass was over. Bytes are those of the storages (the CUDA allocator
rounds each up to 512 B); buffers that an operator allocates and frees inside of itself are not seen.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")
LOGITS_MODULES = ("output_layer", "loss")
"""Modules whose vocabulary-wide tensors are logits: the output layer and the scope named `loss`."""
FOREVER = 2**62
_WRAPPERS = re.compile(r"^(?:module\.)+")
_LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(eq=False)
class Storage:
    """One storage's life. Times count log entries."""

    size: int
    born: int
    module: str
    operator: str
    phase: int
    """Number of the phase in which it was born."""
    width: int
    died: int = FOREVER
    last_phase: int = FOREVER
    category: str = ""
    """Set by `mark`; empty where the category follows from its life."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the step: build, forward, backward, between (send and receive), optimizer."""

    number: int
    kind: str
    start: int = 0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Everything alive at one moment; bytes."""

    bytes: int
    phase: str
    by_category: dict[str, int]
    by_module: dict[str, dict[str, int]]
    largest: list[Storage] = field(repr=False)


class MemoryLog(TorchDispatchMode):
    """The counter; a context manager. One at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[Storage] = []
        self.phases: list[Phase] = [Phase(number=0, kind="build")]
        self.vocabulary: int | None = None
        """Width of this rank's logits, so that they are told from hidden states."""
        self._alive: dict[int, Storage] = {}
        self._time = 0
        self._changes: list[int] = []
        self._modules: list[str] = [""]
        self._nodes: list[int] = []
        self._node_modules: list[str] = []
        self._patches = contextlib.ExitStack()
        self._hooks: list[Any] = []

    # -- what happens -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> MemoryLog:
        plain = torch.UntypedStorage.resize_
        memory = self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = plain(storage, size)
            memory._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_
        self._patches.callback(setattr, torch.UntypedStorage, "resize_", plain)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._patches.close()
        super().__exit__(*exception)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._see(tensor, function)
        return out

    def _see(self, tensor: torch.Tensor, function: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        known = self._alive.get(key)
        if known is not None:
            if known.size != size:
                self._resized(storage)
            return
        if size == 0:
            return
        record = Storage(
            size=size,
            born=self._time,
            module=self._current_module(),
            operator=getattr(function, "__name__", str(function)).split(".")[0],
            phase=len(self.phases) - 1,
            width=tensor.shape[-1] if tensor.dim() else 1,
        )
        self._alive[key] = record
        self.storages.append(record)
        self._log(size)
        weakref.finalize(storage, self._die, key, record)

    def _die(self, key: int, record: Storage) -> None:
        if record.died != FOREVER:
            return
        if self._alive.get(key) is record:
            del self._alive[key]
        record.died, record.last_phase = self._time, len(self.phases) - 1
        self._log(-record.size)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """The old life ends; a new one of the same kind begins where bytes are left."""
        key = storage._cdata
        old, size = self._alive.get(key), storage.nbytes()
        if old is not None:
            self._die(key, old)
        if size:
            module = self._current_module() if old is None else old.module
            record = Storage(size, self._time, module, "resize_", len(self.phases) - 1, 0, category=old.category if old else "")
            self._alive[key] = record
            self.storages.append(record)
            self._log(size)
            weakref.finalize(storage, self._die, key, record)

    def _log(self, change: int) -> None:
        self._changes.append(change)
        self._time += 1

    def _current_module(self) -> str:
        """The module whose forward runs, or in backward the one whose forward made the node that runs."""
        if len(self._modules) > 1:
            return self._modules[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._nodes:
            return ""
        place = bisect.bisect_right(self._nodes, node._sequence_nr()) - 1
        return self._node_modules[place] if place >= 0 else ""

    # -- names --------------------------------------------------------------------------------------------------------------

    def watch(self, model: torch.nn.Module) -> None:
        """Storages that are born in a forward or backward of `model` get the name of the innermost module, wrappers left out:
        `decoder.layers.3.mlp`."""
        for name, module in model.named_modules():
            plain = _WRAPPERS.sub("", f"{name}.").removesuffix(".")
            if plain:
                self._hooks.append(module.register_forward_pre_hook(lambda *_, n=plain: self._enter_module(n)))
                self._hooks.append(module.register_forward_hook(lambda *_: self._leave_module(), always_call=True))

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """A stretch of code that counts as a module of this name, such as the loss."""
        self._enter_module(name)
        try:
            yield
        finally:
            self._leave_module()

    def _enter_module(self, name: str) -> None:
        self._modules.append(name)
        self._note_node()

    def _leave_module(self) -> None:
        if len(self._modules) > 1:
            self._modules.pop()
        self._note_node()

    def _note_node(self) -> None:
        self._nodes.append(torch.autograd._get_sequence_nr())
        self._node_modules.append(self._modules[-1])

    @contextlib.contextmanager
    def phase(self, kind: str) -> Iterator[None]:
        """A part of the step; what follows it is a phase `between`."""
        self.phases.append(Phase(number=len(self.phases), kind=kind, start=self._time))
        try:
            yield
        finally:
            self.phases.append(Phase(number=len(self.phases), kind="between", start=self._time))

    def mark(self, category: str, tensors: Iterable[torch.Tensor | None]) -> None:
        """These tensors' storages belong to `category`, whatever their life."""
        for tensor in tensors:
            if tensor is None:
                continue
            record = self._alive.get(tensor.untyped_storage()._cdata)
            if record is None:  # made outside of this mode
                self._see(tensor, self.mark)
                record = self._alive.get(tensor.untyped_storage()._cdata)
            if record is not None:
                record.category = category

    # -- answers ------------------------------------------------------------------------------------------------------------

    def category(self, record: Storage) -> str:
        """Marked, or by life: logits where the output layer or the loss made something as wide as the vocabulary; activations
        were born in a forward pass (or received for it) and lived on into a later one; the rest is temporary."""
        if record.category:
            return record.category
        if record.module in LOGITS_MODULES and (self.vocabulary is None or record.width == self.vocabulary):
            return "logits"
        if record.died == FOREVER:  # caches
            return "temporary"
        born = record.phase
        if self.phases[born].kind == "between" and born + 1 < len(self.phases):
            born += 1  # received for the pass that follows
        if self.phases[born].kind != "forward":
            return "temporary"
        return "activations" if record.last_phase >= born + 2 else "temporary"

    def peak(self, of: Callable[[Phase], bool] = lambda phase: phase.kind != "build") -> Moment:
        """The largest moment among the phases that `of` selects; by default everything after the build."""
        starts = [phase.start for phase in self.phases]
        level, best, when, current = 0, -1, 0, 0
        for time, change in enumerate(self._changes):
            level += change
            while current + 1 < len(starts) and starts[current + 1] <= time:
                current += 1
            if level > best and of(self.phases[current]):
                best, when = level, time
        return self.at(when)

    def at(self, time: int) -> Moment:
        alive = [record for record in self.storages if record.born <= time < record.died]
        by_category = dict.fromkeys(CATEGORIES, 0)
        by_module: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for record in alive:
            category = self.category(record)
            by_category[category] += record.size
            by_module[_LAYER_NUMBER.sub("", record.module)][category] += record.size
        place = bisect.bisect_right(self.phases, time, key=lambda phase: phase.start) - 1
        return Moment(
            bytes=sum(by_category.values()),
            phase=self.phases[max(place, 0)].kind,
            by_category=by_category,
            by_module={name: dict(sizes) for name, sizes in by_module.items()},
            largest=sorted(alive, key=lambda record: -record.size),
        )

    @property
    def now(self) -> int:
        """Entries logged so far; `at(now - 1)` is what is alive now."""
        return self._time
