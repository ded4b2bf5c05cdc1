"""The whole step: batching, parts, recomputation, published step times; nothing silly is cheap or NaN."""

import csv
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import autoconfig.time_model
import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack, software_names
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.kernels import clock_ratio
from autoconfig.time_model.operators.listing import explain_operators
from autoconfig.time_model.predict import StepTimes, TimeEstimate, estimate_step_time
from small_models import H100, MODELS
from tables import table, tabled

GPT3 = load_model("gpt3-175b")
FULL = [
    Recompute.parse(t)
    for t in ("none", "selective:core_attn", "selective:mlp", "full:uniform:1", "full:block:2", "full:block:96")
]
FP8 = Numerics(precision="fp8", fp8_param_gather=True, grad_reduce_dtype="bf16", attention_dropout=0.0, hidden_dropout=0.0)


def estimate(plans: Sequence[str], recomputes: Sequence[Recompute] | None = None, **changes: Any) -> TimeEstimate:
    """One estimate with defaults: GPT-3 175B, 1,024 A100, batch 1536, seq 2048, bf16."""
    gpu, num_gpus = changes.pop("gpu", "a100-80gb"), changes.pop("num_gpus", 1024)
    model, stack = changes.pop("model", GPT3), changes.pop("stack", "transformer-engine")
    workload = Workload(seq_length=changes.pop("seq", 2048), global_batch_size=changes.pop("gbs", 1536))
    parsed = [parse_plan(text, num_gpus) for text in plans]
    cluster: ClusterSpec = changes.pop("cluster", None) or cluster_of(load_gpu(gpu), num_gpus)
    software = load_stack(stack) if isinstance(stack, str) else stack
    numerics = changes.pop("numerics", Numerics())
    scenario = Scenario(model=model, cluster=cluster, numerics=numerics, software=software, workload=workload)
    options = list(recomputes) if recomputes else [parsed[0].recompute]
    return estimate_step_time(scenario, scenario.layouts(parsed), options, **changes)


def seconds(plan: str, **changes: Any) -> float:
    return float(estimate([plan], **changes).step_seconds[0, 0])


DENSE = [
    f"tp={tp},pp={pp},vpp={vpp},cp={cp},mbs={mbs},sp={sp}{extra}"
    for tp, pp, vpp, cp, mbs, sp in itertools.product((1, 4, 8, 16), (1, 8), (1, 2), (1, 2), (1, 2), (0, 1))
    if (pp > 1 or vpp == 1) and 1536 % (mbs * (1024 // (tp * pp * cp))) == 0
    for extra in ("", ",fsdp=3", ",fsdp=2", ",dist_opt=0", ",offload=0.5")
]


@pytest.mark.parametrize("stack", ["transformer-engine", "megatron-lm-2021", "torch-eager"])
def test_one_row_and_batched_agree_exactly(stack: str) -> None:
    plans = DENSE[::7]
    together = estimate(plans, FULL, stack=stack).step_seconds
    assert np.isfinite(together).all() and (together > 0).all()
    for row, plan in enumerate(plans):
        assert np.array_equal(estimate([plan], FULL, stack=stack).step_seconds[0], together[row]), plan
    for column, recompute in enumerate(FULL):
        assert np.array_equal(estimate(plans, [recompute], stack=stack).step_seconds[:, 0], together[:, column])


MOE = table(__file__, "moe_plans")


@pytest.mark.parametrize(("model", "gpu", "plans", "numerics"), [
    ("gpt3-175b", "a100-80gb", DENSE, Numerics()),
    ("gpt3-175b", "h100", DENSE[::5], FP8),
    ("qwen3-235b-a22b", "h100", [p.replace("pp=8", "pp=2").replace("pp=4", "pp=2") for p in MOE], FP8),
    (
        "deepseek-v3",
        "gb200",
        ["tp=1,pp=1,ep=64,mbs=1", "tp=2,pp=1,ep=256,mbs=1,sp=1", "tp=1,pp=8,ep=8,mbs=1,first=6,last=7"],
        FP8,
    ),
    ("gpt-oss-120b", "b200", ["tp=1,pp=4,ep=8,mbs=1", "tp=4,pp=1,cp=4,ep=64,mbs=1,sp=1"], Numerics()),
    ("llama2-7b", "mi300x", ["tp=1,pp=1,mbs=1", "tp=8,pp=4,vpp=2,mbs=1,sp=1"], Numerics(peft="lora")),
    ("llama2-7b", "v100-32gb", ["tp=1,pp=1,mbs=1", "tp=8,pp=4,vpp=2,mbs=1,sp=1"], Numerics(precision="fp16")),
])  # fmt: skip
def test_parts_sum_to_the_step_and_are_named_after_functions(
    model: str, gpu: str, plans: list[str], numerics: Numerics
) -> None:
    modules = [
        Recompute.parse("selective:" + name) for name in ("moe", "moe_act", "mla_up_proj", "shared_experts", "layernorm")
    ]
    scenario = {"model": load_model(model), "gpu": gpu, "numerics": numerics, "gbs": 1536 if model == "gpt3-175b" else 2048}
    options = [*FULL, *modules]
    found = estimate(plans, options, detail=True, **scenario)
    assert np.isfinite(found.step_seconds).all() and (found.step_seconds > 0).all()
    for name, values in found.parts.items():
        assert np.isfinite(values).all() and (values >= -1e-9).all(), name
    np.testing.assert_allclose(sum(found.parts.values()), found.step_seconds, rtol=1e-10)
    public = {name for module in _modules() for name in vars(module) if not name.startswith("_")}
    assert set(found.parts) <= public
    assert np.array_equal(found.step_seconds, estimate(plans, options, **scenario).step_seconds)


def _modules() -> list[Any]:
    import importlib
    import pkgutil

    found = pkgutil.walk_packages(autoconfig.time_model.__path__, "autoconfig.time_model.")
    return [importlib.import_module(info.name) for info in found]


def test_recomputation_adds_the_forward_time_of_its_modules() -> None:
    plan = "tp=8,pp=1,mbs=1,sp=1"
    rows = {row.operator: row for row in _explain(plan)}
    layers, m = 96, 12

    def again(recompute: str) -> float:
        return float(estimate([f"{plan},recompute={recompute}"], detail=True).parts["recompute_seconds"][0, 0])

    mine = [row for row in rows.values() if row.layer in ("all", "dense") and row.operator != "launches by the host"]
    gpu = [sum(r.forward_seconds for r in mine), sum(r.dgrad_seconds + r.wgrad_seconds for r in mine)]
    launches = 1.4e-3 * 1.15  # of a layer's forward with tp; backward 1.6 times, a checkpoint 0.42 of them without tp

    def longer(seconds: float, host: float) -> float:
        return math.hypot(gpu[1] + seconds, 1.6 * launches + host) - math.hypot(gpu[1], 1.6 * launches)

    core = longer(rows["core attention"].forward_seconds, 0.42 * 1.4e-3)
    assert again("selective:core_attn") == pytest.approx(m * layers * core, rel=1e-6)
    every = longer(gpu[0], launches + 0.42 * 1.4e-3)
    assert again("full:uniform:1") == pytest.approx(m * layers * every)
    assert again("full:block:96") == pytest.approx(m * layers * every)
    assert again("full:block:10") == pytest.approx(m * 10 * every)
    assert seconds(plan) < seconds(plan + ",recompute=selective:core_attn") < seconds(plan + ",recompute=full:uniform:1")
    by_operator = again("selective:op")  # GPT: k, the output projection and fc2, and what is not a matrix product
    products = rows["linear_proj"].forward_seconds + rows["linear_fc2"].forward_seconds + rows["linear_qkv"].forward_seconds / 3
    kept = rows["linear_fc1"].forward_seconds + rows["core attention"].forward_seconds
    assert m * layers * products < by_operator < again("full:uniform:1") - m * layers * kept
    blocks = [seconds(f"tp=8,pp=8,vpp=3,mbs=1,sp=1,recompute=full:block:{n}") for n in (1, 2, 3, 4)]
    assert blocks == sorted(blocks)
    assert blocks[3] == pytest.approx(seconds("tp=8,pp=8,vpp=3,mbs=1,sp=1,recompute=full:uniform:1"), rel=1e-9)


def _explain(plan: str, **changes: Any) -> list[Any]:
    scenario = Scenario(
        model=changes.get("model", GPT3),
        cluster=cluster_of(load_gpu(changes.get("gpu", "a100-80gb")), 1024),
        numerics=changes.get("numerics", Numerics()),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=2048, global_batch_size=changes.get("gbs", 1536)),
    )
    return explain_operators(scenario, parse_plan(plan, 1024))


USUAL = Scenario(
    model=GPT3, cluster=cluster_of(load_gpu("a100-80gb"), 1024), numerics=Numerics(), software=load_stack("transformer-engine"),
    workload=Workload(seq_length=2048, global_batch_size=1536),
)  # fmt: skip


def test_operator_table_counts_the_flops_of_a_layer() -> None:
    # Forward FLOPs of a GPT layer: 24 b s h^2 + 4 b s^2 h (Narayanan et al. 2021, appendix); causal: half of the last.
    rows = _explain("tp=8,pp=8,mbs=2,sp=1,recompute=selective:core_attn")
    flops = sum(row.forward_flops for row in rows if row.layer in ("all", "dense"))
    b, s, h = 2, 2048, 12288
    assert flops * 8 == pytest.approx(24 * b * s * h**2 + 2 * b * s**2 * h)
    assert all(row.share_of_peak is None or 0 < row.share_of_peak < 1 for row in rows)
    assert [row.operator for row in rows if row.recompute_seconds] == ["core attention", "launches by the host"]
    assert {"router", "experts.linear_fc1", "expert exchange"} <= {
        row.operator for row in _explain("tp=1,pp=1,ep=8,mbs=1", model=load_model("qwen3-30b-a3b"), gpu="h100", gbs=2048)
    }


def test_silly_plans_cost_more() -> None:
    good = seconds("tp=8,pp=8,vpp=3,mbs=1,sp=1")
    assert seconds("tp=32,pp=8,mbs=1,sp=1") > 1.5 * good  # tensor parallelism over nodes
    assert seconds("tp=64,pp=1,mbs=1") > 3 * good
    assert seconds("tp=8,pp=1,cp=32,mbs=1,sp=1") > 1.05 * good
    slow = cluster_of(load_gpu("a100-80gb"), 1024, nic_bytes_per_s=1.25e9)  # 10 Gb/s per GPU
    assert seconds("tp=1,pp=8,mbs=1", cluster=slow) > seconds("tp=1,pp=8,mbs=1")
    pcie = cluster_of(load_gpu("a100-80gb"), 1024, link_bytes_per_s=20e9)
    assert seconds("tp=8,pp=8,vpp=3,mbs=1,sp=1", cluster=pcie) > 1.5 * good


def test_interleaving_shrinks_the_bubble_and_uneven_stages_are_priced() -> None:
    parts = [estimate([f"tp=8,pp=8,vpp={v},mbs=1,sp=1"], detail=True).parts["pipeline_bubble_seconds"][0, 0] for v in (1, 3, 6)]
    assert parts[1] == pytest.approx(parts[0] / 3, rel=1e-9) and parts[2] == pytest.approx(parts[0] / 6, rel=1e-9)
    even, heavy_first = seconds("tp=8,pp=8,mbs=1,sp=1"), seconds("tp=8,pp=8,mbs=1,sp=1,first=18,last=6")
    assert heavy_first > 1.3 * even


def test_numerics_move_the_price_the_right_way() -> None:
    plan = "tp=4,pp=8,vpp=6,mbs=2,sp=1"
    h100 = {"gpu": "h100", "num_gpus": 512, "gbs": 2048}
    bf16 = Numerics(attention_dropout=0.0, hidden_dropout=0.0)
    fast = seconds(plan, numerics=FP8, **h100)
    assert fast < 0.8 * seconds(plan, numerics=bf16, **h100)
    assert fast < seconds(plan, numerics=dataclasses.replace(FP8, fp8_recipe="mxfp8"), **h100)
    assert seconds(plan, numerics=bf16, **h100) < seconds(plan, numerics=Numerics(), **h100)  # dropout costs
    frozen = seconds(plan, numerics=dataclasses.replace(bf16, peft="lora"), **h100)
    assert frozen < 0.85 * seconds(plan, numerics=bf16, **h100)
    with pytest.raises(InputError, match="fp8"):
        seconds("tp=8,pp=8,mbs=1", numerics=FP8)  # an A100 has none


@pytest.mark.parametrize("stack", software_names())
def test_every_stack_reaches_what_such_stacks_are_known_to_reach(stack: str) -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh) FLOPs with recomputation, three quarters of them without (Narayanan et al. 2021,
    equation 3): 10.6 s at peak. From 40 % of it (unfused kernels of 2022) to 60 % (flash attention skips masked scores)."""
    h, layers, s = 12288, 96, 2048
    at_peak = 72 * 1536 * s * layers * h**2 * (1 + s / (6 * h) + 51200 / (16 * layers * h)) / (1024 * 312e12)
    assert 0.40 < at_peak / seconds("tp=8,pp=8,mbs=1,sp=1", stack=stack) < 0.60


def test_estimate_says_where_its_constants_come_from() -> None:
    found = estimate(["tp=8,pp=8,mbs=1,sp=1"])
    assert found.level == "calibrated" and "ampere" in found.origin and "transformer-engine" in found.origin
    assert estimate(["tp=8,pp=8,mbs=1,sp=1"], gpu="v100-32gb", numerics=Numerics(precision="fp16")).level == "default"


def test_empty_layouts_give_an_empty_table() -> None:
    layouts = USUAL.layouts([parse_plan("tp=8,pp=8,mbs=1", 1024)]).take(slice(0, 0))
    assert estimate_step_time(USUAL, layouts, FULL).step_seconds.shape == (0, len(FULL))


PUBLISHED = Path(__file__).parent / "published"


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def predicted_seconds(row: dict[str, str]) -> float:
    number = {
        key: int(row[key])
        for key in ("layers", "hidden", "heads", "vocab", "seq", "gpus", "tp", "sp", "pp", "vpp", "dp", "mbs", "gbs")
    }
    model = ModelSpec(
        name=row["model"], num_layers=number["layers"], hidden_size=number["hidden"], num_attention_heads=number["heads"],
        num_query_groups=number["heads"], kv_channels=number["hidden"] // number["heads"], ffn_hidden_size=4 * number["hidden"],
        vocab_size=number["vocab"],
    )  # fmt: skip
    plan = TrainPlan(
        **{key: number[key] for key in ("tp", "pp", "vpp", "dp", "mbs")},
        sp=bool(number["sp"]),
        recompute=Recompute.parse(row["recompute"]),
        dist_opt=False,
    )
    nic = float(row["nic_gbit_per_s_per_gpu"]) / 8 * 1e9
    scenario = Scenario(
        model=model,
        cluster=cluster_of(load_gpu("a100-80gb"), number["gpus"], nic_bytes_per_s=nic),
        numerics=Numerics(precision=row["precision"]),
        software=load_stack(row["software"]),
        workload=Workload(seq_length=number["seq"], global_batch_size=number["gbs"]),
    )
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute])
    return float(estimate.step_seconds[0, 0])


def measured_seconds(row: dict[str, str]) -> float:
    """The published step time, or Narayanan's eq. 3 over the published rate: 96 B s l h^2 (1 + s/6h + V/16lh) FLOPs a step."""
    if "step_seconds" in row:
        return float(row["step_seconds"])
    batch, s, layers, h, vocab = (int(row[key]) for key in ("gbs", "seq", "layers", "hidden", "vocab"))
    flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    return flops / (float(row["tflops_per_gpu"]) * 1e12 * int(row["gpus"]))


@pytest.mark.parametrize(("name", "count", "most"), [("korthikanti_table5.csv", 8, 0.06), ("narayanan_table1.csv", 10, 0.08)])
def test_mean_error_on_published_runs(name: str, count: int, most: float) -> None:
    errors = []
    for row in rows(name):
        predicted, measured = predicted_seconds(row), measured_seconds(row)
        errors.append(predicted / measured - 1)
        print(
            f"{row['id']} {row['model']:9} predicted {predicted:8.3f} s  measured {measured:8.3f} s  {100 * errors[-1]:+5.1f} %"
        )
    print(f"mean {100 * np.mean(np.abs(errors)):.2f} %")
    assert len(errors) == count
    assert np.mean(np.abs(errors)) <= most


@pytest.mark.parametrize(("model", "stacks"), [("gpt", 1), ("t5", 2)])
def test_two_stacks_share_one_output_layer_and_each_has_its_final_norm(model, stacks):
    scenario = Scenario(
        model=ModelSpec(**MODELS[model]), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=48, global_batch_size=8),
    )  # fmt: skip
    rows = explain_operators(scenario, parse_plan("tp=1,pp=1,mbs=1,recompute=full:uniform:1", 8))
    outside = [row for row in rows if row.layer in ("head", "embedding")]
    once = {"logits": 1, "cross entropy": 1, "head gradient accumulation": 1}
    assert Counter(row.operator for row in outside) == once | {"final norm": stacks, "embedding lookup": stacks}
    assert all(row.recompute_seconds == 0 for row in outside)  # full recomputation is of layers
    layers = [row for row in rows if row.layer not in ("head", "embedding")]
    assert all(row.recompute_seconds == row.forward_seconds for row in layers if row.operator != "launches by the host")


@tabled
def test_the_least_step_time_lacks_little_where_nothing_is_reduced(model, text, batch, share):
    """One replica: sends, the optimizer and a first and last stage with more than layers is all that the bound leaves out."""
    scenario = Scenario(
        model=load_model(model), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=8192, global_batch_size=batch),
    )  # fmt: skip
    times, which = StepTimes.of(TrainingJob.of(scenario), scenario.layouts([parse_plan(text, 8)]), [NONE]), np.array([0])
    assert share < times.least_seconds(which)[0] / times.seconds(which)[0, 0] <= 1


def parts(cluster: ClusterSpec) -> dict[str, float]:
    scenario = Scenario(
        model=load_model("llama3-8b"),
        cluster=cluster,
        numerics=Numerics(precision="bf16"),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=8192, global_batch_size=8),
    )
    plan = parse_plan("tp=1,pp=1,mbs=1", 8)
    estimate = estimate_step_time(scenario, scenario.layouts([plan]), [plan.recompute], detail=True)
    return {name: float(values[0, 0]) for name, values in estimate.parts.items()}


def test_clock_is_the_one_whose_power_is_the_limit():
    for duty in (0.3, 0.6, 0.9, 1.0):
        for limit in (300.0, 500.0, 700.0):
            f = float(clock_ratio(duty, limit, 700.0, 1000.0))
            busy = duty / (duty + f * (1.0 - duty))
            watts = 0.2 * 700.0 + busy * 1000.0 * f * max(f, 0.65) ** 2
            assert watts == pytest.approx(limit) or (f == 1.0 and watts < limit)
    assert clock_ratio(0.5, 700.0, 700.0, 1000.0) == 1.0  # 140 + 500 W


def test_clock_of_a_gpu_at_a_third_of_its_power():
    at, own = (clock_ratio(1.0, watts, 1400.0, 1900.0) for watts in (500.0, 1400.0))
    assert 617 / 2174 <= at / own <= 617 / 1600  # cuBLAS on GB300 (pull request 2023 of Meta's triton)


def test_less_power_slows_matrix_products_only():
    full, limited = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, power_limit_watts=500))
    slower = limited["gemm_seconds"] / full["gemm_seconds"]
    assert 1.1 < slower < (560 / 360) ** 0.5
    assert limited["flash_attention_seconds"] / full["flash_attention_seconds"] == pytest.approx(slower, rel=0.01)
    for name in ("pointwise_seconds", "optimizer_seconds", "gradient_reduction_seconds"):
        assert limited[name] <= full[name]


def test_slower_memory_slows_what_is_bound_by_it():
    full, slow = parts(cluster_of(H100, 8)), parts(cluster_of(H100, 8, hbm_bytes_per_s=H100.hbm_bytes_per_s / 2))
    assert slow["pointwise_seconds"] / full["pointwise_seconds"] == pytest.approx(2.0, rel=0.1)
    assert 0.9 < slow["gemm_seconds"] / full["gemm_seconds"] <= 1.0  # less busy: a higher clock


@pytest.mark.parametrize(("gpu", "watts", "said"), [("h100", 701, "use 245 to 700 W"), ("h100", 200, "use 245 to 700 W"),
                                                     ("gh200-96gb", 500, "is not known")])  # fmt: skip
def test_limits_that_no_measurement_covers_are_refused(gpu, watts, said):
    with pytest.raises(InputError, match=said):
        cluster_of(load_gpu(gpu), 8, gpus_per_node=1, power_limit_watts=watts)
