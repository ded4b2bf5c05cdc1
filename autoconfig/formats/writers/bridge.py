"""Overrides of a Megatron-Bridge recipe: one `key=value` a line, as its command line takes them."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.bridge_recipes import recipe_of
from autoconfig.formats.words import NumericsWords, Settings, Written, catalogue_name, flat, foreign, head
from autoconfig.maps.table import load_map
from autoconfig.megatron.switches import switch_arguments
from autoconfig.megatron.write import CP_COMM_TYPES, overlap_arguments
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import OP, TrainPlan
from autoconfig.specs.scenario import Scenario

NUMERICS: NumericsWords = {
    "precision": {"bf16", "fp16", "fp8", "nvfp4"},
    "fp8_recipe": {"delayed", "tensorwise", "blockwise", "mxfp8"},
    "fp8_param_gather": {False, True},
    "grad_reduce_dtype": {"fp32", "bf16"},
    "peft": {"none", "lora"},
}
KEYS = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "recompute", "first", "last", "dist_opt", "offload")


LORA_ALPHA = 2
"""alpha over the rank: Megatron-Bridge's llama3_8b_peft_config (dim 8, alpha 16) and TRL's ModelConfig (16, 32)."""


def fine_tunes(scenario: Scenario) -> bool:
    """Adapters, or packed sequences: what Megatron-LM's pretrain_gpt.py does not train."""
    return scenario.numerics.peft != "none" or scenario.workload.packed_length is not None


def _data_set(scenario: Scenario) -> dict[str, Any]:
    """Fields of the data set (FinetuningDatasetConfig of a peft or sft recipe, else GPTDatasetConfig) and of LoRA
    (megatron/bridge/peft/lora.py)."""
    numerics, length = scenario.numerics, scenario.workload.seq_length
    if not fine_tunes(scenario):
        return {"dataset": {"sequence_length": length}}
    packed = {"packed_sequence_size": length} if scenario.workload.packed_length is not None else "null"
    sections: dict[str, Any] = {"dataset": {"seq_length": length, "packed_sequence_specs": packed}}
    if numerics.peft != "none":
        modules = f"[{','.join(numerics.lora_target_modules)}]"
        sections["peft"] = {"dim": numerics.lora_rank, "alpha": LORA_ALPHA * numerics.lora_rank, "target_modules": modules}
    return sections


def _turns_in_a_loop(scenario: Scenario) -> bool:
    """Whether samples are packed and a kernel could turn their heads. Without apply_rope_fusion (few recipes set it) the host
    waits for the lengths and starts 18 operators forward and 19 backward for each sequence, of the queries and of the keys of
    each layer (counted in megatron-core 0.19.2, models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_thd); of latent
    attention the kernel takes YaRN alone."""
    return scenario.workload.packed_length is not None and not scenario.model.multi_latent_attention


NOT_FIELDS = ("--no-check-for-nan-in-loss-and-grad",)
"""Arguments of Megatron-LM's program that are no fields of its configuration."""


def _switches(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Fields of CUDA graphs, of a mixture's exchange of tokens and of offload, which bear the names of Megatron-LM's
    arguments."""
    switches = {one.flag: one.values for one in switch_arguments(scenario, plan) if one.flag not in NOT_FIELDS}
    keys: dict[str, Any] = {
        flag.removeprefix("--").replace("-", "_"): f"[{','.join(map(str, values))}]"
        if flag == "--cuda-graph-modules"
        else values[0]
        if values
        else True
        for flag, values in switches.items()
    }
    if not scenario.model.is_moe:
        return keys
    return keys | {"moe_permute_fusion": keys["moe_token_dispatcher_type"] != "allgather"}


def _published_depths(scenario: Scenario) -> int:
    """Layers of multi-token prediction that the checkpoint has, and a recipe builds; of a model that nobody published none."""
    if scenario.model.model_type:
        return 0
    try:
        return load_model(scenario.model.name).mtp_num_layers
    except UnknownNameError:
        return 0


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Container and field -> value; None where Bridge's own default is null."""
    recompute, numerics = plan.recompute, scenario.numerics
    overlaps = {argument.flag for argument in overlap_arguments(scenario, plan)}
    flags = {f"--{flag}": value or True for flag, value in numerics.format.flags}
    return {
        "model": {
            "tensor_model_parallel_size": plan.tp,
            "pipeline_model_parallel_size": plan.pp,
            "virtual_pipeline_model_parallel_size": plan.vpp if plan.vpp > 1 else "null",
            "context_parallel_size": plan.cp,
            "cp_comm_type": CP_COMM_TYPES[scenario.software.memory.cp_comm_type] if plan.cp > 1 else None,
            "expert_model_parallel_size": plan.ep,
            "expert_tensor_parallel_size": plan.etp,
            "sequence_parallel": plan.sp,
            "num_layers_in_first_pipeline_stage": plan.first,
            "num_layers_in_last_pipeline_stage": plan.last,
            "recompute_granularity": "null" if recompute.granularity == "none" else recompute.granularity,
            "recompute_method": recompute.method or None,
            "recompute_num_layers": recompute.num_layers or None,
            "recompute_modules": f"[{','.join(recompute.modules)}]" if recompute.modules else None,
            "seq_length": scenario.workload.seq_length,
            "apply_rope_fusion": True if _turns_in_a_loop(scenario) else None,
            "mtp_num_layers": "null" if scenario.numerics.peft != "none" and _published_depths(scenario) else None,
            **_switches(scenario, plan),
        },
        "train": {"micro_batch_size": plan.mbs, "global_batch_size": scenario.workload.global_batch_size},
        "ddp": {
            "use_distributed_optimizer": plan.dist_opt,
            "overlap_grad_reduce": "--overlap-grad-reduce" in overlaps,
            "overlap_param_gather": "--overlap-param-gather" in overlaps,
            "grad_reduce_in_fp32": numerics.grad_reduce_dtype == "fp32",
        },
        "optimizer": {
            "use_distributed_optimizer": plan.dist_opt,
            "optimizer_cpu_offload": True if plan.offload else None,
            "optimizer_offload_fraction": plan.offload or None,
        },
        "comm_overlap": {"tp_comm_overlap": "--tp-comm-overlap" in overlaps},
        "mixed_precision": load_map("bridge").entry("precision").word_of(flags),
        **_data_set(scenario),
    }


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The overrides that depend on the plan."""
    paths = flat(values(scenario, plan))
    return {path: texts for path, texts in paths.items() if "seq" not in path or path.endswith("parallel")}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What no override says."""
    odd = [f"recompute={plan.recompute}"] if OP in plan.recompute.modules else []
    return foreign(scenario, plan, KEYS, NUMERICS, packs=True) + odd


def command(scenario: Scenario, file: str) -> str:
    """What starts a recipe with the overrides of `file`, in a checkout of Megatron-Bridge; where the model's recipe is not
    known, a shell asks for it and stops."""
    cluster = scenario.cluster
    launch = f"torchrun --nnodes {cluster.num_nodes} --nproc-per-node {min(cluster.num_gpus, cluster.gpus_per_node)}"
    if last := cluster.num_nodes - 1:
        launch += f' --node-rank "${{NODE_RANK:?0 to {last}}}" --master-addr "${{MASTER_ADDR:?host of node 0}}"'
    tuned = "peft" if scenario.numerics.peft != "none" else "sft"
    task = tuned if fine_tunes(scenario) else "pretrain"
    prompt = f"${{RECIPE:?no {task} recipe of this model is known: name one of megatron/bridge/recipes}}"
    recipe = recipe_of(catalogue_name(scenario.model), task) or f'"{prompt}"'
    return f"{launch} scripts/training/run_recipe.py --recipe {recipe} $(grep -v '^#' {file})"


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """overrides.txt."""
    lines = [f"{path}={texts[0]}" for path, texts in flat(values(scenario, plan)).items()]
    unsaid = (
        f"model {scenario.model.name}: the recipe's",
        f"{scenario.cluster.num_gpus} GPUs: torchrun's --nnodes and --nproc-per-node",
        "length of the run: train.train_iters, in steps; without it the recipe's",
    )
    text = "\n".join(
        [
            f"# {head(scenario, plan)}",
            f"# model: {catalogue_name(scenario.model) or scenario.model.name}",
            f"# Start: {command(scenario, 'overrides.txt')}",
            *lines,
            "",
        ]
    )
    return Written(file_name="overrides.txt", text=text, unsaid=unsaid)
