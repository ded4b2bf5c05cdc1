"""`autoconfig mcp` as agents start it: the SDK's own client lists and calls every tool on standard input and output."""

import subprocess
import sys
from itertools import islice

import pytest

pytest.importorskip("mcp")

from command_line import run_in_process

from autoconfig.cli.agents.servers import message
from tests.cli.agents.agent_calls import ARGUMENTS, CALLS, HERE, WRONG, visit, without_seconds

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("mcp")]


@pytest.fixture(scope="module")
def visited(tmp_path_factory):
    """One server: its tools, and its answers to right calls, wrong ones, calls that want some keys, and no command lines."""
    file = tmp_path_factory.mktemp("mcp") / "given.txt"
    file.write_text(ARGUMENTS)
    arguments, _ = CALLS["model"]
    calls = {
        "right": [(name, {**one, **({"file": str(file)} if name == "check" else {})}) for name, (one, _) in CALLS.items()],
        "wrong": [(name, one) for name, one, _ in WRONG],
        "only": [("model", {**arguments, "only": only}) for only in (["parameters"], "family", ["size"], 7)],
        "none": [("search", one) for one in ({"model": "x" * 3_000_000}, {"model": "a\0b"}, {"fix": ["tp=8"] * 200_000})],
    }
    tools, answers = visit(HERE, [call for some in calls.values() for call in some])
    rest = iter(answers)
    return tools, {kind: list(islice(rest, len(some))) for kind, some in calls.items()}


def test_the_client_lists_every_tool(visited):
    assert list(visited[0]) == list(CALLS)
    for tool in visited[0].values():
        assert tool.annotations.read_only_hint and tool.input_schema["properties"] and "JSON" in tool.description


def test_every_answer_is_the_command_lines_json(visited, on_the_line):
    for (name, answer), told in zip(on_the_line[0].items(), visited[1]["right"], strict=True):
        assert without_seconds(told.answer) == answer, name


def test_a_wrong_argument_gets_the_command_lines_message(visited, on_the_line):
    for (_, _, words), done, told in zip(WRONG, on_the_line[1], visited[1]["wrong"], strict=True):
        assert done.exit_code == 2 and told.wrong and len(told.text) > 20
        assert done.stderr.strip().endswith(told.text), words


def test_only_the_keys_that_are_wanted(visited):
    first, second, third, fourth = visited[1]["only"]
    assert first.answer == {"parameters": 8030261248} and second.answer == {"family": "llama3"}
    assert third.wrong and "the answer has no 'size'; name keys" in third.text and "active_parameters" in third.text
    assert fourth.wrong and "name keys of it as a list" in fourth.text


def test_arguments_that_are_no_command_line(visited):
    assert all(told.wrong and told.text.startswith("the arguments are no command line: ") for told in visited[1]["none"])


def test_a_message_is_told_without_usage():
    assert message("error: --gpus 0: give one\n") == "--gpus 0: give one"
    assert (
        message("Usage: autoconfig x\nTry 'autoconfig x --help'.\n\nError: No such option '--a'.\n") == "No such option '--a'."
    )


def test_without_the_sdk_the_extra_is_named(tmp_path):
    """A plain install has no `mcp`."""
    code = "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None; from autoconfig.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", code, "mcp"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 2 and run.stderr.strip() == "error: this needs mcp: pip install 'megatron-autoconfig[mcp]'"


def test_options_of_serve_need_http():
    done = run_in_process("mcp", "--port", "9000")
    assert done.exit_code == 2 and "--port is for a service: say --http, too" in done.stderr
