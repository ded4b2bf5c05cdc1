"""What a study is about, as it is kept in the storage: the question and how it is measured. A resumed study asks the same."""

from __future__ import annotations

import abc
import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from autoconfig.planning.request_fields import DEVICES
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.json_record import canonical_json, from_json, to_json

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class MeasuredQuestion(abc.ABC):
    """What every study stores: the question, and how jobs measure it. A kind of study adds its request."""

    kind: ClassVar[str] = ""
    """Of another study than training's, as it is stored."""
    request_type: ClassVar[type]
    shown_only: ClassVar[tuple[str, ...]] = ()
    """Fields of the request that change what is printed, and not what is measured."""

    request: Any
    device: str = "cuda"
    device_memory_bytes: int | None = None
    """Limit of each rank; None: the device's own."""
    seed: int = 0
    steps: int = 5
    warmup_steps: int = 2

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise InputError(f"device {self.device!r}: use {', '.join(DEVICES)}")
        if not 1 <= self.steps <= 10_000 or not 0 <= self.warmup_steps <= 10_000:
            raise InputError(f"steps {self.steps} and warm-up steps {self.warmup_steps} must be from 1 (0) to 10,000")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed {self.seed}: give a whole number from 0 to 2,147,483,647")

    @property
    @abc.abstractmethod
    def metrics(self) -> dict[str, str]:
        """Name of each of the study's values -> its direction."""


Settings = TypeVar("Settings", bound=MeasuredQuestion)


def settings_json(settings: MeasuredQuestion) -> dict[str, Any]:
    """What `settings_of` reads; only what was asked, without what only changes the printing."""
    request = {
        f.name: to_json(getattr(settings.request, f.name))
        for f in dataclasses.fields(settings.request_type)
        if f.name not in settings.shown_only and getattr(settings.request, f.name) != _default(f)
    }
    request |= {
        name: {key: value for key, value in request[name].items() if value is not None}
        for name in ("numerics", "architecture", "switches")
        if name in request
    }
    request = {name: value for name, value in request.items() if value != {}}
    rest = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name != "request"}
    kind = {"kind": settings.kind} if settings.kind else {}
    return {"schema_version": SCHEMA_VERSION, **kind, "request": request, **rest}


def kind_of(body: Any) -> str:
    """Of stored settings: empty for training."""
    return str(body.get("kind", "")) if isinstance(body, dict) else ""


COMMAND_OF_KIND = {"": "search", "inference": "deployments"}
"""The command that goes on with studies of a kind."""


def settings_of(body: Any, where: str, wanted: type[Settings]) -> Settings:
    """From JSON. Raises InputError where it was written by another version, or is another kind of study."""
    kind = kind_of(body)
    if kind != wanted.kind and kind in COMMAND_OF_KIND:
        said = "serving" if kind else "training"
        raise InputError(f"{where} measures {said}: go on with autoconfig {COMMAND_OF_KIND[kind]} --resume NAME")
    if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{where} holds no question that this version can read; give it a new name with {option('study')}")
    rest = {key: value for key, value in body.items() if key not in ("schema_version", "kind")}
    request = dict(rest.pop("request"))
    loose = {name: request.pop(name) for name in ("numerics", "architecture", "switches") if name in request}
    asked: Any = from_json(wanted.request_type, request, f"{where}.request")
    return from_json(wanted, {**rest, "request": dataclasses.replace(asked, **loose)}, where)


def differences(stored: MeasuredQuestion, given: MeasuredQuestion) -> list[str]:
    """What another question asks differently: `gpus: 8 stored, 16 given`; empty for the same question."""
    before, after = settings_json(stored), settings_json(given)
    flat = [({**body.pop("request"), **body}) for body in (before, after)]
    return [
        f"{key}: {_short(flat[0].get(key))} stored, {_short(flat[1].get(key))} given"
        for key in sorted({*flat[0], *flat[1]})
        if canonical_json(flat[0].get(key)) != canonical_json(flat[1].get(key))
    ]


def _short(value: object) -> str:
    return "nothing" if value is None else str(value)[:60]


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default is not dataclasses.MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a search stops starting jobs; None: no limit of that kind."""

    seconds: float | None = None
    gpu_hours: float | None = None
    trials: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            parts.append(f"{self.seconds / 60:g} minutes")
        if self.gpu_hours is not None:
            parts.append(f"{self.gpu_hours:g} GPU-hours")
        if self.trials is not None:
            parts.append(f"{self.trials} trials")
        return " or ".join(parts) or "no limit"


_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|m|min|h|d|gpu-?h|gpu-?hours?|trials?)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_budget(text: str) -> Budget:
    """`30m`, `2h`, `16gpu-hours`, `20trials`, or several with commas: whichever ends first. Raises InputError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        value = float(match[1]) if match else 0.0
        if not match or value <= 0:
            raise InputError(f"budget {text!r}: write it like 30m, 2h, 16gpu-hours or 20trials, several with commas")
        unit = match[2].lower()
        key = "trials" if unit.startswith("trial") else "gpu_hours" if unit.startswith("gpu") else "seconds"
        if key in found:
            raise InputError(f"budget {text!r} gives {key.replace('_', ' ')} twice")
        if key == "trials" and value != int(value):
            raise InputError(f"budget {text!r}: a whole number of trials")
        found[key] = value * _SECONDS.get(unit, 1.0)
    trials = found.pop("trials", None)
    return Budget(**found, trials=None if trials is None else int(trials))


def parse_time(text: str) -> float:
    """`10m` in seconds, for --job-timeout. Raises InputError."""
    limit = parse_budget(text).seconds
    if limit is None:
        raise InputError(f"{option('job_timeout')} {text}: give a time like 10m")
    return limit
