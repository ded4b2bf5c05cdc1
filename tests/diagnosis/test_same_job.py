"""Files of two jobs are refused; what is known of a step without a measurement is no verdict: first steps, level-2 timers."""

from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of

DUMP = (Path(__file__).parents[1] / "evidence" / "megatron_core_0.19_llama3_70b.txt").read_text(encoding="utf-8")
"""tp=4,pp=4,vpp=5,mbs=1,sp=1 of Llama 3 70B on 64 GPUs, batch 512, sequences of 8,192."""
JOB = {"model": "llama3-70b", "gpus": "64", "gpu": "h100", "seq_length": "8192", "global_batch_size": "512"}
PLAN = "tp=4,pp=4,vpp=5,mbs=1,sp=1"


def diagnosed(files, plan=None, **given):
    check = CheckRequest(gpu=given.get("gpu"))
    return diagnose_texts(files, plan, given, lambda: request_of(given), check)


def megatron(seconds, batch=512, steps=30, first=1):
    return "".join(
        f" iteration {step:8d}/    5000 | consumed samples: {step * batch:12d} | "
        f"elapsed time per iteration (ms): {1e3 * seconds:.1f} | global batch size: {batch:5d} |\n"
        for step in range(first, first + steps)
    )


@pytest.mark.parametrize(
    ("plan", "changed", "said"),
    [
        ("tp=8,pp=4,mbs=1,sp=1", {}, "tensor_model_parallel_size 4"),
        ("tp=4,pp=8,mbs=1,sp=1", {}, "pipeline_model_parallel_size 4"),
        ("tp=4,pp=4,vpp=5,mbs=2,sp=1", {}, "micro_batch_size 1"),
        (PLAN, {"model": "llama2-70b", "gpus": "64"}, ""),
        ("tp=4,pp=4,mbs=1,sp=1", {"model": "llama3-8b"}, "hidden_size 8,192"),
        (PLAN, {"seq_length": "4096"}, "sequences of 8,192"),
        (PLAN, {"global_batch_size": "256"}, "global batch of 512"),
        (PLAN, {"gpus": "128"}, "world size of 64"),
    ],
)
def test_a_log_of_another_job_is_refused(plan, changed, said):
    files = {"run.log": DUMP + megatron(57.0)}
    if not said:  # of the same sizes, whatever its name is
        assert diagnosed(files, plan, **{**JOB, **changed}).verdict
        return
    with pytest.raises(InputError, match=said):
        diagnosed(files, plan, **{**JOB, **changed})
    assert diagnosed(files, PLAN, **JOB).measured.step_seconds == 57.0


def test_counts_say_the_batch_where_no_line_does():
    old = megatron(57.0, batch=256).replace(" global batch size:   256 |", "")
    with pytest.raises(InputError, match="global batch of 256"):
        diagnosed({"run.log": old}, PLAN, **JOB)
    small = {"model": "llama3-8b", "gpus": "8", "gpu": "h100", "seq_length": "4096", "global_batch_size": "64"}
    tokens = 64 * 4096
    line = "[0]: iteration: {0} / 100 | consumed_tokens: {1:.0f}K | time_per_iteration_ms: 9.1K | tokens_per_sec: 40K |\n"
    text = "".join(line.format(step, step * tokens / 1e3) for step in range(1, 20))
    assert diagnosed({"run.log": text}, "tp=2,mbs=1,sp=1", **small).measured is not None
    with pytest.raises(InputError, match="tokens a step"):
        diagnosed({"run.log": text}, "tp=2,mbs=1,sp=1", **{**small, "seq_length": "8192"})


def test_a_rank_that_the_plan_has_not_is_of_another_job():
    ranks = "times across ranks (ms):\n  forward-compute:\n" + "".join(f"     rank {n:2d}: 100.00\n" for n in range(96))
    with pytest.raises(InputError, match="names rank 95"):
        diagnosed({"run.log": megatron(57.0) + ranks}, PLAN, **JOB)


def test_logs_of_other_steps_are_not_compared():
    with pytest.raises(InputError, match="cannot be compared"):
        diagnosed({"good.log": megatron(2.0, batch=128), "bad.log": megatron(4.0, batch=256)})
    long = DUMP.replace("seq_length ...................................... 8192", "seq_length " + "." * 38 + " 4096")
    with pytest.raises(InputError, match="sequences of"):
        diagnosed({"good.log": long + megatron(14.0), "bad.log": DUMP + megatron(57.0)}, gpu="h100")
    found = diagnosed({"good.log": megatron(2.0, batch=128), "bad.log": megatron(4.0, batch=128)})
    assert (found.verdict, found.case.ratio) == ("slow", pytest.approx(2.0))


def test_a_gpu_that_nothing_says_is_said_to_be_taken():
    said = "--gpu: nothing says the GPU, and h100-sxm-80gb was taken"
    found = diagnosed({"run.log": DUMP + megatron(57.0)})
    assert found.missing[0].evidence == said and "--gpu" in found.why_not_calibrate
    found = diagnosed({"run.log": DUMP + megatron(57.0)}, gpu="h100")
    assert all(one.evidence != said for one in found.missing) and not found.why_not_calibrate


@pytest.mark.parametrize(("first", "steps"), [(1, 1), (1, 2), (2, 1)])
def test_the_first_steps_alone_are_no_measurement(first, steps):
    found = diagnosed({"run.log": megatron(190.0, first=first, steps=steps)}, PLAN, **JOB)
    assert (found.verdict, [one.rule for one in found.causes]) == ("not_enough", ["R18"])
    assert diagnosed({"run.log": megatron(57.0, first=first, steps=steps)}, PLAN, **JOB).verdict == "healthy"
    later = diagnosed({"run.log": megatron(190.0, first=40, steps=steps)}, PLAN, **JOB)
    assert later.verdict == "slow" and "R18" not in [one.rule for one in later.causes]


def test_the_mean_of_the_first_interval_is_no_measurement():
    interval = "log_interval .................................... "
    assert interval in DUMP
    start = DUMP.index(interval) + len(interval)
    asked = DUMP[:start] + "10" + DUMP[DUMP.index("\n", start) :]
    alone = diagnosed({"run.log": asked + megatron(100.0, first=10, steps=1)}, gpu="h100")
    assert (alone.verdict, [one.rule for one in alone.causes]) == ("not_enough", ["R18"])
    later = diagnosed({"run.log": asked + megatron(100.0, first=40, steps=1)}, gpu="h100")
    assert later.verdict == "slow" and "R18" not in [one.rule for one in later.causes]


@pytest.mark.parametrize(("steps", "ruled_out"), [(1, False), (2, False), (3, True)])
def test_a_figure_or_two_do_not_rule_out_that_they_are_no_measurement(steps, ruled_out):
    found = diagnosed({"run.log": megatron(57.0, first=40, steps=steps)}, PLAN, **JOB)
    assert ("R18" in [rule for rule, _ in found.cleared]) is ruled_out
    assert any("R18" in one.rules for one in found.missing) is not ruled_out


OLD_TIMERS = "time (ms) | forward-compute: 9100.1 | backward-compute: 18000.2 | optimizer: 120.5 | batch-generator: 40.1\n"


def test_timers_of_before_there_were_levels_are_those_of_any_run():
    found = diagnosed({"run.log": megatron(29.0) + OLD_TIMERS})
    assert "R18" not in [one.rule for one in found.causes] and found.verdict == "not_enough"


def test_timers_of_level_2_are_seen_where_they_are_asked_for():
    asked = DUMP.replace(
        "timing_log_level ................................ 0", "timing_log_level ................................ 2"
    )
    slow = diagnosed({"run.log": asked + megatron(75.0)}, gpu="h100")
    assert [one.rule for one in slow.causes] == ["R18"] and slow.causes[0].evidence[0].text == "timing_log_level 2"
    inside = diagnosed({"run.log": asked + megatron(57.5)}, gpu="h100")
    assert inside.verdict == "healthy" and "level 2" in inside.why_not_calibrate
    script = (
        "#!/bin/bash\ntorchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\\n"
        "  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --bf16 \\\n"
        "  --global-batch-size 512 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer \\\n"
        "  --vocab-size 32000 {more}\n"
    )
    for more, rules in (("--timing-log-level 2", ["R18"]), ("--timing-log-level=2", ["R18"]), ("--timing-log-level 1", [])):
        found = diagnosed({"train.sh": script.format(more=more), "run.log": megatron(60.0)}, gpu="h100")
        assert [one.rule for one in found.causes if one.certainty == "certain"] == rules, more
