"""First plans beside the best published run of their question: which row is the best, what has a cause, what is summed up."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from autoconfig.accuracy import first_plans as module
from autoconfig.accuracy.first_plans import (
    FirstPlan,
    best_rows,
    first_plan_lines,
    first_plans,
    inside_bands_of_first_plans,
    record_of,
    summaries,
)
from autoconfig.training.answer import search
from autoconfig.training.price import FIRST_PLAN_KINDS, FirstPlanRecord, first_plan_record, record_for
from autoconfig.training.question import Request

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
def test_a_first_plan_without_room_for_its_graphs_is_named(graphs: bool, chance: float, said: bool) -> None:
    """Of a run whose own plan has room: what graphs hold is not modelled, so that no more is concluded."""

    def report(seconds: float, fits: float) -> SimpleNamespace:
        confidence = SimpleNamespace(fit_probability=fits)
        return SimpleNamespace(step_seconds=seconds, confidence=confidence, peak_bytes=1.0, limit_bytes=1.0, time_parts={})

    scenario = SimpleNamespace(settings=lambda: SimpleNamespace(cuda_graphs=frozenset({"attn"} if graphs else ())))
    best = SimpleNamespace(measured_s=10.0, scenario=scenario)
    found = module._separates(best, report(8.9, 1.0), report(7.6, chance))
    assert ("before what CUDA graphs hold" in found) is said
