"""Layers with experts: which dispatcher a run uses, what it moves, what the host launches, what overlaps."""

import dataclasses
import math

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.run_settings import GivenSettings, RunSettings, read_graphs
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import DISPATCHERS, SoftwareStack, load_stack
from autoconfig.time_model.collectives import Group, collective_seconds
from autoconfig.time_model.job import TrainingJob, shapes_of
from autoconfig.time_model.operators.kernels import gemm_seconds, grouped_gemm_seconds, layer_launch_seconds
from autoconfig.time_model.operators.listing import OperatorRow, explain_operators
from autoconfig.time_model.operators.moe import (
    expert_exchange_seconds,
    expert_rows,
    permute_bytes,
    places_in_turn,
    places_reached,
)
from autoconfig.time_model.operators.operator import GemmShape, fp8_casts
from autoconfig.time_model.predict import StepTimes, estimate_step_time
from tables import tabled

QWEN = load_model("qwen3-30b-a3b")
FP8 = Numerics(precision="fp8", fp8_param_gather=True, grad_reduce_dtype="bf16", attention_dropout=0.0, hidden_dropout=0.0)
BATCH = Workload(seq_length=4096, global_batch_size=512)


def _scenario(stack: SoftwareStack, gpu: str, numerics: Numerics = FP8, gpus: int = 16, model: ModelSpec = QWEN) -> Scenario:
    cluster = cluster_of(load_gpu(gpu), gpus)
    return Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=BATCH)


def _job(stack: str, gpu: str, numerics: Numerics = FP8) -> TrainingJob:
    return TrainingJob.of(_scenario(load_stack(stack), gpu, numerics))


@pytest.mark.parametrize(
    ("recipe", "kernels"), [("delayed", 0), ("tensorwise", 3), ("blockwise", 1), ("mxfp8", 1), ("nvfp4", 2)]
)
def test_experts_are_cast_one_by_one(recipe: str, kernels: int) -> None:
    """Sixteen experts of 256 rows cast what one of 4,096 does, and start 15 x 2 tensors' kernels more, 3 us each: twice (fc1,
    fc2) forward, twice backward; fused experts start none, nor does a dense layer."""
    form = {"precision": "nvfp4"} if recipe == "nvfp4" else {"fp8_recipe": recipe}
    job = _job("nemo-26.04", "b200", dataclasses.replace(FP8, **form))  # type: ignore[arg-type]

    def seconds(experts: int, *, grouped: bool = True, fused: bool = False) -> tuple[float, float]:
        rows = {"m": 4096.0 / experts, "groups": float(experts), "grouped": grouped}
        gemms = [GemmShape(name="fc1", n=1536.0, k=2048.0, **rows), GemmShape(name="fc2", n=2048.0, k=768.0, **rows)]  # type: ignore[arg-type]
        (cast,) = fp8_casts(job, "experts casts", gemms, fused=fused)
        return float(cast.forward), float(cast.dgrad)

    for one, many in zip(seconds(1), seconds(16), strict=True):
        assert many - one == pytest.approx(15 * 2 * kernels * 3e-6, abs=1e-12)
    assert seconds(1, fused=True) == pytest.approx(seconds(16, fused=True))
    assert seconds(1, grouped=False) == pytest.approx(seconds(16, grouped=False))


def _exchange(dispatcher: str, gpu: str, ep: int, gpus: int, model: ModelSpec = QWEN) -> tuple[float, float]:
    scenario = _scenario(load_stack("transformer-engine"), gpu, dataclasses.replace(FP8, moe_capacity_factor=1.0), gpus, model)
    scenario = dataclasses.replace(scenario, given=GivenSettings(dispatcher=dispatcher))
    job = TrainingJob.of(scenario)
    shapes = shapes_of(scenario.layouts([parse_plan(f"tp=1,pp=1,ep={ep},mbs=1", gpus)]), job)
    forward, backward, _ = expert_exchange_seconds(job, shapes)
    return float(forward[0]), float(backward[0])


def test_hybridep_sends_one_copy_to_each_rank_and_gathers_the_routing_map() -> None:
    forward, backward = _exchange("hybridep", "gb200", 8, 8)
    copies = 8 * (1 - (7 / 8) ** 8)
    tokens, weights = 4096 * 2048 * 2, 4096 * 128 * 4
    to_others = copies * (1 - 1 / 8)
    assert backward == pytest.approx((2 * tokens + weights) * to_others / (0.87 * 900e9) + 2 * (3e-9 * 4096 * copies + 50e-6))
    routing = 8 * 4096 * 128
    assert forward - backward == pytest.approx(routing * (1 / (0.87 * 900e9) + 2 / 8e12))


@pytest.mark.parametrize(("ranks", "dispatch_ms", "combine_ms"), [(8, 0.403, 0.418), (16, 0.536, 0.569), (32, 0.655, 0.696)])
def test_hybridep_kernels_take_what_its_table_says(ranks: int, dispatch_ms: float, combine_ms: float) -> None:
    """Bytes received over GB/s of docs/README_Hybrid-EP.md (deepseek-ai/DeepEP, hybrid-ep): GB200, 32 SMs, kernels only."""
    model = dataclasses.replace(QWEN, hidden_size=7168, num_moe_experts=8 * ranks)
    both = _exchange("hybridep", "gb200", ranks, ranks, model)[1] - 2 * 50e-6
    weights = 4 * 8 * ranks / (2 * 2 * 7168)  # those of one way, which the table is without
    assert both / (1 + weights) == pytest.approx((dispatch_ms + combine_ms) * 1e-3, rel=0.02)


def _counted_copies(domains: int, experts: int, topk: int = 8) -> float:
    """Domains that hold one of a token's experts, its own among them: what DeepEP's tests count as sent over the network."""
    return domains * (1 - math.comb(experts - experts // domains, topk) / math.comb(experts, topk))


@tabled
def test_over_the_network_dispatchers_reach_the_rates_of_their_tables(
    dispatcher: str, ranks: int, dispatch_gb_s: float, combine_gb_s: float
) -> None:
    """GB/s with the local domain's copies counted, 4,096 tokens of 7,168 (deepseek-ai/DeepEP, hybrid-ep: README.md on H800,
    docs/README_Hybrid-EP.md on H100, 16 SMs, kernels only); both have cards of 50 GB/s and 8 GPUs a domain."""
    model = dataclasses.replace(QWEN, hidden_size=7168, num_moe_experts=8 * ranks)
    start, weights = {"deepep": (60e-6, 0.0), "hybridep": (50e-6, 4 * 8 * 8 / (2 * 2 * 7168))}[dispatcher]
    both = (_exchange(dispatcher, "h100", ranks, ranks, model)[1] - 2 * start) / (1 + weights)
    counted = _counted_copies(ranks // 8, 8 * ranks) * 4096 * 7168 * 2
    assert both == pytest.approx(counted / (dispatch_gb_s * 1e9) + counted / (combine_gb_s * 1e9), rel=0.03)


def test_over_the_network_the_slower_of_links_and_cards_decides() -> None:
    """DeepEP on one board: its links; to two domains: the card, which is slower."""
    copies = 8 * (1 - (7 / 8) ** 8)
    deep = _exchange("deepep", "h100", 8, 8)[1]
    assert deep == pytest.approx(2 * (4096 * 2048 * 2 * copies / (0.87 * 450e9) + 2.7e-9 * 4096 * copies + 60e-6))
    over = 2 * (1 - 1 / 2**8) * (1 - 1 / 2)
    deep = _exchange("deepep", "h100", 16, 16)[1]
    assert deep == pytest.approx(2 * (4096 * 2048 * 2 * over / (0.88 * 50e9) + 60e-6))


@pytest.mark.parametrize(
    ("gpu", "ranks", "width", "gb_s"),
    [
        ("h100", 8, 2048, 312),
        ("h100", 8, 7168, 365),
        ("b200", 8, 2048, 241),
        ("b200", 8, 7168, 416),
        ("gb200", 4, 7168, 326),
    ],
)
def test_deepep_on_one_board_takes_what_its_table_says(gpu: str, ranks: int, width: int, gb_s: float) -> None:
    """GB/s of combine that arrive at a rank, 20 SMs (aiconfigurator-core 0.12.0, DeepEP tables): within the spread of GB200's
    and B200's, which share links and constants."""
    model = dataclasses.replace(QWEN, hidden_size=width)
    one_way = _exchange("deepep", gpu, ranks, ranks, model)[1] / 2 - 60e-6
    arrives = 4096 * width * 2 * ranks * (1 - (1 - 1 / ranks) ** 8)
    assert arrives / one_way == pytest.approx(gb_s * 1e9, rel=0.02 if gpu == "h100" else 0.18)
    slower = max(_exchange(kind, "h100", 32, 32)[1] for kind in ("deepep", "hybridep"))
    assert _exchange("alltoall", "h100", 32, 32)[1] > 1.5 * slower


def test_every_dispatcher_costs_nothing_for_one_rank_and_allgather_grows_with_the_group() -> None:
    for dispatcher in DISPATCHERS:
        assert _exchange(dispatcher, "h100", 1, 8) == (0.0, 0.0)
    assert _exchange("allgather", "h100", 8, 8)[1] > 3 * _exchange("allgather", "h100", 2, 8)[1]
    job, whole = _job("transformer-engine", "h100"), 8 * 4096 * 2048 * 2  # every token of 8 ranks
    group = Group(size=8.0, local=8.0)
    both = sum(float(collective_seconds(kind, whole, group, job.links)) for kind in ("all_gather", "reduce_scatter"))
    assert _exchange("allgather", "h100", 8, 8)[1] == pytest.approx(both)


def _step(plan: str, gpu: str, settings: GivenSettings, recompute: str = "none") -> tuple[float, dict[str, float]]:
    parsed = parse_plan(f"{plan},recompute={recompute}", 16)
    scenario = dataclasses.replace(_scenario(load_stack("nemo-26.04"), gpu), given=settings)
    found = estimate_step_time(scenario, scenario.layouts([parsed]), [parsed.recompute], detail=True)
    return float(found.step_seconds[0, 0]), {name: float(value[0, 0]) for name, value in found.parts.items()}


NO_GRAPHS = read_graphs("none")
PLAIN = GivenSettings(dispatcher="alltoall", cuda_graphs=NO_GRAPHS, ep_overlap=False, fused_experts=False, fp8_attention=False)
OVERLAP = dataclasses.replace(PLAIN, ep_overlap=True)


def test_overlap_hides_a_share_of_the_exchange_where_its_schedule_can_run() -> None:
    time = load_stack("nemo-26.04").time
    exposed = 1 - time.ep_overlap_hides * (1 - time.overlap_interference)
    for stages, share in (("pp=2,vpp=2", exposed), ("pp=1", exposed), ("pp=2", 1.0)):
        plan = f"tp=1,{stages},ep=8,mbs=1"
        with_it, without = (_step(plan, "h100", given)[1]["expert_exchange_seconds"] for given in (OVERLAP, PLAIN))
        assert with_it == pytest.approx(share * without)


@tabled
def test_recomputation_runs_without_the_graphs_that_megatron_refuses_beside_it(recompute: str, scope: str, left: str) -> None:
    plan = "tp=1,pp=2,ep=8,mbs=1"
    asked, without = (
        _step(plan, "h100", dataclasses.replace(PLAIN, cuda_graphs=read_graphs(graphs)), recompute)[0]
        for graphs in (scope, left)
    )
    assert asked == pytest.approx(without)
    assert left == scope or asked > 1.02 * _step(plan, "h100", dataclasses.replace(PLAIN, cuda_graphs=read_graphs(scope)))[0]


@pytest.mark.parametrize("recompute", ["full:uniform:1", "full:block:2", "selective:moe"])
def test_recomputed_experts_hide_nothing(recompute: str) -> None:
    plan = "tp=1,pp=2,vpp=2,ep=8,mbs=1"
    assert _step(plan, "h100", OVERLAP, recompute)[0] == pytest.approx(_step(plan, "h100", PLAIN, recompute)[0])
    assert _step(plan, "h100", OVERLAP)[0] != pytest.approx(_step(plan, "h100", PLAIN)[0], rel=0.01)


def test_fused_experts_leave_no_activation_fewer_casts_and_one_launch() -> None:
    stack = load_stack("nemo-26.04")
    fused = dataclasses.replace(PLAIN, fused_experts=True)
    seconds = [_step("tp=1,pp=1,ep=8,mbs=1", "b200", given)[1] for given in (PLAIN, fused)]
    assert seconds[1]["pointwise_seconds"] < seconds[0]["pointwise_seconds"]
    assert seconds[1]["grouped_gemm_seconds"] == seconds[0]["grouped_gemm_seconds"]
    loop, one = (layer_launch_seconds(stack.time, RunSettings(fused_experts=on), 16.0, quantised=True) for on in (False, True))
    assert loop - one == pytest.approx(15 * stack.time.expert_host_seconds)


def test_fp8_attention_and_sinks_scale_the_core_attention() -> None:
    plan = "tp=1,pp=1,ep=8,mbs=1"
    plain, fp8 = (
        _step(plan, "b200", dataclasses.replace(PLAIN, fp8_attention=on))[1]["flash_attention_seconds"] for on in (False, True)
    )
    assert fp8 == pytest.approx(0.85 * plain)
    oss = load_model("gpt-oss-120b")
    without = oss.replace(published_parameters=None, attention_sinks=False)
    sinks, none = (_operators(model)["core attention"].forward_seconds for model in (oss, without))
    slower = load_stack("transformer-engine").time.sink_attention_slowdown
    assert sinks == pytest.approx(slower * none, rel=0.01)  # busier matrix units: a clock 0.3 % lower


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


def test_a_grouped_gemm_is_a_dense_one_of_all_rows_at_a_share_that_grows_with_them() -> None:
    rows = _operators(QWEN)
    fc1 = rows["experts.linear_fc1"]
    m = 4096 * 8 * load_stack("transformer-engine").time.moe_imbalance / 16
    job = _job("transformer-engine", "h100")
    dense = gemm_seconds(
        16 * m, 1536.0, 2048.0, flops_per_s=job.gemm_rate(False, job.gpu.tables.gemm["bf16"]),
        hbm_bytes_per_s=job.hbm_bytes_per_s, num_sms=132, constants=job.gpu.gemm, table=job.gpu.tables.gemm["bf16"],
    )  # fmt: skip
    assert fc1.forward_seconds == pytest.approx(float(dense) / (0.86 * m / (m + 96)))
    assert grouped_gemm_seconds(1.0, 96.0, 1.0) == 2.0


def test_a_rank_with_one_expert_runs_a_dense_gemm() -> None:
    """What grouped GEMMs reach of dense ones says nothing of Mixtral's eight experts on eight ranks; it does on four."""
    assert list(grouped_gemm_seconds(np.ones(2), 96.0, 0.5, np.array([1.0, 2.0]))) == [1.0, 4.0]
    model = load_model("mixtral-8x7b")
    stack = load_stack("transformer-engine")
    slow = dataclasses.replace(stack, time=dataclasses.replace(stack.time, grouped_gemm_share=0.43))
    drops = dataclasses.replace(FP8, moe_capacity_factor=1.0)  # no host that waits for rows lets the clock rise
    for ep, times in ((8, 1.0), (4, 2.0)):
        usual, half = (
            explain_operators(_scenario(one, "h100", drops, model=model), parse_plan(f"tp=1,pp=1,ep={ep},mbs=1", 16))
            for one in (stack, slow)
        )
        fc1, slower = (
            next(row.forward_seconds for row in rows if row.operator == "experts.linear_fc1") for rows in (usual, half)
        )
        assert slower == pytest.approx(times * fc1, rel=0.06 if times > 1 else 1e-9)


def test_fsdp_of_experts_over_the_network_leaves_the_gpu_to_its_kernels() -> None:
    model = QWEN.replace(published_parameters=None, num_layers=2)
    scenario = _scenario(load_stack("transformer-engine"), "h100", gpus=64, model=model)
    exposed = []
    for interference in (0.7, 0.0):
        gpu = dataclasses.replace(_job("transformer-engine", "h100").gpu, fsdp_interference=interference)
        job = TrainingJob.of(scenario)
        job.__dict__["gpu"] = gpu
        plan = parse_plan("tp=1,pp=1,ep=8,mbs=1,fsdp=3", 64)
        layouts = scenario.layouts([plan])
        exposed.append(StepTimes.of(job, layouts, [plan.recompute]).rows(np.arange(1)))
    one_a_node, none = (float(rows.fsdp_interference[-1][0]) for rows in exposed)
    assert none == 0.0
    assert 0.0 < one_a_node < 0.35  # nearly all bytes are experts', on a ring of one card a node


@tabled
def test_copies_of_a_permuted_row(dispatcher, local, padded, each):
    assert permute_bytes(dispatcher, np.float64(local), padded=padded) == each


@pytest.mark.parametrize(("ep", "rows", "one"), [(4, 1200, 300), (16, 1200, 1200), (32, 1200, 1200)])
def test_rows_of_experts(ep, rows, one):
    assert expert_rows(100.0, 4, 16, ep=ep, etp=2, imbalance=1.5) == (rows, one)


@pytest.mark.parametrize(("places", "topk", "reached"), [(1, 8, 1), (2, 1, 1), (2, 2, 1.5), (4, 2, 1.75)])
def test_places_that_a_token_reaches(places, topk, reached):
    assert places_reached(places, topk) == pytest.approx(reached)


@pytest.mark.parametrize(
    ("places", "topk", "experts"), [(8, 8, 128), (64, 8, 256), (64, 22, 512), (8, 6, 160), (4, 3, 8), (1, 4, 32)]
)
def test_places_of_experts_in_turn(places, topk, experts):
    """Counted token by token, as torchtitan's debug.moe_force_load_balance sends them."""
    chosen = np.arange(experts * topk).reshape(experts, topk) % experts
    each = [len(set(row // (experts // places))) for row in chosen]
    assert places_in_turn(np.float64(places), topk, experts) == pytest.approx(np.mean(each))


def test_experts_in_turn_lie_in_one_node() -> None:
    """256 experts over 8 boards, 8 next to each other for a token: one board, which is another one for 7 of 8 tokens."""
    model = dataclasses.replace(QWEN, num_moe_experts=256)
    job = _job("automodel", "h100", Numerics(moe_imbalance=1.0))
    assert not _job("nemo-26.04", "h100", Numerics(moe_imbalance=1.0)).routes_in_turn
    assert not _job("automodel", "h100", Numerics()).routes_in_turn
    scenario = dataclasses.replace(job.scenario.on(num_gpus=64), model=model)
    shapes = shapes_of(scenario.layouts([parse_plan("ep=64,mbs=1,fsdp=3", 64)]), job := TrainingJob.of(scenario))
    sent = 4096 * 2048 * 2 * (7 / 8) / (0.88 * 50e9)
    assert float(expert_exchange_seconds(job, shapes)[1][0]) == pytest.approx(2 * (sent + 60e-6))
