"""Single terms of the time model by hand, where a slip would hide in a sum."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from autoconfig.time_model.job import TrainingJob, collective_seconds, group_of, links_of, shapes_of
from autoconfig.time_model.operators.kernels import layer_launch_seconds
from autoconfig.time_model.operators.layer import core_attention, cp_communication_seconds
from autoconfig.time_model.operators.layer_table import mtp_projection_shape
from autoconfig.time_model.operators.listing import explain_operators
from autoconfig.time_model.predict import StepTimes, compute_seconds, schedule
from autoconfig.time_model.serving import ideal
from autoconfig.time_model.serving.simulation import IterationTable
from autoconfig.time_model.step.rows import optimizer_seconds
from small_models import MODELS

H200 = load_gpu("h200")


def job_and_shapes(text, gpus=8, model="llama3-8b", seq=32768, **numerics):
    cluster = cluster_of(load_gpu("h100"), gpus)
    scenario = Scenario(
        model=load_model(model), cluster=cluster, numerics=Numerics(**numerics), software=load_stack("transformer-engine"),
        workload=Workload(seq_length=seq, global_batch_size=64),
    )  # fmt: skip
    job = TrainingJob.of(scenario)
    return job, shapes_of(scenario.layouts([parse_plan(text, gpus)]), job)


def test_every_further_link_domain_adds_a_hop_and_an_all_reduce_passes_it_twice():
    job, _ = job_and_shapes("tp=1", gpus=64)
    links = links_of(job.cluster, job.gpu)
    for kind, hops in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        empty = [float(collective_seconds(kind, 0.0, group_of(size, 1, 8), links)) for size in (8, 16, 64)]
        start = [now - empty[0] for now in empty]  # start-up is that of 8 ranks from 8 on
        assert start == pytest.approx([0, hops * links.nic_hop_s, 7 * hops * links.nic_hop_s]), kind


@pytest.mark.parametrize("cp", [2, 4])
def test_the_ring_sends_keys_and_values_forward_and_their_gradients_too_backward(cp):
    """8,192 tokens a rank; 8 key and 8 value heads of 128 channels in 16 bits are 4,096 bytes a token, sent to all others."""
    job, x = job_and_shapes(f"tp=1,cp={cp}", seq=8192 * cp)
    idle = SimpleNamespace(forward=np.zeros(1), dgrad=np.zeros(1))
    forward, backward = cp_communication_seconds(job, x, idle)
    rate = job.links.collectives["p2p"].link_share * job.links.link_bytes_per_s
    assert backward[0] - forward[0] == pytest.approx((cp - 1) * 8192 * 4096 / rate)
    busy = SimpleNamespace(forward=np.full(1, 1e3), dgrad=np.full(1, 1e3))
    hidden, _ = cp_communication_seconds(job, x, busy)
    alpha, share = job.links.collectives["p2p"].alpha_s, job.software.overlap_interference
    assert forward[0] - hidden[0] == pytest.approx((1 - share) * (cp - 1) * (alpha + 8192 * 4096 / rate))


def test_flash_attention_computes_five_products_backward_where_forward_has_two():
    """Dao 2023, section 3.1; start-up is nothing at 32k tokens."""
    job, x = job_and_shapes("tp=1")
    core = core_attention(job, x)
    assert core.dgrad[0] / core.forward[0] == pytest.approx(2.5 / job.gpu.attention.backward, rel=1e-3)
    assert core.flops[0] == 2 * 2 * 128 * 32 * 32768**2 / 2  # two products of 2 d FLOPs for each seen pair and head


@pytest.mark.parametrize(("gpu", "faster"), [("h100", 1.0), ("b200", 1 / 0.51)])
def test_torchtitan_asks_for_the_kernels_of_cudnn_on_blackwell(gpu, faster):
    """torchtitan 0.2.2, models/attention.py; FlashAttention-2 reaches 0.51 of their rate there (gpu_efficiency.json)."""
    seconds = []
    for options in (StackOptions(), StackOptions(attention_kernel="flash_attention2")):
        scenario = Scenario(
            model=load_model("llama3-8b"), cluster=cluster_of(load_gpu(gpu), 8), numerics=Numerics(),
            software=with_options(load_stack("torchtitan"), options),
            workload=Workload(seq_length=32768, global_batch_size=64),
        )  # fmt: skip
        job = TrainingJob.of(scenario)
        seconds.append(core_attention(job, shapes_of(scenario.layouts([parse_plan("tp=1", 8)]), job)).forward[0])
    assert seconds[1] / seconds[0] == pytest.approx(faster, rel=0.02)


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


@pytest.mark.parametrize(("sublayer", "share"), [("attention", 1.0), ("gdn", 1.0), ("mamba", 1.0), ("mlp", 0.25)])
def test_a_single_sublayer_is_launched_without_experts(sublayer, share):
    stack = replace(load_stack("transformer-engine").time, host_floor_seconds=1e-3)
    found = layer_launch_seconds(stack, RunSettings(), np.array([0.0, 16.0]), sublayer=sublayer)
    assert found.tolist() == pytest.approx([share * 1e-3] * 2)


def test_a_bilinear_table_gives_a_bilinear_function_exactly():
    def plane(x, y):
        return 2 + 3 * x + 5 * y + 7 * x * y

    table, counts, lengths = IterationTable.__new__(IterationTable), [1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 4.0, 9.0, 10.0]
    table._counts, table._lengths = counts, lengths
    values = [[plane(x, y) for y in lengths] for x in counts]
    for x, y in ((1.0, 1.0), (1.25, 2.0), (3.0, 3.5), (7.0, 9.75), (8.0, 10.0), (2.0, 9.0)):
        assert table._bilinear(values, x, y) == pytest.approx(plane(x, y))
    assert table._bilinear(values, 99.0, 0.0) == pytest.approx(plane(8.0, 1.0))  # beyond the table its edge


@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_are_reduced_beside_the_backward_of_the_first_stage(vpp):
    """One layer's bucket has nothing to hide behind; of 1,000 s all of the backward hides the rest but for its interference."""
    job, _ = job_and_shapes(f"tp=2,pp=2,vpp={vpp},mbs=1,sp=1", seq=4096)
    layouts = job.scenario.layouts([parse_plan(f"tp=2,pp=2,vpp={vpp},mbs=1,sp=1", 8)])
    rows = StepTimes.of(job, layouts, [NONE]).rows(np.array([0]))
    rows = replace(rows, reduction=np.array([1000.0]), gather=np.array([1000.0]))
    found, table, kept = schedule(job, rows, compute_seconds(job, rows)), rows.table, 1 - job.software.overlap_interference
    forward = float(16 * table.forward[0][0] + table.embedding[0][0])  # 16 layers and the embedding
    backward = float(16 * table.backward[0][0] + table.embedding[1][0])
    times = 2 if vpp > 1 else 1  # the other chunks compute for two micro-batches
    assert 1000 - found.reduction.item() == pytest.approx(kept * times * (found.stages[0].item() - forward))
    assert found.stages[0].item() - forward == pytest.approx(backward) and backward > forward
    assert 1000 - found.gather.item() == pytest.approx(kept * times * forward)


@pytest.mark.parametrize(("model", "stacks"), [("gpt", 1), ("t5", 2)])
def test_two_stacks_share_one_output_layer_and_each_has_its_final_norm(model, stacks):
    scenario = Scenario(
        model=ModelSpec(**MODELS[model]), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=48, global_batch_size=8),
    )  # fmt: skip
    rows = explain_operators(scenario, parse_plan("tp=1,pp=1,mbs=1,recompute=full:uniform:1", 8))
    outside = [row for row in rows if row.layer in ("head", "embedding")]
    once = {"logits": 1, "cross entropy": 1, "head gradient accumulation": 1}
    assert Counter(row.operator for row in outside) == once | {"final norm": stacks, "embedding lookup": stacks}
    assert all(row.recompute_seconds == 0 for row in outside)  # full recomputation is of layers
    assert all(row.recompute_seconds == row.forward_seconds for row in rows if row.layer not in ("head", "embedding"))


def test_unfused_attention_computes_all_scores_of_keys_and_of_values():
    """The mask saves nothing; queries and keys of latent attention are 192 wide, values 128."""
    scenario = Scenario(
        model=load_model("deepseek-v2-lite"), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("megatron-lm-2022"), workload=Workload(seq_length=4096, global_batch_size=64),
    )  # fmt: skip
    job = TrainingJob.of(scenario)
    core = core_attention(job, shapes_of(scenario.layouts([parse_plan("tp=1,ep=8", 8)]), job))
    assert core.flops[0] == 2 * (192 + 128) * 16 * 4096**2


@pytest.mark.parametrize(("model", "text", "batch", "share"), [
    ("llama3-8b", "tp=2,pp=4,mbs=1,sp=1", 4, 0.8), ("llama3-8b", "tp=2,pp=4,vpp=4,mbs=1,sp=1", 8, 0.75),
    ("llama3.2-1b", "tp=8,mbs=1,sp=1", 64, 0.97),
])  # fmt: skip
def test_the_least_step_time_lacks_little_where_nothing_is_reduced(model, text, batch, share):
    """One replica: sends, the optimizer and a first and last stage with more than layers is all that the bound leaves out."""
    scenario = Scenario(
        model=load_model(model), cluster=cluster_of(load_gpu("h100"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=8192, global_batch_size=batch),
    )  # fmt: skip
    times, which = StepTimes.of(TrainingJob.of(scenario), scenario.layouts([parse_plan(text, 8)]), [NONE]), np.array([0])
    assert share < times.least_seconds(which)[0] / times.seconds(which)[0, 0] <= 1
