"""`autoconfig rl`: from what was asked to ranked placements of a step of post-training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Any

from autoconfig.planning.resolve import read_model
from autoconfig.post_training.calibration import read_calibration
from autoconfig.post_training.frameworks import (
    Constants,
    constants_of,
    load_algorithm,
    load_framework,
    section,
    shipped_constants,
)
from autoconfig.post_training.generation import generate
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.lengths import ResponseLengths
from autoconfig.post_training.memory import PhaseMemory, phase_memory
from autoconfig.post_training.passes import pass_seconds, training_seconds
from autoconfig.post_training.placements import placements
from autoconfig.post_training.step import PHASES, Phases, class_marks, priced_phases, scaled
from autoconfig.specs.errors import GIB, InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import load_gpu

USUAL_TOKENS_PER_GPU = 8192
STANDARD_90 = 1.645
"""Half a 90 % interval of a normal law, in standard deviations."""
MAX_GPUS = 16_384
MOST_STALENESS = 8
GROWTH = (2, 4, 8, 16)
"""Multiples of the GPUs that are tried where nothing fits."""


@dataclass(frozen=True, kw_only=True)
class PricedPlacement:
    """A placement, its step and its memory."""

    placement: Placement
    phases: Phases
    memory: PhaseMemory
    band: tuple[float, float]
    """5 % and 95 % bound of the step."""

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def binds(self) -> str:
        """The phase that takes longest."""
        return max(PHASES, key=lambda name: float(getattr(self.phases, name)))


@dataclass(frozen=True, kw_only=True)
class RlAnswer:
    """Placements that fit, quickest first."""

    job: PostTrainingJob
    gpus: int
    assumed: tuple[str, ...]
    ranked: tuple[PricedPlacement, ...]
    considered: int
    nearest: PricedPlacement | None = None
    """Where none fits: the one that lacks least."""
    remedy: str = ""
    one_more_node: float | None = None
    """Seconds of the best step with one more node."""


def answer(given: Mapping[str, Any]) -> RlAnswer:
    """The answer to a question of `autoconfig rl`. Raises InputError naming what cannot be used and what is allowed."""
    assumed: list[str] = []
    top = _whole({"top": given.get("top", 5)}, "top", None, assumed, 1000)
    job, gpus, tokens, staleness = _understand(given, assumed)
    own = given.get("calibration")
    known = read_calibration(own).applied() if own else None
    found = ranked(job, gpus, tokens, staleness, known)
    fits = [one for one in found if one.memory.fits]
    node = job.gpu.gpus_per_node
    if fits:
        more = (
            [one for one in ranked(job, gpus + node, tokens, staleness, known) if one.memory.fits] if gpus % node == 0 else []
        )
        best = fits[:top]
        seconds = more[0].seconds if more else None
        return RlAnswer(
            job=job, gpus=gpus, assumed=tuple(assumed), ranked=tuple(best), considered=len(found), one_more_node=seconds
        )
    nearest = min(found, key=lambda one: _lacking(one.memory), default=None)
    remedy = _remedy(job, gpus, tokens, staleness)
    return RlAnswer(
        job=job, gpus=gpus, assumed=tuple(assumed), ranked=(), considered=len(found), nearest=nearest, remedy=remedy
    )


def _lacking(memory: PhaseMemory) -> float:
    return max(memory.generation_bytes, memory.training_bytes) + (0 if memory.engine_holds_a_sequence else memory.device_bytes)


def _remedy(job: PostTrainingJob, gpus: int, tokens: int, staleness: int) -> str:
    """One change that makes the job fit, tried before it is said."""
    even = _spread(job.prompts, gpus)
    if even != job.prompts:
        more = replace(job, prompts=even, minibatch=even * job.group if job.minibatch == job.samples else job.minibatch)
        if any(one.memory.fits for one in ranked(more, gpus, tokens, staleness)):
            return f"{job.samples:,} samples do not divide over {gpus} GPUs; {option('prompts')} {even} does and fits"
    shorter = max(1024, tokens // 2)
    if shorter < tokens and any(one.memory.fits for one in ranked(job, gpus, shorter, staleness)):
        return f"{option('tokens_per_gpu')} {shorter} fits"
    for times in GROWTH:
        if gpus * times <= MAX_GPUS and any(one.memory.fits for one in ranked(job, gpus * times, tokens, staleness)):
            return f"{option('gpus')} {gpus * times} fits"
    return f"nothing that was tried fits: half of {option('tokens_per_gpu')}, up to {GROWTH[-1]} times the GPUs"


def price(job: PostTrainingJob, placement: Placement, known: Constants | None = None) -> PricedPlacement:
    """The step and the memory of one placement."""
    rollout = generate(job, placement) if job.algorithm.generates else None
    phases, _ = priced_phases(job, placement, rollout)
    return _with_constants(job, placement, phases, phase_memory(job, placement, rollout), known or shipped_constants())


def _with_constants(
    job: PostTrainingJob, placement: Placement, phases: Phases, memory: PhaseMemory, known: Constants
) -> PricedPlacement:
    constants = constants_of(known, job.framework.name, class_marks(job, placement))
    final = scaled(job, placement, phases, constants)
    width = exp(STANDARD_90 * constants.scatter)
    return PricedPlacement(placement=placement, phases=final, memory=memory, band=(final.total / width, final.total * width))


def ranked(
    job: PostTrainingJob, gpus: int, tokens: int, staleness: int, known: Constants | None = None
) -> list[PricedPlacement]:
    """All placements, those that fit first, the quickest first of these; what shares engines or plans is priced once."""
    generated: dict[Any, Any] = {}
    trained: dict[Any, tuple[float, float]] = {}
    known, found = known or shipped_constants(), []
    for placement in placements(job, gpus, tokens, staleness):
        key = placement.engine, placement.memory_share, placement.staleness
        if job.algorithm.generates and key not in generated:
            generated[key] = generate(job, placement)
        rollout = generated.get(key)
        other = placement.train, placement.tokens_per_gpu
        if other not in trained:
            trained[other] = training_seconds(job, placement), pass_seconds(job, placement)
        phases, _ = priced_phases(job, placement, rollout, trained[other])
        found.append(_with_constants(job, placement, phases, phase_memory(job, placement, rollout), known))
    ordered = sorted(found, key=lambda one: (not one.memory.fits, one.seconds, one.placement.offload))
    return _distinct(ordered)


def _distinct(ordered: list[PricedPlacement]) -> list[PricedPlacement]:
    """Of placements that differ in the engine's share or offload alone, the first."""
    seen, kept = set(), []
    for one in ordered:
        key = replace(one.placement, memory_share=0.5, offload=False)
        if key not in seen:
            seen.add(key)
            kept.append(one)
    return kept


def _whole(given: Mapping[str, Any], name: str, default: int | None, assumed: list[str], most: int = 2**24) -> int:
    value = given.get(name)
    if value is None:
        if default is None:
            raise InputError(f"Missing option '{option(name)}'")
        assumed.append(f"{name.replace('_', ' ')} {default:,}")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(f"{option(name)} {value!r}: use a whole number from 1 to {most:,}")
    return value


def _understand(given: Mapping[str, Any], assumed: list[str]) -> tuple[PostTrainingJob, int, int, int]:
    """(job, GPUs, tokens of a packed micro-batch, most staleness)."""
    if given.get("model") is None:
        raise InputError(f"Missing option '{option('model')}': say {option('model')} qwen2.5-7b (autoconfig models lists them)")
    policy, notes = read_model(given["model"], local_files=True)
    assumed += notes
    if policy.is_hybrid:
        raise UnsupportedError(f"{policy.name} is a hybrid: generation prices attention, MLP and expert layers; use search")
    gpus = _whole(given, "gpus", None, assumed, MAX_GPUS)
    algorithm = load_algorithm(str(given.get("algorithm") or "grpo"))
    framework = load_framework(str(given.get("framework") or "verl"))
    usual = section("lengths")
    prompts = _whole(given, "prompts", _spread(framework.prompts, gpus), assumed)
    alone = algorithm.critic or not algorithm.generates
    group = _whole(given, "group_size", 1 if alone else framework.group, assumed)
    prompt = _whole(given, "prompt_length", usual["prompt_tokens"], assumed)
    mean, cap = given.get("response_length"), given.get("max_response_length")
    if cap is None:
        cap = 4 * (mean or usual["response_tokens"])
        assumed.append(f"responses of at most {cap:,} tokens")
    if mean is None:
        mean = min(round(usual["response_share_of_cap"] * cap), usual["response_tokens_at_most"])
        assumed.append(f"responses of {mean:,} tokens on average")
    cap = _whole({"max_response_length": cap}, "max_response_length", None, assumed)
    mean = _whole({"response_length": mean}, "response_length", None, assumed)
    staleness = given.get("staleness")
    if staleness is not None and (not isinstance(staleness, int) or not 0 <= staleness <= MOST_STALENESS):
        raise InputError(f"{option('staleness')} {staleness!r}: use 0 (synchronous) to {MOST_STALENESS} steps")
    sigma = 1.0 if cap >= 16_384 else 0.6
    job = PostTrainingJob(
        policy=policy,
        algorithm=algorithm,
        framework=framework,
        gpu=load_gpu(str(given.get("gpu") or "h100")),
        prompts=prompts,
        group=group,
        prompt_tokens=float(prompt),
        responses=ResponseLengths(mean=float(mean), cap=cap, sigma=sigma),
        minibatch=min(_whole(given, "minibatch", prompts * group, assumed), prompts * group),
        critic=policy if algorithm.critic else None,
    )
    tokens = max(_whole(given, "tokens_per_gpu", USUAL_TOKENS_PER_GPU, assumed), round(job.tokens))
    return job, gpus, tokens, 0 if staleness is None else staleness


def _spread(prompts: int, gpus: int) -> int:
    """So many prompts or a few more, so that their samples divide over the GPUs."""
    odd = gpus
    while odd % 2 == 0:
        odd //= 2
    return -(-prompts // odd) * odd


def answer_json(found: RlAnswer) -> dict[str, Any]:
    """The answer as JSON."""

    return {
        "model": found.job.policy.name,
        "algorithm": found.job.algorithm.name,
        "framework": found.job.framework.name,
        "gpu": found.job.gpu.id,
        "gpus": found.gpus,
        "samples": found.job.samples,
        "assumed": list(found.assumed),
        "considered": found.considered,
        "placements": [placement_json(one) for one in found.ranked],
        "nearest": placement_json(found.nearest) if found.nearest else None,
        "remedy": found.remedy or None,
        "one_more_node_step_seconds": found.one_more_node and round(found.one_more_node, 3),
    }


def placement_json(one: PricedPlacement) -> dict[str, Any]:
    """One placement as JSON: plans, seconds by phase, memory."""
    p, seconds = one.placement, {name: round(float(getattr(one.phases, name)), 3) for name in PHASES}
    return {
        "placement": kind_of(p),
        "train_plan": str(p.train),
        "train_gpus": p.train.world_size,
        "engine": {"tp": p.engine.tp, "pp": p.engine.pp, "replicas": p.engine.replicas, "memory_share": p.memory_share}
        if one.phases.generation
        else None,
        "staleness": p.staleness,
        "critic_gpus": p.critic_gpus,
        "offload": p.offload,
        "step_seconds": round(one.seconds, 3),
        "step_seconds_p5": round(one.band[0], 3),
        "step_seconds_p95": round(one.band[1], 3),
        "phases": seconds,
        "hidden_seconds": round(one.phases.beside, 3),
        "binds": one.binds,
        "memory_gib": {
            "generation": round(one.memory.generation_bytes / GIB, 2),
            "training": round(one.memory.training_bytes / GIB, 2),
            "device": round(one.memory.device_bytes / GIB, 2),
            "host": round(one.memory.host_bytes / GIB, 2),
        },
        "fits": one.memory.fits,
    }


def kind_of(placement: Placement) -> str:
    """colocated, split, or how many steps off; with critic nodes."""
    words = "colocated" if placement.colocated else "split" if not placement.staleness else f"async-{placement.staleness}"
    return f"{words}, critic apart" if placement.critic_gpus else words
