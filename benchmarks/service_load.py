"""Load on a running service: requests per second and latency, repeated and fresh questions, and the server's memory.

    python -m benchmarks.service_load [--smoke]

starts a service on a free port, asks it, prints a table and ends it; with --smoke everything once and shortly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time

import psutil

QUESTION = {"model": "175b", "gpus": 1024, "gpu": "h100-sxm-80gb"}
SMOKE = "--smoke" in sys.argv[1:]
RUNS, SECONDS, FRESH = (1, 0.1, 1) if SMOKE else (5, 3.0, 12)
CLIENTS = (1,) if SMOKE else (1, 16, 64)
FEW, MANY = (20, 40) if SMOKE else (5_000, 50_000)
"""Requests after which the server's memory is read."""


async def client(port: int, bodies: list[bytes], until: float, latencies: list[float]) -> None:
    """One connection: sends the bodies in turn until the time is over, or once each where `until` is 0."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while (time.perf_counter() < until) if until else number < len(bodies):
        body = bodies[number % len(bodies)]
        number += 1
        start = time.perf_counter()
        head = f"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        length = re.search(rb"content-length: (\d+)", answer)
        assert length
        await reader.readexactly(int(length[1]))
        latencies.append(time.perf_counter() - start)
    writer.close()


async def load(port: int, clients: int, bodies: list[list[bytes]], seconds: float) -> tuple[float, list[float]]:
    latencies: list[float] = []
    start = time.perf_counter()
    until = start + seconds if seconds else 0.0
    await asyncio.gather(*(client(port, bodies[i % len(bodies)], until, latencies) for i in range(clients)))
    return len(latencies) / (time.perf_counter() - start), latencies


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def fresh_bodies(clients: int, run: int) -> list[list[bytes]]:
    """Questions that were never asked: another memory margin each, so that each is as hard as the first."""
    number = itertools.count(1 + 1_000 * run + 100_000 * clients)
    return [
        [json.dumps({**QUESTION, "memory_margin": next(number) * 1e-9}).encode() for _ in range(FRESH)] for _ in range(clients)
    ]


def rss_bytes(pid: int) -> int:
    total, process = 0, psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def start_service(folder: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--database", f"sqlite:///{folder}/service.db"]
    process = subprocess.Popen([*command, "--no-access-log"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    return process, int(line.rsplit(":", 1)[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        process, port = start_service(folder)
        try:
            body = [[json.dumps(QUESTION).encode()]]
            asyncio.run(load(port, 2, body, SECONDS))
            speed(port, body)
            memory(port, process.pid, body)
        finally:
            process.terminate()
            process.wait(30)


def speed(port: int, body: list[list[bytes]]) -> None:
    print("service: POST /v1/plans, 175B on 1,024 GPUs; medians of", RUNS, "runs")
    print(f"{'questions':<10} {'clients':>7} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}")
    for kind in ("repeated", "fresh"):
        for clients in CLIENTS:
            results = []
            for run in range(RUNS if kind == "repeated" or clients == 1 else 1):
                bodies = body if kind == "repeated" else fresh_bodies(clients, run)
                results.append(asyncio.run(load(port, clients, bodies, SECONDS if kind == "repeated" else 0.0)))
            rate = statistics.median(r for r, _ in results)
            p50, p99 = (statistics.median(percentile(times, q) for _, times in results) for q in (0.5, 0.99))
            print(f"{kind:<10} {clients:>7} {rate:>11,.0f} {p50 * 1e3:>8.1f} {p99 * 1e3:>8.1f}", flush=True)


def memory(port: int, pid: int, body: list[list[bytes]]) -> None:
    done, marks = 0, {}
    for target in (FEW, MANY):
        while done < target:
            _, latencies = asyncio.run(load(port, 16, body, SECONDS))
            done += len(latencies)
        marks[target] = rss_bytes(pid)
    early, late = (marks[count] / 2**20 for count in (FEW, MANY))
    print(f"RSS after {FEW:,} requests {early:.0f} MiB, after {MANY:,} {late:.0f} MiB: x {late / early:.3f}")


if __name__ == "__main__":
    main()
