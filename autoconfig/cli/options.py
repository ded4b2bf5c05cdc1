"""Options of the command line, made of the fields of requests; and commands whose help is a screen."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from autoconfig.planning.resolve import Field
from autoconfig.specs.errors import NOT_PRICED, nearest, option_name
from autoconfig.specs.units import real_number, whole_number

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


verbose_option = click.option("--verbose", is_flag=True, help="All that was assumed, rejected and simulated; all rows.")
"""What `console` looks at."""


class _Number(click.ParamType[Any]):
    """A number that may have a unit: looked at here, so that the option is named, and read where the request is made."""

    name = "number"

    def __init__(self, parse: Callable[[str | float], float | str]) -> None:
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as it is. Fails with what is allowed."""
        try:
            self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


class _Plan(click.ParamType[str]):
    """The short form of a plan; it is read where the question is known."""

    name = "plan"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "Write it like tp=8,pp=2,mbs=1; autoconfig search names the best."


plan_argument = click.argument("plan", type=_Plan())


class _Integer(click.types.IntParamType):
    """A whole number, with commas where the user likes them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with how one is written."""
        try:
            return whole_number(value, "" if param is None else param.name or "")
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Real(click.types.FloatParamType):
    """A number, likewise."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with how one is written."""
        try:
            return real_number(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Choice(click.Choice[str]):
    """One of several words; a word of others is answered with why it is none of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word. Fails with the words that there are."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            plain = {_bare(word): word for word in self.choices}  # fp-8, full iteration
            if (word := plain.get(_bare(str(value)))) is not None:
                return word
            close = [] if str(value).lower() in NOT_PRICED else nearest(str(value), self.choices, 1)
            meant = f"; did you mean {close[0]}?" if close else "."
            self.fail(error.message.rstrip(".") + NOT_PRICED.get(str(value).lower(), "") + meant, param, ctx)


def _bare(word: str) -> str:
    return "".join(filter(str.isalnum, word.lower()))


class _Named(click.ParamType[str]):
    """The name of something in the catalogue, which a shell completes."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin so."""
        from click.shell_completion import CompletionItem

        from autoconfig.specs.hardware.cluster import gpu_ids
        from autoconfig.specs.models.model_catalogue import model_names

        names = model_names() if param.name == "model" else gpu_ids()
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


def _kind(field: Field) -> Any:
    if field.name in ("model", "gpu"):
        return _Named()
    if field.choices:
        return _Choice(field.choices, case_sensitive=False)
    if field.parse is not None:
        return _Number(field.parse)
    if field.range is not None:
        return click.IntRange(*field.range)
    if field.type is int:
        return _Integer()
    if field.type is float:
        return _Real()
    return click.Path(path_type=Path) if field.type is Path else field.type


class _Option(click.Option):
    """An option that knows its field."""

    def __init__(self, *args: Any, field: Field, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.field = field

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """As click does; another value for what has one is refused, where click takes the last."""
        super().add_to_parser(parser, ctx)
        if self.multiple or self.is_flag:
            return
        for name in self.opts:
            held = parser._long_opt[name]
            held.process = self._once(held.process, held.dest)

    def _once(self, process: Callable[[Any, Any], None], dest: str) -> Callable[[Any, Any], None]:
        def once(value: Any, state: Any) -> None:
            before = state.opts.get(dest, value)
            if before != value:
                compared = "; autoconfig search compares several" if self.name in ("gpu", "precision") else ""
                raise click.UsageError(f"{self.opts[0]} is given twice, {before} and {value}: give one{compared}")
            process(value, state)

        return once


HELP_ALL = "help_all"
SECTIONS = {
    "question": "Question", "variant": "Another variant of the GPU", "switches": "Switches of the run",
    "numerics": "Precision and fine-tuning", "architecture": "Changes of the model", "search": "Plans",
    "plan": "Only plans with (as --fix; Megatron's names too)",
    "output": "Files", "scaling": "Over GPU counts", "budget": "Budget", "reliability": "Failures", "serving": "Question",
    "post_training": "Question", "post_training_output": "Files", "post_training_file": "Options",
    "serving_output": "Files", "profile": "Measuring", "runner": "How jobs run", "export": "Files",
    "explain": "Answer", "diagnose": "The step, where no log says it", "check": "Beside a launch file",
    "check_output": "Options", "": "Options",
}  # fmt: skip
"""Group of fields -> the title of its options in a long help."""


_EXTRA = re.compile(r"Got unexpected extra arguments? \((.{1,100})\)$")


class ManyOptions(click.Command):
    """A command whose --help is a screen, and whose --help-all shows every option by groups."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        every = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, help="Every option.")
        every.callback = _help_all
        self.params.append(every)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; of words without an option it is said which they are likely meant for."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            words = _EXTRA.match(error.message)
            taken = {param.name for param in self.params}
            if words is None or not {"model", "gpus"} <= taken or "=" in words[1]:
                raise
            named = (f"--gpus {word}" if word.isdigit() else f"--model {word}" for word in words[1].split())
            raise click.UsageError(f"{error.message}; a question has options: {' '.join(named)}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Under their groups' titles the options with a brief text, or all."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            field = getattr(param, "field", None)
            record = param.get_help_record(ctx)
            if not ctx.meta.get(HELP_ALL) and (field is not None or param.name == "verbose"):
                record = (_signature(field), field.brief) if field is not None and field.brief else None
            if record is not None and record[1]:  # an argument without a text stands in the usage
                sections.setdefault(SECTIONS[field.group if field is not None else ""], []).append(record)
        for title in sorted(sections, key=lambda title: title == SECTIONS[""]):  # in order, but what has no group last
            records = sections[title]
            with formatter.section(title):
                formatter.write_dl(records)


def _signature(field: Field) -> str:
    value = "" if field.type is bool else f" {field.metavar or ('N' if field.type in (int, float) else 'NAME')}"
    return option_name(field.name) + value


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


SECRETS = {"database": "AUTOCONFIG_DATABASE", "storage": "AUTOCONFIG_STORAGE"}
"""Option whose URL may hold a password -> the environment variable that takes it: a process's arguments are shown to every
user of the machine."""
_WITH_PASSWORD = re.compile(r"://[^/@:]*+:[^/]*@")


def of_environment(name: str) -> dict[str, Any]:
    """Settings of an option in SECRETS: its environment variable, which what this process starts does not inherit."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        os.environ.pop(SECRETS[name], None)
        if value and _WITH_PASSWORD.search(value) and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            said = f"every user of this machine sees the password of {option_name(name)}: give the URL as {SECRETS[name]}"
            click.echo(f"warning: {said}", err=True)
        return value

    return {"envvar": SECRETS[name], "show_envvar": True, "callback": read}


def option(field: Field, *others: str) -> Callable[[Command], Command]:
    """The option of a field, and other names of it; the command gets its value under the field's name."""
    text = option_name(field.name)
    kind: dict[str, Any]
    if field.type is bool:
        text += f"/--{field.negative}" if field.negative else ""
        kind = {"default": field.default, **({} if field.negative else {"is_flag": True})}
    elif field.default is None:
        kind = {"type": _kind(field), "multiple": field.many}
    else:
        kind = {"type": _kind(field), "default": field.default, "show_default": field.shows_default}
    kind |= {"required": field.required, "metavar": field.metavar, "help": field.help, "cls": _Option, "field": field}
    kind |= of_environment(field.name) if field.name in SECRETS else {}
    return click.option(text, *others, field.name, **kind)


def options(*groups: Iterable[Field]) -> Callable[[Command], Command]:
    """The options of several groups of fields, in this order."""

    def decorate(command: Command) -> Command:
        for field in reversed([field for group in groups for field in group]):
            command = option(field)(command)
        return command

    return decorate
