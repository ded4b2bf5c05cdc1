"""The fewest GPUs of a deadline against exhaustive search, and what the band of a step owes to what is not said."""

from __future__ import annotations

import json
import os
import random
from math import exp, log, sqrt

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences
from click.testing import CliRunner

from autoconfig.cli.main import cli
from autoconfig.post_training.answer import RlAnswer
from autoconfig.post_training.frameworks import STANDARD_90
from autoconfig.post_training.price import price
from autoconfig.post_training.questions.fewest import gpu_counts, least_seconds
from autoconfig.post_training.questions.unknowns import Unknown, band_where_said, widened
from autoconfig.post_training.space import enumerate_placements
from tests.post_training.rl_question import answered

SMALL = {"model": "qwen2.5-1.5b", "group_size": 8, "response_length": 800, "max_response_length": 4096}


def asked(**changes: object) -> RlAnswer:
    return answered({**SMALL, "gpus": 32, "prompts": 96, **changes})


SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "38"))


def quickest(found: RlAnswer, gpus: int, staleness: int) -> float:
    """The quickest likely step of every placement, each priced by itself."""
    tokens = max(8192, round(found.job.tokens))
    every = [price(found.job, one) for one in enumerate_placements(found.job, gpus, tokens, staleness, 0.9)]
    return min((one.seconds for one in every if one.memory.fits and one.memory.chance >= 0.9), default=float("inf"))


@pytest.mark.judge
@pytest.mark.parametrize("count", [4, pytest.param(30, marks=pytest.mark.soak)])
def test_fewest_gpus_equal_exhaustive_search_in_random_questions(count: int):
    print(f"seed {SEED}")
    drawn = random.Random(SEED)
    found_at: set[int] = set()
    for _ in range(count):
        question = {
            "gpus": drawn.choice([7, 8, 16, 24]),
            "prompts": 24 * drawn.choice([2, 4, 8]),
            "response_length": drawn.choice([200, 800, 3000]),
            "staleness": drawn.choice([0, 1]),
        }
        hours, steps = drawn.choice([1.0, 2.0, 6.0]), drawn.choice([50, 200, 500])
        found = asked(goal="gpus", hours=hours, steps=steps, **question)
        counts = [n for n in range(1, question["gpus"] + 1) if n < 8 or n % 8 == 0]
        every = {n: quickest(found, n, question["staleness"]) * steps for n in counts}
        least = next((n for n in counts if every[n] <= hours * 3600), None)
        assert (found.gpus if found.ranked else None) == least, question
        below = [seconds for n, seconds in every.items() if least is None or n < least]
        told = found.fewer.seconds * steps if found.fewer else float("inf")
        assert told == pytest.approx(min(below, default=float("inf"))), question
        found_at.add(least or 0)
    assert len(found_at) > 1 + 2 * (count > 4), "the questions have different answers"


def test_six_gpus_are_fewer_than_eight():
    """Numbers below a node that `rl` takes are tried: 420 x 8 samples divide over 6."""
    question = {"model": "qwen2.5-3b", "prompts": 420, "group_size": 8, "response_length": 1000, "max_response_length": 4096}
    six = answered({**question, "gpus": 6, "staleness": 1}).ranked[0].seconds
    found = answered({**question, "gpus": 8, "staleness": 1, "goal": "gpus", "steps": 360, "hours": six * 360 / 3600 + 0.01})
    assert found.gpus == 6


def test_at_most_so_many_gpus_may_be_no_whole_nodes_and_the_chance_is_said():
    """ln(step) is normal: at the middle of the band one in two, at its upper end 95 %."""
    met = asked(gpus=28, goal="gpus", hours=50.0, steps=100)
    assert met.ranked and met.gpus <= 24
    one = met.ranked[0]
    assert [round(one.chance_within(s), 3) for s in (one.band[0], one.seconds, one.band[1])] == [0.05, 0.5, 0.95]
    ahead = asked(gpus=16, staleness=2, top=50).ranked
    assert all(0.0 < one.mean_age <= one.placement.staleness for one in ahead if one.placement.staleness)


def test_off_policy_says_why_nothing_is_on_policy():
    """Training on all of 24 GPUs takes samples that divide by 3, on 16 of them not."""
    uneven = asked(gpus=24, prompts=128, staleness=1)
    assert uneven.ranked[0].placement.staleness
    assert any(
        "1,024 samples do not divide over all 24 GPUs, those of 129 prompts do" in one for one in sentences(uneven.notes)
    )


def test_numbers_of_gpus_are_those_that_a_question_may_have():
    assert list(gpu_counts(8, 32)) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32]
    assert list(gpu_counts(8, 4)) == [1, 2, 3, 4] and list(gpu_counts(4, 9)) == [1, 2, 3, 4, 8]


def test_splits_of_many_nodes_are_all_tried():
    """20 nodes: training on 14 of them (pp=7 of 28 layers) is quicker than on any eighth or power of two."""
    question = {"model": "qwen2.5-7b", "prompts": 1024, "group_size": 16, "response_length": 3000, "max_response_length": 8192}
    found = answered({**question, "gpus": 160, "staleness": 1, "top": 1000})
    assert found.ranked[0].placement.train.world_size == 112
    assert {8, 56, 64, 112, 128} < {one.placement.train.world_size for one in found.ranked if one.placement.staleness}
    first = answered({**question, "gpus": 160, "staleness": 1, "top": 1})
    assert first.ranked[0] == found.ranked[0] and first.considered == found.considered, "the first of few is that of all"


def test_the_bound_is_below_every_step_and_halves():
    found = asked(gpus=8)
    assert least_seconds(found.job, 8) < min(one.seconds for one in found.ranked)
    assert least_seconds(found.job, 16) == pytest.approx(least_seconds(found.job, 8) / 2)
    tokens, active = 96 * 8 * 900, 1.5437e9  # prompts of 100; 28 layers of 46.8 M and an output layer of 233 M
    assert least_seconds(found.job, 1) == pytest.approx(4 * active * tokens / found.job.gpu.flops_per_s["fp8"], rel=0.01)


def test_a_deadline_says_what_fewer_take_and_what_would_do():
    runner = CliRunner()
    base = ["rl", "--model=qwen2.5-1.5b", "--gpus=32", "--prompts=96", "--group-size=8", "--response-length=800"]
    goal = ["--max-response-length=4096", "--goal=gpus", "--steps=500"]
    met = json.loads(runner.invoke(cli, [*base, *goal, "--hours=4", "--json"]).stdout)
    assert met["deadline"]["step_seconds"] == pytest.approx(28.8) and met["placements"][0]["step_seconds"] <= 28.8
    assert met["deadline"]["fewer_gpus"] < met["gpus"] and met["deadline"]["fewer_hours"] > 4
    missed = runner.invoke(cli, [*base, *goal, "--hours=0.05"])
    assert missed.exit_code == 3 and "No number of GPUs up to 32 does 500 steps in 0.05 hours" in missed.stdout
    hours = missed.stdout.split("(--hours ")[1].split(")")[0]
    assert runner.invoke(cli, [*base, *goal, f"--hours={hours}"]).exit_code == 0, "what is said would do, does"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goal": "gpus", "hours": 2.0}, "--steps"),
        ({"goal": "gpus", "steps": 20}, "--hours"),
        ({"hours": 2.0}, "--goal gpus"),
        ({"goal": "gpus", "hours": -1.0, "steps": 20}, "above 0"),
        ({"goal": "fame"}, "step or gpus"),
    ],
)
def test_odd_goals_are_refused(changes: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        asked(**changes)


def test_what_is_not_said_widens_the_band_and_the_first_narrows_it_most():
    told = asked(gpus=8)
    assert told.unknowns == () and told.ranked[0].band[1] / told.ranked[0].seconds < 1.4, "at most 35 % where all is known"
    own = log(told.ranked[0].band[1] / told.ranked[0].seconds)
    open_ = answered({"model": "qwen2.5-1.5b", "gpus": 8, "prompts": 96, "group_size": 8})
    first = open_.ranked[0]
    width = log(first.band[1] / first.seconds)
    assert width == pytest.approx(sqrt(own**2 + sum((STANDARD_90 * one.spread) ** 2 for one in open_.unknowns)))
    bands = [band_where_said(first, one) for one in open_.unknowns]
    assert open_.unknowns[0].field == "response_length"
    assert bands[0][1] == min(high for _, high in bands) < first.band[1]
    tools = asked(gpus=8, turns=20, tool_tokens=10)
    assert [one.field for one in tools.unknowns] == ["tool_time"]


def test_one_unknown_said_leaves_the_others():
    one = asked(gpus=8).ranked[0]
    found = [Unknown(field="a", spread=0.3), Unknown(field="b", spread=0.1)]
    low, high = band_where_said(widened(one, found), found[0])
    assert (low, high) == pytest.approx(widened(one, found[1:]).band)
    assert widened(one, []).band == pytest.approx(one.band)
    assert widened(one, found).band[1] / one.seconds == pytest.approx(
        exp(sqrt(log(one.band[1] / one.seconds) ** 2 + (1.645 * 0.3) ** 2 + (1.645 * 0.1) ** 2))
    )


def test_rounds_of_dynamic_sampling_are_in_the_band():
    """The eleven published steps of dynamic sampling were 1.1 to 2.1 times as long as one round says."""
    plain, rounds = (asked(gpus=8, algorithm=name).ranked[0] for name in ("grpo", "dapo"))
    own = log(plain.band[1] / plain.seconds)
    assert log(rounds.band[1] / rounds.seconds) == pytest.approx(sqrt(own**2 + (STANDARD_90 * 0.55) ** 2))
