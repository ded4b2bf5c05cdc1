"""Fronts, first entries and thinning against what each says in words."""

import numpy as np
import pytest
from autoconfig.specs.layouts import first_positions, on_front, pareto_front, spread


def test_the_front_by_hand():
    least, most = [1.0, 2.0, 2.0, 3.0, 1.0], [1.0, 3.0, 2.0, 3.0, 1.0]
    assert pareto_front(least, most).tolist() == [0, 1]
    assert on_front(least, most) == [True, True, False, False, True]
    assert pareto_front([], []).tolist() == [] and on_front([], []) == []
    assert pareto_front([1, 2, 3, 4], [10, 10.5, 10.9, 20], slack=0.06).tolist() == [0, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_no_row_beats_a_row_of_the_front_and_every_other_row_is_beaten(seed):
    least, most = np.random.default_rng(seed).integers(0, 12, (2, 60))
    kept = on_front(least, most)
    for row in range(60):
        beaten = ((least <= least[row]) & (most >= most[row]) & ((least < least[row]) | (most > most[row]))).any()
        assert kept[row] == (not beaten)
    front = pareto_front(least, most)
    assert (np.diff(least[front]) > 0).all() and (np.diff(most[front]) > 0).all()
    assert {(least[row], most[row]) for row in front} == {(least[row], most[row]) for row in np.flatnonzero(kept)}


def test_first_entries_and_thinning():
    assert first_positions(np.array([3, 3, 0, 1, 0, 3])).tolist() == [0, 2, 3]
    assert first_positions(np.array([], int)).tolist() == []
    assert spread([5, 6, 7], 12) == [5, 6, 7] and spread([], 12) == []
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]
