"""How long work says where it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Told in a few words what is being worked on."""
