"""Agents' rollouts against closed forms in three limits, and what is conserved."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from autoconfig.specs.errors import InputError

from autoconfig.post_training.agents.rollout import Agents, EngineWork, simulate_agents, stale_share, steady_agents, tool_draws
from autoconfig.post_training.answer import RlAnswer, answer
from autoconfig.post_training.placements import SHARES, engine_plans, packed_tokens, training_plans
from autoconfig.post_training.ranking import price


def iteration(b: float) -> float:
    return 0.01 + 0.0004 * b


def prefill(tokens: float) -> float:
    return 1e-5 * tokens


def nothing(_: float) -> float:
    return 0.0


def work(lengths: list[float], **changes: float) -> EngineWork:
    whole = {"group": 4, "prompt_tokens": 200.0, "slots": len(lengths), "sandboxes": 0, **changes}
    return EngineWork(lengths=tuple(lengths), **whole)  # type: ignore[arg-type]


@pytest.mark.parametrize("turns", [1, 3, 8])
def test_without_environment_time_turns_follow_each_other(turns: int):
    """All alike, every slot in use: T turns of r / T tokens at t(n), and every prefill, in which the others wait."""
    agents = Agents(turns=turns, tool_tokens=100)
    n, r = 16, 240.0
    found = simulate_agents(agents, work([r] * n), iteration, prefill)
    prompts = (n / 4) * prefill(200) + (n - n / 4) * prefill(16)
    assert found.seconds == pytest.approx(r * iteration(n) + prompts + n * (turns - 1) * prefill(116), rel=1e-9)
    assert found.engine_seconds == pytest.approx(found.seconds)
    gone = simulate_agents(Agents(turns=turns, tool_tokens=100, keeps_prefix=False), work([r] * n), iteration, prefill)
    again = sum(prefill(200 + turn * (100 + r / turns)) for turn in range(1, turns))
    assert gone.seconds == pytest.approx(r * iteration(n) + prompts + n * again, rel=1e-9)


@pytest.mark.parametrize(("n", "sandboxes"), [(12, 0), (12, 12), (12, 5), (100, 7)])
def test_environment_time_alone_runs_in_waves_of_sandboxes(n: int, sandboxes: int):
    """Calls that all take d seconds and tokens that take none: ceil(n / S) waves of each call, or one without a limit; first
    come, first served, a sandbox runs ceil(n c / S) calls where nothing else is waited for."""
    agents = Agents(turns=5, tool_seconds=3.0, tool_spread=0.0, sandboxes=sandboxes)
    found = simulate_agents(agents, work([5.0] * n, sandboxes=sandboxes), nothing, nothing)
    calls = n * agents.calls
    told = 3.0 * (agents.calls if not sandboxes or sandboxes >= n else ceil(calls / sandboxes))
    assert told <= found.seconds <= told + 3.0 * agents.calls * (sandboxes > 0 and calls % sandboxes > 0)
    assert found.engine_seconds == 0.0
    spread = Agents(turns=5, tool_seconds=3.0, tool_spread=1.0)
    some = simulate_agents(spread, work([5.0] * n), nothing, nothing)
    assert some.tool_seconds == pytest.approx(3.0 * 4, rel=1e-9), "every call is counted once"
    draws = np.array(tool_draws(spread, n * 4)).reshape(n, 4)
    assert some.seconds == pytest.approx(draws.sum(axis=1).max(), rel=1e-9)


def test_one_turn_is_the_sum_over_order_statistics():
    """Sequences that share iterations and none waits: sum over the sorted lengths of (r_i - r_(i-1)) t(n - i + 1)."""
    drawn = random.Random(3)
    lengths = [float(drawn.randrange(50, 900)) for _ in range(20)]
    found = simulate_agents(Agents(), work(lengths, prompt_tokens=0.0), iteration, nothing)
    ordered = [0.0, *sorted(lengths)]
    told = sum((ordered[i] - ordered[i - 1]) * iteration(20 - i + 1) for i in range(1, 21))
    assert found.seconds == pytest.approx(told, rel=1e-9)
    few = simulate_agents(Agents(), work([300.0] * 20, prompt_tokens=0.0, slots=5), iteration, nothing)
    assert few.seconds == pytest.approx(4 * 300.0 * iteration(5), rel=1e-9), "four waves of five"


def test_tools_hide_behind_generation_and_slots_are_used_meanwhile():
    agents = Agents(turns=4, tool_seconds=2.0)
    both = simulate_agents(agents, work([400.0] * 32, slots=8), iteration, prefill)
    tokens = simulate_agents(Agents(turns=4), work([400.0] * 32, slots=8), iteration, prefill)
    assert tokens.seconds < both.seconds < tokens.seconds + 32 / 8 * 3 * 2.0
    fewer = simulate_agents(agents, work([400.0] * 32, slots=8, sandboxes=1), iteration, prefill)
    assert fewer.seconds >= 32 * 3 * np.mean(tool_draws(agents, 96)) > both.seconds
    assert fewer.tool_seconds > both.tool_seconds


def test_running_ahead_fills_the_slots_and_ages_samples():
    agents = Agents(turns=3, tool_seconds=4.0)
    lengths = [100.0, 200.0, 400.0, 1600.0] * 4
    waits = simulate_agents(agents, work(lengths), iteration, prefill).seconds
    one, two = (steady_agents(agents, work(lengths), iteration, prefill, k) for k in (1, 2))
    assert two.step_seconds <= one.step_seconds * 1.05 < waits
    assert stale_share(one.residence, one.step_seconds, one.step_seconds, 0) == 0.0
    assert 0.0 < stale_share(one.residence, one.step_seconds, one.step_seconds, 1) <= 1.0
    assert stale_share(1.0, 10.0, 50.0, 1) == 1.0, "samples that wait for the trainer are all of an earlier step"
    assert stale_share(5.0, 50.0, 50.0, 1) == pytest.approx(0.1)


def test_numbers_out_of_range_are_refused():
    for changes in ({"turns": 0}, {"tool_seconds": -1.0}, {"tool_spread": 9.0}, {"tool_tokens": -5}, {"sandboxes": -1}):
        with pytest.raises(InputError, match=next(iter(changes)).replace("_", " ")):
            Agents(**changes)


def asked(**changes: object) -> RlAnswer:
    return answer({"model": "qwen2.5-1.5b", "gpus": 16, "response_length": 1000, "prompt_length": 300, "top": 1000, **changes})


def test_tools_are_in_the_step_its_tokens_and_its_split():
    plain, tools = asked(), asked(turns=6, tool_time=20.0, tool_tokens=200)
    assert tools.job.tokens == plain.job.tokens + 5 * 200
    assert tools.ranked[0].seconds > plain.ranked[0].seconds
    few = asked(turns=6, tool_time=20.0, tool_tokens=200, sandboxes=64, staleness=1)
    calls = few.job.samples * 5 * 20.0 / 64
    assert few.ranked[0].seconds > calls > tools.ranked[0].seconds, "few sandboxes decide"
    ahead = next(one for one in few.ranked if one.placement.staleness)
    assert ahead.starved == "training" and 0.3 < ahead.idle_share < 1.0 and ahead.stale_share > 0
    dropped = asked(turns=6, tool_time=20.0, tool_tokens=200, drop_prefix=True)
    generation = [found.ranked[0].phases.generation for found in (tools, dropped)]
    assert generation[0] < generation[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tool_time": 3.0}, "--turns"),
        ({"turns": 0}, "--turns 0"),
        ({"turns": 2, "tool_time": "x"}, "tool seconds 'x'"),
        ({"turns": 2, "algorithm": "sft"}, "generates nothing"),
        ({"turns": 2, "tool_spread": 7.0}, "tool spread 7"),
    ],
)
def test_odd_agents_are_refused(changes: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        asked(**changes)


def test_the_balance_is_the_best_of_all_splits_in_30_random_questions():
    drawn = random.Random(37)
    seen: set[int] = set()
    for _ in range(30):
        nodes = drawn.choice([2, 3, 4])
        question = {
            "gpus": 8 * nodes,
            "prompts": 12 * drawn.choice([2, 4, 6]),
            "group_size": 8,
            "response_length": drawn.choice([300, 1500, 5000]),
            "max_response_length": 8192,
            "turns": drawn.choice([1, 4, 10]),
            "staleness": 1,
        }
        if question["turns"] > 1:
            question |= {"tool_time": drawn.choice([0.5, 30.0]), "tool_tokens": 100, "sandboxes": drawn.choice([32, 4096])}
        found = asked(**question)
        named = min((one for one in found.ranked if one.placement.staleness), key=lambda one: one.seconds, default=None)
        job, tokens, best = found.job, max(8192, round(found.job.tokens)), float("inf")
        for rollout in range(8, 8 * nodes, 8):
            beside = replace(found.ranked[0].placement, colocated=False, offload=False, critic_gpus=0, memory_share=SHARES[0])
            for plan in training_plans(job, 8 * nodes - rollout, tokens, 0.9, {}, beside):
                for engine in engine_plans(job, rollout, SHARES[0]):
                    packed = packed_tokens(job, plan, tokens)
                    placed = replace(beside, train=plan, engine=engine, staleness=1, tokens_per_gpu=packed)
                    one = price(job, placed)
                    if one.memory.fits and one.memory.chance >= 0.9:
                        best = min(best, one.seconds)
        assert (named.seconds if named else float("inf")) == pytest.approx(best, rel=1e-9), question
        seen.add(named.placement.engine.gpus // 8 if named else 0)
    assert len(seen) > 2, "the questions have different answers"
