"""Writes an export into a folder: all files or none, never over a file that is not ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from autoconfig.megatron.plan_json import KIND, plan_text
from autoconfig.megatron.scripts import MARK, SBATCH_SCRIPT, TORCHRUN_SCRIPT, sbatch_script, torchrun_script
from autoconfig.planning.files import write_atomically
from autoconfig.specs.errors import FileError, UnsupportedError
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.training.price import PlanReport

FORMATS = ("megatron", "plan")
NOT_YET = ("deepspeed", "fsdp2")
PLAN_FILE = "plan.json"


def export_texts(scenario: Scenario, plan: TrainPlan, report: PlanReport | None, form: str) -> dict[str, str]:
    """File name -> text. Raises UnsupportedError for formats and models that cannot be written."""
    if form in NOT_YET:
        raise UnsupportedError(
            f"--format {form}: such configs are not written yet; use {' or '.join(FORMATS)} (plan.json holds every number)"
        )
    texts = {PLAN_FILE: plan_text(scenario, plan, report)}
    if form == "megatron":
        texts[TORCHRUN_SCRIPT] = torchrun_script(scenario, plan, report)
        texts[SBATCH_SCRIPT] = sbatch_script(scenario, plan, report)
    return texts


def write_export(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[Path]:
    """Write the texts into `folder` (made if missing). Raises FileError before anything is written."""
    check_folder(folder, texts, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"export folder {str(folder)[:200]} cannot be made: {error.strerror or error}") from error
    written = []
    for file, text in texts.items():
        path = folder / file
        write_atomically(path, lambda temporary, text=text: _fill(temporary, text))  # type: ignore[misc]
        if path.suffix != ".json":
            path.chmod(path.stat().st_mode | 0o111)
        written.append(path)
    return written


def check_folder(folder: Path, files: Iterable[str], *, force: bool) -> None:
    """Raises FileError where the folder cannot be used or holds a foreign file of one of these names."""
    name = str(folder)[:200]
    if "\0" in name:
        raise FileError(f"export folder {name!r} holds a NUL character; name a folder without it")
    try:
        if folder.exists() and not folder.is_dir():
            raise FileError(f"export folder {name}: there is a file of this name; name a folder")
        for file in files:
            path = folder / file
            if path.is_dir():
                raise FileError(f"{path} is a folder; name another export folder")
            if not force and path.exists() and not _ours(path):
                raise FileError(f"{path} was not written by autoconfig; name another folder, or say --force to replace it")
    except OSError as error:
        raise FileError(f"export folder {name} cannot be used: {error.strerror or error}") from error


def _fill(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _ours(path: Path) -> bool:
    """A file that an export wrote before."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    except OSError:
        return False
    if path.suffix == ".json":
        return json.dumps(KIND) in head
    return any(line.startswith(MARK) for line in head.splitlines()[:12])
