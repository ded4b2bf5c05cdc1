"""`GET /docs`: what the service answers, as a page of its own that is read off the OpenAPI document and loads nothing from
elsewhere; open without a key, as it holds nobody's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def docs_page(document: Mapping[str, Any]) -> str:
    """HTML of the operations by tag: method, path and summary."""
    title = escape(str(document["info"]["title"]))
    version, about = (escape(str(document["info"][key])) for key in ("version", "description"))
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>{title}: endpoints</title>",
        f"<h1>{title} {version}</h1>",
        f"<p>{about}</p>",
        '<p><a href="/openapi.json">/openapi.json</a> has every field and an example of each question '
        '(with keys on, it asks for one of scope read); <a href="/">the web page</a> asks them; '
        "keys, limits and errors are in docs/service.md of the source.</p>",
    ]
    tags: dict[str, list[str]] = {}
    for tag, row in _rows(document):
        tags.setdefault(tag, []).append(row)
    for tag, rows in tags.items():
        parts += [f"<h2>{escape(tag)}</h2>", "<table>", *rows, "</table>"]
    return "\n".join([*parts, "</html>", ""])


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            words = (method.upper(), path, str(one.get("summary", "")))
            cells = "".join(f"<td>{escape(word)}</td>" for word in words)
            yield (one.get("tags") or ["other"])[0], f"<tr>{cells}</tr>"
