"""What stands beside the recommended deployment: the best of the other kind, with or without separate prefill instances, and
what it costs; drafts of a layer that the checkpoint has, and what they give; deployments that the caller named."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np

from autoconfig.planning.progress import Progress
from autoconfig.serving.deployment import DeploymentReport, at_rate, benchmarked, report
from autoconfig.serving.disaggregated import Pairs
from autoconfig.serving.finalists import COUNTED, Contest
from autoconfig.serving.question import ServeQuestion, understand
from autoconfig.serving.rank import Deployments, rank
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.space import refused
from autoconfig.specs.errors import GIB, InputError, option
from autoconfig.specs.serve_plan import EnginePlan, ServePlan, parse_serve_plan
from autoconfig.specs.software.engine import supports
from autoconfig.time_model.serving.steady import tokens_per_step

LAYOUT = ("tp", "pp", "ep", "adp", "weights", "kv")
NO_ENGINE = "no engine runs this combination (see docs/inference.md, the space)"
DRAFTING = ("vllm", "sglang", "tensorrt-llm")
"""Engines that let a layer of the checkpoint draft."""
TRIED = 3
"""Separate instances that are simulated where the recommended ones do both."""


def beside(
    question: ServeQuestion,
    request: ServeRequest,
    deployments: Deployments,
    best: DeploymentReport,
    progress: Progress | None = None,
) -> tuple[DeploymentReport | None, str]:
    """(the best deployment of the other kind, what it costs or saves): of a search of its own where separate instances are
    recommended, else of `deployments`; (None, why) where there is none, (None, "") where separate ones were not asked for."""
    if not question.disaggregated:
        return None, ""
    if best.plan.prefill is not None:
        contest = Contest(replace(question, disaggregated=False), replace(request, top=1), progress)
        good = [one for one in contest.best().reports if not request.simulate or contest.keeps(one)]
        if not good:
            return None, "without separate prefill instances none was found within the limits on these GPUs"
        return good[0], f"simpler, without separate prefill instances: {difference(question, best, good[0])}"
    contest = Contest(question, request)
    for row in [int(row) for row in deployments.order if deployments.columns.prefill[row] >= 0][:TRIED]:
        one = report(question, deployments, row)
        one = contest.simulate(one) if request.simulate else one
        if not request.simulate or contest.keeps(one):
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
    pins = {**question.constraints, **{key: frozenset({getattr(plan, key) for plan in plans}) for key in LAYOUT}}
    before = _first(replace(question, constraints=pins))
    if any(plan.pp > 1 for plan in plans):
        if 1 not in question.constraints.get("pp", {1}):
            return None
        pins = {**question.constraints, "pp": frozenset({1})}
    curve, source = published_drafts(model.name)
    drafting: list[tuple[int, float, DeploymentReport]] = []
    for drafted, tokens in curve.items():
        chance = acceptance_of(drafted, tokens)
        asked = understand(replace(request, draft_tokens=drafted, acceptance=chance))
        one = _first(replace(asked, constraints=pins, tpot_s=question.tpot_s))
        if one is not None:
            drafting.append((drafted, chance, one))
    if before is None or not drafting:
        return None
    drafted, chance, one = min(drafting, key=lambda each: (each[2].figure(question.goal), each[2].tpot_s))
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
    deployments = rank(question.in_means())
    return report(question, deployments, int(deployments.order[0])) if len(deployments.order) else None


def included(question: ServeQuestion, text: str) -> tuple[str, DeploymentReport | None, str]:
    """(the text, its report, why there is none). Raises InputError for a text that is no plan."""
    try:
        plan = parse_serve_plan(text)
    except InputError as error:
        raise InputError(f"{option('include')} {text}: {error.message}") from error
    return text, *(_aggregated(question, plan.decode) if plan.prefill is None else _disaggregated(question, plan))


def _aggregated(question: ServeQuestion, own: EnginePlan) -> tuple[DeploymentReport | None, str]:
    own = own.replace(replicas=max(question.num_gpus // own.size, 1)) if own.replicas == 1 else own
    if why := next(_lacks(question, own), ""):
        return None, why
    constraints = {key: frozenset({getattr(own, key)}) for key in (*LAYOUT, "batch", "tokens")}
    narrow = replace(question, constraints=constraints, num_gpus=own.gpus, disaggregated=False, ttft_s=None, tpot_s=None)
    tried = (rank(replace(narrow, rate=rate)) for rate in dict.fromkeys((question.rate, 0.0)))
    alone = next((each for each in tried if len(each.order)), None)  # of a rate that it does not carry, with a full queue
    if alone is None:
        return None, NO_ENGINE
    return at_rate(question, benchmarked(narrow, report(narrow, alone, int(alone.order[0])))), ""


def _lacks(question: ServeQuestion, own: EnginePlan) -> Iterator[str]:
    """What keeps the plan from running, the first thing first."""
    heads, checkpoint = question.model.num_attention_heads, question.checkpoint
    if own.gpus > question.num_gpus:
        yield f"takes {own.gpus} GPUs, there are {question.num_gpus}"
    if heads % own.tp:
        yield f"tp={own.tp} does not divide the {heads} attention heads"
    if checkpoint is not None and own.weights != checkpoint.main.form:
        yield f"the checkpoint is quantised: weights={checkpoint.main.form}"
    if checkpoint is None and not supports(question.gpu, own.weights):
        yield f"{question.gpu.id} does not multiply in weights={own.weights}"
    if why := refused(question.model, question.engine, own, question.gpus_per_node, checkpoint):
        yield why
    memory = question.decode_memory(own)
    held = int(memory.max_concurrency) * own.adp
    if held < own.batch:
        yield f"memory holds {held} sequences of {question.workload.held_tokens:g} tokens, batch is {own.batch}"
    if memory.kv_pool_bytes < question.longest_bytes(own, memory):
        yield f"memory does not hold the longest request, {question.workload.longest_tokens:,.0f} tokens"


def _disaggregated(question: ServeQuestion, plan: ServePlan) -> tuple[DeploymentReport | None, str]:
    """The same of separate prefill and decode instances, at the throughput that the fewer of both carry."""
    first = plan.prefill
    assert first is not None
    if question.lengths.steps <= 0:
        return None, "answers of one token need no decode instances"
    if plan.gpus > question.num_gpus:
        return None, f"takes {plan.gpus} GPUs, there are {question.num_gpus}"
    if first.kv != plan.decode.kv:
        return None, f"prefill instances have kv={first.kv}, decode instances kv={plan.decode.kv}: no engine converts a cache"
    for own in (first, plan.decode):
        constraints: dict[str, frozenset[object]] = {key: frozenset({getattr(own, key)}) for key in LAYOUT}
        why = refused(question.model, question.engine, own, question.gpus_per_node, question.checkpoint)
        if why or next(question.layouts(constraints, own.size), None) is None:
            return None, why or f"{own}: {NO_ENGINE}"
    lacks = question.prefill_lacks_bytes(first)
    if lacks > 0:
        return None, f"a prefill GPU lacks {lacks / GIB:.1f} GiB for the longest prompt, {question.longest_prompt:,.0f} tokens"
    question = replace(question, num_gpus=plan.gpus, rate=0.0)
    columns = Pairs.named(question, plan)
    if columns is None:
        return None, f"memory of a decode GPU does not hold batch {plan.decode.batch}"
    alone = Deployments(question=question, layouts=(plan.decode, first), columns=columns, order=np.zeros(1, dtype=np.int64))
    return report(question, alone, 0), ""
