"""Layers with experts: which dispatcher a run uses, what it moves, what the host launches, what overlaps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import SoftwareStack, load_stack
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.kernels import gemm_flops, grouped_gemm_seconds
from autoconfig.time_model.operators.moe import permute_factor
from autoconfig.time_model.predict import OperatorRow, TimeEstimate, _prepare, estimate_step_time, explain_operators

QWEN = load_model("qwen3-30b-a3b")
FP8 = Numerics(precision="fp8", fp8_param_gather=True, grad_reduce_dtype="bf16", attention_dropout=0.0, hidden_dropout=0.0)
DROPS = dataclasses.replace(FP8, moe_capacity_factor=1.0)
BATCH = Workload(seq_length=4096, global_batch_size=512)


def _scenario(stack: SoftwareStack, gpu: str, numerics: Numerics = FP8, gpus: int = 16, model: ModelSpec = QWEN) -> Scenario:
    cluster = cluster_of(load_gpu(gpu), gpus)
    return Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=BATCH)


def _job(stack: str, gpu: str, numerics: Numerics = FP8) -> TrainingJob:
    return TrainingJob(_scenario(load_stack(stack), gpu, numerics))


def _estimate(plan: str, stack: SoftwareStack, gpu: str, numerics: Numerics = FP8) -> TimeEstimate:
    parsed = parse_plan(plan, 16)
    scenario = _scenario(stack, gpu, numerics)
    recomputes = [parsed.recompute, Recompute.parse("full:uniform:1")]
    return estimate_step_time(scenario, scenario.layouts([parsed]), recomputes, detail=True)


def _parts(plan: str, stack: SoftwareStack, gpu: str, numerics: Numerics = FP8, **time: Any) -> dict[str, float]:
    changed = dataclasses.replace(stack, time=dataclasses.replace(stack.time, **time))
    found = _estimate(plan, changed, gpu, numerics)
    np.testing.assert_allclose(sum(found.parts.values()), found.step_seconds, rtol=1e-10)
    return {name: float(value[0, 0]) for name, value in found.parts.items()}


@pytest.mark.parametrize(("stack", "gpu", "numerics", "dispatcher"), [
    ("transformer-engine", "gb200", FP8, "alltoall"), ("nemo-25.09", "gb200", DROPS, "alltoall"),
    ("nemo-25.09", "h100", FP8, "deepep"), ("nemo-25.11", "h100", FP8, "alltoall"),
    ("nemo-25.11", "gb200", FP8, "hybridep"), ("megatron-moe-modelzoo", "h100", FP8, "deepep"),
    ("megatron-moe-modelzoo", "gb300", FP8, "hybridep"),
])  # fmt: skip
def test_the_dispatcher_follows_from_software_gpu_and_routing(
    stack: str, gpu: str, numerics: Numerics, dispatcher: str
) -> None:
    assert _job(stack, gpu, numerics).dispatcher == dispatcher


def test_what_permutation_moves() -> None:
    local = np.array([1.0, 16.0])
    assert list(permute_factor("alltoall", local, padded=False)) == [1.0, 2.0]
    assert list(permute_factor("alltoall", local, padded=True)) == [2.0, 3.0]
    assert list(permute_factor("deepep", local, padded=True)) == [2.0, 2.0]
    assert list(permute_factor("hybridep", local, padded=True)) == [0.5, 0.5]


def test_interleaved_stages_hide_a_share_of_the_exchange() -> None:
    stack = load_stack("nemo-25.11")
    plans = "tp=1,pp=2,vpp=2,ep=8,mbs=1", "tp=1,pp=2,ep=8,mbs=1"
    hidden, whole = (
        [_parts(plan, stack, "h100", moe_overlap_interleaved_share=share)["expert_all_to_all_seconds"] for plan in plans]
        for share in (0.25, 0.0)
    )
    assert hidden[0] == pytest.approx(0.75 * whole[0])
    assert hidden[1] == whole[1]
    wide, plain = (_parts(plans[0], stack, "gb200", moe_overlap_interleaved_share=share) for share in (0.25, 0.0))
    assert wide == plain


def test_full_recomputation_hides_nothing() -> None:
    stack = load_stack("nemo-25.11")
    none = dataclasses.replace(stack, time=dataclasses.replace(stack.time, moe_overlap_interleaved_share=0.0))
    with_overlap, without = (
        _estimate("tp=1,pp=2,vpp=2,ep=8,mbs=1", s, "h100").parts["expert_all_to_all_seconds"][0] for s in (stack, none)
    )
    assert with_overlap[0] < without[0]
    assert with_overlap[1] == without[1]


def test_graphs_spare_the_host_where_shapes_are_fixed_and_no_pipeline_runs() -> None:
    stack = load_stack("nemo-25.09")
    assert _parts("tp=1,pp=1,ep=8,mbs=1", stack, "b200", DROPS)["host_floor_seconds"] == 0.0
    assert _parts("tp=1,pp=2,ep=8,mbs=1", stack, "b200", DROPS)["host_floor_seconds"] > 0.0
    assert _parts("tp=1,pp=1,ep=8,mbs=1", stack, "b200", FP8)["host_floor_seconds"] > 0.0
    assert _parts("tp=1,pp=1,ep=8,mbs=1", stack, "h100", DROPS)["host_floor_seconds"] > 0.0


def test_fewer_local_experts_cost_the_host_less() -> None:
    stack = load_stack("nemo-25.11")
    host = [_parts(f"tp=1,pp=1,ep={ep},mbs=1", stack, "h100")["host_floor_seconds"] for ep in (1, 4, 16)]
    assert host[0] > host[1] > host[2] > 0.0


def _operators(model: ModelSpec, gpu: str = "h100", plan: str = "tp=1,pp=1,ep=8,mbs=1") -> dict[str, OperatorRow]:
    numerics = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
    rows = explain_operators(_scenario(load_stack("transformer-engine"), gpu, numerics, model=model), parse_plan(plan, 16))
    return {row.operator: row for row in rows}


def test_biases_of_experts_are_added_outside_of_the_grouped_gemm() -> None:
    oss = load_model("gpt-oss-120b")
    biased = _operators(oss)["experts.bias"]
    rows = 4096 * 4 * load_stack("transformer-engine").time.moe_imbalance
    assert biased.forward_bytes == pytest.approx(28 * rows * 2880)
    assert biased.dgrad_seconds == pytest.approx(44 / 28 * biased.forward_seconds)
    assert "experts.bias" not in _operators(oss.replace(published_parameters=None, moe_expert_bias=False))
    assert "experts.bias" not in _operators(QWEN)


def test_a_grouped_gemm_is_never_faster_than_one_dense_gemm_of_as_many_tiles() -> None:
    gpu = _job("nemo-25.11", "h100").gpu
    table = gpu.tables.grouped_gemm["bf16"]
    m, n, k = np.array([8192.0]), np.array([4096.0]), np.array([2048.0])
    common: dict[str, Any] = {"rows": m, "rows_half": 1.0, "flops_per_s": 1e15, "hbm_bytes_per_s": 1e12, "num_sms": 132}
    alone = grouped_gemm_seconds(m, n, k, np.array([4.0]), constants=gpu.gemm, table=table, **common)
    assert alone > 4 * gemm_flops(m, n, k) / 1e15
    capped = grouped_gemm_seconds(m, n, k, np.array([4.0]), constants=gpu.gemm, table=table, whole=2 * alone, **common)
    assert capped == pytest.approx(2 * alone)


def test_fsdp_of_experts_over_the_network_leaves_the_gpu_to_its_kernels() -> None:
    model = QWEN.replace(published_parameters=None, num_layers=2)
    scenario = _scenario(load_stack("transformer-engine"), "h100", gpus=64, model=model)
    exposed = []
    for interference in (0.7, 0.0):
        gpu = dataclasses.replace(_job("transformer-engine", "h100").gpu, fsdp_interference=interference)
        job = TrainingJob(scenario)
        job.__dict__["gpu"] = gpu
        plan = parse_plan("tp=1,pp=1,ep=8,mbs=1,fsdp=3", 64)
        rows = _prepare(job, scenario.layouts([plan]), [plan.recompute])
        exposed.append(rows)
    one_a_node, none = (float(rows.fsdp_interference[-1][0]) for rows in exposed)
    assert none == 0.0
    assert 0.0 < one_a_node < 0.35  # nearly all bytes are experts', on a ring of one card a node


def test_every_local_expert_but_the_first_costs_a_start_up() -> None:
    gpu = _job("transformer-engine", "h100").gpu
    many = _operators(QWEN, plan="tp=1,pp=1,ep=1,mbs=1")["experts.linear_fc1"].forward_seconds
    assert many > 127 * gpu.launch_s
