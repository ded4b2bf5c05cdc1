"""The files of the web page: what the service serves, and one file that holds them all for a report."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from autoconfig.specs.json_record import json_text

INDEX = "index.html"
REPORT = "report.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
REPORT_MODULES = ("dom", "format", "charts", "timeline", "plots", "views", "scaling", "deployments", "report")
"""ES modules of a report."""
MODULE = "page/"
"""How modules name each other in a report: relative names mean nothing in modules whose address holds their text."""


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
