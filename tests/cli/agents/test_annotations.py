"""`check --format github`: what a workflow reads off standard output, and the exit codes that fail a build."""

import json
import re
from pathlib import Path

import pytest

from autoconfig.cli.agents.annotations import annotation
from autoconfig.formats.edit import line_in

SCRIPT = """#!/bin/bash
TP=3
ARGS="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096
  --micro-batch-size 1 --global-batch-size 64 --vocab-size 50257
  --tensor-model-parallel-size $TP"
torchrun --nproc-per-node 8 --nnodes 3 pretrain_gpt.py $ARGS \\
   --pipeline-model-parallel-size 1 \\
   --sequence-parallel --bf16
"""
OVERRIDES = """# of Megatron-Bridge
model:
  num_layers: 32
  tensor_model_parallel_size: 3
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  seq_length: 8192
train:
  micro_batch_size: 1
  global_batch_size: 128
ddp:
  use_distributed_optimizer: true
optimizer:
  optimizer: adam
"""
COMMAND = re.compile(r"::(error|warning|notice) (?P<properties>[^\n]*?)::(?P<message>[^\n]*)")


def read(line):
    """(level, properties, message) as the runner of GitHub Actions reads them (actions/runner, ActionCommand.cs)."""
    match = COMMAND.fullmatch(line)
    assert match, line

    def plain(text, more=()):
        for escaped, meant in (("%0D", "\r"), ("%0A", "\n"), *more, ("%25", "%")):
            text = text.replace(escaped, meant)
        return text

    pairs = (one.split("=", 1) for one in match["properties"].split(","))
    properties = {name: plain(value, (("%3A", ":"), ("%2C", ","))) for name, value in pairs}
    return match[1], properties, plain(match["message"])


def run(autoconfig, tmp_path, monkeypatch, text, *options, name="train.sh"):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    done = autoconfig.run("check", name, *options)
    return done, [read(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("text", ["100 % of it: a, b", "two\nlines\r\n", "50%25 :: ,=", "%0A"])
def test_what_is_escaped_is_read_as_it_was(text):
    level, properties, message = read(annotation("error", Path("a,b:c%.sh"), 7, f"t{text}", text))
    assert (level, message) == ("error", text)
    assert properties == {"file": "a,b:c%.sh", "line": "7", "title": f"t{text}"}


def test_rules_stand_on_the_line_of_their_value(autoconfig, tmp_path, monkeypatch):
    """32 heads are no multiple of 3, which line 2 says; sequence parallelism is switched on in line 8."""
    done, said = run(autoconfig, tmp_path, monkeypatch, SCRIPT, "--gpu", "h100", "--format", "github")
    assert done.exit_code == 2
    lines = {properties["title"]: (level, properties["line"]) for level, properties, _ in said}
    assert lines["NV013"] == ("error", "2") and lines["AC001"] == ("error", "8") and lines["better plan"] == ("notice", "2")
    assert all(properties["file"] == "train.sh" for _, properties, _ in said)
    assert (
        "num_attention_heads must be a multiple of tp. Nearest legal plan: --tensor-model-parallel-size 3 -> 4" in done.stdout
    )


def test_rules_of_a_yaml_stand_on_their_keys(autoconfig, tmp_path, monkeypatch):
    options = ("--model", "llama3-8b", "--gpus", "16", "--format", "github")
    done, said = run(autoconfig, tmp_path, monkeypatch, OVERRIDES, *options, name="over.yaml")
    lines = {properties["title"]: properties["line"] for _, properties, _ in said}
    assert done.exit_code == 2 and lines["NV013"] == "4" and lines["AC001"] == "6"


def test_the_same_lines_stand_in_the_json(autoconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SCRIPT)
    found = json.loads(autoconfig.run("check", "train.sh", "--gpu", "h100", "--json").stdout)
    assert {one["rule"]: one["line"] for one in found["rejected_by"]}["NV013"] == 2
    changes = {one["flag"]: one["line"] for one in found["nearest_legal"]["changes"]}
    assert changes["--tensor-model-parallel-size"] == 2 and changes["--pipeline-model-parallel-size"] == 7
    assert changes["--decoder-first-pipeline-num-layers"] is None  # it does not stand in the file


def test_a_plan_that_is_too_slow_fails_the_build(autoconfig, tmp_path, monkeypatch):
    """Four-fold tensor parallelism of 6 billion parameters on 32 GPUs is about half as fast as two-fold."""
    legal = SCRIPT.replace("TP=3", "TP=4").replace("--nnodes 3", "--nnodes 4")
    options = ("--gpu", "h100", "--format", "github")
    done, ((level, properties, message),) = run(autoconfig, tmp_path, monkeypatch, legal, *options, "--fail-slower-than", "10%")
    assert done.exit_code == 4 and level == "error" and properties == {"file": "train.sh", "line": "2", "title": "better plan"}
    assert "--tensor-model-parallel-size 4 -> 2" in message and "more than --fail-slower-than 10.0%" in done.stderr
    found = autoconfig.json("check", "train.sh", "--gpu", "h100")
    slower = found["report"]["step_seconds"] / found["better"]["step_seconds"] - 1
    for share, code in ((slower * 1.01, 0), (slower * 0.99, 4)):
        assert autoconfig.run("check", "train.sh", "--gpu", "h100", "--fail-slower-than", str(share)).exit_code == code


def test_a_plan_that_does_not_fit_says_by_how_much(autoconfig, tmp_path, monkeypatch):
    large = SCRIPT.replace("TP=3", "TP=1").replace("--nnodes 3", "--nnodes 1").replace(" --sequence-parallel", " ")
    done, said = run(autoconfig, tmp_path, monkeypatch, large, "--gpu", "a100-40gb", "--format", "github")
    level, properties, message = next(one for one in said if one[1]["title"] == "does not fit")
    assert done.exit_code == 3 and level == "error" and properties["line"] == "4" and "more than there are" in message


@pytest.mark.parametrize(("text", "line"), [
    ("#!/bin/bash\n\ntorchrun pretrain_gpt.py --num-layers $(cat x) --tensor-model-parallel-size 2\n", "3"),
    ("model:\n  num_layers: 3\n bad: [\n", None),
])  # fmt: skip
def test_what_cannot_be_read_is_an_annotation_too(autoconfig, tmp_path, monkeypatch, text, line):
    done, ((level, properties, message),) = run(autoconfig, tmp_path, monkeypatch, text, "--gpu", "h100", "--format", "github")
    assert done.exit_code == 2 and level == "error" and done.stderr.strip() == f"error: {message}"
    assert line is None or properties["line"] == line


def test_the_start_of_a_server(autoconfig, tmp_path, monkeypatch):
    start = "#!/bin/bash\nvllm serve openai/gpt-oss-120b \\\n  --max-model-len 131072\n"
    options = ("--gpu", "h100", "--format", "github")
    done, said = run(autoconfig, tmp_path, monkeypatch, start, *options)
    assert done.exit_code == 3 and said[0][1]["line"] == "3" and "--max-model-len" in said[0][2]
    done, said = run(autoconfig, tmp_path, monkeypatch, "vllm serve meta-llama/Llama-3.1-8B\n", *options)
    assert done.exit_code == 0 and said == []
    done = autoconfig.run("check", "train.sh", "--gpu", "h100", "--fail-slower-than", "10%")
    assert done.exit_code == 2 and "compares starts at a load: say --isl" in done.stderr
    load = ("--isl", "1000", "--osl", "500", "--concurrency", "256", "--fail-slower-than")
    assert autoconfig.run("check", "train.sh", "--gpu", "h100", *load, "100").exit_code == 2  # 100 is no share
    assert autoconfig.run("check", "train.sh", "--gpu", "h100", *load, "9000%").exit_code == 0


@pytest.mark.parametrize(("options", "message"), [
    (("--format", "github", "--json"), "--json and --format github: give one of them"),
    (("--format", "gitlab"), "'gitlab' is not 'github'"),
    (("--fail-slower-than", "ten"), "is no share; write it like 0.9 or 90%"),
    (("--fail-slower-than", "-0.1"), "give a share from 0 to 100, like 0.1 or 10%"),
])  # fmt: skip
def test_bad_options(autoconfig, tmp_path, options, message):
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT)
    done = autoconfig.run("check", str(file), "--gpu", "h100", *options)
    assert done.exit_code == 2 and message in done.stderr


@pytest.mark.parametrize(("text", "flag", "line"), [
    ("model.tp=2 \\\n  model.pp=4\n", "model.pp", 2),
    ("a: 1\nmodel:\n  seq-length: 4\n", "model.seq_length", 3),
    ("other:\n  mbs: 1\ntrain:\n  mbs: 2\n", "train.mbs", 4),
    ('{"a": 1,\n "tp": 2}', "tp", 2),
    ("[a]\nx = 1\n[training]\n# local_batch_size = 9\nlocal_batch_size = 2\n", "training.local_batch_size", 5),
    ("vllm serve m \\\n  --max-model-len 8\n", "--max-model-len", 2),
    ("vllm serve m --max-model-length 8\n", "--max-model-len", None),
])  # fmt: skip
def test_where_a_key_stands(text, flag, line):
    assert line_in(text, flag) == line
