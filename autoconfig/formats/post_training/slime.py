"""slime: arguments of Megatron-LM, SGLang's behind `--sglang-`, and its own, of `train.py` and `train_async.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from autoconfig.formats.post_training.run import (
    RlRun,
    algorithm_of,
    run_of_fields,
    sample_dynamically,
)
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.post_training.frameworks import load_algorithm
from autoconfig.post_training.job import LEAST_PROMPT, PassBatch
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Remark

VERSION = "0.3.1"
COMPARING = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
"""Estimators that need two responses of a prompt or more."""
OTHERS = ("sglang_", "router_")
"""Beginnings of SGLang's arguments, which slime takes as SGLang has them (slime/backends/sglang_utils/arguments.py)."""
ELSEWHERE = re.compile(r"\$\{?\w*ARGS\b")
"""Words that stand for arguments of another file: `${MODEL_ARGS[@]}` of scripts/models."""
OF_ANOTHER_FILE = "arguments of a file that the script sources ($MODEL_ARGS) are not read: the model is that of --hf-checkpoint"
RESPONSE = 1024
"""Cap where --rollout-max-response-len is not given, which leaves it to SGLang."""


def own_keys(names: Iterable[str]) -> list[str]:
    """Return the keys that are no argument of Megatron-LM or SGLang."""
    megatron = {name.lstrip("-").replace("-", "_") for name in known_arguments()}
    return [name for name in names if name not in megatron and not name.startswith(OTHERS)]


def read(section: Section, *, ahead: bool) -> RlRun:
    """Return the run; arguments that are not there have the defaults of slime 0.3.1. `ahead`: train_async.py generates a
    step ahead. Raises InputError."""
    reading = read_fields(load_map("rl_slime"), section)
    run = _run(reading.fields, ahead=ahead)
    if "response_cap" not in reading.fields:
        run.notes.append(Remark("--rollout-max-response-len", run.response_cap, "not given"))
    _samples(run, reading.fields)
    if section.has("dynamic_sampling_filter_path"):
        more = reading.fields["more_prompts"]
        sample_dynamically(run, more / run.prompts if more > run.prompts else None)
    run.notes += reading.not_modelled
    return run


def _run(plan: Mapping[str, Any], *, ahead: bool) -> RlRun:
    """Return what the arguments of placement say. Raises InputError for those that slime requires."""
    kl, together = plan["kl_loss"] or bool(plan["kl_coef"]), plan["together"]
    algorithm = algorithm_of(plan, kl)
    if not together and plan["engine_gpus"] < 1:
        raise InputError("--rollout-num-gpus is not given, nor --colocate: slime has no GPU that generates; give one of them")
    if "prompts" not in plan:
        raise InputError("--rollout-batch-size is not given, which slime requires: the prompts of a step")
    samples = plan["prompts"] * plan["group"]
    prompt_cap, response_cap = _caps(plan)
    waits = plan.get("offload_train", together) and not plan["no_offload_train"]
    return run_of_fields(
        plan,
        "slime",
        "--hf-checkpoint",
        version=VERSION,
        back_end="megatron",
        algorithm=algorithm,
        algorithm_word=plan["estimator"] if plan["estimator"] != algorithm else "",
        minibatch=max(1, samples // plan["updates"]) if "updates" in plan else plan.get("batch", samples),
        prompt_cap=prompt_cap,
        response_cap=response_cap,
        rollout_gpus=0 if together else plan["engine_gpus"],
        critic_gpus=plan["nodes"] * plan["gpus_per_node"] if algorithm == "ppo" and not together else 0,
        removes_padding=True,
        reference_waits=True,
        offload=waits,
        staleness=int(ahead),
        compares=plan["estimator"] in COMPARING,
        no_reference=not kl and load_algorithm(algorithm).reference_passes > 0,
        engine="sglang",
        engine_tp=max(1, plan["gpus_of_an_engine"] // plan["engine_pp"]),
        engine_sleeps=plan["offload_rollout"] and not plan["no_offload_rollout"],
    )


def _caps(plan: Mapping[str, Any]) -> tuple[int, int]:
    """Return the most tokens of (a prompt, a response); what is not given is what the context leaves."""
    context = plan["context"]
    response = plan.get("response_cap") or (max(1, context - LEAST_PROMPT) if context else RESPONSE)
    return plan.get("prompt_cap") or (context - response if context > response else LEAST_PROMPT), response


def _samples(run: RlRun, plan: Mapping[str, Any]) -> None:
    """Set the micro-batches of passes, and note what slime refuses (slime/utils/arguments.py, train_async.py)."""
    if plan["dynamic"] and run.tokens_per_gpu:
        run.forward = PassBatch(tokens_per_gpu=plan.get("logprob_tokens") or run.tokens_per_gpu)
    elif plan["dynamic"]:
        run.refused.append("--use-dynamic-batch-size wants --max-tokens-per-gpu")
    if run.staleness and plan["together"]:
        run.refused.append("train_async.py does not run with --colocate: engines want GPUs of their own (--rollout-num-gpus)")
