"""Calls of every tool, in the words of an agent, with the command lines that they are; and the SDK's own client."""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

ARGUMENTS = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --bf16 --vocab-size 50257"
)
SMALL = {"model": "llama3-8b", "gpus": 8}
ON_THE_LINE = ("--model", "llama3-8b", "--gpus", "8")
CALLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "search": ({**SMALL, "fix": {"tp": 2}, "top": 2}, ("search", *ON_THE_LINE, "--fix", "tp=2", "--top", "2")),
    "explain": ({**SMALL, "plan": "tp=2,mbs=1,sp=1"}, ("explain", *ON_THE_LINE, "tp=2,mbs=1,sp=1")),
    "check": ({"gpus": 8, "gpu": "h100"}, ("check", "given.txt", "--gpus", "8", "--gpu", "h100")),
    "diagnose": (
        {**SMALL, "plan": "tp=2,mbs=1,sp=1", "step": "90s"},
        ("diagnose", *ON_THE_LINE, "--step", "90s", "tp=2,mbs=1,sp=1"),
    ),
    "deployments": (
        {"model": "llama3-8b", "gpus": 1, "top": 1, "simulate": 0},
        ("deployments", "--model", "llama3-8b", "--gpus", "1", "--top", "1", "--simulate", "0"),
    ),
    "rl": ({"model": "qwen2.5-7b", "gpus": 8, "top": 1}, ("rl", "--model", "qwen2.5-7b", "--gpus", "8", "--top", "1")),
    "model": ({"model": "llama3-8b"}, ("model", "llama3-8b")),
    "budget": (
        {"money": "$2k", "days": 3, "model": "llama3-8b", "gpu": {"h100": 2.2}, "tokens": "100B", "gpus": 32},
        (
            "budget",
            "--money",
            "$2k",
            "--days",
            "3",
            "--model",
            "llama3-8b",
            "--gpu",
            "h100=2.2",
            "--tokens",
            "100B",
            "--gpus",
            "32",
        ),
    ),
}
"""Tool -> its arguments and the command line; of `check` without its file, which a service takes as a text."""
WRONG: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("search", {**SMALL, "precision": "fp7"}, ("search", *ON_THE_LINE, "--precision", "fp7")),
    ("search", {"model": "llama3-8b", "gpus": "abc"}, ("search", "--model", "llama3-8b", "--gpus", "abc")),
    ("search", {"model": "llama3-8b", "gpus": 0}, ("search", "--model", "llama3-8b", "--gpus", "0")),
    ("search", {"model": "llama3-9x", "gpus": 8}, ("search", "--model", "llama3-9x", "--gpus", "8")),
    ("search", {**SMALL, "seq_len": 8192}, ("search", *ON_THE_LINE, "--seq-len", "8192")),
    ("search", {**SMALL, "fix": ["tp=3", "tq=2"]}, ("search", *ON_THE_LINE, "--fix", "tp=3", "--fix", "tq=2")),
    ("explain", SMALL, ("explain", *ON_THE_LINE)),
    ("explain", {**SMALL, "plan": "tp=two"}, ("explain", *ON_THE_LINE, "tp=two")),
    ("diagnose", {**SMALL, "plan": "tp=2", "step": "soon"}, ("diagnose", *ON_THE_LINE, "--step", "soon", "tp=2")),
    ("deployments", {**SMALL, "ttft": "abc"}, ("deployments", *ON_THE_LINE, "--ttft", "abc")),
    ("deployments", {**SMALL, "goal": "speed"}, ("deployments", *ON_THE_LINE, "--goal", "speed")),
    ("rl", {**SMALL, "algorithm": "grop"}, ("rl", *ON_THE_LINE, "--algorithm", "grop")),
    ("model", {"model": "lama3-8b"}, ("model", "lama3-8b")),
    ("budget", {"money": "much", "days": 60}, ("budget", "--money", "much", "--days", "60")),
    ("budget", {"money": "3M", "days": -1}, ("budget", "--money", "3M", "--days", "-1")),
]
"""Wrong arguments: tool, arguments, the command line."""
HERE = StdioServerParameters(command=sys.executable, args=["-m", "autoconfig", "mcp"])


@dataclass(frozen=True)
class Told:
    """What a call of a tool came to."""

    wrong: bool
    text: str

    @property
    def answer(self) -> Any:
        """Its JSON."""
        assert not self.wrong, self.text
        return json.loads(self.text)


def _reached(server: Any) -> Any:
    """What the client takes; its first releases take no program to start."""
    return stdio_client(server) if isinstance(server, StdioServerParameters) else server


def visit(server: Any, calls: list[tuple[str, dict[str, Any]]]) -> tuple[dict[str, Any], list[Told]]:
    """The tools by name that a server (a URL, or a program to start) lists, and its answers to calls one after the other, by
    the SDK's own client."""

    async def all_of_them() -> tuple[dict[str, Any], list[Told]]:
        async with Client(_reached(server)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            answers = []
            for name, arguments in calls:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                if not result.is_error:
                    assert result.structured_content == json.loads(content.text)
                answers.append(Told(result.is_error, content.text))
            return tools, answers

    return asyncio.run(all_of_them())


def ask(server: Any, calls: list[tuple[str, dict[str, Any]]]) -> list[Told]:
    """The answers of a server alone."""
    return visit(server, calls)[1]


def without_seconds(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without the seconds that it took."""
    if "funnel" not in answer:
        return answer
    return {**answer, "funnel": {key: one for key, one in answer["funnel"].items() if not key.startswith("seconds")}}
