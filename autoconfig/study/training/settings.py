"""What a study of training is about, as it is kept in the storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from autoconfig.planning.request_fields import OBJECTIVES
from autoconfig.planning.resolve import read_model
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.specs.units import parse_size
from autoconfig.study.settings import MeasuredQuestion
from autoconfig.study.this_machine import rank_memory_bytes
from autoconfig.training.question import Request

SAMPLES_PER_RANK = 4
"""Of the default global batch on a CPU: micro-batches of 1, 2 and 4, and jobs of seconds."""
MAX_SEQUENCE = 512
"""The default sequence length on a CPU is the model's, and this at most."""


@dataclass(frozen=True, kw_only=True)
class StudySettings(MeasuredQuestion):
    """Everything that decides which jobs a study of training runs."""

    request_type: ClassVar[type] = Request
    shown_only: ClassVar[tuple[str, ...]] = ("include", "sort_by", "top", "tokens", "price")

    request: Request
    objective: str = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective {self.objective!r}: use {', '.join(OBJECTIVES)}")

    @property
    def metrics(self) -> dict[str, str]:
        step = {"step seconds": "minimize"}
        return {**step, "memory headroom (GiB)": "maximize"} if self.objective == "headroom" else step


def settings_of_options(request: Request, options: Mapping[str, Any]) -> StudySettings:
    """What is measured, as the command line and the service are told. `options` may leave out all but what was given. Raises
    InputError."""
    if options.get("gpus_at_most") is not None:
        raise InputError(
            f"{option('profile')} measures on one number of GPUs: say {option('gpus')} N in place of {option('gpus_at_most')}"
        )
    if options.get("objective") == "cost" and not options.get("price"):
        raise InputError(f"{option('objective')} cost: say {option('price')} too, money per GPU and hour")
    memory = options.get("device_memory")
    kept = {name: options[name] for name in ("seed", "steps", "warmup_steps", "objective") if name in options}
    return StudySettings(
        request=request,
        device=options.get("device") or "cuda",
        device_memory_bytes=None if memory is None else parse_size(memory),
        **kept,
    )


def on_this_device(settings: StudySettings, table: Path | None) -> tuple[StudySettings, tuple[Remark, ...]]:
    """A CPU: its measured operators, the stack that runs there, a memory limit, a batch of seconds; with the defaults that only
    a CPU has, in words. A GPU: as asked, without a software its default stack. Raises InputError."""
    request = settings.request
    if settings.device != "cpu":
        if request.software is not None:
            return settings, ()
        request = replace(request, software=DEFAULT_STACK)  # no dated release, which the training core does not build
        return replace(settings, request=request), (Remark("software", DEFAULT_STACK, "which is measured", Effect.EVERYTHING),)
    if request.gpu or request.gpu_table or request.cluster:
        raise InputError(
            f"{option('device')} cpu measures this machine: leave {option('gpu')}, {option('gpu_table')} and "
            f"{option('cluster')} out"
        )
    ranks, assumed = request.gpus or 1, list[Remark]()
    limit = settings.device_memory_bytes
    if limit is None:
        limit = rank_memory_bytes(ranks)
        assumed.append(Remark("device_memory", limit / GIB, f"half of this machine's memory over {ranks}"))
    if request.seq_length is None:
        model, _ = read_model(request.model, local_files=request.local_files)
        most = model.default_seq_length or model.max_position_embeddings
        request = replace(request, seq_length=min(most, MAX_SEQUENCE))
        assumed.append(Remark("seq_length", request.seq_length, f"what the model allows, at most {MAX_SEQUENCE} on a CPU"))
    if request.global_batch_size is None:
        request = replace(request, global_batch_size=SAMPLES_PER_RANK * ranks)
        assumed.append(Remark("global_batch_size", request.global_batch_size, f"{SAMPLES_PER_RANK} for each rank of a CPU"))
    software, measured = request.software or "megatron-local", None if table is None else str(table)
    request = replace(request, gpu_table=measured, measured_here=True, gpus_per_node=ranks, software=software)
    return replace(settings, request=request, device_memory_bytes=limit), tuple(assumed)
