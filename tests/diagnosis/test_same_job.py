"""Files of two jobs are refused, a plan that the log speaks against says nothing of it, and what is known of a step without a
measurement is no verdict: first steps, level-2 timers."""

from datetime import UTC, datetime
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
    return diagnose_texts(files, plan, given, lambda: request_of(given), CheckRequest(gpu=given.get("gpu")))


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


SMALL = {"model": "llama3-8b", "gpus": "32", "gpu": "h100", "seq_length": "4096", "global_batch_size": "256"}
SMALL_PLAN = "tp=2,mbs=1,sp=1"


def tuning(tokens, seconds):
    """LLaMA-Factory's trainer_log.jsonl: tokens that its batches hold, and the time since the start."""
    line = (
        '{{"current_steps": {0}, "total_steps": 900, "loss": 1.1, "elapsed_time": "{1}", "throughput": {2:.1f}, '
        '"total_tokens": {3}}}\n'
    )
    return "".join(
        line.format(
            n, f"{n * seconds // 3600}:{n * seconds // 60 % 60:02d}:{n * seconds % 60:02d}", tokens / seconds, n * tokens
        )
        for n in range(20, 400, 20)
    )


def doubted(text, plan=SMALL_PLAN, **changed):
    return diagnosed({"run.log": text}, plan, **{**SMALL, **changed})


def test_a_log_that_counts_other_tokens_is_of_another_plan():
    planned = 256 * 4096
    for tokens, verdict in ((planned // 6, "not_enough"), (3 * planned, "not_enough"), (planned, "slow")):
        found = doubted(tuning(tokens, 21))
        assert (found.verdict, found.measured.step_seconds) == (verdict, pytest.approx(21.0)), tokens
        assert bool(found.causes) is (verdict == "slow")
        assert any("batch, sequence" in one.evidence for one in found.missing) is (verdict == "not_enough")


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': 800.0, 'train_samples_per_second': 4.0, 'train_steps_per_second': 0.125, 'train_loss': 1.1}\n",
        "".join(f"completed step: {n}, seconds: 9.50, TFLOP/s/device: 80.1, Tokens/s/device: 862.3\n" for n in range(30, 60)),
    ],
    ids=["samples", "tokens"],
)
def test_rates_and_times_that_are_of_other_batches_are_of_another_plan(text):
    """32 samples a step where the plan has 256; 862 x 9.5 x 32 tokens where it has 1,048,576."""
    found = doubted(text)
    assert (found.verdict, found.causes) == ("not_enough", ()) and "and the plan has" in found.why


RL = "Total step time: 310.00s\ngeneration: 190.00s\npolicy_training: 60.00s\nlogprobs: 40.00s\n"
PAIRS = "{'loss': 0.69, 'rewards/chosen': 0.001, 'rewards/margins': 0.0, 'epoch': 0.1}\n"
PEFT = "trainable params: 41,943,040 || all params: 8,072,204,288 || trainable%: 0.5196\n"
BAR = "".join(f" {n}%|#####     | {10 * n}/1000 [{n}:00<40:00,  {{0:.2f}}s/it]\n" for n in range(10, 60))
AXOLOTL = "[2025-06-02 11:40:02,118] [INFO] [axolotl.train.train:173] [PID:7] Starting trainer...\n"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        (RL, "autoconfig rl"),
        (PAIRS + BAR.format(19.0), "one kind of training"),
        (PEFT + megatron(19.0, batch=256), "--peft"),
        (AXOLOTL + BAR.format(19.0), "tokens of a step"),
    ],
    ids=["reinforcement", "preferences", "adapters", "fine-tuning"],
)
def test_a_log_of_another_kind_of_training_is_not_priced(text, needed):
    found = doubted(text)
    assert (found.verdict, found.causes) == ("not_enough", ())
    assert needed in found.missing[0].evidence and found.why_not_calibrate and found.better is None
    socket = "c1:7:9 [0] NCCL INFO Using network Socket\n"  # the plan still says that there are nodes
    assert [(one.rule, one.certainty) for one in doubted(text + socket).causes] == [("R02", "certain")]


def test_adapters_of_the_plan_are_no_other_kind():
    assert doubted(PEFT + megatron(19.0, batch=256), peft="lora").verdict == "no_promise"


def test_a_bar_without_a_name_is_of_a_training_where_something_says_so():
    plain = doubted(BAR.format(19.0))
    assert (plain.verdict, plain.causes, plain.measured) == ("not_enough", (), None)
    assert any("without a name" in remark for remark in plain.case.evidence.files[0].remarks)
    assert any("--step" in one.evidence for one in plain.missing)
    bars = BAR.format(19.0)
    for with_loss in (bars.replace("s/it]", "s/it, loss=2.1]"), bars + "{'loss': 2.31, 'learning_rate': 2e-05}\n"):
        assert doubted(with_loss).measured.step_seconds == pytest.approx(19.0)
    assert doubted(bars.replace(" 10%", "Train: 10%")).measured is not None


def test_times_that_cannot_be_read_are_said_and_the_clock_stands_for_them():
    line = (
        " [2025-03-05 10:{0:02d}:{1:02d}] iteration {2:8d}/  5000 | elapsed time per iteration (ms): nan | "
        "throughput per GPU (TFLOP/s/GPU): 91.0 | global batch size:   256 |\n"
    )
    found = doubted("".join(line.format(*divmod(40 * n, 60), 10 * n) for n in range(1, 60)))
    assert found.measured.step_seconds == pytest.approx(4.0)
    assert "the time of 59 of 59 steps cannot be read" in found.case.evidence.files[0].remarks


def test_a_curriculum_on_length_is_no_other_sequence_and_its_short_steps_are_of_no_plan():
    tokens, text = 0, ""
    for n in range(1, 60):
        length = min(4096, 256 + 40 * n)
        tokens += 10 * 256 * length
        text += (
            f" iteration {10 * n:8d}/    5000 | consumed samples: {2560 * n:12d} | consumed tokens: {tokens:14d} | "
            f"elapsed time per iteration (ms): {6.0 * length:.1f} | global batch size:   256 |\n"
        )
    found = doubted(text)
    assert (found.verdict, found.causes) == ("not_enough", ()) and "tokens a step" in found.why


def test_counts_of_three_digits_are_of_the_plan():
    """nanotron prints 412M tokens at a step and 413M at the next, of 1,048,576 each."""
    line = "[0]: iteration: {0} / 900 | consumed_tokens: {1:.0f}M | time_per_iteration_ms: 6.1K | lm_loss: 4.1 |\n"
    assert "tokens" not in doubted("".join(line.format(n, n * 1.048576) for n in range(400, 460))).why


def test_a_rate_from_the_start_of_the_run_is_no_pause():
    """LLaMA-Factory's throughput holds the warm-up of the run."""
    line = (
        '{{"current_steps": {0}, "total_steps": 900, "elapsed_time": "{1}:{2:02d}:{3:02d}", "throughput": {4:.2f}, '
        '"total_tokens": {5}}}\n'
    )
    text = ""
    for n in range(10, 500, 10):
        since = 90 + 6 * n
        text += line.format(n, since // 3600, since // 60 % 60, since % 60, n * 1048576 / since, n * 1048576)
    found = doubted(text)
    assert found.measured.step_seconds == pytest.approx(6.0, rel=0.02) and "R07" not in [one.rule for one in found.causes]


def test_of_two_logs_that_a_plan_is_not_of_the_earlier_one_alone_says_what_is_expected():
    later = RL.replace("310", "420").replace("190", "300")
    both = diagnosed({"old.log": RL, "new.log": later}, SMALL_PLAN, **SMALL)
    alone = diagnosed({"old.log": RL, "new.log": later})
    assert both.case.ratio == alone.case.ratio == pytest.approx(420 / 310)
    assert [one.rule for one in both.causes] == [one.rule for one in alone.causes] and both.expectation.plan is None


def test_a_bar_of_another_program_is_no_second_run():
    found = diagnosed({"run.log": megatron(6.0, batch=256), "tokenize.log": BAR.format(0.1)}, SMALL_PLAN, **SMALL)
    assert found.measured.step_seconds == pytest.approx(6.0) and found.expectation.plan is not None


def stamped(moments, form, first=1):
    return "".join(form.format(step, moment) for step, moment in enumerate(moments, first))


SCALAR = "{1:.4f},{0},2.71\n"
MOMENTS = [1.77e9 + sum(21 + (7 * n % 5) / 3 for n in range(step)) for step in range(40)]


def test_two_charts_of_one_run_are_one_run():
    """Scalars of TensorBoard are written apart; their steps are of the same moments, whatever the zone of a log's clock."""
    loss, rate = ("Wall time,Step,Value\n" + stamped([at + 0.2 * n for at in MOMENTS], SCALAR) for n in range(2))
    found = diagnosed({"loss.csv": loss, "rate.csv": rate})
    assert found.expectation is None and "of the same run as loss.csv" in found.case.evidence.files[1].remarks[0]
    zoned = [datetime.fromtimestamp(at + 7200, UTC) for at in MOMENTS]
    lines = (
        f"[{at:%Y-%m-%d %H:%M:%S}] iteration {step}/ 90 | elapsed time per iteration (ms): 21000.0 | global batch size: 8 |\n"
        for step, at in enumerate(zoned, 1)
    )
    found = diagnosed({"loss.csv": loss, "run.log": "".join(lines)})
    assert found.expectation is None and found.measured.step_seconds == 21.0


def test_charts_of_two_runs_are_compared():
    slower = [1.77e9 + 1.3 * (at - 1.77e9) for at in MOMENTS]
    good, bad = ("Wall time,Step,Value\n" + stamped(moments, SCALAR) for moments in (MOMENTS, slower))
    assert diagnosed({"good.csv": good, "bad.csv": bad}).case.ratio == pytest.approx(1.3, rel=1e-3)


def test_a_dump_of_another_batch_is_named_by_its_file():
    with pytest.raises(InputError, match=r"'run\.log' prints a global batch of 512"):
        diagnosed({"run.log": DUMP}, PLAN, **{**JOB, "global_batch_size": "256"})


def test_arguments_that_are_cut_off_before_the_model_say_no_plan():
    """In plain words: what is missing, not what a reader of launch files makes of the rest."""
    for end in ("  num_attention_heads", "  kv_channels"):
        found = diagnosed({"run.log": DUMP[: DUMP.index(end)] + "\n" + megatron(57.0)}, gpu="h100")
        assert (found.verdict, found.measured.step_seconds) == ("not_enough", 57.0)
        assert "log's own arguments" in found.missing[0].evidence and "bash" not in found.missing[0].evidence


def test_logs_of_two_hosts_of_a_run_are_one_run():
    times = [57.0 + (13 * step % 29) / 100 for step in range(40)]
    line = " iteration {0}/ 900 | elapsed time per iteration (ms): {1:.1f} | global batch size: 512 |\n"
    one = "".join(line.format(step, 1e3 * seconds) for step, seconds in enumerate(times, 1))
    assert diagnosed({"n0.log": one, "n1.log": one}).expectation is None
    other = "".join(line.format(step, 1e3 * seconds) for step, seconds in enumerate(reversed(times), 1))
    assert diagnosed({"n0.log": one, "n1.log": other}).case.ratio == pytest.approx(1.0, rel=0.01)
