"""Counts and batches without a legal plan: an answer in Python, on the command line, in a comparison; never an error."""

import json

import pytest

import autoconfig as api
from autoconfig.training.question import Request, understand
from autoconfig.training.space import enumerate_space


def has_plan(gpus, batch):
    question = understand(Request(model="llama3-70b", gpu="h100", gpus=gpus, global_batch_size=batch))
    return enumerate_space(question.scenario, question.constraints).legal > 0


def test_a_count_without_a_legal_plan_is_an_answer_that_names_the_nearest():
    """1,000 GPUs have the factor 125, of which 80 layers, 64 heads and batch 512 take nothing."""
    found = api.search(model="llama3-70b", gpu="h100", gpus=1000, global_batch_size=512)
    none = found.nothing_legal
    assert found.best is None and found.plans.empty and "1,000 GPUs have the factor 125" in none.why
    assert "global_batch_size 500 or 600, or gpus 960 or 1024" in none.why, "as Python spells its keywords"
    assert (none.global_batch_sizes, none.num_gpus) == ((500, 600), (960, 1024)) and found.other_batch.global_batch_size == 500
    assert [has_plan(1000, batch) for batch in none.global_batch_sizes] == [has_plan(gpus, 512) for gpus in none.num_gpus]
    assert not any(has_plan(1000, batch) for batch in range(501, 524)), "none is nearer than 500"
    assert not any(has_plan(gpus, 512) for gpus in range(968, 1024, 8))
    assert "No legal plan for llama3-70b on 1000 GPUs" in " ".join(repr(found).split())


def test_a_sweep_never_raises():
    """Every count up to a node and whole nodes beyond, with the usual batch and one that few counts divide, wishes too."""
    for wish in ({}, {"global_batch_size": 500}, {"global_batch_size": 7, "fix": "tp=8"}, {"exclude": "pp=1"}):
        for gpus in (*range(1, 8), *range(8, 129, 24), 1000):
            found = api.search(model="llama3-8b", gpu="h100", gpus=gpus, top=1, **wish)
            assert bool(found.funnel.legal) == (found.nothing_legal is None), (gpus, wish)
            assert found.nothing_legal is not None or found.best is not None or found.nearest_miss is not None


def test_the_command_ends_with_3_and_a_comparison_says_which(autoconfig):
    asked = ("search", "--model", "llama3-70b", "--gpus", "1000", "--global-batch-size", "512")
    run = autoconfig.run(*asked)
    text = " ".join(run.stdout.split())
    assert run.exit_code == 3 and "No legal plan for llama3-70b" in text and "--global-batch-size 500 or 600" in text
    assert "Nothing fits" not in text
    assert json.loads(autoconfig.run(*asked, "--json").stdout)["nothing_legal"]["num_gpus"] == [960, 1024]
    compared = autoconfig.run(*asked, "--gpu", "h100", "--gpu", "b200")
    assert compared.exit_code == 3 and compared.stdout.count("no legal plan") == 2
    export = autoconfig.run(*asked, "--export", "never")
    assert export.exit_code == 3 and "no plan is legal" in export.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    ("llama3-70b --gpus 8 --fix tp=7", "tp=7 is not among tp = 1, 2, 4, 8."),
    ("llama3-70b --gpus 8 --fix pp=16", "pp=16 is not among pp = 1, 2, 4, 8; try --gpus 16"),
    ("llama3-8b --gpus 1024 --global-batch-size 1 --max cp=1", "with global batch 1 is left by --fix, --max and --exclude"),
    ("8b --gpus 1024 --global-batch-size 7", "most are stopped by NV007"),
    ("8b --gpus 1024 --global-batch-size 7", "try --global-batch-size 8"),
])  # fmt: skip
def test_the_reason_is_the_rule_or_the_wish(autoconfig, arguments, said):
    run = autoconfig.run("search", "--model", *arguments.split())
    assert run.exit_code == 3 and said in " ".join(run.stdout.split()), run.stdout
