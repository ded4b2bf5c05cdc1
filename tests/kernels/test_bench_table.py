"""A known table gives known prices: synthetic measurements through state, file and time model; a stand-in of the driver."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from autoconfig.kernels.bench.collectives import KINDS
from autoconfig.kernels.bench.device import BenchDevice, Timing
from autoconfig.kernels.bench.operators import CHAIN, attention_flops
from autoconfig.kernels.bench.state import Results
from autoconfig.kernels.bench.table import SETS, coarse, collective_terms, ring_factor, score_gemm_rate
from autoconfig.specs.hardware.cluster import GpuSpec, cluster_of, load_gpu
from autoconfig.specs.hardware.operator_table import gpu_of_table, read_operator_table
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.collectives import Group, collective_seconds, links_of, send_seconds
from autoconfig.time_model.hardware.efficiency import efficiency_of, formula_efficiency_of
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.kernels import (
    flash_attention_seconds,
    gemm_seconds,
    table_flash_efficiency,
)
from autoconfig.time_model.operators.layer import _flash_rate

PEAK, COPY, LAUNCH = 1e12, 50e9, 2e-6
ALPHA, LINK, SQRT = 50e-6, 3e9, 2e-8
CPU = SETS["cpu"]
CPU_DEVICE = BenchDevice(type="cpu", reported_name="Test CPU 4 cores", memory_bytes=8 * 2**30, count=4, threads=1, vendor="cpu")
H100 = BenchDevice(
    type="cuda", reported_name="NVIDIA H100 80GB HBM3", memory_bytes=85017755648, count=8, threads=1, compute_capability=9.0,
    num_sms=132,
)  # fmt: skip
NEW = replace(H100, reported_name="NVIDIA X900 96GB", memory_bytes=96 * 2**30, num_sms=200)


def gemm(m: float, n: float, k: float) -> float:
    return 2.0 * m * n * k / PEAK + 3e-6


def grouped(rows: float, width: float, groups: float) -> float:
    return 2.0 * rows * width**2 * groups / (0.7 * PEAK) + 5e-6


def attention(head_dim: float, length: float, parallel: float) -> float:
    return attention_flops(int(parallel), int(length), int(head_dim)) / (0.4 * PEAK) + LAUNCH


def collective(kind: str, ranks: int, size: float) -> float:
    return (
        ALPHA * math.log2(ranks) + ring_factor(kind, ranks) * size / LINK + (0.0 if kind == "p2p" else SQRT * math.sqrt(size))
    )


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, spread=0.01, repetitions=5)


def synthetic(
    path: Path, device: BenchDevice = CPU_DEVICE, precision: str = "bf16", ranks: tuple[int, ...] = (2, 4)
) -> Results:
    """Every point of the CPU's set."""
    results = Results(path, device, CPU, "cpu", {"torch": "2.13.0"})
    results.launch = {"host_s": LAUNCH, "device_s": LAUNCH}
    for size in CPU.copy_bytes:
        results.add("copy", (size,), timing(2 * size / COPY))
    for name in CHAIN:
        results.moved[name] = 1e6
        results.add("pointwise", (name,), timing(1e6 / (0.5 * COPY)))
    for key in itertools.product(CPU.m, CPU.nk, CPU.nk):
        results.add(f"gemm.{precision}", key, timing(gemm(*key)))
    for m, n, k in CPU.plan_shapes:
        results.add(f"plan_gemm.{precision}", (m, n, k), timing(gemm(m, n, k)))
    for d, s in itertools.product(CPU.head_dims, CPU.lengths):
        forward = attention(d, s, results.parallel(s))
        results.add(f"attention.{precision}", (d, s), timing(forward))
        results.add(f"attention_backward.{precision}", (d, s), timing(2 * LAUNCH + 2.5 * (forward - LAUNCH) / 0.8))
        parallel = results.parallel(s)
        rate = 0.6 * PEAK * d / (d + 32)
        results.add(f"score_gemm.{precision}", (d, s, parallel), timing(2.0 * parallel * s * s * d / rate))
    results.kernels[f"attention.{precision}"], results.generations[f"attention.{precision}"] = "torch SDPA flash", "flash2"
    for key in itertools.product(CPU.rows, CPU.widths, CPU.groups):
        results.add(f"grouped_gemm.{precision}", key, timing(grouped(*key)))
    for kind, n, size in itertools.product(KINDS, ranks, CPU.collective_bytes):
        if kind != "p2p" or n == 2:
            results.add("collectives", (kind, n, size), timing(collective(kind, n, size)))
    return results


def saved(path: Path, **options: object) -> GpuSpec:
    assert synthetic(path, **options).save(complete=True)  # type: ignore[arg-type]
    return gpu_of_table(read_operator_table(path), path)


def gemm_price(gpu: GpuSpec, m: float, n: float, k: float, precision: str = "bf16") -> float:
    e = efficiency_of(gpu)
    return float(
        gemm_seconds(
            *(np.array([float(x)]) for x in (m, n, k)), flops_per_s=gpu.peak_flops_per_s(precision),
            hbm_bytes_per_s=gpu.hbm_bytes_per_s, num_sms=gpu.num_sms, constants=e.gemm, table=e.tables.gemm[precision],
        )[0]
    )  # fmt: skip


def test_gemms_cost_what_was_measured(tmp_path: Path) -> None:
    gpu = saved(tmp_path / "t.json")
    for key in itertools.product(CPU.m, CPU.nk, CPU.nk):
        assert gemm_price(gpu, *key) == pytest.approx(gemm(*key), rel=1e-5)
    for key in ((32, 500, 90), (900, 100, 700), (128, 192, 64)):
        below = [max(a for a in CPU.m if a <= x) for x in key]
        above = [min(a for a in CPU.m if a >= x) for x in key]
        assert gemm(*below) < gemm_price(gpu, *key) < gemm(*above)
        assert gemm_price(gpu, *key) == pytest.approx(gemm(*key), rel=0.2)  # grid points lie a factor of 4 apart


def test_every_other_operator_costs_what_was_measured(tmp_path: Path) -> None:
    gpu = saved(tmp_path / "t.json")
    e, results = efficiency_of(gpu), synthetic(tmp_path / "u.json")
    peak = gpu.peak_flops_per_s("bf16")
    for rows, width, groups in itertools.product(CPU.rows, CPU.widths, CPU.groups):
        share = e.tables.grouped_gemm["bf16"].at(*(np.array([float(x)]) for x in (rows, width, groups)))
        price = 2.0 * rows * width**2 * groups / (peak * share)
        assert float(price[0]) == pytest.approx(grouped(rows, width, groups), rel=1e-5)
    table = e.tables.attention
    assert table is not None and table.generation == "flash2" and e.attention.share("flash3") == 1.0
    for d, s in itertools.product(CPU.head_dims, CPU.lengths):
        parallel = results.parallel(s)
        share = table_flash_efficiency(np.array([float(s)]), d, table)
        flops = attention_flops(parallel, s, d)
        forward = flash_attention_seconds(flops, share, flops_per_s=peak, start_s=e.launch_s)
        assert float(forward[0]) == pytest.approx(attention(d, s, parallel), rel=1e-5)
        backward = flash_attention_seconds(2.5 * flops, share * e.attention.backward, flops_per_s=peak, start_s=2 * e.launch_s)
        assert float(backward[0]) == pytest.approx(2 * LAUNCH + 2.5 * (attention(d, s, parallel) - LAUNCH) / 0.8, rel=1e-5)
    assert e.hbm_pointwise * gpu.hbm_bytes_per_s == pytest.approx(0.5 * COPY)
    assert e.launch_s == LAUNCH
    assert e.attention.unfused_gemm * peak == pytest.approx(0.6 * PEAK, rel=1e-4)
    assert e.attention.unfused_head_dim_half == pytest.approx(32.0, rel=1e-4)


def test_collectives_cost_what_was_measured(tmp_path: Path) -> None:
    gpu = saved(tmp_path / "t.json")
    links = links_of(cluster_of(gpu, 4), efficiency_of(gpu))
    for kind, n, size in itertools.product(KINDS, (2, 4), (1e3, 1e5, 1e7)):
        group = Group(size=np.array(float(n)), local=np.array(float(n)))
        if kind == "p2p":
            price = send_seconds(size, False, links)
            assert float(price) == pytest.approx(collective("p2p", 2, size), rel=1e-4)
        else:
            assert float(collective_seconds(kind, size, group, links)) == pytest.approx(collective(kind, n, size), rel=1e-3)


def test_the_spec_of_a_device_outside_of_the_catalogue(tmp_path: Path) -> None:
    cpu, new = saved(tmp_path / "cpu.json"), saved(tmp_path / "new.json", device=NEW)
    assert (cpu.id, cpu.architecture, cpu.gpus_per_node, cpu.compute_capability) == ("cpu-test-cpu-4-cores", "cpu", 4, None)
    assert cpu.hbm_bytes_per_s == pytest.approx(COPY, rel=1e-5) and cpu.memory_bytes == CPU_DEVICE.memory_bytes
    assert cpu.flops_per_s["bf16"] == pytest.approx(2 * 1024**3 / gemm(1024, 1024, 1024), rel=1e-5)
    assert new.id == "local-nvidia-x900-96gb" and (new.architecture, new.num_sms) == ("hopper", 200)
    assert "assumed" in new.sources["nic_bytes_per_s"] and new.link == "pcie"
    assert efficiency_of(new).level == "calibrated" and "measured on this machine" in efficiency_of(new).origin


def test_a_known_gpu_keeps_its_published_numbers_and_what_was_not_measured(tmp_path: Path) -> None:
    known = load_gpu("h100")
    mine = saved(tmp_path / "h100.json", device=H100, ranks=())
    before = efficiency_of(mine).collectives
    efficiency_of(saved(tmp_path / "other.json", device=H100))
    assert efficiency_of(mine).collectives == before, "what one machine measured is no other's"
    assert replace(mine, operator_tables="") == known and "gpu_spec" not in read_operator_table(tmp_path / "h100.json")
    own, shipped = efficiency_of(mine), efficiency_of(known)
    assert gemm_price(mine, 256, 256, 1024) == pytest.approx(gemm(256, 256, 1024), rel=1e-5)
    assert own.tables.gemm["fp8"] is shipped.tables.gemm["fp8"] and own.tables.collectives == shipped.tables.collectives
    assert (own.launch_s, own.hbm_pointwise) == (LAUNCH, pytest.approx(0.5 * COPY / known.hbm_bytes_per_s, rel=1e-5))
    assert own.nic_efficiency == shipped.nic_efficiency and formula_efficiency_of(mine) == formula_efficiency_of(known)
    assert own.collectives["p2p"] == shipped.collectives["p2p"]
    assert efficiency_of(known) is shipped


def test_kernel_generations_are_relative_to_the_measured_one(tmp_path: Path) -> None:
    """SDPA's flash2 measured on Hopper: a flash3 stack is faster by the ratio of the published shares."""

    gpu, stack = saved(tmp_path / "h100.json", device=H100), load_stack("transformer-engine")
    rates = {}
    for generation in ("flash2", "flash3"):
        changed = replace(stack, time=replace(stack.time, attention_generation=generation))
        workload = Workload(seq_length=1024, global_batch_size=8)
        scenario = Scenario(
            model=load_model("llama3-8b"), cluster=cluster_of(gpu, 8), numerics=Numerics(), software=changed, workload=workload
        )
        job = TrainingJob.of(scenario)
        rates[generation] = float(_flash_rate(job, np.array([1024.0]))[0][0])
    table = efficiency_of(gpu).tables.attention
    assert table is not None
    assert rates["flash2"] == pytest.approx(float(table_flash_efficiency(np.array([1024.0]), 128, table)[0]))
    assert rates["flash3"] == pytest.approx(rates["flash2"] / efficiency_of(gpu).attention.flash2_share)


def test_fp32_has_tables_of_its_own(tmp_path: Path) -> None:
    gpu = saved(tmp_path / "t.json", precision="fp32")
    scenario = Scenario(
        model=load_model("llama3-8b"), cluster=cluster_of(gpu, 2), numerics=Numerics(precision="fp32"),
        software=load_stack("megatron-local"), workload=Workload(seq_length=64, global_batch_size=2),
    )  # fmt: skip
    job = TrainingJob.of(scenario)
    assert job.table_precision(False) == "fp32" and job.gpu.tables.gemm["fp32"] is not None
    assert job.gpu.tables.attention is None and job.gpu.tables.attention_fp32 is not None
    assert job.gemm_rate(False, job.gpu.tables.gemm["fp32"]) == pytest.approx(gpu.flops_per_s["fp32"])


def test_half_a_grid_gives_every_second_point_and_little_of_it_no_table(tmp_path: Path) -> None:
    results = synthetic(tmp_path / "t.json")
    first = set(itertools.product(*map(coarse, (CPU.m, CPU.nk, CPU.nk))))
    points = results.points["gemm.bf16"]
    results.points["gemm.bf16"] = {key: value for key, value in points.items() if key in first}
    results.points["grouped_gemm.bf16"] = dict(list(results.points["grouped_gemm.bf16"].items())[:3])
    assert results.save(complete=False)
    data = read_operator_table(tmp_path / "t.json")
    assert data["gemm"]["bf16"]["axes"]["m"] == list(coarse(CPU.m)) and not data["grouped_gemm"] and not data["complete"]
    assert gemm_price(gpu_of_table(data, tmp_path / "t.json"), 64, 64, 64) == pytest.approx(gemm(64, 64, 64), rel=1e-5)


def test_fits_recover_what_made_the_points() -> None:
    sizes = (1e4, 1e5, 1e6, 1e7, 1e8)
    points = {("all_gather", 4, s): (collective("all_gather", 4, s), 0.0, 5) for s in sizes}
    alpha, bandwidth, sqrt = collective_terms(points, "all_gather", 4) or (0.0, 0.0, 0.0)
    assert (alpha, bandwidth, sqrt) == pytest.approx((2 * ALPHA, LINK, SQRT), rel=1e-4)
    assert collective_terms(points, "all_gather", 2) is None
    flat = {("all_gather", 2, s): (1e-3, 0.0, 5) for s in (1e3, 1e4)}
    assert collective_terms(flat, "all_gather", 2) == pytest.approx((1e-3, 4 * 0.5 * 1e4 / 1e-3, 0.0), rel=0.2)
    assert score_gemm_rate({}, 1.0) is None
