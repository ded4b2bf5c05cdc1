"""The tables of measured operators: complete, sane, interpolated as written, used where they are nearer, made again alike."""

import json
import os
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, gpu_ids, load_gpu
from autoconfig.time_model.collectives import Group, collective_seconds, collective_terms, links_of, ring_factor
from autoconfig.time_model.hardware.efficiency import (
    GridTable,
    OperatorTables,
    efficiency_of,
    formula_efficiency_of,
    operator_tables_of,
)
from autoconfig.time_model.operators.kernels import gemm_seconds, table_flash_efficiency
from tables import tabled

FOLDER = Path(__file__).parents[2] / "time_model" / "data" / "operators"
WHEELS = Path(os.environ.get("AUTOCONFIG_WHEELS", Path(__file__).parents[2] / "build" / "wheels"))
MEASURED = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "decisions")
MAX_MEDIAN_ERROR = {"gemm": 5.5, "attention": 8.0, "collectives": 9.0}
"""Per cent of held-out rows; what the tables reach today with a little room."""


@cache
def written(gpu: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{gpu}.json").read_text(encoding="utf-8"))
    return data


def tables() -> list[tuple[str, str, str]]:
    """(GPU, operator, precision or kind) of every table."""
    found = [(g, o, p) for g in MEASURED for o in ("gemm", "attention") for p in written(g)[o]]
    return found + [(g, "collectives", kind) for g in MEASURED for kind in written(g)["collectives"]["kinds"]]


def table_of(gpu: str, operator: str, part: str) -> dict[str, Any]:
    group = written(gpu)[operator]
    table: dict[str, Any] = group["kinds"][part] if operator == "collectives" else group[part]
    return table


def price(gpu_id: str, m: Any, n: Any, k: Any, precision: str = "bf16", with_table: bool = True) -> Any:
    gpu, e = load_gpu(gpu_id), efficiency_of(load_gpu(gpu_id))
    table = e.tables.gemm[precision] if with_table else None
    return gemm_seconds(
        m, n, k, flops_per_s=gpu.flops_per_s[precision], hbm_bytes_per_s=gpu.hbm_bytes_per_s, num_sms=gpu.num_sms,
        constants=e.gemm, table=table,
    )  # fmt: skip


def test_the_measured_gpus() -> None:
    assert set(MEASURED) == {
        "a100-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb", "gb200-192gb", "b300-288gb", "gb300-288gb", "l40s-48gb",
        "rtx-pro-6000-96gb",
    }  # fmt: skip
    assert set(MEASURED) <= set(gpu_ids())
    for gpu in MEASURED:
        assert (FOLDER / f"{gpu}.json").stat().st_size < 32_000


@pytest.mark.parametrize(("gpu", "operator", "part"), tables())
def test_provenance_and_held_out_error(gpu: str, operator: str, part: str) -> None:
    data, table = written(gpu), table_of(gpu, operator, part)
    package = data["package"]
    assert (package["name"], package["version"], package["licence"]) == ("aiconfigurator-core", "0.12.0", "Apache-2.0")
    files = data[operator]["files"] if operator == "collectives" else table["files"]
    assert files and all(name.endswith(".parquet") for name in files)
    assert table["rows"] >= 50 and table["held_out"]["rows"] >= 10
    error = table["held_out"]
    assert error["table"]["median"] <= MAX_MEDIAN_ERROR[operator]
    assert error["table"]["p90"] >= error["table"]["median"]
    assert table["use"] == (not table.get("why_not"))
    if table["use"]:
        assert error["table"]["median"] < error["formula"]["median"]


@pytest.mark.parametrize(("gpu", "operator", "part"), [t for t in tables() if t[1] != "collectives"])
def test_values_are_shares(gpu: str, operator: str, part: str) -> None:
    table = table_of(gpu, operator, part)
    values = np.array(table["efficiency"])
    assert values.shape == tuple(len(axis) for axis in table["axes"].values())
    most = 8.0 if table.get("over") == "formula" else 1.05  # long thin matrices are split along k, which the formula lacks
    assert values.min() > 0 and values.max() <= most
    for axis in table["axes"].values():
        assert axis == sorted(set(axis))
    precision = "fp8" if part == "fp8" else "bf16"
    assert table["peak_flops_per_s"] == load_gpu(gpu).flops_per_s[precision]


def test_tables_not_in_use_have_their_reason_and_the_closed_form() -> None:
    unused = {(g, o, p): table_of(g, o, p)["why_not"] for g, o, p in tables() if not table_of(g, o, p)["use"]}
    rings = {("l40s-48gb", "collectives", k) for k in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")}
    assert set(unused) == {("a100-80gb", "gemm", "bf16"), *rings}
    assert all("published runs" in unused[key] for key in unused if key[0] == "a100-80gb" or key[2] == "all_reduce")
    assert not operator_tables_of("a100-80gb").gemm and not operator_tables_of("l40s-48gb").collectives


@pytest.mark.parametrize(("gpu", "operator", "part"), [t for t in tables() if t[1] != "collectives" and table_of(*t)["use"]])
def test_interpolation_passes_through_the_grid(gpu: str, operator: str, part: str) -> None:
    table = table_of(gpu, operator, part)
    loaded = operator_tables_of(gpu)
    grid = loaded.attention if operator == "attention" else getattr(loaded, operator)[part]
    sizes = np.meshgrid(*(np.array(axis, dtype=np.float64) for axis in table["axes"].values()), indexing="ij")
    np.testing.assert_allclose(grid.at(*sizes), table["efficiency"], rtol=1e-9)
    beyond = [np.array([1e9]) for _ in sizes]
    assert float(grid.at(*beyond)[0]) == pytest.approx(np.array(table["efficiency"]).ravel()[-1])


@pytest.mark.parametrize("gpu", [g for g in MEASURED if written(g)["gemm"]["bf16"]["over"] == "peak"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_larger_gemm_never_takes_less(gpu: str, precision: str) -> None:
    sizes = np.geomspace(16, 200_000, 60)
    for fixed in (64.0, 1024.0, 9000.0):
        for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
            shape = [sizes, np.full(60, fixed), np.full(60, 4096.0)]
            seconds = price(gpu, *(shape[i] for i in order), precision)
            assert np.all(np.diff(seconds) >= -1e-3 * seconds[:-1])


@pytest.mark.parametrize("gpu", MEASURED)
def test_attention_is_more_efficient_on_longer_sequences(gpu: str) -> None:
    table = efficiency_of(load_gpu(gpu)).tables.attention
    assert table is not None
    lengths = np.array([512.0, 1024, 2048, 4096, 8192, 16384, 131072])
    for dim in (64, 128):
        share = table_flash_efficiency(lengths, dim, table)
        assert np.all(np.diff(share) >= -0.03 * share[:-1]) and np.all(np.diff(lengths**2 / share) > 0)


def test_a_table_over_the_formula_corrects_it() -> None:
    """The A100's, which is shipped but not used: the closed form's seconds over the correction."""
    table = table_of("a100-80gb", "gemm", "bf16")
    grid = GridTable(
        axes=tuple(np.log(np.array(axis, dtype=np.float64)) for axis in table["axes"].values()),
        logs=np.log(np.array(table["efficiency"])).ravel(),
        over_formula=True,
    )
    gpu, size = load_gpu("a100-80gb"), np.array([4096.0])
    common = {
        "flops_per_s": gpu.flops_per_s["bf16"],
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "num_sms": gpu.num_sms,
        "constants": formula_efficiency_of(gpu).gemm,
    }
    closed, corrected = (gemm_seconds(size, size, size, **common, table=t) for t in (None, grid))
    assert corrected == pytest.approx(closed / grid.at(size, size, size))


def test_below_the_table_a_gemm_costs_as_much_as_the_smallest() -> None:
    assert price("h100-sxm-80gb", np.array([4.0]), np.array([8.0]), np.array([4096.0])) == pytest.approx(
        price("h100-sxm-80gb", np.array([128.0]), np.array([128.0]), np.array([4096.0]))
    )


def test_fp8_over_bf16_is_what_the_kernels_reach() -> None:
    """Large shapes without quantisation: 1.8 to 2.1 times bf16 on Hopper and data-centre Blackwell."""
    for gpu in ("h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb", "gb200-192gb", "b300-288gb", "gb300-288gb"):
        size = np.array([8192.0])
        ratio = price(gpu, size, size, size) / price(gpu, size, size, size, "fp8")
        assert 1.6 < float(ratio[0]) < 2.2


def test_collectives_take_the_measured_ranks() -> None:
    gpu = load_gpu("h100-sxm-80gb")
    from autoconfig.specs.hardware.cluster import cluster_of

    links, terms = links_of(cluster_of(gpu, 8), efficiency_of(gpu)), written(gpu.id)["collectives"]
    for n, alpha, share in zip(
        terms["axes"]["ranks"], terms["kinds"]["all_gather"]["alpha_s"], terms["kinds"]["all_gather"]["link_share"], strict=True
    ):
        group = Group(size=np.array(float(n)), local=np.array(float(n)))
        found = collective_terms("all_gather", group, links)
        assert (float(found[0]), float(found[1])) == pytest.approx((alpha, share))
    slow = links_of(cluster_of(gpu, 8), efficiency_of(gpu), 2.0)
    assert slow.tables["all_gather"].alpha_s[0] == pytest.approx(2 * links.tables["all_gather"].alpha_s[0])


def test_unmeasured_gpus_keep_the_closed_form() -> None:
    volta = efficiency_of(load_gpu("v100-32gb"))
    assert volta.tables == OperatorTables() and volta.origin == "default"
    assert not formula_efficiency_of(load_gpu("h100")).tables.gemm
    assert "operator tables of h100-sxm-80gb" in efficiency_of(load_gpu("h100")).origin


@pytest.mark.parametrize(
    ("gpu", "chip"), [("a100-40gb", "a100-80gb"), ("a800-80gb", "a100-80gb"), ("h800-80gb", "h100-sxm-80gb")]
)
def test_the_same_chip_takes_its_tables_but_not_its_collectives(gpu: str, chip: str) -> None:
    tables = efficiency_of(load_gpu(gpu)).tables
    assert tables.gpu == chip and tables.attention and not tables.collectives
    assert load_gpu(gpu).flops_per_s["bf16"] == pytest.approx(load_gpu(chip).flops_per_s["bf16"], rel=0.01)


def test_tables_over_the_formula_hold_for_its_present_constants() -> None:
    """Changed constants in gpu_efficiency.json need `make tables` again."""
    for gpu in MEASURED:
        for table in written(gpu)["gemm"].values():
            if table["over"] == "formula":
                assert table["formula_constants"] == asdict(formula_efficiency_of(load_gpu(gpu)).gemm)


@pytest.mark.soak
def test_the_same_wheel_gives_the_same_files() -> None:
    from validation.distil.grid_fit import Wheel
    from validation.distil.operator_tables import SOURCES, as_json, decide, distil

    wheel = Wheel.fetched(WHEELS)
    rejected = json.loads((FOLDER / "decisions.json").read_text(encoding="utf-8"))["rejected"]
    for source in SOURCES:
        data = distil(wheel, source)
        decide(data, rejected.get(source.gpu, {}))
        assert as_json(data) == (FOLDER / f"{source.gpu}.json").read_text(encoding="utf-8")


@tabled
def test_rings_over_pcie_move_what_was_measured(gpu: str, slowest: float, fastest: float) -> None:
    """GB/s through each of 8 GPUs; at least what published throughput of L40S moves, at most nccl-tests on PCIe 4."""
    spec = load_gpu(gpu)
    links = links_of(cluster_of(spec, 8), efficiency_of(spec))
    rates = []
    for ranks in (2.0, 4.0, 8.0):
        seconds = float(collective_seconds("all_reduce", 1e9, Group(size=ranks, local=ranks), links))
        rates.append(float(ring_factor("all_reduce", ranks)) * 1e9 / seconds)
    assert slowest * 1e9 < rates[-1] < fastest * 1e9 and rates == sorted(rates, reverse=True)
