"""The services of the tests of HTTP; what the command lines of all calls print."""

import json

import pytest
from command_line import run_in_process

from tests.api.conftest import service, services

__all__ = ["on_the_line", "service", "services"]


@pytest.fixture(scope="session")
def on_the_line(tmp_path_factory):
    """(Tool -> what the command line of its call answers, what those of the wrong calls come to)."""
    from tests.cli.agents.agent_calls import ARGUMENTS, CALLS, WRONG, without_seconds

    folder = tmp_path_factory.mktemp("agents")
    (folder / "given.txt").write_text(ARGUMENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = {name: run_in_process(*words, "--json").stdout for name, (_, words) in CALLS.items()}
    answers = {name: without_seconds(json.loads(text)) for name, text in printed.items()}
    return answers, [run_in_process(*words) for _, _, words in WRONG]
