"""`python -m validation.fit.release_docs`: writes the table of docs/time_model.md on what each release brings."""

from __future__ import annotations

from pathlib import Path

from autoconfig.specs.run_settings import RunSettings
from autoconfig.time_model.predict import estimate_step_time

from autoconfig.runs.training_row import Case, read_case
from validation.published import published_rows

PAGE = Path(__file__).parents[2] / "docs" / "time_model.md"
BEGIN, END = "<!-- releases, written by python -m validation.fit.release_docs -->\n", "<!-- end of releases -->\n"
RELEASES = ("nemo-25.11", "nemo-26.02", "nemo-26.04", "nemo-26.06")
MODELS = {
    "deepseek-v3": "GB200",
    "qwen3-235b-a22b": "B300",
    "qwen3-30b-a3b": "GB300",
    "gpt-oss-120b": "GB300",
    "llama3.1-405b": "GB300",
}
"""Model -> GPU of its newest published MXFP8 run, whose plan every release is given."""
SWITCHES = (
    "moe_dispatcher", "cuda_graph", "cuda_graph_scope", "ep_overlap", "fused_experts", "fp8_attention", "fp8_output"
)  # fmt: skip
"""Columns that each release decides."""


def rewritten(page: str) -> str:
    """The page with the table as it is now."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """Step seconds of one plan a model under each release, and what the last one runs otherwise than the first."""
    lines = [f"| model, plan | {' | '.join(RELEASES)} | what changes |", "|---" * (len(RELEASES) + 2) + "|"]
    newest: dict[str, dict[str, str]] = {}
    for row in published_rows("nvidia_training_2026"):
        if (row["task"], row["fp8_recipe"], row["gpu"]) == ("pretrain", "mxfp8", MODELS.get(row["model"])):
            newest[row["model"]] = max(newest.get(row["model"], row), row, key=lambda one: one["software"])
    for model, gpu in MODELS.items():
        row = {column: text for column, text in newest[model].items() if column not in SWITCHES}
        cases = [read_case({**row, "software": release}) for release in RELEASES]
        seconds = " | ".join(f"{_step_seconds(case):.3g}" for case in cases)
        before, after = (case.scenario.settings() for case in (cases[0], cases[-1]))
        lines.append(f"| {model}, {cases[0].plan.world_size} x {gpu}: {cases[0].plan} | {seconds} | {changes(before, after)} |")
    return "\n".join(lines) + "\n"


def changes(before: RunSettings, after: RunSettings) -> str:
    """What a later release switches on or off."""
    said = [f"{before.dispatcher} -> {after.dispatcher}"] if after.dispatcher != before.dispatcher else []
    if after.cuda_graphs != before.cuda_graphs:
        said.append("CUDA graphs " + (" + ".join(sorted(after.cuda_graphs)) or "off"))
    for name, words in (("ep_overlap", "EP overlap"), ("fused_experts", "fused experts"), ("fp8_attention", "fp8 attention")):
        if getattr(before, name) != getattr(after, name):
            said.append(f"{words} {'on' if getattr(after, name) else 'off'}")
    return ", ".join(said) or "nothing"


def _step_seconds(case: Case) -> float:
    scenario = case.scenario
    return float(estimate_step_time(scenario, scenario.layouts([case.plan]), [case.plan.recompute]).step_seconds[0, 0])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
