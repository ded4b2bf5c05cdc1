"""The files of the web page with the facts of its fields, and `search --report`: the page's views over one answer, as one
self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import cache
from html import escape
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from autoconfig.engines.export import export_texts as start_scripts
from autoconfig.formats.export import export_texts
from autoconfig.planning.request_fields import BUDGET, POST_TRAINING, QUESTION, SCALING, SEARCH, SERVING
from autoconfig.planning.resolve import Field, Fields
from autoconfig.post_training.frameworks import algorithm_names, framework_names
from autoconfig.render.sizing.scaling import ScalingJson, scaling_json
from autoconfig.render.training_json import explain_json, search_json, timeline_json
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.deployment_json import serve_json
from autoconfig.sizing.sizing import ScalingRequest, scale
from autoconfig.specs.errors import AutoconfigError, InputError
from autoconfig.specs.files import check_output_path, write_text
from autoconfig.specs.json_record import json_text, to_json
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.run_settings import GRAPH_SCOPES
from autoconfig.specs.software.engine import engine_names
from autoconfig.specs.software.software import software_names
from autoconfig.training.answer import SearchAnswer, explain_plan

INDEX = "index.html"
REPORT = "report.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
REPORT_MODULES = ("dom", "format", "charts", "timeline", "plots", "sentences", "views", "scaling", "deployments", "report")
MODULE = "page/"
"""How modules name each other in a report: relative names mean nothing in modules whose address holds their text."""


def served_names() -> list[str]:
    """Files under /page/: styles and modules."""
    folder = resources.files("autoconfig") / "page"
    return sorted(file.name for file in folder.iterdir() if file.name.endswith((".css", ".js")) and file.name != "report.js")


@cache
def page_text(name: str) -> str:
    """One file of the page; `@@FIELDS@@` in it stands for what its form knows of the fields."""
    text = (resources.files("autoconfig") / "page" / name).read_text(encoding="utf-8")
    return text.replace("@@FIELDS@@", in_script(form_fields())) if name == INDEX else text


ASKED: dict[str, Fields] = {
    **{"plans": (*QUESTION, *SEARCH), "explain": QUESTION, "scaling": SCALING, "budget": BUDGET},
    **{"deployments": SERVING, "post-training": POST_TRAINING},
}
"""Fields of the questions that the form asks, by the last part of their path."""
LISTED: dict[str, Callable[[], list[str]]] = {
    **{"software": software_names, "engine": engine_names, "algorithm": algorithm_names, "framework": framework_names},
    "cuda_graphs": lambda: ["none", *GRAPH_SCOPES],
}
"""Fields whose values a catalogue has."""
KINDS = {int: "count", float: "number", bool: "switch"}


def form_fields() -> dict[str, dict[str, Any]]:
    """What the form knows of the fields of each question: kind, choices, default and help."""
    return {path: {field.name: _facts(field) for field in group if field.remote} for path, group in ASKED.items()}


def _facts(field: Field) -> dict[str, Any]:
    choices = field.choices or (LISTED[field.name]() if field.name in LISTED else ())
    kind = "list" if field.many else "measure" if field.parse else KINDS.get(field.type, "text")
    return {"kind": kind, "choices": [*choices], "usual": field.default or None, "help": field.help.split("  [")[0]}


def media_type(name: str) -> str:
    """Of a file of the page."""
    return TYPES[name[name.rindex(".") :]]


def one_file(title: str, data: dict[str, Any]) -> str:
    """The page of a report: styles, scripts and data inside, nothing from elsewhere.

    Its content policy runs only scripts with the file's nonce, and what these import. The nonce is a hash of the data, so no
    text in the data can hold it.
    """
    style, text = page_text("style.css"), in_script(data)
    nonce = _hash(title + text)
    policy = f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'nonce-{nonce}'; img-src data:"
    parts = {"POLICY": policy, "TITLE": escape(title), "STYLE": style, "NONCE": nonce, "IMPORTS": _import_map(), "DATA": text}
    return "".join(parts[part] if number % 2 else part for number, part in enumerate(page_text(REPORT).split("@@")))


def in_script(data: dict[str, Any]) -> str:
    """JSON that no text in it can end or open a script with."""
    return json_text(data, indent=None).replace("<", "\\u003c")


@cache
def _import_map() -> str:
    """The modules as addresses that hold them: a file opened from disk cannot import others."""
    texts = {name: page_text(f"{name}.js").replace(' from "./', f' from "{MODULE}') for name in REPORT_MODULES}
    addresses = {
        f"{MODULE}{name}.js": f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
        for name, text in texts.items()
    }
    return json.dumps({"imports": addresses})


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


SUFFIXES = (".html",)
AROUND = (0.25, 0.5, 1, 2, 4)
"""GPU counts of the scaling view over those of the question."""

Progress = Callable[[str], None] | None


def check_report_path(path: Path) -> None:
    """Fail before the search, not after it. Raises FileError."""
    check_output_path(path, SUFFIXES)


def write_report(answer: SearchAnswer, path: Path, command: str, progress: Progress = None) -> None:
    """Write the report of an answer. Raises FileError."""
    cluster = answer.question.scenario.cluster
    title = f"{answer.question.scenario.model.name} on {cluster.num_gpus:,} x {cluster.gpu.id}"
    write_text(path, one_file(title, report_data(answer, command, progress)))


def write_serving_report(answer: ServeAnswer, path: Path, command: str) -> None:
    """The same of a serving answer, with the start scripts of its first deployment. Raises FileError."""
    question = answer.question
    files = start_scripts(question, answer.reports[0]) if answer.reports else {}
    title = f"{question.model.name} served on {question.num_gpus:,} x {question.gpu.id}"
    write_text(path, one_file(title, {"serve": serve_json(answer), "files": files, **_made(command)}))


def _made(command: str) -> dict[str, str]:
    """By what a report was made, and when."""
    return {"command": command, "date": date.today().isoformat(), "release": metadata.version("megatron-autoconfig")}


def report_data(answer: SearchAnswer, command: str, progress: Progress = None) -> dict[str, Any]:
    """What the file holds: the answer, details of every plan in it, the same job on fewer and more GPUs."""
    reports = [ranked.report for ranked in answer.plans] + list(answer.pareto)
    if answer.nearest_miss is not None:
        reports.append(answer.nearest_miss)
    plans = {str(report.plan): report.plan for report in reports}
    if progress is not None:
        progress(f"{len(plans)} plans")
    return {
        "search": search_json(answer),
        "plans": {short: _details(answer, plan) for short, plan in plans.items()},
        "scaling": _scaling(answer, progress),
        **_made(command),
    }


def _details(answer: SearchAnswer, plan: TrainPlan) -> dict[str, Any]:
    explanation = explain_plan(answer.question, plan)
    detail = to_json(explain_json(explanation))
    del detail["operators"]
    found: dict[str, Any] = {"detail": detail, "timeline": timeline_json(explanation)}
    try:
        found["files"] = export_texts(answer.question.scenario, plan, explanation.included.report, "megatron")
    except AutoconfigError as error:
        found["fileProblem"] = str(error)
    return found


def _scaling(answer: SearchAnswer, progress: Progress) -> ScalingJson | None:
    scenario = answer.question.scenario
    gpus, node = scenario.cluster.num_gpus, scenario.cluster.gpus_per_node
    wanted = {int(gpus * factor) for factor in AROUND}
    counts = tuple(sorted(n for n in wanted if n >= 1 and (n <= node or n % node == 0)))
    base = replace(answer.question.request, gpus=None, gpus_at_most=None, include=())
    try:
        return scaling_json(scale(ScalingRequest(base=base, gpu_counts=counts), progress))
    except InputError:
        return None
