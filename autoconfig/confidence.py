"""How sure a prediction is: a 90 % band around the step time by class, and the chance to fit.

The bands are quantiles of |measured / predicted| on runs that the constants had not seen (findings on public measurements:
half-width 13 to 14 % pooled, measured more often slower than predicted). They are data below, by class; calibration on a
user's own runs replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.rules import Setting

BANDS: dict[str, tuple[float, float]] = {
    "dense, constants from this GPU": (0.09, 0.14),
    "dense, inherited constants": (0.20, 0.30),
    "mixture of experts": (0.25, 0.35),
}
"""Class -> share below and above the prediction that hold 90 % of left-out runs (inherited constants: an assumption, wider)."""


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The band, the chance to fit, and what they rest on."""

    step_seconds_p5: float
    step_seconds_p95: float
    fit_probability: float
    calibrated_on: str
    level: str


def confidence_of(setting: Setting, step_seconds: float, fit_probability: float, constants: str) -> Confidence:
    """Band of one prediction. `constants` is the time model's level: `calibrated` or `default`."""
    if constants != "calibrated":
        level = "dense, inherited constants"
    elif setting.model.is_moe:
        level = "mixture of experts"
    else:
        level = "dense, constants from this GPU"
    below, above = BANDS[level]
    source = "published operator tables" if constants == "calibrated" else "constants of another GPU generation"
    return Confidence(
        step_seconds_p5=step_seconds * (1 - below),
        step_seconds_p95=step_seconds * (1 + above),
        fit_probability=fit_probability,
        calibrated_on=f"{source}; software {setting.stack.name}",
        level=level,
    )
