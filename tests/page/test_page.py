"""The page and the reports in a real browser."""

import json
import time
from pathlib import Path

import httpx
import pytest
from autoconfig.api import searches
from autoconfig.api.store import engine_of
from autoconfig.specs.errors import chance_text
from command_line import run_in_process
from playwright.sync_api import expect

from tests.api.conftest import services, take_up  # noqa: F401 (services: a fixture)
from tests.page.conftest import QUESTION, ask, chosen, link, rows, serious, settled, shorts, too_wide

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]


def test_from_the_question_to_the_downloaded_config(asked, pages, tmp_path):
    page = pages(asked.url + "/")
    page.locator(".door", has_text="Train").click()
    settled(page)
    page.get_by_label("Model", exact=True).fill(QUESTION["model"])
    page.get_by_label("GPUs", exact=True).fill(str(QUESTION["gpus"]))
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Plans to show").fill(str(QUESTION["top"]))
    expect(page.locator("table.plans tbody tr")).to_have_count(6)
    settled(page)
    answer = ask(asked, "plans", **QUESTION)
    assert shorts(page) == [plan["short"] for plan in answer["plans"]]
    for cells, plan in zip(rows(page), answer["plans"], strict=True):
        assert f"{plan['step_seconds']:.3f}" in cells and f"{100 * plan['mfu']:.1f} %" in cells
        assert f"{plan['memory']['peak_gib']:.1f}" in cells
        assert chance_text(plan["confidence"]["fit_probability"]).replace("%", " %") in cells
    chances = [0.0, 0.29, 0.5, 0.896, 0.949, 0.955, 0.99, 0.9901, 0.991, 0.9989, 0.99985, 0.99995, 1.0]
    script = "async chances => { const { chance } = await import('/page/format.js'); return chances.map(chance); }"
    shown = page.evaluate(script, chances)
    assert [text.replace(" ", "") for text in shown] == [chance_text(one) for one in chances]
    second = answer["plans"][1]
    page.locator("table.plans tbody tr").nth(1).click()
    expect(page.locator("article h2")).to_have_text(second["short"])
    settled(page)
    detail = ask(asked, "explain", **{k: v for k, v in QUESTION.items() if k != "top"}, plan=second["short"])
    assert page.locator("article svg[role=img] g.bar").count() == len(detail["stages"])
    assert f"{detail['memory']['peak_gib']:.1f} of" in page.locator("dl.facts").inner_text()
    page.get_by_role("combobox", name="Exported file").select_option("plan.json")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    text = Path(download.value.path()).read_text()
    assert download.value.suggested_filename == "plan.json"
    options = ["--model", "llama3-8b", "--gpus", "32", "--gpu", "h100-sxm-80gb", "--output", str(tmp_path / "x")]
    assert run_in_process("export", *options, second["short"]).exit_code == 0
    assert text == (tmp_path / "x" / "plan.json").read_text()


def test_the_link_holds_the_question_and_the_choice(asked, pages):
    page = pages(link(asked.url, sort_by="memory", precision="fp8", max="tp=4", exclude="pp=16 mbs=2"))
    settled(page)
    page.locator("table.plans tbody tr").nth(2).click()
    page.locator("table.plans tbody tr").nth(0).get_by_role("button").click()
    page.wait_for_selector("table.compared")
    again = pages(page.url)
    settled(again)
    again.wait_for_selector("table.compared")
    assert rows(again) == rows(page) and chosen(again) == chosen(page) == shorts(page)[2]
    assert again.locator("table.compared").inner_text() == page.locator("table.compared").inner_text()
    values = "form => Object.fromEntries(new FormData(form))"
    assert again.eval_on_selector("#question", values) == page.eval_on_selector("#question", values)
    assert again.url == page.url


def press_until(page, key, condition):
    for _ in range(80):
        if page.evaluate(f"(() => {{ const e = document.activeElement; return {condition}; }})()"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never reaches {condition}")


def test_the_keyboard_alone_does_everything(asked, pages):
    page = pages(asked.url + "/#model=llama3-8b&gpus=16&gpu=h100-sxm-80gb&top=6")
    settled(page)
    press_until(page, "Tab", "e.name === 'gpus'")
    page.keyboard.press("Control+a")
    page.keyboard.type("32")
    expect(page.locator(".summary")).to_contain_text("32 x")
    settled(page)
    press_until(page, "Tab", "e.type === 'radio'")
    page.keyboard.press("ArrowDown")
    expect(page.locator("article h2")).to_have_text(shorts(page)[1])
    press_until(page, "Tab", "e.matches('g.point')")
    assert page.locator(".tip").is_visible()
    page.keyboard.press("ArrowRight")
    wanted = page.evaluate("document.activeElement.dataset.short")
    page.keyboard.press("Enter")
    expect(page.locator("article h2")).to_have_text(wanted)
    settled(page)
    press_until(page, "Tab", "e.textContent === 'Download'")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "train.sh"
    press_until(page, "Shift+Tab", "e.id === 'tab-plans'")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#view-scaling g.point")


def test_scaling_takes_a_point_into_the_question(asked, pages):
    page = pages(link(asked.url, view="scaling", counts="16:64", types="h100-sxm-80gb,a100-80gb", tokens="1T"))
    page.wait_for_selector("#view-scaling g.point")
    answer = ask(asked, "scaling", model="llama3-8b", gpus="16:64", gpu=["h100-sxm-80gb", "a100-80gb"], tokens="1T")
    found = [point for point in answer["points"] if point["best"]]
    assert page.locator("#view-scaling g.point").count() == len(found) == 6
    assert f"{found[-1]['tokens_per_second']:,.0f}" in page.locator("#view-scaling table").inner_text()
    page.locator("#view-scaling g.point").last.click()
    expect(page.locator(".summary")).to_contain_text("64 x a100-80gb")
    assert page.get_by_label("GPUs", exact=True).input_value() == "64"


def test_a_search_of_another_client_is_shown_under_its_own_question(asked, pages):
    """Fields that the form does not have stay in what is asked about the plans, and are named."""
    with asked.client() as client:
        body = {**QUESTION, "gpus": None, "gpus_at_most": 16, "num_layers": 16, "fix": ["tp=2"]}
        client.post("/v1/searches", json=body)
    page = pages(link(asked.url, view="searches"))
    row = page.locator(".searches tbody tr", has_text="16 x")
    while not row.get_by_role("button", name="Open").count():
        page.get_by_role("tab", name="Plans").click()
        page.get_by_role("tab", name="Searches").click()
        row.get_by_role("button").first.wait_for()
    row.get_by_role("button", name="Open").click()
    settled(page)
    expect(page.locator("#state")).to_contain_text("num_layers 16")
    first = httpx.post(f"{asked.url}/v1/plans", json=body, timeout=300).json()["plans"][0]
    assert shorts(page)[0] == chosen(page) == first["short"]
    assert f"{first['step_seconds']:.3f} s" in page.locator("dl.facts").inner_text()
    assert page.get_by_label("Only plans with").input_value() == "tp=2"


def test_a_search_that_measured_shows_its_trials(asked, pages):
    """The row is ended as its worker would end it; tests/api/test_profile.py runs the workers."""
    line = {"trial": 0, "plan": "tp=2,pp=1", "predicted_s": 0.5, "measured_s": 0.625, "outcome": "measured", "message": ""}
    lost = {**line, "trial": 1, "plan": "tp=1,pp=1", "measured_s": None, "outcome": "out_of_memory"}
    study = {"name": "x", "best": line, "lines": [line, lost], "prior_best": "tp=1,pp=1", "stopped": "the budget is spent"}
    with asked.client() as client:
        identity = client.post("/v1/searches", json={**QUESTION, "gpus": 4, "profile": True}).json()["id"]
    engine = engine_of(asked.database)
    take_up(engine, identity)
    searches.end(engine, identity, result=json.dumps(study).encode())
    engine.dispose()
    page = pages(link(asked.url, view="searches"))
    page.locator(".searches tbody tr", has_text="4 x").get_by_role("button", name="Open").click()
    expect(page.locator(".live")).to_contain_text("Best measured: tp=2,pp=1, 625 ms; the budget is spent")
    assert page.locator(".live tbody tr").all_inner_texts() == [
        "tp=2,pp=1\t500 ms\t625 ms\tmeasured",
        "tp=1,pp=1\t500 ms\t\tout of memory",
    ]


def test_a_problem_stands_beside_its_field_with_the_nearest_value(asked, pages):
    page = pages(link(asked.url, gpu="h1000-sxm-80gb"), refused=(422,))
    page.get_by_role("button", name="use h100-sxm-80gb").click()
    settled(page)
    assert page.get_by_label("GPU type", exact=True).input_value() == "h100-sxm-80gb"
    page.get_by_label("GPUs", exact=True).fill("many")
    expect(page.locator("#problem-gpus")).to_contain_text("no number")
    assert page.get_by_label("GPUs", exact=True).get_attribute("aria-describedby") == "problem-gpus"
    page.get_by_label("GPUs", exact=True).fill("32")
    expect(page.locator("#problem-gpus")).to_be_empty()
    page.get_by_label("GPUs", exact=True).fill("0")
    expect(page.locator("#problem-gpus")).to_contain_text("at least 1")
    expect(page.locator("#state")).to_contain_text("question before")
    assert not serious(page)
    page.get_by_label("GPUs", exact=True).fill("32")
    page.get_by_label("Only plans with", exact=True).fill("tq=8 pp=2")
    page.get_by_role("button", name="use tp=8").click()
    assert page.get_by_label("Only plans with", exact=True).input_value() == "tp=8 pp=2"
    settled(page)


def test_a_service_that_is_busy_is_asked_again(asked, pages):
    """One that is busy cannot be had at will: the browser is told so once."""
    page = pages(link(asked.url), refused=(429,))
    settled(page)
    asked_at: list[float] = []

    def busy_once(route):
        asked_at.append(time.monotonic())
        if len(asked_at) > 1:
            route.continue_()
            return
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={"detail": "busy"})

    page.route("**/v1/plans", busy_once)
    with page.expect_response(lambda answer: answer.url.endswith("/v1/plans") and answer.status == 200):
        page.get_by_label("GPUs", exact=True).fill("16")
    settled(page)
    assert len(asked_at) == 2 and asked_at[1] - asked_at[0] >= 0.9


def test_a_pasted_model_and_nothing_fits(asked, pages):
    model = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "vocab_size": 32000,
    }  # fmt: skip
    page = pages(link(asked.url, gpus=8), refused=())
    settled(page)
    page.get_by_text("or paste a config.json").click()
    page.get_by_label("Hugging Face config.json").fill(json.dumps(model, indent=1))
    expect(page.locator(".summary")).not_to_contain_text("llama3-8b")
    settled(page)
    again = pages(page.url)
    settled(again)
    assert rows(again) == rows(page)
    page.get_by_label("Hugging Face config.json").fill("{")
    expect(page.locator("#problem-config")).to_contain_text("no JSON")
    small = pages(link(asked.url, model="175b", gpus=8))
    small.wait_for_selector("article .config")
    note = small.locator(".answer .note")
    assert "Nothing fits" in note.inner_text() and "--" not in note.inner_text()
    note.get_by_role("button", name="use gpus").click()
    expect(small.locator(".answer .note")).to_have_count(0)
    settled(small)
    assert int(small.get_by_label("GPUs", exact=True).input_value()) > 8 and rows(small)


def test_remedies_and_better_batches_are_taken_by_a_button(asked, pages):
    page = pages(link(asked.url, model="llama3-70b", gpus=8))
    page.get_by_role("button", name="use fix offload=1", exact=True).click()
    expect(page.locator("table.plans tbody tr").first).to_be_visible()
    assert page.get_by_label("Only plans with", exact=True).input_value() == "offload=1"
    assert "offload=1" in shorts(page)[0]
    page = pages(link(asked.url, model="llama3-8b", gpus=1, gpu="rtx-4090-24gb"))
    page.get_by_role("button", name="use peft lora", exact=True).click()
    expect(page.locator("table.plans tbody tr").first).to_be_visible()
    page.get_by_label("Sequence", exact=True).fill("1k")
    expect(page.locator(".answer .summary")).to_contain_text("sequence 1,024")
    page = pages(link(asked.url, gpus=24, global_batch_size=128))
    page.get_by_role("button", name="use batch").click()
    expect(page.locator(".answer > .note")).to_have_count(0)
    assert int(page.get_by_label("Global batch", exact=True).input_value()) % 24 == 0
    page = pages(link(asked.url, gpus=1000, global_batch_size=512))
    page.get_by_role("button", name="use global_batch_size 500").click()
    expect(page.locator("table.plans tbody tr").first).to_be_visible()
    assert page.get_by_label("Global batch", exact=True).input_value() == "500" and rows(page)


def test_the_key_is_asked_for_and_stays_in_the_tab(services, pages):  # noqa: F811
    locked = services("--workers", "1", "--keys", "--search-workers", "0")
    arguments = ["--scope", "read", "--scope", "plan", "--database", locked.database]
    key = run_in_process("keys", "create", "--name", "page", *arguments).stdout.strip()
    page = pages(link(locked.url), refused=(401,))
    page.get_by_label("This service asks for an API key").fill(key)
    assert not serious(page)
    page.get_by_role("button", name="Use key").click()
    settled(page)
    assert page.locator("#key-form").is_hidden() and key not in page.url
    assert key not in page.evaluate("JSON.stringify(localStorage) + document.cookie")
    page.reload()
    settled(page)


def test_a_narrow_window_needs_no_sideways_scrolling(asked, pages):
    plan = ask(asked, "plans", **QUESTION)["plans"][1]["short"]
    page = pages(link(asked.url, compare=plan), viewport={"width": 320, "height": 640})
    settled(page)
    page.wait_for_selector("table.compared")
    assert too_wide(page) <= 0
    for view in ("Scaling", "Searches"):
        page.get_by_role("tab", name=view).click()
        page.wait_for_selector("#view-scaling g.point" if view == "Scaling" else ".searches tbody tr")
        assert too_wide(page) <= 0
