"""Every column of NVIDIA's table of 2026, literal, left empty or spelled otherwise: the run of its release."""

from __future__ import annotations

import csv
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoconfig.runs.predict import TRAINING_RUNS, predict_rows
from autoconfig.runs.sources import DOUBTFUL, recipe_row_of_2026
from autoconfig.runs.training_row import published_rows, read_case

COLUMNS = ("id", "task", "model", "gpu", "gpus", "precision", "seq", "gbs", "mbs", "tp", "pp", "cp", "vpp", "ep", "fsdp",
           "release")  # fmt: skip
FORMS = {"fp8mx": ("fp8", "mxfp8"), "fp8cs": ("fp8", "tensorwise")}
WORDS = {"True": "1", "False": "0", "none": "0"}


@cache
def table() -> tuple[dict[str, str], ...]:
    return tuple(published_rows("nvidia_training_2026"))


@cache
def in_doubt() -> frozenset[str]:
    """Rows whose printed plan no recipe of their release has."""
    return frozenset(row["id"] for row in table() if recipe_row_of_2026(row)["source"].endswith(DOUBTFUL))


def plain(row: dict[str, str]) -> dict[str, str]:
    """The row without what is known of its recipe."""
    return {("software" if column == "release" else column): row[column] for column in COLUMNS}


def literal(row: dict[str, str]) -> dict[str, str]:
    """The row with the columns of the recipe of August 2026 beside it, word by word, whatever its own release had."""
    overlaps = {"recipe_tpovl": "tp-comm-overlap", "recipe_ovl_ep": "overlap-moe-expert-parallel-comm"}
    precision, recipe = FORMS.get(row["precision"], (row["precision"], ""))
    return plain(row) | {
        "precision": precision,
        "fp8_recipe": recipe,
        "software": f"nemo-{row['release']}",
        "cuda_graph": WORDS.get(row["recipe_cg"], "1") if row["recipe_cg"] else "",
        "cuda_graph_scope": "full_iteration" if row["recipe_cg"] == "full_iteration" else row["recipe_cgscope"],
        "moe_dispatcher": row["recipe_backend"] if row["recipe_disp"] == "flex" else row["recipe_disp"],
        "overlap": "+".join(word for column, word in overlaps.items() if row[column] == "True"),
        "offload": "activations" if row["recipe_offload"] else "",
        "offload_layers": row["recipe_offload"],
        "recompute": f"selective({row['recipe_rmodules'].replace(' ', ',')})" if row["recipe_rmodules"] else "",
        "pipeline_layout": row["recipe_layout"],
        "sp": WORDS[row["recipe_sp"]],
        "etp": row["recipe_etp"],
    }


def asked(row: dict[str, str]) -> tuple[Any, ...]:
    """What decides the prediction of a row: rows of one question are priced alike."""
    found = read_case(row)
    return found.scenario, found.plan, found.broken


def error(row: dict[str, str], step: float | None) -> float:
    """Predicted over measured step, less one."""
    tokens = int(row["gbs"]) * int(row["seq"]) / int(row["gpus"])
    assert step, row["id"]
    return step * float(row["tokens_per_s_per_gpu"]) / tokens - 1.0


def test_the_table_as_nvidia_prints_it_asks_what_its_recipes_say(tmp_path: Path) -> None:
    """With its own names of columns (`release`, fp8mx, fsdp 64), read from a file as `predict` and `calibrate` read it."""
    path = tmp_path / "nvidia.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table()[0]))
        writer.writeheader()
        writer.writerows(table())
    for read, row in zip(TRAINING_RUNS.read(path)[1], table(), strict=True):
        assert asked(read) == asked(recipe_row_of_2026(row)) == asked(plain(row)), row["id"]
        assert read["metric_tokens_per_s_per_gpu"] == row["tokens_per_s_per_gpu"]


@pytest.mark.parametrize("column", ["gpus", "seq", "gbs", "mbs", "tp", "pp", "cp", "vpp", "ep", "fsdp"])
def test_any_column_may_be_left_empty(column: str) -> None:
    """Of pretraining and fine-tuning, where a recipe of the release has the plan."""
    for row in table():
        if row["id"] not in in_doubt():
            assert asked({**plain(row), column: ""}) == asked(plain(row)), f"{row['id']} {row['task']} without {column}"


@pytest.mark.parametrize("columns", [("mbs", "vpp", "seq"), ("ep", "gbs", "fsdp"), ("gpus", "vpp", "gbs")])
def test_several_columns_may_be_left_empty(columns: tuple[str, ...]) -> None:
    for row in table():
        if row["id"] not in in_doubt():
            assert asked({**plain(row), **dict.fromkeys(columns, "")}) == asked(plain(row)), row["id"]


def test_settings_of_a_later_recipe_are_priced_as_the_release_ran_them() -> None:
    """Mixtures with every recipe column literally in its cell: what 26.06 brought is not priced for a run of 26.02."""
    rows = [row for row in table() if row["ep"] and row["id"] not in in_doubt() and "nemotron" not in row["model"]]
    found = predict_rows([literal(row) for row in rows])
    errors = [error(row, one.step_seconds) for row, one in zip(rows, found, strict=True)]
    assert len(errors) == 52 and statistics.mean(map(abs, errors)) < 0.06
    assert sum(abs(value) > 0.16 for value in errors) <= 2, "NV-0209, and NV-0130, which says alltoall and ran DeepEP"
    said = read_case(literal(next(row for row in rows if row["id"] == "NV-0008"))).assumed
    why = "no recipe of nemo-26.02 on such GPUs in mxfp8 has graphs of full_iteration or EP overlap"
    assert any(why in text for text in said)


@pytest.mark.parametrize("column", ["cuda_graph", "cuda_graph_scope", "overlap", "offload", "pipeline_layout", "sp", "etp"])
def test_any_recipe_column_may_be_left_empty(column: str) -> None:
    """A literal recipe with one cell less asks the same; of graphs nine rows in ten, as the cell is then its release's."""
    rows = [row for row in table() if row["id"] not in in_doubt()]
    alike = [asked({**literal(row), column: ""}) == asked(literal(row)) for row in rows]
    assert sum(alike) >= (0.87 if column in ("cuda_graph_scope", "cuda_graph", "overlap") else 1.0) * len(rows), sum(alike)


@pytest.mark.parametrize(("cells", "same"), [
    ({"software": "NeMo 26.04"}, {}), ({"software": "26.04"}, {}), ({"software": "Megatron-Bridge 26.04"}, {}),
    ({"precision": "fp8_mx"}, {}), ({"precision": "MXFP8"}, {}), ({"precision": "fp8", "fp8_recipe": "fp8_mx"}, {}),
    ({"moe_dispatcher": "hybrid-ep"}, {"moe_dispatcher": "hybridep"}), ({"moe_dispatcher": "flex"}, {}),
    ({"moe_dispatcher": "All-to-All"}, {"moe_dispatcher": "alltoall"}),
    ({"cuda_graph": "none"}, {"cuda_graph": "0"}), ({"cuda_graph": "transformer_engine"}, {"cuda_graph": "1"}),
    ({"cuda_graph": "full_iteration", "software": "nemo-26.06"},
     {"cuda_graph": "1", "cuda_graph_scope": "full_iteration", "software": "nemo-26.06"}),
    ({"recompute": "False"}, {"recompute": "none"}), ({"recompute": "selective"}, {}), ({"fsdp": "0"}, {"fsdp": "1"}),
    ({"fsdp": "256"}, {"fsdp": "3"}), ({"fsdp": "True"}, {"fsdp": "3"}),
    ({"fsdp": "64.0"}, {"fsdp": "3"}), ({"vpp": "4.0", "cuda_graph": "1.0"}, {"cuda_graph": "1"}),
    ({"vpp": "None", "cp": "nan", "gbs": "n/a", "fsdp": "-"}, {}), ({"task": "Pre-training"}, {}),
    ({"pipeline_layout": "[['embedding', 'decoder', 'decoder'], "}, {}),
])  # fmt: skip
def test_spellings(cells: dict[str, str], same: dict[str, str]) -> None:
    row = plain(next(row for row in table() if row["id"] == "NV-0083"))
    assert asked({**row, **cells}) == asked({**row, **same})


def test_switches_that_the_release_had_stay_as_the_row_says() -> None:
    row = plain(next(row for row in table() if row["id"] == "NV-0083"))
    found = read_case({**row, "cuda_graph": "1", "cuda_graph_scope": "moe_router", "moe_dispatcher": "alltoall"})
    settings = found.scenario.settings()
    assert (settings.dispatcher, settings.cuda_graphs) == ("alltoall", {"moe_router"})
    assert read_case({**row, "software": "transformer-engine", "cuda_graph": "1", "cuda_graph_scope": "full_iteration"})


def test_fine_tuning_has_the_recipe_of_its_task() -> None:
    """Megatron-Bridge v0.5.0, llama3_workload_base_configs.py: LLAMA3_70B_SFT_CONFIG_GB300, LLAMA3_70B_LORA_CONFIG_H100."""
    cells = {"model": "llama3-70b", "software": "nemo-26.06", "precision": "fp8mx", "gpu": "GB300", "gpus": "32", "tp": "1"}
    tuned = read_case({**cells, "task": "sft"})
    assert (tuned.plan.pp, tuned.plan.vpp, tuned.plan.mbs, tuned.scenario.workload.seq_length) == (2, 20, 1, 4096)
    assert tuned.scenario.workload.global_batch_size == 32 and tuned.scenario.given.cuda_graphs == {"mlp"}
    adapters = read_case({**cells, "task": "lora", "gpu": "H100", "gpus": "8", "precision": "fp8cs", "tp": ""})
    assert (adapters.plan.tp, adapters.plan.pp, adapters.plan.vpp) == (2, 4, 20) and not adapters.scenario.given.cuda_graphs
