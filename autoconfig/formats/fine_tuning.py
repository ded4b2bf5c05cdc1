"""Fine-tuning plans as the files of what trains them: overrides of a Megatron-Bridge recipe; for plans without tensor, pipeline
or context parallelism TRL's configuration with PEFT's adapters, and accelerate's file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from autoconfig.formats.writers import accelerate, bridge
from autoconfig.formats.writers.words import accumulation, head
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Scenario

OVERRIDES, SFT, ACCELERATE = "overrides.txt", "sft.yaml", "accelerate.yaml"
FINE_TUNING_FILES = (OVERRIDES, SFT, ACCELERATE)
ALPHA = 2
"""lora_alpha over the rank: Megatron-Bridge's llama3_8b_peft_config (dim 8, alpha 16) and TRL's ModelConfig (16, 32)."""
PROJECTIONS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's layer -> the layers of transformers' Llama, Mistral and Qwen (modeling_llama.py)."""


def fine_tunes(scenario: Scenario) -> bool:
    """Adapters, or packed sequences: what Megatron-LM's pretrain_gpt.py does not train."""
    return scenario.numerics.peft != "none" or scenario.workload.packed_length is not None


def fine_tuning_texts(scenario: Scenario, plan: TrainPlan) -> dict[str, str]:
    """File name -> text, for each framework that can train the plan. Raises UnsupportedError where none can, with why."""
    whole = _of_all_weights(scenario)
    refused = {"Megatron-Bridge": bridge.refused(whole, plan), "TRL": refused_by_trl(scenario, plan)}
    found = {}
    if not refused["Megatron-Bridge"]:
        found[OVERRIDES] = _overrides(scenario, whole, plan)
    if not refused["TRL"]:
        local = plan.replace(dist_opt=False)  # the optimizer state of adapters: nothing to shard
        found |= {SFT: _sft(scenario, plan), ACCELERATE: accelerate.write(whole, local).text}
    if not found:
        reasons = "; ".join(f"{name} cannot say {', '.join(odd)}" for name, odd in refused.items())
        raise UnsupportedError(f"no files of fine-tuning: {reasons}; plan.json holds the plan")
    return found


def fine_tuning_command(scenario: Scenario, folder: Path, texts: Collection[str]) -> str:
    """What starts the plan: TRL where it can, else a recipe of Megatron-Bridge."""
    if SFT in texts:
        files = f"--config {shlex.quote(str(folder / SFT))} --accelerate_config {shlex.quote(str(folder / ACCELERATE))}"
        return f"trl sft {files} --model_name_or_path CHECKPOINT --dataset_name DATA"
    cluster = scenario.cluster
    launch = f"torchrun --nnodes {cluster.num_nodes} --nproc-per-node {min(cluster.num_gpus, cluster.gpus_per_node)}"
    recipe = "peft" if scenario.numerics.peft != "none" else "sft"
    file = shlex.quote(str(folder / OVERRIDES))
    return f"{launch} scripts/training/run_recipe.py --recipe MODEL_{recipe}_config $(grep -v '^#' {file})"


def _overrides(scenario: Scenario, whole: Scenario, plan: TrainPlan) -> str:
    """Overrides of a peft or sft recipe: LoRA's fields are those of megatron/bridge/peft/lora.py, the data set's those of
    FinetuningDatasetConfig."""
    numerics, workload = scenario.numerics, scenario.workload
    lines = [line for line in bridge.write(whole, plan).text.splitlines() if not line.startswith("dataset.")]
    packed = workload.packed_length is not None
    lines += [
        f"dataset.seq_length={workload.seq_length}",
        f"dataset.packed_sequence_specs.packed_sequence_size={workload.seq_length}" if packed
        else "dataset.packed_sequence_specs=null",
    ]  # fmt: skip
    if numerics.peft != "none":
        lines += [
            f"peft.dim={numerics.lora_rank}",
            f"peft.alpha={ALPHA * numerics.lora_rank}",
            f"peft.target_modules=[{','.join(numerics.lora_target_modules)}]",
        ]
    return "\n".join([f"# {head(scenario, plan)}", *lines[1:], ""])


def refused_by_trl(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What TRL's trainer does not do, or accelerate has no words for."""
    odd = [f"{key}={value}" for key in ("tp", "cp") if (value := getattr(plan, key)) > 1]
    if not _named_as_llama(scenario.model):
        odd.append(f"layers of {scenario.model.name}")
    shown = plan.replace(dist_opt=False, recompute=NONE if plan.recompute == accelerate.FULL else plan.recompute)
    return list(dict.fromkeys(odd + accelerate.refused(_of_all_weights(scenario), shown)))


def _of_all_weights(scenario: Scenario) -> Scenario:
    """The same question without adapters and packing, which the writers of pretraining know."""
    numerics, workload = replace(scenario.numerics, peft="none"), replace(scenario.workload, packed_length=None)
    return replace(scenario, numerics=numerics, workload=workload)


def _named_as_llama(model: ModelSpec) -> bool:
    """Whether transformers names its linear layers as PROJECTIONS has them."""
    return model.gated_linear_unit and not (model.is_moe or model.multi_latent_attention or model.is_hybrid)


def _sft(scenario: Scenario, plan: TrainPlan) -> str:
    """TRL's SFTConfig and ModelConfig (trl 1.16)."""
    numerics, workload = scenario.numerics, scenario.workload
    values = {
        "output_dir": "sft",
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "max_length": workload.seq_length,
        "packing": workload.packed_length is not None,
        "per_device_train_batch_size": plan.mbs,
        "gradient_accumulation_steps": accumulation(scenario, plan),
        "gradient_checkpointing": plan.recompute == accelerate.FULL,
    }
    lines = [f"{name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
    if numerics.peft != "none":
        names = [name for module in numerics.lora_target_modules for name in PROJECTIONS[module]]
        lines += ["use_peft: true", f"lora_r: {numerics.lora_rank}", f"lora_alpha: {ALPHA * numerics.lora_rank}"]
        lines += [f"lora_target_modules: [{', '.join(names)}]"]
    return "\n".join([f"# {head(scenario, plan)}", *lines, ""])
