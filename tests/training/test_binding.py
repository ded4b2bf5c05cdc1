"""What binds: more of anything never hurts, and what a plan lacks helps it."""

from types import SimpleNamespace

import pytest
from autoconfig.specs.plan import parse_plan

from autoconfig.training.question import Request, understand
from autoconfig.training.remedies import CHANGES, what_binds


@pytest.mark.parametrize(("request_", "plan"), [
    (Request(model="175b", gpus=64, global_batch_size=512), "tp=8,pp=8,vpp=2,mbs=1,sp=1"),
    (Request(model="mixtral-8x7b", gpus=16, global_batch_size=128), "tp=1,pp=2,ep=8,mbs=1"),
])  # fmt: skip
def test_more_never_hurts(request_: Request, plan: str) -> None:
    scenario = understand(request_).scenario
    gains = {gain.change: gain for gain in what_binds(scenario, parse_plan(plan, scenario.cluster.num_gpus))}
    assert set(gains) == {name for name, _ in CHANGES}
    for gain in gains.values():
        assert gain.best_plan_ratio is not None and gain.best_plan_ratio >= 1 - 1e-9
        assert gain.same_plan_ratio is not None and gain.same_plan_ratio >= 1 - 1e-9
    assert gains["+10 % compute"].same_plan_ratio > 1.04, "GEMMs are most of a step"  # type: ignore[operator]
    assert gains["+1 GiB of memory"].same_plan_ratio == pytest.approx(1), "memory changes what is possible, not speed"
    assert gains["twice the global batch"].same_plan_ratio > 1, "the bubble and the reduction are paid once a step"  # type: ignore[operator]


def test_a_plan_that_does_not_fit_is_told_that_memory_binds(autoconfig: SimpleNamespace) -> None:
    large = ("explain", "tp=8", "--model", "175b", "--gpu", "a100-80gb")
    nothing = autoconfig.run(*large, "--gpus", "8")
    assert nothing.exit_code == 3 and "Memory binds" in nothing.stdout and "no plan of this question fits" in nothing.stdout
    assert "Memory binds" not in autoconfig.run(*large, "--gpus", "8", "--no-binds").stdout
    other = autoconfig.json(*large, "--gpus", "64")
    assert other["what_binds"] and "does not run" in other["what_binds_note"]
    fits = autoconfig.json("explain", "tp=8,pp=8,sp=1", "--model", "175b", "--gpus", "64", "--gpu", "a100-80gb")
    assert fits["what_binds"] and fits["what_binds_note"] == ""
