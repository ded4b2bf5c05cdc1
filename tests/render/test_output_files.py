"""Outputs as files: tables, JSON and their schemas."""

import copy
import json

import pandas as pd
import pytest
from autoconfig.specs.files import write_atomically
from autoconfig.specs.json_record import json_text
from autoconfig.specs.plan import SHORT_TO_LONG, Recompute
from jsonschema import Draft202012Validator

from autoconfig.planning.schemas import schema
from autoconfig.render.training import ranking_table
from autoconfig.render.training_json import explain_json, search_json
from autoconfig.training.answer import answer as search
from autoconfig.training.answer import explain
from tools import schemas

SMALL = ("--model", "gpt3-1.7b", "--num-layers", "4", "--gpus", "8", "--gpu", "a100-80gb", "--seq-length", "1024",
         "--global-batch-size", "16")  # fmt: skip
"""The question of `request_of("dense")` in words."""
NOTHING_FITS = ("--model", "175b", "--gpus", "8", "--gpu", "a100-80gb")


def table_of(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_output_holds_the_whole_ranking(autoconfig, request_of, tmp_path, suffix):
    path = tmp_path / f"plans{suffix}"
    assert autoconfig.run("search", *SMALL, "--output", str(path), "--top", "2").exit_code == 0
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


@pytest.mark.parametrize(("name", "says"), [
    ("missing/plans.csv", ["there is no folder", "missing"]), ("plans.xlsx", ["plans.xlsx", ".parquet or .csv"]),
    ("plans", ["plans", ".parquet or .csv"]), ("", ["is a folder"]), (".csv", [".parquet or .csv"]),
    ("folder.csv", ["folder.csv", "is a folder"]), ("file.txt/plans.csv", ["there is no folder"]),
    ("x" * 300 + ".csv", ["too long"]), ("a\0b.csv", ["NUL"]),
])  # fmt: skip
def test_output_that_cannot_be_written_is_refused_before_the_work(autoconfig, tmp_path, monkeypatch, name, says):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.txt").write_text("x")
    before = sorted(p.name for p in tmp_path.iterdir())
    monkeypatch.setattr("autoconfig.training.answer.answer", lambda *_: pytest.fail("searched first"))
    result = autoconfig.run("search", *SMALL, "--output", f"{tmp_path}/{name}")
    assert result.exit_code == 2 and result.stdout == ""
    assert any(say in result.stderr for say in says) and result.stderr.count("\n") == 1, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before


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


def test_the_table_has_one_row_per_plan(request_of):
    ranking = search(request_of("moe", gpu="h100")).ranking
    table = ranking_table(ranking)
    names = [long for short, long in SHORT_TO_LONG.items()]
    assert len(set(zip(*(table[name].tolist() for name in names), strict=True))) == len(table["rank"]) == len(ranking.row)


MAX_LINES = 600


@pytest.fixture(scope="module")
def answers(request_of):
    request = request_of("moe", gpus=8, tokens=1e9, price=2.0, gpus_at_most=None, include=("tp=1,ep=8,mbs=1", "tp=3"))
    small = request_of("dense", gpus=None, gpus_at_most=4, memory_margin=0.99)
    found = [("search", search_json(search(request))), ("search", search_json(search(small)))]
    found += [
        ("explain", explain_json(explain(request, text))) for text in ("tp=1,ep=8,mbs=1,recompute=full:uniform:2", "tp=3")
    ]
    return [(name, json.loads(json_text(body))) for name, body in found]


def each_schema(node):
    """Every schema inside a schema, itself first."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from each_schema(value)
    elif isinstance(node, list):
        for value in node:
            yield from each_schema(value)


@pytest.mark.long
def test_files_are_what_the_tool_writes_in_few_lines():
    texts = schemas.schemas()
    stale = [path.name for path, text in texts.items() if path.read_text() != text]
    assert not stale, "run python -m tools.schemas"
    assert {path for folder in {path.parent for path in texts} for path in folder.iterdir()} == set(texts)
    assert sum(text.count("\n") for text in texts.values()) <= MAX_LINES


@pytest.mark.parametrize("path", sorted({*schemas.PUBLISHED.glob("*.json"), *schemas.FILES}), ids=lambda path: path.name)
def test_schemas_are_valid_named_as_their_files_and_closed(path):
    whole = json.loads(path.read_text())
    Draft202012Validator.check_schema(whole)
    assert whole["$id"].endswith(f"/{path.name}")
    for node in each_schema(whole):
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            assert node["additionalProperties"] is False, node.get("description")


def test_answers_are_valid(answers):
    for name, body in answers:
        Draft202012Validator(schema(name)).validate(body)
    assert [body.get("nearest_miss") is None for _, body in answers[:2]] == [True, False]
    assert answers[1][1]["gpus_tried"] and answers[0][1]["pareto"]


def wrong_ways(body):
    """(what, a copy of the answer with one thing wrong)."""

    def changed(path, value):
        copied = copy.deepcopy(body)
        *head, key = path
        node = copied
        for part in head:
            node = node[part]
        if value is KeyError:
            del node[key]
        else:
            node[key] = value
        return copied

    yield "an unknown key", changed(["surprise"], 1)
    yield "an unknown key of a plan", changed(["plans", 0, "plan", "tp"], 1)
    yield "an unknown key of a ranked plan", changed(["plans", 0, "surprise"], 1)
    yield "an unknown key of an included plan", changed(["included", 0, "surprise"], 1)
    yield "a key that is missing", changed(["plans", 0, "why"], KeyError)
    yield "a number that is missing", changed(["plans", 0, "step_seconds"], KeyError)
    yield "a number as text", changed(["plans", 0, "step_seconds"], "5 s")
    yield "no time at all", changed(["plans", 0, "step_seconds"], 0)
    yield "half a rank", changed(["plans", 0, "rank"], 1.5)
    yield "degree zero", changed(["plans", 0, "plan", "tensor_model_parallel_size"], 0)
    yield "unknown recomputation", changed(["plans", 0, "plan", "recompute_granularity"], "some")
    yield "unknown module", changed(["plans", 0, "plan", "recompute_modules"], ["attention"])
    yield "unknown origin", changed(["plans", 0, "origin"], "guess")
    yield "chance above one", changed(["plans", 0, "confidence", "fit_probability"], 1.1)
    yield "a legal plan that broke a rule", changed(["included", 0, "rejected_by"], [{"rule": "NV001", "text": "x"}])
    yield "an illegal plan without a rule", changed(["included", 1, "rejected_by"], [])
    yield "an illegal plan with numbers", changed(["included", 1, "step_seconds"], 1.0)
    yield "an illegal plan that fits", changed(["included", 1, "fits"], True)
    yield "another version", changed(["schema_version"], 1)
    yield "negative count", changed(["funnel", "fit"], -1)


def test_wrong_answers_are_noticed(answers):
    validator = Draft202012Validator(schema("search"))
    for what, body in wrong_ways(answers[0][1]):
        assert not validator.is_valid(body), what
