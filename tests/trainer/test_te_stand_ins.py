"""Stand-ins for Transformer Engine against memory measured with the real one (published runs that ship with the project), and
the formula against the stand-ins. `pytest -s` prints every row; with `-m "soak or not soak"` all of them."""

import csv
from pathlib import Path

import pytest
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.trainer.tracing.trace import trace_rank

from autoconfig.core.trace import compare, trace_request
from autoconfig.core.trace_process import Traces
from autoconfig.runs.training_row import published_rows, read_case

TOLERANCE = 0.02
ROWS = [row for row in published_rows() if row["source"] == "SimuMax-B200-v1.2"]


def layouts() -> list[dict[str, str]]:
    """One row per layout: runs that differ in the number of micro-batches alone measured the same."""
    return list({(row["tp"], row["pp"], row["cp"], row["seq"]): row for row in reversed(ROWS)}.values())


@pytest.mark.parametrize("row", layouts(), ids=lambda row: row["id"])
def test_simumax(row: dict[str, str]) -> None:
    case = read_case(row)
    request = trace_request(case.scenario, case.plan, (0,))
    traced, measured = trace_rank(request, 0).peak_bytes / GIB, float(row["peak_mem_gib"])
    print(f"{row['id']} {case.plan}: measured {measured:.2f}, traced {traced:.2f} GiB ({traced / measured - 1:+.2%})")
    assert traced == pytest.approx(measured, rel=TOLERANCE)


def test_simumax_last_stage() -> None:
    """SM-0001's ranks 4 to 7, 64,479 MiB (the notes of the row)."""
    row = next(row for row in ROWS if row["id"] == "SM-0001")
    assert "4:64479" in row["notes"]
    case = read_case(row)
    traced = trace_rank(trace_request(case.scenario, case.plan, (7,)), 7).peak_bytes
    assert traced == pytest.approx(64479 * 2**20, rel=TOLERANCE)


RECIPES = Path(__file__).parents[1] / "accuracy" / "golden_recipes.csv"
FAST = ("GV-0002", "GV-0006", "GV-0009")
"""Two orders of attention's output, the native loss, interleaving: the others differ by less, and are for `make soak`."""
COPIES = ("GV-0007", "GV-0008")
"""They hold the numbers of the tp 8 recipe under the name of the tp 4 one (tests/accuracy/test_published_memory.py)."""


def golden_rows() -> list[object]:
    """Megatron-LM's 15B and 7B release tests, with what their recipes say and the rows do not."""
    with RECIPES.open(newline="") as file:
        recipes = {line["model"]: line for line in csv.DictReader(file)}
    found = []
    for row in published_rows():
        if row["source"] == "Megatron-LM-golden-values" and row["model"] in recipes and row["id"] not in COPIES:
            recipe = recipes[row["model"]]
            more = {"hidden_dropout": recipe["hidden_dropout"], "deterministic": recipe["deterministic"]}
            marks = () if row["id"] in FAST else (pytest.mark.soak,)
            found.append(pytest.param({**row, **more, "dp": row["dp"] or "8"}, id=row["id"], marks=marks))
    return found


@pytest.mark.parametrize("row", golden_rows())
def test_golden_values_above_what_stays_after_a_step(row: dict[str, str]) -> None:
    """The rows give peak and rest of the last rank; dp is assumed where they lack it, so that the state is not compared."""
    case = read_case(row)
    last = case.plan.world_size - 1
    trace = trace_rank(trace_request(case.scenario, case.plan, (last,)), last)
    measured = float(row["peak_mem_gib"]) - float(row["metric_mem_after_step_gib"])
    traced = (trace.peak_bytes - trace.after_bytes) / GIB
    off = traced / measured - 1
    print(f"{row['id']} {row['gpu']} {case.plan}: measured {measured:.2f}, traced {traced:.2f} GiB ({off:+.2%})")
    assert traced == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("model", "text", "seq_length"),
    [
        ("llama3-8b", "tp=2,mbs=1,sp=1,pp=4", 512),
        ("llama3-8b", "tp=2,mbs=1,pp=2,recompute=full:uniform:1", 2048),
        ("gpt3-5b", "tp=2,mbs=1,sp=1,pp=2", 2048),
    ],
)
def test_formula_equals_trace(model: str, text: str, seq_length: int) -> None:
    """Few layers and short sequences: the embedding's backward decides the first stage of the first two."""
    plan = parse_plan(text, 8)
    scenario = Scenario(
        model=load_model(model).replace(num_layers=4),
        cluster=cluster_of(load_gpu("h100-sxm-80gb"), plan.world_size),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0),
        software=load_stack("transformer-engine"),
        workload=Workload(seq_length=seq_length, global_batch_size=4 * plan.pp * plan.dp),
    )
    ranks = (0, plan.world_size - 1)
    request = trace_request(scenario, plan, ranks)
    traces = Traces(versions={}, ranks=tuple(trace_rank(request, rank) for rank in ranks))
    for rank in compare(scenario, plan, traces):
        print(f"{model} {plan} rank {rank.trace.rank}: {rank.trace.peak_bytes / GIB:.3f} GiB {rank.ratio - 1:+.2%}")
        assert rank.ratio == pytest.approx(1.0, abs=0.01)
