"""The training loop of one rank: build, step, measure. Process groups exist already (trainer/optimizer.py)."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from autoconfig.specs.job import Job
from autoconfig.specs.measurement import RankFigures, Served
from autoconfig.trainer.host.live_memory import LiveMemory
from autoconfig.trainer.host.timers import PhaseTimers
from autoconfig.trainer.model import model_chunks, transformer_config
from autoconfig.trainer.optimizer import build_optimizer, data_parallel_chunks
from autoconfig.trainer.weights import microbatches, set_weights
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

COUNTED_STEPS = 2
"""Steps in which live storages are counted on a CPU: the first makes the optimizer state, the second is like all others.
Counting slows operators down, so these are warm-up steps where the job has that many."""


@dataclass
class Training:
    """Model, optimizer and schedule of one rank."""

    job: Job
    config: Any
    chunks: list[Any]
    optimizer: Any
    timers: PhaseTimers
    device: torch.device
    memory: LiveMemory | None = None
    """None on CUDA, whose allocator counts."""


@dataclass
class Progress:
    """What the steps have shown so far; kept apart, so that it outlives an out-of-memory error."""

    step_seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    phase_seconds: list[dict[str, float]] = field(default_factory=list)
    state_bytes: int = 0
    pipeline_stage: int = 0
    layer_seconds: dict[str, float] = field(default_factory=dict)
    """Emulated ranks: median seconds of one layer and micro-batch (trainer/host/timers.py)."""
    served: Served | None = None


def build(job: Job, device: torch.device, memory: LiveMemory | None) -> Training:
    """Model, gradient buffers and optimizer. On a CPU `memory` is entered by the caller. Raises InputError for a job that
    megatron-core cannot build."""
    config = transformer_config(job)
    chunks = model_chunks(job, config)
    if job.device == "cpu":
        set_weights(chunks, job.model, job.seed)
    wrapped = data_parallel_chunks(job, config, chunks)
    optimizer = build_optimizer(job, config, wrapped)
    config.timers = PhaseTimers(cuda=job.device == "cuda")
    config.finalize_model_grads_func = _timed(config.finalize_model_grads_func, config.timers)
    training = Training(job, config, wrapped, optimizer, config.timers, device, memory)
    if memory is None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    else:
        memory.reset_peak()
        _tag_state(training)
    return training


def _timed(finalize: Callable[..., None], timers: PhaseTimers) -> Callable[..., None]:
    """The reduction of gradients that the backward did not hide, as a phase of its own."""

    @functools.wraps(finalize)
    def called(*arguments: Any, **named: Any) -> None:
        with timers.phase("gradient_reduction"):
            finalize(*arguments, **named)

    return called


def train(
    training: Training, progress: Progress, memory_scope: Any, before_step: Callable[[int], None] = lambda _: None
) -> None:
    """All steps, warm-up first. `memory_scope` (the entered LiveMemory's ExitStack) is left after COUNTED_STEPS; `before_step`
    is told the number of each step."""
    job = training.job
    number = job.warmup_steps + job.steps
    for step in range(number):
        if step == COUNTED_STEPS:
            memory_scope.close()
        before_step(step)
        _one_step(training, step, progress)
        if dist.get_rank() == 0:
            seconds, loss = progress.step_seconds[-1], progress.losses[-1]
            kind = "warm-up" if step < job.warmup_steps else "timed"
            print(f"step {step + 1}/{number} ({kind}): {seconds:.4g} s, loss {loss:.4f}", flush=True)


def _one_step(training: Training, step: int, progress: Progress) -> None:
    dist.barrier()
    _synchronize(training)
    start = time.perf_counter()
    losses, norm = forward_backward_and_update(training, step)
    _synchronize(training)
    seconds = time.perf_counter() - start
    phases = training.timers.take()
    phases["other"] = max(0.0, seconds - sum(phases.values()))
    progress.state_bytes = int(torch.cuda.memory_allocated()) if training.memory is None else training.memory.current
    _tag_state(training)
    progress.step_seconds.append(_slowest(seconds, training.device))
    progress.losses.append(mean_over_ranks(losses, training.device))
    progress.gradient_norms.append(norm)
    progress.phase_seconds.append(phases)


def forward_backward_and_update(training: Training, step: int) -> tuple[list[torch.Tensor], float]:
    """One optimizer step through megatron-core's schedule: this rank's loss per micro-batch (last stage), gradient norm."""
    for chunk in training.chunks:
        chunk.zero_grad_buffer()
    training.optimizer.zero_grad()
    reports = forward_backward(training, step)
    with training.timers.phase("optimizer"):
        _, norm, _ = training.optimizer.step()
    return [report["loss"] for report in reports], float(norm)


def forward_backward(training: Training, step: int, forward: Callable[..., Any] | None = None) -> list[dict[str, torch.Tensor]]:
    """All micro-batches of a step, gradients reduced; the reports of the loss function. `forward`: of one micro-batch through
    one chunk, GPT's where it is not given."""
    job = training.job
    data = [microbatches(job, step, training.device) for _ in training.chunks]
    return get_forward_backward_func()(
        forward_step_func=forward or _forward,
        data_iterator=data if len(data) > 1 else data[0],
        model=training.chunks if len(data) > 1 else training.chunks[0],
        num_microbatches=job.num_microbatches,
        seq_length=job.workload.seq_length,
        micro_batch_size=job.plan.mbs,
        forward_only=False,
    )


def _forward(data: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
    """One micro-batch through one chunk; the attention mask is causal and made by the attention core."""
    batch = next(data)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, _loss


def _loss(output: torch.Tensor) -> Any:
    """Sum over tokens, their number, and the mean to report: megatron-core divides."""
    total = output.float().sum()
    count = torch.tensor(output.numel(), dtype=torch.int, device=output.device)
    return total, count, {"loss": total.detach() / count}


def mean_over_ranks(losses: list[torch.Tensor], device: torch.device) -> float:
    """Mean loss of the step over micro-batches and data- and context-parallel ranks; known to every rank."""
    here = bool(losses) and parallel_state.get_tensor_model_parallel_rank() == 0
    mean = torch.stack(losses).mean().double() if here else torch.zeros((), dtype=torch.float64, device=device)
    both = torch.stack([mean, torch.tensor(float(here), dtype=torch.float64, device=device)])
    dist.all_reduce(both)
    return float(both[0] / both[1])


def _slowest(seconds: float, device: torch.device) -> float:
    worst = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def _synchronize(training: Training) -> None:
    if training.memory is None:
        torch.cuda.synchronize()


def _tag_state(training: Training) -> None:
    if training.memory is None:
        return
    for category, tensors in state_tensors(training.chunks, training.optimizer).items():
        training.memory.tag(tensors, category)


def state_tensors(chunks: list[Any], optimizer: Any) -> dict[str, list[torch.Tensor]]:
    """The tensors that live between steps, by category. The first to name a storage keeps it."""
    weights = [parameter.data for chunk in chunks for parameter in chunk.parameters()]
    buffers = [buffer for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    gradients = [buffer.grad_data for buffer in buffers]
    known = {tensor.untyped_storage()._cdata for tensor in (*weights, *gradients)}
    state = []
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        adam = getattr(part, "optimizer", None)
        if adam is None:  # a rank without expert parameters
            continue
        masters = [parameter.data for group in adam.param_groups for parameter in group["params"]]
        moments = filter(torch.is_tensor, chain.from_iterable(values.values() for values in adam.state.values()))
        state += [tensor for tensor in (*masters, *moments) if tensor.untyped_storage()._cdata not in known]
    return {"weights": weights, "gradients": gradients, "optimizer": state}


def rank_figures(job: Job, rank: int, progress: Progress, memory: LiveMemory | None, device: torch.device) -> RankFigures:
    """What this rank has seen so far; may be asked at any moment, from any thread."""
    cuda = memory is None
    timed = list(progress.phase_seconds[job.warmup_steps :])
    names = sorted({name for phases in timed for name in phases})
    return RankFigures(
        rank=rank,
        pipeline_stage=progress.pipeline_stage,
        peak_allocated_bytes=int(torch.cuda.max_memory_allocated(device)) if memory is None else memory.peak,
        peak_reserved_bytes=int(torch.cuda.max_memory_reserved(device)) if cuda else None,
        state_bytes=progress.state_bytes,
        bytes_by_category={} if memory is None else {name: size for name, size in memory.peak_by_category.items() if size},
        layer_seconds=dict(progress.layer_seconds),
        phase_seconds={name: statistics.median(phases.get(name, 0.0) for phases in timed) for name in names},
    )
