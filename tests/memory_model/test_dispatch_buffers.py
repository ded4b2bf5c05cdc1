"""Buffers of dispatchers outside of the allocator."""

import dataclasses

import numpy as np
import pytest
from autoconfig.memory_model.after_step import STAYS, allocated_after_step, cublas_workspace_bytes, unsplit_bytes
from autoconfig.memory_model.predict import dispatch_buffer_bytes, estimate_memory
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.errors import GIB, MIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.run_settings import GivenSettings
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from small_models import scenario as small
from tables import tabled

from autoconfig.training.question import Request, understand


def scenario(model: str, gpu: str, gpus: int, dispatcher: str) -> Scenario:
    return Scenario(
        model=load_model(model), cluster=cluster_of(load_gpu(gpu), gpus), numerics=Numerics(),
        software=load_stack("nemo-26.04"), workload=Workload(seq_length=4096, global_batch_size=4096),
        given=GivenSettings(dispatcher=dispatcher),
    )  # fmt: skip


@pytest.mark.parametrize(("model", "plan", "expected"), [
    ("deepseek-v3", "tp=1,pp=4,ep=64,mbs=1,first=16,last=13", 64 * 4096 * (7168 * 2 + 8 * 256)),
    ("gpt-oss-120b", "tp=1,pp=1,ep=16,mbs=4", 16 * 4 * 4096 * (2880 * 2 + 8 * 128)),
    ("qwen3-30b-a3b", "tp=2,sp=1,pp=1,ep=8,mbs=1", 8 * 2048 * (2048 * 2 + 8 * 128)),
    ("qwen3-30b-a3b", "tp=1,pp=1,ep=1,mbs=1", 0),
    ("nemotron-3-super", "tp=1,pp=1,ep=64,mbs=1", 64 * 4096 * (1024 * 2 + 8 * 512)),
])  # fmt: skip
def test_hybridep_registers_buffers_that_grow_with_the_group(model: str, plan: str, expected: float) -> None:
    asked = scenario(model, "gb200", 256, "hybridep")
    assert float(dispatch_buffer_bytes(asked, asked.layouts([parse_plan(plan, 256)]))[0]) == expected


def test_offloaded_layers_leave_the_gpu_on_one_pipeline_stage() -> None:
    """Half of the layers' activations; a pipeline offloads none (NV036)."""
    plain = scenario("llama3-70b", "gb200", 64, "alltoall")
    half = dataclasses.replace(plain, given=dataclasses.replace(plain.given, offload_layers=40))
    for text, share in (("tp=1,pp=1,mbs=2,fsdp=3", 0.5), ("tp=2,pp=4,mbs=1", 1.0)):
        plan = parse_plan(text, 64)
        before, after = (
            estimate_memory(asked, asked.layouts([plan]), [NONE], detail=True).parts["mlp_inside"].max()
            for asked in (plain, half)
        )
        assert after == pytest.approx(share * before)


@pytest.mark.parametrize(("graphs", "recompute", "masks"), [
    ({"attn", "moe_router"}, "none", 48), ({"attn"}, "selective:moe_act", 48), ({"moe_router"}, "none", 0),
    ({"attn", "moe_router"}, "full:uniform:1", 0), ({"full_iteration"}, "none", 0),
])  # fmt: skip
def test_graphs_of_attention_hold_a_mask_for_each_layer(graphs: set[str], recompute: str, masks: int) -> None:
    """Two sequences of 4,096 tokens a micro-batch, one byte a pair; whole layers that run again are not graphed (NV146)."""
    plain = scenario("qwen3-30b-a3b", "gb200", 64, "hybridep")
    asked = dataclasses.replace(plain, given=GivenSettings(dispatcher="hybridep", cuda_graphs=frozenset(graphs)))
    layouts, options = asked.layouts([parse_plan("tp=1,pp=1,ep=8,mbs=2", 64)]), [Recompute.parse(recompute)]
    detailed = estimate_memory(asked, layouts, options, detail=True)
    held = float(np.max(detailed.parts.get("graph_masks", 0.0)))
    assert held == masks * 2 * 4096 * 4096
    assert estimate_memory(asked, layouts, options).peak_bytes == pytest.approx(detailed.peak_bytes, rel=1e-12)
    eager = dataclasses.replace(plain, given=GivenSettings(dispatcher="hybridep", cuda_graphs=frozenset()))
    more = detailed.peak_bytes - estimate_memory(eager, layouts, options).peak_bytes
    assert float(more[0, 0]) == pytest.approx(held, abs=1.0)


def test_the_masks_are_of_the_micro_batches_in_flight() -> None:
    asked = scenario("deepseek-v3", "gb200", 256, "hybridep")
    asked = dataclasses.replace(asked, given=GivenSettings(dispatcher="hybridep", cuda_graphs=frozenset({"attn"})))
    layouts = asked.layouts([parse_plan("tp=1,pp=4,ep=64,mbs=1,first=16,last=13", 256)])
    parts = estimate_memory(asked, layouts, [NONE], detail=True).parts["graph_masks"]
    assert parts[0, 0, :3].tolist() == [count * 4096.0**2 for count in (4 * 16, 3 * 16, 2 * 16)]


def test_long_sequences_leave_attention_out_of_graphs_that_nobody_named() -> None:
    """A mask of 131,072 tokens is 16 GiB. The longest sequence of a recipe with such graphs is 8,192."""
    named = frozenset({"attn"})
    for seq_length, given, held in (
        (8192, None, True), (8256, None, False), (131072, None, False), (131072, named, True),
    ):  # fmt: skip
        plain = scenario("deepseek-v3", "gb200", 256, "hybridep")
        asked = dataclasses.replace(
            plain, workload=Workload(seq_length=seq_length, global_batch_size=256),
            given=GivenSettings(dispatcher="hybridep", cuda_graphs=given),
        )  # fmt: skip
        assert ("attn" in asked.settings().cuda_graphs) == held
        layouts = asked.layouts([parse_plan("tp=1,pp=4,ep=64,mbs=1,first=16,last=13", 256)])
        assert ("graph_masks" in estimate_memory(asked, layouts, [NONE], detail=True).parts) == held


def test_buffers_leave_less_for_tensors() -> None:
    hybrid, plain = (scenario("deepseek-v3", "gb200", 256, name) for name in ("hybridep", "alltoall"))
    plan = parse_plan("tp=1,pp=4,ep=64,mbs=1,first=16,last=13", 256)
    limits = [estimate_memory(asked, asked.layouts([plan]), [NONE]).limit_bytes[0] for asked in (hybrid, plain)]
    buffers = float(dispatch_buffer_bytes(hybrid, hybrid.layouts([plan]))[0])
    assert limits[1] - limits[0] == pytest.approx(buffers / 1.03, rel=1e-3)
    assert dataclasses.replace(plain, given=hybrid.given) == hybrid and np.isfinite(limits).all()


@tabled
def test_registered_buffers_of_hybridep(text, tokens, domains):
    """Of every rank of the group its tokens' 16-bit channels and 8 bytes an expert; channels of every further domain of 8."""
    asked, plain = small("moe", seq=4096, given={"dispatcher": "hybridep"}), small("moe", seq=4096)
    layouts = asked.layouts([parse_plan(text, 16)])
    ep = int(layouts.ep[0])
    expected = ep * tokens * (2 * 96 + 8 * 16) + (domains - 1) * tokens * 2 * 96 if domains else 0
    assert dispatch_buffer_bytes(asked, layouts)[0] == expected
    for other in (plain, small("gpt", seq=4096)):
        assert dispatch_buffer_bytes(other, other.layouts([parse_plan(text, 16)]))[0] == 0


def test_a_block_keeps_what_is_too_small_to_split() -> None:
    assert unsplit_bytes(((1.75 * MIB,),), 2, (), 1) == 0.0  # 3.5 of 20 MiB: the rest is split off
    assert unsplit_bytes(((9.75 * MIB,),), 2, (), 1) == 0.5 * MIB  # 19.5 MiB in a segment of 20
    assert unsplit_bytes(((2.4375 * MIB,) * 4,), 2, (), 1) == 0.5 * MIB  # four of 4.875 MiB share one of 20


def test_a_shard_holds_its_part_of_the_tensors() -> None:
    layers = ((4.875 * MIB,),) * 8
    assert unsplit_bytes(layers, 2, (4, 4, 4), 8) == unsplit_bytes(layers[:1], 0, (4, 4, 4), 1)


def test_state_is_the_least_that_stays() -> None:
    scenario = understand(Request(model="t5-3b", gpus=8)).scenario
    layouts = scenario.layouts([parse_plan("tp=2,pp=1,mbs=8", 8)])
    parts = stage_terms(scenario, layouts, every=True).state_parts
    state = sum(float(parts[name][0, 0]) for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes"))
    assert state < allocated_after_step(scenario, layouts)[0] < state + 400 * MIB


@pytest.mark.parametrize(("text", "ranks"), [("dist_opt=0", 1), ("dist_opt=1", 8), ("dist_opt=0,fsdp=2", 8)])
def test_blocks_of_the_allocator_are_those_of_a_ranks_part(text, ranks):
    """GPT-3 126M: 12 layers of qkv, projection, fc1 and fc2, and the embedding, tied on one stage."""
    scenario = Scenario(
        model=load_model("gpt3-126m"), cluster=cluster_of(load_gpu("a100-80gb"), 8), numerics=Numerics(),
        software=load_stack("transformer-engine"), workload=Workload(seq_length=2048, global_batch_size=64),
    )  # fmt: skip
    layouts = scenario.layouts([parse_plan(f"tp=1,pp=1,mbs=1,{text}", 8)])
    state = stage_terms(scenario, layouts, every=True).state_parts
    held = sum(float(state[name][0, 0]) for name in STAYS)
    layer = (768 * 2304.0, 768 * 768.0, 768 * 3072.0, 3072 * 768.0)
    table = 768.0 * padded_vocab_size(scenario.model, 1) + 768 * 2048  # and positions
    beside = unsplit_bytes(((table,), *(layer,) * 12), 2, (4, 4, 4), ranks)
    assert allocated_after_step(scenario, layouts)[0] == pytest.approx(held + beside)


def test_blocks_by_hand():
    """3.25 Mi elements. Weights, 6.5 MiB, leave 13.5 of a segment of 20 MiB; 13 MiB of fp32 take these (0.5 is lost) or a
    segment of their own of 14 MiB (1 MiB is lost)."""
    layers = ((3.25 * 2**20,),)
    assert unsplit_bytes(layers, 2, (4, 4), 1) == 1.5 * 2**20
    assert unsplit_bytes(layers, 2, (4, 4, 4), 1) == 2.5 * 2**20
    assert unsplit_bytes(layers, 2, (4, 4, 4), 2) == 0.5 * 2**20  # no weights; three times 6.5 MiB of 20


@tabled
def test_workspaces_of_cublas(capability, deterministic, mib):
    assert cublas_workspace_bytes(capability, deterministic) == mib * MIB


@tabled
def test_what_blocks_lose(mebi, lost):
    """One tensor of so many MiB: from 1 MiB on in a segment of 20, from 10 on in one of its own of whole 2 MiB; what is left
    is lost where it is no more than 1 MiB."""
    assert unsplit_bytes(((mebi * MIB / 2,),), 2, (0, 0), 1) == pytest.approx((lost if lost <= 1 else 0) * MIB, abs=1)


@pytest.mark.parametrize(
    ("log", "tp", "dp", "gib"),
    [("DeepSpeedExamples 2023, two ranks", 1, 2, 6.626), ("the same, tp 2", 2, 1, 3.366), ("a tutorial, dp 4", 1, 4, 6.657)],
)
def test_fp16_without_a_sharded_optimizer_keeps_fp32_gradients(log: str, tp: int, dp: int, gib: float) -> None:
    """mem-allocated-bytes that Megatron-LM printed of a GPT-2 of 354,871,296 parameters in fp16: 20 bytes a parameter."""
    shape = {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "ffn_hidden_size": 4096}
    shape |= {"vocab_size": 50257, "max_position_embeddings": 1024, "kv_channels": 64, "num_query_groups": 16}
    asked = Request(model="gpt3-126m", architecture=shape, gpus=tp * dp, gpu="a100-40gb", software="megatron-lm-2021",
                    seq_length=1024, global_batch_size=4 * dp,
                    numerics={"precision": "fp16", "grad_reduce_dtype": "bf16"})  # fmt: skip
    scenario = understand(asked).scenario
    plan = parse_plan(f"tp={tp},pp=1,mbs=4,dist_opt=0", tp * dp)
    assert allocated_after_step(scenario, scenario.layouts([plan]))[0] / GIB == pytest.approx(gib, rel=0.02)
