"""Weights frozen in 4 and 8 bits beside adapters: bitsandbytes' bytes, by hand, and the copy in 16 bits beside a product."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.memory_model.state import dequantised_weight, fsdp_unit_bytes
from autoconfig.memory_model.tables import layer_tables, least_state_bytes, stage_terms
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import largest_matrices, linear_rows
from autoconfig.specs.plan import NONE, Recompute, parse_plan
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.bitsandbytes import FROZEN_BYTES, MOMENT_BYTES, MOMENT_SCALE
from autoconfig.specs.software.software import load_stack
from autoconfig.time_model.step.rows import optimizer_bytes_per_parameter

H, F, LAYERS, VOCAB = 4096, 11008, 32, 32000
LINEAR = 4 * H * H + 3 * H * F
"""Weights of the linear layers of one layer of Llama-2-7B."""
OTHERS = 2 * VOCAB * H + (2 * LAYERS + 1) * H
ADAPTERS = LAYERS * 8 * (4 * H + 2 * H + (H + 2 * F) + (F + H))
FULL = Recompute("full", (), "uniform", 1)


def numerics(frozen: str, **changes: Any) -> Numerics:
    return Numerics(**{"peft": "lora", "frozen_dtype": frozen, "hidden_dropout": 0.0, "attention_dropout": 0.0, **changes})


def scenario(frozen: str, model: str = "llama2-7b", **changes: Any) -> Scenario:
    return Scenario(
        model=load_model(model).replace(make_vocab_size_divisible_by=1),
        cluster=cluster_of(load_gpu("a100-80gb"), 8),
        numerics=numerics(frozen, **changes),
        software=load_stack("torch-eager"),
        workload=Workload(seq_length=2048, global_batch_size=8),
    )


def weights(frozen: str, plan: str = "mbs=1") -> float:
    asked = scenario(frozen)
    layouts = asked.layouts([parse_plan(plan, 8, dist_opt=False)])
    return float(stage_terms(asked, layouts, every=True).state_parts["weight_bytes"][0, 0])


@pytest.mark.parametrize(("frozen", "matrix", "tables"), [("nf4", 8_655_940, 1_092), ("nf4_single", 9_437_248, 64)])
def test_a_matrix_of_4_bits_has_the_bytes_of_bitsandbytes(frozen: str, matrix: int, tables: int) -> None:
    """bitsandbytes 0.50.2, quantize_4bit of a 4096 x 4096 matrix: weights and the tensors of its QuantState, of which two code
    tables (16 and 256 numbers) and an offset are the same for every matrix."""
    assert FROZEN_BYTES[frozen] * 4096 * 4096 == matrix - tables


def test_linear_layers_of_the_blocks_alone_are_quantised() -> None:
    """Llama-2-7B by hand: embedding, output layer, norms and adapters in 16 bits."""
    wide = 2 * (OTHERS + ADAPTERS)
    assert weights("bf16") == 2 * LAYERS * LINEAR + wide
    assert weights("fp32") == 4 * LAYERS * LINEAR + 4 * OTHERS + 2 * ADAPTERS
    assert weights("nf4") == LAYERS * LINEAR * (1 / 2 + 1 / 64 + 4 / (64 * 256)) + wide
    assert weights("nf4_single") == LAYERS * LINEAR * (1 / 2 + 4 / 64) + wide
    rows = 4 * H + 2 * F + H
    assert weights("int8") == LAYERS * (LINEAR + 4 * rows) + wide
    assert weights("fp8") == weights("int8")
    assert weights("nf4", "mbs=1,fsdp=3") == (weights("nf4") - 2 * ADAPTERS) / 8  # the adapters' shards are their fp32 weights


def test_rows_and_largest_matrices_of_grouped_queries() -> None:
    """Llama-3-8B: q and o 4096 x 4096, k and v 1024 x 4096, gate and up 14336 x 4096; tensor parallelism halves the rows of
    column-parallel layers alone."""
    model = load_model("llama3-8b")
    assert float(linear_rows(model, 1)) == 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert float(linear_rows(model, 2)) == (4096 + 2 * 1024 + 2 * 14336) / 2 + 2 * 4096
    assert [float(size) for size in largest_matrices(model, 1)] == [4096 * 4096, 4096 * 14336]


def test_a_copy_in_16_bits_lives_beside_the_backward_of_each_half() -> None:
    """Beside it, of double quantisation, the maxima of blocks of 64 in fp32."""
    found = {}
    for frozen in ("bf16", "nf4", "nf4_single", "int8"):
        asked = scenario(frozen)
        layer = layer_tables(asked, asked.layouts([parse_plan("mbs=1", 8, dist_opt=False)]), [NONE])
        found[frozen] = float(layer.kinds["dense"].mlp_backward[0]), float(layer.attention_backward[0])
    mlp, attention = found["bf16"]
    assert found["nf4_single"] == found["int8"] == (mlp + 2 * H * F, attention + 2 * H * H)
    assert found["nf4"] == (mlp + (2 + 4 / 64) * H * F, attention + (2 + 4 / 64) * H * H)
    assert float(dequantised_weight(load_model("llama2-7b"), numerics("fp32"), 1, "mlp")) == 0


@pytest.mark.parametrize(
    ("software", "plan", "size"),
    [
        ("torch-eager", "mbs=1", 1),
        ("torchtitan", "tp=2,sp=1,mbs=1", 2),
        ("megatron", "mbs=1", 1),
        ("megatron-local", "mbs=1", 1),
    ],
)
def test_frozen_ends_have_no_gradients(software: str, plan: str, size: int) -> None:
    """Both ends of Llama-2-7B, 2 V h / t each, in every stack; of DTensors with tensor parallelism 2 V h more of the embedding,
    and where embeddings are tied one gradient that waits for the other."""
    table, found = 2 * VOCAB * H, {}
    for peft, tied in itertools.product(("none", "lora"), (False, True)):
        asked = replace(scenario("bf16", peft=peft), software=load_stack(software))
        asked = replace(asked, model=asked.model.replace(untie_embeddings_and_output_weights=not tied))
        found[peft, tied] = stage_terms(asked, asked.layouts([parse_plan(plan, 8, dist_opt=False)]), every=True)
    for tied in (False, True):
        trained, frozen = found["none", tied], found["lora", tied]
        for name, gone in (
            ("output_layer_backward", table / size),
            ("embedding_backward", table / size + (table if size > 1 else 0)),
            ("tied_weight_gradient", table / size if tied else 0),
        ):
            assert getattr(trained, name) - getattr(frozen, name) == pytest.approx(gone), name


def test_frozen_norms_keep_no_product_and_a_frozen_output_layer_no_input() -> None:
    """transformers' LlamaRMSNorm multiplies its weight by a 16-bit product, 2 T h, that its weight's gradient alone reads; its
    input in fp32, 4 T h, by the gradient that goes on. torch's linear layer keeps its input, 2 T h, for its weight's."""
    hidden, found = 2048 * H, {}
    for peft in ("none", "lora"):
        asked = scenario("bf16", peft=peft)
        layouts = asked.layouts([parse_plan("mbs=1", 8, dist_opt=False)])
        layer = layer_tables(asked, layouts, [NONE]).kinds["dense"].parts_kept[0]
        last = stage_terms(asked, layouts, every=True).state_parts["final_norm"]
        found[peft] = float(layer["norm_inputs"][0]), float(last[0, 0])
    assert found == {"none": (12 * hidden, (6 + 2) * hidden), "lora": (8 * hidden, 4 * hidden)}


def test_units_of_fsdp_are_gathered_as_they_are_stored() -> None:
    held = float(fsdp_unit_bytes(1000.0, 10.0, numerics("int8", grad_reduce_dtype="bf16"), 3))
    assert held == 2 * (990 * 1 + 10 * 2) + 2 * 2 * 10


@pytest.mark.parametrize("frozen", ["nf4", "nf4_single", "int8", "fp8"])
@pytest.mark.parametrize("model", ["llama2-7b", "llama3-8b", "qwen2.5-7b"])
def test_the_search_and_the_detailed_sum_agree(frozen: str, model: str) -> None:
    asked = scenario(frozen, model)
    layouts = asked.layouts([parse_plan(text, 8, dist_opt=False) for text in ("mbs=1", "mbs=1,fsdp=3", "mbs=1,fsdp=2")])
    whole, quick = (estimate_memory(asked, layouts, [NONE, FULL], detail=detail) for detail in (True, False))
    assert np.allclose(whole.peak_bytes, quick.peak_bytes, rtol=1e-12)
    assert np.all(least_state_bytes(asked, layouts)[:, None] <= quick.peak_bytes)
    assert np.allclose(sum(whole.parts.values()), whole.per_stage_bytes, rtol=1e-12)
    wide = replace(asked, numerics=numerics("bf16"))
    assert np.all(quick.peak_bytes < estimate_memory(wide, layouts, [NONE, FULL]).peak_bytes)


def test_what_is_not_quantised_is_refused() -> None:
    with pytest.raises(InputError, match=r"frozen_dtype=nf4: mixtral-8x7b has experts.*--frozen-dtype bf16"):
        scenario("nf4", "mixtral-8x7b")
    with pytest.raises(InputError, match="--peft lora"):
        numerics("nf4", peft="none")
    with pytest.raises(InputError, match="--precision bf16"):
        numerics("int8", precision="fp8")
    with pytest.raises(InputError, match="--fp8-param-gather"):
        numerics("fp8", precision="fp8")
    with pytest.raises(InputError, match=r"frozen_dtype='nf3' is not one of bf16, fp32, nf4, nf4_single, int8, fp8"):
        numerics("nf3")


def optimizer_state(optimizer: str, **changes: Any) -> float:
    asked = replace(scenario("bf16"), numerics=Numerics(optimizer=optimizer, **changes))
    layouts = asked.layouts([parse_plan("mbs=1", 8, dist_opt=False)])
    return float(stage_terms(asked, layouts, every=True).state_parts["optimizer_bytes"][0, 0])


def test_moments_in_8_bits_have_the_bytes_of_bitsandbytes() -> None:
    """bitsandbytes 0.50.2, AdamW8bit of a tensor of a million elements: two moments of a byte and 3,907 maxima each, one
    of an incomplete block. transformers keeps the moments of an embedding in fp32; paged ones are the host's."""
    assert pytest.approx(2 * (1_000_000 + 4 * 3_907), rel=5e-6) == 2 * (MOMENT_BYTES + MOMENT_SCALE) * 1e6
    table, others = VOCAB * H, LAYERS * LINEAR + VOCAB * H + (2 * LAYERS + 1) * H
    moments = others * (2 + 8 / 256) + 8 * table
    assert optimizer_state("adam8bit") == pytest.approx(4 * (others + table) + moments, rel=1e-12)
    assert optimizer_state("adam8bit", weights_are_masters=True) == pytest.approx(moments, rel=1e-12)
    paged = optimizer_state("paged_adam8bit", weights_are_masters=True)
    assert paged == pytest.approx(others * 8 / 256, rel=1e-9)
    assert optimizer_state("adam8bit", peft="lora") == pytest.approx(ADAPTERS * (4 + 2 + 8 / 256), rel=1e-12)
    with pytest.raises(InputError, match="keeps both moments in 8 bits"):
        Numerics(optimizer="adam8bit", exp_avg_dtype="bf16")


@pytest.mark.parametrize("optimizer", ["adam8bit", "paged_adam8bit"])
def test_the_search_and_the_detailed_sum_agree_on_moments_in_8_bits(optimizer: str) -> None:
    asked = replace(scenario("bf16"), numerics=Numerics(optimizer=optimizer))
    layouts = asked.layouts([parse_plan(text, 8, dist_opt=False) for text in ("mbs=1", "mbs=1,fsdp=3")])
    whole, quick = (estimate_memory(asked, layouts, [NONE, FULL], detail=detail) for detail in (True, False))
    assert np.allclose(whole.peak_bytes, quick.peak_bytes, rtol=1e-12)
    assert np.all(least_state_bytes(asked, layouts)[:, None] <= quick.peak_bytes)


def test_an_update_reads_and_writes_moments_of_8_bits() -> None:
    """Master weight and both moments, read and written."""
    stack = load_stack("torch-eager").time
    wide = optimizer_bytes_per_parameter(Numerics(), stack)
    assert wide - optimizer_bytes_per_parameter(Numerics(optimizer="adam8bit"), stack) == 2 * (8 - 2 - 8 / 256)
    masters = optimizer_bytes_per_parameter(Numerics(optimizer="adam8bit", weights_are_masters=True), stack)
    assert masters - stack.optimizer_extra_bytes == 2 * (2 + 2 + 8 / 256)


@pytest.mark.parametrize(
    ("model", "single", "double"),
    [("llama2-7b", 14.14, 13.84), ("llama2-13b", 23.14, 22.55)],
)
def test_what_double_quantisation_saves_is_what_litgpt_publishes(model: str, single: float, double: float) -> None:
    """LitGPT, tutorials/resource-tables.md (20 October 2023): reserved GB on one A100, the difference to their two digits; the
    peaks themselves stand in test_public_qlora.py."""
    found = []
    for frozen in ("nf4_single", "nf4"):
        asked = scenario(frozen, model, lora_target_modules=("linear_qkv",))
        asked = replace(asked, workload=Workload(seq_length=1304, global_batch_size=8))
        layouts = asked.layouts([parse_plan("mbs=1", 8, dist_opt=False)])
        found.append(float(estimate_memory(asked, layouts, [NONE]).peak_bytes[0, 0]) / 1e9)
    assert found[0] - found[1] == pytest.approx(single - double, abs=0.01)


def test_the_footprint_of_weights_is_what_transformers_prints() -> None:
    """dev.to (S. Nath), Qwen2.5-7B in NF4, double quantisation: get_memory_footprint 5.44 GB, which leaves the maxima out."""
    asked = replace(scenario("nf4", "qwen2.5-7b", lora_rank=1))
    layouts = asked.layouts([parse_plan("mbs=1", 8, dist_opt=False)])
    held = float(stage_terms(asked, layouts, every=True).state_parts["weight_bytes"][0, 0])
    assert held / 1e9 == pytest.approx(5.44, rel=0.025)
