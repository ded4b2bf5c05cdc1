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


class _Said(BaseModel):
    """A field's docstring is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Problem(_Said):
    """An RFC 9457 problem document."""

    type: str
    """What kind of problem, as a URI."""
    title: str
    """The kind in words."""
    status: int
    """The HTTP status."""
    detail: str = PydanticField(description="What was given, what is allowed, what to try.")
    field: str = PydanticField("", description="The field of the body, where one is to blame.")
    given: str = ""
    """What was given there."""
    allowed: Any = PydanticField(None, description="The allowed values, where they can be listed.")
    nearest: str | None = PydanticField(None, description="The nearest valid value.")


class _Whole(_Said):
    model_config = ConfigDict(extra="forbid")


class _Versioned(_Whole):
    schema_version: Literal[1]
    """Changes when a reader must change."""


class SearchRow(_Whole):
    """A search as it is listed."""

    id: UUID
    """Names the search in its paths."""
    state: str = PydanticField(json_schema_extra={"enum": list(STATES)})
    """How far it is."""
    created: datetime
    """When it was asked for."""
    started: datetime | None
    """When a worker took it; null: it waits."""
    ended: datetime | None
    """When it ended; null: it has not."""
    question: dict[str, Any] = PydanticField(description="The body, with its defaults.")
    problem: Problem | None = PydanticField(description="Why it failed.")
    note: str | None = PydanticField(description="What keeps it waiting: no worker that measures is there.")


class SearchPage(_Versioned):
    """A page of searches."""

    searches: list[SearchRow]
    next: str | None
    """The cursor of the next page; null: this is the last."""


class Scripts(_Whole):
    """Files by name."""

    files: dict[str, str]
    """File name -> text."""


class StudyLine(_Said):
    """One trial; seconds and GiB."""

    trial: int
    """Its number, from 0."""
    plan: str
    """Short form."""
    outcome: str = PydanticField(description="`measured`, `pruned`, `out_of_memory`, ...")
    message: str = ""
    """What went wrong; empty: nothing."""
    predicted_s: float | None
    """Step as predicted."""
    measured_s: float | None
    """Step as measured, median."""
    predicted_peak_gib: float | None
    """Peak memory as predicted."""
    measured_peak_gib: float | None
    """Peak memory as measured."""
    spread_s: float | None = None
    """The longest measured step less the shortest."""
    ratio: float | None = None
    """Measured over predicted step."""


class Study(_Versioned):
    """What a search that measures found, as `autoconfig search --profile --json`. Seconds and GiB."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """Of the study."""
    best: StudyLine | None
    lines: list[StudyLine] = PydanticField(description="Measured ones first.")
    prior_best: str = PydanticField(description="The plan that the formulas put first.")
    unmeasured: list[dict[str, Any]]
    """Promising plans that were not measured."""
    candidates: int
    """Plans that it chose from."""
    correction: float | None = PydanticField(None, description="Median of measured over predicted.")
    calibration: str
    stopped: str = PydanticField(description="Why it ended.")


class LeftOut(_Whole):
    """A run that cannot calibrate, and why."""

    id: str
    """Of the run."""
    reason: str
    """Why it is left out."""


class MeasurementsTaken(_Versioned):
    """What became of measured runs."""

    accepted: int = PydanticField(ge=1, description="Runs that calibrate.")
    left_out: list[LeftOut]
    measurements: int = PydanticField(description="Runs of this key, all together.")
    calibration: str = PydanticField(description="The version that answers to this key name.")


class MeasurementsRemoved(_Versioned):
    """What is left of measured runs."""

    removed: int = PydanticField(ge=0, description="Runs that are gone.")
    measurements: int = PydanticField(ge=0, description="Runs of this key that are left.")
    calibration: str | None = PydanticField(description="The version that answers to this key name; null: the shipped one.")


class BatchAnswer(_Whole):
    """The answer to one question of a batch."""

    status: int
    """What its own path would have said: 200 with `answer`, another one with `problem`."""
    answer: dict[str, Any] = PydanticField({}, description="As its own path gives it; where the status is 200.")
    problem: Problem | None = PydanticField(None, description="Why there is no answer.")


class BatchAnswers(_Versioned):
    """The answers of a batch."""

    answers: list[BatchAnswer]
    """In the order of the questions."""


class MeasurementShown(_Whole):
    """A stored run."""

    id: str
    """Names the run."""
    created: datetime
    """When it was sent."""
    run: dict[str, Any]
    """The run as it was sent."""


class MeasurementPage(_Versioned):
    """A page of measured runs."""

    calibration: str | None
    measurements: list[MeasurementShown]
    next: str | None = PydanticField(description="The cursor of the next page.")


_COLUMNS = {
    "id": "Of the row that was given.",
    "pred_step_s": "Time of a step; like every figure null where the row cannot be predicted.",
    "pred_step_s_p5": "Lower end of its 90 % band.",
    "pred_step_s_p95": "Upper end of its 90 % band.",
    "pred_tokens_per_s_per_gpu": "Tokens trained on, by one GPU.",
    "pred_tflops_per_gpu": "Model FLOPs as the row's source counts them, 10^12 per second and GPU.",
    "pred_mfu": "Model FLOPs over the GPU's dense peak, a share.",
    "pred_peak_mem_gib": "Peak memory of the worst stage.",
    "pred_mem_after_step_gib": "Memory that is still allocated behind a step.",
    "pred_fits": "Whether the peak is within the limit.",
    "pred_fit_probability": "Chance to fit, 0 to 1.",
    "pred_confidence": "Class of runs that gave the band.",
    "pred_note": "What was assumed, or why there is no prediction.",
}


def _column(name: str) -> Any:
    kind = str if name in TEXT_COLUMNS else bool | None if name == "pred_fits" else float | None
    return kind, PydanticField(description=_COLUMNS[name])


_rows_of_it: Any = {name: _column(name) for name in COLUMNS}
PredictedRow = create_model("PredictedRow", __base__=_Whole, **_rows_of_it)
_predicted: Any = PydanticField(description="In the order of the rows that were given.")
Predictions = create_model("Predictions", __base__=_Versioned, calibration=(str, ...), rows=(list[PredictedRow], _predicted))  # type: ignore[valid-type]
_SHOWN = (
    *(Problem, SearchPage, Scripts, Study, BatchAnswers, Predictions),
    *(MeasurementsTaken, MeasurementsRemoved, MeasurementPage),
)
_BODIES = (
    *(bodies.PlansBody, bodies.SearchBody, bodies.ExplainBody, bodies.TimelineBody, bodies.ExportBody, bodies.ScalingBody),
    bodies.BudgetBody,
    *(
        bodies.CheckBody,
        bodies.ConvertBody,
        bodies.DiagnoseBody,
        bodies.PredictBody,
        bodies.MeasurementsBody,
        bodies.DeploymentsBody,
    ),
    *(bodies.PostTrainingBody, bodies.ModelBody, bodies.BatchBody),
)


def published(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of an answer, and those that it names, as components of the document."""
    whole = json.loads(json.dumps(schema(name)).replace("#/$defs/", REF))
    return {key: value for key, value in whole.items() if not key.startswith("$")}, whole.get("$defs", {})


_NAMED = {"model": "ModelCount"}
"""Answers whose component has another name: a question's model is one, too."""


def components() -> dict[str, Any]:
    """Every component schema by name."""
    found: dict[str, Any] = {"SearchAnswer": {"anyOf": [{"$ref": REF + "Search"}, {"$ref": REF + "Study"}]}}
    for name in ("search", "explain", "timeline", "scaling", "budget", "check", "convert", "diagnose", "serve", "rl", "model"):
        found[_NAMED.get(name, name.capitalize())], named = published(name)
        found |= named
    for kind in (*_BODIES, *_SHOWN):
        whole = kind.model_json_schema(ref_template=REF + "{model}")
        found |= {**whole.pop("$defs", {}), kind.__name__: whole}
    found["Accepted"], found["Removed"] = found.pop("MeasurementsTaken"), found.pop("MeasurementsRemoved")
    for funnel in (found["Funnel"], found["ServeFunnel"]):
        for key in ("seconds", "seconds_by_phase"):  # left out, so that the same question gives the same bytes
            if funnel["properties"].pop(key, None) is not None:
                funnel["required"].remove(key)
    return found
