"""Megatron-LM's arguments as YAML: `MODEL_ARGS` of its recipes (judged as the argument list that its runner makes of it), and
the overrides of the module `pre_trainer` of AMD's Primus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from autoconfig.formats.argument_names import key_of
from autoconfig.formats.words import Settings, Written, head
from autoconfig.megatron.check import plan_flags
from autoconfig.megatron.write import environment, mock_arguments
from autoconfig.planning.export_files import slug
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario


def _arguments(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Argument -> true, its value, or its values. Raises UnsupportedError for what Megatron-LM has no arguments for."""
    return {argument.flag: _value(argument.values) for argument in mock_arguments(scenario, plan)}


def _value(texts: tuple[str, ...]) -> Any:
    values = [int(text) if text.lstrip("-").isdigit() else text for text in texts]
    return values if len(values) > 1 else values[0] if values else True


def _overrides(plan: TrainPlan, values: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute of Megatron-LM's arguments -> value; of what Primus has on in any case."""
    keys = {key_of(flag): value for flag, value in values.items()}
    overrides = {key: on if value is True else value for (key, on), value in keys.items()}
    return {**overrides, "use_distributed_optimizer": plan.dist_opt, "sequence_parallel": plan.sp}


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The arguments that depend on the plan."""
    return {flag: values or ("true",) for flag, values in plan_flags(scenario, plan).items()}


def settings_of_primus(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The overrides that depend on the plan."""
    values = _overrides(plan, {flag: values or True for flag, values in plan_flags(scenario, plan).items()})
    return {key: value if isinstance(value, tuple) else (str(value).lower(),) for key, value in values.items()}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What Megatron-LM has no arguments for."""
    try:
        mock_arguments(scenario, plan)
    except UnsupportedError as error:
        return [str(error)]
    return []


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """model_config.yaml."""
    variables = environment(scenario, plan)
    unsaid = [f"{scenario.cluster.num_gpus} GPUs: torchrun's --nnodes and --nproc-per-node"]
    unsaid += [f"{name} must not be set" for name, value in variables.items() if value is None]
    whole = {
        "ENV_VARS": {name: value for name, value in variables.items() if value is not None},
        "TEST_TYPE": "release",
        "MODEL_ARGS": _arguments(scenario, plan),
    }
    return Written(file_name="model_config.yaml", text=_text(scenario, plan, whole), unsaid=tuple(unsaid))


def write_primus(scenario: Scenario, plan: TrainPlan) -> Written:
    """experiment.yaml."""
    trainer = {
        "framework": "megatron",
        "config": "pre_trainer.yaml",
        "model": "language_model.yaml",
        "overrides": _overrides(plan, _arguments(scenario, plan)),
    }
    whole = {
        "work_group": "amd",
        "user_name": "root",
        "exp_name": f"{slug(scenario.model.name)}-pretrain",
        "workspace": "./output",
        "modules": {"pre_trainer": trainer},
    }
    unsaid = (f"{scenario.cluster.num_gpus} GPUs: NNODES and GPUS_PER_NODE of Primus's launcher",)
    return Written(file_name="experiment.yaml", text=_text(scenario, plan, whole), unsaid=unsaid)


def _text(scenario: Scenario, plan: TrainPlan, whole: Mapping[str, Any]) -> str:
    return f"# {head(scenario, plan)}\n" + yaml.safe_dump(whole, sort_keys=False, width=1000)
