"""The file with the better plan in it: only the arguments that change, in place, refused where it cannot be."""

import difflib
import os
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentences
from check_help import LEGAL, checked, script
from tables import tabled

from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.edit import edited_text, improved_text

SCRIPTS = Path(__file__).parent / "scripts"


def test_only_changed_arguments_are_edited(tmp_path):
    text = script("--tensor-model-parallel-size $TP --micro-batch-size 1 --global-batch-size 64", "TP=8   # all of the node\n")
    answer, asked = checked(text)
    edited = improved_text(answer, asked)
    assert answer.better is not None
    again, _ = checked(edited)
    assert again.source.plan == answer.better.plan and again.better is None
    assert "TP=1   # all of the node" in edited
    kept = [line for line in text.splitlines() if line not in edited.splitlines()]
    assert all("TP=8" in line or "--tensor-model-parallel-size" in line for line in kept)


@tabled
def test_public_scripts_are_improved_in_place(name):
    settings = {"vocab_size": "50257"} | ({"SLURM_NNODES": "8"} if "mixtral" in name else {})
    text = (SCRIPTS / f"{name}.sh").read_text()
    asked = CheckRequest(gpu="h100", settings=settings)
    answer = check(read_check(text, asked))
    if answer.source.undecided:  # an optimizer whose state is not known: no plan is said to be better, or to fit
        assert "--optimizer ademamix" in text and answer.better is None
        return
    assert answer.better is not None
    edited = improved_text(answer, asked)
    assert read_check(edited, asked).plan == answer.better.plan
    diff = [line for line in difflib.ndiff(text.splitlines(), edited.splitlines()) if line[0] in "+-"]
    assert 1 <= len(diff) <= 2 * (len(answer.changes) + len(answer.environment)) + 2
    assert sentences(read_check(edited, asked).unknown) == sentences(read_check(text, asked).unknown)


def test_what_cannot_be_edited_is_refused_with_the_changes_by_hand():
    text = script("--tensor-model-parallel-size $((2*4)) --micro-batch-size 1 --global-batch-size 64")
    answer, asked = checked(text)
    with pytest.raises(InputError, match=r"worked out .*Nothing was written.*--tensor-model-parallel-size 8 -> 1"):
        improved_text(answer, asked)
    shared = script("--tensor-model-parallel-size $N --micro-batch-size 1 --global-batch-size $((64/8*N))", "N=8\n")
    answer, asked = checked(shared)
    with pytest.raises(InputError, match="cannot be edited"):
        improved_text(answer, asked)


def test_apply_to_is_atomic_and_keeps_the_mode(autoconfig, tmp_path):
    run = tmp_path / "run.sh"
    run.write_text(script(LEGAL))
    run.chmod(0o755)
    as_it_was = run.read_bytes()
    refused = autoconfig.run("check", str(run), "--gpu", "a100-80gb", "--apply-to", str(run))
    assert refused.exit_code == 2 and "--force" in refused.stderr and run.read_bytes() == as_it_was
    assert autoconfig.run("check", str(run), "--gpu", "a100-80gb", "--apply-to", str(run), "--force").exit_code == 0
    assert "--tensor-model-parallel-size 1" in run.read_text() and os.stat(run).st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    before = run.read_bytes()
    result = autoconfig.run("check", str(run), "--gpu", "a100-80gb", "--apply-to", str(run), "--force")
    assert result.exit_code == 2 and "nothing to change" in result.stderr and run.read_bytes() == before
    assert autoconfig.run("check", str(run), "--apply-to", str(tmp_path / "no" / "x.sh")).exit_code == 2


def edited(old, new):
    """The words of a script with the plan `old` after it was edited to `new`."""
    answer, asked = checked(script(old, "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"))
    return edited_text(answer.source, parse_plan(new, 8), None, asked)


BATCH = "--global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"


def test_removed_arguments_leave_nothing_behind():
    old = (
        f"{BATCH} --tensor-model-parallel-size '2' --sequence-parallel --tp-comm-overlap --micro-batch-size 1 \\\n"
        "    --recompute-granularity 'full' \\\n    --recompute-method \"uniform\" --recompute-num-layers '1'"
    )
    text = edited(old, "tp=1,pp=1,mbs=1")
    assert "recompute" not in text and "''" not in text and '""' not in text and "parallel  " not in text
    assert "--tensor-model-parallel-size '1' --micro-batch-size 1" in text and "tp-comm" not in text


def test_a_plan_that_needs_the_environment_gets_it():
    old = f"{BATCH} --tensor-model-parallel-size 1 --micro-batch-size 1"
    answer, asked = checked(script(old))
    text = edited_text(answer.source, parse_plan("tp=2,sp=1,pp=1,mbs=1", 8), None, asked)
    assert text.splitlines()[1] == "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    assert "--tp-comm-overlap" in text and "--sequence-parallel" in text


NEWER = "--attention-backend auto --micro-batch-size 1 --global-batch-size 64"
"""Today's Megatron-LM with none of the overlaps."""


@tabled
def test_scripts_without_overlap_arguments_are_edited(old, new):
    answer, asked = checked(script(f"{old} {NEWER}"))
    assert answer.source.question.scenario.software.name == "transformer-engine"
    plan = parse_plan(new, 8)
    text = edited_text(answer.source, plan, None, asked)
    assert read_check(text, asked).plan == plan and "--overlap-" not in text and "--recompute-activations" not in text
    assert ("--recompute-granularity selective" in text) == ("recompute" in new)
