"""Answers as HTML that a notebook shows: tables, bars of memory and time, the frontier. No script, no style sheet, nothing from
elsewhere, so that it survives every notebook viewer; colours hold on light and dark ground."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from autoconfig.render.sizing.scaling import ScalingJson
from autoconfig.render.training_json import ExplanationJson, LegalPlanJson, PlanReportJson, SearchJson
from autoconfig.serving.deployment_json import ServeJson
from autoconfig.specs.errors import chance_text
from autoconfig.training.answer import part_words

COLOURS = ("#33638d", "#d1802f", "#2f9277", "#8a6bb0", "#b74f5a", "#6f9fc8", "#d1a03c", "#848d97")
BAR_PX, PLOT_PX, EDGE_PX = 420, (420, 200), 40
SMALL = 0.01
"""Parts below this share are drawn together."""
ROWS = 10
"""Plans that a notebook shows; the frame has them all."""


def screen(text: str) -> str:
    """The command's screen as it is."""
    return f"<pre>{escape(text)}</pre>"


def search(found: SearchJson) -> str:
    """Table, memory and time of the first plan, the frontier of step time and memory."""
    first = found.plans[0]
    head = (
        f"{found.model.name} on {found.cluster.num_gpus:,} x {found.cluster.gpu}, {found.numerics.precision}, sequence "
        f"{found.workload.seq_length:,}, global batch {found.workload.global_batch_size:,}"
    )
    rows = [
        [str(number), f"{one.step_seconds:,.3g} s", f"{one.tokens_per_second_per_gpu:,.0f}", f"{one.mfu:.1%}",
         f"{one.memory.peak_gib:.1f} / {one.memory.limit_gib:.1f}", chance_text(one.confidence.fit_probability), one.short]
        for number, one in enumerate(found.plans[:ROWS], 1)
    ]  # fmt: skip
    points = [(one.memory.peak_gib, one.step_seconds, one.short, False) for one in found.plans]
    points += [(one.memory.peak_gib, one.step_seconds, one.short, True) for one in found.pareto]
    more = len(found.plans) - len(rows)
    return "".join(
        [
            _title(head),
            _table(("#", "step", "tokens/s/GPU", "MFU", "peak / limit GiB", "fit", "plan"), rows),
            _note(f"{more} more in .plans") if more > 0 else "",
            _memory(first),
            _time(first),
            _scatter("Plans: step time over peak memory; the frontier is filled", "peak GiB", "step seconds", points),
            _assumed(found.assumed),
        ]
    )


def explanation(found: ExplanationJson) -> str:
    """Figures, memory by stage, time by part of one legal plan."""
    assert isinstance(found, LegalPlanJson)
    fits = "fits" if found.fits else f"does not fit, {found.shortfall_gib:.1f} GiB too much"
    head = f"{found.short}: {fits}, step {found.step_seconds:,.3g} s, {found.tokens_per_second_per_gpu:,.0f} tokens/s/GPU"
    stages = {f"stage {stage.stage}": stage.breakdown_gib for stage in found.stages}
    limit = found.memory.limit_gib
    memory = _bars(f"Peak memory of each stage, GiB (limit {limit:.1f})", stages, "GiB", limit)
    return _title(head) + memory + _time(found) + _assumed(found.assumed)


def deployments(found: ServeJson) -> str:
    """Table, memory and decode step of the first deployment, the frontier of speed and throughput."""
    q, first = found.question, found.deployments[0]
    head = f"{q.model} served on {q.num_gpus:,} x {q.gpu} with {q.engine}, {q.isl:,.0f} tokens in, {q.osl:,.0f} out"
    rows = [
        [str(number), str(one.gpus), str(one.users), f"{one.tokens_per_second_per_gpu:,.0f}",
         "" if one.tokens_per_second_per_user is None else f"{one.tokens_per_second_per_user:,.1f}",
         f"{one.ttft_seconds * 1e3:,.0f} ms", "" if one.tpot_seconds is None else f"{one.tpot_seconds * 1e3:,.1f} ms", one.plan]
        for number, one in enumerate(found.deployments[:ROWS], 1)
    ]  # fmt: skip
    points = [
        (one.tokens_per_second_per_user or 0.0, one.tokens_per_second_per_gpu, one.plan, filled)
        for group, filled in ((found.deployments, False), (found.pareto, True))
        for one in group
    ]
    m = first.memory_gib
    parts = {"weights": m.weights, "activations": m.activations, "runtime": m.runtime, "KV cache": m.kv_pool}
    return "".join(
        [
            _title(head),
            _table(("#", "GPUs", "users", "tokens/s/GPU", "tokens/s/user", "TTFT", "TPOT", "deployment"), rows),
            _bars("Memory of a GPU of the first, GiB", {"": parts}, "GiB"),
            _bars("Decode step of the first, ms", {"": {k: 1e3 * v for k, v in first.decode_step_seconds.items()}}, "ms"),
            _scatter(
                "Throughput of a GPU over speed of a user; the frontier is filled", "tokens/s/user", "tokens/s/GPU", points
            ),
            _assumed(q.assumed),
        ]
    )


def scaling(found: ScalingJson) -> str:
    """Table and curve of tokens per second over GPUs."""
    rows, points = [], []
    for one in found.points:
        if one.best is None or one.tokens_per_second is None:
            rows.append([one.gpu, f"{one.num_gpus:,}", *[""] * 4, one.why_not or ""])
            continue
        days = "" if one.days is None else f"{one.days:,.1f}"
        figures = [f"{one.best.step_seconds:,.3g} s", f"{one.tokens_per_second:,.0f}", f"{one.efficiency:.0%}", days]
        rows.append([one.gpu, f"{one.num_gpus:,}", *figures, one.best.short])
        points.append((float(one.num_gpus), one.tokens_per_second, f"{one.num_gpus:,} x {one.gpu}", True))
    head = f"{found.model.name}, global batch {found.workload.global_batch_size:,}"
    fewest = found.fewest
    types = ", ".join(f"{one.num_gpus:,} x {one.gpu}" for one in found.fewest_by_gpu)
    answer = f"The fewest GPUs for {found.deadline_days:g} days: {types}" if fewest else ""
    return "".join(
        [
            _title(head),
            _table(("GPU", "GPUs", "step", "tokens/s", "efficiency", "days", "plan"), rows),
            _note(answer),
            _scatter("Tokens per second over GPUs", "GPUs", "tokens/s", points),
            _assumed(found.assumed),
        ]
    )


def _memory(one: PlanReportJson) -> str:
    title = f"Peak memory of stage {one.memory.worst_stage}, the fullest, GiB (limit {one.memory.limit_gib:.1f})"
    return _bars(title, {"": one.memory.breakdown_gib}, "GiB", one.memory.limit_gib)


def _time(one: PlanReportJson) -> str:
    parts = {part_words(name): seconds for name, seconds in one.time.breakdown_seconds.items()}
    return _bars(f"Time of one step, {one.step_seconds:,.3g} s", {"": parts}, "s")


def _title(text: str) -> str:
    return f'<p style="margin:4px 0"><b>{escape(text)}</b></p>'


def _note(text: str) -> str:
    return f'<p style="margin:4px 0">{escape(text)}</p>' if text else ""


def _assumed(texts: Iterable[str]) -> str:
    said = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<details><summary>Assumed</summary><ul>{said}</ul></details>" if said else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left;white-space:nowrap">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    table = f'<table style="font-size:inherit"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto">{table}</div>'


def _bars(title: str, bars: Mapping[str, Mapping[str, float]], unit: str, limit: float = 0.0) -> str:
    """A stacked bar for each name, with the amounts in a legend; parts below SMALL of the longest bar are one."""
    most = max([limit, *(sum(parts.values()) for parts in bars.values())]) or 1.0
    largest = {name: max(parts.get(name, 0.0) for parts in bars.values()) for parts in bars.values() for name in parts}
    large = [name for name in sorted(largest, key=lambda name: -largest[name]) if largest[name] >= SMALL * most]
    large = large[: len(COLOURS) - 1]
    drawn = []
    for bar, parts in bars.items():
        shown = {name: parts.get(name, 0.0) for name in large}
        shown["other"] = sum(parts.values()) - sum(shown.values())
        pieces = "".join(
            f'<span title="{escape(name)} {value:.3g} {unit}" style="display:inline-block;height:14px;'
            f'width:{BAR_PX * value / most:.1f}px;background:{colour}"></span>'
            for (name, value), colour in zip(shown.items(), COLOURS, strict=False)
            if value > 0
        )
        label = f'<span style="display:inline-block;width:70px">{escape(bar)}</span>' if bar else ""
        drawn.append(f'<div style="white-space:nowrap;line-height:16px">{label}{pieces} {sum(parts.values()):,.3g}</div>')
    legend = "".join(
        f'<span style="white-space:nowrap;margin-right:12px"><span style="display:inline-block;width:10px;height:10px;'
        f'background:{colour}"></span> {escape(name.replace("_", " "))}'
        + (f" {next(iter(bars.values())).get(name, 0.0):,.3g}" if len(bars) == 1 else "")
        + "</span>"
        for name, colour in zip(large, COLOURS, strict=False)
    )
    return f'{_note(title)}<div style="overflow-x:auto">{"".join(drawn)}</div><p style="margin:4px 0">{legend}</p>'


def _scatter(title: str, across: str, up: str, points: Sequence[tuple[float, float, str, bool]]) -> str:
    """Points (x, y, name, filled) with the ends of both axes named."""
    if not points:
        return ""
    (width, height), edge = PLOT_PX, EDGE_PX
    xs, ys = [x for x, *_ in points], [y for _, y, *_ in points]
    (left, right), (low, high) = _ends(xs), _ends(ys)
    dots = "".join(
        f'<circle cx="{edge + (x - left) / (right - left) * (width - 2 * edge):.1f}" '
        f'cy="{height - edge - (y - low) / (high - low) * (height - 2 * edge):.1f}" r="4" stroke="{COLOURS[0]}" '
        f'fill="{COLOURS[0] if filled else "none"}">'
        f"<title>{escape(name)}: {_short(x)} {across}, {_short(y)} {up}</title></circle>"
        for x, y, name, filled in points
    )
    line = f'stroke="{COLOURS[-1]}" fill="none"'
    text = 'fill="currentColor" font-size="11"'
    return (
        f'{_note(title)}<svg width="{width}" height="{height}" role="img" aria-label="{escape(title)}">'
        f'<path d="M{edge} {edge / 2}V{height - edge}H{width - edge}" {line}/>'
        f'<text x="{edge}" y="{edge / 2 - 6}" {text}>{_short(high)} {up}</text>'
        f'<text x="2" y="{height - edge}" {text}>{_short(low)}</text>'
        f'<text x="{edge}" y="{height - edge + 16}" {text}>{_short(left)}</text>'
        f'<text x="{width - edge}" y="{height - edge + 16}" text-anchor="end" {text}>{_short(right)} {across}</text>'
        f"{dots}</svg>"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis, apart from each other."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05)
