"""Faults put into the text of logs, timers and samplers of a run that is priced: read and named, whole way through."""

from functools import cache

import pytest

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.price import flops_per_step
from autoconfig.training.question import request_of
from validation.diagnosis.made_runs import DENSE, expected, scattered

QUESTION, PLAN = DENSE
GIVEN = {name: str(value) for name, value in QUESTION.items()}
STEPS = 60
NCCL = "n1:7:9 [0] NCCL INFO "
SMI = (
    "index, clocks.sm [MHz], clocks.max.sm [MHz], power.draw [W], power.limit [W], utilization.gpu [%], temperature.gpu, "
    "clocks_event_reasons.active\n"
)
STRAGGLER = (
    " MnRtt/Rnk: {least:.0f}ms/8 | MxRtt/Rnk: {most:.0f}ms/21 | MnPwr/Rnk: 600W/21 | MxPwr/Rnk: 650W/3 | MnTmp/Rnk: 50C/1 | "
    "MxTmp/Rnk: 60C/21 | MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/8 | MnClk/Rnk: 1960MHz/21 | MxClk/Rnk: 1980MHz/0 | "
    "MnEtpt/Rnk: 280TF/21 | MxEtpt/Rnk: 420TF/1\n"
)


@cache
def priced():
    return expected(QUESTION, PLAN)


def series(step):
    return [scattered(step, number) for number in range(STEPS)]


def log(steps, timers=None, ranks=None, more="", printed=1.0):
    """A log of Megatron-LM; every ten steps the timers, or those of every rank."""
    e = priced()
    flops = printed * flops_per_step(e.scenario, "full", e.plan.recompute) / e.scenario.cluster.num_gpus / 1e12
    lines = []
    for number, seconds in enumerate(steps, 1):
        lines.append(
            f" iteration {number:8d}/     500 | elapsed time per iteration (ms): {1e3 * seconds:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {flops / seconds:.1f} | global batch size:   256 |"
        )
        if number % 10 == 0 and timers:
            lines.append("(min, max) time across ranks (ms):")
            lines += [f"    {name} {'.' * 20}: ({1e3 * low:.2f}, {1e3 * high:.2f})" for name, (low, high) in timers.items()]
        if number % 10 == 0 and ranks:
            lines += ["times across ranks (ms):", "  forward-compute:"]
            lines += [f"     rank {rank:2d}: {1e3 * seconds:.2f}" for rank, seconds in ranks.items()]
    return "\n".join(lines) + "\n" + more


def timers(lost=0.0, of="", **more):
    """Timers of level 1 with the seconds lost in one of them."""
    phases = priced().phases
    found = {
        "all-grads-sync": phases["gradient reduction"],
        "params-all-gather": phases["parameter gathers"],
        "optimizer": phases["optimizer"],
    }
    found["forward-backward"] = priced().step_seconds - sum(found.values())
    if of:
        found[of] += lost
    shown = {name: (0.99 * seconds, seconds) for name, seconds in found.items()}
    return shown | {name.replace("_", "-"): span for name, span in more.items()}


def samples(mhz, reason, limit=700):
    rows = (f"{gpu}, {mhz(gpu):.0f} MHz, 1980 MHz, 600 W, {limit} W, 100 %, 60, {reason(gpu)}\n" for gpu in range(8))
    return SMI + "".join(rows)


def power_cap(gpu):
    return "0x0000000000000004"


def slow_clock(times):
    return samples(
        lambda gpu: 1900 / times if gpu == 2 else 1900, lambda gpu: "0x0000000000000020" if gpu == 2 else power_cap(gpu)
    )


def forward(factor):
    return {rank: 0.3 * priced().step_seconds * factor(rank) for rank in range(64)}


def faults(times):
    """(what, rule, files) of a step that is so many times as long."""
    step = priced().step_seconds
    slow, lost, bubble = series(times * step), (times - 1) * step, priced().phases["bubble and sends"]
    yield "reduction", "R02", {"run.log": log(slow, timers(lost, "all-grads-sync"))}
    yield "sockets", "R02", {"run.log": log(slow, more=NCCL + "Using network Socket\n")}
    yield "retries", "R05", {"run.log": log(slow, more="WARNING - 7 CUDA memory allocation retries.\n")}
    yield "data", "R06", {"run.log": log(slow, timers(batch_generator=(0.05 * lost, lost)))}
    paused = [seconds + (20 * lost if number % 20 == 19 else 0.0) for number, seconds in enumerate(series(step))]
    yield "pauses", "R07", {"run.log": log(paused)}
    yield "heat", "R10", {"run.log": log(slow), "nvidia-smi.csv": slow_clock(times)}
    cap = samples(lambda gpu: 1900 / times, power_cap, 400)
    yield "limit", "R10", {"run.log": log(slow), "nvidia-smi.csv": cap}
    yield "growth", "R11", {"run.log": log([step + 2 * lost * number / STEPS for number in range(STEPS)])}
    yield "report", "R12", {"run.log": log(series(step), printed=times)}
    yield "optimizer", "R13", {"run.log": log(slow, timers(lost, "optimizer"))}
    straggler = STRAGGLER.format(least=1e3 * step, most=1e3 * times * step)
    yield "straggler", "R14", {"run.log": log(slow, more=straggler)}
    one = forward(lambda rank: times if rank == 21 else 1.0)
    yield "rank", "R14", {"run.log": log(slow, ranks=one)}
    old, new = (
        log(series(seconds), more=NCCL + f"NCCL version {name}\n")
        for seconds, name in ((step, "2.21.5"), (times * step, "2.24.3"))
    )
    yield "release", "R15", {"old.log": old, "new.log": new}
    stage = forward(lambda rank: 1 + 1.4 * (times - 1) * (rank >= 48))
    yield "stage", "R16", {"run.log": log(slow, ranks=stage)}
    waits = timers(lost, "forward-backward", forward_recv=(0.2 * lost, bubble + lost))
    yield "waits", "R17", {"run.log": log(slow, waits)}
    level_2 = timers(lost, "forward-backward", forward_compute=(0.30 * step, 0.31 * step))
    yield "level 2", "R18", {"run.log": log(slow, level_2)}


@pytest.mark.parametrize("times", [1.3, 2.0])
def test_a_fault_in_the_text_of_a_log_comes_first(times):
    named = {}
    for what, rule, files in faults(times):
        found = diagnose_texts(files, PLAN, GIVEN, lambda: request_of(GIVEN), CheckRequest())
        if [one.rule for one in found.causes] != [rule]:
            named[what] = [one.rule for one in found.causes]
        assert found.why_not_calibrate, what
    assert named == {}


def test_a_reduction_that_only_waits_is_no_slow_link():
    """The rank that comes last to it needs next to nothing: the others wait for that rank."""
    step = priced().step_seconds
    for least, rules in ((0.1, ["R02"]), (0.01, [])):
        text = log(series(1.4 * step), timers(0.4 * step, "forward-backward", all_grads_sync=(least * step, 0.4 * step)))
        found = diagnose_texts({"run.log": text}, PLAN, GIVEN, lambda: request_of(GIVEN), CheckRequest())
        assert [one.rule for one in found.causes if one.certainty != "consistent"] == rules


def test_a_healthy_log_has_no_cause():
    files = {"run.log": log(series(priced().step_seconds), timers()), "smi.csv": samples(lambda gpu: 1900, power_cap)}
    found = diagnose_texts(files, PLAN, GIVEN, lambda: request_of(GIVEN), CheckRequest())
    assert (found.verdict, found.causes, found.why_not_calibrate) == ("healthy", (), "")


def test_the_clock_between_lines_says_the_step():
    """LLaMA-Factory's trainer_log.jsonl prints the time since the start, and no step: 6 s each behind 40 s of start."""
    line = '{{"current_steps": {0}, "total_steps": 90, "loss": 1.0, "elapsed_time": "0:{1:02d}:{2:02d}"}}\n'
    text = "".join(line.format(n, *divmod(6 * n + 40, 60)) for n in range(10, 90, 10))
    found = diagnose_texts({"trainer_log.jsonl": text}, None, {}, lambda: request_of({}), CheckRequest())
    assert found.measured.step_seconds == pytest.approx(6.0) and not found.measured.relative
