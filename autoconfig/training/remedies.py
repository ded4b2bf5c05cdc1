"""What would help: changes where nothing fits, and what a little more of everything, or other switches, would buy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from autoconfig.memory_model.predict import headroom_bytes
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.specs.json_record import AboveZero, NotNegative, Positive
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.training.nearest import odd_factor
from autoconfig.training.price import PlanReport
from autoconfig.training.question import Question, understand
from autoconfig.training.rank import Ranking, plainest_first, rank
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
    today = rank(scenario, constraints, margin, None, fit_chance)
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
        ranking = rank(changed, constraints, margin, None, fit_chance)
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


def _saves(remedy: Remedy, today: Iterable[Remedy]) -> bool:
    """Less is lacking than today. Gradients in bf16 may take memory: they are copied to fp32 for the optimizer's step."""
    return all((remedy.still_short_gib or 0.0) < (one.still_short_gib or 0.0) for one in today)


def _one_is_enough(single: Iterable[Remedy], together: Remedy) -> bool:
    """One saving alone lacks no more than all: what saves on its own may take memory beside another."""
    return any((one.still_short_gib or 0.0) <= (together.still_short_gib or 0.0) for one in single)


def _merged(so_far: Scenario, changed: Scenario, original: Scenario) -> Numerics:
    before, after = vars(original.numerics), vars(changed.numerics)
    return replace(so_far.numerics, **{key: after[key] for key in before if after[key] != before[key]})


SHORTEST_SAMPLE = 512
"""Samples of adapters are cut no shorter than this."""


@dataclass(frozen=True)
class Remedies:
    """A search over changes of a question that make it fit. `words`: how each of OPTIONS is asked; what has none is not
    offered."""

    question: Question
    words: Mapping[str, str] = field(default_factory=lambda: OPTIONS)

    def all(self) -> list[Remedy]:
        """Changes that make it fit, and savings that alone do not; options that were given already are not repeated."""
        question = self.question
        found: list[Remedy] = []
        today = self._tried("", "", question.scenario)
        savings = []
        for change, options, scenario, constraints in self._savings():
            tried = self._tried(f"{change} ({options})", options, scenario, constraints)
            if all(one.fits or _saves(one, today) for one in tried):
                savings.append((options, scenario, constraints))
                found += tried
        if len(savings) > 1:
            everything, constraints = question.scenario, question.constraints
            for _, scenario, changed in savings:
                everything = replace(everything, numerics=_merged(everything, scenario, question.scenario))
                constraints = changed if changed is not question.constraints else constraints
            options = " ".join(options for options, _, _ in savings)
            together = self._tried("all of these together", options, everything, constraints)
            found += [one for one in together if one.fits or not _one_is_enough(found, one)]
        larger = self._first_that_fits(self._larger_gpus())
        return [*found, *larger, *self._first_that_fits(self._more_gpus()), *self._fine_tuning()]

    def _savings(self) -> Iterator[tuple[str, str, Scenario, Constraints]]:
        """(words, options, scenario, constraints) of every saving that is not in use yet."""
        question, words = self.question, self.words
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

    def _first_that_fits(self, changes: Iterable[tuple[str, str, Scenario]]) -> list[Remedy]:
        """Of changes (in words, options, the scenario with it) the first that is enough."""
        for words, options, scenario in changes:
            tried = self._tried(f"{words} ({options})", options, scenario)
            if tried and tried[0].fits:
                return tried
        return []

    def _larger_gpus(self) -> Iterator[tuple[str, str, Scenario]]:
        """As many GPUs of types with more memory, ascending."""
        scenario, request = self.question.scenario, self.question.request
        larger = sorted(
            (gpu for gpu in map(load_gpu, gpu_ids()) if gpu.memory_bytes > scenario.cluster.gpu.memory_bytes),
            key=lambda gpu: gpu.memory_bytes,
        )
        step = max(1, len(larger) // LARGER_GPUS_TRIED)
        for gpu in larger[step - 1 :: step]:
            try:
                gpu.peak_flops_per_s(scenario.numerics.gemm_precision)
                changed = replace(scenario, cluster=cluster_of(gpu, scenario.cluster.num_gpus))
                if request.software is None:  # another GPU may run another one, with numerics of its own
                    changed = understand(replace(request, gpu=gpu.id, cluster=None)).scenario
            except InputError:
                continue
            yield f"{scenario.cluster.num_gpus} x {gpu.id} instead", f"--gpu {gpu.id}", changed

    def _more_gpus(self) -> Iterator[tuple[str, str, Scenario]]:
        """Multiples of the cluster, in whole nodes."""
        cluster = self.question.scenario.cluster
        with suppress(InputError):  # more GPUs than there are
            for factor in GROWTH:
                count = -(-int(cluster.num_gpus * factor) // cluster.gpus_per_node) * cluster.gpus_per_node
                yield f"{count} GPUs of the same kind", f"--gpus {count}", self.question.scenario.on(num_gpus=count)

    def _shorter_samples(self) -> Iterator[tuple[str, str, Scenario]]:
        """Ever halved samples."""
        scenario = self.question.scenario
        length = scenario.workload.seq_length // 2
        while length >= max(SHORTEST_SAMPLE, scenario.workload.packed_length or 0):
            shorter = replace(scenario, workload=replace(scenario.workload, seq_length=length))
            yield f"samples of {length:,} tokens", f"--seq-length {length}", shorter
            length //= 2

    def _fine_tuning(self) -> list[Remedy]:
        """What fits of fine-tuning: adapters in place of all weights, with what their own defaults make of the question; where
        adapters are asked, weights in 4 bits and the longest of ever halved samples. Nothing where neither fits."""
        if self.question.scenario.numerics.peft != "none":
            quantised = self._quantised() if "adapters" in self.words else []
            return [*quantised, *self._first_that_fits(self._shorter_samples())]
        changed = self._with_numerics(peft="lora") if "adapters" in self.words else None
        if changed is None:
            return []
        length, batch = changed.workload.seq_length, changed.workload.global_batch_size
        text = f"fine-tuning of adapters, sequence {length:,}, batch {batch:,}"
        return self._first_that_fits([(text, self.words["adapters"], changed)])

    def _with_numerics(self, **numerics: object) -> Scenario | None:
        """The question with other numerics and what their own defaults make of it, on the same GPUs; None for a model or a
        stack without them."""
        request = self.question.request
        try:
            changed = understand(replace(request, numerics={**request.numerics, **numerics})).scenario
        except InputError:
            return None
        return replace(changed, cluster=self.question.scenario.cluster)

    def _quantised(self) -> list[Remedy]:
        """Weights beside adapters in 4 bits, whole on each GPU, where those in 16 bits are asked, 4 are priced and it fits."""
        constraints = self.question.constraints
        wide = self.question.scenario.numerics.frozen_dtype == "bf16" and 0 in constraints.fixed.get("fsdp", {0})
        changed = self._with_numerics(frozen_dtype="nf4") if wide else None  # its software is one that keeps them so
        if changed is None:
            return []
        whole = replace(constraints, fixed={**constraints.fixed, "fsdp": frozenset({0})})
        options = "--frozen-dtype nf4"
        tried = self._tried(f"frozen weights in 4 bits, which are rounded ({options})", options, changed, whole)
        return [one for one in tried if one.fits]

    def _tried(self, change: str, options: str, scenario: Scenario, constraints: Constraints | None = None) -> list[Remedy]:
        """The change with its outcome; nothing where it leaves no legal plan, or its GPU does not run what was said."""
        request, wish = self.question.request, constraints or self.question.constraints
        try:
            ranking = plainest_first(rank(scenario, wish, request.memory_margin, None, request.fit_chance))
        except InputError:
            return []
        if len(ranking.best) and ranking.fit_chance_met:
            best = int(ranking.best[0])
            plan, seconds = ranking.plan(best), float(ranking.step_seconds[best])
            return [Remedy(change=change, options=options, fits=True, plan=plan, step_seconds=seconds, scenario=scenario)]
        if ranking.closest is not None:
            short = ranking.closest.excess_bytes
        elif len(ranking.best):
            free = headroom_bytes(request.fit_chance, scenario.cluster.memory_bytes)
            short = free - float((ranking.limit_bytes - ranking.peak_bytes).max())
        else:
            return []
        return [Remedy(change=change, options=options, fits=False, still_short_gib=short / GIB)]


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

    @classmethod
    def near(cls, question: Question, ranking: Ranking) -> OtherBatch | None:
        """The best of `useful_batches`, where it gains enough; None for numbers of GPUs whose odd part divides the batch."""
        scenario, request = question.scenario, question.request
        gpus, seq = scenario.cluster.num_gpus, scenario.workload.seq_length
        asked = scenario.workload.global_batch_size / float(ranking.step_seconds[0]) if len(ranking.step_seconds) else None
        gains = []
        for batch in useful_batches(scenario):
            tried = rank(scenario.with_batch(batch), question.constraints, request.memory_margin, 1, request.fit_chance)
            if len(tried.best) and tried.fit_chance_met:
                rate = batch / float(tried.step_seconds[0])
                gain = None if asked is None else rate / asked - 1.0
                speed, cause = rate * seq / gpus, odd_factor(scenario)
                gains.append(cls(global_batch_size=batch, tokens_per_second_per_gpu=speed, gain=gain, cause=cause))
        gains = [one for one in gains if one.gain is None or one.gain >= WORTH_ANOTHER_BATCH]
        return max(gains, key=lambda one: one.tokens_per_second_per_gpu, default=None)
