"""The published JSON Schemas (`autoconfig/schemas/`), the service's own answers and the bodies as components of the OpenAPI
document."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from autoconfig.api.store import STATES
from autoconfig.api.wire import bodies
from pydantic import BaseModel, ConfigDict, create_model
from pydantic import Field as PydanticField

from autoconfig.planning.schemas import schema
from autoconfig.runs.predict import COLUMNS, TEXT_COLUMNS

REF = "#/components/schemas/"


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str = PydanticField(description="What was given, what is allowed, what to try.")
    field: str = PydanticField("", description="The field of the body, where one is to blame.")
    given: str = ""
    allowed: Any = PydanticField(None, description="The allowed values, where they can be listed.")
    nearest: str | None = PydanticField(None, description="The nearest valid value.")


class _Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Versioned(_Whole):
    schema_version: Literal[1]


class SearchRow(_Whole):
    """A search as it is listed."""

    id: UUID
    state: str = PydanticField(json_schema_extra={"enum": list(STATES)})
    created: datetime
    started: datetime | None
    ended: datetime | None
    question: dict[str, Any] = PydanticField(description="The body, with its defaults.")
    problem: Problem | None = PydanticField(description="Why it failed.")
    note: str | None = PydanticField(description="What keeps it waiting: no worker that measures is there.")


class SearchPage(_Versioned):
    """A page of searches."""

    searches: list[SearchRow]
    next: str | None


class Scripts(_Whole):
    """Files by name."""

    files: dict[str, str]


class StudyLine(BaseModel):
    """One trial; seconds and GiB."""

    trial: int
    plan: str
    outcome: str = PydanticField(description="`measured`, `pruned`, `out_of_memory`, ...")
    message: str = ""
    predicted_s: float | None
    measured_s: float | None
    predicted_peak_gib: float | None
    measured_peak_gib: float | None
    spread_s: float | None = None
    ratio: float | None = None


class Study(_Versioned):
    """What a search that measures found, as `autoconfig search --profile --json`. Seconds and GiB."""

    model_config = ConfigDict(extra="ignore")

    name: str
    best: StudyLine | None
    lines: list[StudyLine] = PydanticField(description="Measured ones first.")
    prior_best: str = PydanticField(description="The plan that the formulas put first.")
    unmeasured: list[dict[str, Any]]
    candidates: int
    correction: float | None = PydanticField(None, description="Median of measured over predicted.")
    calibration: str
    stopped: str = PydanticField(description="Why it ended.")


class LeftOut(_Whole):
    """A run that cannot calibrate, and why."""

    id: str
    reason: str


class MeasurementsTaken(_Versioned):
    """What became of measured runs."""

    accepted: int = PydanticField(ge=1)
    left_out: list[LeftOut]
    measurements: int = PydanticField(description="Runs of this key, all together.")
    calibration: str = PydanticField(description="The version that answers to this key name.")


class MeasurementShown(_Whole):
    """A stored run."""

    id: str
    created: datetime
    run: dict[str, Any]


class MeasurementPage(_Versioned):
    """A page of measured runs."""

    calibration: str | None
    measurements: list[MeasurementShown]
    next: str | None = PydanticField(description="The cursor of the next page.")


_kinds: Any = dict.fromkeys(COLUMNS, (float | None, ...)) | dict.fromkeys(TEXT_COLUMNS, (str, ...))
_kinds["pred_fits"] = (bool | None, ...)
PredictedRow = create_model("PredictedRow", __base__=_Whole, **_kinds)
Predictions = create_model("Predictions", __base__=_Versioned, calibration=(str, ...), rows=(list[PredictedRow], ...))  # type: ignore[valid-type]
_SHOWN = (Problem, SearchPage, Scripts, Study, MeasurementsTaken, MeasurementPage, Predictions)
_BODIES = (
    *(bodies.PlansBody, bodies.SearchBody, bodies.ExplainBody, bodies.TimelineBody, bodies.ExportBody, bodies.ScalingBody),
    *(bodies.CheckBody, bodies.ConvertBody, bodies.PredictBody, bodies.MeasurementsBody, bodies.DeploymentsBody),
    bodies.PostTrainingBody,
)


def components() -> dict[str, Any]:
    """Every component schema by name."""
    found: dict[str, Any] = {"SearchAnswer": {"anyOf": [{"$ref": REF + "Search"}, {"$ref": REF + "Study"}]}}
    for name in ("search", "explain", "timeline", "scaling", "check", "convert", "serve", "rl"):
        whole = json.loads(json.dumps(schema(name)).replace("#/$defs/", REF))
        found |= whole.pop("$defs", {})
        found[name.capitalize()] = {key: value for key, value in whole.items() if not key.startswith("$")}
    for kind in (*_BODIES, *_SHOWN):
        whole = kind.model_json_schema(ref_template=REF + "{model}")
        found |= {**whole.pop("$defs", {}), kind.__name__: whole}
    found["Accepted"] = found.pop("MeasurementsTaken")
    for funnel in (found["Funnel"], found["ServeFunnel"]):
        for key in ("seconds", "seconds_by_phase"):  # left out, so that the same question gives the same bytes
            if funnel["properties"].pop(key, None) is not None:
                funnel["required"].remove(key)
    return found
