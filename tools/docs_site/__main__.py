"""Prepare the pages of the docs site and check the built one: `make docs`.

python -m tools.docs_site pages             write build/site/pages, which mkdocs.yml reads
python -m tools.docs_site check             refuse a built site (build/site/html) that loads anything from elsewhere
python -m tools.docs_site show docs/diagnose.md     print one page with its made blocks filled in
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from tools.docs_site.made import filled
from tools.docs_site.reference import commands, packages

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "site" / "pages"
HTML = ROOT / "build" / "site" / "html"
AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_ADDRESS = r"""(?:src|href)="(?:https?:)?//"""
_LOADED = re.compile(rf"<(?:script|img|iframe|source|link)\b[^>]*?\b{_ADDRESS}[^>]*>|url\((?:https?:)?//[^)]*")
_CANONICAL = re.compile(r'<link[^>]* rel="(?:canonical|alternate)"')


def sources() -> dict[str, Path]:
    """Return every page that git keeps by its place in the repository, the site's first page first."""
    pages = [ROOT / name for name in AT_THE_TOP] + sorted((ROOT / "docs").rglob("*.md"))
    return {page.relative_to(ROOT).as_posix(): page for page in pages}


def site_text(name: str, text: str) -> str:
    """Return a page as the site shows it: made blocks filled in, lists as Python-Markdown wants them."""
    text = filled(text)
    return spaced(f"{text}\n{commands()}" if name == "docs/cli.md" else text)


def spaced(text: str) -> str:
    """Return Markdown with an empty line between a paragraph and a list below it, which Python-Markdown needs."""
    lines: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        before = lines[-1] if lines else ""
        begins = re.match(r"(?:[-*]|\d+\.) ", line) is not None
        if begins and not fenced and before.strip() and not re.match(r"(?:[-*]|\d+\.) |\s|#", before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def linked_files(page: Path) -> set[Path]:
    """Return the repository's files, other than pages of the site, that a page links to or shows."""
    targets = {(page.parent / target).resolve() for target in _LINK.findall(page.read_text(encoding="utf-8"))}
    return {path for path in targets if path.is_file() and path.relative_to(ROOT).as_posix() not in sources()}


def write_pages() -> None:
    """Write every page, and beside it what it links to, under its place in the repository."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, page in sources().items():
        write(name, site_text(name, page.read_text(encoding="utf-8")))
        for path in linked_files(page):
            copy = PAGES / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    for name, text in packages().items():
        write(name, text)


def write(name: str, text: str) -> None:
    """Write one page of the site."""
    place = PAGES / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


def loaded_from_elsewhere(text: str) -> list[str]:
    """Return the addresses on other machines that a page or style sheet loads by itself. Links to follow are not among them."""
    return [tag[0] for tag in _LOADED.finditer(text) if not _CANONICAL.match(tag[0])]


def check() -> None:
    """Exit with 1, and with file and address, where the built site loads anything from another machine."""
    files = [path for kind in ("html", "css") for path in sorted(HTML.rglob(f"*.{kind}"))]
    loads = [(path, one) for path in files for one in loaded_from_elsewhere(path.read_text(encoding="utf-8"))]
    if not files or loads:
        sys.exit("\n".join([f"{path}: {one}" for path, one in loads] or [f"there is no site in {HTML}"]))
    print(f"docs: {len(files)} files, nothing is loaded from elsewhere; {HTML.relative_to(ROOT)}/index.html is the first page")


def main(words: list[str]) -> None:
    """Do what the first word says."""
    match words:
        case ["pages"]:
            write_pages()
        case ["check"]:
            check()
        case ["show", page] if page in sources():
            print(site_text(page, sources()[page].read_text(encoding="utf-8")))
        case _:
            sys.exit(f"{__doc__}\nPages: {' '.join(sources())}")


if __name__ == "__main__":
    main(sys.argv[1:])
