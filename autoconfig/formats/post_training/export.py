"""A planned placement as a framework's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoconfig.formats.post_training import nemo_rl, openrlhf, trl, verl
from autoconfig.formats.post_training.run import map_of_framework
from autoconfig.formats.post_training.words import lengths_lines, model_line, words_of
from autoconfig.maps.read import holds
from autoconfig.planning.export_files import WrittenExport, check_folder, filled_template, remark, write_export
from autoconfig.post_training.frameworks import load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.price import PricedPlacement
from autoconfig.specs.errors import UnsupportedError, option

VALUES = {"verl": verl.values, "nemo-rl": nemo_rl.values, "openrlhf": openrlhf.values, "trl": trl.values}
"""Framework -> what of its files is its own."""
FILES = tuple(dict.fromkeys(file for name in VALUES for file in map_of_framework(name).more["files"]))


def check_export(framework: str, algorithm: str, folder: Path, *, force: bool = False) -> None:
    """Fail before the search, not after it. Raises UnsupportedError for a framework without files, or none of the algorithm;
    FileError for the folder."""
    if reason := not_written(framework, algorithm):
        raise UnsupportedError(f"{option('export')}: {reason}, or leave {option('export')} out")
    check_folder(folder, FILES, force=force)


def not_written(framework: str, algorithm: str) -> str:
    """Say why no file is written of this algorithm with this framework, and of what one is; empty where one is."""
    name, wanted = load_framework(framework).name, load_algorithm(algorithm).name
    able = [other for other in VALUES if wanted in map_of_framework(other).more["written"]]
    if name not in VALUES:
        return f"there are no files of {framework[:40]}; use {option('framework')} {' or '.join(able or VALUES)}"
    version, written = (map_of_framework(name).more[key] for key in ("version", "written"))
    if wanted in written:
        return ""
    others = f", or {option('framework')} {' or '.join(able)}" if able else ""
    return f"no file of {name} {version} is written for {wanted}; use {option('algorithm')} {' or '.join(written)}{others}"


def export_texts(job: PostTrainingJob, placement: Placement) -> dict[str, str]:
    """Return the text by file name, for the version of the framework that each names. Raises UnsupportedError for what it
    cannot say."""
    name = job.framework.name
    if reason := not_written(name, job.algorithm.name):
        raise UnsupportedError(reason)
    if job.agents.turns > 1 and name != "verl":
        raise UnsupportedError(
            f"no file of {name} is written for samples of {job.agents.turns:,} turns: use {option('framework')} verl, or leave "
            f"{option('export')} out"
        )
    table, words = map_of_framework(name).more, words_of(job, placement)
    if refused := next((rule["says"] for rule in table["unwritten"] if holds(rule["when"], words)), None):
        raise UnsupportedError(refused)
    values = {
        "LENGTHS": lengths_lines(job),
        "NAME": remark(job.policy.name),
        "ALGORITHM": job.algorithm.name,
        "VERSION": table["version"],
        "GPUS": placement.gpus,
        "MODEL": model_line(job),
        **VALUES[name](job, placement, words),
    }
    return {file: filled_template(template, **values) for file, template in table["files"].items()}


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
