"""The doors: what each asks, that axe-core finds nothing at all, that the answer is seen first, what its charts say."""

import httpx
import pytest
from autoconfig.specs.software.engine import engine_names
from autoconfig.specs.software.software import DISPATCHERS, software_names
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from autoconfig.planning.money import money_text
from autoconfig.post_training.frameworks import algorithm_names
from tests.page.conftest import VIOLATIONS, answered, command, go, too_wide

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]


TRAIN = {"model": "llama3-8b", "gpus": 16, "gpu": "h100-sxm-80gb"}
SERVE = {"view": "deployments", "model": "llama3-8b", "gpus": 2, "gpu": "h100-sxm-80gb", "isl": 500, "osl": 200}
RL = {"view": "post-training", "model": "qwen2.5-7b", "gpus": 8, "gpu": "h100-sxm-80gb"}
DESKTOP, PHONE = {"width": 1400, "height": 900}, {"width": 390, "height": 844}


def labels(page):
    """Labels of the fields that are shown, in order; those under More too."""
    page.locator("#more").evaluate("element => element.open = true")
    return [text for text in page.locator("#question label:visible").all_inner_texts() if text != "Hugging Face config.json"]


def test_a_door_has_its_own_fields_and_the_service_says_what_they_may_be(asked, pages):
    page = pages(asked.url)
    assert page.locator(".door strong").all_inner_texts() == ["Train", "Fine-tune", "Serve"]
    assert page.locator("#workplace").is_hidden() and page.get_by_role("button", name="Slow run").is_visible()
    page.locator(".door", has_text="Fine-tune").click()
    answered(page)
    more = [
        "Chance to fit, least",
        "Memory margin",
        "Dispatcher",
        "CUDA graphs",
        "Expert imbalance",
        "EP overlap",
        "Gradients",
        "GPUs per node",
    ]
    more += ["First moment", "Second moment", "Only plans with", "At most", "Without", "Plans to show"]
    usual = ["Global batch", "Sequence", "Precision", "Goal", "Tokens", "Days", "Budget", "Software", "Price, GPU hour", *more]
    assert labels(page) == ["Model", "GPUs", "GPU type", "Adapters", "LoRA rank", *usual]
    tops = {
        page.locator("#question").get_by_label(name, exact=True).bounding_box()["y"] for name in ("Tokens", "Days", "Budget")
    }
    assert len(tops) == 1
    page.locator("#doors").get_by_role("button", name="Train", exact=True).click()
    answered(page)
    assert labels(page) == ["Model", "GPUs", "GPU type", *usual]
    page.locator("#doors button", has_text="Serve").click()
    answered(page)
    of_serving = [
        "Tokens in",
        "Tokens out",
        "TTFT at most",
        "TPOT at most",
        "Requests/s",
        "Price, GPU hour",
        "Engine",
        "Goal",
        "GPUs per node",
    ]
    of_serving += [
        "Stddev in",
        "Stddev out",
        "TTFT p99 at most",
        "TPOT p99 at most",
        "Prefix hits, share",
        "Expert imbalance",
        "Draft tokens",
    ]
    assert labels(page) == ["Model", "GPUs", "GPU type", *of_serving, "Drafts accepted"]
    lists = {
        "f-software": software_names(),
        "f-serve-engine": engine_names(),
        "f-rl-algorithm": algorithm_names(),
        "f-dispatcher": DISPATCHERS,
    }
    for name, values in lists.items():
        options = page.eval_on_selector_all(f"#{name} option", "options => options.map(one => one.textContent)")
        assert set(options) - {"usual"} - {o for o in options if o.startswith("usual:")} == set(values), name
    page.locator("#doors button", has_text="Post-training").click()
    answered(page)
    assert "Algorithm" in labels(page) and "Global batch" not in labels(page) and "Tokens in" not in labels(page)


CONTRAST = {**VIOLATIONS, "runOnly": ["color-contrast"]}
"""Of axe-core's rules the one that a colour scheme changes."""
SCREENS = {
    "train": {**TRAIN, "tokens": "1T", "price": 3, "top": 4},
    "tune": {"door": "tune", **TRAIN, "gpus": 1, "peft": "lora", "top": 4},
    "scaling": {**TRAIN, "view": "scaling", "counts": "8:16"},
    "budget": {"view": "budget", "model": "llama3-8b", "money": "20000", "days": 30, "tokens": "10B"},
    "nothing fits": {**TRAIN, "model": "llama3-70b", "gpus": 8},
    "serve": SERVE,
    "start": {"view": "start", "start_text": "vllm serve Qwen/Qwen3-8B", "start_gpu": "h100-sxm-80gb"},
    "rl": RL,
    "diagnose": {"view": "diagnose"},
    "searches": {**TRAIN, "view": "searches"},
}


def test_axe_finds_nothing_on_a_phone_and_a_desk_in_light_and_dark(asked, pages):
    page = pages(asked.url)

    def judge(name):
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                whole = (size is DESKTOP and scheme == "light") or (size is PHONE and scheme == "dark")
                bad = Axe().run(page, options=VIOLATIONS if whole else CONTRAST).response["violations"]
                said = [[rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]] for rule in bad]
                assert not bad, (name, size, scheme, said)
            assert too_wide(page) <= 0, name
        page.set_viewport_size(DESKTOP)

    judge("entrance")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c < 90)")  # still dark
    other = httpx.post(f"{asked.url}/v1/plans", json=TRAIN, timeout=300).json()["plans"][1]["short"]
    for name, question in SCREENS.items():
        go(page, **question, **({"compare": other} if name == "train" else {}))
        assert page.locator("table.compared:visible").count() == (name == "train")
        for element in page.locator("main details:visible, #question details:visible").all():
            element.evaluate("element => element.open = true")
        judge(name)


def test_on_a_phone_the_answer_is_seen_first_and_deployments_are_columns(asked, pages):
    page = pages(asked.url, viewport=PHONE)
    for name in ("train", "tune", "serve"):
        go(page, **SCREENS[name])
        shown = page.locator(".headline:visible").first
        assert shown.bounding_box()["y"] + shown.bounding_box()["height"] < PHONE["height"] / 2, name
        assert page.locator("#question").is_hidden()
    heights = page.locator(".deployments table.plans tbody tr").evaluate_all("rows => rows.map(row => row.clientHeight)")
    heads = page.locator(".deployments table.plans thead th:visible").all_inner_texts()
    assert heads == ["#", "GPUs", "tokens/s/GPU", "TTFT", "TPOT", "layout"]
    assert len(heights) > 3 and max(heights) < 75  # three lines of text and the room around them
    page.get_by_role("button", name="Change the question").click()
    page.get_by_label("Tokens out").first.fill("100")
    expect(page.locator(".deployments .summary")).to_contain_text("100 out")


def drawn(page, figure):
    """Points of a plot: filled ones, and all of them."""
    points = page.locator(f"{figure} g.point")
    return [
        set(points.evaluate_all(f"points => points{only}.map(one => one.dataset.short)"))
        for only in (".filter(one => one.classList.contains('front'))", "")
    ]


def on_the_frontier(figures, shorts):
    """Of figures by name (both the less the better) the names that none of `shorts` beats."""
    ours = {short: figures[short] for short in shorts}
    beaten = {a for a, (x, y) in ours.items() if any(u <= x and v <= y and (u < x or v < y) for u, v in ours.values())}
    return set(ours) - beaten


@pytest.mark.parametrize(("model", "gpus", "words"), [
    ("llama3-8b", 16, "; #1 is one of them; "),
    ("llama3-70b", 256, "; #1 is one of them; "),
    ("175b", 1024, "; #1 is one of them, too, 0.1 % behind, closer than the model can tell apart; "),
])  # fmt: skip
def test_what_is_filled_is_what_the_legend_says(asked, pages, model, gpus, words):
    page = pages(asked.url)
    question = {**TRAIN, "model": model, "gpus": gpus}
    go(page, **question)
    answer = command("search", question)
    figures = {one["short"]: (one["memory"]["peak_gib"], one["step_seconds"]) for one in answer["plans"] + answer["pareto"]}
    front, every = drawn(page, "#view-plans figure")
    assert front == on_the_frontier(figures, every) | {answer["plans"][0]["short"]}
    assert (answer["plans"][0]["short"] in on_the_frontier(figures, every)) == ("too" not in words)
    expect(page.locator("#view-plans")).to_contain_text("nothing drawn is both faster and smaller" + words)


def test_the_frontier_of_deployments_is_what_the_legend_says(asked, pages):
    page = pages(asked.url)
    question = {**SERVE, "tpot": "20ms", "ttft": "500ms"}
    go(page, **question)
    answer = command("deployments", question)
    speeds = ("tokens_per_second_per_user", "tokens_per_second_per_gpu")
    figures = {one["plan"]: tuple(-one[speed] for speed in speeds) for one in answer["deployments"] + answer["pareto"]}
    front, every = drawn(page, "figure.frontier")
    assert front == on_the_frontier(figures, every) and answer["deployments"][0]["plan"] in front
    expect(page.locator("figure.frontier")).to_contain_text("#1 is one of them")


def test_exchange_of_experts_is_drawn_as_communication_and_what_does_not_fit_is_no_download(asked, pages):
    page = pages(asked.url)
    go(page, model="qwen3-30b-a3b", gpus=16, gpu="h100-sxm-80gb", moe_imbalance=1.5, dispatcher="alltoall", fix="ep=8")
    row = page.locator("table.parts tr", has_text="expert dispatch and combine")
    assert row.locator("i").get_attribute("class") == "part fill-communication"
    assert page.get_by_role("button", name="Download").count() == 1
    go(page, **SCREENS["nothing fits"])
    expect(page.locator("#view-plans .config")).to_contain_text("does not fit in memory")
    assert page.get_by_role("button", name="Download").count() == 0


def test_a_budget_is_asked_at_the_entrance_and_its_plans_are_shown(asked, pages):
    page = pages(asked.url)
    page.get_by_label("Money").fill("200,000")
    page.locator("#entrance-days").fill("3 weeks")
    page.get_by_role("button", name="What does it train?").click()
    answered(page)
    best = command("budget", {"money": "200,000", "days": "3 weeks"})["best"]
    expect(page.locator(".budget .headline")).to_contain_text(f"{best['num_gpus']:,} x {best['gpu']}: {best['days']:.1f} days")
    page.locator("table.choices button").first.click()
    answered(page)
    expect(page.locator("#view-plans .workbench .headline")).to_contain_text(best["best"]["short"])
    again = pages(page.url)
    answered(again)
    headline = "#view-plans .workbench .headline"
    assert again.locator(headline).inner_text() == page.locator(headline).inner_text()


def test_what_a_budget_trains_stands_above_the_plans(asked, pages):
    page = pages(asked.url)
    question = {"model": "llama3-8b", "money": "20000", "days": 30, "tokens": "10B", "gpu": "h100-sxm-80gb"}
    go(page, **{**question, "gpus": 16, "price": 2.5})
    best = command("budget", {**question, "gpu": "h100-sxm-80gb=2.5"})["best"]
    expect(page.locator("#view-plans .note .headline")).to_contain_text(
        f"{best['num_gpus']} x h100-sxm-80gb: {best['days']:.2f} days, {money_text(best['cost'])}"
    )
