"""The file format of measured operators: what is refused and how; writing; this machine's own tables."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.errors import FileError, InputError, UnknownNameError
from autoconfig.specs.hardware import local_gpu as local
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.hardware.local_gpu import cpu_name, memory_bytes
from autoconfig.specs.hardware.operator_table import (
    COMMAND,
    KIND,
    check_operator_table,
    check_operators,
    gpu_of_table,
    local_folder,
    local_tables,
    read_operator_table,
    write_operator_table,
)

SHIPPED = Path(__file__).parents[2] / "time_model" / "data" / "operators"
SPEC = {
    "id": "local-x",
    "name": "X",
    "vendor": "nvidia",
    "architecture": "hopper",
    "compute_capability": 9.0,
    "memory_bytes": 64 * 2**30,
    "hbm_bytes_per_s": 2e12,
    "flops_per_s": {"bf16": 1e15},
    "num_sms": 100,
    "link": "nvlink",
    "link_bytes_per_s": 4e11,
    "link_domain_size": 8,
    "gpus_per_node": 8,
    "nic_bytes_per_s": 5e10,
    "sources": {},
}


def table(**changes: Any) -> dict[str, Any]:
    """A small table of a device that the catalogue lacks."""
    grid = {
        "axes": {"m": [1, 2], "n": [1, 2], "k": [1, 2]},
        "efficiency": [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]],
        "peak_flops_per_s": 1e15,
        "use": True,
    }
    collectives = {
        "axes": {"ranks": [2, 4]},
        "link_bytes_per_s": 4e11,
        "kinds": {"all_reduce": {"alpha_s": [1e-5, 2e-5], "link_share": [0.5, 0.6], "sqrt_s": [0.0, 0.0], "use": True}},
    }
    whole = {
        "schema_version": 1,
        "kind": KIND,
        "gpu": "local-x",
        "gpu_spec": SPEC,
        "device": {"type": "cuda", "reported_name": "X", "memory_bytes": 64 * 2**30},
        "gemm": {"bf16": grid},
        "attention": {},
        "grouped_gemm": {},
        "collectives": collectives,
        "constants": {"hbm": {"launch_s": 2e-6}},
    }
    return copy.deepcopy({**whole, **changes})


def edited(path: str, value: Any) -> dict[str, Any]:
    """A table with one value changed, by a path like gemm.bf16.use."""
    data = table()
    *front, last = path.split(".")
    target: Any = data
    for key in front:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[int(last) if isinstance(target, list) else last] = value
    return data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for this machine's tables."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    local_folder().mkdir(parents=True)
    return local_folder()


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def test_a_table_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_operator_table(path, table())
    assert read_operator_table(path) == table()
    gpu = gpu_of_table(read_operator_table(path), path)
    assert (gpu.id, gpu.num_sms, gpu.operator_tables) == ("local-x", 100, str(path))
    write_operator_table(path, edited("constants.hbm.launch_s", 9e-6))
    assert read_operator_table(path)["constants"]["hbm"]["launch_s"] == 9e-6


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_have_the_same_operators(path: Path) -> None:
    data = json.loads(path.read_text())
    if path.stem != "decisions":
        check_operators(data)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("kind", "x", "is not an operator table"),
        ("schema_version", 2, "schema version 2; this autoconfig reads 1"),
        ("gpu", "X Y", "must be an id of small letters"),
        ("gpu", "local-y", "whose id is `gpu`"),
        ("device", {}, "device must say its type"),
        ("device.type", "tpu", "device must say its type"),
        ("gpu_spec.sms", 5, "gpu_spec must be an object with the fields of GpuSpec"),
        ("gpu_spec.operator_tables", "/etc/passwd", "gpu_spec must be an object"),
        ("gemm.int4", {}, "precisions are bf16"),
        ("gemm.bf16.axes", {"m": [1, 2], "k": [1, 2], "n": [1, 2]}, "axes must be m, n, k"),
        ("gemm.bf16.axes.m", [2, 1], "sizes must rise"),
        ("gemm.bf16.axes.m", [], "at least 1"),
        ("gemm.bf16.axes.m", [1, 2, 3], "one entry per point"),
        ("gemm.bf16.efficiency.1.1.1", 0, "must be above 0"),
        ("gemm.bf16.efficiency.1.1.1", float("nan"), "must be above 0"),
        ("gemm.bf16.efficiency.1.1.1", True, "must be above 0"),
        ("gemm.bf16.efficiency.1.1.1", "0.5", "must be above 0"),
        ("gemm.bf16.efficiency.1.1.1", 80.0, "at most 8"),
        ("gemm.bf16.use", 1, "use must be true or false"),
        ("gemm", [], "malformed operator table"),
        ("attention", None, "malformed operator table"),
        ("collectives.axes.ranks", [1, 2], "must start at 2"),
        ("collectives.kinds.gossip", {}, "kinds are all_reduce"),
        ("collectives.kinds.all_reduce.alpha_s", [1e-5], "2 numbers, one per number of ranks"),
        ("collectives.kinds.all_reduce.link_share", [0.5, 0], "must be above 0"),
        ("constants.nccl", {}, "groups are gemm"),
        ("constants.hbm.speed", 1, "keys are pointwise"),
        ("constants.hbm.launch_s", -1, "must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file_and_the_place(path: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        check_operator_table(edited(path, value), "mine.json")
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize("data", [None, 5, [], {}, "x", {"kind": KIND}, {"kind": KIND, "schema_version": 1}])
def test_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(InputError):
        check_operator_table(data, "mine.json")


def test_a_table_without_spec_must_be_of_a_catalogue_gpu() -> None:
    data = table(gpu="h100-sxm-80gb")
    del data["gpu_spec"]
    check_operator_table(data, "mine.json")
    assert gpu_of_table(data, "/x/mine.json").memory_bytes == load_gpu("h100").memory_bytes
    data["gpu"] = "h1000"
    with pytest.raises(InputError, match="needs gpu_spec"):
        check_operator_table(data, "mine.json")


@pytest.mark.parametrize("key", ["num_sms", "flops_per_s", "link"])
def test_a_spec_without_a_number_is_refused(key: str) -> None:
    data = table()
    del data["gpu_spec"][key]
    with pytest.raises(InputError, match=key):
        gpu_of_table(data, "mine.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.json", "does not exist"), (tmp_path, "is not a file")):
        with pytest.raises(FileError, match=said) as caught:
            read_operator_table(path)
        assert COMMAND in str(caught.value)
    for content in (b"", b"{", b"\xff\xfe", b"[" * 10_000):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(InputError, match="not an operator table"):
            read_operator_table(tmp_path / "bad.json")


def test_this_machines_gpu_is_its_own_table_when_it_has_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: ("X", 64.0 * 2**30))
    with pytest.raises(InputError, match=f"measure this one: {COMMAND}"):
        local.local_gpu()
    write(home / "junk.json", {"kind": "junk"})
    write(home / "other.json", edited("device.reported_name", "Y"))
    write(home / "small.json", edited("device.memory_bytes", 32 * 2**30))
    with pytest.raises(InputError, match="measure this one"):
        local.local_gpu()
    mine = write(home / "local-x.json", table())
    gpu, source = local.local_gpu()
    assert gpu.operator_tables == str(mine) and "measured on this machine" in source
    assert [path.name for path, _ in local_tables()] == ["local-x.json", "other.json", "small.json"]


def test_a_known_gpu_without_a_table_keeps_its_published_numbers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: ("NVIDIA H100 80GB HBM3", 85017755648.0))
    gpu, source = local.local_gpu()
    assert gpu == load_gpu("h100") and f"{COMMAND} measures this one" in source


def test_without_a_gpu_the_measured_cpu_stands_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "reported_gpu", lambda tried: tried.append("nvidia-smi is not installed"))
    with pytest.raises(InputError, match=r"nvidia-smi is not installed.*measure this machine's CPU once: autoconfig calibrate"):
        local.local_gpu()
    write(home / "gpu.json", table())
    cpu = edited("device", {"type": "cpu", "reported_name": cpu_name(), "memory_bytes": memory_bytes()})
    write(home / "cpu.json", cpu)
    assert local.local_gpu()[0].operator_tables == str(home / "cpu.json")


def test_a_measured_device_is_found_by_its_id(home: Path) -> None:
    with pytest.raises(UnknownNameError):
        local.find_gpu("local-x")
    write(home / "a.json", table())
    assert local.find_gpu("local-x").num_sms == 100 and local.find_gpu("h100").operator_tables == ""


def test_the_cpu_has_a_name_and_memory() -> None:
    assert cpu_name().endswith("cores") and memory_bytes() > 2**28
