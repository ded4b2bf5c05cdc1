"""Finalists of a serving search: simulated, and where bursts or long requests break the limits, others that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoconfig.planning.progress import Progress
from autoconfig.serving.deployment import DeploymentReport, report, simulated
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import Deployments, at_most, one_per_layout, search
from autoconfig.serving.reasons import closed_over, over_limits
from autoconfig.serving.request import ServeRequest
from autoconfig.specs.layouts import first_positions

COUNTED = ("throughput", "cost", "gpus")
"""Goals that under a load are all to carry it on few GPUs."""
ONE_BY_ONE = 8
"""Numbers of GPUs that are tried one after the other, from the fewest of the closed form on; then all GPUs, and between both
by halves, as more GPUs leave each less to do."""
HEADROOM_STEP, MAX_SIZES, BISECTIONS = 1.5, 6, 3
"""Least factor between the loads that deployments are sized for, how many such loads are tried up to all GPUs, and how often
the gap below the first that is within the limits is halved."""
MAX_LAST = 12
"""Deployments that are simulated before limits are called out of reach."""
CLOSED_AGREES = 1.35
"""The closed form's TTFT over the simulated mean at most (docs/inference.md, steady state)."""
_Tried = tuple[ServeQuestion, Deployments, list[DeploymentReport]]
"""What was searched, all of it, and the reports of its finalists."""
Found = tuple[Deployments, list[DeploymentReport], list[str], list[DeploymentReport]]
"""Columns, reports with the first ones simulated, remarks, and all that were simulated."""


def kept(question: ServeQuestion, one: DeploymentReport) -> bool:
    """Whether it was simulated and every limit held."""
    return one.latency is not None and max(over_limits(question, one.latency).values()) <= 1.0


class _Walk:
    """What is tried on how many GPUs; no deployment is simulated twice."""

    def __init__(self, question: ServeQuestion, request: ServeRequest, progress: Progress | None) -> None:
        self.question, self.request, self.progress = question, request, progress
        self.base = search(question.in_means(), progress)
        self.seen: dict[str, DeploymentReport] = {}

    def tried(self, below: int, most: int) -> tuple[Deployments, list[DeploymentReport]]:
        """Deployments on more than `below` and at most `most` GPUs: the first by the goal, then the one furthest within the
        limits of each tensor parallelism, until one keeps them in the simulation; those that do come first."""
        found = at_most(self.base, most)
        order = found.order[found.columns["gpus"][found.order] > below]
        c = found.columns
        firsts = one_per_layout(replace(found, order=order), self.request.simulate)
        by_speed = order[np.argsort(closed_over(self.question.in_means(), found)[order], kind="stable")]
        tp = np.array([plan.tp for plan in found.layouts])[c["layout"][by_speed].astype(int)]
        fastest = [int(row) for row in by_speed[first_positions(2 * tp + (c["prefill"][by_speed] >= 0))]]
        rows: dict[int, DeploymentReport] = {}
        for number, row in enumerate(dict.fromkeys([*firsts, *fastest])):
            if number >= len(firsts) and any(kept(self.question, one) for one in rows.values()):
                break
            rows[row] = self._simulated(report(self.question, found, row))
        good = [row for row, one in rows.items() if kept(self.question, one)]
        rest = [row for row in order if row not in good]
        ordered = replace(found, order=np.array([*good, *rest], dtype=np.int64))
        return ordered, [*(rows[row] for row in good), *(one for row, one in rows.items() if row not in good)]

    def shown(self, found: Deployments) -> list[DeploymentReport]:
        """The reports of an answer, the first ones simulated; those that break limits there come behind."""
        reports = [report(self.question, found, row) for row in one_per_layout(found, self.request.top)]
        some = self.request.simulate
        reports = [self._simulated(one) if i < some or str(one.plan) in self.seen else one for i, one in enumerate(reports)]
        return sorted(reports, key=lambda one: one.latency is not None and not kept(self.question, one))

    def _simulated(self, one: DeploymentReport) -> DeploymentReport:
        name = str(one.plan)
        if name not in self.seen:
            if self.progress is not None:
                self.progress(f"simulating {name}")
            self.seen[name] = replace(one, latency=simulated(self.question, one))
        return replace(one, latency=self.seen[name].latency)


def fewest(question: ServeQuestion, request: ServeRequest, progress: Progress | None) -> Found | None:
    """The deployments on the fewest GPUs of which one keeps the limits in the simulation; where none does, those on all GPUs.
    None where the closed form knows none within the limits, or nothing is to be simulated."""
    walk = _Walk(question, request, progress)
    base = walk.base
    if not request.simulate or not base.carries or not len(base.order):
        return None
    booked = np.unique(base.columns["gpus"][base.order]).astype(int)
    least, most = int(booked[0]), question.num_gpus
    below, found, reports = least - 1, base, list[DeploymentReport]()
    for gpus in [*(int(one) for one in booked[:ONE_BY_ONE]), most]:
        if gpus <= below:
            continue
        found, reports = walk.tried(below, gpus)
        if reports and kept(question, reports[0]):
            break
        below = gpus if gpus < most else below
    while reports and kept(question, reports[0]) and reports[0].gpus - below > 1:
        middle = (below + reports[0].gpus) // 2
        fewer, some = walk.tried(below, middle)
        if some and kept(question, some[0]):
            found, reports = fewer, some
        else:
            below = middle
    best = next((one for one in reports if kept(question, one)), None)
    lines = []
    if best is not None and best.gpus > least:
        few = f"{least:,} GPU carries" if least == 1 else f"{least:,} GPUs carry"
        lines = [f"{few} the mean load; on fewer than {best.gpus:,} bursts break the limits in the simulation"]
    whole = _beside(found, base, int(max((one.gpus for one in reports), default=0)))
    return whole, walk.shown(whole), lines, list(walk.seen.values())


def _beside(found: Deployments, base: Deployments, most: int) -> Deployments:
    """`found` with those of `base`, of which those on more than `most` GPUs are ranked behind and others, which break limits in
    the simulation, are not."""
    more = np.flatnonzero(base.columns["gpus"][base.order] > most)
    columns = {name: np.concatenate([found.columns[name], base.columns[name]]) for name in found.columns}
    order = np.concatenate([found.order, len(found.columns["layout"]) + base.order[more]]).astype(np.int64)
    return replace(base, columns=columns, order=order)


def finalists(question: ServeQuestion, request: ServeRequest, progress: Progress | None) -> Found:
    """What of_loads finds. Where none of it is within the limits in the simulation, the deployments that are fastest in closed
    form are simulated too, and every tp of which one is within them is searched for itself."""
    first = (fewest(question, request, progress) if question.rate and question.goal in COUNTED else None) or of_loads(
        question, request, progress
    )
    found, reports, _, tried = first
    out_of_reach = not reports and (not question.tails or not found.carries)
    if not request.simulate or out_of_reach or any(kept(question, one) for one in reports):
        return first
    better: dict[int, list[Found]] = {}
    for columns, row in _fastest(question, CLOSED_AGREES if not reports else 1.0):
        one = report(question, columns, row)
        tp = one.plan.decode.tp
        if tp in better:
            continue
        if progress is not None:
            progress(f"simulating {one.plan}")
        one = replace(one, latency=simulated(question, one))
        tried = [*tried, one]
        if kept(question, one):
            said = f"of tp={tp} alone: what is ranked first of all breaks the limits in the simulation"
            alone = replace(columns, question=question, order=np.array([row]))
            better[tp] = [(alone, [one], [f"the fastest {said}"], [])]
            narrow = replace(question, constraints={**question.constraints, "tp": frozenset({tp})})
            found, within, lines, more = of_loads(narrow, request, progress)
            tried = [*tried, *more]
            if any(kept(question, each) for each in within):
                better[tp].append((replace(found, question=question), within, [said, *lines], []))
    some = [each for both in better.values() for each in both]
    best = min(some, key=lambda each: (_figure(question, each[1]), each[1][0].tpot_s)) if some else first
    return (*best[:3], tried)


def _fastest(question: ServeQuestion, slack: float) -> list[tuple[Deployments, int]]:
    """The MAX_LAST deployments that are furthest within the limits in closed form, best first: the best one of each tensor
    parallelism and token budget, on as few GPUs as the load takes and on all of them. Limits of percentiles may be exceeded
    by a factor `slack`, as the closed form knows means, and these not exactly."""
    wide = question.in_means(slack)
    loads = [search(wide)]
    if question.rate and 0.99 * loads[0].most_load > 1.0:
        loads.append(search(replace(wide, sized_for=0.99 * loads[0].most_load)))
    best: dict[str, tuple[float, Deployments, int]] = {}
    for found in loads:
        over, c = closed_over(question.in_means(), found)[found.order], found.columns
        tp = np.array([plan.tp for plan in found.layouts])[c["layout"][found.order].astype(int)]
        by_speed = np.argsort(over, kind="stable")
        kinds = np.stack([tp, c["tokens"][found.order], c["prefill"][found.order] >= 0], axis=1)[by_speed]
        for i in by_speed[np.sort(np.unique(kinds, axis=0, return_index=True)[1])]:
            plan = found.plan(int(found.order[i]))
            best.setdefault(str(plan), (float(over[i]), found, int(found.order[i])))
    return [(found, row) for _, found, row in sorted(best.values(), key=lambda each: each[0])[:MAX_LAST]]


def of_loads(question: ServeQuestion, request: ServeRequest, progress: Progress | None) -> Found:
    """Where simulated means of finalists are beyond the limits,
    others are looked for, as bursts and long requests are in no closed form: under a load deployments sized for more of it,
    until one is within; of a full queue those of closer limits in closed form, until the first is within, and the best of all
    is taken."""
    start = harder = question.in_means()
    tried = [(start, *_simulated_reports(question, start, request, progress))]
    while request.simulate and len(tried) <= MAX_SIZES:
        _, found, reports = tried[-1]
        good = [kept(question, one) for one in reports]
        if not good or any(good if question.rate else good[:1]):
            break
        before, harder = harder, _harder(question, harder, found, reports)
        if (harder.sized_for, harder.ttft_s, harder.tpot_s) == (before.sized_for, before.ttft_s, before.tpot_s):
            break
        tried.append((harder, *_simulated_reports(question, harder, request, progress)))
    if question.rate and len(tried) > 1:
        tried += _between(question, request, progress, *tried[-2:])
    some = [each for each in tried if each[2]] or tried[:1]
    within = [each for each in some if any(kept(question, one) for one in each[2])]
    harder, found, reports = min(within, key=lambda each: _figure(question, each[2])) if within else some[-1]
    reports.sort(key=lambda one: one.latency is not None and not kept(question, one))
    lines = [_harder_text(start, harder)] if harder is not start and within else []
    return replace(found, question=question), reports, lines, [one for each in tried for one in each[2] if one.latency]


def _between(
    question: ServeQuestion, request: ServeRequest, progress: Progress | None, low: _Tried, high: _Tried
) -> list[_Tried]:
    """Loads between one whose finalists break the limits and the next that was tried, of which one is within them: the gap is
    halved. What holds for one load need not hold for a larger one, so all that were tried are compared, not only the last."""
    tried: list[_Tried] = []
    for _ in range(BISECTIONS):
        within = [one.gpus for one in high[2] if kept(question, one)]
        if not within or low[2][0].gpus + 1 >= min(within):
            break
        size = (low[0].sized_for * high[0].sized_for) ** 0.5
        asked = replace(low[0], sized_for=size)
        middle = (asked, *_simulated_reports(question, asked, request, progress))
        tried.append(middle)
        good = any(kept(question, one) for one in middle[2])
        low, high = (low, middle) if good else (middle if middle[2] else low, high)
    return tried


def _figure(question: ServeQuestion, reports: Sequence[DeploymentReport]) -> float:
    """What the goal makes least, of the first that is within the limits in the simulation."""
    return figure(question, next(one for one in reports if kept(question, one)))


def figure(question: ServeQuestion, one: DeploymentReport) -> float:
    """What the goal makes least."""
    figures = {"ttft": one.ttft_s, "tpot": one.tpot_s, "gpus": float(one.gpus)}
    return figures.get(question.goal, -one.tokens_per_s_per_gpu)


def _harder(
    question: ServeQuestion, tried: ServeQuestion, found: Deployments, reports: Sequence[DeploymentReport]
) -> ServeQuestion:
    """What is asked of the closed form next where simulated finalists of `tried` are beyond the limits of `question`: to carry
    more of a load; of a full queue closer limits, below the first finalist's own figures by as much as it exceeds them."""
    if question.rate:
        most = 0.99 * found.most_load
        step = max(HEADROOM_STEP, most ** (1.0 / MAX_SIZES))
        return replace(tried, sized_for=max(min(tried.sized_for * step, most), tried.sized_for))
    assert reports[0].latency is not None
    best, over = reports[0], over_limits(question, reports[0].latency)
    figures = ((over["ttft"], tried.ttft_s, best.ttft_s), (over["tpot"], tried.tpot_s, best.tpot_s))
    nearer = [
        min(0.99 / beyond * min(closed / now, 1.0), 1.0) if now and beyond > 1.0 else 1.0 for beyond, now, closed in figures
    ]
    return tried.limited(ttft=nearer[0], tpot=nearer[1])


def _harder_text(question: ServeQuestion, harder: ServeQuestion) -> str:
    if question.rate:
        size = f"{harder.sized_for:.3g} times the mean load"
        return f"sized for {size}: sized for less, bursts break the limits in the simulation"
    limits = (("TTFT", question.ttft_s, harder.ttft_s), ("TPOT", question.tpot_s, harder.tpot_s))
    closer = [f"{name} <= {closed * 1e3:.3g} ms" for name, asked, closed in limits if asked and closed and closed < asked]
    return f"of those within {' and '.join(closer)} in closed form: others break the limits in the simulation"


def _simulated_reports(
    question: ServeQuestion, searched: ServeQuestion, request: ServeRequest, progress: Progress | None
) -> tuple[Deployments, list[DeploymentReport]]:
    """What a search of `searched` finds, simulated under the limits of `question`."""
    found = search(searched, progress)
    reports = [report(question, found, row) for row in one_per_layout(found, request.top)]
    for i in range(min(request.simulate, len(reports))):
        if progress is not None:
            progress(f"simulating {reports[i].plan}")
        reports[i] = replace(reports[i], latency=simulated(question, reports[i]))
    return found, reports
