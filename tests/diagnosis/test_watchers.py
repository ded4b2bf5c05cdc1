"""What stands beside a run's log: tables of steps, scores of ranks, stacks of threads, nvidia-smi's table, the kernel's log."""

import pytest

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of

GIVEN = {"model": "llama3-8b", "gpus": "16", "gpu": "h100", "seq_length": "8192", "global_batch_size": "64"}
PLAN = "tp=2,mbs=1,sp=1"


def diagnosed(text, plan=None):
    given = GIVEN if plan else {}
    return diagnose_texts({"evidence": text}, plan, given, lambda: request_of(given), CheckRequest())


def named(text, plan=None):
    return [(one.rule, one.certainty) for one in diagnosed(text, plan).causes]


def scores(*values):
    rows = "".join(f"  Rank={rank} Node=node-{rank // 8} Score={score:.2f}\n" for rank, score in enumerate(values))
    return "\nGPU relative performance:\n" + rows + "\nStraggler report processing time: 0.042 sec.\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (scores(1.0, 0.99, 0.97, 0.72), [("R14", "likely")]),
        (scores(1.0, 0.99, 0.97, 0.94), []),
        ("STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: [4]\n", [("R14", "likely")]),
        (
            "STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: {StragglerId(rank=9, node='n2')}\n",
            [("R14", "likely")],
        ),
    ],
)
def test_the_scores_of_a_detector_name_the_slow_rank(text, found):
    assert named(text) == found


def test_the_rank_of_the_least_score_is_named():
    assert diagnosed(scores(1.0, 0.5, 0.98)).causes[0].words.startswith("rank 1 ")
    (cause,) = diagnosed("STRAGGLER DETECTION WARNING: Some GPUs performance dropped. Affected ranks: {Id(rank=9)}").causes
    assert cause.words.startswith("rank 9 ")


THREAD = 'Thread 0x7F01AB{0:04d} ({1}): "MainThread"\n'
LOADS = (
    "    select (selectors.py:415)\n    wait (multiprocessing/connection.py:931)\n"
    "    __next__ (torch/utils/data/dataloader.py:630)\n"
)
TRAINS = "    _engine_run_backward (torch/autograd/graph.py:744)\n    backward (torch/_tensor.py:521)\n    train (loop.py:90)\n"
PINS = (
    'Thread 0x7F01AB9999 (idle): "Thread-4 (_pin_memory_loop)"\n    select (selectors.py:415)\n'
    "    _pin_memory_loop (torch/utils/data/_utils/pin_memory.py:50)\n"
)
PROCESS = "Process {0}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\n"


def dumps(*stacks):
    threads = (PROCESS.format(number) + THREAD.format(number, "idle") + stack + PINS for number, stack in enumerate(stacks))
    return "\n".join(threads)


@pytest.mark.parametrize(
    ("stacks", "found"),
    [
        ((LOADS,), [("R06", "likely")]),
        ((LOADS, LOADS, TRAINS), [("R06", "likely")]),
        ((LOADS, TRAINS, TRAINS, TRAINS), []),
        ((TRAINS,), []),
    ],
)
def test_stacks_in_the_data_loader(stacks, found):
    assert named(dumps(*stacks)) == found


SAVES = (
    "    storage_write (torch/storage.py:310)\n    save (torch/serialization.py:651)\n"
    "    save_checkpoint (megatron/training/checkpointing.py:501)\n    train (megatron/training/training.py:1402)\n"
)
SHARDS = (
    "    _write_item (torch/distributed/checkpoint/filesystem.py:303)\n"
    "    save (torch/distributed/checkpoint/state_dict_saver.py:132)\n"
)
LOADS_A_CHECKPOINT = "    load (torch/serialization.py:1025)\n    load_checkpoint (megatron/training/checkpointing.py:1190)\n"


@pytest.mark.parametrize(
    ("stacks", "found"),
    [
        ((SAVES, SAVES, TRAINS), [("R07", "likely")]),
        ((SHARDS,), [("R07", "likely")]),
        ((SAVES, TRAINS, TRAINS, TRAINS), []),
        ((LOADS_A_CHECKPOINT,), []),
    ],
)
def test_stacks_inside_a_save(stacks, found):
    assert named(dumps(*stacks)) == found


TOP = "  {0:.2f}%  {0:.2f}%   {1:.2f}s    {1:.2f}s   {2}\n"


def test_py_spy_top_says_how_long_the_loader_takes():
    loader, loop = "__next__ (torch/utils/data/dataloader.py:630)", "<module> (train.py:12)"
    assert named(TOP.format(70.0, 41.0, loader) + TOP.format(100.0, 60.0, loop)) == [("R06", "likely")]
    assert named(TOP.format(2.0, 1.0, loader) + TOP.format(100.0, 60.0, loop)) == []


SMI = (
    "| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |\n"
    "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |\n"
    "| N/A   61C    P0             {0}W /  {1}W |   70321MiB /  81559MiB |     {2}%      Default |\n"
)


def test_a_lowered_limit_stands_in_the_table_of_nvidia_smi():
    assert named(SMI.format(498, 500, 99), PLAN) == [("R10", "certain")]
    assert named(SMI.format(690, 700, 99), PLAN) == []
    assert named(SMI.format(72, 500, 0), PLAN) == []


def test_a_table_without_clocks_rules_no_clock_out():
    assert "R10" in {rule for one in diagnosed(SMI.format(690, 700, 99)).missing for rule in one.rules}


def test_the_last_count_of_a_kernels_log_counts():
    line = "[9.1] CPU1: Core temperature is above threshold, cpu clock is throttled (total events = {0})\n"
    assert named(line.format(1) + line.format(7010)) == [("R10", "likely")]


@pytest.mark.parametrize(("events", "found"), [(18821, [("R10", "likely")]), (3, [])])
def test_the_kernel_lowers_the_clock_of_a_processor(events, found):
    line = "[{0}.182821] CPU{0}: Package temperature is above threshold, cpu clock is throttled (total events = {1})\n"
    assert named("".join(line.format(cpu, events) for cpu in range(4))) == found


LIGHTNING = "epoch,step,train_step_timing in s,reduced_train_loss\n"
WANDB = '"_step","_runtime","train/global_step","note","train/loss","_timestamp"\n'
CHART = '"Step","llama run 2 - throughput/device/tokens_per_sec","llama run 2 - throughput/device/tokens_per_sec__MIN"\n'


def test_tables_of_steps_say_the_step():
    times = [4.5, *[3.2 + 0.01 * (n % 3) for n in range(11)]]
    lightning = LIGHTNING + "".join(f"0,{10 * n},{time},7.{n:02d}\n" for n, time in enumerate(times, 1))
    assert diagnosed(lightning).measured.step_seconds == pytest.approx(3.21)
    wandb = WANDB + "".join(f'{3 * n},{32 * n + 9}.5,{10 * n},"a, b",2.{n},{1.7e9 + 32 * n}\n' for n in range(1, 12))
    assert diagnosed(wandb).measured.step_seconds == pytest.approx(3.2)
    board = "Wall time,Step,Value\n" + "".join(f"{1.7e9 + 64 * n},{20 * n},2.5\n" for n in range(12))
    assert diagnosed(board, PLAN).verdict == "healthy"
    chart = CHART + "".join(f"{n},{64 * 8192 / 16 / 3.3},{9000}\n" for n in range(1, 12))
    assert diagnosed(chart, PLAN).measured.step_seconds == pytest.approx(3.3)


PRICES = "_timestamp,price,volume\n1700000000,3.1,9\n"


@pytest.mark.parametrize("text", [PRICES, "epoch,step,throughput/odd\n0,1,2.0\n", WANDB])
def test_a_table_of_something_else_is_counted(text):
    found = diagnosed(text)
    assert (found.verdict, found.measured, found.causes) == ("not_enough", None, ())


TRL = "{{'loss': 0.01, 'num_tokens': {0}.0, 'completions/mean_length': {1}, 'step_time': '{3}', 'epoch': 0.0{2}}}\n"


def test_steps_of_trl_grow_with_their_answers():
    longer = "".join(TRL.format(9000 * n, 100.0 * n, n, 5.0 * n) for n in range(4, 16))
    assert named(longer) == [] and diagnosed(longer).measured.step_seconds == pytest.approx(47.5)
    slower = "".join(TRL.format(9000 * n, 700.0, n, 5.0 * n) for n in range(4, 16))
    assert [rule for rule, _ in named(slower)] == ["R11"]


UNUSED = "index, clocks.sm [MHz], power.draw [W]{more}\n"


def clocks(rows, more=""):
    """`rows`: (MHz, W, more) of each GPU."""
    lines = (
        f"{gpu}, {mhz} MHz, {watts}" + (f", {extra}" if more else "") + "\n" for gpu, (mhz, watts, extra) in enumerate(rows)
    )
    return UNUSED.format(more=f", {more}" if more else "") + "".join(lines)


BUSY, ASLEEP, HOT = (1410, "395.00 W", "0x0000000000000004"), (210, "54.10 W", "0x0000000000000001"), (420, "118.00 W", "0x0")
REASONS = "clocks_event_reasons.active"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (clocks([BUSY] * 6 + [ASLEEP] * 2), []),  # GPUs of which nothing says their use, and whose power shows that they rest
        (clocks([BUSY] * 7 + [HOT]), [("R10", "certain")]),
        (clocks([BUSY] * 7 + [(210, "[N/A]", "0x0000000000000001")], REASONS), []),  # NVML's own word
        (clocks([(mhz, "[N/A]", "") for mhz in [1410] * 7 + [420]]), [("R10", "likely")]),  # at work or not, nothing says
    ],
)
def test_a_gpu_that_rests_has_no_low_clock(text, found):
    assert named(text) == found


READINGS = (
    "GPU 00000000:3B:00.0\n    GPU Power Readings\n        Average Power Draw                : {0} W\n"
    "        Current Power Limit               : {1} W\n        Requested Power Limit             : {1} W\n"
    "        Default Power Limit               : {2} W\n        Min Power Limit                   : 100.00 W\n"
    "        Max Power Limit                   : 700.00 W\n"
    "    Power Samples\n        Max                               : 410.40 W\n"
)


def test_the_readings_of_power_show_a_limit_below_the_default():
    (cause,) = diagnosed(READINGS.format("248.10", "250.00", "400.00")).causes
    assert (cause.rule, cause.certainty) == ("R10", "certain") and "250 W" in cause.words and "400 W" in cause.words
    assert named(READINGS.format("380.10", "400.00", "400.00")) == []
    assert named(2 * READINGS.format("380.10", "400.00", "400.00") + READINGS.format("290.00", "300.00", "400.00")) == [
        ("R10", "certain")
    ]


HIGHEST = "index, clocks.sm [MHz], clocks.max.sm [MHz], utilization.gpu [%], clocks_event_reasons.active\n"


@pytest.mark.parametrize(
    ("mhz", "reason", "found", "still_open"),
    [
        (1350, "0x0000000000000004", [], True),  # all that the power leaves, or a lowered limit: nothing says which
        (1830, "0x0000000000000004", [], False),
        (1350, "0x0000000000000002", [("R10", "likely")], False),  # application clocks
    ],
)
def test_a_power_cap_without_the_power_leaves_the_clock_open(mhz, reason, found, still_open):
    text = HIGHEST + "".join(f"{gpu}, {mhz} MHz, 1980 MHz, 99 %, {reason}\n" for gpu in range(8))
    assert named(text) == found
    assert any("power.limit" in one.evidence and "R10" in one.rules for one in diagnosed(text).missing) is still_open


@pytest.mark.parametrize(("watts", "found"), [(610, []), (330, [("R10", "likely")])])
def test_a_capped_gpu_need_not_draw_its_limit_at_every_moment(watts, found):
    head = HIGHEST.replace("utilization", "power.draw [W], power.limit [W], utilization")
    rows = (f"{gpu}, 1400 MHz, 1980 MHz, {watts + gpu} W, 700.00 W, 99 %, 0x0000000000000004\n" for gpu in range(8))
    assert named(head + "".join(rows)) == found
