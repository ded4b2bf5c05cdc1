"""What stays allocated after a step: blocks of torch's allocator, workspaces, state."""

import pytest
from autoconfig.memory_model.after_step import MIB, allocated_after_step, cublas_workspace_bytes, unsplit_bytes
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.plan import parse_plan

from autoconfig.training.question import Request, understand


def test_a_block_keeps_what_is_too_small_to_split() -> None:
    assert unsplit_bytes(((1.75 * MIB,),), 2, (), 1) == 0.0  # 3.5 of 20 MiB: the rest is split off
    assert unsplit_bytes(((9.75 * MIB,),), 2, (), 1) == 0.5 * MIB  # 19.5 MiB in a segment of 20
    assert unsplit_bytes(((2.4375 * MIB,) * 4,), 2, (), 1) == 0.5 * MIB  # four of 4.875 MiB share one of 20


def test_a_shard_holds_its_part_of_the_tensors() -> None:
    layers = ((4.875 * MIB,),) * 8
    assert unsplit_bytes(layers, 2, (4, 4, 4), 8) == unsplit_bytes(layers[:1], 0, (4, 4, 4), 1)


@pytest.mark.parametrize(("capability", "deterministic", "mib"), [(8.0, False, 8.125), (8.0, True, 32), (9.0, False, 32)])
def test_workspaces(capability: float, deterministic: bool, mib: float) -> None:
    assert cublas_workspace_bytes(capability, deterministic) == mib * MIB


def test_state_is_the_least_that_stays() -> None:
    scenario = understand(Request(model="t5-3b", gpus=8)).scenario
    layouts = scenario.layouts([parse_plan("tp=2,pp=1,mbs=8", 8)])
    parts = stage_terms(scenario, layouts, every=True).state_parts
    state = sum(float(parts[name][0, 0]) for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"))
    assert state < allocated_after_step(scenario, layouts)[0] < state + 400 * MIB
