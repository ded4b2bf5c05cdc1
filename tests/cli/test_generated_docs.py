"""docs/cli.md is what the command line says of itself, the examples of docs/inference.md what it answers."""

import importlib.util
import re
from pathlib import Path

import pytest
from autoconfig.specs.plan import SHORT_TO_LONG

from autoconfig.cli.main import COMMANDS, load

DOCS = Path(__file__).parents[2] / "docs"


def module_of(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return module_of("generate_cli")


def test_the_page_is_fresh(generator):
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "stale: run python docs/generate_cli.py"


def test_every_command_and_option_is_on_the_page(generator):
    page = generator.page()
    for name in generator.DOCUMENTED:
        section = page.split(f"## autoconfig {name}\n")[1].split("\n## ")[0]
        for parameter in load(*COMMANDS[name].split(":")).params:
            for option in parameter.opts:
                assert option.startswith("-") is False or option in section, f"{name} {option}"
    for key in SHORT_TO_LONG:
        assert re.search(rf"\b{key}\b", page)


def test_links_of_the_page_resolve(generator):
    for target in re.findall(r"\]\(([^)]+)\)", generator.page()):
        assert (DOCS / target).is_file(), target


def test_the_examples_of_serving_are_what_the_commands_print():
    examples = module_of("generate_inference")
    text = examples.PAGE.read_text(encoding="utf-8")
    assert text == examples.page(text), "stale: run python docs/generate_inference.py"
    assert "at once in all" in examples.block("70b") and "decode step" in examples.block("falcon")
    changed = text.replace("at once in all", "at once", 1)
    assert changed != examples.page(changed)
    with pytest.raises(ValueError, match="not one example 70b"):
        examples.page(text.replace("serving example 70b", "serving example"))
