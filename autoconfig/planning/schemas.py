"""The published JSON Schemas of answers and files (`autoconfig/schemas/`, written by `python -m tools.schemas`)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def schema(name: str) -> dict[str, Any]:
    """The published JSON Schema of an answer: `search`, `explain`, `timeline`, ..."""
    text = (resources.files("autoconfig") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded
