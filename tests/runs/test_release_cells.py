"""Every column of NVIDIA's table of 2026, literal, left empty or spelled otherwise: the run of its release."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoconfig.runs.predict import TRAINING_RUNS, predict_rows
from autoconfig.runs.training_row import read_case
from validation.published import published_rows
from validation.sources import DOUBTFUL, recipe_row_of_2026

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


def priced(row: dict[str, str]) -> tuple[Any, ...]:
    """`asked`, of mixtures without the stack's own word on graphs, which the settings of a run replace."""
    scenario, plan, broken = asked(row)
    if scenario.model.is_moe:
        stack = scenario.software
        scenario = replace(scenario, software=replace(stack, time=replace(stack.time, cuda_graphs=False)))
    return scenario, plan, broken


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
    ({"software": "v26.04"}, {}), ({"software": "nemo:26.04"}, {}), ({"software": "NeMo 26.4"}, {}), ({"software": "26.4"}, {}),
    ({"task": "continued pretraining"}, {}),
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


HOPPER = {
    "software": "nemo-26.04", "model": "qwen3-30b-a3b", "gpu": "H100", "gpus": "16", "precision": "bf16", "seq": "4096",
    "gbs": "512", "mbs": "1", "tp": "1", "pp": "1", "cp": "1", "vpp": "1", "ep": "16",
}  # fmt: skip


def settings_of(cells: dict[str, str]) -> tuple[str, set[str], bool]:
    found = read_case({**HOPPER, **cells}).scenario.settings()
    return found.dispatcher, set(found.cuda_graphs), found.ep_overlap


@pytest.mark.parametrize(("cells", "said"), [
    ({"cuda_graph_scope": "atnn"}, "cuda_graphs 'atnn': known are"),
    ({"cuda_graph_scope": "atnn full_iteration"}, "cuda_graphs 'atnn': known are"),
    ({"cuda_graph_scope": "full_iteration", "moe_dispatcher": "telepathy"}, "dispatcher 'telepathy' is not one of"),
    *(({"task": task}, f"cell task='{task}' is none of pretrain, sft, lora, peft") for task in ("qlora", "dpo", "banana")),
])  # fmt: skip
def test_what_is_not_understood_is_not_predicted(cells: dict[str, str], said: str) -> None:
    found = predict_rows([{**HOPPER, **cells}])[0]
    assert found.step_seconds is None and found.note.startswith("not predicted") and said in found.note


@pytest.mark.parametrize("word", ["nan", "None", "-", "n/a"])
def test_cells_that_a_program_left_out_are_empty(word: str) -> None:
    columns = ("moe_dispatcher", "fp8_recipe", "precision", "task", "seq", "mbs", "software_note", "sp", "etp")
    columns += ("cuda_graph", "cuda_graph_scope", "overlap", "recompute") if word != "None" else ()
    for column in columns:
        base = {**HOPPER, column: ""}
        assert asked({**base, column: word}) == asked(base), column


def test_empty_cells_of_a_plan_that_no_recipe_has_are_those_of_the_nearest() -> None:
    odd = {**HOPPER, "tp": "2", "gpus": "32"}
    found = read_case({**odd, "mbs": "", "ep": "", "gbs": ""})
    assert (found.plan.mbs, found.plan.ep, found.plan.tp) == (1, 16, 2) and not found.broken
    assert found.scenario.workload.global_batch_size == 2048, "its recipe's 1,024 on 16 GPUs, per GPU"
    assert any("gbs 2048 (no recipe of nemo-26.04 has this plan; the nearest has gpus 16, ep 16)" in t for t in found.assumed)
    few = read_case({**odd, "gpus": "8", "ep": "", "gbs": ""})
    assert few.plan.ep == 8 and not few.broken, "no more than the row's GPUs"


def test_sequence_parallelism_finds_a_recipe_with_tensor_parallelism() -> None:
    """A row with sp and without tp, pp or cp breaks no rule of its own (NV046)."""
    for row in table():
        cells = {**plain(row), "sp": "1" if row["tp"] not in ("", "1") else "0"}
        for column in ("tp", "pp", "cp"):
            assert "NV046" not in read_case({**cells, column: ""}).broken, f"{row['id']} without {column}"
    assert "NV046" not in read_case({**HOPPER, "tp": "", "sp": "1"}).broken


def test_fine_tuning_has_the_recipe_of_its_task() -> None:
    """Megatron-Bridge v0.5.0, llama3_workload_base_configs.py: LLAMA3_70B_SFT_CONFIG_GB300, LLAMA3_70B_LORA_CONFIG_H100."""
    cells = {"model": "llama3-70b", "software": "nemo-26.06", "precision": "fp8mx", "gpu": "GB300", "gpus": "32", "tp": "1"}
    tuned = read_case({**cells, "task": "sft"})
    assert (tuned.plan.pp, tuned.plan.vpp, tuned.plan.mbs, tuned.scenario.workload.seq_length) == (2, 20, 1, 4096)
    assert tuned.scenario.workload.global_batch_size == 32 and tuned.scenario.given.cuda_graphs == {"mlp"}
    adapters = read_case({**cells, "task": "lora", "gpu": "H100", "gpus": "8", "precision": "fp8cs", "tp": ""})
    assert (adapters.plan.tp, adapters.plan.pp, adapters.plan.vpp) == (2, 4, 20) and not adapters.scenario.given.cuda_graphs
