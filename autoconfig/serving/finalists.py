"""Finalists of a serving search: simulated, and where bursts or long requests break the limits, others that keep them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoconfig.planning.progress import Progress
from autoconfig.serving.deployment import DeploymentReport, report, simulated
from autoconfig.serving.price import DeploymentColumns
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import Deployments, rank
from autoconfig.serving.reasons import closed_over, keeps_limits, over_limits
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


@dataclass(frozen=True, kw_only=True)
class Finalists:
    """What one search in closed form found, and its first deployments in full."""

    asked: ServeQuestion
    """Of the closed form: nearer limits, or more of the load, than the question's own where bursts ask for it."""
    deployments: Deployments
    reports: list[DeploymentReport]
    """The first ones simulated; those that break limits there come behind."""
    remarks: list[str] = field(default_factory=list)
    simulated: list[DeploymentReport] = field(default_factory=list)
    """All that were on the way here."""


class Contest:
    """What is searched and simulated for one question; no deployment is simulated twice."""

    def __init__(self, question: ServeQuestion, request: ServeRequest, progress: Progress | None = None) -> None:
        self.question, self.request, self.progress = question, request, progress
        self._seen: dict[str, DeploymentReport] = {}

    def best(self) -> Finalists:
        """The deployments that are best in closed form and keep the limits in the simulation. Where none does, those that are
        fastest in closed form are simulated too, and every tp of which one keeps them is searched for itself."""
        counted = self.question.rate and self.question.goal in COUNTED
        first = (self._on_fewest_gpus() if counted else None) or self.of_loads(self.question)
        out_of_reach = not first.reports and (not self.question.tails or not first.deployments.carries)
        if not self.request.simulate or out_of_reach or self.any_keeps(first.reports):
            return first
        return self._by_parallelism(first)

    def keeps(self, one: DeploymentReport) -> bool:
        """Whether it was simulated and every limit held."""
        return keeps_limits(self.question, one)

    def any_keeps(self, reports: Iterable[DeploymentReport]) -> bool:
        """Whether one of them was simulated and every limit held."""
        return any(map(self.keeps, reports))

    def simulate(self, one: DeploymentReport) -> DeploymentReport:
        """The deployment with its latencies under load."""
        name = str(one.plan)
        if name not in self._seen:
            if self.progress is not None:
                self.progress(f"simulating {name}")
            self._seen[name] = replace(one, latency=simulated(self.question, one))
        return replace(one, latency=self._seen[name].latency)

    def _figure(self, finalists: Finalists) -> float:
        """What the goal makes least, of the first that keeps the limits in the simulation."""
        return next(filter(self.keeps, finalists.reports)).figure(self.question.goal)

    def _kept_first(self, reports: Iterable[DeploymentReport]) -> list[DeploymentReport]:
        return sorted(reports, key=lambda one: one.latency is not None and not self.keeps(one))

    def _by_parallelism(self, first: Finalists) -> Finalists:
        """The best of each tp of which one of the fastest in closed form keeps the limits: that one, and what a search for this
        tp alone finds; `first` where there is none."""
        better: dict[int, list[Finalists]] = {}
        tried = list(first.simulated)
        for deployments, row in self._fastest(1.0 if first.reports else CLOSED_AGREES):
            one = report(self.question, deployments, row)
            tp = one.plan.decode.tp
            if tp in better:
                continue
            one = self.simulate(one)
            tried.append(one)
            if not self.keeps(one):
                continue
            text = f"of tp={tp} alone: what is ranked first of all breaks the limits in the simulation"
            alone = replace(deployments, question=self.question, order=np.array([row]))
            better[tp] = [Finalists(asked=self.question, deployments=alone, reports=[one], remarks=[f"the fastest {text}"])]
            constraints = {**self.question.constraints, "tp": frozenset({tp})}
            narrow = self.of_loads(replace(self.question, constraints=constraints))
            tried += narrow.simulated
            if self.any_keeps(narrow.reports):
                better[tp].append(replace(narrow, remarks=[text, *narrow.remarks]))
        every = [each for some in better.values() for each in some]
        best = min(every, key=lambda each: (self._figure(each), each.reports[0].tpot_s)) if every else first
        return replace(best, simulated=tried)

    def _fastest(self, slack: float) -> list[tuple[Deployments, int]]:
        """The MAX_LAST deployments that are furthest within the limits in closed form, best first: the best one of each tensor
        parallelism and token budget, on as few GPUs as the load takes and on all of them. Limits of percentiles may be exceeded
        by a factor `slack`, as the closed form knows means, and these not exactly."""
        wide = self.question.in_means(slack)
        loads = [rank(wide)]
        if self.question.rate and 0.99 * loads[0].most_load > 1.0:
            loads.append(rank(replace(wide, sized_for=0.99 * loads[0].most_load)))
        best: dict[str, tuple[float, Deployments, int]] = {}
        for one in loads:
            over, c = closed_over(self.question.in_means(), one)[one.order], one.columns.take(one.order)
            by_speed = np.argsort(over, kind="stable")
            kinds = np.stack([one.tp(one.order), c.tokens, c.prefill >= 0], axis=1)[by_speed]
            for i in by_speed[np.sort(np.unique(kinds, axis=0, return_index=True)[1])]:
                best.setdefault(str(one.plan(int(one.order[i]))), (float(over[i]), one, int(one.order[i])))
        return [(one, row) for _, one, row in sorted(best.values(), key=lambda each: each[0])[:MAX_LAST]]

    def of_loads(self, question: ServeQuestion) -> Finalists:
        """What is best of the question, which may be narrower than the contest's. Where simulated means of finalists are beyond
        the limits, others are looked for, as bursts and long requests are in no closed form: under a load deployments sized for
        more of it, until one is within; of a full queue those of closer limits in closed form, until the first is within, and
        the best of all is taken."""
        start = question.in_means()
        tried = self._ever_harder(start)
        some = [each for each in tried if each.reports] or tried[:1]
        within = [each for each in some if self.any_keeps(each.reports)]
        best = min(within, key=self._figure) if within else some[-1]
        best.reports[:] = self._kept_first(best.reports)
        return Finalists(
            asked=best.asked,
            deployments=replace(best.deployments, question=self.question),
            reports=best.reports,
            remarks=[_harder_text(start, best.asked)] if best.asked is not start and within else [],
            simulated=[one for each in tried for one in each.reports if one.latency],
        )

    def _ever_harder(self, start: ServeQuestion) -> list[Finalists]:
        """What is found for `start`, and for what is asked in its place where its finalists break the limits."""
        tried, rate = [self._searched(start)], self.question.rate
        while self.request.simulate and len(tried) <= MAX_SIZES:
            good = [self.keeps(one) for one in tried[-1].reports]
            if not good or any(good if rate else good[:1]):
                break
            harder, before = self._harder(tried[-1]), tried[-1].asked
            if (harder.sized_for, harder.ttft_s, harder.tpot_s) == (before.sized_for, before.ttft_s, before.tpot_s):
                break
            tried.append(self._searched(harder))
        return [*tried, *(self._between(*tried[-2:]) if rate and len(tried) > 1 else ())]

    def _searched(self, asked: ServeQuestion) -> Finalists:
        """What a search in closed form finds, the first ones simulated under the limits of the question."""
        deployments = rank(asked, self.progress)
        reports = [report(self.question, deployments, row) for row in deployments.one_per_layout(self.request.top)]
        some = self.request.simulate
        return Finalists(asked=asked, deployments=deployments, reports=[*map(self.simulate, reports[:some]), *reports[some:]])

    def _between(self, low: Finalists, high: Finalists) -> list[Finalists]:
        """Loads between one whose finalists break the limits and the next that was tried, of which one is within them: the gap
        is halved. What holds for one load need not hold for a larger one, so all that were tried are compared, not only the
        last."""
        tried: list[Finalists] = []
        for _ in range(BISECTIONS):
            within = [one.gpus for one in high.reports if self.keeps(one)]
            if not within or low.reports[0].gpus + 1 >= min(within):
                break
            middle = self._searched(replace(low.asked, sized_for=(low.asked.sized_for * high.asked.sized_for) ** 0.5))
            tried.append(middle)
            good = self.any_keeps(middle.reports)
            low, high = (low, middle) if good else (middle if middle.reports else low, high)
        return tried

    def _harder(self, tried: Finalists) -> ServeQuestion:
        """What is asked of the closed form next where simulated finalists are beyond the limits: to carry more of a load; of a
        full queue closer limits, below the first finalist's own figures by as much as it exceeds them."""
        asked, best = tried.asked, tried.reports[0]
        if self.question.rate:
            most = 0.99 * tried.deployments.most_load
            step = max(HEADROOM_STEP, most ** (1.0 / MAX_SIZES))
            return replace(asked, sized_for=max(min(asked.sized_for * step, most), asked.sized_for))
        assert best.latency is not None
        over = over_limits(self.question, best.latency)
        figures = ((over["ttft"], asked.ttft_s, best.ttft_s), (over["tpot"], asked.tpot_s, best.tpot_s))
        nearer = [
            min(0.99 / beyond * min(closed / now, 1.0), 1.0) if now and beyond > 1.0 else 1.0 for beyond, now, closed in figures
        ]
        return asked.limited(ttft=nearer[0], tpot=nearer[1])

    def _on_fewest_gpus(self) -> Finalists | None:
        """The deployments on the fewest GPUs of which one keeps the limits in the simulation; where none does, those on all
        GPUs. None where the closed form knows none within the limits, or nothing is to be simulated."""
        asked = self.question.in_means()
        base = rank(asked, self.progress)
        if not self.request.simulate or not base.carries or not len(base.order):
            return None
        booked = np.unique(base.columns.gpus[base.order]).astype(int).tolist()
        least = booked[0]
        deployments, reports = self._fewest(base, [*booked[:ONE_BY_ONE], self.question.num_gpus])
        best = next(filter(self.keeps, reports), None)
        remarks = []
        if best is not None and best.gpus > least:
            few = f"{least:,} GPU carries" if least == 1 else f"{least:,} GPUs carry"
            remarks = [f"{few} the mean load; on fewer than {best.gpus:,} bursts break the limits in the simulation"]
        whole = _beside(deployments, base, max((one.gpus for one in reports), default=0))
        shown = [report(self.question, whole, row) for row in whole.one_per_layout(self.request.top)]
        some = self.request.simulate
        shown = [self.simulate(one) if i < some or str(one.plan) in self._seen else one for i, one in enumerate(shown)]
        return Finalists(
            asked=asked,
            deployments=whole,
            reports=self._kept_first(shown),
            remarks=remarks,
            simulated=list(self._seen.values()),
        )

    def _fewest(self, base: Deployments, counts: Sequence[int]) -> tuple[Deployments, list[DeploymentReport]]:
        """Deployments on the fewest GPUs on which one keeps the limits: `counts` are tried in order, then numbers below the one
        that does, by halves."""
        below, most = counts[0] - 1, counts[-1]
        for gpus in counts:
            if gpus <= below:
                continue
            deployments, reports = self._up_to(base, below, gpus)
            if self.any_keeps(reports[:1]):
                break
            below = gpus if gpus < most else below
        while self.any_keeps(reports[:1]) and reports[0].gpus - below > 1:
            middle = (below + reports[0].gpus) // 2
            fewer = self._up_to(base, below, middle)
            if self.any_keeps(fewer[1][:1]):
                deployments, reports = fewer
            else:
                below = middle
        return deployments, reports

    def _up_to(self, base: Deployments, below: int, most: int) -> tuple[Deployments, list[DeploymentReport]]:
        """Deployments on more than `below` and at most `most` GPUs: the first by the goal, then the one furthest within the
        limits of each tensor parallelism, until one keeps them in the simulation; those that do come first."""
        there = base.at_most(most)
        order = there.order[there.columns.gpus[there.order] > below]
        firsts = replace(there, order=order).one_per_layout(self.request.simulate)
        by_speed = order[np.argsort(closed_over(self.question.in_means(), there)[order], kind="stable")]
        kinds = 2 * there.tp(by_speed) + (there.columns.prefill[by_speed] >= 0)
        fastest = [int(row) for row in by_speed[first_positions(kinds)]]
        rows: dict[int, DeploymentReport] = {}
        for number, row in enumerate(dict.fromkeys([*firsts, *fastest])):
            if number >= len(firsts) and self.any_keeps(rows.values()):
                break
            rows[row] = self.simulate(report(self.question, there, row))
        good = [row for row, one in rows.items() if self.keeps(one)]
        rest = [row for row in order if row not in good]
        ordered = replace(there, order=np.array([*good, *rest], dtype=np.int64))
        return ordered, [*(rows[row] for row in good), *(one for row, one in rows.items() if row not in good)]


def _beside(first: Deployments, base: Deployments, most: int) -> Deployments:
    """`first` with those of `base`, of which those on more than `most` GPUs are ranked behind and others, which break limits in
    the simulation, are not."""
    more = base.order[base.columns.gpus[base.order] > most]
    order = np.concatenate([first.order, len(first.columns) + more]).astype(np.int64)
    return replace(base, columns=DeploymentColumns.joined([first.columns, base.columns]), order=order)


def _harder_text(question: ServeQuestion, harder: ServeQuestion) -> str:
    if question.rate:
        size = f"{harder.sized_for:.3g} times the mean load"
        return f"sized for {size}: sized for less, bursts break the limits in the simulation"
    limits = (("TTFT", question.ttft_s, harder.ttft_s), ("TPOT", question.tpot_s, harder.tpot_s))
    closer = [f"{name} <= {closed * 1e3:.3g} ms" for name, asked, closed in limits if asked and closed and closed < asked]
    return f"of those within {' and '.join(closer)} in closed form: others break the limits in the simulation"
