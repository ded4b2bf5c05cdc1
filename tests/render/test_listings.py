"""`autoconfig rules`: what a rejection code means."""

import json

import pytest
from tables import tabled

from autoconfig.render.listings import model_rows
from autoconfig.render.model import describe
from autoconfig.training.rules import ALL_RULES, ENFORCED_IN


def test_every_rule_that_rejects_plans_is_listed_and_explained(autoconfig):
    listed = json.loads(autoconfig.run("rules", "--json").stdout)["rules"]
    assert [row["rule"] for row in listed] == [rule.id for rule in ALL_RULES]
    for rule in ALL_RULES:
        said = json.loads(autoconfig.run("rules", rule.id, "--json").stdout)
        assert said["text"] == rule.text and said["enforced_in"] in ENFORCED_IN and said["enforced"]


def test_a_rule_in_words(autoconfig):
    said = autoconfig.run("rules", " nv046").stdout
    assert "Sequence parallelism needs tp above 1." in said and "About: sp tp" in said and "arguments.py:1433" in said


def test_a_constraint_that_no_plan_breaks(autoconfig):
    said = autoconfig.run("rules", "NV147").stdout
    assert "moe_router" in said and "No plan of a search breaks it" in said


@pytest.mark.parametrize(("code", "near"), [("NV04", "did you mean NV040"), ("XYZ", "autoconfig rules lists")])
def test_an_unknown_code(autoconfig, code, near):
    done = autoconfig.run("rules", code)
    assert done.exit_code == 2 and near in done.output


@tabled
def test_a_list_is_narrowed_by_words(autoconfig, asked, names):
    listed = json.loads(autoconfig.run(*asked, "--json").stdout)[asked[0]]
    assert [next(iter(row.values())) for row in listed][: len(names)] == names
    refused = autoconfig.run(asked[0], "zzz9")
    assert refused.exit_code == 2 and f"autoconfig {asked[0]} lists all" in refused.stderr and not refused.stdout


def test_the_list_of_models_and_one_model_say_the_same_of_active_parameters():
    rows = {row["name"]: row for row in model_rows()}
    assert all(row["active"] <= row["parameters"] for row in rows.values())
    for name in ("qwen3.5-27b", "mixtral-8x7b", "deepseek-v3", "llama3-8b"):
        found = describe(name)
        assert (rows[name]["parameters"], rows[name]["active"]) == (found.parameters, found.active_parameters)
