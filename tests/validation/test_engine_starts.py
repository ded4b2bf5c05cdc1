"""Boot logs: the cache within what is asked, every verdict as it was, at most two uncertain."""

from pathlib import Path

import pytest

from validation.sheets.engine_starts import JudgedStart, judged_starts, page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def judged() -> list[JudgedStart]:
    return judged_starts()


def test_caches_are_within_the_tolerance(judged):
    """3 % for text models on vLLM 0.9 to 0.19, SGLang from 0.5.3 and TensorRT-LLM; 8 % for vLLM from 0.20, hybrids, vision."""
    assert {one.row["id"]: one.misses() for one in judged if one.misses()} == {}
    assert sum(bool(one.errors()) for one in judged) >= 25


def test_weights_are_those_of_the_logs(judged):
    errors = {one.row["id"]: one.errors()["weights_gib"] for one in judged if "weights_gib" in one.errors()}
    assert len(errors) >= 17 and max(map(abs, errors.values())) < 0.03


def test_verdicts(judged):
    wrong = [one.row["id"] for one in judged if one.verdict == "wrong"]
    uncertain = [one for one in judged if one.verdict == "uncertain"]
    assert wrong == [] and len(uncertain) <= 2
    assert all(abs(one.memory.margin_gib) < one.memory.band_gib for one in uncertain)


def test_rows_that_were_not_in_the_findings(judged):
    unseen = [one for one in judged if one.row["seen"] != "yes"]
    assert len(unseen) >= 10 and all(one.row["source"] for one in unseen)


def test_the_page_is_fresh_and_counts_every_row(judged):
    found = page()
    assert found in (DOCS / "accuracy" / "engine_starts.md").read_text(encoding="utf-8"), "run make accuracy"
    rows = [line.strip("| ").split(" | ") for line in found.splitlines() if line.startswith("| those that")]
    assert sum(int(cells[1]) for cells in rows) == len(judged)
    assert sum(int(cells[-1]) for cells in rows) == 0 and sum(int(cells[-2]) for cells in rows) <= 2
