"""Memory of many scenarios, part by part, as the table beside this file has it; what that is worth: helpers/recorded.py."""

from __future__ import annotations

import numpy as np
import pytest
from autoconfig.memory_model.predict import (
    MOMENTS,
    dispatch_buffer_bytes,
    estimate_memory,
    plans_that_fit,
)
from autoconfig.memory_model.serving import checkpoint_bytes, serving_memory, weight_parts_bytes
from autoconfig.memory_model.tables import least_state_bytes
from recorded import SCENARIOS, Table, outcome, scenario_of
from served import JOBS, job_of

TABLE = Table(__file__, "memory.txt")


@pytest.mark.parametrize("name", SCENARIOS)
def test_stages_and_their_parts(name):
    scenario, plans, margin = scenario_of(name)
    layouts, options = scenario.layouts(plans), list(dict.fromkeys(plan.recompute for plan in plans))
    detail = estimate_memory(scenario, layouts, options, margin=margin, detail=True)
    quick = estimate_memory(scenario, layouts, options, margin=margin)
    assert np.allclose(quick.peak_bytes, detail.peak_bytes, rtol=1e-9)
    found = {"limit": detail.limit_bytes, "peak": quick.peak_bytes, "chance": quick.fit_probability}
    found |= {"least": least_state_bytes(scenario, layouts), "dispatch": dispatch_buffer_bytes(scenario, layouts)}
    found["fits"] = plans_that_fit(scenario, layouts, options, np.ones(quick.peak_bytes.shape, bool), margin=margin).fits
    for row, plan in enumerate(plans):
        at = row, options.index(plan.recompute)
        for stage in dict.fromkeys((0, min(1, plan.pp - 1), plan.pp - 1)):
            parts = {part: float(value[(*at, stage)]) for part, value in detail.parts.items()}
            assert sum(parts.values()) == pytest.approx(detail.per_stage_bytes[(*at, stage)], rel=1e-9)
            found[f"{row}.{stage}"] = {"at": MOMENTS[detail.moment[(*at, stage)]], **parts}
    TABLE.check(name, found)


@pytest.mark.parametrize("text", JOBS)
def test_memory_of_an_engine(text):
    job = job_of(text)
    model, plan, formats, gpu, engine = job.model, job.plan, job.formats, job.gpu, job.engine
    found = {"weights": weight_parts_bytes(model, plan, formats), "checkpoint": outcome(checkpoint_bytes, model, formats)}
    length = np.array([100.0, 5000.0, 70_000.0])
    found["memory"] = serving_memory(model, plan, formats, gpu, engine, length=length)
    found["given"] = serving_memory(model, plan, formats, gpu, engine, length=900.0, batch=7, tokens=500, kv_memory_ratio=0.5)
    found["concurrency"] = found["memory"].max_concurrency
    TABLE.check(text, found)
