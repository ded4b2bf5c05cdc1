"""`autoconfig rl`: ranked placements, what is refused, what is said where nothing fits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences
from click.testing import CliRunner
from tables import tabled

import autoconfig
from autoconfig.cli.main import cli
from autoconfig.post_training import space
from autoconfig.post_training.answer import on_policy_first
from autoconfig.post_training.price import PricedPlacement
from autoconfig.post_training.rank import Prices, rank
from tests.post_training.rl_question import answered, understood

SEVEN = {
    "model": "qwen2.5-7b",
    "gpus": 8,
    "algorithm": "dapo",
    "prompts": 512,
    "group_size": 16,
    "minibatch": 512,
    "response_length": 1600,
    "max_response_length": 8192,
}


def asked(*words: str):
    return CliRunner().invoke(cli, ["rl", *words])


def ranked(**question):
    return answered(question).ranked


@pytest.fixture(scope="module")
def seven():
    """The answer to SEVEN, which no test changes."""
    return answered(SEVEN)


def test_engines_of_one_gpu_come_first_for_7b_on_8_h100():
    """Measured: rollout TP 1 takes 418 s a step, TP 4 746 s (verl_megatron_practice)."""
    best = ranked(**SEVEN, staleness=0)
    assert best[0].placement.engine.tp == 1 and best[0].placement.colocated
    assert [one.seconds for one in best] == sorted(one.seconds for one in best)
    assert all(one.memory.fits and one.band[0] < one.seconds < one.band[1] for one in best)


def test_staleness_allows_placements_ahead_of_the_weights():
    sync = ranked(**SEVEN, staleness=0, top=100)
    ahead = ranked(**SEVEN, staleness=1, top=100)
    assert not any(one.placement.staleness for one in sync)
    assert any(one.placement.staleness == 1 for one in ahead)
    assert ahead[0].seconds <= sync[0].seconds


def test_critics_may_have_nodes_of_their_own():
    found = autoconfig.rl(model="llama2-7b", gpus=16, algorithm="ppo", framework="nemo-aligner", top=100)
    assert set(found.placements.critic_gpus) == {0, 8} and found.best.step_seconds == found.placements.step_seconds[0]


def test_text_and_json_say_the_same_step():
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SEVEN.items()]
    text, data = asked(*words), asked(*words, "--json")
    assert text.exit_code == data.exit_code == 0, text.output + data.output
    first = json.loads(data.output)["placements"][0]
    assert f"{first['step_seconds']:,.1f} s" in text.output
    assert sum(first["phases"].values()) - first["hidden_seconds"] == pytest.approx(first["step_seconds"], abs=0.01)


def test_nothing_fits_is_exit_3_with_the_nearest_and_a_remedy():
    found = asked("--model", "llama3-70b", "--gpus", "4", "--json")
    assert found.exit_code == 3, found.output
    data = json.loads(found.output)
    assert not data["placements"] and data["nearest"] and data["remedy"] == "8 GPUs fit (--gpus 8)"
    shown = asked("--model", "llama3-70b", "--gpus", "4")
    assert shown.exit_code == 3 and "It does not fit" in shown.output and data["remedy"] in shown.output
    assert asked("--model", "llama3-70b", "--gpus", "8").exit_code == 0


@tabled
def test_bad_questions_are_refused_with_what_is_allowed(wrong, said):
    with pytest.raises(InputError, match=said):
        autoconfig.rl(**{**SEVEN, **wrong})


def test_openrlhf_compares_several_responses_of_a_prompt():
    """Its own default of one response is that of PPO."""
    asked = {"model": "llama3-8b", "gpus": 8, "framework": "openrlhf"}
    groups = {name: understood({**asked, "algorithm": name}).job.group for name in ("grpo", "ppo", "reinforce++")}
    assert groups == {"grpo": 8, "ppo": 1, "reinforce++": 1}


def test_a_ninth_node_may_generate_beside_eight_that_train():
    """One more node must not look worse because 9 nodes do not halve."""
    found = answered({"model": "llama3-8b", "gpus": 72, "prompts": 576, "top": 1000, "staleness": 1})
    assert {one.placement.train.world_size for one in found.ranked if not one.placement.colocated} >= {64, 32}


@pytest.mark.parametrize("name", ["nemotron-3-nano", "qwen3-next-80b-a3b"])
def test_hybrids_are_planned(name):
    found = answered({"model": name, "gpus": 64})
    assert found.ranked and any("recurrent layers" in said for said in sentences(found.assumed))
    one = found.ranked[0]
    assert one.phases.generation > 0 and one.phases.training > 0 and one.memory.fits


def test_a_packed_micro_batch_holds_the_longest_sample():
    """verl asserts that ppo_max_token_len_per_gpu times cp holds a prompt and a response at their caps."""
    for one in ranked(**SEVEN, tokens_per_gpu=2048, top=100):
        assert one.placement.tokens_per_gpu * one.placement.train.cp >= 512 + 8192


def test_placements_with_the_asked_chance_to_fit_come_first():
    """A larger share for the engine generates faster and may not fit: of equal placements the likely one stands for them."""
    asked = {"model": "qwen2.5-7b", "gpus": 8, "framework": "trl", "top": 50}
    likely, any_chance = answered(asked), answered({**asked, "fit_chance": 0})
    assert likely.fit_chance == 0.9 and likely.fit_chance_met and not likely.remedy
    assert all(one.memory.chance >= 0.9 for one in likely.ranked)
    assert any_chance.ranked[0].memory.chance < 0.9 and any_chance.ranked[0].seconds <= likely.ranked[0].seconds
    assert likely.riskier is None or likely.riskier.seconds < likely.ranked[0].seconds
    assert answered({**asked, "fit_chance": "90%"}).ranked == likely.ranked
    for wrong in (1.0, "most", -0.1, 95):
        with pytest.raises(InputError, match="--fit-chance"):
            answered({**asked, "fit_chance": wrong})


def test_where_no_placement_is_likely_to_fit_the_answer_says_what_to_change():
    asked = {"model": "qwen2.5-7b", "gpus": 3, "framework": "trl", "max_response_length": 2048}
    found = answered(asked)
    assert found.ranked and not found.fit_chance_met and found.riskier is None
    assert found.remedy == "6 GPUs fit (--gpus 6)" and answered({**asked, "gpus": 6}).fit_chance_met
    shown = CliRunner().invoke(cli, ["rl", *(f"--{key.replace('_', '-')}={value}" for key, value in asked.items())])
    assert shown.exit_code == 0 and "No placement has a chance to fit of 90%" in shown.output
    assert found.remedy in shown.output


def test_deepseek_v3_fits_where_it_was_published_to_run():
    """verl's script for 12 nodes of 8 H20: pp 12, ep 8, optimizer on the host; no plan fits without the latter."""
    question = {"model": "deepseek-v3", "gpus": 96, "gpu": "h20", "prompts": 512, "group_size": 8, "staleness": 0}
    best = ranked(**question, response_length=2000, max_response_length=9632)[0].placement
    assert (best.train.offload, best.train.pp, best.train.ep) == (1.0, 12, 8)


def test_a_likelier_plan_follows_where_the_reference_takes_the_chance_of_the_quickest(monkeypatch):
    """Its own memory has 90 %, with the reference beside it 69 %: a plan of twice the step came first."""
    asked = {"model": "llama3-70b", "gpu": "h200", "gpus": 64, "framework": "nemo-rl", "prompts": 128, "group_size": 16}
    asked |= {"response_length": 2000, "max_response_length": 16384, "staleness": 1}
    question = understood(asked)
    quick = answered(asked).ranked[0]
    monkeypatch.setattr(space, "PLANS_KEPT", 8)
    best = next(one for one in rank(Prices.of(question), question.gpus) if one.memory.fits and one.memory.chance >= 0.9)
    assert best.seconds <= quick.seconds <= 1.06 * best.seconds


@pytest.mark.parametrize(
    ("gpus", "prompts", "minibatch", "said"),
    [
        (6, 32, 256, "256 samples of a minibatch do not divide over 6 GPUs; 4 GPUs fit (--gpus 4)"),
        (6, 48, 256, "256 samples of a minibatch do not divide over 6 GPUs; a minibatch of 192 fits (--minibatch 192)"),
    ],
)
def test_a_minibatch_that_no_placement_divides_is_said_with_what_fits(gpus, prompts, minibatch, said):
    words = ("--model=llama3.1-8b", "--gpu=h200", "--algorithm=dpo", "--framework=nemo-rl", "--group-size=32")
    shown = asked(*words, f"--gpus={gpus}", f"--prompts={prompts}", f"--minibatch={minibatch}")
    assert shown.exit_code == 3 and f"There is no placement; {said}" in " ".join(shown.output.split()), shown.output
    assert "with that change:" in shown.output and "It does not fit" not in shown.output
    found = json.loads(asked(*words, f"--gpus={gpus}", f"--prompts={prompts}", f"--minibatch={minibatch}", "--json").stdout)
    assert found["considered"] == 0 and found["nearest"]["fits"]
    assert found["nearest"]["train_gpus"] == (4 if prompts == 32 else 6)


def test_what_a_host_holds_is_an_option(seven):
    """A 7B that waits takes about 400 GiB of a host: with less it does not wait; on 2 TiB, what is assumed, nothing changes."""
    free, (same, small) = seven, (answered({**SEVEN, "host_memory": size}) for size in ("2TiB", "256GiB"))
    assert free.ranked == same.ranked and free.ranked[0].memory.host_bytes > 256 * 2**30
    assert small.ranked and all(one.memory.host_bytes <= 256 * 2**30 for one in small.ranked)
    assert small.ranked[0].seconds > free.ranked[0].seconds
    with pytest.raises(InputError, match="--host-memory: size 'much'"):
        answered({**SEVEN, "host_memory": "much"})
    with pytest.raises(InputError, match="--host-memory"):
        answered({**SEVEN, "host_memory": float("nan")})


def test_more_host_memory_is_a_remedy_where_hosts_are_what_lacks():
    short = answered({"model": "qwen3-235b-a22b", "gpus": 64, "host_memory": "256GiB"})
    assert not short.ranked and short.remedy == (
        "128 GPUs fit (--gpus 128), or 1TiB of host memory a node (--host-memory 1TiB)"
    )


def test_placements_take_whole_nodes():
    """A framework's files say nodes and GPUs of a node: 31 GPUs would be one node of 31."""
    shown = asked("--model=qwen3-8b", "--gpus=31")
    assert shown.exit_code == 2 and "--gpus 31: NVIDIA H100 SXM5 80 GB come in nodes of 8; use 24 or 32" in shown.output


def test_a_first_placement_off_policy_is_said_with_the_step_on_policy():
    question = ("--model=qwen3-8b", "--gpus=32", "--top=1", "--json")
    first, same = (json.loads(asked(*question, *more).stdout) for more in ((), ("--staleness=0",)))
    seconds = same["placements"][0]["step_seconds"]
    assert f"weights up to 1 step old; on-policy a step takes {seconds:,.1f} s (--staleness 0)" in first["assumed"][0]
    assert first["placements"][0]["step_seconds"] < seconds and "off-policy" not in " ".join(same["assumed"])


def test_within_a_tie_the_first_is_on_policy():
    """Samples of older weights are no better for less than the tie (6 %), and are for more."""
    own = answered({"model": "qwen3-8b", "gpus": 8}).ranked[0]

    def ahead(saved: float) -> PricedPlacement:
        placed = replace(own.placement, colocated=False, staleness=1)
        return replace(own, placement=placed, phases=replace(own.phases, beside=saved * own.seconds))

    for saved, first in ((0.006, own), (0.05, own), (0.1, ahead(0.1))):
        assert on_policy_first([ahead(saved), own])[0] == first
    assert on_policy_first([]) == [] and on_policy_first([own, ahead(0.0)]) == [own, ahead(0.0)]
    found = answered({"model": "qwen3-8b", "gpus": 32, "staleness": 1, "top": 1000})
    steps = [one.placement.staleness for one in found.ranked[: found.ties]]
    assert steps == sorted(steps)
