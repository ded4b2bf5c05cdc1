"""Seconds of one iteration of a serving engine, added up here alone, in three forms: exact, by part and for arrays
(`iteration_parts`); looked up for arrays of one request's lengths (`LayoutPrices`, of the search); looked up for numbers
(`IterationTable`, of the simulation). What is looked up are the exact form's own terms on a grid.

An iteration of one attention rank runs D decode tokens (one per sequence, L tokens cached each) and prefill tokens of P
prompts of length s: T = D + P s rows go through every linear layer, each attention sees its own part.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import copy

import numpy as np
import numpy.typing as npt
from autoconfig.specs.models.parameters import Number
from autoconfig.time_model.serving.costs import decode_attention_seconds, output_seconds, prefill_attention_seconds
from autoconfig.time_model.serving.rows import ServingJob, token_parts
from autoconfig.time_model.serving.tables import ARITHMETIC, EngineConstants, host_slowness

Vector = npt.NDArray[np.float64]
Table = list[list[float]]
"""Plain lists: a look-up in them takes a fraction of numpy's."""
PARTS = (
    "linear",
    "output layer",
    "decode attention",
    "prefill attention",
    "communication",
    "pointwise",
    "experts",
    "sampling",
    "launches",
    "host",
)


def graph_rows(sizes: tuple[int, ...], decode: Number) -> Number:
    """Sequences that the CUDA graph of an iteration computes: the next larger captured size, dummies filling it (TensorRT-LLM,
    cuda_graph_config.enable_padding); as many as there are beyond the largest, where the iteration runs without a graph."""
    if not sizes:
        return decode
    captured = np.append(np.array(sizes, dtype=np.float64), np.inf)
    found = captured[np.searchsorted(captured, np.asarray(decode, dtype=np.float64))]
    return np.where(np.isfinite(found), found, decode)


def operator_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """Seconds of the operators of one iteration by part, all stages: D sequences of `length` tokens decode beside `prompts`
    prompts.

    `checked`: tokens that a decoding sequence computes, its drafts and the one that is due. Linear layers and logits take all
    of them; attention reads the cache of a sequence once for them together (speculative decoding, arXiv:2211.17192).
    """
    decode, length, prompts, prompt_length = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (decode, length, prompts, prompt_length))
    )
    rows: Number = np.where(np.asarray(prompts) > 0, decode, graph_rows(job.graph_sizes, decode))
    rows = rows * checked
    parts = token_parts(job, rows + prompts * prompt_length)
    parts["output layer"], _ = output_seconds(job, rows + prompts)
    parts["decode attention"] = decode_attention_seconds(job, decode, length)
    parts["prefill attention"] = prefill_attention_seconds(job, prompts, prompt_length)
    return parts


def iteration_features(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Vector:
    """[..., 9]: seconds of operators without the next two, of routed experts, of communication, of reading one byte of each
    logit; layers; 1; sequences of all attention ranks; seconds of routed experts that the matrix units set; seconds that no
    factor scales. What StepTerms knows of the parts is in them already.

    Their product with `constant_vector` is the time of the iteration; nothing else enters it.
    """
    decode, prompts = np.broadcast_arrays(np.asarray(decode, dtype=np.float64), np.asarray(prompts, dtype=np.float64))
    sequences = decode * checked + prompts
    parts = operator_parts(job, decode, length, prompts, prompt_length, checked)
    c = job.constants
    fixed = 0.0 * prompts
    if c.terms is not None:
        eager = job.eager(prompts, decode * checked + prompts * np.asarray(prompt_length))
        fixed = job.launches_s - c.host_s - c.layer_s * job.layers + np.where(eager, job.prompts_s, 0.0)
        parts["experts"], parts[ARITHMETIC] = parts["experts"] + parts[ARITHMETIC], 0.0 * parts[ARITHMETIC]
    experts, arithmetic, communication = (parts.pop(name) for name in ("experts", ARITHMETIC, "communication"))
    _, sampled = output_seconds(job, sequences)
    beside = (sampled, job.layers, 1.0, sequences * job.plan.adp)
    columns = (sum(parts.values()), experts, communication, *beside, arithmetic, fixed)
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def constant_vector(constants: EngineConstants) -> Vector:
    """What each feature costs."""
    c = constants
    beside = (c.sampler_bytes, c.layer_s, c.host_s, c.sequence_s)
    return np.array([c.factor, c.experts_factor, c.communication_factor, *beside, c.experts_arithmetic, 1.0])


def floor_parts(job: ServingJob, prompts: Number, sequences: Number) -> tuple[Number, Number]:
    """(layers that the host launches one by one, sequences that a Python runtime walks through) of an iteration.

    `eager_iterations` of the engine: all, mixed (those that carry prompts; graphs are captured for decoding alone) or none (the
    runtime is compiled as well: TensorRT-LLM's C++ executor). A rank's own sequences: attention ranks schedule side by side.
    Both counted in an x86 host's: a slower host (data/serving/chips.json) has more.
    """
    prompts, sequences = np.broadcast_arrays(np.asarray(prompts, dtype=np.float64), np.asarray(sequences, dtype=np.float64))
    kind = job.engine.eager_iterations
    eager = np.full(prompts.shape, kind == "all") if kind != "mixed" else prompts > 0
    slow = host_slowness(job.gpu.id)
    return np.where(eager, slow * job.layers, 0.0), slow * sequences * (kind != "none")


def floor_seconds(job: ServingJob, prompts: Number, sequences: Number) -> Number:
    """Least time of an iteration: the host's work for it runs beside the GPU's work on the one before (overlap scheduler), so
    that the longer of both counts."""
    layers, own = floor_parts(job, prompts, sequences)
    each = job.constants.eager_layer_s or EAGER_LAYER_S * (job.engine.eager_iterations == "all")
    return each * layers + job.constants.eager_sequence_s * own


EAGER_LAYER_S = 5e-4
"""eager_layer_s of an engine whose constants are of runs with CUDA graphs, where it is started without them: that of
TensorRT-LLM's PyTorch runtime (vllm-project/vllm#20469: 20.6 ms a token over 40 layers on an A100)."""


def iteration_seconds(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> Number:
    """Time of one iteration: pipeline stages run after one another; at least the host's floor."""
    return sum(iteration_parts(job, decode, length, prompts, prompt_length, checked).values())


def iteration_parts(
    job: ServingJob, decode: Number, length: Number, prompts: Number, prompt_length: Number, checked: float = 1.0
) -> dict[str, Number]:
    """The same by part (PARTS), for tables and plots; `host` holds what the floor adds."""
    c, rows = job.constants, decode * checked
    operators = operator_parts(job, decode, length, prompts, prompt_length, checked)
    parts = {name: c.factor_of(name) * s for name, s in operators.items()}
    parts["experts"] = parts["experts"] + parts.pop(ARITHMETIC)
    _, sampled = output_seconds(job, rows + prompts)
    eager = job.eager(prompts, rows + prompts * np.asarray(prompt_length))
    parts["sampling"] = c.sampler_bytes * sampled
    parts["launches"] = job.launches_s - c.host_s + np.where(eager, job.prompts_s, 0.0)
    parts["host"] = c.host_s + c.sequence_s * job.plan.adp * (rows + prompts)
    parts["host"] = parts["host"] + np.maximum(floor_seconds(job, prompts, decode + prompts) - sum(parts.values()), 0.0)
    return {name: parts[name] for name in PARTS if name in parts}


def grid_points(most: float, per_octave: int = 4) -> Vector:
    """1, 2, 3, ..., a geometric grid of whole numbers up to `most`."""
    points = np.unique(np.round(np.exp2(np.arange(0.0, np.log2(most) + 1.0 / per_octave, 1.0 / per_octave))))
    return np.asarray(points[points <= most], dtype=np.float64)


TOKENS, SEQUENCES = grid_points(131072.0), grid_points(16384.0)


def rows_seconds(job: ServingJob) -> Vector:
    """On TOKENS: all that depends on the rows of an iteration."""
    return np.asarray(sum(job.constants.factor_of(name) * s for name, s in token_parts(job, TOKENS).items()))


def heads_seconds(job: ServingJob) -> Vector:
    """On SEQUENCES: output layer, sampling and host."""
    c = job.constants
    head, sampled = output_seconds(job, SEQUENCES)
    return np.asarray(c.factor_of("output layer") * head + c.sampler_bytes * sampled + c.sequence_s * job.plan.adp * SEQUENCES)


def decoding_seconds(job: ServingJob, sequences: Number, length: Number) -> Number:
    """Attention of sequences that decode."""
    return job.constants.factor_of("decode attention") * decode_attention_seconds(job, sequences, length)


def prompts_seconds(job: ServingJob, prompts: Number, length: Number) -> Number:
    """Attention of whole prompts."""
    return job.constants.factor_of("prefill attention") * prefill_attention_seconds(job, prompts, length)


class Iteration:
    """What a layout's iteration takes beside what is looked up; the sum of both forms."""

    def __init__(self, job: ServingJob) -> None:
        self.fixed_s, self.prompts_s, self.graph_tokens = job.launches_s, job.prompts_s, job.engine.graph_tokens
        """prompts_s: of an iteration with prompts and more than `graph_tokens` tokens, beside."""
        self.floor_mixed_s, self.floor_alone_s = float(floor_seconds(job, 1.0, 0.0)), float(floor_seconds(job, 0.0, 0.0))
        self.floor_sequence_s = float(floor_seconds(job, 0.0, 1.0)) - self.floor_alone_s

    def total(self, rows: Number, heads: Number, decode: Number, eager: Number, prefill: Number) -> Number:
        """Seconds of the terms, without the floor; `eager`: the iteration is outside of the captured graphs."""
        return self.fixed_s + rows + heads + decode + self.prompts_s * eager + prefill


class LayoutPrices(Iteration):
    """An iteration for arrays: by tokens, sequences, and prompts of the question's lengths."""

    def __init__(self, job: ServingJob, rows: Vector, heads: Vector, decode: Vector, prefill: Vector) -> None:
        super().__init__(job)
        self._rows, self._heads, self._decode, self._prefill = rows, heads, decode, prefill

    def seconds(self, decode: Number, checked: float, prompts: Number, prompt: float) -> Number:
        """An iteration of `decode` sequences with `checked` tokens each beside `prompts` prompts of `prompt` tokens."""
        tokens, mixed = decode * checked + prompts * prompt, np.asarray(prompts) > 0
        total = self.total(
            np.interp(tokens, TOKENS, self._rows),
            np.interp(decode * checked + prompts, SEQUENCES, self._heads),
            np.interp(decode, SEQUENCES, self._decode) * (np.asarray(decode) > 0),
            mixed & (tokens > self.graph_tokens + 0.5),
            np.interp(np.maximum(prompts, 1.0), SEQUENCES, self._prefill) * np.minimum(prompts, 1.0),
        )
        floor = np.where(mixed, self.floor_mixed_s, self.floor_alone_s)
        return np.maximum(total, floor + self.floor_sequence_s * (decode + prompts))


MOST_TOKENS = 65536.0
"""Of TOKENS, as far as numbers are looked up; beyond them the last two go on in a line."""


class IterationTable(Iteration):
    """An iteration for numbers: linear in tokens and sequences, bilinear in logs for attention."""

    def __init__(self, job: ServingJob, most_length: float = 131072.0) -> None:
        """Prices the grids once, a few milliseconds."""
        super().__init__(job)
        rows = rows_seconds(job)[TOKENS <= MOST_TOKENS].tolist()
        heads = heads_seconds(job).tolist()
        self._tokens, self._rows_s = [0.0, *TOKENS[TOKENS <= MOST_TOKENS].tolist()], [rows[0], *rows]
        self._sequences, self._heads_s = [0.0, *SEQUENCES.tolist()], [heads[0], *heads]
        longest = max(131072.0, float(np.exp2(np.ceil(np.log2(most_length)))))
        counts, lengths = grid_points(16384.0, 1), grid_points(longest, 2)
        self._counts, self._lengths = counts.tolist(), lengths.tolist()
        count, length = np.meshgrid(counts, lengths, indexing="ij")
        self._decode: Table = decoding_seconds(job, count, length).tolist()
        self._prefill: Table = prompts_seconds(job, count, length).tolist()
        self._slowdown = 1.0

    def slowed(self, factor: float) -> IterationTable:
        """The same with every iteration `factor` times as long."""
        other = copy(self)
        other._slowdown = self._slowdown * factor
        return other

    def of_cohorts(self, weight: float) -> IterationTable:
        """The same where each sequence and each token that is asked stands for `weight` of them."""
        return self if weight == 1.0 else _CohortTable(self, weight)

    def of_prefilled(self) -> IterationTable:
        """The same where prompts were prefilled elsewhere: their one token runs in the CUDA graphs of decoding."""
        other = copy(self)
        other.floor_mixed_s, other.prompts_s = self.floor_alone_s, 0.0
        return other

    def seconds(
        self,
        decode: float,
        length: float,
        prompts: float,
        prompt_tokens: float,
        attended: float,
        checked: float = 1.0,
        whole: float | None = None,
    ) -> float:
        """`decode` sequences of `length` tokens, `checked` computed of each, beside `prompts` prompts with `prompt_tokens` new
        tokens in all, each part of a prompt of `attended` tokens.

        `whole`: prompts whose attention they are worth, tokens b to e of s being (e^2 - b^2) / s^2 of one; None: each new token
        its share of a whole prompt's.
        """
        rows, floor, decoding, prefill, eager = decode * checked, self.floor_alone_s, 0.0, 0.0, False
        if decode > 0:
            decoding = self._bilinear(self._decode, decode, length)
        if prompt_tokens > 0:
            floor, eager = self.floor_mixed_s, rows + prompt_tokens > self.graph_tokens
            if whole is None:
                whole = prompt_tokens / attended
            if whole < 1.0:
                prefill = self._bilinear(self._prefill, 1.0, attended) * max(whole, 1e-9)
            else:
                prefill = self._bilinear(self._prefill, whole, attended)
        total = self.total(
            _linear(self._tokens, self._rows_s, rows + prompt_tokens),
            _linear(self._sequences, self._heads_s, rows + prompts),
            decoding,
            eager,
            prefill,
        )
        floor += self.floor_sequence_s * (decode + prompts)
        return self._slowdown * (total if total > floor else floor)

    def _bilinear(self, table: Table, count: float, length: float) -> float:
        i, u = _position(self._counts, count)
        j, v = _position(self._lengths, length)
        fewer, more, rest = table[i], table[i + 1], 1 - v
        return (fewer[j] * rest + fewer[j + 1] * v) * (1 - u) + (more[j] * rest + more[j + 1] * v) * u


class _CohortTable(IterationTable):
    """A table whose sequences are cohorts of alike ones."""

    def __init__(self, table: IterationTable, weight: float) -> None:
        self._table, self._weight = table, weight

    def seconds(
        self,
        decode: float,
        length: float,
        prompts: float,
        prompt_tokens: float,
        attended: float,
        checked: float = 1.0,
        whole: float | None = None,
    ) -> float:
        w = self._weight
        parts = None if whole is None else w * whole
        return self._table.seconds(w * decode, length, w * prompts, w * prompt_tokens, attended, checked, parts)


def _position(points: list[float], x: float) -> tuple[int, float]:
    i = bisect_right(points, x) - 1
    if i < 0:
        return 0, 0.0
    if i > len(points) - 2:
        return len(points) - 2, 1.0
    low = points[i]
    return i, (x - low) / (points[i + 1] - low)


def _linear(points: list[float], values: list[float], x: float) -> float:
    i = bisect_right(points, x)
    if i == len(points):
        i -= 1
    low, least = points[i - 1], values[i - 1]
    return least + (values[i] - least) * (x - low) / (points[i] - low)
