"""The pipeline timeline: Megatron's order of work, its bubble, its stages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import tabled

from autoconfig.core.timeline import chunk_seconds, rank_order, simulate, timeline
from autoconfig.training.answer import explain
from autoconfig.training.question import Request


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5))
def test_equal_stages_idle_as_the_paper_says(pp, vpp, rounds):
    """Bubble over work = (p - 1) / (m v): Narayanan et al. 2021, section 2.2.2."""
    vpp = vpp if pp > 1 else 1
    microbatches = rounds * pp
    work = simulate([[(1.0, 2.0)] * vpp for _ in range(pp)], microbatches, pp, vpp)
    last = max(piece.end for piece in work)
    assert len(work) == 2 * pp * vpp * microbatches
    assert last == pytest.approx(3.0 * (microbatches * vpp + pp - 1))


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_ranks_do_one_thing_at_a_time_and_wait_for_what_they_need(pp, vpp, rounds, chance):
    vpp = vpp if pp > 1 else 1
    seconds = [[(chance.uniform(0.1, 2), chance.uniform(0.1, 4)) for _ in range(vpp)] for _ in range(pp)]
    work = simulate(seconds, rounds * pp, pp, vpp)
    for stage in range(pp):
        own = [piece for piece in work if piece.stage == stage]
        assert all(before.end <= after.start + 1e-9 for before, after in pairwise(own))
    ends = {(piece.forward, piece.chunk * pp + piece.stage, piece.microbatch): piece for piece in work}
    for (forward, place, microbatch), piece in ends.items():
        need = (True, place - 1, microbatch) if forward else (False, place + 1, microbatch)
        if not forward and place == pp * vpp - 1:
            need = (True, place, microbatch)
        if need in ends:
            assert ends[need].end <= piece.start + 1e-9


@pytest.mark.parametrize(("stage", "in_flight"), [(0, 4), (1, 3), (3, 1)])
def test_1f1b_keeps_as_many_micro_batches_as_stages_follow(stage, in_flight):
    most = alive = 0
    for forward, _, _ in rank_order(stage, 16, 4, 1):
        alive += 1 if forward else -1
        most = max(most, alive)
    assert most == in_flight and alive == 0


@tabled
def test_stages_take_what_the_step_says(model, plan):
    """m times the longest stage and the bubble of the drawn step come from the same operators as the step's own time."""
    explanation = explain(Request(model=model, gpus=1024, gpu="h100"), plan, binds=False)
    scenario, report = explanation.question.scenario, explanation.included.report
    drawn = timeline(scenario, report.plan, explanation.operators)
    seconds = chunk_seconds(scenario, report.plan, explanation.operators)
    longest = max(sum(fore + back for fore, back in chunks) for chunks in seconds)
    parts = report.time_parts
    compute = drawn.num_microbatches * longest
    outside = ("pipeline_bubble_seconds", "gradient_reduction_seconds", "parameter_gather_seconds", "p2p_seconds",
               "embedding_gradient_seconds", "optimizer_seconds", "step_launch_seconds", "straggler_seconds",
               "fsdp_seconds")  # fmt: skip
    inside = sum(value for name, value in parts.items() if name not in outside)
    assert compute == pytest.approx(inside, rel=0.02)
    assert drawn.stages[0].work and 0.0 <= drawn.bubble_share < 1.0
