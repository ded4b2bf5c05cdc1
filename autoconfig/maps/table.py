"""A map: the keys of one program's files, with the fields that they say and the values that they may have, as a TOML table.

The engine knows no framework: who reads another kind of file writes a table, and code only for what the table cannot say.

    source = "where the keys are declared, with the release"
    harmless = ["logging.*"]           # patterns of keys that change nothing; keys beside all others are unknown

    [fields.micro_batch]               # a field, or a word of the map's own that later entries and code go by
    keys = ["train.micro_batch", "micro_batch_size"]   # the first that is there counts; the first one is written
    type = "count"                     # whole, count (at least 1), number, flag, word (the default), list; on: one of its keys
                                       # has another value than those of NOTHING
    needed = true                      # an error names what is missing; or: default = 1

    [fields.checkpointing]
    keys = ["train.checkpoint", "train.option"]
    joined = true                      # a word of every key, with a space between: "selective op"
    default = ["none", "op"]
    values = { "none *" = { recompute = "none" }, "full *" = { recompute = "full:uniform:1" } }   # or one value, of this field
    errors = { "block *" = "{place} is {value}: ..." }                 # InputError
    unsupported = { "*" = "{place} is {value}: read are none, full" }  # UnsupportedError
    open = ["auto", "$*"]              # patterns of words that count as absent; of joined keys: of words of the table
    free = true                        # a word that the table does not hold stands for itself
    when = { stage = [1, 2], pp = "> 1" }   # read and written only where earlier fields have these values
    assumed = "why, where nothing is said"
    same_as = "seq_length"             # the earlier field whose value it has where nothing is said
    write = "always"                   # or "unusual": where it is not the default; "only": and never read; else only read
    otherwise = "never"                # the word that is written where no value holds

    [fields.overlap]
    keys = ["zero.overlap"]
    constant = true                    # written as it stands

    [[section]]                        # more fields, in the order of the table: keys below one path, under one condition
    at = "actor.megatron"              # or several, of which the first one is written: ["parallelism", "experimental"]
    when = { back_end = "megatron" }
    [section.fields]
    tp = { keys = ["tensor_model_parallel_size"], type = "count" }

    [[refused]]                        # UnsupportedError; error = true: InputError
    keys = ["zero.mics"]
    usual = ["-1"]                     # values beside NOTHING that change nothing; or only = [...]: the ones that do
    says = "{key} {value}: ..."

    [[not_modelled]]                   # a remark
    keys = ["zero.zenflow"]
    effect = "time"                    # of autoconfig.specs.remarks.Effect
    why = "weights are updated on the CPU: less time"   # of a rule without keys, which `when` decides, with {field}s in it;
                                       # or one for each key: why."zero.zenflow" = "..."

A condition names fields of the map, or words that code says: `of_code = ["alone"]`; any other name is an error.
Words are compared in small letters, and may hold `*` and `?` as in names of files.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.remarks import Effect

SLIP = 0.88
"""Likeness (difflib) from which on a name is taken for a slip of another: a letter or a dash more or less."""
SLIP_OF_FEW = 0.8
"""The same among the few keys of one section: two letters that change places, too."""
NOTHING = ("none", "false", "no", "off", "0", "0.0", "", "[]", "{}")
"""Values of a key that switch nothing on."""
TYPES = ("whole", "count", "number", "flag", "word", "list", "on")
WAYS = ("", "always", "unusual", "only")


@dataclass(frozen=True, kw_only=True)
class FieldRow:
    """A field with its keys."""

    name: str
    keys: tuple[str, ...] = ()
    type: str = "word"
    default: Any = None
    needed: bool = False
    joined: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    assumed: str = ""
    same_as: str = ""
    write: str = ""
    free: bool = False
    otherwise: Any = None
    constant: Any = None

    def __post_init__(self) -> None:
        if self.type not in TYPES or self.write not in WAYS:
            raise ValueError(f"{self.name}: type {self.type!r}, write {self.write!r}: use one of {TYPES}, {WAYS}")
        if "*" in self.values:
            raise ValueError(f"{self.name}: a value for every word makes certain what is not understood: name the words")

    def fields_of(self, word: str) -> dict[str, Any] | None:
        """Return the fields that a word says; None where the table does not hold it."""
        value = looked_up(self.values, word)
        if value is None:
            return None
        return dict(value) if isinstance(value, dict) else {self.name: value}

    def word_of(self, said: Mapping[str, Any]) -> str | None:
        """Return the word that says these fields; None where none does."""
        for word in self.values:
            wanted = {} if set("*?") & set(word) else self.fields_of(word)
            if wanted and all(said.get(name) == value for name, value in wanted.items()):
                return word
        return None


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    """Keys that are refused, or that matter and that no formula reads; without keys, what fields say together."""

    keys: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    says: str = ""
    why: str = ""
    effect: Effect = Effect.MEMORY_AND_TIME
    field: str = ""
    """What the remark is about, where it is not the key."""
    shown: bool = False
    """Whether the remark shows the value."""
    error: bool = False

    def holds(self, value: object) -> bool:
        """Return whether the rule is about this value."""
        word = str(value).lower()
        return matches(self.only, word) if self.only else switches_on(word) and word not in self.usual


@dataclass(frozen=True, kw_only=True)
class Map:
    """The table of one program's files."""

    source: str
    entries: tuple[FieldRow, ...]
    refused: tuple[KeyRule, ...] = ()
    not_modelled: tuple[KeyRule, ...] = ()
    harmless: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else the table says, for those who use it."""

    def changes_nothing(self, path: str) -> bool:
        """Return whether a key is known to change neither memory nor time; one that a pattern covers is none where it is a slip
        of a key beside it that the map reads or has a rule for."""
        if path in self.harmless or not matches(self.harmless, path):
            return path in self.harmless
        section, _, name = path.rpartition(".")
        rows = (self.entries, self.refused, self.not_modelled)
        keys = [key.rpartition(".") for kind in rows for row in kind for key in row.keys]
        beside = [key for place, _, key in keys if place == section]
        return name in beside or not difflib.get_close_matches(name[:60], beside, n=1, cutoff=SLIP_OF_FEW)

    def beside(self, other: Map) -> Map:
        """Return this map with the rules and the harmless keys of another one."""
        return replace(
            self,
            refused=(*other.refused, *self.refused),
            not_modelled=(*self.not_modelled, *other.not_modelled),
            harmless=(*self.harmless, *other.harmless),
        )

    def below(self, path: str) -> Map:
        """Return the part of the map whose keys stand below a path."""
        entries = (entry for entry in self.entries if all(key.startswith(f"{path}.") for key in entry.keys or ("",)))
        refused = (rule for rule in self.refused if all(key.startswith(f"{path}.") for key in rule.keys))
        return Map(source=self.source, entries=tuple(entries), refused=tuple(refused))

    def entry(self, name: str) -> FieldRow:
        """Return the entry of this name."""
        return next(entry for entry in self.entries if entry.name == name)


def matches(patterns: tuple[str, ...], word: str) -> bool:
    """Return whether one of the patterns holds for the word."""
    return any(fnmatchcase(word, pattern) for pattern in patterns)


def looked_up(table: Mapping[str, Any], word: str) -> Any:
    """Return what a table says of a word, else of the first pattern that holds for it; None: nothing."""
    lower = word.lower()
    exact = table.get(lower, table.get(word))
    if exact is not None:
        return exact
    return next((value for pattern, value in table.items() if fnmatchcase(lower, pattern.lower())), None)


def switches_on(value: object) -> bool:
    """Return whether a value of a key is none of those that switch nothing on."""
    return str(value).lower() not in NOTHING


def map_of(table: Mapping[str, Any]) -> Map:
    """Return the map of a table. Raises ValueError for keys that no map has, for one that takes any key or word for known, and
    for a condition on a field that nothing says."""
    more = dict(table)
    entries = _rows({"fields": more.pop("fields", {})})
    entries += [row for section in more.pop("section", ()) for row in _rows(section)]
    rules = {name: tuple(rule for row in more.pop(name, ()) for rule in _rules(row)) for name in ("refused", "not_modelled")}
    harmless = tuple(more.pop("harmless", ()))
    if "*" in harmless:
        raise ValueError("harmless: every key is none; a key that no table names is unknown")
    _check_conditions(entries, (*rules["refused"], *rules["not_modelled"]), more.get("of_code", ()))
    return Map(source=more.pop("source"), entries=tuple(entries), harmless=harmless, more=more, **rules)


def _rows(section: Mapping[str, Any]) -> list[FieldRow]:
    """Return the entries of a section, below its path and under its condition."""
    at, when = section.get("at", ""), section.get("when", {})
    before = [f"{path}." if path else "" for path in (at if isinstance(at, list) else [at])]
    rows = [FieldRow(name=name, **_tuples(FieldRow, row)) for name, row in section["fields"].items()]
    return [
        replace(row, keys=tuple(path + key for key in row.keys for path in before), when={**when, **row.when}) for row in rows
    ]


def _check_conditions(entries: Iterable[FieldRow], rules: Iterable[KeyRule], of_code: Iterable[str]) -> None:
    """Raises ValueError for a name in a condition that no entry says, of one that is read no earlier entry, and no code."""
    names, later = set(of_code), [(", ".join(rule.keys) or rule.why, set(rule.when)) for rule in rules]
    for entry in entries:
        condition = set(entry.when) | ({entry.same_as} if entry.same_as else set())
        if entry.constant is not None or entry.write == "only":
            later.append((entry.name, condition))
        elif odd := condition - names:
            raise ValueError(f"{entry.name}: {', '.join(sorted(odd))} is said by no field before it")
        names |= {entry.name, *(name for value in entry.values.values() if isinstance(value, dict) for name in value)}
    for place, condition in later:
        if odd := condition - names:
            raise ValueError(f"{place}: {', '.join(sorted(odd))} is said by no field")


@cache
def load_map(name: str) -> Map:
    """Return the map of this name in the package's data."""
    file = resources.files("autoconfig") / "data" / "maps" / f"{name}.toml"
    return map_of(tomllib.loads(file.read_text(encoding="utf-8")))


def _rules(row: Mapping[str, Any]) -> list[KeyRule]:
    """Return the rules of a row, one for each key where it says a reason for each."""
    if isinstance(row.get("why"), dict):
        return [rule for key, why in row["why"].items() for rule in _rules({**row, "keys": [key], "why": why})]
    effect = {"effect": Effect[row["effect"].upper()]} if "effect" in row else {}
    return [KeyRule(**{**_tuples(KeyRule, row), **effect})]


def _tuples(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with lists as tuples. Raises ValueError for names that are none of its fields."""
    if odd := set(row) - {one.name for one in fields(kind)}:
        raise ValueError(f"{', '.join(sorted(odd))}: no key of a {kind.__name__} of a map")
    return {name: tuple(value) if isinstance(value, list) and name != "default" else value for name, value in row.items()}
