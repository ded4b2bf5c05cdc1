"""Pages of a list: `?limit=50&cursor=...`; the answer's `next` is the cursor of the page after, null at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest

DEFAULT_LIMIT = 100
MAX_LIMIT = 500
PAGE_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "limit",
        "in": "query",
        "required": False,
        "description": f"Entries of a page; {DEFAULT_LIMIT} unless given.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    },
    {
        "name": "cursor",
        "in": "query",
        "required": False,
        "description": "`next` of the page before.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    },
]


class PageError(Exception):
    """A limit or cursor that cannot be used."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    items: list[Any]
    next: str | None


def bounds_of(request: HttpRequest) -> tuple[int, int]:
    """(offset, limit) of a request. Raises PageError."""
    limit = _number(request, "limit", str(DEFAULT_LIMIT))
    if not 1 <= limit <= MAX_LIMIT:
        raise PageError("limit", f"limit={limit}: give a whole number from 1 to {MAX_LIMIT}")
    return _number(request, "cursor", "0"), limit


def page_of(request: HttpRequest, items: list[Any]) -> Page:
    """The page that a request asks for. Raises PageError."""
    offset, limit = bounds_of(request)
    part = items[offset : offset + limit]
    return Page(part, str(offset + limit) if offset + limit < len(items) else None)


def _number(request: HttpRequest, name: str, default: str) -> int:
    given = request.query_params.getlist(name) or [default]
    if len(given) > 1 or not (given[0].isascii() and given[0].isdigit() and len(given[0]) <= 9):
        raise PageError(name, f"{name}={','.join(given)[:40]!r}: give one whole number")
    return int(given[0])
