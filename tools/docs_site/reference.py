"""Write the pages that list what the code itself documents: the commands and their options, and packages (mkdocstrings).

Options are shown as `--help-all` has them. mkdocs-click 0.9 would lose their groups, and prints click's mark for "no default"
as if it were one.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click

from autoconfig.cli.main import COMMANDS, FORMS, cli, load
from autoconfig.cli.options import HELP_ALL

LISTED = [name for name, place in sorted(COMMANDS.items()) if not place.startswith("service:")]
"""Commands of the plain install; docs/service.md has those of the service."""
WIDTH = 110
PYTHON = """# Python API
Use is shown in [python.md](../python.md).

::: autoconfig
    options:
      show_signature_annotations: true
"""
PACKAGES = {
    "memory_model": "Formulas of memory. [memory_model.md](../memory_model.md) has the symbols and the parts.",
    "time_model": "Formulas of time. [time_model.md](../time_model.md) has the symbols and the parts.",
}
"""Package -> what stands above its reference."""


def commands() -> str:
    """Return a section for every command, its subcommands and its forms: the whole help, every option by groups."""
    with _context(cli, "autoconfig", None) as root:
        root.meta[HELP_ALL] = True
        sections: list[str] = []
        for name in LISTED:
            command = load(*COMMANDS[name].split(":"))
            context = _context(command, name, root)
            sections.append(_section(context))
            below = sorted(getattr(command, "commands", {}).items())
            sections += [_section(_context(one, title, context)) for title, one in below]
        for flag, (module, forms) in FORMS.items():
            named = sorted(forms.keys() - {"search"})
            sections += [_section(_context(load(module, forms[name]), f"{name} {flag}", root)) for name in named]
    return "\n".join(sections)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    settings: dict[str, Any] = {**cli.context_settings, "max_content_width": WIDTH, "terminal_width": WIDTH}
    return click.Context(command, info_name=name, parent=parent, **settings)


def _section(context: click.Context) -> str:
    level = "#" * (context.command_path.count(" ") + 1 - ("--" in context.command_path))
    return f"{level} {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


def packages() -> dict[str, str]:
    """Return the pages of the API reference by their place in the site."""
    pages = {"docs/reference/python.md": PYTHON}
    for package, above in PACKAGES.items():
        modules = "\n".join(f"\n::: {name}" for name in _modules(f"autoconfig.{package}"))
        pages[f"docs/reference/{package}.md"] = f"# {package}\n{above}\n{modules}\n"
    return pages


def _modules(package: str) -> Iterator[str]:
    path = import_module(package).__path__
    return (module.name for module in pkgutil.walk_packages(path, f"{package}.") if not module.ispkg)
