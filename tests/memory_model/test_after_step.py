"""What stays allocated after a step: blocks of torch's allocator, workspaces, state."""

import pytest
from autoconfig.memory_model.after_step import STAYS, allocated_after_step, cublas_workspace_bytes, unsplit_bytes
from autoconfig.memory_model.tables import stage_terms
from autoconfig.specs.errors import GIB, MIB
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.software import load_stack
from tables import tabled

from autoconfig.training.question import Request, understand


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
