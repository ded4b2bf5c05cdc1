"""All deployments of a question: priced, cut by the load and the limits, ranked by the goal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autoconfig.planning.progress import Progress
from autoconfig.serving.disaggregated import Pairs, Prefill
from autoconfig.serving.price import DeploymentColumns, Vector, grid, price
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import loads
from autoconfig.specs.layouts import first_positions, pareto_front
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.steady import Pricer

TIE = 0.01
"""Throughputs this close to the best (in logs) are alike, and so on in steps of it: then more tokens/s/user come first, of
those alike as well aggregated before disaggregated and fewer pipeline stages before more."""
MIN_GAIN = 1e-4
"""Share by which a deployment on the frontier does more tokens/s/GPU than the next faster one for a user."""
SPARE = 0.9
"""Share of its throughput that a deployment is asked for under a load: arrivals come in bursts."""


@dataclass(frozen=True, kw_only=True)
class Deployments:
    """Every deployment that memory holds, one row each; `order` ranks those that meet the limits, best first."""

    question: ServeQuestion
    layouts: Sequence[EnginePlan]
    columns: DeploymentColumns
    order: npt.NDArray[np.int64]
    enumerated: int = 1
    fit: int = 1
    seconds: float = 0.0
    too_large: EnginePlan | None = None
    carries: bool = True
    """False: under a load that no deployment carries; the one row is then the deployment that carries most of it."""
    most_load: float = 1.0
    """Times the mean load that a deployment within the limits carries on all GPUs."""
    priced: DeploymentColumns | None = None
    """Under a load: columns of full queues, of which the deployments that carry it are made."""

    def plan(self, row: int) -> ServePlan:
        c = self.columns
        decode = self.layouts[c.layout[row]].replace(
            batch=int(c.most_batch[row]), tokens=int(c.most_tokens[row]), replicas=int(c.replicas[row])
        )
        if c.prefill[row] < 0:
            return ServePlan(decode=decode)
        return ServePlan(prefill=self.question.prefill_plan(self.layouts[c.prefill[row]], int(c.prefills[row])), decode=decode)

    def tp(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tensor parallelism of the decode instances."""
        return np.array([plan.tp for plan in self.layouts])[self.columns.layout[rows]]

    @property
    def tokens_per_s_per_gpu(self) -> Vector:
        return self.columns.requests_per_s * self.question.lengths.osl / self.columns.gpus

    @property
    def tokens_per_s_per_user(self) -> Vector:
        return 1.0 / np.maximum(self.columns.tpot_s, 1e-9)

    def pareto(self) -> list[int]:
        """Rows on the frontier tokens/s/user against tokens/s/GPU, fastest user first."""
        user, gpu = self.tokens_per_s_per_user, self.tokens_per_s_per_gpu
        within = np.isfinite(user) & (self.columns.ttft_s <= (self.question.ttft_s or np.inf))
        rows = np.flatnonzero(within & (gpu > 0)) if self.carries else np.zeros(0, np.int64)
        return [int(row) for row in rows[pareto_front(-user[rows], gpu[rows], MIN_GAIN)]]

    def one_per_layout(self, most: int) -> list[int]:
        """The best row of each of the first `most` layouts."""
        decode, prefill = self.columns.layout[self.order], self.columns.prefill[self.order]
        first = first_positions(decode * (len(self.layouts) + 1) + prefill + 1)
        return [int(row) for row in self.order[first[:most]]]

    def at_most(self, gpus: int) -> Deployments:
        """The deployments of a load that is carried, on as many of so many GPUs as their instances fill."""
        assert self.priced is not None
        columns = _for_rate(self.question, self.priced, float(gpus)) or self.columns.take(slice(0))
        return replace(self, columns=columns, order=_order(self.question, self.layouts, columns), fit=len(columns))


def rank(question: ServeQuestion, progress: Progress | None = None) -> Deployments:
    """Price every layout's deployments, cut them by load and limits, and order what is left by the goal."""
    start = time.perf_counter()
    plans = list(question.layouts(fill=not (question.rate or question.disaggregated)))
    columns, loaded = _priced(question, plans, progress)
    carries, most_load, any_fits = True, 1.0, len(columns) > 0
    if question.rate and any_fits:
        within = columns.within(question.ttft_s, question.tpot_s)
        most_load = float((columns.requests_per_s * within).max()) * SPARE / question.rate
        carried = _for_rate(question, loaded)
        carries, columns = carried is not None, carried or _most_carried(question, columns)
    return Deployments(
        question=question,
        layouts=plans,
        columns=columns,
        order=_order(question, plans, columns) if carries else np.zeros(0, dtype=np.int64),
        enumerated=sum(_fills(question, plan) for plan in plans) * int(np.prod([len(axis) for axis in grid(question)])),
        fit=len(columns) if carries else 0,
        seconds=time.perf_counter() - start,
        too_large=None if any_fits else _nearest_to_fit(question, plans),
        carries=carries,
        most_load=most_load,
        priced=loaded,
    )


def _fills(question: ServeQuestion, plan: EnginePlan) -> bool:
    """Whether instances of the layout alone may be a deployment."""
    return bool(question.rate) or question.num_gpus % plan.size == 0


def _priced(
    question: ServeQuestion, plans: Sequence[EnginePlan], progress: Progress | None
) -> tuple[DeploymentColumns, DeploymentColumns]:
    """(Full queues of every layout, those of which deployments that carry a load are made)."""
    pricer = Pricer(lengths=question.lengths)
    blocks: list[DeploymentColumns] = []
    prefills: list[Prefill] = []
    for index, plan in enumerate(plans):
        job = question.job(plan)
        if not loads(job):
            continue
        if question.aggregated and _fills(question, plan) and (block := price(question, pricer, job, index)) is not None:
            blocks.append(block)
        if question.disaggregated and question.prefill_lacks_bytes(plan) <= 0:
            prefills.append(Prefill.of(question, pricer, job, index))
        if progress is not None and index % 50 == 0:
            progress(f"{index + 1:,} of {len(plans):,} layouts")
    loaded = list(blocks)
    if question.disaggregated:
        pairs = Pairs(question=question, pricer=pricer, plans=plans, prefills=prefills, batches=grid(question)[0])
        blocks += pairs.best()
        loaded += pairs.under_load(question.rate * question.sized_for / SPARE) if question.rate else []
    return DeploymentColumns.joined(blocks), DeploymentColumns.joined(loaded)


def _for_rate(question: ServeQuestion, priced: DeploymentColumns, most_gpus: float = 0.0) -> DeploymentColumns | None:
    """Deployments that carry the load; None where there is none. With `most_gpus`: on as many of so many GPUs as their
    instances fill.

    Of the same instances with every token budget: as many replicas as each batch within --tpot would need at SPARE of its
    throughput (where none is enough, as any batch would), or more that come to rest at a smaller one. Their requests then run
    at the smallest batch whose throughput is the load, where a system that starts empty comes to rest; the larger ones of a
    closed loop carry it as well, but no load takes a system there. The limit of the batch leaves headroom for bursts: the
    largest that memory holds and that is within --tpot. Separate prefill instances are as many as each row has of them.
    """
    wanted, each = question.rate * question.sized_for / SPARE, priced.each
    beside = priced.gpus - priced.replicas * priced.size
    tokens = np.where(priced.prefill < 0, priced.tokens, -1.0)
    alike = np.stack([priced.layout, tokens, priced.prefill, priced.prefills], axis=1)
    _, group = np.unique(alike, axis=0, return_inverse=True)
    within = priced.tpot_s <= (question.tpot_s or np.inf)
    by_batch = np.lexsort((priced.batch, group))
    rows, needed, widest = [], [], []
    for same in np.split(by_batch, np.flatnonzero(np.diff(group[by_batch])) + 1):
        most = ((most_gpus or question.num_gpus) - beside[same[0]]) // priced.size[same[0]] if len(same) else 0.0
        counts, load = _replicas(question, each[same], within[same], wanted, most)
        if most_gpus and len(counts):
            counts = np.array([most])
        at = np.searchsorted(np.maximum.accumulate(each[same]), load / counts)
        rows.append(same[at])
        needed.append(counts)
        widest.append(same[np.maximum(at, np.flatnonzero(within[same]).max(initial=0))])
    kept, counts, last = (np.concatenate(parts) for parts in (rows, needed, widest))
    if not len(kept):
        return None
    return replace(
        priced.take(kept),
        replicas=counts,
        gpus=counts * priced.size[kept] + beside[kept],
        ttft_s=priced.random_ttft_s[kept],
        requests_per_s=np.full(len(kept), question.rate),
        most_batch=priced.batch[last],
        most_tokens=priced.tokens[last],
    )


def _replicas(
    question: ServeQuestion, each: Vector, within: npt.NDArray[np.bool_], wanted: float, most: float
) -> tuple[Vector, float]:
    """(Numbers of replicas that are tried, at most `most`, the load that they are for) of instances with throughputs `each`."""
    enough = np.ceil(wanted / each)
    good = within & (enough <= most)
    counts = np.unique(enough[good if good.any() else enough <= most])
    load = question.rate if good.any() else wanted
    if len(counts):  # between these the fewest that come to rest at a smaller batch
        calmer = np.ceil(load / each)
        counts = np.union1d(counts, calmer[(calmer > counts[0]) & (calmer <= most)])
    return counts, load


def _most_carried(question: ServeQuestion, columns: DeploymentColumns) -> DeploymentColumns:
    """The one deployment that carries most, within the limits where one is."""
    within = columns.within(question.ttft_s, question.tpot_s)
    best = columns.take([int(np.argmax(columns.requests_per_s * (within if within.any() else 1.0)))])
    return replace(best, requests_per_s=SPARE * best.requests_per_s)


def _order(question: ServeQuestion, plans: Sequence[EnginePlan], columns: DeploymentColumns) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(columns.within(question.ttft_s, question.tpot_s))
    if not len(rows):
        return rows
    c = columns.take(rows)
    per_gpu, tpot = c.requests_per_s / c.gpus, c.tpot_s
    if question.goal in ("throughput", "cost"):
        stages, separate = np.array([plan.pp for plan in plans]), c.prefill >= 0
        pipelines = stages[c.layout] + separate * stages[np.maximum(c.prefill, 0)]
        alike = np.floor(np.log(per_gpu.max() / np.maximum(per_gpu, 1e-30)) / TIE)
        user = np.floor(np.log(np.maximum(tpot, 1e-9) / max(tpot.min(), 1e-9)) / TIE)
        return rows[np.lexsort((tpot, -per_gpu, pipelines, separate, user, alike))]
    keys = {"ttft": (-per_gpu, c.ttft_s), "tpot": (-per_gpu, tpot), "gpus": (tpot, c.gpus)}[question.goal]
    return rows[np.lexsort(keys)]


def _nearest_to_fit(question: ServeQuestion, plans: Sequence[EnginePlan]) -> EnginePlan | None:
    best, headroom = None, -np.inf
    for plan in plans:
        memory = question.memory(question.job(plan), float(plan.adp * plan.pp), 512.0)
        left = float(memory.kv_pool_bytes) - question.longest_bytes(plan, memory)
        if left > headroom:
            best, headroom = plan, left
    return best
