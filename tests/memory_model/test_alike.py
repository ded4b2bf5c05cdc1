"""Layouts that take the same memory are priced once; this must change nothing."""

import numpy as np
import pytest
from autoconfig.memory_model.alike import alike_in_memory
from autoconfig.memory_model.predict import estimate_memory, plans_that_fit
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.layouts import layouts_of
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

TEXTS = [
    f"tp={tp},pp={pp},cp={cp},mbs={mbs},dp={16 // (tp * pp * cp)},sp={sp}"
    for tp, sp in ((1, 0), (2, 0), (2, 1)) for pp in (1, 2) for cp in (1, 2, 4) for mbs in (1, 2, 3, 4)
]  # fmt: skip
OPTIONS = [NONE, Recompute.parse("selective:core_attn"), Recompute.parse("full:uniform:1")]


def scenario_of(model: str, stack: str, gpu: str = "a100-sxm-80gb") -> Scenario:
    return Scenario(
        model=load_model(model), cluster=cluster_of(load_gpu(gpu), 16), numerics=Numerics(),
        software=load_stack(stack), workload=Workload(seq_length=4096, global_batch_size=384),
    )  # fmt: skip


# one of each kind of attention, of context parallelism, and of what both keep
STACKS = (
    *("transformer-engine", "torchtitan", "megatron-local-flash", "megatron-local", "torch-eager", "megatron-core-0.14"),
    *("transformers-deepspeed", "alephalpha-torch-2023"),
)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2"])
def test_many_layouts_have_the_peaks_that_each_has_alone(model, stack):
    scenario = scenario_of(model, stack)
    plans = [parse_plan(text, 16) for text in TEXTS]
    layouts = layouts_of(2 * plans, scenario.model, [384] * len(plans) + [plan.mbs * plan.dp for plan in plans])
    peaks = estimate_memory(scenario, layouts, OPTIONS).peak_bytes
    for row in range(2, len(plans), 3):
        alone = estimate_memory(scenario, layouts.take(slice(row, row + 1)), OPTIONS)
        np.testing.assert_array_equal(alone.peak_bytes[0], peaks[row], TEXTS[row])
    first, group = alike_in_memory(scenario, layouts, np.ones(len(layouts)))
    np.testing.assert_array_equal(peaks, peaks[first][group])
    for share in (0.2, 0.5, 0.8):  # limits that some are above
        margin = 1 - share * float(peaks.max()) / scenario.cluster.memory_bytes
        every = estimate_memory(scenario, layouts, OPTIONS, margin=margin)
        found = plans_that_fit(scenario, layouts, OPTIONS, np.ones_like(every.fits), margin=margin)
        np.testing.assert_array_equal(found.fits, every.fits)
        rows = np.flatnonzero(every.fits.any(axis=1))
        np.testing.assert_array_equal(found.peak_bytes(rows), peaks[rows])


def test_halved_sequences_of_twice_as_many_are_one_group_under_flash_attention():
    """Half a sequence of four and a quarter of eight are as many tokens, of several sequences in parts; two whole sequences are
    not in parts, and half a sequence of two is fewer tokens."""
    scenario = scenario_of("llama3-8b", "transformer-engine", "h100-sxm-80gb")
    texts = ("cp=2,mbs=4,dp=8", "cp=4,mbs=8,dp=4", "cp=1,mbs=2,dp=16", "cp=2,mbs=2,dp=8")
    layouts = scenario.layouts([parse_plan(f"tp=1,pp=1,{text}", 16) for text in texts])
    group = alike_in_memory(scenario, layouts, np.ones(4))[1]
    assert group[0] == group[1] and len(set(group.tolist())) == 3
    assert len(set(alike_in_memory(scenario, layouts, np.array([1.0, 2.0, 1.0, 1.0]))[1].tolist())) == 4
