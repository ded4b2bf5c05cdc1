"""What a step pays once, beside its layers: gradients reduced, weights gathered, the optimizer, FSDP's traffic by layer, copies
to host memory. By hand for a small model: which parameters a rank holds, which ranks share them, how many bytes each sends."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.collectives import (
    Group,
    Links,
    collective_seconds,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    exposed_seconds,
    group_of,
    links_of,
    pipeline_crosses,
    rate_share,
    send_seconds,
    small_group_factor,
    tensor_group,
)
from autoconfig.time_model.hardware.efficiency import CollectiveEfficiency
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.predict import StepTimes, compute_seconds, estimate_step_time, schedule
from autoconfig.time_model.step.offload import activation_offload_seconds, offloaded_bytes
from autoconfig.time_model.step.rows import (
    Rows,
    block_recomputed_layers,
    bucketed_exposed_seconds,
    embedding_gradient_seconds,
    fsdp_seconds,
    optimizer_bytes_per_parameter,
    optimizer_seconds,
    p2p_message_bytes,
    p2p_seconds,
    pipeline_bubble_seconds,
    reduction_communication,
)
from small_models import MODELS, job_and_shapes
from tables import tabled

PLAIN = {"add_bias_linear": False, "normalization": "RMSNorm"}
PLANS = [f"tp={tp},pp={pp},cp={cp},mbs=1,sp={int(tp > 1)},{more}" for tp, pp, cp in ((1, 1, 1), (4, 2, 2), (2, 4, 1))
         for more in ("dist_opt=1", "dist_opt=0", "fsdp=2", "fsdp=3", "dist_opt=1,offload=0.5")]  # fmt: skip


def rows_of(model: ModelSpec, text: str, **numerics: Any) -> tuple[TrainingJob, Rows, Any]:
    plan = parse_plan(text, 64)
    scenario = Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), 64), numerics=Numerics(**numerics),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=240, global_batch_size=64),
    )  # fmt: skip
    job = TrainingJob.of(scenario)
    return job, StepTimes.of(job, scenario.layouts([plan]), [NONE]).rows(np.array([0])), plan


def seconds(job: TrainingJob, kind: str, total: float, size: int, stride: int) -> float:
    """Of a group of `size` ranks `stride` apart in nodes of 8."""
    group = Group(size=np.float64(size), local=np.float64(min(size, max(8 // stride, 1))))
    return float(collective_seconds(kind, total, group, job.links))


def adam(job: TrainingJob, updated: float, held: float, owners: int, offload: float) -> float:
    gpu = job.gpu
    found = optimizer_seconds(
        updated, held, owners, offload, numerics=job.numerics, stack=job.software, gradient_bytes=4,
        hbm_bytes_per_s=job.hbm_bytes_per_s, host_bytes_per_s=gpu.host_bytes_per_s,
        cpu_memory_bytes_per_s=gpu.cpu_memory_bytes_per_s,
    )  # fmt: skip
    return float(found)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("text", PLANS)
def test_a_dense_model(text: str, tied: bool) -> None:
    model = ModelSpec(**{**MODELS["gpt"], **PLAIN, "untie_embeddings_and_output_weights": not tied})
    job, rows, plan = rows_of(model, text)
    h, q, kv, f, t, p = 96, 240, 80, 200, plan.tp, plan.pp
    layer = (h * (q + 2 * kv) + q * h + 2 * h * f) / t + 2 * h  # qkv, projection, fc1 and fc2; two norms
    table = 1024 * h / t
    both = table if tied else 2 * table  # one rank with both ends holds a tied table once
    ends = table if p > 1 else both  # the last stage has the output layer, the first the embedding
    held, ranks = 4 / p * layer + ends + h, plan.dp * plan.cp  # a final norm
    sharded = plan.dist_opt or plan.fsdp > 0
    reduce = "reduce_scatter" if sharded else "all_reduce"
    assert rows.reduction[0] == pytest.approx(0 if plan.fsdp else seconds(job, reduce, 4 * held, ranks, t))
    gathered = sharded and plan.fsdp < 3
    assert rows.gather[0] == pytest.approx(seconds(job, "all_gather", 2 * held, ranks, t) if gathered else 0)
    expected = adam(job, held / ranks if sharded else held, held, ranks if sharded else 0, plan.offload)
    assert rows.optimizer[0] == pytest.approx(expected)
    summed = float(send_seconds(4 * table, True, job.links)) if tied and p > 1 else 0
    assert rows.embedding_gradient[0] == pytest.approx(summed)
    if plan.fsdp:
        assert rows.fsdp_gather[0][0] == pytest.approx(seconds(job, "all_gather", 2 * layer, ranks, t))
        assert rows.fsdp_scatter[0][0] == pytest.approx(seconds(job, "reduce_scatter", 4 * layer, ranks, t))
        ends, behind = (both if p == 1 else 2 * table) + h, [float(part[0]) for part in rows.table.head]  # and a final norm
        whole, part = seconds(job, "all_gather", 2 * ends, ranks, t), seconds(job, "reduce_scatter", 4 * ends, ranks, t)
        group = Group(size=np.float64(ranks), local=np.float64(min(ranks, 8 // t)))
        felt = 0.7 * float(rate_share("all_gather", group, job.links))
        whole = whole if plan.fsdp == 3 else 0
        late = [max(sent - busy, 0) + felt * min(sent, busy) for sent, busy in zip((whole, whole + part), behind, strict=True)]
        assert rows.fsdp_outside[0] == pytest.approx(sum(late))
        assert rows.fsdp_interference[0][0] == pytest.approx(felt)
    else:
        assert rows.fsdp_gather == [] and rows.fsdp_outside[0] == 0


@pytest.mark.parametrize(("name", "text"), [("gpt", "tp=2,pp=1,mbs=1,sp=1"), ("moe", "tp=1,pp=1,ep=8,mbs=1")])
def test_sharded_frozen_weights_are_gathered_and_gradients_are_those_of_adapters(name: str, text: str) -> None:
    model = ModelSpec(**{**MODELS[name], **PLAIN, "untie_embeddings_and_output_weights": True})
    job, whole, plan = rows_of(model, f"{text},fsdp=3")
    _, rows, _ = rows_of(model, f"{text},fsdp=3", peft="lora", lora_rank=4, lora_target_modules=("linear_proj",))
    adapters, kind = 4 * (240 / plan.tp + 96), model.kinds.index("moe") if model.is_moe else 0
    assert rows.table.held.dense[kind][0] == pytest.approx(whole.table.held.dense[kind][0] + adapters)
    assert rows.fsdp_gather[kind][0] > whole.fsdp_gather[kind][0] > 0
    ranks = plan.dp * plan.cp
    scattered = seconds(job, "reduce_scatter", 4 * adapters, ranks, plan.tp)
    if model.is_moe:
        scattered += seconds(job, "reduce_scatter", 0.0, 64 // plan.ep, plan.ep)
    assert rows.fsdp_scatter[kind][0] == pytest.approx(scattered)
    assert 0 < rows.fsdp_outside[0] <= whole.fsdp_outside[0], "the embedding and the head are gathered, too"


@tabled
def test_experts_are_reduced_over_their_own_ranks(text: str) -> None:
    model = ModelSpec(**{**MODELS["moe"], **PLAIN, "moe_shared_expert_intermediate_size": 0,
                         "untie_embeddings_and_output_weights": True})  # fmt: skip
    job, rows, plan = rows_of(model, text)
    h, t, p = 96, plan.tp, plan.pp
    ends = (1024 * h / t) * (2 if p == 1 else 1) + h
    dense = 4 / p * ((h * 400 + 240 * h) / t + 2 * h + h * 16) + ends  # attention, norms, router
    expert = 4 / p * 16 / plan.ep * 3 * h * 56 / plan.etp
    ranks, own, stride = plan.dp * plan.cp, 64 // (p * plan.ep * plan.etp), plan.ep * plan.etp
    if plan.fsdp:
        both = [(dense - ends) / 4, expert / 4]
        for found, kind, width in ((rows.fsdp_gather, "all_gather", 2), (rows.fsdp_scatter, "reduce_scatter", 4)):
            each = seconds(job, kind, width * both[0], ranks, t) + seconds(job, kind, width * both[1], own, stride)
            assert found[model.kinds.index("moe")][0] == pytest.approx(each)
        return
    kind = "reduce_scatter" if plan.dist_opt else "all_reduce"
    reduced = seconds(job, kind, 4 * dense, ranks, t) + seconds(job, kind, 4 * expert, own, stride)
    assert rows.reduction[0] == pytest.approx(reduced)
    weights = seconds(job, "all_gather", 2 * dense, ranks, t) + seconds(job, "all_gather", 2 * expert, own, stride)
    assert rows.gather[0] == pytest.approx(weights if plan.dist_opt else 0)
    updated = dense / ranks + expert / own if plan.dist_opt else dense + expert
    assert rows.optimizer[0] == pytest.approx(adam(job, updated, dense + expert, ranks if plan.dist_opt else 0, 0.0))


@pytest.mark.parametrize("pattern", [(0, 0, 1, 1), (1, 1, 0, 0), (0, 1, 1, 1), (1, 0, 1, 1)])
def test_the_stage_with_most_experts_decides_for_experts_the_fullest_for_the_rest(pattern: tuple[int, ...]) -> None:
    model = ModelSpec(**{**MODELS["moe"], **PLAIN, "moe_shared_expert_intermediate_size": 0, "moe_layer_freq": pattern,
                         "untie_embeddings_and_output_weights": True})  # fmt: skip
    job, rows, plan = rows_of(model, "tp=1,pp=2,ep=4,mbs=1")
    attention, router, mlp = 96 * 400 + 240 * 96 + 2 * 96, 96 * 16, 3 * 96 * 200
    stages = (pattern[:2], pattern[2:])
    held = [
        sum(attention + (router if one else mlp) for one in stage) + 1024 * 96 + 96 * (n == 1) for n, stage in enumerate(stages)
    ]
    expert = max(map(sum, stages)) * 16 / 4 * 3 * 96 * 56
    reduced = seconds(job, "reduce_scatter", 4 * max(held), plan.dp, 1) + seconds(job, "reduce_scatter", 4 * expert, 8, 4)
    assert rows.reduction[0] == pytest.approx(reduced)


def offloading(gpu: str, layers: int) -> Scenario:
    return Scenario(
        model=load_model("llama3-8b"), cluster=cluster_of(load_gpu(gpu), 8),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0),
        software=load_stack("nemo-26.04"), workload=Workload(seq_length=8192, global_batch_size=32),
        given=GivenSettings(offload_layers=layers),
    )  # fmt: skip


@pytest.mark.parametrize(("copied", "waits"), [(20.0, 0.0), (40.0, 1.0), (100.0, 7.0 + 3.0), (0.0, 0.0)])
def test_copies_wait_where_they_outlast_a_pass(copied, waits):
    """10 bytes/s each way beside 3 s of forward and 7 s of backward."""
    assert activation_offload_seconds(copied, 3.0, 7.0, 10.0) == pytest.approx(waits)


def test_a_share_of_what_the_layers_save_is_copied():
    """Llama-3-8B, bf16, T = 8,192: norms' inputs and outputs 8 T h and 8 T, q, k, v and attention's output 2 T (2 q + 2 kv) and
    4 T a, the MLP 6 T f; 8 of 32 layers."""
    asked = offloading("h100", 8)
    tokens, hidden, ffn = 8192, 4096, 14336
    layer = 8 * tokens * hidden + 8 * tokens + 2 * tokens * (2 * 4096 + 2 * 1024) + 4 * tokens * 32 + 6 * tokens * ffn
    layouts = asked.layouts([parse_plan(text, 8) for text in ("tp=1,pp=1,mbs=1,dp=8", "tp=1,pp=2,mbs=1,dp=4")])
    found = offloaded_bytes(TrainingJob.of(asked), layouts, [NONE, Recompute.parse("full:uniform:1")])
    np.testing.assert_allclose(found, [[8 * layer, 0], [0, 0]], rtol=1e-12)
    assert not offloaded_bytes(TrainingJob.of(offloading("h100", 0)), layouts, [NONE]).any()


def test_the_step_waits_for_a_slow_link_only():
    """31 of 32 layers over PCIe; a part of the step like any other, none over NVLink-C2C or without offload."""
    for gpu, layers, waits in (("h100", 31, True), ("h100", 0, False), ("gb200", 31, False)):
        asked, without = offloading(gpu, layers), offloading(gpu, 0)
        layouts = asked.layouts([parse_plan("tp=1,pp=1,mbs=1,dp=8", 8)])
        found = estimate_step_time(asked, layouts, [NONE], detail=True)
        waited = float(found.parts.get("activation_offload_seconds", np.zeros((1, 1)))[0, 0])
        assert (waited > 0) == waits and ("activation_offload_seconds" in found.parts) == (layers > 0)
        assert sum(part[0, 0] for part in found.parts.values()) == pytest.approx(found.step_seconds[0, 0])
        plain = estimate_step_time(without, without.layouts([parse_plan("tp=1,pp=1,mbs=1,dp=8", 8)]), [NONE]).step_seconds[0, 0]
        assert (found.step_seconds[0, 0] > plain) == waits
        twice = replace(asked, workload=replace(asked.workload, global_batch_size=64))
        more = estimate_step_time(twice, twice.layouts([parse_plan("tp=1,pp=1,mbs=1,dp=8", 8)]), [NONE], detail=True)
        assert float(more.parts.get("activation_offload_seconds", np.zeros((1, 1)))[0, 0]) == pytest.approx(2 * waited)


@pytest.mark.parametrize(("pp", "vpp", "overlap", "seconds"), [
    (1, 1, 0.7, 0), (4, 1, 0.7, 2 * (16 + 6)), (4, 2, 0.75, 2 * (8 + 6)), (2, 1, 0.0, 2 * (16 + 2)),
])  # fmt: skip
def test_sends_of_a_step(pp, vpp, overlap, seconds):
    """8 micro-batches: 2 m v, less what interleaving hides, and 2 (p - 1)."""
    assert float(p2p_seconds(2.0, pp, vpp, 8, overlap)) == pytest.approx(seconds)
    assert p2p_message_bytes(100.0, 8, 2, 4) == 400 and pipeline_bubble_seconds(3.0, 12.0, 3.0) == 3.0
    assert block_recomputed_layers(10.0, 2.0, 3) == 6 and block_recomputed_layers(5.0, 2.0, 3) == 5


@tabled
def test_reductions_beside_the_last_backward(compute, buckets, pp, vpp, late):
    """8 s in buckets: one is late, the others hide; of v chunks 1/v of that, never less than what p micro-batches leave; a
    quarter of what is hidden is exposed."""
    found = bucketed_exposed_seconds(8.0, compute, buckets, pp, vpp, overlaps=True, interference=0.25)
    assert float(found) == pytest.approx(late + 0.25 * (8 - late))
    assert bucketed_exposed_seconds(8.0, compute, buckets, pp, vpp, overlaps=False, interference=0.25) == 8.0


@pytest.mark.parametrize(("stage", "seconds"), [(0, 0), (2, 2 + 0.5 * 4), (3, 0.5 * 3 + (3 + 6 - 4) + 0.5 * 4)])
def test_traffic_of_sharded_layers(stage, seconds):
    """Gather 3 s, scatter 6 s, beside 5 s forward and 4 s backward; half of what is hidden is exposed."""
    assert float(fsdp_seconds(3.0, 6.0, 5.0, 4.0, stage=stage, interference=0.5)) == pytest.approx(seconds)


TE = load_stack("transformer-engine").time


def test_optimizer_traffic_and_offload() -> None:
    assert optimizer_bytes_per_parameter(Numerics(), TE) == 50  # findings, section 2
    assert optimizer_bytes_per_parameter(Numerics(exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"), TE) == 42
    common = {
        "numerics": Numerics(), "stack": TE, "gradient_bytes": 4, "hbm_bytes_per_s": 2e12, "host_bytes_per_s": 25e9,
        "cpu_memory_bytes_per_s": 50e9,
    }  # fmt: skip
    resident = optimizer_seconds(1e9, 0.0, 1, 0.0, **common)
    assert resident == pytest.approx(50e9 / 2e12 + 3e-3)
    assert optimizer_seconds(1e9, 0.0, 1, 1.0, **common) == pytest.approx(6e9 / 25e9 + 1.0 + 3e-3)
    assert resident < optimizer_seconds(1e9, 0.0, 1, 0.5, **common) < optimizer_seconds(1e9, 0.0, 1, 1.0, **common)


def test_bubble_is_narayanans() -> None:
    # Narayanan et al. 2021, section 2.2: bubble over ideal time = (p - 1) / (m v) for equal stages.
    for p, m, v in ((8, 64, 1), (8, 64, 3), (64, 512, 1)):
        stage = 0.37
        bubble = pipeline_bubble_seconds(stage, p * stage, v)
        assert bubble / (m * stage) == pytest.approx((p - 1) / (m * v))
    assert pipeline_bubble_seconds(0.5, 0.5, 1) == 0.0


def test_the_optimizer_zeroes_the_gradients_that_it_does_not_update():
    common = {
        "numerics": Numerics(), "stack": load_stack("transformer-engine").time, "hbm_bytes_per_s": 2e12,
        "host_bytes_per_s": 25e9, "cpu_memory_bytes_per_s": 50e9,
    }  # fmt: skip
    seconds = {(held, each): optimizer_seconds(1e9, held, 1, 0.0, gradient_bytes=each, **common)
               for held in (0.0, 8e9) for each in (2, 4)}  # fmt: skip
    for each in (2, 4):
        assert seconds[8e9, each] - seconds[0.0, each] == pytest.approx(8e9 * each / 2e12)


@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_are_reduced_beside_the_backward_of_the_first_stage(vpp):
    """One layer's bucket has nothing to hide behind; of 1,000 s all of the backward hides the rest but for its interference."""
    job, _ = job_and_shapes(f"tp=2,pp=2,vpp={vpp},mbs=1,sp=1", seq=4096)
    layouts = job.scenario.layouts([parse_plan(f"tp=2,pp=2,vpp={vpp},mbs=1,sp=1", 8)])
    rows = StepTimes.of(job, layouts, [NONE]).rows(np.array([0]))
    rows = replace(rows, reduction=np.array([1000.0]), gather=np.array([1000.0]))
    found, table, kept = schedule(job, rows, compute_seconds(job, rows)), rows.table, 1 - job.software.overlap_interference
    forward = float(16 * table.forward[0][0] + table.embedding[0][0])  # 16 layers and the embedding
    backward = float(16 * table.backward[0][0] + table.embedding[1][0])
    times = 2 if vpp > 1 else 1  # the other chunks compute for two micro-batches
    assert 1000 - found.reduction.item() == pytest.approx(kept * times * (found.stages[0].item() - forward))
    assert found.stages[0].item() - forward == pytest.approx(backward) and backward > forward
    assert 1000 - found.gather.item() == pytest.approx(kept * times * forward)


@tabled
def test_members_of_a_group_in_a_domain(size, stride, domain, local, domains):
    found = group_of(size, stride, domain)
    assert (float(found.local), float(found.domains)) == (local, domains)


SLOW_LINKS = Links(
    link_bytes_per_s=400.0, nic_bytes_per_s=50.0, nic_hop_s=1.0, size_ranks=(2, 4, 8), size_alpha=(0.25, 0.5, 1.0),
    size_bandwidth=(0.5, 0.75, 1.0),
    collectives={kind: SimpleNamespace(alpha_s=8.0, link_share=0.5, sqrt_s=0.25) for kind in (
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")},
)  # fmt: skip


@pytest.mark.parametrize(("kind", "size", "stride", "seconds"), [
    # 10,000 bytes: 25 of the root; alpha 8 x (0.25, 0.5, 1); 200 B/s x (0.5, 0.75, 1) on the links, 50 a card
    ("all_gather", 2, 1, 2 + 5_000 / 100 + 25), ("all_reduce", 2, 1, 2 + 10_000 / 100 + 25),
    ("reduce_scatter", 4, 1, 4 + 7_500 / 150 + 25), ("all_gather", 8, 1, 8 + 8_750 / 200 + 25), ("all_gather", 1, 1, 0),
    ("all_gather", 4, 8, 4 + 3 + 7_500 / 50 + 25), ("all_reduce", 4, 8, 4 + 6 + 15_000 / 50 + 25),
    ("all_gather", 4, 4, 4 + 1 + 7_500 / 100 + 25), ("all_gather", 32, 2, 8 + 7 + 10_000 * 31 / 32 / 150 + 25),
    ("all_to_all", 4, 1, 4 + 7_500 / 150 + 25), ("all_to_all", 4, 4, 4 + 1 + max(2_500 / 100, 5_000 / 50) + 25),
    ("all_to_all", 16, 1, 8 + 1 + max(10_000 * 7 / 16 / 200, 5_000 / 50) + 25),
])  # fmt: skip
def test_collectives(kind, size, stride, seconds):
    """Inside a domain of 8 and over several: a hop for each further one, two of an all-reduce, and the cards of the members."""
    assert float(collective_seconds(kind, 10_000.0, group_of(size, stride, 8), SLOW_LINKS)) == pytest.approx(seconds)


@pytest.mark.parametrize(("communication", "compute", "exposed"), [(4.0, 10.0, 1.0), (10.0, 4.0, 7.0), (4.0, 0.0, 4.0)])
def test_what_is_exposed_beside_compute(communication, compute, exposed):
    assert exposed_seconds(communication, compute, 0.25) == exposed


IDEAL = CollectiveEfficiency(alpha_s=0.0, link_share=1.0, sqrt_s=0.0)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
LINKS = Links(
    link_bytes_per_s=300e9, nic_bytes_per_s=20e9, nic_hop_s=0.0, collectives=dict.fromkeys(KINDS, IDEAL),
    size_ranks=(2.0, 4.0, 8.0), size_alpha=(1.0, 1.0, 1.0), size_bandwidth=(1.0, 1.0, 1.0),
)  # fmt: skip


def test_all_to_all_over_nodes_is_bound_by_the_own_card() -> None:
    seconds = collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS)
    assert seconds == pytest.approx(56 / 64 * 1e9 / 20e9)
    assert collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS) == pytest.approx(7 / 8 * 1e9 / 300e9)
    assert collective_seconds("all_to_all", 1e9, group_of(64, 1, 8), LINKS, outside_share=0.5) == pytest.approx(seconds / 2)
    inside = collective_seconds("all_to_all", 1e9, group_of(8, 1, 8), LINKS, inside_share=0.5)
    assert inside == pytest.approx(7 / 16 * 1e9 / 300e9)


def test_a_ring_on_slow_wires_takes_less_of_the_gpu() -> None:
    assert rate_share("all_gather", group_of(8, 1, 8), LINKS) == 1.0
    assert rate_share("all_gather", group_of(16, 8, 8), LINKS) == pytest.approx(20 / 300)
    assert rate_share("all_gather", group_of(16, 1, 8), LINKS) == pytest.approx(160 / 300)


def test_a_send_takes_its_bytes_over_the_link_or_the_card() -> None:
    assert send_seconds(1e9, True, LINKS) == pytest.approx(0.05)
    assert send_seconds(1e9, False, LINKS) == pytest.approx(1e9 / 300e9)


def test_megatron_rank_order_decides_the_links() -> None:
    model, cluster = load_model("gpt3-175b"), cluster_of(load_gpu("a100-80gb"), 1024)
    plans = [parse_plan(text, 1024) for text in ("tp=8,pp=8", "tp=2,cp=2,pp=8", "tp=16,pp=8", "tp=1,pp=1")]
    layouts = layouts_of(plans, model, 1024)
    assert tensor_group(layouts, cluster).local.tolist() == [8, 2, 8, 1]
    assert tensor_group(layouts, cluster).domains.tolist() == [1, 1, 2, 1]
    assert context_group(layouts, cluster).local.tolist() == [1, 2, 1, 1]
    assert data_group(layouts, cluster).size.tolist() == [16, 64, 8, 1024]
    assert data_group(layouts, cluster).local.tolist() == [1, 4, 1, 8]
    assert pipeline_crosses(layouts, cluster).tolist() == [True] * 4


def test_expert_groups_are_carved_out_of_the_data_parallel_ranks() -> None:
    model, cluster = load_model("mixtral-8x7b"), cluster_of(load_gpu("h100"), 64)
    layouts = layouts_of([parse_plan("tp=2,pp=2,ep=8,mbs=1,sp=1", 64)], model, 256)
    group = expert_group(layouts, cluster)
    assert (group.size.item(), group.local.item()) == (8, 8)
    rest = expert_data_group(layouts, cluster)  # edp = tp cp dp / (etp ep) = 2 x 16 / 8
    assert (rest.size.item(), rest.local.item()) == (4, 1)
    sliced = layouts_of([parse_plan("tp=2,pp=2,ep=8,etp=2,mbs=1,sp=1", 64)], model, 256)
    assert expert_group(sliced, cluster).local.item() == 4  # every second rank: 4 of 8 share a node


def test_every_further_link_domain_adds_a_hop_and_an_all_reduce_passes_it_twice():
    job, _ = job_and_shapes("tp=1", gpus=64)
    links = links_of(job.cluster, job.gpu)
    for kind, hops in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        empty = [float(collective_seconds(kind, 0.0, group_of(size, 1, 8), links)) for size in (8, 16, 64)]
        start = [now - empty[0] for now in empty]  # start-up is that of 8 ranks from 8 on
        assert start == pytest.approx([0, hops * links.nic_hop_s, 7 * hops * links.nic_hop_s]), kind


def test_sharded_reduction_moves_half_of_an_all_reduce() -> None:
    group = group_of(16, 8, 8)
    whole = reduction_communication(1e9, group, LINKS, 4, False)
    assert reduction_communication(1e9, group, LINKS, 4, True) == pytest.approx(whole / 2)
    assert reduction_communication(1e9, group, LINKS, 2, False) == pytest.approx(whole / 2)
    assert embedding_gradient_seconds(1e9, 1, True, 4, LINKS) == 0.0
    assert embedding_gradient_seconds(1e9, 4, True, 4, LINKS) == pytest.approx(0.2)


def test_constants_between_measured_sizes_are_linear_in_the_logarithm():
    assert [float(small_group_factor(n, (2.0, 8.0), (1.0, 3.0))) for n in (1, 2, 4, 8, 64)] == [1, 1, 2, 3, 3]
