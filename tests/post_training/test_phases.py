"""Which phases of a step run at the same time, on which GPUs, and what the step waits for."""

from __future__ import annotations

import pytest
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.time_model.serving.simulation import SchedulerLimits, simulate
from tables import tabled

from autoconfig.post_training.generation import EngineShare, _drained, _engine, _requests, _stream
from autoconfig.post_training.job import Placement
from autoconfig.post_training.phases import PHASES, Phases, exposed, timeline
from tests.post_training.rl_question import answered

SECONDS = {
    **{"generation": 36.0, "samples": 4.0, "logprob": 5.0, "reference": 6.0},
    **{"training": 19.0, "weight_sync": 2.0, "other": 3.0},
}
CRITIC = {"values": 7.0, "critic_training": 30.0}


def placed(**given: object) -> Placement:
    """Training on 8 GPUs, engines on 4."""
    return Placement(train=TrainPlan(tp=1, pp=1, dp=8, mbs=1), engine=EnginePlan(tp=1, replicas=4), **given)  # type: ignore[arg-type]


def waited(placement: Placement, **seconds: float) -> float:
    phases = Phases(**{**SECONDS, **seconds})  # type: ignore[arg-type]
    return phases.of(exposed(phases, placement))


def test_a_synchronous_step_is_the_sum_of_its_phases():
    assert waited(placed()) == waited(placed(colocated=False)) == 75.0


def test_the_longer_of_generation_and_training_decides_ahead_of_the_weights():
    ahead = placed(colocated=False, staleness=1)
    assert waited(ahead) == 40.0 + 5.0
    assert waited(ahead, generation=20.0) == 30.0 + 5.0


def test_a_critic_on_its_own_nodes_runs_beside_the_actor():
    own = placed(critic_gpus=8)
    assert waited(own, **CRITIC) == 40.0 + 37.0 + 5.0
    assert waited(own, values=1.0, critic_training=1.0) == 75.0
    assert waited(placed(), **CRITIC) == 75.0 + 37.0
    assert waited(placed(critic_gpus=8, colocated=False, staleness=1), **CRITIC) == 40.0 + 5.0


@tabled
def test_the_timeline_holds_every_phase_once_and_ends_with_the_step(given, names):
    placement, phases = placed(**given), Phases(**SECONDS, **CRITIC)
    groups = timeline(phases, placement)
    assert [group.name for group in groups] == names
    assert sum(group.gpus for group in groups) == placement.gpus
    step = phases.of(exposed(phases, placement))
    seen = {}
    for group in groups:
        assert group.intervals[-1].end == pytest.approx(step)
        for one, after in zip(group.intervals, group.intervals[1:], strict=False):
            assert one.end <= after.start + 1e-9
        seen |= {one.phase: one.end - one.start for one in group.intervals}
    assert seen == pytest.approx({**SECONDS, **CRITIC})
    first = {one.phase: one.start for group in groups for one in group.intervals}
    assert first["logprob"] == (0.0 if given.get("staleness") else 40.0) and first["generation"] == 0.0


def test_what_binds_is_a_phase_that_the_step_waits_for():
    """Hidden generation is no bottleneck, however long it is beside the phases that hide it."""
    found = answered({"model": "qwen2.5-7b", "gpus": 16, "top": 100, "staleness": 1}).ranked
    hidden = [one for one in found if "generation" not in exposed(one.phases, one.placement)]
    assert hidden and any(one.phases.generation > one.phases.of((one.binds,)) for one in hidden)
    for one in found:
        shown = exposed(one.phases, one.placement)
        assert one.binds == max(shown, key=lambda name: getattr(one.phases, name))
        assert one.phases.beside == pytest.approx(one.phases.of(PHASES) - one.phases.of(shown))


def test_limits_that_never_bind_change_no_simulation():
    """Engines that differ in the room of a cache that they never fill are simulated once, and as they are."""
    job = answered({"model": "qwen2.5-7b", "gpus": 8, "prompts": 64, "group_size": 4}).job
    _, _, table = _engine(job.policy, job.gpu, EnginePlan(tp=1, replicas=1), True)
    asked, before = EngineShare(job.responses, job.samples, job.group, job.prompt_tokens, 40), _stream.cache_info().misses
    wide = [SchedulerLimits(batch=batch, tokens=8192, kv_tokens=room) for batch, room in ((40, 4e5), (256, 4e5), (1024, 1e7))]
    narrow = SchedulerLimits(batch=8, tokens=8192, kv_tokens=4e5)
    for limits in (*wide, narrow):
        plain = simulate(table, _requests(asked), limits)
        seconds, _ = _drained(job, table, asked.number, limits)
        assert seconds == plain.duration_s
    assert _stream.cache_info().misses == before + 2
    assert _drained(job, table, asked.number, narrow)[0] > 1.3 * _drained(job, table, asked.number, wide[0])[0]
