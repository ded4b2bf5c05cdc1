"""The tabs of deployments and of post-training in a real browser."""

from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from autoconfig.specs.errors import chance_text
from playwright.sync_api import expect

from tests.page.conftest import SERVE, ask, serious, too_wide

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]


def deployment_link(url, **changes):
    """The tab with its question in the link."""
    asked = {**SERVE, "view": "deployments", **changes}
    return f"{url}/#" + "&".join(f"{key}={quote(str(value))}" for key, value in asked.items())


def test_the_tab_shows_the_answer_of_the_service(asked, pages):
    page = pages(deployment_link(asked.url))
    view = page.locator("#view-deployments")
    expect(view.locator("figure.frontier g.point").first).to_be_visible()
    answer = httpx.post(f"{asked.url}/v1/deployments", json=SERVE, timeout=300).json()
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


STEP = {"model": "qwen2.5-7b", "gpus": 16, "gpu": "h100-sxm-80gb", "prompts": 64, "group_size": 8, "response_length": 500}


def step_link(url, **changes):
    """The tab of post-training with its question in the link."""
    given = {**STEP, "view": "post-training", **changes}
    return f"{url}/#" + "&".join(f"{key}={quote(str(value))}" for key, value in given.items())


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}}])
def test_placements_and_the_timeline_of_the_step(asked, pages, options):
    page = pages(step_link(asked.url), **options)
    view = page.locator("#view-post-training")
    shown = view.locator("table.plans tbody tr")
    expect(shown.first).to_be_visible()
    answer = ask(asked, "post-training", **STEP)
    placements = answer["placements"]
    assert shown.count() == len(placements) > 2
    for number, (row, one) in enumerate(zip(shown.all(), placements, strict=True), 1):
        text, memory = row.inner_text(), one["memory_gib"]
        assert (f"{number}=" in text) == (1 < answer["ties"] >= number)
        chance = min(memory["generation_fit_probability"], memory["training_fit_probability"])
        assert chance_text(chance).replace("%", " %") in text
        assert view.get_by_text("marks a tie").count() == (answer["ties"] > 1)
        assert one["placement"] in text and f"{one['train_gpus']}: {one['train_plan']}" in text
        assert f"{one['step_seconds']:,.3f} s" in text and f"{one['engine']['replicas']} x tp={one['engine']['tp']}" in text
    shown.nth(1).click()
    chosen, step = placements[1], view.locator("figure.step")
    expect(view.locator("article code")).to_have_text(chosen["train_plan"])
    bars = step.locator("svg g.bar")
    assert bars.count() == len(chosen["timeline"])
    for bar, group in zip(bars.all(), chosen["timeline"], strict=True):
        assert bar.locator("text").text_content() == f"{group['name']}: {group['gpus']} GPUs"
        whole = float(bar.locator("rect.fill-bubble").get_attribute("width"))
        drawn = bar.locator("rect[data-phase]")
        assert [piece.get_attribute("data-phase") for piece in drawn.all()] == [one["phase"] for one in group["intervals"]]
        for piece, one in zip(drawn.all(), group["intervals"], strict=True):
            from_to = [float(piece.get_attribute(name)) / whole for name in ("x", "width")]
            wanted = [one["start"] / chosen["step_seconds"], (one["end"] - one["start"]) / chosen["step_seconds"]]
            assert from_to == pytest.approx(wanted, abs=0.03), one
    assert f"{chosen['phases']['training']:.2f}" in step.locator("table").text_content()
    assert not serious(page) and too_wide(page) <= 0
    again = pages(page.url, **options)
    expect(again.locator("#view-post-training article code")).to_have_text(chosen["train_plan"])
    expect(again.locator("#view-post-training tr.chosen th")).to_have_text("2=" if answer["ties"] > 1 else "2")


def test_where_no_placement_fits_the_nearest_is_shown_and_what_is_wrong_is_said(asked, pages):
    page = pages(step_link(asked.url, model="llama3-70b", gpus=4), refused=(422,))
    view = page.locator("#view-post-training")
    expect(view.locator(".note.bad")).to_contain_text("8 GPUs fit")
    assert view.locator("table.plans tbody tr").count() == 1 and not serious(page)
    page = pages(step_link(asked.url, algorithm="grppo"), refused=(422,))
    expect(page.locator("#problem-rl-algorithm")).to_contain_text("did you mean grpo")


def test_the_chance_to_fit_is_asked_for_and_the_riskier_placement_named(asked, pages):
    page = pages(step_link(asked.url), refused=(422,))
    view = page.locator("#view-post-training")
    expect(view.locator("table.plans tbody tr").first).to_be_visible()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Chance to fit, least").fill("99.99%")
    answer = ask(asked, "post-training", **STEP, fit_chance="99.99%")
    expect(view.get_by_text("faster if it fits")).to_contain_text(f"below 99.99 %): {answer['riskier']['placement']}")
    assert view.locator("table.plans tbody tr").count() == len(answer["placements"])
    assert "fit_chance=99.99%" in page.url.replace("%25", "%") and not serious(page)
    page.get_by_label("Chance to fit, least").fill("most")
    expect(page.locator("#problem-fit_chance")).to_contain_text("write it like 0.9 or 90%")


COMMAND = "vllm serve $MODEL \\\n  --max-model-len 16000 --gpu-memory-utilization 0.9"


def start_link(url, **changes):
    """The tab of starts with its question in the link."""
    given = {"view": "start", "start_gpu": "h100-sxm-80gb", "start_text": COMMAND, "start_release": "0.23", **changes}
    return f"{url}/#" + "&".join(f"{key}={quote(str(value))}" for key, value in given.items())


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}}])
def test_a_pasted_command_is_answered_with_bars_of_memory_and_curves(asked, pages, options):
    page = pages(start_link(asked.url), refused=(422,), **options)
    view = page.locator("#view-start")
    expect(view.locator(".note.bad")).to_contain_text("MODEL")
    view.get_by_label("Variables").fill("MODEL=qwen2.5-7b")
    expect(view.locator("figure.memory-of-start g.bar").first).to_be_visible()
    given = {"text": COMMAND, "settings": {"MODEL": "qwen2.5-7b"}, "release": "0.23", "gpu": "h100-sxm-80gb"}
    answer = ask(asked, "check", **given)
    assert answer["starts"] == "yes" and f"{answer['kv_tokens']:,} tokens of KV cache" in view.inner_text()
    rows = view.locator("figure.memory-of-start table tbody tr")
    assert [row.locator("td").first.inner_text() for row in rows.all()] == [f"{one['gib']:.2f}" for one in answer["parts"]]
    assert view.locator("figure.memory-of-start rect[class*=fill-]").count() >= sum(one["gib"] > 0 for one in answer["parts"])
    view.get_by_label("Tokens in").fill("8000")
    view.get_by_label("Tokens out").fill("100")
    expect(view.locator("figure svg circle")).to_have_count(25, timeout=120_000)
    one = ask(asked, "check", **given, isl=8000, osl=100, concurrency=16)["load"]
    assert f"16 users: {one['ttft_ms']:.0f} ms" in view.locator(".curves").text_content()
    titles = view.get_by_role("img", name="TPOT by requests per second").locator("circle title").all_text_contents()
    rate, _, said = titles[-1].partition(" requests/s: ")
    open_load = ask(asked, "check", **given, isl=8000, osl=100, rate=float(rate.replace(",", "")))["load"]
    assert len(titles) == 5 and said == f"{open_load['tpot_ms']:.1f} ms"
    assert "start_isl=8000" in page.url and not serious(page) and too_wide(page) <= 0


def test_a_better_start_is_shown_as_a_diff(asked, pages):
    text = "vllm serve Qwen/Qwen3-8B --enforce-eager --max-num-seqs 8"
    page = pages(start_link(asked.url, start_text=text, start_isl=1000, start_osl=100, start_concurrency=32))
    view = page.locator("#view-start")
    given = {"text": text, "release": "0.23", "gpu": "h100-sxm-80gb", "isl": 1000, "osl": 100, "concurrency": 32}
    better = ask(asked, "check", **given)["load"]["better"]
    expect(view.locator("pre.diff")).to_have_text("\n".join(better["diff"]))
    assert "-vllm serve Qwen/Qwen3-8B --enforce-eager" in better["diff"][0] and not serious(page)


def test_a_start_that_fails_and_a_flag_that_is_unknown_are_said(asked, pages):
    page = pages(start_link(asked.url, start_text="vllm serve qwen2.5-72b --max-model-lenn 9 --dtype bfloat16"))
    view = page.locator("#view-start")
    expect(view.locator(".note.bad").first).to_contain_text("Does not start.")
    expect(view).to_contain_text("--max-model-len")


def test_a_pasted_log_is_diagnosed(asked, pages):
    question = {"model": "llama3-70b", "gpus": 64, "seq_length": 8192, "global_batch_size": 256}
    question["plan"] = "tp=4,pp=4,vpp=5,mbs=1,sp=1"
    log = (ROOT / "docs/examples/diagnose/socket.txt").read_text()
    link = f"{asked.url}/#view=diagnose&" + "&".join(f"run_{key}={quote(str(value))}" for key, value in question.items())
    page = pages(link)
    view = page.locator("#view-diagnose")
    view.get_by_label("Log of the run").fill(log)
    answer = ask(asked, "diagnose", **question, files={"pasted.log": log})
    assert answer["verdict"] == "slow" and [one["rule"] for one in answer["causes"]] == ["R02"]
    expect(view.locator(".note.bad")).to_contain_text(f"Slow. {answer['measured']['step_seconds']:.3f} s a step")
    expect(view.locator("ol.causes li")).to_contain_text(answer["causes"][0]["words"])
    assert "Using network Socket" in view.inner_text() and view.locator("table tbody tr").count() == len(answer["phases"]) + 1
    assert "Socket" not in page.url and "run_plan=" in page.url and not serious(page) and too_wide(page) <= 0
