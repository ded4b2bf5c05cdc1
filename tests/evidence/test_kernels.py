"""Kernels by the names that profilers print (kernel_names.csv, labelled by hand, each with its source)."""

import csv
from pathlib import Path

import pytest

from autoconfig.evidence.kernels import COLLECTIVES, base_name, collective_of, group_of, host_call, marks, part_of
from autoconfig.evidence.kernels import _table as table

with (Path(__file__).parent / "kernel_names.csv").open(encoding="utf-8", newline="") as file:
    NAMES = list(csv.DictReader(file))


@pytest.mark.parametrize("row", NAMES, ids=[row["name"][:60] for row in NAMES])
def test_part_of_a_kernel(row):
    assert part_of(row["name"]) == row["part"]


def test_parts_are_those_of_explain():
    """Every part is one that `explain` prints, or one of the few that a trace shows beside them."""
    page = (Path(__file__).parents[2] / "docs" / "time_model.md").read_text(encoding="utf-8")
    parts = {row["part"] for row in table()["row"]}
    parts |= {part for row in table()["parts_of_groups"].values() for part in row.values()}
    beside = {"communication", "unfused_attention", "cast"}
    assert {part for part in parts - beside if f"`{part}`" not in page} == set()


def test_names_of_collectives_groups_and_calls():
    assert collective_of("ncclDevKernel_AllGather_RING_LL") == collective_of("_allgather_base") == "all_gather"
    assert collective_of("ncclDevKernel_Generic") == "other"
    assert group_of("EXPERT_MODEL_PARALLEL_GROUP") == "ep" and group_of("EXPERT_DATA_PARALLEL_GROUP") == "dp"
    assert group_of("TENSOR_MODEL_PARALLEL_GROUP") == "tp" and group_of("mesh_dp_shard_cp") == "fsdp"
    assert group_of("my group") == "my group" and group_of("") == ""
    assert [host_call(name) for name in ("cudaLaunchKernelExC", "hipExtModuleLaunchKernel", "cuLaunchKernelEx")] == [
        "launch"
    ] * 3
    assert host_call("cudaGraphLaunch") == "graph" and host_call("cudaMemcpyAsync") == "copy"
    assert host_call("cudaDeviceGetAttribute") == "" and host_call("hipMemcpyWithStream") == "synchronize"
    assert marks("dataloader.py(12): __init__") == "" and marks("train.py(3): get_batch") == "data"


def test_a_base_name_is_without_templates_and_arguments():
    assert base_name("void at::native::x<float, y(a, b)>(int, z<4>)") == "at::native::x"
    assert base_name("operator<<") and base_name("<<<") and base_name(") (") and base_name("x" * 100_000)


def test_collectives_are_few():
    assert {row["part"] for row in table()["row"]} >= COLLECTIVES
