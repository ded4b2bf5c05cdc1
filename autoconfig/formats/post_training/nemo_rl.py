"""NeMo-RL: GRPO configurations in YAML, laid over the shipped grpo_math_1B.yaml (`defaults:`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoconfig.formats.post_training.run import (
    ASKED,
    PLACEHOLDER,
    RlRun,
    fields_of_run,
    in_bf16,
    node_split,
    run_of_fields,
    sample_dynamically,
)
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written, yaml_text
from autoconfig.planning.export_files import MARK, remark
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, note

VERSION = "0.7.0"
WRITTEN = ("grpo", "dapo")
OTHER_TRAINERS = ("ppo", "dpo", "sft", "rm", "distillation")
"""Sections of its other trainers' files (examples/configs of v0.7.0)."""
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
GENERATION = "policy.generation"
LOGPROBS = "policy.logprob_batch_size"
BATCH_VARIANT_TP = 4
"""From so much tensor parallelism on, logits differ with the batch (lm_policy.py of v0.7.0)."""


def read(section: Section) -> RlRun:
    """Return the run; what the file leaves out has the value of grpo_math_1B.yaml. Raises InputError, and UnsupportedError
    for what trains otherwise."""
    if other := next((name for name in OTHER_TRAINERS if section.has(name) and not section.has("grpo")), ""):
        raise UnsupportedError(
            f"this NeMo-RL file trains by {other} (its section `{other}`): configurations of GRPO are read, and "
            f"`autoconfig rl --algorithm {other} --framework nemo-rl` plans it"
        )
    table = load_map("rl_nemo_rl")
    missing = {key: value for key, value in table.more["base"].items() if not section.has(key)}
    section.flat |= missing
    plan = read_fields(table, section).fields
    if not plan["megatron"] and not plan["dtensor"]:
        raise InputError(f"neither {MEGATRON}.enabled nor {DTENSOR}.enabled is true: nothing trains")
    for name in ("tp", "cp", "ep", "checkpointing"):
        plan.setdefault(name, plan.get(f"dtensor_{name}"))
    run = _run(plan)
    run.notes += [note(f"{len(missing)} keys as in grpo_math_1B.yaml")] if missing else []
    _engine(section, run, table.more["engines"])
    if plan["filters"]:
        times = plan.get("batch_multiplier") or 1.0
        sample_dynamically(run, times if times > 1 else None)
    if plan.get("quantised"):
        run.notes.append(in_bf16(f"{MEGATRON}.fp8_cfg"))
    _passes(run, plan)
    return run


def _run(plan: dict[str, Any]) -> RlRun:
    """Return the run without its engine and its passes."""
    each = plan["node_gpus"]
    rollout = 0 if plan["colocated"] else (plan.get("engine_nodes") or 1) * (plan.get("engine_node_gpus") or each)
    total = plan["all_nodes"] * each
    if total <= rollout:
        raise InputError(f"generation takes {rollout} of {total} GPUs: none is left for training")
    nodes, each = node_split(total - rollout, each)
    longest, prompt = plan["longest"], _prompt_cap(plan)
    adapters = plan.get("peft_rank", 0) or plan.get("lora_dim", 0)
    return run_of_fields(
        plan,
        "nemo-rl",
        "policy.model_name",
        version=VERSION,
        back_end="megatron" if plan["megatron"] else "fsdp",
        algorithm="grpo" if plan.get("kl") is None or plan["kl"] > 0 else "dapo",
        algorithm_word="grpo",
        nodes=nodes,
        gpus_per_node=each,
        rollout_gpus=rollout,
        prompt_cap=prompt,
        response_cap=max(1, longest - prompt),
        etp=plan.get("etp", 1),
        tokens_per_gpu=_tokens(plan, plan["mbs"] * longest, "train"),
        staleness=plan["age"] if plan["asynchronous"] else 0,
        compares=True,
        lora_rank=adapters if plan.get("peft") or plan.get("lora") else 0,
    )


def _prompt_cap(plan: Mapping[str, Any]) -> int:
    """Return the most tokens of a prompt. Raises InputError where responses leave none."""
    longest, new = plan["longest"], plan.get("new_tokens")
    usual = min(max(1, longest // 4), 1024)
    if new is None:  # the base's is all of max_total_sequence_length
        return usual
    if new > longest:
        raise InputError(
            f"policy.max_total_sequence_length {longest:,} leaves no token for a prompt beside {GENERATION}.max_new_tokens "
            f"{new:,}: raise the first, or lower the second to at most {longest:,}"
        )
    return longest - new or usual


def _tokens(plan: Mapping[str, Any], usual: int, phase: str) -> int:
    """Return tokens of a packed micro-batch of training or of log-probabilities; 0: samples are padded."""
    if not plan["packs"] and not plan["batches_dynamically"]:
        return 0
    return plan.get(f"packed_{phase}_tokens") or plan.get(f"dynamic_{phase}_tokens") or usual


def _passes(run: RlRun, plan: Mapping[str, Any]) -> None:
    """Set the micro-batches of log-probabilities, and note what nemo_rl/models/policy/lm_policy.py of v0.7.0 asserts of
    them."""
    each, forced, samples = plan.get("logprob_samples") or run.mbs, plan["on_policy"], run.prompts * run.group
    tokens = _tokens(plan, each * (run.prompt_cap + run.response_cap), "logprob")
    run.forward = PassBatch(tokens_per_gpu=tokens) if tokens else PassBatch(mbs=each)
    run.no_policy_pass = forced and plan.get("error_threshold") is None  # nemo_rl/algorithms/opd.py
    if forced and samples != run.minibatch:  # nemo_rl/algorithms/grpo.py
        run.refused.append(
            f"loss_fn.force_on_policy_ratio wants one update of a step: train_global_batch_size is {run.minibatch:,}, and the "
            f"samples of a step are {samples:,}"
        )
    if run.tp >= BATCH_VARIANT_TP and each != run.mbs and not forced:
        why = (  # its published recipes set the variable
            f"{LOGPROBS} {each} and policy.train_micro_batch_size {run.mbs} differ at tp {run.tp}: from tp {BATCH_VARIANT_TP} "
            "on NeMo-RL starts with NRL_IGNORE_TP_ACCURACY_CHECK=1 in its environment alone"
        )
        run.notes.append(note(why, Effect.NOTHING))


def _engine(section: Section, run: RlRun, engines: Mapping[str, Mapping[str, str]]) -> None:
    """Set what the engine's own section says; Megatron's has the degrees of training where it says none."""
    words = engines.get(run.engine, engines["vllm"])
    own, usual = f"{GENERATION}.{words['section']}", (run.tp, run.pp) if run.engine == "megatron" else (1, 1)
    run.engine_tp = section.count(f"{own}.{words['tp']}") or usual[0]
    run.engine_pp = section.count(f"{own}.{words['pp']}") or usual[1]
    run.memory_share = section.number(f"{own}.{words['share']}", f"{GENERATION}.vllm_cfg.gpu_memory_utilization") or 0.0
    run.graphs = not section.flag(f"{own}.{words['eager']}")
    if str(section.flat.get(f"{own}.precision", "")).startswith(("fp8", "nvfp4")):
        run.notes.append(in_bf16(f"{own}.precision"))


def write(run: RlRun) -> dict[str, str]:
    """Write grpo.yaml. Raises UnsupportedError for what NeMo-RL 0.7.0's GRPO has no keys for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"NeMo-RL's run_grpo.py has no {run.algorithm}: use grpo or dapo")
    if run.critic_gpus or (run.staleness and not run.rollout_gpus):
        raise UnsupportedError("NeMo-RL generates ahead of the weights on GPUs of their own only, and GRPO has no critic")
    if run.pp > 1 and run.back_end == "fsdp":
        raise UnsupportedError("DTensor has no pipelines")
    head = [
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with NeMo-RL {VERSION} on {run.train_gpus + run.rollout_gpus} GPUs.",
        "# Put it into examples/configs of the release: uv run examples/run_grpo.py --config examples/configs/grpo.yaml",
    ]
    text = yaml_text(written(load_map("rl_nemo_rl"), _fields(run)))
    model = f"model_name: {PLACEHOLDER}"
    return {"grpo.yaml": "\n".join([*head, text.replace(f"{model}\n", f"{model}  # give {ASKED}\n")])}


def _fields(run: RlRun) -> dict[str, Any]:
    """Return the words of the map that a run says."""
    megatron, shared = run.back_end == "megatron", fields_of_run(run)
    nodes, each = node_split(run.train_gpus + run.rollout_gpus, run.gpus_per_node)
    engine_nodes, engine_node_gpus = node_split(run.rollout_gpus, each)
    return {
        **shared,
        "model": run.checkpoint or PLACEHOLDER,
        "megatron": megatron,
        "dtensor": not megatron,
        **dict.fromkeys(("importance", "async_engine"), run.staleness > 0),
        "age": max(run.staleness, 1),
        "kl": 0.01 if run.algorithm == "grpo" else 0.0,
        "packs": run.tokens_per_gpu > 0,
        **dict.fromkeys(("packed_train_tokens", "packed_logprob_tokens"), run.tokens_per_gpu or None),
        "dtensor_sp": shared["sp"],
        "dtensor_checkpointing": shared["checkpointing"],
        "dtensor_tp": run.tp,
        "dtensor_cp": run.cp,
        "first": run.first or None,
        "last": run.last or None,
        "optimizer_fraction": _plain(run.cpu_optimizer),
        "new_tokens": run.response_cap,
        "memory_share": _plain(run.memory_share),
        "colocated": not run.rollout_gpus,
        "engine_nodes": engine_nodes if nodes > 1 else None,
        "engine_node_gpus": engine_node_gpus,
        "node_gpus": each,
        "all_nodes": nodes,
    }


def _plain(number: float) -> float | int:
    """Return the number with four digits, a whole one without a point."""
    return int(number) if number == int(number) else float(f"{number:.4g}")
