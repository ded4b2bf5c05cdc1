"""Step time against free memory: hypervolumes by hand, and a study that looks for the front."""

import numpy as np
import pytest

from autoconfig.study.training.candidates import candidates_of
from autoconfig.study.training.proposal import Result, propose
from autoconfig.study.training.surrogate import gains
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank_plans


def test_gains_by_hand():
    """One measured plan at 1 s with 2 bytes free: worth 2 x (2 - 1). Reference: 2 s, 0 bytes."""
    step, free = np.array([[0.5], [1.5], [1.5], [3.0]]), np.array([2.0, 3.0, 1.0, 9.0])
    added, worth = gains([(1.0, 2.0)], step, free)
    assert worth == pytest.approx(2.0)
    assert added[:, 0] == pytest.approx([0.5 * 2, 0.5 * 1, 0.0, 0.0])


def test_two_points_by_hand():
    """Fronts are steps: from 1 to 1.5 s one byte is free, from 1.5 to 2 s three. A dominated point changes nothing."""
    added, worth = gains([(1.0, 1.0), (1.5, 3.0), (1.8, 2.0)], np.array([[1.25]]), np.array([2.0]))
    assert worth == pytest.approx(0.5 * 1 + 0.5 * 3)
    assert added[0, 0] == pytest.approx(0.25 * 1)


def test_a_study_of_headroom_proposes_smaller_plans():
    """After the fastest plan was measured, step time alone wants its neighbours; the front wants more room."""
    request = Request(model="gpt3-1.7b", gpus=8, gpu="a100-80gb", seq_length=2048, global_batch_size=64)
    found = candidates_of(rank_plans(understand(request).scenario))
    results = [Result(row=row, step_seconds=float(found.predicted_s[row])) for row in range(3)]
    by_step = propose(found, results, name="a", seed=0, number=3)
    by_front = propose(found, results, name="a", seed=0, number=3, headroom=True)
    assert found.peak_bytes[by_front.row] < found.peak_bytes[by_step.row]
    assert found.peak_bytes[by_front.row] < found.peak_bytes[:3].min()
