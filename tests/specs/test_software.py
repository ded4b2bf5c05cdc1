"""Stacks, engines and formats: bytes, ages, what a GPU multiplies, what a release has."""

from dataclasses import replace
from itertools import pairwise

import pytest
from autoconfig.specs.errors import UnknownNameError
from autoconfig.specs.hardware.cluster import cluster_of, load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.scenario import FORMATS, Numerics, gathers_fp8, userbuffers_know, userbuffers_run
from autoconfig.specs.software.engine import (
    KV_BYTES,
    RELEASED,
    WEIGHT_BYTES,
    _month,
    _release,
    engine_names,
    kernel_age,
    load_engine,
    module_formats,
    supports,
    weight_format,
)
from autoconfig.specs.software.software import load_stack
from small_models import MODELS
from tables import tabled


def test_every_engine_loads_and_names_a_known_parent():
    names = engine_names()
    assert len(names) == len(set(names))
    for name in names:
        engine = load_engine(name)
        assert engine.parent is None or engine.parent in names
        assert engine.eager_iterations in ("none", "mixed", "all")
        assert engine.sources
    with pytest.raises(UnknownNameError):
        load_engine("nvllm")


def test_formats_by_checkpoint_and_gpu():
    hopper, blackwell = load_gpu("h200"), load_gpu("b200")
    assert module_formats(load_model("llama3-70b"), "fp8", hopper).attention == "fp8"
    deepseek = module_formats(load_model("deepseek-v3"), "nvfp4", blackwell)
    assert (deepseek.attention, deepseek.experts) == ("bf16", "nvfp4")
    assert module_formats(load_model("gpt-oss-20b"), "fp8", hopper).experts == "mxfp4_weight_only"
    assert module_formats(load_model("gpt-oss-20b"), "nvfp4", blackwell).experts == "mxfp4"
    assert weight_format("FP4") == "nvfp4" and not supports(hopper, "nvfp4") and supports(blackwell, "nvfp4")
    assert weight_format("W4A16_AWQ") == weight_format("awq") == "int4" and weight_format("Float16") == "bf16"
    assert WEIGHT_BYTES["nvfp4"] == 0.5625 and WEIGHT_BYTES["int4"] == 0.515625


def test_bytes_of_formats_with_their_scales():
    """Block scales of the OCP MX specification (one byte for 32), NVFP4 (one for 16), DeepSeek-V3 (fp32 for 128 x 128), AWQ
    (16 bits for 128)."""
    blocks = {"fp8_block": 1.000244140625, "nvfp4": 0.5625, "mxfp4": 0.53125, "mxfp4_weight_only": 0.53125, "int4": 0.515625}
    assert {"bf16": 2, "fp8": 1, "int8": 1, **blocks} == WEIGHT_BYTES
    assert KV_BYTES == {"bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5625}
    found = {recipe or precision: (form.operand_bytes, form.saved_bytes, form.gathered_bytes, form.activation_bytes)
             for (precision, recipe), form in FORMATS.items()}  # fmt: skip
    assert found["mxfp8"] == (1, 1.03125, 2, 2) and found["nvfp4"] == (0.5625, 0.5625, 2, 2)
    assert found["bf16"] == found["fp16"] == (2, 2, 2, 2) and found["fp32"][:2] == (4, 4) and found["fp32"][3] == 4


@pytest.mark.parametrize(("capability", "known"), [
    (None, {"bf16", "int4", "mxfp4"}), (8.0, {"bf16", "int4", "mxfp4"}), (8.9, {"bf16", "int4", "mxfp4", "fp8", "fp8_block"}),
    (10.0, {"bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4"}),
])  # fmt: skip
def test_formats_that_matrix_units_multiply(capability, known):
    gpu = replace(load_gpu("h100"), compute_capability=capability)
    assert {name for name in ("bf16", "int4", "mxfp4", "fp8", "fp8_block", "nvfp4") if supports(gpu, name)} == known


def test_a_release_has_its_own_month_and_one_outside_of_them_that_of_the_nearest():
    for name, date in RELEASED.items():
        year, month = map(int, date.split("-"))
        assert _month(_release(name)) == 12 * year + month, name
    dated = sorted(map(_release, RELEASED))
    assert _month(dated[0] - 1) == _month(dated[0]) and _month(dated[-1] + 99) == _month(dated[-1])


def test_years_between_releases_of_kernels() -> None:
    """0.12 of August 2024, 0.14 of November 2024, 0.17 of February and 0.20 of June 2025."""
    ages = [kernel_age(load_engine(f"trtllm-{number}")) for number in ("0.12", "0.14", "0.17", "0.20")]
    between = [12 * (older - newer) for older, newer in pairwise(ages)]
    assert between == pytest.approx([3, 3, 4]) and kernel_age(load_engine("trtllm-1.2")) == 0 == kernel_age(load_engine("vllm"))


H100, B200 = (load_gpu("h100"), load_gpu("b200"))
GPT, MOE, T5, MLA = (ModelSpec(**MODELS[name]) for name in ("gpt", "moe", "t5", "mla"))
TE = load_stack("transformer-engine")


@pytest.mark.parametrize(("key", "capability", "expected"), [
    (("fp8", "delayed"), 9.0, 2), (("fp8", "delayed"), 10.0, 1), (("fp8", "delayed"), None, 2), (("fp8", "blockwise"), 9.9, 2),
    (("fp8", "mxfp8"), 10.0, 2 * 33 / 32), (("nvfp4", ""), 12.0, 2 * 9 / 16), (("bf16", ""), 10.0, 2),
])  # fmt: skip
def test_orientations_of_a_quantised_weight(key, capability, expected):
    """Below Blackwell GEMMs read one layout of fp8 only; microscaling scales one direction, so both are kept."""
    assert FORMATS[key].weight_copy_bytes(capability) == expected


@tabled
def test_weights_are_gathered_in_fp8_but_under_torchs_fsdp2(fsdp, stack, given, holds):
    assert bool(gathers_fp8(Numerics(precision="fp8", fp8_param_gather=given), load_stack(stack), fsdp)) == holds


@pytest.mark.parametrize(("model", "numerics", "gpu", "plan", "runs"), [
    (GPT, {}, H100, (2, True, 0), True), (GPT, {}, H100, (1, True, 0), False), (GPT, {}, H100, (2, False, 0), False),
    (GPT, {}, H100, (8, True, 0), True), (GPT, {}, H100, (16, True, 0), False), (GPT, {}, H100, (2, True, 3), False),
    (GPT, {}, B200, (2, True, 3), True), (MOE, {}, H100, (2, True, 0), False), (MLA, {}, H100, (2, True, 0), False),
    (GPT, {"deterministic": True}, H100, (2, True, 0), False),
])  # fmt: skip
def test_userbuffers(model, numerics, gpu, plan, runs):
    tp, sp, fsdp = plan
    assert bool(userbuffers_run(model, Numerics(**numerics), TE, cluster_of(gpu, 16), tp=tp, sp=sp, fsdp=fsdp)) == runs
    without = replace(TE, time=replace(TE.time, tp_overlap_share=0.0))
    assert not userbuffers_know(model, Numerics(), without)
