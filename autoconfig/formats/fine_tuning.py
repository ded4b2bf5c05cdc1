"""Fine-tuning plans as the files of what trains them: overrides of a Megatron-Bridge recipe; for plans without tensor, pipeline
or context parallelism TRL's configuration with PEFT's adapters, and accelerate's file."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from autoconfig.formats.writers import accelerate, bridge
from autoconfig.formats.writers.words import PROJECTIONS, accumulation, head
from autoconfig.specs.errors import GIB, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import family_of_name
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import load_stack
from autoconfig.training.price import report_plan
from autoconfig.training.rank import rank_plans

OVERRIDES, SFT, ACCELERATE = "overrides.txt", "sft.yaml", "accelerate.yaml"
FINE_TUNING_FILES = (OVERRIDES, SFT, ACCELERATE)
TRL_LAYERS = "torch-eager"
"""The stack as which transformers' layers are priced."""
LIKELY = 0.9
"""The least chance to fit of what is written for TRL, as of what a search shows first."""


def fine_tuning_texts(scenario: Scenario, plan: TrainPlan) -> dict[str, str]:
    """File name -> text, for each framework that can train the plan. Raises UnsupportedError where none can, with why."""
    refused = {"Megatron-Bridge": bridge.refused(scenario, plan), "TRL": refused_by_trl(scenario, plan)}
    found = {}
    if not refused["Megatron-Bridge"]:
        found[OVERRIDES] = bridge.write(scenario, plan).text
    if not refused["TRL"] and (local := trl_plan(scenario, plan)) is None:
        refused["TRL"] = ["a micro-batch that its layers have the memory for"]
    if not refused["TRL"]:
        assert local is not None
        found |= {SFT: _sft(scenario, local), ACCELERATE: accelerate.write(_of_all_weights(scenario), local).text}
    if not found:
        reasons = "; ".join(f"{name} cannot say {', '.join(odd)}" for name, odd in refused.items())
        raise UnsupportedError(f"no files of fine-tuning: {reasons}; plan.json holds the plan")
    return found


def trl_plan(scenario: Scenario, plan: TrainPlan) -> TrainPlan | None:
    """The plan as TRL is to run it, whose unfused layers hold more than Megatron's: itself where it fits there, too, else the
    fastest of data parallelism that does; None where none does."""
    own = replace(scenario, software=load_stack(TRL_LAYERS))
    asked = plan.replace(dist_opt=False)  # nothing to shard of the optimizer state of adapters
    if report_plan(own, asked, None).confidence.fit_probability >= LIKELY:
        return asked
    ranking = rank_plans(own, accelerate.WISH, fit_chance=LIKELY)
    likely = len(ranking.best) and ranking.fit_chance_met
    return ranking.plan(int(ranking.best[0])) if likely else None


def trl_differs(scenario: Scenario, plan: TrainPlan, texts: Collection[str]) -> str:
    """What the files of TRL do otherwise than the plan; empty where there are none or they do the same."""
    local = trl_plan(scenario, plan) if SFT in texts else None
    if local is None or local == plan.replace(dist_opt=False):
        return ""
    peak = report_plan(replace(scenario, software=load_stack(TRL_LAYERS)), local, None)
    return (
        f"{SFT} has {local}: TRL's layers (priced as {TRL_LAYERS}) hold more than Megatron's; {peak.peak_bytes / GIB:.1f} of "
        f"{peak.limit_bytes / GIB:.1f} GiB, {peak.step_seconds:.3g} s a step"
    )


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
    """Whether transformers names its linear layers as PROJECTIONS has them: Phi-3's are fused, T5 has names of its own."""
    encoders = model.is_encoder_decoder or model.is_encoder_only
    other = model.is_moe or model.multi_latent_attention or model.is_hybrid or encoders
    return model.gated_linear_unit and not other and family_of_name(model.name) != "phi"


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
        lines += ["use_peft: true", f"lora_r: {numerics.lora_rank}", f"lora_alpha: {bridge.LORA_ALPHA * numerics.lora_rank}"]
        lines += [f"lora_target_modules: [{', '.join(names)}]"]
    return "\n".join([f"# {head(scenario, plan)}", *lines, ""])
