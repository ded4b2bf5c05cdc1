"""The skill: its head as agents read it, and every command in it, run."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.xdist_group("skill")
SKILL = Path(__file__).parents[3] / "skills" / "autoconfig" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (autoconfig .*)$", TEXT, re.MULTILINE)
FILES = {
    "train.sh": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 8 --global-batch-size 256 --bf16 --vocab-size 50257 "
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n",
    "serve.sh": "vllm serve meta-llama/Llama-3.1-8B\n",
    "run.log": "node1:77:99 [0] NCCL INFO Using network Socket\n"
    + "".join(
        f" iteration {n}/ 900 | elapsed time per iteration (ms): 5600.0 | global batch size: 64 |\n" for n in range(1, 30)
    ),
}
KEYS = re.findall(r"`([a-z_]+)(?:\[\d*\])?`", TEXT.split("## How to read an answer")[1].split("## Recipes")[0])


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Command -> what ran."""
    from command_line import run_in_process

    place = tmp_path_factory.mktemp("skill")
    for name, text in FILES.items():
        (place / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return {command: run_in_process(*shlex.split(command)[1:]) for command in COMMANDS}


def test_its_head_names_it():
    head = yaml.safe_load(TEXT.split("---\n")[1])
    assert head["name"] == SKILL.parent.name == "autoconfig" and 40 < len(head["description"]) <= 1024
    assert len(TEXT.splitlines()) < 70


@pytest.mark.long
def test_every_command_runs(answers):
    assert len(answers) >= 13
    for command, done in answers.items():
        assert done.exit_code in (0, 3, 4) and "Traceback" not in done.output, (command, done.stderr)
        if "--json" in command:
            assert json.loads(done.stdout), command


@pytest.mark.long
def test_every_key_that_it_names_is_in_an_answer(answers):
    named = set(KEYS) - {"config.json", "certain", "likely", "consistent", "explain", "export", "check", "diagnose"}
    text = "".join(done.stdout for done in answers.values())
    assert named and [key for key in named if f'"{key}"' not in text] == []


def test_its_lists_are_commands(autoconfig):
    for name in ("models", "gpus", "software"):
        assert (autoconfig.run(name).exit_code == 0 and f"`{name}`" in TEXT) or f"`autoconfig {name}`" in TEXT
