"""Searches and their answers as components of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from autoconfig.api.store import STATES
from autoconfig.api.wire.schemas import REF

_TIME = {"type": ["string", "null"], "format": "date-time"}
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "state": {"enum": list(STATES)},
        "created": {"type": "string", "format": "date-time"},
        "started": _TIME,
        "ended": _TIME,
        "question": {"type": "object", "description": "The body, with its defaults."},
        "problem": {"oneOf": [{"$ref": REF + "Problem"}, {"type": "null"}], "description": "Why it failed."},
        "note": {"type": ["string", "null"], "description": "What keeps it waiting: no worker that measures is there."},
    },
    "required": ["id", "state", "created", "started", "ended", "question", "problem", "note"],
    "additionalProperties": False,
}
SEARCH_PAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "searches": {"type": "array", "items": {"$ref": REF + "SearchRow"}},
        "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
    },
    "required": ["schema_version", "searches", "next"],
    "additionalProperties": False,
}
SCRIPTS: dict[str, Any] = {
    "type": "object",
    "properties": {"files": {"type": "object", "additionalProperties": {"type": "string"}}},
    "required": ["files"],
    "additionalProperties": False,
}
_NUMBER = {"type": ["number", "null"]}
_LINE_NUMBERS = ("predicted_s", "measured_s", "spread_s", "predicted_peak_gib", "measured_peak_gib", "ratio")
STUDY_LINE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "trial": {"type": "integer"},
        "plan": {"type": "string"},
        "outcome": {"type": "string", "description": "`measured`, `pruned`, `out_of_memory`, ..."},
        "message": {"type": "string"},
        **dict.fromkeys(_LINE_NUMBERS, _NUMBER),
    },
    "required": ["trial", "plan", "outcome", "predicted_s", "measured_s", "predicted_peak_gib", "measured_peak_gib"],
}
STUDY: dict[str, Any] = {
    "type": "object",
    "description": "What a search that measures found, as `autoconfig search --profile --json`. Seconds and GiB.",
    "properties": {
        "schema_version": {"const": 1},
        "name": {"type": "string"},
        "best": {"oneOf": [{"$ref": REF + "StudyLine"}, {"type": "null"}]},
        "lines": {"type": "array", "items": {"$ref": REF + "StudyLine"}, "description": "Measured ones first."},
        "prior_best": {"type": "string", "description": "The plan that the formulas put first."},
        "unmeasured": {"type": "array", "items": {"type": "object"}},
        "candidates": {"type": "integer"},
        "correction": {**_NUMBER, "description": "Median of measured over predicted."},
        "calibration": {"type": "string"},
        "stopped": {"type": "string", "description": "Why it ended."},
    },
    "required": ["schema_version", "name", "best", "lines", "prior_best", "unmeasured", "candidates", "calibration", "stopped"],
}
ANSWER = {"anyOf": [{"$ref": REF + "Search"}, {"$ref": REF + "Study"}]}
COMPONENTS = {
    "Scripts": SCRIPTS,
    "SearchAnswer": ANSWER,
    "SearchPage": SEARCH_PAGE,
    "SearchRow": SEARCH,
    "Study": STUDY,
    "StudyLine": STUDY_LINE,
}
