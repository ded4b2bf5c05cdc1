"""Cells of tables of 2026: formats, dispatchers, graphs, layouts, names with a depth or a size; NVIDIA's table in that form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.predict import estimate_step_time

from autoconfig.runs.sources import DOUBTFUL, recipe_row_of_2026
from autoconfig.runs.training_row import Case, published_rows, read_case

ROW = {
    "id": "x", "source": "s", "model": "deepseek-v3", "seq": "4096", "gpu": "GB200", "gpus": "256", "precision": "mxfp8",
    "tp": "1", "pp": "4", "vpp": "4", "ep": "64", "mbs": "1", "gbs": "2048", "fsdp": "1", "software": "nemo-26.06.01",
}  # fmt: skip


def case(**cells: str) -> Case:
    return read_case({**ROW, **cells})


@pytest.mark.parametrize(("cells", "precision", "recipe"), [
    ({}, "fp8", "mxfp8"), ({"precision": "nvfp4"}, "nvfp4", "delayed"),
    ({"precision": "fp8", "fp8_recipe": "tensorwise"}, "fp8", "tensorwise"),
    ({"precision": "fp8"}, "fp8", "mxfp8"), ({"precision": "fp8", "gpu": "H100"}, "fp8", "tensorwise"),
    ({"precision": "fp8", "software": "transformer-engine"}, "fp8", "delayed"), ({"precision": "fp8cs"}, "fp8", "tensorwise"),
    ({"precision": "FP8-MX"}, "fp8", "mxfp8"), ({"precision": "blockwise"}, "fp8", "blockwise"),
])  # fmt: skip
def test_formats(cells: dict[str, str], precision: str, recipe: str) -> None:
    numerics = case(**cells).scenario.numerics
    assert (numerics.precision, numerics.fp8_recipe) == (precision, recipe)


def test_a_format_that_nothing_is_known_of_is_refused_by_name() -> None:
    row = next(row for row in published_rows("nvidia_training_2026") if row["precision"] == "bf16")
    with pytest.raises(InputError, match="precision='fp6' is not one of bf16"):
        read_case({**row, "precision": "fp6"})
    scenario = case().scenario
    gpu = scenario.cluster.gpu
    for unmeasured in ("fp8", "fp4"):  # the first is scaled by mxfp8, the second has no rate at all
        numerics = scenario.numerics if unmeasured == "fp8" else replace(scenario.numerics, precision="nvfp4")
        job = TrainingJob(replace(scenario, numerics=numerics))
        job.__dict__["gpu"] = replace(job.gpu, quantised={"fp8": replace(job.gpu.quantised["fp8"], recipe={"delayed": 1.0})})
        with pytest.raises(InputError, match=f"what {gpu.id} reaches in"):
            _ = job.reached


@pytest.mark.parametrize(("cells", "expected"), [
    ({}, {"dispatcher": "hybridep", "cuda_graphs": {"full_iteration"}, "ep_overlap": True, "fused_experts": True}),
    ({"cuda_graph": "0"}, {"cuda_graphs": set(), "ep_overlap": True}),
    ({"cuda_graph": "1"}, {"cuda_graphs": {"full_iteration"}}),
    ({"cuda_graph": "1", "cuda_graph_scope": "attn,moe_router"}, {"cuda_graphs": {"attn", "moe_router"}}),
    ({"moe_dispatcher": "alltoall"}, {"dispatcher": "alltoall"}),
    ({"offload": "activations", "offload_layers": "20"}, {"offload_layers": 20}),
    ({"offload": "activations"}, {"offload_layers": 60}),
    ({"offload": "optimizer"}, {"offload_layers": 0}),
    ({"overlap": "tp-comm-overlap"}, {"ep_overlap": False}),
    ({"overlap": "tp-comm-overlap+overlap-moe-expert-parallel-comm", "software": "nemo-26.02"}, {"ep_overlap": True}),
])  # fmt: skip
def test_switches(cells: dict[str, str], expected: dict[str, Any]) -> None:
    settings = case(**cells).scenario.settings()
    assert {name: getattr(settings, name) for name in expected} == expected


DENSE = {**ROW, "model": "llama3-70b", "ep": "", "pp": "8", "vpp": "10", "tp": "1", "gpus": "32", "seq": "4096", "gbs": "32"}


@pytest.mark.parametrize(("cells", "packed", "peft", "modules", "rank"), [
    ({}, None, "none", 4, 8), ({"task": "pretrain"}, None, "none", 4, 8), ({"task": "sft"}, 200, "none", 4, 8),
    ({"task": "lora"}, 200, "lora", 1, 8), ({"task": "peft", "lora_rank": "16"}, 200, "lora", 1, 16),
    ({"peft": "lora", "packed_length": "512", "lora_target_modules": "linear_qkv,linear_fc1"}, 512, "lora", 2, 8),
    ({"task": "sft", "packed_length": "4096"}, None, "none", 4, 8),
    ({"task": "lora", "software": "transformer-engine"}, None, "lora", 4, 8),
])  # fmt: skip
def test_fine_tuning(cells: dict[str, str], packed: int | None, peft: str, modules: int, rank: int) -> None:
    found = read_case({**DENSE, **cells})
    numerics = found.scenario.numerics
    assert (found.scenario.workload.packed_length, numerics.peft, numerics.lora_rank) == (packed, peft, rank)
    assert len(numerics.lora_target_modules) == modules
    assert bool(cells.keys() & {"task", "peft"}) >= any("packed_length" in said for said in found.assumed)


def test_packed_samples_and_frozen_weights_take_less_time() -> None:
    def step(**cells: str) -> float:
        found = read_case({**DENSE, **cells})
        return float(estimate_step_time(found.scenario, found.scenario.layouts([found.plan]), [NONE]).step_seconds[0, 0])

    whole, packed, adapters = step(), step(task="sft"), step(task="lora")
    every = step(task="lora", lora_target_modules="linear_qkv linear_proj linear_fc1 linear_fc2")
    assert 0.75 * whole < packed < 0.97 * whole and adapters < 0.8 * packed and adapters < every
    with pytest.raises(InputError, match="lora_target_modules='linear_q'"):
        step(task="lora", lora_target_modules="linear_q")
    with pytest.raises(InputError, match="packed_length"):
        step(task="sft", packed_length="0.5")


def test_a_cell_of_model_parallel_overlap_leaves_data_parallelism_alone() -> None:
    time = case(overlap="overlap-moe-expert-parallel-comm").scenario.software.time
    assert time.overlap_grad_reduce and time.overlap_param_gather
    time = case(overlap="overlap-grad-reduce").scenario.software.time
    assert time.overlap_grad_reduce and not time.overlap_param_gather


def test_layouts_give_stages_and_are_refused_where_they_break_a_rule() -> None:
    plan = case(pipeline_layout="Et*4|(t*4|)*14tmL").plan
    assert (plan.vpp, plan.first, plan.last) == (4, 16, 13)
    two = case(pipeline_layout="Et*4|(t*4|)*14tmL", pp="2", vpp="").plan
    assert (two.vpp, two.first, two.last) == (8, 32, 29)
    for layout, says in (("Et*4|(t*4|)*6tmL", "vpp"), ("Et*3|(t*4|)*14tmL", "NV031"), ("xyz", "cannot be read")):
        with pytest.raises(InputError, match=says):
            case(pipeline_layout=layout)


def test_a_depth_or_a_size_behind_a_name_is_that_model() -> None:
    cut = case(model="deepseek-v3-16layers").scenario.model
    assert (cut.num_layers, cut.moe_ffn_hidden_size, sum(cut.moe_pattern)) == (16, 2048, 13)
    sized = case(model="qwen3-30b-a3b-15b", pp="1", vpp="", ep="8", gpus="8").scenario.model
    assert total_parameters(sized) == pytest.approx(15e9, rel=0.03) and sized.num_moe_experts == 128
    assert case(model="deepseek-v3-16layers", layers="8").scenario.model.num_layers == 8


def test_recomputation_and_offload_cells() -> None:
    found = case(recompute="selective(layernorm,moe_act)", offload="activations")
    assert str(found.plan.recompute) == "selective:layernorm+moe_act" and not any("offload" in text for text in found.assumed)


def test_the_table_of_2026_reads_with_its_recipes() -> None:
    """Every row of a model of the catalogue; the settings are its release's, and a plan that no recipe has is in doubt."""
    read = {}
    for row in published_rows("nvidia_training_2026"):
        try:
            read[row["id"]] = read_case(recipe_row_of_2026(row))
        except InputError as error:
            assert row["model"].startswith("nemotron-3"), error
    assert len(read) >= 92
    newest = read["NV-0172"].scenario
    assert (
        newest.software.release == "nemo-26.06" and newest.settings().full_iteration and newest.numerics.fp8_recipe == "mxfp8"
    )
    assert not read["NV-0137"].scenario.settings().full_iteration
    assert read["NV-0059"].source.endswith(DOUBTFUL) and not read["NV-0140"].source.endswith(DOUBTFUL)
