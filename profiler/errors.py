"""Errors of runners."""

from __future__ import annotations

from autoconfig.specs.errors import InputError


class RunnerError(InputError):
    """Jobs cannot be run here: a program is missing, or a scheduler refuses; the message says which and what to try."""
