"""Programs around Hugging Face's Trainer and their words for its settings: data/trainers.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class TrainerWords:
    """One program."""

    source: str
    """Where it declares its settings, with its release."""
    file: str
    """Name under which its file is written."""
    words: Mapping[str, str]
    """TRL's word for a setting -> the program's own."""
    harmless: str = ""
    """Pattern of further keys that change neither memory nor time of a step."""


@cache
def words_of_trainer(name: str) -> TrainerWords:
    """The program of that name."""
    table = tomllib.loads((resources.files("autoconfig") / "data" / "trainers.toml").read_text(encoding="utf-8"))
    return TrainerWords(**table[name])
