"""Errors as RFC 9457 problem documents: what was given, which field, what is allowed, the nearest valid value."""

from __future__ import annotations

import json
from typing import Any

from autoconfig.specs.errors import AutoconfigError, InputError, UnknownKeyError, UnknownNameError, nearest
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "The request cannot be read",
    401: "An API key is needed",
    403: "This is not allowed",
    404: "There is nothing here",
    405: "This method is not allowed here",
    406: "No such format",
    408: "The request did not arrive",
    409: "This conflicts with an earlier request",
    413: "The request is too large",
    415: "The request must be JSON",
    421: "The service does not answer under this name",
    422: "The question cannot be answered",
    429: "Too many requests",
    500: "A bug of ours",
    503: "The service is not ready",
}
MAX_ALLOWED = 200
MAX_GIVEN = 80


class RefusedError(Exception):
    """A request that is answered with a problem document (`context.guarded`)."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more

    @property
    def response(self) -> Response:
        """The document as it goes out."""
        return problem(self.status, self.detail, headers=self.headers, **self.more)


def problem(status: int, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """A problem document; `more` holds field, given, allowed, nearest where they are known."""
    return Response(problem_bytes(status, detail, **more), status_code=status, media_type=MEDIA_TYPE, headers=headers)


def problem_bytes(status: int, detail: str, **more: Any) -> bytes:
    """The document itself."""
    body = {"type": f"urn:autoconfig:problem:{status}", "title": TITLES[status], "status": status, "detail": detail}
    return json.dumps({**body, **{key: value for key, value in more.items() if value is not None}}).encode()


def of_error(error: AutoconfigError) -> tuple[int, bytes]:
    """(status, document) of an error of the application."""
    if not isinstance(error, InputError):
        return 500, problem_bytes(500, "a data file of the service is wrong; see its log")
    more: dict[str, Any] = {"field": error.field}
    unknown = _unknown_name(error)
    if isinstance(unknown, UnknownKeyError):
        more = {"field": error.field or "plan", "given": unknown.short_form[:MAX_GIVEN]}
        more |= {"allowed": list(unknown.known), "nearest": unknown.mended}
    elif unknown is not None:
        more = {"field": unknown.field or error.field, "given": unknown.given}
        more |= {"allowed": list(unknown.known[:MAX_ALLOWED]), "nearest": next(iter(unknown.nearest), None)}
    return 422, problem_bytes(422, error.text, **more)


def _unknown_name(error: BaseException | None) -> UnknownNameError | None:
    while error is not None and not isinstance(error, UnknownNameError):
        error = error.__cause__
    return error


def wrong_value(given: object, allowed: list[str]) -> dict[str, Any]:
    """What a problem says of a value that is none of the allowed ones."""
    text = str(given)[:MAX_GIVEN]
    close = nearest(text, allowed, 1)
    return {"given": text, "allowed": allowed, "nearest": close[0] if close else None}


def unknown_field(given: str, known: list[str]) -> dict[str, Any]:
    """What a problem says of a field that does not exist."""
    close = nearest(given, known, 1)
    return {"field": given[:MAX_GIVEN], "allowed": sorted(known), "nearest": close[0] if close else None}
