"""Quantised checkpoints: the size of the published files, what stays in 16 bits, which engine loads them, what a start says,
and which are known by their ids."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from autoconfig.memory_model.serving import checkpoint_bytes, weight_parts_bytes
from autoconfig.specs.errors import InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.config_reader import ConfigReader
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model_catalogue import load_model, model_names, published_checkpoint, resolve_model
from autoconfig.specs.models.module_names import ModuleNames, linear_modules
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.models.published import TABLE
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import (
    ALGORITHMS,
    MXFP4,
    NVFP4,
    _algorithm,
    _compressed_weights,
    checkpoint_named,
    checkpoint_of,
    quantised_at_load,
)
from autoconfig.specs.software.engine import (
    ModuleFormats,
    load_engine,
    loads_checkpoint,
    nearest_release,
    require_sparse_kernels,
    supports,
)
from small_models import A100, B200, H100, MI300X, MLA

from autoconfig.engines.export import export_texts
from autoconfig.planning.resolve import read_checkpoint
from autoconfig.serving.answer import answer
from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.space import cut_groups
from validation.judge.engine_arguments import arguments_of
from validation.judge.serving_plans import deployments

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "quantised_checkpoints.json").read_text(encoding="utf-8"))
CONFIGS = json.loads((HERE / "huggingface_configs.json").read_text(encoding="utf-8"))
ROWS = [tuple(row[:4]) for row in PUBLISHED["rows"]]


def config_of(shape, quantised):
    found = PUBLISHED["shapes"][shape]
    if isinstance(found, str) or "of" in found:
        base, changes = (found, {}) if isinstance(found, str) else (found["of"], found)
        found = {**CONFIGS[base]["config"], **{key: value for key, value in changes.items() if key != "of"}}
    return {**found, "quantization_config": quantised}


def stored(shape, quantised):
    config = config_of(shape, quantised)
    return model_from_mapping(config, "config.json", shape), checkpoint_of(config, "config.json")


@pytest.mark.parametrize(("name", "shape", "quantised", "gigabytes"), ROWS, ids=[row[0] for row in ROWS])
def test_weights_are_as_large_as_the_published_files(name, shape, quantised, gigabytes):
    model, checkpoint = stored(shape, quantised)
    assert checkpoint_bytes(model, checkpoint.formats(model)) / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize("name", [name for name in model_names() if not load_model(name).encoder_num_layers])
def test_linear_layers_and_the_embedding_are_nearly_all_of_a_model(name):
    """Norms, biases, routers and convolutions are the rest."""
    model = load_model(name)
    named = sum(weights for _, _, weights in linear_modules(model)) + model.vocab_size * model.hidden_size
    assert 0.98 < named / total_parameters(model, mtp=True) <= 1.0


def test_the_table_has_enough_of_every_method():
    methods = [row[2]["quant_method"] for row in ROWS]
    assert len(ROWS) >= 15 and {*methods} == {"awq", "gptq", "fp8", "compressed-tensors", "modelopt", "mxfp4", "bitsandbytes"}


LLAMA = PUBLISHED["shapes"]["llama3-8b"]


def parts(quantised, shape="llama3-8b"):
    """Bytes of a weight by part."""
    model, checkpoint = stored(shape, quantised)
    return dict(checkpoint.formats(model).exact)


NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}


@pytest.mark.parametrize(
    ("quantised", "part", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "mlp", 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, "mlp", 0.5 + 2.0 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": ["self_attn"]}, "attention", 2.0),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "attention", 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": None}, "attention", 0.5),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, "output", 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*down_proj": {}}}, "mlp",
         (2 * (0.5 + 2.5 / 128) + 2.0) / 3),
        (NF4, "mlp", 0.5 + (1.0 + 4.0 / 256) / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]}, "attention", 1.0),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0", "lm_head"]}, "attention", (31 * 1.0 + 2.0) / 32),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": [f"model.layers.{i}.self_attn" for i in range(32)]},
         "attention", 2.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.self_attn*"]}, "attention", 2.0),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": []}, "output", 1.0),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
            **{f"model.layers.{i}.self_attn.{m}": {"quant_algo": "FP8"} for i in range(32) for m in ("q_proj", "k_proj",
               "v_proj", "o_proj")}, **{f"model.layers.{i}.mlp.{m}": {"quant_algo": "NVFP4", "group_size": 16}
               for i in range(32) for m in ("gate_proj", "up_proj", "down_proj")}}}, "mlp", 0.5625),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*", "lm_head"], "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}}},
         "attention", 2.0),
    ],
)  # fmt: skip
def test_scales_zero_points_and_what_stays_in_16_bits(quantised, part, expected):
    assert parts(quantised)[part] == pytest.approx(expected, rel=1e-12)


def test_the_file_beside_says_what_the_config_does_not():
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                               "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}}  # fmt: skip
    found = checkpoint_of(LLAMA, "config.json", beside)
    assert found.kind == "modelopt nvfp4" and found.kv == "fp8"
    assert checkpoint_of(LLAMA, "config.json") is None


def test_memory_of_one_gpu_follows():
    model, checkpoint = stored("llama3-8b", ROWS[0][2])
    whole, half = (weight_parts_bytes(model, EnginePlan(tp=tp), checkpoint.formats(model)) for tp in (1, 2))
    assert half["mlp"] == whole["mlp"] / 2 == pytest.approx(32 * 3 * 4096 * 14336 * (0.5 + 2.5 / 128) / 2)
    assert whole["embedding and output"] == 2 * 128256 * 4096 * 2.0


@pytest.mark.parametrize(
    ("engine", "gpu", "quantised", "says"),
    [
        ("vllm", "h100", ROWS[0][2], ""),
        ("tensorrt-llm", "h100", ROWS[0][2], "does not load awq"),
        ("megatron", "h100", ROWS[0][2], "does not load awq"),
        ("sglang", "h100", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "from compute capability 10"),
        ("sglang", "b200", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, ""),
        ("vllm", "h100", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, ""),
        ("tensorrt-llm", "h100", {"quant_method": "fp8"}, "does not load fp8 fp8"),
    ],
)
def test_what_engine_or_gpu_cannot_run_is_refused(engine, gpu, quantised, says):
    request = ServeRequest(model=config_of("llama3-8b", quantised), gpus=1, gpu=gpu, engine=engine)
    if says:
        with pytest.raises(UnsupportedError, match=says):
            understand(request)
    else:
        assert understand(request).checkpoint is not None


def test_fix_and_include_are_held_to_the_checkpoint():
    asked = {"model": config_of("llama3-8b", {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}),
             "gpus": 1, "gpu": "h100", "engine": "vllm", "simulate": 0, "disaggregated": False}  # fmt: skip
    for fix in ("weights=nvfp4", "kv=bf16"):
        with pytest.raises(InputError, match="the checkpoint is quantised"):
            understand(ServeRequest(**asked, fix=(fix,)))
    found = answer(ServeRequest(**asked, include=("tp=1,weights=bf16,batch=8",)))
    assert {(one.plan.decode.weights, one.plan.decode.kv) for one in found.reports} == {("fp8", "fp8")}
    assert found.included[0][2] == "the checkpoint is quantised: weights=fp8"
    assert any("quantised checkpoint (modelopt: fp8" in line for line in sentences(found.question.assumed))


def test_no_layout_cuts_a_group():
    """Qwen2.5-72B's 29,568 rows are 231 groups: vLLM refuses its AWQ files at tp 2."""
    model, checkpoint = stored("llama-70b", ROWS[0][2])
    odd = model.replace(ffn_hidden_size=29568)
    assert cut_groups(odd, EnginePlan(tp=2), checkpoint).startswith("the MLP has 29568 rows")
    assert cut_groups(model, EnginePlan(tp=8), checkpoint) == cut_groups(odd, EnginePlan(tp=1), checkpoint) == ""
    mixtral = model_from_mapping(CONFIGS["qwen3-30b-a3b"]["config"], "x", "qwen3-30b-a3b")
    block = checkpoint_of({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "x")
    assert "experts" in cut_groups(mixtral, EnginePlan(tp=4), block)
    assert cut_groups(mixtral, EnginePlan(tp=4, ep=4), block) == ""


ACCEPTED = {"vllm", "sglang", "trtllm-1.2"}


@pytest.fixture(scope="module")
def accepted_options():
    """Of each engine the options of the scripts that its own parser accepted (docs/inference.md, start scripts)."""
    found = {}
    for engine in ACCEPTED:
        words = set()
        for _, question, one in deployments(engine):
            if one is not None and one.plan.prefill is None:
                lines = export_texts(question, one)["serve.sh"].split()
                words |= {word for word in lines if word.startswith("--")}
        found[engine] = words
    return found


SERVED = {
    "vllm": ROWS,
    "sglang": [row for row in ROWS if row[2]["quant_method"] in ("awq", "gptq", "mxfp4")],
    "trtllm-1.2": [row for row in ROWS if row[2]["quant_method"] in ("mxfp4", "fp8", "modelopt")],
}


@pytest.mark.judge
@pytest.mark.xdist_group("serving export")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["one a format", "all"])
@pytest.mark.parametrize("engine", sorted(SERVED))
def test_start_scripts_name_no_format_and_only_options_that_the_engine_has(engine, every, tmp_path, accepted_options):
    rows = SERVED[engine] if every else {row[2]["quant_method"]: row for row in SERVED[engine]}.values()
    for number, (name, shape, quantised, gigabytes) in enumerate(rows):
        gpus = 16 if gigabytes > 500 else 1
        request = ServeRequest(
            model=config_of(shape, quantised), gpus=gpus, gpu="b200", engine=engine, isl=1000, osl=100, simulate=0,
            disaggregated=False, fix=("pp=1", "batch=16", "tokens=2048"),
        )  # fmt: skip
        found = answer(request)
        (tmp_path / f"{number}.sh").write_text(export_texts(found.question, found.reports[0])["serve.sh"])
        words = arguments_of(tmp_path / f"{number}.sh")[1]
        options = {word for word in words if word.startswith("--")}
        assert options <= accepted_options[engine] and not options & {"--quantization"}, name


@pytest.mark.parametrize(
    ("quantised", "says"),
    [
        ({"quant_method": "exl2"}, "is not read; read are awq, bitsandbytes"),
        ({"quant_method": 3}, "must be a string"),
        ({"bits": 4}, "is not read"),
        ({"quant_method": "awq", "bits": 3}, "bits=3"),
        ({"quant_method": "awq", "bits": "4"}, "whole number"),
        ({"quant_method": "awq", "bits": None}, "bits is null"),
        ({"quant_method": "awq", "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq"}, "bits is missing"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two whole numbers"),
        ({"quant_method": "bitsandbytes"}, "one of them must be true"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 8}}},
                "kv_cache_scheme": {"num_bits": 8, "type": "int"},
            },
            "caches of 8 bits of type float",
        ),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["FusedMoE"]}}}, "target 'FusedMoE'"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}}, "weights is null"),
        ({"quant_method": "modelopt", "quant_algo": "W2"}, "quant_algo 'W2'"),
        ({"quant_method": "modelopt"}, "quant_algo is missing"),
        ({"quant_method": "awq", "modules_to_not_convert": ["re:(a+)+$"]}, "simple repeats"),
        ({"quant_method": "awq", "modules_to_not_convert": ["re:" + ".*a" * 9]}, "simple repeats"),
        ({"quant_method": "awq", "modules_to_not_convert": ["re:["]}, "no expression"),
        ({"quant_method": "awq", "modules_to_not_convert": ["re:.*a.*b.*c"] * 300}, "simple repeats"),
        ({"quant_method": "awq", "modules_to_not_convert": "lm_head"}, "must be a list"),
        ([1], "must be an object"),
    ],
)
def test_what_is_not_understood_is_refused(quantised, says):
    start = time.process_time()
    with pytest.raises(InputError) as error:
        model, checkpoint = stored("llama3-8b", quantised)
        checkpoint.formats(model)
    assert says in str(error.value) and time.process_time() - start < 2


def test_bytes_of_modelopts_algorithms_with_their_scales():
    """fp32 for 128 x 128, a byte for 16 or 32, 16 bits for 128."""
    found = {name: stored.bytes for name, stored in ALGORITHMS.items()}
    blocks, nvfp4, mxfp4, awq = 1 + 4 / 16384, 0.5625, 0.53125, 0.515625
    assert {name for name, each in found.items() if each == awq} == {"W4A16_AWQ", "W4A8_AWQ"}
    assert {found[name] for name in ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8")} == {nvfp4}
    assert {found[name] for name in ("MXFP4", "W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8")} == {mxfp4}
    assert {found[name] for name in ("FP8_BLOCK_SCALES", "FP8_PB_WO", "FP8_PB_REAL")} == {blocks}
    assert {found[name] for name in ("FP8", "W8A8_SQ_PER_CHANNEL", "INT8_SQ", "FP8_PER_CHANNEL_PER_TOKEN")} == {1}
    for group, each in ((0, awq), (64, 0.53125), (32, 0.5625)):
        config = {"quant_algo": "w4a16_awq"} | ({"group_size": group} if group else {})
        assert _algorithm(ConfigReader(config, "here")).bytes == each


@pytest.mark.parametrize(("group", "stored"), [(16, NVFP4), (32, MXFP4)])
def test_four_bits_of_floats_are_told_apart_by_their_groups(group: int, stored: Any) -> None:
    """NVFP4 has a scale of 8 bits for 16 numbers, MXFP4 for 32."""
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": group}
    assert _compressed_weights(ConfigReader({"weights": weights}, "x")) == stored and stored.bytes == 0.5 + 1 / group


def test_other_floats_of_four_bits_are_refused() -> None:
    for weights in ({"num_bits": 4, "type": "float", "group_size": 64}, {"num_bits": 6, "type": "float", "group_size": 16}):
        with pytest.raises(InputError):
            _compressed_weights(ConfigReader({"weights": weights}, "x"))


RECIPES = json.loads(TABLE.read_text(encoding="utf-8"))["recipes"]

FILES = (
    # id, catalogue's model, attention, MLP or shared experts, routed experts, cache, bytes of a weight by part
    # read of the config.json and hf_quant_config.json of the id, as aiconfigurator-core 0.12.0 ships them
    ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", "fp8_block", "fp8_block", "fp8_block", None, {"output": 2.0}),
    ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8_block", "fp8_block", "fp8_block", None, {"mlp": 1.0002, "output": 2.0}),
    ("deepseek-ai/DeepSeek-R1", "deepseek-v3", "fp8_block", "fp8_block", "fp8_block", None, {"attention": 1.0002}),
    ("moonshotai/Kimi-K2-Instruct", "kimi-k2", "fp8_block", "fp8_block", "fp8_block", None, {"attention": 1.0002}),
    ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking", "bf16", "bf16", "int4", None, {"experts": 0.5625, "mlp": 2.0}),
    ("moonshotai/Kimi-K2.5", "kimi-k2.5", "bf16", "bf16", "int4", None, {"experts": 0.5625, "mlp": 2.0}),
    ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5", "bf16", "nvfp4", "nvfp4", "fp8", {"experts": 0.5625, "mlp": 0.5625}),
    ("nvidia/Kimi-K2.6-NVFP4", "kimi-k2.5", "bf16", "bf16", "nvfp4", "fp8", {"experts": 0.5625, "mlp": 2.0}),
    ("MiniMaxAI/MiniMax-M2.5", "minimax-m2", "fp8_block", "fp8_block", "fp8_block", None, {"output": 2.0}),
    ("nvidia/MiniMax-M2.7-NVFP4", "minimax-m2.7", "bf16", "nvfp4", "nvfp4", "fp8", {"experts": 0.5625, "attention": 2.0}),
    ("zai-org/GLM-5-FP8", "glm-5", "fp8_block", "fp8_block", "fp8_block", None, {"output": 2.0}),
    ("nvidia/GLM-5-NVFP4", "glm-5", "bf16", "nvfp4", "nvfp4", "fp8", {"attention": 2.0, "mlp": 0.578, "experts": 0.581}),
    ("nvidia/GLM-5.1-NVFP4", "glm-5", "bf16", "bf16", "nvfp4", "fp8", {"mlp": 2.0, "experts": 0.581}),
    ("nvidia/DeepSeek-V3.2-NVFP4", "deepseek-v3.2", "nvfp4", "nvfp4", "nvfp4", "fp8", {"attention": 1.174, "experts": 0.587}),
    ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b", "nvfp4", "nvfp4", "nvfp4", "fp8", {"attention": 0.5625}),
    ("nvidia/Qwen3.5-397B-A17B-NVFP4", "qwen3.5-397b-a17b", "bf16", "bf16", "nvfp4", "fp8", {"recurrent": 2.0, "mlp": 2.0}),
    ("nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.5-35b-a3b", "fp8", "nvfp4", "nvfp4", "fp8", {"recurrent": 1.0, "output": 0.5625}),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nemotron-3-nano", "bf16", "nvfp4", "nvfp4", "fp8", {"attention": 2.0}),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama3.1-70b", "fp8", "fp8", "fp8", "fp8", {"output": 2.0}),
    ("openai/gpt-oss-120b", "gpt-oss-120b", "bf16", "mxfp4", "mxfp4", None, {"experts": 0.53125}),
    # of the model cards
    ("meta-llama/Llama-3.1-405B-Instruct-FP8", "llama3.1-405b", "bf16", "fp8", "fp8", None, {"mlp": 1.0 + 2 / 126}),
    ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", "bf16", "nvfp4", "nvfp4", "fp8", {"attention": 2.0}),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama3.1-8b", "fp8", "fp8", "fp8", None, {"output": 2.0}),
    (
        "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w4a16",
        "llama3.1-70b",
        "int4",
        "int4",
        "int4",
        None,
        {"mlp": 0.515625},
    ),
    ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", "int4", "int4", "int4", None, {"mlp": 0.51953125, "output": 2.0}),
    ("Qwen/Qwen1.5-7B-Chat-GPTQ-Int4", "qwen1.5-7b", "int4", "int4", "int4", None, {"mlp": 0.51953125}),
    ("Qwen/Qwen3.8-27B-FP8", "qwen3.5-27b", "fp8_block", "fp8_block", "fp8_block", None, {"output": 2.0}),
    ("Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4", "qwen2.5-32b", "int4", "int4", "int4", None, {"mlp": 0.51953125}),
)


@pytest.mark.parametrize(("name", "model", "attention", "mlp", "experts", "kv", "stored"), FILES, ids=[one[0] for one in FILES])
def test_modules_are_stored_as_in_the_published_files(name, model, attention, mlp, experts, kv, stored):
    found = load_model(name)
    checkpoint = checkpoint_named(name)
    formats = checkpoint.formats(found)
    assert (found.name, formats.attention, formats.mlp, formats.experts, checkpoint.kv) == (model, attention, mlp, experts, kv)
    assert {part: dict(formats.exact)[part] for part in stored} == pytest.approx(stored, abs=6e-4)


def test_a_checkpoint_may_have_another_width():
    """Qwen pads the 72B's MLP from 29,568, which no two ranks divide in groups of 128, to 29,696 (its config.json)."""
    padded, plain = load_model("Qwen/Qwen2.5-72B-Instruct-AWQ"), load_model("TheBloke/Qwen2.5-72B-Instruct-AWQ")
    assert (padded.ffn_hidden_size, plain.ffn_hidden_size) == (29_696, 29_568)
    checkpoint = checkpoint_named("Qwen/Qwen2.5-72B-Instruct-AWQ")
    assert not cut_groups(padded, EnginePlan(tp=8), checkpoint)
    assert cut_groups(plain, EnginePlan(tp=2), checkpoint).startswith("the MLP has 29568 rows")


NO_PLAN = [
    # field cases C1, C9, C3, C5 and their kinds: model, GPUs, --fix, the engine's reason
    ("qwen3-30b-a3b", 4, ["tp=4", "ep=1", "weights=fp8_block"], "output_size = 192 is not divisible by block_n = 128"),
    ("Qwen/Qwen3-30B-A3B-FP8", 4, ["tp=4", "ep=1"], "output_size = 192 is not divisible by block_n = 128"),
    ("Qwen/Qwen3-235B-A22B-FP8", 8, ["tp=8", "ep=1"], "output_size = 192 is not divisible by block_n = 128"),
    ("minimax-m2", 8, ["tp=8", "ep=1"], "output_size = 192 is not divisible by block_n = 128"),
    ("deepseek-v3", 32, ["tp=32"], "output_size = 576 is not divisible by block_n = 128"),
    ("deepseek-ai/DeepSeek-R1-0528", 32, ["tp=32", "ep=1"], "output_size = 576 is not divisible by block_n = 128"),
    ("qwen2.5-72b", 4, ["tp=4", "weights=int4"], "not aligned with the quantized weight shape"),
    ("r1-distill-qwen-7b", 8, ["tp=8"], "28 attention heads"),
    ("qwen2.5-14b", 5, ["tp=5"], "8 heads of keys and values"),
    ("r1-distill-qwen-7b", 7, ["tp=7"], "heads of keys and values"),
    ("llama3.1-8b", 12, ["tp=12"], "32 attention heads"),
]


@pytest.mark.parametrize(("model", "gpus", "fix", "reason"), NO_PLAN, ids=[f"{one[0]} {' '.join(one[2])}" for one in NO_PLAN])
def test_what_an_engine_does_not_start_is_refused_with_its_reason(model, gpus, fix, reason):
    asked = ServeRequest(model=model, gpus=gpus, gpu="h200", engine="vllm", fix=fix, gpus_per_node=min(gpus, 32), simulate=0)
    assert reason in answer(asked).infeasible


def test_an_answer_says_where_a_checkpoints_formats_are_stated():
    said = "\n".join(sentences(understand(ServeRequest(model="nvidia/GLM-5-NVFP4", gpus=8, gpu="b200", engine="vllm")).assumed))
    assert "modules of nvidia/GLM-5-NVFP4 are quantised how: aiconfigurator-core 0.12.0" in said
    assert "in 16 bits: attention, embedding" in said


@pytest.mark.parametrize("plan", ["tp=4,weights=fp8_block", "prefill(tp=1,weights=fp8_block)+decode(tp=4,weights=fp8_block)"])
def test_a_plan_that_is_priced_by_name_is_refused_for_the_same_reason(plan):
    asked = ServeRequest(model="qwen3-30b-a3b", gpus=5, gpu="h200", engine="vllm", include=(plan,), simulate=0)
    assert "block_n = 128" in answer(asked).included[0][2]


BY_ID = [(row[0].removesuffix(", main"), row[3]) for row in PUBLISHED["rows"]]
BY_ID = [one for one in BY_ID if published_checkpoint(one[0])]


@pytest.mark.parametrize(("name", "gigabytes"), BY_ID, ids=[one[0] for one in BY_ID])
def test_checkpoints_by_id_are_as_large_as_the_published_files(name, gigabytes):
    model = load_model(name)
    assert checkpoint_bytes(model, checkpoint_named(name).formats(model)) / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_files_are_as_large_as_published():
    """405B in FP8: 57.75 GiB a GPU on eight were loaded (vLLM issue 6746), where its embedding is divided too."""
    model = load_model("llama3.1-405b")
    size = checkpoint_bytes(model, checkpoint_named("meta-llama/Llama-3.1-405B-Instruct-FP8").formats(model))
    assert size / 8 / 2**30 == pytest.approx(57.75, rel=0.02)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("qwen3-30b-a3b-fp8", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b-2507"),
        ("https://huggingface.co/Qwen/Qwen3-14B-AWQ", "qwen3-14b"),
        ("llama-3.3-70b-instruct-FP8-dynamic", "llama3.1-70b"),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "llama2-7b"),
    ],
)
def test_other_spellings_of_published_checkpoints(name, model):
    assert resolve_model(name)[0].name == model
    assert str(read_checkpoint(name, local_files=False)) == str(checkpoint_named(name)) != "None"


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-R1-0528", "meta-llama/Llama-3.3-70B-Instruct", "unsloth/Qwen3-8B"])
def test_the_makers_ids_and_those_of_who_keeps_their_names(name):
    assert published_checkpoint(name) is not None


@pytest.mark.parametrize("name", ["deepseek-r1", "llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"])
def test_names_of_models_say_no_format(name):
    assert load_model(name)
    assert checkpoint_named(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "someone/Qwen3-8B",
        "someone/Qwen3-8B-AWQ",
        "someone/my-7b-FP8",
        "Qwen/Qwen3-8B-XYZ",
        "deepseek-ai/DeepSeek-V2-Lite-FP8",
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        "Qwen/Qwen9-8B-AWQ",
    ],
)
def test_what_is_not_known_asks_for_its_config(name):
    """Of whom nothing is known, or whose kept modules are not."""
    assert published_checkpoint(name) is None
    with pytest.raises(UnknownNameError):
        load_model(name)
    with pytest.raises(InputError, match=f"{name} is not in the catalogue.*: give its config.json, or say --download"):
        resolve_model(name)


def test_no_other_model_is_suggested_for_an_id():
    with pytest.raises(InputError) as said:
        resolve_model("Qwen/Qwen3-2B")
    assert "did you mean" not in str(said.value)
    with pytest.raises(InputError, match=r"\(did you mean qwen3-8b\?\)"):
        resolve_model("Qwenn/Qwen3-8B")


def test_enough_published_sizes_hold_the_table():
    assert len(BY_ID) >= 9


def test_every_recipe_is_read_and_used():
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["checkpoints"]
    assert {row["recipe"] for row in rows} == {*RECIPES}
    assert all(recipe["source"] for recipe in RECIPES.values())


@pytest.mark.parametrize(
    ("name", "engine", "gpu", "loads"),
    [
        ("deepseek-ai/DeepSeek-R1", "vllm", "mi300x", True),
        ("moonshotai/Kimi-K2.5", "vllm", "mi355x", True),
        ("openai/gpt-oss-120b", "sglang", "mi300x", True),
        ("nvidia/DeepSeek-R1-0528-FP4", "vllm", "mi355x", False),
        ("nvidia/DeepSeek-R1-0528-FP4", "sglang", "h100", False),
        ("nvidia/DeepSeek-R1-0528-FP4", "vllm", "h100", True),
        ("Qwen/Qwen3-14B-AWQ", "tensorrt-llm", "h100", False),
        ("Qwen/Qwen3-14B-AWQ", "vllm", "t4", True),
        ("Qwen/Qwen3-14B-FP8", "vllm", "t4", False),
    ],
)
def test_which_engine_loads_which_published_checkpoint_where(name, engine, gpu, loads):
    """Recipes of vLLM verified on MI300X; SGLang's and TensorRT-LLM's own tables."""
    assert (loads_checkpoint(engine, checkpoint_named(name).kind, load_gpu(gpu)) == "") is loads


def test_amds_gpus_multiply_in_fp8_from_cdna_3():
    assert supports(load_gpu("mi300x"), "fp8") and supports(load_gpu("mi300x"), "fp8_block")
    assert not supports(load_gpu("mi355x"), "nvfp4")


def test_weights_are_quantised_at_load():
    model = load_model("llama3.1-8b")
    assert dict(quantised_at_load("fp8").formats(model).exact) == {"attention": 1.0, "mlp": 1.0, "output": 2.0}
    assert dict(quantised_at_load("bitsandbytes").formats(model).exact)["mlp"] == pytest.approx(0.5 + 4 / 64)
    with pytest.raises(UnsupportedError, match="needs a checkpoint in that format"):
        quantised_at_load("awq")


@pytest.mark.parametrize(("gpu", "runs"), [(A100, False), (H100, True), (B200, True), (load_gpu("rtx-5090"), False)])
def test_kernels_of_sparse_attention(gpu, runs):
    if runs:
        require_sparse_kernels(MLA, gpu)
    else:
        with pytest.raises(InputError, match="not for"):
            require_sparse_kernels(MLA, gpu)


@pytest.mark.parametrize(("gpu", "form"), [(H100, "mxfp4_weight_only"), (B200, "mxfp4"), (MI300X, "mxfp4_weight_only")])
def test_mxfp4_multiplies_from_blackwell_on(gpu, form):
    found = ModuleFormats(attention="bf16", mlp="fp8", experts="mxfp4").on(gpu)
    assert (found.attention, found.mlp, found.experts) == ("bf16", "fp8", form)
    exact = ModuleFormats(attention="fp8", mlp="bf16", experts="int4", exact=(("mlp", 1.25),))
    assert [exact.bytes_of(part) for part in ("attention", "mlp", "experts", "recurrent", "output")] == [
        1, 1.25, 0.515625, 1, 2,
    ]  # fmt: skip


@pytest.mark.parametrize(("framework", "kind", "gpu", "loads"), [
    ("vllm", "awq", H100, True), ("vllm", "nonsense", H100, False), ("megatron", "awq", H100, False),
    ("vllm", "awq", replace(H100, compute_capability=5.0), False),
])  # fmt: skip
def test_checkpoints_that_engines_load(framework, kind, gpu, loads):
    assert (loads_checkpoint(framework, kind, gpu) == "") == loads


def test_releases_of_engines_between_two_known_ones_lie_by_date():
    """1.0 is of September, 0.21 of July and 1.2 of December 2025."""
    assert nearest_release("nonsense", "1.0") is None
    for name in ("trtllm-0.20", "trtllm-1.2"):
        assert nearest_release("tensorrt-llm", name.split("-")[1]).name == name
    between = nearest_release("tensorrt-llm", "1.0")
    months = {"0.20": 6, "1.0": 9, "1.2": 12}
    share = (months["1.2"] - months["1.0"]) / (months["1.2"] - months["0.20"])
    assert (between.name, between.between) == ("trtllm-1.2", ("trtllm-0.20", pytest.approx(share)))
    assert load_engine("trtllm-1.2").is_release("v1.2") and not load_engine("trtllm-1.2").is_release("1.1")
    assert load_engine("trtllm-1.2").is_release("") and not load_engine("trtllm-1.2").is_release("none")


@pytest.mark.parametrize(("count", "taken"), [(18, True), (19, False)])
def test_expressions_of_a_list_end_in_bounded_time(count, taken):
    """60 characters and four repeats: 60^4 / 24 = 540,000 steps each; ten million in all."""
    names = [f"re:a*b*c*d*{i}" for i in range(count)]
    if taken:
        ModuleNames(names, "x")
    else:
        with pytest.raises(InputError, match="simple repeats"):
            ModuleNames(names, "x")


@pytest.mark.parametrize(("said", "each"), [
    ({"load_in_4bit": True}, 0.5 + 4 / 64), ({"load_in_8bit": True}, 1.0),
    ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 0.5 + (1 + 4 / 256) / 64),
])  # fmt: skip
def test_bytes_of_bitsandbytes_weights(said, each):
    """Dettmers et al. 2023 (QLoRA), section 3: 64 weights share an fp32 maximum, or a byte of which 256 share one."""
    found = checkpoint_of({"quantization_config": {"quant_method": "bitsandbytes", **said}}, "x")
    assert found.main.bytes == pytest.approx(each, rel=1e-12)
