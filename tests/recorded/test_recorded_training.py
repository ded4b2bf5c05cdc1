"""Rules, reports, searches and explanations as the table beside this file has them; what that is worth: helpers/recorded.py."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from recorded import SCENARIOS, Table, outcome, scenario_of
from small_models import MODELS

from autoconfig.training.answer import _gpu_counts, _rich_in_divisors, _thinned, explain, reason_for, search
from autoconfig.training.nearest import nearest_legal, odd_factor
from autoconfig.training.plan_rules import (
    broken_as_published,
    broken_rules,
    layout_chunks,
    remarks_on,
    split_by_accounting,
    split_of_layout,
)
from autoconfig.training.price import CONVENTIONS, Money, flops_per_step, record_for, report_plans, violations
from autoconfig.training.remedies import useful_batches
from autoconfig.training.rules import RULE_TEXT, RULES, recompute_fits_layers, recompute_rule
from autoconfig.training.space import (
    Constraints,
    axes,
    enumerate_space,
    layer_counts,
    layout_splits,
    recompute_options,
    search_bounds,
    sharding_choices,
    stage_splits,
)
from tests.conftest import make_request

TABLE = Table(__file__, "training.txt")
SMALL = {
    "gpt": {}, "gated fp8": {"precision": "fp8", "fp8_param_gather": True}, "moe": {}, "mla": {"moe_capacity_factor": 1.0},
    "hybrid mamba": {"hybrid_layer_pattern": "M*M*", "num_moe_experts": None}, "hybrid fp8": {"precision": "fp8"},
    "hybrid mxfp8": {"precision": "fp8", "fp8_recipe": "mxfp8"}, "latent moe": {}, "gpt-oss": {}, "t5": {}, "bert": {},
    "t5 megatron-lm-2022": {}, "gpt megatron-lm-2021": {}, "moe transformers-deepspeed": {}, "gpt transformers-deepspeed": {},
    "gated torchtitan": {}, "gpt fp16": {"precision": "fp16", "untie_embeddings_and_output_weights": True},
    "moe bf16 moments": {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, "moe deepep": {"dispatcher": "deepep"},
    "moe overlap": {"ep_overlap": True}, "moe graphs": {"cuda_graphs": frozenset({"attn", "moe_router"})},
    "mla windows": {"window_size": 16}, "gpt remainders": {"store_param_remainders": True},
    "moe overlap fp32": {"ep_overlap": True, "precision": "fp32", "dispatcher": "allgather"}, "gpt colossalai": {},
    "gated biases": {"add_bias_linear": True}, "gpt mtp": {"mtp_num_layers": 1}, "moe no shared": {
        "moe_shared_expert_intermediate_size": 0},
}  # fmt: skip
"""Small model, with its software or what the fields change."""
RECOMPUTES = tuple(map(Recompute.parse, (
    "none", "full:uniform:1", "full:uniform:2", "full:block:1", "full:block:3", "full:uniform:5", *(f"selective:{one}"
    for one in (
        "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "op", "moe+op",
        "moe_act+layernorm")),
)))  # fmt: skip


def small(name: str) -> Scenario | None:
    """16 GPUs, 32 samples of 96 tokens."""
    kind = next(one for one in sorted(MODELS, key=len, reverse=True) if name.startswith(one))
    rest, given = name.removeprefix(kind).strip(), dict(SMALL[name])
    of = {
        one: {k: v for k, v in given.items() if k in one.__dataclass_fields__} for one in (ModelSpec, Numerics, GivenSettings)
    }
    stack = load_stack(rest if "-" in rest or rest in ("torchtitan", "colossalai") else "transformer-engine")
    model = ModelSpec(**MODELS[kind]).replace(**{k: v for k, v in of[ModelSpec].items()})
    return Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), 16), numerics=Numerics(**of[Numerics]), software=stack,
        workload=Workload(seq_length=96, global_batch_size=32), given=GivenSettings(**of[GivenSettings]),
    )  # fmt: skip


def plan_of(scenario: Scenario, row: dict[str, Any], recompute: Recompute) -> TrainPlan:
    """The plan of a row of columns, every other one with ends of its own."""
    keys = ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "mbs", "sp", "dist_opt", "fsdp", "offload")
    ends = {key: row[key] or None for key in ("first", "last") if row["mbs"] > 2}
    return TrainPlan(**{key: row[key] for key in keys}, **ends, recompute=recompute)


def digest(mask: object) -> list[int]:
    """How many hold, and which, as one number."""
    bits = np.ravel(np.asarray(mask, bool))
    return [int(bits.sum()), zlib.crc32(np.packbits(bits).tobytes()) % 1_000_000]


VALUES = {
    "tp": (1, 2, 3, 4, 6, 8, 12), "pp": (1, 2, 3, 4, 5), "cp": (1, 2, 3, 4), "ep": (1, 2, 4, 16, 32), "etp": (1, 2, 4),
    "dp": (1, 2, 4, 8),
    "vpp": (1, 2, 3), "mbs": (1, 2, 3, 4), "sp": (False, True), "dist_opt": (False, True), "fsdp": (0, 2, 3),
    "offload": (0.0, 0.5),
    "first": (0, 1, 2, 3, 4), "last": (0, 1, 2, 3, 4), "num_gpus": (12, 16, 24, 48), "global_batch_size": (8, 32, 36),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_rules_on_both_sides_of_their_boundaries(name):
    scenario, rng = small(name), np.random.default_rng(5)
    columns = {key: rng.choice(np.array(values), 3000) for key, values in VALUES.items()}
    found = {rule.id: digest(np.broadcast_to(rule.legal(scenario, columns), 3000)) for rule in RULES}
    found["recompute"] = {str(one): recompute_rule(scenario, one) for one in RECOMPUTES}
    layers = np.arange(1, 7)
    found["NV111"] = [digest(recompute_fits_layers(one, layers, layers + 1))[0] for one in RECOMPUTES]
    rows = [{key: columns[key][row].item() for key in columns} for row in range(60)]
    plans = [plan_of(scenario, row, RECOMPUTES[number % len(RECOMPUTES)]) for number, row in enumerate(rows)]
    broken = broken_rules(scenario, plans, [row["num_gpus"] for row in rows], [row["global_batch_size"] for row in rows])
    found["plans"] = {rule: digest([rule in ids for ids in broken]) for rule in RULE_TEXT}
    found["published"] = [len(broken_as_published(4, plan, ids)) for plan, ids in zip(plans, broken, strict=True)]
    found["remarks"] = [len(remarks_on(scenario, plan)) for plan in plans]
    TABLE.check(f"rules of {name}", found)


@pytest.mark.parametrize("name", SCENARIOS)
def test_reports(name):
    scenario, plans, margin = scenario_of(name)
    reports = report_plans(scenario, plans, Money(tokens=3e11, price_per_gpu_hour=2.0), margin)
    found = {f"{row}": replace(report, time_parts={}, stages=()) for row, report in enumerate(reports)}
    found["worst"] = [report.worst_stage.stage for report in reports]
    found["rules"] = {f"{row}": "+".join(one.rule for one in violations(scenario, plan)) for row, plan in enumerate(plans)}
    found["flops"] = [flops_per_step(scenario, kind, Recompute.parse("full")) for kind in CONVENTIONS]
    found["record"] = record_for(scenario, reports[0])
    TABLE.check(name, found)


QUESTIONS = {
    "dense": {}, "odd": {}, "moe": {}, "mla": {},
    "dense margin": {"memory_margin": 0.3, "top": 4, "price": 2.0, "tokens": 1e11},
    "dense tight": {"architecture": {"num_layers": 8, "hidden_size": 8192, "num_attention_heads": 64}, "gpus": 4},
    "dense too large": {"architecture": {"num_layers": 24, "hidden_size": 12288, "num_attention_heads": 96}, "gpus": 8},
    "moe too large": {"architecture": {}, "gpus": 8, "seq_length": 8192},
    "dense memory": {"sort_by": "memory", "fit_chance": 0.5}, "moe at most": {"gpus": None, "gpus_at_most": 16},
    "dense twenty-four": {"gpus": 24, "global_batch_size": 96}, "dense forty-eight": {"gpus": 48, "global_batch_size": 64,
    "gpu": "h100"},
    "odd fixed": {"fix": ("tp=2", "recompute=none"), "max": ("pp=2",), "exclude": ("mbs=1",), "include": ("tp=2,pp=2,mbs=1",
    "tp=3")},
    "moe varied": {"gpu": "h100", "vary": ("dispatcher", "cuda_graphs")}, "dense torch": {"software": "torchtitan",
    "gpu": "h100"},
    "moe deepspeed": {"software": "transformers-deepspeed"}, "dense lora": {"numerics": {"peft": "lora"}, "gpus": 4},
    "mla fp8": {"gpu": "b200", "numerics": {"precision": "fp8", "fp8_recipe": "mxfp8"}, "software": "nemo-26.04"},
}  # fmt: skip
"""Small questions (conftest.MODELS by their first word), and what is asked otherwise."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_searches(name):
    request = make_request(name.split()[0], **QUESTIONS[name])
    found = search(request, whole=True)
    ranking = found.ranking
    told = {
        "funnel": replace(found.ranking.funnel, seconds=0.0, seconds_by_phase={}), "ties": found.ties,
        "assumed": found.question.assumed,
        "plans": [(one.report.plan, [one.tie_group, one.report.step_seconds, one.report.peak_bytes], one.why)
        for one in found.plans[:6]],
        "safe": found.safe and found.safe.plan, "pareto": [[one.step_seconds, one.peak_bytes] for one in found.pareto],
        "included": [(one.legal, one.violations, one.layout_rank, one.layout_percentile, one.step_ratio_to_first,
        one.shortfall_gib)
                     for one in found.included],
        "miss": found.nearest_miss and found.nearest_miss.plan, "riskier": found.riskier and found.riskier.plan,
        "remedies": [replace(one, scenario=None) for one in found.remedies], "batch": found.other_batch,
        "tried": [list(map(float, (a, b or 0))) for a,
        b in found.gpus_tried],
        "varied": [(one.words, one.step_seconds, one.reason) for one in found.question.varied],
        "sums": [float(ranking.step_seconds.sum()), float(ranking.peak_bytes.sum()), int(ranking.row.sum()), len(ranking.best)],
        "level": ranking.level, "met": ranking.fit_chance_met,
    }  # fmt: skip
    if found.plans:
        told["last"] = reason_for(found.plans[-1].report, found.plans[0].report, ranking, len(ranking.best) + 7)
    TABLE.check(f"search {name}", told)


PLANS = {
    "dense": "tp=2,pp=2,mbs=2", "odd": "tp=2,pp=1,mbs=1,recompute=full:block:2", "moe": "tp=2,mbs=1,ep=4,sp=1",
    "mla": "tp=1,pp=1,mbs=1,ep=8", "dense tight": "tp=1,pp=4,mbs=1",
    "dense too large": "tp=8,mbs=2,recompute=full", "odd fixed": "tp=3,pp=2,mbs=5,vpp=3",
    "dense twenty-four": "tp=8,pp=2,mbs=1,sp=1",
    "moe varied": "tp=1,pp=4,ep=2,mbs=1,vpp=2", "moe deepspeed": "tp=2,mbs=1", "mla fp8": "tp=2,pp=2,mbs=1,first=2,last=3,cp=3",
    "dense torch": "tp=2,mbs=1,fsdp=3,recompute=selective:mlp",
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_explanations(name):
    request = make_request(name.split()[0], **QUESTIONS.get(name, {}))
    found = explain(request, PLANS[name], binds=name in ("dense", "mla", "dense tight"))
    scenario = found.question.scenario
    told = replace(found, question=None, operators=(), included=replace(found.included, report=None))
    plan = scenario.read_plan(PLANS[name])
    TABLE.check(f"explain {name}", {
        "told": told, "nearest": nearest_legal(scenario, plan), "even": nearest_legal(scenario, plan.replace(mbs=3),
        even_only=True),
        "odd": odd_factor(scenario), "batches": useful_batches(scenario), "operators": len(found.operators),
    })  # fmt: skip


def test_spaces():
    found = {
        "splits": {f"{n}.{pp}": [list(one) for one in stage_splits(n, pp)] for n in (4, 7, 30, 61) for pp in (1, 2, 3, 8, 30)}
    }
    found["counts"] = {f"{n}": layer_counts(n) for n in (1, 2, 3, 5, 8, 12, 37, 100)}
    found["gpus"] = {f"{n}": [len(_gpu_counts(n, 8)), *_thinned(_gpu_counts(n, 8)), *_rich_in_divisors(_gpu_counts(n, 8))]
                     for n in (1, 5, 8, 9, 24, 100, 640)}  # fmt: skip
    found["sharding"] = {
        f"{number}.{usual}": [list(map(float, one)) for one in sharding_choices(Constraints(fixed=fixed), usual)]
        for number, fixed in enumerate(({}, {"fsdp": frozenset({2})}, {"dist_opt": frozenset({False, True})},
        {"offload": frozenset({0.5})}))
        for usual in (True, False)
    }  # fmt: skip
    for name in ("gpt", "moe", "hybrid fp8", "t5", "moe transformers-deepspeed", "gated torchtitan", "gpt mtp", "moe overlap"):
        scenario = small(name)
        space = enumerate_space(scenario)
        rows = space.layouts
        found[name] = {
            "axes": axes(scenario), "bounds": search_bounds(scenario, Constraints(at_most={"tp": 4})),
            "rejected": space.rejected_by_rule,
            "sums": {key: int(np.dot(np.asarray(getattr(rows, key), np.int64), np.arange(len(rows)) % 97))
                     for key in ("tp", "pp", "dp", "mbs", "vpp", "cp", "ep", "etp", "sp", "first", "last", "fsdp", "dist_opt")},
            "rows": [len(rows), int(space.layout_id.sum())], "options": [str(one) for one in recompute_options(scenario,
            Constraints(), 4)],
            "layout": {f"{pp}": [list(one) for one in layout_splits(scenario.model, pp)] for pp in (1, 2, 3, 4)},
        }  # fmt: skip
    TABLE.check("spaces", found)


def test_splits_by_words():
    texts = ("Ett|ttL", "Et|t|t|tL", "Et*3|tL", "E(t|)*3tL", "Ettt|tmL", "EttttL", "Et||ttt|L", "E|t*4|L", "", "t",
    "Ett|tt|L", "Exx|tL",
             "[['embedding','decoder'],['decoder','decoder','decoder','loss']]", "Et*40|t*60L", "E(tt|)*2",
             "Et|tttL|")  # fmt: skip
    found = {f"{number}.{pp}.{mtp}": outcome(split_of_layout, text, pp, 4, mtp)
             for number, text in enumerate(texts) for pp in (1, 2, 4) for mtp in (0, 1)}  # fmt: skip
    found |= {
        f"chunks{number}": outcome(lambda text: list(map(len, layout_chunks(text))), text) for number, text in enumerate(texts)
    }
    found |= {
        f"{n}.{pp}.{vpp}.{embedding:d}{loss:d}": split_by_accounting(n, pp, vpp, embedding=embedding, loss=loss)
        for n in (14, 15, 16) for pp in (1, 2, 4) for vpp in (1, 2) for embedding in (True, False) for loss in (True, False)
    }  # fmt: skip
    TABLE.check("splits", found)
