"""What the export writes, `check` reads back whole: plan, model, numerics, cluster, software, price; torchrun and sbatch."""

import dataclasses
import itertools
import os
import random

import numpy as np
import pytest
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.model_catalogue import model_names
from autoconfig.specs.plan import parse_plan

from autoconfig.megatron.argument_list import megatron_program, split_arguments
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.edit import edited_text
from autoconfig.megatron.scripts import sbatch_script, torchrun_script
from autoconfig.megatron.shell.script import read_script
from autoconfig.training.price import violations
from autoconfig.training.question import Request, understand
from autoconfig.training.rank import rank_plans
from autoconfig.training.space import Constraints, enumerate_space, recompute_options

NUMERICS = (
    {},
    {"precision": "fp16"},
    {"precision": "fp32"},
    {"precision": "fp8"},
    {"precision": "fp8", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
    {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16", "grad_reduce_dtype": "bf16"},
    {"deterministic": True},
    {"hidden_dropout": 0.1, "attention_dropout": 0.1},
)
SOFTWARE = (None, None, None, "megatron-local")
UNSAID = ("name", "sources", "default_seq_length", "default_global_batch_size", "published_parameters")
UNSAID += ("norm_epsilon", "router")
"""Fields of a model that no plan depends on: no argument of Megatron-LM says them, or `check` lists it as without effect."""


def random_plans(scenario, generator, count):
    """Legal plans of a setting, uneven stages, recomputation and sharding included."""
    sharding = generator.choice(
        [Constraints(), Constraints(fixed={"dist_opt": frozenset({False})}), Constraints(fixed={"offload": frozenset({0.5})})]
    )
    layouts = enumerate_space(scenario, sharding).layouts
    options = recompute_options(scenario, Constraints(), scenario.model.num_layers)
    for row in np.array([generator.randrange(len(layouts)) for _ in range(count if len(layouts) else 0)]):
        plan = layouts.plan(int(row), generator.choice(options), scenario.model)
        if not violations(scenario, plan):
            yield plan


def said(model):
    return {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.name not in UNSAID}


def said_gather(scenario, plan):
    """Under torch FSDP2 Megatron-LM switches fp8_param_gather off: it is not written there."""
    return scenario.numerics.fp8_param_gather and not plan.fsdp


def assert_reads_back(scenario, plan, write):
    found = read_check(write(scenario, plan, None), CheckRequest(gpu=scenario.cluster.gpu.id))
    again = found.question.scenario
    assert found.plan == plan and found.unknown == found.notes == () and found.split is None
    assert again.cluster == scenario.cluster and again.workload == scenario.workload
    assert again.numerics == dataclasses.replace(scenario.numerics, fp8_param_gather=said_gather(scenario, plan))
    assert said(again.model) == said(scenario.model)
    assert again.software == scenario.software, str(plan)


def round_trip(scenario_of, seed, count):
    generator = random.Random(seed)
    seen = 0
    while seen < count:
        name, numerics = generator.choice(("dense", "odd", "moe", "mla")), generator.choice(NUMERICS)
        gpu = "h100" if numerics.get("precision") == "fp8" else generator.choice(("a100-80gb", "h100", "b200"))
        software, gpus = generator.choice(SOFTWARE), generator.choice((8, 16, 48, 64))
        if software and numerics.get("precision") == "fp8":
            continue
        scenario = scenario_of(name, gpus=gpus, gpu=gpu, numerics=numerics, software=software)
        for plan in random_plans(scenario, generator, 20):
            for write in (torchrun_script, sbatch_script):
                assert_reads_back(scenario, plan, write)
            seen += 1


def test_whole_scripts_read_back(scenario_of):
    round_trip(scenario_of, 1, 60)


@pytest.mark.soak
def test_a_thousand_exported_plans_read_back(scenario_of):
    round_trip(scenario_of, int(os.environ.get("AUTOCONFIG_SOAK_SEED", "2")), 1000)


def edits(scenario_of, seed, count):
    """Scripts of one plan, edited to another: what they start is what a fresh export of the other starts."""
    generator = random.Random(seed)
    seen = 0
    while seen < count:
        scenario = scenario_of(generator.choice(("dense", "odd", "moe", "mla")), gpus=16, gpu="h100")
        plans = list(random_plans(scenario, generator, 8))
        asked = CheckRequest(gpu="h100")
        for old, new in itertools.pairwise(plans):
            write = generator.choice((torchrun_script, sbatch_script))
            before, fresh = write(scenario, old, None), write(scenario, new, None)
            text = edited_text(read_check(before, asked), new, None, asked)
            edited, written = (read_script(one, megatron_program()).words() for one in (text, fresh))
            given = [{name: one.values for name, one in split_arguments(words).given.items()} for words in (edited, written)]
            assert given[0] == given[1] and "" not in edited
            assert set(comments(text)) == set(comments(fresh))
            seen += 1


def comments(text):
    """All but the titles of sections: a section that was not there is not made."""
    found = (line.partition("  # ")[2] or line for line in text.splitlines() if "# " in line)
    return [line for line in found if not line.startswith("# ---")]


def test_edited_exports_start_what_fresh_ones_start(scenario_of):
    edits(scenario_of, 3, 30)


@pytest.mark.soak
def test_many_edited_exports_start_what_fresh_ones_start(scenario_of):
    edits(scenario_of, int(os.environ.get("AUTOCONFIG_SOAK_SEED", "4")), 1000)


FIRST = {
    "dense": {"model": "llama3-8b", "gpus": 32},
    "dense-tp1": {"model": "llama3.2-1b", "gpus": 8},
    "moe": {"model": "mixtral-8x7b", "gpus": 64},
    "mla": {"model": "deepseek-v2-lite", "gpus": 16},
    "fp8": {"model": "llama3-70b", "gpus": 64, "numerics": {"precision": "fp8"}},
    "deterministic": {"model": "llama3-8b", "gpus": 16, "numerics": {"deterministic": True}},
}


@pytest.mark.parametrize("write", [torchrun_script, sbatch_script])
@pytest.mark.parametrize("name", FIRST)
def test_check_has_nothing_to_add_to_a_fresh_export(name, write):
    scenario = understand(Request(gpu="h100", **FIRST[name])).scenario
    ranking = rank_plans(scenario)
    plan = ranking.plan(0)
    answer = check(read_check(write(scenario, plan, None), CheckRequest(gpu="h100")))
    assert answer.violations == () and answer.report.fits and answer.better is None and answer.changes == ()
    assert answer.report.step_seconds == pytest.approx(float(ranking.step_seconds[0]), rel=1e-12)
    if name == "dense-tp1":
        assert plan.tp == 1


NOT_WRITTEN = ("bloom", "falcon", "gemma", "gpt-j", "gpt-neox", "opt")
"""Families that Megatron-LM has no arguments for."""


@pytest.mark.parametrize("name", [name for name in model_names() if not name.startswith(NOT_WRITTEN)])
def test_every_model_reads_back_whole(name):
    scenario = understand(Request(model=name, gpus=8, gpu="h100", seq_length=1024, global_batch_size=8)).scenario
    scaling = scenario.model.rope_scaling
    if scaling is not None and scaling.type == "other":  # Megatron-LM has no argument for it; the script says so
        assert "NOT WRITTEN" in torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)
        scenario = dataclasses.replace(scenario, model=scenario.model.replace(rope_scaling=None))
    assert_reads_back(scenario, parse_plan("tp=1,mbs=1", 8), torchrun_script)


@pytest.mark.parametrize("name", [name for name in model_names() if name.startswith(NOT_WRITTEN)])
def test_models_without_arguments_are_refused(name):
    scenario = understand(Request(model=name, gpus=8, gpu="h100", seq_length=1024, global_batch_size=8)).scenario
    with pytest.raises(UnsupportedError, match="no argument for it"):
        torchrun_script(scenario, parse_plan("tp=1,mbs=1", 8), None)
