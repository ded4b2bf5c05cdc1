"""A real Chromium that asks a real service. Every page is watched: nothing on the console, nothing from another host."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
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
        found = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service behind the page, with a worker for searches."""
    running = start(f"sqlite:///{tmp_path_factory.mktemp('page')}/service.db", "--workers", "1", "--search-workers", "1")
    yield running
    running.stop()


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
