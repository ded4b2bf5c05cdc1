"""Configs, clusters, names and changes of models as the table beside this file has them (see helpers/recorded.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping
from autoconfig.specs.models.huggingface import config_notes, likely_family, model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, resolve_model
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.models.parameters import (
    total_parameters,
)
from autoconfig.specs.software.checkpoint import checkpoint_of
from recorded import Table, outcome, shape_of, taken, texts_of
from small_models import MODELS

TABLE = Table(__file__, "files.txt")
HERE = Path(__file__).parents[1] / "specs"

CLUSTER = {
    "gpu": "h100", "num_gpus": 16, "gpus_per_node": 8, "link_domain_size": 8, "link_gb_per_s": 450.0, "nic_gb_per_s": 50.0,
    "memory_gib": 80.0, "memory_bandwidth": 3.3, "power_limit": 600.0, "name": "ours",
}  # fmt: skip
OWN_GPU = {
    "name": "X",
    "vendor": "other",
    "architecture": "x",
    "memory_gib": 64,
    "memory_bandwidth": 2.0,
    "tflops": {"bf16": 300.0},
}
NUMBERS: tuple[Any, ...] = (
    -1,
    0,
    1e-3,
    0.5,
    1,
    2,
    3,
    7,
    8,
    9,
    16,
    64,
    100,
    1000,
    1e4,
    1e5,
    1e6,
    1e7,
    1e9,
    1e13,
    float("nan"),
    True,
    None,
    "x",
    [],
)


def test_files_of_clusters():
    keys = [*CLUSTER, "nics_per_node", "nic_gbit_per_s", "memory_gb", "odd"]
    found: dict[str, Any] = {
        key: taken(lambda value, key=key: cluster_from_mapping({**CLUSTER, key: value}), NUMBERS) for key in keys
    }
    for key in keys:
        rest = {name: value for name, value in CLUSTER.items() if name != key}
        found[f"without {key}"] = outcome(cluster_from_mapping, rest, None)
        found[f"half {key}"] = outcome(
            cluster_from_mapping, {**CLUSTER, key: CLUSTER[key] / 2} if isinstance(CLUSTER.get(key), int | float) else rest
        )
    for key in (*OWN_GPU, "fp8", "link_gb_per_s"):
        make = lambda value, key=key: cluster_from_mapping({"num_gpus": 8, "gpu": {**OWN_GPU, key: value}})  # noqa: E731
        found[f"gpu {key}"] = taken(make, NUMBERS)
    found |= {f"{gpu} {count} {watts}": outcome(cluster_of, load_gpu(gpu), count, power_limit_watts=watts)
              for gpu in ("gb200", "a100-pcie-40gb", "mi300x", "h100") for count in (1, 6, 8, 12, 72, 144)
              for watts in (None, 300.0)}  # fmt: skip
    TABLE.check("clusters", {key: value if isinstance(value, str | dict) else {**texts_of(value, "gpu"),
    "gpu": value.gpu.memory_bytes}
                             for key, value in found.items()})  # fmt: skip


CONFIGS: dict[str, dict[str, Any]] = {
    **{name: row["config"] for name,
    row in json.loads((HERE / "huggingface_configs.json").read_text(encoding="utf-8")).items()},
    **{f"{name} 5": row[0] for name, row in json.loads((HERE / "family_counts.json").read_text(encoding="utf-8")).items()},
}  # fmt: skip


def changed(value: Any, number: int) -> Any:
    """Another value of a key: one of three kinds in turn."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return (value * 2, value + 1, 0)[number % 3]
    if isinstance(value, float):
        return (value / 2, -1.0, "x")[number % 3]
    if isinstance(value, list):
        return value[: len(value) // 2] if number % 2 else [*value, *value]
    if isinstance(value, Mapping):
        return {key: changed(item, number) for key, item in value.items()}
    return (None, 3, f"{value}x")[number % 3]


def moved(model: Any, now: ModelSpec) -> dict[str, Any]:
    """Fields of `now` that `model` has otherwise, and its parameters; all of them where `model` was refused."""
    before, after = {} if isinstance(model, dict) else shape_of(model), shape_of(now)
    return {name: after.get(name, "usual") for name in before | after if after.get(name) != before.get(name)} | {
        "total": total_parameters(now)
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_files_of_other_models(name):
    config = CONFIGS[name]
    model = outcome(model_from_mapping, config, "x", "x")
    found: dict[str, Any] = {
        "read": model if isinstance(model, dict) else shape_of(model),
        "notes": len(outcome(config_notes, config)),
    }
    for number, (key, value) in enumerate(config.items()):
        if key.startswith(
            ("id2label", "label2id", "_name", "output_", "bos_", "eos_", "pad_", "transformers_v", "return_", "use_cache")
        ):
            continue
        rest = {k: v for k, v in config.items() if k != key}
        for kind, other in (("", {**config, key: changed(value, number)}), ("-", rest)):
            now = outcome(model_from_mapping, other, "x", "x")
            if now != model and (kind or key != "model_type"):
                found[f"{kind}{key}"] = "refused" if isinstance(now, dict) else moved(model, now)
    found["likely"] = (likely_family(config) or ("",))[0]
    TABLE.check(f"config {name}", found)


def test_names_of_models():
    sizes = [f"{n}{unit}" for unit in ("m", "b") for n in (9, 10, 49, 52, 126, 299, 345, 999)] + [
        "1.3b",
        "2.2b",
        "5b",
        "13b",
        "39.1b",
        "1t",
        "7.5t",
        "100t",
        "101t",
    ]
    words = [
        "llama3-8",
        "llama3",
        "LLAMA 3 8B",
        "gpt3-175b",
        "175b",
        "deepseek-v3 (w/o mtp)",
        "mixtral",
        "qwen3-235",
        "llama3-7",
        "gpt-5",
        "claude",
    ]
    found = {
        text.replace("=", ""): outcome(lambda text: total_parameters(resolve_model(text)[0]), text) for text in (*sizes, *words)
    }
    found |= {f"shape {text}": outcome(lambda text: shape_of(resolve_model(text)[0]), text) for text in sizes[::4]}
    TABLE.check("names of models", found)


CHANGES: tuple[dict[str, Any], ...] = (
    {"num_layers": 8}, {"hidden_size": 192}, {"num_attention_heads": 12}, {"num_query_groups": 4}, {"ffn_hidden_size": 96},
    {"vocab_size": 500},
    {"hidden_size": 192, "num_attention_heads": 8}, {"kv_channels": 12}, {"num_moe_experts": 8}, {"moe_router_topk": 2},
    {"moe_ffn_hidden_size": 24},
    {"num_layers": 6, "hidden_size": 120}, {"max_position_embeddings": 64}, {"num_layers": 0},
    {"untie_embeddings_and_output_weights": True},
    {"num_moe_experts": 8, "moe_router_topk": 9}, {"num_query_groups": 48}, {"window_size": 8}, {"gated_linear_unit": True},
    {"odd": 1}, {"swiglu": True},
    {"moe_shared_expert_intermediate_size": 10}, {"q_lora_rank": 20}, {"num_layers": 10**6}, {"num_attention_heads": 7},
    {"mtp_num_layers": 1},
)  # fmt: skip


def test_changes_of_models():
    found = {
        f"{name}.{number}": outcome(lambda model, changes: shape_of(apply_overrides(model, changes)),
        ModelSpec(**MODELS[name]), changes)
        for name in MODELS for number, changes in enumerate(CHANGES)
    }  # fmt: skip
    TABLE.check("changes", found)


QUANTISED = (
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, {"quant_method": "gptq", "bits": 4,
    "group_size": 64, "sym": True},
    {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True, "sym": False}, {"quant_method": "fp8",
    "weight_block_size": [128, 128]},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.layers.0"]},
    {"quant_method": "mxfp4"},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    {"quant_method": "bitsandbytes", "load_in_8bit": True},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]},
    {"quant_method": "modelopt", "quant_algo": "FP8"},
    {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
        "symmetric": True}}}},
    {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}},
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(QUANTISED)))
def test_quantised_checkpoints(number):
    found: dict[str, Any] = {}
    for name in (("llama3-8b", "mixtral-8x7b", "gpt-oss-20b")[number % 3],):
        config, model = CONFIGS[name], load_model(name)

        def stored(quantised: object, config: Any = config, model: ModelSpec = model) -> Any:
            checkpoint = checkpoint_of({**config, "quantization_config": quantised}, "x")
            return checkpoint and (
                checkpoint.kind,
                checkpoint.formats(model),
                sum(each[1] for each in checkpoint.modules(model)),
                str(checkpoint),
            )

        found[name] = outcome(stored, QUANTISED[number])
    for position, (key, value) in enumerate(QUANTISED[number].items()):
        found[f"odd {key}"] = outcome(stored, {**QUANTISED[number], key: changed(value, position)})
        found[f"no {key}"] = outcome(stored, {k: v for k, v in QUANTISED[number].items() if k != key})
    TABLE.check(f"checkpoint {number}", found)
