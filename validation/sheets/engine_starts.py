"""Memory of serving starts against boot logs, by engine and release and row by row.

Rows are validation/tables/engine_starts.csv. seen: yes, those that the law was made from; partly, whose log gave a constant
(graphs, communicators, loading); no, the others, which came later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.specs.engines.releases import version_of
from autoconfig.specs.engines.start import EngineMemory, EngineStart
from autoconfig.specs.engines.towers import tower_of
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model

from autoconfig.engines.refusals import refusal
from autoconfig.runs.table import Row, cell, number
from validation.published import published_rows
from validation.sheets.figures import share, table

NUMBERS = ("tp", "pp", "dp", "ep", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes")
MEASURED = ("weights_gib", "kv_pool_gib", "kv_tokens", "max_concurrency", "longest_max_model_len")
"""Columns, and fields of EngineMemory."""
TOLERANCE_TEXT, TOLERANCE_OTHER = 0.03, 0.08
"""Of the cache: text models on vLLM 0.9 to 0.19, SGLang from 0.5.3, TensorRT-LLM; vLLM from 0.20, hybrids and vision models."""


def start_of(row: Row) -> EngineStart:
    """The start that a row says."""
    sizes = {name: int(value) for name in NUMBERS if (value := number(row, name)) is not None}
    switches = {name: cell(row, name) == "yes" for name in ("eager", "flashinfer_sampler") if cell(row, name)}
    start = EngineStart(
        engine=cell(row, "engine"),
        release=cell(row, "release"),
        model=load_model(cell(row, "model")),
        gpu=load_gpu(cell(row, "gpu")),
        weights=cell(row, "weights"),
        kv=cell(row, "kv") or None,
        memory_fraction=number(row, "memory_fraction"),
        draft_method=cell(row, "draft"),
    )
    return start.replace(**sizes, **switches)


def tolerance(start: EngineStart) -> float:
    """Asked of the row's cache; 0: nothing is (older releases)."""
    release = version_of(start.release)
    other = {"gdn", "mamba"} & set(start.model.layer_kinds) or tower_of(start.model) is not None
    since = {"vllm": (0, 9), "sglang": (0, 5, 3), "tensorrt-llm": (0, 0)}[start.engine]
    if release < since:
        return 0.0
    return TOLERANCE_OTHER if other or (start.engine == "vllm" and release >= (0, 20)) else TOLERANCE_TEXT


@dataclass(frozen=True, kw_only=True)
class JudgedStart:
    """A row and what was reckoned for it."""

    row: Row
    start: EngineStart
    memory: EngineMemory

    def errors(self) -> dict[str, float]:
        """Predicted over measured, less 1, of what the row measured; a pool below nothing has none."""
        measured = {name: number(self.row, name) for name in MEASURED}
        return {name: float(getattr(self.memory, name)) / x - 1.0 for name, x in measured.items() if x is not None and x > 0}

    @property
    def starts(self) -> str:
        """Whether it starts, as `check` says it: yes, no or uncertain."""
        return "no" if refusal(self.start) else self.memory.starts

    @property
    def verdict(self) -> str:
        """right, wrong or uncertain."""
        if self.starts == "uncertain":
            return "uncertain"
        return "right" if self.starts == cell(self.row, "starts") else "wrong"

    @property
    def cache_errors(self) -> list[float]:
        """Errors of KV tokens where the log has them, else of the pool, the concurrency or the longest length that it has."""
        errors = self.errors()
        names = ("kv_tokens", "kv_pool_gib", "max_concurrency", "longest_max_model_len")
        return [errors[name] for name in names if name in errors][:1]

    def misses(self) -> list[str]:
        """What is beyond the tolerance that is asked of the row."""
        most = tolerance(self.start)
        cache = {name: error for name, error in self.errors().items() if name != "weights_gib"}
        return [f"{name} {error:+.1%}" for name, error in cache.items() if most and abs(error) > most]


def judged_starts() -> list[JudgedStart]:
    """Every row of the table."""
    starts = [(row, start_of(row)) for row in published_rows("engine_starts")]
    return [JudgedStart(row=row, start=start, memory=engine_memory(start)) for row, start in starts]


def _series(one: JudgedStart) -> tuple[str, tuple[int, ...]]:
    return one.start.engine, version_of(one.start.release)[:2]


def _asked(one: JudgedStart) -> str:
    """The tolerance as the page has it; empty where none is asked for."""
    return share(tolerance(one.start), ".0%") if tolerance(one.start) else ""


def _row_of(name: str, some: list[JudgedStart]) -> tuple[str, ...]:
    """Cells of some starts: cache, bars, and how many were called right to start and right not to, uncertain and wrong."""
    cache = [error for one in some for error in one.cache_errors]
    figures = (share(float(np.mean(np.abs(cache)))), share(max(cache, key=abs), "+.1%")) if cache else ("-", "-")
    bars = " / ".join(dict.fromkeys(filter(None, map(_asked, some))))
    misses = str(sum(bool(one.misses()) for one in some))
    verdicts = Counter(one.starts if one.verdict == "right" else one.verdict for one in some)
    counts = (str(verdicts[kind]) for kind in ("yes", "no", "uncertain", "wrong"))
    return name, str(len(some)), *figures, bars or "none", misses, *counts


def page() -> str:
    """Return the figures as Markdown: by engine and release, by what the law was made from, and row by row."""
    judged = judged_starts()
    groups = sorted({_series(one) for one in judged})
    rows = [
        _row_of(f"{engine} {'.'.join(map(str, release))}", [one for one in judged if _series(one) == (engine, release)])
        for engine, release in groups
    ]
    rows += [_row_of(name, [one for one in judged if cell(one.row, "seen") == seen]) for name, seen in SEEN.items()]
    head = "| rows | KV cache: mean | worst | asked | beyond it | starts: yes, right | no, right | uncertain | wrong"
    each = [
        (
            cell(one.row, "id"),
            f"{one.start.engine} {cell(one.row, 'release')}",
            f"{cell(one.row, 'model')}, {one.start.gpus} x {one.start.gpu.id}",
            *(share(errors[name], "+.1%") if name in (errors := one.errors()) else "-" for name in MEASURED),
            _asked(one) or "none",
            f"{cell(one.row, 'starts')}: {one.starts}",
            cell(one.row, "source"),
        )
        for one in judged
    ]
    columns = "row | engine | start | weights | pool | KV tokens | concurrency | longest length | asked | starts, said | source"
    return table(f"engine and release {head}", rows) + "\n" + table(columns, each)


SEEN = {"those that the law was made from": "yes", "those that gave a constant": "partly", "those that came later": "no"}
"""Rows by what the law knows of them -> their cell `seen`."""
