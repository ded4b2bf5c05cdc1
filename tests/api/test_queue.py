"""The queue of questions: bounded, shared among keys, left by those who hang up, ended with the service."""

import asyncio
import json
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from autoconfig.api import compute as computing
from autoconfig.api.answers import answer
from autoconfig.api.compute import AnswerCache, Compute
from autoconfig.api.limits import Room
from autoconfig.api.problems import RefusedError
from autoconfig.api.routes.answers import RUN_EXAMPLE
from autoconfig.api.turns import Turns
from autoconfig.api.wire.bodies import BODIES, READERS, read_body

from autoconfig.client import Client, ServiceError
from tests.api.conftest import Running, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]
QUICK = {"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb", "top": 1}
LONG = {"model": "deepseek-v3", "gpus": "1024:65536", "gpu": ["h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"]}
"""Longer than any limit of these tests."""


def quick(number: int) -> bytes:
    return json.dumps({**QUICK, "memory_margin": (number + 1) / 1000}).encode()


def long(number: int) -> bytes:
    return json.dumps({**LONG, "memory_margin": (number + 1) / 1000}).encode()


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., object]]:
    """Runs a coroutine function with a Compute of one process, and none to spare unless asked for."""
    made: list[Compute] = []

    def inner(work: Callable[[Compute], Awaitable[object]], **settings: object) -> object:
        compute = Compute(1, **{"seconds": 60.0, "cache_bytes": 10_000_000, **settings})
        compute.start()
        made.append(compute)

        async def whole() -> object:
            await compute.run("plans", READERS["plans"](quick(0)))  # the process is there
            return await asyncio.wait_for(work(compute), 120)

        with ThreadPoolExecutor(1) as thread:  # the browser of other tests leaves a loop running in this one
            found = thread.submit(lambda: asyncio.run(whole())).result()
        compute.stop()
        return found

    yield inner
    for one in made:
        one.stop()


def ask(compute: Compute, kind: str, raw: bytes, owner: str = "", **more: object) -> asyncio.Task:
    return asyncio.ensure_future(compute.answer(kind, raw, AnswerCache.key(kind, raw), owner=owner, **more))


def test_the_queue_is_bounded_for_a_key_and_for_all(run, monkeypatch):
    monkeypatch.setattr(computing, "MOST_WAITING_OF_ONE", 3)
    monkeypatch.setattr(computing, "MOST_WAITING", 5)

    async def work(compute: Compute) -> list[int]:
        asked = [ask(compute, "scaling", long(number), "a") for number in range(4)]  # one runs, three wait
        await asyncio.sleep(0)
        for owner, status in (("a", 429), ("b", None), ("b", None), ("c", 503), ("b", 503)):
            one = ask(compute, "plans", quick(len(asked)), owner)
            await asyncio.sleep(0)
            asked.append(one)
            assert (one.done() and one.exception().status) == (status or False)
            if status is not None:
                assert 1 <= int(one.exception().headers["Retry-After"]) <= 30
        patient = ask(compute, "plans", quick(9), "a", patient=True)
        await asyncio.sleep(0)
        assert not patient.done() and compute.waiting == 7
        for task in (*asked, patient):
            task.cancel()
        await asyncio.gather(*asked, patient, return_exceptions=True)
        return compute.waiting

    assert run(work) == 1  # the one that runs is ended a moment later


def test_who_hangs_up_takes_the_question_along(run, monkeypatch):
    monkeypatch.setattr(computing, "ABANDONED_SECONDS", 0.2)

    async def work(compute: Compute) -> None:
        asked = [ask(compute, "scaling", long(number), "a") for number in range(3)]
        also = ask(compute, "scaling", long(0), "a")  # waits for the first one's computation
        other = ask(compute, "plans", quick(1), "b")
        await asyncio.sleep(0.5)
        assert compute.waiting == 4
        for task in asked:
            task.cancel()
        await asyncio.sleep(1.0)
        assert compute.waiting == 2 and not also.done() and not other.done()  # one still waits for the long one
        also.cancel()
        assert (await other).body == answer("plans", READERS["plans"](quick(1)))[1]  # its process was ended
        assert compute.waiting == 0

    run(work)


def test_who_asks_again_in_time_finds_it_running(run, monkeypatch):
    monkeypatch.setattr(computing, "ABANDONED_SECONDS", 60.0)

    async def work(compute: Compute) -> None:
        first = ask(compute, "scaling", long(0))
        await asyncio.sleep(0.2)
        first.cancel()
        await asyncio.sleep(0.1)
        [job] = compute._running
        again = ask(compute, "scaling", long(0))
        await asyncio.sleep(0.1)
        assert compute._running == {job} and job.callers == 1 and compute.waiting == 1
        again.cancel()

    run(work)


def test_who_asks_again_at_once_is_answered(run):
    """Though what it asks for was dropped in the same moment."""

    async def work(compute: Compute) -> int:
        first = ask(compute, "scaling", long(0))
        waits = ask(compute, "plans", quick(6))
        await asyncio.sleep(0.2)
        [job] = [one for one in compute._alike.values() if one.process is None]
        job.result.cancel()
        compute._turns.remove(job)
        first.cancel()
        found = await compute.answer("plans", quick(6), AnswerCache.key("plans", quick(6)))  # nothing else runs before
        assert waits.cancelled()
        return found.status

    assert run(work) == 200


def test_one_key_never_holds_every_process(run):
    async def work(compute: Compute) -> None:
        asked = [ask(compute, "scaling", long(number), "a") for number in range(4)]
        await asyncio.sleep(0.2)
        assert len(compute._running) == 1
        assert (await ask(compute, "plans", quick(2), "b")).status == 200 and not any(task.done() for task in asked)
        for task in asked:
            task.cancel()

    run(work, spare=True)


def test_the_time_limit_counts_from_arrival(run):
    async def work(compute: Compute) -> None:
        begun = time.monotonic()
        first, second = (ask(compute, "scaling", long(number)) for number in range(2))
        assert (await first).status == 422 and b"within 2 s" in (await first).body
        with pytest.raises(RefusedError) as error:
            await second
        assert error.value.status == 503 and "no process was free for 2.0 of the 2 s" in error.value.detail
        assert int(error.value.headers["Retry-After"]) >= 1 and time.monotonic() - begun < 60
        while True:
            try:
                assert (await ask(compute, "plans", quick(3))).status == 200
                return
            except RefusedError as again:  # the process begins anew
                assert again.status == 503

    run(work, seconds=2.0)


def test_what_waits_is_refused_when_the_service_ends(run, monkeypatch):
    monkeypatch.setattr(computing, "DRAIN_SECONDS", 0.5)

    async def work(compute: Compute) -> list[int]:
        asked = [ask(compute, "scaling", long(number)) for number in range(3)]
        await asyncio.sleep(0.2)
        compute.drain()
        late = ask(compute, "plans", quick(4))
        await asyncio.sleep(0.05)
        assert [task.done() for task in (*asked, late)] == [False, True, True, True]
        return [error.status for error in await asyncio.gather(*asked, late, return_exceptions=True)]

    assert run(work) == [503] * 4


def test_bodies_have_a_room():
    room = Room(100, 60)
    with ExitStack() as first, ExitStack() as second:
        assert room.take("a", 50, first) == 50
        with pytest.raises(RefusedError) as mine:
            room.take("a", 11, first)
        room.take("b", 45, second)
        with pytest.raises(RefusedError) as every:
            room.take("c", 6, second)
        assert (mine.value.status, every.value.status) == (429, 503)
        assert mine.value.headers == every.value.headers == {"Retry-After": "1"}
    with ExitStack() as third:
        assert room.take("c", 60, third) == 60  # what ended gave its room back


@pytest.mark.parametrize(("name", "body"), [
    ("predict", lambda: {"rows": [{"id": "a", **{f"a{number}": [] for number in range(150_000)}}]}),
    ("predict", lambda: {"rows": [{"id": "a", **{f"a{number}": [] for number in range(100)}}] * 1_000}),
    ("predict", lambda: {"rows": [{"id": "a"}] * 150_000}),
    ("measurements", lambda: {"rows": [{"id": 1}] * 100_000}),
    ("measurements", lambda: {"rows": [{f"a{number}": [] for number in range(150_000)}]}),
    ("scaling", lambda: {"model": "1.7b", "gpus": [""] * 600_000}),
    ("scaling", lambda: {"model": "1.7b", "gpus": 8, "gpu": [1] * 600_000}),
    ("plans", lambda: {f"a{number}": 1 for number in range(120_000)}),
    ("plans", lambda: {**QUICK, "fix": [1] * 600_000}),
    ("check", lambda: {"text": "", "settings": {str(number): 1 for number in range(120_000)}}),
    ("deployments", lambda: {**QUICK, "trace": [{"timestamp": "x"}] * 80_000}),
    ("batch", lambda: {"questions": [{"kind": "x"}] * 100_000}),
    ("batch", lambda: {"questions": [{"kind": "plans", "question": {}}] * 257}),
])  # fmt: skip
def test_a_large_body_that_is_wrong_makes_few_errors(name, body, monkeypatch):
    """pydantic keeps an error of every value; counted, not timed."""
    kept: list[int] = []

    def counted(error, kind):
        kept.append(error.error_count())
        return RefusedError(400, "counted")

    monkeypatch.setattr("autoconfig.api.wire.bodies._body_error", counted)
    with pytest.raises(RefusedError) as refused:
        READERS[name](json.dumps(body()).encode())
    assert refused.value.status == 400 and sum(kept) <= 2_000


def test_large_bodies_are_checked_as_small_ones_are(http):
    """In a process, with the same words."""
    large = {**QUICK, "model": {"model_type": "llama", "notes": "x" * 100_000}}
    small = {**QUICK, "model": {"model_type": "llama"}}
    for change in ({"gpus": "many"}, {"sort_by": "stepp"}, {"gpu": "h1000"}, {"seq_len": 8}, {}):
        answers = [http.post("/v1/plans", json={**body, **change}) for body in (large, small)]
        assert answers[0].status_code == answers[1].status_code and answers[0].json() == answers[1].json(), change
    rows = [{"id": "a", "notes": "x" * 70_000}, {"id": "a"}]
    assert "same id" in http.post("/v1/measurements", json={"rows": rows}).json()["detail"]
    wrong = http.post("/v1/searches", json={**large, "gpus": 8.5})
    assert wrong.status_code == 400 and wrong.json()["field"] == "gpus"


BATCH = [
    ("plans", {**QUICK, "gpus": 16}),
    ("plans", {**QUICK, "gpus": "x"}),
    ("check", {"text": "--nothing", "gpus": 8}),
    ("plans", {**QUICK, "model": "lama3-70b"}),
    ("predict", {"rows": [RUN_EXAMPLE]}),
    *[("plans", {**QUICK, "memory_margin": number / 1000}) for number in range(20)],
]


def test_a_batch_is_answered_in_order_with_errors_as_values(http):
    client = Client(str(http.base_url))
    found = client.batch(BATCH)
    assert len(found) == len(BATCH)
    for (kind, question), one in zip(BATCH, found, strict=True):
        alone = http.post(f"/v1/{kind}", json=question)
        if isinstance(one, ServiceError):
            assert (one.status, one.document) == (alone.status_code, alone.json())
        else:
            assert alone.status_code == 200 and one == alone.json()
    assert [isinstance(one, ServiceError) for one in found[:5]] == [False, True, True, True, False]
    assert found[3].nearest == "llama3-70b"


@pytest.mark.parametrize("questions", [[], [{"kind": "plans"}], [{"kind": "batch", "question": {}}], [{}], "x",
                                       [{"kind": "plans", "question": QUICK}] * 257])  # fmt: skip
def test_batches_that_are_none(http, questions):
    answer = http.post("/v1/batch", json={"questions": questions})
    assert answer.status_code == 400 and answer.json()["field"] == "questions"
    assert http.post("/v1/batch", json={}).status_code == 400


def test_every_question_is_a_kind_of_a_batch(http):
    paths = http.get("/openapi.json").json()["paths"]
    asked = {path.removeprefix("/v1/") for path, found in paths.items() if "post" in found}
    assert asked - {"searches", "measurements", "batch"} == set(BODIES)
    assert read_body(b'{"questions":[{"kind":"plans","question":{}}]}', READERS["batch"].keywords["kind"])


@pytest.fixture
def busy() -> Iterator[tuple[str, list[dict]]]:
    """A server that answers with what is put into the list; a service that is busy cannot be had at will."""
    answers: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            one = answers.pop(0)
            body = json.dumps({"plans": [], "calibration": "x", "detail": "busy"}).encode()
            self.send_response(one["status"])
            for name, value in one.get("headers", {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", answers
        server.shutdown()
        thread.join()


def test_the_client_waits_as_long_as_it_is_told_to(busy, monkeypatch):
    url, answers = busy
    waits: list[float] = []
    monkeypatch.setattr("autoconfig.client.time.sleep", waits.append)
    again = [{"status": status, "headers": {"Retry-After": "7"}} for status in (429, 503, 429, 503, 429)]
    answers += [*again, {"status": 200}]
    assert Client(url).plans(**QUICK).plans == ()
    assert len(waits) == 5 and all(7 <= wait <= 8.75 for wait in waits) and len(set(waits)) > 1
    answers += [{"status": 503, "headers": {"Retry-After": "61"}}]
    with pytest.raises(ServiceError) as error:
        Client(url, timeout_seconds=60).plans(**QUICK)
    assert error.value.retry_seconds == 61 and not answers


def test_hanging_up_frees_the_service(services):
    """A caller who hangs up is noticed at the socket: the other one's question is answered while the first would still run."""
    service = services("--workers", "1", "--search-workers", "0")
    with service.client() as client:
        assert client.post("/v1/plans", content=quick(0), headers={"content-type": "application/json"}).status_code == 200
        for number in range(4):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(service.url + "/v1/scaling", json=json.loads(long(number)), timeout=0.5)
        assert client.post("/v1/plans", json=json.loads(quick(1))).status_code == 200
        assert "autoconfig_answers_waiting 0.0" in client.get("/metrics").text


def test_a_signal_ends_the_service_though_questions_run(services):
    service: Running = services("--workers", "1", "--search-workers", "1")
    with ThreadPoolExecutor(3) as threads, service.client() as client:
        asked = [threads.submit(client.post, "/v1/scaling", json=json.loads(long(number))) for number in range(3)]
        wait_for(lambda: "autoconfig_answers_waiting 3.0" in client.get("/metrics").text)
        service.process.send_signal(signal.SIGTERM)
        assert [one.result().status_code for one in asked] == [503] * 3
        assert {one.result().headers["retry-after"] for one in asked} == {"2"}
        assert service.process.wait(60) == -signal.SIGTERM


def begun(turns: Turns[str]) -> list[str]:
    found = []
    while (one := turns.begin()) is not None:
        found.append(one[1])
    return found


def test_keys_take_turns():
    turns: Turns[str] = Turns(1, spare=False)
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.add(name[0], name)
    order = []
    while turns.waiting:
        owner, item = turns.begin()
        assert turns.begin() is None  # the only process is held
        order.append(item)
        turns.end(owner)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_one_key_never_holds_the_last_process():
    turns: Turns[str] = Turns(3, spare=True)
    for number in range(5):
        turns.add("a", f"a{number}")
    assert begun(turns) == ["a0", "a1"]  # nobody else waits, and the third is kept all the same
    turns.add("b", "b0")
    turns.add("b", "b1")
    assert begun(turns) == ["b0"]
    turns.end("a")
    assert begun(turns) == []  # one is free, both hold one: it is for a third
    turns.add("c", "c0")
    assert begun(turns) == ["c0"]
    turns.end("a")
    turns.end("b")
    assert begun(turns) == ["a2", "b1"]  # neither holds one


def test_without_a_spare_one_key_may_hold_all():
    turns: Turns[str] = Turns(2, spare=False)
    for number in range(3):
        turns.add("", str(number))
    assert begun(turns) == ["0", "1"] and turns.waiting == 1


def test_a_question_of_two_keys_comes_with_the_earlier_turn_and_runs_once():
    turns: Turns[str] = Turns(1, spare=False)
    for name in ("a1", "a2", "same"):
        turns.add("a", name)
    turns.add("b", "same")
    assert turns.waiting == 3 and turns.waiting_of("a") == 3 and turns.waiting_of("b") == 1
    assert turns.begin() == ("a", "a1")
    turns.end("a")
    assert turns.begin() == ("b", "same") and turns.owners == ["a"]
    turns.end("b")
    assert turns.begin() == ("a", "a2") and turns.waiting == 0


def test_what_leaves_is_gone_and_nothing_is_lost():
    turns: Turns[int] = Turns(2, spare=False)
    chance, waiting, running = random.Random(5), set(), []
    for number in range(500):
        match chance.randrange(4):
            case 0 | 1:
                turns.add(chance.choice("abc"), number)
                waiting.add(number)
            case 2 if waiting:
                gone = chance.choice(sorted(waiting))
                turns.remove(gone)
                waiting.discard(gone)
            case 3 if running:
                turns.end(running.pop())
        while (one := turns.begin()) is not None:
            running.append(one[0])
            waiting.remove(one[1])
        assert len(running) <= 2 and turns.waiting == len(waiting)
        assert not waiting or len(running) == 2
    assert sorted(turns.clear()) == sorted(waiting) and turns.waiting == 0
