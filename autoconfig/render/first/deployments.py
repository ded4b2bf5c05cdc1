"""The first screen of `deployments`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from autoconfig.render.blocks import NO, START, Blocks
from autoconfig.render.screen import show_assumptions
from autoconfig.render.serving import load_text, show_answer
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.closed_loop import bands_text, milliseconds
from autoconfig.serving.deployment import DeploymentReport
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.reasons import FIGURES, limits_of
from autoconfig.specs.errors import GIB
from autoconfig.specs.serve_plan import EnginePlan, ServePlan

ALIKE = 0.02
"""Share of the throughput within which another layout is called equal, of a full queue as of a rate."""
CLOSED = "~"
"""Before a mean of a deployment that was not simulated."""
SORTED = dict(throughput="tok/s/GPU", cost="cost of a token", ttft="TTFT", tpot="TPOT", gpus="GPUs, then TPOT")
"""By goal: what the rows are sorted by."""


def show(console: Console, answer: ServeAnswer) -> None:
    """What to start and what it does, or what would carry the load; the whole answer where the console is verbose."""
    if getattr(console, "verbose", False):
        show_answer(console, answer)
        return
    q = answer.question
    shown = Blocks()
    limits = [f"{name} <= {milliseconds(limit)}" for _, _, name, limit in limits_of(q)]
    shown.head(
        f"[bold]{escape(q.model.name)}[/bold] on [bold]{q.num_gpus} x {escape(q.gpu.id)}[/bold] with {q.engine.name}, "
        f"{', '.join([load_text(q), *limits])}"
    )
    if answer.reports:
        _start(shown, answer)
        _beside(shown, answer)
    else:
        shown.say(NO, escape(answer.infeasible))
        if answer.nearest:
            shown.say("nearest", f"{escape(str(answer.nearest.plan))}\n{_figures(answer.nearest)}")
    for text, found, why in answer.included:
        shown.say("yours", f"{escape(str(found.plan))}: {_yours(found, answer)}" if found else escape(f"{text}: {why}"))
    if answer.reports:
        _rows(shown, q, answer.reports)
    if answer.hours:
        busiest = max(answer.hours, key=lambda one: one.gpus)
        together = sum(one.gpu_hours for one in answer.hours)
        come_and_go = f"{together:,.1f} GPU hours where instances come and go by the hour"
        shown.say("hours", f"most at {busiest.clock}: {busiest.gpus} GPUs; {come_and_go}")
    shown.say("bands", bands_text(q.calibration.constants(q.engine, q.gpu)), spare=5)
    if borrowed := q.calibration.borrowed_by(q.engine):
        shown.say("borrowed", f"{q.engine.name} has no constants of its own: {borrowed}'s, under {q.engine.name}'s limits")
    shown.draw(lambda out: show_assumptions(out, q.assumed))
    more = "rows, frontier, memory, percentiles" if answer.reports else "counts"
    shown.say("next", f"{'--export run | --include PLAN | ' if answer.reports else ''}--verbose: {more}")
    shown.show(console)


def _mean(one: DeploymentReport, kind: str, mark: str = CLOSED) -> str:
    """A deployment's mean TTFT or TPOT (`ttft`, `tpot`), the same one wherever it stands on the screen: of the simulation, else
    of the closed form, marked."""
    if not one.tpot_s and kind == "tpot":
        return "-"
    if one.latency is None:
        return mark + milliseconds(getattr(one, f"{kind}_s"))
    return milliseconds(getattr(one.latency, f"{kind}_seconds").mean)


def _figures(one: DeploymentReport) -> str:
    """Requests, throughput, times with the simulated p95, users, memory for their sequences, cost."""
    tails = one.latency
    p95 = {} if tails is None else {"ttft": tails.ttft_seconds.p95, "tpot": tails.tpot_seconds.p95}
    times = [f"{kind.upper()} {_mean(one, kind, '')}" for kind in ("ttft", "tpot")[: 1 + bool(one.tpot_s)]]
    said = [
        f"{one.requests_per_s:,.3g} requests/s",
        f"{one.tokens_per_s_per_gpu:,.0f} tok/s/GPU",
        *(f"{time} (p95 {milliseconds(p95[time[:4].lower()])})" if p95 else time for time in times),
        f"{one.concurrency:,} users",
        f"cache {float(one.memory.kv_pool_bytes) / GIB:.1f} GiB a GPU: {one.max_concurrency:,} sequences",
    ]
    return ", ".join(said + ([f"cost {cost:.3g} per million tokens"] if (cost := one.cost_per_million_tokens) else []))


def _start(shown: Blocks, answer: ServeAnswer) -> None:
    best, q = answer.reports[0], answer.question
    fewer = f", on {best.gpus} of {q.num_gpus} GPUs" if best.gpus < q.num_gpus else ""
    shown.say(START, f"[bold]{escape(str(best.plan))}[/bold]\n{escape(FIGURES[q.goal][0])}{fewer}: {_figures(best)}")
    if answer.sustained is not None:
        shown.say("bursts", f"of requests that come at random {answer.sustained:g} a second are served (--rate)", spare=2)


def _beside(shown: Blocks, answer: ServeAnswer) -> None:
    """What is as good, simpler, slower; what drafts and other limits would give."""
    best, alternative = answer.reports[0], answer.alternative
    others = [(one, one.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1.0) for one in answer.reports[1:]]
    equal = next((one for one, more in others if abs(more) <= ALIKE and one.gpus == best.gpus), None)
    slower = next((one for one, more in others if more < -ALIKE), None)
    if equal is not None:
        shown.say("equal", _against(equal, best))
    if alternative is not None:
        kind = "without separate prefill" if best.plan.prefill else "with separate prefill"
        shown.say("simpler" if best.plan.prefill else "apart", f"{_against(alternative, best)} ({kind})")
    else:
        shown.say("apart", escape(answer.alternative_text), spare=3)
    if slower is not None:
        shown.say("slower", _against(slower, best), spare=1)
    if answer.drafts is not None:
        drafts = answer.drafts
        asked = f"--draft-tokens {drafts.draft_tokens} --acceptance {drafts.acceptance:.2g}"
        shown.say("switches", f"the checkpoint's own drafts ({asked}): {_against(drafts.report, best, same=True)}")
    shown.say("limits", escape("; ".join(answer.sensitivity)), spare=4)


def _against(one: DeploymentReport, best: DeploymentReport, *, same: bool = False) -> str:
    """A deployment beside the first: throughput, speed of a user, and TTFT where both are simulated or neither is: beside a
    simulation a closed form, which knows no bursts, would look like a gain."""
    figures = [f"{one.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1:+.1%} tok/s/GPU"]
    figures += [f"{one.tokens_per_s_per_user / best.tokens_per_s_per_user - 1:+.1%} tokens/s of a user"] * bool(best.tpot_s)
    if (one.latency is None) == (best.latency is None):
        figures.append(f"TTFT {_mean(best, 'ttft')} -> {_mean(one, 'ttft')}")
    return ("" if same else f"{deployment_text(one.plan)}: ") + ", ".join(figures)


def _yours(one: DeploymentReport, answer: ServeAnswer) -> str:
    figures = _figures(one)
    if not answer.reports:
        return figures
    best = answer.reports[0]
    return f"{one.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1:+.1%} tok/s/GPU; {figures}"


def deployment_text(plan: ServePlan, *, formats: bool = True) -> str:
    """A deployment in few letters: `5x tp1 prefill + 3x tp1, fp8`; formats of weights and cache, both where they differ."""
    decode, prefill = plan.decode, plan.prefill
    instances = _instances(decode) if prefill is None else f"{_instances(prefill)} prefill + {_instances(decode)}"
    return f"{instances}, {_formats(plan)}" if formats else instances


def _formats(plan: ServePlan) -> str:
    weights, cache = plan.decode.weights, plan.decode.kv
    return weights if weights == cache else f"{weights}, cache {cache}"


def _instances(one: EnginePlan) -> str:
    degrees = [f"{key}{getattr(one, key)}" for key in ("tp", "pp", "ep", "adp") if key == "tp" or getattr(one, key) > 1]
    return f"{one.replicas}x {' '.join(degrees)}"


def _rows(shown: Blocks, question: ServeQuestion, reports: Sequence[DeploymentReport]) -> None:
    """The best of each layout, a line each."""
    priced = any(one.cost_per_million_tokens is not None for one in reports)
    formats = {_formats(one.plan) for one in reports}
    names = ["GPUs", "req/s", "tok/s/GPU", "TTFT", "TPOT", *["cost/M"] * priced, "layout"]
    rows = [
        [
            f"{one.gpus}",
            f"{one.requests_per_s:,.3g}",
            f"{one.tokens_per_s_per_gpu:,.0f}",
            _mean(one, "ttft"),
            _mean(one, "tpot"),
            *["" if one.cost_per_million_tokens is None else f"{one.cost_per_million_tokens:.3g}"] * priced,
            deployment_text(one.plan, formats=len(formats) > 1),
        ]
        for one in reports
    ]
    rows[0] = [*(f"[bold]{cell}[/bold]" for cell in rows[0][:-1]), rows[0][-1]]
    shown.table(names, rows, left=("layout",), below=("layout",))
    said = [f"sorted by {SORTED[question.goal]}", *([f"all in {next(iter(formats))}"] if len(formats) == 1 else [])]
    said.append("TTFT and TPOT: simulated means" + f", {CLOSED} in closed form" * any(one.latency is None for one in reports))
    shown.draw(lambda out: out.print("; ".join(said), style="dim"))
