"""TRL: `trl grpo --config grpo.yaml` with an accelerate file for DeepSpeed ZeRO-3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoconfig.formats.post_training.keys import likeliest_version, versions
from autoconfig.formats.post_training.run import ASKED, PLACEHOLDER, RlRun, fields_of_run, run_of_fields
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.maps.write import written, yaml_text
from autoconfig.planning.export_files import MARK, remark
from autoconfig.post_training.job import LEAST_PROMPT
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import Effect, Remark, note

VERSION = "1.16.0"
WRITTEN = ("grpo", "dapo")


def read(section: Section, gpus: int | None, release: str | None = None) -> RlRun:
    """Return the run on `gpus` GPUs, which a TRL file does not name; what it leaves out as in the release, else in the
    newest that takes most of its keys. Raises InputError."""
    version = release or likeliest_version("trl", section.flat, versions("trl"))
    run = _run(section, gpus, version)
    if not release and version != VERSION:
        run.notes.append(Remark("version", version, "the newest release that takes most of its keys", Effect.EVERYTHING))
    if run.rollout_gpus:
        own = f"{run.engine_tp} {'GPU' if run.engine_tp == 1 else 'GPUs'} of its own, beside the {gpus} that train"
        run.notes.append(note(f"vllm_mode server: the server, which another command starts, is taken to have {own}"))
    return run


def _run(section: Section, gpus: int | None, version: str) -> RlRun:
    """Return the run of a file of this release."""
    table = load_map("rl_trl")
    older = table.more["older"].get(version, {})
    section.flat.update({key: value for key, value in older.items() if section.flat.get(key) is None})
    if gpus is None:
        raise InputError("a TRL configuration does not say its GPUs: say --gpus N")
    plan = read_fields(table, section).fields
    batch, whole, response = _generation_batch(plan, gpus), plan["longest"], plan["response_cap"]
    node = 8 if gpus % 8 == 0 else gpus
    return run_of_fields(
        plan,
        "trl",
        "model_name_or_path",
        version=version,
        back_end="fsdp",
        algorithm="grpo" if plan["beta"] else "dapo",
        algorithm_word="grpo",
        nodes=gpus // node,
        gpus_per_node=node,
        rollout_gpus=plan["engine_tp"] if plan["vllm"] and plan["mode"] == "server" else 0,
        prompts=max(1, batch // plan["group"]),
        minibatch=min(plan["mbs"] * gpus * plan["accumulation"], batch),
        prompt_cap=plan.get("prompt_cap") or (whole - response if whole > response else LEAST_PROMPT),
        offload=False,
        engine="vllm" if plan["vllm"] else "hf",
        engine_tp=plan["engine_tp"] if plan["vllm"] else 1,
        compares=True,
    )


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


def write(run: RlRun) -> dict[str, str]:
    """Write grpo.yaml and accelerate.yaml. Raises UnsupportedError for what TRL has no keys for."""
    gpus, each = run.train_gpus, run.mbs
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"trl grpo is no {run.algorithm}: use grpo or dapo")
    if run.back_end != "fsdp" or run.tp * run.pp * run.cp > 1:
        raise UnsupportedError("TRL trains with ZeRO-3 over all GPUs: no tensor, pipeline or context parallelism")
    if run.rollout_gpus or run.staleness:
        raise UnsupportedError("a step of TRL's GRPOTrainer is synchronous, with engines on the GPUs of training")
    if run.tokens_per_gpu:
        raise UnsupportedError("TRL's GRPOTrainer pads the samples of a device batch: it packs none")
    if run.minibatch % (gpus * each):
        raise UnsupportedError(f"{run.minibatch:,} samples do not divide over {gpus} GPUs of {each} samples each")
    head = [
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with TRL {VERSION} on {gpus} GPUs; add dataset_name and reward_funcs.",
        "# trl grpo --config grpo.yaml --accelerate_config accelerate.yaml",
    ]
    return {"grpo.yaml": "\n".join([*head, _yaml(run)]), "accelerate.yaml": _accelerate(run)}


def _yaml(run: RlRun) -> str:
    """Return the settings, with a remark behind the model that is asked for and behind the numbers of weights."""
    dtype = "bfloat16" if run.lora_rank else "float32"
    fields = {
        **fields_of_run(run),
        "memory_share": run.memory_share,
        "model": run.checkpoint or PLACEHOLDER,
        "dtype": dtype,
        "accumulation": run.minibatch // (run.train_gpus * run.mbs),
        "batch": run.prompts * run.group,
        "beta": 0.04 if run.algorithm == "grpo" else 0.0,
        "vllm": True,
        "mode": "colocate",
        "engine_sleeps": True,
        "peft": run.lora_rank > 0,
    }
    text = yaml_text(written(load_map("rl_trl"), fields))
    remarks = {
        f"model_name_or_path: {PLACEHOLDER}": f"give {ASKED}",
        f"dtype: {dtype}": "of the weights; trained ones are fp32, products bf16",
    }
    for line, why in remarks.items():
        text = text.replace(f"{line}\n", f"{line}  # {why}\n")
    return text


def _accelerate(run: RlRun) -> str:
    """Return accelerate's file, which starts the processes with DeepSpeed ZeRO-3."""
    lines = [
        MARK,
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: DEEPSPEED",
        "deepspeed_config:",
        "  zero_stage: 3",
        "  zero3_init_flag: true",
        "mixed_precision: bf16",
        f"num_machines: {run.nodes}",
        f"num_processes: {run.train_gpus}",
    ]
    if run.nodes > 1:
        lines += [
            "main_process_ip: FIRST_NODE  # the address of the first node, the same in every node's file",
            "main_process_port: 29500",
            f"machine_rank: 0  # of this node, 0 to {run.nodes - 1}",
            "rdzv_backend: static",
            "same_network: true",
        ]
    return "\n".join(lines) + "\n"
