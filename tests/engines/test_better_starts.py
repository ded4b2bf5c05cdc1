"""The better start at a load: other layouts and flags, each tried, as a diff of the file that reads as what was tried."""

import subprocess
from pathlib import Path

import pytest
from command_line import run_in_process
from public_starts import FOLDER, STARTS

from autoconfig.engines.check import check_start, read_and_fill, start_request
from autoconfig.engines.edit import diff_lines, edited
from autoconfig.engines.reading import read_start
from autoconfig.render.start_json import start_json

QWEN = "vllm serve Qwen/Qwen3-30B-A3B"
LOAD = {"isl": 500, "osl": 100, "concurrency": 32}


def load_of(text, gpu="h100", **given):
    return start_json(check_start(text, start_request({"gpu": gpu, **LOAD, **given}))).load


@pytest.mark.parametrize(
    ("text", "given", "flag"),
    [
        (f"{QWEN} -tp 2 --max-num-seqs 8", {}, "--max-num-seqs"),
        (f"{QWEN} --enforce-eager", {}, "--enforce-eager"),
        (
            "vllm serve Qwen/Qwen3-32B --max-num-batched-tokens 1024 --max-num-seqs 64",
            {"isl": 8000, "osl": 20, "rate": 0.4, "concurrency": None},
            "--max-num-batched-tokens",
        ),
        (
            "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.5 --max-model-len 8192",
            {"isl": 3000, "osl": 500, "concurrency": 128},
            "--gpu-memory-utilization",
        ),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --max-running-requests 4", {}, "--max-running-requests"),
        ("trtllm-serve Qwen/Qwen3-8B --max_batch_size 4", {}, "--max_batch_size"),
    ],
)
def test_flags_are_tried_and_the_diff_does_what_it_says(text, given, flag):
    found = load_of(text, **given)
    assert found.better is not None and flag in [change.flag for change in found.better.changes], found.better
    new = "\n".join(line[1:] for line in found.better.diff if line.startswith("+"))
    again = load_of(new, **given)
    assert again.tokens_per_s == pytest.approx(found.better.tokens_per_s)
    assert again.ttft_ms == pytest.approx(found.better.ttft_ms)


def test_what_changes_answers_or_rests_on_an_assumption_is_a_hint():
    found = load_of("vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.95 --max-model-len 8192", isl=3000, osl=2000)
    assert not {"--kv-cache-dtype", "--speculative-config"} & {
        one.flag for one in (found.better.changes if found.better else ())
    }
    said = {hint.change.split()[0]: hint for hint in found.hints}
    assert "--kv-cache-dtype" in said and "quality" in said["--kv-cache-dtype"].why
    assert any("Qwen/Qwen3-32B-FP8" in hint.change for hint in found.hints)
    assert all(hint.tokens_per_s > found.tokens_per_s for hint in found.hints)
    turing = load_of("vllm serve Qwen/Qwen2.5-1.5B-Instruct --max-model-len 8192", gpu="t4", isl=3000, osl=2000, concurrency=8)
    assert turing.hints and not any("kv-cache" in hint.change for hint in turing.hints), "no kernels of it read a cache in fp8"
    drafts = load_of("vllm serve deepseek-ai/DeepSeek-V3 -tp 8", gpu="h200", concurrency=4)
    assert any('"method": "mtp"' in hint.change and "0.7" in hint.why for hint in drafts.hints)


TRTLLM = "cat > x.yml << EOF\nenable_attention_dp: false\nEOF\ntrtllm-serve a/b --tp_size 2 --extra_llm_api_options x.yml\n"
POD = """apiVersion: v1
kind: Pod
spec:
  containers:
    - image: vllm/vllm-openai:v0.19.1
      args:
        - --model=a/b
        - --port=8000
        - --enforce-eager
"""


@pytest.mark.parametrize(
    ("text", "changes", "lines"),
    [
        ("vllm serve a/b -tp 2\n", [("--tensor-parallel-size", "2", "4")], ["-vllm serve a/b -tp 2", "+vllm serve a/b -tp 4"]),
        (
            "vllm serve a/b --max_num_seqs=9\n",
            [("--max-num-seqs", "9", "16")],
            ["-vllm serve a/b --max_num_seqs=9", "+vllm serve a/b --max_num_seqs=16"],
        ),
        (
            "vllm serve a/b --max-model-len 32k\n",
            [("--max-model-len", "32000", "8192")],
            ["-vllm serve a/b --max-model-len 32k", "+vllm serve a/b --max-model-len 8192"],
        ),
        ("vllm serve a/b \\\n  --enforce-eager \\\n  -tp 2\n", [("--enforce-eager", "on", "")], ["-  --enforce-eager \\"]),
        (
            "vllm serve a/b \\\n  -tp 2 \\\n  --enforce-eager\necho\n",
            [("--enforce-eager", "on", "")],
            ["-  -tp 2 \\", "-  --enforce-eager", "+  -tp 2"],
        ),
        ("vllm serve a/b \\\n  -tp 2 \\\n  --port 9\n", [("--max-num-seqs", "", "16")], ["+  --max-num-seqs 16 \\"]),
        (
            "vllm serve a/b\n",
            [("--enable-expert-parallel", "", "on")],
            ["-vllm serve a/b", "+vllm serve a/b --enable-expert-parallel"],
        ),
        ("N=2\nvllm serve a/b -tp $N\n", [("--tensor-parallel-size", "2", "4")], ["-N=2", "+N=4"]),
        (
            "vllm serve a/b -tp ${N:-2}\n",
            [("--tensor-parallel-size", "2", "4")],
            ["-vllm serve a/b -tp ${N:-2}", "+vllm serve a/b -tp ${N:-4}"],
        ),
        (
            'FROM vllm/vllm-openai:v0.19.1\nCMD ["--model", "a/b", "-tp", "2"]\n',
            [("--tensor-parallel-size", "2", "4"), ("--max-num-seqs", "", "16")],
            ['-CMD ["--model", "a/b", "-tp", "2"]', '+CMD ["--model", "a/b", "--max-num-seqs", "16", "-tp", "4"]'],
        ),
        (
            POD,
            [("--enforce-eager", "on", ""), ("--max-num-seqs", "", "16")],
            ["+        - --max-num-seqs=16", "-        - --enforce-eager"],
        ),
        (TRTLLM, [("enable_attention_dp", "", "true")], ["-enable_attention_dp: false", "+enable_attention_dp: true"]),
    ],
)
def test_a_change_in_the_files_own_words(text, changes, lines):
    read = read_start(text)
    new = edited(text, read, changes)
    assert new is not None
    assert list(diff_lines(text, new)) == lines
    again = read_start(new)
    values = {"16": 16, "4": 4, "8192": 8192, "on": True, "true": True, "": None}
    names = {"--tensor-parallel-size": "tensor-parallel-size", "--max-model-len": "max-model-len"}
    for flag, _, after in changes:
        assert again.value(names.get(flag, flag.lstrip("-"))) == values[after]


@pytest.mark.parametrize(
    "text",
    ["vllm serve a/b -tp 2\nvllm serve c/d -tp 2\n", "echo -tp 2; vllm serve a/b -tp 2\n"],
)
def test_a_file_without_one_place_for_a_change_has_no_diff(text):
    try:
        read = read_start(text, server=1)
    except Exception:
        return
    assert edited(text, read, [("--tensor-parallel-size", "2", "4")]) is None


def test_diffs_of_public_starts_are_scripts_that_read_as_the_better_start():
    """Most better starts have a diff; what it makes is a shell's script still, and reads as what was tried."""
    better = diffs = 0
    for one in list(STARTS.values())[::2]:
        path, text = FOLDER / one["file"], (FOLDER / one["file"]).read_text(encoding="utf-8")
        request = start_request({"gpu": "h200", "set": one.get("set", {}), **LOAD})
        try:
            found = check_start(text, request, path).load
        except Exception:
            continue
        if found is None or found.better is None:
            continue
        better += 1
        if found.better.text:
            diffs += 1
            again = read_and_fill(found.better.text, request, path)[1].start
            assert again.plan == found.better.start.plan and again.max_num_seqs == found.better.start.max_num_seqs
            if one["file"].endswith(".sh"):
                assert subprocess.run(["bash", "-n"], input=found.better.text, text=True, check=False).returncode == 0
    assert better >= 5 and diffs >= 0.7 * better, (better, diffs)


def test_apply_to_writes_the_better_start(tmp_path: Path):
    path, out = tmp_path / "serve.sh", tmp_path / "better.sh"
    path.write_text(f"#!/bin/bash\n{QWEN} \\\n  -tp 2 \\\n  --max-num-seqs 4\n", encoding="utf-8")
    asked = ("check", str(path), "--gpu", "h100", "--isl", "1000", "--osl", "300")
    run = run_in_process(*asked, "--concurrency", "64", "--apply-to", str(out))
    assert run.exit_code == 0 and "The better start is in" in run.output and "+  --max-num-seqs" in run.output
    assert run_in_process("check", str(out), "--gpu", "h100").exit_code == 0
    assert run_in_process(*asked, "--concurrency", "64", "--apply-to", str(out)).exit_code == 2, "the file is there"
    run = run_in_process("check", str(path), "--gpu", "h100", "--apply-to", str(tmp_path / "no.sh"))
    assert run.exit_code == 2 and "say --concurrency or --rate" in run.output
