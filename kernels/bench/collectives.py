"""Collectives by kind, number of ranks and size, in a job of torchrun: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from autoconfig.kernels.bench.table import Sizes

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
TIMEOUT = timedelta(seconds=120)
"""A rank whose peer died ends after this."""
WARM_UPS = 2
PREPARED = 3
"""Repetitions from which the number of timed ones follows."""


def group_sizes(ranks: int) -> list[int]:
    """2, 4, 8, ... and the whole job."""
    sizes = [2**i for i in range(1, ranks.bit_length()) if 2**i <= ranks]
    return sizes if not sizes or sizes[-1] == ranks else [*sizes, ranks]


def collective_call(torch: Any, device: Any, kind: str, total_bytes: int, ranks: int, group: Any) -> Callable[[], object]:
    """One collective. total_bytes: the whole buffer (all-reduce, all-gather, reduce-scatter), what one rank holds (all-to-all),
    the message (p2p, from the group's first rank to its second and back: two messages)."""
    dist = torch.distributed
    share = max(total_bytes // (4 * ranks), 1)
    whole, part = (torch.zeros(count, dtype=torch.float32, device=device) for count in (share * ranks, share))
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    if kind == "all_to_all":
        received = torch.empty_like(whole)
        return lambda: dist.all_to_all_single(received, whole, group=group)
    first = dist.get_rank() == 0

    def ping() -> None:
        for turn in (first, not first):
            (dist.send if turn else dist.recv)(whole, 1 if first else 0)

    return ping


class CollectiveBench:
    """This process's part in the job: the same measurements in the same order on every rank."""

    def __init__(self, torch: Any, device: Any, sizes: Sizes) -> None:
        """Joins the job that torchrun started. Raises RuntimeError where the ranks cannot meet."""
        self.torch, self.device, self.dist, self.sizes = torch, device, torch.distributed, sizes
        self.cuda = device.type == "cuda"
        self.dist.init_process_group("nccl" if self.cuda else "gloo", timeout=TIMEOUT)
        self.rank, self.world = self.dist.get_rank(), self.dist.get_world_size()
        self.groups = {n: self.dist.new_group(list(range(n))) for n in group_sizes(self.world)}

    def close(self) -> None:
        self.dist.destroy_process_group()

    def agree(self, value: float) -> float:
        tensor = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.broadcast(tensor, 0)
        return float(tensor.item())

    def points(self) -> Iterator[tuple[str, int, int]]:
        """(kind, ranks, bytes) in the order of measuring: extremes of the sizes first."""
        sizes = self.sizes.collective_bytes
        order = sorted(range(len(sizes)), key=lambda i: (i not in (0, len(sizes) - 1), i))
        for kind in KINDS:
            for ranks in self.groups:
                if kind != "p2p" or ranks == 2:
                    yield from ((kind, ranks, sizes[i]) for i in order)

    def time(self, kind: str, total_bytes: int, ranks: int) -> list[float]:
        """Seconds of each repetition on the slowest rank; empty on ranks outside of the group."""
        samples: list[float] = []
        if self.rank < ranks:
            group = self.groups[ranks]
            run = collective_call(self.torch, self.device, kind, total_bytes, ranks, group)
            samples = self._samples(run, group)
            if kind == "p2p":
                samples = [x / 2.0 for x in samples]
        self.dist.barrier()
        return samples

    def _samples(self, run: Callable[[], object], group: Any) -> list[float]:
        for _ in range(WARM_UPS):
            run()
        once = max(self._once(run, group) for _ in range(PREPARED))
        count = self.torch.tensor([self.sizes.repetitions(once)], device=self.device)
        self.dist.all_reduce(count, op=self.dist.ReduceOp.MIN, group=group)
        times = self.torch.tensor([self._once(run, group) for _ in range(int(count.item()))], dtype=self.torch.float64)
        times = times.to(self.device)
        self.dist.all_reduce(times, op=self.dist.ReduceOp.MAX, group=group)
        return [float(x) for x in times.tolist()]

    def _once(self, run: Callable[[], object], group: Any) -> float:
        self.dist.barrier(group=group)
        if not self.cuda:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        cuda = self.torch.cuda
        cuda.synchronize()
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3
