"""What stops a start before its memory does, what is said of it, and which flags would make it start."""

import re

import pytest
from autoconfig.specs.errors import UnsupportedError
from command_line import run_in_process

from autoconfig.engines.check import check_start, start_request
from autoconfig.render.start_json import start_json

QWEN = "vllm serve Qwen/Qwen3-8B"
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
YARN = """'{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'"""
OLD_YARN = """'{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768}'"""


def answer(text, **given):
    return start_json(check_start(text, start_request({"gpu": "h100", **given})))


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (f"{QWEN} --max-model-len 40960", "yes"),
        (f"{QWEN} --max-model-len 131072", "no"),
        (f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {QWEN} --max-model-len 131072", "yes"),
        (f"{QWEN} --max-model-len 131072 --hf-overrides {YARN}", "yes"),
        (f"{QWEN} --max-model-len 131073 --hf-overrides {YARN}", "no"),
        (f"""{QWEN} --max-model-len 65536 --hf-overrides '{{"architectures": ["Qwen3ForCausalLM"]}}'""", "no"),
        (f"{QWEN} --max-model-len 65536 --hf-overrides.max_position_embeddings 65536", "yes"),
        (f"pip install vllm==0.10.2\n{QWEN} --max-model-len 65536 --rope-scaling {OLD_YARN}", "yes"),
        (f"pip install vllm==0.10.2\n{QWEN} --max-model-len 65537 --rope-scaling {OLD_YARN}", "no"),
        (f"{SGLANG} --context-length 131072", "no"),
        (f"export SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1\n{SGLANG} --context-length 131072", "yes"),
        (f"{SGLANG} --context-length 131072 --json-model-override-args {YARN}", "no"),  # SGLang counts positions before YaRN
        (f"""{SGLANG} --context-length 81920 --json-model-override-args '{{"max_position_embeddings": 81920}}'""", "yes"),
        ("vllm serve deepseek-ai/DeepSeek-V2-Lite --trust-remote-code --max-model-len 163840 --enforce-eager", "yes"),
        ("vllm serve moonshotai/Moonlight-16B-A3B-Instruct --trust-remote-code --max-model-len 16384", "no"),
        ("vllm serve Qwen/Qwen2.5-7B --max-model-len 131072", "yes"),
        ("vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 65536", "no"),  # its config has 32,768, its base's 131,072
        ("vllm serve Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4 --max-model-len 65536", "no"),
        ("vllm serve Qwen/Qwen2.5-Coder-32B-Instruct-AWQ --max-model-len 65536", "no"),
        ("vllm serve Qwen/QwQ-32B-AWQ --max-model-len 40960", "yes"),
        ("vllm serve HuggingFaceTB/SmolLM3-3B --max-model-len 65536", "yes"),
        ("vllm serve microsoft/Phi-3-mini-128k-instruct --max-model-len 131072", "yes"),
        ("vllm serve microsoft/Phi-3-mini-4k-instruct --max-model-len 8192", "no"),
        ("vllm serve mistralai/Mistral-7B-Instruct-v0.3 --max-model-len 32768", "yes"),
        ("vllm serve lmsys/vicuna-7b-v1.5 --max-model-len 8192", "no"),
    ],
)
def test_a_length_above_the_models_own_is_refused_unless_the_command_allows_it(text, starts):
    found = answer(text)
    assert found.starts == starts, found.why
    assert ("is greater than the derived" in found.why) == (starts == "no")
    if starts == "no":
        shorter = next(one for one in found.changes if "-len" in one or "-length" in one)
        assert answer(f"{text} {shorter}").starts == "yes"


def test_the_longest_length_is_at_most_the_models_own():
    assert answer(SGLANG).longest_max_model_len == answer(QWEN).longest_max_model_len == 40_960
    assert (
        answer(f"{QWEN} --hf-overrides {YARN}").longest_max_model_len
        == answer(f"{QWEN} --hf-overrides {YARN}").max_model_len
        == 131_072
    )


def test_a_flag_that_a_release_removed_is_said():
    text = f"{QWEN} --rope-scaling {OLD_YARN} --max-model-len 65536"
    found = answer(text, release="0.19.1")
    assert found.starts == "no" and "--rope-scaling is a flag of vLLM up to 0.11.0" in found.why
    assumed = answer(text)
    assert assumed.starts == "yes" and "--rope-scaling is a flag up to 0.11.0: name the release" in str(assumed.assumed)


@pytest.mark.parametrize(
    ("flag", "starts"),
    [("--tensor-parralel-size 2", "no"), ("--mem-fraction-static 0.8", "no"), ("--frobnicate", "uncertain")],
)
def test_flags_that_the_engine_refuses_stop_the_start(flag, starts):
    found = answer(f"{QWEN} {flag}")
    assert found.starts == starts and flag.split()[0] in found.why


@pytest.mark.parametrize(
    ("text", "gpu", "changes"),
    [
        ("vllm serve Qwen/Qwen2.5-32B-Instruct -tp 3", "h100", ("--tensor-parallel-size 2", "--tensor-parallel-size 4")),
        ("vllm serve Qwen/Qwen3-32B", "a100-40gb", ("--tensor-parallel-size 4",)),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --tp 8",
            "h20",
            ("--tp-size 4", "--ep-size 8"),
        ),
    ],
)
def test_the_flags_that_would_start_it_are_named(text, gpu, changes):
    found = answer(text, gpu=gpu)
    assert found.starts == "no" and found.changes == changes
    for flag in found.changes:
        assert answer(f"{text} {flag}", gpu=gpu).starts == "yes"


def test_a_server_that_does_not_start_has_no_figures_of_a_load():
    found = answer(f"{QWEN} --max-num-seqs 32", gpu="l4", isl=1000, osl=200, concurrency=8)
    assert found.starts == "no" and found.load.ttft_ms is None and "does not start" in found.load.note


@pytest.mark.parametrize(("rate", "says"), [(1, "nine in ten"), (9, "a range: "), (200, "the queue grows without end")])
def test_a_rate_near_or_above_what_the_server_takes_is_said(rate, says):
    text = f"{QWEN} --max-num-seqs 64 --max-model-len 8192"
    found = answer(text, isl=1000, osl=500, rate=rate).load
    assert says in found.note and (found.ttft_range_ms is not None) == says.startswith("a range")
    if found.ttft_range_ms:
        assert found.ttft_range_ms[0] <= found.ttft_ms <= found.ttft_range_ms[1]


@pytest.mark.parametrize(
    ("text", "gpu", "code"),
    [
        (f"{QWEN} --max-model-len 8192", "h100", 0),
        (f"{QWEN} --max-model-len 40960", "t4", 3),  # does not fit
        (f"{QWEN} -tp 3", "h100", 2),  # not legal: 32 heads
        (f"{QWEN} --max-num-sequences 4", "h100", 2),  # refused: no such flag
        (f"{QWEN} --max-num-sequences 4", "t4", 3),
        (f"{QWEN} --config nowhere.yaml", "h100", 2),  # nobody can say
        (f"{QWEN} --max-model-len 0", "h100", 2),
    ],
)
def test_the_exit_code_is_what_the_help_says(tmp_path, text, gpu, code):
    path = tmp_path / "serve.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    run = run_in_process("check", str(path), "--gpu", gpu)
    assert run.exit_code == code, run.output


@pytest.mark.parametrize(
    "text",
    [
        f"{QWEN} --max-model-len 8192",
        f"{SGLANG} --context-length 8192",
        "vllm serve Qwen/Qwen3.5-35B-A3B -tp 2 --max-model-len 65536",
        "vllm serve openai/gpt-oss-120b -tp 2",
        "trtllm-serve Qwen/Qwen3-32B --tp_size 2",
    ],
)
def test_a_start_is_one_screen(tmp_path, monkeypatch, text):
    """24 lines of 80 columns; every part of memory adds up, and --verbose says where each is from."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "80")
    asked = ("check", str(path), "--gpu", "h100")
    run = run_in_process(*asked)
    lines = run.output.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, run.output
    table = lines[next(n for n, line in enumerate(lines) if "memory of a GPU" in line) + 1 :]
    table = table[: next(n for n, line in enumerate(table) if "together" in line) + 1]
    *parts, together = (float(re.search(r" (-?[0-9.]+) ", line)[1]) for line in table)
    assert sum(parts) == pytest.approx(together, abs=0.03)
    full = run_in_process(*asked, "--verbose").output
    assert len(full.splitlines()) > len(lines) and "the model's files as the engine holds them" in full


@pytest.mark.parametrize(
    ("flags", "running", "reserved"),
    [
        ("", 4096, 13440),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path some/draft-of-mine", 48, 15488),
        ("--speculative-algorithm NGRAM", 48, 13440),
        ("--speculative-algorithm NGRAM --max-running-requests 96", 96, 13440),
    ],
)
def test_speculation_of_sglang_takes_48_requests_and_reserves_for_the_draft(flags, running, reserved):
    """server_args.py of 0.5.9: max_running_requests = 48 where it is not said; reserved MiB = 512 + 1.5 x 8,192 + 2 x 256 and
    2,048 more for EAGLE, at least 10 GiB before the draft, whether or not the draft model is in the catalogue."""
    found = answer(f"{SGLANG} {flags}", release="0.5.9")
    assert found.max_num_seqs == running
    assert found.memory_fraction == round((81559 - reserved) / 81559, 3)


MOE = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{QWEN} --gpu-memory-utilization 1.2", "Input should be less than or equal to 1"),
        (f"pip install vllm==0.9.2\n{QWEN} --gpu-memory-utilization 1.05", "must be less than 1.0. Got 1.05."),
        (f"{QWEN} --gpu-memory-utilization 0", "a share above 0, at most 1 is needed"),
        (f"{SGLANG} --mem-fraction-static 88", "a share above 0, at most 1 is needed"),
        (f"{QWEN} --kv-cache-dtype fp9", "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        (f"{SGLANG} --kv-cache-dtype turboquant_k8v4", "invalid choice: 'turboquant_k8v4'"),
        (f"{QWEN} --quantization awq", "Cannot find the config file for awq"),
        (f"{SGLANG} --quantization gptq_marlin", "Cannot find the config file for gptq_marlin"),
        (f"{MOE} --tp 8 --dp 3 --enable-dp-attention", "assert self.tp_size % self.dp_size == 0"),
        (f"{MOE} --tp 4 --ep-size 3", "--ep-size 3"),
        (f"{MOE} --tp 4 --ep-size 8", "--ep-size 8"),
        ("trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 4 --ep_size 3", "--ep_size 3"),
        (f"{QWEN} -tp 0", "-tp 0: a whole number of at least 1 is needed"),
        (f"{QWEN} --max-num-seqs -4", "--max-num-seqs -4"),
    ],
)
def test_an_illegal_value_is_an_answer_in_the_engines_words(text, words):
    found = answer(text)
    assert (found.starts, found.max_num_seqs) == ("no", None) and words in found.why
    assert any(text.split()[-1] in one.source for one in found.settings)


def test_all_illegal_values_are_named_at_once():
    why = answer(f"{QWEN} --gpu-memory-utilization 1.2 -tp 0 --kv-cache-dtype fp9").why
    assert "1.2" in why and "-tp 0" in why and "fp9" in why


def test_what_an_engine_has_and_nobody_modelled_is_still_an_error():
    with pytest.raises(UnsupportedError, match="turboquant_k8v4 is not modelled"):
        answer(f"{QWEN} --kv-cache-dtype turboquant_k8v4")
    with pytest.raises(UnsupportedError, match="needs a checkpoint in that format"):
        answer("vllm serve /models/mine --quantization awq", model="qwen3-8b")
