"""One question put to this planner and to aiconfigurator: time of the whole process, configurations a second, recommendation.

aiconfigurator is optional: in this Python, or in the one that the environment variable AICONFIGURATOR_PYTHON names.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

SHAPE = ["--isl", "1000", "--osl", "500"]
OURS = ["--model", "llama3.1-70b", "--gpus", "8", "--gpu", "h200-sxm-141gb", "--fix", "weights=fp8"]
OUR_LIMITS = ["--ttft", "2s", "--tpot", "50ms"]
THEIRS = ["--model-path", "nvidia/Llama-3.1-70B-Instruct-FP8", "--total-gpus", "8", "--system", "h200_sxm"]
THEIR_LIMITS = ["--backend", "trtllm", "--ttft", "2000", "--tpot", "50"]
VERSION = "0.12.0"
MOST_S = 600.0


def main() -> None:
    """Both answers, or how to install the other."""
    print("Llama-3.1-70B in fp8 on 8 H200, 1000 tokens in and 500 out, TTFT 2 s, TPOT 50 ms, whole processes:")
    ask_ours()
    python = os.environ.get("AICONFIGURATOR_PYTHON") or (sys.executable if find_spec("aiconfigurator") else "")
    if python:
        ask_theirs(python)
    else:
        print(
            f"  aiconfigurator: not installed here; pip install aiconfigurator=={VERSION} in an environment of its own "
            "(850 MB), then make bench AICONFIGURATOR_PYTHON=/path/to/its/python"
        )


def ask_ours() -> None:
    """The command with --json, timed; then its best aggregated deployment, which the recommended one may not be."""
    words = [sys.executable, "-m", "autoconfig", "search", "--inference", *OURS, *SHAPE, *OUR_LIMITS, "--json"]
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, check=True, text=True)
    wall = time.perf_counter() - start
    count = json.loads(done.stdout)["funnel"]["fit"]
    print(f"  autoconfig: {wall:.2f} s, {count / wall:,.0f} deployments/s ({count:,} priced)")
    alone = subprocess.run([*words, "--aggregated-only"], capture_output=True, check=True, text=True)
    for kind, text in (("recommended", done.stdout), ("aggregated", alone.stdout)):
        best = json.loads(text)["deployments"][0]
        print(
            f"    {kind}, {best['plan']}: {best['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, "
            f"TTFT {best['ttft_seconds'] * 1e3:,.0f} ms, TPOT {best['tpot_seconds'] * 1e3:.1f} ms"
        )


def ask_theirs(python: str) -> None:
    """aiconfigurator cli default; its log has the counts, best_config_topn.csv of each kind its best configurations."""
    with tempfile.TemporaryDirectory() as folder:
        words = [python, "-m", "aiconfigurator.main", "cli", "default", *THEIRS, *SHAPE, *THEIR_LIMITS, "--save-dir", folder]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1"}  # it ships this model's configuration
        start = time.perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, check=True, text=True, timeout=MOST_S, env=offline)
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"  aiconfigurator of {python} gave no answer: {said[:200]}")
            return
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"  aiconfigurator of {python} gave no answer: {str(error)[-200:]}")
            return
        print_theirs(time.perf_counter() - start, done.stdout + done.stderr, Path(folder))


def print_theirs(wall: float, log: str, folder: Path) -> None:
    """Time, count and the best configuration of each kind."""
    count = sum(int(number) for number in re.findall(r"completed with (\d+) results", log))
    inside = re.search(r"All experiments completed in ([0-9.]+) seconds", log)
    clock = f", {inside[1]} s of them by its own clock" if inside else ""
    print(f"  aiconfigurator: {wall:.1f} s{clock}, {count / wall:,.0f} configurations/s ({count:,} evaluated)")
    for table in sorted(folder.glob("*/*/*/best_config_topn.csv")):
        with table.open(encoding="utf-8", newline="") as file:
            best = next(csv.DictReader(file), None)
        if best is None:
            continue
        layout = best.get("parallel", "") + f" batch {best['bs']}" if "bs" in best else (
            f"{best['(p)workers']} prefill {best['(p)parallel']} to {best['(d)workers']} decode {best['(d)parallel']} "
            f"batch {best['(d)bs']}"
        )  # fmt: skip
        print(
            f"    {table.parent.name}, {layout}: {float(best['tokens/s/gpu']):,.0f} tokens/s/GPU, "
            f"TTFT {float(best['ttft']):,.0f} ms, TPOT {float(best['tpot']):.1f} ms"
        )


if __name__ == "__main__":
    main()
