"""Event streams: how many a key may have, what they cost, and when they end."""

import asyncio
import threading
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy as sa
import uvicorn
from autoconfig.api import follow, searches
from autoconfig.api.app import create_app
from autoconfig.api.follow import Follower, Followers
from autoconfig.api.problems import RefusedError
from autoconfig.api.store import SEARCHES, ServiceSettings, engine_of, now

from tests.api.conftest import QUESTION, wait_for

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]


@pytest.fixture
def engine(tmp_path) -> Iterator[sa.Engine]:
    found = engine_of(f"sqlite:///{tmp_path}/service.db")
    with found.begin() as connection:
        for number in range(40):
            row = {"id": identity(number), "owner": "", "body": "{}", "state": "queued", "created": now()}
            connection.execute(SEARCHES.insert().values(row))
    yield found
    found.dispose()


def identity(number: int) -> str:
    return f"7b0f7a5e-6b6e-4c0e-9f0c-0d6f7f6f7f{number:02d}"


def follower(number: int, owner: str = "", last: int = 0) -> Follower:
    return Follower(search=identity(number), owner=owner, last=last)


def test_a_key_has_so_many_streams(engine):
    async def join() -> None:
        followers = Followers(engine, 2)
        first, second, other = follower(1, "a"), follower(2, "a"), follower(1, "b")
        for one in (first, second, other):
            followers.join(one)
        with pytest.raises(RefusedError, match="2 of your event streams") as refused:
            followers.join(follower(3, "a"))
        assert refused.value.status == 429 and refused.value.headers is not None and int(refused.value.headers["Retry-After"])
        followers.leave(first)
        followers.join(follower(3, "a"))
        assert len(followers) == 3

    asyncio.run(join())


@pytest.mark.parametrize("streams", [1, 40])
def test_all_streams_together_ask_the_database_once_in_a_while(engine, monkeypatch, streams):
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.05)
    asked: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))

    async def listen() -> list[int]:
        followers = Followers(engine, 100)
        all_of_them = [follower(number) for number in range(streams)]
        for one in all_of_them:
            followers.join(one)
        while len(asked) < 4:
            await asyncio.sleep(0.01)
        quiet = len(asked)
        await asyncio.to_thread(searches.say, engine, identity(0), "progress", {"text": "news"})
        await asyncio.to_thread(searches.cancel, engine, identity(0))
        heard = []
        while (news := await all_of_them[0].news.get()) is not None:
            heard += [event.number for event in news]
        assert all(one.news.empty() for one in all_of_them[1:]), "it is of the first search"
        assert len(followers) == streams - 1, "whose search is over has left"
        assert quiet < 10
        return heard

    assert asyncio.run(listen()) == [1, 2]


def test_streams_end_where_the_database_is_away(engine):
    async def listen() -> object:
        followers, one = Followers(engine, 1), follower(1)
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE autoconfig_search_events"))
        followers.join(one)
        return await asyncio.wait_for(one.news.get(), 20)

    assert asyncio.run(listen()) is None


def test_a_listener_that_hangs_up_frees_its_place(tmp_path):
    app = create_app(ServiceSettings(database=f"sqlite:///{tmp_path}/service.db", workers=1, event_streams=1))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=60) as client:
            search = client.post("/v1/searches", json=QUESTION).json()["id"]
            path = f"/v1/searches/{search}/events"
            with client.stream("GET", path) as first:
                lines = first.iter_lines()
                assert next(lines) == "id: 1"
                assert client.get(path).status_code == 429
            wait_for(lambda: not len(app.state.service.followers), 20)
            client.delete(f"/v1/searches/{search}")
            over = client.get(path)
            assert over.status_code == 200 and over.text.count("event: state") == 2
            assert client.get(path, headers={"Last-Event-ID": "999999999"}).text == ""
    finally:
        server.should_exit = True
        thread.join()
