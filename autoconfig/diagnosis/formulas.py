"""Figures that runs print instead of a step time (tokens/s, TFLOPS, MFU), and the formulas that people print them by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.models.parameters import active_matmul_parameters, total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import CONVENTIONS, flops_per_step

TERA = 1e12
CONVENTION_OF = {"megatron-bridge": "causal"}
"""Format of a log (data/log_lines.toml) -> what its TFLOPS count: Megatron-Bridge half of the attention matrix, the others
(Megatron-LM's num_floating_point_operations, torchtitan, InternEvo, nanotron) all of it."""


def convention_of(log_format: str) -> str:
    """What the TFLOPS of a log's format count (CONVENTIONS)."""
    return CONVENTION_OF.get(log_format, "full")


def seconds_of_tokens(scenario: Scenario, tokens_per_s_per_gpu: float) -> float:
    """Step time of a rate of tokens."""
    return scenario.workload.tokens_per_step / scenario.cluster.num_gpus / tokens_per_s_per_gpu


def seconds_of_tflops(scenario: Scenario, plan: TrainPlan, tflops: float, convention: str = "causal") -> float:
    """Step time of a rate of 10^12 model FLOPs per second and GPU, counted by one of CONVENTIONS."""
    return flops_per_step(scenario, convention, plan.recompute) / scenario.cluster.num_gpus / (tflops * TERA)


def seconds_of_mfu(scenario: Scenario, plan: TrainPlan, mfu: float, convention: str = "causal") -> float:
    """Step time of a share of the dense peak, of the GEMMs' precision."""
    peak = scenario.cluster.gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
    return seconds_of_tflops(scenario, plan, mfu * peak / TERA, convention)


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A way to count, and what it gives: 10^12 FLOPs per second and GPU, or a share of a peak."""

    words: str
    value: float


def right_tflops(scenario: Scenario, plan: TrainPlan, step_seconds: float) -> list[Formula]:
    """TFLOPS of a GPU by every counting that is in use.

    CONVENTIONS of `price.flops_per_step`; 6 N of Kaplan et al. 2020 with and without embeddings; 6 N + 12 L h s of PaLM
    (Chowdhery et al. 2022, appendix B); 8 N with full recomputation (Narayanan et al. 2021).
    """
    gpus, tokens, model = scenario.cluster.num_gpus, scenario.workload.tokens_per_step, scenario.model
    matrices, every = active_matmul_parameters(model), total_parameters(model)
    embedding = model.vocab_size * model.hidden_size
    attention = 12.0 * model.num_layers * model.hidden_size * scenario.workload.attended_length
    counted = {name: flops_per_step(scenario, name, plan.recompute) for name in CONVENTIONS}
    counted |= {
        "6 N": 6.0 * (matrices + embedding) * tokens,
        "6 N without the embedding": 6.0 * matrices * tokens,
        "6 N + 12 L h s": (6.0 * (matrices + embedding) + attention) * tokens,
    }
    if plan.recompute.granularity == "full":
        counted["8 N"] = 8.0 * matrices * tokens
        counted["8 N + 16 L h s"] = (8.0 * matrices + attention * 4 / 3) * tokens
    return [Formula(words=words, value=flops / step_seconds / gpus / TERA) for words, flops in counted.items()] + (
        [Formula(words="6 N of all experts", value=6.0 * every * tokens / step_seconds / gpus / TERA)]
        if scenario.model.is_moe
        else []
    )


def wrong_factors(scenario: Scenario, plan: TrainPlan) -> Iterator[tuple[str, float]]:
    """(what was done, by which factor the figure is then off) of slips that reports hold."""
    cluster, batch = scenario.cluster, scenario.workload.global_batch_size
    micro_batches = batch // max(1, plan.dp * plan.mbs)
    yield "the forward pass alone counted", 1 / 3
    yield "the backward pass alone counted", 2 / 3
    yield "a multiplication and an addition counted as one", 1 / 2
    yield "FLOPs counted twice", 2.0
    for words, count in (
        ("one micro-batch counted in place of the step's", micro_batches),
        ("divided by the GPUs of all data-parallel replicas once more", plan.dp),
        ("divided by the GPUs of a node once more", cluster.gpus_per_node),
        ("divided by the tensor-parallel size once more", plan.tp),
        ("divided by the number of GPUs once more", cluster.num_gpus),
    ):
        if count > 1:
            yield words, 1.0 / count
    for words, count in (
        ("not divided by the number of GPUs", cluster.num_gpus),
        ("not divided by the GPUs of a node", cluster.gpus_per_node),
        ("every tensor-parallel rank's tokens counted", plan.tp),
        ("every rank's tokens counted, of tensor, context and pipeline parallelism", plan.tp * plan.cp * plan.pp),
    ):
        if count > 1:
            yield words, float(count)


def own_peaks(scenario: Scenario) -> list[tuple[str, float]]:
    """(which peak of this GPU, TFLOPS) beside the right one, each rate once: of other precisions, with sparsity."""
    gpu = scenario.cluster.gpu
    precision, right = scenario.numerics.gemm_precision, gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
    words: dict[float, list[str]] = {2 * right: [f"{precision} with sparsity"]}
    for kind, rate in gpu.flops_per_s.items():
        if abs(rate / right - 1) > 0.01:
            same = next((known for known in words if abs(known / rate - 1) < 0.01), rate)
            words.setdefault(same, []).append(kind)
    return [(f"{gpu.id} in {' or in '.join(kinds)}", rate / TERA) for rate, kinds in words.items()]


def peaks_of_others(scenario: Scenario) -> list[tuple[str, float]]:
    """(GPU, TFLOPS in 16 bits) of the other GPUs of the catalogue, those that are met most first."""
    gpu = scenario.cluster.gpu
    right = gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
    names = sorted(gpu_ids(), key=lambda name: name not in ("h100-sxm-80gb", "a100-80gb", "v100-32gb"))
    rates = [(name, load_gpu(name).sixteen_bit_flops_per_s) for name in names if name != gpu.id]
    return [(name, rate / TERA) for name, rate in rates if rate and abs(rate / right - 1) > 0.01]


def other_peaks(scenario: Scenario) -> list[tuple[str, float]]:
    """(which peak was taken, TFLOPS) beside the right one: of this GPU, then of others."""
    return [*own_peaks(scenario), *peaks_of_others(scenario)]


def catalogue_peaks() -> list[tuple[str, float]]:
    """(GPU and precision, dense peak in TFLOPS) of the whole catalogue."""
    return [(f"{name} in {kind}", rate / TERA) for name in gpu_ids() for kind, rate in load_gpu(name).flops_per_s.items()]
