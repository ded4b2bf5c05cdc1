"""A real Chromium that asks a real service. Every page is watched: nothing on the console, nothing from another host."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from command_line import run_in_process
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.api.conftest import Running, start

PATIENCE = 30_000
"""Milliseconds; a loaded machine is slow, a broken page would wait for ever."""
expect.set_options(timeout=PATIENCE)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Visitor:
    """A page that is watched: what it did that it should not. It is emptied between two tests, as a new visitor's is: to open
    another one takes Chromium twice as long as the page itself."""

    def __init__(self, browser: Browser, url: str, options: dict[str, Any]) -> None:
        self.kind = _kind(url, options)
        self.options = {"viewport": {"width": 1400, "height": 900}, "color_scheme": "light", **options}
        context = browser.new_context(**self.options)
        context.set_default_timeout(PATIENCE)
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def open(self, url: str, refused: tuple[int, ...]) -> Page:
        """The page at this URL; `refused` are statuses that the test provokes: Chromium writes each on the console."""
        self.said: list[str] = []
        self.hosts: set[str] = set()
        self.known = [f"the server responded with a status of {status}" for status in refused]
        self.page.set_viewport_size(self.options["viewport"])
        self.page.emulate_media(color_scheme=self.options["color_scheme"])
        self.page.goto(url)
        return self.page

    def leave(self) -> None:
        """Judge what it did, and leave nothing of it."""
        own = urlsplit(self.page.url).netloc
        self.page.unroute_all()
        self.page.evaluate("sessionStorage.clear(); localStorage.clear()")
        self.page.goto("about:blank")
        complaints = [text for text in self.said if not any(part in text for part in self.known)]
        assert not complaints, complaints
        assert self.hosts <= {own, ""}, self.hosts


def _kind(url: str, options: dict[str, Any]) -> tuple[str, str]:
    """What pages that may follow each other have alike: the service, and the window."""
    return urlsplit(url).netloc, repr(sorted(options.items()))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium (tools/install_browser.sh), else the one that playwright installed."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service behind the page, with a worker for searches."""
    running = start(f"sqlite:///{tmp_path_factory.mktemp('page')}/service.db", "--workers", "1", "--search-workers", "1")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def resting() -> list[Visitor]:
    """Pages that no test has open."""
    return []


@pytest.fixture
def pages(browser: Browser, resting: list[Visitor]) -> Iterator[Callable[..., Page]]:
    """Opens pages, each like a new visitor's, and judges them at the end of the test."""
    visitors: list[Visitor] = []

    def begin(url: str, *, refused: tuple[int, ...] = (), **options: Any) -> Page:
        visitor = next((one for one in resting if one.kind == _kind(url, options)), None)
        if visitor is None:
            visitor = Visitor(browser, url, options)
        else:
            resting.remove(visitor)
        visitors.append(visitor)
        return visitor.open(url, refused)

    yield begin
    for visitor in visitors:
        visitor.leave()
        resting.append(visitor)


SERVE = {"model": "llama3-8b", "gpus": 2, "gpu": "h100-sxm-80gb", "isl": 500, "osl": 200, "tpot": "20ms", "ttft": "500ms"}
SERVE_OPTIONS = [word for key, value in SERVE.items() for word in (f"--{key}", str(value))]
QUESTION = {"model": "llama3-8b", "gpus": 32, "gpu": "h100-sxm-80gb", "top": 6}


def link(url: str, **choices: object) -> str:
    """The link of the question, with choices."""
    return f"{url}/#" + "&".join(f"{key}={quote(str(value))}" for key, value in {**QUESTION, **choices}.items())


def settled(page: Page) -> None:
    """The answer and the chosen plan are there, and nothing is asked any more."""
    page.wait_for_selector("#results:not([aria-busy=true]) .workbench .detail:not([aria-busy=true]) article .config")


def rows(page: Page) -> list[list[str]]:
    """Cells of the ranked table."""
    found: list[list[str]] = page.eval_on_selector_all(
        "table.plans tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return found


def chosen(page: Page) -> str:
    """The plan that is explained."""
    return page.locator(".details-of article h2").first.inner_text()


def shorts(page: Page) -> list[str]:
    """The plans of the table."""
    found: list[str] = page.eval_on_selector_all("table.plans tbody tr", "rows => rows.map(row => row.dataset.short)")
    return found


VIOLATIONS = {"resultTypes": ["violations"]}
"""For axe-core: what passes is not told, which takes longer than to judge it."""


def serious(page: Page) -> str:
    """What axe-core finds serious or critical, once nothing is under way (an answer under way is dimmed); empty: nothing."""
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)
    bad = [
        rule for rule in Axe().run(page, options=VIOLATIONS).response["violations"] if rule["impact"] in ("serious", "critical")
    ]
    return json.dumps([[rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]] for rule in bad]) if bad else ""


def too_wide(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


def ask(service, path, **body):
    answer = httpx.post(f"{service.url}/v1/{path}", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def lead(page):
    """The sentence above a report."""
    return page.locator(".lead").inner_text()


MADE = f"{date.today()}, autoconfig {version('megatron-autoconfig')}. "
"""What the sentence above a report begins with."""


def plans(page):
    """The deployments of the table."""
    return page.eval_on_selector_all(".deployments table.plans tbody tr", "rows => rows.map(row => row.dataset.short)")


GO = """hash => new Promise(done => {
    window.addEventListener('hashchange', () => setTimeout(done), { once: true });
    location.hash = hash;
})"""


def go(page, **question):
    """Brings an open page to another link, and waits for its answer."""
    link = "&".join(f"{key}={str(value).replace(' ', '%20')}" for key, value in question.items())
    page.evaluate(GO, link)
    answered(page)


def answered(page):
    """Waits until nothing is asked any more."""
    expect(page.locator("[role=status]", has_text="asking…")).to_have_count(0)
    expect(page.locator('[aria-busy="true"]')).to_have_count(0)


OF_THE_PAGE = ("view", "door", "types", "counts", "offers")


def command(name, question):
    """The command line's JSON for a question of the page."""
    question = {key: value for key, value in question.items() if key not in OF_THE_PAGE}
    words = []
    for key, value in question.items():
        option, values = f"--{key.replace('_', '-')}", value if isinstance(value, list) else [value]
        words += [option] if value == "on" else [word for one in values for word in (option, str(one))]
    done = run_in_process(name, *words, "--json")
    assert done.exit_code in (0, 3), done.stderr
    return json.loads(done.stdout)
