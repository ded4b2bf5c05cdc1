"""What a test reads off the page."""

from __future__ import annotations

import json
from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

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


def serious(page: Page) -> str:
    """What axe-core finds serious or critical; empty where nothing."""
    found = Axe().run(page).response["violations"]
    bad = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    return json.dumps([[rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]] for rule in bad]) if bad else ""


def too_wide(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found
