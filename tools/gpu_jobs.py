"""Which jobs `make gpu` runs: emulated ranks of large published models, and a sweep of one that fits a single GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoconfig.specs.job import Job
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Workload

MICROBATCHES_PER_STAGE = 2
"""Micro-batches of an emulated rank over pipeline stages: enough that the first stage holds all that it ever holds."""
RECOMPUTE = ("selective:core_attn", "full:uniform:1", "none")
"""Most useful first: `none` of the large models is often out of memory, which is a result too."""


@dataclass(frozen=True)
class Case:
    """One model and plan whose ranks are emulated; `gpus` sets dp."""

    model: str
    gpus: int
    plan: str
    seq_length: int


CASES = (
    Case("gpt3-175b", 1024, "tp=8,pp=8,mbs=1,sp=1", 2048),
    Case("gpt3-175b", 1024, "tp=8,pp=16,mbs=1,sp=1", 2048),
    Case("gpt3-175b", 1024, "tp=4,pp=16,mbs=1,sp=1", 2048),
    Case("llama3-70b", 64, "tp=4,pp=4,mbs=1,sp=1", 8192),
    Case("llama3-70b", 64, "tp=8,pp=2,mbs=1,sp=1", 8192),
    Case("llama3-8b", 8, "tp=1,pp=1,mbs=1", 8192),
    Case("mixtral-8x7b", 64, "tp=1,pp=4,ep=8,mbs=1", 4096),
)
TINY_CASES = (Case("gpt3-126m", 4, "tp=1,pp=2,mbs=1", 64),)
SWEEP_MODEL, SWEEP_SEQ_LENGTH = "gpt3-1.7b", 2048
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
TINY_LIMIT_BYTES = 16 * 2**20
"""Memory limit of the tiny sweep: its larger micro-batches do not fit."""


def tiny(model: ModelSpec) -> ModelSpec:
    """Two layers, so that a CPU runs it in seconds."""
    sizes = {"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4, "num_query_groups": 4}
    return model.replace(name=f"tiny {model.name}", **sizes, kv_channels=16, vocab_size=512)


def rank_jobs(device: str, software: str, *, small: bool) -> list[tuple[str, Job]]:
    """(name, job): first, middle and last stage of every case, by recomputation."""
    jobs = []
    for recompute in RECOMPUTE[: 2 if small else None]:
        for case in TINY_CASES if small else CASES:
            model = tiny(load_model(case.model)) if small else load_model(case.model)
            plan = parse_plan(f"{case.plan},recompute={recompute}", case.gpus)
            for stage in sorted({0, plan.pp // 2, plan.pp - 1}):
                jobs.append((f"{model.name} {plan} stage {stage}", _rank_job(model, plan, stage, case, device, software)))
    return jobs


def _rank_job(model: ModelSpec, plan: TrainPlan, stage: int, case: Case, device: str, software: str) -> Job:
    """The first rank of one pipeline stage (rank order tp-cp-ep-dp-pp, Megatron's parallel_state.py)."""
    stage_layers(model, plan)
    batch = MICROBATCHES_PER_STAGE * plan.pp * plan.mbs * plan.dp
    return Job(
        model=model,
        plan=plan,
        workload=Workload(seq_length=case.seq_length, global_batch_size=batch),
        numerics=_numerics(),
        mode="emulate",
        device=device,
        software=software,
        steps=2,
        warmup_steps=1,
        rank=stage * plan.tp * plan.cp * plan.dp,
    )


def sweep_series(device: str, software: str, *, small: bool) -> Iterator[list[tuple[str, Job]]]:
    """By recomputation: (name, job) of rising micro-batch on one GPU; the first that does not fit ends its series."""
    model = tiny(load_model(SWEEP_MODEL)) if small else load_model(SWEEP_MODEL)
    for recompute in RECOMPUTE:
        series = []
        for mbs in MICRO_BATCHES:
            plan = parse_plan(f"tp=1,pp=1,mbs={mbs},recompute={recompute}", 1)
            job = Job(
                model=model,
                plan=plan,
                workload=Workload(seq_length=64 if small else SWEEP_SEQ_LENGTH, global_batch_size=2 * mbs),
                numerics=_numerics(),
                device=device,
                software=software,
                steps=2 if small else 5,
                warmup_steps=1 if small else 2,
                device_memory_bytes=TINY_LIMIT_BYTES if small else None,
            )
            series.append((f"{model.name} {plan}", job))
        yield series


def _numerics() -> Numerics:
    """BF16 without dropout."""
    return Numerics(precision="bf16", attention_dropout=0.0, hidden_dropout=0.0)
