"""Request bodies as pydantic models, made from the declarations of the fields (`planning.request_fields`). Their values are
checked by the application, as the command line's are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from annotated_types import MaxLen
from autoconfig.api.problems import RefusedError, unknown_field, wrong_value
from autoconfig.specs.errors import InputError
from autoconfig.specs.units import COUNTS, LENGTHS
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic import Field as PydanticField

from autoconfig.formats.convert import FORMATS as CONVERTED
from autoconfig.formats.export import FORMATS
from autoconfig.planning import request_fields as fields
from autoconfig.planning.resolve import Field, Fields, field_names

MAX_TEXTS = 64
MAX_DEPTH = 32
"""Levels of a body; a config.json has about five. Deep ones cannot be handed to another process."""
MAX_ROWS = 1_000
MAX_COLUMNS = 200
"""Of a row; a table of runs has some sixty."""
MAX_QUESTIONS = 256
"""Of a batch."""
MAX_ID = 200
MAX_LOG = 2_000_000
"""Characters of one log of a diagnosis; the command line reads longer ones, and traces."""
MAX_TRACE_ROWS = 10_000
"""Of a trace in a body; the command line reads longer ones from files."""
_Text = Annotated[str, PydanticField(max_length=2_000)]
_Inline = dict[str, Any]

MODEL_HELP = "Catalogue name (`GET /v1/models`), a size such as `13b`, or the object of a Hugging Face config.json."
CLUSTER_HELP = "Other hardware, as an object: the keys of docs/examples/cluster.json."


_FIRST: dict[str, Any] = {"fail_fast": True}
"""Of a list: the first entry that is wrong is enough, pydantic would collect them all."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _body_fields(*groups: Fields, without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {field.name: _body_field(field) for group in groups for field in group if field.remote and field.name not in without}


def _body_field(field: Field) -> tuple[Any, Any]:
    if field.name == "model":
        return _Text | _Inline, PydanticField(description=MODEL_HELP, examples=["175b"])
    if field.name == "cluster":
        return _Inline | None, PydanticField(default=None, description=CLUSTER_HELP)
    if field.many:
        return list[_Text], PydanticField(default_factory=list, max_length=MAX_TEXTS, description=field.help, **_FIRST)
    kind: Any = _Text if field.type is str else field.type
    if field.choices:
        kind = Literal[field.choices]
    elif field.parse is not None:
        kind = field.type | _Text
    default = None if field.default is False else field.default
    description = field.help.replace("`autoconfig gpus`", "`GET /v1/gpus`")
    return _as_typed(field, kind | None if default is None else kind), PydanticField(default=default, description=description)


_DIGITS, _COMMAS, _THOUSANDS = "^[0-9]{1,9}$", "^[0-9]{1,3}(,[0-9]{3}){1,2}$", "^[0-9]{1,6}[kK]$"


def _as_typed(field: Field, kind: Any) -> Any:
    """`kind`, which also takes the text that the command line takes for it: FP8, 8k, 1,000."""

    def read(given: Any) -> Any:
        try:
            return field.value(given) if isinstance(given, str) else given
        except InputError as error:
            raise ValueError(error.text) from error

    if field.choices:
        return Annotated[kind, BeforeValidator(read)]
    if field.type is not int:
        return kind
    shapes = [_DIGITS, *([] if field.name in COUNTS else [_COMMAS]), *([_THOUSANDS] if field.name in LENGTHS else [])]
    text = Annotated[str, PydanticField(pattern="|".join(shapes))]
    return Annotated[kind, BeforeValidator(read, json_schema_input_type=kind | text)]


def _body(name: str, *groups: Fields, without: tuple[str, ...] = (), **more: Any) -> type[BaseModel]:
    return create_model(name, __base__=_Body, **{**more, **_body_fields(*groups, without=without)})


def _said(kind: Any, text: str, **more: Any) -> tuple[Any, Any]:
    return kind, PydanticField(description=text, **more)


_plan = _said(_Text, fields.ARGUMENTS["plan"].help, examples=[fields.ARGUMENTS["plan"].example])
_binds = _said(bool, "Also what more memory, bandwidth, compute or batch would buy.", default=False)
_profile = _said(bool, "Measure the most promising plans with short jobs of a worker.", default=False)
_format = _said(Literal[FORMATS], "megatron: launch scripts and plan.json; plan: plan.json.", default=FORMATS[0])
_counts = "GPU counts: a list, or text such as `64:1024` (doubling) or `64:1024:64`."
_types: Any = Annotated[list[_Text], PydanticField(**_FIRST)] | _Text | None
_script = fields.ARGUMENTS["text"]
PlansBody = _body("PlansBody", fields.QUESTION, fields.SEARCH)
SearchBody = _body("SearchBody", fields.QUESTION, fields.SEARCH, fields.PROFILE, without=("profile",), profile=_profile)
ExplainBody = _body("ExplainBody", fields.QUESTION, plan=_plan, binds=_binds)
TimelineBody = _body("TimelineBody", fields.QUESTION, plan=_plan)
ExportBody = _body("ExportBody", fields.QUESTION, plan=_plan, format=_format)
ScalingBody = _body(
    "ScalingBody",
    fields.SCALING,
    without=("gpus", "gpu"),
    gpus=_said(int | Annotated[list[int], PydanticField(**_FIRST)] | _Text, _counts, examples=["64:1024"]),
    gpu=_said(_types, "One or more GPU types.", default=None, examples=[["h100-sxm-80gb"]]),
)
_offers: Any = Annotated[list[_Text], PydanticField(**_FIRST)] | dict[str, float | _Text] | _Text | None
BudgetBody = _body(
    "BudgetBody",
    fields.BUDGET,
    without=("model", "gpu"),
    model=_said(_Text | _Inline | None, MODEL_HELP, default=None),
    gpu=_said(
        _offers,
        "GPU types with prices per GPU and hour: an object, or texts like h100=2.2; without a price a list price is taken.",
        default=None,
        examples=[{"h100-sxm-80gb": 2.2}],
    ),
)
_file: dict[str, Any] = {
    "text": _said(Annotated[str, PydanticField(max_length=1_000_000)], _script.help, examples=[_script.example]),
    "settings": _said(dict[str, str], fields.ARGUMENTS["settings"].help, default_factory=dict, max_length=MAX_TEXTS),
    "model": _said(_Text | None, "Catalogue name, instead of its model.", default=None),
}

_logs = fields.ARGUMENTS["texts"].help
DiagnoseBody = _body(
    "DiagnoseBody",
    fields.DIAGNOSE,
    fields.QUESTION,
    without=("model", "cluster"),
    files=_said(
        dict[str, Annotated[str, PydanticField(max_length=MAX_LOG)]], _logs, default_factory=dict, max_length=MAX_TEXTS
    ),
    plan=_said(
        _Text | None, "A plan in its short form, where no file says it.", default=None, examples=["tp=8,pp=8,mbs=1,sp=1"]
    ),
    model=_said(_Text | _Inline | None, MODEL_HELP, default=None),
)


class TraceRow(BaseModel):
    """One recorded request; other keys (Mooncake's hash_ids) are not read."""

    model_config = ConfigDict(strict=True)

    timestamp: float = PydanticField(description="Arrival in milliseconds; not before that of the row above.")
    input_length: int = PydanticField(description="Input tokens, from 1 to 2,000,000.")
    output_length: int = PydanticField(description="Output tokens, from 1 to 2,000,000.")


_trace = _said(
    Annotated[list[TraceRow], PydanticField(**_FIRST)] | None,
    fields.ARGUMENTS["rows"].help,
    default=None,
    min_length=2,
    max_length=MAX_TRACE_ROWS,
    examples=[fields.ARGUMENTS["rows"].example],
)

CheckBody = _body("CheckBody", fields.CHECK, fields.CHECK_SERVING, without=("model", "cluster", "trace"), **_file, trace=_trace)
_target = _said(Literal[CONVERTED], "What to write.", examples=["deepspeed"])
ConvertBody = _body("ConvertBody", fields.CONVERT, without=("model", "cluster", "format"), **_file, format=_target)


_limit: Any = None | _Text | float
DeploymentsBody = _body(
    "DeploymentsBody",
    fields.SERVING,
    without=("ttft", "tpot", "trace", "gpus"),
    gpus=_said(_as_typed(fields.SERVING_GPUS, int), fields.SERVING_GPUS.help.replace("--goal", "goal")),
    ttft=_said(_limit, "Limit of the mean time to first token: seconds, or text like `2s`.", default=None),
    trace=_trace,
    tpot=_said(_limit, "Limit of the mean time per output token, likewise.", default=None, examples=["50ms"]),
)


PostTrainingBody = _body("PostTrainingBody", fields.POST_TRAINING)
ModelBody = _body("ModelBody", (fields.LIKE,), model=_said(_Text | _Inline, MODEL_HELP, examples=["llama3-8b"]))


class PredictBody(_Body):
    """Runs to predict."""

    rows: list[dict[str, str | int | float | bool | None]] = PydanticField(
        description="Runs, with the columns of training_measurements.csv; measured columns and notes are never read.",
        min_length=1,
        max_length=MAX_ROWS,
        fail_fast=True,
        examples=[[{"id": "a", "layers": 32, "hidden": 4096, "heads": 32, "seq": 4096, "gpu": "h100-sxm-80gb"}]],
    )


class MeasuredRun(_Body):
    """A measured run: the columns of training_measurements.csv."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, str | int | float | bool | None]

    id: str = PydanticField(
        description="Names the run among those of the key.", min_length=1, max_length=MAX_ID, pattern="^[ -~]+$"
    )


class MeasurementsBody(_Body):
    """Measured runs."""

    rows: list[MeasuredRun] = PydanticField(
        description="Runs, with the columns of training_measurements.csv and a metric: metric_step_s, "
        "metric_tokens_per_s_per_gpu, metric_tflops_per_gpu (with flops_convention) or metric_mfu.",
        min_length=1,
        max_length=MAX_ROWS,
        fail_fast=True,
    )


BODIES: dict[str, type[BaseModel]] = {
    "plans": PlansBody,
    "explain": ExplainBody,
    "timeline": TimelineBody,
    "export": ExportBody,
    "scaling": ScalingBody,
    "budget": BudgetBody,
    "check": CheckBody,
    "convert": ConvertBody,
    "diagnose": DiagnoseBody,
    "predict": PredictBody,
    "deployments": DeploymentsBody,
    "post-training": PostTrainingBody,
    "model": ModelBody,
}
"""Of the questions that are answered at once, by the last part of their path."""


class BatchQuestion(_Body):
    """One question of a batch."""

    kind: Literal[tuple(BODIES)] = PydanticField(description="Which: the last part of its own path.")  # type: ignore[valid-type]
    question: dict[str, Any] = PydanticField(description="The body that its own path takes.")


class BatchBody(_Body):
    """Questions to be answered in order."""

    questions: list[BatchQuestion] = PydanticField(
        description="The questions.", min_length=1, max_length=MAX_QUESTIONS, fail_fast=True
    )


def read_body(raw: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    """The checked body as a plain dict. Raises RefusedError."""
    try:
        data = json.loads(raw, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        raise RefusedError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise RefusedError(400, f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise RefusedError(400, "the body must be a JSON object")
    if _is_deep(data):
        raise RefusedError(400, f"the JSON is nested more than {MAX_DEPTH} levels deep")
    _refuse_sizes(data, kind)
    try:
        checked = kind.model_validate(data)
    except ValidationError as error:
        raise _body_error(error, kind) from None
    return checked.model_dump()


def _refuse_sizes(data: dict[str, Any], kind: type[BaseModel]) -> None:
    """Raises RefusedError, before pydantic looks at each value and keeps each error."""
    for name, value in data.items():
        field = kind.model_fields.get(name)
        if field is None:
            raise RefusedError(400, f"unknown field {name[:80]!r}", **unknown_field(name, list(kind.model_fields)))
        most = next((one.max_length for one in field.metadata if isinstance(one, MaxLen)), None)
        if most is not None and isinstance(value, list | dict) and len(value) > most:
            raise RefusedError(400, f"{name}: {len(value):,} entries are given, at most {most:,} are taken", field=name)
        if isinstance(value, list) and any(isinstance(row, dict) and len(row) > MAX_COLUMNS for row in value):
            raise RefusedError(400, f"{name}: an entry has more than {MAX_COLUMNS} keys", field=name)


def _is_deep(data: object) -> bool:
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        inner = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def read_search(raw: bytes) -> dict[str, Any]:
    """The body of a search; what says how to measure only where it measures. Raises RefusedError."""
    found = read_body(raw, SearchBody)
    if found["profile"]:
        return found
    for name in field_names(tuple(field for field in fields.PROFILE if field.remote)):
        if found.pop(name) != SearchBody.model_fields[name].default:
            raise RefusedError(422, f"{name} is for a search that measures: say profile too, or leave it out", field=name)
    return found


READERS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    **{name: partial(read_body, kind=kind) for name, kind in BODIES.items()},
    "search": read_search,
    "measurements": partial(read_body, kind=MeasurementsBody),
    "batch": partial(read_body, kind=BatchBody),
}
"""What checks a body, by name: they may be many, and are then checked in a process of their own."""


def asked(body: dict[str, Any]) -> dict[str, Any]:
    """Of a search's body what is not as it would be if it were left out."""
    plain = {name: field.get_default(call_default_factory=True) for name, field in SearchBody.model_fields.items()}
    return {name: value for name, value in body.items() if value is not None and value != plain.get(name)}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _allowed(annotation: Any) -> list[str]:
    """The values of a field; none of a list's entries."""
    found = (one for one in (annotation, *get_args(annotation)) if get_origin(one) is Literal)
    return list(get_args(next(found, None)))


_TAGS = frozenset({"str", "int", "float", "bool"})
"""What pydantic says of a union's member in the path of an error, beside such as `list[int]`."""


def _body_error(error: ValidationError, kind: type[BaseModel]) -> RefusedError:
    first = error.errors(include_url=False, include_context=True)[0]
    path = [str(part) for part in first["loc"]]
    field = path[0] if path else ""
    where = ".".join(part for part in path if part not in _TAGS and part.replace("_", "").isalnum()) or field
    more = {}
    if first["type"] == "literal_error" and (allowed := _allowed(kind.model_fields[field].annotation)):
        more = wrong_value(first["input"], allowed)
    elif first["type"] == "value_error":  # of a reader, which names the field
        return RefusedError(400, str(first["ctx"]["error"]), field=field[:80])
    return RefusedError(400, f"{where}: {first['msg']}", field=field[:80], **more)
