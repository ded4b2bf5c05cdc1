"""One rank of a job on fake tensors: the real megatron-core model, data parallelism, optimizer and schedule, and no GPU.

    trace_rank(request, rank) -> RankTrace

Bytes are of the GPU: where torch's CPU kernels keep other tensors than its CUDA kernels, or Transformer Engine is asked for,
stand-ins keep what those keep (gpu_kernels.py, te_stand_ins.py). The schedule runs as many micro-batches as it takes to have
the real number in flight. The optimizer's state is there as after the first step; the step itself is not run.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import megatron.core.pipeline_parallel.schedules as schedules
import torch
import torch._dynamo
from autoconfig.specs.job import Job, RankTrace, SavedTensor, TraceRequest, pipeline_stage
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.software.software import StackMemory
from autoconfig.trainer.host.cpu import cpu_for_cuda, patched, without_engine
from autoconfig.trainer.host.timers import PhaseTimers
from autoconfig.trainer.model import model_chunks, transformer_config
from autoconfig.trainer.optimizer import build_optimizer, data_parallel_chunks, initialize_groups
from autoconfig.trainer.tracing.encoders import encoder_chunk, encoder_forward
from autoconfig.trainer.tracing.fake_ranks import fake_process_group, fake_tensors, fixed_routing
from autoconfig.trainer.tracing.gpu_kernels import gpu_kernels, transformer_engine
from autoconfig.trainer.tracing.hybrids import hybrid_chunk, hybrid_kernels
from autoconfig.trainer.tracing.memory_log import MemoryLog
from autoconfig.trainer.training import Training, forward_backward, state_tensors
from autoconfig.trainer.weights import enough_microbatches
from megatron.core import parallel_state

CPU = torch.device("cpu")
LOSS_FUSIONS = {2.0: "te", 10.0: "native"}
"""`StackMemory.loss_bytes_per_logit` -> megatron-core's cross_entropy_fusion_impl; others run its unfused loss."""
SAVED_LAYER = ".layers.1."
"""The layer whose saved tensors are listed: the first one that is like all others."""


def trace_rank(request: TraceRequest, rank: int) -> RankTrace:
    """What rank `rank` of the request's job holds. Raises InputError for a job that megatron-core cannot build."""
    started = time.perf_counter()
    job = enough_microbatches(request.job, pipeline_stage(request.job.plan, rank))
    with _machine(job, request, rank), MemoryLog() as log:
        training = _build(job, request.memory)
        for category, tensors in state_tensors(training.chunks, training.optimizer).items():
            log.mark(category, tensors)
        state = log.at(log.now - 1)
        _watch(log, training)
        with _phases(log):
            forward_backward(training, 0, partial(encoder_forward, job) if job.model.encoder_num_layers else None)
        after = log.at(log.now - 1)
        peak = log.peak()
        stage = parallel_state.get_pipeline_model_parallel_rank()
    largest = sorted(peak.by_module.items(), key=lambda item: -sum(item[1].values()))
    return RankTrace(
        rank=rank,
        pipeline_stage=stage,
        seconds=time.perf_counter() - started,
        num_microbatches=job.num_microbatches,
        peak_bytes=peak.bytes,
        peak_phase=peak.phase,
        by_category=peak.by_category,
        by_module={name or "(outside)": sizes for name, sizes in largest},
        state_bytes=state.bytes,
        after_bytes=after.bytes,
        saved_tensors=saved_tensors(log),
    )


@contextlib.contextmanager
def _machine(job: Job, request: TraceRequest, rank: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch._dynamo.config.patch(disable=True))  # compiled kernels are stood in for
        stack.enter_context(cpu_for_cuda())
        stack.enter_context(without_engine())
        stack.enter_context(fake_process_group(rank, job.plan.world_size))
        initialize_groups(job)
        stack.enter_context(gpu_kernels())
        stack.enter_context(fixed_routing(job.numerics.moe_imbalance or 1.0))
        if job.software == "transformer-engine":
            memory, copies = request.memory, request.copies_attention_output and job.plan.mbs > 1
            stack.enter_context(transformer_engine(memory.cp_comm_type, memory.workspace_bytes, copies_output=copies))
        if job.model.is_hybrid:
            stack.enter_context(hybrid_kernels(job))
        stack.enter_context(fake_tensors())
        yield


def _build(job: Job, memory: StackMemory) -> Training:
    config = transformer_config(job, traced=True)
    fusion = LOSS_FUSIONS.get(memory.loss_bytes_per_logit)
    if fusion is not None:
        config.cross_entropy_loss_fusion, config.cross_entropy_fusion_impl = True, fusion
    build = encoder_chunk if job.model.encoder_num_layers else hybrid_chunk if job.model.is_hybrid else None
    chunks = data_parallel_chunks(job, config, model_chunks(job, config, build=build))
    optimizer = build_optimizer(job, config, chunks)
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "init_state_fn", None) is not None and getattr(part, "optimizer", None) is not None:
            part.init_state_fn(part.optimizer)
    config.timers = PhaseTimers(cuda=False)
    return Training(job, config, chunks, optimizer, config.timers, CPU)


def _watch(log: MemoryLog, training: Training) -> None:
    log.vocabulary = int(padded_vocab_size(training.job.model, training.job.plan.tp)) // training.job.plan.tp
    for chunk in training.chunks:
        log.watch(chunk)
        model = chunk.module
        while hasattr(model, "module"):
            model = model.module
        model.compute_language_model_loss = _inside(log.scope, "loss", model.compute_language_model_loss)


def _inside(scope: Callable[[str], Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        with scope(name):
            return function(*arguments, **named)

    return called


def _phases(log: MemoryLog) -> contextlib.AbstractContextManager[None]:
    """megatron-core's schedules run each pass through these two functions."""
    steps = (("forward", "forward_step"), ("backward", "backward_step"))
    return patched([(schedules, name, _inside(log.phase, kind, getattr(schedules, name))) for kind, name in steps])


def saved_tensors(log: MemoryLog) -> list[SavedTensor]:
    """What the first forward pass of layer 1 (0 where there is no other) left for its backward, in the order of birth."""
    first = next((phase.number for phase in log.phases if phase.kind == "forward"), -1)
    saved = [r for r in log.storages if r.phase == first and log.category(r) == "activations"]
    marker = SAVED_LAYER if any(SAVED_LAYER in f"{r.module}." for r in saved) else SAVED_LAYER.replace("1", "0")
    of_layer = [r for r in saved if marker in f"{r.module}."]
    counts = Counter((r.module.split(marker.rstrip("."))[-1].lstrip("."), r.operator, r.size) for r in of_layer)
    return [SavedTensor(module=m or "(layer)", operator=o, bytes=size, count=n) for (m, o, size), n in counts.items()]
