"""LLaMA-Factory's and axolotl's YAML: TRL's settings in their words (data/maps/), and what each says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import DEEPSPEED, FULL, SOFTWARE
from autoconfig.formats.words import Settings, Written, flat, head
from autoconfig.formats.writers import trl
from autoconfig.maps.table import load_map
from autoconfig.planning.export_files import remark
from autoconfig.specs.plan import NONE, TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.space import Constraints

FACTORY, AXOLOTL = "llama-factory", "axolotl"
_BITS = {"nf4": 4, "nf4_single": 4, "int8": 8}


@dataclass(frozen=True, kw_only=True)
class TrainerFormat:
    """A program around Hugging Face's Trainer."""

    name: str
    own: Callable[[Scenario, TrainPlan, dict[str, Any]], dict[str, Any]]
    """Its settings of a plan, of those of TRL that it has words for."""
    refused: Callable[[Scenario, TrainPlan], list[str]]
    """What it does not do, or has no words for."""
    wish: Constraints
    software: str

    @property
    def table(self) -> Mapping[str, Any]:
        """Its file, its words for TRL's, and those of its settings that depend on the plan."""
        return load_map(self.name.replace("-", "_")).more

    def values(self, scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
        """Return its settings of a plan, by its words."""
        words = {name: name for name in self.table["same"]} | self.table["words"]
        common = {words[key]: value for key, value in trl.values(scenario, plan).items() if key in words}
        return self.own(scenario, plan, common)

    def settings(self, scenario: Scenario, plan: TrainPlan) -> Settings:
        """Return the values that depend on the plan."""
        texts = flat(self.values(scenario, plan))
        return {path: texts[path] for path in self.table["of_plan"] if path in texts}

    def write(self, scenario: Scenario, plan: TrainPlan) -> Written:
        """Return its YAML."""
        values, model = self.values(scenario, plan), self.table["words"]["model_name_or_path"]
        data = self.table["data"]
        todo = [f"# add {data}"]
        if model not in values:
            todo.append(f"# add {model}: the folder of {remark(scenario.model.name)}, or its id on the hub")
        text = "\n".join([f"# {head(scenario, plan)}", *todo, *trl.lines_of(values), ""])
        return Written(file_name=self.table["file"], text=text, unsaid=(f"data: {data}",))


def deepspeed_name(plan: TrainPlan) -> str:
    """Return the name of the DeepSpeed file that LLaMA-Factory's names, which holds the stage, as those that it ships; empty:
    none."""
    stage = plan.fsdp or int(plan.dist_opt)
    return f"ds_z{stage}{'_offload' if plan.offload else ''}_config.json" if stage else ""


def _refused_by_factory(scenario: Scenario, plan: TrainPlan) -> list[str]:
    odd = trl.refused_by_trainer(scenario, plan)
    state = trl.unsharded(vars(scenario.numerics))
    if plan.dist_opt and state:
        odd.append(f"{state} with ZeRO, which is not known to keep it")
    if plan.offload and (plan.offload < 1 or not deepspeed_name(plan)):
        odd.append(f"offload={plan.offload}")
    if scenario.numerics.frozen_dtype == "fp32":
        odd.append("frozen_dtype=fp32")
    shown = plan.replace(offload=0.0, fsdp=3 if plan.recompute == FULL else plan.fsdp, dist_opt=False)
    narrow = trl.narrow(scenario, plan)
    narrow = replace(narrow, given=replace(narrow.given, zero_bucket=None))  # DeepSpeed's file says it
    return list(dict.fromkeys([*odd, *ACCELERATE.refused(narrow, shown)]))


def _values_of_factory(scenario: Scenario, plan: TrainPlan, common: dict[str, Any]) -> dict[str, Any]:
    numerics = scenario.numerics
    values = {"stage": "sft", "do_train": True, "finetuning_type": "full" if numerics.peft == "none" else "lora", **common}
    if "lora_target" in common:
        values["lora_target"] = ",".join("all" if name == "all-linear" else name for name in common["lora_target"])
    if numerics.weights_are_masters:
        values |= {"bf16": False, "pure_bf16": True}
    if bits := _BITS.get(numerics.frozen_dtype):
        values |= {"quantization_bit": bits, "quantization_method": "bnb"}
    values["disable_gradient_checkpointing"] = plan.recompute == NONE
    return {**values, **({"deepspeed": name} if (name := deepspeed_name(plan)) else {})}


def _refused_by_axolotl(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """Return what it has no words for: bitsandbytes' 4 bits are quantised twice, weights loaded in bf16."""
    odd = trl.refused(scenario, plan)
    numerics = scenario.numerics
    if numerics.frozen_dtype in ("nf4_single", "fp32"):
        odd.append(f"frozen_dtype={numerics.frozen_dtype}")
    if numerics.peft == "none" and not plan.fsdp and not numerics.weights_are_masters and numerics.precision != "fp32":
        odd.append("fp32 copies of weights that are not sharded (plan with --weights-are-masters)")
    return odd


def _values_of_axolotl(scenario: Scenario, plan: TrainPlan, common: dict[str, Any]) -> dict[str, Any]:
    numerics, recomputes = scenario.numerics, plan.recompute != NONE
    values = {**common, "gradient_checkpointing": recomputes and not plan.fsdp}
    values.setdefault("optimizer", "adamw_torch_fused")
    if scenario.given.loss == "fused":
        values["plugins"] = ["axolotl.integrations.liger.LigerPlugin"]
    if numerics.peft != "none":
        values["adapter"] = "qlora" if numerics.frozen_dtype == "nf4" else "lora"
        if values["lora_target_modules"] == ["all-linear"]:
            values["lora_target_linear"] = bool(values.pop("lora_target_modules"))
    if plan.fsdp:
        inner = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": plan.fsdp == 3}
        inner |= {"activation_checkpointing": recomputes, "state_dict_type": "SHARDED_STATE_DICT"}
        values |= {"fsdp_version": 2, "fsdp_config": inner}
    return values


FORMATS = {
    FACTORY: TrainerFormat(
        name=FACTORY, own=_values_of_factory, refused=_refused_by_factory, wish=DEEPSPEED.wish, software=SOFTWARE
    ),
    AXOLOTL: TrainerFormat(
        name=AXOLOTL, own=_values_of_axolotl, refused=_refused_by_axolotl, wish=trl.WISH, software=trl.SOFTWARE
    ),
}
