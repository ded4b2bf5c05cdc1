"""Releases that have no code for a model, GPUs that the environment hides, and context parallelism that does not divide."""

import pytest
from autoconfig.specs.engines.architectures import catalogue_architectures
from autoconfig.specs.models.model_catalogue import model_names

from autoconfig.engines.check import check_start, start_request
from autoconfig.render.start_json import start_json

CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


def answer(text, **given):
    return start_json(check_start(text, start_request({"gpu": "h200", **given})))


@pytest.mark.parametrize(
    ("start", "known", "too_old"),
    [
        ("vllm serve Qwen/Qwen3-32B-FP8", "0.8.4", "0.8.3"),
        ("vllm serve Qwen/Qwen3-30B-A3B", "0.8.4", "0.6.0"),
        ("vllm serve google/gemma-3-12b-it", "0.8.0", "0.7.0"),
        ("vllm serve openai/gpt-oss-120b", "0.10.1", "0.8.5"),
        ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 2", "0.10.2", "0.10.1"),
        ("vllm serve allenai/Olmo-3-1125-32B", "0.11.0", "0.10.2"),
        ("vllm serve Qwen/Qwen3.5-35B-A3B", "0.17", "0.16.0"),
        ("vllm serve zai-org/GLM-4.5-Air -tp 4", "0.10.0", "0.9.2"),
        ("python -m sglang.launch_server --model-path MiniMaxAI/MiniMax-M2 --tp-size 4", "0.5.5", "0.5.4"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3.5-27B", "0.5.9", "0.5.8"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-14B", "0.4.6", "0.4.5"),
    ],
)
def test_a_release_before_the_first_that_registers_the_architecture_is_refused(start, known, too_old):
    assert answer(start, release=known).starts == "yes", answer(start, release=known).why
    old = answer(start, release=too_old)
    assert old.starts == "no" and old.why.startswith("Model architectures ['") and "are not supported for now" in old.why


def test_releases_between_two_that_were_read_and_differ_are_uncertain():
    found = answer("vllm serve meta-llama/Llama-4-Scout-17B-16E-Instruct -tp 8 --max-model-len 32768", release="0.8.1")
    assert found.starts == "uncertain" and "0.8.0 has not, 0.8.3 has" in found.why
    assert answer("vllm serve HuggingFaceTB/SmolLM3-3B", release="0.9.2").starts == "uncertain"


def test_a_config_or_an_override_says_the_architecture():
    served = "vllm serve /models/mine"
    assert answer(served, model=CONFIG, release="0.8.0").starts == "no"
    assert answer(served, model={**CONFIG, "architectures": ["MyOwnForCausalLM"]}, release="0.8.0").starts == "yes"
    other = """vllm serve Qwen/Qwen3-4B --hf-overrides '{"architectures": ["LlamaForCausalLM"]}'"""
    assert answer(other, release="0.8.0").starts == "yes"


def test_every_decoder_of_the_catalogue_has_an_architecture():
    without = {name for name in model_names() if not catalogue_architectures(name)}
    assert all(name.startswith(("gpt3-", "bert-", "t5-", "mt5-", "nemotron3-", "nemotron4-")) for name in without), without


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("export CUDA_VISIBLE_DEVICES=4,5,6\nvllm serve Qwen/Qwen2.5-7B -tp 4", "no"),
        ("CUDA_VISIBLE_DEVICES=0 python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp-size 2", "no"),
        ("export HIP_VISIBLE_DEVICES=0,1,2,3\nvllm serve Qwen/Qwen2.5-7B -tp 4", "yes"),
        ("export CUDA_VISIBLE_DEVICES=0\ndocker run vllm/vllm-openai:v0.20.0 --model Qwen/Qwen3-8B -tp 2", "yes"),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-8B -tp 2\nCUDA_VISIBLE_DEVICES=2 vllm serve Qwen/Qwen3-4B", "yes"),
        ("export CUDA_VISIBLE_DEVICES=$MINE\nvllm serve Qwen/Qwen2.5-7B -tp 4", "yes"),
    ],
)
def test_gpus_that_the_environment_hides_are_not_there(text, starts):
    found = answer(text, **({"server": 1} if text.count("serve ") > 1 else {}))
    assert found.starts == starts, found.why
    assert ("larger than the number of available GPUs" in found.why or "invalid device ordinal" in found.why) == (
        starts == "no"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("deepseek-ai/DeepSeek-V3 -tp 8 -dcp 8", ""),
        ("deepseek-ai/DeepSeek-V3 -tp 8 -dcp 5", "tp_size=8 must be divisible by dcp_size=5."),
        ("meta-llama/Llama-3.1-70B-Instruct -tp 8 -dcp 2", "greater than the model's total number of KV heads (8)"),
        ("Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel -dcp 2", ""),
        ("Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel -dcp 4", "exceeds the maximum supported value (2)"),
        ("Qwen/Qwen2.5-1.5B -tp 4 -dcp 4", "exceeds the maximum supported value (2)"),
    ],
)
def test_decode_context_parallelism_divides_what_vllm_asks_for(flags, words):
    found = answer(f"vllm serve {flags}")
    assert found.starts == ("no" if words else "yes"), found.why
    assert words in found.why
    if words and found.changes:
        assert answer(f"vllm serve {flags} {found.changes[0]}").starts == "yes"


def test_sglang_says_it_of_its_own_flag():
    text = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp-size 8 --dcp-size 3"
    assert answer(text).why == "--dcp-size 3 must divide --tp-size 8."
