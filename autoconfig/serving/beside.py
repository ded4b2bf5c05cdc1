"""Instances that prefill and decode beside separate ones: the best of the kind that is not recommended, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from autoconfig.planning.progress import Progress
from autoconfig.serving.deployment import DeploymentReport, report, simulated
from autoconfig.serving.finalists import COUNTED, finalists, kept
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import Deployments
from autoconfig.serving.request import ServeRequest

TRIED = 3
"""Separate instances that are simulated where the recommended ones do both."""


def beside(
    question: ServeQuestion,
    request: ServeRequest,
    found: Deployments,
    best: DeploymentReport,
    progress: Progress | None = None,
) -> tuple[DeploymentReport | None, str]:
    """(the best deployment of the other kind, what it costs or saves): of a search of its own where separate instances are
    recommended, else of `found`; (None, why) where there is none, (None, "") where separate ones were not asked for."""
    if not question.disaggregated:
        return None, ""
    if best.plan.prefill is not None:
        alone = replace(question, disaggregated=False)
        _, reports, _, _ = finalists(alone, replace(request, top=1), progress)
        good = [one for one in reports if not request.simulate or kept(question, one)]
        if not good:
            return None, "without separate prefill instances none was found within the limits on these GPUs"
        return good[0], f"simpler, without separate prefill instances: {difference(question, best, good[0])}"
    for row in [int(row) for row in found.order if found.columns["prefill"][row] >= 0][:TRIED]:
        one = report(question, found, row)
        if request.simulate:
            one = replace(one, latency=simulated(question, one))
        if not request.simulate or kept(question, one):
            return one, f"with separate prefill instances: {difference(question, best, one)}"
    return None, "separate prefill instances: none was found within the limits on these GPUs"


def difference(question: ServeQuestion, best: DeploymentReport, other: DeploymentReport) -> str:
    """The other deployment against the recommended one: GPUs where a load is carried, throughput or latency by the goal."""
    words = [str(other.plan)]
    if question.rate and question.goal in COUNTED:
        more = other.gpus - best.gpus
        words.append(f"{other.gpus:,} GPUs" + (f", {more:+,} ({more / best.gpus:+.0%})" if more else ", as many"))
    else:
        words.append(f"{other.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1.0:+.1%} tokens/s/GPU")
    words.append(f"TTFT {best.ttft_s * 1e3:,.3g} -> {other.ttft_s * 1e3:,.3g} ms")
    if best.tpot_s and other.tpot_s:
        words.append(f"TPOT {best.tpot_s * 1e3:.3g} -> {other.tpot_s * 1e3:.3g} ms")
    if best.cost_per_million_tokens is not None and other.cost_per_million_tokens is not None:
        words.append(f"{best.cost_per_million_tokens:.3g} -> {other.cost_per_million_tokens:.3g} per million tokens")
    return ", ".join(words)
