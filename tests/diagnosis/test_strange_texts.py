"""Texts that people paste: sentences, other tools' lines, dumps. No line of them is guessed at, none is a launch file, and what
would settle the case is said. And launch files of every framework, which are still known by their own signs."""

from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.diagnosis.launch_files import is_launch_file
from autoconfig.evidence.read import read_texts
from autoconfig.megatron.check_input import CheckRequest, check_request
from autoconfig.training.question import request_of

GIVEN = {"model": "llama3-8b", "gpus": "16", "gpu": "h100", "seq_length": "8192", "global_batch_size": "64"}
PLAN = "tp=2,mbs=1,sp=1"
TEXTS = {
    "sentences": "backward: 1.2 s\noptimizer: 0.4 s\nwaiting: most of it\n",
    "one sentence": "Since we moved to the new cluster one update takes 9 seconds, before it was 5.\n",
    "issue": "## Bug\n\nThroughput halves after 2k steps.\n\n- 8 x H100\n- ZeRO-2\n\nAny idea?\n@maintainer could you look?\n",
    "flags in prose": "I pass --overlap-grad-reduce and --overlap-param-gather but the trace shows no overlap\n",
    "bullets": "- set --tp-comm-overlap\n- set --sequence-parallel\nno change, still 6 s\n",
    "bracketed": "[12:01:07] epoch 3 done in 512 s\n[12:09:41] epoch 4 done in 514 s\n[12:18:02] epoch 5 done in 501 s\n",
    "ranks": "[rank3]: waited 0.8 s in barrier\n[rank5]: waited 0.1 s in barrier\n",
    "section": "[Training]\nit got slower\n",
    "json lines": '{"step": 10, "dt": 4.2}\n{"step": 20, "dt": 4.1}\n',
    "json object": '{"avg_step": 4.2, "policy": "31 s", "services": "none"}\n',
    "trainer state": '{\n"global_step": 9,\n"log_history": [{"loss": 1.0, "step": 9}],\n"train_batch_size": 4\n}\n',
    "json list": '[{"name": "a", "took": 1}, {"name": "b", "took": 3}]\n',
    "dicts": "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'epoch': 0.1}\n{'loss': 2.2, 'epoch': 0.2}\n",
    "kernel": "[Tue Mar  4 10:11:12 2025] NVRM: Xid (PCI:0000:3b:00): 63, pid=99, Row Remapper\n[Tue Mar  4 10:11:13 2025] x\n",
    "phases": "policy: 31.2\ngeneration: 80.1\nlogprobs: 20.0\n",
    "settings": "lr: 3e-4\nwarmup: 2000\nweight_decay: 0.1\n",
    "traceback": 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nRuntimeError: NCCL timeout\n',
    "logger": "--- Logging error ---\nINFO:root:started\n--- end ---\n",
    "loss": "step 100, loss 2.3, 12 s since the last print\n",
    "python said": "from 4.1 to 8.3 s after the upgrade\nimport of torch is slow, too\n",
    "command within": "Launched with torchrun --nproc_per_node 8 train.py on two nodes.\nOne step takes 9 s.\nWhy?\n",
    "empty lines": "\n\n\n",
}


def diagnosed(files, plan=None, **given):
    return diagnose_texts(files, plan, given, lambda: request_of(given), CheckRequest())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_of_no_tool_is_counted_and_says_nothing(text):
    for found in (diagnosed({"evidence.log": text}), diagnosed({"evidence.log": text}, PLAN, **GIVEN)):
        (file,) = found.case.evidence.files
        lines = sum(bool(line.strip()) for line in text.splitlines())
        assert (found.verdict, found.causes, file.kind, file.lines_not_understood) == ("not_enough", (), "log", lines)
        assert any("--step" in one.evidence for one in found.missing) and found.measured is None
    assert not any("PLAN" in one.evidence for one in found.missing if one.rules == ("R09", "R12"))


def test_what_is_missing_names_every_rule_that_is_open():
    """A sentence proves nothing and rules nothing out, a release that changed neither."""
    found = diagnosed({"evidence.log": TEXTS["one sentence"]})
    assert {rule for one in found.missing for rule in one.rules} == {f"R{number:02d}" for number in range(1, 19)}


def test_two_such_texts_are_two_texts():
    found = diagnosed({"a": TEXTS["phases"], "b": TEXTS["dicts"]}, PLAN, **GIVEN)
    assert found.verdict == "not_enough" and [one.kind for one in found.case.evidence.files] == ["log", "log"]


SCRIPT = (
    "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000\n"
)
FIELD = Path(__file__).parents[2] / "validation" / "tables" / "field"
LAUNCH = {
    "arguments": "--num-layers 32 --hidden-size 4096 \\\n  --micro-batch-size 1\n",
    "array": 'ARGS=(\n  --tensor-model-parallel-size 4\n  --pipeline-model-parallel-size 2\n)\ntorchrun x.py "${ARGS[@]}"\n',
    "batch": "#!/bin/bash\n#SBATCH --nodes=4\nsrun bash train.sh\n",
    "variable": "export WORLD=16\n$PYTHON pretrain_gpt.py --num-layers 8\n",
    "axolotl": "base_model: meta-llama/Llama-3.1-8B\ntemperature: 0.7\nsequence_len: 4096\n",
    "deepspeed": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}\n',
    "titan": "[training]\nlocal_batch_size = 1\n",
    "hydra": "actor_rollout_ref:\n  model:\n    path: x\n",
    "python": "import torch\n\ndef main():\n    train()\n",
}


@pytest.mark.parametrize("text", LAUNCH.values(), ids=LAUNCH)
def test_a_launch_file_is_known_by_its_own_signs(text):
    assert read_texts({"x": text}, is_launch_file).files[0].kind == "launch"
    assert read_texts({"x": text}).steps == () and read_texts({"x": text}, is_launch_file).clocks == ()


@pytest.mark.parametrize("name", ["batch", "python", "hydra"])
def test_a_launch_file_alone_that_says_no_plan_is_not_enough(name):
    found = diagnosed({"run": LAUNCH[name]})
    assert (found.verdict, found.causes) == ("not_enough", ()) and "the plan of run cannot be read: " in found.missing[
        0
    ].evidence
    beside = diagnosed({"run": LAUNCH[name], "log": TEXTS["sentences"]})
    assert (beside.verdict, beside.missing[0].evidence) == (found.verdict, found.missing[0].evidence)


def test_what_the_caller_says_wrongly_is_his_error():
    with pytest.raises(InputError, match="nosuch"):
        diagnose_texts({"run.sh": SCRIPT}, None, {"gpu": "nosuch"}, None, check_request({"gpu": "nosuch"}))


def test_launch_files_of_every_framework_are_known():
    files = [path for path in sorted(FIELD.iterdir()) if path.suffix in (".sh", ".yaml", ".yml", ".toml")]
    assert len(files) > 40
    kinds = read_texts({path.name: path.read_text(encoding="utf-8") for path in files[:64]}, is_launch_file).files
    assert [one.name for one in kinds if one.kind != "launch"] == []
