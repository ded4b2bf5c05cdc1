"""First plans beside the best published run of their question: which row is the best, what has a cause, what is summed up."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Numerics

from autoconfig.training.answer import search
from autoconfig.training.price import FIRST_PLAN_KINDS, FirstPlanRecord, first_plan_record, record_for
from autoconfig.training.question import Request
from validation.sheets import first_plans as module
from validation.sheets.first_plans import (
    FirstPlan,
    PrintedRun,
    best_rows,
    first_plan_lines,
    first_plans,
    inside_bands_of_first_plans,
    printed_runs,
    record_of,
    retuned,
    summaries,
)

PLAN = FirstPlan(
    id="X-1", source="NVIDIA DGX Cloud H100 dense", model="llama3-8b", gpu="h100-sxm-80gb", gpus=8, precision="bf16",
    seq_length=8192, software="nemo-25.02", published=90.0, promised=100.0, plan="tp=1,pp=1",
    own=0.99, inside=True, moe=False, cause="",
)  # fmt: skip


def test_the_best_row_of_a_question_is_the_fastest_and_no_question_comes_twice() -> None:
    rows = best_rows()
    assert len(rows) >= 300
    keys = []
    for row in rows:
        cluster = row.scenario.cluster
        keys.append((row.row["source"], row.scenario.model.name, cluster.gpu.id, cluster.num_gpus, row.row["precision"]))
    assert len(set(keys)) == len(keys)
    mine = rows[keys.index(("NVIDIA DGX Cloud H100 dense", "llama3.1-8b", "h100-sxm-80gb", 8, "bf16"))]
    assert mine.row["id"] == "DX-0071" and mine.measured_s == 12.27  # 12.78 s with the release before it
    assert mine.rate == pytest.approx(8192 * 128 / 12.27 / 8)
    assert not [r for r in rows if "LoRA" in r.row["source"] or "SFT" in r.row["source"]]


def test_summary_counts_only_rows_without_a_cause() -> None:
    low = replace(PLAN, published=70.0, own=None, inside=False)
    excused = replace(low, published=10.0, cause="the run recomputes every layer")
    found = {line.name: line for line in summaries([PLAN, low, excused])}
    assert found["all"].rows == 3 and found["all"].least == pytest.approx(0.1)
    tuned = found["tuned"]
    assert (tuned.rows, tuned.below, tuned.inside) == (2, 1, 0.5) and tuned.median == pytest.approx(0.8)
    assert tuned.optimism == pytest.approx(0.99 / 0.9 - 1)
    lines = {line["name"]: line for line in first_plan_lines([PLAN, low, excused])}
    assert [line["reached"] for line in lines.values()] == [pytest.approx(0.7), pytest.approx(1 / 3), 0.0]
    tried = first_plan_lines([PLAN, replace(low, separates="ours saves the host floor"), excused])
    assert tried[1]["reached"] == 0.0
    assert first_plan_lines([]) == []


def test_bands_of_first_plans_know_nothing_of_the_paper_that_they_hold() -> None:
    others = [replace(PLAN, source=f"P{n}-x", published=rate) for n, rate in enumerate((95.0, 97.0, 99.0, 101.0, 103.0))]
    assert inside_bands_of_first_plans([*others, replace(PLAN, source="Far-x", published=98.0)]) == 1.0
    assert inside_bands_of_first_plans([*others, replace(PLAN, source="Far-x", published=40.0)]) == pytest.approx(5 / 6)


def test_the_record_is_of_tuned_short_questions_by_kind() -> None:
    others = [replace(PLAN, id=str(n), source=f"paper {n}", published=100.0 / ratio) for n, ratio in enumerate((1.0, 1.1, 1.2))]
    low = [replace(plan, precision="fp8") for plan in others]
    moe = [replace(plan, moe=True) for plan in others]
    strange = [replace(PLAN, published=1.0, cause="not tuned"), replace(PLAN, published=1.0, seq_length=65536)]
    found = record_of([*others, *low, *moe, *strange])
    assert set(found) == set(FIRST_PLAN_KINDS) and all(line["rows"] == line["sources"] == 3 for line in found.values())
    for line in found.values():
        assert line["middle"] == pytest.approx(1.1) and line["p5"] < 1.0 and line["p95"] > 1.2
    for kind in FIRST_PLAN_KINDS:
        shipped = first_plan_record(kind)
        assert 0.9 < shipped.middle < 1.15 and shipped.p5 < shipped.middle < shipped.p95 and shipped.rows >= 30


def test_an_answer_shows_the_record_of_its_kind() -> None:
    request = Request(model="llama3-8b", gpus=8, gpu="h100", numerics={"precision": "bf16"}, top=1)

    def shown(request: Request) -> FirstPlanRecord | None:
        answer = search(request)
        return record_for(answer.question.scenario, answer.plans[0].report)

    assert shown(request) == first_plan_record("dense, 16 bits")
    assert shown(replace(request, numerics={"precision": "fp8"})) == first_plan_record("dense, FP8 and FP4")
    assert shown(replace(request, gpu="mi300x")) is None
    assert shown(replace(request, seq_length=65536, global_batch_size=8)) is None


def test_a_promise_is_that_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    best = next(b for b in best_rows() if b.row["id"] == "DX-0071")
    monkeypatch.setattr(module, "best_rows", lambda: [best])
    (found,) = first_plans()
    assert 0.9 < found.ratio < 1.05 and found.own is not None and found.ratio <= found.own
    assert found.inside and not found.cause


@pytest.mark.parametrize(("graphs", "chance", "said"), [(True, 0.54, True), (True, 0.99, False), (False, 0.54, False)])
def test_a_first_plan_without_room_for_its_graphs_is_named(
    graphs: bool, chance: float, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose own plan has room: what graphs hold is not modelled, so that no more is concluded. Else what its publisher
    changed later may say why it is slow: by 0.8 of 10 / 7.6 at least."""

    def report(seconds: float, fits: float) -> SimpleNamespace:
        confidence = SimpleNamespace(fit_probability=fits)
        common = {"peak_bytes": 1.0, "limit_bytes": 1.0, "time_parts": {}, "plan": ONE}
        return SimpleNamespace(step_seconds=seconds, confidence=confidence, **common)

    scenario = SimpleNamespace(
        settings=lambda: SimpleNamespace(cuda_graphs=frozenset({"attn"} if graphs else ())),
        model=SimpleNamespace(name="m"), cluster=SimpleNamespace(gpu=SimpleNamespace(id="b200"), num_gpus=8),
    )  # fmt: skip
    best = SimpleNamespace(measured_s=10.0, scenario=scenario, row={"source": "NVIDIA B200 MoE FP8"})
    asked: list[object] = []
    monkeypatch.setattr(module, "printed_runs", tuple)
    monkeypatch.setattr(module, "retuned", lambda *given: asked.append(given) or "changed later")
    found = module._separates(best, report(8.9, 1.0), report(7.6, chance))
    assert ("before what CUDA graphs hold" in found) is said is (found != "changed later")
    assert said or asked == [(("NVIDIA", "m", "b200", 8), ONE, pytest.approx(0.8 * 10 / 7.6), ())]


ONE = TrainPlan(tp=1, pp=1, dp=8, mbs=1, ep=8)
BEFORE = PrintedRun(
    publisher="P", model="m", gpu="b200", gpus=8, numerics=Numerics(), software="nemo-26.02", plan=ONE, rate=100.0
)
AFTER = replace(BEFORE, software="nemo-26.04", plan=replace(ONE, mbs=4), rate=200.0)
BESIDE = [
    replace(BEFORE, gpu="gb200", plan=replace(ONE, mbs=4), rate=180.0),
    replace(AFTER, gpu="gb200", rate=198.0),
]
"""Gains a factor of 1.1 with the release."""


def test_a_micro_batch_that_was_changed_later_was_not_tuned() -> None:
    said = retuned(BEFORE.place(), ONE, 1.8, [AFTER, *BESIDE, BEFORE])
    assert "micro-batch of 1 was not tuned: with 4 the publisher's nemo-26.04 ran this plan 2.00 times as fast" in said
    assert said.endswith("as nemo-26.02; with unchanged plans: gb200 1.10 times")


@pytest.mark.parametrize(
    ("least", "runs"),
    [
        (1.82, [BEFORE, AFTER, *BESIDE]),  # 2.0 / 1.1 is less
        (1.5, [BEFORE, AFTER]),  # no other GPU: the release may be what gained
        (1.5, [BEFORE, AFTER, BESIDE[0]]),
        (1.5, [BEFORE, AFTER, replace(BESIDE[0], plan=ONE), BESIDE[1]]),  # the other GPU's plan changed too
        (1.5, [BEFORE, AFTER, *(replace(run, model="n") for run in BESIDE)]),
        (1.5, [BEFORE, AFTER, *(replace(run, publisher="Q") for run in BESIDE)]),
        (1.5, [BEFORE, AFTER, *(replace(run, numerics=Numerics(precision="fp8")) for run in BESIDE)]),
        (1.5, [BEFORE, replace(AFTER, plan=replace(ONE, mbs=4, ep=4)), *BESIDE]),  # not the micro-batch alone
        (1.5, [BEFORE, replace(AFTER, numerics=Numerics(precision="fp8")), *BESIDE]),
        (1.5, [BEFORE, replace(AFTER, gpus=16), *BESIDE]),
        (1.5, [BEFORE, replace(AFTER, plan=ONE), *BESIDE]),
        (1.5, [replace(BEFORE, software="nemo-26.06"), AFTER, *BESIDE]),  # the change went the other way
    ],
)
def test_what_else_may_have_gained_is_no_cause(least: float, runs: list[PrintedRun]) -> None:
    assert retuned(BEFORE.place(), ONE, least, runs) == ""


def test_two_releases_next_to_each_other_come_first() -> None:
    earlier = replace(BEFORE, software="nemo-25.11", rate=90.0)
    said = retuned(BEFORE.place(), ONE, 1.5, [earlier, replace(BESIDE[0], software="nemo-25.11"), BEFORE, AFTER, *BESIDE])
    assert "2.00 times as fast as nemo-26.02" in said


def test_nvidias_qwen3_on_eight_b200_was_tuned_in_26_02_01() -> None:
    """9,691 tokens/s and GPU with a micro-batch of 1 in 26.02, 26,695 with 4 in 26.02.01; GB200 26,084 and 26,373, GB300 30,376
    and 30,411 (docs/performance-summary-archive.md of NVIDIA-NeMo/Megatron-Bridge v0.6.0)."""
    said = retuned(("NVIDIA", "qwen3-30b-a3b", "b200-180gb", 8), ONE, 1.22, printed_runs())
    assert "nemo-26.02.01 ran this plan 2.75 times as fast as nemo-26.02;" in said
    assert said.endswith("gb200-192gb 1.01, gb300-288gb 1.00 times")
