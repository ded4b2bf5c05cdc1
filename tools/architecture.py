"""Draws docs/images/architecture.svg: the packages in their layers, as import-linter holds them.

    python -m tools.architecture

Layers are those of the first contract in pyproject.toml, words those of each package's docstring; a package whose modules run
in `autoconfig search` is drawn darker, with how many of its modules take part.
"""

from __future__ import annotations

import ast
import html
import textwrap
import tomllib
from collections import Counter
from pathlib import Path

from tools.modules_used import modules_used

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
QUESTION = ("search", "--model", "175b", "--gpus", "1024")
WIDTH, ROW, GAP, MARGIN = 1160, 64, 8, 12


def layers() -> list[list[str]]:
    """Packages from top to bottom; those of one row are beside each other in the contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    return [row.replace("|", ":").replace(" ", "").split(":") for row in contracts[0]["layers"]]


def words(package: str) -> str:
    """The first sentence of a package's docstring."""
    folder = next(path for path in (ROOT / "autoconfig" / package, ROOT / package) if path.exists())
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def picture(used: Counter[str]) -> str:
    """The SVG; `used`: package -> modules that a search runs."""
    rows = layers()
    height = len(rows) * (ROW + GAP) + 2 * MARGIN
    body = [f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for number, row in enumerate(rows):
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        for place, package in enumerate(row):
            x, y = MARGIN + place * (width + GAP), MARGIN + number * (ROW + GAP)
            body += _box(x, y, width, package, used[package])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" role="img"><title>Packages of autoconfig: a row imports the rows below it</title>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _box(x: float, y: float, width: float, package: str, used: int) -> list[str]:
    fill, count = ("#cfe3f7", f" · {used} in a search") if used else ("#f1f1f1", "")
    lines = [f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{ROW}" rx="6" fill="{fill}" stroke="#7a8a99"/>']
    lines.append(f'<text x="{x + 10:.0f}" y="{y + 22:.0f}" font-size="15" font-weight="bold">{package}{count}</text>')
    for number, line in enumerate(textwrap.wrap(words(package), int((width - 20) / 6.0))[:2]):
        lines.append(f'<text x="{x + 10:.0f}" y="{y + 40 + 15 * number:.0f}" font-size="11.5">{html.escape(line)}</text>')
    return lines


def draw() -> str:
    """The picture of today's packages; runs one search."""
    return picture(Counter(module.split(".")[1] for module in modules_used(QUESTION) if module.count(".")))


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
