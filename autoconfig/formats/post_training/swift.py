"""ms-swift: `swift rlhf --rlhf_type grpo`, whose trainer is TRL's with words and defaults of its own.

It pads the samples of a micro-batch, or none with --padding_free (3.12.0 swift/trainers/rlhf_trainer/grpo_trainer.py, 4.6.0
swift/rlhf_trainers/grpo_trainer.py: split_by_mini_batches, then the template's data_collator).
"""

from __future__ import annotations

from math import ceil

from autoconfig.formats.post_training import trl
from autoconfig.formats.post_training.keys import likeliest_version
from autoconfig.formats.post_training.run import RlRun
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.remarks import Effect, note

VERSIONS = ("3.12.0", "4.6.0")
WORDS = {"model_name_or_path": "model", "lora_r": "lora_rank", "max_prompt_length": "max_length"}
"""TRL's word -> ms-swift's; max_length is of the prompt here (swift/arguments/rlhf_args.py)."""
DEFAULTS: dict[str, object] = {
    **{"beta": 0.04, "max_completion_length": 512, "num_generations": 8, "per_device_train_batch_size": 1},
    **{"vllm_gpu_memory_utilization": 0.9, "vllm_mode": "colocate", "lora_r": 8},
}
"""Of ms-swift 4.6.0 (swift/arguments/rlhf_args.py, swift/trainers/arguments.py, swift/rlhf_trainers/args_mixin.py)."""
LEAST_BATCH = 16
"""Samples of an optimizer step that accumulation reaches where it is not given (swift/trainers/arguments.py)."""


def read(section: Section, gpus: int | None) -> RlRun:
    """The run on `gpus` GPUs. Raises InputError, and UnsupportedError for other kinds of training than GRPO."""
    kind = section.word("rlhf_type") or "dpo"
    if kind != "grpo":
        plan = f": `autoconfig rl --algorithm {kind}` plans that" if kind in ("dpo", "rm", "ppo", "kto") else ""
        raise UnsupportedError(f"--rlhf_type {kind[:20]} is not read, grpo is{plan}")
    if gpus is None:
        raise InputError(f"the script does not set NPROC_PER_NODE: say {option('gpus')} N")
    version = likeliest_version("swift", section.flat, VERSIONS)
    section.rename(WORDS)
    if section.get("model_name_or_path") is None:
        raise InputError(f"--model is not in the file: say {option('model')} NAME")
    for key, value in DEFAULTS.items():
        if section.flat.get(key) is None:
            section.flat[key] = value
    each = section.count("per_device_train_batch_size") or 1
    if section.flat.get("gradient_accumulation_steps") is None:
        section.flat["gradient_accumulation_steps"] = max(1, ceil(LEAST_BATCH / each / gpus))
    tuner = section.word("tuner_type", "train_type") or "lora"
    if tuner not in ("lora", "full"):
        raise UnsupportedError(f"--tuner_type {tuner[:20]!r} is not priced: use lora or full")
    section.flat["use_peft"] = tuner == "lora"
    section.flat["vllm_enable_sleep_mode"] = bool(section.whole("sleep_level"))
    run = trl.read(section, gpus, trl.VERSION)
    run.framework, run.version, run.pads_to = "swift", version, "micro-batch"
    run.removes_padding = section.flag("padding_free", "packing")
    run.offload = section.flag("offload_optimizer") and section.flag("offload_model") and not run.rollout_gpus
    _shards(section, run)
    return run


def _shards(section: Section, run: RlRun) -> None:
    """What --deepspeed shards: `zero2`, `zero3` and the same with `_offload`, or a file that is not here."""
    said = section.word("deepspeed") or ""
    name = said.rpartition("/")[2].lower()
    run.sharding = 3 if "zero3" in name else 2
    run.cpu_optimizer = 1.0 if "offload" in name else 0.0
    if "zero2" not in name and "zero3" not in name:
        what = f"--deepspeed {said[:60]}" if said else "no --deepspeed: every GPU holds all"
        run.notes.append(note(f"{what}, priced as ZeRO-2, which needs less memory", Effect.MORE_MEMORY))
