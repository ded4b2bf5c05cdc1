"""Bytes of weights and moments in 4 and 8 bits, judged by bitsandbytes' own classes on transformers' models."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.plan import parse_plan

from autoconfig.training.question import request_of, understand

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("AUTOCONFIG_RL_JUDGE", ROOT / ".venv-judge-rl" / "bin" / "python"))
COMMON = {"num_hidden_layers": 2, "vocab_size": 1024, "max_position_embeddings": 4096, "tie_word_embeddings": False}
MODELS = {
    "grouped queries": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
    },
    "as many keys": {
        "model_type": "llama",
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "intermediate_size": 6144,
    },
    "biases": {
        "model_type": "qwen2",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 5120,
    },
}
"""config.json of small models; every tensor has 4,096 elements or more, in whole blocks."""


@cache
def module(name):
    """transformers' model without memory, of the judge's own Python."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    given = {**COMMON, **MODELS[name]}
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def judged(cases):
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    program = [str(PYTHON), str(ROOT / "validation" / "judge" / "pytorch" / "quantised.py")]
    done = subprocess.run(program, input=lines, capture_output=True, text=True, timeout=600)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done.stderr[-2000:]
    return found


def parts(name, **numerics):
    """Ours, in bytes of one GPU."""
    asked = {"model": {**COMMON, **MODELS[name]}, "gpu": "a100-80gb", "gpus": 1, "software": "torch-eager", "seq_length": 512}
    scenario = understand(request_of({**asked, "global_batch_size": 1, **numerics})).scenario
    scenario = type(scenario)(**{**vars(scenario), "model": scenario.model.replace(make_vocab_size_divisible_by=1)})
    layouts = scenario.layouts([parse_plan("mbs=1", 1, dist_opt=False)])
    found = stage_terms(scenario, layouts, every=True).state_parts
    return {key: float(value[0, 0]) for key, value in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_frozen_weights_are_bitsandbytes_to_the_byte(name):
    torch = pytest.importorskip("torch")
    layers = [one for path, one in module(name).named_modules() if isinstance(one, torch.nn.Linear) and "layers." in path]
    shapes = [list(one.weight.shape) for one in layers]
    wide = parts(name, peft="lora", lora_rank=8)["weight_bytes"]
    kinds = ("nf4", "nf4_single", "int8")
    theirs = judged([{"kind": "linear", "frozen": frozen, "shapes": shapes} for frozen in kinds])
    for frozen, found in zip(kinds, theirs, strict=True):
        ours = parts(name, peft="lora", lora_rank=8, frozen_dtype=frozen)["weight_bytes"]
        saved = sum(2 * rows * columns for rows, columns in shapes) - (found["bytes"] - found["tables"])
        assert wide - ours == saved, frozen


@pytest.mark.parametrize("name", MODELS)
def test_moments_in_8_bits_are_bitsandbytes_to_the_byte(name):
    trained = {path: one.numel() for path, one in module(name).named_parameters()}
    table = sum(count for path, count in trained.items() if "embed_tokens" in path)
    others = [count for path, count in trained.items() if "embed_tokens" not in path]
    plain, paged = judged([{"kind": "optimizer", "name": name, "elements": others} for name in ("adam8bit", "paged_adam8bit")])
    ours = parts(name, optimizer="adam8bit", weights_are_masters=True)["optimizer_bytes"]
    assert ours == plain["gpu"] + 8 * table  # transformers keeps the embedding's moments in fp32
    ours = parts(name, optimizer="paged_adam8bit", weights_are_masters=True)["optimizer_bytes"]
    assert ours == paged["gpu"] and plain["gpu"] == paged["gpu"] + paged["paged"]
