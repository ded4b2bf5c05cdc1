"""Start scripts before the flags of the engine releases that they name (validation/judge/engine_options.csv)."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tables import tabled

from autoconfig.engines import export
from autoconfig.engines.start import WRITTEN_FOR
from autoconfig.serving.answer import answer
from autoconfig.serving.request import request_of
from validation.judge.engine_arguments import arguments_of
from validation.judge.engine_flags import refusals, table
from validation.judge.serving_plans import deployments

pytestmark = pytest.mark.xdist_group("serving export")
ENGINES = ("sglang", "vllm", "trtllm-1.2")
COMMANDS = {
    "serve.sh": {"python3 -m sglang.launch_server", "vllm serve", "trtllm-serve"},
    "router.sh": {
        "python3 -m sglang_router.launch_router",
        "python3 -m vllm_router.launch_router",
        "trtllm-serve disaggregated",
    },
    "benchmark.sh": {"vllm bench serve"},
}
SERVED = [
    {"model": "llama3-8b", "gpus": 1},
    {"model": "llama3-70b", "gpus": 8, "gpu": "h200", "ttft": "2s", "tpot": "50ms"},
    {"model": "llama3-70b", "gpus": 4, "rate": 2.0, "goal": "gpus"},
    {"model": "qwen3-30b-a3b", "gpus": 2, "tpot": "30ms"},
    {"model": "mixtral-8x7b", "gpus": 3, "isl": 4000, "osl": 200},
    {"model": "llama3-8b", "gpus": 1, "gpu": "l40s", "ttft": "1s", "tpot": "40ms"},
]
"""The six serving questions of test_serving_export.py, here for each engine."""


def started(question, one, folder):
    """[script, words of the command that it starts, program first]."""
    for file, text in export.export_texts(question, one).items():
        (folder / file).write_text(text, encoding="utf-8")
    found = []
    for script in sorted(folder.glob("*.sh")):
        program, words = arguments_of(script)
        found.append((script, [program, *words]))
    return found


def judged(scripts):
    """Asserts that shellcheck and the table pass the scripts."""
    commands = table()
    for script, words in scripts:
        assert not refusals(words, commands), script
        if script.name in COMMANDS:
            assert any(" ".join(words).removeprefix("trtllm-llmapi-launch ").startswith(name) for name in COMMANDS[script.name])
    checker = Path(sysconfig.get_path("scripts")) / "shellcheck"
    files = [file for folder in {script.parent for script, _ in scripts} for file in folder.glob("*.s[hb]*")]
    done = subprocess.run([checker, *files], capture_output=True, text=True, check=False)
    assert files and done.returncode == 0, done.stdout


@pytest.mark.service
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("question", SERVED, ids=lambda question: " ".join(map(str, question.values())))
def test_the_six_serving_questions(question, engine, tmp_path):
    found = answer(request_of({**question, "engine": engine, "simulate": 0, "top": 1}))
    judged(started(found.question, found.reports[0], tmp_path))


@pytest.mark.judge
@pytest.mark.service
@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_of_deployment(engine, tmp_path, monkeypatch):
    """Disaggregated ones and those on several nodes too, there of the first node and of another."""
    scripts = []
    for name, question, one in deployments(engine):
        if one is not None:
            (tmp_path / name).mkdir()
            scripts += started(question, one, tmp_path / name)
    assert {"serve.sh", "prefill.sh", "decode.sh", "router.sh", "benchmark.sh"} == {script.name for script, _ in scripts}
    monkeypatch.setenv("NODE_RANK", "1")
    others = []
    for script, _ in scripts:
        if "NODE_RANK" in script.read_text(encoding="utf-8"):
            program, words = arguments_of(script)
            others.append((script, [program, *words]))
    assert bool(others) == (engine != "trtllm-1.2")
    if engine == "vllm":
        assert all("--headless" in words for _, words in others)
    judged(scripts + others)


def test_the_table_is_of_the_releases_that_the_scripts_name():
    releases = {command.engine: command.release for command in table().values()}
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        named = WRITTEN_FOR[engine].split()[-1]
        assert f"{releases[engine]}.".startswith(f"{named}."), engine
    routers = " ".join(export.ROUTERS.values())
    for router in ("sglang-router", "vllm-router"):
        assert releases[router] == re.search(rf"{router} ([\d.]+\d)", routers)[1]


@tabled
def test_what_a_release_does_not_know_is_refused(words, said):
    assert said in " ".join(refusals(words.split(), table()))
