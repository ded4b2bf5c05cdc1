"""verl: hydra overrides of `verl.trainer.main_ppo` in a shell script, with the Megatron or the FSDP back end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoconfig.formats.post_training.recognise import Recognised
from autoconfig.formats.post_training.run import (
    RlRun,
    algorithm_of,
    drops_reference,
    map_of_framework,
    pass_of,
    run_of_fields,
    score_by,
)
from autoconfig.maps.read import read_fields
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written_paths
from autoconfig.planning.export_files import quoted
from autoconfig.post_training.frameworks import load_algorithm, load_framework, release_numbers
from autoconfig.post_training.job import PassBatch, Placement, PostTrainingJob
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import Effect, note

VERSION: str = map_of_framework("verl").more["version"]
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
PASSES = {"forward": f"{ROLLOUT}.log_prob_micro_batch_size", "reference_forward": f"{REF}.log_prob_micro_batch_size"}
"""Passes of log-probabilities in the map, and the key of each one's samples over all ranks."""
REMOVES_FROM, ONE_SWITCH_FROM = (0, 7, 0), (0, 8, 0)
"""Releases from which padding is removed where a run does not say (verl/trainer/config/model/hf_model.yaml, false up to 0.6.1),
and from which one switch is of every back end."""
OWN_ROLLOUT = ("rollout.", "async_training.")
"""Sections of the trainers of verl/experimental with GPUs of engines alone: one step off, and fully asynchronous."""
ADDED = ("num_layers_in_", ".override_optimizer_config.")
"""Parts of keys that the base configuration does not have."""


def read(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run; keys that are not there have the defaults of verl 0.9.1, engines and padding those of `release`.
    Raises InputError."""
    section = document.section
    if "megatron" in document.config_name and not section.has(f"{ACTOR}.strategy", "model_engine"):
        section.flat["model_engine"] = "megatron"
    reading = read_fields(map_of_framework("verl"), section)
    plan = reading.fields
    plan["version"] = release or VERSION
    _place(section, plan)
    _run_engines(plan, release)
    _cut(plan)
    run = run_of_fields("verl", reading)
    run.refused += _refused(section, plan)
    for at, path in (("reward_model", "model.path"), ("reward.reward_model", "model_path")):
        if section.flag(f"{at}.enable"):
            nodes = section.count(f"{at}.nnodes") or 0 if section.flag(f"{at}.enable_resource_pool") else 0
            own = nodes * (section.count(f"{at}.n_gpus_per_node") or 0)
            score_by(run, section.flat.get(f"{at}.{path}"), own, beside=at == "reward_model" and not own)
    if (size := plan.get("fsdp_size") or -1) not in (-1, run.train_gpus):
        why = f"{ACTOR}.fsdp_config.fsdp_size {size} is priced as sharding over all {run.train_gpus} GPUs"
        run.notes.append(note(why))
    if not release and not run.removes_padding and not run.placement.tokens_per_gpu:
        _pad_as_any(run)
    return run


def _place(section: Section, plan: dict[str, Any]) -> None:
    """Set the GPUs of engines and what a step is made of, as the trainer that starts has them. Raises InputError."""
    alone = not plan["hybrid"] or plan["mode"] == "separate_async"
    plan["rollout_gpus"] = plan["engine_nodes"] * plan["engine_node_gpus"] if alone else 0
    if alone and not plan["rollout_gpus"]:
        raise InputError("actor_rollout_ref.hybrid_engine is false and actor_rollout_ref.rollout.nnodes is 0: no GPU generates")
    plan["other_keys"] = tuple(key for key in section.flat if alone and key.startswith(OWN_ROLLOUT))
    if section.has("async_training"):  # beside a train_batch_size of 0
        plan["prompts"] = plan["minibatch_prompts"] * plan["async_batches"] * plan["async_steps"]
    else:
        section.count("data.train_batch_size")  # at least 1
    plan["minibatch"] = plan["minibatch_prompts"] * plan["group"]
    plan["staleness"] = max(plan.get("ahead", 1), 1) if "async" in plan["mode"] else int(bool(plan["other_keys"]))
    plan["no_reference"] = drops_reference(plan)
    plan["offload"] = plan["parameters_wait"] and plan["optimizer_waits"]


def _run_engines(plan: dict[str, Any], release: str | None) -> None:
    """Set whether engines run CUDA graphs and micro-batches lose their padding, as the release does where a run says
    nothing."""
    verl, name, version = load_framework("verl"), plan["engine"], plan["version"]
    plan["engine_mode_said"] = bool(release) or name != "vllm" or "eager" in plan
    plan.setdefault("eager", not verl.graphs(f"verl {version}", name))
    plan["engine"] = {"vllm_omni": "vllm"}.get(name, name)
    numbers = release_numbers(version)
    own = plan["back_end"] == "megatron" and numbers < ONE_SWITCH_FROM
    packs = verl.padded_to(version, plan["back_end"]) == "none"
    plan["removes_padding"] = packs or plan.get("megatron_unpadded" if own else "unpadded", own or numbers >= REMOVES_FROM)


def _cut(plan: dict[str, Any]) -> None:
    """Set the micro-batches of training and of passes; samples of all ranks are shared by these
    (verl/workers/{fsdp,megatron}_workers.py). Raises InputError where nothing says how many a micro-batch has
    (verl/workers/config/actor.py of 0.9.1)."""
    gpus, ranks = plan["nodes"] * plan["gpus_per_node"], plan.get("tp", 1) * plan.get("pp", 1) * plan["cp"]
    for name in ("mbs", "forward_samples", "reference_forward_samples"):
        if f"all_{name}" in plan:
            plan.setdefault(name, max(1, plan[f"all_{name}"] * ranks // gpus))
    if "mbs" not in plan and not plan["dynamic"]:
        raise InputError(
            f"{ACTOR}.ppo_micro_batch_size_per_gpu is not given, nor {ACTOR}.use_dynamic_bsz=True: verl refuses a run without "
            "both; give one of them"
        )
    plan["forward"] = pass_of(plan, "forward")
    used = load_algorithm(algorithm_of(plan)).reference_passes and not plan["no_reference"]
    plan["reference_forward"] = pass_of(plan, "reference_forward") if used else None


def _refused(section: Section, plan: dict[str, Any]) -> Iterator[str]:
    """Yield what verl/utils/config.py (validate_config) and the workers refuse of micro-batches."""
    for name, key in PASSES.items():
        if plan[name] == PassBatch():
            yield f"neither {key}_per_gpu nor {key} is given, and samples are not packed (use_dynamic_bsz): give the first"
    for key in (f"{ACTOR}.ppo_micro_batch_size", *PASSES.values()):
        if not plan["dynamic"] and section.has(f"{key}_per_gpu") and section.has(key):
            yield f"{key}_per_gpu and {key} are both given: leave the second out"
    packs, dynamic = plan["forward_dynamic"], plan["dynamic"]
    if plan["version"] == VERSION and packs != dynamic:  # asserted in verl/workers/engine_workers.py of 0.9.1
        key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
        yield f"{key} is {packs} and {ACTOR}.use_dynamic_bsz {dynamic}: verl {VERSION} wants both alike"


def _pad_as_any(run: RlRun) -> None:
    """Pad as a release that is not known: to the longest of all."""
    verl = load_framework("verl")
    run.pads_to, last = verl.padded_at_most(run.back_end), verl.padded_to(VERSION, run.back_end)
    if run.pads_to != last:
        longest = {"cap": "the caps of prompt and response"}.get(run.pads_to, f"the longest of a {run.pads_to}")
        newest = f"{VERSION} pads to the longest of a {last} (say --version)"
        padded = f"actor_rollout_ref.model.use_remove_padding is false: samples are padded to {longest}, as older releases do"
        run.notes.append(note(f"{padded}; {newest}", Effect.LESS_MEMORY))


def values(job: PostTrainingJob, placement: Placement, words: dict[str, Any]) -> dict[str, Any]:
    """Return what run_verl.sh says beside what all files say: its overrides, those that the base configuration lacks with
    hydra's `+`."""
    turns, ahead, samples = job.agents.turns, placement.staleness, None if placement.tokens_per_gpu else placement.train.mbs
    words |= {
        **dict.fromkeys(("reference_waits", "parameters_wait", "optimizer_waits"), placement.offload),
        **dict.fromkeys(("mbs", "forward_samples", "reference_forward_samples"), samples),
        "algorithm": "grpo" if job.algorithm.name == "dapo" else job.algorithm.name,
        "kl": job.algorithm.name != "dapo",
        "reference_cp": placement.train.cp,
        "response_cap": words["response_cap"] + job.agents.added_tokens,
        "minibatch_prompts": max(1, job.minibatch // job.group),
        "many_turns": turns > 1,
        "turns": turns,
        "mode": "sync" if not ahead else "colocate_async" if placement.colocated else "separate_async",
        "ahead": ahead or None,
        "hybrid": placement.colocated,
        "etp": placement.train.etp if job.policy.is_moe else None,
    }
    lines = list(written_paths(map_of_framework("verl"), words))
    if job.algorithm.name == "ppo":
        lines += [(key.replace(ACTOR, "critic", 1), value) for key, value in lines if key.startswith(f"{ACTOR}.megatron.")]
    quoted_lines = [quoted(f"{'+' * any(part in key for part in ADDED)}{key}={value}") for key, value in lines]
    return {
        "CONFIG": "ppo_megatron_trainer" if words["back_end"] == "megatron" else "ppo_trainer",
        "TURNS": turns > 1,
        "VALUES": [f"  {line} \\" for line in quoted_lines],
    }
