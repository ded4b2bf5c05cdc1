"""The three sheets: constants that have not seen what is left out, bands, lines that say NO, the pages and what ships."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.scenario import NAMES
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.hardware.efficiency import entry_of

from autoconfig.calibration.observe import Observation, observe, refine
from autoconfig.render.validation import validation
from autoconfig.training.answer import answer as search
from autoconfig.training.confidence import CLASSES, FIRST_PLAN_KINDS, Band, band_of, first_plan_record, narrowed, record_for
from autoconfig.training.question import Request
from validation.published import published_runs, useful_for_calibration
from validation.sheets import first_plans as first
from validation.sheets.bands import band_from, banded, bands_of, coverage, weighted_quantile
from validation.sheets.field import figures as field_figures
from validation.sheets.field import figures_of_report
from validation.sheets.figures import Line, figures_of, line_table, missed_rows
from validation.sheets.first_plans import FirstPlan, first_plan_lines, first_plans, inside_bands_of_first_plans, record_of
from validation.sheets.memory import best_offset, memory_groups, verdict_lines
from validation.sheets.pages import GENERATED, front_page, pages
from validation.sheets.training import (
    Constants,
    Predicted,
    generic,
    paper_of,
    predictions,
    regret_lines,
    unseen_runs,
    with_publisher_unknown,
)
from validation.sources import bars_held, source_of, unknown_stack

pytestmark = pytest.mark.xdist_group("validate")
DOCS = Path(__file__).parents[2] / "docs"


def test_a_line_holds_between_its_ends_and_a_missed_one_comes_first() -> None:
    inside = Line(name="inside", rows=4, reached=0.9, least=0.85, most=0.95)
    assert inside.holds and not replace(inside, reached=0.96).holds and not replace(inside, reached=0.84).holds
    assert replace(inside, rows=0).holds is None and replace(inside, least=None, most=None).holds is None
    rows = line_table([replace(inside, name="shown", least=None, most=None), inside, replace(inside, name="far", reached=0.5)])
    assert [row.split(" | ")[0] for row in rows.splitlines()[2:]] == ["| far", "| inside", "| shown"]
    assert rows.splitlines()[2] == "| far | 4 | 50.0 % | at least 85.0 % and at most 95.0 % | NO |"


def test_figures_and_missed_rows() -> None:
    found = figures_of([("a", 0.1), ("b", -0.3), ("c", 0.05)])
    assert (found.rows, found.mean, found.median, found.bias) == (3, pytest.approx(0.15), 0.1, 0.05)
    assert (found.worst, found.worst_id) == (-0.3, "b") and math.isnan(figures_of([]).mean)
    listed = missed_rows([("paper", "a", 0.1), ("paper", "b", -0.3), ("other", "c", 0.16), ("near", "d", 0.15)], 0.15)
    assert listed == "- other, 1 of 1: c +16 %\n- paper, 1 of 2: b -30 %\n"


@pytest.mark.judge
def test_constants_have_not_seen_what_is_left_out() -> None:
    constants = Constants("source")
    for source in {run.case.source for run in published_runs()}:
        assert source not in {s for entry in constants.of(source, "").entries for s in entry.sources}
    constants = Constants("model")
    for run in published_runs():
        if useful_for_calibration(run):
            seen = {i for e in constants.of(run.case.source, run.case.scenario.model.name).entries for i in e.rows}
            assert run.case.id not in seen
    nvidia = constants.of("NVIDIA B200 dense FP8", "llama3-70b")
    assert not any("LLAMA3_70B" in row for entry in nvidia.entries for row in entry.rows)


@pytest.mark.judge
def test_changed_copies_of_a_model_leave_with_it() -> None:
    names = {run.case.scenario.model.name for run in published_runs() if run.case.source.startswith("NVIDIA ")}
    assert {"deepseek-v3", "deepseek-v3*"} <= names
    for name in ("deepseek-v3", "deepseek-v3*"):
        seen = {row for entry in Constants("model").of("NVIDIA B200 MoE FP8", name).entries for row in entry.rows}
        assert seen and not [row for row in seen if "DeepSeekV3" in row]


@pytest.mark.judge
def test_without_a_publisher_nothing_of_it_is_known() -> None:
    seen = {s for entry in Constants("publisher").of("NVIDIA B200 MoE FP8", "").entries for s in entry.sources}
    assert seen and not [source for source in seen if source.startswith("NVIDIA ")]


@pytest.mark.judge
def test_bands_know_other_sources_only() -> None:
    pair = ("Narayanan2021-Table1", "Korthikanti2022-Table5")
    runs = [p for p in predictions("source") if p.source in pair]
    far = [replace(p, step_seconds=p.step_seconds / 9) if p.source == pair[0] else p for p in runs]
    assert coverage(runs)[0].inside > 0.5
    assert coverage(far)[0].inside == 0.0, "each source would hold 90 % of itself"


def scattered(between: float, within: float, sources: int, rows: int, seed: int) -> list[Predicted]:
    """Made-up runs of `sources` tables: normal scatter of both kinds."""
    draw = np.random.default_rng(seed)
    run = published_runs()[0]
    found = []
    for number, offset in enumerate(draw.normal(0.0, between, sources)):
        case = replace(run.case, source=f"table {number}")
        found += [
            Predicted(run=replace(run, case=case, measured_s=math.exp(offset + error)), step_seconds=1.0, level="one node")
            for error in draw.normal(0.0, within, rows)
        ]
    return found


@pytest.mark.parametrize(("between", "within", "sources", "rows"), [
    (0.1, 0.1, 6, 5), (0.1, 0.02, 12, 8), (0.02, 0.1, 12, 8), (0.1, 0.1, 30, 1),
])  # fmt: skip
def test_bands_hold_nine_of_ten_runs_of_a_new_source(between: float, within: float, sources: int, rows: int) -> None:
    """Normal scatter, where the formula is exact for sources of one run and gives a little more for few sources of many."""
    share = []
    for seed in range(150):
        runs = scattered(between, within, sources + 1, rows, seed)
        band = band_from(runs[:-rows])
        share += [band.p5 <= math.exp(p.log_ratio) <= band.p95 for p in runs[-rows:]]
    assert 0.87 <= np.mean(share) <= 0.95


def test_bands_take_each_side_for_itself() -> None:
    runs = scattered(0.05, 0.05, 20, 5, 1)
    even = band_from(runs)
    slower = band_from([replace(p, step_seconds=p.step_seconds / 3) if p.log_ratio > 0.1 else p for p in runs])
    assert slower.p95 > 1.3 * even.p95
    assert math.log(slower.p5) > 2 * math.log(even.p5)


def after_three_own_runs(
    rows: list[Predicted], seen: list[Observation], bands: dict[str, Band], seed: int
) -> list[tuple[bool, float]]:
    """(inside, what three own runs change in the half-width) of the other rows of a source; `seen` are the rows, observed."""
    pick = set(np.random.default_rng(seed).choice(len(rows), 3, replace=False).tolist())
    base = Constants("source").of(rows[0].source, rows[0].run.case.scenario.model.name)
    mine = refine(base, [seen[i] for i in pick], "mine")
    found = []
    for i, (row, run) in enumerate(zip(rows, seen, strict=True)):
        entry = entry_of(mine, run.architecture, run.generation, moe=run.moe)
        if i in pick or entry is None or entry.own is None:
            continue
        error = run.log_ratio - np.dot(run.shares, [math.log(getattr(entry.factors, name)) for name in NAMES])
        before = band_of(row.level, bands)
        band = narrowed(before, entry.own)
        found.append((band.p5 <= math.exp(error) <= band.p95, (band.p95 - band.p5 - before.p95 + before.p5) / 2))
    return found


@pytest.mark.judge
def test_own_runs_narrow_bands_that_still_hold() -> None:
    """Every source with ten rows or more plays a user's cluster, small models left out."""
    every = [p for p in banded() if p.level != "small model"]
    inside, change = [], []
    for source in sorted({p.source for p in every}):
        rows = [p for p in every if p.source == source][:200]
        if len(rows) < 10:
            continue
        bands = bands_of([p for p in every if paper_of(p.source) != paper_of(source)])
        seen = [observe(p.run) for p in rows]
        found = [item for seed in range(5) for item in after_three_own_runs(rows, seen, bands, seed)]
        inside.append(np.mean([held for held, _ in found]))
        change.append(np.median([less for _, less in found]))
    assert np.mean(inside) >= 0.85
    assert np.mean(change) <= -0.015


def test_weighted_quantile_of_equal_weights_is_the_median() -> None:
    assert weighted_quantile([3, 1, 2], [1, 1, 1], 0.5) == 2
    assert weighted_quantile([1, 2, 3], [1, 1, 98], 0.5) > 2.4


def test_best_offset_finds_the_shift() -> None:
    peak = np.array([1.0, 2.0, 3.0, 4.0, 5.0]) * 2**30
    limit = np.full(5, 6.0) * 2**30
    offset = best_offset(peak, limit, np.array([True, True, True, False, False]))
    assert 2 * 2**30 < offset < 3 * 2**30


def test_the_stack_of_an_unknown_publisher_has_the_rates_of_its_kind() -> None:
    used = {run.case.scenario.software for run in published_runs() if source_of(run.case.source).whole_step}
    rates = unknown_stack().rates
    for stack in used:
        own, theirs = stack.time, generic(stack).time
        kind = unknown_stack().generic.get(stack.priced_as or stack.name)
        if kind is None:
            assert theirs == own
            continue
        assert [getattr(theirs, rate) for rate in rates] == [getattr(load_stack(kind).time, rate) for rate in rates]
        assert replace(theirs, **{rate: getattr(own, rate) for rate in rates}) == own


@pytest.mark.judge
def test_runs_added_after_the_formulas_are_in_no_fit_and_in_no_band() -> None:
    assert len(unseen_runs()) == 105
    for run in unseen_runs():
        assert not source_of(run.case.source).use and not useful_for_calibration(run)
    assert not {run.case.id for run in unseen_runs()} & {run.case.id for run in published_runs()}
    assert len(with_publisher_unknown()) >= len(unseen_runs()) + 2000


@pytest.mark.judge
def test_a_first_choice_is_judged_by_what_its_plan_measured() -> None:
    chosen = [p for p in predictions("source") if p.source == "vTrain-groundtruth-multi"]
    choice, three = regret_lines(chosen)
    assert choice.rows == three.rows == 4 and choice.holds and three.reached <= 0.01 and choice.most == 0.02
    turned = [replace(p, step_seconds=1 / p.run.measured_s) for p in chosen]
    assert next(regret_lines(turned)).reached > 0.5


@pytest.mark.judge
def test_memory_and_verdicts() -> None:
    simumax = next(group.figures for group in memory_groups() if group.name.startswith("SimuMax"))
    assert simumax.rows == 16 and abs(simumax.worst) <= 0.005
    oom, ran, oom_held, ran_held = verdict_lines()
    assert (oom.rows, ran.rows) == (257, 165) and oom.holds is None
    assert oom_held.holds and ran_held.holds and oom.reached < oom_held.reached


PLAN = FirstPlan(
    id="X-1", source="NVIDIA DGX Cloud H100 dense", question="llama3-8b, 8 x h100", published=90.0, promised=100.0,
    plan="tp=1,pp=1", kind=FIRST_PLAN_KINDS[0], seq_length=8192,
)  # fmt: skip


def test_bands_of_first_plans_know_nothing_of_the_paper_that_they_hold() -> None:
    others = [replace(PLAN, source=f"P{n}-x", published=rate) for n, rate in enumerate((95.0, 97.0, 99.0, 101.0, 103.0))]
    assert all(inside_bands_of_first_plans([*others, replace(PLAN, source="Far-x", published=98.0)]))
    far = [*others, replace(PLAN, source="Far-x", published=40.0)]
    assert inside_bands_of_first_plans(far) == [True] * 5 + [False]
    median, below, inside = first_plan_lines(far)
    assert (median.reached, median.holds) == (0.98, True) and below.reached == pytest.approx(1 / 6) and not below.holds
    assert inside.holds is False


def test_the_record_is_of_short_questions_by_kind() -> None:
    others = [replace(PLAN, id=str(n), source=f"paper {n}", published=100.0 / ratio) for n, ratio in enumerate((1.0, 1.1, 1.2))]
    every = [replace(plan, kind=kind) for plan in others for kind in FIRST_PLAN_KINDS]
    found = record_of([*every, replace(PLAN, published=1.0, seq_length=65536)])
    assert set(found) == set(FIRST_PLAN_KINDS) and all(line["rows"] == line["sources"] == 3 for line in found.values())
    for line in found.values():
        assert line["middle"] == pytest.approx(1.1) and line["p5"] < 1.0 and line["p95"] > 1.2
    for kind in FIRST_PLAN_KINDS:
        shipped = first_plan_record(kind)
        assert shipped.p5 < shipped.middle < shipped.p95 and shipped.rows >= 30


def test_an_answer_shows_the_record_of_its_kind() -> None:
    request = Request(model="llama3-8b", gpus=8, gpu="h100", numerics={"precision": "bf16"}, top=1)

    def shown(request: Request) -> object:
        answer = search(request)
        return record_for(answer.question.scenario, answer.plans[0].report.confidence)

    assert shown(request) == first_plan_record("dense, 16 bits")
    assert shown(replace(request, numerics={"precision": "fp8"})) == first_plan_record("dense, FP8 and FP4")
    assert shown(replace(request, gpu="mi300x")) is None
    assert shown(replace(request, seq_length=65536, global_batch_size=8)) is None


def test_a_promise_is_that_of_the_search_for_the_best_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one question of two releases; the later one is faster."""
    rows = list(first.step_rows())
    best = next(row for row in rows if row["id"] == "DX-0071")
    alike = ("source", "model", "gpu", "gpus", "precision")
    mine = [row for row in rows if [row.get(name) for name in alike] == [best[name] for name in alike]]
    monkeypatch.setattr(first, "step_rows", lambda: iter(mine))
    (found,) = first_plans()
    assert len(mine) > 1 and found.id == "DX-0071" and 0.9 < found.ratio < 1.05


def test_the_summary_that_ships_is_that_of_the_page() -> None:
    found = validation()
    page = (DOCS / "accuracy.md").read_text()
    lanes = {one.lane for one in found.classes}
    assert lanes == {"training", "serving", "post-training"} and found.calibration in page
    assert {one.name for one in found.classes if one.lane == "training"} <= {"pooled", *CLASSES}
    for one in found.classes:
        cells = f"| {one.lane} | {one.name} | {one.rows:,} | {one.publishers} | {one.mean_error:.1%} |".replace("%", " %")
        assert cells in page, "run make accuracy"


def test_validate_prints_the_summary_and_says_where_the_rest_went(autoconfig: SimpleNamespace) -> None:
    plain, record = autoconfig.run("validate"), autoconfig.run("validate", "--json")
    assert plain.exit_code == record.exit_code == 0
    body = json.loads(record.stdout)
    assert body["schema_version"] == 2 and {one["name"] for one in body["classes"]} >= {"pooled", "mixture of experts"}
    assert "pooled" in plain.stdout and f"{body['classes'][0]['mean_error']:.1%}" in plain.stdout
    for words in (
        ["validate", "--rl"],
        ["validate", "--leave-one-source-out"],
        ["validate", "--docs=x.md"],
        ["audit", "x.csv"],
    ):
        gone = autoconfig.run(*words)
        assert gone.exit_code == 2 and re.search("make accuracy|validation.judge.audit", gone.stderr), words
    assert autoconfig.run("validate", "--gpu-runs", "/none").exit_code == 2


@pytest.mark.judge  # every fit, and a search for each published question
def test_the_pages_are_fresh() -> None:
    plans = first_plans()
    fresh = pages(plans)
    for name, page in fresh.items():
        assert f"{GENERATED}\n\n{page}" == (DOCS / "accuracy" / f"{name}.md").read_text(), "run make accuracy"
    others = {"serving", "diagnosis"}  # written by hand, its table of operators by `make tables`; by validation.diagnosis.sheet
    assert {path.stem for path in (DOCS / "accuracy").iterdir()} == {*fresh, *others}
    assert line_table([]).splitlines()[0] in front_page([], plans, "accuracy")


def test_every_bar_is_held_on_the_page() -> None:
    page = (DOCS / "accuracy.md").read_text()
    assert [bar.name for bar in bars_held() if f"| {bar.name}, " not in page] == [], "run make accuracy"


REPORT = {"id": "x", "source": "someone", "cause": "", "kind": "small", "outcome": "runs", "step_s": "1.0", "peak_gib": "20"}
ANSWER = {
    "legal": True,
    "fits": True,
    "step_seconds": 0.84,
    "confidence": {"step_seconds_p5": 0.74, "step_seconds_p95": 1.01},
    "memory": {"peak_gib": 21.5, "limit_gib": 76.0},
}


def test_a_figure_of_a_report_is_right_near_it_or_in_a_band_that_says_something() -> None:
    verdict, step, peak = figures_of_report({**REPORT, "command": ""}, ANSWER, "")
    assert (verdict.right, verdict.said) == (True, "fits, 21.5 of 76.0 GiB")
    assert step.error == pytest.approx(-0.16) and step.inside and step.right  # within 15 % or a band of +-25 %
    assert peak.error == pytest.approx(0.075) and peak.right
    wide = {**ANSWER, "confidence": {"step_seconds_p5": 0.5, "step_seconds_p95": 1.01}}
    _, step, _ = figures_of_report({**REPORT, "command": ""}, wide, "")
    assert step.inside and not step.right
    _, step, peak = figures_of_report({**REPORT, "command": "", "step_s": "1.1", "peak_gib": "23.5"}, ANSWER, "")
    assert not step.inside and not step.right and not peak.right
    faster = {**REPORT, "command": "", "step_s": "", "tokens_per_s_per_gpu": "100"}
    _, step, _ = figures_of_report(faster, {**ANSWER, "tokens_per_second_per_gpu": 119.0}, "")
    assert step.error == pytest.approx(-0.1597, abs=1e-4)  # a rate too high is a step too short


@pytest.mark.parametrize(
    ("outcome", "legal", "fits", "refusal", "right"),
    [
        ("oom", True, False, "", True),
        ("oom", True, True, "", False),
        ("oom", False, False, "", False),
        ("runs", True, None, "", False),
        ("illegal", False, None, "", True),
        ("illegal", None, None, "5 of 7 layers (NV044)", True),
        ("illegal", None, None, "no such file", False),
        ("refused", None, None, "not known", True),
        ("runs", None, None, "not known", False),
    ],
)
def test_a_verdict_of_a_report(outcome: str, legal: bool | None, fits: bool | None, refusal: str, right: bool) -> None:
    answer = None if legal is None else {**ANSWER, "legal": legal, "fits": fits}
    (verdict,) = figures_of_report({**REPORT, "command": "", "step_s": "", "peak_gib": "", "outcome": outcome}, answer, refusal)
    assert verdict.right == right


@pytest.mark.judge
def test_every_report_has_a_figure_and_those_that_are_wrong_a_cause() -> None:
    found = field_figures()
    assert len(found) >= 190 and {figure.what for figure in found} == {"step", "peak", "after the step", "verdict"}
    assert [figure.id for figure in found if not figure.right and not figure.cause] == []
