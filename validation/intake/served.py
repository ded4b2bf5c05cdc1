"""Runs of benchmarks with a number of users (validation/tables/served_measurements.csv), or with arrivals at a rate
(served_rates.csv): which of them have a known set-up.

The rules look at no prediction. They were read off the scripts and dates of the sources.
"""

from __future__ import annotations

from autoconfig.runs.table import Row, cell


def group_of(row: Row) -> str:
    """(model, GPU, engine), by which runs are left out."""
    return " | ".join(cell(row, name) for name in ("model", "gpu", "backend"))


def why_unknown(row: Row) -> str:
    """What of a run's set-up is not known; empty where all is."""
    model, backend, version = cell(row, "model"), cell(row, "backend"), cell(row, "backend_version")
    if cell(row, "source") == "gpustack/gpustack":
        return "figures pasted by hand: a page of H100 repeats one of A100; answers that end early"
    if "RTX 4090" in cell(row, "gpu") and cell(row, "tp") != "1":
        return "cards without peer access: first requests of seconds, and what crosses host memory is not said"
    if "gap analysis" in cell(row, "source"):
        return "another tool: fixed lengths, staggered arrivals, prefix hits likely"
    if model.startswith("DeepSeek-R1") and backend == "trtllm":
        return "multi-token prediction is on in some of these runs and not said"
    if backend == "sglang" and not version:
        return "no warm-up (before December 2025): compilation falls into the first requests"
    users = int(scenario[1]) if (scenario := cell(row, "scenario").split())[:1] == ["concurrency"] else 0
    if model.startswith("GPT-OSS") and backend == "vllm" and version.startswith("0.11") and users > 256:
        return "max_num_seqs below the number of users"
    return ""


def known_setup(row: Row) -> bool:
    """Whether a run's set-up is known."""
    return not why_unknown(row)
