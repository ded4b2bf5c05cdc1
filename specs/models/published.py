"""Published checkpoints by id: the model that their files hold, and the quantization_config of those that are quantised.

The table is specs/catalogue/published.json. An id is the maker's own (`Qwen/Qwen3-30B-A3B-FP8`), that of a publisher who keeps
the makers' names (`RedHatAI/...`), or has no publisher (`qwen3-30b-a3b-fp8`), which is read as the maker's where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "catalogue" / "published.json"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A checkpoint whose format is known by its id."""

    model: str
    """Canonical name of the catalogue's model."""
    recipe: str
    """How it is quantised: a key of `recipes`; empty: in 16 bits."""
    shape: tuple[tuple[str, int], ...] = ()
    """Fields of the model that are others in this checkpoint, such as a padded width."""

    @property
    def quantization_config(self) -> Mapping[str, Any]:
        """Of its config.json, names of modules shortened; empty in 16 bits."""
        found: Mapping[str, Any] = _table()["recipes"][self.recipe]["config"] if self.recipe else {}
        return found

    @property
    def source(self) -> str:
        """Where that is stated."""
        return str(_table()["recipes"][self.recipe]["source"]) if self.recipe else ""


def find_published(name: str, index: Mapping[str, str]) -> Published | None:
    """The checkpoint of a normalised name (model_catalogue); None where the table has no such id, or no such model stands in
    the `index` of spellings."""
    publisher, _, own = name.rpartition("/")
    for row in _table()["checkpoints"]:
        fits = not publisher or _matches(publisher, row["publisher"])
        for suffix in row["suffix"]:
            stem = own.removesuffix(suffix)
            known = own.endswith(suffix) and bool(suffix or publisher) and fits and _matches(stem, _names(row["name"]))
            if known and (model := _model(publisher, stem, index)):
                return Published(model=model, recipe=row["recipe"], shape=tuple(row.get("shape", {}).items()))
    model = _model(publisher, own, index) if publisher else ""
    return Published(model=model, recipe="") if model else None


def published_length(name: str) -> int | None:
    """max_position_embeddings of the checkpoint of a normalised name, where it is another than its model's."""
    own = name.rpartition("/")[2]
    rows = _table()["lengths"]
    return next((int(row["length"]) for row in rows if _matches(own, row["name"]) and not _matches(own, row["but"])), None)


def _model(publisher: str, stem: str, index: Mapping[str, str]) -> str:
    """The catalogue's model that `publisher` publishes as `stem`: its maker, or one who keeps the makers' names; else empty."""
    for spelling in (f"{publisher}/{stem}", stem):
        found = index.get(spelling)
        makes = not publisher or publisher in _table()["publishers"] or publisher in _makers(found or "", index)
        if found and makes:
            return found
    return ""


def _makers(model: str, index: Mapping[str, str]) -> Iterator[str]:
    """Publishers under whose name a spelling of the model stands."""
    return (spelling.partition("/")[0] for spelling, canonical in index.items() if canonical == model and "/" in spelling)


def _matches(text: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _names(patterns: list[str]) -> list[str]:
    plain: list[str] = _table()["plain"]
    return [one for pattern in patterns for one in (plain if pattern == "plain" else [pattern])]


@cache
def _table() -> dict[str, Any]:
    return dict(json.loads(TABLE.read_text(encoding="utf-8")))
