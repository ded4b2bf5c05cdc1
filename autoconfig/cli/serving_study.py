"""`autoconfig search --inference --profile`: the measured trade-off of throughput and time per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from autoconfig.cli.main import given_options
from autoconfig.cli.study import Profile
from autoconfig.specs.errors import InputError

if TYPE_CHECKING:
    from autoconfig.study.serving.work import ServingSettings

CPU_LENGTHS = {"isl": 64, "osl": 16}
"""Tokens of a request on a CPU where none were given: jobs of seconds."""


def serving(options: dict[str, Any]) -> Profile:
    """Studies of deployments."""
    from autoconfig.render.study import ServingWords
    from autoconfig.study.serving.session import SERVING

    return Profile(kind=SERVING, words=ServingWords(), settings=lambda: settings_of(options))


def settings_of(options: dict[str, Any]) -> ServingSettings:
    """What is measured. Raises InputError."""
    from autoconfig.serving.request import DEFAULT_TOKENS, request_of
    from autoconfig.study.serving.work import ENGINES, ServingSettings
    from autoconfig.study.settings import parse_size

    given = given_options(click.get_current_context())
    asked = dict(options)
    if "engine" not in given:
        asked["engine"] = ENGINES[0]
    device = options["device"] or "cuda"
    if device == "cpu":
        if given & {"gpu", "gpus_per_node"}:
            raise InputError("--device cpu measures this machine: leave --gpu and --gpus-per-node out")
        asked |= {name: tokens for name, tokens in CPU_LENGTHS.items() if name not in given}
    asked |= {name: DEFAULT_TOKENS for name in CPU_LENGTHS if asked[name] is None}
    memory = options["device_memory"]
    return ServingSettings(
        request=request_of(asked),
        device=device,
        device_memory_bytes=None if memory is None else parse_size(memory),
        seed=options["seed"],
        steps=options["steps"],
        warmup_steps=options["warmup_steps"],
    )


def check_answer_options(options: dict[str, Any]) -> None:
    """Raises InputError for options of an answer that a study does not give."""
    for name in ("export", "report"):
        if options[name] is not None:
            raise InputError(f"--{name} is not for --profile: search again with --fix, the study's tp and batch")
