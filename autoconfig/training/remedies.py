"""What would make a model fit: every suggestion is tried before it is made, and says what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.training.question import Question
from autoconfig.training.rank import Ranking, rank_plans
from autoconfig.training.space import Constraints

GROWTH = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Cluster sizes tried, in multiples of the one asked for."""
LARGER_GPUS_TRIED = 4


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change and what it does."""

    change: str
    """In words, with the option that makes it."""
    fits: bool
    plan: TrainPlan | None = None
    step_seconds: float | None = None
    still_short_gib: float | None = None
    """Where it does not fit: what the nearest plan still lacks."""

    def __str__(self) -> str:
        if self.fits:
            return f"{self.change}: {self.plan} at {self.step_seconds:,.2f} s a step"
        return f"{self.change}: still {self.still_short_gib:,.1f} GiB too much"


def remedies(question: Question) -> list[Remedy]:
    """Changes that make it fit, and savings that alone do not; options that were given already are not repeated."""
    found: list[Remedy] = []
    savings = list(_savings(question))
    for change, scenario, constraints in savings:
        found += _tried(change, scenario, constraints, question)
    if len(savings) > 1:
        everything, constraints = question.scenario, question.constraints
        for _, scenario, changed in savings:
            everything = replace(everything, numerics=_merged(everything, scenario, question.scenario))
            constraints = changed if changed is not question.constraints else constraints
        found += _tried("all of these together", everything, constraints, question)
    found += _larger_gpus(question)
    found += _more_gpus(question)
    return found


def _merged(so_far: Scenario, changed: Scenario, original: Scenario) -> Numerics:
    before, after = vars(original.numerics), vars(changed.numerics)
    return replace(so_far.numerics, **{key: after[key] for key in before if after[key] != before[key]})


def _savings(question: Question) -> Iterator[tuple[str, Scenario, Constraints]]:
    """(words, scenario, constraints) of every saving that is not in use yet."""
    scenario, numerics = question.scenario, question.scenario.numerics
    if numerics.peft != "none":
        return
    fixed = question.constraints.fixed
    if "offload" not in fixed and fixed.get("dist_opt", {True}) != {False}:
        constraints = replace(question.constraints, fixed={**fixed, "offload": frozenset({1.0})})
        yield "optimizer state on the CPU (--fix offload=1)", scenario, constraints
    if numerics.grad_reduce_dtype == "fp32":
        half = replace(scenario, numerics=replace(numerics, grad_reduce_dtype="bf16"))
        yield "gradients in bf16 (--grad-reduce-dtype bf16)", half, question.constraints
    if numerics.exp_avg_dtype == "fp32" and numerics.precision != "fp32":
        half = replace(scenario, numerics=replace(numerics, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"))
        yield "optimizer moments in bf16 (--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16)", half, question.constraints


def _larger_gpus(question: Question) -> list[Remedy]:
    """The first GPU type with more memory, ascending, on which as many GPUs are enough."""
    scenario = question.scenario
    larger = sorted(
        (gpu for gpu in map(load_gpu, gpu_ids()) if gpu.memory_bytes > scenario.cluster.gpu.memory_bytes),
        key=lambda gpu: gpu.memory_bytes,
    )
    step = max(1, len(larger) // LARGER_GPUS_TRIED)
    for gpu in larger[step - 1 :: step]:
        try:
            gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
            changed = replace(scenario, cluster=cluster_of(gpu, scenario.cluster.num_gpus))
        except InputError:
            continue
        tried = _tried(
            f"{scenario.cluster.num_gpus} x {gpu.id} instead (--gpu {gpu.id})", changed, question.constraints, question
        )
        if tried and tried[0].fits:
            return tried
    return []


def _more_gpus(question: Question) -> list[Remedy]:
    """The smallest tried multiple of the cluster on which it fits."""
    scenario = question.scenario
    node = scenario.cluster.gpus_per_node
    for factor in GROWTH:
        count = -(-int(scenario.cluster.num_gpus * factor) // node) * node
        try:
            changed = scenario.on(num_gpus=count)
        except InputError:
            return []
        tried = _tried(f"{count} GPUs of the same kind (--gpus {count})", changed, question.constraints, question)
        if tried and tried[0].fits:
            return tried
    return []


def _tried(change: str, scenario: Scenario, constraints: Constraints, question: Question) -> list[Remedy]:
    """The change with its outcome; nothing where it leaves no legal plan."""
    ranking: Ranking = rank_plans(scenario, constraints, question.request.memory_margin)
    if len(ranking.best):
        return [
            Remedy(
                change=change, fits=True, plan=ranking.plan(int(ranking.best[0])), step_seconds=float(ranking.step_seconds[0])
            )
        ]
    if ranking.closest is None:
        return []
    return [Remedy(change=change, fits=False, still_short_gib=ranking.closest.excess_bytes / GIB)]
