"""Single terms of the time model by hand, where a slip would hide in a sum."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from autoconfig.time_model.operators.layer_table import mtp_projection_shape
from autoconfig.time_model.serving import ideal

H200 = load_gpu("h200")


def test_a_prediction_depth_projects_two_hidden_states_to_one():
    job, shapes = SimpleNamespace(model=SimpleNamespace(hidden_size=7168)), SimpleNamespace(tokens=np.array([4096.0]), tp=8.0)
    found = mtp_projection_shape(job, shapes)
    assert (found.n, found.k.tolist(), found.m.tolist()) == (7168 / 8, [2 * 7168], [4096.0])


@pytest.mark.parametrize(("kv", "each"), [("bf16", 2), ("fp8", 1)])
def test_latent_decode_reads_latent_and_rope_and_moves_queries_and_outputs(kv, each):
    heads, length = 1, 4  # so short and few that memory binds
    traffic = length * (512 + 64) * each + 2 * heads * (512 + 64 + 512)  # 16-bit queries in the latent's width, outputs
    assert ideal.latent_decode_seconds(3.0, heads, length, kv, H200) == pytest.approx(3 * traffic / H200.hbm_bytes_per_s)
    flops = 2 * 128 * 4096 * (512 + 64 + 512)  # scores over latent and rope, sums over the latent
    found = ideal.latent_decode_seconds(3.0, 128, 4096, kv, replace(H200, hbm_bytes_per_s=1e18))
    assert found == pytest.approx(3 * flops / H200.flops_per_s["bf16"])


def test_userbuffers_hide_six_tenths_of_tensor_parallel_communication():
    stack = load_stack("transformer-engine")
    plain = replace(stack, time=replace(stack.time, tp_overlap_share=0.0))
    share = {
        on: with_options(plain, StackOptions(overlaps=frozenset({"tp-comm-overlap"} if on else ()))).time.tp_overlap_share
        for on in (True, False)
    }
    assert share == {True: 0.6, False: 0.0}  # docs/time_model.md, tp_overlap_share
    better = replace(stack, time=replace(stack.time, tp_overlap_share=0.8))
    more = with_options(better, StackOptions(overlaps=frozenset({"tp-comm-overlap"})))
    assert more.time.tp_overlap_share == 0.8
