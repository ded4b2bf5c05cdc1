"""Write the tables of docs/engine_memory.md from the laws themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import resources

from autoconfig.memory_model.engines import held, memory, sglang, vllm
from autoconfig.specs.engines.releases import driver_mib
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model

from autoconfig.engines.check import check_start, start_request

STARTS = {
    "vllm": ("vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-model-len 32768", "h100", "0.19.1"),
    "vllm hybrid": ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --max-model-len 65536", "h200", "0.26"),
    "sglang": ("python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2", "h100", "0.5.9"),
    "tensorrt-llm": ("trtllm-serve Qwen/Qwen3-32B --tp_size 2", "h100", "1.2"),
}
"""Example -> command, GPU, release."""
CARDS = ("rtx-4090-24gb", "l40s-48gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb")
SGLANG_RELEASES = ("0.4.3", "0.4.9", "0.5.6", "0.5.23")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


CONSTANTS = f"""
s without a sort | {vllm.FLASHINFER_BYTES:g} bytes a logit | `vllm.FLASHINFER_BYTES`
tokens the experts take at once | {vllm.EXPERT_CHUNK:,} | `vllm.EXPERT_CHUNK`: envs.py of vLLM
the same under data and expert parallelism | {vllm.CHUNKED_RANK_TOKENS} of a rank | `vllm.CHUNKED_RANK_TOKENS`: envs.py
graphs that the profile charges | {vllm.GRAPH_BASE:g} GiB + {vllm.GRAPH_SHARE:g} M min(largest batch / 512, 1) | measured
graphs captured behind the pool | {vllm.GRAPH_PIECE[False]:g} MiB a layer and size | `vllm.captured_graphs`: measured
the same with experts | {vllm.GRAPH_PIECE[True]:g} MiB a layer and size | `vllm.captured_graphs`: measured
block of multi-latent attention | {vllm.MLA_BLOCK} tokens | `vllm.MLA_BLOCK`: platforms/cuda.py of vLLM
CUDA's context | {memory.CONTEXT_GIB:g} GiB, not free at the start | `memory.CONTEXT_GIB`
symmetric memory of SGLang | {sglang.SYMMETRIC_BYTES / 2**30:g} GiB | `sglang.SYMMETRIC_BYTES`: --enable-symm-mem
states of a request in SGLang | {sglang.STATES_OF_REQUEST} where prefixes are cached | `sglang.STATES_OF_REQUEST`
vocabulary | padded to multiples of {held.VOCABULARY_MULTIPLE} | `held.VOCABULARY_MULTIPLE`: vocab_parallel_embedding.py
uncertain, text models of known releases | {memory.BAND_TEXT:g} GiB from the edge | `memory.BAND_TEXT`
uncertain, hybrids, vision models, later releases | {memory.BAND_OTHER:g} GiB from the edge | `memory.BAND_OTHER`
uncertain, of what is free at first | {memory.BAND_FREE:g} GiB | `memory.BAND_FREE`
"""


def constants() -> str:
    """Return the numbers of the laws that no release changes, with their sources in the code."""
    rows = [line.split(" | ") for line in CONSTANTS.strip().splitlines()]
    for least, width, inputs in held.MXFP4_PADDING:
        padded = f"padded to multiples of {width} x {inputs}"
        rows.append([f"experts in MXFP4, from capability {least:g}", padded, "`held.MXFP4_PADDING`"])
    return _table(("term", "value", "where"), rows)


def releases() -> str:
    """Return defaults and constants by engine and release: specs/catalogue/engine_releases.json."""
    data = json.loads((resources.files("autoconfig.specs") / "catalogue" / "engine_releases.json").read_text(encoding="utf-8"))
    rows = []
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        for key, values in data[engine]["values"].items():
            for one in values:
                value = (
                    "none"
                    if isinstance(one["value"], int | float) and one["value"] >= 1e9
                    else json.dumps(one["value"]).strip('"')
                )
                rows.append((engine, f"`{key}`", one["since"], value, one["source"]))
    return _table(("engine", "what", "since", "value", "source"), rows)


def fractions() -> str:
    """Return SGLang's default of --mem-fraction-static by card, tp 1 and 8, and release."""
    rows = []
    for card in CARDS:
        gpu = load_gpu(card)
        cells = []
        for release in SGLANG_RELEASES:
            start = EngineStart(engine="sglang", release=release, model=load_model("qwen3-8b"), gpu=gpu)
            cells.append(" / ".join(f"{sglang.default_fraction(start.replace(tp=tp))[0]:.3f}" for tp in (1, 8)))
        rows.append((card, f"{driver_mib(gpu):,.0f}", *cells))
    return _table(("card, tp 1 / tp 8", "MiB", *SGLANG_RELEASES), rows)


def example(name: str) -> str:
    """Return a start and every part of its memory with its source."""
    command, gpu, release = STARTS[name]
    start = check_start(command, start_request({"gpu": gpu, "release": release})).memory
    assert start is not None
    rows = [(part.name, f"{part.gib:.2f}", part.source) for part in start.parts]
    cache = (
        f"{start.kv_tokens:,} tokens of KV cache: {start.blocks:,} blocks of {start.block_size}; {'; '.join(start.groups)}. A "
        f"sequence of {start.max_model_len:,} tokens takes {start.sequence_gib:.2f} GiB, {start.max_concurrency:.2f} at once."
    )
    return f"`{command}` on {gpu}, {release}:\n\n{_table(('part', 'GiB', 'from'), rows)}\n\n{cache}"


TABLES: dict[str, Callable[[], str]] = {
    "constants": constants,
    "releases": releases,
    "fractions": fractions,
    **{f"start {name}": partial(example, name) for name in STARTS},
}
"""Name in a made block -> what writes it."""
