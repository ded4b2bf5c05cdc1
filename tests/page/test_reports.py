"""Reports, one file each, in a real browser."""

import json
from pathlib import Path

import pytest
from autoconfig.specs.json_record import to_json
from command_line import run_in_process
from playwright.sync_api import expect

from autoconfig.render.html import REPORT_MODULES, one_file, page_text, report_data, served_names
from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request
from tests.page.conftest import MADE, SERVE_OPTIONS, chosen, lead, plans, rows, serious, settled, shorts, too_wide

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 320, "height": 640}}])
def test_a_report_of_deployments_shows_the_numbers_of_the_answer(tmp_path, pages, options):
    path = tmp_path / "out.html"
    done = run_in_process("search", "--inference", *SERVE_OPTIONS, "--report", str(path), "--json")
    assert done.exit_code == 0 and f"report written to {path}" in done.stderr
    answer = json.loads(done.stdout)
    page = pages(path.as_uri(), **options)
    expect(page.locator("figure.frontier g.point").first).to_be_attached()
    assert plans(page) == [one["plan"] for one in answer["deployments"]]
    assert "trtllm-serve" in (page.locator("section[aria-label='Start scripts']").text_content() or "")
    best = answer["deployments"][0]
    assert lead(page).startswith(f"{MADE}llama3-8b on {best['gpus']} x h100-sxm-80gb")
    assert f"{best['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU for {best['users']:,} users" in lead(page)
    assert page.locator(f"figure.frontier g.point.front[data-short='{best['plan']}']").count() == 1
    assert not serious(page) and too_wide(page) <= 0


def test_a_report_goes_where_it_can_be_written(tmp_path):
    done = run_in_process("search", "--inference", *SERVE_OPTIONS, "--report", str(tmp_path / "out.htm"))
    assert done.exit_code == 2 and ".html" in done.stderr and not list(tmp_path.iterdir())


OPTIONS = ["--model", "llama3-8b", "--gpus", "32", "--gpu", "h100-sxm-80gb", "--top", "5"]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> tuple[Path, dict]:
    path = tmp_path_factory.mktemp("report") / "out.html"
    done = run_in_process("search", *OPTIONS, "--report", str(path), "--json")
    assert done.exit_code == 0 and f"report written to {path}" in done.stderr
    return path, json.loads(done.stdout)


def test_the_report_shows_the_numbers_of_the_answer(report, pages):
    path, answer = report
    page = pages(path.as_uri())
    settled(page)
    assert shorts(page) == [plan["short"] for plan in answer["plans"]]
    for cells, plan in zip(rows(page), answer["plans"], strict=True):
        assert f"{plan['step_seconds']:.3f}" in cells and f"{plan['memory']['peak_gib']:.1f}" in cells
    step = answer["plans"][0]["step_seconds"]
    assert lead(page).startswith(f"{MADE}llama3-8b on 32 x h100-sxm-80gb: a step of {step:.3f} s")
    assert page.locator(".headline").is_hidden()
    page.locator("table.plans tbody tr").nth(3).click()
    expect(page.locator("article h2")).to_have_text(answer["plans"][3]["short"])
    assert page.locator("article svg[role=img] g.bar").count() == len(answer["plans"][3]["memory"]["per_stage_gib"])
    page.locator("g.point.front").last.click()
    short = page.locator("g.point.chosen").get_attribute("data-short")
    expect(page.locator("article h2")).to_have_text(short)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert "torchrun" in Path(download.value.path()).read_text()
    assert page.locator("section[aria-label=Scaling] g.point").count() >= 3
    again = pages(page.url)
    settled(again)
    assert chosen(again) == short


def test_names_cannot_break_out(tmp_path, pages):
    """Texts of an answer come from model files and command lines."""
    name = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\"><!--<script>"
    data = to_json(report_data(search(Request(model="llama3-8b", gpus=8, gpu="a100-80gb", top=3)), name))
    data["search"]["model"]["name"] = data["search"]["plans"][0]["why"] = name
    data["search"]["assumed"].append(name)
    path = tmp_path / "out.html"
    path.write_text(one_file(name, data), encoding="utf-8")
    page = pages(path.as_uri())
    settled(page)
    assert page.title() == name and name in page.locator(".summary p").first.inner_text()
    assert page.locator("main > p code").inner_text() == name and page.locator("img").count() == 0


def test_modules_of_a_report_are_whole():
    """Whatever a module imports is there, under the name that the import map has; nothing can end a script."""
    for name in REPORT_MODULES:
        lines = [line for line in page_text(f"{name}.js").splitlines() if line.startswith("import ")]
        assert all(' from "./' in line for line in lines)
        assert {line.split('"./')[1].removesuffix('.js";') for line in lines} <= set(REPORT_MODULES), name
    assert one_file("x", {}).count("</script>") == 3
    assert all(f"{name}.js" in [*served_names(), "report.js"] for name in REPORT_MODULES)


@pytest.mark.parametrize(("name", "words"), [("out.htm", ".html"), ("no/such/folder/out.html", "folder")])
def test_a_report_that_cannot_be_written_is_refused_before_the_search(tmp_path, name, words):
    done = run_in_process("search", *OPTIONS, "--report", str(tmp_path / name))
    assert done.exit_code == 2 and words in done.stderr and not list(tmp_path.iterdir())
