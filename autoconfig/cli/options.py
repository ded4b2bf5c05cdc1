"""The options of commands, made from the declarations of the fields (`planning.request_fields`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from autoconfig.planning.fields import Field, field_names
from autoconfig.planning.request_fields import PROFILE
from autoconfig.specs.errors import InputError, option_name

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


class _Number(click.ParamType[Any]):
    """A number that may have a unit: looked at here, so that the option is named, and read where the request is made."""

    name = "number"

    def __init__(self, parse: Callable[[str | float], float]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as it is. Fails with what is allowed."""
        try:
            self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


def _kind(field: Field) -> Any:
    if field.choices:
        return click.Choice(field.choices)
    if field.parse is not None:
        return _Number(field.parse)
    if field.range is not None:
        return click.IntRange(*field.range)
    return click.Path(path_type=Path) if field.type is Path else field.type


def option(field: Field) -> Callable[[Command], Command]:
    """The option of a field; the command gets its value under the field's name."""
    text = option_name(field.name)
    kind: dict[str, Any]
    if field.type is bool:
        text += f"/--{field.negative}" if field.negative else ""
        kind = {"default": field.default, **({} if field.negative else {"is_flag": True})}
    elif field.default is None:
        kind = {"type": _kind(field), "multiple": field.many}
    else:
        kind = {"type": _kind(field), "default": field.default, "show_default": field.shows_default}
    return click.option(text, field.name, required=field.required, metavar=field.metavar, help=field.help, **kind)


def options(*groups: Iterable[Field]) -> Callable[[Command], Command]:
    """The options of several groups of fields, in this order."""

    def decorate(command: Command) -> Command:
        for field in reversed([field for group in groups for field in group]):
            command = option(field)(command)
        return command

    return decorate


def given_options(ctx: click.Context) -> set[str]:
    """The names of the parameters that stand on the command line."""
    return {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def wants_profile(ctx: click.Context) -> bool:
    """Whether a search is to measure. Raises InputError for options that only then mean something."""
    if ctx.params["profile"] or ctx.params["resume"]:
        return True
    if ctx.params["study"]:
        raise InputError("--study names a profiling study: say --profile too")
    given = given_options(ctx)
    alone = [name for name in field_names(PROFILE) if name in given]
    if alone:
        raise InputError(f"{option_name(alone[0])} is for a search that measures: say --profile --study NAME too")
    return False
