"""`autoconfig scaling --plot FILE`: throughput over GPUs with perfect scaling beside it, as PNG or SVG."""

from __future__ import annotations

from pathlib import Path

from autoconfig.sizing.sizing import ScalingAnswer, tokens_per_second
from autoconfig.specs.files import write_atomically


def draw(answer: ScalingAnswer, target: Path) -> None:
    """Written beside and renamed. Raises FileError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for gpu in answer.kept:
        curve = [(p.num_gpus, tokens_per_second(p)) for p in answer.points if p.gpu == gpu and p.report is not None]
        if not curve:
            continue
        counts, rates = zip(*curve, strict=True)
        (line,) = axes.plot(counts, rates, marker="o", label=gpu)
        perfect = [rates[0] * count / counts[0] for count in counts]
        axes.plot(counts, perfect, linestyle=":", color=line.get_color(), label=f"{gpu}, perfect scaling")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("tokens per second")
    axes.set_title(
        f"{answer.question.scenario.model.name}, global batch {answer.question.scenario.workload.global_batch_size:,}"
    )
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()

    def write(file: Path) -> None:
        kind = target.suffix[1:].lower()
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else {})

    write_atomically(target, write)
