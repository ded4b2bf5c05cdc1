"""Serving answers on the screen: rich tables, no arithmetic beyond units."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoconfig.serving.service import DeploymentReport, ServeAnswer
from specs.units import GIB


def milliseconds(value: float) -> str:
    """Three significant digits below a second, two decimals above."""
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:,.2f} s"


def show_answer(console: Console, answer: ServeAnswer) -> None:
    """The whole answer of `search --inference`."""
    q, d = answer.question, answer.deployments
    limits = [f"{name} <= {milliseconds(limit)}" for name, limit in (("TTFT", q.ttft_s), ("TPOT", q.tpot_s)) if limit]
    load = f"{q.rate:g} requests/s" if q.rate else "full queue"
    console.print(
        f"{q.model.name} on {q.num_gpus} {q.gpu.name}, {q.lengths.isl:g} tokens in, {q.lengths.osl:g} out, {load}, "
        f"goal {q.goal}{', ' + ', '.join(limits) if limits else ''}",
        highlight=False,
    )
    for note in q.assumed:
        console.print(f"  [dim]assumed: {escape(note)}[/dim]", highlight=False)
    console.print(
        f"{len(d.layouts):,} layouts, {d.enumerated:,} deployments enumerated -> {d.fit:,} fit -> "
        f"{len(d.order):,} meet the limits, priced in {d.seconds:.2f} s",
        highlight=False,
    )
    if answer.reports:
        console.print(_table("Best deployment of each layout", answer.reports))
        _show_first(console, answer)
    else:
        console.print(f"[bold]{escape(answer.miss)}[/bold]", highlight=False)
        if answer.nearest:
            console.print(_table("Nearest", [answer.nearest]))
    if answer.pareto:
        console.print(_table("Pareto frontier: speed of a user against throughput of a GPU", answer.pareto))
    for text, found, why in answer.included:
        if found is None:
            console.print(f"--include {escape(text)}: {escape(why)}", highlight=False)
        else:
            console.print(_table(f"--include {text}", [found]))


def _table(title: str, reports: Sequence[DeploymentReport]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    columns = ("#", "deployment", "GPUs", "users", "tok/s/GPU", "tok/s/user", "TTFT", "TPOT", "KV room")
    for name in columns:
        table.add_column(
            name, justify="left" if name == "deployment" else "right", no_wrap=name != "deployment", overflow="fold"
        )
    for number, one in enumerate(reports, 1):
        table.add_row(
            str(number),
            escape(str(one.plan)),
            str(one.gpus),
            f"{one.concurrency:,}",
            f"{one.tokens_per_s_per_gpu:,.0f}",
            f"{one.tokens_per_s_per_user:,.1f}",
            milliseconds(one.ttft_s),
            milliseconds(one.tpot_s),
            f"{one.max_concurrency / max(one.concurrency, 1):.1f}x",
        )
    return table


def _show_first(console: Console, answer: ServeAnswer) -> None:
    """Why the first, what a step and the memory are made of, simulated latency, what wider limits buy."""
    best = answer.reports[0]
    console.print(f"Recommended: [bold]{escape(str(best.plan))}[/bold]", highlight=False)
    if best.cost_per_million_tokens is not None:
        console.print(f"  {best.cost_per_million_tokens:.3g} of money per million output tokens", highlight=False)
    if len(answer.reports) > 1:
        other = answer.reports[1]
        console.print(
            f"  runner-up {escape(str(other.plan))}: "
            f"{other.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1:+.1%} tokens/s/GPU, "
            f"{other.tokens_per_s_per_user / best.tokens_per_s_per_user - 1:+.1%} tokens/s/user",
            highlight=False,
        )
    for line in answer.sensitivity:
        console.print(f"  {escape(line)}", highlight=False)
    show_parts(console, best)
    for one in answer.reports:
        if one.latency:
            t, o = one.latency.ttft_s, one.latency.tpot_s
            console.print(
                f"  simulated {escape(str(one.plan))}: {one.latency.tokens_per_s_per_gpu:,.0f} tok/s/GPU, "
                f"TTFT p50 {milliseconds(t['p50'])} p90 {milliseconds(t['p90'])} p99 {milliseconds(t['p99'])}, "
                f"TPOT p50 {milliseconds(o['p50'])} p99 {milliseconds(o['p99'])}, "
                f"{one.latency.goodput_ratio:.0%} within limits",
                highlight=False,
            )


def show_parts(console: Console, one: DeploymentReport) -> None:
    """Memory of a GPU and a decode step, by part."""
    m = one.memory
    device, weights, active, runtime, pool, each = (
        float(x) / GIB
        for x in (
            m.device_bytes,
            m.weights_bytes,
            m.activation_bytes,
            m.runtime_bytes,
            m.kv_pool_bytes,
            m.kv_bytes_per_sequence,
        )
    )
    pieces = [f"{name} {size / GIB:.1f}" for name, size in one.weight_parts.items() if size > 0.005 * GIB]
    console.print(
        f"  memory of a GPU: {device:.1f} GiB = weights {weights:.1f} ({', '.join(pieces)}), activations {active:.1f}, "
        f"runtime {runtime:.1f}, KV cache {pool:.1f} ({each:.3f} a sequence: {one.max_concurrency:,} at once in all), "
        f"kept free {device - weights - active - runtime - pool:.1f}",
        highlight=False,
    )
    total = sum(one.step_parts.values())
    steps = [f"{name} {s * 1e3:.2f}" for name, s in one.step_parts.items() if s > 0.002 * total]
    console.print(f"  decode step {total * 1e3:.2f} ms = {' + '.join(steps)}", highlight=False)
