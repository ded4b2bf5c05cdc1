"""YAML, JSON and TOML as plain values, loaded safely and within limits; and a section that remembers what was read of it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from autoconfig.planning.work import require_short, spend
from autoconfig.specs.errors import InputError

MAX_ALIASES = 200
MAX_DEPTH = 40
MAX_NODES = 50_000
MAX_BITS = 1_000
"""Of a whole number: Python takes the square of its digits to show one, and refuses from 4,300 digits on."""
_LONG_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fA-FxXob_.:]*")
"""YAML's also count in sixties, 1:30:00."""
_COMPUTED = re.compile(r"\$\{(multiply|divide_floor|divide_ceil):([^,]{1,100}),([^,]{1,100})\}")
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "multiply": lambda a, b: a * b,
    "divide_floor": lambda a, b: a // b,
    "divide_ceil": lambda a, b: -(-a // b),
}
"""Resolvers that NeMo-Framework-Launcher registers (launcher_scripts/main.py)."""
MAX_REFERENCES = 5
"""References to references."""
_INTERPOLATED = re.compile(r"\$\{([^${}]{0,200})\}")
_OPEN = re.compile(r"^\$\w+$|\$\{[^${}]{0,200}\}")
_DEFAULTED = re.compile(r"(?:oc\.env:)?([A-Za-z_]\w*)\s*[:,]-?(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?(?:oc\.env:)?([A-Za-z_]\w*)\}?")
Tree = Mapping[str, Any]


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader with an end to merged mappings."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_NODES:
            raise yaml.YAMLError("merged mappings are too large")


_Loader.yaml_implicit_resolvers = {
    sign: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for sign, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str) -> Any:
    """Return the values of a YAML document. Raises InputError for tags, aliases without end, depth, size, several documents."""
    require_short(text, "YAML file")
    spend(5 + len(text) / 8)
    depth, aliases = 0, 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            spend(10)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            aliases += isinstance(event, yaml.AliasEvent)
            if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_BITS and _LONG_NUMBER.fullmatch(event.value):
                raise InputError(f"line {event.start_mark.line + 1}: a number of more than {MAX_BITS:,} digits is not read")
            if getattr(event, "tag", None) not in (None, "!"):
                raise InputError(
                    f"line {event.start_mark.line + 1}: this YAML cannot be read: the tag {event.tag[:40]} is not taken"
                )
            if depth > MAX_DEPTH or aliases > MAX_ALIASES:
                raise InputError(
                    f"line {event.start_mark.line + 1}: a YAML file nested deeper than {MAX_DEPTH} or with more than "
                    f"{MAX_ALIASES} aliases is not read"
                )
        values = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{where}this YAML cannot be read: {error.problem or error.context or 'wrong syntax'}") from None
    except (yaml.YAMLError, ArithmeticError, ValueError, RecursionError, TypeError) as error:
        raise InputError(f"this YAML cannot be read: {str(error)[:120]}") from None
    return _bounded(values)


def load_json(text: str) -> Any:
    """Return the values of a JSON document. Raises InputError."""
    require_short(text, "JSON file")
    spend(5 + len(text) / 8)
    try:
        return _bounded(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {str(error)[:120]}") from None


def load_toml(text: str) -> Any:
    """Return the values of a TOML document. Raises InputError."""
    require_short(text, "TOML file")
    _spend_toml(text)
    try:
        return _bounded(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"this TOML cannot be read: {str(error)[:120]}") from None


def _spend_toml(text: str) -> None:
    """Return what tomllib takes: of a key with dots the square of their number, and for each line the depth of its table."""
    lines = text.split("\n")
    depth = max((line.count(".") for line in lines if line.lstrip().startswith("[")), default=0)
    spend(len(text) / 2 + len(lines) * (1 + depth / 2) + sum(line.count(".") ** 2 for line in lines) / 4)


def _bounded(values: Any) -> Any:
    """Return the values where they are few enough, however often an alias repeats them."""
    left, waiting = MAX_NODES, [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        left -= 1
        spend(1)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise InputError("a number of the file has more than 300 digits; write it as a run has it")
        if left < 0 or depth > MAX_DEPTH:
            raise InputError(
                f"the file holds more than {MAX_NODES:,} values, or nests deeper than {MAX_DEPTH}; give a smaller one"
            )
        if isinstance(value, dict):
            waiting += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            waiting += [(item, depth + 1) for item in value]
    return values


def leaves(values: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of everything that is no mapping."""
    for key, value in values.items():
        path = f"{before}{key}"
        spend(1 + len(path) / 8)
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


@dataclass(frozen=True)
class NotKnown:
    """A value that nothing in the file says, and why."""

    reason: str
    text: str = ""
    """As it is written, what is not known in the words of the file."""

    def __str__(self) -> str:
        return self.text


@dataclass
class Section:
    """Values of a file by dotted path; what was asked for is remembered."""

    values: Tree
    text: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """What the caller says instead of the file: `--set train_micro_batch_size_per_gpu=4`, or of `${NAME:default}` NAME=4."""
    used: set[str] = field(default_factory=set)
    open_words: frozenset[str] = frozenset({"???"})
    """Values that say that there is none yet."""
    prefix: str = ""
    """Where in the file the section stands."""
    own_words: dict[str, str] = field(default_factory=dict)
    """Path that is asked for -> the file's own word, where it is another one."""

    def __post_init__(self) -> None:
        self.flat = dict(leaves(self.values))
        for name, text in self.settings.items():
            spend(len(self.flat) / 2 + len(self.text) / 8)
            path = next((path for path in self.flat if name == path.lstrip("-") or f".{path}".endswith(f".{name}")), None)
            used = rf"\$(?:\{{(?:oc\.env:)?{re.escape(name)}\s*[:,}}]|{re.escape(name)}\b)"
            if path is not None or not re.search(used, self.text):
                self.flat[path or name] = load_yaml(text)

    def rename(self, words: Mapping[str, str]) -> None:
        """Return values of the file's own words under the paths that they are asked for by: path -> word."""
        for path, word in words.items():
            if word != path and word in self.flat and path not in self.flat:
                self.flat[path] = self.flat.pop(word)
                self.own_words[path] = word

    def has(self, *paths: str) -> bool:
        """Return whether one of these is there, be it a value or a mapping."""
        spend(len(paths) * len(self.flat) / 4)
        return any(path in self.flat or any(at.startswith(f"{path}.") for at in self.flat) for path in paths)

    def get(self, *paths: str) -> Any:
        """Return the first of these that is there and not null. Raises InputError where its value is not known."""
        for path in paths:
            self.used.add(path)
            value = self.flat.get(path)
            if value is not None and value != "None" and value != {}:
                return self._known(path, value)
        return None

    def _known(self, path: str, value: Any, depth: int = 0) -> Any:
        if isinstance(value, NotKnown):
            raise InputError(f"{path} is not known: {value.reason}")
        if not isinstance(value, str):
            return value
        text, further = value.strip(), depth < MAX_REFERENCES
        if further and (computed := _COMPUTED.fullmatch(text)):
            return self._computed(path, computed, depth)
        variable = _VARIABLE.fullmatch(text)
        if variable and variable[1] in self.settings:
            return load_yaml(self.settings[variable[1]])
        whole = _INTERPOLATED.fullmatch(text)
        if further and whole:
            if (other := self._referred(path, whole[1].strip())) is not None:
                return self._known(other, self.flat[other], depth + 1)
            if default := _DEFAULTED.fullmatch(whole[1].strip()):
                return load_yaml(self.settings.get(default[1], default[2]))
        text = _INTERPOLATED.sub(self._default, value)
        if whole or text.strip() in self.open_words or _OPEN.search(text.strip()):
            name = variable[1] if variable else path.lstrip("-")
            raise InputError(f"{self.place(path)} is {text.strip()[:60]!r}, which is not known: say --set {name}=VALUE")
        return text

    def _referred(self, path: str, name: str) -> str | None:
        """Return the path that a reference names: beside its own where it begins with a dot, else from the top."""
        beside = f"{path.rpartition('.')[0]}{name}".lstrip(".")
        paths = [beside] if name.startswith(".") else [name, name.removeprefix(f"{self.prefix}.")]
        return next((one for one in paths if one in self.flat), None)

    def _default(self, match: re.Match[str]) -> str:
        """Return for `${NAME:default}` inside a longer text what the caller says NAME is, else the default."""
        default = _DEFAULTED.fullmatch(match[1].strip())
        return self.settings.get(default[1], default[2]) if default else self.settings.get(match[1].strip(), match[0])

    def _computed(self, path: str, match: re.Match[str], depth: int) -> int:
        """Of two whole numbers, or references to such."""
        numbers: list[int] = []
        for text in (match[2], match[3]):
            number = str(self._known(path, text.strip(), depth + 1)).strip()
            if not re.fullmatch(r"[0-9]{1,15}", number):
                raise InputError(f"{self.place(path)} is {match[0][:60]!r}, and {number[:30]!r} is no whole number")
            numbers.append(int(number))
        if match[1] != "multiply" and not numbers[1]:
            raise InputError(f"{self.place(path)} is {match[0][:60]!r}: division by zero")
        return _OPERATIONS[match[1]](*numbers)

    def place(self, path: str) -> str:
        """Return `path (line N)`, where one line only has such a key; in the file's own words."""
        path = self.own_words.get(path, path)
        key = re.escape(path.rpartition(".")[2])
        spend(len(self.text) / 8)
        lines = [
            number
            for number, line in enumerate(self.text.splitlines(), 1)
            if re.match(rf"[\s\[{{,\-]*[\"']?{key}[\"']?\s*[:=]", line)
        ]
        return f"{path} (line {lines[0]})" if len(lines) == 1 else path

    def whole(self, *paths: str) -> int | None:
        """Return a whole number. Raises InputError for anything else."""
        value = self.get(*paths)
        if value is None:
            return None
        text = str(value).replace("_", "").strip()
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]{1,15}(\.0+)?", text):
            hint = f": say --set {paths[0].lstrip('-')}=N" if re.fullmatch(r"[A-Z$<{][^0-9]*", text) else ""
            raise InputError(f"{self._of(paths)} is {str(value)[:40]!r}; a whole number is wanted{hint}")
        return int(float(text))

    def count(self, *paths: str) -> int | None:
        """Return a whole number of at least 1."""
        value = self.whole(*paths)
        if value is not None and value < 1:
            raise InputError(f"{self._of(paths)} is {value}; it must be at least 1")
        return value

    def number(self, *paths: str) -> float | None:
        value = self.get(*paths)
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool | list) else float("nan")
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < 1e18:
            raise InputError(f"{self._of(paths)} is {str(value)[:40]!r}; a number is wanted")
        return number

    def flag(self, *paths: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(*paths)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return value.lower() in ("true", "yes", "on", "1")
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise InputError(f"{self._of(paths)} is {str(value)[:40]!r}; true or false is wanted")
        return bool(value)

    def word(self, *paths: str) -> str | None:
        """Return a text."""
        value = self.get(*paths)
        if value is None:
            return None
        if isinstance(value, dict | list):
            raise InputError(f"{self._of(paths)} is {str(value)[:40]!r}; a word is wanted")
        return str(value).strip()

    def _of(self, paths: tuple[str, ...]) -> str:
        return self.place(next((path for path in paths if self.flat.get(path) is not None), paths[0]))

    def unused(self) -> tuple[str, ...]:
        """Return the paths that nothing read."""
        return tuple(path for path in self.flat if path not in self.used)
