"""Single terms of the time model by hand, where a slip would hide in a sum."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from autoconfig.time_model.job import TrainingJob, collective_seconds, group_of, links_of, shapes_of
from autoconfig.time_model.operators.layer import core_attention, cp_communication_seconds
from autoconfig.time_model.operators.layer_table import mtp_projection_shape
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.step.rows import optimizer_seconds

H200 = load_gpu("h200")


def job_and_shapes(text, gpus=8, model="llama3-8b", seq=32768, **numerics):
    cluster = cluster_of(load_gpu("h100"), gpus)
    scenario = Scenario(
        model=load_model(model), cluster=cluster, numerics=Numerics(**numerics), software=load_stack("transformer-engine"),
        workload=Workload(seq_length=seq, global_batch_size=64),
    )  # fmt: skip
    job = TrainingJob(scenario)
    return job, shapes_of(scenario.layouts([parse_plan(text, gpus)]), job)


def test_every_further_link_domain_adds_a_hop_and_an_all_reduce_passes_it_twice():
    job, _ = job_and_shapes("tp=1", gpus=64)
    links = links_of(job.cluster, job.gpu)
    for kind, hops in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        empty = [float(collective_seconds(kind, 0.0, group_of(size, 1, 8), links)) for size in (8, 16, 64)]
        start = [now - empty[0] for now in empty]  # start-up is that of 8 ranks from 8 on
        assert start == pytest.approx([0, hops * links.nic_hop_s, 7 * hops * links.nic_hop_s]), kind


def test_the_ring_sends_keys_and_values_forward_and_their_gradients_too_backward():
    """4 ranks of 8,192 tokens; 8 key and 8 value heads of 128 channels in 16 bits are 4,096 bytes a token, sent 3 times."""
    job, x = job_and_shapes("tp=1,cp=4")
    idle = SimpleNamespace(forward=np.zeros(1), dgrad=np.zeros(1))
    forward, backward = cp_communication_seconds(job, x, idle)
    rate = job.links.collectives["p2p"].link_share * job.links.link_bytes_per_s
    assert backward[0] - forward[0] == pytest.approx(3 * 8192 * 4096 / rate)
    busy = SimpleNamespace(forward=np.full(1, 1e3), dgrad=np.full(1, 1e3))
    hidden, _ = cp_communication_seconds(job, x, busy)
    alpha, share = job.links.collectives["p2p"].alpha_s, job.software.overlap_interference
    assert forward[0] - hidden[0] == pytest.approx((1 - share) * 3 * (alpha + 8192 * 4096 / rate))


def test_flash_attention_computes_five_products_backward_where_forward_has_two():
    """Dao 2023, section 3.1; start-up is nothing at 32k tokens."""
    job, x = job_and_shapes("tp=1")
    core = core_attention(job, x)
    assert core.dgrad[0] / core.forward[0] == pytest.approx(2.5 / job.gpu.attention.backward, rel=1e-3)
    assert core.flops[0] == 2 * 2 * 128 * 32 * 32768**2 / 2  # two products of 2 d FLOPs for each seen pair and head


def test_the_optimizer_zeroes_the_gradients_that_it_does_not_update():
    common = {
        "numerics": Numerics(), "stack": load_stack("transformer-engine").time, "hbm_bytes_per_s": 2e12,
        "host_bytes_per_s": 25e9, "cpu_memory_bytes_per_s": 50e9,
    }  # fmt: skip
    seconds = {(held, each): optimizer_seconds(1e9, held, 1, 0.0, gradient_bytes=each, **common)
               for held in (0.0, 8e9) for each in (2, 4)}  # fmt: skip
    for each in (2, 4):
        assert seconds[8e9, each] - seconds[0.0, each] == pytest.approx(8e9 * each / 2e12)


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
