"""The published JSON Schemas (`autoconfig/schemas/`) and the bodies as components of the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from autoconfig.api.store import STATES
from autoconfig.api.wire import bodies
from pydantic import BaseModel

from autoconfig.planning.schemas import schema
from autoconfig.runs.predict import COLUMNS

REF = "#/components/schemas/"
PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "An RFC 9457 problem document.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was given, what is allowed, what to try."},
        "field": {"type": "string", "description": "The field of the body, where one is to blame."},
        "given": {"type": "string"},
        "allowed": {"description": "The allowed values, where they can be listed."},
        "nearest": {"type": ["string", "null"], "description": "The nearest valid value."},
    },
    "required": ["type", "title", "status", "detail"],
}
_TEXTS = ("id", "pred_confidence", "pred_note")
PREDICTIONS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema_version": {"const": 1},
        "calibration": {"type": "string"},
        "rows": {
            "type": "array",
            "description": "In the order of the question.",
            "items": {
                "type": "object",
                "properties": {
                    column: {"type": "string"}
                    if column in _TEXTS
                    else {"type": ["boolean", "null"] if column == "pred_fits" else ["number", "null"]}
                    for column in COLUMNS
                },
                "required": list(COLUMNS),
                "additionalProperties": False,
            },
        },
    },
    "required": ["schema_version", "calibration", "rows"],
    "additionalProperties": False,
}


_PARTS: tuple[tuple[tuple[str, ...], tuple[type[BaseModel], ...]], ...] = (
    (
        ("search", "explain", "timeline", "scaling", "check"),
        (
            *(bodies.PlansBody, bodies.SearchBody, bodies.ExplainBody, bodies.TimelineBody, bodies.ExportBody),
            *(bodies.ScalingBody, bodies.CheckBody, bodies.PredictBody, bodies.MeasurementsBody),
        ),
    ),
    (("serve",), (bodies.DeploymentsBody,)),
)
"""Names of published schemas of answers, and the bodies of questions."""


def components() -> dict[str, Any]:
    """Every component schema by name."""
    found: dict[str, Any] = {"Problem": PROBLEM, "Predictions": PREDICTIONS}
    for names, kinds in _PARTS:
        for name in names:
            found |= answer_schemas(name)
        for kind in kinds:
            whole = kind.model_json_schema(ref_template=REF + "{model}")
            found |= {**whole.pop("$defs", {}), kind.__name__: whole}
    for funnel in (found["Funnel"], found["ServeFunnel"]):
        for key in ("seconds", "seconds_by_phase"):  # left out, so that the same question gives the same bytes
            if funnel["properties"].pop(key, None) is not None:
                funnel["required"].remove(key)
    return found


def component_name(name: str) -> str:
    """`search` as a component's name."""
    return name.capitalize()


def answer_schemas(name: str) -> dict[str, Any]:
    """A published schema as a component (`Search`), and its definitions by their own names."""
    whole = json.loads(json.dumps(schema(name)).replace("#/$defs/", REF))
    definitions = whole.pop("$defs", {})
    return {component_name(name): {key: value for key, value in whole.items() if not key.startswith("$")}, **definitions}


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
