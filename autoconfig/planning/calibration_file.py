"""Calibrations by name or file: the shipped one, the documented defaults (`none`), or a file of `autoconfig calibrate`."""

from __future__ import annotations

import json
from pathlib import Path

from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.files import write_text
from autoconfig.specs.scenario import DOCUMENTED_DEFAULTS, Calibration
from autoconfig.time_model.job import parse, shipped, to_json

MAX_FILE_BYTES = 16 * 2**20
NO_CALIBRATION = "none"


def named_calibration(name: str | None) -> Calibration:
    """None: the shipped one. `none`: the documented defaults. Else a file. Raises FileError or InputError."""
    if name is None:
        return shipped()
    return DOCUMENTED_DEFAULTS if name == NO_CALIBRATION else read_calibration(Path(name))


def write_calibration(calibration: Calibration, target: Path) -> None:
    """As JSON, written beside and renamed. Raises FileError."""
    write_text(target, json.dumps(to_json(calibration), indent=1) + "\n")


def read_calibration(source: Path) -> Calibration:
    """A file that `write_calibration` wrote. Raises FileError or InputError."""
    try:
        if source.stat().st_size > MAX_FILE_BYTES:
            raise FileError(f"{source} is larger than {MAX_FILE_BYTES // 2**20} MiB")
        return parse(json.loads(source.read_text(encoding="utf-8")), str(source))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, OSError):
            raise FileError(f"{source} cannot be read: {error.strerror or error}") from error
        raise InputError(f"{source} is not a calibration; write one with autoconfig calibrate") from error
