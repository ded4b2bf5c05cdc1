"""`autoconfig export`: the files that start a plan: Megatron-LM's scripts; for adapters and packed sequences those of
Megatron-Bridge and TRL."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoconfig.formats.fine_tuning import (
    FINE_TUNING_FILES,
    fine_tuning_command,
    fine_tuning_texts,
    trainer_texts,
    trl_differs,
    with_length,
)
from autoconfig.formats.writers.bridge import fine_tunes
from autoconfig.formats.writers.trainers import AXOLOTL, FACTORY
from autoconfig.megatron.batch.jobset import JOBSET_FILE, KubernetesPlace, jobset_text, kubernetes_place
from autoconfig.megatron.batch.scripts import SBATCH_SCRIPT, TORCHRUN_SCRIPT, sbatch_script, story, torchrun_script
from autoconfig.megatron.export import plan_text
from autoconfig.planning.export_files import check_folder, write_export
from autoconfig.specs.errors import GIB, InputError, chance_text, option
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.nearest import nearest_legal
from autoconfig.training.price import Money, PlanReport, report_plan, violations
from autoconfig.training.question import Request, plan_of, understand

FORMATS = ("megatron", "trl", FACTORY, AXOLOTL, "plan")
JOBSET = "jobset"
"""Beside them, where a container image is named."""
PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and what to do with it; no files where the plan does not fit and nobody insisted."""

    files: tuple[Path, ...]
    command: str
    note: str = ""
    """Where a file does not say the plan itself."""
    too_large: str = ""
    """By how much the plan does not fit; empty where it fits."""
    replaced: str = ""
    """Which files of an earlier export were replaced or removed."""


def check_export_folder(folder: str, *, force: bool = False) -> None:
    """Fail before the search, not after it. Raises FileError."""
    check_folder(Path(folder), (PLAN_FILE, TORCHRUN_SCRIPT, SBATCH_SCRIPT, JOBSET_FILE, *FINE_TUNING_FILES), force=force)


def place_of(form: str, image: str | None, queue: str | None) -> KubernetesPlace | None:
    """Where a JobSet runs; None for other formats. Raises InputError."""
    if form == JOBSET:
        return kubernetes_place(image, queue)
    if image is not None or queue is not None:
        one = "queue" if image is None else "image"
        raise InputError(f"{option(one)} is for {option('format')} {JOBSET}: say that too, or leave it out")
    return None


def export_named(
    request: Request,
    plan_text: str,
    folder: str,
    form: str,
    *,
    force: bool = False,
    too_large: bool = False,
    slurm: Sequence[str] = (),
    place: KubernetesPlace | None = None,
) -> Export:
    """Export a plan that the caller names; one that does not fit is written only where `too_large` says so. Raises InputError:
    not readable, not legal (with the nearest legal plan), not a format that is written."""
    question = understand(request)
    scenario = question.scenario
    plan = plan_of(question, plan_text)
    broken = violations(scenario, plan)
    if broken:
        near = nearest_legal(scenario, plan)
        advice = f"the nearest legal plan is {near}" if near else "no plan is legal for this model, GPUs and batch"
        raise InputError(f"{plan} is not legal: {'; '.join(f'{v.rule} {v.text}' for v in broken)}; {advice}")
    report = report_plan(scenario, plan, Money(tokens=request.tokens), request.memory_margin)
    if not (report.fits or too_large):
        export_texts(scenario, plan, report, form, place=place)  # what cannot be written at all is said first
        return Export(files=(), command="", too_large=_too_large(plan, report))
    return export_plan(scenario, plan, report, folder, form, force=force, slurm=slurm, place=place)


def export_texts(
    scenario: Scenario,
    plan: TrainPlan,
    report: PlanReport | None,
    form: str,
    slurm: Sequence[str] = (),
    place: KubernetesPlace | None = None,
) -> dict[str, str]:
    """File name -> text; `slurm`: further #SBATCH options; `place`: of a JobSet. Raises UnsupportedError for models that cannot
    be written, InputError."""
    texts = {PLAN_FILE: plan_text(scenario, plan, report)}
    if form in ("trl", FACTORY, AXOLOTL):
        texts |= trainer_texts(scenario, plan, form)
    elif form in ("megatron", "bridge") and fine_tunes(scenario):
        texts |= fine_tuning_texts(scenario, plan)
    elif form == "megatron":
        texts[TORCHRUN_SCRIPT] = torchrun_script(scenario, plan, report)
        texts[SBATCH_SCRIPT] = sbatch_script(scenario, plan, report, slurm)
    elif form == JOBSET:
        if place is None:
            raise InputError(f"a JobSet names its container image: give {option('image')}")
        if fine_tunes(scenario):
            raise InputError(f"{option('format')} {JOBSET} is a launch of Megatron-LM, which has no adapters: leave it out")
        script = torchrun_script(scenario, plan, report)
        texts[JOBSET_FILE] = jobset_text(scenario, plan, report, script, story(scenario, plan, report), place)
    if slurm and SBATCH_SCRIPT not in texts:
        raise InputError(f"{slurm[0]} is for a batch script, and this export has none: leave it out")
    return with_length(texts, None if report is None else report.steps_to_train)


def _too_large(plan: TrainPlan, report: PlanReport) -> str:
    short = (report.peak_bytes - report.limit_bytes) / GIB
    return (
        f"{plan} is predicted not to fit: {short:.1f} GiB too much on stage {report.worst_stage.stage}, chance to fit "
        f"{chance_text(report.confidence.fit_probability)}"
    )


def export_plan(
    scenario: Scenario,
    plan: TrainPlan,
    report: PlanReport,
    folder: str,
    form: str = "megatron",
    *,
    force: bool = False,
    slurm: Sequence[str] = (),
    place: KubernetesPlace | None = None,
) -> Export:
    """Write one plan; one that does not fit is written, too, and said. `slurm`, `place` as in `export_texts`."""
    texts = export_texts(scenario, plan, report, form, slurm, place)
    written = write_export(Path(folder), texts, force=force)
    too_large = "" if report.fits else _too_large(plan, report)
    note = trl_differs(scenario, plan, texts) if form == "megatron" and fine_tunes(scenario) else ""
    return Export(
        files=written.files,
        command=_command(scenario, Path(folder), texts),
        note=note,
        too_large=too_large,
        replaced=written.replaced,
    )


def _command(scenario: Scenario, folder: Path, texts: Collection[str]) -> str:
    """What starts the plan."""
    if set(texts) == {PLAN_FILE}:
        return f"autoconfig check {shlex.quote(str(folder / PLAN_FILE))}"
    if JOBSET_FILE in texts:
        return f"kubectl create -f {shlex.quote(str(folder / JOBSET_FILE))}"
    if fine_tunes(scenario) or set(texts) & set(FINE_TUNING_FILES):
        return fine_tuning_command(scenario, folder, texts)
    if scenario.cluster.num_nodes == 1:
        return f"MEGATRON_PATH=/path/to/Megatron-LM bash {shlex.quote(str(folder / TORCHRUN_SCRIPT))}"
    return f"MEGATRON_PATH=/path/to/Megatron-LM sbatch {shlex.quote(str(folder / SBATCH_SCRIPT))}"
