"""`python -m tools.schemas`: writes the published JSON Schemas from the records that are written as JSON.

One line a definition. Answers are as they are written, every field there; files are as they may be read, fields with defaults
left out. pydantic makes the schemas; what it says beside the contract (titles, defaults) is left out.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoconfig.specs.job import Job
from autoconfig.specs.measurement import Measurement
from autoconfig.specs.plan import TrainPlan
from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import core_schema

from autoconfig.engines.convert import ConvertedStartJson
from autoconfig.megatron.export import ADDED_LATER, PlanFileJson
from autoconfig.post_training.answer_json import RlJson
from autoconfig.render.check import CheckJson, ConvertedJson
from autoconfig.render.core import EmulateJson, TraceJson
from autoconfig.render.diagnosis.record import DiagnosisJson
from autoconfig.render.listings import ModelCountJson
from autoconfig.render.sizing.budget import BudgetJson
from autoconfig.render.sizing.scaling import ScalingJson
from autoconfig.render.start_json import StartJson
from autoconfig.render.training_json import ExplanationJson, SearchJson, TimelineJson
from autoconfig.render.validation import ValidationJson
from autoconfig.serving.deployment_json import ServeJson

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "autoconfig" / "schemas"
ANSWERS: dict[str, tuple[str, Any]] = {
    "budget": ("autoconfig budget --json", BudgetJson),
    "check": ("autoconfig check --json", CheckJson),
    "convert": ("autoconfig convert --json", ConvertedJson),
    "diagnose": ("autoconfig diagnose --json", DiagnosisJson),
    "emulate": ("autoconfig emulate --json", EmulateJson),
    "explain": ("autoconfig explain --json", ExplanationJson),
    "model": ("autoconfig model --json", ModelCountJson),
    "rl": ("autoconfig rl --json", RlJson),
    "scaling": ("autoconfig scaling --json", ScalingJson),
    "search": ("autoconfig search --json", SearchJson),
    "serve": ("autoconfig deployments --json", ServeJson),
    "convert-start": ("autoconfig convert --json of a serving start", ConvertedStartJson),
    "start": ("autoconfig check --json of a serving start", StartJson),
    "timeline": ("autoconfig: the pipeline timeline of one plan", TimelineJson),
    "trace": ("autoconfig trace --json", TraceJson),
    "validate": ("autoconfig validate --json", ValidationJson),
}
FILES: dict[Path, tuple[str, Any]] = {
    PUBLISHED / "plan.schema.json": ("plan.json", PlanFileJson),
    ROOT / "specs/schemas/job.schema.json": ("job.json of python -m autoconfig.trainer", Job),
    ROOT / "specs/schemas/measurement.schema.json": ("result.json of python -m autoconfig.trainer", Measurement),
}
CONFIG = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)
TYPES_ONLY = ("enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
"""Left out where a file is read: there Numerics refuses its values itself, in its own words."""


class Generator(GenerateJsonSchema):
    """pydantic's schemas in this project's form."""

    def sort(self, value: dict[str, Any], parent_key: str | None = None) -> dict[str, Any]:
        """As made, not by the alphabet: validators name the first keyword that is broken, and that is to be the type."""
        return value

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        kind: Any = schema["cls"]
        if kind is TrainPlan:
            return {"type": "string", "description": "A plan in its short form."}
        made = super().dataclass_schema(schema)
        hidden = {field.name for field in dataclasses.fields(kind) if not field.compare}
        descriptions = _docstrings(kind)
        fields = {name: one for name, one in made["properties"].items() if name not in hidden}
        made["properties"] = {name.rstrip("_"): _plain(one) | descriptions.get(name, {}) for name, one in fields.items()}
        made["required"] = [name.rstrip("_") for name in made.get("required", ()) if name not in hidden]
        return {
            key: made[key] for key in ("type", "description", "properties", "required", "additionalProperties") if key in made
        }

    def nullable_schema(self, schema: core_schema.NullableSchema) -> dict[str, Any]:
        inner = self.generate_inner(schema["schema"])
        if not isinstance(inner.get("type"), str) or inner["type"] in ("array", "object"):
            return {"anyOf": [{"type": "null"}, inner]}
        enum = {"enum": [*inner["enum"], None]} if "enum" in inner else {}
        return {**inner, "type": [inner["type"], "null"], **enum}


def _plain(schema: dict[str, Any], *, item: bool = False) -> dict[str, Any]:
    """Schema without what a field's name and its allowed values say."""
    plain = {key: value for key, value in schema.items() if key not in ("title", "default")}
    if "const" in plain or ("enum" in plain and (item or plain.get("type") == "string")):
        plain.pop("type", None)
    if isinstance(plain.get("items"), dict):
        plain["items"] = _plain(plain["items"], item=True)
    if "anyOf" in plain:
        plain["anyOf"] = [_plain(one) for one in plain["anyOf"]]
    return plain


def _docstrings(kind: type) -> dict[str, dict[str, str]]:
    """Field -> its docstring as a description, those of its bases too."""
    descriptions = {}
    for base in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    descriptions[name] = {"description": " ".join(said.split())}
    return descriptions


def published(kind: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    """The schema of a record, its definitions by class name, `Json` left out."""
    # a list of it, because a dataclass takes its configuration from what it stands in
    whole = TypeAdapter(list[kind], config=CONFIG).json_schema(schema_generator=Generator, mode=mode)
    named = json.loads(json.dumps(whole).replace('Json"', '"'))
    definitions = named.pop("$defs", {})
    top = named["items"]
    if "$ref" in top:
        top = definitions.pop(top["$ref"].rsplit("/", 1)[1])
    return {**top, "$defs": definitions} if definitions else top


def schemas() -> dict[Path, str]:
    """File -> text of every published schema."""
    texts = {}
    for name, (title, kind) in ANSWERS.items():
        texts[PUBLISHED / f"{name}.schema.json"] = _text(title, published(kind, "serialization"), name)
    for path, (title, kind) in FILES.items():
        made = published(kind, "validation")
        _as_read(made["$defs"], every_field=kind is PlanFileJson)
        if kind is PlanFileJson:
            made["required"] = list(made["properties"])
        else:
            made["properties"] = {"schema_version": {"const": 1}, **made["properties"]}
            made["required"] = ["schema_version", *made["required"]]
        texts[path] = _text(title, made, path.name.split(".")[0])
    return texts


def _as_read(definitions: dict[str, Any], *, every_field: bool) -> None:
    """A plan.json holds every field of its model and numerics, but for those that older files lack."""
    if every_field:
        for name in ("ModelSpec", "Numerics"):
            definitions[name]["required"] = [field for field in definitions[name]["properties"] if field not in ADDED_LATER]
        definitions["RopeScaling"]["required"] = ["type", "factor"]
    for field in definitions.get("Numerics", {"properties": {}})["properties"].values():
        if "enum" in field:
            field["type"] = "string"
        for keyword in TYPES_ONLY:
            field.pop(keyword, None)


def _text(title: str, made: dict[str, Any], name: str) -> str:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://megatron-autoconfig.invalid/schemas/{name}.schema.json",
        "title": title,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in {**head, **made}.items() if key != "$defs"]
    inner = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in made.get("$defs", {}).items()]
    if inner:
        lines.append('"$defs": {\n' + ",\n".join(inner) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")
