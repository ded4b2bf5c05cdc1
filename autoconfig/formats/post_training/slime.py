"""slime: arguments of Megatron-LM, SGLang's behind `--sglang-`, and its own, of `train.py` and `train_async.py`."""

from __future__ import annotations

from collections.abc import Iterable

from autoconfig.formats.post_training.recognise import Recognised
from autoconfig.formats.post_training.run import RlRun, drops_reference, map_of_framework, pass_of, run_of_fields
from autoconfig.maps.read import read_fields
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.post_training.job import LEAST_PROMPT
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Remark

OTHERS = ("sglang_", "router_")
"""Beginnings of SGLang's arguments, which slime takes as SGLang has them (slime/backends/sglang_utils/arguments.py)."""
RESPONSE = 1024
"""Cap where --rollout-max-response-len is not given, which leaves it to SGLang."""


def own_keys(names: Iterable[str]) -> list[str]:
    """Return the keys that are no argument of Megatron-LM or SGLang."""
    megatron = {name.lstrip("-").replace("-", "_") for name in known_arguments()}
    return [name for name in names if name not in megatron and not name.startswith(OTHERS)]


def read(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run; arguments that are not there have the defaults of slime 0.3.1, and train_async.py generates a step
    ahead. Raises InputError."""
    reading = read_fields(map_of_framework("slime"), document.section)
    plan = reading.fields
    if not plan["together"] and plan["engine_gpus"] < 1:
        raise InputError("--rollout-num-gpus is not given, nor --colocate: slime has no GPU that generates; give one of them")
    together, context, samples = plan["together"], plan["context"], plan["prompts"] * plan["group"]
    if assumed := "response_cap" not in plan:
        plan["response_cap"] = max(1, context - LEAST_PROMPT) if context else RESPONSE
    left = max(context - plan["response_cap"], 0) or LEAST_PROMPT
    plan |= {
        "prompt_cap": plan.get("prompt_cap", left),
        "minibatch": max(1, samples // plan["updates"]) if "updates" in plan else plan.get("batch", samples),
        "rollout_gpus": 0 if together else plan["engine_gpus"],
        "critic_gpus": plan["nodes"] * plan["gpus_per_node"] if plan["algorithm"] == "ppo" and not together else 0,
        "offload": plan.get("offload_train", together) and not plan["no_offload_train"],
        "staleness": int(document.config_name == "train_async"),
        "no_reference": drops_reference(plan),
        "engine_tp": max(1, plan["gpus_of_an_engine"] // plan["engine_pp"]),
        "engine_sleeps": plan["offload_rollout"] and not plan["no_offload_rollout"],
    }
    if plan.get("tokens_per_gpu"):
        plan["forward"] = pass_of(plan, "forward")
    run = run_of_fields("slime", reading)
    run.notes += [Remark("--rollout-max-response-len", run.response_cap, "not given")] if assumed else []
    return run
