"""Tables of what the product answers today: one line a case, `name <tab> part=value part=value ...`.

They notice that a number changed; they do not prove that it was right. What is right is held by the other tests (by hand, by
conserved sums, by megatron-core's own functions). After a change that was meant, `make recorded` writes the tables anew: the
diff shows every case and part that moved.

Of a sentence only its numbers count. A number has seven significant digits and may differ by 1e-6 of itself; zeros, empty
lists and None are left out.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario

from autoconfig.training.question import Request, understand

REWRITE = "AUTOCONFIG_RECORD" in os.environ
TOLERANCE = 1e-6
SCENARIOS = json.loads(Path(__file__).with_name("scenarios.json").read_text(encoding="utf-8"))
"""Name -> what is asked (fields of Request) and plans."""


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(part, text) of everything inside that is not empty; plans and recomputations as their short form."""
    dotted = f"{name}." if name else ""
    if value is None or value is False or (isinstance(value, str | list | tuple | dict | frozenset) and not value):
        return
    if isinstance(value, TrainPlan | Recompute | Enum) or (isinstance(value, str) and not value.count(" ")):
        yield name, str(value).replace("=", ":")
    elif isinstance(value, str):  # of a sentence its numbers: the words may change
        yield name, "text:" + ",".join(re.findall(r"\d+(?:\.\d+)?", value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{dotted}{key}".replace(" ", "_"))
    elif is_dataclass(value):
        for field in fields(value):
            if field.name != "calibrated_on":  # names the fit: a digest that every refit changes
                yield from leaves(getattr(value, field.name), dotted + field.name)
    elif isinstance(value, set | frozenset):
        yield name, "+".join(sorted(map(str, value)))
    elif isinstance(value, np.ndarray) and value.ndim:
        yield name, ",".join(f"{one:.7g}" for one in np.ravel(value).astype(float))
    elif isinstance(value, list | tuple) and all(map(_is_number, value)):
        yield name, ",".join(f"{float(one):.7g}" for one in value)
    elif isinstance(value, list | tuple) and all(isinstance(one, str) and " " not in one for one in value):
        yield name, ",".join(value).replace("=", ":")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, f"{dotted}{number}")
    elif _is_number(value) or isinstance(value, np.ndarray):
        if value != 0:
            yield name, f"{float(value):.7g}"  # type: ignore[arg-type]
    else:
        yield name, str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def line_of(value: Any) -> str:
    """The parts in one line."""
    return " ".join(f"{name}={text}" for name, text in leaves(value))


def outcome(work: Any, *given: Any, **named: Any) -> Any:
    """What a call returns, or the kind of its complaint."""
    try:
        return work(*given, **named)
    except InputError as error:
        return {"refused": type(error).__name__}


def differences(found: str, kept: str) -> list[str]:
    """Parts that are not alike."""
    now, then = (dict(part.split("=", 1) for part in line.split(" ") if part) for line in (found, kept))
    return [
        f"{name}: {then.get(name, 'nothing')} became {now.get(name, 'nothing')}"
        for name in dict.fromkeys((*then, *now))
        if not _alike(then.get(name), now.get(name))
    ]


def _alike(one: str | None, other: str | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    pairs = list(zip(one.split(","), other.split(","), strict=False))
    return len(one.split(",")) == len(other.split(",")) and all(_close(a, b) for a, b in pairs)


def _close(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=TOLERANCE)
    except ValueError:
        return one == other


class Table:
    """The file beside a test, read once; with AUTOCONFIG_RECORD it is written line by line."""

    def __init__(self, test_file: str, name: str) -> None:
        self.path = Path(test_file).with_name(name)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        self.lines = dict(line.split("\t", 1) for line in lines)

    def check(self, case: str, value: Any) -> None:
        """Asserts that the case's parts are what the table says."""
        found = line_of(value)
        if REWRITE:
            self.lines[case] = found
            atexit.unregister(self.write)
            atexit.register(self.write)
        assert case in self.lines, f"{case} is not in {self.path}: make recorded"
        assert differences(found, self.lines[case]) == []

    def write(self) -> None:
        self.path.write_text("".join(f"{key}\t{text}\n" for key, text in sorted(self.lines.items())), encoding="utf-8")


def scenario_of(name: str) -> tuple[Scenario, list[TrainPlan], float]:
    """Scenario, plans and the share of memory that stays free."""
    asked = dict(SCENARIOS[name])
    plans = asked.pop("plans")
    scenario = understand(Request(**asked)).scenario
    return scenario, [scenario.read_plan(plan) for plan in plans], asked.get("memory_margin", 0.0)


def texts_of(value: object, *left_out: str) -> dict[str, Any]:
    return {name: item for name, item in vars(value).items() if name not in left_out and not name.startswith("_")}


def shape_of(model: ModelSpec) -> dict[str, Any]:
    """Fields that are not the usual ones, without where they are from."""
    usual = {field.name: field.default for field in fields(ModelSpec)}
    return {name: value for name, value in vars(model).items() if name in usual and value != usual[name] and name != "sources"}


def taken(make: Any, ladder: Iterable[Any]) -> str:
    """Which rungs are taken: + and -, or ! where it is no complaint."""
    signs = []
    for value in ladder:
        try:
            make(value)
            signs.append("+")
        except InputError:
            signs.append("-")
        except (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError, OverflowError):
            signs.append("!")
    return "".join(signs)


def result(work: Any, *given: Any) -> Any:
    """The result, or the kind of any complaint."""
    try:
        return work(*given)
    except (InputError, ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError) as error:
        return f"{type(error).__name__}"
