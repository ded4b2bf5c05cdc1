"""The application's part of `search --export` and `export`: one plan, checked, predicted and written."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from autoconfig.evaluate import PlanReport, report_plan, violations
from autoconfig.export.scripts import SBATCH_SCRIPT, TORCHRUN_SCRIPT
from autoconfig.export.write import PLAN_FILE, check_folder, export_texts, write_export
from autoconfig.question import Request, understand
from autoconfig.rules import Setting
from specs.errors import InputError
from specs.plan import TrainPlan, parse_plan
from specs.units import GIB


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and what to do with it."""

    files: tuple[Path, ...]
    command: str
    warnings: tuple[str, ...] = ()


def check_export_folder(folder: str, *, force: bool = False) -> None:
    """Fail before the search, not after it. Raises FileError."""
    check_folder(Path(folder), (PLAN_FILE, TORCHRUN_SCRIPT, SBATCH_SCRIPT), force=force)


def export_named(request: Request, plan_text: str, folder: str, form: str, *, force: bool = False) -> Export:
    """Export a plan that the caller names. Raises InputError: not readable, not legal, not a format that is written."""
    question = understand(request)
    setting = question.setting
    plan = parse_plan(plan_text, setting.cluster.num_gpus)
    broken = violations(setting, plan)
    if broken:
        raise InputError(f"{plan} is not legal: " + "; ".join(f"{v.rule} {v.text}" for v in broken))
    report = report_plan(setting, plan, None, request.memory_margin, question.calibration)
    return export_plan(setting, plan, report, folder, form, force=force)


def export_plan(
    setting: Setting, plan: TrainPlan, report: PlanReport, folder: str, form: str = "megatron", *, force: bool = False
) -> Export:
    """Write one plan. A plan that does not fit is written with a warning: the prediction may be wrong, the user asked."""
    texts = export_texts(setting, plan, report, form)
    files = write_export(Path(folder), texts, force=force)
    warnings = []
    if not report.fits:
        short = (report.peak_bytes - report.limit_bytes) / GIB
        warnings.append(f"{plan} is predicted not to fit: {short:.1f} GiB too much on stage {report.worst_stage.stage}")
    return Export(files=tuple(files), command=_command(setting, Path(folder), form), warnings=tuple(warnings))


def _command(setting: Setting, folder: Path, form: str) -> str:
    if form == "plan":
        return f"autoconfig check {shlex.quote(str(folder / PLAN_FILE))}"
    if setting.cluster.num_nodes == 1:
        return f"MEGATRON_PATH=/path/to/Megatron-LM bash {shlex.quote(str(folder / TORCHRUN_SCRIPT))}"
    return f"MEGATRON_PATH=/path/to/Megatron-LM sbatch {shlex.quote(str(folder / SBATCH_SCRIPT))}"
