"""The tab of deployments and `search --inference --report` in a real browser."""

from __future__ import annotations

import json
from urllib.parse import quote

import httpx
import pytest
from command_line import run_in_process
from playwright.sync_api import expect

from tests.page.looks import serious, too_wide

SERVE = {"model": "llama3-8b", "gpus": 2, "gpu": "h100-sxm-80gb", "isl": 500, "osl": 200, "tpot": "20ms", "ttft": "500ms"}
OPTIONS = [word for key, value in SERVE.items() for word in (f"--{key}", str(value))]


def link(url, **changes):
    """The tab with its question in the link."""
    asked = {**SERVE, "view": "deployments", **changes}
    return f"{url}/#" + "&".join(f"{key}={quote(str(value))}" for key, value in asked.items())


def plans(page):
    """The deployments of the table."""
    return page.eval_on_selector_all(".deployments table.plans tbody tr", "rows => rows.map(row => row.dataset.short)")


def test_the_tab_shows_the_answer_of_the_service(asked, pages):
    page = pages(link(asked.url))
    view = page.locator("#view-deployments")
    expect(view.locator("figure.frontier g.point").first).to_be_visible()
    answer = httpx.post(f"{asked.url}/v1/deployments", json=SERVE, timeout=60).json()
    shown = view.locator("table.plans tbody tr")
    assert [row.get_attribute("data-short") for row in shown.all()] == [one["plan"] for one in answer["deployments"]]
    best = answer["deployments"][0]
    assert f"{best['tokens_per_second_per_gpu']:,.0f}" in shown.first.inner_text()
    assert view.locator("figure.frontier svg").text_content().count("TPOT 20.0 ms") == 1
    line, points = view.locator("figure.frontier line.limit"), view.locator("figure.frontier g.point")
    assert line.count() == 1 and points.count() >= len(answer["deployments"])
    left = float(line.get_attribute("x1"))
    for one in answer["deployments"]:
        box = view.locator(f"g.point[data-short='{one['plan']}'] circle.hit").first
        assert float(box.get_attribute("cx")) >= left - 0.5, one["plan"]
    assert view.locator("figure.memory-of-gpus g.bar").count() == len(answer["deployments"])
    assert f"device {best['memory_gib']['device']:.1f} GiB" in view.locator("figure.memory-of-gpus svg").text_content()
    whole = 1e3 * sum(best["decode_step_seconds"].values())
    assert f"{whole:.1f} ms" in view.locator("figure.iteration svg").text_content()
    assert view.locator("figure.iteration g.bar").count() == 2


def test_the_link_and_the_limits_of_the_tab(asked, pages):
    page = pages(link(asked.url, ttft="", tpot=""))
    view = page.locator("#view-deployments")
    expect(view.locator("table.plans tbody tr").nth(2)).to_be_visible()
    assert view.locator("figure.frontier line.limit").count() == 0
    view.locator("table.plans tbody tr").nth(2).click()
    wanted = plans(page)[2]
    expect(view.locator("article h2")).to_have_text(wanted)
    again = pages(page.url)
    expect(again.locator("#view-deployments article h2")).to_have_text(wanted)
    page.get_by_label("TPOT at most").fill("1us")
    expect(view.locator(".note.bad")).to_contain_text("limits cannot be met")
    assert view.locator("table.plans tbody tr").count() == 1


def test_a_wrong_duration_is_said(asked, pages):
    page = pages(link(asked.url, tpot="soon"), refused=(422,))
    expect(page.locator("#view-deployments .note.bad")).to_contain_text("write 50ms")


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 320, "height": 640}}])
def test_the_report_shows_the_numbers_of_the_answer(tmp_path, pages, options):
    path = tmp_path / "out.html"
    done = run_in_process("search", "--inference", *OPTIONS, "--report", str(path), "--json")
    assert done.exit_code == 0 and f"report written to {path}" in done.stderr
    answer = json.loads(done.stdout)
    page = pages(path.as_uri(), **options)
    expect(page.locator("figure.frontier g.point").first).to_be_attached()
    assert plans(page) == [one["plan"] for one in answer["deployments"]]
    assert "trtllm-serve" in (page.locator("section[aria-label='Start scripts']").text_content() or "")
    assert not serious(page) and too_wide(page) <= 0


def test_a_report_goes_where_it_can_be_written(tmp_path):
    done = run_in_process("search", "--inference", *OPTIONS, "--report", str(tmp_path / "out.htm"))
    assert done.exit_code == 2 and ".html" in done.stderr and not list(tmp_path.iterdir())
