"""Every format of log lines: on lines that tools print (log_lines.csv, each with its source), and on lines that none prints."""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from autoconfig.evidence.grammar import grammar
from autoconfig.evidence.read import read_texts

with (Path(__file__).parent / "log_lines.csv").open(encoding="utf-8", newline="") as file:
    LINES = list(csv.DictReader(file))
KINDS = {
    "step": "steps", "figure": "steps", "phase_block": "steps", "phases": "steps", "timers": "timers", "memory": "memory",
    "link": "links", "variable": "variables", "clock": "clocks", "csv": "clocks", "columns": "clocks", "slowest": "slowest",
    "between": "interludes", "frame": "stacks", "stack": "stacks", "scores": "slowest", "step_table": "steps",
    "engine": "engines", "kernel": "kernels", "warning": "warnings",
}  # fmt: skip
RECORDS = {row.name: KINDS.get(row.record, "") for row in grammar().formats}
TEXTS = {"name", "value", "figure", "kind", "part", "engine"}


def said(record, expected):
    """Compare what a line says with a record of it: `step=1 seconds=19.1`."""
    for word in expected.split():
        name, _, text = word.partition("=")
        found = record.fields[name[7:]] if name.startswith("fields.") else getattr(record, name)
        if name == "reasons":
            assert found == set(text.split(","))
        elif name in TEXTS:
            assert found.replace(" ", "_") == text, name
        elif name == "running_mean":
            assert found is True
        else:
            assert found == pytest.approx(float(text), rel=1e-9), name


def test_the_table_of_lines_is_large_enough():
    assert len(LINES) >= 200
    named = {row["format"] for row in LINES}
    of_several_lines = {"megatron-arguments", "megatron-timers-of-ranks", "megatron-vocabulary"}
    no_measures = {row.name for row in grammar().formats if row.record in ("start", "training")}
    assert named >= set(RECORDS) - of_several_lines - no_measures and len(named) >= 20
    assert all(row["source"] for row in LINES)


@pytest.mark.parametrize("row", LINES, ids=[f"{number} {row['format']}" for number, row in enumerate(LINES)])
def test_a_line_is_read_whole(row):
    evidence = read_texts({"log": row["line"].replace("\\e", "\x1b")})
    assert evidence.files[0].formats == (row["format"],)
    first, _, phases = row["expected"].partition("; phases: ")
    kind = "memory" if row["expected"].startswith("retries=") else RECORDS[row["format"]]
    records = getattr(evidence, kind)
    for one, expected in zip(records, first.split("; "), strict=True):
        said(one, expected)
        assert one.origin.line is not None and len(one.origin.text) <= 200
    for phase, expected in zip(evidence.phases, phases.split("; ") if phases else (), strict=True):
        said(phase, expected)


def test_figures_below_each_other_are_of_one_thing():
    (clock,) = read_texts({"a": "clocks_event_reasons.hw_slowdown Active\nclocks.sm 705 MHz\npower.draw 210\n"}).clocks
    assert (clock.reasons, clock.sm_mhz, clock.power_watts) == ({"hw_slowdown"}, 705.0, 210.0)
    (step,) = read_texts({"a": "tokens/s/gpu 4100\nmfu 0.31\n"}).steps
    assert (step.tokens_per_s_per_gpu, step.mfu) == (4100.0, 0.31)


TRAININGS = {
    "trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605": ["adapters"],
    "trainable params: 8,030,261,248 || all params: 8,030,261,248 || trainable%: 100.0000": [],
    "{'loss': 0.6931, 'rewards/chosen': 0.0012, 'rewards/rejected': 0.0013, 'epoch': 0.01}": ["preferences"],
    "{'loss': 0.0, 'reward': 1.1, 'reward_std': 0.5, 'completions/mean_length': 201.5}": ["reinforcement"],
    "{'loss': 1.31, 'num_tokens': 81920.0, 'mean_token_accuracy': 0.71, 'epoch': 0.02}": ["fine-tuning"],
    "[2025-06-02 11:40:02,118] [INFO] [axolotl.train.train:173] [PID:7] Starting trainer...": ["fine-tuning"],
    "Running tokenizer on dataset (num_proc=16):  42%|####      | 21000/50000": ["fine-tuning"],
    "{'loss': 2.31, 'grad_norm': 1.2}": ["loss"],
    "step 300 | train loss 3.11 | 4 GPUs": ["loss"],
    "no loss of packets on ib0": [],
}


@pytest.mark.parametrize("line", TRAININGS)
def test_lines_that_say_what_is_trained_measure_nothing(line):
    found = read_texts({"log": line})
    shown = [one.kind for one in found.trainings if one.kind != "loss" or TRAININGS[line] == ["loss"]]
    assert (shown, found.steps) == (TRAININGS[line], ())


def test_lines_are_told_apart_in_one_log():
    """All lines in one file: each is read by its own format still, and the steps stay in order."""
    text = "\n".join(
        row["line"].replace("\\e", "\x1b") for row in LINES if "\n" not in row["line"] and row["format"] != "progress-bar"
    )
    evidence = read_texts({"log": text})
    count = sum(1 for row in LINES if "\n" not in row["line"] and row["format"] != "progress-bar")
    assert evidence.files[0].lines_not_understood == 0 and evidence.files[0].lines_read == count
    steps = [line.origin.line for line in evidence.steps]
    assert steps == sorted(steps)


NOT_LINES = """\
loading the model took 3.4 s, about 12 % of the time
trace: expert exchange 0.11 % hidden
all_gather in trace: 35 ms, expected 2 ms
optimizer share of the step
update interval 18458 ms
0.34 s
Loading checkpoint shards: 100%|██████████| 4/4 [00:03<00:00,  1.20it/s]
Map:  45%|████▌     | 4500/10000 [00:01<00:01, 4321.00 examples/s]
log_string += ' elapsed time per iteration (ms): {:.1f} |'.format(elapsed_time_per_iteration * 1000.0)
iteration = re.compile(r'iteration\\s+(\\d+)/\\s*(\\d+) \\|')
{'loss': 2.4153, 'learning_rate': 6.6e-05, 'epoch': 0.25}
{'eval_loss': 0.34, 'eval_runtime': 9.144, 'eval_samples_per_second': 10.936, 'eval_steps_per_second': 1.422}
saving checkpoint at iteration 500 to /checkpoints
> learning rate decay style: cosine
NCCL INFO Connected all rings
number of parameters on (tensor, pipeline) model parallel rank (0, 0): 354871296
memory allocated: 1.2 GB
estimated time to finish: 12:00:01
0,1,2,3
step 10 of the manual: power.draw is the power
I think the MFU is about 40 % here
        HW Slowdown                       : Not Active
Epoch 1/3
2025-01-01 00:00:00 INFO request took 0.4s
(min, max) of the losses: (1.0, 2.0)
"""


@pytest.mark.parametrize("line", NOT_LINES.splitlines())
def test_what_no_tool_prints_is_counted_and_not_read(line):
    evidence = read_texts({"log": line})
    file = evidence.files[0]
    assert (file.lines_read, file.lines_not_understood) == (0, 1) and not evidence.steps and not evidence.clocks


def test_every_pattern_is_linear():
    """As those of the code are (tests/readers/test_patterns.py)."""
    spec = importlib.util.spec_from_file_location("patterns", Path(__file__).parents[1] / "readers" / "test_patterns.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["patterns"] = module
    spec.loader.exec_module(module)
    found = {row.name: module.faults(row.pattern.pattern) for row in grammar().formats}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert all(not re.search(r"\d", word.decode()) for row in grammar().formats for word in (*row.has, *row.any_of))
