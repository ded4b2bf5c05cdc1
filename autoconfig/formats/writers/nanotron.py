"""nanotron's YAML: parallelism, tokens, optimizer, and the model as a Llama or Qwen2 configuration."""

from __future__ import annotations

from typing import Any

import yaml

from autoconfig.formats.words import NumericsWords, Settings, Written, accumulation, flat, foreign, head
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.huggingface import huggingface_config
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.space import Constraints

FULL = Recompute("full", (), "uniform", 1)
WISH = Constraints(fixed={"vpp": frozenset({1}), "fsdp": frozenset({0}), "recompute": frozenset({NONE, FULL})})
NUMERICS: NumericsWords = {"precision": {"bf16", "fp16", "fp32"}, "grad_reduce_dtype": {"fp32", "bf16"}}
KEYS = ("tp", "pp", "cp", "ep", "sp", "dist_opt", "recompute")
MODEL_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings", "hidden_act", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)  # fmt: skip
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """The sections that a plan decides."""
    return {
        "parallelism": {
            "dp": plan.dp,
            "pp": plan.pp,
            "tp": plan.tp,
            "context_parallel_size": plan.cp,
            "expert_parallel_size": plan.ep,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER" if plan.sp else "ALL_REDUCE",
            "tp_linear_async_communication": plan.sp,
            "recompute_layer": plan.recompute == FULL,
        },
        "tokens": {
            "micro_batch_size": plan.mbs,
            "batch_accumulation_per_replica": accumulation(scenario, plan),
            "sequence_length": scenario.workload.seq_length,
        },
        "optimizer": {
            "zero_stage": int(plan.dist_opt),
            "accumulate_grad_in_fp32": scenario.numerics.grad_reduce_dtype == "fp32",
        },
    }


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan, by path."""
    return flat(values(scenario, plan))


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What a file has no words for."""
    found = foreign(scenario, plan, KEYS, NUMERICS)
    found += [f"recompute={plan.recompute}"] if plan.recompute not in (NONE, FULL) else []
    try:
        family = huggingface_config(scenario.model)["model_type"]
    except UnsupportedError:
        family = ""
    return found + ([f"model {scenario.model.name}: no Llama or Qwen2"] if family not in ("llama", "qwen2") else [])


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """config.yaml."""
    model = huggingface_config(scenario.model)
    chosen = {key: model[key] for key in MODEL_KEYS if key in model}
    chosen[f"is_{model['model_type']}_config"] = True
    whole = {
        "general": {"project": "autoconfig", "run": "plan", "seed": 42},
        **values(scenario, plan),
        "model": {
            "dtype": _DTYPES[scenario.numerics.precision],
            "make_vocab_size_divisible_by": scenario.model.make_vocab_size_divisible_by,
            "model_config": chosen,
        },
    }
    unsaid = ("data, checkpoints, learning rate: add nanotron's sections for them",)
    text = f"# {head(scenario, plan)}\n" + yaml.safe_dump(whole, sort_keys=False)
    return Written(file_name="config.yaml", text=text, unsaid=unsaid)
