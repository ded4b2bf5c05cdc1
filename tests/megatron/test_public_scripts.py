"""36 more public scripts of 15 families: every field that `check` reads of them, and bash itself on the same words."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from autoconfig.specs.models.parameters import total_parameters

from autoconfig.megatron.argument_list import split_arguments
from autoconfig.megatron.check import plan_violations
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.shell.launch import slurm_variables
from autoconfig.megatron.shell.values import reason_of, text_of

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
        assert any("vocabulary" in line for line in found.question.assumed)
    else:
        assert scenario.model.vocab_size == row["vocabulary"]
    assert scenario.numerics.precision == row["precision"] and scenario.software.name == row["software"]
    assert sorted({violation.rule for violation in plan_violations(scenario, found.plan, found.split)}) == row["broken"]


def test_the_table_names_its_sources():
    families = {row["source"].split("/")[0] for row in ROWS}
    assert len(ROWS) >= 33 and len(families) >= 12
    assert all(re.fullmatch(r"\S+/\S+ \S+ \([0-9a-f]{8}\)", row["source"]) for row in ROWS)


LAUNCHERS = ("torchrun", "python", "python3", "deepspeed", "msrun", "mpirun")
TELL = '#!{bash}\nprintf "%s\\0" "$@" >> "$WORDS"\nprintf "\\0" >> "$WORDS"\n'
RUNS_THE_REST = '#!{bash}\nwhile [ $# -gt 0 ] && [ "$1" != bash ] && [ "$1" != sh ]; do shift; done\nexec "$@"\n'
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
    given = {key: value for key, value in row["given"].get("settings", {}).items() if key.isdigit()}
    text = re.sub(r"&>>?\s*[^\s\"']+|(?<!<)<[^<>\n]*>", " ", row["script"])  # logs, and <placeholders>
    environment = {"PATH": str(folder), "WORDS": str(folder / "words"), **slurm_variables(row["script"])}
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
