"""What is asked of a serving search, and what it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoconfig.planning.request_fields import GOALS, SERVED_MODEL, SERVING, SERVING_GPUS
from autoconfig.planning.resolve import check_bounds, field_values
from autoconfig.serving.traces import MAX_TOKENS, Recorded
from autoconfig.specs.errors import InputError, option, refuse

DEFAULT_TOKENS = 1000
"""Input and output tokens of a request where none are given: a row of TensorRT-LLM's performance tables."""
MIN_CV, MAX_CV = 1e-3, 10.0
"""Standard deviation over mean: what is told from equal lengths, and the most that a gamma distribution is drawn with."""
BESIDE_TRACE = ("isl", "osl", "isl_stddev", "osl_stddev")
MAX_DIGITS = 20
MIN_RATE = 1e-6
"""Requests per second (one in twelve days) below which a rate is not told from none."""


TAILS = ("ttft_p95", "ttft_p99", "tpot_p95", "tpot_p99")
"""Limits of percentiles, which only the simulation knows."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What the person or program asked, unread. None means not given."""

    model: str | Mapping[str, Any]
    """A name or, over the network, what a config.json would hold."""
    gpus: int
    like: str | None = None
    """Family of Hugging Face as which a config.json is read."""
    download: bool = False
    """Whether the config.json of a hub's model may be fetched."""
    gpu: str | None = None
    gpus_per_node: int | None = None
    engine: str | None = None
    isl: int | None = None
    osl: int | None = None
    isl_stddev: float | None = None
    osl_stddev: float | None = None
    trace: str | Sequence[Mapping[str, Any]] | Recorded | None = None
    """A file, or rows with the keys of traces.JSON_KEYS: lengths, arrivals and their rate; or what was read of these."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p95_s: float | None = None
    tpot_p99_s: float | None = None
    rate: float = 0.0
    goal: str = "throughput"
    fix: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    prefix_hit: float = 0.0
    draft_tokens: int = 0
    acceptance: float | None = None
    """Chance that a draft token is accepted; goes with draft_tokens."""
    imbalance: float | None = None
    disaggregated: bool = True
    chunked: bool | None = None
    kv_memory_ratio: float | None = None
    release: str = ""
    """Of vLLM or SGLang; empty: the newest that is known."""
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    max_loras: int = 0
    max_lora_rank: int | None = None
    draft_method: str | None = None
    price: float | str | None = None
    """Money per GPU and hour, of each type as h100-sxm-80gb=2.2 with commas between (planning.prices)."""
    top: int = 10
    simulate: int = 3
    calibration: str | None = None
    """File of constants that a study learned; None: the shipped ones."""
    local_files: bool = True
    """Whether model and trace may be files of this machine."""

    @property
    def tail_limits(self) -> dict[str, float]:
        """Those of TAILS that were asked, in seconds."""
        return {name: seconds for name in TAILS if (seconds := getattr(self, f"{name}_s")) is not None}

    def check(self) -> None:
        """Raises InputError naming what cannot be used and what is allowed."""
        check_bounds(SERVING, self)
        self._check_lengths()
        tails, draft, acceptance = [*self.tail_limits], self.draft_tokens, self.acceptance
        refuse(
            (0 < self.rate < MIN_RATE, f"{option('rate')} {self.rate:g}: use 0 or at least {MIN_RATE:g}"),
            (
                draft and acceptance is None,
                f"{option('draft_tokens')} {draft} needs {option('acceptance')}, the chance from 0 to 1 that a draft token is "
                "accepted; engines report it as their acceptance rate",
            ),
            (
                acceptance and not draft,
                f"{option('acceptance')} {acceptance or 0:g} needs {option('draft_tokens')}, the drafts that a step checks, "
                "like 3",
            ),
            (
                tails and not self.simulate,
                f"{option(''.join(tails[:1]))} is judged by the simulation: drop {option('simulate')} 0",
            ),
            (self.goal not in GOALS, f"{option('goal')} {self.goal!r}: use {', '.join(GOALS)}"),
            (
                self.goal == "cost" and self.price is None,
                f"{option('goal')} cost needs {option('price')}, the money that a GPU takes per hour",
            ),
            (
                self.goal == "gpus" and not self.rate and self.trace is None,
                f"{option('goal')} gpus needs {option('rate')}, the requests per second that the GPUs must carry "
                f"(or a {option('trace')})",
            ),
        )

    def _check_lengths(self) -> None:
        if self.trace is not None:
            if beside := [option(name) for name in BESIDE_TRACE if getattr(self, name) is not None]:
                raise InputError(
                    f"{' and '.join(beside)} beside {option('trace')}: the trace has the lengths; leave one of them out"
                )
            return
        for name, mean, spread in (("isl", self.isl, self.isl_stddev), ("osl", self.osl, self.osl_stddev)):
            if mean is not None and not 1 <= mean <= MAX_TOKENS:
                raise InputError(f"{option(name)} {str(mean)[:MAX_DIGITS]}: use 1 to {MAX_TOKENS:,}")
            most = MAX_CV * (DEFAULT_TOKENS if mean is None else mean)
            if spread is not None and not (spread == 0 or most * MIN_CV / MAX_CV <= spread <= most):
                raise InputError(
                    f"{option(name + '_stddev')} {str(spread)[:MAX_DIGITS]}: use 0, or {most * MIN_CV / MAX_CV:g} to {most:g} "
                    f"tokens ({MIN_CV:g} to {MAX_CV:g} times the mean)"
                )


def request_of(given: Mapping[str, Any]) -> ServeRequest:
    """A ServeRequest from what any edge was given, by the names of the fields; what is no field of it is not read. Raises
    InputError."""
    missing = [option(field.name) for field in (SERVED_MODEL, SERVING_GPUS) if given.get(field.name) is None]
    if missing:
        raise InputError(f"Missing option {' and '.join(missing)}.")
    return ServeRequest(**field_values(SERVING, given))
