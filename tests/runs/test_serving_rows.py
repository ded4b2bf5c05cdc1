"""How the cells of a table of serving runs are read: words of people and engines, loads, layouts, engine versions."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.remarks import sentences
from autoconfig.specs.software.engine import engine_names, load_engine, nearest_release
from autoconfig.time_model.serving.tables import shipped_calibration
from tables import tabled

from autoconfig.runs import predict_serving as predict
from autoconfig.runs.predict_serving import ServingPrediction, predict_rows
from autoconfig.runs.predicted import OUR_ERROR
from autoconfig.runs.serving_row import ServingCase, read_case
from autoconfig.serving.answer import answer
from autoconfig.serving.request import ServeRequest
from validation.sheets.serving import Judged, _fitting

ROW = {
    "kind": "max_throughput", "model": "Llama-3.1-8B", "gpu": "h100", "n_gpus": "8", "tp": "8", "isl": "1000", "osl": "200",
    "weights": "fp8", "kv": "fp8", "backend": "trtllm-pytorch", "backend_version": "main/1.2", "scenario": "offline",
}  # fmt: skip


def case_of(**cells: str) -> ServingCase:
    return read_case({**ROW, **cells})


def test_a_number_of_requests_is_written_in_digits():
    assert case_of(kind="online_qps", scenario="40 requests", offered_qps="2").requests == 40
    assert case_of(scenario="\u00b2 requests").requests == case_of().requests


def test_a_mistake_of_ours_costs_one_row_only(monkeypatch):
    plain, read = predict_rows([ROW])[0], predict.read_case
    monkeypatch.setattr(predict, "read_case", lambda row: read(row) if row["tp"] == "8" else 1 / 0)
    rest = predict_rows([{**ROW, "tp": "4"}, ROW])
    assert rest[0].failed and OUR_ERROR in rest[0].note and rest[1].out_tok_s_gpu == plain.out_tok_s_gpu


def test_attention_ranks_counted_inside_of_tp():
    case = case_of(attn_dp="8")
    assert (case.plans[0].tp, case.plans[0].adp, case.plans[0].replicas) == (1, 8, 1)
    assert "tp 8 holds attn_dp 8: tp 1 x attn_dp 8" in sentences(case.assumed)
    assert case_of(tp="1", attn_dp="8").plans == case.plans
    with pytest.raises(InputError, match="does not divide n_gpus"):
        case_of(tp="8", attn_dp="3")


@tabled
def test_words_of_people_and_engines(cells, found):
    case = case_of(**cells)
    plan = case.plans[0]
    assert found in {case.model.name, case.gpu.id, plan.kv if "kv" in cells else "", plan.weights if "weights" in cells else ""}


@tabled
def test_how_many_requests_are_under_way(cells, load, batch, users):
    case = case_of(**cells)
    assert (case.load, case.max_batch, case.concurrency) == (load, batch, users)


def test_users_are_shared_by_the_instances_and_a_batch_is_one_instances():
    users, batch, alone = predict_rows(
        [
            {**ROW, "kind": "", "tp": "2", "scenario": "concurrency 32"},
            {**ROW, "kind": "", "tp": "2", "n_gpus": "2", "scenario": "concurrency 8"},
            {**ROW, "kind": "", "tp": "2", "n_gpus": "2", "scenario": "concurrency 32"},
        ]
    )
    assert users.tpot_ms == batch.tpot_ms and alone.tpot_ms > 1.05 * batch.tpot_ms
    assert users.latency_ms == batch.latency_ms and users.out_tok_s_gpu == batch.out_tok_s_gpu
    with pytest.raises(InputError, match="concurrency 2 leaves instances idle"):
        case_of(kind="", tp="2", scenario="concurrency 2")


def test_open_degrees_of_experts_are_tried_with_tp():
    case = case_of(model="DeepSeek-R1", gpu="h200", tp="")
    tried = {(plan.tp, plan.adp, plan.ep) for plan in case.plans}
    assert {(8, 1, 1), (8, 1, 8), (1, 8, 8), (1, 8, 1)} <= tried and all(tp * adp <= 8 for tp, adp, _ in tried)
    assert not any(tp > 1 and adp > 1 for tp, adp, _ in tried), "TensorRT-LLM has no such layout"
    assert {"tp: the best of 1, 2, 4, 8", "attn_dp: the best of 1, 2, 4, 8", "ep: the best of 1, 2, 4, 8"} <= set(
        sentences(case.assumed)
    )
    assert {plan.ep for plan in case_of(model="DeepSeek-R1", gpu="h200", tp="", ep="4").plans} == {4}
    assert len(case_of(tp="").plans) == 4
    best = predict_rows([{**ROW, "model": "DeepSeek-R1", "gpu": "h200", "tp": ""}])[0]
    given = predict_rows([{**ROW, "model": "DeepSeek-R1", "gpu": "h200", "attn_dp": "8", "ep": "8"}])[0]
    assert best.fits and best.out_tok_s_gpu >= given.out_tok_s_gpu
    with pytest.raises(InputError, match="vLLM's expert parallelism"):
        case_of(model="DeepSeek-R1", tp="", attn_dp="4", ep="2", backend="vllm", backend_version="")


def test_a_batch_is_of_all_attention_ranks_together():
    """As in a plan: 64 sequences of 8 ranks are 8 a rank."""
    whole = predict_rows([{**ROW, "tp": "1", "attn_dp": "8", "max_batch": "64"}])[0]
    rank = predict_rows([{**ROW, "tp": "1", "max_batch": "8"}])[0]
    assert whole.tpot_ms == pytest.approx(rank.tpot_ms, rel=0.15)


@tabled
def test_what_cannot_be_read(cells, message):
    with pytest.raises(InputError, match=message):
        case_of(**cells)


@tabled
def test_what_stands_in_is_said(cells, note):
    assert any(note in one for one in sentences(case_of(**cells).assumed))
    assert not case_of().assumed


@tabled
def test_the_nearest_release_stands_in(backend, version, engine):
    found = nearest_release(backend, version)
    assert found is not None and found.name == engine and engine in engine_names()


def test_releases_are_told_apart():
    assert load_engine("trtllm-0.14").is_release("0.14.0") and load_engine("trtllm-0.14").is_release("")
    assert not load_engine("trtllm-0.14").is_release("1.4") and nearest_release("tgi", "2") is None


def test_a_release_between_two_known_ones_lies_between_them_by_date():
    found = nearest_release("trtllm-pytorch", "1.0")  # September 2025, between June (0.20) and December (1.2)
    assert found.name == "trtllm-1.2" and found.between == ("trtllm-0.20", 0.5)
    assert nearest_release("trtllm", "0.21").between == ("trtllm-0.20", pytest.approx(5 / 6))
    assert nearest_release("trtllm", "0.18").between is None  # its runtime is 0.17's, no mixture of C++ and Python
    calibration, gpu = shipped_calibration(), load_gpu("b200")
    older, newer, between = (
        calibration.constants(one, gpu) for one in (load_engine("trtllm-0.20"), load_engine("trtllm-1.2"), found)
    )
    for name in ("factor", "experts_factor", "sequence_s", "eager_layer_s"):
        assert getattr(between, name) == pytest.approx((getattr(older, name) + getattr(newer, name)) / 2)
    assert older != newer
    said = sentences(case_of(backend="trtllm-pytorch", backend_version="1.0").assumed)
    assert "backend_version 1.0 priced between trtllm-0.20 and trtllm-1.2 by date, 0.50 of the way" in said


def test_what_a_mixture_leaves_open_is_the_best_of_the_legal_layouts():
    given = {"model": "qwen3-235b-a22b", "gpu": "B200-180GB", "n_gpus": "4", "tp": "4", "backend": "trtllm-pytorch"}
    case = case_of(**given, backend_version="1.2", weights="fp4", kv="fp8")
    assert {(p.tp, p.adp, p.ep) for p in case.plans} == {(4, 1, 1), (4, 1, 2), (4, 1, 4), (1, 4, 1), (1, 4, 4)}
    assert "attn_dp: the best of 1, 4" in sentences(case.assumed) and "ep: the best of 1, 2, 4" in sentences(case.assumed)
    built = case_of(**{**given, "gpu": "H200-SXM-141GB", "backend": "trtllm-engine"}, backend_version="0.17", weights="fp8")
    assert {p.adp for p in built.plans} == {1}  # attention data parallelism came with the PyTorch runtime
    closed = case_of(**given, backend_version="1.2", attn_dp="1", ep="4")
    assert [(p.tp, p.adp, p.ep) for p in closed.plans] == [(4, 1, 4)]
    row = {"isl": "1000", "osl": "1000", "scenario": "offline", "kind": "max_throughput", **given, "weights": "fp4"}
    (best,) = predict_rows([row])
    others = [predict_rows([{**row, "attn_dp": str(p.adp), "ep": str(p.ep)}])[0] for p in case.plans]
    assert best.out_tok_s_gpu == max(one.out_tok_s_gpu for one in others) and "plan tp=" in best.note


def test_runs_that_ran_out_of_memory_count_in_what_fits():
    def judged(fits, **cells):
        return Judged(row={"out_tok_s_gpu": "", "notes": "", **cells}, predicted=ServingPrediction(row=0, fits=fits))

    ran = {"out_tok_s_gpu": "100"}
    assert _fitting([judged(True, **ran), judged(False, **ran)]) == (1, 2)
    assert _fitting([judged(False, notes="CUDA out of memory"), judged(True, status="OOM")]) == (1, 2)
    assert _fitting([judged(None, **ran)]) == (0, 0)


@pytest.mark.parametrize("name", ["nemotron-3-nano", "qwen3-next-80b-a3b"])
def test_a_row_of_a_hybrid_is_priced_as_deployments_price_it(name):
    """Long answers: a row's requests start together, deployments are in their steady state."""
    layout = {"osl": "1000", "n_gpus": "2", "tp": "2", "ep": "1", "attn_dp": "1"}
    (found,) = predict_rows([{**ROW, **layout, "model": name, "scenario": "concurrency 64"}])
    asked = ServeRequest(
        model=name, gpu="h100", gpus=2, isl=1000, osl=1000, disaggregated=False, simulate=0,
        fix=("tp=2", "ep=1", "weights=fp8", "kv=fp8", "batch=64", "tokens=8192"),
    )  # fmt: skip
    (one,) = answer(asked).reports
    assert found.out_tok_s_gpu == pytest.approx(one.tokens_per_s_per_gpu, rel=0.08) and found.fits
    assert "recurrent layers: their operators were not measured" in found.note


@pytest.mark.parametrize(
    ("backend", "version", "release", "says"),
    [
        ("vllm", "0.11.2", "0.11.2", ""),
        ("vllm", "v0.19.1rc2", "v0.19.1rc2", ""),
        ("sglang", "0.5.9", "0.5.9", ""),
        ("vllm", "0.2.7", "0.6", "memory as of vllm 0.6: that of 0.2.7 is not modelled"),
        ("sglang", "nightly", "", "backend_version nightly is no release"),
        ("trtllm", "1.2", "", ""),
    ],
)
def test_memory_is_that_of_the_rows_release(backend, version, release, says):
    row = {
        "model": "qwen3-8b",
        "gpu": "h100",
        "n_gpus": "1",
        "tp": "1",
        "isl": "500",
        "osl": "100",
        "scenario": "concurrency 4",
    }
    case = read_case({**row, "backend": backend, "backend_version": version})
    assert case.start.release == release
    assert (says in " ".join(sentences(case.assumed))) if says else "memory as of" not in " ".join(sentences(case.assumed))


def test_graphs_that_a_row_does_not_have_cost_time():
    row = {
        "model": "qwen3-8b",
        "gpu": "h100",
        "n_gpus": "1",
        "tp": "1",
        "isl": "500",
        "osl": "100",
        "scenario": "concurrency 4",
    }
    row |= {"backend": "vllm", "weights": "bf16"}
    with_graphs, without = predict_rows([row, {**row, "enforce_eager": "yes"}])
    assert without.tpot_ms > with_graphs.tpot_ms * 1.1
