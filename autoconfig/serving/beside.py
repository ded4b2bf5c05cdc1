"""What stands beside the recommended deployment: the best of the other kind, with or without separate prefill instances, and
what it costs; drafts of a layer that the checkpoint has, and what they give."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from autoconfig.planning.progress import Progress
from autoconfig.serving.deployment import DeploymentReport, report, simulated
from autoconfig.serving.finalists import COUNTED, figure, finalists, kept
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import Deployments, search
from autoconfig.serving.request import ServeRequest
from autoconfig.time_model.serving.steady import tokens_per_step

DRAFTING = ("vllm", "sglang", "tensorrt-llm")
"""Engines that let a layer of the checkpoint draft."""
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


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """The recommended layouts with drafts of the checkpoint's own layer."""

    draft_tokens: int
    acceptance: float
    """Chance that a draft token is accepted."""
    tokens_per_step: float
    source: str
    """Who measured it."""
    report: DeploymentReport
    text: str


@cache
def _curves() -> list[tuple[list[str], dict[int, float], str]]:
    text = (resources.files("autoconfig") / "data" / "drafts.toml").read_text(encoding="utf-8")
    return [
        (one["models"], {int(key): value for key, value in one["tokens_per_step"].items()}, one["source"])
        for one in tomllib.loads(text)["curves"]
    ]


def published_drafts(model: str) -> tuple[Mapping[int, float], str]:
    """(tokens of a step by draft tokens checked, who measured them) of a model's own draft layer (data/drafts.toml)."""
    return next((curve, source) for names, curve, source in _curves() if any(model.startswith(name) for name in names))


def acceptance_of(drafted: int, tokens: float) -> float:
    """Chance that a draft token is accepted where a step that checks so many gives `tokens` on average: the inverse of
    steady.tokens_per_step, in four digits."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if tokens_per_step(drafted, middle) < tokens else (low, middle)
    return round(low, 4)


def drafts(question: ServeQuestion, request: ServeRequest, best: DeploymentReport) -> Drafts | None:
    """What the recommended layouts do with drafts, as many as are best of those that were measured, against the same without,
    both in closed form; where these have pipeline stages, over which no layer drafts, the best ones without. None where the
    model has no such layer, the engine does not let it draft, or drafts were asked for."""
    model = question.model
    if not model.mtp_num_layers or request.draft_tokens or question.engine.framework not in DRAFTING or not best.tpot_s:
        return None
    plans = [best.plan.decode, *([best.plan.prefill] if best.plan.prefill else [])]
    keys = ("tp", "pp", "ep", "adp", "weights", "kv")
    pins = {**question.constraints, **{key: frozenset({getattr(plan, key) for plan in plans}) for key in keys}}
    before = _first(replace(question, constraints=pins))
    if any(plan.pp > 1 for plan in plans):
        if 1 not in question.constraints.get("pp", {1}):
            return None
        pins = {**question.constraints, "pp": frozenset({1})}
    curve, source = published_drafts(model.name)
    found: list[tuple[int, float, DeploymentReport]] = []
    for drafted, tokens in curve.items():
        chance = acceptance_of(drafted, tokens)
        asked = understand(replace(request, draft_tokens=drafted, acceptance=chance))
        one = _first(replace(asked, constraints=pins, tpot_s=question.tpot_s))
        if one is not None:
            found.append((drafted, chance, one))
    if before is None or not found:
        return None
    drafted, chance, one = min(found, key=lambda each: (figure(question, each[2]), each[2].tpot_s))
    return Drafts(
        draft_tokens=drafted,
        acceptance=chance,
        tokens_per_step=tokens_per_step(drafted, chance),
        source=source,
        report=one,
        text=(
            f"the checkpoint has a layer that drafts (MTP; SGLang's EAGLE): {drafted} draft token{'s' * (drafted > 1)} a step, "
            f"accepted at {chance:.3g} ({source}), in closed form without the time of drafting: "
            f"{difference(question, before, one)} (--draft-tokens {drafted} --acceptance {chance:.3g})"
        ),
    )


def _first(question: ServeQuestion) -> DeploymentReport | None:
    found = search(question.in_means())
    return report(question, found, int(found.order[0])) if len(found.order) else None
