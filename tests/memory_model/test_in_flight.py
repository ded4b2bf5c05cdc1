"""Micro-batches in flight against a simulation of megatron-core's schedules (pipeline_parallel/schedules.py)."""

import numpy as np
import pytest
from autoconfig.memory_model.activations import chunk_counts, chunks_in_flight, warmup_chunks
from hypothesis import given
from hypothesis import strategies as st


def forward_order(pp: int, vpp: int, m: int) -> list[int]:
    """Model chunk of every forward pass of a rank: groups of pp micro-batches through chunk 0, then chunk 1, ..."""
    order = []
    for start in range(0, m, pp):
        group = min(pp, m - start)
        for chunk in range(vpp):
            order += [chunk] * group
    return order


def simulate(pp: int, vpp: int, stage: int, m: int) -> tuple[int, list[int]]:
    """(most chunks held at once, chunks of each number held then): warm-up, then one forward and one backward in turn."""
    order = forward_order(pp, vpp, m)
    total = len(order)
    warmup = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warmup = min(warmup, total)
    held = most = 0
    at_most: list[int] = []
    for number in range(total):
        held += 1
        if held > most:
            most = held
            at_most = [order[: number + 1].count(chunk) for chunk in range(vpp)]
        if number >= warmup:
            held -= 1
    return most, at_most


@given(pp=st.integers(1, 12), vpp=st.integers(1, 5), groups=st.integers(1, 6), stage=st.integers(0, 11))
def test_peak_and_chunks_of_the_interleaved_schedule(pp: int, vpp: int, groups: int, stage: int) -> None:
    stage %= pp
    vpp = vpp if pp > 1 else 1
    m = groups * pp
    most, at_most = simulate(pp, vpp, stage, m)
    held = chunks_in_flight(pp, vpp, np.array(stage), m)
    assert int(held) == most
    assert [int(chunk_counts(pp, vpp, held, chunk)) for chunk in range(vpp)] == at_most


@pytest.mark.parametrize(("pp", "stage", "m", "expected"), [(8, 0, 64, 8), (8, 7, 64, 1), (8, 0, 3, 3), (1, 0, 9, 1)])
def test_one_forward_one_backward(pp: int, stage: int, m: int, expected: int) -> None:
    assert int(chunks_in_flight(pp, 1, np.array(stage), m)) == expected


def test_findings_example() -> None:
    """p 8, v 6, m 64: 55, 53, ... 41 chunks over the stages (findings-memory, section 4)."""
    assert list(chunks_in_flight(8, 6, np.arange(8), 64)) == [55, 53, 51, 49, 47, 45, 43, 41]
    assert list(warmup_chunks(8, 6, np.arange(8), 2)) == [12] * 8, "never more than there are"
