"""What an answer took where nothing was said, and what of the input it does not take into account, as records.

Records are passed on, sorted and decided by; `sentence` makes their words, where they are shown and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from autoconfig.specs.errors import option_name


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


ASKED = {
    "model": "model {}",
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
}
"""Fields of a request that a caller may give instead: how their value is said."""


def sentence(remark: Remark) -> str:
    """Return the words of a remark: `sequence length 4096, why (--seq-length)` of what can be given, `key value: why` of what
    a file says, else the reason alone."""
    field, value, why = remark.field, remark.value, remark.why
    if field in ASKED:
        return why if value is None else f"{', '.join(filter(None, (ASKED[field].format(value), why)))} ({option_name(field)})"
    return ": ".join(filter(None, (field if value is None else f"{field} {value}".strip(), why)))


def sentences(remarks: Iterable[Remark]) -> tuple[str, ...]:
    """Return the words of remarks, what moves most first."""
    return tuple(map(sentence, sorted(remarks, key=lambda remark: remark.effect)))
