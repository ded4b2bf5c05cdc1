"""LLaMA-Factory's and axolotl's YAML: TRL's settings in their words (data/maps/), and what each says otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import FULL
from autoconfig.formats.words import Settings, Written, accumulation, head
from autoconfig.formats.writers import trl
from autoconfig.maps.table import Map, load_map
from autoconfig.planning.export_files import remark
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Scenario

FACTORY, AXOLOTL = "llama-factory", "axolotl"
_BITS = {"nf4": 4, "nf4_single": 4, "int8": 8}


def _table(name: str) -> Map:
    return load_map(name.replace("-", "_"))


def _renamed(scenario: Scenario, plan: TrainPlan, name: str) -> dict[str, Any]:
    """TRL's values that the program has a word for, in its words."""
    words = _table(name).more["words"]
    return {words[key]: value for key, value in trl.values(scenario, plan).items() if key in words}


def _written(scenario: Scenario, plan: TrainPlan, name: str, values: dict[str, Any], asked: str) -> Written:
    model = _table(name).more["words"]["model_name_or_path"]
    todo = [f"# add {asked}"]
    if model not in values:
        todo.append(f"# add {model}: the folder of {remark(scenario.model.name)}, or its id on the hub")
    text = "\n".join([f"# {head(scenario, plan)}", *todo, *trl.lines_of(values), ""])
    return Written(file_name=_table(name).more["file"], text=text, unsaid=(f"data: {asked}",))


def deepspeed_name(plan: TrainPlan) -> str:
    """Of the DeepSpeed file that LLaMA-Factory's names; empty: none. The stage stands in it, as in those that it ships."""
    stage = plan.fsdp or int(plan.dist_opt)
    return f"ds_z{stage}{'_offload' if plan.offload else ''}_config.json" if stage else ""


def refused_by_factory(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What LLaMA-Factory does not do, or DeepSpeed's file has no words for."""
    odd = trl.refused_by_trainer(scenario, plan)
    kept = trl.unsharded(vars(scenario.numerics))
    if plan.dist_opt and kept:
        odd.append(f"{kept} with ZeRO, which is not known to keep it")
    if plan.offload and (plan.offload < 1 or not deepspeed_name(plan)):
        odd.append(f"offload={plan.offload}")
    if scenario.numerics.frozen_dtype == "fp32":
        odd.append("frozen_dtype=fp32")
    shown = plan.replace(offload=0.0, fsdp=3 if plan.recompute == FULL else plan.fsdp, dist_opt=False)
    narrow = trl.narrow(scenario, plan)
    narrow = replace(narrow, given=replace(narrow.given, zero_bucket=None))  # DeepSpeed's file says it
    return list(dict.fromkeys([*odd, *ACCELERATE.refused(narrow, shown)]))


def write_factory(scenario: Scenario, plan: TrainPlan) -> Written:
    """train.yaml of `llamafactory-cli train`."""
    numerics = scenario.numerics
    values: dict[str, Any] = {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if numerics.peft == "none" else "lora",
    }
    values |= _renamed(scenario, plan, FACTORY)
    if isinstance(names := values.get("lora_target"), list):
        values["lora_target"] = ",".join("all" if name == "all-linear" else name for name in names)
    if numerics.weights_are_masters:
        values = {**values, "bf16": False, "pure_bf16": True}
    if bits := _BITS.get(numerics.frozen_dtype):
        values |= {"quantization_bit": bits, "quantization_method": "bnb"}
    values["disable_gradient_checkpointing"] = plan.recompute == NONE
    if name := deepspeed_name(plan):
        values["deepspeed"] = name
    return _written(scenario, plan, FACTORY, values, "dataset and template")


def settings_of_factory(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan."""
    found: Settings = {
        "per_device_train_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "disable_gradient_checkpointing": (str(plan.recompute == NONE).lower(),),
    }
    return {**found, **({"deepspeed": (name,)} if (name := deepspeed_name(plan)) else {})}


def refused_by_axolotl(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What axolotl does not do, or has no words for: bitsandbytes' 4 bits are quantised twice, weights loaded in bf16."""
    odd = trl.refused(scenario, plan)
    numerics = scenario.numerics
    if numerics.frozen_dtype in ("nf4_single", "fp32"):
        odd.append(f"frozen_dtype={numerics.frozen_dtype}")
    if numerics.peft == "none" and not plan.fsdp and not numerics.weights_are_masters and numerics.precision != "fp32":
        odd.append("fp32 copies of weights that are not sharded (plan with --weights-are-masters)")
    return odd


def write_axolotl(scenario: Scenario, plan: TrainPlan) -> Written:
    """axolotl.yaml of `axolotl train`."""
    numerics = scenario.numerics
    values = _renamed(scenario, plan, AXOLOTL)
    values["gradient_checkpointing"] = plan.recompute != NONE and not plan.fsdp
    values.setdefault("optimizer", "adamw_torch_fused")
    if scenario.given.loss == "fused":
        values["plugins"] = ["axolotl.integrations.liger.LigerPlugin"]
    if numerics.peft != "none":
        values["adapter"] = "qlora" if numerics.frozen_dtype == "nf4" else "lora"
        if values["lora_target_modules"] == ["all-linear"]:
            values = {
                **{key: value for key, value in values.items() if key != "lora_target_modules"},
                "lora_target_linear": True,
            }
    lines = []
    if plan.fsdp:
        values["fsdp_version"] = 2
        inner = {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": plan.fsdp == 3,
            "activation_checkpointing": plan.recompute != NONE,
            "state_dict_type": "SHARDED_STATE_DICT",
        }
        lines = ["fsdp_config:", *(f"  {line}" for line in trl.lines_of(inner))]
    written = _written(scenario, plan, AXOLOTL, values, "datasets")
    return Written(
        file_name=written.file_name, text=written.text + "".join(f"{line}\n" for line in lines), unsaid=written.unsaid
    )


def settings_of_axolotl(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The values that depend on the plan."""
    found: Settings = {
        "micro_batch_size": (str(plan.mbs),),
        "gradient_accumulation_steps": (str(accumulation(scenario, plan)),),
        "gradient_checkpointing": (str(plan.recompute != NONE and not plan.fsdp).lower(),),
    }
    if plan.fsdp:
        found |= {
            "fsdp_version": ("2",),
            "fsdp_config.reshard_after_forward": (str(plan.fsdp == 3).lower(),),
            "fsdp_config.activation_checkpointing": (str(plan.recompute != NONE).lower(),),
        }
    return found
