"""Faults that are put into made runs are found, and nothing else is (validation/diagnosis/faults.py)."""

import pytest

from autoconfig.diagnosis.answer import diagnose
from validation.diagnosis import made_runs
from validation.diagnosis.faults import EVERY, dense, diagnosed, fault_lines, named
from validation.diagnosis.made_runs import DENSE, EXPERTS, ONE_NODE, made

pytestmark = pytest.mark.xdist_group("made faults")


def test_made_faults_are_held_to():
    lines = list(fault_lines())
    assert lines and all(line.holds for line in lines), [(one, named(*one)) for one in EVERY if named(*one) != [one[0]]]


def test_the_right_cause_comes_first() -> None:
    wrong = [(rule, times) for rule, times in EVERY if named(rule, times)[:1] != [rule]]
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("asked", [DENSE, ONE_NODE, EXPERTS], ids=["nodes", "one node", "experts"])
def test_a_healthy_run_has_no_cause(asked: tuple[dict[str, object], str]) -> None:
    found = diagnose(made(made_runs.expected(*asked)), made_runs.expected(*asked), with_better=False)
    assert (found.verdict, found.causes) == ("healthy", ())


@pytest.mark.parametrize(("rule", "times"), EVERY)
def test_phases_and_what_is_not_explained_are_the_measured_step(rule: str, times: float) -> None:
    case = diagnosed(rule, times).case
    shown = sum(
        one.expected_seconds or 0.0 if one.measured_seconds is None else one.measured_seconds for one in case.budget.phases
    )
    assert case.step_seconds == pytest.approx(shown + case.budget.unexplained_seconds, rel=1e-12)


def test_a_sick_run_calibrates_nothing() -> None:
    assert all(diagnosed(*one).why_not_calibrate for one in EVERY)
    e = dense()
    assert diagnose(made(e), e, with_better=False).why_not_calibrate == ""
