"""A request's command line asks the same question again."""

import shlex

import click
import pytest

from autoconfig.cli.main import cli
from autoconfig.cli.training import explain_command, search_command
from autoconfig.planning.commands import command_line
from autoconfig.planning.request_fields import QUESTION, SEARCH
from autoconfig.training.question import request_of, values_of

QUESTIONS = {
    "plain": "--model 175b --gpus 1024",
    "units": "--model 13b --gpus 64 --seq-length 8k --tokens 1.5T --price h100=2.5,b200=4 --memory-margin 5% --fit-chance 0.5",
    "plans": "--model mixtral-8x7b --gpus 64 --gpu h100 --fix tp=2 --fix pp=1 --max mbs=2 --include tp=2,pp=1,mbs=1 --top 3",
    "switches": "--model 13b --gpus 64 --no-compile --loss fused --cuda-graphs attn --zero-bucket 200000000",
    "numbers": "--model 13b --gpus 8 --peft lora --lora-rank 16 --num-layers 12 --no-gated-linear-unit --precision fp8",
}


def read(command, words):
    """What click reads, as below `autoconfig`, whose names of --help a command keeps from its first context on."""
    return command.make_context(command.name, words, parent=click.Context(cli, **cli.context_settings)).params


@pytest.mark.parametrize("words", QUESTIONS.values(), ids=QUESTIONS)
def test_it_is_read_as_the_same_request(words):
    def asked(words):
        values = read(search_command, words)
        return request_of(
            {**values, "gpu": ",".join(values["gpu"]) or None, "precision": ",".join(values["precision"]) or None}
        )

    request = asked(shlex.split(words))
    line = shlex.split(command_line("search", (*QUESTION, *SEARCH), values_of(request)))
    assert line[:2] == ["autoconfig", "search"]
    assert asked(line[2:]) == request


def test_what_is_the_default_is_not_said():
    request = request_of({"model": "175b", "gpus": 1024})
    assert command_line("search", (*QUESTION, *SEARCH), values_of(request)) == "autoconfig search --model 175b --gpus 1024"


@pytest.mark.parametrize(("words", "name"), [("--gpus 64 --vary dispatcher", "dispatcher"), ("--gpus-at-most 64", "gpus")])
def test_a_plan_of_a_search_is_explained_by_what_the_search_chose(autoconfig, words, name):
    """Neither option is one of explain's."""
    screen = autoconfig.run("search", "--model", "mixtral-8x7b", "--gpu", "h100", *words.split()).stdout
    line = next(line for line in screen.splitlines() if line.startswith("autoconfig explain"))
    assert read(explain_command, shlex.split(line)[2:])[name]
