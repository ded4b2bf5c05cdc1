"""Hybrid models: sublayers' operators, and a step that is the sum of its stages' sublayers."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.job import TrainingJob, shapes_of
from autoconfig.time_model.operators.layer_table import LayerTable, layer_table
from autoconfig.time_model.operators.listing import explain_operators
from autoconfig.time_model.operators.operator import kept_share
from autoconfig.time_model.predict import estimate_step_time

NO_DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}


def scenario(model: str = "nemotron-3-nano", gpus: int = 16, gpu: str = "h100", **given: Any) -> Scenario:
    numerics = Numerics(precision=given.pop("precision", "bf16"), **NO_DROPOUT)
    return Scenario(
        model=given.pop("spec", load_model(model)), cluster=cluster_of(load_gpu(gpu), gpus), numerics=numerics,
        software=load_stack("nemo-26.06"), workload=Workload(seq_length=8192, global_batch_size=128), **given,
    )  # fmt: skip


def table_of(asked: Scenario, text: str) -> LayerTable:
    job = TrainingJob.of(asked)
    plan = parse_plan(text, asked.cluster.num_gpus)
    return layer_table(job, shapes_of(asked.layouts([plan]), job), [NONE])


def seconds(asked: Scenario, text: str) -> float:
    plan = parse_plan(text, asked.cluster.num_gpus)
    return float(estimate_step_time(asked, asked.layouts([plan]), [plan.recompute]).step_seconds[0, 0])


def operators(asked: Scenario, text: str) -> dict[tuple[str, str], Any]:
    plan = parse_plan(text, asked.cluster.num_gpus)
    return {(row.layer, row.operator): row for row in explain_operators(asked, plan)}


def test_every_sublayer_has_one_norm_and_one_residual() -> None:
    rows = operators(scenario(), "pp=1,ep=8,mbs=1")
    for kind, norm, residual in (
        ("mamba", "mamba input norm", "mamba residual"),
        ("attention", "input norm", "attention residual"),
        ("moe", "pre-mlp norm", "mlp residual"),
    ):
        mine = Counter(name for layer, name in rows if layer == kind and ("norm" in name or "residual" in name))
        assert mine[norm] == mine[residual] == 1
        assert sum(mine.values()) == 2 + (kind == "mamba")  # the gated norm
    assert not [layer for layer, _ in rows if layer in ("all", "dense", "mlp", "gdn")]


def test_the_scan_costs_its_flops_however_few_heads_a_rank_has() -> None:
    """By hand: T (H (2 128 p + 4 n p) + 2 g 128 n) over 5 % of the H100's 989 TFLOP/s."""
    row = operators(scenario(), "pp=1,ep=8,mbs=2")["mamba", "mamba scan"]
    assert row.forward_flops == 16384 * (64 * (2 * 128 * 64 + 4 * 128 * 64) + 2 * 8 * 128 * 128)
    assert row.forward_seconds == pytest.approx(row.forward_flops / (0.0503 * 989.4e12), rel=2e-3)
    halves = [operators(scenario(), f"tp={tp},pp=1,ep=8,mbs=1")["mamba", "mamba scan"].forward_seconds for tp in (1, 2, 4)]
    assert halves[1] == pytest.approx(halves[0] / 2)
    assert halves[2] == pytest.approx(halves[0] / 4)


def test_latent_experts_are_dispatched_and_multiplied_on_their_width() -> None:
    spec = load_model("nemotron-3-super")
    wide = scenario(spec=spec.replace(moe_latent_size=None), gpus=64, gpu="gb200")
    narrow = scenario(spec=spec, gpus=64, gpu="gb200")
    a, b = (operators(s, "pp=1,ep=64,mbs=1") for s in (narrow, wide))
    assert a["moe", "permute"].forward_bytes == b["moe", "permute"].forward_bytes / 4
    assert a["moe", "experts.linear_fc1"].forward_flops == b["moe", "experts.linear_fc1"].forward_flops / 4
    exchange = ("moe", "expert exchange")
    assert a[exchange].forward_bytes == b[exchange].forward_bytes / 4
    for name in ("fc1_latent_proj", "fc2_latent_proj"):
        assert a["moe", name].forward_flops == 2 * 8192 * 4096 * 1024
        assert ("moe", name) not in b


def test_a_stages_time_is_the_sum_over_its_sublayers() -> None:
    """Two stages of different mixes: m times the longer, and the other once, of the kinds' own seconds."""
    asked = scenario(given=GivenSettings(cuda_graphs=frozenset()))
    text = "tp=2,pp=2,ep=4,mbs=1,sp=1,first=20,last=32"
    table = table_of(asked, text)
    stages = []
    for kinds in (asked.model.layer_kinds[:20], asked.model.layer_kinds[20:]):
        each = Counter(kinds)
        stages.append(
            sum(each[kind] * float((f + b)[0]) for kind, f, b in zip(table.kinds, table.forward, table.backward, strict=True))
        )
    stages[0] += float(sum(table.embedding)[0])
    stages[1] += float(sum(table.head)[0])
    plan = parse_plan(text, 16)
    estimate = estimate_step_time(asked, asked.layouts([plan]), [plan.recompute], detail=True)
    parts = {name: float(value[0, 0]) for name, value in estimate.parts.items()}
    once = ("pipeline_bubble_seconds", "gradient_reduction_seconds", "parameter_gather_seconds", "p2p_seconds")
    rest = sum(
        parts.get(name, 0.0)
        for name in (*once, "embedding_gradient_seconds", "optimizer_seconds", "step_launch_seconds", "straggler_seconds")
    )
    microbatches = 128 // plan.dp
    assert sum(parts.values()) - rest == pytest.approx(microbatches * max(stages), rel=1e-9)
    assert parts["pipeline_bubble_seconds"] == pytest.approx(min(stages), rel=1e-9)
    assert estimate.step_seconds[0, 0] == pytest.approx(sum(parts.values()), rel=1e-12)


def test_the_order_of_sublayers_alone_changes_nothing_on_one_stage() -> None:
    spec = load_model("nemotron-3-nano")
    turned = spec.replace(hybrid_layer_pattern=spec.hybrid_layer_pattern[::-1])
    assert seconds(scenario(spec=spec), "pp=1,ep=8,mbs=1") == pytest.approx(
        seconds(scenario(spec=turned), "pp=1,ep=8,mbs=1"), rel=1e-12
    )


@pytest.mark.parametrize(("scope", "kind"), [("mamba", "mamba"), ("attn", "attention"), ("moe_router", "moe")])
def test_a_graphed_part_frees_the_host_of_its_own_sublayer(scope: str, kind: str) -> None:
    plain, graphed = (
        table_of(scenario(given=GivenSettings(cuda_graphs=frozenset(names))), "pp=1,ep=8,mbs=1") for names in ((), (scope,))
    )
    for name, (before, _), (after, _) in zip(plain.kinds, plain.floor, graphed.floor, strict=True):
        assert (float(after[0]) < float(before[0])) == (name == kind)


def test_prediction_depths_run_their_sublayers_and_share_their_weights() -> None:
    spec = load_model("nemotron-3-super")
    asked = [scenario(spec=spec.replace(**c), gpus=64, gpu="gb200") for c in ({}, {"mtp_num_layers": 0})]
    text = "tp=2,pp=1,ep=64,mbs=1,sp=1"
    table = table_of(asked[0], text)
    own = {kind: float((f + b)[0]) for kind, f, b in zip(table.kinds, table.forward, table.backward, strict=True)}
    head = float(sum(table.head)[0]) - float(sum(table_of(asked[1], text).head)[0])
    added = 128 / 32 * (2 * (own["attention"] + own["moe"]) + head)
    assert seconds(asked[0], text) - seconds(asked[1], text) == pytest.approx(added, rel=0.05)
    distinct = scenario(spec=spec.replace(mtp_use_repeated_layer=False), gpus=64, gpu="gb200")
    assert seconds(distinct, text) > seconds(asked[0], text)


def test_delta_rule_and_gate_are_priced() -> None:
    """Qwen3-Next: 36 delta rules; 2.6 ns a token and value head on H100; the gate doubles the queries' columns."""
    rows = operators(scenario("qwen3-next-80b-a3b", gpus=64), "pp=1,ep=32,mbs=1")
    rule = rows["gdn", "gdn delta rule"]
    assert rule.forward_seconds == pytest.approx(8192 * 32 * 2.6e-9, rel=0.01)
    assert 2 < rule.dgrad_seconds / rule.forward_seconds < 4  # gradients, and the forward's states again
    assert rows["attention", "linear_qkv"].forward_flops == 2 * 8192 * 2048 * (2 * 4096 + 2 * 512)
    assert rows["attention", "attention gate"].forward_bytes == 6 * 8192 * 4096
    assert np.isfinite(seconds(scenario("qwen3-next-80b-a3b", gpus=64), "tp=2,pp=2,cp=2,ep=16,mbs=1,sp=1"))


def test_nvfp4_leaves_what_the_recipe_of_nemotron_3_leaves() -> None:
    """The last 14 of 88 layers and multi-token prediction in 16 bits, attention and latent projections too, Mamba's output
    projection in MXFP8: a step of NVFP4 is as long as one of MXFP8 within 4 %, as published (NV-0105 and 0109: 2 %)."""
    job = TrainingJob.of(scenario("nemotron-3-super", 64, "gb200", precision="nvfp4"))
    kinds = job.model.layer_kinds
    assert kept_share(job, "mamba") == pytest.approx(kinds[-14:].count("mamba") / kinds.count("mamba"))
    assert kept_share(job, "moe") > kept_share(job, "mamba") and kept_share(job, "head") == 0.0, "depths hold experts"
    assert kept_share(TrainingJob.of(scenario("nemotron-3-super", 64, "gb200")), "moe") == 0.0
    plan = "tp=2,pp=1,ep=64,mbs=1,sp=1"
    low = scenario("nemotron-3-super", 64, "gb200", precision="nvfp4")
    mx = replace(low, numerics=Numerics(precision="fp8", fp8_recipe="mxfp8", **NO_DROPOUT))
    assert 0.96 < seconds(low, plan) / seconds(mx, plan) < 1.01
