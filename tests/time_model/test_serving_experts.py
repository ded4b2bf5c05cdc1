"""Mixtures of experts and CUDA graphs in serving: routing, gathering of tokens, padding, windows, checkpoints' elements."""

import dataclasses
import json

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import kernel_age, load_engine, module_formats
from autoconfig.time_model.serving.iteration import IterationTable, graph_rows, iteration_parts, iteration_seconds
from autoconfig.time_model.serving.rows import ServingJob, block_communication_seconds, experts_seconds, reduce_seconds
from autoconfig.time_model.serving.tables import FOLDER, EngineConstants, ServingCalibration
from autoconfig.time_model.serving.workload import stored_elements

B200, H200 = load_gpu("b200"), load_gpu("h200")


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
