"""Requests of fixed lengths against an OpenAI-compatible server's /v1/completions, streamed, each token's time noted.

Prompts are token numbers, answers end at `max_tokens` alone (`ignore_eos`), greedy. HTTP/1.1 over asyncio, one connection a
request; a token is an event of the stream, or what `token_ids` counts where the server sends them (vLLM).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from autoconfig.specs.errors import AutoconfigError

CONNECT_S = 30.0
DONE = "[DONE]"


class ServerError(AutoconfigError):
    """The server refused a request, or broke off; the message says what it said."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request: seconds to the first token, seconds a later token, output tokens."""

    ttft_s: float
    tpot_s: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class LoadRound:
    """One round: its wall seconds, and every answer."""

    seconds: float
    answers: tuple[Answer, ...]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the round over its time."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


def load_round(port: int, model: str, prompts: list[list[int]], new: int) -> LoadRound:
    """All prompts at once, until the last is answered. Raises ServerError."""
    return asyncio.run(_round(port, model, prompts, new))


async def _round(port: int, model: str, prompts: list[list[int]], new: int) -> LoadRound:
    start = time.perf_counter()
    answers = await asyncio.gather(*(_request(port, model, prompt, new) for prompt in prompts))
    return LoadRound(seconds=time.perf_counter() - start, answers=tuple(answers))


async def _request(port: int, model: str, prompt: list[int], new: int) -> Answer:
    asked = {
        "model": model, "prompt": prompt, "max_tokens": new, "temperature": 0.0, "ignore_eos": True, "stream": True,
        "return_token_ids": True, "detokenize": False,
    }  # fmt: skip
    start = time.perf_counter()
    first = last = start
    tokens = 0
    async for event in _events(port, json.dumps(asked).encode()):
        last = time.perf_counter()
        first = last if not tokens else first
        tokens += event
    if tokens != new:
        raise ServerError(f"the server answered with {tokens} tokens where {new} were asked for")
    return Answer(ttft_s=first - start, tpot_s=(last - first) / (new - 1), tokens=tokens)


async def _events(port: int, body: bytes) -> AsyncIterator[int]:
    """Output tokens of each event of the stream. Raises ServerError."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), CONNECT_S)
    except (OSError, TimeoutError) as error:
        raise ServerError(f"the server does not accept connections: {error}") from error
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            said = (await reader.read(2000)).decode(errors="replace")
            raise ServerError(f"the server says {status.decode(errors='replace').strip()}: {' '.join(said.split())[:300]}")
        while line := await reader.readline():
            text = line.decode(errors="replace").strip()
            if text.startswith("data: ") and text != f"data: {DONE}":  # sizes of chunks lie between, on lines of their own
                yield _tokens(text.removeprefix("data: "))
    except OSError as error:
        raise ServerError(f"the server broke off: {error}") from error
    finally:
        writer.close()


def _tokens(text: str) -> int:
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ServerError(f"the server sent no JSON: {text[:200]}") from error
    if "choices" not in event:
        raise ServerError(f"the server says {text[:300]}")
    counted = [choice.get("token_ids") for choice in event["choices"]]
    return sum(1 if ids is None else len(ids) for ids in counted)
