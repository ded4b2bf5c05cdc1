"""`python -P -m autoconfig.profiler.vllm_server --job job.json --python PYTHON`: one generation job on vLLM's OpenAI server.

Starts the server in a process group of its own with random weights (`--load-format dummy`; lengths are fixed, so that what is
generated changes no time), waits until it answers, loads it in rounds, ends the group, writes result.json. PYTHON has vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoconfig.profiler.folder import write_json, write_text
from autoconfig.profiler.processes import die_with_parent, group_members
from autoconfig.specs.errors import GIB, AutoconfigError, InputError
from autoconfig.specs.job import Job, read_job
from autoconfig.specs.measurement import RESULT_FILE, ExitCode, Measurement, Served, measurement_text, step_statistics
from autoconfig.specs.models.huggingface import huggingface_config

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
        return sum(answer.tokens for answer in self.answers) / self.seconds


async def load_round(port: int, model: str, prompts: list[list[int]], new: int) -> LoadRound:
    """All prompts at once, until the last is answered. Raises ServerError."""
    start = time.perf_counter()
    answers = await asyncio.gather(*(_request(port, model, prompt, new) for prompt in prompts))
    return LoadRound(seconds=time.perf_counter() - start, answers=tuple(answers))


async def _request(port: int, model: str, prompt: list[int], new: int) -> Answer:
    asked = {
        "model": model,
        "prompt": prompt,
        "max_tokens": new,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "detokenize": False,
    }
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
    except (ValueError, RecursionError) as error:
        raise ServerError(f"the server sent no JSON: {text[:200]}") from error
    if "choices" not in event:
        raise ServerError(f"the server says {text[:300]}")
    counted = [choice.get("token_ids") for choice in event["choices"]]
    return sum(1 if ids is None else len(ids) for ids in counted)


MODEL_FOLDER, LOG_FILE = "model", "server.log"
SERVER = "vllm.entrypoints.openai.api_server"
GRACE_S = 5.0
LOOK_S = 0.5
STATE_S = 5.0
OUT_OF_MEMORY = ("out of memory", "No available memory for the cache blocks", "is larger than the available KV cache memory")
"""What vLLM's log says of a model or cache that does not fit."""
MAX_LOG = 20_000
CACHE_SPARE = 1.25
"""Cache of a CPU server over what the requests hold: blocks are of 16 tokens and more."""
FP32_BYTES = 4


def main(arguments: list[str] | None = None) -> ExitCode:
    """Run the job to a result.json; the process's exit code."""
    prog = "python -P -m autoconfig.profiler.vllm_server"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, allow_abbrev=False)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--python", required=True, help="interpreter that has vLLM")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # so that the server is ended on the way out
    started = time.monotonic()
    folder = options.job.resolve().parent
    try:
        job = read_job(options.job)
        if job.generation is None or job.generation.engine != "vllm":
            raise InputError("the job is none of vLLM's: generation.engine=vllm")
        measured = _measure(job, folder, options.python)
    except InputError as error:
        print(f"trainer: {error}", file=sys.stderr, flush=True)
        return ExitCode.BAD_JOB
    except AutoconfigError as error:
        full = any(said in _log(folder) for said in OUT_OF_MEMORY)
        code = ExitCode.OUT_OF_MEMORY if full else ExitCode.CRASHED
        result = _measurement(job, code, str(error), started)
        print(f"trainer: {error}", file=sys.stderr, flush=True)
    else:
        code, result = ExitCode.RAN, _measurement(job, ExitCode.RAN, "", started, measured)
    write_text(folder / RESULT_FILE, measurement_text(result))
    return code


def _measure(job: Job, folder: Path, python: str) -> list[LoadRound]:
    asked = job.generation
    assert asked is not None
    model = folder / MODEL_FOLDER
    model.mkdir(exist_ok=True)
    write_json(model / "config.json", huggingface_config(job.model))
    most, batch = job.model.vocab_size - 1, job.plan.mbs
    found = []
    with _server(job, model, python) as port:
        for number in range(job.warmup_steps + job.steps):
            # other tokens in every round: nothing of it is in a prefix cache
            prompts = [[(7 * i + 13 * number + j) % most + 1 for j in range(asked.prompt)] for i in range(batch)]
            one = asyncio.run(load_round(port, str(model), prompts, asked.new))
            found.append(one)
            print(f"round {number + 1}: {one.seconds:.4g} s, {one.tokens_per_s:.4g} tokens/s", flush=True)
    return found[job.warmup_steps :]


def server_command(job: Job, model: Path, python: str, port: int) -> list[str]:
    """The server's command line: what decides speed is said, nothing is left to its own choice."""
    asked, plan = job.generation, job.plan
    assert asked is not None
    length = asked.prompt + asked.new
    options = [
        "--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(length), "--max-num-seqs", str(plan.mbs), "--tensor-parallel-size", str(plan.tp),
        "--no-enable-prefix-caching", "--seed", str(job.seed),
        "--dtype", "float32" if job.numerics.precision == "fp32" else "bfloat16",
    ]  # fmt: skip
    if asked.tokens is not None:
        options += ["--max-num-batched-tokens", str(max(asked.tokens, plan.mbs))]
    if job.device == "cpu":
        options.append("--enforce-eager")  # compiling takes longer than a job
    return [python, "-P", "-m", SERVER, *options]


def server_environment(job: Job) -> dict[str, str]:
    """Variables of the server: no usage statistics, no look at the network; on a CPU one thread a rank and the cache's size."""
    found = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    if job.device == "cpu":
        asked, model = job.generation, job.model
        assert asked is not None
        token = 2 * model.num_layers * model.num_query_groups * model.kv_channels * FP32_BYTES
        need = CACHE_SPARE * job.plan.mbs * (asked.prompt + asked.new) * token
        found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil(need / GIB)))}
    return found


@contextlib.contextmanager
def _server(job: Job, model: Path, python: str) -> Iterator[int]:
    """The port of a server that answers; ended with all its processes on leaving. Raises ServerError."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    with (model.parent / LOG_FILE).open("ab") as log:  # appended to, so that it can be cut
        log.truncate(0)
        process = subprocess.Popen(
            server_command(job, model, python, port),
            env={**os.environ, **server_environment(job)},
            cwd=model.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        try:
            _wait_until_up(process, port, model.parent)
            yield port
        finally:
            end_group(process)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    """The runner's time limit is the only one. Raises ServerError where the server ended."""
    while True:
        if process.poll() is not None:
            raise ServerError(f"vLLM's server ended with {process.returncode} before it answered: {_last_words(folder)}")
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=STATE_S) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(LOOK_S)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its whole group, politely first; when this returns none of them lives."""
    for number, grace in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + grace
        while group_members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
    process.poll()


def _measurement(job: Job, code: ExitCode, message: str, started: float, rounds: list[LoadRound] | None = None) -> Measurement:
    served = None if rounds is None else _served(rounds)
    samples = tuple(one.seconds for one in rounds or ())
    return Measurement(
        job_hash=job.content_hash,
        plan=str(job.plan),
        mode=job.mode,
        status={ExitCode.RAN: "ran", ExitCode.OUT_OF_MEMORY: "oom"}.get(code, "failed"),
        exit_code=int(code),
        message=message[:1000],
        software="vllm",
        device=job.device,
        host=socket.gethostname(),
        wall_seconds=time.monotonic() - started,
        served=served,
        **(step_statistics(samples) if samples else {}),
    )


def _served(rounds: list[LoadRound]) -> Served:
    fastest, answers = min(rounds, key=lambda one: one.seconds), [answer for one in rounds for answer in one.answers]
    return Served(
        ttft_seconds=statistics.fmean(answer.ttft_s for answer in fastest.answers),
        tpot_seconds=statistics.fmean(answer.tpot_s for answer in fastest.answers),
        output_tokens_per_second=fastest.tokens_per_s,
        requests=len(answers),
        ttft_samples=tuple(answer.ttft_s for answer in answers),
        tpot_samples=tuple(answer.tpot_s for answer in answers),
    )


def _log(folder: Path) -> str:
    try:
        return (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")[-MAX_LOG:]
    except OSError:
        return ""


def _last_words(folder: Path) -> str:
    """The error that vLLM's log ends with: its last line that names one, else its last line."""
    lines = [line.strip() for line in _log(folder).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["its log is empty"])[-1][-300:] + f" (log {folder / LOG_FILE})"


def _interrupt(*_: object) -> None:
    raise SystemExit(int(ExitCode.TERMINATED))


if __name__ == "__main__":
    raise SystemExit(main())
