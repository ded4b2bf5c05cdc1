"""`autoconfig scaling`: counts, failures, points, the command line."""

import json
import math
import random
import re
from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError, chance_text
from autoconfig.specs.json_record import to_json
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tables import tabled

import autoconfig as api
from autoconfig.planning.schemas import schema
from autoconfig.render.sizing.scaling import scaling_json
from autoconfig.sizing.counts import parse_counts
from autoconfig.sizing.goodput import Reliability, checkpoint_bytes, goodput_of, waiting_seconds
from autoconfig.sizing.sizing import ScalingRequest, scale, tokens_per_second
from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request, understand
from autoconfig.training.space import enumerate_space

BASE = Request(model="1.7b", gpu="a100-80gb", tokens=300e9, price=2.0)


@tabled
def test_counts(text, counts):
    assert [*parse_counts(text)] == counts


def test_thousands_with_a_comma_are_one_count():
    assert parse_counts("1,000") == (1000,) and parse_counts("1,024") == (1024,) and parse_counts("256,512") == (256, 512)


UNREADABLE = ("", "a", "8:", "8:4", "0", "8:16:0", "1:2:3:4", "-8", "8 16", "1:1000000:1", "9" * 30, "8,,16", "٨", "64,024:128")


@pytest.mark.parametrize("text", UNREADABLE)
def test_counts_that_cannot_be_read(text):
    with pytest.raises(InputError, match="GPU"):
        parse_counts(text)
    with pytest.raises(InputError, match="write 2000 or 2048, whichever it is"):
        parse_counts("512,2k")


def _setting(gpus=1024):
    return understand(Request(model="175b", gpus=gpus, gpu="h100")).scenario


def test_a_checkpoint_holds_weights_and_optimizer_state():
    """bf16: 2 + 12 bytes a parameter (Narayanan et al. 2021, section 5.10: 13.8 TB for 1T parameters)."""
    trillion = understand(Request(model="1t", gpus=3072, gpu="a100-80gb")).scenario
    assert checkpoint_bytes(trillion) == pytest.approx(13.8e12, rel=0.03)


def test_a_checkpoint_of_lora_holds_the_adapters_alone():
    """Rank 8 on all four of Llama-3-8B: 8 x (4096 + 6144 + 2 x 4096 + 4096 + 28672 + 14336 + 4096) a layer, 14 bytes each."""
    adapters = understand(Request(model="llama3-8b", gpus=8, numerics={"peft": "lora", "lora_rank": 8})).scenario
    assert checkpoint_bytes(adapters) == 14 * 32 * 8 * (4096 + 6144 + 2 * 4096 + 4096 + 28672 + 14336 + 4096)


@given(st.floats(1, 1e6), st.floats(1e-3, 1e3))
def test_the_interval_loses_least(mtbf_hours, rate):
    """Moving Young's interval either way loses more."""
    found = goodput_of(_setting(), Reliability(mtbf_hours_per_gpu=mtbf_hours, checkpoint_gb_per_s_per_node=rate))

    def loss(interval):
        return found.checkpoint_seconds / interval + interval / (2 * found.job_mtbf_seconds)

    best = loss(found.checkpoint_interval_seconds)
    assert best <= loss(found.checkpoint_interval_seconds * 1.1) and best <= loss(found.checkpoint_interval_seconds * 0.9)
    assert 0.0 <= found.share < 1.0


def test_goodput_of_the_llama_3_run():
    """The paper (section 3.3.4) says more than 90 % effective training time on 16,384 GPUs."""
    run = understand(Request(model="llama3.1-405b", gpus=16384, gpu="h100")).scenario
    assert goodput_of(run, Reliability()).share == pytest.approx(0.927, abs=0.001)


def test_spares():
    """No spare: every failure waits a repair; many: none does; each one more waits less."""
    day = 24 * 3600.0
    assert waiting_seconds(Reliability(spares=None), 8, 3600.0) == 0.0
    assert waiting_seconds(Reliability(spares=0), 8, 3600.0) == day
    waits = [waiting_seconds(Reliability(spares=8 * n), 8, 6 * 3600.0) for n in range(20)]
    assert waits == sorted(waits, reverse=True) and waits[-1] < 1.0
    assert waits[1] == pytest.approx((1 - math.exp(-4.0)) * day / 2)


def test_a_point_is_the_first_plan_of_a_search():
    answer = scale(ScalingRequest(base=BASE, gpu_counts=(8, 16, 32)))
    for point in answer.points:
        first = search(replace(BASE, gpus=point.num_gpus)).plans[0].report
        assert point.report.plan == first.plan and point.report.step_seconds == first.step_seconds
        assert point.days == pytest.approx(first.days_to_train / point.goodput.share)
        assert point.cost == pytest.approx(point.days * 24 * 2.0 * point.num_gpus)
        assert point.speedup == pytest.approx(tokens_per_second(point) / tokens_per_second(answer.points[0]))
        assert point.efficiency == pytest.approx(point.speedup / (point.num_gpus / 8))
    body = to_json(scaling_json(answer))
    Draft202012Validator(schema("scaling")).validate(json.loads(json.dumps(body, allow_nan=False)))


def test_kept_keys_stay():
    answer = scale(ScalingRequest(base=BASE, gpu_counts=(8, 16, 32, 64), keep=("pp", "tp=2")))
    pps = {point.report.plan.pp for point in answer.points}
    assert len(pps) == 1 and all(point.report.plan.tp == 2 for point in answer.points)
    assert answer.kept == {"a100-80gb": {"tp": 2, "pp": pps.pop()}}


def test_spares_train_on_what_is_left_and_are_paid_for():
    none_left, point = scale(ScalingRequest(base=BASE, gpu_counts=(8, 32), reliability=Reliability(spares=8))).points
    assert none_left.why_not and none_left.report is None
    assert point.training_gpus == point.report.plan.world_size == 24
    assert point.cost == pytest.approx(point.days * 24 * 2.0 * 32)


def test_the_fewest_gpus_for_a_deadline_lie_between_the_counts():
    found = scale(ScalingRequest(base=BASE, gpu_counts=(8, 256), days=20.0)).fewest
    assert 8 < found.num_gpus < 256 and found.days <= 20.0
    fewer = scale(ScalingRequest(base=BASE, gpu_counts=(found.num_gpus - 8,), days=20.0))
    assert fewer.fewest is None and fewer.points[0].days > 20.0


@pytest.mark.parametrize("change", [{"mtbf_hours_per_gpu": 0.0}, {"mtbf_hours_per_gpu": math.nan}, {"spares": -1},
                                    {"checkpoint_gb_per_s_per_node": math.inf}, {"restart_seconds": -1.0}])  # fmt: skip
def test_reliability_that_cannot_be(change):
    with pytest.raises(InputError, match=r"spares|give a number"):
        Reliability(**change)


@pytest.mark.long
def test_command_line(autoconfig, tmp_path):
    arguments = ["scaling", "--model", "1.7b", "--gpu", "a100-40gb,h100", "--gpus", "8:32", "--tokens", "300B"]
    body = autoconfig.json(*arguments)
    Draft202012Validator(schema("scaling")).validate(body)
    assert [(p["gpu"], p["num_gpus"]) for p in body["points"]] == [
        (gpu, count) for gpu in ("a100-40gb", "h100-sxm-80gb") for count in (8, 16, 32)
    ]
    devices = [point["best"]["memory"]["device_gib"] for point in body["points"]]
    assert max(devices[:3]) < 40 < 79 < min(devices[3:])
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        target = tmp_path / f"plot{suffix}"
        shown = autoconfig.run(*arguments, "--plot", str(target), "--verbose")
        assert shown.exit_code == 0
        assert target.read_bytes().startswith(start)
    chance = chance_text(body["points"][0]["best"]["confidence"]["fit_probability"])
    assert re.search(rf"a100-40gb +8 .* {chance} +tp=", shown.stdout)
    assert autoconfig.run("scaling", "--model", "1t", "--gpus", "8", "--gpu", "l40s").exit_code == 3
    for bad in (["x"], ["8", "--keep", "dp"], ["8", "--plot", "x.jpg"], ["8", "--mtbf", "0"]):
        result = autoconfig.run("scaling", "--model", "1.7b", "--gpus", *bad)
        assert result.exit_code == 2 and "error" in result.stderr.lower()


def test_each_gpu_type_has_its_price_and_a_count_of_its_own():
    """1.4 T tokens of llama3-70b in fp8: at 2.2 and 4.5 an hour both types cost the same within a tenth."""
    asked = {"model": "llama3-70b", "gpus": "256", "gpu": "h100,b200", "precision": "fp8", "tokens": "1.4T", "days": 45}
    found = api.scaling(**asked, price={"h100": 2.2, "b200": "$4.5/h"})
    h100, b200 = found.record.points
    assert h100.cost == pytest.approx(h100.days * 24 * 256 * 2.2) and b200.cost == pytest.approx(b200.days * 24 * 256 * 4.5)
    assert h100.cost / b200.cost == pytest.approx(1, abs=0.1) and b200.energy_kwh == pytest.approx(b200.days * 24 * 256)
    least = {one.gpu: one for one in found.record.fewest_by_gpu}
    assert least["b200-180gb"].num_gpus < least["h100-sxm-80gb"].num_gpus <= 256
    assert found.record.fewest == min(least.values(), key=lambda one: one.cost)
    assert "of each type" in repr(found) and all(f"{one.num_gpus} x {gpu}" in repr(found) for gpu, one in least.items())
    alike = api.scaling(**asked, price="4.5").record.points[0]
    assert alike.cost == pytest.approx(h100.cost * 4.5 / 2.2)
    for wrong, said in (("h100", "above 0"), ("h100=2,b200", "b200 has no price"), (-1, "above 0"), ("x9=1", "unknown GPU")):
        with pytest.raises(InputError, match=said):
            api.scaling(**asked, price=wrong)


def test_a_comparison_has_days_cost_and_ratio():
    asked = {"model": "llama3-8b", "gpus": 8, "tokens": "10B", "price": "h100=2.2,a100-80gb=1.1"}
    found = api.search(**asked, gpu=["a100-80gb", "h100"])
    a100, h100 = (one.best for one in found.searches)
    assert a100.cost == pytest.approx(a100.days_to_train * 24 * 8 * 1.1) and h100.cost == pytest.approx(
        h100.days_to_train * 24 * 8 * 2.2
    )
    shown = repr(found)
    assert (
        f"{h100.tokens_per_second_per_gpu / a100.tokens_per_second_per_gpu:.2f}x" in shown
        and f"{h100.cost / a100.cost:.2f}x" in shown
    )


MODELS = ("1.7b", "llama3-8b", "gpt3-13b", "qwen2.5-7b", "qwen3-30b-a3b", "llama3-70b")


def random_question(seed):
    """A question whose deadline lies among its counts."""
    draw = random.Random(seed)
    batch = draw.choice((None, 256, 480, 512, 720, 1000))
    base = Request(model=draw.choice(MODELS), gpu=draw.choice(("h100", "a100-80gb", "h200")), tokens=100e9,
                   global_batch_size=batch, seq_length=draw.choice((2048, 4096)))  # fmt: skip
    most = draw.choice((64, 96, 120, 160))
    counts = draw.choice(((most,), (8, most), (16, 32, 64, most)))
    slowest = next((p.days for p in scale(ScalingRequest(base=base, gpu_counts=(8, 16, 32, 64))).points if p.days), 10.0)
    return ScalingRequest(base=base, gpu_counts=counts, days=slowest * draw.uniform(0.1, 1.2))


def exhaustive(request):
    """The fewest GPUs of all whole nodes and of all parts of one within what was asked, each asked by itself."""
    most = max(request.gpu_counts)
    least = min(request.gpu_counts) if len(request.gpu_counts) > 1 else 1
    counts = [count for count in (*range(1, 8), *range(8, most + 1, 8)) if count >= least]
    every = ScalingRequest(base=request.base, gpu_counts=tuple(counts))
    return next((p.num_gpus for p in scale(every).points if p.days is not None and p.days <= request.days), None)


@pytest.mark.long
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.soak] if seed >= 1 else []) for seed in range(33)])
def test_the_fewest_gpus_are_those_of_an_exhaustive_search(seed):
    request = random_question(seed)
    found = scale(request)
    assert found.every_count
    assert (found.fewest and found.fewest.num_gpus) == exhaustive(request)


def test_a_count_without_a_legal_plan_is_no_miss():
    """1,000 GPUs have no legal plan with batch 512, and 64 are too few: the answer lies between."""
    base = Request(model="llama3-8b", gpu="h100", tokens=300e9, global_batch_size=512)
    found = scale(ScalingRequest(base=base, gpu_counts=(8, 1000), days=6.0))
    assert found.points[-1].report is None and "factor 125" in found.points[-1].why_not
    assert 8 < found.fewest.num_gpus < 1000 and found.fewest.days <= 6.0


WHOLE_NODES = [pytest.param(range(8, 1025, 8), marks=pytest.mark.soak), (24, 104, 360, 488, 680, 1016)]


@pytest.mark.parametrize("counts", WHOLE_NODES, ids=["all", "some"])
@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b", "175b", "qwen3-30b-a3b", "deepseek-v3"])
def test_a_batch_that_is_not_given_suits_the_count(model, counts):
    """With the models' own batches 93 of 128 counts had no legal plan for llama3-8b, 77 for llama3-70b."""
    for count in counts:
        question = understand(Request(model=model, gpu="h100", gpus=count))
        assert enumerate_space(question.scenario, question.constraints).legal, count


def test_the_batch_that_suits_is_near_the_usual_one_and_said():
    batches = {}
    for count in (64, 96, 104, 960, 1000, 1016):
        question = understand(Request(model="llama3-8b", gpu="h100", gpus=count))
        batches[count] = question.scenario.workload.global_batch_size
        said = next(remark.why for remark in question.assumed if remark.field == "global_batch_size")
        assert ("suits" in said) == (batches[count] != 512)
    assert batches == {64: 512, 96: 480, 104: 520, 960: 480, 1000: 500, 1016: 508}  # 5 x 96, 5 x 104, 480, 500, 4 x 127
    assert understand(Request(model="llama3-8b", gpu="h100", gpus_at_most=104)).scenario.workload.global_batch_size == 512
    found = scale(ScalingRequest(base=Request(model="llama3-8b", gpu="h100"), gpu_counts=(64, 104)))
    assert [point.why_not for point in found.points] == [None, None]
    assert "520 on 104 GPUs" in repr(api.scaling(model="llama3-8b", gpu="h100", gpus="64,104"))


def test_an_answer_that_left_counts_out_says_so(autoconfig, monkeypatch):
    monkeypatch.setattr("autoconfig.sizing.sizing.MAX_TRIED", 0)
    run = autoconfig.run("scaling", "--model", "1.7b", "--gpus", "256", "--tokens", "1t", "--days", "80")
    assert run.exit_code == 0 and "of the counts tried" in " ".join(run.stdout.split())
    monkeypatch.setattr("autoconfig.sizing.sizing.MAX_TRIED", 128)
    run = autoconfig.run("scaling", "--model", "1.7b", "--gpus", "256", "--tokens", "1t", "--days", "80")
    assert run.exit_code == 0 and "of the counts tried" not in " ".join(run.stdout.split())


def test_a_better_batch_is_named_with_what_it_gains(autoconfig):
    asked = Request(model="llama3-8b", gpus=24, gpu="h100", global_batch_size=512)
    other = search(asked).other_batch
    assert other.global_batch_size % 3 == 0 and abs(other.global_batch_size - 512) <= 128
    again = search(Request(model="llama3-8b", gpus=24, gpu="h100", global_batch_size=other.global_batch_size))
    rate = float(other.global_batch_size / again.ranking.step_seconds[0])
    assert other.tokens_per_second_per_gpu == pytest.approx(rate * 8192 / 24)
    assert other.gain == pytest.approx(rate / (512 / float(search(asked).ranking.step_seconds[0])) - 1.0) and other.gain >= 0.03
    run = autoconfig.run("search", "--model", "llama3-8b", "--gpus", "24", "--global-batch-size", "512")
    assert f"batch {other.global_batch_size:,}: " in run.stdout and f"{other.gain:.0%} more" in " ".join(run.stdout.split())
    assert search(Request(model="llama3-8b", gpus=32, gpu="h100")).other_batch is None


def test_the_cause_of_no_plan_is_the_factor_of_the_gpus():
    said = str(search(Request(model="llama3-8b", gpus=1000, global_batch_size=512)).nothing_legal)
    assert "1,000 GPUs have the factor 125, and global batch 512 (dp), 32 heads" in said
    assert "NV013" not in said and "--global-batch-size 500" in said
