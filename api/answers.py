"""A checked body in, (status, rendered JSON) out. Runs in worker processes; opens no file that a caller names.

Answers are deterministic: the same body gives the same bytes (times of computing are left out), and names its calibration.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autoconfig.api.problems import RefusedError, of_error, problem_bytes
from autoconfig.api.wire.bodies import READERS
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.json_record import json_text, to_json
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.scenario import Calibration

from autoconfig.calibration.calibrate import calibrate_runs, usable
from autoconfig.calibration.observe import Run
from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.engines.check import check_start, is_start, refuse_serving_fields, start_request
from autoconfig.engines.convert import convert_start
from autoconfig.formats.check import read_any
from autoconfig.formats.convert import convert
from autoconfig.formats.export import export_texts
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, check_request
from autoconfig.planning.calibration_file import parse, shipped
from autoconfig.planning.calibration_file import to_json as calibration_json
from autoconfig.planning.request_fields import DEFAULT_BUDGET
from autoconfig.post_training.answer import answer as post_training_answer
from autoconfig.post_training.answer_json import answer_json
from autoconfig.post_training.question import request_of as post_training_request
from autoconfig.render.check import check_json, converted_json
from autoconfig.render.diagnosis.record import diagnosis_json
from autoconfig.render.listings import describe
from autoconfig.render.sizing.budget import budget_json
from autoconfig.render.sizing.scaling import scaling_json
from autoconfig.render.start_json import start_json
from autoconfig.render.training_json import explain_json, not_legal, search_json, timeline_json
from autoconfig.runs.predict import COLUMNS, TEXT_COLUMNS, predict_rows
from autoconfig.serving import answer as serving
from autoconfig.serving.deployment_json import serve_json
from autoconfig.serving.request import request_of as serving_request
from autoconfig.sizing.budget import budget, budget_request
from autoconfig.sizing.sizing import scale, scaling_request
from autoconfig.study.settings import parse_budget, parse_time
from autoconfig.study.training.settings import on_this_device, settings_of_options
from autoconfig.training.answer import answer as search
from autoconfig.training.answer import explain
from autoconfig.training.question import Request, request_of, understand

Answer = tuple[int, bytes]


def answer(kind: str, body: dict[str, Any] | bytes, calibration: str | None = None) -> Answer:
    """The answer of one endpoint (a key of ANSWERS) to one checked body, or to the bytes of one that is checked here;
    `calibration`: the caller's own, as JSON."""
    try:
        checked = READERS[kind](body) if isinstance(body, bytes) else body
        return 200, ANSWERS[kind](checked if calibration is None else {**checked, OWN: _parsed(calibration)})
    except AutoconfigError as error:
        return of_error(error)
    except RefusedError as error:
        return error.status, problem_bytes(error.status, error.detail, **error.more)


def read(name: str, raw: bytes) -> tuple[int, dict[str, Any]]:
    """The checked body of a key of READERS; where it is refused, what the error is made of."""
    try:
        return 200, READERS[name](raw)
    except RefusedError as error:
        return error.status, {"detail": error.detail, **error.more}


OWN = "own_calibration"
"""Where a body carries the caller's own calibration; no field of a request has this name."""


@lru_cache(maxsize=8)
def _parsed(text: str) -> Calibration:
    return parse(json.loads(text), "the caller's calibration")


def request_from(body: dict[str, Any]) -> Request:
    """The application's Request: names and inline JSON, never paths. Raises InputError."""
    return replace(request_of(body), local_files=False, own_calibration=body.get(OWN))


def _dumps(body: object) -> bytes:
    return json_text(body, indent=None).encode()


def plans(body: dict[str, Any]) -> bytes:
    """`POST /v1/plans`: as `autoconfig search --json`, without the seconds it took."""
    found = to_json(search_json(search(request_from(body))))
    for key in ("seconds", "seconds_by_phase"):
        del found["funnel"][key]
    return _dumps(found)


def explained(body: dict[str, Any]) -> bytes:
    """`POST /v1/explain`: as `autoconfig explain --json`."""
    return _dumps(explain_json(explain(request_from(body), body["plan"], binds=body["binds"])))


def check_search(body: dict[str, Any]) -> None:
    """Refuses what no search can answer, before it is queued: only names and values are looked at. Raises InputError."""
    if not body.get("profile"):
        understand(request_from(body))
        return
    settings = settings_of_options(request_from(body), body)
    parse_budget(body.get("budget") or DEFAULT_BUDGET)
    parse_time(body["job_timeout"])
    understand(on_this_device(settings, None)[0].request)


def timelined(body: dict[str, Any]) -> bytes:
    """`POST /v1/timeline`: the pipeline timeline of one plan."""
    return _dumps(timeline_json(explain(request_from(body), body["plan"], binds=False)))


def scaling(body: dict[str, Any]) -> bytes:
    """`POST /v1/scaling`: as `autoconfig scaling --json`."""
    asked = scaling_request(body)
    base = replace(asked.base, local_files=False, own_calibration=body.get(OWN))
    return _dumps(scaling_json(scale(replace(asked, base=base))))


def budgeted(body: dict[str, Any]) -> bytes:
    """`POST /v1/budget`: as `autoconfig budget --json`."""
    asked = budget_request(body)
    base = replace(asked.base, local_files=False, own_calibration=body.get(OWN))
    return _dumps(budget_json(budget(replace(asked, base=base))))


def checked(body: dict[str, Any]) -> bytes:
    """`POST /v1/check`: as `autoconfig check --json`."""
    if is_start(body["text"]):
        return _dumps(start_json(check_start(body["text"], start_request({**_checked_gpu(body), "local_files": False}))))
    refuse_serving_fields(body)
    return _dumps(check_json(check(read_any(body["text"], _check_request(body)))))


def _checked_gpu(body: dict[str, Any]) -> dict[str, Any]:
    """The body with its settings under the option's name. Raises InputError for a GPU of this machine."""
    if str(body["gpu"] or "").strip().lower() == "local":
        raise InputError("gpu 'local' means nothing to a service; name a GPU type of GET /v1/gpus", field="gpu")
    return {**body, "set": body["settings"]}


def _check_request(body: dict[str, Any]) -> CheckRequest:
    given = _checked_gpu(body)
    if given["model"] is not None:
        given["model"] = resolve_model(given["model"], paths=False)[0].name
    return replace(check_request(given), own_calibration=body.get(OWN))


def converted(body: dict[str, Any]) -> bytes:
    """`POST /v1/convert`: as `autoconfig convert --json`."""
    if is_start(body["text"]):
        request = start_request({**_checked_gpu(body), "local_files": False})
        return _dumps(convert_start(body["text"], request, body["format"]))
    return _dumps(converted_json(convert(body["text"], _check_request(body), body["format"])))


def diagnosed(body: dict[str, Any]) -> bytes:
    """`POST /v1/diagnoses`: as `autoconfig diagnose --json`."""
    check = _check_request({**body, "model": body["model"] if isinstance(body["model"], str) else None, "settings": ()})
    return _dumps(diagnosis_json(diagnose_texts(body["files"], body["plan"], body, lambda: request_from(body), check)))


def predicted(body: dict[str, Any]) -> bytes:
    """`POST /v1/predict`: a prediction per row, with the columns of `autoconfig predict`; null where there is none."""
    calibration = body.get(OWN) or shipped()
    found = [prediction.cells() for prediction in predict_rows(_rows(body), calibration)]
    rows = [{name: _value(name, cells[name]) for name in COLUMNS} for cells in found]
    return _dumps({"schema_version": 1, "calibration": calibration.version, "rows": rows})


def sorted_out(body: dict[str, Any]) -> bytes:
    """Which runs can calibrate (their numbers), and why the others cannot."""
    good, left_out = [], []
    for number, row in enumerate(_rows(body)):
        found = usable(row)
        if isinstance(found, Run):
            good.append(number)
        else:
            left_out.append({"id": row["id"], "reason": found})
    return _dumps({"good": good, "left_out": left_out})


def calibrated(body: dict[str, Any]) -> bytes:
    """The shipped calibration refined with runs that can calibrate, as JSON."""
    runs = [run for run in map(usable, _rows(body)) if isinstance(run, Run)]
    return _dumps(calibration_json(calibrate_runs(runs)))


def _rows(body: dict[str, Any]) -> list[dict[str, str]]:
    return [{key: _cell(value) for key, value in row.items()} for row in body["rows"]]


def _cell(value: str | float | bool | None) -> str:
    """A cell of a table: true and false stay words, so that no number is read from them."""
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _value(column: str, text: str) -> str | float | bool | None:
    if column in TEXT_COLUMNS:
        return text
    if not text:
        return None
    return text == "1" if column == "pred_fits" else float(text)


def exported(body: dict[str, Any]) -> bytes:
    """`POST /v1/export`: the files of one plan, name -> text. `format` is `megatron` or `plan`."""
    explanation = explain(request_from(body), body["plan"], binds=False)
    included, scenario = explanation.included, explanation.question.scenario
    if included.report is None:
        raise not_legal(explanation)
    return _dumps({"files": export_texts(scenario, included.plan, included.report, body["format"])})


def deployments(body: dict[str, Any]) -> bytes:
    """`POST /v1/deployments`: as `autoconfig deployments --json`, without the seconds it took."""
    found = to_json(serve_json(serving.answer(replace(serving_request(body), local_files=False))))
    del found["funnel"]["seconds"]
    return _dumps(found)


def post_training(body: dict[str, Any]) -> bytes:
    """`POST /v1/post-training`: as `autoconfig rl --json`."""
    return _dumps(answer_json(post_training_answer(replace(post_training_request(body), local_files=False))))


def model(body: dict[str, Any]) -> bytes:
    """`POST /v1/model`: as `autoconfig model --json`."""
    return _dumps(describe(body["model"], local_files=False, like=body["like"]))


ANSWERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "plans": plans,
    "explain": explained,
    "scaling": scaling,
    "budget": budgeted,
    "check": checked,
    "convert": converted,
    "diagnose": diagnosed,
    "predict": predicted,
    "timeline": timelined,
    "export": exported,
    "sort_out": sorted_out,
    "calibrate": calibrated,
    "deployments": deployments,
    "post-training": post_training,
    "model": model,
}


def warm_up() -> None:
    """Load what every answer needs, once per worker process; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer("plans", {"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb", "memory_margin": 0.0, "top": 1, "sort_by": "step"})
