"""Text that a script runs and nobody sees (`eval "$(cat FILE)"`, `source FILE`, `export $(...)`): what it may have set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoconfig.megatron.shell.commands import Assignment, Held, Value, Word, is_name, reason_of, text_of, unknown
from autoconfig.megatron.shell.values import Variables
from autoconfig.planning.work import spend

MAX_NAMED = 8
HIDDEN = "autoconfig_unknown_"
"""How the names begin that stand for what is not known in text that is evaluated."""
_TOOLS = re.compile(
    r"[\"']?(?:\$\(|<\(|`)\s*[\"']?(?:\S*/)?(?:conda|mamba|micromamba|modulecmd|lmod|spack|pyenv|brew|ssh-agent|dircolors)\b"
)
"""Commands whose output sets up a shell, and no variable of a training job."""
_SHELL_FILES = re.compile(
    r"(?:.*/)?(?:activate|conda\.sh|mamba\.sh|\.?(?:bashrc|bash_profile|profile|zshrc)|modules?\.sh|lmod\.sh|bash|setvars\.sh|"
    r"set_env\.sh|setup-env\.sh)"
)
"""Files that set up a shell: Python's and conda's environments, modules, oneAPI, CANN, spack."""
_ENDLESS = ("<(", "/dev/stdin", "/dev/fd/")
_TAKES_A_VALUE = {"read": tuple("dinNptu"), **dict.fromkeys(("mapfile", "readarray"), tuple("cCdnOsu"))}
"""Commands, and the last letters of options behind which a value stands."""
_SETS = frozenset({*_TAKES_A_VALUE, "unset", "export", "declare", "local", "readonly", "typeset"})
_PATH = re.compile(r"[~./]|\w+://|\$\{?\w+\}?/")


@dataclass(frozen=True, kw_only=True)
class Sourced:
    """A file that is run in the script's own shell and is not read."""

    line: int
    name: str
    before: Mapping[str, Held]
    """What the variables held in front of it."""
    missing: int
    """How many names without a value had been looked up by then."""


def anything(variables: Variables, what: Iterable[Value], line: int) -> None:
    """Text that is not known may have set any variable, but for those that the caller said and those that are read-only."""
    spend(2 * len(variables.values))
    shown = " ".join(map(text_of, what))
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    variables.unseen = f"line {line}, which runs text that is not known ({shown})"
    for name in list(variables.values):
        if is_name(name) and not name.startswith(HIDDEN):
            variables.set(name, unknown(f"${name}", _may_be_set(name, variables.unseen)))


def _may_be_set(name: str, by: str) -> str:
    return f"${name} may be set by {by}: say --set {name}=VALUE, or assign it behind that line"


NOT_READ = "is a file of its own and is not read"


def sourced(variables: Variables, fields: Sequence[Value], line: int) -> str:
    """`source FILE`: what is said of it. The output of a command that is sourced may set anything."""
    name = text_of(fields[1])
    if _TOOLS.match(name) is None and name.startswith(_ENDLESS):
        anything(variables, fields, line)
    elif _TOOLS.match(name) is None and not _SHELL_FILES.fullmatch(name):
        spend(len(variables.values) / 4)
        held = Sourced(line=line, name=name[:60], before=dict(variables.values), missing=len(variables.without_value))
        variables.sourced.append(held)
    return f"line {line}: {name[:60]} {NOT_READ}"


def may_differ(variables: Variables, text: str, *, functions: bool) -> list[str]:
    """Of each sourced file, which variables it may set and the script reads behind it as if it did not: those that the script
    assigned in front of it and not again, and those that it does not assign at all. `functions`: the script has some, whose
    lines may run behind it wherever they stand."""
    remarks = []
    for one in variables.sourced:
        spend(len(text) / 8 + 2 * len(one.before))
        behind = text if functions else "\n".join(text.split("\n")[one.line :])
        if names := _may_set(one, variables, behind):
            more = f" and {len(names) - MAX_NAMED} others" if len(names) > MAX_NAMED else ""
            remarks.append(
                f"line {one.line}: {', '.join(f'${name}' for name in names[:MAX_NAMED])}{more} may be set by {one.name}, and "
                "hold anything then: read as the script alone has it (--set NAME=VALUE)"
            )
    return remarks


def _may_set(one: Sourced, variables: Variables, behind: str) -> list[str]:
    """The variables that a sourced file may set and that the text behind it reads."""
    used = set(re.findall(r"\$\{?#?([A-Za-z_]\w*)", behind))
    same = [name for name, value in one.before.items() if name in used and _same(variables.values.get(name), value)]
    names = [name for name in same if not _is_path(one.before[name])] + list(variables.without_value[one.missing :])
    return list(dict.fromkeys(name for name in names if name not in variables.fixed and is_name(name)))


def _same(now: Held | None, before: Held) -> bool:
    return now == before or (isinstance(now, list) and isinstance(before, list) and now[: len(before)] == before)


def _is_path(value: Held) -> bool:
    return isinstance(value, tuple) and _PATH.match(text_of(value)) is not None


def sets_unknown_names(name: str, fields: Sequence[Value]) -> bool:
    """Whether a command sets variables whose names are not known: `export $(cat FILE)`, `printf -v "$NAME"`, `read "$NAME"`."""
    words = list(fields[1:])
    if name == "printf":
        return text_of(fields[1]) == "-v" and len(words) > 1 and _hidden(words[1]) if words else False
    if name not in _SETS:
        return False
    before = ["", *map(text_of, words)]
    takes = [text[:1] == "-" and text.endswith(_TAKES_A_VALUE.get(name, ())) for text in before]
    texts = [text_of(word) for word, is_value in zip(words, takes, strict=False) if _hidden(word) and not is_value]
    return any(not is_name(text.partition("=")[0]) and text[:1] != "-" for text in texts)


def runs_unseen(words: Sequence[Word | Assignment], fields: Sequence[Value]) -> bool:
    """Whether a command of text that is evaluated is itself not known, and may be any commands."""
    first = next((word for word in words if isinstance(word, Word)), None)
    part = first.parts[0] if first is not None and first.parts else None
    evaluated = part is not None and part.kind == "variable" and part.text.startswith(HIDDEN)
    return evaluated and bool(fields) and _hidden(fields[0]) and _TOOLS.match(text_of(fields[0])) is None


def _hidden(value: Value) -> bool:
    """Not known; what the script does not set counts as nothing."""
    return bool(reason_of(value)) and not all(piece.unset for piece in value if piece.unknown)
