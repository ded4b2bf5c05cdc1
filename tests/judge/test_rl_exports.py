"""What `rl --export` writes, judged by the real parsers of verl 0.9.1, TRL 1.16.0 and OpenRLHF 0.11.2."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("AUTOCONFIG_RL_JUDGE", ROOT / ".venv-judge-rl" / "bin" / "python"))
FRAMEWORKS = ("verl", "trl", "openrlhf")

spec = importlib.util.spec_from_file_location("rl_files", ROOT / "tests" / "formats" / "test_rl_files.py")
rl_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rl_files)


def judged(cases: list[tuple[str, str]]) -> list[dict]:
    """{"ok", "said"} of each (framework, text)."""
    lines = "".join(json.dumps({"framework": name, "text": text}) + "\n" for name, text in cases)
    program = ROOT / "tools" / "judge" / "post_training.py"
    done = subprocess.run([str(PYTHON), str(program)], input=lines, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done.stderr[-2000:]
    return found


def texts(framework: str, count: int, seed: int) -> list[tuple[str, str]]:
    cases = rl_files.random_cases(framework, count, seed)
    return [(framework, next(text for name, text in files.items() if name != "accelerate.yaml")) for _, _, files in cases]


def accepted(framework: str, count: int, seed: int) -> None:
    cases = texts(framework, count, seed)
    refused = [(said["said"], text) for said, (_, text) in zip(judged(cases), cases, strict=True) if not said["ok"]]
    assert not refused, refused[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_real_parser_takes_what_is_written(framework):
    accepted(framework, 10, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_real_parser_takes_50_plans(framework):
    accepted(framework, 50, seed=int(os.environ.get("AUTOCONFIG_SOAK_SEED", "2")))


@pytest.mark.parametrize(
    ("framework", "old", "new"),
    [
        ("verl", "data.train_batch_size", "data.train_batch_sise"),
        ("trl", "num_generations", "num_generation"),
        ("openrlhf", "--vllm.num_engines", "--vllm.num_engine_s"),
    ],
)
def test_the_judge_refuses_an_unknown_key(framework, old, new):
    ((_, text),) = texts(framework, 1, seed=3)
    assert old in text
    assert not judged([(framework, text.replace(old, new))])[0]["ok"]
