"""The flags of serving engines by release, and a start's words split into them.

`autoconfig/data/engine_flags.csv` holds the flags of the releases that were read (validation/distil/engine_flags.py): their
other names, number and type of values, first and last release; `engine_flag_roles.toml` what a flag means for plan, pool,
scheduler, weights and speed. Names are compared as the engines' parsers do: `_` is `-`, `--a=b` is `--a b`, `--no-a` of a
switch, a beginning that only one flag has, and vLLM's `--config.key value`, `-O3` and `-cc.key=value`.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.specs.errors import InputError

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}
LIKE = 0.72
"""Likeness (difflib) from which on a known flag is named beside one that is not."""
LIKE_IT = "; most like it: "
MAX_DOTS = 32
"""Names behind a flag, as in --compilation-config.pass_config.fuse_norm_quant; no release has more than three."""
_WHOLE = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Of human-readable numbers: vllm/utils/argparse_utils.py, human_readable_int."""
LEVELS = ("0", "1", "2", "3")
"""Behind vLLM's -O."""
_CLASSIC = {"--tp": "--tp-size", "--dp": "--dp-size", "--pp": "--pp-size", "--ep": "--ep-size"}
"""Beginnings that SGLang's users write, of several flags in its newer releases."""


@dataclass(frozen=True, kw_only=True)
class EngineFlag:
    """One row of the table."""

    engine: str
    flag: str
    aliases: tuple[str, ...]
    values: str
    """argparse's nargs: 0, 1, ?, +, *; bool: a switch that has --no-FLAG, too."""
    type: str
    first: str
    last: str

    @property
    def name(self) -> str:
        """Without dashes in front."""
        return self.flag.lstrip("-")


@dataclass(frozen=True, kw_only=True)
class FlagWord:
    """A word of a start command."""

    text: str
    unset: str = ""
    """The variables in it that nothing sets, or why it is not known."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """One setting: its value as the engine has it, and where it stands."""

    value: Any
    source: str
    """`--tensor-parallel-size 8`, or `kv_cache_config.dtype of x.yml`."""
    unset: str = ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A start's settings by the engine's own name."""

    engine: str
    said: Mapping[str, Said]
    positional: tuple[FlagWord, ...] = ()
    unknown: tuple[str, ...] = ()
    """Flags that no release has, and those of other releases, with what is most like them."""
    notes: tuple[str, ...] = field(default=())


@cache
def _rows() -> tuple[EngineFlag, ...]:
    text = (resources.files("autoconfig") / "data" / "engine_flags.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(EngineFlag(**{**row, "aliases": tuple(row["aliases"].split())}) for row in rows)  # type: ignore[arg-type]


@cache
def known_flags(engine: str) -> dict[str, EngineFlag]:
    """Every name of every flag of an engine, with dashes."""
    rows = [row for row in _rows() if row.engine == engine]
    found = {row.flag.replace("_", "-"): row for row in rows}
    for row in rows:
        for name in row.aliases:
            found.setdefault(name.replace("_", "-"), row)
    return found


@cache
def roles(engine: str) -> dict[str, str]:
    """Setting -> plan, pool, scheduler, weights or speed; those that are missing change nothing that is reckoned."""
    table = _roles()[engine]
    return {name: role for role, names in table.items() if isinstance(names, str) for name in names.split()}


@cache
def not_modelled(engine: str) -> dict[str, str]:
    """Setting -> what it changes that no formula reads."""
    return dict(_roles()[engine]["not_modelled"])


@cache
def yaml_settings() -> frozenset[str]:
    """Keys of TensorRT-LLM's YAML that are known."""
    table = _roles()["tensorrt-llm"]
    flags = (row.name for row in _rows() if row.engine == "tensorrt-llm")
    return frozenset({*roles("tensorrt-llm"), *not_modelled("tensorrt-llm"), *table["settings"]["harmless"].split(), *flags})


@cache
def _roles() -> dict[str, Any]:
    text = (resources.files("autoconfig") / "data" / "engine_flag_roles.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def release_key(release: str) -> tuple[int, ...]:
    """A release in order: 0.5.10 behind 0.5.9."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", release)[:3])


@cache
def releases_read(engine: str) -> tuple[str, ...]:
    """Releases whose flags were read, oldest first."""
    found = {release for row in _rows() if row.engine == engine for release in (row.first, row.last)}
    return tuple(sorted(found, key=release_key))


def of_another_release(flag: EngineFlag, release: str) -> str:
    """What is said of a flag that this release surely lacks; empty where it has it, or may have it."""
    if not release:
        return ""
    read = releases_read(flag.engine)
    asked, before, behind = release_key(release), read.index(flag.first) - 1, read.index(flag.last) + 1
    if before >= 0 and asked <= release_key(read[before]):
        return f"{flag.flag} is a flag of {NAMES[flag.engine]} after {read[before]}, and this is {release}"
    if behind < len(read) and asked >= release_key(read[behind]):
        return f"{flag.flag} is a flag of {NAMES[flag.engine]} up to {flag.last}, and this is {release}"
    return ""


def flag_of_older_releases(engine: str, names: Iterable[str]) -> str:
    """What is said of a start whose release nobody says, where one of its flags left the engine; empty where none did."""
    known = known_flags(engine)
    rows = [row for name in names if (row := known.get(f"--{name.replace('_', '-')}")) is not None]
    oldest = min(rows, key=lambda row: release_key(row.last), default=None)
    if oldest is None or oldest.last == releases_read(engine)[-1]:
        return ""
    return f"; but {oldest.flag} is a flag up to {oldest.last}: name the release"


def find(engine: str, name: str) -> EngineFlag | None:
    """The flag of a name as it is written; None where there is none, or several begin so."""
    known, name = known_flags(engine), name.replace("_", "-")
    if engine == "sglang":
        name = _CLASSIC.get(name, name)
    if name in known:
        return known[name]
    if engine == "tensorrt-llm" or len(name) < 4:
        return None  # click takes no beginnings
    found = {row.flag: row for key, row in known.items() if key.startswith(name)}
    sizes = [row for key, row in found.items() if key == f"{name}-size"]
    return next(iter(found.values())) if len(found) == 1 else sizes[0] if sizes else None


def unknown_flag(engine: str, name: str) -> str:
    """What is said of a flag that no release has: what is most like it."""
    known, plain = known_flags(engine), name.replace("_", "-")
    like = difflib.get_close_matches(plain, known, n=1, cutoff=LIKE) or [key for key in known if key.startswith(plain)][:1]
    hint = f"{LIKE_IT}{known[like[0]].flag}" if like else ""
    other = next((NAMES[one] for one in NAMES if one != engine and plain in known_flags(one)), "")
    hint += f" ({name} is a flag of {other})" if other else ""
    return f"{name[:60]} is no flag of {NAMES[engine]}{hint}"


def surely_refused(said: str) -> bool:
    """Whether what `unknown_flag` or `of_another_release` says is of a slip, or of a flag of another engine or release; else it
    may be one that came after the releases that were read."""
    return LIKE_IT in said or " is a flag of " in said or " is a setting of " in said


def whole(text: str) -> int:
    """A number like 8192, 32k (32,000) or 32K (32,768). Raises ValueError."""
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    value = float(match[1]) * _UNITS.get(match[2], 1)
    if not value.is_integer():  # infinity is none
        raise ValueError(text)
    return int(value)


def _typed(flag: EngineFlag, words: Sequence[FlagWord]) -> Any:
    """The value of a flag's words. Raises InputError where they are not of its type."""
    texts = [word.text for word in words]
    if flag.values in ("+", "*"):
        return texts
    text = texts[0]
    if any(word.unset for word in words):
        return text
    if text[:1] in "{[" and flag.type == "str":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{flag.flag} {text[:60]}: this is no JSON ({error}); quote it whole") from None
    if flag.name == "max-model-len" and text == "auto":
        return -1
    try:
        return whole(text) if flag.type == "int" else float(text) if flag.type == "float" else text
    except ValueError:
        kind = "whole number" if flag.type == "int" else "number"
        raise InputError(f"{flag.flag} {text[:40]!r}: a {kind} is needed") from None


def _merged(value: Any, path: Sequence[str], leaf: Any) -> Any:
    """A mapping with one more leaf."""
    inner = dict(value) if isinstance(value, dict) else {}
    head, *rest = path
    inner[head] = _merged(inner.get(head), rest, leaf) if rest else leaf
    return inner


def _is_flag(text: str) -> bool:
    return text.startswith("-") and text[1:2] not in ("", *"0123456789.")


def _until_flag(words: Sequence[FlagWord]) -> int:
    """How many words stand in front of the next flag."""
    return next((at for at, word in enumerate(words) if _is_flag(word.text)), len(words))


def _scalar(text: str) -> Any:
    """What vLLM makes of a value behind a dotted name."""
    low = text.lower()
    if low in ("true", "false"):
        return low == "true"
    try:
        return int(text)
    except ValueError:
        return text


@dataclass
class _Splitter:
    """Goes through the words of a start command."""

    engine: str
    release: str
    said: dict[str, Said] = field(default_factory=dict)
    positional: list[FlagWord] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def split(self, words: Sequence[FlagWord]) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if not _is_flag(word.text):
                self.positional.append(word)
                continue
            name, equals, joined = word.text.partition("=")
            if self.engine == "vllm" and (dotted := re.fullmatch(r"(-{1,2}[\w-]+)\.([\w.-]+)", name)):
                at += self._dotted(
                    dotted[1], dotted[2], [FlagWord(text=joined)] if equals else words[at : at + 1], joined=bool(equals)
                )
                continue
            if self.engine == "vllm" and word.text.startswith("-O") and word.text[2:].removeprefix(".") in LEVELS:
                self.said["optimization-level"] = Said(value=int(word.text[-1]), source=word.text)
                continue
            at += self._flag(name, [FlagWord(text=joined, unset=word.unset)] if equals else None, words[at:])

    def _flag(self, name: str, given: list[FlagWord] | None, rest: Sequence[FlagWord]) -> int:
        """Take one flag; how many words behind it are its own."""
        flag = find(self.engine, name)
        behind = _until_flag(rest)
        if flag is None and (switch := self._switched_off(name)) is not None:
            self._keep(switch, False, name)
            return 0
        if flag is None:
            self.unknown.append(unknown_flag(self.engine, name))
            return min(behind, 1)
        if other := of_another_release(flag, self.release):
            self.unknown.append(other)
        if flag.values in ("0", "bool"):
            self._keep(flag, True if given is None else given[0].text.lower() != "false", name)
            return 0
        taken = given if given is not None else list(rest[: behind if flag.values in ("+", "*") else min(behind, 1)])
        if not taken and flag.values not in ("*", "?"):
            raise InputError(f"{name}: a value is missing behind it")
        self._keep(flag, _typed(flag, taken) if taken else True, " ".join([name, *(word.text for word in taken)]), taken)
        return 0 if given is not None else len(taken)

    def _switched_off(self, name: str) -> EngineFlag | None:
        """The switch that `--no-NAME` turns off."""
        flag = find(self.engine, name.replace("--no-", "--", 1)) if name.startswith("--no-") else None
        return flag if flag is not None and flag.values == "bool" else None

    def _keep(self, flag: EngineFlag, value: Any, source: str, words: Sequence[FlagWord] = ()) -> None:
        before = self.said.get(flag.name)
        if isinstance(value, dict) and before is not None and isinstance(before.value, dict):
            value = {**before.value, **value}
        unset = next((word.unset for word in words if word.unset), "")
        self.said[flag.name] = Said(value=value, source=source if len(source) <= 120 else f"{source[:117]}...", unset=unset)

    def _dotted(self, name: str, path: str, given: Sequence[FlagWord], *, joined: bool) -> int:
        flag = find(self.engine, name)
        if flag is None:
            self.unknown.append(unknown_flag(self.engine, name))
            return 0 if joined else 1
        if not given:
            raise InputError(f"{name}.{path}: a value is missing behind it")
        before = self.said.get(flag.name)
        keys = path.replace("-", "_").split(".")
        if len(keys) > MAX_DOTS:
            raise InputError(f"{name}.{path[:40]}...: more than {MAX_DOTS} names one inside the other; write the flag as JSON")
        value = _merged(before.value if before else {}, keys, _scalar(given[0].text))
        self.said[flag.name] = Said(value=value, source=f"{name}.{path} {given[0].text}", unset=given[0].unset)
        return 0 if joined else 1


def split(engine: str, words: Sequence[FlagWord], release: str = "") -> Settings:
    """The settings of a start's words. Raises InputError for a value of another type, or one that is missing."""
    splitter = _Splitter(engine, release)
    splitter.split(words)
    return Settings(
        engine=engine,
        said=splitter.said,
        positional=tuple(splitter.positional),
        unknown=tuple(dict.fromkeys(splitter.unknown)),
    )


def of_yaml(engine: str, values: Mapping[str, Any], file: str, release: str = "") -> Settings:
    """The settings of the YAML that a start names: of vLLM and SGLang its flags, of TensorRT-LLM its LLM API's. Raises
    InputError."""
    if engine == "tensorrt-llm":
        return _llm_api(values, file, release)
    words: list[FlagWord] = []
    skipped = []
    for key, value in values.items():
        name = f"--{str(key).replace('_', '-')}"
        if value is True:
            words.append(FlagWord(text=name))
        elif value is False or value is None:
            skipped.append(f"{key}: {str(value).lower()} in {file} says nothing: the engine's default counts")
        else:
            several = value if isinstance(value, list) else [value]
            texts = [json.dumps(one) if isinstance(one, dict) else str(one) for one in several]
            words += [FlagWord(text=name), *(FlagWord(text=text, unset=_unset(text)) for text in texts)]
    found = split(engine, words, release)
    said = {name: Said(value=one.value, source=f"{name} of {file}", unset=one.unset) for name, one in found.said.items()}
    stray = [f"{word.text[:40]} in {file} belongs to no flag" for word in found.positional]
    return Settings(engine=engine, said=said, unknown=(*found.unknown, *stray), notes=tuple(skipped))


def variables_in(text: str) -> list[str]:
    """Names of the variables that a text names."""
    return re.findall(r"\$\{?([A-Za-z_]\w*)", text)


def _unset(text: str) -> str:
    return ", ".join(f"${name}" for name in variables_in(text))


ALIASES_OF_YAML = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
}


def _llm_api(values: Mapping[str, Any], file: str, release: str) -> Settings:
    said: dict[str, Said] = {}
    unknown: list[str] = []
    known = yaml_settings()
    tops = {name.partition(".")[0] for name in known}

    def keep(path: str, value: Any) -> None:
        top = path.partition(".")[0]
        if (of_other := _of_another_llm_api(path, file, release)) is not None:
            unknown.extend(filter(None, [of_other]))
        elif isinstance(value, Mapping) and path not in not_modelled("tensorrt-llm") and value:
            for key, inner in value.items():
                keep(f"{path}.{key}", inner)
            return
        elif path not in known and (top not in tops or "." in path):
            like = difflib.get_close_matches(path, known, n=1, cutoff=LIKE)
            unknown.append(f"{path[:60]} in {file}{NO_SETTING}{LIKE_IT + like[0] if like else ''}")
        unset = _unset(value) if isinstance(value, str) else ""
        said[path] = Said(value=value, source=f"{path} of {file}", unset=unset)

    for key, value in values.items():
        keep(ALIASES_OF_YAML.get(str(key), str(key)), value)
    return Settings(engine="tensorrt-llm", said=said, unknown=tuple(unknown))


NO_SETTING = " is no setting of TensorRT-LLM"


def _of_another_llm_api(path: str, file: str, release: str) -> str | None:
    """What is said of a key that left the YAML, or came into it, at another release than this; empty where it is one of this
    release, or of nobody knows which; None for keys that every release has."""
    table = _roles()["tensorrt-llm"]["settings"]
    asked = release_key(release)
    if path in table["moved"]:
        last, now = table["moved"][path]
        gone = asked and asked > release_key(last)
        return f"{path} in {file} is a setting of TensorRT-LLM up to {last}, and this is {release}: {now} since" if gone else ""
    since = table["since"].get(path)
    if since and asked and asked < release_key(since):
        return f"{path} in {file} is a setting of TensorRT-LLM from {since} on, and this is {release}"
    return None
