"""axolotl, whose trainer is Hugging Face's: its YAML, in its words of data/maps/axolotl.toml (axolotl 0.19)."""

from __future__ import annotations

from typing import Any

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.readers.hugging_face.preferences import not_supervised
from autoconfig.formats.readers.hugging_face.sharding import is_named, names_deepspeed
from autoconfig.formats.readers.hugging_face.trainer import TRAINER, keep_type, settings, settings_of_fsdp, training
from autoconfig.formats.record import Document, Spell, record
from autoconfig.formats.writers import trainers, trl
from autoconfig.maps.read import read_entry
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.errors import UnsupportedError

AXOLOTL = load_map("axolotl")
_ALGORITHMS = {"reward_model": "reward", "process_reward_model": "prm"}


def read(document: Document) -> CheckInput:
    """Return the record. GPUs: --gpus, else the header that `export` wrote. Raises InputError, UnsupportedError."""
    section = document.section()
    section.rename(AXOLOTL.more["words"])
    for key in ("rl", *_ALGORITHMS):
        if is_named(section, key):
            value = str(section.get(key))
            raise UnsupportedError(not_supervised(f"{section.place(key)} is {value[:40]}", _ALGORITHMS.get(key, value)))
    run = training(
        document,
        section,
        name=section.word("model_name_or_path"),
        kind=_translate(section),
        length=("max_length", AXOLOTL.more["length"]),
        recompute=section.flag("gradient_checkpointing"),
        gpus=None,
        table=TRAINER.beside(AXOLOTL),
    )
    run.ways = {**run.ways, "adapters": "adapter: lora"}
    zero = names_deepspeed(section)
    if not zero and not run.fsdp and not section.has("use_liger_kernel"):
        run.software = trl.SOFTWARE
    listed = section.flat.get("fsdp") not in (None, True)  # fsdp: [full_shard, auto_wrap], as before FSDP2
    own = trainers.FORMATS[trainers.AXOLOTL].settings
    spell = _in_its_words(settings) if zero else _in_its_words(settings_of_fsdp) if listed else own
    return record(document, run, section, spell, keep_type(section, run, DEEPSPEED.wish if zero else ACCELERATE.wish))


def _in_its_words(spell: Spell) -> Spell:
    """Return the words for a plan, by axolotl's names."""
    words = AXOLOTL.more["words"]
    return lambda scenario, plan: {words.get(name, name): texts for name, texts in spell(scenario, plan).items()}


def _translate(section: Section) -> str:
    """Put values that axolotl has another way in the Trainer's; return the kind of training. Raises UnsupportedError."""
    flat: dict[str, Any] = section.flat
    _translate_types(section)
    flat.setdefault("per_device_train_batch_size", AXOLOTL.more["micro_batch"])
    if isinstance(way := flat.get("gradient_checkpointing"), str) and way.lower() not in ("true", "false"):
        flat |= {"gradient_checkpointing": True, "activation_offloading": way}
    if not is_named(section, "fsdp") and any(path.startswith("fsdp_config.") for path in flat):
        flat["fsdp"] = True
    plugins = section.get("plugins")
    if any("CutCrossEntropy" in str(name) for name in (plugins if isinstance(plugins, list) else [plugins])):
        flat.setdefault("cut_cross_entropy", True)  # CutCrossEntropyArgs: on unless the file says otherwise
    if section.flag("eager_attention"):
        flat["attn_implementation"] = "eager"
    kind = str(read_entry(AXOLOTL.entry("adapter"), section))
    if kind == "qlora":
        flat |= {"load_in_4bit": not section.flag("load_in_8bit"), "use_bnb_nested_quant": True}
    if kind != "full" and section.flag("lora_target_linear"):
        flat["lora_target_modules"] = "all-linear"
    return "full" if kind == "full" else "lora"


def _translate_types(section: Section) -> None:
    """Put the words for types in the Trainer's (`bf16: auto`, `bf16: full`); weights are loaded in the type of training."""
    flat: dict[str, Any] = section.flat
    for key in ("bf16", "fp16"):
        if str(flat.get(key)).lower() in ("auto", "full"):
            flat[key] = key == "bf16" or not section.flag("bf16")
    if section.flag("bfloat16"):
        flat["bf16"] = True
    flat.setdefault("dtype", "bfloat16" if section.flag("bf16") else "float16" if section.flag("fp16") else "float32")
