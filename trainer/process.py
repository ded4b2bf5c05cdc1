"""One rank as a process: device, process groups, the run, and how it ends (trainer/peers.py).

An emulated rank runs real tensors and kernels without its peers: collectives return at once (trainer/tracing/fake_ranks.py),
what they would bring is what the rank has itself (memory as it lies is often not a number, on which a GPU's matrix units draw
less power and run up to a fifth faster than on data: seen, H100). Time and memory are the rank's own: the planner adds what
collectives cost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import socket
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from autoconfig.kernels import nvml
from autoconfig.specs.job import Job
from autoconfig.specs.json_record import from_json, to_json
from autoconfig.specs.measurement import ExitCode, Measurement, RankFigures, step_statistics
from autoconfig.trainer.host.cpu import cpu_for_cuda, without_engine
from autoconfig.trainer.host.live_memory import LiveMemory
from autoconfig.trainer.host.timers import Apart, LayerTimers
from autoconfig.trainer.optimizer import parallel_groups
from autoconfig.trainer.peers import Failure, Lost, Peers, classify, say_failure
from autoconfig.trainer.result_file import ResultFile, say
from autoconfig.trainer.tracing.fake_ranks import fake_process_group, fixed_routing, made_up_by
from autoconfig.trainer.training import Progress, build, rank_figures, train
from autoconfig.trainer.weights import enough_microbatches
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

NOISE_STD = 0.02


@contextlib.contextmanager
def without_peers(job: Job, apart: Apart) -> Iterator[None]:
    """torch.distributed as rank `job.rank` of the plan's world. Time spent on making up what peers would bring is `apart`."""
    assert job.rank is not None
    plain = P2PCommunicator._communicate

    def communicate(*arguments: Any, **named: Any) -> Any:
        received = plain(*arguments, **named)
        for tensor in received[:2]:
            if isinstance(tensor, torch.Tensor):
                tensor.data.normal_(std=NOISE_STD)
        return received

    with (
        fake_process_group(job.rank, job.plan.world_size),
        made_up_by(apart),
        fixed_routing(job.numerics.moe_imbalance or 1.0, values=True),
        mock.patch.object(P2PCommunicator, "_communicate", communicate),
    ):
        yield


def versions() -> dict[str, str]:
    """Of python, torch, megatron-core, transformer-engine, cuda, nccl and driver: those that are there."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("megatron-core", "transformer-engine"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda and torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found |= {name: str(value) for name, value in nvml.sample().items() if name == "driver" and value}
    return found


def device_name(device: str) -> str:
    """The GPU's name, or the CPU's with the number of threads that torch uses."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads a rank"


def numbers(values: list[float]) -> tuple[float | None, ...]:
    """JSON has no word for what is not finite."""
    return tuple(value if math.isfinite(value) else None for value in values)


class Process:
    """What one rank knows of itself."""

    def __init__(self, job: Job, result: ResultFile) -> None:
        self.job = job
        self.result = result
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.progress = Progress()
        self.apart = Apart()
        self.started = time.monotonic()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", local) if job.device == "cuda" else torch.device("cpu")
        self.memory = LiveMemory(job.device_memory_bytes) if job.device == "cpu" else None

    def figures(self) -> str:
        rank = self.rank if self.job.rank is None else self.job.rank
        return json.dumps(to_json(rank_figures(self.job, rank, self.progress, self.memory, self.device)))

    def write(self, failure: Failure | None, told: list[str]) -> Failure | None:
        try:
            self.result.write(self._measurement(failure, told))
        except OSError as error:
            return Failure(ExitCode.DISK, f"{self.result.path} cannot be written: {error.strerror or error}")
        return failure

    def _measurement(self, failure: Failure | None, told: list[str]) -> Measurement:
        job, progress = self.job, self.progress
        status = "ran" if failure is None else "oom" if failure.code is ExitCode.OUT_OF_MEMORY else "failed"
        timed = tuple(progress.step_seconds[job.warmup_steps :])
        ranks = (from_json(RankFigures, json.loads(text), "figures") for text in told if text)
        return Measurement(
            job_hash=job.content_hash,
            plan=str(job.plan),
            mode=job.mode,
            status=status,
            exit_code=int(ExitCode.RAN if failure is None else failure.code),
            message="" if failure is None else failure.message,
            ranks=tuple(sorted(ranks, key=lambda figures: figures.rank)),
            warmup_seconds=tuple(progress.step_seconds[: job.warmup_steps]),
            losses=numbers(progress.losses),
            gradient_norms=numbers(progress.gradient_norms),
            software=job.software,
            attention_kernel=job.attention_kernel,
            device=device_name(job.device),
            versions=versions(),
            host=socket.gethostname(),
            wall_seconds=time.monotonic() - self.started,
            served=progress.served if failure is None else None,
            **(step_statistics(timed) if timed and failure is None else {}),
        )


def run_process(job: Job, result: ResultFile, peer_timeout: float) -> ExitCode:
    """Run this rank to its end. Returns the exit code, the same for all ranks that can still hear each other."""
    process = Process(job, result)
    if job.device == "cuda" and (reason := _no_device()) is not None:
        say(f"no device: rank {process.rank}: {reason}")
        return ExitCode.NO_DEVICE
    try:
        store = _store(process, peer_timeout)
    except Exception as error:  # torch raises several kinds; all of them mean that the others did not come
        return say_failure(classify(Lost(error), process.rank))
    peers = Peers(store.clone(), process.rank, process.world_size, peer_timeout)
    peers.figures, peers.write, peers.clean_up = process.figures, process.write, process.result.clean_up
    peers.start()
    return peers.finish(_run(process, store, peer_timeout))


def _run(process: Process, store: Any, peer_timeout: float) -> Failure | None:
    job = process.job
    try:
        with contextlib.ExitStack() as scope:
            if job.device == "cpu":
                scope.enter_context(cpu_for_cuda())
            else:
                _use_gpu(job, process.device)
            scope.enter_context(without_engine())
            if job.mode == "emulate":
                scope.enter_context(without_peers(job, process.apart))
            else:
                dist.init_process_group(
                    "gloo" if job.device == "cpu" else "nccl",
                    store=dist.PrefixStore("group", store),
                    rank=process.rank,
                    world_size=process.world_size,
                    timeout=timedelta(seconds=peer_timeout),
                )
            scope.enter_context(parallel_groups(job, peer_timeout))
            process.progress.pipeline_stage = parallel_state.get_pipeline_model_parallel_rank()
            _train(process)
    except Exception as error:
        failure = classify(error, process.rank)
        if failure.code is ExitCode.CRASHED:
            traceback.print_exc()
        return failure
    return None


def _train(process: Process) -> None:
    with contextlib.ExitStack() as counted:
        if process.memory is not None:
            counted.enter_context(process.memory)
        if process.job.mode == "emulate":
            _emulate(process, counted)
        elif process.job.mode == "generate":
            # megatron-core's inference moves between releases: training does without
            from autoconfig.trainer.generate import generate

            generate(process.job, process.progress, process.memory, counted)
        else:
            train(build(process.job, process.device, process.memory), process.progress, counted)


def _emulate(process: Process, counted: contextlib.ExitStack) -> None:
    """The steps of one rank without peers; layers are timed in the steps after the warm-up. Its losses mean nothing."""
    job, progress = enough_microbatches(process.job), process.progress
    training = build(job, process.device, process.memory)
    layers = LayerTimers(training.timers.mark, training.timers.seconds, process.apart)

    def before_step(step: int) -> None:
        if step == job.warmup_steps:
            layers.attach(training.chunks)

    try:
        train(training, progress, counted, before_step)
    finally:
        progress.losses.clear()
        progress.gradient_norms.clear()
    layers.detach()
    progress.layer_seconds = layers.medians()


def _store(process: Process, timeout: float) -> Any:
    """The store that torchrun keeps; without torchrun, a single process's own."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "localhost")):
        os.environ.setdefault(name, value)
    if "MASTER_PORT" not in os.environ:
        if process.world_size > 1:
            raise Lost("MASTER_PORT is not set; start the ranks with torchrun")
        return dist.TCPStore("localhost", 0, 1, is_master=True, timeout=timedelta(seconds=timeout))
    store, _, _ = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=timeout))))
    return store


def _no_device() -> str | None:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if not torch.cuda.is_available():
        return 'device cuda: torch finds no usable GPU; run on a machine with one, or set "device": "cpu"'
    if local >= torch.cuda.device_count():
        return f"local rank {local} has no GPU: this machine has {torch.cuda.device_count()}; start fewer processes per node"
    return None


def _use_gpu(job: Job, device: torch.device) -> None:
    torch.cuda.set_device(device)
    if job.device_memory_bytes is not None:
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, job.device_memory_bytes / total), device)
