"""Why a deployment is recommended, or why there is none, in figures: what the goal counts, what is alike, what ends its batch,
what limits cost; where nothing is feasible, what comes nearest and by how much it misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from autoconfig.serving.deployment import DeploymentReport, SimulatedJson
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import SPARE, TIE, Deployments
from autoconfig.serving.space import arrangements, refused, weight_formats
from autoconfig.specs.errors import GIB
from autoconfig.specs.remarks import Effect, note
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import supports

LAYOUT_KEYS = ("tp", "pp", "ep", "adp", "weights", "kv", "replicas")
SPARED = f"{SPARE:.0%} of what a full queue gives: arrivals come in bursts"
MAX_FACTOR = 10.0
"""From which a miss is a factor, not a share."""
RELAXED = 1.25
FIGURES = {
    "throughput": ("most tokens/s/GPU", "tokens/s/GPU"),
    "cost": ("fewest GPU-seconds a token", "tokens/s/GPU"),
    "ttft": ("least TTFT", "TTFT"),
    "tpot": ("least TPOT", "TPOT"),
    "gpus": ("fewest GPUs", "GPUs"),
}
"""By goal: what is best, and the figure that is compared."""


def why(question: ServeQuestion, deployments: Deployments, row: int, simulated: int = 0, refuted: int = 0) -> list[str]:
    """Lines for the recommended row; none where nothing meets the limits. `simulated`: deployments that were, of which
    `refuted` broke the limits there."""
    limits = [f"{name} <= {limit * 1e3:g} ms" for _, _, name, limit in limits_of(question)]
    within = f" within {' and '.join(limits)}" if limits else ""
    lines = [f"{FIGURES[question.goal][0]} of {len(deployments.order):,} deployments that fit{within}"]
    if refuted or (simulated and question.tails):
        lines = [
            f"{FIGURES[question.goal][0]} of the {simulated - refuted} that are{within} in the simulation, of {simulated} "
            f"simulated; {len(deployments.order):,} fit and are within in closed form, which knows means only"
        ]
    if question.goal in ("throughput", "cost"):
        speed = deployments.tokens_per_s_per_gpu[deployments.order]
        c = deployments.columns
        near = deployments.order[speed >= (1.0 - TIE) * speed.max()]
        alike = len({(int(c.layout[i]), int(c.prefill[i])) for i in near})
        if alike > 1:
            lines.append(f"{alike:,} layouts are within {TIE:.0%} of the best: of those most tokens/s/user, then the simplest")
    if not question.rate:
        lines += _end_of_batch(question, deployments, row)
    return lines


def refuted_text(question: ServeQuestion, one: DeploymentReport) -> str:
    """Why a simulated deployment that the goal would put first is not recommended."""
    assert one.latency is not None
    broken = exceeded((name, seconds, limit) for _, name, seconds, limit in simulated_figures(question, one.latency))
    return f"not recommended, though as good in closed form: {one.plan}, in the simulation {broken}"


def rate_text(rate: float) -> str:
    """Requests per second in four digits, without an exponent."""
    return f"{rate:,.0f} requests/s" if rate >= 1000.0 else f"{rate:.4g} requests/s"


def sustained_text(requests_per_s: float, tokens_per_s_per_gpu: float, sustained: float) -> str:
    """What a full queue's throughput becomes where requests come by themselves."""
    return (
        f"{tokens_per_s_per_gpu:,.0f} tokens/s/GPU ({requests_per_s:.3g} requests/s) take a queue that is never empty; of "
        f"requests that come at random, in bursts, up to {sustained:g} a second are served (--rate {sustained:g})"
    )


def _end_of_batch(question: ServeQuestion, deployments: Deployments, row: int) -> list[str]:
    c = deployments.columns
    same = np.ones(len(c), dtype=bool)
    for name in ("layout", "prefill", "prefills", "replicas", *(("tokens",) if c.prefill[row] < 0 else ())):
        same &= getattr(c, name) == getattr(c, name)[row]
    larger = np.flatnonzero(same & (c.batch > c.batch[row]))
    batch = f"batch {c.batch[row]:,.0f}"
    if not len(larger):
        return [f"{batch} is the largest tried that fits these instances"]
    after = larger[np.argmin(c.batch[larger])]
    broken = [
        f"{name} {getattr(c, column)[after] * 1e3:,.3g} ms"
        for name, column, limit in (("TTFT", "ttft_s", question.ttft_s), ("TPOT", "tpot_s", question.tpot_s))
        if limit is not None and getattr(c, column)[after] > limit
    ]
    return [f"{batch}: the next larger one, {c.batch[after]:,.0f}, has {' and '.join(broken)}"] if broken else []


def sensitivity(question: ServeQuestion, deployments: Deployments, rows: Sequence[int]) -> list[str]:
    """What a limit a quarter wider changes of the figure that the goal counts."""
    if not rows:
        return []
    name, column = FIGURES[question.goal][1], {"ttft": "ttft_s", "tpot": "tpot_s", "gpus": "gpus"}.get(question.goal)
    figure = getattr(deployments.columns, column) if column else deployments.tokens_per_s_per_gpu
    best, more = float(figure[rows[0]]), column is None
    lines = []
    for limited, limit, wider in (
        ("TTFT", question.ttft_s, question.limited(ttft=RELAXED)),
        ("TPOT", question.tpot_s, question.limited(tpot=RELAXED)),
    ):
        if limit:
            reached = figure[deployments.columns.within(wider.ttft_s, wider.tpot_s)]
            change = max(float(reached.max()) / best - 1.0, 0.0) if more else min(float(reached.min()) / best - 1.0, 0.0)
            gain = f"{change:+.0%} {name}" if abs(change) >= 0.005 else f"no better {name}"
            lines.append(f"{limited} {limit * 1e3:g} -> {limit * RELAXED * 1e3:g} ms gives {gain}")
    return lines + _readable(question, deployments, rows[0])


READABLE_TPOT_S = 0.05
"""20 tokens/s, several times what people read (about 240 words a minute, Brysbaert 2019, J. Mem. Lang. 109): from where on a
user waits for the text."""


def readable(question: ServeQuestion) -> Iterator[ServeQuestion]:
    """The question with READABLE_TPOT_S as its limit, said, where nobody asked for a limit, a load or a batch."""
    given = question.tpot_s or question.ttft_s or question.tails or question.rate or "batch" in question.constraints
    if not given and question.goal in ("throughput", "cost") and question.lengths.steps > 0:
        why = f"{1.0 / READABLE_TPOT_S:.0f} tokens/s a user, as no limit was asked (--tpot 50ms; for offline work --tpot 2s)"
        said = note(why, Effect.EVERYTHING)
        yield replace(question, tpot_s=READABLE_TPOT_S, usual_limit=True, assumed=(said, *question.assumed))


def _readable(question: ServeQuestion, deployments: Deployments, row: int) -> list[str]:
    """What users of READABLE_TPOT_S cost, where nobody asked for it."""
    speed, tpot = deployments.tokens_per_s_per_gpu, deployments.columns.tpot_s
    if question.goal not in ("throughput", "cost") or (question.tpot_s and not question.usual_limit):
        return []
    if question.usual_limit:
        most = int(np.argmax(speed))
        gain = speed[most] / speed[row] - 1.0
        slower = f"{gain:+.0%} tokens/s/GPU where a user may get {1.0 / tpot[most]:.3g} tokens/s (--tpot 2s)"
        return [f"no limit was asked: {slower}"] if gain >= 0.005 and tpot[most] > READABLE_TPOT_S else []
    if tpot[row] <= READABLE_TPOT_S:
        return []
    said = f"no --tpot was asked, and a user gets {1.0 / tpot[row]:.3g} tokens/s: "
    fast = np.flatnonzero(deployments.columns.within(question.ttft_s, question.tpot_s) & (tpot <= READABLE_TPOT_S))
    if not len(fast):
        return [f"{said}no deployment gives {1.0 / READABLE_TPOT_S:.0f}"]
    cost = speed[fast].max() / speed[row] - 1.0
    return [f"{said}{1.0 / READABLE_TPOT_S:.0f} take --tpot {READABLE_TPOT_S * 1e3:.0f}ms, at {cost:+.0%} tokens/s/GPU"]


def nearest_row(question: ServeQuestion, deployments: Deployments) -> int | None:
    """The row that misses the load, or the limits, by least; None where memory holds no deployment."""
    c = deployments.columns
    if not len(c):
        return None
    return int(np.argmin(closed_over(question, deployments))) if deployments.carries else 0


def shortfall(question: ServeQuestion, deployments: Deployments, row: int, carrying: int | None = None) -> str:
    """By how much the nearest deployment misses; `carrying`: GPUs that carry the load, where it is more than these do."""
    if not deployments.carries:
        most = float(deployments.columns.requests_per_s[row])
        gpus = f"{question.num_gpus} GPU{' does' if question.num_gpus == 1 else 's do'}"
        return (
            f"{gpus} not carry {rate_text(question.rate)}; "
            f"the nearest deployment carries {most:.3g} "
            f"({SPARED}); {'try more --gpus' if carrying is None else f'{carrying:,} GPUs carry it: --gpus {carrying:,}'}"
            f"{'; whether the limits are met there is not known: ask with that --rate' * any(limits_of(question))}"
        )
    over = over_text(float(closed_over(question.in_means(), deployments)[row]))
    ways = " and ".join(_beyond_in_means(question, deployments, row))
    tries = f"try more --gpus, {'a lower --rate or ' * bool(question.rate)}wider limits"
    return f"limits cannot be met; the nearest deployment misses by {over} ({ways}); {tries}"


def missed_text(question: ServeQuestion, reports: Iterable[DeploymentReport]) -> tuple[DeploymentReport, str]:
    """(Of the simulated deployments the one that misses the limits by least, by how much)."""
    tried = [(max(over_limits(question, one.latency).values()), one, one.latency) for one in reports if one.latency is not None]
    over, nearest, latency = min(tried, key=lambda each: each[0])
    return nearest, (
        f"limits are met by none of {len({str(one.plan) for _, one, _ in tried})} deployments that were tried, the fastest of "
        f"each tp among them: in the simulation the nearest deployment misses by {over_text(over)} "
        f"({exceeded((name, seconds, limit) for _, name, seconds, limit in simulated_figures(question, latency))}), with "
        f"{latency.goodput_ratio:.0%} of the requests within them; try more --gpus, "
        f"{'a lower --rate or ' * bool(question.rate)}wider limits"
    )


def _beyond_in_means(question: ServeQuestion, deployments: Deployments, row: int) -> Iterator[str]:
    """What exceeds its limit: the closed form knows means, which are below the percentiles that a limit may be of."""
    for kind in ("ttft", "tpot"):
        seconds = float(getattr(deployments.columns, f"{kind}_s")[row])
        own = [each for each in limits_of(question) if each[0] == kind and seconds > each[3]]
        if own:
            _, figure, name, limit = min(own, key=lambda each: each[3])
            if figure == "mean":
                yield exceeded([(name, seconds, limit)])
            else:
                yield f"mean {kind.upper()} {seconds * 1e3:,.4g} ms, with {name} at most {limit * 1e3:,.4g}"


def exceeded(figures: Iterable[tuple[str, float, float | None]]) -> str:
    """Of (name, seconds, limit) those beyond their limits, with both figures."""
    return " and ".join(
        f"{name} {seconds * 1e3:,.4g} ms of at most {limit * 1e3:,.4g}"
        for name, seconds, limit in figures
        if limit is not None and seconds > limit
    )


def limits_of(question: ServeQuestion) -> Iterator[tuple[str, str, str, float]]:
    """(`ttft` or `tpot`, `mean` or a percentile, in words, seconds) of every limit that was asked."""
    for kind, limit in (("ttft", question.ttft_s), ("tpot", question.tpot_s)):
        if limit:
            yield kind, "mean", kind.upper(), limit
    for name, limit in question.tails.items():
        kind, _, figure = name.partition("_")
        yield kind, figure, f"{kind.upper()} {figure}", limit


def simulated_figures(question: ServeQuestion, latency: SimulatedJson) -> Iterator[tuple[str, str, float, float]]:
    """(`ttft` or `tpot`, the figure in words, its seconds in the simulation, its limit) of every limit that was asked."""
    for kind, figure, name, limit in limits_of(question):
        yield kind, name, getattr(getattr(latency, f"{kind}_seconds"), figure), limit


def over_limits(question: ServeQuestion, latency: SimulatedJson) -> dict[str, float]:
    """The worst of TTFT's and of TPOT's simulated figures, over its limit."""
    worst = {"ttft": 0.0, "tpot": 0.0}
    for kind, _, seconds, limit in simulated_figures(question, latency):
        worst[kind] = max(worst[kind], seconds / limit)
    return worst


def keeps_limits(question: ServeQuestion, one: DeploymentReport) -> bool:
    """Whether it was simulated and every limit held."""
    return one.latency is not None and max(over_limits(question, one.latency).values()) <= 1.0


def over_text(over: float) -> str:
    """A figure over its limit: `12%`, or `a factor of 40`."""
    return f"{over - 1.0:.0%}" if over < MAX_FACTOR else f"a factor of {over:,.0f}"


def closed_over(question: ServeQuestion, deployments: Deployments) -> npt.NDArray[np.float64]:
    """Of each row the worst latency in closed form over its limit."""
    c = deployments.columns
    return np.asarray(np.maximum(c.ttft_s / (question.ttft_s or np.inf), c.tpot_s / (question.tpot_s or np.inf)))


def no_deployment(question: ServeQuestion, deployments: Deployments) -> str:
    """Why memory, the space or --fix leave nothing."""
    plan = deployments.too_large
    if plan is None:
        return _illegal(question)
    small = plan.replace(batch=plan.adp * plan.pp, tokens=512)
    memory = question.decode_memory(small)
    short = (question.longest_bytes(small, memory) - float(memory.kv_pool_bytes)) / GIB
    if short > 0:
        return (
            f"nothing fits; nearest: {small}, which lacks {short:.1f} GiB a GPU for one sequence of "
            f"{question.workload.longest_tokens:,.0f} tokens; try {', '.join(_ways_out(question, small))}"
        )
    whole = small if question.chunked else small.replace(tokens=max(int(question.longest_prompt), 512))
    memory_whole = question.decode_memory(whole)
    short = (question.longest_bytes(whole, memory_whole) - float(memory_whole.kv_pool_bytes)) / GIB
    if short > 0:
        return (
            f"nothing fits with whole prompts: an iteration of {whole.tokens:,} tokens takes "
            f"{float(memory_whole.activation_bytes) / GIB:.1f} GiB of activations, and {small} lacks {short:.1f} GiB a GPU; "
            "try --chunked-prefill, which splits prompts over iterations, or more --gpus"
        )
    held = int(memory.max_concurrency) * small.adp
    asked = " ".join(f"{key}={','.join(sorted(map(str, values)))}" for key, values in question.constraints.items())
    return (
        f"no deployment matches --fix {asked}: a batch is {small.adp * small.pp} to about {held:,} sequences "
        f"of {question.workload.held_tokens:,.0f} tokens in {small}"
        + ("" if question.chunked else f", and tokens holds a whole prompt of {question.longest_prompt:,.0f}")
    )


def _illegal(question: ServeQuestion) -> str:
    q = question
    legal = list(q.layouts({}))
    for key in LAYOUT_KEYS:
        asked = q.constraints.get(key)
        there = {getattr(plan, key) for plan in legal}
        if asked and key not in ("weights", "kv") and not asked & there:
            return (
                f"no layout of {q.model.name} on {q.num_gpus} GPUs has {key}={','.join(sorted(map(str, asked)))}"
                f"{_why_none(q, key, asked)}; there are {key} = {', '.join(map(str, sorted(there)))}"
            )
    fixed = ", ".join(f"{key}={','.join(sorted(map(str, values)))}" for key, values in q.constraints.items())
    why = _why_together(q)
    return f"no layout of {q.model.name} on {q.num_gpus} GPUs has {fixed or 'this engine'} together{why}; drop a --fix"


def _why_together(question: ServeQuestion) -> str:
    """What an engine refuses of the plans that --fix names, in parentheses; empty where there are none at all."""
    q = question
    ways = arrangements(q.model, q.gpu, q.num_gpus, q.gpus_per_node, q.constraints)
    whys = (refused(q.model, q.engine, plan, q.gpus_per_node, q.checkpoint) for plan in ways)
    return next((f" ({why})" for why in whys if why), "")


def _why_none(question: ServeQuestion, key: str, asked: frozenset[object]) -> str:
    """What a value of --fix breaks, in parentheses; empty where it takes several keys together."""
    q, value = question, min(asked, key=str)
    if not isinstance(value, int):
        return ""
    experts = q.model.num_moe_experts or 0
    weights = weight_formats(q.model, q.gpu, sorted(map(str, q.constraints.get("weights", ()))))
    tried = EnginePlan(tp=value, weights=weights[0])
    broken = refused(q.model, q.engine, tried, q.gpus_per_node, q.checkpoint) if key == "tp" else ""
    rules = (
        (q.num_gpus % value, f"{q.num_gpus} GPUs"),
        (broken, broken),
        (key == "pp" and value > q.model.num_layers, f"{q.model.num_layers} layers"),
        (key in ("ep", "adp") and value > 1 and not q.model.is_moe, "a dense model"),
        (key == "ep" and experts and experts % value, f"{experts} experts"),
    )
    return next((f" ({reason})" for wrong, reason in rules if wrong), "")


def _ways_out(question: ServeQuestion, plan: EnginePlan) -> list[str]:
    tries = ["more --gpus", "a --gpu with more memory", "a shorter --isl or --osl"]
    if "weights" in question.constraints:
        return tries
    for name in ("nvfp4", "int4"):
        other = plan.replace(weights=name)
        memory = question.decode_memory(other)
        if supports(question.gpu, name) and float(memory.kv_pool_bytes) >= question.longest_bytes(other, memory):
            return [*tries, f"--fix weights={name}"]
    return tries
