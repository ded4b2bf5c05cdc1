"""`GET /docs`: what the service answers, as a page of its own that is read off the OpenAPI document and loads nothing from
elsewhere; open without a key, as it holds nobody's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from autoconfig.planning.request_fields import POST_TRAINING, SCALING, SERVING


def docs_page(document: Mapping[str, Any]) -> str:
    """HTML of the operations by tag: method, path, summary, body and answer; and of every field of these, with its text."""
    title = escape(str(document["info"]["title"]))
    version, about = (escape(str(document["info"][key])) for key in ("version", "description"))
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>{title}: endpoints</title>",
        f"<h1>{title} {version}</h1>",
        f"<p>{about}</p>",
        '<p><a href="/openapi.json">/openapi.json</a> has every field and an example of each question; '
        '<a href="/">the web page</a> asks them; '
        "keys, limits and errors are in docs/service.md of the source.</p>",
    ]
    tags: dict[str, list[str]] = {}
    for tag, row in _rows(document):
        tags.setdefault(tag, []).append(row)
    for tag, rows in tags.items():
        parts += [f"<h2>{escape(tag)}</h2>", "<table>", *rows, "</table>"]
    parts += ["<h2>Fields</h2>", *_fields(document["components"]["schemas"])]
    return "\n".join([*parts, "</html>", ""])


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, operations in document["paths"].items():
        for method, one in operations.items():
            words = (method.upper(), path, str(one.get("summary", "")))
            cells = "".join(f"<td>{escape(word)}</td>" for word in words)
            asked, answered = one.get("requestBody", {}), one.get("responses", {}).get("200", {})
            links = "".join(f"<td>{' '.join(map(_link, dict.fromkeys(_named(said))))}</td>" for said in (asked, answered))
            yield (one.get("tags") or ["other"])[0], f"<tr>{cells}{links}</tr>"


def _named(said: Any) -> Iterator[str]:
    """The component schemas that a part of the document refers to."""
    if isinstance(said, Mapping):
        if "$ref" in said:
            yield str(said["$ref"]).rsplit("/", 1)[1]
        said = [value for key, value in said.items() if key not in ("example", "examples")]
    if isinstance(said, list):
        for part in said:
            yield from _named(part)


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}">{escape(name)}</a>'


def _fields(schemas: Mapping[str, Any]) -> Iterator[str]:
    """Of every component its fields: name, what it holds, its text, else that of the component that it holds, else the help of
    the question's field of this name."""
    asked = {field.name: field.help for field in (*SCALING, *SERVING, *POST_TRAINING) if field.group != "architecture"}
    for name, schema in schemas.items():
        about = escape(str(schema.get("description", "")))
        yield f'<details open id="{escape(name)}"><summary>{escape(name)}</summary><p>{about}</p><table>'
        for field, said in schema.get("properties", {}).items():
            inner = [*dict.fromkeys(_named(said))]
            of_inner = (schemas[one].get("description", "") for one in inner if one in schemas)
            text = said.get("description") or next(of_inner, "") or asked.get(field, "")
            kind = " ".join(map(_link, inner)) or escape(_kind(said))
            yield f"<tr><td>{escape(field)}</td><td>{kind}</td><td>{escape(str(text))}</td></tr>"
        yield f"</table><p>{' '.join(map(_link, dict.fromkeys(_named(schema.get('anyOf', [])))))}</p></details>"


def _kind(said: Mapping[str, Any]) -> str:
    """The types of a field, or its values where they are listed."""
    if "enum" in said or "const" in said:
        return ", ".join(map(str, said.get("enum", [said.get("const")])))
    kinds = said.get("type", [])
    of = [*kinds] if isinstance(kinds, list) else [str(kinds)]
    of += [_kind(one) for one in said.get("anyOf", [])]
    return ", ".join(dict.fromkeys(filter(None, of))).replace("null", "none")
