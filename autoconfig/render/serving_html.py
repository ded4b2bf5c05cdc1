"""`search --inference --report`: the page's view of the deployments as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autoconfig.engines.export import export_texts
from autoconfig.render.page_files import one_file
from autoconfig.serving.answer import ServeAnswer
from autoconfig.serving.deployment_json import serve_json
from autoconfig.specs.files import write_atomically


def write_report(answer: ServeAnswer, path: Path, command: str) -> None:
    """Write the report of an answer (path checked by autoconfig.html_report.check_report_path). Raises FileError."""
    question = answer.question
    text = one_file(f"{question.model.name} served on {question.num_gpus:,} x {question.gpu.id}", report_data(answer, command))

    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def report_data(answer: ServeAnswer, command: str) -> dict[str, Any]:
    """What the file holds: the answer, the start scripts of its first deployment, and the command."""
    files = export_texts(answer.question, answer.reports[0]) if answer.reports else {}
    return {"serve": serve_json(answer), "files": files, "command": command}
