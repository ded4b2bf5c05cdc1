"""The fewest GPUs that carry a load within the limits in the simulation: from the fewest of the closed form upwards."""

from __future__ import annotations

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
Fewest = tuple[Deployments, list[DeploymentReport], list[str], list[DeploymentReport]]
"""Columns, reports with those that were simulated, remarks, and all that were simulated."""


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


def fewest(question: ServeQuestion, request: ServeRequest, progress: Progress | None) -> Fewest | None:
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
