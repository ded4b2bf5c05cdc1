"""Verdicts, exit codes, bad input; the command, Python and the schema say the same."""

import json
import math

import jsonschema
import pytest
from command_line import run_in_process

import autoconfig
from autoconfig.planning.schemas import schema

QUESTION = ["--model", "llama3-8b", "--gpus", "8", "--gpu", "h100", "--seq-length", "8192", "--global-batch-size", "64"]
PLAN = "tp=2,mbs=1,sp=1"
MEGATRON = (
    " iteration {n:8d}/     100 | consumed samples: {n:12d} | elapsed time per iteration (ms): {ms:.1f} |"
    " global batch size:    64 |\n"
)


def asked(*words):
    done = run_in_process("diagnose", *words, "--json")
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else done.stderr


def log(path, *steps):
    path.write_text("".join(MEGATRON.format(n=n, ms=1e3 * step) for n, step in enumerate(steps, 1)))
    return str(path)


def expected():
    return asked(*QUESTION, PLAN, "--step", "1s")[1]["expected"]


@pytest.mark.parametrize(("times", "verdict", "code"), [(1.0, "healthy", 0), (0.5, "fast", 0), (1.6, "slow", 3)])
def test_the_step_alone_gives_a_verdict(times, verdict, code):
    step = times * expected()["step_seconds"]
    done, found = asked(*QUESTION, PLAN, "--step", f"{step}s")
    assert (done, found["verdict"], found["ratio"]) == (code, verdict, pytest.approx(times))
    assert not list(jsonschema.Draft202012Validator(schema("diagnose")).iter_errors(found))


@pytest.mark.parametrize(("times", "verdict"), [(1.3, "healthy"), (1.6, "no_promise"), (2.5, "slow")])
def test_software_that_no_run_stands_behind_is_called_slow_only_far_out(times, verdict):
    question = [*QUESTION, "--software", "torchtitan", "tp=1,fsdp=3,mbs=1"]
    step = times * asked(*question, "--step", "1s")[1]["expected"]["step_seconds"]
    found = asked(*question, "--step", f"{step}s")[1]
    assert (found["verdict"], bool(found["causes"])) == (verdict, verdict == "slow")


def test_a_run_below_the_band_of_its_plan_is_not_called_slow_for_it():
    """Whole layers that are run again cost a quarter of a step: who is faster than that by a quarter does not run them."""
    question = [*QUESTION, "tp=2,mbs=1,sp=1,recompute=full"]
    step = asked(*question, "--step", "1s")[1]["expected"]["step_seconds"]
    assert [one["rule"] for one in asked(*question, "--step", f"{step}s")[1]["causes"]] == ["R09"]
    code, found = asked(*question, "--step", f"{0.8 * step}s")
    assert (code, found["verdict"], found["causes"]) == (0, "fast", [])


def test_a_gain_is_of_the_time_that_passes(tmp_path):
    """40 s of each 50 pass between two steps of 10 s."""
    line = "[2026-01-05 08:{0:02d}:{1:02d}] iteration {2}/ 90 | elapsed time per iteration (ms): 10000.0 | lm loss: 1.0 |\n"
    (tmp_path / "run.log").write_text("".join(line.format(*divmod(50 * n, 60), n) for n in range(1, 60)))
    assert "gain 40.00 s (80%)" in run_in_process("diagnose", str(tmp_path / "run.log")).stdout


def test_a_plan_that_another_layout_beats_by_far_is_named_inside_its_band():
    question = ["--model", "llama3-8b", "--gpus", "64", "--gpu", "h100", "--seq-length", "8192", "--global-batch-size", "64"]
    plan = "tp=8,pp=8,mbs=1,sp=1"
    step = asked(*question, plan, "--step", "1s")[1]["expected"]["step_seconds"]
    found = asked(*question, plan, "--step", f"{step}s")[1]
    assert [one["rule"] for one in found["causes"]] == ["R09"] and found["better"]["gain"] > 0.3
    best = found["better"]["short"]
    found = asked(*question, best, "--step", f"{found['better']['step_seconds']}s")[1]
    assert (found["verdict"], found["causes"]) == ("healthy", [])


@pytest.mark.parametrize("changes", [["--peft", "lora"], ["--packed-length", "1024"]])
def test_fine_tuning_is_never_called_slow(changes):
    assert asked(*QUESTION, *changes, PLAN, "--step", "3600s")[1]["verdict"] == "no_promise"


def test_real_routing_is_not_called_slow_and_forced_balance_is():
    question = ["--model", "qwen3-30b-a3b", "--gpus", "16", "--gpu", "h100", "--global-batch-size", "512", "tp=1,ep=16,mbs=1"]
    step = asked(*question, "--step", "1s")[1]["expected"]["step_seconds"]
    code, found = asked(*question, "--step", f"{1.6 * step}s")
    assert (code, found["verdict"], [one["rule"] for one in found["causes"]]) == (4, "no_promise", ["R08"])
    assert asked(*question, "--step", f"{step}s")[1]["verdict"] == "no_promise"
    assert asked(*question, "--moe-imbalance", "1", "--step", f"{2 * step}s")[1]["verdict"] == "slow"
    assert asked(*question, "--step", f"{4 * step}s")[1]["verdict"] == "slow"


def test_without_a_plan_nothing_is_slow_that_nothing_proves():
    code, found = asked("--step", "5s")
    assert (code, found["verdict"], found["causes"]) == (0, "not_enough", [])
    assert found["missing"][0]["rules"] == ["R09", "R12"]


def test_a_log_of_megatron_lines_is_measured(tmp_path):
    step = expected()["step_seconds"]
    code, found = asked(*QUESTION, PLAN, log(tmp_path / "run.log", *[9 * step] + [step] * 40))
    assert (code, found["verdict"]) == (0, "healthy")
    assert found["measured"]["warmup_dropped"] >= 1 and found["measured"]["step_seconds"] == pytest.approx(step, rel=0.01)


def test_the_batch_is_the_logs_own_and_another_jobs_log_is_refused(tmp_path):
    own = log(tmp_path / "run.log", *[9.0] * 12)  # of 64 sequences
    assert asked(*QUESTION[:-2], PLAN, own)[1]["question"]["workload"]["global_batch_size"] == 64
    code, message = asked(*QUESTION[:-2], "--global-batch-size", "128", PLAN, own)
    assert code == 2 and "prints a global batch of 64, and the plan is of 128" in message


def test_the_cure_stands_in_the_words_of_the_launch_file(tmp_path):
    done = run_in_process(
        *("export", "--model", "llama2-70b", "--gpus", "128", "--gpu", "h100", "--seq-length", "4096"),
        *("--global-batch-size", "256", "--output", str(tmp_path / "run"), "tp=8,pp=8,mbs=1,sp=1,recompute=full:uniform:1"),
    )
    assert done.exit_code == 0, done.stderr
    script = str(tmp_path / "run" / "train.sh")
    step = asked(script, "--step", "1s")[1]["expected"]["step_seconds"]
    code, found = asked(script, "--step", f"{step}s")
    cause = found["causes"][0]
    assert (code, cause["rule"]) == (3, "R09")
    assert {"flag": "--recompute-granularity", "old": ["full"], "new": None} in cause["changes"]
    shown = run_in_process("diagnose", script, "--step", f"{step}s").stdout
    assert "in the file: " in shown and "remove --recompute-granularity" in shown


def test_a_launch_file_and_a_plan_are_not_both_taken(tmp_path):
    script = tmp_path / "train.sh"
    arguments = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
    script.write_text(f"torchrun pretrain_gpt.py {arguments} --micro-batch-size 4 --global-batch-size 64\n")
    code, message = asked(*QUESTION, PLAN, str(script), "--step", "9s")
    assert code == 2 and "both say a plan" in message
    script.write_text("#!/bin/bash\nexport NCCL_DEBUG=INFO\n./start_training\n")  # says none, and is no reason to stop
    code, found = asked(*QUESTION, PLAN, str(script), "--step", "9s")
    assert (code, found["verdict"]) == (3, "slow") and "says no plan" in found["evidence"][0]["remarks"]


def test_of_two_logs_the_first_is_the_expectation(tmp_path):
    good, bad = log(tmp_path / "good.log", *[2.0] * 30), log(tmp_path / "bad.log", *[2.6] * 30)
    code, found = asked(good, bad)
    assert (code, found["verdict"], found["ratio"]) == (4, "slow", pytest.approx(1.3))
    assert asked(bad, good)[1]["verdict"] == "fast" and asked(good, good)[1]["verdict"] != "slow"


def test_phases_and_the_rest_are_the_measured_step():
    found = asked(*QUESTION, PLAN, "--step", "9s")[1]
    parts = [one["expected_seconds"] if one["measured_seconds"] is None else one["measured_seconds"] for one in found["phases"]]
    assert sum(parts) + found["unexplained_seconds"] == pytest.approx(9.0)
    assert sum(found["report"]["time"]["breakdown_seconds"].values()) == pytest.approx(found["expected"]["step_seconds"])


def test_a_slow_run_calibrates_nothing_and_a_healthy_one_half(tmp_path):
    step, target = expected()["step_seconds"], tmp_path / "mine.json"
    done = run_in_process("diagnose", *QUESTION, PLAN, "--step", f"{2 * step}s", "--calibrate", str(target))
    assert done.exit_code == 4 and "calibrates nothing" in done.stderr and not target.exists()
    done = run_in_process("diagnose", *QUESTION, PLAN, "--step", f"{1.08 * step}s", "--calibrate", str(target))
    assert done.exit_code == 0 and target.exists()
    after = asked(*QUESTION, "--calibration", str(target), PLAN, "--step", "1s")[1]["expected"]["step_seconds"]
    assert 0.4 < math.log(after / step) / math.log(1.08) < 0.6


def test_python_says_what_the_command_says():
    question = {"model": "llama3-8b", "gpus": 8, "gpu": "h100", "seq_length": 8192, "global_batch_size": 64}
    found = autoconfig.diagnose(plan=PLAN, step="12s", **question)
    assert json.loads(json.dumps(found.to_dict())) == asked(*QUESTION, PLAN, "--step", "12s")[1]
    assert "R04" in repr(found) and found.verdict == "slow"


def test_python_reads_the_files_that_the_command_reads(tmp_path):
    files = [log(tmp_path / "run.log", *[5.6] * 20), str(tmp_path / "env.txt")]
    (tmp_path / "env.txt").write_text("CUDA_LAUNCH_BLOCKING=1\n")
    question = {"model": "llama3-8b", "gpus": 8, "gpu": "h100", "seq_length": 8192, "global_batch_size": 64}
    found = autoconfig.diagnose(*files, plan=PLAN, **question).to_dict()
    assert json.loads(json.dumps(found)) == asked(*files, *QUESTION, PLAN)[1]
    assert [one["lines_read"] for one in found["evidence"]] == [20, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to diagnose"),
        (["no_such.log"], "is no file, and no PLAN"),
        ([*QUESTION, PLAN, "tp=4", "--step", "1s"], "two plans"),
        ([*QUESTION, PLAN, "--step", "1s", "--mfu", "0.4"], "give one of"),
        (["--mfu", "0.4"], "only with a plan"),
        ([*QUESTION, "--step", "1s"], "are of a PLAN"),
        ([*QUESTION, PLAN, "--step", "-1"], "no duration"),
        ([*QUESTION, "pp=7,tp=3", "--step", "1s"], "pp=7"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(words, said):
    code, message = asked(*words)
    assert code == 2 and said in message, message


def test_an_empty_file_says_nothing(tmp_path):
    (tmp_path / "a.log").write_text("")
    code, found = asked(str(tmp_path / "a.log"))
    assert (code, found["verdict"], found["causes"], found["evidence"][0]["lines_read"]) == (0, "not_enough", [], 0)
