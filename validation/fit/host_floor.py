"""The host's time for one layer of megatron-core with Transformer Engine, from the step times of Megatron-LM's own CI runs.

    python -m validation.fit.host_floor

The golden values of Megatron-LM's functional tests hold models of hidden size 512: the GPU is done in microseconds with what
the host launches, so a step is t0 + c x, with x = 2.6 (m + (p - 1) / v) L / p layer forwards (3.6 under full recomputation;
x 1.15 with tensor parallelism; time_model/operators/kernels.py). c is the median slope over all pairs of runs of a GPU (Theil
1950, Sen 1968). GB200 is left out: those of its runs that use 4 GPUs take ten times as long as those that use 8.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from autoconfig.time_model.operators.kernels import BACKWARD_OVER_FORWARD, WITH_TENSOR_PARALLELISM

from autoconfig.calibration.observe import Run
from validation.published import published_runs

SOURCE, HIDDEN_SIZE, ARCHITECTURES = "Megatron-LM-golden-values", 512, ("ampere", "hopper")
MIN_DIFFERENCE = 8.0
"""Layer forwards: pairs of runs nearer than that say nothing about a slope."""


def launch_bound_runs(architecture: str) -> list[Run]:
    """Dense runs of hidden size 512 with Transformer Engine on one generation of GPUs, without context parallelism."""
    cases = [(run, run.case.scenario) for run in published_runs() if run.case.source == SOURCE and run.case.plan.cp == 1]
    small = [(run, case) for run, case in cases if case.model.hidden_size == HIDDEN_SIZE and not case.model.is_moe]
    wanted = "transformer-engine", architecture
    return [run for run, case in small if (case.software.name, case.cluster.gpu.architecture) == wanted]


def layer_forwards(run: Run) -> float:
    """x: layer forwards that the host launches one after another in a step of the run."""
    plan, workload = run.case.plan, run.case.scenario.workload
    microbatches = workload.global_batch_size / (plan.dp * plan.mbs)
    passes = 1.0 + BACKWARD_OVER_FORWARD + (plan.recompute.granularity == "full")
    tensor = WITH_TENSOR_PARALLELISM if plan.tp > 1 else 1.0
    return passes * tensor * (microbatches + (plan.pp - 1) / plan.vpp) * run.case.scenario.model.num_layers / plan.pp


def slopes(runs: list[Run]) -> list[float]:
    """Seconds per layer forward between every two runs that differ enough."""
    points = [(layer_forwards(run), run.measured_s) for run in runs]
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if abs(b[0] - a[0]) > MIN_DIFFERENCE]


def host_seconds() -> float:
    """c: median over the pairs of both generations."""
    return float(np.median([slope for name in ARCHITECTURES for slope in slopes(launch_bound_runs(name))]))


def rest_seconds(runs: list[Run]) -> float:
    """t0: median of what is left of the steps beside the launches of layers at c over both generations."""
    return float(np.median([run.measured_s - host_seconds() * layer_forwards(run) for run in runs]))


def main() -> None:
    """Print c by generation of GPUs and over both, and t0."""
    for name in ARCHITECTURES:
        runs = launch_bound_runs(name)
        low, middle, high = (1e3 * value for value in np.percentile(slopes(runs), [25, 50, 75]))
        print(f"{name}: {len(runs)} runs, {middle:.2f} ms a layer forward (quartiles {low:.2f} to {high:.2f})")
        print(f"{name}: {1e3 * rest_seconds(runs):.0f} ms a step beside them")
    print(f"both: {1e3 * host_seconds():.2f} ms")


if __name__ == "__main__":
    main()
