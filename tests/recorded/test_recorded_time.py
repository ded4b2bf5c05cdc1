"""Time of many scenarios and iterations, part by part, as the table beside this file has it (helpers/recorded.py says what that
is worth)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.software.engine import engine_names, load_engine
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.operators.listing import explain_operators
from autoconfig.time_model.predict import StepTimes, estimate_step_time, forward_seconds
from autoconfig.time_model.serving.borrowed import borrowed_shares
from autoconfig.time_model.serving.costs import constant_vector, iteration_parts, iteration_seconds
from autoconfig.time_model.serving.simulation import (
    IterationTable,
    Requests,
    SchedulerLimits,
    poisson_arrivals,
    sampled_lengths,
    simulate,
)
from autoconfig.time_model.serving.steady import (
    Lengths,
    Pricer,
    generation,
    highest_utilisation_within,
    prompts_per_iteration,
    steady_state,
    tokens_per_step,
    waiting_services,
)
from autoconfig.time_model.serving.tables import shipped_calibration
from autoconfig.time_model.serving.workload import (
    Drawn,
    Trace,
    offline_requests,
    stored_elements,
    trtllm_bench_limits,
    trtllm_bench_table,
    tuned_batch,
)
from recorded import SCENARIOS, Table, scenario_of
from served import JOBS, job_of

TABLE = Table(__file__, "time.txt")


@pytest.mark.parametrize("name", SCENARIOS)
def test_steps_and_their_parts(name):
    scenario, plans, _ = scenario_of(name)
    layouts, options = scenario.layouts(plans), list(dict.fromkeys(plan.recompute for plan in plans))
    time = estimate_step_time(scenario, layouts, options, detail=True)
    assert np.allclose(sum(time.parts.values()), time.step_seconds, rtol=1e-9)
    times = StepTimes.of(TrainingJob.of(scenario), layouts, options)
    every = np.arange(len(plans))
    least, most = times.least_seconds(every), times.least_seconds(every, np.ones(time.step_seconds.shape, bool))
    assert (least <= most).all() and (most <= time.step_seconds.min(axis=1)).all()
    found = {"step": time.step_seconds, "forward": forward_seconds(scenario, layouts), "least": least, "most": most}
    found |= {"origin": time.origin, "level": time.level}
    for row, plan in enumerate(plans):
        found[f"{row}"] = {part: value[row, options.index(plan.recompute)] for part, value in time.parts.items()}
    columns = ("forward_seconds", "dgrad_seconds", "wgrad_seconds", "recompute_seconds", "forward_flops", "forward_bytes")
    found["operators"] = {
        f"{op.layer}.{op.operator}": [*(getattr(op, column) for column in columns), op.share_of_peak or 0.0]
        for op in explain_operators(scenario, plans[0])
    }
    TABLE.check(name, found)


SIZES = {"decode": (0.0, 1.0, 48.0, 700.0), "length": (1.0, 900.0, 2600.0, 5000.0), "prompts": (3.0, 0.0, 0.0, 0.5)}
LENGTHS = (
    Lengths(isl=1000.0, osl=200.0), Lengths(isl=128.0, osl=2048.0, cached=0.3, tokens_per_step=1.8, drafted=2.0),
    Lengths(isl=3000.0, osl=1.0, prompt_rms=3500.0), Lengths(isl=30_000.0, osl=300.0, context=31_000.0),
)  # fmt: skip


@pytest.mark.parametrize("text", JOBS)
def test_iterations_and_steady_states(text):
    job = job_of(text, graph_sizes=(1, 8, 64, 256))
    sizes = [np.array(column) for column in SIZES.values()]
    found = {"parts": iteration_parts(job, *sizes, np.full(4, 700.0), 2.0)}
    found["seconds"] = iteration_seconds(replace(job, imbalance=1.3, graph_sizes=()), *sizes, np.full(4, 300.0))
    found["constants"] = constant_vector(job.constants)
    found["origin"] = job.constants.origin
    found["borrowed"] = tuple(borrowed_shares(job.tables, job.model, job.gpu, ["bf16", "int4", "nvfp4"], ["fp8"]))
    running, tokens = np.array([1.0, 17.0, 300.0]), np.array([8192.0, 2048.0, 1024.0])
    for number, lengths in enumerate(LENGTHS):
        chunked = number % 2 == 0
        prices = Pricer(lengths).prices(job)
        found[f"steady{number}"] = steady_state(prices, lengths, running, tokens, job.plan.adp * job.plan.pp, chunked, 0.01)
        built = generation(job, lengths, running, tokens, chunked=chunked, bursts=number < 2)
        found[f"generation{number}"] = [built.mixed, built.alone, built.seconds(constant_vector(job.constants))]
    plan = job.plan
    found["limits"] = [
        *trtllm_bench_limits(job.model, plan, job.gpu, job.formats, 1000, 300), *(trtllm_bench_table(job.model, plan, 128,
        128) or ()),
        *trtllm_bench_limits(job.model, plan, job.gpu, job.formats, 20_000, 50), stored_elements(job.model, job.formats),
    ]  # fmt: skip
    TABLE.check(text, found)


@pytest.mark.parametrize(("chunked", "whole", "users"), [
    (True, True, None), (False, True, None), (True, False, None), (True, True, 6), (False, False, 3),
])  # fmt: skip
def test_streams_of_requests(chunked, whole, users):
    rng = np.random.default_rng(3)
    table = IterationTable(job_of(JOBS[1]))
    arrival = poisson_arrivals(25.0, 40, rng)
    isl, osl = sampled_lengths(900.0, 0.8, 4000.0, 40, rng), sampled_lengths(60.0, 1.0, 300.0, 40, rng)
    limits = SchedulerLimits(
        batch=5, tokens=1024, kv_tokens=6000.0, chunked=chunked, whole=whole, steps_per_token=0.6, checked=2.0
    )
    cached = np.where(np.arange(40) % 3, 0.0, 200.0)
    found = {}
    for name, one in (("plain", table), ("slowed", table.slowed(1.5)), ("prefilled", table.of_prefilled())):
        stream = simulate(one, Requests(arrival_s=arrival, isl=isl, osl=osl, cached=cached), limits, 0.002, users)
        seen = [stream.ttft_s, np.nan_to_num(stream.tpot_s), stream.e2e_s]
        found[name] = [*(float(column[k::7].sum()) for column in seen for k in range(4)), stream.iterations, stream.duration_s]
        found[name] += [
            stream.requests_per_s,
            float(stream.step_tokens.sum()),
            float((stream.step_s * stream.step_tokens).sum()),
        ]
        found[name] += [len(stream.step_s), float(stream.step_end_s.sum())]
    found["iteration"] = [table.seconds(d, n, p, t, a, c, h) for d, n, p, t, a, c, h in (
        (0, 0, 1, 300, 300, 1, 0), (5, 700, 0, 0, 1, 1, 0), (5, 700, 2, 900, 600, 2, 0.2), (20_000, 2e5, 0.5, 1e5, 2e5, 1, 0.9),
        (1, 1, 0, 0, 1, 1, 0), (64, 64, 0, 64, 4096, 1, 0.5),
    )]  # fmt: skip
    TABLE.check(f"simulation {chunked} {whole} {users}", found)


def test_lengths_and_limits_of_serving():
    grid = [(rho, n) for rho in (0.0, 0.3, 0.8, 0.99) for n in (1.0, 4.0, 64.0)]
    found = {"waiting": [float(waiting_services(rho, n)) for rho, n in grid]}
    found["highest"] = [highest_utilisation_within(n, np.array([1.0, 3.0, 50.0])) for n in (0.01, 0.5, 4.0)]
    found["tokens"] = [tokens_per_step(n, a) for n in (0, 1, 2, 5) for a in (0.0, 0.5, 0.9, 1.0)]
    found["prompts"] = [
        prompts_per_iteration(lengths, np.array([1.0, 100.0, 900.0]), np.array([512.0, 2048.0, 4096.0]), chunked)
        for lengths in LENGTHS for chunked in (True, False)
    ]  # fmt: skip
    found["tuned"] = [
        tuned_batch(n) for n in (1, 143, 144, 335, 336, 671, 672, 831, 832, 1279, 1280, 1663, 1664, 2048, 2175, 2176)
    ]
    found["offline"] = [offline_requests(a, b) for a, b in ((128, 128), (128, 2048), (2048, 128), (7, 7), (500, 2000))]
    drawn, trace = Drawn(300.0, 60.0, 150.0, 90.0), Trace(
        arrival_s=np.array([0.0, 1.0, 4.0]), input_tokens=np.array([10.0, 30.0, 90.0]), output_tokens=np.array([5.0, 1.0, 7.0])
    )  # fmt: skip
    names = ("held_tokens", "context_tokens", "longest_input", "longest_tokens")
    found["drawn"] = [getattr(one, name) for one in (drawn, trace, trace.at_rate(3.0)) for name in names]
    found["trace"] = [trace.isl, trace.osl, trace.isl_stddev, trace.osl_stddev, trace.rate, *trace.at_rate(3.0).arrival_s]
    found["factors"] = {
        f"{engine}.{gpu}": [shipped_calibration().factor(load_engine(engine), gpu, kind) for kind in ("all", "experts",
        "arithmetic")]
        for engine in engine_names() for gpu in ("h100-sxm-80gb", "b200-180gb", "a100-40gb", "gh200-96gb", "gb300-288gb",
        "l4-24gb")
    }  # fmt: skip
    TABLE.check("lengths and limits", found)
