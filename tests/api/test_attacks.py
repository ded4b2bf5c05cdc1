"""What one caller can do to the others, timed: every attack of a review of November 2026, against real services. Figures are
printed (pytest -s)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.api.conftest import Running
from tests.api.test_access import make_key
from tests.api.test_queue import LONG, QUICK

pytestmark = [pytest.mark.service, pytest.mark.soak, pytest.mark.xdist_group("attacks")]
HEALTH_SECONDS, DELAY_SECONDS, END_SECONDS, MOST_MIB = 0.5, 3.0, 10.0, 400
CONFIG = {
    **{"model_type": "llama", "hidden_size": 16_384, "num_hidden_layers": 126, "num_attention_heads": 128},
    **{"vocab_size": 128_256, "num_key_value_heads": 8, "intermediate_size": 53_248, "notes": ["x" * 100] * 15_000},
}
LARGE = {**LONG, "model": CONFIG}
"""A long question of about 1.5 MiB."""


@pytest.fixture(scope="module")
def locked(services) -> Running:
    return services("--keys", "--search-workers", "0")


@pytest.fixture(scope="module")
def keys(locked) -> list[str]:
    return [make_key(locked, "plan", "read", "profile") for _ in range(2)]


WATCH = """
import http.client, sys, threading, time
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.1):
    begun = time.perf_counter()
    line = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    line.request("GET", "/healthz")
    assert line.getresponse().status == 200
    print(time.perf_counter() - begun)
    line.close()
"""
"""In a process of its own: the attackers' threads would hold it up."""


@contextmanager
def health(service: Running) -> Iterator[list[float]]:
    """Seconds that `/healthz` took, asked over a new connection every tenth of a second meanwhile; filled in at the end."""
    seconds: list[float] = []
    command = [sys.executable, "-c", WATCH, str(urlsplit(service.url).port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        try:
            yield seconds
        finally:
            out, _ = watching.communicate("")
            seconds += map(float, out.split())
    assert watching.returncode == 0 and seconds


def told(what: str, seconds: list[float]) -> None:
    print(f"\n{what}: /healthz {len(seconds)} times, at most {max(seconds):.2f} s", end="")
    assert max(seconds) <= HEALTH_SECONDS, what


def timed(client: httpx.Client, number: int) -> float:
    begun = time.perf_counter()
    answer = client.post("/v1/plans", json={**QUICK, "memory_margin": number / 1000})
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - begun


def hang_up(service: Running, key: str, body: dict, after: float) -> None:
    with suppress(httpx.TimeoutException):
        httpx.post(f"{service.url}/v1/scaling", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=after)


def test_long_questions_of_one_key_do_not_delay_another(locked, keys):
    mine, other = keys
    with locked.client(other) as client, ThreadPoolExecutor(32) as threads, health(locked) as seconds:
        alone = sorted(timed(client, number) for number in range(5))[2]
        bodies = [{**LONG, "memory_margin": number / 1000} for number in range(32)]
        for body in bodies[:16]:
            threads.submit(hang_up, locked, mine, body, 0.7)
        for body in bodies[16:]:
            threads.submit(hang_up, locked, mine, body, 60.0)
        delays = []
        for number in range(5, 20):
            delays.append(timed(client, number) - alone)
            time.sleep(0.7)
    print(f"\nalone {alone:.2f} s; behind 16 abandoned and 16 patient questions at most {max(delays):.2f} s more", end="")
    told("long questions", seconds)
    assert max(delays) <= DELAY_SECONDS


def test_many_large_questions_of_one_key_stay_small(locked, keys):
    process = psutil.Process(locked.process.pid)
    before, most = process.memory_info().rss, [0]

    def ask(number: int) -> int:
        body = json.dumps({**LARGE, "memory_margin": number / 1000}).encode()
        headers = {"Authorization": f"Bearer {keys[0]}", "Content-Type": "application/json"}
        try:
            return httpx.post(f"{locked.url}/v1/scaling", content=body, headers=headers, timeout=8).status_code
        except httpx.HTTPError:
            return 0
        finally:
            most[0] = max(most[0], process.memory_info().rss)

    with ThreadPoolExecutor(70) as threads, health(locked) as seconds, locked.client(keys[1]) as client:
        found = threads.map(ask, range(280))
        other = timed(client, 100)
        codes = [*found]
    counts = {code: codes.count(code) for code in sorted(set(codes))}
    print(
        f"\n280 large questions: {counts}; service {before / 2**20:.0f} -> {most[0] / 2**20:.0f} MiB; other {other:.2f} s",
        end="",
    )
    told("large questions", seconds)
    assert most[0] <= MOST_MIB * 2**20 and set(codes) <= {0, 200, 429, 503} and counts[429] > 200


@pytest.mark.parametrize(("path", "body"), [
    ("predict", {"rows": [{"id": "a", **{f"a{number}": [] for number in range(150_000)}}]}),
    ("predict", {"rows": [{"id": "a", **{f"a{number}": [] for number in range(180)}}] * 1_000}),
    ("measurements", {"rows": [{"id": "a", **{f"a{number}": [] for number in range(150_000)}}]}),
    ("scaling", {"model": "1.7b", "gpus": [""] * 500_000}),
    ("plans", {f"a{number}": 1 for number in range(120_000)}),
    ("searches", {f"a{number}": 1 for number in range(120_000)}),
    ("batch", {"questions": [{"kind": "plans", "question": {f"a{number}": [] for number in range(100)}}] * 1_000}),
])  # fmt: skip
def test_large_bodies_that_are_wrong_do_not_hold_the_loop(locked, keys, path, body):
    raw = json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {keys[0]}", "Content-Type": "application/json"}
    with ThreadPoolExecutor(8) as threads, health(locked) as seconds:
        asked = [
            threads.submit(httpx.post, f"{locked.url}/v1/{path}", content=raw, headers=headers, timeout=60) for _ in range(16)
        ]
        codes = {one.result().status_code for one in asked}
        time.sleep(0.2)
    told(f"{path}, {len(raw) / 2**20:.1f} MiB {codes}", seconds)
    assert codes <= {400, 413, 429, 503}


def connections(service: Running, count: int, sent: bytes) -> ExitStack:
    """Open connections, on each of which this was sent."""
    address = urlsplit(service.url)
    held = ExitStack()
    for _ in range(count):
        line = held.enter_context(socket.create_connection((address.hostname, address.port), timeout=20))
        line.sendall(sent)
    return held


@pytest.mark.parametrize("sent", [b"", b"GET /v1/gpus HTTP/1.1\r\nHost: x\r\nX: ",
                                  b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{"])  # fmt: skip
def test_open_connections_do_not_shut_others_out(locked, keys, sent):
    with health(locked) as seconds, connections(locked, 1_000, sent), locked.client(keys[1]) as client:
        took = timed(client, 200 + len(sent))
        assert httpx.get(f"{locked.url}/readyz").status_code == 200
        time.sleep(1.0)
    print(f"\n1,000 connections: a question {took:.2f} s", end="")
    told(f"connections with {sent[:20]!r}", seconds)


def test_wrong_keys_do_not_hold_the_service(locked, keys):
    def guess(number: int) -> list[int]:
        headers = {"Authorization": f"Bearer ac_{keys[0].split('_')[1]}_{number}"}
        with httpx.Client(headers=headers) as client:
            return [client.get(f"{locked.url}/v1/gpus").status_code for _ in range(100)]

    with ThreadPoolExecutor(16) as threads, health(locked) as seconds, locked.client(keys[1]) as client:
        begun = time.perf_counter()
        found = threads.map(guess, range(32))
        took = timed(client, 300)
        codes = [code for one in found for code in one]
        rate = len(codes) / (time.perf_counter() - begun)
    print(
        f"\nwrong keys, {rate:.0f} a second: {codes.count(401)} of 401, {codes.count(429)} of 429; a question {took:.2f} s",
        end="",
    )
    told("wrong keys", seconds)
    assert set(codes) == {401, 429} and codes.count(401) < 0.2 * len(codes)


def test_a_signal_ends_the_service_in_time(services):
    """With questions, a search and a stream that run."""
    service = services("--search-workers", "1")
    with ThreadPoolExecutor(21) as threads, service.client() as client:
        search = client.post("/v1/searches", json={**LONG, "gpus": 16_384, "gpu": "h100-sxm-80gb"}).json()["id"]
        asked: list[Callable[[], object]] = [
            lambda number=number: client.post("/v1/scaling", json={**LONG, "memory_margin": number / 1000})
            for number in range(20)
        ]
        running = [threads.submit(one) for one in (*asked, lambda: client.get(f"/v1/searches/{search}/events"))]
        time.sleep(3.0)
        begun = time.perf_counter()
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(60)
        took = time.perf_counter() - begun
        codes = sorted(one.result().status_code for one in running)
    print(f"\nSIGTERM: {took:.1f} s, answers {codes}", end="")
    assert took <= END_SECONDS and set(codes) <= {200, 503}
    assert not [child for child in psutil.process_iter(["ppid"]) if child.info["ppid"] == service.process.pid], os.getpid()
