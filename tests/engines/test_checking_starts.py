"""`check` of a serving start, from the text of the command to the verdict, the pool and the figures at a load."""

import io
import json
import random
import re
from pathlib import Path

import pytest
from autoconfig.api.answers import READERS, checked
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.time_model.serving.tables import shipped_calibration
from command_line import run_in_process
from public_starts import FOLDER, STARTS, mutated
from rich.console import Console

import autoconfig
from autoconfig.engines.check import check_start, is_start, start_request
from autoconfig.engines.load import row_of
from autoconfig.render.serving import show_start
from autoconfig.render.start_json import start_json
from autoconfig.runs.predict_serving import predict_row

LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def answer(text, **given):
    return check_start(text, start_request({"gpu": "h100", **given}))


PUBLISHED = {
    "gpt-oss-20b": ("vllm serve openai/gpt-oss-20b --max-model-len 16000", {"release": "0.11.0"}, 13.47, 50.28),
    "llama3.3-70b": (
        "vllm serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic -tp 2 --max-model-len 16000",
        {"release": "0.11.0"},
        33.88,
        32.00,
    ),
    "qwen3-0.6b": ("vllm serve Qwen/Qwen3-0.6B --max-model-len 16000", {"release": "0.11.0"}, 1.12, 64.45),
    "qwen3-32b": ("vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 16000", {"release": "0.11.0"}, 30.59, 34.49),
}
"""llm-d-planner, empirical vLLM memory, 0.11.0 on H100: weights and KV cache of a GPU in GiB as the logs say."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_pool_as_vllm_logged_them(name):
    text, given, weights, pool = PUBLISHED[name]
    found = start_json(answer(text, **given))
    assert found.starts == "yes" and found.why == ""
    assert found.weights_gib == pytest.approx(weights, rel=0.01)
    assert found.kv_pool_gib == pytest.approx(pool, rel=0.03)
    assert found.kv_tokens == found.blocks * found.block_size or found.groups[1:]


def test_a_start_that_does_not():
    """vllm#23278: gpt-oss-120b on one H100 with the defaults of 0.10 and 0.11 has no room for a cache."""
    found = start_json(answer("vllm serve openai/gpt-oss-120b", release="0.11.0"))
    assert found.starts in ("no", "uncertain") and "No available memory for the cache blocks" in found.why
    assert found.longest_max_model_len == 0 and "--tensor-parallel-size 2" in found.changes
    long = start_json(answer(f"{LLAMA} --max-model-len 131072 --gpu-memory-utilization 0.3", release="0.11.0"))
    assert long.starts == "no" and f"estimated maximum model length is {long.longest_max_model_len}" in long.why
    again = start_json(
        answer(f"{LLAMA} --max-model-len {long.longest_max_model_len} --gpu-memory-utilization 0.3", release="0.11.0")
    )
    assert again.margin_gib == pytest.approx(0.0, abs=0.01), "the longest length is at the edge"


def test_sglang_tokens_of_a_public_log():
    """A boot log of QwQ-32B on four cards of 24 GB that it does not name, fraction 0.85: 46,611 tokens."""
    text = "python -m sglang.launch_server --model-path Qwen/QwQ-32B --tp 4 --mem-fraction-static 0.85 --context-length 32768"
    found = start_json(answer(text, gpu="l4", release="0.4.3"))
    assert found.kv_tokens == pytest.approx(46_611, rel=0.08) and found.starts == "yes"


SGLANG, SERVE = "python -m sglang.launch_server --model-path", "vllm serve"
BLOCKS = "output_size = {} is not divisible by block_n = 128"
REFUSED = [
    # vllm#25292: a slice of 192 columns is no multiple of the blocks of 128
    (f"{SERVE} Qwen/Qwen3-30B-A3B-FP8 -tp 4", "h100", BLOCKS.format(192)),
    (f"{SERVE} Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 -tp 8", "h200", BLOCKS.format(320)),
    (f"{SERVE} Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 -tp 8", "h200", BLOCKS.format(64)),
    (f"{SGLANG} Qwen/Qwen3-235B-A22B-FP8 --tp 8", "h200", BLOCKS.format(192)),
    ("trtllm-serve Qwen/Qwen3-30B-A3B-FP8 --tp_size 4", "h100", BLOCKS.format(192)),
    (f"{SGLANG} deepseek-ai/DeepSeek-V3 --tp 32 --nnodes 4", "h200", BLOCKS.format(576)),
    # Qwen3#698: groups of 128 that a slice cuts
    (f"{SERVE} Qwen/Qwen2.5-14B-Instruct-AWQ -tp 8", "a100-80gb", "not aligned with the quantized weight shape"),
    # AdaptThink#1: 28 heads on 8 ranks
    (f"{SERVE} Qwen/Qwen2.5-7B-Instruct -tp 8", "h100", "attention heads (28) must be divisible by tensor parallel size (8)"),
    (f"{SERVE} openai/gpt-oss-120b -tp 3", "h100", "attention heads (64) must be divisible by tensor parallel size (3)"),
    (f"{SGLANG} deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --tp 8", "h100", "28 is not divisible by 8"),
    ("trtllm-serve Qwen/Qwen2.5-32B-Instruct --tp_size 6", "h100", "40 attention heads are not divisible by tp_size 6"),
    # a cache in fp8 where no kernel reads it
    ("trtllm-serve Qwen/Qwen3-8B --config x.yml\ncat > x.yml << EOF\nkv_cache_config: {dtype: fp8}\nEOF", "a100-80gb", "fp8"),
    (f"{SERVE} Qwen/Qwen3-8B --kv-cache-dtype fp8", "t4", "no kernels for a cache in fp8"),
    (f"{SERVE} deepseek-ai/DeepSeek-V2-Lite --kv-cache-dtype fp8 --trust-remote-code", "a100-80gb", "a cache in fp8"),
    # another method than the checkpoint's
    (f"{SERVE} Qwen/Qwen3-8B-AWQ --quantization gptq", "h100", "model config (awq) does not match"),
    (f"{SERVE} Qwen/Qwen3-30B-A3B-FP8 --quantization awq_marlin", "h100", "model config (fp8) does not match"),
    (f"{SGLANG} Qwen/Qwen2.5-32B-Instruct-GPTQ-Int4 --quantization awq --tp 2", "h100", "model config (gptq) does not match"),
    # formats and kernels that a GPU lacks
    (f"{SERVE} Qwen/Qwen3-0.6B --dtype bfloat16", "t4", "Bfloat16 is only supported on GPUs with compute capability"),
    (f"{SERVE} meta-llama/Llama-3.2-1B-Instruct --dtype bfloat16", "v100-32gb", "has compute capability 7."),
    (f"{SERVE} google/gemma-3-27b-it --dtype half -tp 2", "h100", "'gemma3' does not support float16"),
    (f"{SERVE} google/gemma-2-9b-it --dtype float16", "l4", "'gemma2' does not support float16"),
    (f"{SGLANG} Qwen/Qwen3-0.6B", "v100-32gb", "SGLang only supports sm75 and above"),
    ("trtllm-serve Qwen/Qwen3-0.6B", "t4", "from Ampere on"),
    (f"{SGLANG} nvidia/DeepSeek-R1-FP4 --tp 8", "h200", "from compute capability 10"),
    (f"{SERVE} openai/gpt-oss-20b", "t4", "from compute capability 8"),
    (f"{SERVE} deepseek-ai/DeepSeek-V3.2 -tp 8", "a100-80gb", "kernels of sparse attention"),
    # the scheduler's sizes
    (f"{SERVE} Qwen/Qwen3-8B --max-num-batched-tokens 128 --max-num-seqs 256", "h100", "or equal to max_num_seqs (256)"),
    (f"{SERVE} Qwen/Qwen3-8B --max-num-seqs 4096", "a100-80gb", "max_num_batched_tokens (2048) must be"),
    (f"{SERVE} Qwen/Qwen3-8B --no-enable-chunked-prefill --max-num-batched-tokens 2048", "h100", "smaller than max_model_len"),
    (f"{SGLANG} Qwen/Qwen3-8B --chunked-prefill-size 1000 --page-size 64", "h100", "must be divisible by page_size"),
    # experts and stages that are not there
    (f"{SERVE} Qwen/Qwen3-8B --enable-expert-parallel", "h100", "Number of experts in the model must be greater than 0"),
    (f"{SERVE} meta-llama/Llama-3.3-70B-Instruct -tp 4 -dp 2 --enable-expert-parallel", "h100", "Number of experts"),
    (f"{SERVE} Qwen/Qwen3-8B -pp 37", "h100", "more than the 36 layers"),
    (f"{SGLANG} Qwen/Qwen3-8B --tp 8 --pp 2 --nnodes 3", "h100", "tp_size must be divisible by number of nodes"),
    (f"{SERVE} Qwen/Qwen3-8B --enable-lora --max-lora-rank 24", "h100", "max_lora_rank (24) must be one of"),
    (
        'FROM vllm/vllm-openai:v0.11.0\nCMD ["--model", "Qwen/Qwen3-8B", "--block-size", "24"]',
        "h100",
        "--block-size: invalid choice",
    ),
]
RUNS = [
    (f"{SERVE} Qwen/Qwen3.5-27B-FP8 -tp 2 --kv-cache-dtype fp8 --max-model-len 8192 --max-num-seqs 64", "rtx-3090"),  # A29
    (f"{SGLANG} NousResearch/Llama-2-13b-chat-hf --kv-cache-dtype fp8_e5m2", "a100-80gb"),  # sglang#1204
    (f"{SERVE} Qwen/Qwen2-72B-Instruct-AWQ -tp 4", "a100-80gb"),  # vllm#5675: padded to 29,696
    (f"{SERVE} Qwen/Qwen3-8B-AWQ --quantization awq_marlin", "h100"),
    (f"{SGLANG} nvidia/Llama-3.3-70B-Instruct-FP8 --quantization modelopt_fp8 --tp 2", "h100"),
    (f"{SERVE} Qwen/Qwen3-8B --no-enable-chunked-prefill", "h100"),
    (f"{SERVE} Qwen/Qwen3-0.6B --dtype half", "t4"),
    ('FROM vllm/vllm-openai:v0.19.1\nCMD ["Qwen/Qwen3-8B", "--max-model-len", "8192"]', "h100"),
    (f"{SERVE} deepseek-ai/DeepSeek-R1 -tp 16 --max-model-len 8192", "a100-80gb"),  # fp8 as weights only
]


@pytest.mark.parametrize(("text", "gpu"), RUNS)
def test_what_looks_alike_and_runs(text, gpu):
    found = start_json(answer(text, gpu=gpu))
    assert found.starts == "yes", found.why


@pytest.mark.parametrize(("text", "gpu", "says"), REFUSED)
def test_plans_that_engines_refuse(text, gpu, says):
    found = start_json(answer(text, gpu=gpu))
    assert found.starts == "no" and says in found.why
    assert found.kv_tokens is None and found.parts == ()
    for flag in found.changes:
        if " " in flag and "\n" not in text:  # each alone makes it start, or lifts this refusal at least
            assert says not in start_json(answer(f"{text} {flag}", gpu=gpu)).why


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        (LLAMA, {"gpu": None}, "say --gpu"),
        ("vllm serve nobody/new-model-7b", {}, "give its config.json as --model"),
        ("vllm serve /models/mine", {}, "a folder that the server sees"),
        ("vllm serve $MODEL", {}, "say --set MODEL=VALUE"),
        (
            "vllm serve $MODEL -tp ${TP} --max-model-len $LEN --port $PORT --node-rank $RANK",
            {},
            "$TP, $LEN, $MODEL are not set in the file; say --set TP=VALUE --set LEN=VALUE --set MODEL=VALUE",
        ),
        ("trtllm-serve Qwen/Qwen3-8B --tp_size $TP --max_batch_size $B", {}, "say --set TP=VALUE --set B=VALUE"),
        (
            f"{LLAMA}\nvllm serve Qwen/Qwen3-8B\nsglang serve --model-path a/b",
            {},
            "2: line 2: vLLM Qwen/Qwen3-8B; 3: line 3: SGLang",
        ),
        (LLAMA, {"release": "latest"}, "known are 0.6 to"),
        (LLAMA, {"release": "0.5.3"}, "say --release 0.6 or later".replace("say", "Say")),
        (LLAMA, {"gpu": "p100"}, "is an NVIDIA GPU without matrix units"),
        (LLAMA, {"gpu": "ascend-910b"}, "is Huawei's Ascend"),
        (LLAMA, {"gpu": "Gaudi 3"}, "is Intel's accelerator"),
        (LLAMA, {"software": "megatron-0.19"}, "--software is of training, and this file starts a server"),
        (LLAMA, {"cluster": {"gpu": "h100"}}, "give either --cluster or --gpu"),
        (f"{LLAMA} --dtype float32", {}, "16 bits"),
        (LLAMA, {"isl": 100}, "say --osl"),
        (LLAMA, {"isl": 100, "osl": 100}, "--concurrency or --rate"),
        (LLAMA, {"isl": 100, "osl": 100, "rate": 2, "concurrency": 3}, "say one of both"),
    ],
)
def test_bad_input(text, given, says):
    with pytest.raises(InputError, match=re.escape(says)):
        answer(text, **given)


@pytest.mark.parametrize(("text", "release"), [(LLAMA, "0.5.3"), ("sglang serve --model-path Qwen/Qwen3-8B", "0.3.2")])
def test_releases_that_are_not_modelled(text, release):
    with pytest.raises(UnsupportedError, match="not modelled"):
        answer(text, release=release)


def test_settings_that_nobody_has_seen_leave_it_open():
    found = answer("trtllm-serve Qwen/Qwen3-8B --config unseen.yml")
    assert found.starts == "uncertain" and "unseen.yml, which the command names, is not here" in found.why
    quantised = answer(f"{LLAMA} --quantization fp8")
    assert start_json(quantised).weights_gib < 0.65 * start_json(answer(LLAMA)).weights_gib


SETTINGS = "cat > x.yml << EOF\n{}\nEOF\ntrtllm-serve Qwen/Qwen3-8B --extra_llm_api_options x.yml"


@pytest.mark.parametrize(
    ("settings", "release", "starts", "says"),
    [
        (
            "kv_cache_config: {free_gpu_memory_fracton: 0.8}",
            None,
            "no",
            "most like it: kv_cache_config.free_gpu_memory_fraction",
        ),
        ("moe_config:\n  backned: CUTLASS", "1.2", "no", "moe_config.backned in x.yml is no setting of TensorRT-LLM"),
        ("cuda_graph_confg: {max_batch_size: 8}", None, "no", "most like it: cuda_graph_config.max_batch_size"),
        ("frobnicate: true", None, "uncertain", "frobnicate in x.yml is no setting of TensorRT-LLM"),
        ("use_cuda_graph: true", "1.0", "no", "a setting of TensorRT-LLM up to 0.21, and this is 1.0: cuda_graph_config since"),
        ("pytorch_backend_config:\n  use_cuda_graph: true", "1.2", "no", "up to 0.19"),
        ("cuda_graph_config: {max_batch_size: 8}", "0.20", "no", "from 1.0 on, and this is 0.20"),
        ("use_cuda_graph: true", "0.20", "yes", ""),
        ("moe_config: {backend: CUTLASS}\ncuda_graph_config: {max_batch_size: 8}", "1.0", "yes", ""),
    ],
)
def test_settings_of_the_yaml_beside_a_command(settings, release, starts, says):
    found = start_json(answer(SETTINGS.format(settings), release=release))
    assert found.starts == starts, found.why
    assert says in found.why and says in " ".join(found.unknown_arguments)


def test_a_release_that_nobody_knows_is_taken_as_the_newest_and_said():
    text = "vllm serve Qwen/Qwen3-8B"
    later, newest = (start_json(answer(text, release=release)) for release in ("9.9", None))
    assert (later.kv_tokens, later.release) == (newest.kv_tokens, "9.9")
    assert "known are 0.6 to" in str(later.assumed) and "known are" not in str(newest.assumed)


def test_gpus_and_cluster_are_said_of_a_start():
    assert start_json(answer("vllm serve Qwen/Qwen3-8B -tp 4", gpus=4)).starts == "yes"
    few = start_json(answer("vllm serve Qwen/Qwen3-8B -tp 4", gpus=2))
    assert few.starts == "no" and "asks for 4 GPUs (tp x pp x dp), and there are 2" in few.why
    described = {"gpu": "h100-sxm-80gb", "num_gpus": 8, "memory_gib": 70}
    plain, less = (
        start_json(answer("vllm serve Qwen/Qwen3-8B", **given)) for given in ({}, {"cluster": described, "gpu": None})
    )
    assert plain.kv_pool_gib - less.kv_pool_gib == pytest.approx(0.92 * (79.18 - 70), abs=0.2)


def test_more_gpus_than_the_container_has():
    devices = "deploy: {resources: {reservations: {devices: [{count: 2}]}}}"
    text = f"services:\n  s:\n    image: vllm/vllm-openai:v0.12.0\n    {devices}\n    command: "
    model = "--model meta-llama/Llama-3.1-8B-Instruct"
    assert answer(f"{text}{model} -tp 2").starts == "yes"
    found = answer(f"{text}{model} -tp 4")
    assert found.starts == "no" and "asks for 4 GPUs" in found.why


LOADS = [
    *(
        (f"{LLAMA} -tp {tp} --max-num-seqs {seqs}", {"isl": isl, "osl": osl, "concurrency": users})
        for tp, seqs, isl, osl, users in (
            (1, 64, 1024, 128, 1), (1, 64, 512, 64, 8), (2, 128, 1024, 64, 16), (4, 32, 256, 32, 32), (8, 8, 128, 32, 16),
            (1, 16, 2048, 16, 16), (2, 256, 128, 128, 4), (1, 256, 64, 64, 2), (4, 256, 4096, 8, 4), (8, 64, 1000, 50, 8),
        )
    ),
    *(
        (f"sglang serve --model-path {model} --tp {tp} {more}", {"isl": 512, "osl": 64, "concurrency": users})
        for model, tp, more, users in (
            ("Qwen/Qwen3-8B", 1, "", 1), ("Qwen/Qwen3-8B", 2, "--chunked-prefill-size 4096", 8), ("Qwen/Qwen3-32B", 4, "", 16),
            ("Qwen/Qwen3-30B-A3B", 2, "--ep 2", 8), ("Qwen/Qwen3-30B-A3B", 4, "--dp 4 --enable-dp-attention --ep 4", 16),
            ("Qwen/Qwen3-30B-A3B", 4, "--max-running-requests 8", 8), ("openai/gpt-oss-20b", 1, "", 4),
            ("Qwen/Qwen3-8B", 1, "--dp 2", 8), ("Qwen/Qwen3-32B", 2, "--mem-fraction-static 0.9", 4),
            ("Qwen/Qwen3-235B-A22B-FP8", 8, "--ep 8", 8),
        )
    ),
    *(
        (f"trtllm-serve {model} --tp_size {tp} {more}", {"isl": 512, "osl": 64, "concurrency": users})
        for model, tp, more, users in (
            ("Qwen/Qwen3-8B", 1, "", 1), ("Qwen/Qwen3-8B", 2, "--max_batch_size 64", 8), ("Qwen/Qwen3-32B", 4, "", 16),
            ("nvidia/Llama-3.3-70B-Instruct-FP8", 4, "", 8), ("Qwen/Qwen3-30B-A3B", 2, "--ep_size 2", 8),
            ("Qwen/Qwen3-30B-A3B", 4, "--max_num_tokens 4096", 8), ("openai/gpt-oss-20b", 1, "", 4),
            ("Qwen/Qwen3-8B", 1, "--max_seq_len 4096", 4), ("Qwen/Qwen3-32B", 2, "", 4), ("Qwen/Qwen3-8B", 4, "", 4),
        )
    ),
    *(
        (f"vllm serve {model} {more}", {"isl": 256, "osl": 32, "rate": rate})
        for model, more, rate in (
            ("Qwen/Qwen3-8B", "", 1.0), ("Qwen/Qwen3-8B", "-tp 2", 2.0), ("Qwen/Qwen3-32B", "-tp 4", 1.0),
            ("Qwen/Qwen3-30B-A3B", "-tp 2 --enable-expert-parallel", 1.0), ("Qwen/Qwen3-30B-A3B", "-dp 2 -ep", 2.0),
            ("openai/gpt-oss-20b", "", 1.0), ("openai/gpt-oss-120b", "-tp 2", 1.0), ("Qwen/Qwen3-0.6B", "", 4.0),
            ("Qwen/Qwen3-4B", "--max-num-seqs 16", 2.0), ("Qwen/Qwen3-8B-FP8", "", 1.0),
        )
    ),
    *((f"vllm serve Qwen/Qwen3-{size} --kv-cache-dtype fp8", {"isl": 300, "osl": 30, "concurrency": users})
      for size, users in (("0.6B", 1), ("1.7B", 4), ("4B", 8), ("8B", 3), ("14B", 5), ("32B", 2), ("30B-A3B", 6), ("0.6B", 32),
                          ("1.7B", 9), ("4B", 2))),
]  # fmt: skip


def test_fifty_loads():
    assert len(LOADS) == 50 and len({(text, str(load)) for text, load in LOADS}) == 50


@pytest.mark.parametrize(
    ("text", "load"), [pytest.param(*one, marks=[pytest.mark.soak] if i % 3 else []) for i, one in enumerate(LOADS)]
)
def test_check_says_what_predict_says_of_its_row(text, load):
    """Every third by `make test`, all by `make soak`."""
    found = answer(text, **load)
    assert found.starts == "yes" and found.load is not None and found.load.ttft_ms, (found.why, found.load)
    same = predict_row(found.load.row, shipped_calibration())
    assert not same.failed, same.note
    assert (found.load.ttft_ms, found.load.tpot_ms) == (pytest.approx(same.ttft_ms), pytest.approx(same.tpot_ms))


def test_a_better_start_is_one():
    found = answer("vllm serve Qwen/Qwen3-30B-A3B -tp 8", isl=1000, osl=100, concurrency=256)
    better = found.load.better
    assert better is not None and better.tokens_per_s > 1.03 * found.load.tokens_per_s
    words = {flag: new for flag, _, new in better.changes}
    text = f"vllm serve Qwen/Qwen3-30B-A3B -tp {words.get('--tensor-parallel-size', '8')}"
    for flag, new in words.items():
        if flag != "--tensor-parallel-size":
            text += f" {flag}" + ("" if new == "on" else f" {new}")
    again = answer(text, isl=1000, osl=100, concurrency=256)
    assert again.load.tokens_per_s == pytest.approx(better.tokens_per_s)


def test_every_edge_gives_the_same_answer(tmp_path: Path):
    path = tmp_path / "serve.sh"
    path.write_text(f"{LLAMA} --max-model-len 16000\n", encoding="utf-8")
    run = run_in_process("check", str(path), "--gpu", "h100", "--json")
    assert run.exit_code == 0, run.output
    said = json.loads(run.output)
    assert autoconfig.check(path, gpu="h100").to_dict() == said
    body = {"text": path.read_text(), "settings": {}, "model": None, "gpu": "h100"}
    fields = ("gpus_per_node", "release", "server", "isl", "osl", "rate", "concurrency")
    assert json.loads(checked({**dict.fromkeys(fields), **body})) == said
    assert said["kind"] == "start" and said["engine"] == "vllm" and said["starts"] == "yes"
    path.write_text(LLAMA, encoding="utf-8")
    refused = run_in_process("check", str(path), "--gpu", "l4", "--json")
    assert refused.exit_code == 3 and json.loads(refused.output)["starts"] == "no", "131,072 tokens take 16 GiB"


def test_a_start_that_the_engine_refuses_is_no_row_of_deployments(tmp_path: Path):
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-8B-AWQ --quantization gptq\n", encoding="utf-8")
    run = run_in_process("deployments", "--gpu", "h100", "--include", str(path))
    assert run.exit_code == 2 and "vLLM refuses this start: Quantization method" in run.output


def test_a_number_of_nodes_that_nothing_sets_is_not_asked_for():
    text = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --nnodes $NNODES --node-rank $RANK"
    assert start_json(answer(text)).starts == "yes"


def test_a_trace_is_taken_by_every_edge(tmp_path: Path):
    path, requests = tmp_path / "serve.sh", tmp_path / "trace.jsonl"
    path.write_text("vllm serve Qwen/Qwen3-8B\n", encoding="utf-8")
    rows = [{"timestamp": 500 * n, "input_length": 900 + n, "output_length": 100} for n in range(40)]
    requests.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = run_in_process("check", str(path), "--gpu", "h100", "--trace", str(requests), "--json")
    assert run.exit_code == 0, run.output
    said = json.loads(run.output)
    assert said["load"]["osl"] == 100 and said["load"]["rate"] == pytest.approx(2.0, rel=0.05)
    assert autoconfig.check(path, gpu="h100", trace=rows).to_dict() == said
    body = {"text": path.read_text(), "gpu": "h100", "trace": rows}
    assert json.loads(checked(READERS["check"](json.dumps(body).encode()))) == said
    with pytest.raises(InputError, match="give the requests as a list"):
        check_start(path.read_text(), start_request({"gpu": "h100", "trace": str(requests), "local_files": False}))


def test_fields_of_a_start_are_refused_of_a_training_script(tmp_path: Path):
    path = tmp_path / "train.sh"
    path.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024\n", encoding="utf-8")
    assert not is_start(path.read_text())
    run = run_in_process("check", str(path), "--gpu", "h100", "--concurrency", "4")
    assert run.exit_code == 2 and "--concurrency is of the start of a serving engine" in run.output


def test_the_row_is_one_of_the_table():
    found = answer(f"{LLAMA} -tp 2", isl=100, osl=10, concurrency=2)
    assert found.load.row == row_of(found.start, found.memory, start_load(100, 10, 2))
    assert {"model": "llama3.1-8b", "tp": "2", "scenario": "concurrency 2"}.items() <= found.load.row.items()


def start_load(isl, osl, users):
    from autoconfig.engines.load import Load

    return Load(isl=isl, osl=osl, concurrency=users)


def test_five_hundred_changed_starts_are_refused_or_answered():
    draw, names, answered = random.Random(34), list(STARTS), 0
    for _ in range(500):
        one = STARTS[draw.choice(names)]
        text = (FOLDER / one["file"]).read_text(encoding="utf-8")
        for _ in range(draw.randrange(1, 4)):
            text = mutated(text, draw) or " "
        load = {"isl": 100, "osl": 10, "concurrency": 2} if draw.random() < 0.1 else {}
        request = start_request({"gpu": draw.choice(("h100", "h200", "b200", "l4")), "set": one.get("set", {}), **load})
        try:
            found = check_start(text, request, FOLDER / one["file"])
        except (InputError, UnsupportedError) as error:
            assert str(error) and "Traceback" not in str(error)
            continue
        answered += 1
        assert found.starts in ("yes", "no", "uncertain") and (found.why or found.starts == "yes")
        start_json(found)
        show_start(Console(file=io.StringIO(), width=80), found)
    assert answered > 100
