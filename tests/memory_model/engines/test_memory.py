"""Memory of starts against boot logs and the engines' printed figures, and what moves a verdict."""

import pytest
from autoconfig.memory_model.engines import sglang, vllm
from autoconfig.memory_model.engines.groups import FULL, SLIDING, STATE, LayerCache, block_layout, same_pages
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.specs.engines.releases import newest_release, settings, version_of
from autoconfig.specs.engines.start import AUTO_LENGTH, EngineStart
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model


def start(engine: str, model: str, gpu: str, release: str, **said: object) -> EngineStart:
    return EngineStart(engine=engine, model=load_model(model), gpu=load_gpu(gpu), release=release, **said)


@pytest.mark.parametrize(
    ("model", "said", "weights", "pool"),
    [
        ("gpt-oss-20b", {}, 13.47, 50.28),
        ("llama3.3-70b", {"tp": 2, "weights": "fp8"}, 33.88, 32.00),
        ("qwen3-0.6b", {}, 1.12, 64.45),
        ("qwen3-32b", {"tp": 2}, 30.59, 34.49),
    ],
)
def test_pools_that_were_measured(model, said, weights, pool):
    """vLLM 0.11 on H100: llm-d-planner, docs/empirical-vllm-memory-results."""
    found = engine_memory(start("vllm", model, "h100", "0.11.0", **said))
    assert found.weights_gib == pytest.approx(weights, rel=0.006)
    assert found.kv_pool_gib == pytest.approx(pool, rel=0.005)
    assert found.starts == "yes" and found.why == "" and found.changes == ()
    assert sum(part.gib for part in found.parts) == pytest.approx(0.9 * load_gpu("h100").memory_bytes / 2**30)


def test_a_start_that_fails_says_so_in_vllms_words():
    found = engine_memory(start("vllm", "llama3.3-70b", "h100", "0.11.0", weights="fp8", max_model_len=16000))
    assert found.starts == "no" and found.why.startswith("No available memory for the cache blocks.")
    assert found.longest_max_model_len == 0 and "--tensor-parallel-size 2" in found.changes
    more = engine_memory(
        start("vllm", "llama3.3-70b", "h100", "0.11.0", weights="fp8", max_model_len=16000, memory_fraction=0.95)
    )
    assert more.starts == "no" and "max seq len (16000), (4.88 GiB KV cache is needed" in more.why
    assert f"maximum model length is {more.longest_max_model_len}." in more.why
    shorter = start(
        "vllm", "llama3.3-70b", "h100", "0.11.0", weights="fp8", max_model_len=more.longest_max_model_len, memory_fraction=0.95
    )
    assert 0 <= engine_memory(shorter).margin_gib < 0.01, "the longest that starts is at the edge"
    assert engine_memory(shorter.replace(max_model_len=more.longest_max_model_len + 16)).margin_gib < 0
    assert engine_memory(shorter.replace(max_model_len=AUTO_LENGTH)).max_model_len == more.longest_max_model_len


def test_tokens_of_a_deployment_are_those_of_all_ranks():
    both = start("vllm", "qwen3-30b-a3b", "h100", "0.11.0").replace(dp=2, ep=2)
    assert engine_memory(both).kv_tokens == 2 * engine_memory(both).blocks * 16


def test_more_sequences_take_more_of_the_pool():
    """9.65 x 4 bytes a logit of each sequence."""
    many, few = (
        engine_memory(start("vllm", "llama3.1-8b", "h100", "0.11.0", max_num_seqs=seqs)).kv_pool_gib for seqs in (1024, 512)
    )
    assert few - many == pytest.approx(512 * 128256 * 38.6 / 2**30)


def test_flags_of_the_pool():
    one = start("vllm", "llama3.1-8b", "h100", "0.20.0")
    base = engine_memory(one)
    assert engine_memory(one.replace(kv_cache_bytes=2**34)).kv_pool_gib == 16
    assert engine_memory(one.replace(num_gpu_blocks=1000)).kv_tokens == 16000
    assert engine_memory(one.replace(eager=True)).kv_pool_gib > base.kv_pool_gib, "graphs are charged from 0.20 on"
    assert engine_memory(one.replace(cpu_offload_bytes=2**32)).kv_pool_gib == pytest.approx(base.kv_pool_gib + 4)
    assert engine_memory(one.replace(kv="fp8")).blocks == pytest.approx(2 * base.blocks, abs=2)
    slots = engine_memory(one.replace(lora_slots=4, lora_rank=16))
    assert slots.weights_gib - base.weights_gib == pytest.approx(4 * 41.9e6 * 2 / 2**30, rel=0.15), "rank 16 of 8B: 42M"
    earlier = engine_memory(one.replace(release="0.19.1"))
    assert earlier.memory_fraction == 0.9 and base.memory_fraction == 0.92
    assert engine_memory(one.replace(release="0.19.1", eager=True)).kv_pool_gib == earlier.kv_pool_gib


@pytest.mark.parametrize(
    ("gpu", "release", "said", "fraction"),
    [
        ("rtx-4090", "0.5.6", {"tp": 2}, 0.842),
        ("a100-40gb", "0.5.6", {}, 0.833),
        ("h100", "0.5.6", {}, 0.835),
        ("h100", "0.5.6", {"tp": 8}, 0.818),
        ("h200", "0.5.6", {"tp": 8}, 0.897),
        ("b200", "0.5.6", {"tp": 8}, 0.852),
        ("h200", "0.5.6", {"tp": 8, "dp": 8, "attention_dp": True}, 0.769),
        ("h100", "0.4.6", {"tp": 8}, 0.81),
        ("h100", "0.4.6", {}, 0.88),
    ],
)
def test_sglangs_own_fraction(gpu, release, said, fraction):
    """As its function says them (tests/judge runs it)."""
    assert sglang.default_fraction(start("sglang", "llama3.1-8b", gpu, release, **said))[0] == pytest.approx(fraction, abs=1e-3)


def test_sglangs_pool_is_what_loading_leaves_of_the_share():
    found = engine_memory(start("sglang", "llama3.1-8b", "h100", "0.5.6", memory_fraction=0.8))
    before = load_gpu("h100").memory_bytes / 2**30 - 0.5
    assert found.kv_pool_gib == pytest.approx(0.8 * before - found.weights_gib - 0.2)
    assert found.kv_tokens == int(found.kv_pool_gib * 2**30 // (2 * 8 * 128 * 2 * 32))


def test_states_of_hybrids():
    """Qwen3-Next on SGLang: 0.9 of 1.9 parts are states; vLLM's attention block grows to a state's page."""
    found = engine_memory(start("sglang", "qwen3-next-80b-a3b", "h200", "0.5.6", tp=4))
    states = next(int(text.split()[0].replace(",", "")) for text in found.groups if "states" in text)
    each = 36 * (4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128)) / 4
    assert states == pytest.approx(found.kv_pool_gib * 2**30 * 0.9 / 1.9 / each, abs=1)
    assert found.max_num_seqs == states // 3
    block = vllm.layer_caches(start("vllm", "qwen3-next-80b-a3b", "h200", "0.11.0", tp=4))[0][-1].block
    state = (2 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128)) / 4
    assert block == 16 * -(-int(state) // (16 * 1024)), "a token takes 2 x 1 x 256 x 2 bytes on a rank"


def test_trtllm_prints_its_tokens():
    """TensorRT-LLM 0.8, Llama-2-7B in int8 on an A100: 132,608 tokens (NVIDIA/TensorRT-LLM#1400)."""
    said = {"weights": "int8", "max_num_batched_tokens": 2048, "max_num_seqs": 1, "max_model_len": 2048}
    found = engine_memory(start("tensorrt-llm", "llama2-7b", "a100-80gb", "0.12", **said))
    assert found.kv_tokens == pytest.approx(132608, rel=0.02)


def test_releases():
    assert version_of("v0.11.0rc2") == (0, 11, 0) and version_of("lmsysorg/sglang:v0.5.3.post1-cu126") == (0, 5, 3)
    assert settings("vllm", "0.19.1")["fraction"].value == 0.9 and settings("vllm", "")["fraction"].value == 0.92
    with pytest.raises(UnsupportedError, match=r"before 0\.6 is not modelled"):
        engine_memory(start("vllm", "llama3.1-8b", "h100", "0.5.4"))
    with pytest.raises(UnsupportedError, match=r"before 0\.4"):
        engine_memory(start("sglang", "llama3.1-8b", "h100", "0.3.6"))
    with pytest.raises(InputError):
        version_of("latest")
    assert newest_release("vllm").startswith("0.3")


PAGE = 65536


def full(block: int = 16, page: int = PAGE) -> LayerCache:
    return LayerCache(kind=FULL, page=page, block=block)


def sliding(window: int = 128) -> LayerCache:
    return LayerCache(kind=SLIDING, page=PAGE, block=16, window=window)


def state(copies: int = 1) -> LayerCache:
    return LayerCache(kind=STATE, page=PAGE, block=16, copies=copies)


@pytest.mark.parametrize(
    ("cache", "length", "in_flight", "blocks"),
    [
        (full(), 1, 8192, 1),
        (full(), 16, 8192, 1),
        (full(), 17, 8192, 2),
        (full(), 4096, 8192, 256),
        (sliding(), 100_000, 8192, 521),
        (sliding(), 1000, 8192, 64),
        (state(), 100_000, 8192, 1),
        (state(3), 5, 0, 3),
    ],
)
def test_blocks_of_a_sequence(cache, length, in_flight, blocks):
    """A window of 128 with 8,192 tokens in flight keeps 8,319 tokens: 520 blocks and one that it begins within."""
    assert cache.blocks(length, in_flight) == blocks


def test_alike_layers_are_one_group():
    layout = block_layout([full()] * 32, range(32), hybrid=True, slack=1.5)
    assert [group.layers for group in layout.groups] == [32] and layout.block_bytes == 32 * PAGE
    assert layout.pool_blocks(100 * 32 * PAGE + 5) == 100 and layout.pool_blocks(-1) == 0


def test_pages_of_two_sizes_of_one_kind_are_added():
    layout = block_layout([full(page=1000), full(page=200)] * 4, range(8), hybrid=True, slack=1.5)
    assert len(layout.groups) == 1 and layout.block_bytes == 4800


@pytest.mark.parametrize(
    ("sliding_layers", "full_layers", "slack", "sizes"),
    [
        (50, 10, 1.5, [10] * 6),
        (52, 10, 1.5, [9, 9, 9, 9, 8, 8, 10]),
        (12, 13, 1.25, [12, 13]),
        (12, 13, 1.0, [12, 7, 6]),
        (14, 10, 1.25, [7, 7, 10]),
        (14, 10, 1.5, [14, 10]),
    ],
)
def test_groups_of_windows_and_full_layers(sliding_layers, full_layers, slack, sizes):
    """The rarest kind's layers a group, or the commonest's where that is near; 52 layers make 6 groups of 9 or 8."""
    layers = [sliding()] * sliding_layers + [full()] * full_layers
    layout = block_layout(layers, range(len(layers)), hybrid=True, slack=slack)
    assert [group.layers for group in layout.groups] == sizes
    assert layout.block_bytes == max(sizes) * PAGE


def test_without_the_hybrid_manager_windows_are_full():
    layout = block_layout([sliding(), full()] * 6, range(12), hybrid=False, slack=1.5)
    assert [group.like.kind for group in layout.groups] == [FULL] and layout.blocks_of(1600, 8192) == 100


def test_states_and_attention_share_blocks():
    layers = ([state()] * 3 + [full(block=784)]) * 16
    layout = block_layout(layers, range(64), hybrid=True, slack=1.5)
    assert [group.layers for group in layout.groups] == [16, 16, 16, 16]
    assert layout.blocks_of(7840, 2048) == 3 + 10
    assert layout.words() == ("3 x 16 layers, states, 16 tokens a block", "16 layers, full attention, 784 tokens a block")


def test_a_stage_counts_the_tables_of_all_groups():
    layers = [sliding()] * 2 + [full()] * 2
    layout = block_layout(layers, range(2, 4), hybrid=True, slack=1.5)
    assert [group.layers for group in layout.groups] == [0, 2]
    assert layout.blocks_of(1600, 16) == 10 + 100 and layout.block_bytes == 2 * PAGE


def test_smaller_pages_get_more_tokens_or_padding():
    found = same_pages([full(page=1000), full(page=500), full(page=300), LayerCache(kind=STATE, page=400, block=16)])
    assert [(one.page, one.block) for one in found] == [(1000, 16), (1000, 32), (1000, 16), (1000, 16)]
