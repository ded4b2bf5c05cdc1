"""A log of Megatron-LM: the arguments that it prints at its start (megatron/training/arguments.py, `_print_args`).

It prints every argument, given or not, and attributes that are worked out from them. What a switch that is off leaves without
effect is left out; a name that is no argument is one of those attributes, or a fork's own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoconfig.evidence.dump import is_dump, read_plan
from autoconfig.formats.argument_names import SWITCHED_OFF, argument_name
from autoconfig.formats.readers.megatron_words import names_in, words_of
from autoconfig.formats.record import Document, from_words
from autoconfig.maps.tree import Section
from autoconfig.megatron.argument_list import known_arguments
from autoconfig.megatron.check_input import CheckInput

FORMAT = "megatron-log"
_TYPES = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.uint8": "fp8",
}
_MEMBER = re.compile(r"<?[A-Z]\w{1,60}\.(\w{1,60})(?:: [^<>]{0,60}>)?")
_WORDS = {"True": True, "False": False, "None": None}
_WITHOUT: tuple[tuple[str, Any, re.Pattern[str]], ...] = (
    (
        "num_experts",
        None,
        re.compile(
            r"moe_(?!extended)\w{1,60}|expert_(?!model_parallel)\w{1,60}|overlap_moe\w{1,60}|use_tutel|delay_wgrad\w{1,60}"
        ),
    ),
    ("group_query_attention", False, re.compile(r"num_query_groups")),
    (
        "multi_latent_attention",
        False,
        re.compile(r"\w{1,60}_lora_rank|qk_(?:head|pos_emb)\w{1,60}|v_head_dim|mscale\w{0,60}|rotary_scaling_factor"),
    ),
    ("fp8", None, re.compile(r"fp8_\w{1,60}")),
    ("fp4", None, re.compile(r"fp4_\w{1,60}")),
    ("mtp_num_layers", None, re.compile(r"mtp_\w{1,60}")),
    ("use_rope_scaling", False, re.compile(r"rope_scaling\w{0,60}")),
    ("optimizer_cpu_offload", False, re.compile(r"optimizer_offload_fraction|\w{0,60}cpu_optimizer\w{0,60}|pin_cpu\w{1,60}")),
    ("recompute_granularity", None, re.compile(r"recompute_\w{1,60}")),
    (
        "fine_grained_activation_offloading",
        False,
        re.compile(r"activation_offload_fraction|offload_modules|min_offloaded\w{1,60}"),
    ),
    ("moe_use_upcycling", False, re.compile(r"moe_upcycling\w{1,60}")),
    ("add_bias_linear", True, re.compile(r"add_qkv_bias")),
)
"""(switch, its value when off, arguments that then change nothing)."""
WORKED_OUT = frozenset(("world_size", "rank", "local_rank", "data_parallel_size", "padded_vocab_size", "encoder_num_layers"))
"""Attributes of no argument of their own, or that repeat another's."""
OFF = ("--no-", "--disable-")
"""How an argument begins that makes an attribute false."""
SAME = {
    "tensor_parallel_num_weight_shards": "tensor_model_parallel_size",
    "expert_tensor_parallel_num_weight_shards": "expert_tensor_parallel_size",
}
"""Attributes that say nothing where they are equal to another."""
ZERO = frozenset(("glu_linear_offset",))
"""Arguments that count as not given at 0."""
VIRTUAL = "virtual_pipeline_model_parallel_size"
PATTERN = "hybrid_layer_pattern"
LIKE_VIRTUAL = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")


def in_log(text: str) -> Mapping[str, str] | None:
    """The arguments that a log prints, by name; None where it prints none. Raises InputError where it prints two plans."""
    plan = read_plan(text) if is_dump(text) else None
    return None if plan is None else plan.values


def read(document: Document) -> CheckInput:
    """The record of a log's arguments; GPUs are its world size. Raises InputError."""
    printed: Mapping[str, str] = document.values
    kept, left_out = _kept({name: _value(text) for name, text in printed.items()})
    section = Section(kept, document.text, document.request.settings)
    words = words_of(section, names_in(section))
    world = printed.get("world_size", "")
    gpus = int(world) if world.isdigit() and len(world) < 8 else None
    found = from_words(document, words, gpus, gpus_reason="the log prints no world_size")
    if not left_out:
        return found
    shown = ", ".join(left_out[:6]) + (", ..." if len(left_out) > 6 else "")
    return replace(
        found, notes=(*found.notes, f"{len(left_out)} names that the log prints are no arguments that are known: {shown}")
    )


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text in _TYPES:
        return _TYPES[text]
    if (member := _MEMBER.fullmatch(text)) is not None:
        return member[1]
    if text.startswith("[") and text.endswith("]"):
        try:
            values = ast.literal_eval(_MEMBER.sub(r"'\1'", text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return values if isinstance(values, list) and values else None
    return text


def _kept(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(arguments that count, names that are none)."""
    if "|" in str(values.get(PATTERN)):  # the pattern says the stages
        values = {name: value for name, value in values.items() if name not in (*LIKE_VIRTUAL, VIRTUAL)}
    counted, unknown = {}, []
    for name, value in values.items():
        if _follows(name, values):
            continue
        off_switch = next((off for off in OFF if off + name.replace("_", "-") in known_arguments()), None)
        if argument_name(name) in known_arguments() or argument_name(name) in SWITCHED_OFF:
            counted[name] = value
        elif off_switch is not None:
            counted |= {off_switch.removeprefix("--").replace("-", "_") + name: True} if value is False else {}
        elif value not in (False, [], "0", "0.0"):
            unknown.append(name)
    return counted, unknown


def _follows(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a printed name says nothing of its own: it is worked out from others, has another's value or none, or is of
    a switch that is off."""
    value = values[name]
    if name == VIRTUAL and any(values.get(other) is not None for other in LIKE_VIRTUAL):
        return True
    if name in WORKED_OUT or value is None or (name in ZERO and value in ("0", "0.0")):
        return True
    if name in SAME and value == values.get(SAME[name]):
        return True
    off = (pattern for switch, usual, pattern in _WITHOUT if switch in values and values[switch] == usual)
    return any(pattern.fullmatch(name) for pattern in off)
