"""Writing ranked plans to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoconfig.specs.files import check_output_path, write_atomically
from autoconfig.specs.plan import SHORT_TO_LONG
from autoconfig.specs.units import GIB
from autoconfig.training.rank import Ranking

if TYPE_CHECKING:
    import pandas as pd

TABLE_SUFFIXES = (".parquet", ".csv")


def check_table_path(path: Path) -> None:
    """`check_output_path` for ranked tables."""
    check_output_path(path, TABLE_SUFFIXES)


def ranking_table(ranking: Ranking) -> pd.DataFrame:
    """Every plan that fits, fastest first: Megatron's names, step seconds, memory. One row per plan."""
    import pandas as pd

    layouts, scenario = ranking.space.layouts, ranking.scenario
    texts = [str(option) for option in ranking.options]
    columns: dict[str, object] = {"rank": range(1, len(ranking.row) + 1)}
    for short, long in SHORT_TO_LONG.items():
        if short == "recompute":
            columns[long] = pd.Categorical.from_codes(ranking.option, categories=texts)
        else:
            columns[long] = getattr(layouts, short)[ranking.row]
    columns["global_batch_size"] = scenario.workload.global_batch_size
    columns["step_seconds"] = ranking.step_seconds
    columns["tokens_per_second_per_gpu"] = scenario.workload.tokens_per_step / ranking.step_seconds / scenario.cluster.num_gpus
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


__all__ = ["check_output_path", "check_table_path", "ranking_table", "write_atomically", "write_table"]
