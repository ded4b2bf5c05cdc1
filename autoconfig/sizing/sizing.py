"""`autoconfig scaling`: the best plan, throughput, days and cost of one job over GPU counts and types.

The global batch stays, unless the question changes it: strong scaling, as a scheduler asks it. `keep` holds plan keys fixed, so
that data parallelism alone grows and shrinks (elastic training: weights need no resharding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.planning.request_fields import RELIABILITY
from autoconfig.planning.resolve import field_values, read_cluster
from autoconfig.sizing.counts import check_counts, parse_counts
from autoconfig.sizing.goodput import Goodput, Reliability, goodput_of
from autoconfig.specs.errors import SECONDS_PER_DAY, InputError, option, refuse
from autoconfig.specs.plan import SHORT_TO_LONG, parse_keys
from autoconfig.training.nearest import odd_factor
from autoconfig.training.price import Money, PlanReport, report_plan
from autoconfig.training.question import Question, Request, request_of, understand
from autoconfig.training.rank import Ranking, plainest_first, rank
from autoconfig.training.remedies import OtherBatch

KEEPABLE = tuple(key for key in SHORT_TO_LONG if key not in ("dp", "first", "last"))
MAX_GPU_TYPES = 16


@dataclass(frozen=True, kw_only=True)
class ScalingRequest:
    """A Request without its number of GPUs, and what to vary."""

    base: Request
    gpu_counts: tuple[int, ...]
    gpu_types: tuple[str, ...] = ()
    """Empty: the one of `base`."""
    keep: tuple[str, ...] = ()
    """`tp` keeps the value of the first count that fits; `tp=8` keeps that value."""
    days: float | None = None
    """Deadline: the fewest GPUs that meet it are named."""
    reliability: Reliability = field(default_factory=Reliability)


def scaling_request(given: Mapping[str, Any]) -> ScalingRequest:
    """A ScalingRequest from what any edge was given, by the names of the fields. Raises InputError."""
    counts = given.get("gpus")
    if counts is None:
        raise InputError(f"how many GPUs? say {option('gpus')} COUNTS, for example 64:1024")
    return ScalingRequest(
        base=request_of({**given, "gpus": None, "gpu": None}),
        gpu_counts=parse_counts(str(counts)) if isinstance(counts, str | int) else check_counts(counts),
        gpu_types=_listed(given.get("gpu")),
        keep=_listed(given.get("keep")),
        days=given.get("days"),
        reliability=Reliability(**field_values(RELIABILITY, given)),
    )


def _listed(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names with commas between, of one text or of several."""
    texts = (given,) if isinstance(given, str) else given or ()
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One GPU type and count."""

    gpu: str
    num_gpus: int
    """Paid for, spares included."""
    training_gpus: int
    """Those of the plan: whole nodes of what the spares leave."""
    question: Question | None = None
    """As understood for this type and count; None where there is no plan."""
    report: PlanReport | None = None
    goodput: Goodput | None = None
    speedup: float | None = None
    """Tokens per second over those of the type's first point that fits."""
    efficiency: float | None = None
    """Speedup over the ratio of training GPUs; 1 is perfect scaling."""
    days: float | None = None
    """Wall time to train the tokens, failures included."""
    cost: float | None = None
    """Money for all GPUs over these days."""
    why_not: str | None = None
    """Where there is no plan."""
    other_batch: OtherBatch | None = None
    """A batch near the asked one with which this count does more; of counts that were asked for."""


@dataclass(frozen=True, kw_only=True)
class ScalingAnswer:
    """Points by GPU type, each with ascending counts."""

    question: Question
    """That of the first point, as understood."""
    request: ScalingRequest
    points: tuple[ScalingPoint, ...]
    kept: dict[str, dict[str, object]]
    """GPU type -> plan keys that were held and their values."""
    fewest: ScalingPoint | None = None
    """The fewest GPUs that meet the deadline; of several types, where each has a cost, the cheapest of `fewest_by_gpu`, else
    None, as also where none does or no deadline was given."""
    fewest_by_gpu: tuple[ScalingPoint, ...] = ()
    """The fewest of each type that meet it, in the order of the types: a GPU of one type is no GPU of another."""
    every_count: bool = True
    """Whether every count of whole nodes that could be the fewest was tried; False: MAX_TRIED of them were."""


def scale(request: ScalingRequest, progress: Callable[[str], None] | None = None) -> ScalingAnswer:
    """Answer every point. Raises InputError where the question itself cannot be understood; a count without a plan is a point
    that says why."""
    counts = check_counts(list(request.gpu_counts))
    _check(request)
    points: list[ScalingPoint] = []
    kept: dict[str, dict[str, object]] = {}
    refined: list[ScalingPoint] = []
    every = True
    curves = [_Curve(request, gpu, progress) for gpu in request.gpu_types or (None,)]
    for curve in curves:
        found = _compared([curve.point(count, hint=True) for count in counts])
        points += found
        met, whole = _fewest_of_all(curve, found, request)
        refined += met
        every &= whole
        kept[curve.gpu] = curve.fixed
    question = next((curve.question for curve in curves if curve.question is not None), None)
    if question is None:
        why = points[0].why_not or "no plan at any of these GPU counts"
        raise InputError(f"{points[0].num_gpus:,} GPUs: {why}; give other counts, or {option('gpus_per_node')}")
    fewest = [_fewest([p for p in (*points, *refined) if p.gpu == curve.gpu], request.days) for curve in curves]
    of_types = tuple(filter(None, fewest))
    return ScalingAnswer(
        question=question,
        request=request,
        points=tuple(points),
        kept=kept,
        fewest=_cheapest(of_types),
        fewest_by_gpu=of_types,
        every_count=every,
    )


class _Curve:
    """The points of one GPU type; `keep` takes its values from the first that has a plan."""

    def __init__(self, request: ScalingRequest, gpu: str | None, progress: Callable[[str], None] | None) -> None:
        self.request = request
        self.asked = request.base if gpu is None else replace(request.base, gpu=gpu)
        self.fixed = _given(request.keep)
        self.question: Question | None = None
        self._progress = progress
        one = read_cluster(replace(self.asked, gpus=1, gpus_at_most=None), [])
        self.gpu = one.gpu.id
        in_file = one.gpus_per_node if one.gpus_per_node > 1 else one.gpu.gpus_per_node
        self.per_node = self.asked.gpus_per_node or in_file

    def point(self, count: int, *, hint: bool = False) -> ScalingPoint:
        """The best plan on `count` GPUs; with `hint` also a better batch."""
        if self._progress is not None:
            self._progress(f"{self.gpu}, {count:,} GPUs")
        training = max(0, _training_gpus(count, self.request.reliability.spares or 0, self.per_node))
        empty = ScalingPoint(gpu=self.gpu, num_gpus=count, training_gpus=training)
        if training < 1:
            return replace(empty, why_not="the spares leave no GPU to train on")
        if training > self.per_node and training % self.per_node:
            less = training // self.per_node * self.per_node
            said = f"{training} GPUs are no whole nodes of {self.per_node}: use {less} or {less + self.per_node}"
            return replace(empty, why_not=f"{said} (60:72 doubles from 60, 64:72:8 goes in steps of 8)")
        question = self._understood(training)
        self.question = self.question or question
        ranking = plainest_first(_ranked(question, None))
        other = OtherBatch.near(question, ranking) if hint else None
        if not len(ranking.best):
            why = NO_FIT if ranking.funnel.legal else ": ".join(filter(None, (NOT_LEGAL, odd_factor(question.scenario))))
            return replace(empty, why_not=why, other_batch=other)
        request = question.request
        money = Money(tokens=request.tokens, price_per_gpu_hour=question.price)
        plan = ranking.plan(int(ranking.best[0]))
        report = report_plan(question.scenario, plan, money, request.memory_margin)
        free = [key for key in self.request.keep if "=" not in key and key not in self.fixed]
        self.fixed |= {key: getattr(plan, key) for key in free}
        empty = replace(empty, question=question, other_batch=other)
        return _with_failures(empty, report, goodput_of(question.scenario, self.request.reliability), question.price)

    def misses(self, training: int) -> bool:
        """Whether no plan on these GPUs, the fastest neither, meets the deadline; cheaper than `point`."""
        question, deadline = self._understood(training), self.request.days
        ranking = _ranked(question, 1)
        goodput = goodput_of(question.scenario, self.request.reliability).share
        if deadline is None or not len(ranking.best) or goodput <= 0:
            return True
        work = question.scenario.workload
        steps = (question.request.tokens or 0.0) / (work.seq_length * work.global_batch_size)
        return steps * float(ranking.step_seconds[0]) / SECONDS_PER_DAY / goodput > deadline

    def _understood(self, training: int) -> Question:
        fixed = tuple(f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in self.fixed.items())
        return understand(replace(self.asked, gpus=training, fix=(*self.asked.fix, *fixed)))


def _ranked(question: Question, first: int | None) -> Ranking:
    request = question.request
    return rank(question.scenario, question.constraints, request.memory_margin, first, request.fit_chance)


def _with_failures(empty: ScalingPoint, report: PlanReport, goodput: Goodput, price: float | None) -> ScalingPoint:
    """Days and cost of wall time, spares paid for."""
    days = cost = None
    if report.days_to_train is not None and goodput.share > 0:
        days = report.days_to_train / goodput.share
        cost = days * 24 * empty.num_gpus * price if price is not None else None
    return replace(empty, report=report, goodput=goodput, days=days, cost=cost)


NO_FIT, NOT_LEGAL = "no plan fits in memory", "no plan is legal with this batch and what is kept or fixed"
MAX_TRIED = 128
"""Counts of whole nodes that are tried for a deadline beside those asked for."""
REACH = 1.15
"""No count is taken to do more tokens a second and GPU than this times the best of the counts asked for, and of the two largest
powers of two (of nodes) within them: an assumption (tests/sizing/test_scaling.py holds the answer against all counts)."""


def _fewest_of_all(curve: _Curve, points: Sequence[ScalingPoint], request: ScalingRequest) -> tuple[list[ScalingPoint], bool]:
    """(the fewest GPUs that meet the deadline, where they are fewer than those of `points`; whether all counts were tried).

    Throughput does not only grow with the count, so every count of whole nodes that could meet the deadline is tried, least
    first; up to one node every count is. None below the least count that was asked for, where more than one was."""
    if request.days is None or request.base.tokens is None:
        return [], True
    days, spares, node = request.days, request.reliability.spares or 0, curve.per_node
    tried = {p.num_gpus for p in points}
    most = min((p.num_gpus for p in points if _in_time(p, days)), default=max(tried) + 1) - spares
    more = [curve.point(count) for count in sorted({*_doubled(node, most, spares)} - tried)]
    rate = _most_rate((*points, *more))
    if rate is None:
        return [], True
    least_asked = min(request.gpu_counts) if len(request.gpu_counts) > 1 else 1
    least = max(request.base.tokens / (days * SECONDS_PER_DAY * REACH * rate), least_asked - spares)
    able = [size + spares for size in (*range(1, min(node, most)), *range(node, most, node)) if size >= least]
    more = [point for point in more if point.num_gpus >= least_asked]
    if (point := _first_in_time(curve, sorted({*able[:MAX_TRIED]} - tried), spares, days)) is not None:
        return [*more, point], True
    return more, len(able) <= MAX_TRIED


def _doubled(node: int, most: int, spares: int) -> list[int]:
    """The two largest counts below `most` GPUs of 1, 2, 4, ... nodes, with spares."""
    return [node * 2**k + spares for k in range(32) if node * 2**k < most][-2:]


def _most_rate(points: Iterable[ScalingPoint]) -> float | None:
    """The most that one GPU of a point does; None where nothing is priced."""
    return max((_rate(p) / p.training_gpus for p in points if p.report is not None), default=None)


def _first_in_time(curve: _Curve, counts: Iterable[int], spares: int, days: float) -> ScalingPoint | None:
    points = (curve.point(count) for count in counts if not curve.misses(count - spares))
    return next((point for point in points if _in_time(point, days)), None)


def _in_time(point: ScalingPoint, days: float) -> bool:
    return point.days is not None and point.days <= days


def _check(request: ScalingRequest) -> None:
    unknown = [text for text in request.keep if text.split("=")[0].strip() not in KEEPABLE]
    refuse(
        (
            len(request.gpu_types) > MAX_GPU_TYPES,
            f"{len(request.gpu_types)} GPU types are more than {MAX_GPU_TYPES}; ask for fewer at once",
        ),
        (
            request.days is not None and not 0 < request.days < 1e6,
            f"a deadline of {request.days!r} days: give a number above 0",
        ),
        (
            request.days is not None and request.base.tokens is None,
            f"a deadline needs the number of tokens to train on: say {option('tokens')} 300B",
        ),
        (
            request.gpu_types and request.base.cluster is not None,
            f"give either {option('cluster')} or {option('gpu')}, not both",
        ),
        (
            unknown,
            f"keep {''.join(unknown[:1])[:40]!r}: name a key of a plan ({', '.join(KEEPABLE)}), with a value (tp=8) or not",
        ),
    )


def _given(keep: tuple[str, ...]) -> dict[str, object]:
    """Keys kept at a value that the question names."""
    return {key: value for text in keep if "=" in text for key, value in parse_keys(text).items()}


def _training_gpus(count: int, spares: int, per_node: int) -> int:
    """What is left to train on, in whole nodes where it is more than one."""
    left = count - spares
    return left if not spares or left < per_node else left // per_node * per_node


def _compared(points: list[ScalingPoint]) -> list[ScalingPoint]:
    """The points with speedup and efficiency over the first that fits."""
    first = next((p for p in points if p.report is not None), None)
    if first is None or first.report is None:
        return points
    base = _rate(first)
    return [
        p
        if p.report is None
        else replace(p, speedup=_rate(p) / base, efficiency=_rate(p) / base / (p.training_gpus / first.training_gpus))
        for p in points
    ]


def _rate(point: ScalingPoint) -> float:
    """Tokens per second of undisturbed training."""
    assert point.report is not None
    return point.report.tokens_per_second_per_gpu * point.training_gpus


def _fewest(points: Sequence[ScalingPoint], days: float | None) -> ScalingPoint | None:
    """The cheapest to hold: fewest GPUs that meet the deadline, among equals the fastest."""
    if days is None:
        return None
    good = [p for p in points if _in_time(p, days)]
    return min(good, key=lambda p: (p.num_gpus, p.days or 0.0), default=None)


def _cheapest(points: Sequence[ScalingPoint]) -> ScalingPoint | None:
    """The least cost where all have one, else the only one: counts of unlike GPUs are not compared."""
    costs = [point.cost for point in points]
    if len(points) > 1 and None in costs:
        return None
    return min(points, key=lambda p: p.cost or 0.0, default=None)


def tokens_per_second(point: ScalingPoint) -> float | None:
    """Of the whole job, undisturbed; None where there is no plan."""
    return None if point.report is None else _rate(point)
