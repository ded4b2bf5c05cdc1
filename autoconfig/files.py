"""Writing answers to files: beside, then renamed, so that a reader never sees half a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.search import Ranking
from specs.errors import FileError
from specs.plan import SHORT_TO_LONG
from specs.units import GIB

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES = (".parquet", ".csv")


def check_table_path(path: Path) -> None:
    """`check_output_path` for ranked tables."""
    check_output_path(path, TABLE_SUFFIXES)


def check_output_path(path: Path, suffixes: tuple[str, ...]) -> None:
    """Fail before the work, not after it. Raises FileError when the suffix or the folder cannot be used."""
    name = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
    if "\0" in name:
        raise FileError(f"output {name!r} holds a NUL character; name a file without it")
    try:
        if path.is_dir():
            raise FileError(f"output {name!r} is a folder; name a file in it, ending in {' or '.join(suffixes)}")
        if path.suffix.lower() not in suffixes:
            raise FileError(f"output {name!r}: the name must end in {' or '.join(suffixes)}")
        if not path.parent.is_dir():
            raise FileError(f"output {name!r}: there is no folder {str(path.parent)[:200]}; make it first")
        if not os.access(path.parent, os.W_OK):
            raise FileError(f"output {name!r}: the folder {path.parent} cannot be written to; name another one")
    except OSError as error:  # a name too long
        raise FileError(f"output {name!r} cannot be used as a file name: {error.strerror or error}") from error


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a file beside `path` and rename it; nothing is left behind on an error or Ctrl-C. Raises FileError."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def ranking_table(ranking: Ranking) -> pd.DataFrame:
    """Every plan that fits, fastest first: Megatron's names, step seconds, memory. One row per plan."""
    import pandas as pd

    layouts, setting = ranking.space.layouts, ranking.setting
    texts = [str(option) for option in ranking.options]
    columns: dict[str, object] = {"rank": range(1, len(ranking.row) + 1)}
    for short, long in SHORT_TO_LONG.items():
        if short == "recompute":
            columns[long] = pd.Categorical.from_codes(ranking.option, categories=texts)
        else:
            columns[long] = getattr(layouts, short)[ranking.row]
    columns["global_batch_size"] = setting.workload.global_batch_size
    columns["step_seconds"] = ranking.step_seconds
    columns["tokens_per_second_per_gpu"] = setting.workload.tokens_per_step / ranking.step_seconds / setting.cluster.num_gpus
    columns["peak_gib"] = ranking.peak_bytes / GIB
    columns["limit_gib"] = ranking.limit_bytes / GIB
    return pd.DataFrame(columns)


def write_table(ranking: Ranking, path: Path) -> None:
    """The whole ranked table as .parquet or .csv. Raises FileError."""
    check_table_path(path)
    table = ranking_table(ranking)
    if path.suffix.lower() == ".csv":
        write_atomically(path, lambda file: table.to_csv(file, index=False))
    else:
        write_atomically(path, lambda file: table.to_parquet(file, index=False))
