"""Every regular expression of the product is linear on hostile text (helpers/pattern_shape.py says what that means)."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest
from pattern_shape import faults

ROOT = Path(__file__).parents[2]
FOLDERS = ("autoconfig", "specs", "api")
FUNCTIONS = {"match", "search", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
ALLOWED = {r"\s*(\S.*?)\s*,\s*([0-9.]+)\s*": "a line of nvidia-smi, which runs here"}


def _files():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _namespace(path):
    """The module's names, in which a pattern is written; none where a package is not installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    try:
        return vars(importlib.import_module(".".join(parts if parts[0] == "autoconfig" else ("autoconfig", *parts))))
    except ImportError:
        return {"re": re}


def _value(node, names):
    """What an expression is; of a text that is put together at run time, its constant parts with x between them."""
    try:
        return eval(compile(ast.Expression(node), "pattern", "eval"), dict(names))
    except Exception:
        if isinstance(node, ast.JoinedStr):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
        return None


def _patterns():
    """(place, pattern, flags, how it is used) of every call of `re`."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in _files()}
    used = defaultdict(set)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                used[ast.unparse(node.value).rpartition(".")[2]].add(node.attr)
    for path, tree in trees.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        calls = [call for call in calls if ast.unparse(call.func.value) == "re"]
        if not calls:
            continue
        names = _namespace(path)
        targets = {id(node.value): ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)}
        for call in calls:
            how = call.func.attr
            if how not in {*FUNCTIONS, "compile"} or not call.args:
                continue
            pattern = _value(call.args[0], names)
            given = [
                _value(one, names) for one in (*call.args[1:], *(word.value for word in call.keywords if word.arg == "flags"))
            ]
            flags = next((int(one) for one in given if isinstance(one, re.RegexFlag)), 0)
            if how == "compile":
                ways = used.get(targets.get(id(call), ""), {"search"})
                how = "fullmatch" if ways <= {"fullmatch"} else "match" if ways <= {"fullmatch", "match"} else "search"
            if isinstance(pattern, str):
                yield (
                    f"{path.relative_to(ROOT)}:{call.lineno}",
                    pattern,
                    flags,
                    how if how in ("match", "fullmatch") else "search",
                )


def test_every_pattern_is_linear():
    found = list(_patterns())
    assert len(found) > 250
    odd = {
        place: (pattern[:100], wrong)
        for place, pattern, flags, how in found
        if pattern not in ALLOWED and (wrong := faults(pattern, flags, how))
    }
    assert odd == {}


@pytest.mark.parametrize(
    ("pattern", "flags", "how", "fault"),
    [
        (r"(a+)+b", 0, "match", "nested"),
        (r"(?:a|ab*)*c", 0, "match", "nested"),
        (r"(?:\w+\s*)*:", 0, "match", "nested"),
        (r"[\w .-]*\s*:", 0, "match", "overlapping"),
        (r"\{[^{}]*(?:\.\.|,)[^{}]*\}", 0, "search", "overlapping"),
        (r"a.*b.*c", 0, "match", "overlapping"),
        (r"[^,]*/[^,]*", 0, "fullmatch", "overlapping"),
        (r"^\s*#", re.MULTILINE, "search", "begun anywhere"),
        (r"\w+=", 0, "search", "begun anywhere"),
        (r"\b[\w.]+=", 0, "search", "begun anywhere"),
        (r"\$\{[^}]*\}", 0, "search", "begun anywhere"),
    ],
)
def test_what_is_refused(pattern, flags, how, fault):
    assert fault in faults(pattern, flags, how)


@pytest.mark.parametrize(
    ("pattern", "flags", "how"),
    [
        (r"(?:a++)+b", 0, "match"),
        (r"(?:[0-9]+,)*[0-9]+", 0, "match"),
        (r"[\w .-]*+:", 0, "match"),
        (r"\{([^{}]*+)\}", 0, "search"),
        (r"^[^\S\n]*+#", re.MULTILINE, "search"),
        (r"(?<!\w)\w+=", 0, "search"),
        (r"\b\w+=", 0, "search"),
        (r"\$\{[^${}]*\}", 0, "search"),
        (r"[A-Za-z_]\w*", 0, "search"),
        (r"\w{1,80}=", 0, "search"),
    ],
)
def test_what_is_linear(pattern, flags, how):
    assert faults(pattern, flags, how) == []
