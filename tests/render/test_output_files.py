"""Files of `search --output`: the whole ranking, written whole or not at all."""

import os

import pandas as pd
import pytest
from autoconfig.specs.errors import FileError
from autoconfig.specs.files import write_atomically
from autoconfig.specs.plan import SHORT_TO_LONG, Recompute

from autoconfig.render.training import ranking_table, write_table
from autoconfig.training.answer import search

SMALL = ("--model", "gpt3-1.7b", "--num-layers", "4", "--gpus", "8", "--gpu", "a100-80gb", "--seq-length", "1024",
         "--global-batch-size", "16")  # fmt: skip
"""The question of `request_of("dense")` in words."""
NOTHING_FITS = ("--model", "175b", "--gpus", "8", "--gpu", "a100-80gb")


def table_of(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_output_holds_the_whole_ranking(autoconfig, request_of, tmp_path, suffix):
    path = tmp_path / f"plans{suffix}"
    result = autoconfig.run("search", *SMALL, "--output", str(path), "--top", "2")
    assert result.exit_code == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    table = table_of(path.rename(path.with_suffix(suffix.lower())))
    ranking = search(request_of("dense", architecture={"num_layers": 4}, global_batch_size=16, model="gpt3-1.7b")).ranking
    assert len(table) == len(ranking.row) == autoconfig.json("search", *SMALL)["funnel"]["priced"]
    assert table["rank"].tolist() == list(range(1, len(table) + 1))
    assert table["step_seconds"].tolist() == pytest.approx(ranking.step_seconds.tolist())
    assert table["peak_gib"].tolist() == pytest.approx((ranking.peak_bytes / 2**30).tolist())
    assert (table["peak_gib"] <= table["limit_gib"]).all()
    assert set(SHORT_TO_LONG.values()) <= set(table.columns)
    for row in (0, 1, len(table) // 2, len(table) - 1):
        plan = ranking.plan(row)
        for short, long in SHORT_TO_LONG.items():
            value = table[long][row]
            if short == "recompute":
                assert Recompute.parse(value) == plan.recompute
            elif short in ("first", "last"):
                assert getattr(plan, short) in (None, value)
            else:
                assert getattr(plan, short) == value, short
    assert table["tokens_per_second_per_gpu"][0] == pytest.approx(16 * 1024 / ranking.step_seconds[0] / 8)


def test_output_of_nothing_is_an_empty_table(autoconfig, tmp_path):
    for suffix in (".csv", ".parquet"):
        path = tmp_path / f"none{suffix}"
        assert autoconfig.run("search", *NOTHING_FITS, "--output", str(path)).exit_code == 3
        assert len(table_of(path)) == 0 and "step_seconds" in table_of(path).columns


def test_output_replaces_an_older_file_and_has_usual_permissions(autoconfig, tmp_path):
    path = tmp_path / "plans.csv"
    path.write_text("old")
    autoconfig.run("search", *SMALL, "--output", str(path))
    assert path.read_text().startswith("rank,") and [p.name for p in tmp_path.iterdir()] == ["plans.csv"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_output_to_the_current_folder(autoconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert autoconfig.run("search", *SMALL, "--output", "plans.parquet").exit_code == 0
    assert (tmp_path / "plans.parquet").is_file()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing/plans.csv", ["there is no folder", "missing"]),
        ("plans.xlsx", ["plans.xlsx", ".parquet or .csv"]),
        ("plans", ["plans", ".parquet or .csv"]),
        ("", ["is a folder"]),
        (".csv", [".parquet or .csv"]),
        ("folder.csv", ["folder.csv", "is a folder"]),
        ("file.txt/plans.csv", ["there is no folder"]),
        ("x" * 300 + ".csv", ["too long"]),
        ("a\0b.csv", ["NUL"]),
    ],
)
def test_output_that_cannot_be_written_is_refused_before_the_work(autoconfig, tmp_path, monkeypatch, name, says):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.txt").write_text("x")
    before = sorted(p.name for p in tmp_path.iterdir())
    monkeypatch.setattr("autoconfig.training.answer.search", lambda *_: pytest.fail("searched first"))
    result = autoconfig.run("search", *SMALL, "--output", f"{tmp_path}/{name}")
    assert result.exit_code == 2 and result.stdout == ""
    assert any(say in result.stderr for say in says) and result.stderr.count("\n") == 1, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_output_into_a_folder_that_cannot_be_written(autoconfig, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = autoconfig.run("search", *SMALL, "--output", str(tmp_path / "plans.csv"))
    assert result.exit_code == 2 and "cannot be written to" in result.stderr and list(tmp_path.iterdir()) == []


def test_output_onto_a_full_disk(autoconfig, tmp_path, monkeypatch):
    def full(self, path, **_):
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    result = autoconfig.run("search", *SMALL, "--output", str(tmp_path / "plans.csv"))
    assert result.exit_code == 2 and "No space left on device" in result.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_write_that_breaks_off_leaves_nothing_and_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "plans.csv"
    path.write_text("old")

    def half(file):
        file.write_text("half")
        raise error

    with pytest.raises(error):
        write_atomically(path, half)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["plans.csv"]


def test_the_library_checks_the_name_too(request_of, tmp_path):
    ranking = search(request_of("dense", gpus=1)).ranking
    with pytest.raises(FileError, match="must end in"):
        write_table(ranking, tmp_path / "plans.txt")


def test_a_folder_that_goes_away_is_a_file_error(tmp_path):
    with pytest.raises(FileError, match="cannot be written"):
        write_atomically(tmp_path / "gone" / "plans.csv", lambda file: file.write_text("x"))


def test_an_interrupt_during_the_write_ends_with_130(autoconfig, tmp_path, monkeypatch):
    def interrupted(self, path, **_):
        path.write_bytes(b"PAR1")
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_parquet", interrupted)
    result = autoconfig.run("search", *SMALL, "--output", str(tmp_path / "plans.parquet"))
    assert result.exit_code == 130 and result.stderr == "interrupted\n" and list(tmp_path.iterdir()) == []


def test_the_table_has_one_row_per_plan(request_of):
    ranking = search(request_of("moe", gpu="h100")).ranking
    table = ranking_table(ranking)
    names = [long for short, long in SHORT_TO_LONG.items()]
    assert not table.duplicated(names).any() and len(table) == len(ranking.row)
