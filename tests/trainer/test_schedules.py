"""Micro-batches in flight against megatron-core's own schedule: its warm-up count and its order of forward passes."""

from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.memory_model.activations import chunk_counts, chunks_in_flight, warmup_chunks
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table

pytestmark = pytest.mark.torch


def schedule(pp: int, vpp: int, stage: int, m: int) -> tuple[int, list[int]]:
    """(warm-up forward passes of the stage, model chunk of each of its forward passes)."""
    group = SimpleNamespace(size=lambda: pp, rank=lambda: stage)
    ranks = SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None)
    _, _, warmup, _ = get_pp_rank_microbatches(m, vpp, pp, p2p_communicator=ranks)
    return warmup, [chunk for _, chunk in get_schedule_table(m, vpp, pp)]


@given(pp=st.integers(1, 12), vpp=st.integers(1, 5), groups=st.integers(1, 6), more=st.integers(0, 9), stage=st.integers(0, 11))
def test_chunks_in_flight_are_those_of_megatrons_schedule(pp: int, vpp: int, groups: int, more: int, stage: int) -> None:
    """Held at the peak: the passes of the warm-up and one more; of each chunk as many as the order says."""
    stage, vpp = stage % pp, vpp if pp > 1 else 1
    m = groups * pp + (more if vpp == 1 else 0)  # interleaving needs whole groups of pp
    warmup, order = schedule(pp, vpp, stage, m)
    held = order[: warmup + 1]
    assert int(warmup_chunks(pp, vpp, np.array(stage), m)) == warmup
    found = chunks_in_flight(pp, vpp, np.array(stage), m)
    assert int(found) == len(held)
    assert [int(chunk_counts(pp, vpp, found, chunk)) for chunk in range(vpp)] == [held.count(chunk) for chunk in range(vpp)]
