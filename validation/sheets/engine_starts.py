"""Memory of serving starts against boot logs: `python -m validation.sheets.engine_starts` prints every row and the figures.

Rows are validation/tables/engine_starts.csv. seen: yes, those that the law was made from; partly, whose log gave a constant
(graphs, communicators, loading); no, the others, which came later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.specs.engines.releases import version_of
from autoconfig.specs.engines.start import EngineMemory, EngineStart
from autoconfig.specs.engines.towers import tower_of
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model

from autoconfig.runs.table import Row, cell, number
from validation.published import published_rows

NUMBERS = ("tp", "pp", "dp", "ep", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes")
MEASURED = {
    "weights_gib": "weights_gib",
    "kv_pool_gib": "kv_pool_gib",
    "kv_tokens": "kv_tokens",
    "max_concurrency": "max_concurrency",
    "longest_max_model_len": "longest_max_model_len",
}
"""Column -> field of EngineMemory."""
TOLERANCE_TEXT, TOLERANCE_OTHER = 0.03, 0.08
"""Of the cache: text models on vLLM 0.9 to 0.19, SGLang from 0.5.3, TensorRT-LLM; vLLM from 0.20, hybrids and vision models."""


def start_of(row: Row) -> EngineStart:
    """The start that a row says."""
    said = {name: int(value) for name in NUMBERS if (value := number(row, name)) is not None}
    fraction, draft = number(row, "memory_fraction"), cell(row, "draft")
    yes = {name: cell(row, name) == "yes" for name in ("eager", "flashinfer_sampler") if cell(row, name)}
    start = EngineStart(
        engine=cell(row, "engine"),
        release=cell(row, "release"),
        model=load_model(cell(row, "model")),
        gpu=load_gpu(cell(row, "gpu")),
        weights=cell(row, "weights"),
        kv=cell(row, "kv") or None,
        memory_fraction=fraction,
        draft_method=draft,
    )
    return start.replace(**said, **yes)


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
        found = {}
        for column, name in MEASURED.items():
            measured = number(self.row, column)
            if measured is not None and measured > 0:
                found[column] = float(getattr(self.memory, name)) / measured - 1.0
        return found

    @property
    def verdict(self) -> str:
        """right, wrong or uncertain."""
        if self.memory.starts == "uncertain":
            return "uncertain"
        return "right" if self.memory.starts == cell(self.row, "starts") else "wrong"

    def misses(self) -> list[str]:
        """What is beyond the tolerance that is asked of the row."""
        asked = tolerance(self.start)
        cache = {name: error for name, error in self.errors().items() if name != "weights_gib"}
        return [f"{name} {error:+.1%}" for name, error in cache.items() if asked and abs(error) > asked]


def judged_starts() -> list[JudgedStart]:
    """Every row of the table."""
    found = []
    for row in published_rows("engine_starts"):
        start = start_of(row)
        found.append(JudgedStart(row=row, start=start, memory=engine_memory(start)))
    return found


def lines() -> Iterator[str]:
    """A line of each row, then the figures of seen and unseen rows."""
    judged = judged_starts()
    for one in judged:
        errors = ", ".join(f"{name} {error:+.1%}" for name, error in one.errors().items())
        missed = f"  MISSES {', '.join(one.misses())}" if one.misses() else ""
        names = " ".join(cell(one.row, name) for name in ("id", "engine", "release", "model", "gpu"))
        yield f"{names}: starts {one.memory.starts} ({one.verdict}); {errors or 'nothing measured'}{missed}"
    for seen in ("yes", "partly", "no"):
        mine = [one for one in judged if cell(one.row, "seen") == seen]
        cache = [abs(error) for one in mine for name, error in one.errors().items() if name in ("kv_pool_gib", "kv_tokens")]
        weights = [abs(one.errors()["weights_gib"]) for one in mine if "weights_gib" in one.errors()]
        verdicts = [one.verdict for one in mine]
        yield (
            f"seen {seen}: {len(mine)} rows; weights mean {np.mean(weights):.1%}; cache mean "
            f"{np.mean(cache):.1%}, median {np.median(cache):.1%}, worst {max(cache):.1%}; starts: {verdicts.count('right')} "
            f"right, {verdicts.count('uncertain')} uncertain, {verdicts.count('wrong')} wrong; rows beyond their tolerance: "
            f"{sum(bool(one.misses()) for one in mine)}"
        )


if __name__ == "__main__":
    print("\n".join(lines()))
