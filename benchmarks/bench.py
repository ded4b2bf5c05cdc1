"""`make bench`: how fast the planner is, and where the time goes. Figures, not tests: the machine decides them.

    python -m benchmarks.bench [--smoke]      # --smoke: everything once, on small questions

Every rate is given beside a baseline measured in the same run: the same plans priced one at a time through the same code.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import evidence
from benchmarks.against_base import Used, used
from validation.published import published_rows

QUESTION = [
    *("search", "--model", "175b", "--gpus", "1024", "--gpu", "a100-80gb", "--seq-length", "2048"),
    *("--global-batch-size", "1536"),
]
SMOKE = "--smoke" in sys.argv[1:]
REPEATS, SINGLE_PLANS, PREDICTED_ROWS = (1, 5, 50) if SMOKE else (7, 200, 10_000)
LARGE = () if SMOKE else (("llama3-70b", 64), ("mixtral-8x7b", 64), ("qwen3-235b-a22b", 256), ("deepseek-v3", 2048))
PLACED = (("llama3.1-8b", 8),) if SMOKE else (("llama3.1-8b", 64), ("qwen3-235b-a22b", 256))
SERVED = () if SMOKE else (("llama3-70b", 8), ("deepseek-v3", 64))


def best_of(repeats: int, work: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least


def command(arguments: list[str]) -> Used:
    return used([sys.executable, "-m", "autoconfig", *arguments])


def whole_process() -> None:
    runs = [command([*QUESTION, "--json"]) for _ in range(REPEATS)]
    print(
        f"whole process (search, 175B on 1,024 A100, --json): {min(r.wall for r in runs):.2f} s wall at best, "
        f"{median(r.wall for r in runs):.2f} s median, {max(r.megabytes for r in runs):.0f} MB peak"
    )
    empty = best_of(REPEATS, lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    loaded = "import autoconfig.cli.main, autoconfig.training.answer"
    imports = best_of(REPEATS, lambda: subprocess.run([sys.executable, "-c", loaded], check=True))
    answer = subprocess.run(
        [sys.executable, "-m", "autoconfig", *QUESTION, "--json"], capture_output=True, check=True, text=True
    )
    phases = json.loads(answer.stdout)["funnel"]["seconds_by_phase"]
    rest = min(r.wall for r in runs) - imports - sum(phases.values())
    print(
        f"  python itself {empty:.3f} s, imports {imports - empty:.3f} s, "
        + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in phases.items())
        + f", details and output {rest:.3f} s"
    )
    for model, gpus in LARGE:
        seconds, _, megabytes = command(["search", "--model", model, "--gpus", str(gpus), "--json"])
        print(f"  {model} on {gpus:,} H100: {seconds:.2f} s, {megabytes:.0f} MB")


def loading() -> None:
    """One model and one file of measured operators, read anew."""
    from autoconfig.specs.models import model_catalogue
    from autoconfig.time_model.hardware.efficiency import operator_tables_of

    def model() -> None:
        model_catalogue._load.cache_clear()
        model_catalogue._index.cache_clear()
        model_catalogue.load_model("175b")

    def table() -> None:
        operator_tables_of.cache_clear()
        operator_tables_of("l40s-48gb")

    print(f"loading: a model {best_of(REPEATS, model) * 1e3:.1f} ms, a GPU's operators {best_of(REPEATS, table) * 1e3:.1f} ms")


def prediction_rate() -> None:
    """Rows of a table of runs that `autoconfig predict` answers in a second: the published rows again and again with other
    batches, so that no question is asked twice; incomplete plans among them are completed by a search."""
    from autoconfig.runs.predict import predict_rows

    base, rows = list(published_rows()), []
    for number in range(PREDICTED_ROWS):
        row, times = base[number % len(base)], 1 + number // len(base)
        rows.append({**row, "id": str(number), "gbs": str(int(float(row["gbs"])) * times) if row["gbs"] else ""})
    seconds = best_of(1, lambda: predict_rows(rows))
    whole = [row for row in rows if row["full_plan"] != "0"]
    alone = best_of(1, lambda: predict_rows(whole))
    print(
        f"predict, in one process: {len(rows):,} different rows in {seconds:.1f} s, "
        f"{len(whole):,} of them with a whole plan in {alone:.1f} s"
    )


def pricing_rate() -> None:
    from autoconfig.memory_model.predict import estimate_memory
    from autoconfig.time_model.predict import estimate_step_time

    from autoconfig.training.question import Request, understand
    from autoconfig.training.space import Constraints, enumerate_space, recompute_options

    scenario = understand(Request(model="175b", gpus=1024, gpu="a100-80gb", seq_length=2048, global_batch_size=1536)).scenario
    layouts = enumerate_space(scenario).layouts
    options = recompute_options(scenario, Constraints(), scenario.model.num_layers)
    plans = len(layouts) * len(options)
    memory = best_of(REPEATS, lambda: estimate_memory(scenario, layouts, options))
    priced = best_of(REPEATS, lambda: estimate_step_time(scenario, layouts, options))
    print(f"{plans:,} plans ({len(layouts):,} layouts x {len(options)} recomputations), one core:")
    print(
        f"  time {plans / priced / 1e6:.1f} M plans/s, memory {plans / memory / 1e6:.1f} M plans/s, "
        f"both {plans / (priced + memory) / 1e6:.1f} M plans/s"
    )
    rows = [layouts.take(slice(i, i + 1)) for i in range(SINGLE_PLANS)]

    def singly() -> None:
        for row in rows:
            estimate_memory(scenario, row, options[:1])
            estimate_step_time(scenario, row, options[:1])

    single = SINGLE_PLANS / best_of(3, singly)
    print(
        f"  baseline, the same formulas one plan at a time: {single:,.0f} plans/s; "
        f"together is {plans / (priced + memory) / single:,.0f} x that"
    )


def placements() -> None:
    """All placements of a post-training step beside the search of the same policy model, whole processes in turn."""
    for model, gpus in PLACED:
        question = ["--model", model, "--gpus", str(gpus), "--json"]
        pairs = [(command(["search", *question]).wall, command(["rl", *question]).wall) for _ in range(REPEATS)]
        search, placed = (median(side) for side in zip(*pairs, strict=True))
        print(f"rl, {model} on {gpus} H100: {placed:.2f} s, {placed / search:.1f} times its search ({search:.2f} s)")


def serving_rate() -> None:
    from dataclasses import replace

    from autoconfig.serving.question import understand
    from autoconfig.serving.rank import rank
    from autoconfig.serving.request import ServeRequest

    request = ServeRequest(model="llama3-70b", gpus=8, gpu="h200-sxm-141gb", isl=1000, osl=500, disaggregated=False)
    question = replace(understand(request), constraints={"batch": frozenset(range(1, 2049))})
    seconds = best_of(REPEATS, lambda: rank(question))
    ranking = rank(question)
    rate = ranking.fit / seconds / 1e6
    print(f"serving, one core: {ranking.fit:,} deployments of {len(ranking.layouts)} layouts, {rate:.1f} M deployments/s")
    for model, gpus in SERVED:
        arguments = ["deployments", "--model", model, "--gpus", str(gpus), "--gpu", "h200-sxm-141gb", "--isl", "1000"]
        wall, _, megabytes = command([*arguments, "--osl", "500", "--ttft", "2s", "--tpot", "50ms", "--json"])
        print(f"  {model} on {gpus} H200, whole process: {wall:.2f} s, {megabytes:.0f} MB")
    day_of_requests(20_000 if SMOKE else 5_000_000)


def day_of_requests(count: int) -> None:
    """A made day's trace, sized by its busiest part."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "day")
        subprocess.run([sys.executable, "-m", "benchmarks.made_traces", path, str(count), "24"], check=True)
        question = [
            *("deployments", "--model", "llama3-70b", "--gpus", "256", "--gpu", "h100"),
            *("--ttft", "2s", "--tpot", "50ms"),
        ]
        wall, _, megabytes = command([*question, "--goal", "gpus", "--trace", str(path), "--json"])
    print(f"  a day of {count:,} requests sized for llama3-70b on H100, whole process: {wall:.1f} s, {megabytes:.0f} MB")


def main() -> None:
    whole_process()
    placements()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pricing_rate()
    prediction_rate()
    loading()
    serving_rate()
    evidence.main(smoke=SMOKE)
    print(f"peak memory of this benchmark: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
