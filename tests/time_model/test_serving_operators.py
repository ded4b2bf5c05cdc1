"""Operators, queues and lengths of serving by hand: tables that reach the roofline leave bytes over bandwidth and FLOPs."""

import dataclasses
import heapq
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import kernel_age, load_engine, module_formats
from autoconfig.time_model.serving import ideal, sparse
from autoconfig.time_model.serving.costs import cache_table, decode_attention_seconds, head_dim, prefill_attention_seconds
from autoconfig.time_model.serving.iteration import IterationTable, graph_rows, iteration_parts, iteration_seconds
from autoconfig.time_model.serving.recurrent import decode_seconds, pointwise_bytes, widths
from autoconfig.time_model.serving.rows import ServingJob, block_communication_seconds, experts_seconds, reduce_seconds
from autoconfig.time_model.serving.simulation import Requests, SchedulerLimits, sampled_lengths, simulate
from autoconfig.time_model.serving.steady import (
    cut_normal_mean,
    highest_utilisation_within,
    prompts_per_iteration,
    waiting_prompts,
    waiting_services,
)
from autoconfig.time_model.serving.tables import FOLDER, AllReduceTable, EngineConstants, ServingCalibration
from autoconfig.time_model.serving.workload import stored_elements
from small_models import B200, GATED, GPT, H100, H200, HYBRID
from tables import tabled

HBM, PEAK = H100.hbm_bytes_per_s, H100.flops_per_s["bf16"]


def at_roofline(name: str, **changes: Any) -> Any:
    """A serving job of one GPU, 16-bit weights and cache, whose tables say 1 everywhere."""
    table = SimpleNamespace(at=lambda *sizes: 1.0)
    names = ("bf16:64", "bf16:128", "decode:bf16", "context:bf16")
    tables = SimpleNamespace(
        decode_attention=dict.fromkeys(names, table), context_attention=dict.fromkeys(names, table),
        latent_attention=dict.fromkeys(names, table),
    )  # fmt: skip
    return SimpleNamespace(
        model=load_model(name), plan=EnginePlan(), engine=load_engine("trtllm-1.2"), gpu=H100, tables=tables,
        formats=SimpleNamespace(attention="bf16"), constants=EngineConstants(), **changes,
    )  # fmt: skip


@pytest.mark.parametrize("sequences", [1, 64, 4096])
@pytest.mark.parametrize("length", [1, 100, 5000])
def test_decode_reads_the_cache_of_each_sequence(sequences, length):
    """Llama-3-8B: 32 layers with 8 heads of keys and of values, 128 wide, in 16 bits; queries in, outputs out of 32 heads."""
    traffic = 2 * 8 * length * 128 * 2 + 2 * 32 * 128 * 2
    found = decode_attention_seconds(at_roofline("llama3-8b"), np.array([float(sequences), 0.0]), float(length))
    assert found.tolist() == pytest.approx([32 * sequences * traffic / HBM, 0])


@pytest.mark.parametrize("length", [100, 128, 1000])
def test_decode_of_sliding_layers_reads_the_window(length):
    """gpt-oss-20b: 12 of 24 layers see 128 tokens; 8 heads of keys and values 64 wide, 64 of queries."""
    traffic = sum(2 * 8 * seen * 64 * 2 + 2 * 64 * 64 * 2 for seen in (length, min(length, 128)))
    found = decode_attention_seconds(at_roofline("gpt-oss-20b"), 16.0, float(length))
    assert float(found) == pytest.approx(12 * 16 * traffic / HBM)


@pytest.mark.parametrize("length", [200, 1000, 8000])
def test_prefill_of_sliding_layers_sees_the_window(length):
    """Of s^2 / 2 pairs a window of w < s / 2 leaves s w; 4 FLOPs a pair and channel, of 64 heads 64 wide."""
    full = 2 * 64 * 64 * length * (length + 1) / PEAK
    moved = length * 64 * (4 * 64 + 6 * 8) / HBM
    found = prefill_attention_seconds(at_roofline("gpt-oss-20b"), np.array([3.0, 0.0]), float(length))
    whole = 3 * max(full, moved)
    assert found.tolist() == pytest.approx([12 * whole * (1 + min(1, 256 / length)), 0])


def test_sparse_prefill_by_hand():
    """16,384 tokens, 2,048 chosen of what came before; 64 indexer heads of 128; latents of 512 and 64, summed over 512."""
    model, s, k, fast = load_model("deepseek-v3.2"), 16384, 2048, 1e30
    before, chosen = s * s / 2, s * k - k * k / 2
    for peaks, hbm, expected in (
        ({"fp8": 1e15, "bf16": fast}, fast, 2 * 64 * 128 * before / 1e15), ({"bf16": 1e15, "fp8": fast}, fast,
         2 * 16 * (512 + 64 + 512) * chosen / 1e15), ({"bf16": fast, "fp8": fast}, 1e12, 2 * 4 * before / 1e12),
    ):  # fmt: skip
        gpu = replace(H100, flops_per_s=peaks, hbm_bytes_per_s=hbm)
        share = sparse.HBM if hbm == 1e12 else sparse._rates(gpu)[0] / peaks["fp8"]
        found = float(sparse.sparse_prefill_seconds(model, 3.0, 16.0, float(s), gpu)) - sparse.KERNELS_S
        assert found == pytest.approx(3 * expected / share, rel=1e-6)


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0])
def test_sampled_lengths_scatter_as_asked(cv):
    found = sampled_lengths(1000.0, cv, 1e6, 200_000, np.random.default_rng(5))
    assert found.mean() == pytest.approx(1000, rel=0.02) and found.std() / found.mean() == pytest.approx(cv, rel=0.02)
    assert found.min() >= 1 and sampled_lengths(1000.0, cv, 900.0, 1000, np.random.default_rng(5)).max() == 900
    assert sampled_lengths(7.4, 0.0, 5.0, 3, np.random.default_rng(5)).tolist() == [7, 7, 7]


def test_a_request_holds_what_was_cached_what_it_asks_and_what_it_gets():
    """100 cached, 100 new and 200 answered: 400 of the cache each, so that 799 take one at a time and 800 take two."""
    table = IterationTable.__new__(IterationTable)
    table.seconds = lambda *state: 1.0  # type: ignore[method-assign]
    requests = Requests(arrival_s=np.zeros(4), isl=np.full(4, 100.0), osl=np.full(4, 200.0), cached=np.full(4, 100.0))
    found = {
        tokens: simulate(table, requests, SchedulerLimits(batch=8, tokens=8192, kv_tokens=tokens)) for tokens in (799.0, 800.0)
    }
    assert found[799.0].duration_s == 4 * 200 and found[800.0].duration_s == 2 * 200  # a prefill and 199 steps
    assert sorted(found[799.0].ttft_s.tolist()) == [1, 201, 401, 601] and set(found[799.0].tpot_s.tolist()) == {1.0}


def test_an_all_reduce_by_hand():
    """Start-up of 1 to 3 us, then a 100th of a second per MB at 2, 4 and 8 ranks; links of 100 GB/s."""
    sizes, ranks = np.array([1e3, 1e6, 1e8]), np.array([2.0, 4.0, 8.0])
    seconds = np.array([[start, start + 1e-5, start + 1e-3] for start in (1e-6, 2e-6, 3e-6)])
    table = AllReduceTable(ranks=ranks, log_bytes=np.log(sizes), log_seconds=np.log(seconds), link_bytes_per_s=1e11)
    assert float(table.seconds(2, 10.0)) == pytest.approx(1e-6) and float(table.seconds(8, 1e6)) == pytest.approx(1.3e-5)
    assert float(table.seconds(4, 1e3, 5e10)) == pytest.approx(2e-6)  # another link: start-up stays
    assert float(table.seconds(4, 1e8, 1e10)) == pytest.approx(2 * 3 / 4 * 1e8 / 1e10)  # no faster than the ring
    assert float(table.seconds(8, 1e8, 5e10)) == pytest.approx(max(3e-6 + 2 * 1e-3, 2 * 7 / 8 * 1e8 / 5e10))
    assert float(table.seconds(16, 10.0)) == pytest.approx(3e-6 + 1e-6)  # one more doubling
    assert float(table.seconds(32, 10.0)) == pytest.approx(3e-6 + 2e-6)
    assert float(table.seconds(16, 1e8)) == pytest.approx(4e-6 + 1e-3 * (15 / 16) / (7 / 8))


@pytest.mark.parametrize(("users", "slots"), [(50.0, 200.0), (200.0, 200.0), (500.0, 200.0)])
def test_prompts_that_wait_in_a_closed_loop(users, slots):
    """Each user decodes through 200 iterations of random number and asks again; one prompt an iteration is served."""
    rng, steps = np.random.default_rng(3), 200.0
    left = rng.exponential(steps, int(users)).tolist()
    heapq.heapify(left)
    queue, seen, now = 0, [], 0.0
    for _ in range(60_000):
        now += 1.0
        while left and left[0] <= now:
            heapq.heappop(left)
            queue += 1
        if queue:
            queue -= 1
            heapq.heappush(left, now + rng.exponential(steps))
        seen.append(queue)
    assert float(waiting_prompts(users, slots, 1.0, 1.0)) == pytest.approx(np.mean(seen[6_000:]), rel=0.15, abs=0.1)
    assert float(waiting_prompts(users, slots, 1.0, 0.0)) == pytest.approx(max(users - slots, 0.0), abs=1e-4)


def test_mean_of_a_normal_law_cut_at_0():
    means = np.array([-400.0, -60.0, -16.1, -15.9, -4.0, 0.0, 1.0, 15.9, 16.1, 50.0])
    found = cut_normal_mean(means, 2.0 * np.ones(10))
    assert found == pytest.approx(scipy.stats.truncnorm.mean(-means / 2.0, np.inf, loc=means, scale=2.0), rel=2e-3)


@pytest.mark.parametrize(("kv", "each"), [("bf16", 2), ("fp8", 1)])
def test_latent_decode_reads_latent_and_rope_and_moves_queries_and_outputs(kv, each):
    heads, length = 1, 4  # so short and few that memory binds
    traffic = length * (512 + 64) * each + 2 * heads * (512 + 64 + 512)  # 16-bit queries in the latent's width, outputs
    assert ideal.latent_decode_seconds(3.0, heads, length, kv, H200) == pytest.approx(3 * traffic / H200.hbm_bytes_per_s)
    flops = 2 * 128 * 4096 * (512 + 64 + 512)  # scores over latent and rope, sums over the latent
    found = ideal.latent_decode_seconds(3.0, 128, 4096, kv, replace(H200, hbm_bytes_per_s=1e18))
    assert found == pytest.approx(3 * flops / H200.flops_per_s["bf16"])


def test_a_bilinear_table_gives_a_bilinear_function_exactly():
    def plane(x, y):
        return 2 + 3 * x + 5 * y + 7 * x * y

    table, counts, lengths = IterationTable.__new__(IterationTable), [1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 4.0, 9.0, 10.0]
    table._counts, table._lengths = counts, lengths
    values = [[plane(x, y) for y in lengths] for x in counts]
    for x, y in ((1.0, 1.0), (1.25, 2.0), (3.0, 3.5), (7.0, 9.75), (8.0, 10.0), (2.0, 9.0)):
        assert table._bilinear(values, x, y) == pytest.approx(plane(x, y))
    assert table._bilinear(values, 99.0, 0.0) == pytest.approx(plane(8.0, 1.0))  # beyond the table its edge


def test_states_of_an_engine():
    """Mamba-2: 700 columns in, 240 rows out; Gated DeltaNet: 672 and 240; a state is read and written once."""
    assert widths(HYBRID, "mamba", 2) == (350, 120) and widths(HYBRID, "gdn", 1) == (672, 240)
    assert pointwise_bytes(HYBRID, "mamba", 2) == 8 * 96 + 4 * 448 / 2 + 4 * 120
    assert pointwise_bytes(HYBRID, "gdn", 1) == 8 * 96 + 4 * (2 * 88 + 240) + 4 * 240
    assert pointwise_bytes(HYBRID, "attention", 1) == 8 * 96 and pointwise_bytes(GATED, "mlp", 2) == 8 * 96 + 2 * 3 * 200 / 2
    state = 4 * 12 * 20 * 26 + 2 * 3 * 448 + 4 * 8 * 22 * 30 + 2 * 3 * 416
    job = SimpleNamespace(model=HYBRID, plan=EnginePlan(tp=2), gpu=replace(H100, hbm_bytes_per_s=1e6))
    assert decode_seconds(job, 5.0) == pytest.approx(5 * 2 * state / 2 / 0.8e6 + 2 * 5e-6)


@tabled
def test_sequences_that_a_captured_graph_computes(sizes, decode, rows):
    assert float(graph_rows(sizes, np.float64(decode))) == rows


@pytest.mark.parametrize(("channels", "dim"), [(64, 64), (65, 128), (48, 64), (256, 128)])
def test_measured_heads(channels, dim):
    assert head_dim(GPT.replace(kv_channels=channels)) == dim


@tabled
def test_the_nearest_measured_cache(known, found):
    assert cache_table(dict.fromkeys(known), "nvfp4", 64) == found


def test_an_engines_matrix_units():
    """fp4 on Blackwell, fp8 for MXFP4's products, 16 bits where the GPU has no such unit."""
    a100 = load_gpu("a100-sxm-80gb")
    assert ideal.peak(a100, "fp8") == ideal.peak(a100, "nvfp4") == a100.flops_per_s["bf16"]
    assert ideal.peak(B200, "nvfp4") == B200.flops_per_s["fp4"] and ideal.peak(B200, "mxfp4") == B200.flops_per_s["fp8"]
    assert ideal.peak(B200, "int4") == B200.flops_per_s["bf16"] and ideal.peak(H100, "fp8_block") == H100.flops_per_s["fp8"]


@tabled
def test_prompts_beside_running_sequences(running, drafted, chunked, prompts):
    """Prompts of 100 tokens in a budget of 1,000, of which decoding takes 750 at most."""
    lengths = SimpleNamespace(prompt=100.0, drafted=drafted)
    assert float(prompts_per_iteration(lengths, running, 1000.0, chunked)) == prompts
    assert prompts_per_iteration(SimpleNamespace(prompt=1e6, drafted=0), 0, 1000.0, False) == 1


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    """rho / (2 (1 - rho)) services: half of one at one half; with any patience a server is never busy all the time."""
    one = np.array([1.0])
    assert float(waiting_services(0.5, 1.0)) == 0.5 and float(highest_utilisation_within(0.5, one)[0]) == pytest.approx(0.5)
    assert float(highest_utilisation_within(4.5, one)[0]) == pytest.approx(0.9)
    assert 0.999 < float(highest_utilisation_within(1e30, one)[0]) < 1


def job(model, gpu, weights="nvfp4", engine="trtllm-1.2", **plan):
    plan = EnginePlan(weights=weights, kv="fp8", **plan)
    return ServingJob(model=load_model(model), gpu=gpu, plan=plan, engine=load_engine(engine), constants=EngineConstants())


def test_a_decode_iteration_is_padded_to_the_next_captured_graph():
    assert graph_rows((1, 2, 4, 8), np.array([1.0, 3.0, 8.0, 9.0])).tolist() == [1.0, 4.0, 8.0, 9.0]
    assert graph_rows((), 3.0) == 3.0
    padded = dataclasses.replace(job("qwen3-30b-a3b", B200), graph_sizes=(256, 384))
    free = dataclasses.replace(padded, graph_sizes=())
    parts, whole = iteration_parts(padded, 300.0, 4096.0, 0.0, 1.0), iteration_parts(free, 384.0, 4096.0, 0.0, 1.0)
    assert parts["experts"] == whole["experts"] and parts["linear"] == whole["linear"]
    assert parts["decode attention"] < whole["decode attention"]  # dummies have nothing cached
    mixed = [iteration_parts(one, 300.0, 4096.0, 1.0, 1000.0)["experts"] for one in (padded, free)]
    assert mixed[0] == mixed[1]  # no graph where prompts are


@pytest.mark.parametrize(("weights", "gathered"), [("bf16", 2.0), ("fp8", 1.0), ("fp8_block", 2.0), ("nvfp4", 0.5 + 1.0 / 16)])
def test_tokens_are_gathered_in_the_format_of_the_experts_and_scattered_in_16_bits(weights, gathered):
    """Blocks of fp8 are made behind the gather."""
    one, tokens = job("qwen3-235b-a22b", B200, weights, adp=4, ep=4), 1000.0
    moved = one.model.hidden_size * tokens * 4 * (gathered + 2.0) / 2.0  # of an all-reduce, whose halves move as much
    assert block_communication_seconds(one, tokens, True) == pytest.approx(float(reduce_seconds(one, 4, moved)))


@pytest.mark.parametrize(("balance", "model"), [("loss", "qwen3-235b-a22b"), ("bias", "deepseek-v3")])
@pytest.mark.parametrize(("ep", "where"), [(1, "one"), (4, "many")])
def test_skewed_routing_costs_what_was_measured_beside_even_routing(ep, where, balance, model):
    """Routers that a bias of each expert balances are less skewed than those that an auxiliary loss does."""
    one = job(model, H200, "fp8", adp=ep, ep=ep)
    experts = one.model.num_moe_experts
    tokens, local = 64.0 * experts / 8 / ep, experts / ep  # 64 rows an expert
    skewed, even = (experts_seconds(each, tokens)[0] for each in (one, dataclasses.replace(one, imbalance=1.0)))
    tables = json.loads((FOLDER / "h200-sxm-141gb.json").read_text())["experts"][one.formats.experts]["skew"]
    table = tables[balance][where]
    column = np.interp(np.log(local), np.log(table["axes"]["experts"]), np.log(table["ratio"][table["axes"]["rows"].index(64)]))
    assert skewed / even == pytest.approx(float(np.exp(column)))
    assert where == "one" or skewed > even
    rows = table["axes"]["rows"].index(64)
    assert np.mean(tables["loss"]["many"]["ratio"][rows]) > np.mean(tables["bias"]["many"]["ratio"][rows])


@pytest.mark.parametrize(("tokens", "added"), [(1.0, 0.0), (50_000.0, 0.5)])
def test_older_kernels_are_slower_where_experts_are_arithmetic_and_read_weights_as_fast(tokens, added):
    """Mixtral on H200 in FP8: one row of a token against 12,500 rows an expert; half as much again for the latter."""
    one = job("mixtral-8x7b", H200, "fp8", "trtllm-0.17")
    old = dataclasses.replace(one, constants=EngineConstants(experts_arithmetic=0.5))
    new, slow = (iteration_parts(each, tokens, 1.0, 0.0, 1.0)["experts"] for each in (one, old))
    assert slow / new - 1.0 == pytest.approx(added, abs=0.01)
    simulated, priced = (IterationTable(old).seconds(tokens, 1.0, 0.0, 0.0, 1.0), iteration_seconds(old, tokens, 1.0, 0.0, 1.0))
    assert simulated == pytest.approx(float(priced), rel=0.05)


def test_kernels_age_by_date_and_an_older_release_keeps_the_rate_of_its_successor():
    ages = {name: kernel_age(load_engine(name)) for name in ("trtllm-1.2", "trtllm-0.17", "trtllm-0.12", "vllm", "megatron")}
    assert ages == pytest.approx({"trtllm-1.2": 0, "trtllm-0.17": 10 / 12, "trtllm-0.12": 16 / 12, "vllm": 0, "megatron": 0})
    known = {"trtllm-0.17": {"h200-sxm-141gb": {"all": 1.0, "experts": 1.1, "arithmetic": 0.3}}}
    found = ServingCalibration(engines={}, gpus=known, parents={})
    added = {name: found.constants(load_engine(name), H200).experts_arithmetic for name in ages}
    assert added == pytest.approx({name: 0.3 * age for name, age in ages.items()})
    assert found.constants(load_engine("trtllm-0.17"), B200).experts_arithmetic == 0.0


def test_stored_elements_of_a_checkpoint_in_nvfp4_are_bytes_and_scales():
    model = load_model("deepseek-v3")  # attention in 16 bits, MLPs and experts in NVFP4
    experts, shared, dense = (3 * 7168 * width for width in (2048, 2048, 18432))
    packed = 58 * (256 * experts + shared) + 3 * dense
    expected = float(total_parameters(model)) - packed * (1 - 0.5 - 1 / 16)
    assert stored_elements(model, module_formats(model, "nvfp4", B200)) == pytest.approx(expected)
    assert stored_elements(model, module_formats(model, "fp8", H200)) == float(total_parameters(model))
