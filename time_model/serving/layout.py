"""One layout priced for every batch size and token budget at once: operators on one-dimensional grids, then interpolation.

Rows of linear layers, sequences of attention and of the output layer each have their own grid; lengths are those of the
question. What layouts share (attention by tp and cache format, everything else by degrees and weight format) is priced once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.serving.costs import (
    ServingJob,
    decode_attention_seconds,
    floor_seconds,
    output_seconds,
    prefill_attention_seconds,
    token_parts,
)
from autoconfig.time_model.serving.simulation import grid_points
from autoconfig.time_model.serving.steady import Lengths, prompts_per_iteration

Vector = npt.NDArray[np.float64]
TOKENS, SEQUENCES = grid_points(131072.0), grid_points(16384.0)


@dataclass(frozen=True, kw_only=True)
class LayoutPrices:
    """Seconds on the grids, constants applied."""

    tokens_s: Vector
    heads_s: Vector
    """Output layer, sampling and host by sequences."""
    decode_s: Vector
    prefill_s: Vector
    """By prompts of the question's lengths."""
    fixed_s: float
    floor_mixed_s: float
    floor_alone_s: float
    floor_sequence_s: float

    def seconds(self, decode: Number, checked: float, prompts: Number, prompt: float) -> Number:
        """An iteration of `decode` sequences with `checked` tokens each beside `prompts` prompts of `prompt` tokens."""
        tokens = decode * checked + prompts * prompt
        total = (
            self.fixed_s
            + np.interp(tokens, TOKENS, self.tokens_s)
            + np.interp(decode * checked + prompts, SEQUENCES, self.heads_s)
        )
        total = total + np.interp(decode, SEQUENCES, self.decode_s) * (np.asarray(decode) > 0)
        whole = np.maximum(prompts, 1.0)
        total = total + np.interp(whole, SEQUENCES, self.prefill_s) * np.minimum(prompts, 1.0)
        floor = np.where(np.asarray(prompts) > 0, self.floor_mixed_s, self.floor_alone_s)
        return np.maximum(total, floor + self.floor_sequence_s * (decode + prompts))


@dataclass
class Pricer:
    """Prices layouts of one model, GPU, engine and request; remembers what they share."""

    lengths: Lengths
    _seen: dict[tuple[Any, ...], Vector] = field(default_factory=dict)

    def prices(self, job: ServingJob) -> LayoutPrices:
        """The layout's grids."""
        c, plan = job.constants, job.plan
        factors = {"experts": c.experts_factor, "communication": c.communication_factor}
        rows = self._once(
            ("tokens", plan.tp, plan.adp, plan.ep, plan.pp, plan.weights),
            lambda: sum(factors.get(name, c.factor) * s for name, s in token_parts(job, TOKENS).items()),
        )
        heads = self._once(("heads", plan.tp, plan.adp), lambda: _heads(job))
        decode = self._once(
            ("decode", plan.tp, plan.kv), lambda: c.factor * decode_attention_seconds(job, SEQUENCES, self.lengths.average)
        )
        prefill = self._once(
            ("prefill", plan.tp, plan.kv, job.formats.attention),
            lambda: (
                c.factor * prefill_attention_seconds(job, SEQUENCES, self.lengths.attended) * (1.0 - self.lengths.cached**2)
            ),
        )
        fixed = c.host_s + c.layer_s * job.model.num_layers
        return LayoutPrices(
            tokens_s=rows,
            heads_s=heads,
            decode_s=decode,
            prefill_s=prefill,
            fixed_s=fixed,
            floor_mixed_s=float(floor_seconds(job, 1.0, 0.0)),
            floor_alone_s=float(floor_seconds(job, 0.0, 0.0)),
            floor_sequence_s=float(floor_seconds(job, 0.0, 1.0) - floor_seconds(job, 0.0, 0.0)),
        )

    def _once(self, key: tuple[Any, ...], work: Any) -> Vector:
        if key not in self._seen:
            self._seen[key] = np.asarray(work(), dtype=np.float64)
        return self._seen[key]


def _heads(job: ServingJob) -> Vector:
    c = job.constants
    head, sampled = output_seconds(job, SEQUENCES)
    return np.asarray(c.factor * head + c.sampler_bytes * sampled + c.sequence_s * job.plan.adp * SEQUENCES)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Steady state of many deployments of one layout, arrays of one shape, per instance."""

    requests_per_s: Vector
    ttft_s: Vector
    tpot_s: Vector
    """0 where answers are one token: there is no time between tokens."""


def steady_state(
    prices: LayoutPrices, lengths: Lengths, running: Number, tokens: Number, ranks: int, chunked: bool, request_s: float
) -> Operation:
    """Closed loop with `running` sequences on each of `ranks` attention ranks and micro-batches.

    As serving_steady.generation with spread completions. A sequence decodes through S iterations; TPOT is their mean. TTFT:
    half an
    iteration, the iterations of its own prompt, and the wait for prompts before it, rho / (2 (1 - rho)) prompt iterations
    (M/D/1,
    rho the share of prefill capacity in use); where prefill is the bottleneck, what a generation lasts beyond its decoding.
    """
    c, steps = np.asarray(running, dtype=np.float64), max(lengths.steps, 1e-9)
    checked = 1.0 + lengths.drafted
    most = np.minimum(prompts_per_iteration(lengths, c, tokens, chunked), c)  # no more ask than there are
    fewest = c / most
    rho = fewest / steps
    mixed = np.maximum(fewest, np.where(rho > 1.0, 0.0, steps * -np.expm1(-c / steps)))
    decoding = c * np.minimum(1.0, steps / np.maximum(mixed, 1e-12))
    with_prompts = prices.seconds(decoding, checked, np.minimum(c / np.maximum(mixed, 1e-12), most), lengths.prompt)
    alone = prices.seconds(c, checked, 0.0 * c, 1.0)
    whole = mixed * with_prompts + np.maximum(steps - mixed, 0.0) * alone
    decode_s = np.minimum(steps / np.maximum(mixed, 1e-12), 1.0) * mixed * with_prompts + np.maximum(steps - mixed, 0.0) * alone
    own = np.maximum(1.0, 1.0 / most) * with_prompts
    wait = np.where(rho < 0.98, rho / (2.0 * (1.0 - np.minimum(rho, 0.98))), 24.5) * with_prompts
    wait = np.maximum(np.minimum(wait, c * with_prompts / most), whole - decode_s)
    first = 0.5 * alone + own + wait if lengths.steps > 0 else whole  # Little's law: c requests wait, c / whole are served
    per_token = decode_s / steps / lengths.tokens_per_step if lengths.steps > 0 else 0.0 * c
    return Operation(requests_per_s=ranks * c / whole, ttft_s=first + request_s, tpot_s=per_token)
