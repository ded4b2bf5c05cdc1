"""What would help: changes where nothing fits, and what a little more of everything, or other switches, would buy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.memory_model.predict import estimate_memory, headroom_bytes
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.specs.json_record import AboveZero, NotNegative, Positive
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.run_settings import FULL_ITERATION, FUSED, RunSettings
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.specs.software.software import DISPATCHERS
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.nearest import odd_factor
from autoconfig.training.price import PlanReport, violations
from autoconfig.training.question import Question, graphs_text, understand
from autoconfig.training.rank import Ranking, plainest_first, rank_plans
from autoconfig.training.space import Constraints

MORE = 1.1
"""Links, network and compute are raised by 10 %."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What one change buys in tokens per second: ratios over today's, 1 = nothing."""

    change: str
    """What there is more of, and how much."""
    same_plan_ratio: NotNegative | None
    """This plan under the change over this plan today; None where the plan is not possible then."""
    best_plan_ratio: NotNegative | None
    """The best plan under the change over the best plan today; None where nothing fits."""
    best_plan: str | None
    """That best plan, in its short form."""


def _more_compute(s: Scenario) -> Scenario:
    gpu = s.cluster.gpu
    return s.on(gpu=replace(gpu, flops_per_s={name: rate * MORE for name, rate in gpu.flops_per_s.items()}))


CHANGES: tuple[tuple[str, Callable[[Scenario], Scenario]], ...] = (
    ("+1 GiB of memory", lambda s: s.on(memory_bytes=s.cluster.memory_bytes + GIB)),
    ("+10 % link bandwidth", lambda s: s.on(link_bytes_per_s=s.cluster.link_bytes_per_s * MORE)),
    ("+10 % network bandwidth", lambda s: s.on(nic_bytes_per_s=s.cluster.nic_bytes_per_s * MORE)),
    ("+10 % compute", _more_compute),
    ("twice the global batch", lambda s: s.with_batch(2 * s.workload.global_batch_size)),
)


def what_binds(scenario: Scenario, plan: TrainPlan, margin: float = 0.0, fit_chance: float = 0.0) -> list[Gain]:
    """The gains of all CHANGES for a legal plan; best plans as a search with this `fit_chance` has them. Empty where nothing
    fits today."""
    constraints = Constraints()
    if scenario.model.is_moe:
        constraints = Constraints(fixed={key: frozenset({getattr(plan, key)}) for key in ("cp", "ep", "etp")})
    today = rank_plans(scenario, constraints, margin, None, fit_chance)
    if not len(today.best):
        return []
    mine = _tokens_per_second(scenario, plan)
    gains = []
    for name, change in CHANGES:
        try:
            changed = change(scenario)
            same: float | None = _tokens_per_second(changed, plan) / mine
        except InputError:
            same = None
        ranking = rank_plans(changed, constraints, margin, None, fit_chance)
        best = str(ranking.plan(int(ranking.best[0]))) if len(ranking.best) else None
        gains.append(Gain(change=name, same_plan_ratio=same, best_plan_ratio=_ratio(ranking, today), best_plan=best))
    return gains


def memory_binds(report: PlanReport, gains: Sequence[Gain]) -> str:
    """What to say where a plan does not fit: how much it lacks, and what the gains mean then; empty where it fits."""
    if report.fits:
        return ""
    short = (report.peak_bytes - report.limit_bytes) / GIB
    said = f"Memory binds: this plan needs {short:.1f} GiB more per GPU than may be allocated"
    if not gains:
        return said + ", and no plan of this question fits, so nothing else would buy anything"
    return said + "; its gains below are those of a plan that does not run, the best plan's are of one that fits"


def _ratio(changed: Ranking, today: Ranking) -> float | None:
    if not len(changed.best):
        return None
    rates = [r.scenario.workload.tokens_per_step / float(r.step_seconds[0]) for r in (changed, today)]
    return rates[0] / rates[1]


def _tokens_per_second(scenario: Scenario, plan: TrainPlan) -> float:
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute])
    return scenario.workload.tokens_per_step / float(estimate.step_seconds[0, 0])


GROWTH = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Cluster sizes tried, in multiples of the one asked for."""
LARGER_GPUS_TRIED = 4


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change and what it does."""

    change: str
    """In words, with the option that makes it."""
    options: str
    """Those that make it: `--gpus 24`."""
    fits: bool
    plan: TrainPlan | None = None
    step_seconds: float | None = None
    still_short_gib: float | None = None
    """Where it does not fit: what the nearest plan still lacks."""
    scenario: Scenario | None = field(default=None, compare=False, repr=False)
    """Where it fits: the question with this change."""
    said: str | None = None
    """The plan in the words of a file that was checked; None: in its short form."""

    def __str__(self) -> str:
        if self.fits:
            return f"{self.change}: {self.said or self.plan} at {self.step_seconds:,.2f} s a step"
        return f"{self.change}: still {self.still_short_gib:,.1f} GiB too much"


_MOMENTS = "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
OPTIONS = dict(offload="--fix offload=1", gradients="--grad-reduce-dtype bf16", moments=_MOMENTS, adapters="--peft lora")
"""What is changed -> how it is asked of a search."""


def remedies(question: Question, words: Mapping[str, str] = OPTIONS) -> list[Remedy]:
    """Changes that make it fit, and savings that alone do not; options that were given already are not repeated. `words`: how
    each of OPTIONS is asked; what has none is not offered."""
    found: list[Remedy] = []
    today = _tried("", "", question.scenario, question.constraints, question)
    savings = []
    for change, options, scenario, constraints in _savings(question, words):
        tried = _tried(f"{change} ({options})", options, scenario, constraints, question)
        if all(one.fits or _saves(one, today) for one in tried):
            savings.append((options, scenario, constraints))
            found += tried
    if len(savings) > 1:
        everything, constraints = question.scenario, question.constraints
        for _, scenario, changed in savings:
            everything = replace(everything, numerics=_merged(everything, scenario, question.scenario))
            constraints = changed if changed is not question.constraints else constraints
        options = " ".join(options for options, _, _ in savings)
        together = _tried("all of these together", options, everything, constraints, question)
        found += [one for one in together if one.fits or not _one_is_enough(found, one)]
    return [*found, *_larger_gpus(question), *_more_gpus(question), *_fine_tuning(question, words)]


def _saves(remedy: Remedy, today: Iterable[Remedy]) -> bool:
    """Less is lacking than today. Gradients in bf16 may take memory: they are copied to fp32 for the optimizer's step."""
    return all((remedy.still_short_gib or 0.0) < (one.still_short_gib or 0.0) for one in today)


def _one_is_enough(single: Iterable[Remedy], together: Remedy) -> bool:
    """One saving alone lacks no more than all: what saves on its own may take memory beside another."""
    return any((one.still_short_gib or 0.0) <= (together.still_short_gib or 0.0) for one in single)


def _merged(so_far: Scenario, changed: Scenario, original: Scenario) -> Numerics:
    before, after = vars(original.numerics), vars(changed.numerics)
    return replace(so_far.numerics, **{key: after[key] for key in before if after[key] != before[key]})


def _savings(question: Question, words: Mapping[str, str] = OPTIONS) -> Iterator[tuple[str, str, Scenario, Constraints]]:
    """(words, options, scenario, constraints) of every saving that is not in use yet."""
    scenario, numerics = question.scenario, question.scenario.numerics
    if numerics.peft != "none":
        return
    fixed = question.constraints.fixed
    if "offload" in words and "offload" not in fixed and fixed.get("dist_opt", {True}) != {False}:
        constraints = replace(question.constraints, fixed={**fixed, "offload": frozenset({1.0})})
        yield "optimizer state on the CPU", words["offload"], scenario, constraints
    if "gradients" in words and numerics.grad_reduce_dtype == "fp32":
        half = replace(scenario, numerics=replace(numerics, grad_reduce_dtype="bf16"))
        yield "gradients in bf16", words["gradients"], half, question.constraints
    elif words.get("gradients") == OPTIONS["gradients"] and numerics.grad_reduce_dtype == "bf16":
        whole = replace(scenario, numerics=replace(numerics, grad_reduce_dtype="fp32"))
        yield "gradients in fp32", "--grad-reduce-dtype fp32", whole, question.constraints
    wide = numerics.exp_avg_dtype == "fp32" and numerics.precision != "fp32"
    wide = wide and not (numerics.weights_are_masters or numerics.narrow_moments)
    if "moments" in words and wide:
        half = replace(scenario, numerics=replace(numerics, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"))
        yield "optimizer moments in bf16", words["moments"], half, question.constraints


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
            if question.request.software is None:  # another GPU may run another one, with numerics of its own
                changed = understand(replace(question.request, gpu=gpu.id, cluster=None)).scenario
        except InputError:
            continue
        text, options = f"{scenario.cluster.num_gpus} x {gpu.id} instead", f"--gpu {gpu.id}"
        tried = _tried(f"{text} ({options})", options, changed, question.constraints, question)
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
        text, options = f"{count} GPUs of the same kind", f"--gpus {count}"
        tried = _tried(f"{text} ({options})", options, changed, question.constraints, question)
        if tried and tried[0].fits:
            return tried
    return []


SHORTEST_SAMPLE = 512
"""Samples of adapters are cut no shorter than this."""


def _fine_tuning(question: Question, words: Mapping[str, str]) -> list[Remedy]:
    """What fits of fine-tuning: adapters in place of all weights, with what their own defaults make of the question; where
    adapters are asked, weights in 4 bits and the longest of ever halved samples. Nothing where neither fits."""
    scenario = question.scenario
    if scenario.numerics.peft == "none":
        if "adapters" not in words:
            return []
        try:
            asked = understand(replace(question.request, numerics={**question.request.numerics, "peft": "lora"})).scenario
        except InputError:  # a model or a stack without adapters
            return []
        changed = replace(asked, cluster=scenario.cluster)
        work = changed.workload
        text = f"fine-tuning of adapters, sequence {work.seq_length:,}, batch {work.global_batch_size:,} ({words['adapters']})"
        return [one for one in _tried(text, words["adapters"], changed, question.constraints, question) if one.fits]
    found = _quantised(question) if "adapters" in words else []
    length = scenario.workload.seq_length // 2
    while length >= max(SHORTEST_SAMPLE, scenario.workload.packed_length or 0):
        shorter = replace(scenario, workload=replace(scenario.workload, seq_length=length))
        text, options = f"samples of {length:,} tokens", f"--seq-length {length}"
        tried = _tried(f"{text} ({options})", options, shorter, question.constraints, question)
        if tried and tried[0].fits:
            return [*found, *tried]
        length //= 2
    return found


def _quantised(question: Question) -> list[Remedy]:
    """Weights beside adapters in 4 bits, whole on each GPU: where they are in 16, the model's are priced so, and it fits."""
    scenario, constraints = question.scenario, question.constraints
    unsharded = constraints.fixed.get("fsdp", {0}) & {0}
    if scenario.numerics.frozen_dtype != "bf16" or not unsharded:
        return []
    try:
        asked = understand(replace(question.request, numerics={**question.request.numerics, "frozen_dtype": "nf4"})).scenario
    except InputError:  # a model or a stack without them
        return []
    changed = replace(asked, cluster=scenario.cluster)  # its software is one that keeps weights in 4 bits
    whole = replace(constraints, fixed={**constraints.fixed, "fsdp": frozenset({0})})
    options = "--frozen-dtype nf4"
    tried = _tried(f"frozen weights in 4 bits, which are rounded ({options})", options, changed, whole, question)
    return [one for one in tried if one.fits]


def _tried(change: str, options: str, scenario: Scenario, constraints: Constraints, question: Question) -> list[Remedy]:
    """The change with its outcome; nothing where it leaves no legal plan, or its GPU does not run what was said."""
    try:
        ranking = plainest_first(
            rank_plans(scenario, constraints, question.request.memory_margin, None, question.request.fit_chance)
        )
    except InputError:
        return []
    if len(ranking.best) and ranking.fit_chance_met:
        best = int(ranking.best[0])
        found = Remedy(change=change, options=options, fits=True, plan=ranking.plan(best), scenario=scenario)
        return [replace(found, step_seconds=float(ranking.step_seconds[best]))]
    if ranking.closest is None and not len(ranking.best):
        return []
    if ranking.closest is None:
        free = headroom_bytes(question.request.fit_chance, scenario.cluster.memory_bytes)
        short = free - float((ranking.limit_bytes - ranking.peak_bytes).max())
    else:
        short = ranking.closest.excess_bytes
    return [Remedy(change=change, options=options, fits=False, still_short_gib=short / GIB)]


@dataclass(frozen=True, kw_only=True)
class OtherBatch:
    """A global batch near the asked one with which the GPUs do more."""

    global_batch_size: Positive
    tokens_per_second_per_gpu: AboveZero
    """Of the fastest plan with it."""
    gain: AboveZero | None
    """How much more that is than with the asked batch, 0.08 for 8 %; null where the asked batch has no plan."""
    cause: str
    """What of the number of GPUs the asked batch leaves to the pipeline stages; empty where heads or sequence divide it."""

    def __str__(self) -> str:
        more = "" if self.gain is None else f", {self.gain:.0%} more"
        cause = f"; {self.cause}" if self.cause else ""
        return f"batch {self.global_batch_size:,}: {self.tokens_per_second_per_gpu:,.0f} tokens/s/GPU{more}{cause}"


EVEN_SHARE = 32
"""A batch that 32 replicas divide leaves enough choice of them."""
NEAR_BATCH = 0.25
"""A batch that differs by more is another question."""
WORTH_ANOTHER_BATCH = 0.03
"""Gain from which on another batch is named."""


def useful_batches(scenario: Scenario) -> list[int]:
    """Global batches near the asked one that the odd part of the number of GPUs divides, where it does not divide the asked
    one, or where that is odd: the nearest multiple of that part times 32 (or what powers of two the number has), and of the
    part alone."""
    gpus, batch = scenario.cluster.num_gpus, scenario.workload.global_batch_size
    odd = gpus // (gpus & -gpus)
    if batch % odd == 0 and (batch % 2 == 0 or gpus == odd):
        return []
    steps = (odd * min(gpus // odd, EVEN_SHARE), *([odd] if batch % odd else []))
    found = [max(1, round(batch / step)) * step for step in steps]
    return [other for other in dict.fromkeys(found) if abs(other - batch) <= NEAR_BATCH * batch]


def other_batch(question: Question, ranking: Ranking) -> OtherBatch | None:
    """The best of `useful_batches`, where it gains enough; None for numbers of GPUs whose odd part divides the batch."""
    scenario, request = question.scenario, question.request
    gpus, seq = scenario.cluster.num_gpus, scenario.workload.seq_length
    asked = scenario.workload.global_batch_size / float(ranking.step_seconds[0]) if len(ranking.step_seconds) else None
    found = []
    for batch in useful_batches(scenario):
        tried = rank_plans(scenario.with_batch(batch), question.constraints, request.memory_margin, 1, request.fit_chance)
        if len(tried.best) and tried.fit_chance_met:
            rate = batch / float(tried.step_seconds[0])
            gain = None if asked is None else rate / asked - 1.0
            found.append(
                OtherBatch(
                    global_batch_size=batch,
                    tokens_per_second_per_gpu=rate * seq / gpus,
                    gain=gain,
                    cause=odd_factor(scenario),
                )
            )
    found = [one for one in found if one.gain is None or one.gain >= WORTH_ANOTHER_BATCH]
    return max(found, key=lambda one: one.tokens_per_second_per_gpu, default=None)


PARTS = frozenset({"attn", "moe_router", "moe_preprocess"})
"""What is replayed of a layer whose experts are launched."""


WORTH_NAMING = 0.005
"""Least change of a dense model's step: where the GPU is never idle, graphs change nothing."""


@dataclass(frozen=True, kw_only=True)
class SwitchGain:
    """What one other switch makes of a plan's step."""

    change: str
    """The switch and its other value."""
    step_seconds: AboveZero
    """Time of the step with it."""
    ratio: AboveZero
    """Step time with it over that without."""


DECISIVE = 0.05
"""Share of the step above which a switch is named on the first screen."""


def switch_gains(scenario: Scenario, plan: TrainPlan) -> list[SwitchGain]:
    """The step of a legal plan under each other CUDA-graph scope and, of a mixture of experts, each other dispatcher, overlap
    and kernel that Megatron runs with it; of dense models those that change it by WORTH_NAMING."""
    return [gain for _, gain in _gains(scenario, plan)]


def deciding_switches(scenario: Scenario, plan: TrainPlan) -> tuple[SwitchGain, ...]:
    """Of each switch the other value that makes the quickest step, where it moves the step by more than DECISIVE; what moves
    most first."""
    best: dict[str, SwitchGain] = {}
    for name, gain in _gains(scenario, plan):
        best[name] = min(gain, best.get(name, gain), key=lambda one: one.ratio)
    found = [gain for gain in best.values() if abs(gain.ratio - 1.0) > DECISIVE]
    return tuple(sorted(found, key=lambda gain: -abs(gain.ratio - 1.0)))


def with_fp8(question: Question, report: PlanReport) -> SwitchGain | None:
    """The step of a plan in 16 bits with the layers' GEMMs in fp8, as the software usually scales it on this GPU; None where
    these run no fp8, where weights are frozen, where the plan is not legal or does not fit so, and within DECISIVE."""
    scenario, request = question.scenario, question.request
    if scenario.numerics.precision not in ("bf16", "fp16") or not scenario.numerics.trains_all:
        return None
    try:
        asked = replace(request, numerics={**request.numerics, "precision": "fp8"}, vary=(), include=())
        changed = replace(scenario, numerics=understand(asked).scenario.numerics)
        changed.cluster.gpu.peak_flops_per_s(changed.numerics.gemm_precision)
    except InputError:
        return None
    plan = report.plan
    seconds = _step_seconds(changed, plan)
    ratio = seconds / report.step_seconds
    if abs(ratio - 1.0) <= DECISIVE or violations(changed, plan):
        return None
    if not estimate_memory(changed, changed.layouts([plan]), [plan.recompute], margin=request.memory_margin).fits[0, 0]:
        return None
    recipe = changed.numerics.fp8_recipe
    return SwitchGain(change=f"fp8 ({recipe} scaling)", step_seconds=seconds, ratio=ratio)


OTHER_DISPATCHER = "deepep"
"""Of mixtures whose tokens reach their experts by collectives: the library that runs on the most clusters."""


def with_dispatcher(question: Question, report: PlanReport) -> SwitchGain | None:
    """What the fastest plan of the question takes under OTHER_DISPATCHER, beside the first plan without it: expert parallelism
    that costs too much by collectives may be the best there. None where the question names a dispatcher or varies it, where the
    first plan has another than `alltoall`, of software that is not Megatron's, where the GPUs do not run it, and within
    DECISIVE."""
    scenario, request = question.scenario, question.request
    asked = scenario.given.dispatcher is not None or bool(request.vary) or scenario.software.sharding != "megatron"
    if asked or not scenario.model.is_moe or scenario.settings(report.plan).dispatcher != "alltoall":
        return None
    changed = replace(scenario, given=replace(scenario.given, dispatcher=OTHER_DISPATCHER))
    try:
        ranking = rank_plans(changed, question.constraints, request.memory_margin, 1, request.fit_chance)
    except InputError:  # of another vendor's GPUs
        return None
    if not len(ranking.best) or not ranking.fit_chance_met:
        return None
    seconds = float(ranking.step_seconds[ranking.best[0]])
    if seconds / report.step_seconds > 1.0 - DECISIVE:
        return None
    return SwitchGain(change=f"--dispatcher {OTHER_DISPATCHER}", step_seconds=seconds, ratio=seconds / report.step_seconds)


def _gains(scenario: Scenario, plan: TrainPlan) -> Iterator[tuple[str, SwitchGain]]:
    today = _step_seconds(scenario, plan)
    for text, change in _other_switches(scenario, scenario.settings(plan)):
        changed = replace(scenario, given=replace(scenario.given, **change))
        try:
            settings = changed.settings(plan)
        except InputError:  # of another vendor's GPUs
            continue
        taken = all(getattr(settings, name) == value for name, value in change.items())
        if not taken or violations(changed, plan):
            continue
        seconds = _step_seconds(changed, plan)
        if scenario.model.is_moe or abs(seconds / today - 1.0) >= WORTH_NAMING:
            yield next(iter(change)), SwitchGain(change=text, step_seconds=seconds, ratio=seconds / today)


def _other_switches(scenario: Scenario, now: RunSettings) -> Iterator[tuple[str, dict[str, Any]]]:
    if not scenario.model.is_moe:
        scopes = {"full-iteration": frozenset({FULL_ITERATION}), "no": frozenset[str]()}
        others = {kind: scope for kind, scope in scopes.items() if scope != now.cuda_graphs}
        yield from (
            (f"{kind} CUDA graphs instead of {graphs_text(now)}", {"cuda_graphs": scope}) for kind, scope in others.items()
        )
        return
    for name in DISPATCHERS:
        if name != now.dispatcher:
            yield f"{name} instead of {now.dispatcher}", {"dispatcher": name}
    numerics = scenario.numerics
    shapes_known = numerics.moe_capacity_factor is not None or now.static_sizes
    scopes = {"full-iteration": frozenset({FULL_ITERATION}), "partial": PARTS, "no": frozenset[str]()}
    for kind, scope in scopes.items():
        if scope != now.cuda_graphs and (shapes_known or kind != "full-iteration"):
            parts = f" ({' '.join(sorted(scope))})" if kind == "partial" else ""
            yield f"{kind} CUDA graphs{parts} instead of {graphs_text(now)}", {"cuda_graphs": scope}
    yield f"{'without' if now.ep_overlap else 'with'} EP overlap", {"ep_overlap": not now.ep_overlap}
    if now.fused_experts or numerics.format.recipe == FUSED:
        yield f"experts {'not ' if now.fused_experts else ''}fused", {"fused_experts": not now.fused_experts}
    if numerics.format.quantised:
        yield f"attention {'not ' if now.fp8_attention else ''}in fp8", {"fp8_attention": not now.fp8_attention}


def _step_seconds(scenario: Scenario, plan: TrainPlan) -> float:
    return float(estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute]).step_seconds[0, 0])
