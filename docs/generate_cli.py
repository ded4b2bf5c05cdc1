"""Writes what docs/cli.md says of each command. `python docs/generate_cli.py`; a test fails when the page is stale."""

from __future__ import annotations

from pathlib import Path

import click

from autoconfig.cli.main import COMMANDS, FORMS, cli, load
from autoconfig.cli.options import HELP_ALL

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 110
DOCUMENTED = [name for name, place in sorted(COMMANDS.items()) if not place.startswith("service:")]
FIRST = "## autoconfig "
"""What the generated part of the page begins with; what is above is written by hand."""


def page() -> str:
    """The whole page."""
    settings = {**cli.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    with click.Context(cli, info_name="autoconfig", **settings) as root:
        root.meta[HELP_ALL] = True
        sections = [PAGE.read_text(encoding="utf-8").partition(FIRST)[0].removesuffix("\n")]
        for name in DOCUMENTED:
            command = load(*COMMANDS[name].split(":"))
            context = click.Context(command, info_name=name, parent=root, **settings)
            sections.append(f"## autoconfig {name}\n\n```text\n{command.get_help(context)}\n```\n")
            for below, own in sorted(getattr(command, "commands", {}).items()):
                text = own.get_help(click.Context(own, info_name=below, parent=context, **settings))
                sections.append(f"### autoconfig {name} {below}\n\n```text\n{text}\n```\n")
        for flag, (module, forms) in FORMS.items():
            for name in sorted(forms.keys() - {"search"}):
                command = load(module, forms[name])
                context = click.Context(command, info_name=f"{name} {flag}", parent=root, **settings)
                sections.append(f"## autoconfig {name} {flag}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
