"""What a launch script leaves out that its job will miss: named by `check`, each with its cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.read import OVERLAPS, is_modern
from autoconfig.megatron.write import overlap_arguments
from autoconfig.specs.errors import GIB
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import load_stack
from autoconfig.training.price import report_plan

MASK, FUSION = "--no-create-attention-mask-in-dataloader", "--moe-permute-fusion"
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
MASK_BYTES, LARGE_MASK = 4, 1.0
"""Bytes of an element while GPTDataset makes it (torch.ones in megatron/core/datasets/gpt_dataset.py), and GiB of a sample from
which on it is named."""
APEX = (
    "Apex: without its norms local layers refuse sequence parallelism (assertion of megatron-core 0.19.2, "
    "transformer/torch_norm.py); the answer takes it to be installed"
)
SINCE = {FUSION: 2025, MASK: 2024}
"""Years of the software that first knows the arguments (data/megatron_arguments.csv)."""

WORTH_NAMING = 0.0005
"""Share of a step below which a missing overlap is not named."""


def omissions(source: CheckInput) -> tuple[str, ...]:
    """Return sentences; none for files of other launchers, for encoders and for software of other years. What the file mentions
    at all, be it under a condition or with underscores (other trainers' files), counts as given."""
    script, scenario = source.script, source.question.scenario
    stack = scenario.software
    if script is None or scenario.model.encoder_num_layers:
        return ()
    lines = [APEX] if source.plan.sp and not stack.memory.norms_fused and stack.sharding == "megatron" else []
    if stack.memory.attention_kernel != "flash":
        return tuple(lines)
    lines += _absent_arguments(source)
    if source.kind == "script" and ALLOCATOR not in source.text and not scenario.settings().cuda_graphs:
        lines.append(f"{ALLOCATOR}=expandable_segments:True in the environment: less memory is lost to fragments")
    return tuple(lines)


def _absent_arguments(source: CheckInput) -> Iterator[str]:
    """Return sentences on arguments that the file's software knows and the file does not mention."""
    scenario, text = source.question.scenario, source.text.replace("_", "-")
    year = scenario.software.year
    absent = {flag for flag, since in SINCE.items() if year >= since and flag.removeprefix("--") not in text}
    gib = MASK_BYTES * scenario.workload.seq_length**2 / GIB
    if MASK in absent and gib >= LARGE_MASK:
        yield f"{MASK}: without it the data loader builds a mask of {gib:,.3g} GiB a sample, which no kernel reads"
    if FUSION in absent and scenario.model.is_moe and scenario.settings().dispatcher != "allgather":
        yield f"{FUSION}: the prediction takes tokens to be permuted by fused kernels (Transformer Engine 2.1 or later)"


@dataclass(frozen=True, kw_only=True)
class MissingOverlap:
    """An argument that is legal for the file's plan and not given."""

    flag: str
    """The argument."""
    saved_seconds: float
    """A step, beside the missing ones named before it: weights are gathered beside the forward only where gradients are reduced
    beside the backward."""


def with_overlaps(scenario: Scenario) -> Scenario:
    """Return the scenario with every overlap that its stack has; itself for software of other years, whose arguments know
    none."""
    if not (is_modern(scenario.software.name) or scenario.software.release):
        return scenario
    time, usual = scenario.software.time, load_stack(scenario.software.name).time
    on = {field: max(getattr(time, field), getattr(usual, field)) for _, field in OVERLAPS}
    return replace(scenario, software=replace(scenario.software, time=replace(time, **on)))


def missing_overlaps(scenario: Scenario, plan: TrainPlan) -> tuple[MissingOverlap, ...]:
    """Return what is legal for a legal plan and left out, in Megatron's order, with what it saves."""
    wanted = with_overlaps(scenario)
    written = {argument.flag for argument in overlap_arguments(scenario, plan)}
    missing = [argument.flag for argument in overlap_arguments(wanted, plan) if argument.flag not in written]
    missed, before, now = [], report_plan(scenario, plan).step_seconds if missing else 0.0, scenario
    for flag in missing:
        field = dict(OVERLAPS)[flag]
        time = replace(now.software.time, **{field: getattr(wanted.software.time, field)})
        now = replace(now, software=replace(now.software, time=time))
        seconds = report_plan(now, plan).step_seconds
        if before - seconds > WORTH_NAMING * before:
            missed.append(MissingOverlap(flag=flag, saved_seconds=before - seconds))
        before = seconds
    return tuple(missed)
