"""NVIDIA's published recipes: the judge accepts what we call legal and refuses, in its own words, what we accuse."""

import pytest

from autoconfig.accuracy.audit import ILLEGAL
from autoconfig.runs.table import cell
from tools.judge.page import audited_recipes, judged_recipes


@pytest.fixture(scope="module")
def recipes(judge):
    audit = audited_recipes()
    print(f"{audit.covered_share():.1%} of {len(audit.in_families())} text decoders covered")
    assert audit.covered_share() >= 0.95
    return judged_recipes(judge, audit)


def test_every_covered_recipe_is_put_to_the_judge_and_agrees(recipes):
    known = [recipe for recipe in recipes if recipe.audited.recipe is not None]
    assert len(known) >= 175 and all(recipe.audited.family for recipe in known)
    wrong = [(cell(recipe.audited.row, "recipe"), recipe.answer) for recipe in recipes if not recipe.agrees]
    assert wrong == []


def test_every_accusation_has_the_judges_own_refusal(recipes):
    accused = [recipe for recipe in recipes if recipe.audited.verdict == ILLEGAL and not recipe.audited.named]
    assert len(accused) == 12
    stages = {}
    for recipe in accused:
        assert not recipe.answer["accepted"] and recipe.words, recipe.audited.row
        stages.setdefault(tuple(v.rule for v in recipe.audited.violations), set()).add(recipe.answer["stage"])
    assert stages == {("NV042",): {"schedule"}, ("NV046",): {"config"}, ("NV048",): {"layers"}, ("NV062",): {"config"}}


def test_a_stand_in_model_hides_nothing(judge):
    """Degrees that are sound are accepted: a refusal is about them, not about the model that stands in."""
    sound = {"gpus": 64, "tp": 2, "pp": 4, "cp": 1, "vpp": 2, "ep": 4, "etp": 1, "mbs": 1, "gbs": 64}
    assert judge.degrees(sound, sequence_parallel=True)["accepted"]
    assert judge.degrees({**sound, "tp": 1, "ep": 1}, sequence_parallel=False)["accepted"]
    assert judge.degrees(sound, sequence_parallel=False)["stage"] == "layers"
    assert judge.degrees({**sound, "gbs": 40}, sequence_parallel=True)["stage"] == "schedule"
    assert judge.degrees({**sound, "mbs": 3}, sequence_parallel=True)["stage"] == "config"
    assert judge.degrees({**sound, "etp": 8}, sequence_parallel=True)["stage"] == "groups"
