"""accelerate's YAML for FSDP2, and for DeepSpeed where a plan is priced as it (judged by accelerate's
`load_config_from_file`)."""

from __future__ import annotations

from typing import Any

import yaml

from autoconfig.formats.hooks.deepspeed import FULL
from autoconfig.formats.words import NumericsWords, Settings, Written, accumulation, flat, foreign, head
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import CHOICES, Scenario
from autoconfig.training.space import Constraints

WISH = Constraints(
    fixed={
        **{key: frozenset({1}) for key in ("tp", "pp", "cp", "ep", "etp", "vpp")},
        "fsdp": frozenset({0, 2, 3}),
        "dist_opt": frozenset({False}),
        "recompute": frozenset({NONE, FULL}),
    }
)
NUMERICS: NumericsWords = {
    "precision": {"bf16", "fp16", "fp32"},
    "grad_reduce_dtype": {"fp32", "bf16"},
    "peft": {"none", "lora"},
    "frozen_dtype": {*CHOICES["frozen_dtype"]} - {"fp8"},
    "optimizer": {*CHOICES["optimizer"]} - {"muon"},
}
"""Adapters and packing are the trainer's own."""
KEYS = ("tp", "cp", "fsdp", "recompute")


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """The whole file."""
    cluster, precision = scenario.cluster, scenario.numerics.precision
    zero = scenario.software.sharding == "deepspeed" and bool(plan.fsdp or plan.dist_opt)
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "DEEPSPEED" if zero else "FSDP" if plan.fsdp else "MULTI_GPU",
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if precision == "fp32" else precision,
        "num_machines": cluster.num_nodes,
        "num_processes": cluster.num_gpus,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if zero:
        stage, device = plan.fsdp or 1, "cpu" if plan.offload else "none"
        found["deepspeed_config"] = {
            "zero_stage": stage,
            "offload_optimizer_device": device,
            "offload_param_device": "none",
            "zero3_init_flag": stage == 3,
            "zero3_save_16bit_model": stage == 3,
        }
    elif plan.fsdp:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.fsdp == 3,
            "fsdp_activation_checkpointing": plan.recompute == FULL,
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if plan.tp > 1 or plan.cp > 1:
        sizes = {"dp_replicate": 1, "dp_shard": plan.dp, "tp": plan.tp, "cp": plan.cp}
        found["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    return found


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan, by path; the batch is the trainer's."""
    own = ("version", "reshard", "activation")
    zero = ("deepspeed_config.zero_stage", "deepspeed_config.offload_optimizer")
    kept = ("distributed_type", "parallelism_config", *zero, *(f"fsdp_config.fsdp_{name}" for name in own))
    found = {path: texts for path, texts in flat(values(scenario, plan)).items() if path.startswith(kept)}
    return {**found, "per_device_train_batch_size (of the trainer)": (str(plan.mbs),)}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What a file has no words for; of DeepSpeed's checkpoints are the trainer's, as are compile and loss."""
    zero = scenario.software.sharding == "deepspeed"
    whole = plan.recompute == FULL and (plan.fsdp or zero)
    odd = [] if plan.recompute == NONE or whole else [f"recompute={plan.recompute}"]
    odd += (
        [f"offload={plan.offload}"]
        if plan.offload and not (zero and plan.offload == 1 and (plan.fsdp or plan.dist_opt))
        else []
    )
    shown = plan.replace(offload=0.0, dist_opt=plan.dist_opt and not zero)
    own = ("zero_bucket",) if zero and scenario.given.own_overlap else ()  # DeepSpeed's: the file has no words for others
    return [*foreign(scenario, shown, KEYS, NUMERICS, packs=True, options=("compile", "loss", *own)), *odd]


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """accelerate.yaml."""
    steps = accumulation(scenario, plan)
    unsaid = (
        f"model {scenario.model.name} and sequence length {scenario.workload.seq_length}: the trainer's own",
        f"micro-batch {plan.mbs} and gradient accumulation {steps}: the trainer's per_device_train_batch_size and "
        "gradient_accumulation_steps",
    )
    several = "# on each machine: its own machine_rank, and main_process_ip, the address of machine 0\n"
    top = f"# {head(scenario, plan)}\n" + several * (scenario.cluster.num_nodes > 1)
    text = top + yaml.safe_dump(values(scenario, plan), sort_keys=False)
    return Written(file_name="accelerate.yaml", text=text, unsaid=unsaid)
