"""ms-swift: `swift rlhf --rlhf_type grpo`, whose trainer is TRL's with words and defaults of its own.

It pads the samples of a micro-batch, or none with --padding_free (3.12.0 swift/trainers/rlhf_trainer/grpo_trainer.py, 4.6.0
swift/rlhf_trainers/grpo_trainer.py: split_by_mini_batches, then the template's data_collator).
"""

from __future__ import annotations

from math import ceil

from autoconfig.formats.post_training import trl
from autoconfig.formats.post_training.keys import likeliest_version
from autoconfig.formats.post_training.run import RlRun
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.remarks import Effect, note

VERSIONS = ("3.12.0", "4.6.0")
LEAST_BATCH = 16
"""Samples of an optimizer step that accumulation reaches where it is not given (swift/trainers/arguments.py)."""


def read(section: Section, gpus: int | None) -> RlRun:
    """Return the run on `gpus` GPUs. Raises InputError, and UnsupportedError for other kinds of training than GRPO."""
    kind = section.word("rlhf_type") or "dpo"
    if kind != "grpo":
        plan = f": `autoconfig rl --algorithm {kind}` plans that" if kind in ("dpo", "rm", "ppo", "kto") else ""
        raise UnsupportedError(f"--rlhf_type {kind[:20]} is not read, grpo is{plan}")
    if gpus is None:
        raise InputError(f"the script does not set NPROC_PER_NODE: say {option('gpus')} N")
    table, version = load_map("rl_swift"), likeliest_version("swift", section.flat, VERSIONS)
    section.rename(table.more["words"])
    if section.get("model_name_or_path") is None:
        raise InputError(f"--model is not in the file: say {option('model')} NAME")
    section.flat |= {key: value for key, value in table.more["defaults"].items() if section.flat.get(key) is None}
    if section.flat.get("gradient_accumulation_steps") is None:
        each = section.count("per_device_train_batch_size") or 1
        section.flat["gradient_accumulation_steps"] = max(1, ceil(LEAST_BATCH / each / gpus))
    own = read_fields(table, section).fields
    section.flat |= {"use_peft": own["tuner"] == "lora", "vllm_enable_sleep_mode": own["sleep"] > 0}
    run = trl.read(section, gpus, trl.VERSION)
    run.framework, run.version, run.pads_to, run.removes_padding = "swift", version, "micro-batch", own["unpadded"]
    run.offload = own["optimizer_waits"] and own["model_waits"] and not run.rollout_gpus
    _shards(own["deepspeed"], run)
    return run


def _shards(deepspeed: str, run: RlRun) -> None:
    """Set what --deepspeed shards: `zero2`, `zero3` and the same with `_offload`, or a file that is not here."""
    name = deepspeed.rpartition("/")[2].lower()
    run.sharding, run.cpu_optimizer = 3 if "zero3" in name else 2, 1.0 if "offload" in name else 0.0
    if "zero2" not in name and "zero3" not in name:
        what = f"--deepspeed {deepspeed[:60]}" if deepspeed else "no --deepspeed: every GPU holds all"
        run.notes.append(note(f"{what}, priced as ZeRO-2, which needs less memory", Effect.MORE_MEMORY))
