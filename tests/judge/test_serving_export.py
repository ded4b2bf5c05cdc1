"""Inference scripts, Megatron-FSDP's rules, published recipes and a service's scripts before Megatron-LM's own code."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.plan import parse_plan

from autoconfig.client import Client
from autoconfig.engines.export import export_texts
from autoconfig.megatron.argument_list import split_arguments
from autoconfig.megatron.batch.scripts import SBATCH_SCRIPT, TORCHRUN_SCRIPT
from autoconfig.megatron.flag_table import words
from autoconfig.megatron.refusals import connections_violation, fsdp_violations
from autoconfig.megatron.write import mock_arguments
from autoconfig.runs.table import cell
from autoconfig.serving.answer import answer
from autoconfig.serving.request import ServeRequest
from autoconfig.training.question import Request, understand
from tests.api.conftest import start
from validation.judge.audit import ILLEGAL, audit_file
from validation.judge.client import launch_of
from validation.judge.engine_arguments import arguments_of
from validation.judge.page import TABLE, judged_recipes


@pytest.mark.filterwarnings("ignore")  # of torch and megatron-core at import
@pytest.mark.parametrize("fix", [("tp=2", "weights=bf16"), ("tp=1", "pp=2", "weights=fp8")])
def test_megatron_reads_every_inference_argument(tmp_path, fix):
    from megatron.training.arguments import add_megatron_arguments

    request = ServeRequest(model="llama3-8b", gpus=2, engine="megatron", fix=fix, simulate=0, disaggregated=False)
    found = answer(request)
    plan = found.reports[0].plan.decode
    script = tmp_path / "serve.sh"
    script.write_text(export_texts(found.question, found.reports[0])["serve.sh"], encoding="utf-8")
    program, arguments = arguments_of(script)
    assert program == "torchrun" and arguments[2] == "megatron/tools/run_text_generation_server.py"
    read, unknown = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)).parse_known_args(arguments[3:])
    assert unknown == ["--port", "8000"]  # the server's own
    assert (read.tensor_model_parallel_size, read.pipeline_model_parallel_size) == (plan.tp, plan.pp)
    assert read.inference_dynamic_batching
    assert read.inference_dynamic_batching_max_tokens == max(plan.tokens, 1000 + 128)  # prompts are not cut; slack
    assert read.inference_max_seq_length == 2128 and (read.fp8 is not None) == (plan.weights == "fp8")


FSDP = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy"]
SOUND = [*FSDP, "optim_grads_params", "--ckpt-format", "fsdp_dtensor"]


def asked(judge, more, variables=None):
    """One process of 8 GPUs; what `more` repeats counts last, as in argparse."""
    scenario = understand(Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    listed = [*words(mock_arguments(scenario, parse_plan("tp=1,pp=1,mbs=1", 8))), *more]
    broken = [violation.rule for violation in fsdp_violations(split_arguments(listed))]
    return broken, judge.arguments(listed, 8, variables or {}, 9.0)


@pytest.mark.parametrize(("more", "broken"), [
    (SOUND, []),
    ([*FSDP, "optim", "--ckpt-format", "fsdp_dtensor"], []),
    ([*FSDP, "optim_grads_params"], ["NV102"]),
    ([*SOUND, "--optimizer", "muon"], ["NV102"]),
    ([*SOUND, "--check-weight-hash-across-dp-replicas-interval", "10"], ["NV102"]),
    ([*FSDP, "no_shard", "--ckpt-format", "fsdp_dtensor", "--init-model-with-meta-device"], ["NV105"]),
    ([*SOUND, "--fsdp-manual-registration"], ["NV108"]),
    ([*SOUND, "--fsdp-manual-registration", "--use-nccl-ub"], []),
])  # fmt: skip
def test_the_judge_refuses_what_breaks_a_rule(judge, more, broken):
    ours, answer = asked(judge, more)
    assert ours == broken and answer["accepted"] == (not broken), answer


def test_the_judge_wants_more_than_one_connection(judge):
    _, answer = asked(judge, SOUND, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert not answer["accepted"] and "CUDA_DEVICE_MAX_CONNECTIONS" in answer["message"] and connections_violation("1")


def test_the_distributed_optimizer_is_forced_on_without_a_word(judge):
    scenario = understand(Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    listed = [*words(mock_arguments(scenario, parse_plan("tp=1,pp=1,mbs=1,dist_opt=0", 8))), *SOUND]
    answer = judge.arguments(listed, 8, {}, 9.0)
    assert answer["accepted"] and answer["changed"]["use_distributed_optimizer"] == [False, True]


@pytest.fixture(scope="module")
def recipes(judge):
    audit = audit_file(TABLE)
    print(f"{audit.covered_share():.1%} of {len(audit.in_families())} text decoders covered")
    assert audit.covered_share() >= 0.95
    return judged_recipes(judge, audit)


def test_every_covered_recipe_is_put_to_the_judge_and_agrees(recipes):
    known = [recipe for recipe in recipes if recipe.audited.recipe is not None]
    assert len(known) >= 175 and all(recipe.audited.family for recipe in known)
    wrong = [(cell(recipe.audited.row, "recipe"), recipe.answer) for recipe in recipes if not recipe.agrees]
    assert wrong == []


def test_every_accusation_has_the_judges_own_refusal(recipes):
    accused = [recipe for recipe in recipes if recipe.audited.verdict == ILLEGAL and not recipe.audited.named]
    assert len(accused) == 12
    stages = {}
    for recipe in accused:
        assert not recipe.answer["accepted"] and recipe.words, recipe.audited.row
        stages.setdefault(tuple(v.rule for v in recipe.audited.violations), set()).add(recipe.answer["stage"])
    assert stages == {("NV042",): {"schedule"}, ("NV046",): {"config"}, ("NV048",): {"layers"}, ("NV062",): {"config"}}


def test_a_stand_in_model_hides_nothing(judge):
    """Degrees that are sound are accepted: a refusal is about them, not about the model that stands in."""
    sound = {"gpus": 64, "tp": 2, "pp": 4, "cp": 1, "vpp": 2, "ep": 4, "etp": 1, "mbs": 1, "gbs": 64}
    assert judge.degrees(sound, sequence_parallel=True)["accepted"]
    assert judge.degrees({**sound, "tp": 1, "ep": 1}, sequence_parallel=False)["accepted"]
    assert judge.degrees(sound, sequence_parallel=False)["stage"] == "layers"
    assert judge.degrees({**sound, "gbs": 40}, sequence_parallel=True)["stage"] == "schedule"
    assert judge.degrees({**sound, "mbs": 3}, sequence_parallel=True)["stage"] == "config"
    assert judge.degrees({**sound, "etp": 8}, sequence_parallel=True)["stage"] == "groups"


QUESTIONS = [
    {"model": "175b", "gpus": 1024, "gpu": "h100-sxm-80gb"},
    {"model": "mixtral-8x7b", "gpus": 64, "gpu": "h100-sxm-80gb", "fix": ["ep=8"]},
    {"model": "llama3-70b", "gpus": 64, "gpu": "h100-sxm-80gb", "precision": "fp8"},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    service = start(f"sqlite:///{folder}/s.db", "--workers", "1", "--search-workers", "1")
    yield Client(service.url)
    service.stop()


def judged(judge, files: dict[str, str], folder: Path, gpus: int, capability: float) -> None:
    for script in (TORCHRUN_SCRIPT, SBATCH_SCRIPT):
        (folder / script).write_text(files[script])
        subprocess.run([Path(sys.executable).parent / "shellcheck", folder / script], check=True, timeout=60)
        launch = launch_of(folder / script)
        keep = {k: v for k, v in launch.environment.items() if k.startswith(("CUDA_", "NCCL_", "NVTE_", "CUBLAS_"))}
        answer = judge.arguments(launch.arguments, gpus, keep, capability)
        assert answer["accepted"] and answer["changed"] == {}, answer


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["model"])
def test_a_downloaded_script_passes_the_judge(judge, client, tmp_path, question):
    best = client.plans(**question, top=1).plans[0]
    judged(judge, client.export(best.short, **question), tmp_path, question["gpus"], 9.0)


def test_the_script_of_a_search_passes_the_judge(judge, client, tmp_path):
    question = QUESTIONS[0]
    search = client.wait(client.submit(**question).id, seconds=90)
    judged(judge, client.search_export(search.id), tmp_path, question["gpus"], 9.0)
