"""A validation as one self-contained HTML file: tables and a plot of predicted over measured step time per source."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from autoconfig.accuracy.groups import ErrorGroup
from autoconfig.accuracy.sheets import TITLE, Sheet, share, sheets
from autoconfig.accuracy.validate import Validation
from autoconfig.specs.files import write_atomically

SIZE = 260
"""Width and height of a plot, pixels."""
EDGE = 36
STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse;margin:0 0 .5em}
td,th{padding:2px 8px;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
figure{display:inline-block;margin:0 1em 1em 0}figcaption{max-width:260px}svg{background:#fafafa;border:1px solid #ccc}
"""


def write_html(found: Validation, target: Path) -> None:
    """Written beside and renamed. Raises FileError."""
    write_atomically(target, lambda file: file.write_text(page(found), encoding="utf-8"))


def page(found: Validation) -> str:
    """The whole page; no scripts, nothing from the network."""
    title = f"autoconfig validate, {TITLE[found.leave_out]}"
    plots = "".join(plot(group) for group in found.groups if group.points)
    tables = "".join(_table(sheet) for sheet in sheets(found))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><p>Constants: {escape(found.constants)}.</p>"
        f"<h2>Predicted over measured step time</h2><p>Both axes are logarithmic, seconds; the lines are equality and 10 % "
        f"beside it.</p>{plots}{tables}</body></html>\n"
    )


def _table(sheet: Sheet) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in sheet.lines)
    return f"<h2>{escape(sheet.title)}</h2><table><tr>{head}</tr>{body}</table><p>{escape(sheet.note)}</p>"


def plot(group: ErrorGroup) -> str:
    """One source as inline SVG."""
    logs = [math.log10(value) for point in group.points for value in point]
    low, high = min(logs) - 0.05, max(logs) + 0.05

    def x(value: float) -> float:
        return EDGE + (math.log10(value) - low) / (high - low) * (SIZE - 2 * EDGE)

    def y(value: float) -> float:
        return SIZE - x(value)

    ends = (10**low, 10**high)
    lines = "".join(
        f'<line x1="{x(ends[0]):.1f}" y1="{y(ends[0] * k):.1f}" x2="{x(ends[1]):.1f}" y2="{y(ends[1] * k):.1f}" '
        f'stroke="#999" stroke-dasharray="{dash}"/>'
        for k, dash in ((1.0, "none"), (1.1, "3 3"), (1 / 1.1, "3 3"))
    )
    dots = "".join(
        f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.5" fill="#1f77b4" fill-opacity=".55">'
        f"<title>measured {measured:.4g} s, predicted {predicted:.4g} s</title></circle>"
        for measured, predicted in group.points
    )
    marks = "".join(
        f'<text x="{x(end):.0f}" y="{SIZE - 8}" font-size="11" text-anchor="middle">{end:.3g} s</text>'
        f'<text x="4" y="{y(end):.0f}" font-size="11">{end:.3g}</text>'
        for end in ends
    )
    name = f"{group.source}, {group.gpu}"
    error = f": {group.all.rows} rows, mean error {share(group.all.mean)}" if group.all else ""
    return (
        f'<figure><svg width="{SIZE}" height="{SIZE}" role="img" aria-label="{escape(name)}">{lines}{dots}{marks}'
        f'<text x="{SIZE / 2:.0f}" y="{SIZE - 22}" font-size="11" text-anchor="middle">measured</text>'
        f'<text x="6" y="14" font-size="11">predicted</text></svg><figcaption>{escape(name)}{error}</figcaption></figure>'
    )
