"""What is asked of a deployment: requests drawn from length distributions, or a recorded trace.

Both say the same of themselves: mean lengths for the closed form, the cache that a running sequence holds on average, and the
longest request, which memory must hold. A sequence of O output tokens runs for O iterations, so that averages over the
sequences that run count a request by O (length-biased sampling).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import attention_gemms, expert_gemms, mlp_gemms, total_parameters
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import KV_BYTES, ModuleFormats

DEFAULTS = (2048, 8192)
WHOLE_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5, "mxfp4": 0.5}
"""Bytes of a stored element as trtllm-bench counts them, 2 otherwise."""
NVFP4_ELEMENTS = 0.5 + 1.0 / 16
"""Stored elements of one NVFP4 weight: two share a byte, sixteen a scale (ModelOpt's checkpoints). trtllm-bench takes the
elements of the safetensors files for parameters (tensorrt_llm/bench/build/dataclasses.py, get_param_count)."""


def stored_elements(model: ModelSpec, formats: ModuleFormats) -> float:
    """Elements of a checkpoint's tensors."""
    attention = sum(attention_gemms(model, 1).values()) * model.attention_layers * (formats.attention == "nvfp4")
    routed = sum(expert_gemms(model, 1).values()) * (model.num_moe_experts or 0) * (formats.experts == "nvfp4")
    shared, dense = (
        sum(mlp_gemms(model, width, 1).values()) * (formats.mlp == "nvfp4")
        for width in (model.moe_shared_expert_intermediate_size, model.ffn_hidden_size)
    )
    moe = sum(model.moe_pattern)
    plain = sum(kind in ("dense", "mlp") for kind in model.layer_kinds)
    packed = attention + moe * (routed + shared) + plain * dense
    return float(total_parameters(model) - (1.0 - NVFP4_ELEMENTS) * packed)


def trtllm_bench_limits(
    model: ModelSpec, plan: EnginePlan, gpu: GpuSpec, formats: ModuleFormats, isl: float, osl: float
) -> tuple[int, int]:
    """(max_batch_size, max_num_tokens) that trtllm-bench chooses for a model, layout and lengths.

    Requests r = 0.95 (memory - stored elements x bytes) / (KV bytes of I + O tokens); batch b = min(r, 4096) / pp, tokens
    min(b (1 + I/O), 32768); both rounded up to coarse steps, at least 64 and 2,048. A head is h/a wide with multi-latent
    attention (it knows no better). Formats it does not know (mxfp4) get the engine's defaults. Source: NVIDIA/TensorRT-LLM
    tensorrt_llm/bench/build/tuning.py, build.py (TUNED_QUANTS).
    """
    if any("mxfp4" in name for name in (formats.experts, plan.weights)):
        return DEFAULTS
    width = model.hidden_size // model.num_attention_heads if model.multi_latent_attention else model.kv_channels
    ranks = plan.tp * plan.adp
    free = gpu.memory_bytes * ranks * plan.pp - stored_elements(model, formats) * WHOLE_BYTES.get(plan.weights, 2.0)
    heads = max(ranks, model.num_query_groups)
    each = 2.0 * model.attention_layers * heads * width * KV_BYTES[plan.kv] * (isl + osl)
    batch = min(max(0.95 * free / each, 1.0), 4096.0) / plan.pp
    tokens = min(batch * (1.0 + isl / osl), 32768.0)
    step = 32 if batch < 256 else 128 if batch < 1024 else 256
    token_step = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return max(64, step * int(np.ceil(batch / step))), max(2048, token_step * int(np.ceil(tokens / token_step)))


def trtllm_bench_table(model: ModelSpec, plan: EnginePlan, isl: float, osl: float) -> tuple[int, int] | None:
    """(max_batch_size, max_num_tokens) in the table that trtllm-bench had before it computed them, by model, layout and longest
    sequence; None for others. Source: data/serving_workloads.json."""
    layouts: dict[str, dict[str, list[int]]] = _workloads()["bench_table"]["by_model"].get(model.name, {})
    row = layouts.get(f"tp{plan.tp}_pp{plan.pp}")
    if row is None:
        return None
    batch, tokens = row.get(f"{isl + osl:g}") or row["general"]
    return batch, tokens


TUNED_BATCHES = ((144, 128), (336, 256), (672, 512), (832, 768), (1280, 1024), (1664, 1536))


def tuned_batch(capacity: int) -> int:
    """Batch size that TensorRT-LLM's C++ executor sets while it runs, where `capacity` sequences fit the cache.

    Source: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/executor/dynamicBatchConfig.cpp (kDefaultBatchSizeTable) and
    dynamicBatchTuner.cpp (getRuntimeBatchSize: beyond the table, down to a multiple of 512 where at most 127 are lost).
    """
    for below, batch in TUNED_BATCHES:
        if capacity < below:
            return batch
    return capacity - capacity % 512 if capacity % 512 < 128 else capacity


@cache
def _workloads() -> dict[str, Any]:
    return json.loads(
        (resources.files("autoconfig.time_model") / "data" / "serving_workloads.json").read_text(encoding="utf-8")
    )


def offline_requests(isl: float, osl: float) -> int:
    """Requests of a published offline run by its lengths (TensorRT-LLM performance overviews); 3,000 for others."""
    table: dict[str, int] = _workloads()["offline_requests"]["by_lengths"]
    return table.get(f"{isl:g}/{osl:g}", 3000)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Lengths of the requests of a run: means, coefficients of variation (0: all alike), and where they are cut."""

    name: str = "fixed lengths"
    isl: float
    osl: float
    input_cv: float = 0.0
    output_cv: float = 0.0
    most_input: float = 10_000_000.0
    most_output: float = 10_000_000.0

    def held_tokens(self, scheduler_policy: str) -> float:
        """Cache that a running sequence holds on average over time, in tokens.

        A sequence of O output tokens runs for O iterations, so that long ones count by O: E[O^2] / E[O] = O (1 + cv^2).
        no_evict holds it from the start, max_util as it grows, half of it on average.
        """
        whole = self.osl * (1.0 + self.output_cv**2)
        return self.isl + (whole / 2.0 if scheduler_policy == "max_util" else whole)


def data_set(name: str) -> DataSet:
    """A data set of data/serving_workloads.json. Raises UnknownNameError naming what there is."""
    known = _workloads()["data_sets"]
    if name not in known:
        raise UnknownNameError("data set", name, known, "give isl and osl")
    return DataSet(name=name, **{key: value for key, value in known[name].items() if key != "source"})


def data_set_of_lengths(isl: float, osl: float) -> DataSet:
    """The data set with these mean lengths, where they are a known one's; else fixed lengths."""
    for name, known in _workloads()["data_sets"].items():
        if (known["isl"], known["osl"]) == (isl, osl):
            return data_set(name)
    return DataSet(isl=isl, osl=osl)


Vector = npt.NDArray[np.float64]
LONGEST_STDDEVS = 6.0
"""Where drawn lengths are cut, in standard deviations above their mean: of exponential lengths one in 1,100 is longer."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Recorded requests in order of arrival; the first arrives at 0 s, the last later."""

    arrival_s: Vector
    input_tokens: Vector
    output_tokens: Vector
    most_input: float = 0.0
    most_tokens: float = 0.0
    """Of a longer trace, of which these are a part: tokens of its longest prompt, and of its longest request."""

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
        return max(float(self.input_tokens.max()), self.most_input)

    @property
    def longest_tokens(self) -> float:
        """Input and output tokens of the longest request."""
        return max(float((self.input_tokens + self.output_tokens).max()), self.most_tokens)

    @property
    def p99_tokens(self) -> float:
        """Input and output tokens of the request that 99 of 100 are no longer than."""
        return float(np.quantile(self.input_tokens + self.output_tokens, 0.99))

    def at_rate(self, rate: float) -> Trace:
        """The same requests, arrival times stretched to a mean rate (requests per second)."""
        return replace(self, arrival_s=self.arrival_s * (self.rate / rate))


@dataclass(frozen=True)
class Drawn:
    """Gamma distributed lengths by mean and standard deviation (0: all alike), from 1 token to six deviations above the mean.

    Gamma: positive, and skewed to long requests, as served lengths are (BurstGPT, arXiv:2401.17644; exponential where
    deviation and mean are equal).
    """

    isl: float
    osl: float
    isl_stddev: float = 0.0
    osl_stddev: float = 0.0

    @cached_property
    def data(self) -> DataSet:
        """The lengths as a data set."""
        return DataSet(
            name="drawn lengths",
            isl=self.isl,
            osl=self.osl,
            input_cv=self.isl_stddev / self.isl,
            output_cv=self.osl_stddev / self.osl,
            most_input=float(np.ceil(self.isl + LONGEST_STDDEVS * self.isl_stddev)),
            most_output=float(np.ceil(self.osl + LONGEST_STDDEVS * self.osl_stddev)),
        )

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

    @property
    def p99_tokens(self) -> float:
        """Input and output tokens of the request that 99 of 100 are no longer than, of a gamma distribution of the sum by
        Wilson and Hilferty's cube: mean (1 - c/9 + 2.326 sqrt(c/9))^3, c the squared variation."""
        mean = self.isl + self.osl
        ninth = (self.isl_stddev**2 + self.osl_stddev**2) / mean**2 / 9.0
        return float(mean * (1.0 - ninth + 2.326 * ninth**0.5) ** 3)


Workload = Trace | Drawn
