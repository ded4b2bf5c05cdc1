"""The shared constants of engines: what a unit of each takes of a run, and that the fit finds what made the figures."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.time_model.serving.tables import UNSEEN, shipped_calibration

from autoconfig.runs.predict_serving import best_setup, open_loop
from autoconfig.runs.serving_row import read_case
from validation.fit.closed_loop import (
    NAMES,
    SHARING,
    equation,
    generations,
    load_bands,
    predicted,
    runs_of,
    solve,
    starting_terms,
)
from validation.intake.served import why_unknown
from validation.published import published_rows

BENCHMARKS = [row for row in published_rows("served_measurements") if row["kind"] == "online_concurrency"]
ROWS = [row for row in BENCHMARKS if row["backend"] == "vllm"]
RATES = list(published_rows("served_rates"))


@pytest.mark.parametrize("name", ["linear", "experts", "experts_arithmetic", "moe_layer_s", "eager_layer_s", "request_s"])
def test_a_constant_that_grows_lengthens_the_figures_by_its_slope(name):
    """Half as much again: TPOT and TTFT of the simulation beside the straight line."""
    begun = starting_terms(SHARING)
    more = replace(begun, values={**begun.values, name: 1.5 * begun.values[name]})
    run = runs_of(ROWS)[20]
    one, other = (equation(run, replace(shipped_calibration(), pooled=terms)) for terms in (begun, more))
    assert one is not None and other is not None
    step = 0.5 * one.at[NAMES.index(name)]
    for i, slack in ((0, 0.01), (1, 0.05)):
        line = one.figures[i] + step * one.slopes[i][NAMES.index(name)]
        assert other.figures[i] == pytest.approx(line, rel=slack), ("TPOT", "TTFT")[i]
    assert other.figures[0] + other.figures[1] > one.figures[0] + one.figures[1]


def test_the_fit_finds_a_common_factor():
    """Every run 1.3 times as long as the constants that it began with say: all that is predicted comes nearer."""
    calibration = replace(shipped_calibration(), pooled=starting_terms(SHARING))
    found = [one for run in runs_of(ROWS)[::6] if (one := equation(run, calibration)) is not None]
    slower = [replace(one, run=replace(one.run, tpot_s=1.3 * one.figures[0], ttft_s=1.3 * one.figures[1])) for one in found]
    terms = replace(calibration, pooled=solve(slower, SHARING))
    ratios = [one.tpot_s / one.run.tpot_s for one in [predicted(one.run, terms) for one in slower] if one is not None]
    assert np.abs(np.log(ratios)).mean() < 0.06 < np.log(1.3)


def test_bands_are_quantiles_within_what_is_promised():
    """Of vLLM, and of generations of GPUs left out, whose constants the others make."""
    calibration = shipped_calibration()
    runs = runs_of(ROWS)[:: len(ROWS) // 8]
    some = [one for run in runs if (one := predicted(run, calibration)) is not None]
    equations = [one for run in runs if (one := equation(run, calibration)) is not None]
    assert generations(equations, SHARING) == {"vllm": ["blackwell", "hopper"], "sglang": []}
    found = load_bands(some, equations, SHARING)
    assert set(found) == {"vllm", UNSEEN}
    for band in found.values():
        (low, high), (least, most) = band["tpot"], band["ttft"]
        assert 0.70 <= low < high <= 1.45 and 0.60 <= least < most <= 1.90


def test_prompts_that_wait_for_each_other_as_measured():
    """DeepSeek-R1 with attention data parallelism under TensorRT-LLM, whose configurations say how prompts wait: MLPerf v6.0 at
    its rate, InferenceX with its users. Without waiting TPOT of the former is 42 % off, of 8,192 tokens of the latter 214."""
    waiting = [
        row for row in published_rows("served_measurements") if row["adp_timeout_iters"] and row["model"] == "DeepSeek-R1"
    ]
    errors = []
    for row in [row for row in waiting if row["scenario"] == "Server"][::2]:
        case = replace(read_case(row), limits=None)
        found = open_loop(case, best_setup(case, shipped_calibration()))
        errors.append(
            [1e3 * found.ttft_s / float(row["ttft_mean_ms"]) - 1, 1e3 * found.tpot_s / float(row["tpot_mean_ms"]) - 1]
        )
    assert (np.abs(errors) < 0.25).all()
    for run in runs_of(BENCHMARKS, every=True):
        if run.row["adp_timeout_iters"] == "60":
            found = predicted(run, shipped_calibration())
            assert found is not None and abs(found.tpot_s / run.tpot_s - 1) < 0.35 and abs(found.ttft_s / run.ttft_s - 1) < 0.55


@pytest.mark.parametrize("name", ["linear", "synchronous_step_s"])
def test_slopes_of_arrivals_at_a_rate(name):
    """vLLM 0.8.5 at 4 requests a second: a tenth more of a constant lengthens TPOT by its slope."""
    row = next(row for row in RATES if row["offered_qps"] == "4.0" and row["model"] == "Llama-3.1-8B" and row["n_gpus"] == "1")
    (run,) = runs_of([row])
    begun = starting_terms(SHARING)
    more = replace(begun, values={**begun.values, name: 1.1 * begun.values[name]})
    one, other = (equation(run, replace(shipped_calibration(), pooled=terms)) for terms in (begun, more))
    step = 0.1 * one.at[NAMES.index(name)]
    assert other.figures[0] - one.figures[0] == pytest.approx(step * one.slopes[0][NAMES.index(name)], rel=0.3)


def test_rules_of_a_known_set_up_read_no_prediction():
    rows = BENCHMARKS
    known = [row for row in rows if not why_unknown(row)]
    assert (len(rows), len(known)) == (327, 253)
    assert (len(RATES), sum(not why_unknown(row) for row in RATES)) == (256, 85)
    blind = [{name: "" if name.endswith("_ms") or "tok_s" in name else value for name, value in row.items()} for row in rows]
    assert [why_unknown(row) for row in blind] == [why_unknown(row) for row in rows]
