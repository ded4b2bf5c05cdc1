"""The fields of a file, by its map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoconfig.maps.table import FieldRow, KeyRule, Map, looked_up, matches, switches_on
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Remark


@dataclass(kw_only=True)
class Reading:
    """What a file says."""

    table: Map
    section: Section
    fields: dict[str, Any]
    """Field -> value; what neither the file nor the map says is absent."""
    assumed: list[Remark] = field(default_factory=list)
    not_modelled: list[Remark] = field(default_factory=list)

    def place(self, name: str) -> str:
        """Return where in the file the key of an entry stands."""
        return self.section.place(_path(self.section, self.table.entry(name).keys))


def read_fields(table: Map, section: Section, known: Mapping[str, Any] | None = None) -> Reading:
    """Return the fields of a section; `known`: those that the caller says in its place. Raises InputError, UnsupportedError."""
    reading = Reading(table=table, section=section, fields=dict(known or {}))
    early = [rule for rule in table.refused if not rule.when]
    _refuse_any(early, reading)
    for entry in table.entries:
        if entry.constant is None and entry.write != "only" and holds(entry.when, reading.fields):
            _read_entry(entry, reading)
    _refuse_any([rule for rule in table.refused if rule.when], reading)
    reading.not_modelled += remarks_of(table, section, reading.fields)
    return reading


def read_entry(entry: FieldRow, section: Section) -> Any:
    """Return the field of one entry; None where nothing says it. Raises InputError, UnsupportedError."""
    reading = Reading(table=Map(source="", entries=(entry,)), section=section, fields={})
    _read_entry(entry, reading)
    return reading.fields.get(entry.name)


def remarks_of(table: Map, section: Section, fields: Mapping[str, Any] | None = None) -> list[Remark]:
    """Return what of a section matters and no formula reads."""
    fields = fields or {}
    return [
        Remark(
            rule.field or key,
            section.flat.get(key) if rule.shown else None,
            rule.why if key else rule.why.format_map(fields),
            rule.effect,
        )
        for rule in table.not_modelled
        for key in rule.keys or ("",)
        if holds(rule.when, fields) and (not key or is_said(section, key, rule))
    ]


def holds(when: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Return whether the fields have the values that a condition names."""
    return all(_holds(wanted, fields.get(name)) for name, wanted in when.items())


def _holds(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and wanted.startswith("> "):
        return value is not None and bool(value > float(wanted[2:]))
    return value in (wanted if isinstance(wanted, list) else [wanted])


def is_said(section: Section, key: str, rule: KeyRule) -> bool:
    """Return whether the key, or any below it, has a value that the rule is about."""
    there = [path for path in section.flat if path == key or path.startswith(f"{key}.")]
    section.used.update(there)
    return any([rule.holds(section.flat[path]) and rule.holds(section.get(path)) for path in there])


def _refuse_any(rules: Iterable[KeyRule], reading: Reading) -> None:
    """Raises what the first rule that holds says."""
    section = reading.section
    pairs = [(rule, key) for rule in rules for key in rule.keys if holds(rule.when, reading.fields)]
    for rule, key in pairs:
        if is_said(section, key, rule):
            text = rule.says or f"{{place}} is {{value}}: {rule.why}"
            raise (InputError if rule.error else UnsupportedError)(_filled(text, section, key, section.get(key)))


def _filled(text: str, section: Section, key: str, value: object) -> str:
    return text.replace("{place}", section.place(key)).replace("{key}", key).replace("{value}", str(value)[:40])


def _read_entry(entry: FieldRow, reading: Reading) -> None:
    section, fields = reading.section, reading.fields
    value = fields.get(entry.name)
    if value is not None:
        section.used.update(name for key in entry.keys for name in key.split("|"))
    elif entry.keys:
        value = _joined(entry, section) if entry.joined else _value(entry, section)
    if value is None and entry.needed:
        raise InputError(needed_text(entry))
    if value is None:
        value = fields.get(entry.same_as)
    if value is None and entry.default is not None:
        value = entry.default
        if entry.assumed:
            reading.assumed.append(Remark(entry.keys[0], value, entry.assumed))
    if value is not None:
        fields |= {entry.name: value, **(_meaning(entry, section, value) if entry.values else {})}


def needed_text(entry: FieldRow) -> str:
    """Return what is missing, and how to say it."""
    if not entry.keys or ("*" in entry.errors and not entry.values):
        return entry.errors["*"]
    return f"{entry.keys[0]} is not in the file: add it, or say --set {entry.keys[0]}=N"


def _value(entry: FieldRow, section: Section) -> Any:
    """Return the value of an entry's keys. Raises InputError for one of another type."""
    path = _path(section, entry.keys)
    section.used.add(path)
    if matches(entry.open, str(section.flat.get(path)).lower()):
        return None
    if entry.type == "on":
        return any([switches_on(section.get(key)) for key in entry.keys])
    if entry.type == "flag":
        return None if section.get(path) is None else section.flag(path)
    if entry.type == "list":
        value = section.get(path)
        texts = value if isinstance(value, list) else [] if value is None else str(value).strip("[]").split(",")
        return [str(text).strip(" '\"") for text in texts] or None
    return getattr(section, entry.type)(path)


def _path(section: Section, keys: tuple[str, ...]) -> str:
    """Return the first key with a value; one that is left open counts where no other is there."""
    there = [key for key in keys if section.flat.get(key) not in (None, "None", {})]
    closed = [key for key in there if str(section.flat[key]).strip() not in section.open_words]
    return next(iter(closed or there or keys), "")


def _joined(entry: FieldRow, section: Section) -> str:
    """Return the words of all keys, the defaults where nothing is said."""
    words = []
    for keys, default in zip(entry.keys, entry.default, strict=True):
        names = tuple(keys.split("|"))
        path = _path(section, names)
        section.used.add(path)
        word = str(section.flat.get(path)).lower()
        if matches(entry.open, word):
            words.append(word)
        elif entry.type == "flag":
            words.append(str(section.flag(path, default=default)).lower())
        else:
            words.append(section.word(path) or str(default))
    return " ".join(words)


def _meaning(entry: FieldRow, section: Section, value: Any) -> dict[str, Any]:
    """Return the fields that a value says. Raises InputError, UnsupportedError."""
    word = str(value).lower() if isinstance(value, bool) else str(value)
    key = _path(section, entry.keys)
    meaning = entry.fields_of(word)
    if meaning is None and (text := looked_up(entry.unsupported, word)) is not None:
        raise UnsupportedError(_filled(text, section, key, word))
    if meaning is None and not entry.free:
        text = looked_up(entry.errors, word) or f"{{key}} {{value}}: use one of {', '.join(entry.values)}"
        raise InputError(_filled(text, section, key, word))
    return meaning or {}
