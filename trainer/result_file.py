"""What the training core says: result.json, whole or none, and lines on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autoconfig.specs.measurement import RESULT_FILE, Measurement, measurement_text


class ResultFile:
    """result.json of one output folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULT_FILE
        self._temporary = folder / f".{RESULT_FILE}.{os.getpid()}"

    def prepare(self) -> None:
        """Make the folder, take an old result away, try to write. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        try:
            self._write_beside("{}\n")
        finally:
            self.clean_up()

    def write(self, measurement: Measurement) -> None:
        try:
            self._write_beside(measurement_text(measurement))
            self._temporary.replace(self.path)
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        self._temporary.unlink(missing_ok=True)

    def _write_beside(self, text: str) -> None:
        with self._temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def say(message: str) -> None:
    """One line in one write: the ranks of a job share a log, and two writes would mingle."""
    sys.stderr.write(f"trainer: {message}\n")
    sys.stderr.flush()
