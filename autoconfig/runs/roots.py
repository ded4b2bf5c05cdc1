"""Where a function of one variable is zero."""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Return x between `low` and `high`, where `function` has opposite signs, at most `precision` from a zero of it.

    Brent 1973, Algorithms for Minimization without Derivatives, chapter 4: secants and inverse parabolas, halving where they
    do not converge.
    """
    before, x = low, high
    f_before, f_x = function(before), function(x)
    if f_before == 0.0:
        return before
    other, f_other, last, step = before, f_before, x - before, x - before
    while True:
        if f_before * f_x < 0.0:
            other, f_other, last, step = before, f_before, x - before, x - before
        if abs(f_other) < abs(f_x):
            before, x, other = x, other, x
            f_before, f_x, f_other = f_x, f_other, f_x
        least, half = precision / 2.0, (other - x) / 2.0
        if f_x == 0.0 or abs(half) < least:
            return x
        tried = half
        if abs(last) > least and abs(f_x) < abs(f_before):
            slope = (f_before - f_x) / (before - x)
            if before == other:
                tried = -f_x / slope
            else:
                beyond = (f_other - f_x) / (other - x)
                tried = -f_x * (f_other * beyond - f_before * slope) / (beyond * slope * (f_other - f_before))
            if 2.0 * abs(tried) >= min(abs(last), 3.0 * abs(half) - least):
                tried = half
        last, step = (half, half) if tried is half else (step, tried)
        before, f_before = x, f_x
        x += step if abs(step) > least else (least if half > 0.0 else -least)
        f_x = function(x)
