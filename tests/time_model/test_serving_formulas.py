"""Seconds of a serving engine's operators against their docstrings, in numbers: small models whose sizes are all different on a
machine that reaches a known share of its roofline, once bound by its memory and once by its matrix units.

A row of serving_formulas.json: function, model and changes, and the formula in the pages' letters (small_models.symbols) with m
tokens, D sequences of `len` cached tokens, P prompts of s tokens. lin(m, n, k): bytes of a linear layer, its weights and inputs
in fp8 (lin16: in 16 bits), or its FLOPs, over the reached share; S(sizes): that share; either(bytes, FLOPs); AR(n, bytes): an
all-reduce; j: ranks of attention data parallelism. Under "operators" a formula gives bytes or FLOPs, with `kernels` launches
beside them; under "seconds" seconds.
"""

import dataclasses
import inspect
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.scenario import Numerics
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import load_engine
from autoconfig.time_model.hardware.efficiency import GridTable, efficiency_of
from autoconfig.time_model.serving import costs, ideal, recurrent, rows
from autoconfig.time_model.serving.rows import ServingJob
from small_models import H100, MODELS, symbols

PLANS = tuple({"tp": tp, "adp": adp, "ep": ep} for tp, adp, ep in ((1, 1, 1), (4, 1, 4), (2, 8, 16), (16, 1, 1)))
ROWS = json.loads(Path(__file__).with_name("serving_formulas.json").read_text(encoding="utf-8"))
RATE, LINK_S, POWER = 1e12, 1e-12, 0.01
"""Bytes or FLOPs a second, and seconds of an all-reduce for each byte and rank: as good as any."""


def reached(axes: int) -> GridTable:
    """share(sizes) of the roofline: a product of powers is linear in logarithms, so that two points an axis hold all of it."""
    ends = np.meshgrid(*[(-40.0, 40.0)] * axes, indexing="ij")
    logs = sum(POWER * (place + 1) * end for place, end in enumerate(ends))
    return GridTable(axes=(np.array([-40.0, 40.0]),) * axes, logs=np.ravel(logs))


def share(*sizes: float) -> float:
    """The first size to the power 0.01, the second to 0.02, ..."""
    return math.prod(size ** (POWER * (place + 1)) for place, size in enumerate(sizes))


TABLES = SimpleNamespace(
    gemm={"bf16": reached(3)}, experts={"bf16": reached(4)}, skew={}, experts_share=lambda name, *sizes: share(*sizes),
    decode_attention={"bf16:128": reached(3)}, context_attention={"bf16:128": reached(2)},
    latent_attention={"decode:bf16": reached(3), "context:bf16": reached(3)},
    all_reduce=SimpleNamespace(seconds=lambda ranks, total, _: LINK_S * ranks * total),
)  # fmt: skip


def letters_of(model: ModelSpec, plan: EnginePlan, bound: str) -> dict[str, Any]:
    """The letters, and what a formula counts: bytes or FLOPs."""
    degrees = {"mbs": 1, "tp": plan.tp, "sp": 0, "cp": 1, "ep": plan.ep, "etp": 1, "pp": 1}

    def either(moved: float, flops: float) -> float:
        return moved if bound == "memory" else flops

    return symbols(model, Numerics(), degrees, 240) | {
        "m": 40.0, "D": 12.0, "len": 700.0, "P": 3.0, "s": 90.0, "j": plan.adp, "L": model.num_layers, "exp": math.exp,
        "either": either, "S": share,
        "lin": lambda m, n, k: either(n * k + m * k + 2 * m * n, 2 * m * n * k / 2) / share(m, n, k),
        "lin16": lambda m, n, k: either(2 * (n * k + m * k + m * n), 2 * m * n * k) / share(m, n, k),
        "AR": lambda ranks, total: LINK_S * ranks * total if ranks > 1 else 0.0,
        "own": efficiency_of(H100).recurrent,
    }  # fmt: skip


GIVEN = {
    "tokens": 40.0, "sequences": 12.0, "length": 700.0, "prompts": 3.0, "heads": 24.0, "kv_heads": 8.0, "head_dim": 10,
    "m": 40.0, "n": 50.0, "k": 60.0, "rows": 7.0, "experts": 5.0, "active": 4.0, "hidden": 96.0, "ffn": 56.0,
    "precision": "fp8", "moe": False,
}  # fmt: skip


def call(function: str, kind: str, changes: dict[str, Any], degrees: dict[str, int], bound: str) -> tuple[Any, dict[str, Any]]:
    """What the function of the row says, and the letters."""
    place = {"ideal": ideal, "rows": rows, "costs": costs, "recurrent": recurrent}[function.split(".")[0]]
    part, given = getattr(place, function.split(".")[1]), {**GIVEN, **changes}
    flops, moved = (1e40, RATE) if bound == "memory" else (RATE, 1e40)
    gpu = dataclasses.replace(H100, flops_per_s={"bf16": flops, "fp8": 2 * flops}, hbm_bytes_per_s=moved)
    model = ModelSpec(**{**MODELS[kind], **changes.get("model", {})})
    plan = EnginePlan(weights="fp8", kv=changes.get("kv", "bf16"), **degrees)
    job = ServingJob(model=model, gpu=gpu, plan=plan, engine=load_engine("trtllm-1.2"), measured=TABLES, gpus_per_node=64)
    known = given | {"job": job, "gpu": gpu, "kv": plan.kv}
    if function == "costs.prefill_attention_seconds":
        known["length"] = 90.0
    return part(**{name: known[name] for name in inspect.signature(part).parameters}), letters_of(model, plan, bound)


@pytest.mark.parametrize("bound", ["memory", "matrix units"])
@pytest.mark.parametrize(("function", "kind", "changes", "formula", "kernels"), ROWS["operators"])
def test_an_operator_is_its_bytes_or_its_flops(
    function: str, kind: str, changes: dict[str, Any], formula: str, kernels: int, bound: str
) -> None:
    for degrees in PLANS:
        found, letters = call(function, kind, changes, degrees, bound)
        if function == "rows.experts_seconds":
            found, arithmetic = found
            assert arithmetic == pytest.approx(found * (bound == "matrix units"))
        moved = (float(found) - kernels * rows.KERNEL_S) * RATE
        assert moved == pytest.approx(float(eval(formula, {}, letters)), rel=1e-9), degrees


@pytest.mark.parametrize(("function", "kind", "changes", "formula"), ROWS["seconds"])
def test_what_is_always_bound_by_memory_or_links(function: str, kind: str, changes: dict[str, Any], formula: str) -> None:
    """`function:part` of parts."""
    name, _, part = function.partition(":")
    for degrees in PLANS:
        found, letters = call(name, kind, changes, degrees, "memory")
        seconds = found[part] if part else found[0] if isinstance(found, tuple) else found
        known = letters | {"RATE": RATE, "LINK": H100.link_bytes_per_s}
        assert float(seconds) == pytest.approx(float(eval(formula, {}, known)), rel=1e-9, abs=1e-18), degrees
