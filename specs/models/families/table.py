"""Families of Hugging Face by `model_type`: each a row of catalogue/families.toml, read into a function of a config.json."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.families import encoders, hybrids, rules, traits
from autoconfig.specs.models.families.traits import Fields

Family = Callable[[ConfigReader], Fields]
"""A file -> fields of ModelSpec. Raises InputError or UnsupportedError."""
_TABLE = tomllib.loads((Path(__file__).parents[2] / "catalogue" / "families.toml").read_text(encoding="utf-8"))
_MODULES = (traits, rules, encoders, hybrids)


def _function(name: str) -> Any:
    return next(getattr(module, name) for module in _MODULES if hasattr(module, name))


def _trait(word: str | Mapping[str, Any]) -> Any:
    """A row's word as a trait: fields, or a function of the file and the fields read so far."""
    if isinstance(word, str):
        return _TABLE["fields"].get(word) or _function(word)
    ((name, arguments),) = word.items()
    return arguments if name == "fields" else _function(name)(**arguments)


def _family(base: Callable[..., Fields], options: Mapping[str, Any], traits: list[Any]) -> Family:
    """What `base` reads with `options`, then each trait in turn."""

    def build(cfg: ConfigReader) -> Fields:
        fields = base(cfg, **options)
        for trait in traits:
            fields = fields | (trait if isinstance(trait, dict) else trait(cfg, fields))
        return fields

    return build


def _families(rows: Mapping[str, Any]) -> Iterator[tuple[str, Family]]:
    """Each `model_type` of a table with its family; a base is a row above, or a function."""
    built: dict[str, Family] = {}
    for name, row in rows.items():
        base = built.get(row["base"]) or _function(row["base"])
        built[name] = _family(base, row.get("with", {}), [_trait(word) for word in row.get("traits", ())])
        yield from ((one, built[name]) for one in (name, *row.get("also", ())))


ENCODERS = dict(_families(_TABLE["encoders"]))
"""Families with an encoder."""
FAMILIES = {**dict(_families(_TABLE["families"])), **ENCODERS}
