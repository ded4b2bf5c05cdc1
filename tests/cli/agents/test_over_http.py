"""Tools of agents at `/mcp` of a service: by the SDK's own client, behind the keys, the check of Host and the limits."""

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

pytest.importorskip("mcp")

from command_line import run_in_process
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from autoconfig.cli.agents.tools import TOOLS
from tests.cli.agents.agent_calls import ARGUMENTS, CALLS, WRONG, ask, visit, without_seconds

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("mcp")]
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def open_service(services):
    return services("--mcp", "--workers", "1", "--search-workers", "0")


def test_every_tool_is_listed_and_answers_as_the_command_line(open_service, on_the_line):
    calls = [(name, {**one, **({"text": ARGUMENTS} if name == "check" else {})}) for name, (one, _) in CALLS.items()]
    tools, answers = visit(f"{open_service.url}/mcp", calls)
    assert list(tools) == list(CALLS)
    assert {name: without_seconds(told.answer) for name, told in zip(CALLS, answers, strict=True)} == on_the_line[0]


def _as_fields(text):
    """Options spelled as the fields of HTTP are."""
    return re.sub(r"--([a-z0-9-]+)", lambda option: option[1].replace("-", "_"), text)


def test_a_wrong_argument_gets_the_command_lines_message(open_service, on_the_line):
    answers = ask(f"{open_service.url}/mcp", [(name, arguments) for name, arguments, _ in WRONG])
    for (_, _, words), done, told in zip(WRONG, on_the_line[1], answers, strict=True):
        assert told.wrong and _as_fields(done.stderr.strip()).endswith(_as_fields(told.text)), (words, told.text)


def test_no_file_of_the_service_is_read(open_service, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}))
    calls = [
        ("model", {"model": str(config)}), ("check", {"file": str(config)}),
        ("search", {"model": "7b", "cluster": str(config)}),
        ("deployments", {"model": "llama3-8b", "gpus": 1, "trace": str(config)}), ("diagnose", {"files": [str(config)]}),
        ("explain", {"model": "7b", "gpus": 8, "plan": str(config)}), ("search", {"model": "7b", "include": [str(config)]}),
    ]  # fmt: skip
    for (name, _), told in zip(calls, ask(f"{open_service.url}/mcp", calls), strict=True):
        assert told.wrong and "hidden_size" not in told.text, name


def test_a_call_is_kept_like_a_question(open_service):
    """The same body gives the same bytes, computed once: `/metrics` counts it."""

    def kept(client):
        text = client.get("/metrics").text
        return float(next(line for line in text.splitlines() if line.startswith("autoconfig_answers_cached_total")).split()[-1])

    call = ("search", {"model": "1.7b", "gpus": 8, "gpu": "a100-80gb", "top": 3})
    with open_service.client() as client:
        before = kept(client)
        first, second = ask(f"{open_service.url}/mcp", [call, call])
        assert first == second and kept(client) >= before + 1


def test_hosts_bodies_and_methods_are_those_of_the_service(open_service):
    with open_service.client() as client:
        assert client.post("/mcp", json=LIST, headers=HEADERS).json()["result"]["tools"]
        assert client.post("/mcp", json=LIST, headers={**HEADERS, "Host": "attacker.example"}).status_code == 421
        assert client.post("/mcp", json=LIST, headers={**HEADERS, "Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert client.post("/mcp", json=LIST, headers={**HEADERS, "Origin": "http://attacker.example"}).status_code == 403
        assert client.post("/mcp", content="{}", headers={**HEADERS, "Content-Type": "text/plain"}).status_code == 415
        large = client.post("/mcp", content=b"x" * (2**21 + 1), headers={**HEADERS, "Content-Type": "application/json"})
        assert large.status_code == 413
        assert client.get("/mcp", headers=HEADERS).status_code == 405 and client.delete("/mcp").status_code == 405
        deep = {"model": "7b", "gpus": 8, "cluster": json.loads("[" * 60 + "]" * 60)}
        (told,) = ask(f"{open_service.url}/mcp", [("search", deep)])
        assert told.wrong


def test_what_is_long_is_refused_before_it_is_read(open_service):
    calls = [("search", {"model": "7b", "fix": ["tp=8"] * 150_000}), ("search", {"model": "x" * 1_500_000})]
    begun = time.monotonic()
    first, second = ask(f"{open_service.url}/mcp", calls)
    assert first.wrong and "fix: 150,000 entries are given, at most 64" in first.text
    assert second.wrong and len(second.text) < 1_000 and time.monotonic() - begun < 30


@pytest.fixture(scope="module")
def with_keys(services):
    return services("--mcp", "--keys", "--workers", "1", "--search-workers", "0", "--requests-per-second", "3")


def make(service, scope):
    """A new key of the scope."""
    return run_in_process("keys", "create", "--name", "a", "--scope", scope, "--database", service.database).stdout.strip()


def test_a_key_and_its_rate_are_asked_for(with_keys):
    with with_keys.client() as client:
        assert client.post("/mcp", json=LIST, headers=HEADERS).status_code == 401
    with with_keys.client(make(with_keys, "read")) as client:
        assert client.post("/mcp", json=LIST, headers=HEADERS).status_code == 403
    with with_keys.client(make(with_keys, "plan")) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post("/mcp", json=LIST, headers=HEADERS), range(24)))
        assert {answer.status_code for answer in answers} == {200, 429}
        assert all(answer.headers["Retry-After"] for answer in answers if answer.status_code == 429)


def test_the_client_comes_in_with_a_key(with_keys):
    async def counted():
        key = {"Authorization": f"Bearer {make(with_keys, 'plan')}"}
        async with (
            httpx2.AsyncClient(headers=key, timeout=60) as http,
            Client(streamable_http_client(f"{with_keys.url}/mcp", http_client=http)) as client,
        ):
            return await client.call_tool("model", {"model": "llama3-8b"})

    assert asyncio.run(counted()).structured_content["parameters"] == 8030261248


def test_what_is_too_large_a_question_is_said(services):
    service = services("--mcp", "--workers", "1", "--search-workers", "0", "--answer-seconds", "0.1")
    (told,) = ask(f"{service.url}/mcp", [("search", {"model": "deepseek-v3", "gpus": 256})])
    assert told.wrong and ("too large a question" in told.text or "no process was free" in told.text)


def test_every_tool_is_called_here():
    assert len(TOOLS) == len(CALLS)
