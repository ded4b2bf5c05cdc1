"""Screens of 80, 120 and 200 columns: no line over the width, no broken word, the table at the top; as they were recorded."""

import io
import re
from types import SimpleNamespace

import pytest
import screens
from autoconfig.specs.remarks import Effect, Remark, note, sentence
from rich.text import Text

from autoconfig.render.plan_table import _or_chunks, plan_table
from autoconfig.render.screen import Screen, brief, broken, show_assumptions, show_table
from autoconfig.training.answer import search
from autoconfig.training.question import request_of

COMMAND = ("autoconfig ", "--")
"""How lines begin that are there to be copied, and stay whole."""
EDGE = r"[,;+/)]"
UNBOUNDED = 4_000


@pytest.mark.parametrize("width", screens.WIDTHS)
@pytest.mark.parametrize("name", screens.SCREENS)
def test_a_screen_holds_its_answer(name, width):
    lines = screens.screen(name, width).splitlines()
    assert [line for line in lines if len(line.rstrip()) > width and not line.startswith(COMMAND)] == []
    assert any(screens.SCREENS[name][0] in line for line in lines[:12]), "the table begins below line 12"
    whole = screens.screen(name, UNBOUNDED)
    counted = re.sub(r"[0-9]+\s+more\s+\(--verbose\)", "", "\n".join(lines)).splitlines()
    said = [line for line in counted if "(--json" not in line and "Not on this screen" not in line]
    for word in {word.removesuffix(";") for line in said for word in line.split()} - {"all)"}:
        bounded = rf"(?:^|\s|(?<={EDGE})){re.escape(word)}(?:[\s;]|$|(?<={EDGE}))"
        assert re.search(bounded, whole), f"{word} is a piece of a word"
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", screens.WIDTHS)
@pytest.mark.parametrize("name", screens.SCREENS)
def test_screens_are_as_recorded(name, width):
    said = screens.recorded(screens.screen(name, width))
    held = screens.path(name, width).read_text(encoding="utf-8")
    assert said == held, "run python tests/helpers/screens.py, read what changed"


def test_plans_of_a_tie_that_differ_in_their_chunks_share_a_row():
    asked = {"model": "llama3-70b", "gpus": 64, "fix": {"tp": 8, "cp": 1, "mbs": 1}, "top": 8}
    answer = search(request_of({**asked, "gpu": "h100", "calibration": "none"}))
    plans = [one.report.plan for one in answer.plans]
    alike = {plan.replace(vpp=1): [one.vpp for one in plans if one.replace(vpp=1) == plan.replace(vpp=1)] for plan in plans}
    assert len(alike) < len(plans) and all(one.tie_group == 1 for one in answer.plans)
    rows = printed(lambda console: plan_table(console, answer), 4_000).splitlines()[1:]
    assert len(rows) == len(alike)
    for row, (first, *others) in zip(rows, alike.values(), strict=True):
        assert row.split()[3] == str(first)
        assert f"or vpp={','.join(map(str, others))} (to " in row if others else "or vpp" not in row
    whole = printed(lambda console: plan_table(console, answer), 4_000, verbose=True).splitlines()[1:]
    assert len(whole) == 2 * len(plans) and "or vpp" not in "".join(whole)


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


def test_of_rows_with_other_chunks_the_end_that_is_further_off_is_named():
    """A plainer plan stands first, and those behind it may be faster."""
    first = SimpleNamespace(step_seconds=56.9)
    for steps, said in (((57.1, 56.8), "(to 57.10 s)"), ((56.84, 56.87), "(from 56.84 s)")):
        pairs = zip(steps, (2, 5), strict=True)
        others = [SimpleNamespace(step_seconds=one, plan=SimpleNamespace(vpp=vpp)) for one, vpp in pairs]
        assert _or_chunks(first, others) == f"or vpp=2,5 {said}"
    assert _or_chunks(first, []) == ""
