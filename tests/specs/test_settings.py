"""What a run switches on beside its plan: defaults of stacks, releases and recipes, and what a question gives."""

from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.run_settings import (
    GivenSettings,
    RunSettings,
    kind_of,
    read_graphs,
    recipes,
    resolve_settings,
    usual_settings,
)
from autoconfig.specs.software.software import load_stack

from autoconfig.training.question import request_of, understand

PARTS = read_graphs("attn moe_router moe_preprocess")
FULL = RunSettings(
    dispatcher="hybridep", cuda_graphs=read_graphs("full_iteration"), ep_overlap=True, fused_experts=True, fp8_attention=True
)


def settings(software: str, model: str, gpu: str, precision: str, **given: object) -> RunSettings:
    cluster = cluster_of(load_gpu(gpu), 64)
    asked = GivenSettings(**given)  # type: ignore[arg-type]
    more = {"precision": precision, "dropless": True, "seq_length": 4096}
    return resolve_settings(asked, load_model(model), cluster, load_stack(software), **more).widest


@pytest.mark.parametrize(("software", "model", "gpu", "precision", "expected"), [
    ("transformer-engine", "qwen3-30b-a3b", "gb200", "bf16", RunSettings()),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "gb300", "mxfp8", RunSettings(dispatcher="hybridep", cuda_graphs=PARTS)),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "h100", "bf16", RunSettings(dispatcher="deepep")),
    ("nemo-25.11", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings(ep_overlap=True)),
    ("nemo-26.04", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings()),
    ("nemo-26.06", "qwen3-30b-a3b", "gb300", "mxfp8", FULL),
    ("nemo-26.07", "qwen3-30b-a3b", "gb300", "mxfp8", FULL),
    ("nemo-26.04", "qwen3-30b-a3b", "gb300", "mxfp8",
     RunSettings(dispatcher="hybridep", cuda_graphs=read_graphs("moe_router moe_preprocess"))),
    ("nemo-26.06", "llama3-70b", "gb300", "mxfp8", RunSettings()),
])  # fmt: skip
def test_defaults_follow_software_gpu_model_and_precision(
    software: str, model: str, gpu: str, precision: str, expected: RunSettings
) -> None:
    assert settings(software, model, gpu, precision) == expected


def test_every_recipe_of_a_mixture_says_its_plan_whole() -> None:
    """Recipes that leave their plan to a base recipe were one expert-parallel rank without a batch (3 of 26.08 on H100)."""
    mixtures = [one for one in recipes() if load_model(one.model).is_moe]
    assert len(mixtures) > 200
    assert [one.row for one in mixtures if int(one.row["ep"]) == 1 or not one.row["gbs"]] == []


def test_a_model_without_a_recipe_runs_as_most_recipes_do() -> None:
    assert settings("nemo-26.06", "mixtral-8x7b", "gb300", "mxfp8").full_iteration
    assert settings("nemo-26.02", "mixtral-8x7b", "gb300", "mxfp8").dispatcher == "hybridep"


def test_the_majority_of_models_counts_and_of_each_its_last_recipes() -> None:
    """GB200, MXFP8, 26.06: four of five mixtures have graphs of the full iteration, three FP8 attention, two an FP8 output
    layer; older plans of the same models, still in the release, do not count."""
    found = usual_settings("mixture", "gb200", "gb200", "mxfp8", "nemo-26.06")
    mine = [r for r in recipes() if (r.row["kind"], r.gpu, r.precision, r.task) == ("mixture", "gb200", "mxfp8", "pretrain")]
    alive = [r for r in mine if r.release <= "nemo-26.06" <= r.until]
    last = {r.model: max(one.release for one in alive if one.model == r.model) for r in alive}
    voters = [r.settings for r in alive if r.release == last[r.model]]
    assert len(voters) == len(last) == 5 < len(alive)
    for name in ("ep_overlap", "fused_experts", "fp8_attention", "fp8_output", "full_iteration"):
        assert getattr(found, name) == (sum(getattr(one, name) for one in voters) > 2), name
    assert (
        usual_settings("mixture", "a100", "", "bf16", "nemo-26.06")
        is None
        is usual_settings("mixture", "h100", "h100", "bf16", "nemo-24.07")
    )


def test_the_kind_of_every_recipe_is_its_models() -> None:
    assert {(r.model, r.row["kind"]) for r in recipes()} == {(r.model, kind_of(load_model(r.model))) for r in recipes()}


@pytest.mark.parametrize(("gpu", "plan", "given", "changed"), [
    ("gb200", "ep=8", {}, {}),
    ("gb200", "ep=1", {}, {"dispatcher": "alltoall", "cuda_graphs": frozenset(), "ep_overlap": False}),
    ("gb200", "pp=2,ep=8", {}, {"ep_overlap": False}),
    ("gb200", "pp=2,vpp=2,ep=8", {}, {}),
    ("gb200", "pp=2,ep=8", {"ep_overlap": True}, {}),
    ("gb200", "ep=8,recompute=full:uniform:1", {}, {"ep_overlap": False}),
    ("gb200", "ep=8,recompute=selective:moe", {"cuda_graphs": PARTS}, {"cuda_graphs": PARTS, "ep_overlap": False}),
    ("gb200", "ep=8", {"dispatcher": "alltoall"}, {"dispatcher": "alltoall", "cuda_graphs": frozenset()}),
    ("gb200", "ep=8", {"fp8_attention": False, "fp8_output": True}, {"fp8_attention": False, "fp8_output": True}),
])  # fmt: skip
def test_usual_switches_give_way_to_the_plan_and_given_ones_do_not(
    gpu: str, plan: str, given: dict[str, object], changed: dict[str, object]
) -> None:
    scenario = understand(request_of({"model": "qwen3-30b-a3b", "gpus": 64, "gpu": gpu, "precision": "mxfp8"})).scenario
    scenario = replace(scenario, given=GivenSettings(**given))  # type: ignore[arg-type]
    one = scenario.read_plan(plan)
    assert scenario.settings(one) == replace(FULL, **changed)  # type: ignore[arg-type]
    layouts = scenario.layouts([one])
    assert [settings.beside(one.recompute) for settings, _ in layouts.by_settings()] == [
        replace(FULL, **changed).beside(one.recompute)  # type: ignore[arg-type]
    ]


def test_a_gpu_without_recipes_takes_those_of_its_class() -> None:
    found, own = (
        settings("nemo-26.04", "qwen3-30b-a3b", "h200", "bf16"),
        settings("nemo-26.04", "qwen3-30b-a3b", "h100", "bf16"),
    )
    assert found == own


def test_deepep_gives_way_where_links_join_boards() -> None:
    assert settings("nemo-26.04", "qwen3-30b-a3b", "gb200", "mxfp8", dispatcher="deepep").dispatcher == "alltoall"
    assert settings("nemo-26.04", "qwen3-30b-a3b", "b200", "mxfp8", dispatcher="deepep").dispatcher == "deepep"


def test_what_is_given_counts_and_what_is_odd_is_refused() -> None:
    found = settings("nemo-26.06", "qwen3-30b-a3b", "gb300", "mxfp8", ep_overlap=False, cuda_graphs=frozenset())
    assert not found.ep_overlap and not found.cuda_graphs and found.fused_experts
    for given, text in (({"dispatcher": "allreduce"}, "hybridep"), ({"cuda_graphs": frozenset({"mlpp"})}, "moe_router")):
        with pytest.raises(InputError, match=text):
            GivenSettings(**given)  # type: ignore[arg-type]
    assert read_graphs("attn,moe_router+mamba") == {"attn", "moe_router", "mamba"} and read_graphs("none") == frozenset()
