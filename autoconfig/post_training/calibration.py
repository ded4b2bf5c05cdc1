"""What one measured step of a job says: factors on the seconds of each phase (`autoconfig rl calibrate`, `--calibration`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

from autoconfig.post_training.frameworks import FACTORS, OF_A_STEP, Constants, shipped_constants
from autoconfig.specs.errors import InputError
from autoconfig.specs.files import read_text, write_text

KIND = "autoconfig post-training calibration"
LEAST, MOST = 0.01, 100.0
"""Factors beyond these are a log of another job."""
BELIEVED, DOUBTFUL = 10.0, 3.0
"""Times the predicted seconds (or so many times fewer) beyond which a phase of a log is taken for another job's, and beyond
which it is said. Assumptions: the 5 to 95 % band of a step that nobody measured is about 2 times each way."""
SCATTER = 0.15
"""Scatter of a step predicted after a step of the same model and GPU (validate --rl: 10 to 13 % mean error)."""


@dataclass(frozen=True, kw_only=True)
class StepCalibration:
    """Measured over predicted seconds by phase of one framework."""

    framework: str
    model: str
    gpu: str
    steps: int
    """Measured steps that it is the median of."""
    prompt_tokens: int = 0
    """Mean length of prompts that the log prints; 0: none."""
    response_tokens: int = 0
    """The same of responses."""
    generation: float = 1.0
    forward: float = 1.0
    training: float = 1.0
    other: float = 1.0

    def __post_init__(self) -> None:
        for name in (*FACTORS, "other"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not LEAST <= value <= MOST:
                raise InputError(f"calibration factor of {name} {value!r}: use {LEAST:g} to {MOST:g}")
        for name in ("prompt_tokens", "response_tokens"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise InputError(f"calibration {name} {getattr(self, name)!r}: use a whole number, 0 where it is not known")

    @property
    def lengths(self) -> dict[str, int]:
        """Mean lengths of the measured steps by the option that says them."""
        tokens_by_option = {"prompt_length": self.prompt_tokens, "response_length": self.response_tokens}
        return {name: tokens for name, tokens in tokens_by_option.items() if tokens}

    @property
    def doubts(self) -> list[str]:
        """Phases that are DOUBTFUL, with how far they are off, in words."""
        factors = {name: getattr(self, name) for name in (*FACTORS, "other")}
        return [
            f"{'the rest of the step' if name == 'other' else name} is {factor:.3g} times what is predicted"
            for name, factor in factors.items()
            if not 1.0 / DOUBTFUL <= factor <= DOUBTFUL
        ]

    def applied(self, constants: Constants | None = None) -> Constants:
        """Constants whose phases of this framework are scaled."""
        scaled = {name: dict(numbers) for name, numbers in (constants or shipped_constants()).items()}
        numbers = scaled.setdefault(self.framework, dict(scaled.get("all", {})))
        for phase in FACTORS:
            numbers[phase] = numbers.get(phase, 0.0) + log(getattr(self, phase))
        numbers["rounds"] = 0.0
        for name in OF_A_STEP:
            if name in numbers:
                numbers[name] = SCATTER if name.startswith("scatter") else numbers[name] * self.other
        return scaled


def write_calibration(path: Path, calibration: StepCalibration) -> None:
    """Write the file. Raises FileError."""
    write_text(path, json.dumps({"kind": KIND, **asdict(calibration)}, indent=1) + "\n")


def read_calibration(path: Path | str) -> StepCalibration:
    """Raises FileError or InputError for a file that is no calibration of ours."""
    path = Path(path)
    try:
        data: Any = json.loads(read_text(path, "a calibration of autoconfig rl calibrate"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)[:200]} is no JSON: {str(error)[:100]}") from error
    if not isinstance(data, dict) or data.pop("kind", "") != KIND:
        raise InputError(f"{str(path)[:200]} is no calibration of post-training: make one with autoconfig rl calibrate LOG")
    try:
        return StepCalibration(**data)
    except TypeError as error:
        raise InputError(f"{str(path)[:200]}: {str(error)[:120]}") from error
