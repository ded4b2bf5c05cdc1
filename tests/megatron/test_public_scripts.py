"""112 more public scripts of 39 families: every field that `check` reads of them, and bash itself on the same words."""

import json
import random
import re
import subprocess
import time
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import sentences

from autoconfig.megatron.argument_list import split_arguments
from autoconfig.megatron.check import plan_violations
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.shell.commands import reason_of, text_of
from autoconfig.megatron.shell.launch import slurm_variables

TABLE = json.loads(Path(__file__).with_name("public_scripts.json").read_text(encoding="utf-8"))
ROWS = [dict(zip(TABLE["columns"], row, strict=True)) for row in TABLE["rows"]]
NAMES = [row["source"].split(" (")[0].rsplit("/", 1)[-1] for row in ROWS]


def read(row):
    return read_check(row["script"], CheckRequest(**{"gpu": "a100-80gb", **row["given"]}))


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_every_field_is_read(row):
    found = read(row)
    scenario = found.question.scenario
    assert str(found.plan) == row["plan"] and scenario.cluster.num_gpus == row["gpus"]
    assert (scenario.workload.global_batch_size, scenario.workload.seq_length) == (row["batch"], row["seq_length"])
    assert total_parameters(scenario.model) / 1e9 == pytest.approx(row["billions"], rel=0.015)
    if row["vocabulary"] is None:
        assert any("vocabulary" in line for line in sentences(found.question.assumed))
    else:
        assert scenario.model.vocab_size == row["vocabulary"]
    assert scenario.numerics.precision == row["precision"] and scenario.software.name == row["software"]
    assert sorted({violation.rule for violation in plan_violations(scenario, found.plan, found.split)}) == row["broken"]


WORDS = (
    "$X", "${X:-2}", "$(date)", "$((1/0))", "$((2**70))", "${A[@]}", '"$@"', "$1", "0", "-1", "1e9", "9" * 20, '""', "eval",
    "exit", "return", "shift", "set -e", "local a", "${X^^}", "${!X}", "${X//a/b}", "{1..9}", "$#", "<(ls)", "fi", "done",
    "esac", "then", "case $x in", "for i in", "while", "function x", "<<EOF\n", "((", "))", "$((", "`", '"', "'", ";;", "&&",
    "||", "\0", "é",
)  # fmt: skip


def mutated(text, rng):
    """The text with some of its characters, words, lines, numbers or names changed."""
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(7), rng.randrange(len(text) + 1)
        if kind == 0:
            text = text[:at] + rng.choice("\"'`$\\\n;&|(){}[]<>#!*?~=+ \t") + text[at + rng.randrange(3) :]
        elif kind == 1:
            text = re.sub(r"\d+", lambda match: rng.choice([match[0]] * 8 + ["0", "-1", "07", "0x1f", "x", ""]), text)
        elif kind == 2:
            lines = text.split("\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines[: rng.choice([one, None, None, None]) or None])
        elif kind == 3:
            text = text[:at] + text[at // 2 : at] + text[at:]
        elif kind == 4 and (names := re.findall(r"\b[A-Z_]{3,}\b", text)):
            text = re.sub(rf"\b{rng.choice(names)}\b", rng.choice(names), text, count=rng.randint(1, 3))
        else:
            words = re.split(r"(\s+)", text)
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            text = "".join(words)
    return text or " "


def check_mutations(count, seed):
    """Read or refused; of what is read every word of plan, model and batch is known (else it is an error)."""
    rng, read_ones = random.Random(seed), 0
    for number in range(count):
        row = ROWS[number % len(ROWS)]
        try:
            found = read_check(mutated(row["script"], rng), CheckRequest(**{"gpu": "a100-80gb", "gpus": 64, **row["given"]}))
        except InputError as error:
            assert len(str(error)) > 20
            continue
        read_ones += 1
        unread, given = found.script.unread(), split_arguments(found.script.words(), found.script.unread()).given
        decide = ("--num-layers", "--hidden-size", "--micro-batch-size", "--tensor-model-parallel-size", "--seq-length")
        assert not [name for name in decide if name in given and set(given[name].value_positions) & set(unread)]
    assert read_ones > count / 20


def test_mutated_scripts_are_read_or_refused():
    check_mutations(400, 7)


@pytest.mark.soak
def test_mutated_scripts_are_read_or_refused_long():
    seed = time.time_ns()
    print(f"seed {seed}")
    check_mutations(1_000 * len(ROWS), seed)


def test_the_table_names_its_sources():
    families = {row["source"].split("/")[0] for row in ROWS}
    assert len(ROWS) >= 60 and len(families) >= 24
    assert all(re.fullmatch(r"\S+/\S+ \S+ \([0-9a-f]{8}\)", row["source"]) for row in ROWS)


LAUNCHERS = ("torchrun", "python", "python3", "deepspeed", "msrun", "mpirun")
TELL = '#!{bash}\nprintf "%s\\0" "$@" >> "$WORDS"\nprintf "\\0" >> "$WORDS"\n'
RUNS_THE_REST = (
    '#!{bash}\nwords=("$@")\nwhile [ $# -gt 0 ] && [ "$1" != bash ] && [ "$1" != sh ]; do shift; done\n'
    '[ $# -gt 0 ] && exec "$@"\nprintf "%s\\0" "${{words[@]}}" >> "$WORDS"\nprintf "\\0" >> "$WORDS"\n'
)
BASH = "/bin/bash"


def started(row, folder):
    """The words of every launcher that bash starts, with nothing but stand-ins on the path."""
    for name in LAUNCHERS:
        (folder / name).write_text(TELL.format(bash=BASH))
    (folder / "srun").write_text(RUNS_THE_REST.format(bash=BASH))
    for name in ("clear", "tee", "cat", "wc", "mkdir", "ssh", "ds_ssh", "wget", "date", "scontrol", "head", "hostname", "sed"):
        (folder / name).write_text(f"#!{BASH}\n:\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    for name in ("bash", "sh"):
        (folder / name).symlink_to(BASH)
    settings = row["given"].get("settings", {})
    given = {key: value for key, value in settings.items() if key.isdigit()}
    text = re.sub(r"&>>?\s*[^\s\"']+|(?<!<)<[^<>\n]*>", " ", row["script"])  # logs, and <placeholders>
    environment = {"PATH": str(folder), "WORDS": str(folder / "words"), **slurm_variables(row["script"])}
    environment |= {key: value for key, value in settings.items() if not key.isdigit()}
    words = [given[key] for key in sorted(given, key=int)]
    command = [BASH, "-c", text, "script", *words]
    subprocess.run(command, env=environment, cwd=folder, timeout=20, capture_output=True, check=False)
    runs = (folder / "words").read_text().split("\0\0") if (folder / "words").exists() else []
    return [run.split("\0") for run in runs if any(word.endswith(".py") for word in run.split("\0"))]


LAUNCHED = [row for row in ROWS if ".py" in row["script"]]


@pytest.mark.parametrize("row", LAUNCHED, ids=[NAMES[ROWS.index(row)] for row in LAUNCHED])
def test_bash_starts_the_same_arguments(row, tmp_path):
    script = read(row).script
    ours = split_arguments([text_of(value) for value in script.argv]).given
    runs = started(row, tmp_path)
    assert runs, "bash starts nothing"
    behind = [words[next(i for i, word in enumerate(words) if word.endswith(".py")) + 1 :] for words in runs]
    bashs = max((split_arguments(words).given for words in behind), key=len)
    known = {name for name, one in ours.items() if not any(reason_of(script.argv[at]) for at in one.value_positions)}
    assert len(known) >= 5 and known <= set(bashs)
    for name in known:
        assert ours[name].values == bashs[name].values or name in PATHS


PATHS = ("--vocab-file", "--merge-file", "--tokenizer-model", "--data-path", "--tensorboard-dir")
"""Made of variables that the scripts leave to the machine."""
