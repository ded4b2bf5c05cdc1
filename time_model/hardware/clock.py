"""The clock that a power limit leaves to a GPU's matrix units."""

FIXED_SHARE = 0.25
"""Of the GPU's own limit, what does not follow the clock: leakage, memory, links. Source: cuBLAS on GB300 at 500 of 1,400 W
reaches 617 TFLOPS, 28 to 39 % of the 1,600 to 2,174 at 1,400 W (github.com/facebookexperimental/triton, pull request 2023);
with KNEE a share of .20 to .25 gives 40 to 29 %. An idle H100 draws a tenth."""
KNEE = 0.7
"""Clock, over that at the GPU's own limit, below which the voltage is as low as it gets (assumed: base over boost clock)."""


def clock_ratio(limit_watts: float | None, own_watts: float | None) -> float:
    """Clock of dense matrix products at `limit_watts` over the clock at the GPU's own limit; 1 where no limit is given.

    P = P0 + c f V^2 (dynamic power of CMOS): where V follows f, f^3 = (P - P0) / (own - P0); below KNEE V is constant and
    f falls in proportion to P - P0. Assumes products that reach the GPU's own limit, as large ones do on every GPU since
    Ampere. Check: torchtitan's runs on H100 at 500 W, in no fit (docs/accuracy.md).
    """
    if limit_watts is None or own_watts is None:
        return 1.0
    share = (limit_watts / own_watts - FIXED_SHARE) / (1.0 - FIXED_SHARE)
    return float(share ** (1.0 / 3.0)) if share >= KNEE**3 else share / KNEE**2
