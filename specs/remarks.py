"""What an answer took where nothing was said, and what of the input it does not take into account, as records.

Records are passed on, sorted and decided by; `sentence` makes their words, where they are shown and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

from autoconfig.specs.errors import option_name
from autoconfig.specs.json_record import Keywords


class Effect(IntEnum):
    """What a remark moves, in the order in which remarks are shown."""

    EVERYTHING = 0
    """Every figure: hardware, software, model, number of GPUs, the engine's formats."""
    MEMORY_AND_TIME = 1
    """Figures of memory, of time, or of both, by an amount that no formula knows."""
    LESS_MEMORY = 2
    """The run needs less memory than predicted: the prediction is a bound."""
    MORE_MEMORY = 3
    """The run needs more memory than predicted."""
    TIME = 4
    """Seconds only."""
    LEFT_OUT = 5
    """A part of the model that no figure holds."""
    NOTHING = 6
    """No figure."""

    @property
    def word(self) -> str:
        """The name in JSON and in tables of data."""
        return self.name.lower()


@dataclass(frozen=True)
class Remark:
    """One thing that an answer took, or does not take into account."""

    field: str
    """Of the request (`seq_length`), or the key, argument or column of the file that it is about; empty where there is none."""
    value: object
    """What was taken, or what the file says; None where that is no value."""
    why: str
    """For people: no code reads it."""
    effect: Effect = Effect.MEMORY_AND_TIME
    most_bytes: float = math.inf
    """Of MORE_MEMORY: at most so much more on one GPU."""


def note(why: str, effect: Effect = Effect.MEMORY_AND_TIME) -> Remark:
    """A remark on no field of its own."""
    return Remark("", None, why, effect)


ASKED = {
    "model": "model {}",
    "like": "read as {}",
    "gpus": "{:,} GPUs",
    "gpu": "GPU {}",
    "gpus_per_node": "nodes of {} GPUs",
    "software": "software {}",
    "seq_length": "sequence length {}",
    "decoder_seq_length": "decoder sequence length {}",
    "global_batch_size": "global batch {}",
    "vocab_size": "vocabulary {}",
    "precision": "precision {}",
    "fp8_recipe": "fp8_recipe {}",
    "grad_reduce_dtype": "gradients reduced in {}",
    "peft": "peft {}",
    "lora_rank": "adapters of rank {}",
    "lora_target_modules": "adapters on {}",
    "attention_dropout": "attention_dropout {:g}",
    "hidden_dropout": "hidden_dropout {:g}",
    "fp8_param_gather": "fp8_param_gather {}",
    "compile": "torch.compile {}",
    "moe_imbalance": "busiest expert rank {:g} times its share",
    "dispatcher": "dispatcher {}",
    "cuda_graphs": "CUDA graphs {}",
    "ep_overlap": "EP overlap {}",
    "fused_experts": "fused experts {}",
    "fp8_attention": "attention in fp8 {}",
    "fp8_output": "output layer in fp8 {}",
    "offload_layers": "offloaded layers {}",
    "device_memory": "{:.3g} GiB for each rank",
    "isl": "{:,} input tokens",
    "osl": "{:,} output tokens",
    "isl_stddev": "{} tokens of spread",
    "rate": "{:g} requests/s",
    "tpot": "at most {:g} s a token",
    "engine": "engine {}",
    "fix": "fixed {}",
    "chunked_prefill": "chunked prefill {}",
    "imbalance": "imbalance {:g}",
    "prefix_hit": "prefix hits {:g}",
    "draft_tokens": "{} draft tokens",
    "kv_memory_ratio": "{:g} of the memory for the cache",
    "vary": "switches varied",
    "prompts": "prompts {:,}",
    "group_size": "group size {:,}",
    "minibatch": "minibatch {:,}",
    "tokens_per_gpu": "tokens per gpu {:,}",
    "prompt_length": "prompt length {:,}",
    "response_length": "responses of {:,} tokens on average",
    "max_response_length": "responses of at most {:,} tokens",
    "framework": "framework {}",
    "top": "top {}",
}
"""Fields of a request that a caller may give instead: how their value is said."""


def sentence(remark: Remark) -> str:
    """Return the words of a remark: `sequence length 4096, why (--seq-length)` of what can be given, `key value: why` of what
    a file says, else the reason alone."""
    field, value, why = remark.field, remark.value, remark.why
    if isinstance(value, bool):
        value = "on" if value else "off"
    if field in ASKED:
        words = (ASKED[field].format(value) if value is not None else "", why)
        return f"{', '.join(filter(None, words))} ({option_name(field)})"
    return ": ".join(filter(None, (field if value is None else f"{field} {value}", why)))


def by_effect(remarks: Iterable[Remark]) -> list[Remark]:
    """Return remarks, what moves most first."""
    return sorted(remarks, key=lambda remark: remark.effect)


def sentences(remarks: Iterable[Remark]) -> tuple[str, ...]:
    """Return the words of remarks, what moves most first."""
    return tuple(map(sentence, by_effect(remarks)))


@dataclass(frozen=True, kw_only=True)
class RemarkJson:
    """One thing that an answer took, or does not take into account."""

    field: str
    """Of the request, or the key, argument or column of the file that it is about; empty where there is none."""
    value: str | float | bool | None
    """What was taken, or what the file says."""
    why: str
    """For people."""
    effect: Annotated[str, Keywords(enum=[effect.word for effect in Effect])]
    """What of the answer it moves."""


def records(remarks: Iterable[Remark]) -> tuple[RemarkJson, ...]:
    """Return the JSON records of remarks, what moves most first."""
    return tuple(
        RemarkJson(field=one.field, value=_json_value(one.value), why=one.why, effect=one.effect.word)
        for one in by_effect(remarks)
    )


def _json_value(value: object) -> str | float | bool | None:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class AssumedJson:
    """What an answer took where nothing was said."""

    assumed: tuple[str, ...]
    """Sentences: everything that was assumed because it was not given, what moves most first."""
    remarks: tuple[RemarkJson, ...]
    """The same as records."""


def assumed_json(remarks: Iterable[Remark]) -> dict[str, Any]:
    """Return the fields of AssumedJson."""
    given = tuple(remarks)
    return {"assumed": sentences(given), "remarks": records(given)}
