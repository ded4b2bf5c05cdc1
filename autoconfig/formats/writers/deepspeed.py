"""DeepSpeed's configuration in JSON (judged by deepspeed's `DeepSpeedConfig`)."""

from __future__ import annotations

import json
from typing import Any

from autoconfig.formats.writers.words import NumericsWords, Settings, Written, accumulation, flat, foreign
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.space import Constraints

FULL = Recompute("full", (), "uniform", 1)
WISH = Constraints(
    fixed={
        **{key: frozenset({1}) for key in ("tp", "pp", "cp", "ep", "etp", "vpp")},
        "recompute": frozenset({NONE, FULL}),
    }
)
"""Plans that a file, and gradient_checkpointing of the Trainer, can say; tensor parallelism (AutoTP) and Ulysses are written
where they are asked for, not proposed."""
NUMERICS: NumericsWords = {"precision": {"bf16", "fp16", "fp32"}, "grad_reduce_dtype": {"fp32", "bf16"}}
KEYS = ("tp", "cp", "dist_opt", "fsdp", "offload", "recompute")


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """The whole file."""
    stage = plan.fsdp or int(plan.dist_opt)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage and (size := bucket(scenario)):
        zero |= dict.fromkeys(("reduce_bucket_size", "allgather_bucket_size"), size)
    if plan.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **({"ratio": plan.offload} if stage == 3 else {})}
    precision = scenario.numerics.precision
    found: dict[str, Any] = {
        "train_batch_size": scenario.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.mbs,
        "gradient_accumulation_steps": accumulation(scenario, plan),
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "zero_optimization": zero,
        "gradient_clipping": 1.0,
    }
    if precision in ("bf16", "fp16"):
        found["data_types"] = {"grad_accum_dtype": "fp32" if scenario.numerics.grad_reduce_dtype == "fp32" else precision}
    if plan.tp > 1:
        found["tensor_parallel"] = {"autotp_size": plan.tp}
    if plan.cp > 1:
        found["sequence_parallel_size"] = plan.cp
    return found


def bucket(scenario: Scenario) -> int | None:
    """Elements of each of DeepSpeed's buckets: those that the question says, else those that transformers' Trainer fills in for
    `auto` (integrations/deepspeed.py: the hidden size squared), which DeepSpeed's own, 4.5 GB of each kind, are not priced as.
    None where a file said others, which are priced."""
    if scenario.given.zero_bucket is None and any(scenario.software.memory.bucket_bytes):
        return None
    return scenario.given.zero_bucket or scenario.model.hidden_size**2


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan, by path."""
    kept = ("train_micro", "gradient_acc", "zero_optimization.stage", "zero_optimization.offload", "tensor_", "sequence_")
    found = {path: texts for path, texts in flat(values(scenario, plan)).items() if path.startswith(kept)}
    return {**found, "recompute (of the trainer)": (str(plan.recompute),)}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What a file has no words for."""
    partly = [f"offload={plan.offload}"] if 0 < plan.offload < 1 else []
    unsharded = [f"offload={plan.offload}"] if plan.offload and not (plan.fsdp or plan.dist_opt) else []
    return [*foreign(scenario, plan, KEYS, NUMERICS, options=("zero_bucket",)), *(partly or unsharded)]


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """ds_config.json."""
    unsaid = [f"model {scenario.model.name} and sequence length {scenario.workload.seq_length}: the trainer's own"]
    if plan.recompute != NONE:
        unsaid.append(f"recompute={plan.recompute}: the trainer's (gradient_checkpointing)")
    text = json.dumps(values(scenario, plan), indent=2) + "\n"
    return Written(file_name="ds_config.json", text=text, unsaid=tuple(unsaid))
