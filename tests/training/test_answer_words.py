"""What the training lane says of its plans at its boundaries, by hand: their order, words, bands, records, remedies."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.errors import GIB, InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, OwnRuns
from autoconfig.time_model.hardware.efficiency import entry_for
from small_models import MODELS, scenario
from tables import tabled

from autoconfig.training import remedies
from autoconfig.training.answer import _trade, largest_parts, reason_for
from autoconfig.training.confidence import (
    Band,
    _evidence,
    band_of,
    confidence_class,
    evidence_text,
    gpu_seen,
    narrowed,
    record_for,
    shipped_bands,
)
from autoconfig.training.numerics import trains_adapters
from autoconfig.training.price import PlanReport, StageMemory, flops_per_step
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import in_order, pareto_positions, plainest_first, safe_position, tie_groups
from autoconfig.training.remedies import Remedy, _saves
from autoconfig.training.space import Constraints, recompute_options
from autoconfig.training.switches import odd_graphs
from autoconfig.training.workload import read_workload


def ranked(steps, plans, chances=None, options=(NONE,), option=None, num_layers=8, peaks=None, met=True):
    """A ranking of one plan a layout, with what order.py reads of it."""
    count = len(steps)
    rows = [parse_plan(text, 16) for text in plans]
    s = scenario(change={"num_layers": num_layers})
    return SimpleNamespace(
        step_seconds=np.array(steps), best=np.arange(count), row=np.arange(count), options=options, scenario=s,
        option=np.zeros(count, int) if option is None else np.array(option), fit_chances=lambda: np.array(chances),
        space=SimpleNamespace(layouts=s.layouts(rows), layout_id=np.arange(count)), fit_chance_met=met,
        peak_bytes=np.array(peaks or [1.0] * count), limit_bytes=np.array([80.0] * count),
    )  # fmt: skip


@tabled
@pytest.mark.parametrize(("behind", "first"), [(1.03, 1), (1.0301, 0)])
def test_a_plain_plan_comes_before_an_unusual_one_that_is_3_percent_faster(odd, behind, first, monkeypatch):
    lists = {"block": Recompute.parse("full:block:2"), "two modules": Recompute.parse("selective:mlp+layernorm")}
    options = (Recompute(), lists.get(odd, Recompute()))
    ranking = ranked([1.0, behind], ["tp=2" if odd in lists else odd, "tp=2,pp=2"], options=options, option=[1, 0])
    monkeypatch.setattr("autoconfig.training.rank.replace", lambda kept, best: best)
    assert int(plainest_first(ranking)[0]) == first


@pytest.mark.parametrize("plain", ["tp=2,pp=2,vpp=2", "tp=2,pp=4", "tp=8"])
def test_even_stages_of_several_layers_are_plain(plain, monkeypatch):
    monkeypatch.setattr("autoconfig.training.rank.replace", lambda kept, best: best)
    options = (Recompute.parse("full"), Recompute.parse("selective:core_attn"))
    assert plainest_first(ranked([1.0, 1.01], [plain, "tp=4"], options=options, option=[1, 0]))[0] == 0


def test_groups_of_plans_that_no_model_tells_apart():
    """Each group reaches 6 % behind its first."""
    assert tie_groups(np.array([1.0, 1.06, 1.07, 1.13, 1.2])).tolist() == [1, 1, 2, 2, 3] and len(tie_groups(np.zeros(0))) == 0


def test_the_safe_plan_is_the_first_that_fits_with_95_percent():
    texts = ["tp=2", "tp=4", "tp=8"]
    assert safe_position(ranked([1, 2, 3], texts, chances=[0.5, 0.949, 0.95])) == 2
    assert safe_position(ranked([1, 2, 3], texts, chances=[0.5, 0.6, 0.7])) is None


def test_orders_of_an_answer():
    texts = ["tp=2", "tp=4", "tp=8"]
    found = ranked([1.0, 2.0, 3.0], texts, peaks=[70.0, 30.0, 50.0])
    assert in_order(found, "step").tolist() == [0, 1, 2] and in_order(found, "memory").tolist() == [1, 2, 0]
    unlikely = ranked([1.0, 2.0, 3.0], texts, peaks=[79.0, 70.0, 75.0], met=False)
    unlikely.limit_bytes = np.array([80.0, 70.5, 77.0])
    assert in_order(unlikely, "step").tolist() == [2, 0, 1]
    assert pareto_positions(ranked([1.0, 1.1, 1.2], texts, peaks=[50.0, 60.0, 40.0])) == [0, 2]
    assert pareto_positions(ranked([], [])) == []


def report(step, peak=30.0, limit=70.0, fits=True):
    parts = {"gemm_seconds": 0.8 * step}
    return SimpleNamespace(
        step_seconds=step, time_parts=parts, peak_bytes=peak * GIB, limit_bytes=limit * GIB, fits=fits,
        worst_stage=SimpleNamespace(stage=0),
    )  # fmt: skip


@tabled
def test_why_a_plan_has_its_place(position, step, said):
    ranking = SimpleNamespace(best=np.array([0]), step_seconds=np.array([1.0]), funnel=SimpleNamespace(priced=1234))
    assert reason_for(report(step), report(1.0), ranking, position).startswith(said)


@tabled
def test_first_plans_that_have_a_record(level, seq, there):
    confidence = SimpleNamespace(level=level)
    assert (record_for(scenario(seq=seq), confidence) is not None) == there and record_for(scenario(), None) is None


@pytest.mark.parametrize(("runs", "freedom", "scatter", "factor"), [
    (0, 0, 0.0, 1.0), (2, 3, 0.0, 0.5**0.5), (2, 3, math.log(1.25) / 1.645, 1.0), (4, 0, 0.0, (2 / 3 + 1 / 9) ** 0.5),
    (10**9, 10**9, 0.0, 0.0),
])  # fmt: skip
def test_own_runs_narrow_a_band_as_a_source_that_is_no_longer_new(runs, freedom, scatter, factor):
    """With r = 2 two thirds of the variance T are within a source and a third between. n = 2 runs halve the third; without
    scatter and with f = q = 3 the two thirds halve too: T / 3 + T / 6. A scatter of T itself: (3 x 2/3 + 3) / 6 + 1/6 = 1."""
    found = narrowed(Band(p5=0.8, p95=1.25, rows=9, sources=()), OwnRuns(runs=runs, log_sd=scatter, degrees_of_freedom=freedom))
    assert (found.p5, found.p95) == pytest.approx((0.8**factor, 1.25**factor), rel=1e-4)


@tabled
def test_classes_of_questions(model, gpus, cp, entry, level, monkeypatch):
    """`entry`: its generation (te: that of the software) and how many sources it has."""
    asked = replace(scenario(gpus=gpus), model=ModelSpec(**MODELS[model]) if model in MODELS else load_model(model))
    found = entry and SimpleNamespace(
        generation=asked.software.generation if entry[0] == "te" else entry[0], sources=("x",) * entry[1]
    )
    monkeypatch.setattr("autoconfig.training.confidence.entry_for", lambda *_, **__: found)
    assert confidence_class(asked, cp) == level


@pytest.mark.parametrize(
    ("model", "software", "level"),
    [
        ("llama3-8b", "torchtitan", "no run of this software"),
        ("qwen3-30b-a3b", "automodel", "no run of this software, mixture of experts"),
        ("llama3-8b", "nemo-26.08", "one node"),
    ],
)
def test_software_that_no_constant_was_fitted_on_is_a_class_of_its_own(model, software, level):
    """nemo-26.08 is priced as nemo-26.06, of which there are runs."""
    asked = understand(Request(model=model, gpus=8, gpu="h100", software=software, global_batch_size=64)).scenario
    assert confidence_class(asked) == level
    assert band_of(level, shipped_bands()) is shipped_bands()[level]


@pytest.mark.parametrize(
    ("gpu", "level"),
    [
        ("h100-sxm-80gb", "one node"),
        ("h100-pcie-80gb", "one node"),
        ("h800-80gb", "one node"),
        ("h20-96gb", "formula only"),
        ("rtx-pro-6000-96gb", "formula only"),
        ("a30-24gb", "formula only"),
        ("a800-80gb", "one node"),
    ],
)
def test_a_gpu_far_from_those_that_runs_were_on_has_no_run_behind_it(gpu, level):
    """Of its architecture or not: an H20 has a seventh of an H100's peak, a consumer Blackwell a ninth of a B200's."""
    asked = Request(model="llama3-8b", gpus=8, gpu=gpu, software="megatron", global_batch_size=64)
    assert confidence_class(understand(asked).scenario) == level
    assert not gpu_seen(load_gpu("v100-32gb")), "it has fp16 alone"


@pytest.mark.parametrize("level", ["formula only", "no run of this software", "one node"])
def test_the_first_line_says_where_nothing_was_measured(level):
    said = evidence_text(SimpleNamespace(level=level))
    assert said == ("one node" if level == "one node" else f"no run of this kind is behind this: {level}")


def test_without_a_run_behind_the_gpu_a_band_reaches_as_far_as_any_other():
    bands = {"pooled": Band(p5=0.8, p95=1.1, rows=9, sources=("a",)), "one node": Band(p5=0.9, p95=1.3, rows=5, sources=("a",))}
    assert band_of("formula only", bands) == Band(p5=0.8, p95=1.3, rows=0, sources=())
    assert band_of("long context", bands) is bands["pooled"]


def test_the_worst_stage_decides_whether_a_plan_fits():
    stages = tuple(StageMemory(stage=i, peak_bytes=peak, moment="", parts={}) for i, peak in enumerate((3.0, 5.0, 4.0)))
    shown = SimpleNamespace(stages=stages, limit_bytes=5.0)
    shown.worst_stage = PlanReport.worst_stage.fget(shown)
    shown.peak_bytes = PlanReport.peak_bytes.fget(shown)
    assert shown.worst_stage.stage == 1 and PlanReport.fits.fget(shown)
    shown.limit_bytes = 4.999
    assert not PlanReport.fits.fget(shown)


@tabled
def test_a_saving_lacks_less_than_all_that_is_tried_today(lacks, today, saves):
    tried = [Remedy(change="today", options="", fits=False, still_short_gib=each) for each in today]
    assert _saves(Remedy(change="x", options="", fits=False, still_short_gib=lacks), tried) == saves


def test_recomputation_that_is_fixed_is_all_that_is_tried_but_for_what_is_excluded():
    selective, uniform = Recompute.parse("selective:core_attn"), Recompute.parse("full:uniform:1")
    for excluded, left in ((frozenset(), [uniform, selective]), (frozenset({uniform}), [selective])):
        constraints = Constraints(fixed={"recompute": frozenset({selective, uniform})}, excluded={"recompute": excluded})
        assert recompute_options(scenario(), constraints, 4) == left


@pytest.mark.parametrize(("best", "met", "closest", "outcome"), [
    ([1], True, None, "fits"), ([1], False, None, 5.0 - 3.0), ([], True, None, None), ([], True, 7.0, 7.0),
    ([1], False, 7.0, 7.0),
])  # fmt: skip
def test_what_came_of_a_change(best, met, closest, outcome, monkeypatch):
    """Of plans that fit, but with too small a chance, the one with the most room (3 GiB) lacks the least of 5 GiB asked."""
    ranking = SimpleNamespace(
        best=np.array(best, int), fit_chance_met=met, plan=lambda row: f"plan {row}", step_seconds=np.array([9.0, 2.0]),
        closest=None if closest is None else SimpleNamespace(excess_bytes=closest * GIB),
        limit_bytes=np.array([10.0, 8.0]) * GIB, peak_bytes=np.array([[9.0, 7.5], [5.0, 7.0]]) * GIB,
    )  # fmt: skip
    ranking.limit_bytes = ranking.limit_bytes[:, None]
    monkeypatch.setattr(remedies, "rank", lambda *asked: ranking)
    monkeypatch.setattr(remedies, "plainest_first", lambda found: found)
    monkeypatch.setattr(remedies, "headroom_bytes", lambda chance, memory: 5.0 * GIB)
    asked = SimpleNamespace(request=SimpleNamespace(memory_margin=None, fit_chance=0.9), constraints=Constraints())
    found = remedies.Remedies(asked)._tried("x", "", scenario())
    if outcome is None:
        assert found == []
    elif outcome == "fits":
        assert found == [Remedy(change="x", options="", fits=True, plan="plan 1", step_seconds=2.0)]
    else:
        assert found == [Remedy(change="x", options="", fits=False, still_short_gib=outcome)]


def test_the_three_largest_parts_of_a_step_are_named():
    parts = {"p2p_seconds": 1.0, "optimizer_seconds": 0.5, "gemm_seconds": 6.0, "fsdp_seconds": 2.5}
    said = largest_parts(SimpleNamespace(time_parts=parts, step_seconds=10.0))
    assert said == "GEMMs 60 %, FSDP gathers 25 %, pipeline sends 10 %"


@pytest.mark.parametrize(("gpu", "said"), [
    ("h100", "with nemo on hopper"), ("v100-32gb", "no measured runs on volta"),
])  # fmt: skip
def test_runs_behind_the_constants_are_named_where_there_are_any(gpu, said):
    assert said in _evidence(understand(Request(model="llama3-8b", gpus=8, gpu=gpu)).scenario)


def test_constants_that_no_run_determines_are_named_and_those_of_experts_only_for_mixtures():
    for model in ("llama3-8b", "mixtral-8x7b"):
        scenario = understand(Request(model=model, gpus=8, gpu="h100")).scenario
        entry = entry_for(scenario, moe=scenario.model.is_moe)
        kept = [name for name in entry.log_sd if name not in entry.determined and (name != "moe" or scenario.model.is_moe)]
        said = _evidence(scenario)
        assert said.startswith(f"calibration {scenario.calibration.version}, software {scenario.software.name}: ")
        assert said.partition("kept near the default: ")[2] == ", ".join(kept)


@pytest.mark.parametrize(("model", "scope", "capacity", "rule"), [
    ("mixtral-8x7b", {"moe", "moe_router"}, 1.0, "NV147"), ("mixtral-8x7b", {"moe"}, 1.0, ""),
    ("mixtral-8x7b", {"moe"}, None, "NV149"),
    ("mixtral-8x7b", {"moe_preprocess"}, None, "NV148"), ("mixtral-8x7b", {"moe_router", "moe_preprocess"}, None, ""),
    ("mixtral-8x7b", {"mlp"}, None, "NV150"), ("deepseek-v3", {"mlp"}, None, ""), ("llama3-8b", {"moe_router"}, None, "NV150"),
    ("llama3-8b", {"attn", "mlp"}, None, ""), ("llama3-8b", {"full"}, None, ""), ("llama3-8b", {"full", "attn"}, None, "alone"),
    ("mixtral-8x7b", {"attn", "moe", "moe_router"}, 1.0, "NV147"),
])  # fmt: skip
def test_graphs_that_megatron_has_not(model, scope, capacity, rule):
    said = odd_graphs(frozenset(scope), load_model(model), Numerics(moe_capacity_factor=capacity))
    assert rule in said and bool(rule) == bool(said)


def test_at_most_twelve_points_of_the_front_from_the_fastest_to_the_smallest():
    count = 40
    ranking = SimpleNamespace(
        row=np.arange(count), step_seconds=np.geomspace(10.0, 15.0, count), limit_bytes=np.full(count, 80.0),
        peak_bytes=np.linspace(79.0, 20.0, count),
    )  # fmt: skip
    found = pareto_positions(ranking)
    assert len(found) == 12 and found[0] == 0 and found[-1] == count - 1 and np.ptp(np.diff(found)) <= 1


@pytest.mark.parametrize(("model", "given", "seq", "batch"), [
    ("gpt3-175b", {}, 2048, 1536), ("deepseek-v3", {}, 4096, 15360),
    ("gpt3-175b", {"seq_length": 4096}, 4096, 1024), ("llama3.2-1b", {}, 8192, 512),
    ("qwen2.5-0.5b", {"seq_length": 2**23}, 2**23, 1), ("gpt3-175b", {"global_batch_size": 7}, 2048, 7),
])  # fmt: skip
def test_sequence_and_batch_that_are_not_given(model, given, seq, batch):
    """The model's own; else what it allows, at most 8,192 tokens, and about 4 million tokens a step."""
    workload = understand(Request(model=model, gpus=1024, **given)).scenario.workload
    assert (workload.seq_length, workload.global_batch_size) == (seq, batch)


@tabled
def test_flops_of_a_step_are_equation_3_of_narayanan(convention, recompute, passes, per_sequence, per_vocabulary):
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with recomputation; 72 and V / 12lh without; half the scores under a causal mask."""
    scenario = understand(Request(model="gpt3-175b", gpus=1024)).scenario
    b, s, layers, h, v = scenario.workload.global_batch_size, 2048, 96, 12288, scenario.model.vocab_size
    expected = passes * b * s * layers * h**2 * (1 + s / (per_sequence * h) + v / (per_vocabulary * layers * h))
    assert flops_per_step(scenario, convention, Recompute.parse(recompute)) == pytest.approx(expected)


def test_two_losses_two_gains_and_the_memory_of_a_trade_are_named():
    names = ("gemm_seconds", "p2p_seconds", "fsdp_seconds", "optimizer_seconds", "straggler_seconds", "head_seconds")
    reports = [
        SimpleNamespace(time_parts=dict(zip(names, parts, strict=True)), step_seconds=15.0, peak_bytes=peak * 2**30)
        for parts, peak in (((8.0, 1.5, 1.2, 0.4, 0.7, 4.9), 42), ((6.0, 1.0, 1.0, 1.0, 1.0, 5.0), 40))
    ]
    assert _trade(*reports) == ": GEMMs +2.00 s; pipeline sends +500 ms; optimizer -600 ms; stragglers -300 ms; +2.0 GiB"


ASKED = dict.fromkeys(("seq_length", "decoder_seq_length", "packed_length", "global_batch_size", "schedule_calls"))


@pytest.mark.parametrize(("model", "adapters", "given", "seq", "batch"), [
    ("gpt", False, {}, 4096, 1024), ("gpt", True, {}, 2048, 128), ("gpt", True, {"seq_length": 64}, 64, 128),
    ("gpt", False, {"seq_length": 2**22}, 2**22, 1), ("gpt", False, {"seq_length": 3}, 3, 1398101),
    ("llama3-8b", True, {"global_batch_size": 3}, 2048, 3),
])  # fmt: skip
def test_a_workload_that_is_not_said(model, adapters, given, seq, batch):
    """Four Mi tokens a step; adapters are trained on 128 samples of 2,048."""
    spec = ModelSpec(**MODELS[model]) if model in MODELS else load_model(model)
    found = read_workload(SimpleNamespace(**ASKED | given), spec, [], adapters=adapters)
    assert (found.seq_length, found.global_batch_size) == (seq, batch)


@tabled
def test_adapters_are_asked_for_by_any_of_their_fields(numerics, trains):
    assert trains_adapters(numerics) == trains
    with pytest.raises(InputError, match="for adapters"):
        trains_adapters({"peft": "none", "lora_rank": 4})
