"""All deployments of a question as columns: priced, cut by memory and limits, ranked by the goal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoconfig.planning.progress import Progress
from autoconfig.serving import disaggregated
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.space import least_tokens, loads
from autoconfig.specs.layouts import first_positions, pareto_front
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.scheduler import policy_of
from autoconfig.time_model.serving.steady import Pricer, steady_state

Vector = npt.NDArray[np.float64]
BATCHES = np.unique(np.round(np.exp2(np.arange(0.0, 13.01, 0.125))))
TOKENS = np.array([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0])
TIE = 0.01
"""Throughputs this close to the best (in logs) are alike, and so on in steps of it: then more tokens/s/user come first, of
those alike as well aggregated before disaggregated and fewer pipeline stages before more."""
MIN_GAIN = 1e-4
"""Share by which a deployment on the frontier does more tokens/s/GPU than the next faster one for a user."""
SPARE = 0.9
"""Share of its throughput that a deployment is asked for under a load: arrivals come in bursts."""
COLUMNS = ("layout", "batch", "tokens", "replicas", "requests_per_s", "ttft_s", "tpot_s", "random_ttft_s", "gpus", "headroom",
           "prefill", "prefills", "size", "each")  # fmt: skip
"""layout: index; batch: sequences of an instance that run at once; requests_per_s: of the deployment;
random_ttft_s: where requests come at random; headroom: sequences that memory holds over batch; prefill: index of the prefill
layout (-1: aggregated), prefills: its instances; size and each: GPUs and requests_per_s of one of the replicas. Under a load
also most_batch and most_tokens: the limits that leave headroom for bursts."""


@dataclass(frozen=True, kw_only=True)
class Deployments:
    """Every deployment that memory holds, one row each; `order` ranks those that meet the limits, best first."""

    question: ServeQuestion
    layouts: Sequence[EnginePlan]
    columns: Mapping[str, Vector]
    order: npt.NDArray[np.int64]
    enumerated: int
    fit: int
    seconds: float
    too_large: EnginePlan | None = None
    carries: bool = True
    """False: under a load that no deployment carries; the one row is then the deployment that carries most of it."""
    most_load: float = 1.0
    """Times the mean load that a deployment within the limits carries on all GPUs."""
    priced: Mapping[str, Vector] = field(default_factory=dict)
    """Under a load: columns of full queues, of which the deployments that carry it are made."""

    def plan(self, row: int) -> ServePlan:
        c = {name: values[row] for name, values in self.columns.items()}
        batch, tokens = c.get("most_batch", c["batch"]), c.get("most_tokens", c["tokens"])
        decode = self.layouts[int(c["layout"])].replace(batch=int(batch), tokens=int(tokens), replicas=int(c["replicas"]))
        if c["prefill"] < 0:
            return ServePlan(decode=decode)
        prefill = disaggregated.instance(self.question, self.layouts[int(c["prefill"])], int(c["prefills"]))
        return ServePlan(prefill=prefill, decode=decode)

    @property
    def tokens_per_s_per_gpu(self) -> Vector:
        return self.columns["requests_per_s"] * self.question.lengths.osl / self.columns["gpus"]

    @property
    def tokens_per_s_per_user(self) -> Vector:
        return 1.0 / np.maximum(self.columns["tpot_s"], 1e-9)

    def pareto(self) -> list[int]:
        """Rows on the frontier tokens/s/user against tokens/s/GPU, fastest user first."""
        user, gpu = self.tokens_per_s_per_user, self.tokens_per_s_per_gpu
        within = np.isfinite(user) & (self.columns["ttft_s"] <= (self.question.ttft_s or np.inf))
        rows = np.flatnonzero(within & (gpu > 0)) if self.carries else np.zeros(0, np.int64)
        return [int(row) for row in rows[pareto_front(-user[rows], gpu[rows], MIN_GAIN)]]


def search(question: ServeQuestion, progress: Progress | None = None) -> Deployments:
    """Price every layout's deployments; rank."""
    start = time.perf_counter()
    pricer = Pricer(lengths=question.lengths)
    plans = list(question.layouts(fill=not (question.rate or question.disaggregated)))
    blocks: list[dict[str, Vector]] = []
    prefills: list[disaggregated.Prefill] = []
    enumerated, combinations = 0, int(np.prod([len(axis) for axis in _grid(question)]))
    for index, plan in enumerate(plans):
        job, fills = question.job(plan), bool(question.rate) or question.num_gpus % plan.size == 0
        enumerated += combinations * fills
        if not loads(job):
            continue
        block = instance_rows(question, pricer, job, index) if fills and question.aggregated else None
        if block is not None:
            blocks.append(block)
        if question.disaggregated and disaggregated.prefill_lacks_bytes(question, plan) <= 0:
            prefills.append(disaggregated.prefill(question, pricer, job, index))
        if progress is not None and index % 50 == 0:
            progress(f"{index + 1:,} of {len(plans):,} layouts")
    loaded = list(blocks)
    if question.disaggregated:
        batches = _grid(question)[0]
        blocks += disaggregated.pairs(question, pricer, plans, prefills, batches)
        if question.rate:
            wanted = question.rate * question.sized_for / SPARE
            loaded += disaggregated.pairs_under_load(question, pricer, plans, prefills, batches, wanted)
    columns, priced = _joined(blocks), _joined(loaded)
    carries, most_load = True, 1.0
    if question.rate and blocks:
        most_load = float((columns["requests_per_s"] * within_limits(question, columns)).max()) * SPARE / question.rate
        columns, carries = _for_rate(question, priced) or (_most_carried(question, columns), False)
    order = _order(question, plans, columns) if carries else np.zeros(0, dtype=np.int64)
    return Deployments(
        question=question,
        layouts=plans,
        columns=columns,
        order=order,
        enumerated=enumerated,
        fit=len(columns["layout"]) if carries else 0,
        seconds=time.perf_counter() - start,
        too_large=_nearest_to_fit(question, plans) if not blocks else None,
        carries=carries,
        most_load=most_load,
        priced=priced,
    )


def _joined(blocks: Sequence[Mapping[str, Vector]]) -> dict[str, Vector]:
    return {name: np.concatenate([b[name] for b in blocks]) if blocks else np.zeros(0) for name in COLUMNS}


def _grid(question: ServeQuestion) -> tuple[Vector, Vector]:
    """Batches and token budgets, those of --fix where given; whole prompts of any length get a budget that holds them."""
    batches = np.array(sorted(float(b) for b in question.constraints["batch"])) if "batch" in question.constraints else BATCHES  # type: ignore[arg-type]
    tokens = np.array(sorted(float(t) for t in question.constraints["tokens"])) if "tokens" in question.constraints else TOKENS  # type: ignore[arg-type]
    if not question.chunked and "tokens" not in question.constraints and question.longest_prompt > TOKENS[-1]:
        tokens = np.append(tokens, np.ceil(question.longest_prompt / 1024.0) * 1024.0)
    return batches, tokens


def instance_rows(question: ServeQuestion, pricer: Pricer, job: ServingJob, index: int) -> dict[str, Vector] | None:
    """Deployments of one layout that memory holds and whose batch fills every rank and stage."""
    plan, lengths = job.plan, question.lengths
    batch, tokens = (x.ravel() for x in np.meshgrid(*_grid(question), indexing="ij"))
    ranks = plan.adp * plan.pp
    memory = question.memory(job, batch, tokens)
    held = memory.max_concurrency * plan.adp
    keep = (held >= batch) & (batch >= ranks) & (tokens >= np.minimum(batch / ranks * (1.0 + lengths.drafted), 8192.0))
    keep &= memory.kv_pool_bytes >= question.longest_bytes(plan, memory)
    keep &= tokens >= least_tokens(question.engine, plan, batch)
    if not question.chunked:
        keep &= tokens >= question.longest_prompt
    if not keep.any():
        return None
    batch, tokens, held = batch[keep], tokens[keep], held[keep]
    asked_s = job.constants.request_s + job.constants.request_token_s * lengths.isl
    late = policy_of(question.engine).late
    found = steady_state(pricer.prices(job), lengths, batch / ranks, tokens, ranks, question.chunked, asked_s, late)
    n = len(batch)
    return {
        "layout": np.full(n, float(index)),
        "batch": batch,
        "tokens": tokens,
        "replicas": np.full(n, float(plan.replicas)),
        "requests_per_s": found.requests_per_s * plan.replicas,
        "ttft_s": found.ttft_s,
        "tpot_s": found.tpot_s,
        "random_ttft_s": found.random_ttft_s,
        "gpus": np.full(n, float(plan.replicas * plan.size)),
        "headroom": held / batch,
        "prefill": np.full(n, -1.0),
        "prefills": np.zeros(n),
        "size": np.full(n, float(plan.size)),
        "each": found.requests_per_s,
    }


def within_limits(question: ServeQuestion, columns: Mapping[str, Vector]) -> npt.NDArray[np.bool_]:
    """Rows whose latencies in closed form are within the limits."""
    return (columns["ttft_s"] <= (question.ttft_s or np.inf)) & (columns["tpot_s"] <= (question.tpot_s or np.inf))


def _for_rate(
    question: ServeQuestion, priced: Mapping[str, Vector], most_gpus: float = 0.0
) -> tuple[dict[str, Vector], bool] | None:
    """(deployments that carry the load, True); None where there is none. With `most_gpus`: on as many of so many GPUs as their
    instances fill.

    Of the same instances with every token budget: as many replicas as each batch within --tpot would need at SPARE of its
    throughput (where none is enough, as any batch would), or more that come to rest at a smaller one. Their requests then run
    at the smallest batch whose throughput is the load, where a system that starts empty comes to rest; the larger ones of a
    closed loop carry it as well, but no load takes a system there. The limit of the batch leaves headroom for bursts: the
    largest that memory holds and that is within --tpot. Separate prefill instances are as many as each row has of them.
    """
    wanted = question.rate * question.sized_for / SPARE
    aggregated, each, size = priced["prefill"] < 0, priced["each"], priced["size"]
    beside = priced["gpus"] - priced["replicas"] * size
    kinds = ("layout", "tokens", "prefill", "prefills")
    alike = np.stack([np.where(aggregated, priced[name], -1.0) if name == "tokens" else priced[name] for name in kinds], axis=1)
    _, group = np.unique(alike, axis=0, return_inverse=True)
    within = priced["tpot_s"] <= (question.tpot_s or np.inf)
    by_batch = np.lexsort((priced["batch"], group))
    rows, needed, widest = [], [], []
    for same in np.split(by_batch, np.flatnonzero(np.diff(group[by_batch])) + 1):
        most = ((most_gpus or question.num_gpus) - beside[same[0]]) // size[same[0]] if len(same) else 0.0
        enough = np.ceil(wanted / each[same])
        good = within[same] & (enough <= most)
        counts = np.unique(enough[good if good.any() else enough <= most])
        load = question.rate if good.any() else wanted
        if len(counts):  # between these the fewest that come to rest at a smaller batch
            calmer = np.ceil(load / each[same])
            counts = np.union1d(counts, calmer[(calmer > counts[0]) & (calmer <= most)])
        if most_gpus and len(counts):
            counts = np.array([most])
        at = np.searchsorted(np.maximum.accumulate(each[same]), load / counts)
        rows.append(same[at])
        needed.append(counts)
        widest.append(same[np.maximum(at, np.flatnonzero(within[same]).max(initial=0))])
    kept, counts, last = (np.concatenate(parts) for parts in (rows, needed, widest))
    if not len(kept):
        return None
    result = {name: values[kept] for name, values in priced.items()}
    result["replicas"] = counts
    result["gpus"] = counts * size[kept] + beside[kept]
    result["ttft_s"] = result["random_ttft_s"]
    result["requests_per_s"] = np.full(len(kept), question.rate)
    return {**result, "most_batch": priced["batch"][last], "most_tokens": priced["tokens"][last]}, True


def at_most(found: Deployments, gpus: int) -> Deployments:
    """The deployments of a load that is carried, on as many of so many GPUs as their instances fill."""
    columns, _ = _for_rate(found.question, found.priced, float(gpus)) or ({n: x[:0] for n, x in found.columns.items()}, True)
    return replace(found, columns=columns, order=_order(found.question, found.layouts, columns), fit=len(columns["layout"]))


def _most_carried(question: ServeQuestion, columns: Mapping[str, Vector]) -> dict[str, Vector]:
    """The one deployment that carries most, within the limits where one is."""
    within = within_limits(question, columns)
    best = [int(np.argmax(columns["requests_per_s"] * (within if within.any() else 1.0)))]
    return {name: values[best] * (SPARE if name == "requests_per_s" else 1.0) for name, values in columns.items()}


def _order(question: ServeQuestion, plans: Sequence[EnginePlan], columns: Mapping[str, Vector]) -> npt.NDArray[np.int64]:
    rows = np.flatnonzero(within_limits(question, columns))
    if not len(rows):
        return rows
    per_gpu, tpot, gpus, ttft = (
        columns["requests_per_s"][rows] / columns["gpus"][rows],
        *(columns[name][rows] for name in ("tpot_s", "gpus", "ttft_s")),
    )
    if question.goal in ("throughput", "cost"):
        stages = np.array([plan.pp for plan in plans])
        disaggregated = columns["prefill"][rows] >= 0
        pipelines = stages[columns["layout"][rows].astype(int)]
        pipelines = pipelines + disaggregated * stages[np.maximum(columns["prefill"][rows], 0).astype(int)]
        alike = np.floor(np.log(per_gpu.max() / np.maximum(per_gpu, 1e-30)) / TIE)
        user = np.floor(np.log(np.maximum(tpot, 1e-9) / max(tpot.min(), 1e-9)) / TIE)
        return rows[np.lexsort((tpot, -per_gpu, pipelines, disaggregated, user, alike))]
    keys = {"ttft": (-per_gpu, ttft), "tpot": (-per_gpu, tpot), "gpus": (tpot, gpus)}[question.goal]
    return rows[np.lexsort(keys)]


def single(question: ServeQuestion, plans: Sequence[EnginePlan], columns: Mapping[str, Vector]) -> Deployments:
    """One deployment that was named, as columns of its own."""
    return Deployments(
        question=question, layouts=plans, columns=columns, order=np.zeros(1, dtype=np.int64), enumerated=1, fit=1, seconds=0.0
    )


def _nearest_to_fit(question: ServeQuestion, plans: Sequence[EnginePlan]) -> EnginePlan | None:
    best, headroom = None, -np.inf
    for plan in plans:
        memory = question.memory(question.job(plan), float(plan.adp * plan.pp), 512.0)
        left = float(memory.kv_pool_bytes) - question.longest_bytes(plan, memory)
        if left > headroom:
            best, headroom = plan, left
    return best


def one_per_layout(found: Deployments, most: int) -> list[int]:
    """The best row of each of the first `most` layouts."""
    decode, prefill = (found.columns[name][found.order].astype(np.int64) for name in ("layout", "prefill"))
    first = first_positions(decode * (len(found.layouts) + 1) + prefill + 1)
    return [int(row) for row in found.order[first[:most]]]
