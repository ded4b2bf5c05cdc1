"""Megatron's linear layers as transformers names them, by family: what PEFT's adapters are put on.

PEFT matches a name to the end of a module's (`peft.tuners.tuners_utils.check_target_module_exists`). The names are those of
transformers 5.23, models/*/modeling_*.py; tests/judge/test_families.py builds each family and looks for them.
"""

from __future__ import annotations

from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import family_of_name
from autoconfig.specs.scenario import LORA_MODULES

ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer but the output layer (peft.utils.constants.INCLUDE_LINEAR_LAYERS_SHORTHAND)."""
Names = dict[str, tuple[str, ...]]
"""Megatron's layer -> the layers of transformers that it holds."""
_SPLIT = ("q_proj", "k_proj", "v_proj")
_NEOX = ("mlp.dense_h_to_4h",), ("mlp.dense_4h_to_h",)
_GATED = ("gate_proj", "up_proj"), ("down_proj",)
_OPT = ("fc1",), ("fc2",)


def _names(qkv: tuple[str, ...], proj: str, mlp: tuple[tuple[str, ...], tuple[str, ...]]) -> Names:
    return dict(zip(LORA_MODULES, (qkv, (proj,), *mlp), strict=True))


LLAMA = _names(_SPLIT, "o_proj", _GATED)
_TABLE: dict[tuple[str, ...], Names] = {
    (
        "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "vaultgemma",
        "olmo2", "olmo3", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "granite", "granite_swa", "helium",
        "hunyuan_v1_dense", "hyperclovax", "internlm3", "iquestcoder", "seed_oss", "smollm3", "stablelm",
    ): LLAMA,
    ("phi3",): _names(("qkv_proj",), "o_proj", (("gate_up_proj",), ("down_proj",))),
    ("glm", "glm4"): _names(_SPLIT, "o_proj", (("gate_up_proj",), ("down_proj",))),
    ("arcee", "jais2", "nemotron"): _names(_SPLIT, "o_proj", (("up_proj",), ("down_proj",))),
    ("phi",): _names(_SPLIT, "self_attn.dense", _OPT),
    ("opt", "xglm", "biogpt"): _names(_SPLIT, "out_proj", _OPT),
    ("starcoder2",): _names(_SPLIT, "o_proj", (("mlp.c_fc",), ("mlp.c_proj",))),
    ("gpt2", "gpt_bigcode"): _names(("attn.c_attn",), "attn.c_proj", (("mlp.c_fc",), ("mlp.c_proj",))),
    ("gpt_neo",): _names(_SPLIT, "out_proj", (("mlp.c_fc",), ("mlp.c_proj",))),
    ("gptj",): _names(_SPLIT, "out_proj", (("fc_in",), ("fc_out",))),
    ("codegen",): _names(("qkv_proj",), "out_proj", (("fc_in",), ("fc_out",))),
    ("gpt_neox",): _names(("query_key_value",), "attention.dense", _NEOX),
    ("bloom", "falcon"): _names(("query_key_value",), "self_attention.dense", _NEOX),
    ("persimmon",): _names(("query_key_value",), "self_attn.dense", _NEOX),
    ("mpt",): _names(("Wqkv",), "out_proj", (("up_proj",), ("down_proj",))),
}  # fmt: skip
BY_TYPE = {kind: names for kinds, names in _TABLE.items() for kind in kinds}
"""model_type of a config.json -> names."""
_OF_CATALOGUE = {
    "llama2": "llama", "llama3": "llama", "llama3.1": "llama", "llama3.2": "llama", "qwen2.5": "qwen2", "olmo": "olmo2",
    "phi": "phi3", "smollm": "smollm3", "gpt-neox": "gpt_neox", "gpt-j": "gptj", "granite": "", "gpt3": "",
}  # fmt: skip
"""Family of the catalogue -> model_type, where it is another word; empty: transformers has no model of these shapes, or one of
hybrids, whose names differ."""


def names_of(model: ModelSpec) -> Names | None:
    """Return the names of a model's layers; None where its family is not known."""
    family = family_of_name(model.name) or ""
    return BY_TYPE.get(model.model_type or _OF_CATALOGUE.get(family, family))


def named_modules(model: ModelSpec, modules: tuple[str, ...]) -> list[str]:
    """Return what PEFT is told of these of Megatron's layers: their names, or ALL_LINEAR for all of them in an unknown family;
    empty for some of an unknown family."""
    if (names := names_of(model)) is not None:
        return [name for module in modules for name in names[module]]
    return [ALL_LINEAR] if set(modules) == set(LORA_MODULES) else []


def modules_named(model: ModelSpec, texts: set[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return (Megatron's layers that hold the layers of these names, the names that the model has not); names of an unknown
    family are taken as Llama's."""
    table = names_of(model) or LLAMA
    holders = {
        text: [module for module, theirs in table.items() if any(_same(text, name) for name in (module, *theirs))]
        for text in texts
    }
    held = {module for modules in holders.values() for module in modules}
    return tuple(m for m in LORA_MODULES if m in held), sorted(text for text, modules in holders.items() if not modules)


def _same(text: str, name: str) -> bool:
    """Return whether one name is the end of the other, at a dot."""
    return text == name or text.endswith(f".{name}") or name.endswith(f".{text}")
