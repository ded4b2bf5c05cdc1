"""TRL's YAML for `trl sft --config` (trl 1.16: SFTConfig, ModelConfig); how it is sharded stands in accelerate's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import FULL
from autoconfig.formats.projections import named_modules
from autoconfig.formats.words import Settings, Written, accumulation, head
from autoconfig.formats.writers.bridge import LORA_ALPHA
from autoconfig.planning.export_files import remark
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import hub_id
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES

SOFTWARE = "torch-eager"
"""The stack as which transformers' layers are priced."""
LOSS = "fused"
"""TRL's supervised loss: log-probabilities of tiles of the output layer, whose logits are never held and made again in backward
(trl/kernels/chunked_logprob.py of 1.16; chunks of the loss under checkpoints from 1.7 on, huggingface/trl#5846; releases before
hold them, loss `plain`)."""
WISH = ACCELERATE.wish
SFT, LAUNCH = "sft.yaml", "accelerate.yaml"


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """Return the values of both files that depend on the plan."""
    launch = ACCELERATE.settings(scenario, plan).items()
    return {
        "per_device_train_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "gradient_checkpointing": (str(_checkpoints(scenario, plan)).lower(),),
        **{f"{LAUNCH}: {path}": texts for path, texts in launch if not path.startswith("per_device")},
    }


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what TRL's trainer does not do, or accelerate has no words for."""
    zero = scenario.software.sharding == "deepspeed"
    recompute = NONE if plan.recompute == FULL else plan.recompute
    shown = plan.replace(dist_opt=plan.dist_opt and zero, recompute=recompute)  # nothing to shard of adapters' state
    return list(dict.fromkeys(refused_by_trainer(scenario, plan) + ACCELERATE.refused(narrow(scenario, plan), shown)))


def refused_by_trainer(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what Hugging Face's Trainer with PEFT does not do, whatever shards it."""
    odd = [f"{key}={value}" for key in ("tp", "cp") if (value := getattr(plan, key)) > 1]
    if reason := _odd_model(scenario.model):
        odd.append(f"{reason} of {scenario.model.name}")
    modules = scenario.numerics.lora_target_modules
    if scenario.numerics.peft != "none" and not (reason or named_modules(scenario.model, modules)):
        odd.append(f"{' '.join(modules)} of {scenario.model.name}, whose names in transformers are not known")
    if (plan.fsdp or plan.offload) and (state := unsharded(vars(scenario.numerics))):
        odd.append(f"{state} in shards (fsdp={plan.fsdp}), which is not known to be kept there")
    if scenario.numerics.frozen_dtype == "fp8":
        odd.append("frozen_dtype=fp8, which bitsandbytes does not keep")
    if (loss := scenario.given.loss) not in (None, "fused"):
        odd.append(f"loss={loss}, for which the Trainer has no key (fused: Liger's kernels; TRL's own is so from 1.7 on)")
    return odd


def narrow(scenario: Scenario, plan: TrainPlan) -> Scenario:
    """Return the scenario without what `dtype: bfloat16` says of it: sharded weights are made fp32."""
    if scenario.numerics.precision != "bf16" or plan.fsdp:
        return scenario
    return replace(scenario, numerics=replace(scenario.numerics, weights_are_masters=False))


def values(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Return the Trainer's settings, by TRL's words."""
    numerics, workload = scenario.numerics, scenario.workload
    checkpoint = "" if scenario.model.model_type else hub_id(scenario.model.name)
    words: dict[str, Any] = {
        **({"model_name_or_path": checkpoint} if checkpoint else {}),
        "dtype": weights_dtype(scenario),
        "output_dir": "sft",
        "bf16": numerics.precision == "bf16",
        "fp16": numerics.precision == "fp16",
        "max_length": workload.seq_length,
        "packing": workload.packed_length is not None,
        "per_device_train_batch_size": plan.mbs,
        "gradient_accumulation_steps": accumulation(scenario, plan),
        "gradient_checkpointing": _checkpoints(scenario, plan),
        **({"optim": _OPTIM[numerics.optimizer]} if numerics.optimizer in _OPTIM else {}),
    }
    if scenario.given.compile:
        words["torch_compile"] = True
    if scenario.given.loss == "fused":
        words["use_liger_kernel"] = True
    if numerics.peft != "none":
        names = named_modules(scenario.model, numerics.lora_target_modules)
        words |= {"use_peft": True, "lora_r": numerics.lora_rank, "lora_alpha": LORA_ALPHA * numerics.lora_rank}
        words |= {"lora_target_modules": names, **_QUANTISED.get(numerics.frozen_dtype, {})}
    return words


def lines_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of YAML."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from (f"{name}:", *(f"  {line}" for line in lines_of(value)))
        else:
            text = f"[{', '.join(value)}]" if isinstance(value, list) else value
            yield f"{name}: {str(value).lower() if isinstance(value, bool) else text}"


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """Return sft.yaml."""
    words = values(scenario, plan)
    words.pop("use_liger_kernel", None)  # TRL's own loss holds no logits
    named = "model_name_or_path" in words
    todo = [
        "# add dataset_name; learning_rate is no part of a plan: TRL's own is 2e-5, 1e-4 to 2e-4 is usual of adapters",
        "# TRL 1.7 or later: releases before hold all logits (autoconfig check sft.yaml --loss plain)",
    ]
    if not named:
        todo.insert(0, f"# add model_name_or_path: the folder of {remark(scenario.model.name)}, or its id on the hub")
    unsaid = (
        "data: --dataset_name" if named else f"data and model {scenario.model.name}: --dataset_name, --model_name_or_path",
        f"{scenario.cluster.num_gpus} GPUs and their sharding: {LAUNCH} (--format accelerate)",
    )
    text = "\n".join([f"# {head(scenario, plan)}", *todo, *lines_of(words), ""])
    return Written(file_name=SFT, text=text, unsaid=unsaid)


_FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_QUANTISED: dict[str, dict[str, Any]] = {
    "nf4": {**_FOUR, "use_bnb_nested_quant": True},
    "nf4_single": {**_FOUR, "use_bnb_nested_quant": False},
    "int8": {"load_in_8bit": True},
}
"""trl 1.16, ModelConfig: bitsandbytes' formats."""


_OPTIM = {"adafactor": "adafactor", "adam8bit": "adamw_bnb_8bit", "paged_adam8bit": "paged_adamw_8bit"}
"""transformers.TrainingArguments.optim."""


def unsharded(numerics: Mapping[str, object]) -> str:
    """Return what bitsandbytes keeps, and weights without fp32 copies, which accelerate makes of shards, in words; empty:
    nothing."""
    frozen, optimizer = numerics.get("frozen_dtype"), numerics.get("optimizer")
    states = {
        f"weights in {frozen}": frozen in FROZEN_BYTES,
        f"optimizer {optimizer}": optimizer in _OPTIM,
        "weights_are_masters": bool(numerics.get("weights_are_masters")),
    }
    return " and ".join(words for words, holds in states.items() if holds)


def weights_dtype(scenario: Scenario) -> str:
    """Return in what `from_pretrained` loads the weights: trl 1.16 takes float32 where `dtype` is not said
    (trl/trainer/model_config.py), and autocasts its products with `bf16: true`. Frozen weights are priced in 16 bits; those
    that are trained in fp32, as accelerate 1.15 makes them under FSDP (utils/fsdp_utils.py, accelerator.py: `upcasting`), but
    for those that are trained in bf16 without copies."""
    numerics = scenario.numerics
    if numerics.weights_are_masters:
        return "bfloat16"
    if numerics.peft == "none" or numerics.frozen_dtype == "fp32":
        return "float32"
    return {"bf16": "bfloat16", "fp16": "float16"}.get(numerics.precision, "float32")


def _checkpoints(scenario: Scenario, plan: TrainPlan) -> bool:
    """Return whether the trainer recomputes; under FSDP accelerate does, and transformers.Trainer raises where both are to."""
    return plan.recompute == FULL and not (plan.fsdp and scenario.software.sharding != "deepspeed")


def _odd_model(model: ModelSpec) -> str:
    """Return what of a model trl.SFTTrainer does not train or PEFT's names do not hold; empty for a dense decoder."""
    kinds = {
        "an encoder": model.is_encoder_decoder or model.is_encoder_only,
        "experts": model.is_moe,
        "latent attention": model.multi_latent_attention,
        "recurrent layers": model.is_hybrid,
    }
    return next((words for words, holds in kinds.items() if holds), "")
