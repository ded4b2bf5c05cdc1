"""Closed form of continuous batching in its steady state: a generation of C sequences from admission to completion.

With C sequences always running (closed loop, or a queue that never empties) every sequence takes one iteration per output token.
While C sequences live once, C prompts of I tokens are prefilled, packed into the tokens that an iteration has left: `mixed`
iterations carry prompts, the others decode alone. Times of both come from serving_costs; nothing is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specs.parameters import Number
from time_model.serving_costs import ServingJob, iteration_features

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """One request's tokens as the engine sees them."""

    isl: float
    osl: float
    cached: float = 0.0
    """Share of the input whose cache is there already (prefix caching)."""
    tokens_per_step: float = 1.0
    """Output tokens of one decode iteration: 1, more with speculation."""
    drafted: float = 0.0
    """Draft tokens checked in one decode iteration beside the one that is due."""

    @property
    def prompt(self) -> float:
        """Input tokens to compute."""
        return max(self.isl * (1.0 - self.cached), 1.0)

    @property
    def steps(self) -> float:
        """Decode iterations of one sequence; its first output token comes out of the prefill."""
        return max((self.osl - 1.0) / self.tokens_per_step, 0.0)

    @property
    def average(self) -> float:
        """Tokens in the cache of a decoding sequence on average."""
        return self.isl + self.osl / 2.0


def tokens_per_step(drafted: int, acceptance: float) -> float:
    """Expected output tokens of an iteration that checks n drafts, each accepted with probability a: (1 - a^(n+1)) / (1 - a).

    Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1.
    """
    return drafted + 1.0 if acceptance >= 1.0 else (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)


def prompts_per_iteration(lengths: Lengths, running: Number, tokens: Number, chunked: bool) -> Number:
    """Prompts that fit an iteration beside the running sequences: whole ones (at least one), or any part with chunked prefill.

    Decode takes at most three quarters of the budget, so that prefill never starves.
    """
    left = tokens - np.minimum(running * (1.0 + lengths.drafted), 0.75 * tokens)
    share = left / lengths.prompt
    return np.maximum(share, 1e-6) if chunked else np.maximum(np.floor(share), 1.0)


def generation_features(
    job: ServingJob, lengths: Lengths, running: Number, tokens: Number, *, chunked: bool, bursts: bool
) -> tuple[Vector, Vector]:
    """(features of all iterations of a generation of `running` sequences on one attention rank, iterations that carry prompts).

    `bursts`: all sequences started at once and have one length (benchmarks): they stay in step, prompts come in full iterations.
    Otherwise completions are spread, C/S new prompts an iteration on average over S steps: 1 - e^(-C/S) of the iterations carry
    one or more. Prefill needs `running / prompts_per_iteration` iterations at least; where that is more than S, all are mixed
    and a generation lasts as long as its prefill.
    """
    c, steps = np.asarray(running, dtype=np.float64), max(lengths.steps, 1e-9)
    most = prompts_per_iteration(lengths, c, tokens, chunked)
    fewest = c / most
    spread = np.maximum(fewest, steps * -np.expm1(-c / steps))
    mixed = fewest if bursts else np.where(fewest > steps, fewest, spread)
    prompts = c / np.maximum(mixed, 1e-12)
    alone = np.maximum(steps - mixed, 0.0)
    decoding = c * np.minimum(1.0, steps / np.maximum(mixed, 1e-12)) * min(1.0, lengths.steps / 1e-6)
    checked = 1.0 + lengths.drafted
    with_prompts = iteration_features(job, decoding * checked, lengths.average, np.minimum(prompts, most), lengths.prompt)
    without = iteration_features(job, c * checked, lengths.average, 0.0, 1.0)
    return mixed[..., None] * with_prompts + alone[..., None] * without, mixed
