"""A real Chromium that asks a real service. Every page is watched: nothing on the console, nothing from another host."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.api.conftest import Running, services  # noqa: F401 (a fixture)

PATIENCE = 30_000
"""Milliseconds; a loaded machine is slow, a broken page would wait for ever."""
expect.set_options(timeout=PATIENCE)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Watched:
    """What a page did that it should not."""

    refused: tuple[int, ...] = ()
    """Statuses that the test provokes: Chromium writes each on the console."""
    said: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def complaints(self) -> list[str]:
        known = tuple(f"the server responded with a status of {status}" for status in self.refused)
        return [text for text in self.said if not any(part in text for part in known)]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium (tools/install_browser.sh), else the one that playwright installed."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path)
        yield found
        found.close()


@pytest.fixture(scope="module")
def asked(services) -> Running:  # noqa: F811
    """The service behind the page, with a worker for searches."""
    return services("--workers", "1", "--search-workers", "1")


@pytest.fixture
def pages(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, each like a new visitor's, and judges them at the end of the test."""
    seen: list[tuple[Page, Watched]] = []

    def begin(url: str, *, refused: tuple[int, ...] = (), **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE)
        page, watched = context.new_page(), Watched(refused)
        page.on("console", lambda message: watched.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: watched.said.append(f"error: {error}"))
        page.on("request", lambda request: watched.hosts.add(urlsplit(request.url).netloc))
        seen.append((page, watched))
        page.goto(url)
        return page

    yield begin
    for page, watched in seen:
        own = urlsplit(page.url).netloc
        page.context.close()
        assert not watched.complaints(), watched.complaints()
        assert watched.hosts <= {own, ""}, watched.hosts
