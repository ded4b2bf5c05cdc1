"""What a series of steps says: growth and jumps, hangs, ramped batches, steps that grow with their tokens, steps too fast."""

from datetime import UTC, datetime

import pytest

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.price import flops_per_step
from autoconfig.training.question import request_of
from validation.diagnosis.made_runs import expected

QUESTION = {"model": "qwen2.5-14b", "gpus": 32, "gpu": "h100", "seq_length": 4096, "global_batch_size": 256}
PLAN = "tp=2,pp=2,mbs=1,sp=1"


def priced():
    return expected(QUESTION, PLAN)


def diagnosed(text, plan=None):
    given = {name: str(value) for name, value in QUESTION.items()} if plan else {}
    return diagnose_texts({"run.log": text}, plan, given, lambda: request_of(given), CheckRequest())


def log(steps, batches=None, printed=1.0, first=1):
    """Of Megatron-LM; `printed`: TFLOPS over the right ones. Steps scatter by half a per cent."""
    e = priced()
    flops = flops_per_step(e.scenario, "full", e.plan.recompute) / e.scenario.cluster.num_gpus / 1e12
    lines = []
    for place, seconds in enumerate(steps):
        batch = batches[place] if batches else 256
        own = seconds * (1 + 0.005 * ((7 * place) % 5 - 2) / 2)
        lines.append(
            f" iteration {first + place:8d}/    9000 | elapsed time per iteration (ms): {1e3 * own:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {printed * flops * batch / 256 / own:.1f} | global batch size: {batch:5d} |\n"
        )
    return "".join(lines)


def named(found):
    return [one.rule for one in found.causes]


def test_the_figures_of_a_ramped_batch_follow_from_each_lines_own():
    step = priced().step_seconds
    batches = [32] * 20 + [64] * 20 + [128] * 20 + [256] * 15
    steps = [step * max(0.16, batch / 256) for batch in batches]
    healthy = diagnosed(log(steps, batches), PLAN)
    assert (healthy.verdict, named(healthy)) == ("healthy", [])
    wrong = diagnosed(log(steps, batches, printed=2.0), PLAN)
    assert (wrong.verdict, named(wrong)) == ("report_wrong", ["R12"])


TITAN = "step: {0:2d}  loss:  7.12  memory: 51.34GiB(64.82%)  tps: {1:,.0f}  tflops: {2:.2f}  mfu: {3:.2f}%\n"


@pytest.mark.parametrize(("peak", "words"), [(1978.9, "with sparsity"), (312.0, "a100"), (700.0, "of no GPU that is known, 7")])
def test_the_peak_that_a_line_divides_its_tflops_by_is_named(peak, words):
    """990 TFLOPS are the H100's dense peak in bf16; half of the MFU fits a slip of the FLOPs, too."""
    e = priced()
    flops = flops_per_step(e.scenario, "full", e.plan.recompute) / e.scenario.cluster.num_gpus / 1e12 / e.step_seconds
    tokens = 256 * 4096 / 32 / e.step_seconds
    found = diagnosed("".join(TITAN.format(10 * n, tokens, flops, 100 * flops / peak) for n in range(1, 12)), PLAN)
    assert (found.verdict, named(found)) == ("report_wrong", ["R12"])
    assert words in found.causes[0].words and ", or " not in found.causes[0].words


@pytest.mark.parametrize("seconds", [[5.0, 5.0, 7.5, 5.1], [5.0, 5.1, 5.0, 7.0], [6.9, 5.0, 5.0], [5.0, 5.02, 5.04, 7.9]])
def test_a_spike_among_few_steps_is_no_growth(seconds):
    assert "R11" not in named(diagnosed(log(seconds, first=40)))


@pytest.mark.parametrize("seconds", [[5.0, 7.0], [5.0, 6.1, 7.4, 8.8]])
def test_few_steps_that_all_rise_grow(seconds):
    assert named(diagnosed(log(seconds, first=40))) == ["R11"]


def test_growth_costs_what_it_adds_to_the_median_and_shows_the_first_step_that_counts():
    step = priced().step_seconds
    steps = [7 * step, 3 * step] + [step * (1 + 0.6 * number / 99) for number in range(100)]
    cause = next(one for one in diagnosed(log(steps), PLAN).causes if one.rule == "R11")
    assert cause.step_after == pytest.approx(step * 1.03, rel=0.02)  # of the first tenth
    assert cause.gain_seconds == pytest.approx(0.27 * step, rel=0.1)
    assert "iteration        3/" in cause.evidence[0].text and "iteration      102/" in cause.evidence[1].text
    assert "grows" in cause.words


@pytest.mark.parametrize("at", [25, 45, 70])
def test_a_jump_is_called_one_and_shown_where_it_is(at):
    step = priced().step_seconds
    found = diagnosed(log([step] * at + [1.5 * step] * (90 - at)), PLAN)
    cause = next(one for one in found.causes if one.rule == "R11")
    assert f"jumps at iteration {at + 1}," in cause.words
    assert [f"iteration {number:8d}/" in line.text for number, line in zip((at, at + 1), cause.evidence, strict=True)] == [
        True
    ] * 2
    assert cause.step_after == pytest.approx(min(found.case.step_seconds, step), rel=0.01)


def rl(tokens, seconds):
    return "".join(
        f"step:{number} - global_seqlen/mean:{count:.1f} - timing_s/gen:{0.6 * time:.2f}"
        f" - timing_s/update_actor:{0.3 * time:.2f}"
        f" - timing_s/step:{time:.2f} - perf/total_num_tokens:{64 * count:.0f} - perf/time_per_step:{time:.2f}\n"
        for number, (count, time) in enumerate(zip(tokens, seconds, strict=True), 1)
    )


def test_longer_answers_are_no_growth_and_the_same_answers_that_take_longer_are():
    counts = [9000 + 450 * number for number in range(30)]
    assert "R11" not in named(diagnosed(rl(counts, [20 + 0.012 * count for count in counts])))
    assert "R11" in named(diagnosed(rl([9000] * 30, [128 + 5.4 * number for number in range(30)])))


@pytest.mark.parametrize(("times", "cause"), [(180, ["R07"]), (4, [])])
def test_one_hang_of_a_run_is_named(times, cause):
    step = priced().step_seconds
    steps = [step] * 31 + [times * step] + [step] * 60
    found = diagnosed(log(steps), PLAN)
    assert (found.verdict, named(found)) == ("slow" if cause else "healthy", cause)
    if cause:
        assert "iteration       32/" in found.causes[0].evidence[0].text


@pytest.mark.parametrize(("times", "verdict"), [(0.04, "not_enough"), (0.3, "not_enough"), (0.8, "fast"), (1.0, "healthy")])
def test_a_step_that_no_plan_reaches_is_of_another_plan(times, verdict):
    found = diagnosed(log([times * priced().step_seconds] * 40), PLAN)
    assert (found.verdict, named(found)) == (verdict, [] if verdict != "not_enough" else named(found))
    if verdict == "not_enough":
        assert "plan" in found.missing[0].evidence and found.why_not_calibrate


HUGGING_FACE = "[INFO|trainer.py:3478] 2024-08-13 05:24:45,906 >> Saving model checkpoint to saves/checkpoint-{0}\n"
SAVED = "  successfully saved checkpoint from iteration {0:7d} to /ckpt [ t 1/2, p 1/1 ]\n"
EVALUATED = " validation loss at iteration {0} on validation set | lm loss value: 2.922429E+00 | lm loss PPL: 1.8E+01 |\n"


def paused(*between, each=8):
    """Steps of 4 s, each eighth of 12 s behind these lines."""
    lines = log([12.0 if n % each == 0 else 4.0 for n in range(1, 65)]).splitlines(True)
    return "".join(
        (("".join(text.format(n) for text in between) if n % each == 0 else "") + line) for n, line in enumerate(lines, 1)
    )


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ((SAVED,), "checkpoints hold"),
        ((HUGGING_FACE,), "checkpoints hold"),
        ((EVALUATED,), "evaluations hold"),
        ((EVALUATED, SAVED), "checkpoints and evaluations"),
        (("an own line {0}\n",), "each 8 steps"),
    ],
)
def test_pauses_are_what_the_log_says_before_them(between, words):
    (cause,) = [one for one in diagnosed(paused(*between)).causes if one.rule == "R07"]
    assert cause.words.startswith(words)


def test_a_save_elsewhere_explains_no_pause():
    text = paused() + SAVED.format(64)
    (cause,) = [one for one in diagnosed(SAVED.format(0) + text).causes if one.rule == "R07"]
    assert cause.words.startswith("each 8 steps")


def stamped(parts, every=5):
    """A log of several starts: (seconds of each line's step, first iteration, seconds of the clock before) and what is printed
    between; each line is the mean of `every` steps."""
    text, clock = [], 1_700_000_000.0
    for steps, first, before, banner in parts:
        clock += before
        text += [banner] if banner else []
        for place, seconds in enumerate(steps):
            clock += every * seconds
            text.append(
                f" [{datetime.fromtimestamp(clock, UTC):%Y-%m-%d %H:%M:%S}] iteration {first + every * place:8d}/    9000 |"
                f" elapsed time per iteration (ms): {1e3 * seconds:.1f} | global batch size:   256 |\n"
            )
    return "".join(text)


BANNERS = {
    "Megatron-LM": "[after dataloaders are built] datetime: 2025-11-03 04:11:09\n",
    "Slurm": "slurmstepd: error: *** JOB 2211 ON node9 CANCELLED AT 2025-11-03T04:00:00 DUE TO PREEMPTION ***\n",
    "transformers": "[INFO|trainer.py:2519] 2025-11-03 04:11:09,101 >> ***** Running training *****\n",
    "nothing": "",
}


@pytest.mark.parametrize("banner", BANNERS.values(), ids=BANNERS)
def test_a_queue_between_two_starts_is_no_pause(banner):
    step = priced().step_seconds
    text = stamped([([step] * 30, 5, 0.0, ""), ([1.4 * step, *[step] * 24], 155, 6 * 3600.0, banner)])
    for found in (diagnosed(text, PLAN), diagnosed(text)):
        assert named(found) == [] and found.measured.step_seconds == pytest.approx(step, rel=1e-3)
        assert found.measured.statistics.outside_s == pytest.approx(0.0, abs=0.05 * step)


def test_steps_that_are_done_again_begin_with_a_warm_up():
    step = priced().step_seconds
    for first in (80, 81, 95):  # back to a checkpoint, whether its number was printed before or not
        text = log([6 * step] + [step] * 99) + log([9 * step] + [step] * 60, first=first)
        found = diagnosed(text, PLAN)
        assert (found.verdict, named(found)) == ("healthy", []), first


@pytest.mark.parametrize("banner", BANNERS.values(), ids=BANNERS)
def test_what_is_printed_at_a_start_says_that_there_is_one(banner):
    step = priced().step_seconds
    text = log([step] * 40) + banner + log([30 * step] + [step] * 40, first=41)
    assert named(diagnosed(text, PLAN)) == ([] if banner else ["R07"])


def test_one_slow_line_that_is_as_long_as_the_warm_up_is_no_hang_and_a_longer_one_is():
    step = priced().step_seconds
    for times, cause in ((9, []), (60, ["R07"])):
        assert named(diagnosed(log([8 * step] + [step] * 40 + [times * step] + [step] * 40), PLAN)) == cause


@pytest.mark.parametrize(("gaps", "cause"), [(1, []), (5, ["R07"])])
def test_time_between_lines_counts_where_it_comes_again(gaps, cause):
    step = priced().step_seconds
    parts = [([step] * 8, 5 + 40 * number, 40 * step if number else 0.0, "") for number in range(gaps + 1)]
    found = diagnosed(stamped(parts), PLAN)
    assert named(found) == cause
    if cause:
        lost = found.measured.statistics.outside_s
        assert lost == pytest.approx(5 * 40 * step / (5 * (6 * 8 - 1)), rel=0.02)


def test_a_run_that_is_slower_behind_a_new_start_says_so():
    step = priced().step_seconds
    text = stamped([([step] * 20, 5, 0.0, ""), ([2 * step, *[1.6 * step] * 40], 105, 900.0, BANNERS["Megatron-LM"])])
    cause = next(one for one in diagnosed(text, PLAN).causes if one.rule == "R11")
    assert "started again" in cause.words and cause.certainty == "likely"
    assert cause.gain_seconds == pytest.approx(0.6 * step, rel=0.01)


@pytest.mark.parametrize(("seconds", "share", "named_"), [(0.9, 0.03, []), (2.0, 0.07, ["R07"])])
def test_without_a_plan_a_small_pause_is_not_worth_naming(seconds, share, named_):
    assert share == pytest.approx(seconds / 15 / 2.0, abs=0.005)
    steps = [2.0 + (seconds if number % 15 == 14 else 0.0) for number in range(150)]
    found = diagnosed("".join(f"iter {n}: loss 3.1, time {1e3 * one:.1f}ms, mfu 40.0%\n" for n, one in enumerate(steps, 10)))
    assert named(found) == named_ and found.verdict == ("slow" if named_ else "not_enough")


def test_sequences_that_grow_to_their_length_are_no_growth():
    """A curriculum: steps begin below the price of the plan and end at it."""
    step = priced().step_seconds
    found = diagnosed(log([step * (0.55 + 0.45 * min(1.0, number / 60)) for number in range(100)]), PLAN)
    assert (found.verdict, named(found)) == ("healthy", [])
    beyond = diagnosed(log([step * (0.55 + 1.2 * number / 100) for number in range(100)]), PLAN)
    assert named(beyond)[:1] == ["R11"]
    text = "".join(
        f" iteration {n:8d}/    9000 | consumed samples: {256 * n:12d} | consumed tokens: {32 * 256 * n * n:14d} | "
        f"elapsed time per iteration (ms): {100.0 * n:.1f} | global batch size:   256 | curriculum seqlen: {64 * n:5d} |\n"
        for n in range(20, 60)
    )
    assert named(diagnosed(text)) == []
    alike = text.replace(" curriculum", " other")
    for n in range(20, 60):
        alike = alike.replace(f"consumed tokens: {32 * 256 * n * n:14d}", f"consumed tokens: {4096 * 256 * n:14d}")
    assert [(one.rule, one.certainty) for one in diagnosed(alike).causes] == [("R11", "certain")]


def test_queues_at_a_period_are_none_where_they_differ():
    """Jobs of a time limit begin again each so many steps, behind queues of any length; saves take alike."""
    step = priced().step_seconds
    for waits, cause in (((900.0, 7200.0, 400.0), []), ((900.0, 910.0, 905.0), ["R07"])):
        slow = [1.5 * step, *[step] * 19]
        text = stamped([(slow, 5, 0.0, ""), *[(slow, 105 + 100 * n, wait, "") for n, wait in enumerate(waits)]])
        assert named(diagnosed(text, PLAN)) == cause


def test_pauses_cost_what_they_take_of_all_steps():
    """A line is the mean of 10 steps: 24 s more in one of ten lines are 0.24 s a step."""
    lines = [2.0 + (2.4 if number % 10 == 9 else 0.0) for number in range(80)]
    text = "".join(
        f" iteration {10 * n:8d}/    9000 | elapsed time per iteration (ms): {1e3 * one:.1f} |\n"
        for n, one in enumerate(lines, 10)
    )
    (cause,) = diagnosed(text).causes
    assert (cause.rule, cause.gain_seconds) == ("R07", pytest.approx(0.24, rel=0.01))


def test_a_figure_is_checked_beside_a_usual_step():
    """nanoGPT evaluates inside some iterations, and its MFU is a mean of several."""
    step = priced().step_seconds
    e = priced()
    mfu = flops_per_step(e.scenario, "full", e.plan.recompute) / e.scenario.cluster.num_gpus / step / 989.4e12
    lines = [3 * step if number % 20 == 10 else step for number in range(61)]
    text = "".join(f"iter {n}: loss 3.1, time {1e3 * one:.1f}ms, mfu {100 * mfu:.2f}%\n" for n, one in enumerate(lines, 100))
    assert "R12" not in named(diagnosed(text, PLAN))


def test_of_two_runs_of_the_same_steps_the_later_one_counts():
    """Two jobs that appended to one file, none longer than the other."""
    found = diagnosed(log([9.0] * 30) + log([11.0] * 30))
    assert found.measured.step_seconds == pytest.approx(11.0, rel=0.01)
    assert diagnosed(log([9.0] * 30) + log([11.0] * 12)).measured.step_seconds == pytest.approx(9.0, rel=0.01)


ROLLOUT = (
    "  \u2022 Total step time: {0:.2f}s\n  \u2022 generation: {1:.2f}s (60.0%)\n  \u2022 policy_training: 30.00s (20.0%)\n"
)


def test_steps_with_longer_answers_are_no_growth_unless_their_lengths_say_so():
    found = diagnosed("".join(ROLLOUT.format(60 + 4.0 * n, 20 + 4.0 * n) for n in range(14)))
    assert named(found) == [] and any("length of the answers" in one.evidence for one in found.missing)
    verl = "step:{0} - response_length/mean:810.0 - timing_s/gen:{1:.1f} - timing_s/step:{2:.1f}\n"
    assert named(diagnosed("".join(verl.format(n, 20 + 3.0 * n, 50 + 3.0 * n) for n in range(1, 15)))) == ["R11"]


TUNE = "Step {0} | loss:1.21 lr:2e-05 tokens_per_second_per_gpu:{1:.2f} peak_memory_active:41.2\n"


def test_rates_without_a_plan_say_no_seconds():
    """Units of their own are no seconds: pauses are told in usual steps."""
    found = diagnosed("".join(TUNE.format(n, 900.0 if n % 10 == 0 else 5400.0) for n in range(1, 41)))
    (cause,) = found.causes
    assert cause.rule == "R07" and "5 times the usual step more" in cause.figures and " s " not in cause.figures
    assert diagnosed("".join(TUNE.format(n, 5400.0) for n in range(1, 41)), PLAN).verdict == "not_enough"  # padding counts not


DATED = "[titan] 2026-02-03 {0} - root - INFO - step: {1:2d}  loss:  7.12  memory: 51.34GiB(64.82%)  tps: {2:,.0f}\n"


def titan(seconds, tokens, count=20):
    times = (datetime.fromtimestamp(1770112800 + 10 * seconds * n, UTC) for n in range(1, count + 1))
    return "".join(
        DATED.format(f"{at:%H:%M:%S},{at.microsecond // 1000:03d}", 10 * n, tokens / seconds) for n, at in enumerate(times, 1)
    )


def test_times_of_day_say_the_step_of_rates_and_doubt_a_plan_with_other_tokens():
    step, tokens = priced().step_seconds, 256 * 4096 / 32
    assert diagnosed(titan(step, tokens)).measured.step_seconds == pytest.approx(step, rel=1e-3)
    assert diagnosed(titan(step, tokens), PLAN).verdict == "healthy"
    assert (
        named(diagnosed(titan(1.04 * step, tokens).replace(f"{tokens / (1.04 * step):,.0f}", f"{tokens / step:,.0f}"), PLAN))
        == []
    )
    assert "counts" in diagnosed(titan(step, tokens / 2), PLAN).why
    good, bad = titan(step, tokens), titan(2 * step, tokens)
    found = diagnose_texts({"a": good, "b": bad}, None, {}, lambda: request_of({}), CheckRequest())
    assert (found.verdict, found.case.ratio) == ("slow", pytest.approx(2.0, rel=1e-3))


def test_a_slow_stretch_of_the_run_is_no_row_of_pauses():
    found = diagnosed(log([6.0] * 120 + [9.5] * 40 + [6.0] * 140))
    (cause,) = found.causes
    assert cause.rule == "R07" and cause.words.startswith("steps 121 to 160 are slower")
    each = diagnosed(log([6.0 if number % 4 else 9.0 for number in range(1, 200)]))
    assert "each 4 steps one pauses" in each.causes[0].words


def test_few_lines_rule_out_neither_growth_nor_pauses():
    said = {rule for rule, _ in diagnosed(log([6.0] * 3, first=40)).cleared}
    assert not said & {"R07", "R11"} and {"R07", "R11"} <= {rule for rule, _ in diagnosed(log([6.0] * 30)).cleared}


def test_a_time_that_no_step_takes_is_none():
    found = diagnosed(
        "".join(f" iteration {n}/ 90 | elapsed time per iteration (ms): 1e300 | lm loss: 1 |\n" for n in range(9))
    )
    assert found.measured is None and found.verdict == "not_enough"
