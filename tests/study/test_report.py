"""The final table's words."""

from io import StringIO

import pytest
from rich.console import Console

from autoconfig.render.study import TrainingWords
from autoconfig.study.training.session import Line, TrainingFound


def line(trial: int, plan: str, measured_s: float | None, outcome: str = "measured") -> Line:
    return Line(
        trial=trial, plan=plan, outcome=outcome, predicted_s=0.1, measured_s=measured_s, spread_s=None, predicted_peak_gib=None,
        measured_peak_gib=None,
    )  # fmt: skip


def shown(best: Line, *lines: Line) -> str:
    found = TrainingFound(
        name="s", best=best, lines=lines, prior_best="a", unmeasured=(), candidates=3, correction=None, scatter=None,
        memory_correction=1.0, shapes=(), front=(), noise=None, noise_between_jobs=None, tokens_per_money=None,
    )  # fmt: skip
    out = StringIO()
    TrainingWords().show(Console(file=out, width=200), found, "settled")
    return out.getvalue()


@pytest.mark.parametrize("other", ["measured", "emulated"])
def test_a_winner_that_another_trial_undercuts_is_explained(other):
    """Only by a trial of the same kind: composed steps are no measured ones."""
    fast, best, failed = line(0, "a", 0.2, other), line(1, "b", 0.25), line(2, "c", None, "out_of_memory")
    text = shown(best, fast, best, failed)
    assert "Winner: b, 0.25 s" in text and "out of memory" in text
    assert ("Trial 0 measured less, 0.2 s" in text) == (other == "measured")


def test_a_winner_that_measured_least_needs_no_words():
    best = line(1, "b", 0.25)
    assert "measured less" not in shown(best, best, line(0, "a", 0.3))
