"""TRL: `trl grpo --config grpo.yaml` with an accelerate file for DeepSpeed ZeRO-3; and ms-swift: `swift rlhf --rlhf_type grpo`,
whose trainer is TRL's with words and defaults of its own.

ms-swift pads the samples of a micro-batch, or none with --padding_free (3.12.0 swift/trainers/rlhf_trainer/grpo_trainer.py,
4.6.0 swift/rlhf_trainers/grpo_trainer.py: split_by_mini_batches, then the template's data_collator).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from autoconfig.formats.post_training.keys import likeliest_version, versions
from autoconfig.formats.post_training.recognise import Recognised
from autoconfig.formats.post_training.run import RlRun, map_of_framework, run_of_fields
from autoconfig.formats.post_training.words import yaml_lines
from autoconfig.maps.read import Reading, read_fields
from autoconfig.maps.tree import Section
from autoconfig.post_training.job import LEAST_PROMPT, Placement, PostTrainingJob
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.remarks import Effect, Remark, note

LEAST_BATCH = 16
"""Samples of an optimizer step that accumulation reaches where ms-swift is not given it (swift/trainers/arguments.py)."""


def read(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run on `gpus` GPUs, which a TRL file does not name; what it leaves out as in the release, else in the
    newest that takes most of its keys. Raises InputError."""
    flat, newest = document.section.flat, versions("trl")[-1]
    version = release or likeliest_version("trl", flat, versions("trl"))
    older = map_of_framework("trl").more["older"].get(version, {})
    flat.update({key: value for key, value in older.items() if flat.get(key) is None})
    if gpus is None:
        raise InputError("a TRL configuration does not say its GPUs: say --gpus N")
    reading = _grpo(document.section, gpus)
    reading.fields["version"] = version
    run = run_of_fields("trl", reading)
    if not release and version != newest:
        run.notes.append(Remark("version", version, "the newest release that takes most of its keys", Effect.EVERYTHING))
    run.notes += _server_remarks(run)
    return run


def read_swift(document: Recognised, gpus: int | None, release: str | None) -> RlRun:
    """Return the run on `gpus` GPUs. Raises InputError, and UnsupportedError for other kinds of training than GRPO."""
    section, gpus, table = document.section, gpus or document.gpus, map_of_framework("swift")
    kind = section.word("rlhf_type") or "dpo"
    if kind != "grpo":
        plan = f": `autoconfig rl --algorithm {kind}` plans that" if kind in ("dpo", "rm", "ppo", "kto") else ""
        raise UnsupportedError(f"--rlhf_type {kind[:20]} is not read, grpo is{plan}")
    if gpus is None:
        raise InputError(f"the script does not set NPROC_PER_NODE: say {option('gpus')} N")
    version = likeliest_version("swift", section.flat, versions("swift"))
    section.rename(table.more["words"])
    section.flat |= {key: value for key, value in table.more["defaults"].items() if section.flat.get(key) is None}
    if section.flat.get("gradient_accumulation_steps") is None:
        each = section.count("per_device_train_batch_size") or 1
        section.flat["gradient_accumulation_steps"] = max(1, ceil(LEAST_BATCH / each / gpus))
    own = read_fields(table, section).fields
    section.flat |= {"use_peft": own["tuner"] == "lora", "vllm_enable_sleep_mode": own["sleep"] > 0}
    reading = _grpo(section, gpus)
    name = own["deepspeed"].rpartition("/")[2].lower()  # `zero2`, `zero3` and the same with `_offload`, or a file elsewhere
    reading.fields |= {
        "version": version,
        "pads_to": "micro-batch",
        "removes_padding": own["unpadded"],
        "offload": own["optimizer_waits"] and own["model_waits"],
        "sharding": 3 if "zero3" in name else 2,
        "optimizer_on_cpu": "offload" in name,
    }
    run = run_of_fields("swift", reading)
    run.notes += _server_remarks(run)
    if "zero2" not in name and "zero3" not in name:
        what = f"--deepspeed {own['deepspeed'][:60]}" if name else "no --deepspeed: every GPU holds all"
        run.notes.append(note(f"{what}, priced as ZeRO-2, which needs less memory", Effect.MORE_MEMORY))
    return run


def _server_remarks(run: RlRun) -> list[Remark]:
    """Return the note on engines of a server, whose GPUs no file says."""
    tp = run.placement.engine.tp
    own = f"{tp} {'GPU' if tp == 1 else 'GPUs'} of its own, beside the {run.train_gpus} that train"
    why = f"vllm_mode server: the server, which another command starts, is taken to have {own}"
    return [] if run.placement.colocated else [note(why)]


def _grpo(section: Section, gpus: int) -> Reading:
    """Return what GRPOTrainer's words say on so many GPUs. Raises InputError."""
    reading = read_fields(map_of_framework("trl"), section)
    plan = reading.fields
    batch, whole, response = _generation_batch(plan, gpus), plan["longest"], plan["response_cap"]
    node, vllm = 8 if gpus % 8 == 0 else gpus, plan["vllm"]
    tp = plan["engine_tp"] if vllm else 1
    plan |= {
        "nodes": gpus // node,
        "gpus_per_node": node,
        "rollout_gpus": tp if vllm and plan["mode"] == "server" else 0,
        "prompts": max(1, batch // plan["group"]),
        "minibatch": min(plan["mbs"] * gpus * plan["accumulation"], batch),
        "offload": False,
        "engine": "vllm" if vllm else "hf",
        "engine_tp": tp,
    }
    plan.setdefault("prompt_cap", whole - response if whole > response else LEAST_PROMPT)
    return reading


def _generation_batch(plan: Mapping[str, Any], gpus: int) -> int:
    """Return samples that are generated at once. Raises InputError for those that TRL refuses."""
    batch, device_step, group = plan.get("batch"), plan["mbs"] * gpus, plan["group"]
    if batch and plan.get("repeats"):
        raise InputError("generation_batch_size and steps_per_generation are both given: TRL takes one of them")
    batch = batch or device_step * (plan.get("repeats") or plan["accumulation"])
    if batch % group:
        raise InputError(f"the generation batch of {batch:,} samples is not a multiple of num_generations {group}")
    if batch % device_step:
        raise InputError(f"the generation batch of {batch:,} samples is not a multiple of {device_step:,} a device step")
    return int(batch)


def values(job: PostTrainingJob, placement: Placement, words: dict[str, Any]) -> dict[str, Any]:
    """Return what grpo.yaml and accelerate.yaml say beside what all files say. Raises UnsupportedError."""
    gpus, each = placement.train.world_size, placement.train.mbs
    if job.minibatch % (gpus * each):
        raise UnsupportedError(f"{job.minibatch:,} samples do not divide over {gpus} GPUs of {each} samples each")
    words |= {
        "memory_share": placement.memory_share,
        "dtype": "bfloat16" if job.lora_rank else "float32",
        "accumulation": job.minibatch // (gpus * each),
        "batch": job.samples,
        "kl": 0.04 if job.algorithm.name == "grpo" else 0.0,
        "vllm": True,
        "mode": "colocate",
        "peft": job.lora_rank > 0,
    }
    of_weights = {f"dtype: {words['dtype']}": "of the weights; trained ones are fp32, products bf16"}
    return {"VALUES": yaml_lines("trl", words, of_weights), "NODES": words["nodes"], "LAST_RANK": words["nodes"] - 1}
