"""Formats that are maps, by name. A new one is a table in data/maps/ and a line here."""

from __future__ import annotations

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.hooks.nanotron import NANOTRON
from autoconfig.formats.hooks.torchtitan import TORCHTITAN

MAPPED = {one.name: one for one in (ACCELERATE, DEEPSPEED, NANOTRON, TORCHTITAN)}
