"""`python -m validation.sheets.blackwell`: first plans of mixtures on Blackwell beside what NVIDIA publishes from 26.06 on.

A question has model, GPUs, batch, length and precision of the published row, `moe_imbalance` 1 as NVIDIA's recipes force it,
and neither software nor switches. The constants are fitted without the rows of the questions of BARS, which they are held to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Calibration

from autoconfig.calibration.observe import observe
from autoconfig.planning.calibration_file import shipped
from autoconfig.runs.table import cell
from autoconfig.training.answer import answer as search
from autoconfig.training.question import request_of
from validation.fit.steps import fit
from validation.published import published_rows, published_runs, useful_for_calibration

SINCE = "nemo-26.06"
BLACKWELL = ("B200", "B300", "GB200", "GB300")
FIELDS = {"model": "model", "gpu": "gpu", "gpus": "gpus", "global_batch_size": "gbs", "seq_length": "seq"}
BARS = {("qwen3-30b-a3b", "GB200", "8", "512"): (39_936, 40_960), ("deepseek-v3", "GB200", "256", "4096"): (4_735, 4_969)}
"""(model, GPU, GPUs, batch) in MXFP8 -> least and most published tokens a second and GPU."""
WITHIN = 0.12


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One question; tokens a second and GPU."""

    question: dict[str, Any]
    published: tuple[float, float]
    """Least and most of the releases."""
    held: bool
    """One of BARS."""
    ours: float | None
    plan: str

    @property
    def deviation(self) -> float | None:
        """Ours over the middle of what is published, less one."""
        return None if self.ours is None else self.ours / (sum(self.published) / 2) - 1


def question_of(row: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the question of a published row, as pairs that can be a key."""
    precision = cell(row, "fp8_recipe") or cell(row, "precision")
    return (*((name, cell(row, column)) for name, column in FIELDS.items()), ("precision", precision))


def without_bars() -> Calibration:
    """Fit the constants on all published runs but those of the questions of BARS."""
    runs = [run for run in published_runs().runs if useful_for_calibration(run)]
    keys = [tuple(cell(run.row, column) for column in ("model", "gpu", "gpus", "gbs")) for run in runs]
    others = [observe(run) for run, key in zip(runs, keys, strict=True) if key not in BARS]
    return replace(fit(others, ""), version=f"without {len(BARS)} questions")


def figures(calibration: Calibration) -> Iterator[Figure]:
    """Yield the first plan of every question beside what is published."""
    published: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for row in published_rows("nvidia_training_2026"):
        late = cell(row, "software") >= SINCE and cell(row, "task") in ("", "pretrain") and cell(row, "gpu") in BLACKWELL
        if late and load_model(cell(row, "model")).is_moe:
            published.setdefault(question_of(row), []).append(float(cell(row, "metric_tokens_per_s_per_gpu")))
    for key, rates in published.items():
        asked: dict[str, Any] = {**dict(key), "moe_imbalance": 1.0}
        asked |= {name: int(asked[name]) for name in ("gpus", "global_batch_size", "seq_length")}
        answer = search(replace(request_of(asked), own_calibration=calibration, top=1))
        first = answer.plans[0].report if answer.plans else None
        held = BARS.get((asked["model"], asked["gpu"], str(asked["gpus"]), str(asked["global_batch_size"])))
        held = held if asked["precision"] == "mxfp8" else None
        yield Figure(
            question=asked,
            published=held or (min(rates), max(rates)),
            held=held is not None,
            ours=None if first is None else first.tokens_per_second_per_gpu,
            plan="none fits" if first is None else str(first.plan),
        )


HEAD = "| model | GPUs | precision | batch | published | first plan | off | plan |\n|---|---|---|---|---|---|---|---|"


def line_of(one: Figure) -> str:
    """Return a figure as a row of the table."""
    q, off, (low, high) = one.question, one.deviation, one.published
    mark = "" if not one.held or off is None else " (held)" if abs(off) <= WITHIN else " (missed)"
    ours = "-" if one.ours is None else f"{one.ours:,.0f}"
    words = (q["model"], f"{q['gpus']} {q['gpu']}", q["precision"], f"{q['global_batch_size']:,}", f"{low:,.0f} to {high:,.0f}")
    return f"| {' | '.join(words)} | {ours} | {'-' if off is None else f'{off:+.1%}'}{mark} | {one.plan} |"


def main() -> None:
    """Print both tables."""
    for name, calibration in (("without the two questions", without_bars()), ("shipped", shipped())):
        print(f"\nConstants: {name}\n\n{HEAD}")
        for one in figures(calibration):
            print(line_of(one), flush=True)


if __name__ == "__main__":
    main()
