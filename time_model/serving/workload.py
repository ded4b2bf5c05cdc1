"""What is asked of a deployment: requests drawn from length distributions, or a recorded trace.

Both say the same of themselves: mean lengths for the closed form, the cache that a running sequence holds on average, and the
longest request, which memory must hold. A sequence of O output tokens runs for O iterations, so that averages over the
sequences that run count a request by O (length-biased sampling).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from autoconfig.time_model.serving.benchmark import DataSet

Vector = npt.NDArray[np.float64]
LONGEST_STDDEVS = 6.0
"""Where drawn lengths are cut, in standard deviations above their mean: of exponential lengths one in 1,100 is longer."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Recorded requests in order of arrival; the first arrives at 0 s, the last later."""

    arrival_s: Vector
    input_tokens: Vector
    output_tokens: Vector

    @property
    def isl(self) -> float:
        """Mean input tokens."""
        return float(self.input_tokens.mean())

    @property
    def osl(self) -> float:
        """Mean output tokens."""
        return float(self.output_tokens.mean())

    @property
    def isl_stddev(self) -> float:
        """Standard deviation of the input tokens."""
        return float(self.input_tokens.std())

    @property
    def osl_stddev(self) -> float:
        """Standard deviation of the output tokens."""
        return float(self.output_tokens.std())

    @property
    def rate(self) -> float:
        """Mean requests per second between the first and the last arrival."""
        return (len(self.arrival_s) - 1) / float(self.arrival_s[-1])

    @cached_property
    def held_tokens(self) -> float:
        """Cache of a running sequence under GUARANTEED_NO_EVICT, in tokens: sum of (I + O) O over sum of O."""
        return float(np.average(self.input_tokens + self.output_tokens, weights=self.output_tokens))

    @cached_property
    def context_tokens(self) -> float:
        """Tokens in the cache of a decoding sequence: sum of (I + O/2) O over sum of O."""
        return float(np.average(self.input_tokens + self.output_tokens / 2.0, weights=self.output_tokens))

    @property
    def longest_input(self) -> float:
        """Tokens of the longest prompt."""
        return float(self.input_tokens.max())

    @property
    def longest_tokens(self) -> float:
        """Input and output tokens of the longest request."""
        return float((self.input_tokens + self.output_tokens).max())

    def at_rate(self, rate: float) -> Trace:
        """The same requests, arrival times stretched to a mean rate (requests per second)."""
        return Trace(
            arrival_s=self.arrival_s * (self.rate / rate), input_tokens=self.input_tokens, output_tokens=self.output_tokens
        )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Gamma distributed lengths by mean and standard deviation (0: all alike), from 1 token to six deviations above the mean.

    Gamma: positive, and skewed to long requests, as served lengths are (BurstGPT, arXiv:2401.17644; exponential where
    deviation and mean are equal).
    """

    data: DataSet

    @classmethod
    def of(cls, isl: float, osl: float, isl_stddev: float = 0.0, osl_stddev: float = 0.0) -> Drawn:
        """From means and standard deviations, in tokens."""
        return cls(
            data=DataSet(
                name="drawn lengths",
                isl=isl,
                osl=osl,
                input_cv=isl_stddev / isl,
                output_cv=osl_stddev / osl,
                most_input=float(np.ceil(isl + LONGEST_STDDEVS * isl_stddev)),
                most_output=float(np.ceil(osl + LONGEST_STDDEVS * osl_stddev)),
            )
        )

    @property
    def isl(self) -> float:
        """Mean input tokens."""
        return self.data.isl

    @property
    def osl(self) -> float:
        """Mean output tokens."""
        return self.data.osl

    @property
    def isl_stddev(self) -> float:
        """Standard deviation of the input tokens."""
        return self.data.isl * self.data.input_cv

    @property
    def osl_stddev(self) -> float:
        """Standard deviation of the output tokens."""
        return self.data.osl * self.data.output_cv

    @property
    def held_tokens(self) -> float:
        """As of a Trace: I + O (1 + cv^2)."""
        return self.data.held_tokens("no_evict")

    @property
    def context_tokens(self) -> float:
        """As of a Trace: I + O (1 + cv^2) / 2."""
        return self.data.held_tokens("max_util")

    @property
    def longest_input(self) -> float:
        """Tokens of the longest prompt that may come."""
        return self.data.most_input

    @property
    def longest_tokens(self) -> float:
        """Input and output tokens of the longest request that may come."""
        return self.data.most_input + self.data.most_output


Workload = Trace | Drawn
