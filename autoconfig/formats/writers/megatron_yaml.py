"""Megatron-LM's arguments as YAML: `MODEL_ARGS` of its recipes (judged as the argument list that its runner makes of it)."""

from __future__ import annotations

from typing import Any

import yaml

from autoconfig.formats.words import Settings, Written, head
from autoconfig.megatron.check import plan_flags
from autoconfig.megatron.write import environment, mock_arguments
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario


def arguments(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Argument -> true, its value, or its values. Raises UnsupportedError for what Megatron-LM has no arguments for."""
    return {
        argument.flag: True if not argument.values else _value(argument.values) for argument in mock_arguments(scenario, plan)
    }


def _value(texts: tuple[str, ...]) -> Any:
    found = [int(text) if text.lstrip("-").isdigit() else text for text in texts]
    return found[0] if len(found) == 1 else found


def settings(scenario: Scenario, plan: TrainPlan) -> Settings:
    """The arguments that depend on the plan."""
    return {flag: values or ("true",) for flag, values in plan_flags(scenario, plan).items()}


def refused(scenario: Scenario, plan: TrainPlan) -> list[str]:
    """What Megatron-LM has no arguments for."""
    try:
        mock_arguments(scenario, plan)
    except UnsupportedError as error:
        return [str(error)]
    return []


def write(scenario: Scenario, plan: TrainPlan) -> Written:
    """model_config.yaml."""
    found = environment(scenario, plan)
    whole = {
        "ENV_VARS": {name: value for name, value in found.items() if value is not None},
        "TEST_TYPE": "release",
        "MODEL_ARGS": arguments(scenario, plan),
    }
    unset = [name for name, value in found.items() if value is None]
    unsaid = [f"{scenario.cluster.num_gpus} GPUs: torchrun's --nnodes and --nproc-per-node"]
    unsaid += [f"{name} must not be set" for name in unset]
    text = f"# {head(scenario, plan)}\n" + yaml.safe_dump(whole, sort_keys=False, width=1000)
    return Written(file_name="model_config.yaml", text=text, unsaid=tuple(unsaid))
