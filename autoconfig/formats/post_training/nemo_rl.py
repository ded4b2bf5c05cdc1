"""NeMo-RL: GRPO configurations in YAML, laid over the shipped grpo_math_1B.yaml (`defaults:`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoconfig.formats.post_training.recognise import Recognised
from autoconfig.formats.post_training.run import RlRun, map_of_framework, run_of_fields
from autoconfig.formats.post_training.words import node_split, yaml_lines
from autoconfig.maps.read import read_fields
from autoconfig.post_training.job import PassBatch, Placement, PostTrainingJob
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, note

OTHER_TRAINERS = ("ppo", "dpo", "sft", "rm", "distillation")
"""Sections of its other trainers' files (examples/configs of v0.7.0)."""
BATCH_VARIANT_TP = 4
"""From so much tensor parallelism on, logits differ with the batch (lm_policy.py of v0.7.0)."""


def read(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run; what the file leaves out has the value of grpo_math_1B.yaml. Raises InputError, and UnsupportedError
    for what trains otherwise."""
    section, table = document.section, map_of_framework("nemo-rl")
    if other := next((name for name in OTHER_TRAINERS if section.has(name) and not section.has("grpo")), ""):
        raise UnsupportedError(
            f"this NeMo-RL file trains by {other} (its section `{other}`): configurations of GRPO are read, and "
            f"`autoconfig rl --algorithm {other} --framework nemo-rl` plans it"
        )
    missing = {key: value for key, value in table.more["base"].items() if not section.has(key)}
    section.flat |= missing
    reading = read_fields(table, section)
    plan = reading.fields
    if not plan["megatron"] and not plan["dtensor"]:
        raise InputError("neither policy.megatron_cfg.enabled nor policy.dtensor_cfg.enabled is true: nothing trains")
    _place(plan)
    _cut(plan)
    run = run_of_fields("nemo-rl", reading)
    run.notes += [note(f"{len(missing)} keys as in grpo_math_1B.yaml")] if missing else []
    _judge(run, plan)
    return run


def _place(plan: dict[str, Any]) -> None:
    """Set whose GPUs are whose, and the lengths. Raises InputError where none is left for training, or for a prompt."""
    each, longest, new = plan["node_gpus"], plan["longest"], plan.get("new_tokens", 0)
    rollout = 0 if plan["colocated"] else plan["engine_nodes"] * plan.get("engine_node_gpus", each)
    total = plan["all_nodes"] * each
    if total <= rollout:
        raise InputError(f"generation takes {rollout} of {total} GPUs: none is left for training")
    if new > longest:
        raise InputError(
            f"policy.max_total_sequence_length {longest:,} leaves no token for a prompt beside "
            f"policy.generation.max_new_tokens {new:,}: raise the first, or lower the second to at most {longest:,}"
        )
    usual = min(max(1, longest // 4), 1024)
    prompt = (longest - new or usual) if new else usual  # the base's is all of max_total_sequence_length
    plan |= {"rollout_gpus": rollout, "prompt_cap": prompt, "response_cap": max(1, longest - prompt)}
    plan["nodes"], plan["gpus_per_node"] = node_split(total - rollout, each)
    plan["staleness"] = plan["age"] if plan["asynchronous"] else 0


def _cut(plan: dict[str, Any]) -> None:
    """Set the micro-batches of training and of log-probabilities: of so many tokens, or of padded samples."""
    packs, longest, each = plan["dynamic"] or plan["batches_dynamically"], plan["longest"], plan["forward_samples"]
    train, forward = (plan.get(f"packed_{one}_tokens") or plan.get(f"dynamic_{one}_tokens") for one in ("train", "logprob"))
    plan["tokens_per_gpu"] = (train or plan["mbs"] * longest) if packs else 0
    tokens = forward or each * (plan["prompt_cap"] + plan["response_cap"])
    plan["forward"] = PassBatch(tokens_per_gpu=tokens) if packs else PassBatch(mbs=each)
    plan["no_policy_pass"] = plan["on_policy"] and "error_threshold" not in plan  # nemo_rl/algorithms/opd.py


def _judge(run: RlRun, plan: Mapping[str, Any]) -> None:
    """Note what nemo_rl/algorithms/grpo.py and nemo_rl/models/policy/lm_policy.py of v0.7.0 assert of passes."""
    tp, each, mbs, samples = run.placement.train.tp, plan["forward_samples"], plan["mbs"], run.prompts * run.group
    if plan["on_policy"] and samples != run.minibatch:
        run.refused.append(
            f"loss_fn.force_on_policy_ratio wants one update of a step: train_global_batch_size is {run.minibatch:,}, and the "
            f"samples of a step are {samples:,}"
        )
    if tp >= BATCH_VARIANT_TP and each != mbs and not plan["on_policy"]:
        why = (  # its published recipes set the variable
            f"policy.logprob_batch_size {each} and policy.train_micro_batch_size {mbs} differ at tp {tp}: from tp "
            f"{BATCH_VARIANT_TP} on NeMo-RL starts with NRL_IGNORE_TP_ACCURACY_CHECK=1 in its environment alone"
        )
        run.notes.append(note(why, Effect.NOTHING))


def values(job: PostTrainingJob, placement: Placement, words: dict[str, Any]) -> dict[str, Any]:
    """Return what grpo.yaml says beside what all files say: its settings."""
    megatron, ahead, tokens = words["back_end"] == "megatron", placement.staleness, placement.tokens_per_gpu or None
    nodes, each = node_split(placement.gpus, words["gpus_per_node"])
    engine_nodes, engine_node_gpus = node_split(placement.engine.gpus, each)
    words |= {
        "megatron": megatron,
        "dtensor": not megatron,
        **dict.fromkeys(("importance", "async_engine"), ahead > 0),
        "age": max(ahead, 1),
        "kl": 0.01 if job.algorithm.name == "grpo" else 0.0,
        **dict.fromkeys(("packed_train_tokens", "packed_logprob_tokens"), tokens),
        "optimizer_fraction": _plain(placement.train.offload),
        "new_tokens": job.responses.cap,
        "memory_share": _plain(placement.memory_share),
        "engine_nodes": engine_nodes if nodes > 1 else None,
        "engine_node_gpus": engine_node_gpus,
        "node_gpus": each,
        "all_nodes": nodes,
    }
    return {"VALUES": yaml_lines("nemo-rl", words)}


def _plain(number: float) -> float | int:
    """Return the number with four digits, a whole one without a point."""
    return int(number) if number == int(number) else float(f"{number:.4g}")
