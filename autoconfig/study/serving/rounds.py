"""Rounds of equal requests, predicted: `batch` prompts together, then one token each an iteration until all are answered.

What a study measures (specs.job, mode generate). The static engine prefills all prompts in one iteration; a server takes
as many as its token budget makes of them. Every figure is linear in the constants, so that measured rounds give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from autoconfig.specs.hardware.cluster import cluster_of
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.time_model.hardware.efficiency import efficiency_of
from autoconfig.time_model.network.collectives import Group, collective_seconds, links_of
from autoconfig.time_model.serving.calibration import EngineConstants
from autoconfig.time_model.serving.costs import ServingJob, constant_vector, floor_seconds, iteration_features
from autoconfig.time_model.serving.tables import AllReduceTable, ServingTables, even_tables

Vector = npt.NDArray[np.float64]
OPERATORS, EXPERTS, COMMUNICATION, HOST = 0, 1, 2, 5
"""Columns of `iteration_features` that rounds can tell apart."""
MESSAGES = np.exp2(np.arange(8.0, 31.0))
"""Bytes of the collectives that `link_tables` holds."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is asked: prompts and answers in tokens; `tokens` that one iteration takes (None: all prompts at once)."""

    batch: int
    prompt: int
    new: int
    tokens: int | None = None

    @property
    def chunks(self) -> float:
        """Iterations that the prompts take."""
        return 1.0 if self.tokens is None else max(1.0, self.batch * self.prompt / self.tokens)


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """What one instance gives: seconds; output tokens per second of the round as a whole."""

    ttft_s: float
    tpot_s: float
    tokens_per_s: float


def features(job: ServingJob, asked: Round) -> tuple[Vector, Vector]:
    """[7] of an iteration of the prompts, and of a later one at the mean length of the cache."""
    share = asked.batch / asked.chunks
    first = iteration_features(job, 0.0, 1.0, share, asked.prompt)
    return first, iteration_features(job, asked.batch, asked.prompt + asked.new / 2.0, 0.0, 1.0)


def predicted(job: ServingJob, asked: Round) -> RoundFigures:
    """Under the job's constants. Requests wait for their own part of the prompts: half of them on average; what then passes
    until all prompts are in belongs to their later tokens."""
    first, later = features(job, asked)
    constants = constant_vector(job.constants)
    share = asked.batch / asked.chunks
    prompt_s = float(np.maximum(first @ constants, floor_seconds(job, share, share)))
    step_s = float(np.maximum(later @ constants, floor_seconds(job, 0.0, float(asked.batch))))
    ttft = prompt_s * (asked.chunks + 1.0) / 2.0 + job.constants.request_s
    whole = prompt_s * asked.chunks + (asked.new - 1) * step_s
    return RoundFigures(
        ttft_s=ttft,
        tpot_s=(whole - prompt_s * (asked.chunks + 1.0) / 2.0) / (asked.new - 1),
        tokens_per_s=asked.batch * asked.new / (whole + job.constants.request_s),
    )


def refined(job: ServingJob, seen: Sequence[tuple[ServingJob, Round, RoundFigures]]) -> EngineConstants:
    """Constants that measured rounds give: the factor of the operators, that of communication where some round had any, the
    host's seconds an iteration and, for a server, those before a request's first one. Least squares of relative errors, none
    negative (Lawson and Hanson 1974). `seen`: the layout as a job, what was asked, what was measured; without any, the job's
    own constants."""
    rows, waits = [], []
    for one, asked, measured in seen:
        first, later = features(one, asked)
        rows.append(first * (asked.chunks + 1.0) / 2.0 / measured.ttft_s)
        rest = asked.chunks - (asked.chunks + 1.0) / 2.0
        rows.append((rest * first / (asked.new - 1) + later) / measured.tpot_s)
        waits += [0.0 if asked.tokens is None else 1.0 / measured.ttft_s, 0.0]
    if not rows:
        return job.constants
    table = np.array(rows)
    columns = np.stack(
        [table[:, OPERATORS] + table[:, EXPERTS], table[:, COMMUNICATION], table[:, HOST], np.array(waits)], axis=1
    )
    (factor, communication, host, request), _ = nnls(columns, np.ones(len(rows)))
    talks = bool(columns[:, 1].any())
    return EngineConstants(
        factor=float(factor),
        experts_factor=float(factor),
        communication_factor=float(communication) if talks else job.constants.communication_factor,
        host_s=float(host),
        request_s=float(request),
        sampler_bytes=0.0,
        origin=f"{len(seen)} measured points",
    )


def link_tables(gpu: GpuSpec) -> ServingTables:
    """For a device that nobody measured under a serving engine: operators at their rooflines, all-reduces as the ring over its
    link (time_model.collectives). What that misses, measured rounds tell (`refined`)."""
    ranks = np.array([2.0, 4.0, 8.0])
    constants = efficiency_of(gpu)
    seconds = [
        collective_seconds(
            "all_reduce", MESSAGES, Group(size=n, local=n), links_of(cluster_of(gpu, int(n)), constants)
        )
        for n in ranks
    ]  # fmt: skip
    logs = np.log(np.maximum(np.stack(seconds), 1e-12))
    return replace(even_tables(), all_reduce=AllReduceTable(ranks=ranks, log_bytes=np.log(MESSAGES), log_seconds=logs))
