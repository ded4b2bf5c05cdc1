"""The files of the web page: what the service serves, and one file that holds them all for a report."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from autoconfig.specs.json_record import json_text

INDEX = "index.html"
REPORT = "report.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
REPORT_MODULES = ("dom", "format", "charts", "timeline", "plots", "views", "scaling", "deployments", "report")
"""ES modules of a report, each after those that it imports."""

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([a-z]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def served_names() -> list[str]:
    """Files under /page/: styles and modules."""
    folder = resources.files("autoconfig") / "page"
    return sorted(file.name for file in folder.iterdir() if file.name.endswith((".css", ".js")) and file.name != "report.js")


@cache
def page_text(name: str) -> str:
    """One file of the page."""
    return (resources.files("autoconfig") / "page" / name).read_text(encoding="utf-8")


def media_type(name: str) -> str:
    """Of a file of the page."""
    return TYPES[name[name.rindex(".") :]]


def one_file(title: str, data: dict[str, Any]) -> str:
    """The page of a report: styles, scripts and data inside, nothing from elsewhere. Its content policy allows just these."""
    style, script = page_text("style.css"), _one_script()
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"
    parts = {"POLICY": policy, "TITLE": escape(title), "STYLE": style, "SCRIPT": script, "DATA": in_script(data)}
    return re.sub("@@([A-Z]+)@@", lambda match: parts[match[1]], page_text(REPORT))


def in_script(data: dict[str, Any]) -> str:
    """JSON that no text in it can end or open a script with."""
    return json_text(data, indent=None).replace("<", "\\u003c")


@cache
def _one_script() -> str:
    """The modules as functions that give what they export: a file opened from disk cannot import."""
    return "\n".join(_wrapped(name) for name in REPORT_MODULES)


def _wrapped(name: str) -> str:
    text = _IMPORT.sub(lambda match: f"const {match[1]} = {match[2]}_module;\n", page_text(f"{name}.js"))
    names = [match[2] for match in _EXPORT.finditer(text)]
    text = _EXPORT.sub(lambda match: match[1], text)
    return f"const {name}_module = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
