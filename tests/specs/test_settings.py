"""What a run switches on beside its plan: defaults of stacks, releases and recipes, and what a question gives."""

from __future__ import annotations

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.run_settings import (
    GivenSettings,
    RunSettings,
    model_switches,
    nearest_recipe,
    read_graphs,
    recipes,
    resolve_settings,
    switches_known,
)
from autoconfig.specs.software.software import load_stack

PARTS = read_graphs("attn moe_router moe_preprocess")
FULL = RunSettings(
    dispatcher="hybridep", cuda_graphs=read_graphs("full_iteration"), ep_overlap=True, fused_experts=True, fp8_attention=True
)


def settings(software: str, model: str, gpu: str, precision: str, **given: object) -> RunSettings:
    cluster = cluster_of(load_gpu(gpu), 64)
    asked = GivenSettings(**given)  # type: ignore[arg-type]
    return resolve_settings(asked, load_model(model), cluster, load_stack(software), precision=precision, dropless=True)


@pytest.mark.parametrize(("software", "model", "gpu", "precision", "expected"), [
    ("transformer-engine", "qwen3-30b-a3b", "gb200", "bf16", RunSettings()),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "gb300", "mxfp8", RunSettings(dispatcher="hybridep", cuda_graphs=PARTS)),
    ("megatron-moe-modelzoo", "qwen3-30b-a3b", "h100", "bf16", RunSettings(dispatcher="deepep")),
    ("nemo-26.02", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings(dispatcher="deepep", ep_overlap=True)),
    ("nemo-26.02.01", "qwen3-30b-a3b", "h100", "tensorwise", RunSettings(dispatcher="hybridep")),
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


@pytest.mark.parametrize(("model", "gpus", "expected"), [
    ("qwen3-30b-a3b", 16,
     RunSettings(dispatcher="hybridep", cuda_graphs=read_graphs("moe_router moe_preprocess"), ep_overlap=True)),
    ("nemotron-3-super", 64, RunSettings(dispatcher="hybridep")),
])  # fmt: skip
def test_what_a_recipe_takes_from_its_library_recipe_counts(model: str, gpus: int, expected: RunSettings) -> None:
    """As Megatron-Bridge's verification cards of August 2026 say that they ran (examples/model_verification_cards)."""
    cluster, stack = cluster_of(load_gpu("h100"), gpus), load_stack("nemo-26.08")
    found = resolve_settings(GivenSettings(), load_model(model), cluster, stack, precision="bf16", dropless=True)
    assert found == expected


def test_a_model_without_a_recipe_runs_as_most_recipes_do() -> None:
    assert settings("nemo-26.06", "mixtral-8x7b", "gb300", "mxfp8").full_iteration
    assert settings("nemo-26.02", "mixtral-8x7b", "gb300", "mxfp8").dispatcher == "hybridep"


def test_of_several_recipes_the_one_of_the_plan_counts() -> None:
    plans = {r.plan: r.settings for r in recipes() if (r.model, r.gpu, r.precision) == ("deepseek-v3", "b200", "mxfp8")}
    assert len(plans) > 1
    for plan, expected in plans.items():
        found = nearest_recipe("deepseek-v3", "b200", "mxfp8", "nemo-26.06", plan)
        assert found is None or found.plan != plan or found.settings == expected


@pytest.mark.parametrize("release", ["nemo-26.06.01", "nemo-26.08"])
@pytest.mark.parametrize("plan", [(256, 1, 8, 1, 1, 8, 2), (256, 1, 8, 1, 4, 8, 1), None])
def test_a_recipe_for_a_quarter_of_the_gpus_does_not_replace_one_for_as_many(
    release: str, plan: tuple[int, ...] | None
) -> None:
    found = nearest_recipe("qwen3-235b-a22b", "b300", "mxfp8", release, plan, 256)
    assert found is not None and found.plan == (256, 1, 8, 1, 3, 8, 2) and found.settings.full_iteration
    small = nearest_recipe("qwen3-235b-a22b", "b300", "mxfp8", release, (64, 1, 8, 1, 1, 8, 2), 64)
    assert small is not None and small.plan[0] == 64


def test_a_gpu_without_recipes_takes_those_of_its_class() -> None:
    found, own = (
        settings("nemo-26.04", "qwen3-30b-a3b", "h200", "bf16"),
        settings("nemo-26.04", "qwen3-30b-a3b", "h100", "bf16"),
    )
    assert found == own and found.dispatcher == "hybridep"
    assert nearest_recipe("qwen3-30b-a3b", "a100", "bf16", "nemo-26.04", None) is None


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


def test_the_switches_of_a_model_are_those_of_its_recipes_up_to_a_release() -> None:
    mine = [r for r in recipes() if (r.model, r.gpu) == ("qwen3-30b-a3b", "h100")]
    releases = sorted({r.release for r in mine})
    assert len(releases) > 1
    for number, release in enumerate(releases, 1):
        found = set(model_switches("qwen3-30b-a3b", "h100", release))
        assert {r.settings for r in mine if r.release in releases[:number]} <= found
    assert model_switches("qwen3-30b-a3b", "h100", "nemo-20.01") == () == model_switches("qwen3-30b-a3b", "a100", releases[-1])


def test_the_graphs_that_a_release_knows_are_those_of_its_own_recipes_too() -> None:
    for recipe in recipes():
        known = switches_known(recipe.gpu, recipe.precision, recipe.release, recipe.plan[2] > 1)
        if not recipe.model.startswith("llama"):
            assert known is not None and recipe.settings.cuda_graphs <= known[0] and known[1] >= recipe.settings.ep_overlap
    assert switches_known("h100", "bf16", "nemo-20.01", False) is None is switches_known("h100", "bf16", "nemo-99.01", False)
