"""Closed form of continuous batching in its steady state: a generation of C sequences from admission to completion.

With C sequences always running (closed loop, or a queue that never empties) every sequence takes one iteration per output
token. While C sequences live once, C prompts of I tokens are prefilled, packed into the tokens that an iteration has left:
`mixed` iterations carry prompts, the others decode alone. Times of both come from `iteration`; nothing is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.serving.iteration import (
    SEQUENCES,
    LayoutPrices,
    decoding_seconds,
    floor_seconds,
    heads_seconds,
    iteration_features,
    prompts_seconds,
    rows_seconds,
)
from autoconfig.time_model.serving.rows import ServingJob

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
    context: float | None = None
    """Tokens in the cache of a decoding sequence on average, where lengths differ (Trace.context_tokens)."""

    prompt_rms: float | None = None
    """Root mean square of the input tokens, where lengths differ: attention of a prompt grows with its square."""

    alike: bool = True
    """All requests have these lengths: in a closed loop they then come as regularly as they are answered."""

    @property
    def attended(self) -> float:
        """Input tokens of a prompt whose attention costs as much as the requests' do on average."""
        return self.isl if self.prompt_rms is None else self.prompt_rms

    @property
    def variation(self) -> float:
        """Variance of the prompts that come in a closed loop over that of Poisson arrivals of one length, where a prompt's
        own length adds its squared coefficient of variation; 0 where all are alike."""
        return 0.0 if self.alike else (self.attended / self.isl) ** 2

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
        return self.isl + self.osl / 2.0 if self.context is None else self.context


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


def waiting_services(utilisation: Number, servers: Number) -> Number:
    """Mean wait over the time of one service, where requests come at random to a queue before `servers` alike ones that are
    busy a share rho = `utilisation` < 1 of the time and take the same time for each (M/D/c).

    rho^(sqrt(2 (c + 1)) - 1) / (2 c (1 - rho)): half of M/M/c's (Sakasegawa 1977, doi:10.1007/BF02532775); exact for one
    server, where it is Pollaczek-Khinchine's rho / (2 (1 - rho)).
    """
    return utilisation ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0) / (2.0 * servers * (1.0 - utilisation))


def highest_utilisation_within(services: float, servers: Vector) -> Vector:
    """The share of the time that servers may be busy while the mean wait is at most `services` times a service; bisection."""
    low, high = np.zeros(len(servers)), np.full(len(servers), 1.0 - 1e-9)
    for _ in range(40):
        middle = (low + high) / 2.0
        short = waiting_services(middle, servers) <= services
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return low


CUTS = np.linspace(-8.0, 8.0, 321)
CUT_MEANS = np.array([z + math.sqrt(2.0 / math.pi) * math.exp(-z * z / 2.0) / math.erfc(-z / math.sqrt(2.0)) for z in CUTS])
"""z + phi(z) / Phi(z): mean of the part above 0 of a normal law around z with deviation 1."""


def cut_normal_mean(mean: Number, deviation: Number) -> Number:
    """Mean of the part above 0 of a normal law; far below 0 the first terms of Laplace's continued fraction."""
    z = mean / deviation
    below = np.maximum(-z, 8.0)
    far = np.where(z < 0, 1.0 / (below + 2.0 / (below + 3.0 / below)), z)
    return deviation * np.where(np.abs(z) <= 8.0, np.interp(z, CUTS, CUT_MEANS), far)


def waiting_prompts(users: Number, slots: Number, most: Number, variation: Number) -> Number:
    """Mean number of prompts that wait in a closed loop: `users` that decode for a while and then ask again, served `most` an
    iteration, `slots` = iterations of an answer x `most` in the time of an answer.

    Where `users` exceed `slots`, what exceeds them waits. Completions at random (`variation` 1: lengths differ; 0: they come
    as regularly as prompts are served) let the number swing around users - slots with the variance min(users, slots) / 2,
    never below 0: a reflected Ornstein-Uhlenbeck process, whose stationary law is the normal one cut at 0 (the repairman's
    diffusion, Iglehart 1965, J. Appl. Probab. 2). Below saturation that tends to 1 / (2 (1 - rho)), from which Sakasegawa's
    rho^sqrt(2 (most + 1)) (waiting_services times rho) goes to light loads. Takes prompts in whole numbers, no time at once.
    """
    beyond, spread = users - slots, np.sqrt(np.maximum(variation * np.minimum(users, slots) / 2.0, 1e-12))
    swing = cut_normal_mean(beyond, spread)
    rho = np.minimum(users / slots, 1.0)
    return np.maximum(beyond, swing * rho ** np.sqrt(2.0 * (np.maximum(most, 1.0) + 1.0)))


MOST_PROMPTS = 128
"""Of a rank and iteration, as far as busiest_prompts counts."""


def busiest_prompts(mean: Number, ranks: int, most: Number) -> Number:
    """Mean number of prompts of the busiest of `ranks` in an iteration in which any has one, where each gets a Poisson number
    around `mean`, of which an iteration takes `most`: the sum over k of P(a rank has more than k), by order statistics."""
    mean = np.asarray(mean, dtype=np.float64)
    below, term, total = np.exp(-mean), np.exp(-mean), 0.0 * mean
    for k in range(MOST_PROMPTS):
        total = total + (1.0 - below**ranks) * np.clip(most - k, 0.0, 1.0)
        term = term * mean / (k + 1.0)
        below = np.minimum(below + term, 1.0)
    return np.maximum(total / np.maximum(-np.expm1(-ranks * mean), 1e-12), np.minimum(mean, most))


MAX_UTILISATION = 0.98
"""From which the closed form lets queues grow no more: a steady state of more is in no run."""


@dataclass(frozen=True, kw_only=True)
class SteadyGeneration:
    """Iterations of one generation of sequences on one attention rank: `mixed` carry prompts, `alone` only decode."""

    mixed: Vector
    mixed_features: Vector
    """[..., 9] of iteration.iteration_features."""
    mixed_floor_s: Vector
    mixed_sequences: Vector
    """Sequences of such an iteration, its prompts included."""
    alone: Vector
    alone_features: Vector
    alone_floor_s: Vector
    alone_sequences: Vector

    def seconds(self, constants: Vector) -> Vector:
        """Time of the generation under a constant_vector."""
        with_prompts = np.maximum(self.mixed_features @ constants, self.mixed_floor_s)
        return self.mixed * with_prompts + self.alone * self.alone_seconds(constants)

    def alone_seconds(self, constants: Vector) -> Vector:
        """Time of an iteration without prompts."""
        return np.maximum(self.alone_features @ constants, self.alone_floor_s)


def generation(
    job: ServingJob, lengths: Lengths, running: Number, tokens: Number, *, chunked: bool, bursts: bool
) -> SteadyGeneration:
    """A generation of `running` sequences on one attention rank.

    `bursts`: all sequences started at once and have one length (benchmarks): they stay in step, prompts come in full
    iterations.
    Otherwise completions are spread, C/S new prompts an iteration on average over S steps: 1 - e^(-C/S) of the iterations carry
    one or more. Prefill needs `running / prompts_per_iteration` iterations at least; where that is more than S, all are mixed
    and a generation lasts as long as its prefill.
    """
    c, steps = np.asarray(running, dtype=np.float64), max(lengths.steps, 1e-9)
    most = prompts_per_iteration(lengths, c, tokens, chunked)
    fewest = c / most
    spread = np.maximum(fewest, steps * -np.expm1(-c / steps))
    mixed = fewest if bursts else np.where(fewest > steps, fewest, spread)
    prompts = np.minimum(c / np.maximum(mixed, 1e-12), most)
    decoding = c * np.minimum(1.0, steps / np.maximum(mixed, 1e-12)) if lengths.steps > 0 else 0.0 * c
    checked = 1.0 + lengths.drafted
    return SteadyGeneration(
        mixed=mixed,
        mixed_features=iteration_features(job, decoding, lengths.average, prompts, lengths.prompt, checked),
        mixed_floor_s=floor_seconds(job, prompts, decoding + prompts),
        mixed_sequences=decoding + prompts,
        alone=np.maximum(steps - mixed, 0.0) if lengths.steps > 0 else 0.0 * c,
        alone_features=iteration_features(job, c, lengths.average, 0.0, 1.0, checked),
        alone_floor_s=floor_seconds(job, 0.0 * c, c),
        alone_sequences=c,
    )


@dataclass
class Pricer:
    """Prices layouts of one model, GPU, engine and request; remembers what they share."""

    lengths: Lengths
    _seen: dict[tuple[Any, ...], Vector] = field(default_factory=dict)

    def prices(self, job: ServingJob) -> LayoutPrices:
        """The layout's grids."""
        plan, lengths = job.plan, self.lengths
        return LayoutPrices(
            job,
            self._once(("rows", plan.tp, plan.adp, plan.ep, plan.pp, plan.weights), lambda: rows_seconds(job)),
            self._once(("heads", plan.tp, plan.adp), lambda: heads_seconds(job)),
            self._once(("decode", plan.tp, plan.kv), lambda: decoding_seconds(job, SEQUENCES, lengths.average)),
            self._once(
                ("prefill", plan.tp, plan.kv, job.formats.attention),
                lambda: prompts_seconds(job, SEQUENCES, lengths.attended) * (1.0 - lengths.cached**2),
            ),
        )

    def _once(self, key: tuple[Any, ...], work: Callable[[], Number]) -> Vector:
        if key not in self._seen:
            self._seen[key] = np.asarray(work(), dtype=np.float64)
        return self._seen[key]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Steady state of many deployments of one layout, arrays of one shape, per instance."""

    requests_per_s: Vector
    ttft_s: Vector
    tpot_s: Vector
    """0 where answers are one token: there is no time between tokens."""
    random_ttft_s: Vector
    """TTFT where as many requests a second come at random (Poisson), not each as another ends."""


def steady_state(
    prices: LayoutPrices,
    lengths: Lengths,
    running: Number,
    tokens: Number,
    ranks: int,
    chunked: bool,
    request_s: float,
    late: bool = False,
    together: int = 1,
) -> Operation:
    """Closed loop with `running` sequences on each of `ranks` attention ranks and micro-batches, of which `together` step
    together: prompts of any of them are in the iterations of all, which last as long as the busiest rank's (Scheduler).

    As `generation` with spread completions: the iterations of its own prompt, the next ones after an answer's
    last, and S through which a sequence decodes. TPOT is the mean of these, with the prompts of the others. TTFT: the
    former, and the wait for prompts before it (waiting_prompts); where prefill is the bottleneck, what a generation lasts
    beyond them. A request comes as an iteration begins and `request_s` later is with the scheduler, so that it misses that
    iteration at least, and one more where iterations are put together while the one before runs (`late`). Those it meets are
    longer than the mean one, as answers that begin one after the other end so: half way to E[s^2] / E[s], as in the simulation.
    """
    c, steps = np.asarray(running, dtype=np.float64), max(lengths.steps, 1e-9)
    checked = 1.0 + lengths.drafted
    most = np.minimum(prompts_per_iteration(lengths, c, tokens, chunked), c)  # no more ask than there are
    fewest = c / most
    rho = fewest / steps
    mixed = np.maximum(fewest, np.where(rho > 1.0, 0.0, steps * -np.expm1(-c / steps)))
    prompts = np.minimum(c / np.maximum(mixed, 1e-12), most)
    if together > 1:
        prompts = np.maximum(prompts, busiest_prompts(c / np.maximum(mixed, steps), together, most))
        mixed = np.maximum(mixed, steps * (1.0 - np.maximum(1.0 - mixed / steps, 0.0) ** together))
    own = np.maximum(1.0, 1.0 / most)
    missed = float(late) + float(request_s > 0.0)
    cycle = np.maximum(mixed, steps + own + missed)
    decoding = c * steps / cycle
    with_prompts = prices.seconds(decoding, checked, prompts, lengths.prompt)
    alone = prices.seconds(c, checked, 0.0 * c, 1.0)
    apart = (cycle - mixed) * alone
    whole = mixed * with_prompts + apart
    met = np.minimum(np.maximum(mixed - own, 0.0), steps)  # iterations with prompts of others while a sequence decodes
    decode_s = met * with_prompts + (steps - met) * alone
    waiting = waiting_prompts(c, steps * most, most, lengths.variation) * with_prompts / most
    residual = (mixed * with_prompts**2 + apart * alone) / (2.0 * (mixed * with_prompts + apart))
    met_s = whole / cycle / 2.0 + residual
    lag = float(late) * met_s + (np.maximum(met_s, request_s + met_s / 2.0) if request_s > 0.0 else 0.0)
    wait = np.maximum(waiting, whole - decode_s - own * with_prompts - lag) + lag
    first = own * with_prompts + wait if lengths.steps > 0 else whole + request_s  # Little's law: c wait, c / whole are served
    per_token = decode_s / steps / lengths.tokens_per_step if lengths.steps > 0 else 0.0 * c
    random = _random_ttft(prices, lengths, decoding, most, c / whole, residual) if lengths.steps > 0 else whole
    served, waited = ranks * c / whole, random + request_s + float(late) * met_s
    return Operation(requests_per_s=served, ttft_s=first, tpot_s=per_token, random_ttft_s=waited)


def _random_ttft(
    prices: LayoutPrices, lengths: Lengths, decoding: Number, most: Number, rate: Number, residual: Number
) -> Number:
    """Mean time to first token of a rank's Poisson arrivals at `rate` a second.

    An arrival waits for what is left of the iteration under way, E[s^2] / (2 E[s]) = `residual` over iterations of s seconds
    (renewal theory: longer ones are met more often), and shares the next one with those that came with it: 1 + rate E[s^2] /
    E[s] prompts. Iterations take `most` prompts, as so many servers would (M/D/c, waiting_services); where one is longer than
    the budget (most < 1) it takes 1 / most iterations, one prompt after the other (M/D/1).
    """
    checked, share = 1.0 + lengths.drafted, np.minimum(most, 1.0)
    service = prices.seconds(decoding, checked, most, lengths.prompt) / share
    together = np.minimum(1.0 + 2.0 * rate * residual, np.maximum(most, 1.0)) * share
    own = prices.seconds(decoding, checked, together, lengths.prompt) / share
    slots = np.maximum(most, 1.0)
    wait = waiting_services(np.minimum(rate * service / slots, MAX_UTILISATION), slots) * service
    return np.maximum(wait, residual) + own
