"""Scripts downloaded from a running service pass the judge of the command line's."""

import subprocess
import sys
from pathlib import Path

import pytest

from autoconfig.client import Client
from autoconfig.megatron.scripts import SBATCH_SCRIPT, TORCHRUN_SCRIPT
from tests.api.conftest import start
from tools.judge.capture import launch_of

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
