"""`autoconfig mcp` as agents start it: the SDK's own client lists and calls every tool on standard input and output."""

import json
import sys

import pytest

pytest.importorskip("mcp")

from command_line import run_in_process

from autoconfig.cli.agents.servers import message
from tests.cli.agents.agent_calls import ARGUMENTS, CALLS, HERE, WRONG, ask, tools, without_seconds

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("mcp")]


def test_the_client_lists_every_tool():
    found = tools(HERE)
    assert list(found) == list(CALLS)
    for tool in found.values():
        assert tool.annotations.read_only_hint and tool.input_schema["properties"] and "JSON" in tool.description


def test_every_answer_is_the_command_lines_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "given.txt"
    file.write_text(ARGUMENTS)
    calls = [
        (name, {**arguments, **({"file": str(file)} if name == "check" else {})}) for name, (arguments, _) in CALLS.items()
    ]
    for (name, (_, words)), told in zip(CALLS.items(), ask(HERE, calls), strict=True):
        done = run_in_process(*words, "--json")
        assert without_seconds(told.answer) == without_seconds(json.loads(done.stdout)), name


def test_a_wrong_argument_gets_the_command_lines_message():
    for (_, _, words), told in zip(WRONG, ask(HERE, [(name, arguments) for name, arguments, _ in WRONG]), strict=True):
        done = run_in_process(*words)
        assert done.exit_code == 2 and told.wrong and len(told.text) > 20
        assert done.stderr.strip().endswith(told.text), words


def test_only_the_keys_that_are_wanted():
    arguments, _ = CALLS["model"]
    calls = [("model", {**arguments, "only": only}) for only in (["parameters"], "family", ["size"], 7)]
    first, second, third, fourth = ask(HERE, calls)
    assert first.answer == {"parameters": 8030261248} and second.answer == {"family": "llama3"}
    assert third.wrong and "the answer has no 'size'; name keys" in third.text and "active_parameters" in third.text
    assert fourth.wrong and "name keys of it as a list" in fourth.text


def test_arguments_that_are_no_command_line():
    calls = [("search", {"model": "x" * 3_000_000}), ("search", {"model": "a\0b"}), ("search", {"fix": ["tp=8"] * 200_000})]
    for told in ask(HERE, calls):
        assert told.wrong and told.text.startswith("the arguments are no command line: ")


def test_a_message_is_told_without_usage():
    assert message("error: --gpus 0: give one\n") == "--gpus 0: give one"
    assert (
        message("Usage: autoconfig x\nTry 'autoconfig x --help'.\n\nError: No such option '--a'.\n") == "No such option '--a'."
    )


def test_without_the_sdk_the_extra_is_named(tmp_path):
    """A plain install has no `mcp`."""
    import subprocess

    code = "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None; from autoconfig.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", code, "mcp"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 2 and run.stderr.strip() == "error: this needs mcp: pip install 'megatron-autoconfig[mcp]'"


def test_options_of_serve_need_http():
    done = run_in_process("mcp", "--port", "9000")
    assert done.exit_code == 2 and "--port is for a service: say --http, too" in done.stderr
