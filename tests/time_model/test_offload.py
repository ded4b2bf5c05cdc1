"""Copies of saved activations to host memory and back."""

from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.job import TrainingJob
from autoconfig.time_model.predict import estimate_step_time
from autoconfig.time_model.step.offload import activation_offload_seconds, offloaded_bytes


def scenario(gpu: str, layers: int) -> Scenario:
    return Scenario(
        model=load_model("llama3-8b"), cluster=cluster_of(load_gpu(gpu), 8),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0),
        software=load_stack("nemo-26.04"), workload=Workload(seq_length=8192, global_batch_size=32),
        given=GivenSettings(offload_layers=layers),
    )  # fmt: skip


@pytest.mark.parametrize(("copied", "waits"), [(20.0, 0.0), (40.0, 1.0), (100.0, 7.0 + 3.0), (0.0, 0.0)])
def test_copies_wait_where_they_outlast_a_pass(copied, waits):
    """10 bytes/s each way beside 3 s of forward and 7 s of backward."""
    assert activation_offload_seconds(copied, 3.0, 7.0, 10.0) == pytest.approx(waits)


def test_a_share_of_what_the_layers_save_is_copied():
    """Llama-3-8B, bf16, T = 8,192: norms' inputs and outputs 8 T h and 8 T, q, k, v and attention's output 2 T (2 q + 2 kv) and
    4 T a, the MLP 6 T f; 8 of 32 layers."""
    asked = scenario("h100", 8)
    tokens, hidden, ffn = 8192, 4096, 14336
    layer = 8 * tokens * hidden + 8 * tokens + 2 * tokens * (2 * 4096 + 2 * 1024) + 4 * tokens * 32 + 6 * tokens * ffn
    layouts = asked.layouts([parse_plan(text, 8) for text in ("tp=1,pp=1,mbs=1,dp=8", "tp=1,pp=2,mbs=1,dp=4")])
    found = offloaded_bytes(TrainingJob(asked), layouts, [NONE, Recompute.parse("full:uniform:1")])
    np.testing.assert_allclose(found, [[8 * layer, 0], [0, 0]], rtol=1e-12)
    assert not offloaded_bytes(TrainingJob(scenario("h100", 0)), layouts, [NONE]).any()


def test_the_step_waits_for_a_slow_link_only():
    """31 of 32 layers over PCIe; a part of the step like any other, none over NVLink-C2C or without offload."""
    for gpu, layers, waits in (("h100", 31, True), ("h100", 0, False), ("gb200", 31, False)):
        asked, without = scenario(gpu, layers), scenario(gpu, 0)
        layouts = asked.layouts([parse_plan("tp=1,pp=1,mbs=1,dp=8", 8)])
        found = estimate_step_time(asked, layouts, [NONE], detail=True)
        waited = float(found.parts.get("activation_offload_seconds", np.zeros((1, 1)))[0, 0])
        assert (waited > 0) == waits and ("activation_offload_seconds" in found.parts) == (layers > 0)
        assert sum(part[0, 0] for part in found.parts.values()) == pytest.approx(found.step_seconds[0, 0])
        plain = estimate_step_time(without, layouts, [NONE]).step_seconds[0, 0]
        assert (found.step_seconds[0, 0] > plain) == waits
        twice = replace(asked, workload=replace(asked.workload, global_batch_size=64))
        more = estimate_step_time(twice, twice.layouts([parse_plan("tp=1,pp=1,mbs=1,dp=8", 8)]), [NONE], detail=True)
        assert float(more.parts.get("activation_offload_seconds", np.zeros((1, 1)))[0, 0]) == pytest.approx(2 * waited)
