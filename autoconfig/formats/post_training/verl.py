"""verl: hydra overrides of `verl.trainer.main_ppo` in a shell script, with the Megatron or the FSDP back end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autoconfig.formats.post_training.run import (
    RlRun,
    algorithm_of,
    fields_of_run,
    model_line,
    run_of_fields,
    sample_dynamically,
    score_by,
    split_experts,
)
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written_paths
from autoconfig.planning.export_files import MARK, quoted, remark
from autoconfig.post_training.frameworks import load_algorithm, load_framework, release_numbers
from autoconfig.post_training.job import PassBatch
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, note

VERSION = "0.9.1"
WRITTEN = ("grpo", "dapo", "rloo", "ppo")
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
PASSES = {"forward": ROLLOUT, "reference": REF}
"""Passes of log-probabilities in the map, and the section of each."""
PASS = "log_prob_micro_batch_size"
COMPARING = ("grpo", "grpo_passk", "rloo", "reinforce_plus_plus_baseline", "gpg")
"""Estimators that compare the responses of a prompt; of one alone they take the reward (verl/trainer/ppo/core_algos.py)."""
REMOVES_FROM, ONE_SWITCH_FROM = "0.7.0", "0.8.0"
"""Releases from which padding is removed where a run does not say (verl/trainer/config/model/hf_model.yaml, false up to 0.6.1),
and from which one switch is of every back end."""
PADDING = "actor_rollout_ref.model.use_remove_padding"
OWN_ROLLOUT = ("rollout.", "async_training.")
"""Sections of the trainers of verl/experimental with GPUs of engines alone: one step off, and fully asynchronous."""
ADDED = ("num_layers_in_", ".override_optimizer_config.")
"""Parts of keys that the base configuration does not have."""
TOOLS = '  actor_rollout_ref.rollout.multi_turn.tool_config_path="${TOOL_CONFIG:?give TOOL_CONFIG, the file of tools}" \\'


def read(section: Section, config_name: str = "", release: str | None = None) -> RlRun:
    """Return the run; keys that are not there have the defaults of verl 0.9.1, engines and padding those of `release`.
    Raises InputError."""
    if "megatron" in config_name and not section.has(f"{ACTOR}.strategy", "model_engine"):
        section.flat["model_engine"] = "megatron"
    reading = read_fields(load_map("rl_verl"), section)
    plan = reading.fields
    run = _run(section, plan, release)
    run.notes += reading.not_modelled
    _note(section, run, plan)
    if plan["alone"] and not run.rollout_gpus:
        raise InputError("actor_rollout_ref.hybrid_engine is false and actor_rollout_ref.rollout.nnodes is 0: no GPU generates")
    _back_end(run, plan)
    _passes(section, run, plan)
    if not release and not run.removes_padding and not run.tokens_per_gpu:
        _pad_as_any(run)
    return run


def _run(section: Section, plan: dict[str, Any], release: str | None) -> RlRun:
    """Return the run without its passes and what is particular to a back end."""
    version, kl = release or VERSION, plan["kl"] or plan["kl_reward"]
    algorithm = algorithm_of(plan, kl)
    alone = not plan["hybrid"] or plan["mode"] == "separate_async"
    other = tuple(key for key in section.flat if alone and key.startswith(OWN_ROLLOUT))
    plan["alone"] = alone
    return run_of_fields(
        plan,
        "verl",
        "actor_rollout_ref.model.path",
        version=version,
        algorithm=algorithm,
        algorithm_word=plan["estimator"] if algorithm == "dapo" else "",
        rollout_gpus=_engine_gpus(plan) if alone else 0,
        prompts=_prompts(section, plan),
        minibatch=plan["minibatch_prompts"] * plan["group"],
        **_engine(plan, release),
        reference_waits=plan.get("reference_waits") or plan.get("fsdp_reference_waits") or False,
        removes_padding=_removes_padding(plan, version),
        staleness=max(plan.get("ahead") or 1, 1) if "async" in plan["mode"] else int(bool(other)),
        no_reference=not kl and algorithm in ("ppo", "rloo"),
        other_keys=other,
    )


def _engine_gpus(plan: Mapping[str, Any]) -> int:
    """Return GPUs of engines that have their own; 0 where their nodes are not given."""
    return int((plan.get("engine_nodes") or 0) * (plan.get("engine_node_gpus") or plan["gpus_per_node"]))


def _engine(plan: Mapping[str, Any], release: str | None) -> dict[str, Any]:
    """Return the engine, whether it runs CUDA graphs, and whether that is certain."""
    eager, name = plan.get("eager"), plan["engine_name"]
    graphs = load_framework("verl").graphs(f"verl {release or VERSION}", name) if eager is None else not eager
    certain = bool(release) or name != "vllm" or eager is not None
    return {"engine": {"vllm_omni": "vllm"}.get(name, name), "graphs": graphs, "engine_mode_said": certain}


def _prompts(section: Section, plan: Mapping[str, Any]) -> int:
    """Return the prompts of a step; the fully asynchronous trainer says them in mini-batches, beside a train_batch_size of
    0."""
    if not section.has("async_training"):
        return section.count("data.train_batch_size") or int(plan["prompts"])
    return int(plan["minibatch_prompts"] * plan["async_batches"] * plan["async_steps"])


def _removes_padding(plan: Mapping[str, Any], version: str) -> bool:
    """Return whether a micro-batch of so many samples holds their tokens alone."""
    release = release_numbers(version)
    if load_framework("verl").padded_to(version, plan["back_end"]) == "none":
        return True
    own = plan["back_end"] == "megatron" and release < release_numbers(ONE_SWITCH_FROM)
    switch = plan.get("megatron_unpadded" if own else "unpadded")
    return own or release >= release_numbers(REMOVES_FROM) if switch is None else bool(switch)


def _pad_as_any(run: RlRun) -> None:
    """Pad as a release that is not known: to the longest of all."""
    verl = load_framework("verl")
    run.pads_to, last = verl.padded_at_most(run.back_end), verl.padded_to(VERSION, run.back_end)
    if run.pads_to != last:
        longest = {"cap": "the caps of prompt and response"}.get(run.pads_to, f"the longest of a {run.pads_to}")
        newest = f"{VERSION} pads to the longest of a {last} (say --version)"
        padded = f"{PADDING} is false: samples are padded to {longest}, as older releases do; {newest}"
        run.notes.append(note(padded, Effect.LESS_MEMORY))


def _back_end(run: RlRun, plan: Mapping[str, Any]) -> None:
    """Set degrees, recomputation and what waits on the host, as the back end has them."""
    if run.back_end == "megatron":
        if run.etp > 1 and not plan.get("etp"):
            run.notes.append(split_experts(run.tp))
        run.offload = plan["parameters_wait"] and plan["optimizer_waits"]
        return
    run.cp = plan["ulysses"]
    run.offload = plan["fsdp_parameters_wait"] and plan["fsdp_optimizer_waits"]
    if (size := plan["fsdp_size"] or -1) not in (-1, run.train_gpus):
        why = f"{ACTOR}.fsdp_config.fsdp_size {size} is priced as sharding over all {run.train_gpus} GPUs"
        run.notes.append(note(why))


def _passes(section: Section, run: RlRun, plan: Mapping[str, Any]) -> None:
    """Set the micro-batches of training and of log-probabilities, and note what verl/utils/config.py (validate_config) and
    the workers refuse of these."""
    run.mbs = plan.get("samples") or _of_all_ranks(plan.get("all_samples") or 0, run)
    run.forward = _pass("forward", run, plan)
    used = load_algorithm(run.algorithm).reference_passes and not run.no_reference
    run.reference_forward = _pass("reference", run, plan) if used else None
    for at, batch in ((ROLLOUT, run.forward), (REF, run.reference_forward)):
        if batch == PassBatch():
            run.refused.append(
                f"neither {at}.{PASS}_per_gpu nor {at}.{PASS} is given, and samples are not packed (use_dynamic_bsz): give the "
                "first"
            )
    for at in (f"{ACTOR}.ppo_micro_batch_size", *(f"{at}.{PASS}" for at in (ROLLOUT, REF))):
        if not plan["dynamic"] and section.has(f"{at}_per_gpu") and section.has(at):
            run.refused.append(f"{at}_per_gpu and {at} are both given: leave the second out")
    packs, dynamic = bool(run.forward.tokens_per_gpu), plan["dynamic"]
    if run.version == VERSION and packs != dynamic:  # asserted in verl/workers/engine_workers.py of 0.9.1
        run.refused.append(
            f"{ROLLOUT}.log_prob_use_dynamic_bsz is {packs} and {ACTOR}.use_dynamic_bsz {dynamic}: verl {VERSION} wants both "
            "alike"
        )


def _pass(name: str, run: RlRun, plan: Mapping[str, Any]) -> PassBatch:
    """Return the micro-batch of one pass (defaults: rollout.yaml and ref.yaml of verl/trainer/config)."""
    if plan.get(f"{name}_dynamic", plan["dynamic"]):
        return PassBatch(tokens_per_gpu=plan.get(f"{name}_tokens") or plan["token_cap"])
    each, every = plan.get(f"{name}_samples"), plan.get(f"{name}_all_samples")
    return PassBatch(mbs=each or 0) if each or not every else PassBatch(mbs=_share_of_a_rank(every, run))


def _share_of_a_rank(samples: int, run: RlRun) -> int:
    return max(1, samples * run.tp * run.pp * run.cp // run.train_gpus)


def _of_all_ranks(samples: int, run: RlRun) -> int:
    """Return the share of one rank in ppo_micro_batch_size, which verl/workers/{fsdp,megatron}_workers.py divide. Raises
    InputError where samples are not packed and nothing says how many a micro-batch has (verl/workers/config/actor.py of
    0.9.1)."""
    if not samples and not run.tokens_per_gpu:
        raise InputError(
            f"{ACTOR}.ppo_micro_batch_size_per_gpu is not given, nor {ACTOR}.use_dynamic_bsz=True: verl refuses a run without "
            "both; give one of them"
        )
    return _share_of_a_rank(samples, run)


def _note(section: Section, run: RlRun, plan: Mapping[str, Any]) -> None:
    """Note what is there and not priced, or priced as another, and the pass that verl/trainer/ppo/ray_trainer.py leaves out."""
    estimator = plan["estimator"]
    remarks = {
        "algorithm.rollout_correction.bypass_mode: no pass of the policy's log-probabilities": run.no_policy_pass,
        f"one response of a prompt: verl's {estimator} compares it with none, its reward is the advantage": (
            run.group == 1 and estimator in COMPARING
        ),
        # verl/workers/rollout/replica.py of 0.9.1: an engine's world is tp x dp x pp
        f"each of an engine's {run.engine_dp} data-parallel ranks priced as an engine of its own": run.engine_dp > 1,
        # verl/trainer/ppo/ray_trainer.py: REMAX asks for gen_baseline_output
        "remax: a greedy response of every prompt is generated as its baseline, which is not priced": estimator == "remax",
    }
    run.notes += [note(text) for text, there in remarks.items() if there]
    for at, path in (("reward_model", "model.path"), ("reward.reward_model", "model_path")):
        if section.flag(f"{at}.enable"):
            nodes = section.count(f"{at}.nnodes") or 0 if section.flag(f"{at}.enable_resource_pool") else 0
            own = nodes * (section.count(f"{at}.n_gpus_per_node") or 0)
            score_by(run, section.flat.get(f"{at}.{path}"), own, beside=at == "reward_model" and not own)
    if plan["filters"]:
        more = plan.get("generated_prompts") or 0
        sample_dynamically(run, more / run.prompts if more > run.prompts else None)


def write(run: RlRun) -> dict[str, str]:
    """Write run_verl.sh. Raises UnsupportedError for what verl 0.9.1 has no keys for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"verl's trainer has no {run.algorithm} here: use {', '.join(WRITTEN)}")
    if run.critic_gpus:
        raise UnsupportedError("verl's trainer keeps the critic on the actor's GPUs")
    if run.rollout_gpus and not run.staleness:
        raise UnsupportedError("verl's trainer generates on GPUs of their own only ahead of the weights: say --staleness 1")
    text = [
        "#!/usr/bin/env bash",
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with verl {VERSION} on {run.train_gpus + run.rollout_gpus} GPUs.",
        "# Give MODEL (a checkpoint's folder or its name), TRAIN_FILES and VAL_FILES (parquet).",
        "set -euo pipefail",
        model_line(run),
        "python3 -m verl.trainer.main_ppo \\",
        f"  --config-name={'ppo_megatron_trainer' if run.back_end == 'megatron' else 'ppo_trainer'} \\",
        '  actor_rollout_ref.model.path="$MODEL" \\',
        '  data.train_files="${TRAIN_FILES:?give TRAIN_FILES}" \\',
        '  data.val_files="${VAL_FILES:?give VAL_FILES}" \\',
        *([TOOLS] if run.agents.turns > 1 else []),
        *(f"  {quoted(f'{key}={value}')} \\" for key, value in _words(run)),
        '  "$@"',
    ]
    return {"run_verl.sh": "\n".join(text) + "\n"}


def _words(run: RlRun) -> Iterator[tuple[str, Any]]:
    """Return key and value of every override; those that the base configuration lacks with hydra's `+`."""
    words = list(written_paths(load_map("rl_verl"), _fields(run)))
    optimizer = [word for word in words if word[0].startswith(f"{ACTOR}.optim.")]
    words = [word for word in words if word not in optimizer]
    if run.algorithm == "ppo":
        own = f"{ACTOR}.megatron."
        words += [(f"critic.megatron.{key.removeprefix(own)}", value) for key, value in words if key.startswith(own)]
    for key, value in (*words, *optimizer):
        yield ("+" if any(part in key for part in ADDED) else "") + key, value


def _fields(run: RlRun) -> dict[str, Any]:
    """Return the words of the map that a run says."""
    alone, samples = run.rollout_gpus > 0, None if run.tokens_per_gpu else run.mbs
    waits = ("parameters_wait", "optimizer_waits", "fsdp_parameters_wait", "fsdp_optimizer_waits", "fsdp_reference_waits")
    return {
        **fields_of_run(run),
        **dict.fromkeys((*waits, "reference_waits"), run.offload),
        **dict.fromkeys(("samples", "forward_samples", "reference_samples", "critic_samples"), samples),
        **dict.fromkeys(("ulysses", "reference_ulysses"), run.cp),
        "critic_dynamic": run.tokens_per_gpu > 0,
        "algorithm": "grpo" if run.algorithm == "dapo" else run.algorithm,
        "kl": run.algorithm != "dapo",
        "response_cap": run.response_cap + run.agents.added_tokens,
        "minibatch_prompts": max(1, run.minibatch // run.group),
        "engine_name": run.engine,
        "many_turns": run.agents.turns > 1,
        "turns": run.agents.turns,
        "mode": "sync" if not run.staleness else "separate_async" if alone else "colocate_async",
        "ahead": run.staleness or None,
        "hybrid": not alone,
        "etp": run.etp if run.experts else None,
        "unpadded": True if run.back_end == "fsdp" else None,
    }
