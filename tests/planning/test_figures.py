"""Step times and memory of many plans, deployments and first plans of small searches as figures.txt beside this file has them,
to a millionth. It is short enough to be read; a change that was meant is written by `make figures`, and its diff shows what
moved. Whether nothing else changed is a question to `python -m tools.recorded_answers`, what is right one to the other tests.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from autoconfig.memory_model.engines.plan import ServedPlan
from autoconfig.memory_model.predict import dispatch_buffer_bytes, estimate_memory, plans_that_fit
from autoconfig.memory_model.tables import least_state_bytes
from autoconfig.specs.errors import GIB
from autoconfig.time_model.predict import MixedTimes, estimate_step_time, forward_seconds
from autoconfig.time_model.serving.iteration import iteration_seconds
from autoconfig.time_model.serving.steady import Lengths, Pricer, steady_state
from served import JOBS, job_of

from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request, understand
from tests.conftest import make_request

HERE = Path(__file__).parent
SCENARIOS: dict[str, dict[str, Any]] = json.loads((HERE / "scenarios.json").read_text(encoding="utf-8"))
"""Name -> what is asked (fields of Request) and plans."""
FIGURES = HERE / "figures.txt"
SEARCHES: dict[str, dict[str, Any]] = {
    "dense": {}, "odd": {}, "moe": {}, "mla": {}, "dense margin": {"memory_margin": 0.3}, "moe large": {"architecture": {}},
    "dense memory": {"sort_by": "memory", "fit_chance": 0.5}, "moe at most": {"gpus": None, "gpus_at_most": 16},
    "dense many": {"gpus": 48, "global_batch_size": 64, "gpu": "h100"}, "odd fixed": {"fix": ("tp=2",), "max": ("pp=2",)},
    "dense torch": {"software": "torchtitan", "gpu": "h100"}, "moe deepspeed": {"software": "transformers-deepspeed"},
    "dense lora": {"numerics": {"peft": "lora"}, "gpus": 4},
    "mla fp8": {"gpu": "b200", "numerics": {"precision": "fp8", "fp8_recipe": "mxfp8"}, "software": "nemo-26.04"},
}  # fmt: skip
"""Small questions (conftest.MODELS by their first word), and what is asked otherwise."""


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, str]]:
    """Lines of figures.txt by case; with AUTOCONFIG_RECORD they are written at the end."""
    lines = dict(line.split(": ", 1) for line in FIGURES.read_text(encoding="utf-8").splitlines())
    yield lines
    if "AUTOCONFIG_RECORD" in os.environ:
        FIGURES.write_text("".join(f"{case}: {line}\n" for case, line in sorted(lines.items())), encoding="utf-8")


def check(figures: dict[str, str], case: str, **values: object) -> None:
    """Hold a case's values, numbers or words, to its line: `name=value`, lists with commas."""
    line = " ".join(f"{name}={','.join(map(_text, np.ravel(np.array(value))))}" for name, value in values.items())
    if "AUTOCONFIG_RECORD" in os.environ:
        figures[case] = line
    assert case in figures, "make figures"
    then = dict(part.split("=", 1) for part in figures[case].split(" "))
    for name, text in (part.split("=", 1) for part in line.split(" ")):
        assert text == then[name] or _numbers(text) == pytest.approx(_numbers(then[name]), rel=1e-6), name


def _text(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, np.number) else str(value).replace("=", ":")


def _numbers(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",")]
    except ValueError:
        return []


@pytest.mark.parametrize("name", SCENARIOS)
def test_plans_of_a_scenario(name: str, figures: dict[str, str]) -> None:
    """Parts add up, what is quick is what is detailed, and bounds bound, for every plan and stage."""
    asked = {key: value for key, value in SCENARIOS[name].items() if key != "plans"}
    scenario, margin = understand(Request(**asked)).scenario, asked.get("memory_margin", 0.0)
    plans = [scenario.read_plan(plan) for plan in SCENARIOS[name]["plans"]]
    layouts, options = scenario.layouts(plans), list(dict.fromkeys(plan.recompute for plan in plans))
    memory = estimate_memory(scenario, layouts, options, margin=margin, detail=True)
    quick = estimate_memory(scenario, layouts, options, margin=margin)
    np.testing.assert_allclose(quick.peak_bytes, memory.peak_bytes, rtol=1e-9)
    np.testing.assert_allclose(sum(memory.parts.values()), memory.per_stage_bytes, rtol=1e-9)
    time = estimate_step_time(scenario, layouts, options, detail=True)
    np.testing.assert_allclose(sum(time.parts.values()), time.step_seconds, rtol=1e-9)
    times, every = MixedTimes.of(scenario, layouts, options), np.arange(len(plans))
    least, most = times.least_seconds(every), times.least_seconds(every, np.ones(time.step_seconds.shape, bool))
    assert (least <= most).all() and (most <= time.step_seconds.min(axis=1)).all()
    fits = plans_that_fit(scenario, layouts, options, np.ones(quick.peak_bytes.shape, bool), margin=margin).fits
    np.testing.assert_array_equal(fits, quick.fits)
    own = every, [options.index(plan.recompute) for plan in plans]
    check(
        figures, name, plans=[str(plan) for plan in plans], step_s=time.step_seconds[own],
        forward_s=forward_seconds(scenario, layouts), least_s=least, most_s=most, peak_gib=memory.peak_bytes[own] / GIB,
        stages_gib=[memory.per_stage_bytes[row, option, stage] / GIB for row, option in zip(*own, strict=True)
                    for stage in range(min(plans[row].pp, 2))],
        state_gib=least_state_bytes(scenario, layouts) / GIB, limit_gib=memory.limit_bytes / GIB,
        chance=memory.fit_probability[own], buffers_gib=dispatch_buffer_bytes(scenario, layouts) / GIB,
    )  # fmt: skip


@pytest.mark.parametrize("text", JOBS)
def test_a_deployment(text: str, figures: dict[str, str]) -> None:
    job = job_of(text, graph_sizes=(1, 8, 64, 256))
    decode, prompts, length = (
        np.array([0.0, 1.0, 48.0, 700.0]),
        np.array([3.0, 0.0, 0.0, 0.5]),
        np.array([1.0, 900.0, 2600.0, 5e3]),
    )
    served = ServedPlan(model=job.model, plan=job.plan, formats=job.formats, gpu=job.gpu, engine=job.engine)
    memory = served.memory(length=5000.0)
    running, tokens = np.array([1.0, 17.0, 300.0]), np.array([8192.0, 2048.0, 1024.0])
    steady = {}
    for number, lengths in enumerate((Lengths(isl=1000.0, osl=200.0), Lengths(isl=128.0, osl=2048.0, cached=0.3))):
        prices = Pricer(lengths).prices(job)
        found = steady_state(prices, lengths, running, tokens, job.plan.adp * job.plan.pp, number == 0, 0.01)
        steady |= {f"{name}{number}": value for name, value in vars(found).items() if isinstance(value, np.ndarray)}
    check(
        figures, text.replace("=", ":"), iteration_s=iteration_seconds(job, decode, length, prompts, np.full(4, 700.0)),
        weights_gib=memory.weights_bytes / GIB, pool_gib=memory.kv_pool_bytes / GIB, buffers_gib=memory.activation_bytes / GIB,
        sequences=memory.max_concurrency, **steady,
    )  # fmt: skip


@pytest.mark.parametrize("name", SEARCHES)
def test_the_first_plans_of_a_search(name: str, figures: dict[str, str]) -> None:
    found = search(make_request(name.split()[0], **SEARCHES[name]), whole=True)
    reports = [one.report for one in found.plans[:4]]
    check(
        figures, f"search {name}", plans=[str(one.plan) for one in reports], step_s=[one.step_seconds for one in reports],
        peak_gib=[one.peak_bytes / GIB for one in reports], ranked=len(found.ranking.best),
        step_s_of_all=float(found.ranking.step_seconds.sum()), peak_gib_of_all=float(found.ranking.peak_bytes.sum()) / GIB,
    )  # fmt: skip
