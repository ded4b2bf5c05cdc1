"""The sizes that all memory formulas share, computed once per plan shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.numerics import Numerics

Number = Any
"""int, float or NumPy array."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides the tensors of one layer on one rank. Fields are scalars or arrays of one shape."""

    tokens: Number
    """T = s b / cp: tokens of one micro-batch on one rank."""
    sequence: Number
    """s: keys that one query can see (the whole sequence, context parallelism included)."""
    batch: Number
    """b: micro-batch size."""
    tp: Number
    """t."""
    sp: Number
    """u: t with sequence parallelism, else 1. What is replicated without it is divided by u."""
    cp: Number
    ep: Number
    etp: Number

    @classmethod
    def of(cls, *, seq_length: int, tp: Number, sp: Number, cp: Number, ep: Number, etp: Number, mbs: Number) -> Shape:
        """From the degrees of a plan; `sp` is the flag."""
        tp, cp, mbs = np.asarray(tp, float), np.asarray(cp, float), np.asarray(mbs, float)
        return cls(
            tokens=seq_length * mbs / cp,
            sequence=float(seq_length),
            batch=mbs,
            tp=tp,
            sp=np.where(sp, tp, 1.0),
            cp=cp,
            ep=np.asarray(ep, float),
            etp=np.asarray(etp, float),
        )


def routed_rows(model: ModelSpec, numerics: Numerics, shape: Shape) -> Number:
    """R: token rows that the experts of one rank process: factor x etp x k T/u.

    Balanced routing sends every rank as many rows as it sends out, k T/u; expert tensor parallelism gathers them over etp.
    The factor is the capacity factor where tokens are dropped and padded, else the stated imbalance (1 = balanced).
    Source: megatron-core transformer/moe/token_dispatcher.py (all-to-all dispatcher).
    """
    factor = numerics.moe_capacity_factor or numerics.moe_imbalance
    return factor * shape.etp * model.moe_router_topk * shape.tokens / shape.sp
