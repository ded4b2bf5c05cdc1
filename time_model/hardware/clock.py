"""The clock that a power limit leaves to a GPU's matrix units."""

import numpy as np
from autoconfig.specs.models.parameters import Number

FIXED_SHARE = 0.2
"""Of the GPU's own limit, what does not follow the clock: leakage, memory, links (an idle H100 draws a tenth). Source of both
constants: cuBLAS on GB300 at 500 of 1,400 W reaches 617 TFLOPS, 28 to 39 % of the 1,600 to 2,174 at 1,400 W
(github.com/facebookexperimental/triton, pull request 2023); the formula gives 32 %."""
KNEE = 0.65
"""Clock, over that of short benchmarks, below which the voltage is as low as it gets."""
STEPS = 8
"""Of Newton's method, which starts above the root of a convex function (1e-9 after six)."""


def clock_ratio(duty: Number, limit_watts: float, own_watts: float, tensor_watts: float) -> Number:
    """Clock of matrix products over their clock in short benchmarks, where they are busy for a share `duty` of the time.

    Power is P0 + d W f V^2 (dynamic power of CMOS): W watts of matrix units that are always busy at f = 1, V = max(f, KNEE),
    P0 = FIXED_SHARE of the GPU's own limit. It is at most the limit: d f V^2 <= b = (limit - P0) / W. Slower products are busy
    for longer, d = duty / (duty + f (1 - duty)), so f solves duty f V^2 = b (duty + f (1 - duty)); never above 1. Assumes that
    power is averaged over a layer at least, and that all other work draws P0 alone. W: gpu_efficiency.json.
    """
    d = np.clip(np.asarray(duty, dtype=np.float64), 1e-6, 1.0)
    b = (limit_watts - FIXED_SHARE * own_watts) / tensor_watts
    f = np.ones_like(d)
    for _ in range(STEPS):
        f = f - (d * f**3 - b * (d + f * (1.0 - d))) / np.maximum(3.0 * d * f**2 - b * (1.0 - d), 1e-9)
    lowest = b * d / np.maximum(d * KNEE**2 - b * (1.0 - d), 1e-9)
    return np.where(d <= b, 1.0, np.where(f < KNEE, lowest, f))
