"""`explain` of two plans: the faster one is named, and the differences add up to those of the step and of the peak."""

import re

import pytest

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
