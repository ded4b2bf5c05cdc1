"""`autoconfig rules`: what a rejection code means."""

import json

from tables import tabled

from autoconfig.training.recompute_rules import ENFORCED_IN
from autoconfig.training.rules import ALL_RULES


def test_every_rule_that_rejects_plans_is_listed_and_explained(autoconfig):
    listed = json.loads(autoconfig.run("rules", "--json").stdout)["rules"]
    assert [row["rule"] for row in listed] == [rule.id for rule in ALL_RULES]
    for rule in ALL_RULES:
        said = json.loads(autoconfig.run("rules", rule.id, "--json").stdout)
        assert said["text"] == rule.text and said["enforced_in"] in ENFORCED_IN and said["enforced"]


def test_a_rule_in_words(autoconfig):
    said = autoconfig.run("rules", " nv046").stdout
    assert "Sequence parallelism needs tp above 1." in said and "About: sp tp" in said and "arguments.py:1433" in said


@tabled
def test_a_list_is_narrowed_by_words(autoconfig, asked, names):
    listed = json.loads(autoconfig.run(*asked, "--json").stdout)[asked[0]]
    assert [next(iter(row.values())) for row in listed][: len(names)] == names
    refused = autoconfig.run(asked[0], "zzz9")
    assert refused.exit_code == 2 and f"autoconfig {asked[0]} lists all" in refused.stderr and not refused.stdout
