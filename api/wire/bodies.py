"""Request bodies as pydantic models. Fields are the command line's long options with underscores, read off the commands
themselves, so that a new option is a new field. Values are checked by the application, as the command line's are."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, NoReturn

import click
from autoconfig.api.problems import unknown_field, wrong_value
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from autoconfig.cli.main import explain_command, search_command
from autoconfig.cli.megatron import check_command
from autoconfig.cli.scaling import scaling_command
from autoconfig.megatron.export import FORMATS

MOST_TEXTS = 64
MOST_DEPTH = 32
"""Levels of a body; a config.json has about five. Deep ones cannot be handed to another process."""
MOST_ROWS = 1_000
MOST_ID = 200
_Text = Annotated[str, Field(max_length=2_000)]
_Inline = dict[str, Any]

MODEL_HELP = "Catalogue name (`GET /v1/models`), a size such as `13b`, or the object of a Hugging Face config.json."
CLUSTER_HELP = "Other hardware, as an object: the keys of docs/examples/cluster.json."
NOT_ASKED_HERE = frozenset(
    {
        *("output", "export", "force", "as_json", "plot", "apply_to", "quiet", "gpu_table", "report", "even_if_too_large"),
        *("profile", "study", "resume", "budget", "storage", "folder", "device", "device_memory", "runner", "slurm"),
        *("partition", "account", "jobs", "job_timeout", "steps", "warmup_steps", "objective", "seed", "python"),
        *("save_calibration", "gpus_here"),
    }
)
"""Options of the command line that name files, programs, the terminal, or how this machine measures."""


PROFILE_FIELDS = (
    *("profile", "budget", "device", "device_memory", "job_timeout"),
    *("steps", "warmup_steps", "objective", "seed"),
)
"""Options of a profiling search that a caller may choose; folders, runners and programs are the worker's."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _fields(command: click.Command, leave_out: tuple[str, ...] = (), also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Pydantic fields of a command's options."""
    hidden = NOT_ASKED_HERE - {*also} | {*leave_out}
    fields: dict[str, Any] = {}
    for option in command.params:
        if not isinstance(option, click.Option) or option.name in hidden or option.hidden:
            continue
        name = max((text for text in option.opts if text.startswith("--")), key=len)[2:].replace("-", "_")
        if name == "model":
            fields[name] = (_Text | _Inline, Field(description=MODEL_HELP, examples=["175b"]))
        elif name == "cluster":
            fields[name] = (_Inline | None, Field(default=None, description=CLUSTER_HELP))
        else:
            fields[name] = _field(option)
    return fields


def _field(option: click.Option) -> tuple[Any, Any]:
    default = option.default if isinstance(option.default, str | int | float) and not option.multiple else None
    kind: Any
    if option.multiple:
        return list[_Text], Field(default_factory=list, max_length=MOST_TEXTS, description=option.help)
    if option.is_flag or option.secondary_opts:
        kind, default = bool, default if option.is_flag and isinstance(default, bool) and default else None
    elif isinstance(option.type, click.Choice):
        kind = Literal[tuple(option.type.choices)]
    elif option.type is click.INT:
        kind = int
    elif option.type is click.FLOAT:
        kind = float
    elif option.name == "tokens":
        kind = float | _Text
    else:
        kind = _Text
    description = (option.help or "").replace("`autoconfig gpus`", "`GET /v1/gpus`")
    if option.required:
        return kind, Field(description=description)
    return kind | None if default is None else kind, Field(default=default, description=description)


PlansBody = create_model("PlansBody", __base__=_Body, **_fields(search_command))
SearchBody = create_model(
    "SearchBody",
    __base__=_Body,
    **_fields(search_command, ("profile",), PROFILE_FIELDS[1:]),
    profile=(bool, Field(default=False, description="Measure the most promising plans with short jobs of a worker.")),
)
_explain_fields = _fields(explain_command, ("binds",))
_plan = (_Text, Field(description="A plan in its short form.", examples=["tp=8,pp=8,mbs=1,sp=1"]))
ExplainBody = create_model(
    "ExplainBody",
    __base__=_Body,
    plan=_plan,
    binds=(bool, Field(default=False, description="Also what more memory, bandwidth, compute or batch would buy.")),
    **_explain_fields,
)
TimelineBody = create_model("TimelineBody", __base__=_Body, plan=_plan, **_explain_fields)
_format: Any = (
    Literal[FORMATS],
    Field(default=FORMATS[0], description="megatron: launch scripts and plan.json; plan: plan.json."),
)
ExportBody = create_model(
    "ExportBody",
    __base__=_Body,
    plan=_plan,
    format=_format,
    **_explain_fields,
)
ScalingBody = create_model(
    "ScalingBody",
    __base__=_Body,
    gpus=(
        list[int] | _Text,
        Field(description="GPU counts: a list, or text such as `64:1024` (doubling) or `64:1024:64`.", examples=["64:1024"]),
    ),
    gpu=(list[_Text] | _Text | None, Field(default=None, description="One or more GPU types.", examples=[["h100-sxm-80gb"]])),
    **_fields(scaling_command, ("gpus", "gpu")),
)
CheckBody = create_model(
    "CheckBody",
    __base__=_Body,
    text=(
        Annotated[str, Field(max_length=1_000_000)],
        Field(
            description="A Megatron-LM launch script, an argument list or a plan.json. It is read, never run.",
            examples=["torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 ..."],
        ),
    ),
    settings=(
        dict[str, str],
        Field(default_factory=dict, description="Variables that the script does not set.", max_length=MOST_TEXTS),
    ),
    **{name: field for name, field in _fields(check_command, ("settings",)).items() if name not in ("model", "cluster", "set")},
    model=(_Text | None, Field(default=None, description="Catalogue name, instead of the script's model.")),
)


class PredictBody(_Body):
    """Runs to predict."""

    rows: list[dict[str, str | int | float | bool | None]] = Field(
        description="Runs, with the columns of training_measurements.csv; measured columns and notes are never read.",
        min_length=1,
        max_length=MOST_ROWS,
        examples=[[{"id": "a", "layers": 32, "hidden": 4096, "heads": 32, "seq": 4096, "gpu": "h100-sxm-80gb"}]],
    )


class MeasuredRun(_Body):
    """A measured run: the columns of training_measurements.csv."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, str | int | float | bool | None]

    id: str = Field(description="Names the run among those of the key.", min_length=1, max_length=MOST_ID, pattern="^[ -~]+$")


class MeasurementsBody(_Body):
    """Measured runs."""

    rows: list[MeasuredRun] = Field(
        description="Runs, with the columns of training_measurements.csv and a metric: metric_step_s, "
        "metric_tokens_per_s_per_gpu, metric_tflops_per_gpu (with flops_convention) or metric_mfu.",
        min_length=1,
        max_length=MOST_ROWS,
    )


class BodyError(Exception):
    """A body that is not what the endpoint's schema says. Questions that follow it and cannot be answered are 422 instead."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.more = status, detail, more


def read_body(raw: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    """The checked body as a plain dict. Raises BodyError."""
    try:
        data = json.loads(raw, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        raise BodyError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise BodyError(400, f"the body is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise BodyError(400, "the body must be a JSON object")
    if _is_deep(data):
        raise BodyError(400, f"the JSON is nested more than {MOST_DEPTH} levels deep")
    try:
        checked = kind.model_validate(data)
    except ValidationError as error:
        raise _body_error(error, kind) from None
    return checked.model_dump()


def _is_deep(data: object) -> bool:
    """Whether containers are nested in more than MOST_DEPTH levels."""
    level: list[Any] = [data]
    for _ in range(MOST_DEPTH):
        inner = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def read_search(raw: bytes) -> dict[str, Any]:
    """The body of a search; what says how to measure only where it measures. Raises BodyError."""
    found = read_body(raw, SearchBody)
    if found["profile"]:
        return found
    for name in PROFILE_FIELDS:
        if found.pop(name) != SearchBody.model_fields[name].default:
            raise BodyError(422, f"{name} is for a search that measures: say profile too, or leave it out", field=name)
    return found


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


_TAGS = frozenset({"str", "int", "float", "bool"})
"""What pydantic says of a union's member in the path of an error, beside such as `list[int]`."""


def _body_error(error: ValidationError, kind: type[BaseModel]) -> BodyError:
    first = error.errors(include_url=False, include_context=True)[0]
    path = [str(part) for part in first["loc"]]
    field = path[0] if path else ""
    if first["type"] == "extra_forbidden":
        more = unknown_field(field, list(kind.model_fields))
        return BodyError(400, f"unknown field {field[:80]!r}", **more)
    where = ".".join(part for part in path if part not in _TAGS and part.replace("_", "").isalnum()) or field
    more = {}
    if first["type"] == "literal_error":
        more = wrong_value(first["input"], re.findall("'([^']*)'", first["ctx"]["expected"]))
    return BodyError(400, f"{where}: {first['msg']}", field=field[:80], **more)
