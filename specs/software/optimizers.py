"""Optimizers by the names that frameworks have for them, where their state is another one than that of Adam in fp32."""

from __future__ import annotations

import re

from autoconfig.specs.remarks import Effect, Remark

_ADAM = re.compile(r"(?:(?:cpu|fused|distributed|megatron|onebit|zeroone)_?)*adamw?|mcore_distributed_optim|null|none")
"""Adam's names in GPT-NeoX, nanotron, NeMo 1 and 2 and Megatron-Bridge."""
_LEAN = (
    *("lion", "sgd", "adagrad", "adafactor", "adalomo", "lomo", "rmsprop", "galore", "apollo", "muon", "badam", "dion"),
    *("q_galore", "schedule_free_sgd", "use_"),
)
"""Beginnings of names with at most the state of Adam in fp32: one moment, or a factored one (transformers' OptimizerNames,
Megatron's --optimizer, options of LLaMA-Factory and ms-swift)."""
_NARROW = ("8bit", "4bit", "_fp8", "mini")
"""Ends of names of Adam with moments in fewer bits, or fewer of them."""

MOMENTS_KEPT = {"adafactor": 0, "muon": 1}
"""Moments of a matrix as large as it is, where they are not Adam's two: transformers/optimization.py (Adafactor without beta1:
sums of rows and columns), torch/optim/_muon.py (momentum_buffer)."""


def is_adam(name: str) -> bool:
    """Whether a name is one of Adam's with two moments in full."""
    return _ADAM.fullmatch(name.lower()) is not None


def keeps_less(name: str) -> bool:
    """Whether a name is of an optimizer that is known to keep at most the state of Adam in fp32."""
    word = name.lower()
    for before in ("paged_", "dist_", "fused"):
        word = word.removeprefix(before)
    return word.startswith(_LEAN) or ("adam" in word and word.endswith(_NARROW))


def other_state(key: str, name: str) -> Remark:
    """What it means for memory that a file's key names this optimizer (empty: the key itself does), which is priced as Adam:
    an upper bound, or nothing where its state is not known."""
    value = name[:40] or None
    if keeps_less(name or key):
        why = "another optimizer than Adam keeps other state, this one less of it; priced as Adam"
        return Remark(key, value, why, Effect.LESS_MEMORY)
    why = "another optimizer than Adam keeps other state, and which is not known; priced as Adam"
    return Remark(key, value, why, Effect.MEMORY_AND_TIME)
