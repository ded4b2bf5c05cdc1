"""A serving question in, the JSON of `autoconfig search --inference --json` out. Runs in worker processes."""

from __future__ import annotations

from typing import Any

from autoconfig.specs.errors import InputError
from autoconfig.specs.json_record import json_text, to_json

from autoconfig.serving.answer import answer
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.request import ServeRequest, seconds


def deployments(body: dict[str, Any]) -> bytes:
    """`POST /v1/deployments`: as the command line's answer, without the seconds it took. Raises InputError."""
    found = to_json(serve_json(answer(request_from(body))))
    del found["funnel"]["seconds"]
    return json_text(found, indent=None).encode()


def request_from(body: dict[str, Any]) -> ServeRequest:
    """The application's request of a checked body: names and inline JSON, never paths."""
    given = {key: value for key, value in body.items() if value is not None}
    for key in ("ttft", "tpot"):
        if key in given:
            given[f"{key}_s"] = _duration(key, given.pop(key))
    for key in ("fix", "include"):
        given[key] = tuple(given.get(key) or ())
    if "chunked_prefill" in given:
        given["chunked"] = given.pop("chunked_prefill")
    return ServeRequest(**given, local_files=False)


def _duration(key: str, value: str | float) -> float:
    try:
        return seconds(str(value))
    except ValueError as error:
        raise InputError(f"--{key}: {error}") from error
