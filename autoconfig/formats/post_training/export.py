"""A planned placement as a framework's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoconfig.formats.post_training import nemo_rl, openrlhf, trl, verl
from autoconfig.formats.post_training.run import lengths_line, run_of
from autoconfig.formats.writers.trl import LAUNCH
from autoconfig.planning.export_files import MARK, WrittenExport, check_folder, write_export
from autoconfig.post_training.frameworks import load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.price import PricedPlacement
from autoconfig.specs.errors import UnsupportedError, option

WRITERS = {
    "verl": (verl.write, verl.VERSION, verl.WRITTEN),
    "nemo-rl": (nemo_rl.write, nemo_rl.VERSION, nemo_rl.WRITTEN),
    "openrlhf": (openrlhf.write, openrlhf.VERSION, openrlhf.WRITTEN),
    "trl": (trl.write, trl.VERSION, trl.WRITTEN),
}
"""Framework -> (writer, the release that it writes for, the algorithms that it has words for)."""
FILES = ("run_verl.sh", "grpo.yaml", "run_openrlhf.sh", "accelerate.yaml")


def check_export(framework: str, algorithm: str, folder: Path, *, force: bool = False) -> None:
    """Fail before the search, not after it. Raises UnsupportedError for a framework without files, or none of the algorithm;
    FileError for the folder."""
    if reason := not_written(framework, algorithm):
        raise UnsupportedError(f"{option('export')}: {reason}, or leave {option('export')} out")
    check_folder(folder, FILES, force=force)


def not_written(framework: str, algorithm: str) -> str:
    """Say why no file is written of this algorithm with this framework, and of what one is; empty where one is."""
    name, wanted = load_framework(framework).name, load_algorithm(algorithm).name
    able = [other for other, (_, _, written) in WRITERS.items() if wanted in written]
    if name not in WRITERS:
        return f"there are no files of {framework[:40]}; use {option('framework')} {' or '.join(able or WRITERS)}"
    _, version, written = WRITERS[name]
    if wanted in written:
        return ""
    others = f", or {option('framework')} {' or '.join(able)}" if able else ""
    return f"no file of {name} {version} is written for {wanted}; use {option('algorithm')} {' or '.join(written)}{others}"


def export_texts(job: PostTrainingJob, placement: Placement) -> dict[str, str]:
    """Return the text by file name, for the version of the framework that each names. Raises UnsupportedError for what it
    cannot say."""
    if job.framework.name not in WRITERS:
        raise UnsupportedError(f"no export for {job.framework.name}: use {', '.join(WRITERS)}")
    if job.agents.turns > 1 and job.framework.name != "verl":
        raise UnsupportedError(
            f"no file of {job.framework.name} is written for samples of {job.agents.turns:,} turns: use {option('framework')} "
            f"verl, or leave {option('export')} out"
        )
    write, version, _ = WRITERS[job.framework.name]
    head = f"{MARK}\n{lengths_line(job)}"
    texts = write(run_of(job, placement, version))
    return {name: text if name == LAUNCH else text.replace(MARK, head, 1) for name, text in texts.items()}


def export_first(
    job: PostTrainingJob, ranked: Sequence[PricedPlacement], folder: Path, *, force: bool = False
) -> tuple[PricedPlacement, WrittenExport, str]:
    """Write the first of these that the framework can run: (it, what was written, why those before it were not written). Raises
    UnsupportedError where none can be written, FileError for the folder."""
    check_folder(folder, FILES, force=force)
    reason = ""
    for one in ranked:
        try:
            texts = export_texts(job, one.placement)
        except UnsupportedError as error:
            reason = reason or str(error)
            continue
        return one, write_export(folder, texts, force=force), reason
    raise UnsupportedError(reason or "no placement fits: nothing to write")
