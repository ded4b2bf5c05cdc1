"""A field of a request, declared once: the command line's option, the HTTP body's field and Python's keyword derive from it.

The declarations are in `planning.request_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoconfig.specs.errors import InputError, UnknownNameError, option

MAX_CHARACTERS = 20
"""Of a number that a message repeats."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a field takes, and how a message says so."""

    low: float
    high: float
    says: str = ""
    without_low: bool = False
    without_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.without_low else self.low <= value
        return above and (value < self.high if self.without_high else value <= self.high)

    def __str__(self) -> str:
        return self.says or f"use {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Field:
    """One thing that a question may say."""

    name: str
    """With underscores; the option is `--name-with-dashes`."""
    help: str
    type: type = str
    default: Any = None
    choices: tuple[str, ...] = ()
    bounds: Bounds | None = None
    range: tuple[int, int | None] | None = None
    """Lowest and highest value, where the command line refuses others by itself."""
    many: bool = False
    """It may be given several times."""
    negative: str = ""
    """Of a switch: the option that turns it off, without dashes in front."""
    parse: Callable[[str | float], float] | None = None
    """Reads a number that may have a unit. Raises InputError or ValueError."""
    metavar: str | None = None
    shows_default: bool = True
    """In the help, where there is one."""
    required: bool = False
    """On the command line, which then refuses it by itself."""
    attribute: str = ""
    """The request's name for it, where it is another one."""
    printed: bool = False
    """It changes what is printed, not what is found."""
    remote: bool = True
    """A caller over the network may give it: it names no file, program or terminal of the machine that answers."""

    def value(self, given: Any) -> Any:
        """What a request holds: a number for a text with a unit, a tuple for several values. Raises InputError."""
        if self.many:
            return tuple(given or ())
        if self.parse is None or given is None:
            return given
        try:
            return self.parse(given)
        except ValueError as error:
            raise InputError(f"{option(self.name)}: {error}") from error


Fields = tuple[Field, ...]


def field_values(fields: Iterable[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was given the values of `fields`, by the request's names; what was not given has the field's default."""
    found = {}
    for field in fields:
        value = given.get(field.name)
        found[field.attribute or field.name] = field.value(field.default if value is None else value)
    return found


def check_bounds(fields: Iterable[Field], request: object) -> None:
    """Raises InputError where a number of a request lies outside its field's bounds (as not-a-number does)."""
    for field in fields:
        if field.bounds is not None:
            value = getattr(request, field.attribute or field.name)
            if value is not None and value not in field.bounds:
                raise InputError(f"{option(field.name)} {str(value)[:MAX_CHARACTERS]}: {field.bounds}")


def field_names(*groups: Fields) -> tuple[str, ...]:
    """The names of fields, in order."""
    return tuple(field.name for group in groups for field in group)


def check_names(given: Iterable[str], *groups: Fields) -> None:
    """Raises UnknownNameError for a name that no field has."""
    known = field_names(*groups)
    for name in given:
        if name not in known:
            raise UnknownNameError("field", name, known, field=name)
