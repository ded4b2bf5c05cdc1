"""Screens of 80, 120 and 200 columns: no line over the width, no broken word, the table at the top; as they were recorded."""

import io
import json
import math
import re

import pytest
import screens
from autoconfig.specs.remarks import Effect, Remark, note, sentence
from click.testing import CliRunner
from rich.text import Text
from tables import tabled

import autoconfig
from autoconfig.cli.main import cli
from autoconfig.render.blocks import Blocks
from autoconfig.render.screen import Screen, brief, broken, show_assumptions, show_table
from autoconfig.training.recompute_rules import ENFORCED_IN
from autoconfig.training.rules import ALL_RULES

pytestmark = pytest.mark.xdist_group("screens")
"""One worker asks what they show, once."""
COMMAND = ("autoconfig ", "--")
"""How lines begin that are there to be copied, and stay whole."""
EDGE = r"[,;+/)]"
UNBOUNDED = 4_000


@pytest.mark.parametrize("width", screens.WIDTHS)
@pytest.mark.parametrize("name", screens.SCREENS)
def test_a_screen_holds_its_answer(name, width):
    lines = screens.screen(name, width).splitlines()
    assert [line for line in lines if len(line.rstrip()) > width and not line.startswith(COMMAND)] == []
    assert any(screens.SCREENS[name][0] in line for line in lines[: 18 if name in screens.FIRST else 12]), "its table is below"
    whole = screens.screen(name, UNBOUNDED)
    counted = re.sub(r"[0-9]+\s+more\s+(changes\s+)?\(--verbose[^)]*\)", "", "\n".join(lines)).splitlines()
    said = [line for line in counted if "(--json" not in line and "Not on this screen" not in line]
    for word in {word.removesuffix(";") for line in said for word in line.split()} - {"all)"}:
        bounded = rf"(?:^|\s|(?<={EDGE})){re.escape(word)}(?:[\s;]|$|(?<={EDGE}))"
        assert re.search(bounded, whole), f"{word} is a piece of a word"
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", screens.WIDTHS)
@pytest.mark.parametrize("name", screens.FIRST)
def test_a_first_screen_is_a_terminal_and_says_what_to_start(name, width):
    lines = screens.screen(name, width).splitlines()
    assert sum(max(1, math.ceil(len(line) / width)) for line in lines) <= 24
    assert [line.split()[0] for line in lines[:3] if re.match(r"(START|NO)\s", line)] in (["START"], ["NO"])
    assert any("--verbose" in line for line in lines)


@pytest.mark.parametrize("width", screens.WIDTHS)
@pytest.mark.parametrize("name", screens.SCREENS)
def test_screens_are_as_recorded(name, width):
    said = screens.recorded(screens.screen(name, width))
    held = screens.path(name, width).read_text(encoding="utf-8")
    assert said == held, "run python tests/helpers/screens.py, read what changed"


def rows_of(text):
    """The cells of a table of plans."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["#", "TP"])
    names = lines[head].split()
    return [dict(zip(names, line.replace(" s ", " ").split(), strict=False)) for line in lines[head + 1 : head + 6]]


@pytest.mark.parametrize(("sort_by", "column"), [("step", "step"), ("memory", "peak")])
def test_five_rows_are_each_another_layout_sorted_by_what_is_said(sort_by, column):
    found = autoconfig.search(model="llama3-70b", gpus=256, calibration="none", sort_by=sort_by, top=40)
    text = printed(found.show, 120)
    rows = rows_of(text)
    assert len({tuple(row[key] for key in ("TP", "PP", "CP")) for row in rows}) == 5
    assert [float(row[column]) for row in rows] == sorted(float(row[column]) for row in rows)
    assert f"sorted by {'step time' if sort_by == 'step' else 'peak memory'}" in text
    first = found.record.plans[0]
    assert f"START    {first.short}" in text and any(row["#"].rstrip("=") == str(first.rank) for row in rows)


def test_nothing_of_the_whole_answer_is_lost():
    found = autoconfig.search(model="llama3-70b", gpus=64, calibration="none", tokens="1T")
    whole = printed(found.show, 200, verbose=True)
    for part in ("layouts enumerated", "Rejected: ", "Why the first", "The next one", "Less memory", "90 % band"):
        assert part in whole and part not in printed(found.show, 200), part
    assert all(f"{plan.rank}{'=' * (plan.tie_group == 1)} {plan.short}" in whole for plan in found.record.plans)


@pytest.mark.long
@pytest.mark.parametrize(("model", "gpus"), [("qwen3-30b-a3b", 64), ("deepseek-v2-lite", 32)])
def test_another_dispatcher_is_named_with_its_own_first_plan(model, gpus):
    """What the screen says of DeepEP is what a search for it finds, its step at least 5 % below; asked for, it is not said."""
    asked = {"model": model, "gpus": gpus, "gpu": "h100"}
    found, best = autoconfig.search(**asked), autoconfig.search(**asked, dispatcher="deepep")
    text = " ".join(printed(found.show, 200).split())
    quickest = best.plans["step_seconds"].min()
    line = re.search(r"or --dispatcher deepep ([0-9.]+) s \(-[0-9]+%\) with a plan of its own", text)
    gain = 1 - quickest / found.plans["step_seconds"].iloc[0]
    assert (line is not None) == (gain >= 0.05)
    if line is not None:
        assert float(line[1]) == pytest.approx(quickest, abs=0.006)
    assert "or --dispatcher" not in printed(best.show, 200)


def test_fp8_of_the_first_plan_is_what_a_search_of_fp8_says_of_it():
    """The line of switches beside a search that was asked for fp8 and shown the same plan."""
    asked = {"model": "llama3-8b", "gpus": 8, "gpu": "h100", "calibration": "none"}
    found = autoconfig.search(**asked)
    said = re.search(r"fp8 \(\w+ scaling\) ([0-9.]+) s \(-([0-9]+)%\)", printed(found.show, 200))
    (other,) = autoconfig.search(**asked, precision="fp8", include=found.best.short).included
    assert float(said[1]) == pytest.approx(other.step_seconds, rel=0.005)
    assert int(said[2]) == round(100 * (1 - other.step_seconds / found.best.step_seconds))
    of_ampere = printed(autoconfig.search(**{**asked, "gpu": "a100-80gb"}).show, 200)
    assert "fp8" not in of_ampere and "tokens/s/GPU" in of_ampere


def test_a_price_without_tokens_costs_a_billion():
    asked = {"model": "llama3-8b", "gpus": 8, "calibration": "none", "price": 3}
    for more in ({}, {"gpu": ["h100", "a100-80gb"]}):
        text = printed(autoconfig.search(**asked, **more).show, 120)
        assert "cost/B" in text and "days" not in text.split("Assumed")[0]
        assert "cost/B" not in printed(autoconfig.search(**asked, **more, tokens="1T").show, 120)


def test_what_is_too_tall_goes_by_its_weight_and_the_last_rows_with_it():
    shown = Blocks()
    shown.head("head")
    shown.say("LABEL", "kept " * 20)
    for number in range(1, 10):
        shown.say(f"n{number}", "line " * 30, spare=number)
    shown.table(["a"], [[str(number)] for number in range(5)], [["own"]])
    text = printed(shown.show, 80).splitlines()
    assert len(text) <= 24 and text[1].startswith("LABEL    kept") and text[2].startswith(" " * 9 + "kept")
    labels = [line.split()[0] for line in text if re.match("n[0-9]", line)]
    assert labels == [f"n{number}" for number in range(1, len(labels) + 1)] and labels, "the highest weight goes first"
    assert text[-1].split() == ["own"]
    assert len([line for line in printed(shown.show, 80, verbose=True).splitlines() if re.match("n[0-9]", line)]) == 9


def lines_of(text, width):
    return [line.plain for line in broken(Text(text), width)]


def test_words_stay_whole_and_plans_break_behind_their_keys():
    assert lines_of("one two three", 7) == ["one two", "three"]
    assert lines_of("  one two three", 9) == ["  one two", "  three"]
    assert lines_of("is tp=2,pp=4,mbs=1 here", 10) == ["is", "tp=2,pp=4,", "mbs=1 here"]
    assert lines_of("    tp=2,pp=4,mbs=1,sp=1", 14) == ["    tp=2,pp=4,", "    mbs=1,sp=1"]
    assert lines_of("unbreakablewords", 5) == ["unbreakablewords"]
    assert lines_of("", 5) == [""]


def printed(draw, width, **settings):
    text = io.StringIO()
    draw(Screen(file=text, width=width, **settings))
    return text.getvalue()


def test_what_is_long_is_said_in_two_lines_and_counted():
    texts = [f"thing number {number}" for number in range(20)]
    short = printed(lambda screen: brief(screen, "Assumed", texts), 60).splitlines()
    assert len(short) == 2 and short[1].endswith("more (--verbose)")
    said = " ".join(short)
    assert said.count("thing") + int(re.search(r"([0-9]+) more", said)[1]) == 20
    whole = printed(lambda screen: brief(screen, "Assumed", texts), 60, verbose=True)
    assert whole.count("thing") == 20 and "--verbose" not in whole
    assert printed(lambda screen: brief(screen, "Assumed", texts[:2]), 60) == "Assumed: thing number 0; thing number 1\n"
    assert printed(lambda screen: brief(screen, "Assumed", []), 60) == ""


def test_assumptions_that_move_every_figure_come_first_and_are_never_cut():
    given = (("gpu", "h100-sxm-80gb", ""), ("software", "x" * 30, f"{'word ' * 20}end"), ("gpus", 64, ""))
    moves = [Remark(*one, Effect.EVERYTHING) for one in given]
    rest = [note(f"thing number {number}") for number in range(20)]
    words = [sentence(one) for one in moves]
    said = " ".join(printed(lambda screen: show_assumptions(screen, [*rest, *moves]), 60).split())
    assert said == f"Assumed: {'; '.join(words)}; 20 more (--verbose)"
    assert printed(lambda screen: show_assumptions(screen, [rest[0], moves[2]]), 60) == f"Assumed: {words[2]}; {rest[0].why}\n"
    assert " ".join(printed(lambda screen: show_assumptions(screen, moves), 60).split()) == f"Assumed: {'; '.join(words)}"


def test_a_table_loses_nothing_that_is_not_said():
    rows = [["a", "1", "2", "tp=1,pp=2"], ["b", "10", "20", "tp=4,pp=8"]]
    names = ("name", "first", "second", "plan")

    def draw(screen):
        show_table(screen, names, rows, left=("name", "plan"), below=("plan",), spare=("second",))

    assert [line.split() for line in printed(draw, 60).splitlines()] == [list(names), *rows]
    narrow = printed(draw, 26).splitlines()
    assert narrow[1].split() == ["a", "1", "2"] and narrow[2] == "    tp=1,pp=2" and len(narrow) == 5
    assert "Not on this screen: second" in " ".join(printed(draw, 18).split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("rate", "verdict"), [("0.5", "START Starts. Plan"), ("50", "NO Starts. Does not carry 50 requests/s: ")]
)
def test_a_server_that_starts_and_does_not_carry_the_load_is_no_start(tmp_path, rate, verdict):
    file = tmp_path / "serve.sh"
    file.write_text("vllm serve openai/gpt-oss-120b --max-model-len 65536\n")
    asked = ["check", str(file), "--gpu", "h100", "--isl", "8000", "--osl", "500", "--rate", rate]
    text = " ".join(CliRunner().invoke(cli, asked).output.split())
    assert verdict in text and ("NO " in text[:200]) == (rate == "50")


def test_a_run_with_a_mistyped_key_is_said_so_before_its_memory(tmp_path):
    file = tmp_path / "run.sh"
    asked = ["rl", "--model", "qwen2.5-7b", "--gpus", "8", "--response-length", "1000", "--export", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, asked).exit_code == 0
    text = (
        (tmp_path / "out" / "run_verl.sh")
        .read_text()
        .replace("actor_rollout_ref.rollout.name=", "actor_rollout_ref.rollout.nmae=")
    )
    file.write_text(text)
    said = CliRunner().invoke(cli, ["rl", "check", str(file)]).output.splitlines()
    labels = [line for line in said if line.startswith(("NO ", "START "))]
    assert len(labels) == 1 and labels[0].startswith("NO ") and "nmae" in labels[0]


QUESTION = ("--model", "llama3-8b", "--gpus", "16", "--gpu", "h100", "--calibration", "none")
A, B = "tp=2,pp=2,mbs=1", "tp=4,pp=1,mbs=1"


def rows(text, title):
    """Cells of the rows below a title, the last three of them numbers."""
    lines = text.split(title)[1].splitlines()[2:]
    found = []
    for line in lines:
        cells = line.split()
        if not re.fullmatch(r"[+-][0-9.]+", cells[-1]):
            break
        found.append([float(cell) for cell in cells[-3:]])
    return found


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_differences_of_two_plans_add_up(autoconfig, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    each = [autoconfig.json("explain", *QUESTION, "--no-binds", plan) for plan in (A, B)]
    run = autoconfig.run("explain", *QUESTION, A, B)
    assert run.exit_code == 0 and max(map(len, run.stdout.splitlines())) <= int(width)
    steps = [one["step_seconds"] for one in each]
    faster = "A" if steps[0] < steps[1] else "B"
    assert f"START    {faster}: {1 - min(steps) / max(steps):.1%} less time a step" in run.stdout
    parts = rows(run.stdout, "Seconds of the step by part")
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx([*steps, steps[1] - steps[0]], abs=0.02)
    peaks = [one["memory"]["peak_gib"] for one in each]
    sizes = rows(run.stdout, "GiB of the worst stages")
    assert [sum(column) for column in zip(*sizes, strict=True)] == pytest.approx([*peaks, peaks[1] - peaks[0]], abs=0.02)
    assert abs(parts[0][2]) == max(abs(row[2]) for row in parts), "the largest difference comes first"


def test_two_plans_as_json_are_two_explanations(autoconfig):
    both = autoconfig.json("explain", *QUESTION, "--no-binds", A, B)["compared"]
    assert [one["short"] for one in both] == [autoconfig.json("explain", *QUESTION, "--no-binds", p)["short"] for p in (A, B)]


def test_of_two_plans_one_that_is_not_legal_says_its_rules(autoconfig):
    run = autoconfig.run("explain", *QUESTION, A, "tp=3")
    assert run.exit_code == 2 and "START    tp=2,pp=2" in run.stdout and "NO       tp=3" in run.stdout and "NV001" in run.stdout
    large = ("--model", "175b", "--gpus", "8", "--gpu", "a100-80gb")
    neither = autoconfig.run("explain", *large, "tp=8", "tp=4,pp=2")
    assert neither.exit_code == 3 and "NO       neither fits" in neither.stdout


def test_every_rule_that_rejects_plans_is_listed_and_explained(autoconfig):
    listed = json.loads(autoconfig.run("rules", "--json").stdout)["rules"]
    assert [row["rule"] for row in listed] == [rule.id for rule in ALL_RULES]
    for rule in ALL_RULES:
        said = json.loads(autoconfig.run("rules", rule.id, "--json").stdout)
        assert said["text"] == rule.text and said["enforced_in"] in ENFORCED_IN and said["enforced"]


def test_a_rule_in_words(autoconfig):
    said = autoconfig.run("rules", " nv046").stdout
    assert "Sequence parallelism needs tp above 1." in said and "About: sp tp" in said and "arguments.py:1433" in said


@tabled
def test_a_list_is_narrowed_by_words(autoconfig, asked, names):
    listed = json.loads(autoconfig.run(*asked, "--json").stdout)[asked[0]]
    assert [next(iter(row.values())) for row in listed][: len(names)] == names
    refused = autoconfig.run(asked[0], "zzz9")
    assert refused.exit_code == 2 and f"autoconfig {asked[0]} lists all" in refused.stderr and not refused.stdout
