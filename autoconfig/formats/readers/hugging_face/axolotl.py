"""axolotl, whose trainer is Hugging Face's: its YAML, in its words of data/trainers.toml (axolotl 0.19)."""

from __future__ import annotations

import re
from typing import Any

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.hooks.trainers import words_of_trainer
from autoconfig.formats.readers.hugging_face.preferences import not_supervised
from autoconfig.formats.readers.hugging_face.sharding import is_named, names_deepspeed
from autoconfig.formats.readers.hugging_face.trainer import HARMLESS, keep_type, settings, settings_of_fsdp, training
from autoconfig.formats.record import Document, record
from autoconfig.formats.words import Settings
from autoconfig.formats.writers import trl
from autoconfig.formats.writers.trainers import settings_of_axolotl
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Scenario

LENGTH, MICRO_BATCH = 512, 1
"""Defaults of sequence_len and micro_batch_size (utils/schemas/config.py, training.py)."""
ADAPTERS = ("lora", "qlora")
_REFUSED = {
    "qat": "weights are quantised while they train, which is not priced",
    "dp_replicate_size": "weights are sharded over part of the GPUs, with a copy in each such part, which plans cannot say",
    "relora": "adapters are merged while they train, with an optimizer that is reset; not priced",
}
_NAMED = {
    "activation_offloading": (Effect.LESS_MEMORY, "inputs of layers wait in CPU memory: less GPU memory, more time"),
    "layer_offloading": (Effect.LESS_MEMORY, "layers wait in CPU memory: less GPU memory, more time"),
    "selective_checkpointing": (Effect.MORE_MEMORY, "some operators' outputs are kept, priced as if none: more memory"),
    "tiled_mlp": (Effect.LESS_MEMORY, "the MLP runs in tiles: less memory"),
}


def read(document: Document) -> CheckInput:
    """The record. GPUs: --gpus, else the header that `export` wrote. Raises InputError, UnsupportedError."""
    section = document.section()
    axolotl = words_of_trainer("axolotl")
    section.rename(axolotl.words)
    for key, algorithm in (("rl", section.word("rl") or ""), ("reward_model", "reward"), ("process_reward_model", "prm")):
        if is_named(section, key):
            raise UnsupportedError(not_supervised(f"{section.place(key)} is {str(section.get(key))[:40]}", algorithm))
    for key, why in _REFUSED.items():
        if is_named(section, key) and str(section.get(key)) != "1":
            raise UnsupportedError(f"{section.place(key)} is {str(section.get(key))[:40]}: {why}")
    kind = _translate(section)
    run = training(
        document,
        section,
        name=section.word("model_name_or_path"),
        kind=kind,
        length=("max_length", LENGTH),
        recompute=section.flag("gradient_checkpointing"),
        gpus=None,
    )
    run.harmless = re.compile(f"{HARMLESS.pattern}|{axolotl.harmless}")
    run.ways = {**run.ways, "adapters": "adapter: lora"}
    run.not_modelled += [Remark(key, None, why, effect) for key, (effect, why) in _NAMED.items() if is_named(section, key)]
    zero = names_deepspeed(section)
    if not zero and not run.fsdp and not section.has("use_liger_kernel"):
        run.software = trl.SOFTWARE
    spell = _of_zero if zero else _of_list if section.flat.get("fsdp") not in (None, True) else settings_of_axolotl
    return record(document, run, section, spell, keep_type(section, run, DEEPSPEED.wish if zero else ACCELERATE.wish))


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _of_zero(scenario: Scenario, plan: TrainPlan) -> Settings:
    return _in_its_words(settings(scenario, plan))


def _of_list(scenario: Scenario, plan: TrainPlan) -> Settings:
    """Of a file that says `fsdp: [full_shard, auto_wrap]`, as axolotl before FSDP2."""
    return _in_its_words(settings_of_fsdp(scenario, plan))


def _in_its_words(found: Settings) -> Settings:
    words = words_of_trainer("axolotl").words
    return {words.get(name, name): texts for name, texts in found.items()}


def _translate(section: Section) -> str:
    """Values that axolotl has another way, as the Trainer's; the kind of training."""
    flat: dict[str, Any] = section.flat
    for key in ("bf16", "fp16"):
        if str(flat.get(key)).lower() in ("auto", "full"):
            flat[key] = key == "bf16" or not section.flag("bf16")
    if section.flag("bfloat16"):
        flat["bf16"] = True
    flat.setdefault("dtype", "bfloat16" if section.flag("bf16") else "float16" if section.flag("fp16") else "float32")
    flat.setdefault("per_device_train_batch_size", MICRO_BATCH)
    if isinstance(way := flat.get("gradient_checkpointing"), str) and way.lower() not in ("true", "false"):
        flat |= {"gradient_checkpointing": True, "activation_offloading": way}
    if not is_named(section, "fsdp") and any(path.startswith("fsdp_config.") for path in flat):
        flat["fsdp"] = True
    if any("CutCrossEntropy" in str(name) for name in _listed(section.get("plugins"))):
        flat.setdefault("cut_cross_entropy", True)  # CutCrossEntropyArgs: on unless the file says otherwise
    if section.flag("eager_attention"):
        flat["attn_implementation"] = "eager"
    adapter = (section.word("adapter") or "").lower()
    if adapter not in ("", "none", *ADAPTERS):
        raise UnsupportedError(f"{section.place('adapter')} is {adapter[:40]}: read are {', '.join(ADAPTERS)}")
    if not adapter or adapter == "none":
        return "full"
    if adapter == "qlora":
        flat |= {"load_in_4bit": not section.flag("load_in_8bit"), "use_bnb_nested_quant": True}
    if section.flag("lora_target_linear"):
        flat["lora_target_modules"] = "all-linear"
    return "lora"
