"""The better plan of `check` follows the rule of a search's first: the asked chance to fit, else the likeliest."""

import json

import numpy as np
import pytest
from autoconfig.specs.errors import InputError

import autoconfig
from autoconfig.megatron.check import CLOSE, CheckAnswer, better_plan, check, overlapped, target
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.training.price import report_plan
from autoconfig.training.rank import rank

LLAMA_70B = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 --swiglu --bf16 "
    "--untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--sequence-parallel --use-distributed-optimizer --use-flash-attn --micro-batch-size 1 --global-batch-size 128 "
)
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
SLOW = f"--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 {FULL}"


def checked(gpus: int, plan: str, chance: float = 0.9) -> CheckAnswer:
    return check(read_check(LLAMA_70B + plan, CheckRequest(gpu="h100", gpus=gpus, fit_chance=chance)))


@pytest.fixture(scope="module")
def ranking():
    """Every plan of 32 GPUs that fits, likely or not."""
    return rank(overlapped(checked(32, SLOW).source))


@pytest.mark.parametrize("chance", [0.0, 0.9, 0.99])
def test_the_better_plan_is_the_fastest_with_the_asked_chance(ranking, chance):
    fastest = float(np.min(ranking.step_seconds[ranking.fit_chances() >= chance]))
    found = checked(32, SLOW, chance)
    assert found.better is not None and found.better.confidence.fit_probability >= chance and found.fit_chance_met
    assert fastest <= found.better.step_seconds <= fastest * (1 + CLOSE)
    assert target(found)[0] == found.better.plan and not found.remedies


def test_a_plan_below_the_asked_chance_gives_way_to_a_slower_one_that_has_it(ranking):
    """The fastest that fits at all is no plan that a search with this chance would rank."""
    plan = ranking.plan(0)
    own = report_plan(ranking.scenario, plan)
    assert own.fits and own.confidence.fit_probability < 0.9
    assert better_plan(ranking, plan, own, 0.0) is None and better_plan(ranking, plan, own, 0.5) is None
    better = better_plan(ranking, plan, own, 0.9)
    assert better is not None
    found = report_plan(ranking.scenario, better)
    assert found.confidence.fit_probability >= 0.9 and found.step_seconds > own.step_seconds


def test_where_none_has_the_chance_the_likeliest_is_named_and_what_would_help(autoconfig, tmp_path):
    file = tmp_path / "arguments.txt"
    file.write_text(LLAMA_70B + f"--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 {FULL}")
    asked = ("check", str(file), "--gpu", "h100", "--gpus", "16")
    body = json.loads(autoconfig.run(*asked, "--json").stdout)
    likeliest = body["better"]["confidence"]["fit_probability"]
    assert body["fit_chance"] == 0.9 and not body["fit_chance_met"] and likeliest < 0.9 and body["remedies"]
    shown = " ".join(autoconfig.run(*asked).stdout.split())
    assert "none has --fit-chance 90%" in shown and "What would reach it: " in shown
    ranked = rank(overlapped(checked(16, f"--tensor-model-parallel-size 8 {FULL}").source))
    assert likeliest == pytest.approx(float(np.max(ranked.fit_chances())), abs=0.01)


def test_the_chance_is_read_alike_everywhere(tmp_path):
    file = tmp_path / "arguments.txt"
    file.write_text(LLAMA_70B + SLOW)
    for said, chance in ((0.5, 0.5), ("50%", 0.5), ("0.99", 0.99)):
        assert autoconfig.check(file, gpu="h100", gpus=32, fit_chance=said).fit_chance == chance
    for wrong in (1, "95", "most", -0.1):
        with pytest.raises(InputError, match=r"fit_chance|--fit-chance"):
            autoconfig.check(file, gpu="h100", gpus=32, fit_chance=wrong)
