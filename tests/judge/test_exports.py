"""Exported scripts, started against stand-in launchers, and what the real megatron-core says of their arguments."""

import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from autoconfig.specs.plan import parse_plan
from tables import table

from autoconfig.formats.check import read_any
from autoconfig.formats.export import export_texts
from autoconfig.megatron.batch.scripts import SBATCH_SCRIPT, TORCHRUN_SCRIPT
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.megatron.flag_table import words
from autoconfig.megatron.write import mock_arguments, train_arguments
from autoconfig.planning.export_files import write_export
from autoconfig.training.price import report_plan
from autoconfig.training.question import Request, request_of, understand
from autoconfig.training.rank import rank
from validation.judge.agreement import Case, Judged
from validation.judge.client import launch_of

FIRST = None
"""The plan that the search puts first."""
FP8 = {"precision": "fp8"}
EXPORTS = table(__file__, "exports")


@cache
def exported(name):
    """(scenario, plan, texts of the files)."""
    model, gpus, gpu, text, given = EXPORTS[name]
    question = understand(request_of({"model": model, "gpus": gpus, "gpu": gpu, **given}))
    scenario = question.scenario
    plan = parse_plan(text, gpus) if text else rank(scenario, question.constraints, 0.0).plan(0)
    return scenario, plan, export_texts(scenario, plan, report_plan(scenario, plan), "megatron")


def written(name, folder):
    scenario, plan, texts = exported(name)
    write_export(folder, texts)
    return scenario, plan


ANSWERS = {}
"""Both scripts of a plan mostly start the same words, which the judge is asked for once."""


def judged(judge, launch, cluster):
    keep = {k: v for k, v in launch.environment.items() if k.startswith(("CUDA_", "NCCL_", "NVTE_", "CUBLAS_"))}
    question = (tuple(launch.arguments), cluster.num_gpus, tuple(sorted(keep.items())), cluster.gpu.compute_capability)
    if question not in ANSWERS:
        ANSWERS[question] = judge.arguments(launch.arguments, cluster.num_gpus, keep, cluster.gpu.compute_capability)
    return ANSWERS[question]


@pytest.mark.parametrize("script", [TORCHRUN_SCRIPT, SBATCH_SCRIPT])
@pytest.mark.parametrize("name", EXPORTS)
def test_every_exported_script_passes_the_judge(judge, tmp_path, name, script):
    scenario, plan = written(name, tmp_path)
    cluster = scenario.cluster
    subprocess.run(["bash", "-n", tmp_path / script], check=True, timeout=30)
    subprocess.run([Path(sys.executable).parent / "shellcheck", tmp_path / script], check=True, timeout=60)
    real = {"DATA_PATH": "0.7 /data/a 0.3 /data/b", "TOKENIZER_MODEL": "/tok", "CHECKPOINT_DIR": "/ckpt", "TRAIN_STEPS": "7"}
    logged = {"TENSORBOARD_DIR": "/board", "WANDB_PROJECT": "mine", "DATA_CACHE_PATH": "/cache", "WARMUP_STEPS": "3"}
    known = {"0.7", "/data/a", "0.3", "/data/b", "/data/words", "/tok", "/ckpt", "7"}
    for variables in ({}, {**real, **logged}, {**real, "DATA_PATH": "", "DATA_ARGS_PATH": "/data/words"}):
        launch = launch_of(tmp_path / script, PERMUTE_FUSION="no", **variables)
        options = dict(zip(launch.launcher[::2], launch.launcher[1::2], strict=False))
        assert int(options["--nproc-per-node"]) * int(options["--nnodes"]) == cluster.num_gpus == plan.world_size
        wanted = {*variables.get("DATA_PATH", "").split(), variables.get("DATA_ARGS_PATH", "")} - {""}
        assert known & {*launch.arguments} == (wanted | {"/tok", "/ckpt", "7"} if variables else set())
        answer = judged(judge, launch, cluster)
        assert answer["accepted"], answer
        assert answer["changed"] == {}, "megatron runs something else than the plan says"


def test_rope_is_fused_only_where_transformer_engine_is(tmp_path):
    written("llama-first", tmp_path)
    for script in (TORCHRUN_SCRIPT, SBATCH_SCRIPT):
        assert "--no-rope-fusion" not in launch_of(tmp_path / script, ROPE_FUSION="yes").arguments
        assert "--no-rope-fusion" in launch_of(tmp_path / script, ROPE_FUSION="no").arguments
    assert "--no-rope-fusion" in launch_of(tmp_path / TORCHRUN_SCRIPT).arguments, "no Transformer Engine beside the stand-ins"
    assert "--no-rope-fusion" not in launch_of(tmp_path / SBATCH_SCRIPT).arguments, "the batch host is not asked"


@pytest.mark.parametrize("name", ["llama-fp8", "deepseek-uneven", "llama-fsdp"])
def test_a_script_hands_over_the_argument_list(tmp_path, name):
    scenario, plan = written(name, tmp_path)
    wanted = words(train_arguments(scenario, plan))
    for script in (TORCHRUN_SCRIPT, SBATCH_SCRIPT):
        assert launch_of(tmp_path / script).arguments[: len(wanted)] == wanted


def test_the_judge_reads_as_the_published_experiment_does(judge, tmp_path):
    """No variable of ours is needed: a bare environment with foreign Slurm variables starts, too."""
    scenario, _ = written("llama-first", tmp_path)
    launch = launch_of(tmp_path / SBATCH_SCRIPT, SLURM_NNODES="1", SLURM_JOB_ID="1", MASTER_ADDR="localhost")
    assert judge.arguments(launch.arguments, scenario.cluster.num_gpus, launch.environment, 9.0)["accepted"]


@pytest.mark.parametrize("plans", [10, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("model", "gpus"),
    [("llama3-8b", 24), ("mixtral-8x7b", 32), ("deepseek-v2-lite", 16), ("gpt3-7.5b", 48), ("qwen3-30b-a3b", 64)],
)
def test_plans_that_we_rank_are_accepted(judge, model, gpus, plans):
    question = understand(Request(model=model, gpus=gpus, gpu="h100-sxm-80gb", global_batch_size=192))
    ranking = rank(question.scenario, question.constraints, 0.0)
    chosen = random.Random(model).sample(range(len(ranking.row)), plans)
    for position in chosen:
        plan = ranking.plan(position)
        answer = judge.plan(question.scenario, plan)
        assert answer["accepted"] and not answer["changed"], (str(plan), answer)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("deepseek-v3", "tp=1,pp=16,vpp=2,ep=4,mbs=1,first=3,last=2"),
        ("deepseek-v3", "tp=1,pp=4,vpp=4,ep=16,mbs=1,first=16,last=13"),
        ("llama3.1-405b", "tp=8,pp=8,vpp=4,mbs=1,sp=1,first=15,last=15"),
        ("qwen3-235b-a22b", "tp=1,pp=8,vpp=6,ep=8,mbs=1,first=12,last=10,recompute=full:uniform:1"),
    ],
)
def test_pipeline_layouts_are_accepted(judge, model, text):
    scenario = understand(Request(model=model, gpus=64, gpu="b200", global_batch_size=128)).scenario
    answer = judge.plan(scenario, parse_plan(text, 64))
    assert answer["accepted"] and not answer["changed"], answer


def test_refusals_name_their_stage(judge):
    scenario = understand(Request(model="llama3-8b", gpus=16, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    for text, stage in (
        ("tp=2,pp=3,mbs=1", "arguments"),
        ("tp=2,pp=2,vpp=3,mbs=1", "config"),
        ("tp=1,pp=4,vpp=2,mbs=8,dp=4", "schedule"),
        ("tp=1,pp=4,etp=8,mbs=1", "groups"),
    ):
        answer = judge.plan(scenario, parse_plan(text, 16))
        assert (answer["accepted"], answer["stage"]) == (False, stage), answer
        assert answer["message"] and answer["where"].startswith("megatron/")


def test_a_question_leaves_no_trace_in_the_next(judge):
    """One process answers many questions: determinism, environment and process groups of one must not reach the next."""
    scenario = understand(Request(model="llama3-8b", gpus=16, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    good, bad = parse_plan("tp=2,pp=2,vpp=4,mbs=1,sp=1", 16), parse_plan("tp=2,pp=2,vpp=4,mbs=1,sp=1,fsdp=3", 16)
    listed = words(mock_arguments(scenario, good))
    deterministic = judge.arguments([*listed, "--deterministic-mode"], 16, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, 9.0)
    assert not deterministic["accepted"] and "tp_comm_overlap" in deterministic["message"]
    for _ in range(3):
        assert judge.plan(scenario, good)["accepted"] and not judge.plan(scenario, bad)["accepted"]
    refused = judge.arguments(listed, 16, {}, 9.0)
    assert not refused["accepted"] and "CUDA_DEVICE_MAX_CONNECTIONS" in refused["message"]


def test_an_unknown_argument_is_refused(judge):
    scenario = understand(Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb")).scenario
    listed = words(mock_arguments(scenario, parse_plan("tp=1,pp=1,mbs=1", 8)))
    answer = judge.arguments([*listed, "--no-such-flag"], 8, {}, 9.0)
    assert answer["kind"] == "SystemExit" and "--no-such-flag" in answer["message"]


def test_the_page_is_that_of_these_rules():
    from autoconfig.training.rules import RULE_TEXT

    page = (Path(__file__).parents[2] / "docs" / "legality.md").read_text(encoding="utf-8")
    assert all(f"| {rule} |" in page for rule in RULE_TEXT)


def test_what_megatron_changes_silently_is_a_disagreement(judge):
    """fp8_param_gather under torch FSDP2 is switched off with a warning: written, it is seen; exports leave it out."""
    numerics = {"precision": "fp8", "fp8_recipe": "tensorwise", "fp8_param_gather": True}
    request = Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", global_batch_size=64, numerics=numerics)
    scenario, plan = understand(request).scenario, parse_plan("tp=1,pp=1,mbs=1,dist_opt=0,fsdp=3", 8)
    case = Case(kind="GQA", scenario=scenario, plan=plan)
    assert Judged(case=case, broken=(), answer=judge.plan(scenario, plan)).agrees
    listed = [*words(mock_arguments(scenario, plan)), "--fp8-param-gather"]
    answer = judge.arguments(listed, 8, {}, 9.0)
    assert answer["accepted"] and answer["changed"] == {"fp8_param_gather": [True, False]}
    assert not Judged(case=case, broken=(), answer=answer).agrees
    off = parse_plan("tp=1,pp=1,mbs=1,sp=1", 8)
    silent = judge.plan(scenario, off)
    assert silent["changed"] == {"sequence_parallel": [True, False]}
    assert Judged(case=case, broken=("NV046",), answer=silent).agrees and not Judged(case=case, broken=(), answer=silent).agrees


ENCODERS = [
    ("t5-11b", 8, "tp=8,mbs=4,sp=1", "examples/t5/pretrain_t5.py"),
    ("mt5-3b", 16, "tp=2,mbs=8,recompute=full:uniform:1", "examples/t5/pretrain_t5.py"),
    ("bert-20b", 64, "tp=8,pp=4,mbs=4,sp=1", "examples/bert/pretrain_bert.py"),
    ("bert-4b", 16, "tp=1,pp=4,vpp=2,mbs=2", "examples/bert/pretrain_bert.py"),
]


@pytest.mark.parametrize("script", [TORCHRUN_SCRIPT, SBATCH_SCRIPT])
@pytest.mark.parametrize(("model", "gpus", "text", "program"), ENCODERS)
def test_scripts_of_t5_and_bert_pass_the_judge(judge, tmp_path, model, gpus, text, program, script):
    scenario = understand(Request(model=model, gpus=gpus, gpu="h100")).scenario
    plan = parse_plan(text, gpus)
    write_export(tmp_path, export_texts(scenario, plan, None, "megatron"))
    subprocess.run([Path(sys.executable).parent / "shellcheck", tmp_path / script], check=True, timeout=60)
    assert f"$MEGATRON_PATH/{program}" in (tmp_path / script).read_text()
    with pytest.raises(RuntimeError, match="no mock data"):
        launch_of(tmp_path / script)
    launch = launch_of(tmp_path / script, DATA_PATH="0.5 /data/a 0.5 /data/b", VOCAB_FILE="/words")
    assert {"/data/a", "/data/b", "/words"} <= set(launch.arguments)
    keep = {k: v for k, v in launch.environment.items() if k.startswith(("CUDA_", "NCCL_", "NVTE_"))}
    answer = judge.arguments(launch.arguments, gpus, keep, 9.0)
    assert answer["accepted"] and answer["changed"] == {}, answer


@pytest.mark.parametrize("name", EXPORTS)
def test_a_log_says_the_plan_of_the_script_that_was_run(judge, tmp_path, name):
    scenario, plan = written(name, tmp_path)
    launch = launch_of(tmp_path / TORCHRUN_SCRIPT, PERMUTE_FUSION="no")
    answer = judged(judge, launch, scenario.cluster)
    assert answer["accepted"], answer
    request = CheckRequest(gpu=scenario.cluster.gpu.id, software=scenario.software.name)
    found = read_any(answer["printed"], request)
    assert found.plan == plan and found.question.scenario.cluster.num_gpus == scenario.cluster.num_gpus
    script = read_any((tmp_path / TORCHRUN_SCRIPT).read_text(), CheckRequest())
    ours, theirs = found.question.scenario, script.question.scenario
    assert (ours.workload, ours.numerics) == (theirs.workload, theirs.numerics)
    assert found.not_modelled == script.not_modelled and found.unknown == ()
