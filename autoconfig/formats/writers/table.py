"""The formats that are written, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoconfig.formats.hooks.table import MAPPED
from autoconfig.formats.mapped import MappedFormat
from autoconfig.formats.words import Settings, Written
from autoconfig.formats.writers import (
    bridge,
    megatron_yaml,
    ms_swift,
    trainers,
    transformer_config,
    trl,
)
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.training.space import Constraints


@dataclass(frozen=True, kw_only=True)
class Writer:
    """One format."""

    write: Callable[[Scenario, TrainPlan], Written]
    refused: Callable[[Scenario, TrainPlan], list[str]]
    settings: Callable[[Scenario, TrainPlan], Settings]
    wish: Constraints = field(default_factory=Constraints)
    """Which plans it can say, as far as keys of a plan decide."""
    software: str | None = None
    """Stack as which its trainer is priced where a search names none; None: the usual one."""


WRITERS: dict[str, Writer | MappedFormat | trainers.TrainerFormat] = {
    "deepspeed": MAPPED["deepspeed"],
    "accelerate": MAPPED["accelerate"],
    "megatron-yaml": Writer(write=megatron_yaml.write, refused=megatron_yaml.refused, settings=megatron_yaml.settings),
    "bridge": Writer(write=bridge.write, refused=bridge.refused, settings=bridge.settings),
    "transformer-config": Writer(
        write=transformer_config.write, refused=transformer_config.refused, settings=transformer_config.settings
    ),
    "torchtitan": MAPPED["torchtitan"],
    "ms-swift": Writer(write=ms_swift.write, refused=ms_swift.refused, settings=ms_swift.settings, software=DEFAULT_STACK),
    "primus": Writer(
        write=megatron_yaml.write_primus,
        refused=megatron_yaml.refused,
        settings=megatron_yaml.settings_of_primus,
        software=DEFAULT_STACK,
    ),
    "nanotron": MAPPED["nanotron"],
    "trl": Writer(write=trl.write, refused=trl.refused, settings=trl.settings, wish=trl.WISH, software=trl.SOFTWARE),
    **trainers.FORMATS,
}
WRITERS |= {name: one for name, one in MAPPED.items() if name not in WRITERS}
