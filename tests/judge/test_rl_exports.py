"""What `rl --export` and fine-tuning write, judged by the real parsers of verl 0.9.1, TRL 1.16.0, OpenRLHF 0.11.2,
LLaMA-Factory 0.9.5 and axolotl 0.19.0, and of NeMo-RL where NEMO_RL_PATH names its source (v0.7.0; it has no wheel)."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from autoconfig.formats.fine_tuning import trainer_texts
from autoconfig.formats.writers import trl
from autoconfig.formats.writers.table import WRITERS
from autoconfig.training.question import request_of, understand
from autoconfig.training.rank import rank

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("AUTOCONFIG_RL_JUDGE", ROOT / ".venv-judge-rl" / "bin" / "python"))
NEMO_RL = ("nemo-rl",) if os.environ.get("NEMO_RL_PATH") else ()
FRAMEWORKS = ("verl", "trl", "openrlhf", *NEMO_RL)

spec = importlib.util.spec_from_file_location("rl_files", ROOT / "tests" / "formats" / "test_rl_files.py")
rl_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rl_files)


def judged(cases: list[tuple[str, str]]) -> list[dict]:
    """{"ok", "said"} of each (framework, text)."""
    lines = "".join(json.dumps({"framework": name, "text": text}) + "\n" for name, text in cases)
    program = ROOT / "validation" / "judge" / "post_training.py"
    done = subprocess.run([str(PYTHON), str(program)], input=lines, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done.stderr[-2000:]
    return found


def texts(framework: str, count: int, seed: int) -> list[tuple[str, str]]:
    """(framework, text) of random cases, each of which reads back as the same placement."""
    cases = rl_files.random_cases(framework, count, seed)
    for case in cases:
        rl_files.same_after_reading(framework, *case)
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
    seed = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "2"))
    print(f"seed {seed}")
    accepted(framework, 50, seed)


def sft_texts(count):
    """sft.yaml of random plans of fine-tuning, of those that TRL trains."""
    texts = []
    asked = (("llama3-8b", "lora", None), ("qwen3-4b", "lora", 200), ("llama3-8b", "none", 300), ("phi3-mini", "lora", None))
    for model, peft, packed in asked:
        question = {"model": model, "gpus": 4, "gpu": "h200", "peft": peft, "packed_length": packed, "global_batch_size": 32}
        scenario = understand(request_of({**question, "seq_length": 2048})).scenario
        ranking = rank(scenario, trl.WISH, 0.0)
        rows = random.Random(3).sample(range(len(ranking.row)), min(count, len(ranking.row)))
        written = (trainer_texts(scenario, plan, "trl") for row in rows if not trl.refused(scenario, plan := ranking.plan(row)))
        texts += [files["sft.yaml"] for files in written]
    return texts


def test_fine_tuning_with_trl_is_parsed():
    texts = sft_texts(4)
    assert len(texts) >= 4
    assert [said for said in judged([("trl-sft", text) for text in texts]) if not said["ok"]] == []
    odd = texts[0].replace("max_length", "max_lenght")
    assert not judged([("trl-sft", odd)])[0]["ok"]


WAYS = (
    {"peft": "lora"},
    {"peft": "lora", "frozen_dtype": "nf4"},
    {"peft": "lora", "frozen_dtype": "int8", "optimizer": "adam8bit"},
    {"weights_are_masters": True},
    {"weights_are_masters": True, "optimizer": "paged_adam8bit"},
    {},
    {"packed_length": 300},
    {"compile": True, "loss": "fused"},
    {"weights_are_masters": True, "optimizer": "adafactor"},
)
"""Adapters, QLoRA, 8-bit Adam, pure bf16, sharded weights, packed samples, compiled layers and Liger's loss, Adafactor."""


def trainer_files(form, seed):
    """The YAML of random plans of every way that the format can say."""
    rng, found = random.Random(seed), []
    for way in WAYS:
        asked = {"model": rng.choice(("llama3-8b", "qwen3-4b", "phi3-mini")), "gpus": 4, "gpu": "h200", **way}
        asked |= {"global_batch_size": 32, "seq_length": 2048, "software": WRITERS[form].software}
        scenario = understand(request_of(asked)).scenario
        ranking = rank(scenario, WRITERS[form].wish, 0.0)
        rows = rng.sample(range(len(ranking.row)), len(ranking.row))
        able = [plan for row in rows if not WRITERS[form].refused(scenario, plan := ranking.plan(row))]
        found += [WRITERS[form].write(scenario, plan).text for plan in able[:3]]
    return found


@pytest.mark.parametrize(("form", "key"), [("llama-factory", "cutoff_len"), ("axolotl", "sequence_len")])
def test_fine_tuning_with_others_is_parsed(form, key):
    texts = trainer_files(form, 5)
    assert len(texts) >= 8
    assert [said for said in judged([(form, text) for text in texts]) if not said["ok"]] == []
    assert not judged([(form, texts[0].replace(key, f"{key}gth"))])[0]["ok"]


@pytest.mark.parametrize(
    ("framework", "old", "new"),
    [
        ("verl", "data.train_batch_size", "data.train_batch_sise"),
        ("trl", "num_generations", "num_generation"),
        ("openrlhf", "--vllm.num_engines", "--vllm.num_engine_s"),
        *[(name, "num_prompts_per_step: ", "num_prompts_per_step: x") for name in NEMO_RL],
        *[(name, "defaults: grpo_math_1B.yaml", "") for name in NEMO_RL],
    ],
)
def test_the_judge_refuses_an_unknown_key_or_value(framework, old, new):
    ((_, text),) = texts(framework, 1, seed=3)
    assert old in text
    assert not judged([(framework, text.replace(old, new))])[0]["ok"]
