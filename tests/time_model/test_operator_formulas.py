"""Operators against the formulas that docs/time_model.md and their docstrings print, in numbers: small models whose sizes are
all different, 16-bit, fp32 and fp8. Rows of operator_formulas.json, in the pages' letters (small_models.symbols):

gemms: model, changes, name, rows m, columns n, depth k, number of them.
memory_bound: model, changes, name, bytes forward and backward at 16 bits, launches of both.
communication: model, changes, name, seconds forward and backward. AR, AG, RS: tensor-parallel collectives of so many bytes;
EA2A, XAG, XRS: experts'; ex: what is exposed of communication beside compute, dgrad and wgrad a linear layer's gradients.
"""

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.job import Group, Shapes, TrainingJob, collective_seconds, shapes_of
from autoconfig.time_model.operators.layer import BlockCollectives
from autoconfig.time_model.operators.layer_table import price_operators
from autoconfig.time_model.operators.operator import Operator
from small_models import ENCODER_TOKENS, MODELS, symbols

PLANS = (
    {"mbs": 1, "tp": 1, "sp": 0, "cp": 1, "ep": 1, "etp": 1, "pp": 1},
    {"mbs": 3, "tp": 4, "sp": 1, "cp": 2, "ep": 2, "etp": 2, "pp": 1},
    {"mbs": 2, "tp": 4, "sp": 0, "cp": 1, "ep": 16, "etp": 1, "pp": 1},
    {"mbs": 1, "tp": 16, "sp": 1, "cp": 4, "ep": 4, "etp": 1, "pp": 1},
)
NUMERICS = {
    "bf16": Numerics(moe_imbalance=1.5, attention_dropout=0.1, hidden_dropout=0.1),
    "fp32": Numerics(precision="fp32", attention_dropout=0.0, hidden_dropout=0.0, moe_capacity_factor=1.25),
    "fp8": Numerics(precision="fp8", attention_dropout=0.0, hidden_dropout=0.0, moe_imbalance=1.5),
}
ROWS = json.loads(Path(__file__).with_name("operator_formulas.json").read_text(encoding="utf-8"))


Case = tuple[TrainingJob, Shapes, dict[str, Operator], dict[str, Any]]


@cache
def priced(model: str, changes: str, plan: int, numerics: str) -> Case:
    """The job, its one shape, its operators by name and layer, and the letters."""
    spec = ModelSpec(**{**MODELS[model], **json.loads(changes)})
    degrees = PLANS[plan]
    tokens = {"seq_length": ENCODER_TOKENS, "decoder_seq_length": 240} if model == "t5" else {"seq_length": 240}
    scenario = Scenario(
        model=spec, cluster=cluster_of(load_gpu("h100"), 64), numerics=NUMERICS[numerics],
        software=load_stack("transformer-engine"),
        workload=Workload(global_batch_size=192, **tokens),
    )  # fmt: skip
    letters = symbols(spec, NUMERICS[numerics], degrees, 240)
    job = TrainingJob.of(scenario)
    x = shapes_of(scenario.layouts([parse_plan(",".join(f"{key}={value}" for key, value in degrees.items()), 64)]), job)
    found = price_operators(job, x, BlockCollectives(job, x, float(spec.hidden_size)))
    operators = {op.name: op for op in found} | {f"{op.layer} {op.name}": op for op in found}
    return job, x, operators, letters


def each(rows: list[list[Any]]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: f"{row[0]} {row[2]}")


def cases(row: list[Any]) -> Any:
    """Everything of the row's model on each plan in each precision, and the row's name."""
    for plan, numerics in itertools.product(range(len(PLANS)), NUMERICS):
        yield *priced(row[0], json.dumps(row[1]), plan, numerics), (plan, numerics, row[2])


def value(formula: str, letters: dict[str, Any]) -> float:
    return float(eval(formula, {}, letters))


@each(ROWS["gemms"])
def test_linear_layers_have_their_shapes(row: list[Any]) -> None:
    for job, _, operators, letters, case in cases(row):
        op = operators[row[2]]
        m, n, k, count = (value(text, letters) for text in row[3:])
        assert op.flops[0] == pytest.approx(count * 2 * m * n * k), case
        low = job.quantised and row[2] not in ("router", "logits", "masked LM dense")
        element = 1 if low else letters["w"]
        assert op.traffic[0] == pytest.approx(count * element * (m * k + k * n + m * n)), case


@each(ROWS["memory_bound"])
def test_memory_bound_operators_move_their_bytes(row: list[Any]) -> None:
    for job, _, operators, letters, case in cases(row):
        op, launches = operators[row[2]], row[5:] or [0, 0]
        rate = job.hbm_bytes_per_s * job.gpu.hbm_pointwise / job.software.pointwise_slowdown
        for seconds, formula, count in zip((op.forward, op.dgrad), row[3:5], launches, strict=True):
            moved = (float(seconds[0]) - count * job.gpu.launch_s) * rate
            assert moved == pytest.approx(letters["w"] / 2 * value(formula, letters), rel=1e-9, abs=1e-3), case


def collectives(job: TrainingJob, x: Shapes, operators: dict[str, Operator]) -> dict[str, Any]:
    """Seconds of collectives by their bytes, and what they hide behind."""

    def seconds(kind: str, group: Group) -> Any:
        return lambda total: float(collective_seconds(kind, total, group, job.links)[0])

    def exposed(communication: float, compute: float) -> float:
        share = job.software.overlap_interference
        return max(communication - compute, 0.0) + share * min(communication, compute)

    short = {"AR": "all_reduce", "AG": "all_gather", "RS": "reduce_scatter"}
    return {
        **{name: seconds(kind, x.tensor_group) for name, kind in short.items()},
        "A2A": seconds("all_to_all", x.context_group), "EA2A": seconds("all_to_all", x.expert_group), "ex": exposed,
        "XAG": seconds("all_gather", x.expert_tensor_group), "XRS": seconds("reduce_scatter", x.expert_tensor_group),
        "dgrad": lambda name: float(operators[name].dgrad[0]), "wgrad": lambda name: float(operators[name].wgrad[0]),
    }  # fmt: skip


@each(ROWS["communication"])
def test_communication_moves_its_bytes(row: list[Any]) -> None:
    for job, x, operators, letters, case in cases(row):
        op, known = operators[row[2]], letters | collectives(job, x, operators)
        known["hidden"] = 0.6 if letters["u"] > 1 and letters["t"] <= 8 else 0.0  # by userbuffers, inside a link domain
        for seconds, formula in zip((op.forward, op.dgrad), row[3:5], strict=True):
            assert float(seconds[0]) == pytest.approx(value(formula, known), rel=1e-9, abs=1e-15), case
