"""AMD's Primus: an experiment with the arguments of Megatron-LM as overrides of its module `pre_trainer`."""

from __future__ import annotations

from typing import Any

import yaml

from autoconfig.formats.argument_names import key_of
from autoconfig.formats.words import Settings, Written, head
from autoconfig.formats.writers.megatron_yaml import arguments, refused
from autoconfig.megatron.check import plan_flags
from autoconfig.planning.export_files import slug
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario

__all__ = ["refused", "settings", "write"]


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The overrides that depend on the plan."""
    found: Settings = {}
    for flag, values in plan_flags(scenario, plan).items():
        key, on = key_of(flag)
        found[key] = values or (str(on).lower(),)
    given = {"use_distributed_optimizer": plan.dist_opt, "sequence_parallel": plan.sp}
    return found | {key: (str(value).lower(),) for key, value in given.items()}


def overrides(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Attribute of Megatron-LM's arguments -> value."""
    found: dict[str, Any] = {}
    for flag, value in arguments(scenario, plan).items():
        key, on = key_of(flag)
        found[key] = on if value is True else value
    return {**found, "use_distributed_optimizer": plan.dist_opt, "sequence_parallel": plan.sp}  # Primus has them on


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """experiment.yaml."""
    name = slug(scenario.model.name)
    whole = {
        "work_group": "amd",
        "user_name": "root",
        "exp_name": f"{name}-pretrain",
        "workspace": "./output",
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": "language_model.yaml",
                "overrides": overrides(scenario, plan),
            }
        },
    }
    unsaid = (f"{scenario.cluster.num_gpus} GPUs: NNODES and GPUS_PER_NODE of Primus's launcher",)
    text = f"# {head(scenario, plan)}\n" + yaml.safe_dump(whole, sort_keys=False, width=1000)
    return Written(file_name="experiment.yaml", text=text, unsaid=unsaid)
