"""Why a deployment is recommended, in figures: what the goal counts, what is alike, what ends its batch; what limits cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import TIE, Deployments

RELAXED = 1.25
FIGURES = {
    "throughput": ("most tokens/s/GPU", "tokens/s/GPU"),
    "cost": ("fewest GPU-seconds a token", "tokens/s/GPU"),
    "ttft": ("least TTFT", "TTFT"),
    "tpot": ("least TPOT", "TPOT"),
    "gpus": ("fewest GPUs", "GPUs"),
}
"""By goal: what is best, and the figure that is compared."""


def goal_figure(question: ServeQuestion, found: Deployments) -> npt.NDArray[np.float64]:
    """What the goal counts, of every row."""
    columns = {"ttft": "ttft_s", "tpot": "tpot_s", "gpus": "gpus"}
    return found.columns[columns[question.goal]] if question.goal in columns else found.tokens_per_s_per_gpu


def why(question: ServeQuestion, found: Deployments, row: int) -> list[str]:
    """Lines for the recommended row; none where nothing meets the limits."""
    named = (("TTFT", question.ttft_s), ("TPOT", question.tpot_s))
    limits = [f"{name} <= {limit * 1e3:g} ms" for name, limit in named if limit]
    within = f" within {' and '.join(limits)}" if limits else ""
    lines = [f"{FIGURES[question.goal][0]} of {len(found.order):,} deployments that fit{within}"]
    if question.goal in ("throughput", "cost"):
        speed = found.tokens_per_s_per_gpu[found.order]
        c = found.columns
        near = found.order[speed >= (1.0 - TIE) * speed.max()]
        alike = len({(float(c["layout"][i]), float(c["prefill"][i])) for i in near})
        if alike > 1:
            lines.append(f"{alike:,} layouts are within {TIE:.0%} of the best: of those most tokens/s/user, then the simplest")
    if row != found.order[0]:
        lines.append("what the closed form ranks before it breaks the limits in the simulation")
    if not question.rate:
        lines += _end_of_batch(question, found, row)
    return lines


def _end_of_batch(question: ServeQuestion, found: Deployments, row: int) -> list[str]:
    """What the next larger batch of the same instances would break."""
    c = found.columns
    same = np.ones(len(c["batch"]), dtype=bool)
    for name in ("layout", "prefill", "prefills", "replicas", *(("tokens",) if c["prefill"][row] < 0 else ())):
        same &= c[name] == c[name][row]
    larger = np.flatnonzero(same & (c["batch"] > c["batch"][row]))
    batch = f"batch {c['batch'][row]:,.0f}"
    if not len(larger):
        return [f"{batch} is the largest tried that fits these instances"]
    after = larger[np.argmin(c["batch"][larger])]
    broken = [
        f"{name} {c[column][after] * 1e3:,.3g} ms"
        for name, column, limit in (("TTFT", "ttft_s", question.ttft_s), ("TPOT", "tpot_s", question.tpot_s))
        if limit is not None and c[column][after] > limit
    ]
    return [f"{batch}: the next larger one, {c['batch'][after]:,.0f}, has {' and '.join(broken)}"] if broken else []


def sensitivity(question: ServeQuestion, found: Deployments, rows: Sequence[int]) -> list[str]:
    """What a limit a quarter wider changes of the figure that the goal counts."""
    if not rows:
        return []
    figure, name = goal_figure(question, found), FIGURES[question.goal][1]
    best = float(figure[rows[0]])
    more = question.goal in ("throughput", "cost")
    lines = []
    for limited, limit, wider in (
        ("TTFT", question.ttft_s, question.limited(ttft=RELAXED)),
        ("TPOT", question.tpot_s, question.limited(tpot=RELAXED)),
    ):
        if limit:
            reached = figure[_within(wider, found.columns)]
            change = max(float(reached.max()) / best - 1.0, 0.0) if more else min(float(reached.min()) / best - 1.0, 0.0)
            gain = f"{change:+.0%} {name}" if abs(change) >= 0.005 else f"no better {name}"
            lines.append(f"{limited} {limit * 1e3:g} -> {limit * RELAXED * 1e3:g} ms gives {gain}")
    return lines


def _within(question: ServeQuestion, c: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.bool_]:
    return (c["ttft_s"] <= (question.ttft_s or np.inf)) & (c["tpot_s"] <= (question.tpot_s or np.inf))
