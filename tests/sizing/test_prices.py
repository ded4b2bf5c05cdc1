"""A price of each GPU type and the energy of GPUs at their limit, in every answer that has time or throughput."""

import json

import pytest
from autoconfig.specs.errors import InputError

import autoconfig as api

WATTS = {"h100-sxm-80gb": 700.0, "b200-180gb": 1000.0}
"""NVIDIA's data sheets: H100 SXM up to 700 W, B200 of an HGX 1,000 W."""
PRICES = {"h100": 2.2, "b200": "$4.50/h"}


@pytest.mark.parametrize(("gpu", "price"), [("h100", 2.2), ("b200", 4.5)])
def test_a_plan_costs_what_its_gpus_cost_for_the_time_that_tokens_take(gpu, price):
    asked = {"model": "llama3-70b", "gpus": 64, "gpu": gpu, "price": PRICES}
    first, second = api.search(**asked).best, api.search(**asked, tokens="2T").best
    rate = first.tokens_per_second_per_gpu
    assert first.cost is None and first.energy_kwh is None
    assert first.cost_per_billion_tokens == pytest.approx(1e9 / rate / 3600 * price)
    assert second.cost == pytest.approx(2000 * first.cost_per_billion_tokens)
    watts = WATTS["h100-sxm-80gb" if gpu == "h100" else "b200-180gb"]
    assert first.joules_per_token == pytest.approx(watts / rate)
    assert second.energy_kwh == pytest.approx(watts / 1000 * 64 * second.days_to_train * 24)
    explained = api.explain(first, binds=False, **asked)
    assert (explained.cost_per_billion_tokens, explained.joules_per_token) == (
        first.cost_per_billion_tokens, first.joules_per_token,
    )  # fmt: skip


def test_a_limit_of_power_is_what_the_energy_is_of():
    limited = api.search(**{"model": "llama3-8b", "gpus": 8, "gpu": "h100"}, power_limit=500.0).best
    assert limited.joules_per_token == pytest.approx(500.0 / limited.tokens_per_second_per_gpu)


def test_a_price_without_tokens_is_said(autoconfig):
    asked = ("search", "--model", "llama3-70b", "--gpus", "64", "--price", "2")
    run = autoconfig.run(*asked)
    cost = api.search(model="llama3-70b", gpus=64, price=2).best.cost_per_billion_tokens
    assert f"cost {cost:.0f} a billion tokens" in " ".join(run.stdout.split()) and "Energy" not in run.stdout
    assert "J a token" in autoconfig.run(*asked, "--verbose").stdout
    compared = " ".join(autoconfig.run(*asked, "--gpu", "h100", "--gpu", "b200", "--verbose").stdout.split())
    assert "cost/B cost ratio" in compared
    scaled = autoconfig.run("scaling", "--model", "llama3-8b", "--gpus", "64,128", "--price", "2")
    assert "cost/B" in scaled.stdout and "days" not in scaled.stdout.split("Checkpoint")[0]


def test_a_type_without_a_price_is_refused_alone_and_compared_without_cost():
    for ask in (api.search, api.deployments, api.rl):
        with pytest.raises(InputError, match=r"no price of b200-180gb: add b200-180gb=PRICE") as refused:
            ask(model="qwen2.5-7b", gpus=8, gpu="b200", price={"h100": 2.2})
        assert refused.value.field == "price"
    found = api.search(model="qwen2.5-7b", gpus=8, gpu=["h100", "b200"], price={"h100": 2.2})
    assert [one.best.cost_per_billion_tokens is None for one in found.searches] == [False, True]


def test_unlike_gpus_have_no_fewest_in_common_but_by_cost():
    asked = {"model": "llama3-8b", "gpu": "h100,b200", "gpus": "64:128", "tokens": "1T", "days": 20}
    plain, priced = api.scaling(**asked), api.scaling(**asked, price=PRICES)
    assert plain.fewest is None and len(plain.fewest_by_gpu) == 2
    assert "of each type" in repr(plain)
    assert priced.fewest.cost == min(point.cost for point in priced.fewest_by_gpu)
    assert api.scaling(**{**asked, "gpu": "h100"}).fewest.gpu == "h100-sxm-80gb"


@pytest.mark.parametrize(("gpu", "price"), [("h100", 2.2), ("b200", 4.5)])
def test_served_tokens(gpu, price):
    found = api.deployments(model="llama3-70b", gpus=8, gpu=gpu, price=PRICES, goal="cost", simulate=0)
    best = found.best
    rate = best.tokens_per_second_per_gpu
    assert best.cost_per_million_tokens == pytest.approx(1e6 / rate / 3600 * price)
    watts = WATTS["h100-sxm-80gb" if gpu == "h100" else "b200-180gb"]
    assert best.joules_per_token == pytest.approx(watts / rate)
    assert best.kwh_per_million_tokens == pytest.approx(watts / rate * 1e6 / 3.6e6)
    assert "cost/M" in repr(found)


def test_a_step_of_post_training(autoconfig):
    asked = {"model": "qwen2.5-7b", "gpus": 16, "prompts": 256, "response_length": 1000, "max_response_length": 4096}
    free, priced = api.rl(**asked), api.rl(**asked, price=PRICES)
    assert free.best.cost is None and "cost/step" not in repr(free) and "cost/step" in repr(priced)
    assert priced.best.cost == pytest.approx(priced.best.step_seconds / 3600 * 16 * 2.2)
    late = api.rl(**asked, price="$2.2", goal="gpus", hours=200, steps=100)
    assert late.deadline.cost == pytest.approx(late.best.step_seconds / 3600 * late.gpus * 2.2 * 100)
    words = ("--prompts", "256", "--response-length", "1000", "--max-response-length", "4096")
    run = autoconfig.run("rl", "--model", "qwen2.5-7b", "--gpus", "16", *words, "--price", "h100=2.2", "--json")
    assert json.loads(run.stdout)["placements"][0]["cost"] == pytest.approx(priced.best.cost)
