"""Lengths of generated responses: a lognormal law cut at the cap, or the lengths of a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import erf, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from autoconfig.specs.errors import InputError

Vector = npt.NDArray[np.float64]
MAX_TOKENS = 2**24
LONG = 16_384
"""Tokens of a cap from which on lengths scatter as those of reasoning models do."""
RESPONSES = 7
"""Seed of their order."""


@dataclass(frozen=True, kw_only=True)
class ResponseLengths:
    """min(X, cap) with ln X normal: a mean and a cap in tokens, and the standard deviation `sigma` of ln X.

    Response lengths of reasoning models have a heavy right tail that the cap cuts; GRPO on mathematics is near sigma 0.3 to
    0.6, base models with caps of 20,000 tokens near 0.9 to 1.2 (read off the published mean, cap and longest of verl and
    NeMo-RL runs). `observed` takes the place of the law where lengths are known. Raises InputError where the mean is not
    between 1 and the cap.
    """

    mean: float
    cap: int
    sigma: float = 0.6
    observed: tuple[float, ...] = ()

    @classmethod
    def around(cls, mean: float, cap: int) -> ResponseLengths:
        """Those of a run of which nothing but mean and cap is known."""
        return cls(mean=float(mean), cap=cap, sigma=1.0 if cap >= LONG else 0.6)

    def __post_init__(self) -> None:
        if not 1 <= self.cap <= MAX_TOKENS:
            raise InputError(f"responses of at most {self.cap:,} tokens: use 1 to {MAX_TOKENS:,}")
        if not 1.0 <= self.mean <= self.cap:
            raise InputError(f"a mean response of {self.mean:g} tokens must be from 1 to the cap of {self.cap:,}")
        if not 0.0 <= self.sigma <= 5.0:
            raise InputError(f"the spread of response lengths is {self.sigma:g}: use 0 (all alike) to 5")

    @cached_property
    def _mu(self) -> float:
        """Of ln X, such that min(X, cap) has the mean, which grows with it: by bisection to 1e-6."""
        low, high = np.log(self.mean) - self.sigma**2 - 1.0, np.log(self.cap) + 8.0 * self.sigma
        while high - low > 1e-6:
            middle = (low + high) / 2.0
            low, high = (middle, high) if self._cut_mean(middle) < self.mean else (low, middle)
        return float((low + high) / 2.0)

    def _cut_mean(self, mu: float) -> float:
        """E min(X, R) = e^(mu + s^2/2) Phi((ln R - mu - s^2)/s) + R (1 - Phi((ln R - mu)/s))."""
        s, cap = self.sigma, float(self.cap)
        below = np.exp(mu + s * s / 2.0) * _below((np.log(cap) - mu - s * s) / s)
        return float(below + cap * _below((mu - np.log(cap)) / s))

    def quantiles(self, shares: Vector) -> Vector:
        """Tokens below which these shares of responses stay."""
        if self.observed:
            return np.minimum(np.quantile(np.array(self.observed), shares), self.cap)
        if self.sigma == 0.0 or self.mean >= 0.999 * self.cap:
            return np.full(len(shares), self.mean)
        return np.asarray(np.clip(np.exp(self._mu + self.sigma * deviations(tuple(shares))), 1.0, self.cap))

    def sample(self, count: int, seed: int = RESPONSES) -> Vector:
        """`count` whole lengths, evenly over the law, in a mixed order that is the same every time."""
        lengths = np.round(self.quantiles((np.arange(count) + 0.5) / count))
        return np.asarray(np.random.default_rng(seed).permutation(np.maximum(lengths, 1.0)))

    def longest(self, count: int) -> float:
        """The longest of `count` responses, about: the quantile (count - 1/2) / count."""
        return float(self.quantiles(np.array([1.0 - 0.5 / count]))[0])


def _below(z: float) -> float:
    """Share of a normal law below z standard deviations."""
    return (1.0 + erf(z / sqrt(2.0))) / 2.0


@cache
def deviations(shares: tuple[float, ...]) -> Vector:
    """Standard deviations below which these shares of a normal law stay."""
    law = NormalDist()
    return np.array([law.inv_cdf(share) for share in shares])
