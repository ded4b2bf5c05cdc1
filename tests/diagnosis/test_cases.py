"""Public cases, as their reporters posted them (validation/tables/diagnosed_runs.csv)."""

from validation.diagnosis.cases import case_lines, reported


def test_no_control_has_a_cause_and_no_cause_is_named_that_the_evidence_does_not_hold():
    unsure = [one for one in reported() if one.is_control or not one.enough]
    assert unsure and [one.row["id"] for one in unsure if one.rules and one.rules[0] != one.row["rule"]] == []


def test_cases_are_held_to():
    lines = list(case_lines())
    assert lines and [line for line in lines if not line.holds] == []
