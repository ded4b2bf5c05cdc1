"""Single terms of the memory table by hand, where a slip would hide in a sum."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from autoconfig.memory_model.activations import Shape, checkpoints_per_chunk, norm_statistics
from autoconfig.memory_model.experts import router
from autoconfig.memory_model.predict import NCCL_BYTES_PER_GROUP, allocatable_bytes, estimate_memory, nccl_bytes
from autoconfig.memory_model.state import fsdp_unit_bytes
from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import NONE, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack

SHAPE = Shape.of(seq_length=1024, tp=4, sp=1, cp=2, ep=1, etp=1, mbs=3)  # 1,536 tokens, over 4 ranks where sequence parallel


def test_norms_keep_mean_and_deviation_or_one_of_them():
    model = load_model("llama3-8b")
    memory = replace(load_stack("transformer-engine").memory, norm_statistics_bytes=4.0)
    assert norm_statistics(model, memory, SHAPE) == 2 * 4 * 1536 / 4  # two norms, inverse rms in fp32
    assert norm_statistics(replace(model, normalization="LayerNorm"), memory, SHAPE) == 2 * (4 + 4) * 1536 / 4


def test_a_router_keeps_logits_probabilities_and_map_and_the_places_of_routed_tokens():
    model = load_model("mixtral-8x7b")  # 8 experts, 2 a token
    assert router(model, SHAPE) == 1536 / 4 * ((4 + 4 + 1) * 8 + 4 * 2)


@pytest.mark.parametrize(("layers", "group", "kept"), [(6, 3, 2), (7, 3, 3), (8, 3, 3), (2, 3, 1), (7, 1, 7)])
def test_uniform_recomputation_keeps_an_input_of_a_last_short_group_too(layers, group, kept):
    recompute = SimpleNamespace(granularity="full", method="uniform", num_layers=group)
    assert checkpoints_per_chunk(recompute, np.array([layers])).tolist() == [kept]


def test_sharded_data_parallelism_holds_two_whole_layers():
    numerics = Numerics(grad_reduce_dtype="fp32")
    assert fsdp_unit_bytes(100.0, numerics, 3) == 100 * 2 * (2 + 4)  # 16-bit weights, fp32 gradients
    assert fsdp_unit_bytes(100.0, numerics, 2) == 100 * 2 * 4
    assert fsdp_unit_bytes(100.0, numerics, 0) == 0


def test_every_kind_of_parallelism_has_its_communicators_a_pipeline_two():
    assert nccl_bytes(1, 1, 1, 1, 1) == 0
    for place in (0, 2, 3, 4):
        assert nccl_bytes(*(8 if i == place else 1 for i in range(5))) == NCCL_BYTES_PER_GROUP
    assert nccl_bytes(1, 4, 1, 1, 1) == 2 * NCCL_BYTES_PER_GROUP
    assert nccl_bytes(2, 2, 2, 2, 2) == 6 * NCCL_BYTES_PER_GROUP


def test_tensors_get_what_context_communicators_and_the_allocator_leave():
    """80 GiB, a tenth kept free, half a GiB of context, 1.5 GiB of NCCL; 3 % of what is allocated is reserved beside it."""
    assert allocatable_bytes(80 * GIB, 1.5 * GIB, 0.1) == pytest.approx((80 * 0.9 - 0.5 - 1.5) * GIB / 1.03)


@pytest.mark.parametrize("text", [
    "tp=1,pp=1,ep=8", "tp=4,pp=1,ep=8,sp=1", "tp=4,pp=2,ep=2,etp=2,sp=1", "tp=2,pp=1,cp=4,ep=8,sp=1", "tp=8,pp=1,ep=1,sp=1",
    "tp=8,pp=2,ep=4,etp=1,sp=1",
])  # fmt: skip
def test_all_gpus_together_hold_the_optimizers_state_of_each_parameter_once(text):
    """12 bytes of each, however it is sharded; norms and routers, 0.01 %, are whole on each tensor-parallel rank."""
    plan, model = parse_plan(text, 64), load_model("mixtral-8x7b")
    scenario = Scenario(
        model=model, cluster=cluster_of(load_gpu("h100"), 64), numerics=Numerics(), software=load_stack("transformer-engine"),
        workload=Workload(seq_length=4096, global_batch_size=64),
    )  # fmt: skip
    found = estimate_memory(scenario, scenario.layouts([plan]), [NONE], detail=True)
    held = found.parts["optimizer_bytes"][0, 0].sum() * 64 / plan.pp
    assert held == pytest.approx(12 * total_parameters(model), rel=1e-3)
