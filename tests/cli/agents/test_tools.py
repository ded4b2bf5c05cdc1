"""Tools of agents: what they list, and the command lines that their calls are."""

import click
import pytest
from autoconfig.specs.errors import InputError
from click.core import ParameterSource

from autoconfig.cli.agents.tools import ONLY, TOOLS, example

NAMES = ("search", "explain", "check", "diagnose", "deployments", "rl", "model", "budget")


@pytest.mark.parametrize("remote", [False, True])
def test_every_argument_says_what_it_is_its_unit_and_an_example(remote):
    assert tuple(TOOLS) == NAMES
    for tool in TOOLS.values():
        schema = tool.schema(remote=remote)
        assert set(schema["required"]) <= set(schema["properties"]) and len(tool.description()) < 400
        for name, one in schema["properties"].items():
            assert len(one["description"]) > 8 and one["examples"] not in ([None], [""]), (tool.name, name)
            numbers = {"integer", "number"} & {
                *([one.get("type")] if isinstance(one.get("type"), str) else one.get("type", []))
            }
            assert not numbers or " Unit: " in one["description"], (tool.name, name)


def test_every_example_is_taken_by_the_command():
    """click reads each as it reads a command line's."""
    seen = set()
    for tool in TOOLS.values():
        for name, one in tool.fields().items():
            if one.group == "architecture":
                continue
            bare = {"plan": "tp=1", "file": "-", "model": "llama3-8b"}
            context = tool.context(tool.words({**{key: bare[key] for key in tool.bare if key in bare}, name: example(one)}))
            assert context.params[name] not in (None, ()), (tool.name, name)
            usual = one.type is bool and not example(one) and not one.negative
            assert usual or context.get_parameter_source(name) is ParameterSource.COMMANDLINE, (tool.name, name)
            seen.add((one.group, name))
    assert len(seen) > 150


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("search", {"model": "175b", "gpus": 1024.0}, ["--model=175b", "--gpus=1024", "--top=3"]),
    ("search", {"model": "175b", "fix": {"tp": [4, 8]}, "top": 9}, ["--model=175b", "--fix=tp=4", "--fix=tp=8", "--top=9"]),
    ("search", {"model": "m", "gpu": ["h100", "b200"], "ep_overlap": False, "like": None},
     ["--model=m", "--gpu=h100", "--gpu=b200", "--no-ep-overlap", "--top=3"]),
    ("search", {"model": "m", "price": {"h100": 2.2, "b200": 4.5}, "num_layers": 4},
     ["--model=m", "--price=h100=2.2,b200=4.5", "--num-layers=4", "--top=3"]),
    ("budget", {"gpu": {"h100": 2.0}, "days": "8 weeks"}, ["--gpu=h100=2", "--days=8 weeks"]),
    ("model", {"model": "--help"}, ["-- --help"]),
    ("diagnose", {"files": ["a.log", "b.log"], "plan": "tp=2"}, ["-- a.log b.log tp=2"]),
])  # fmt: skip
def test_a_call_is_a_command_line(name, arguments, words):
    bare = words.pop().split()[1:] if words[-1].startswith("-- ") else []
    assert TOOLS[name].words(arguments) == [name, *words, "--json", "--", *bare]


@pytest.mark.parametrize("name", ["export", "report", "profile", "folder", "force", "as_json", "help", "--verbose", "help_all"])
def test_what_writes_measures_or_shows_is_for_a_shell(name):
    with pytest.raises(InputError, match="is not for a tool, which only answers"):
        TOOLS["search"].words({"model": "175b", name: "x"})
    assert name not in TOOLS["search"].schema()["properties"]


def test_over_http_no_argument_names_a_file():
    for tool in TOOLS.values():
        assert not {"file", "set", "gpu_table", "download"} & set(tool.schema(remote=True)["properties"])
    assert {"text", "settings"} <= set(TOOLS["check"].schema(remote=True)["properties"])
    assert TOOLS["diagnose"].schema(remote=True)["properties"]["files"]["type"] == "object"


def test_objects_stand_for_files_over_http():
    """They are the service's to read; what stands beside them is read as the command line reads it."""
    config = {"model_type": "llama", "hidden_size": 64}
    TOOLS["search"].read({"model": config, "gpus": 8, "cluster": {"gpus": 8}})
    TOOLS["check"].read({"text": "--num-layers 4", "settings": {"N": "4"}, "gpus": 8})
    TOOLS["diagnose"].read({"files": {"run.log": "x"}, "plan": "tp=2"})
    with pytest.raises(InputError, match="'abc' is no integer"):
        TOOLS["check"].read({"text": "--num-layers 4", "gpus": "abc"})


def test_keys_are_named_for_those_who_have_little_room():
    assert all(ONLY in tool.schema()["properties"] for tool in TOOLS.values())
    assert all(isinstance(tool.command, click.Command) for tool in TOOLS.values())
