"""A start as that of another engine, exported deployments read back, and the plan of a start beside a search."""

import json
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from command_line import run_in_process
from public_starts import FOLDER, STARTS

import autoconfig
from autoconfig.engines.check import check_start, read_and_fill, start_request
from autoconfig.engines.convert import convert_start
from autoconfig.formats.convert import SERVERS
from autoconfig.render.start_json import start_json

LAYOUT = ("tp", "pp", "ep", "adp", "replicas", "weights", "kv")


def filled(text, path=None, **given):
    return read_and_fill(text, start_request({"gpu": "h200", **given}), path)[1].start


@pytest.mark.parametrize("engine", SERVERS)
def test_a_start_goes_to_every_engine_and_comes_back(engine):
    """Of the public starts whose model is known: the same layout, lengths and limits, or what is lost is said."""
    tried = 0
    for one in STARTS.values():
        path = FOLDER / one["file"]
        text, given = path.read_text(encoding="utf-8"), {"set": one.get("set", {}), "gpu": "b200"}
        try:
            before = filled(text, path, **given)
        except InputError:
            continue
        try:
            found = convert_start(text, start_request(given), engine, path)
        except UnsupportedError as error:
            assert engine == "tensorrt-llm" and "one GPU a rank" in str(error)
            continue
        after = filled(found.text, gpu="b200")
        tried += 1
        assert after.engine == engine
        free = (
            {"replicas"} if engine == "tensorrt-llm" else {"ep"} if any("takes all" in text for text in found.unsaid) else set()
        )
        layout = {key: getattr(before.plan, key) for key in LAYOUT if key not in free}
        assert {key: getattr(after.plan, key) for key in layout} == layout, one["file"]
        assert after.max_model_len == before.max_model_len
        assert after.max_num_batched_tokens == before.max_num_batched_tokens
        method = before.draft_method if before.draft_tokens else ""  # of a draft model that nobody knows, nothing is written
        assert (after.draft_method, after.draft_tokens) == (method, before.draft_tokens)
        same = engine == before.engine
        assert after.memory_fraction == (before.memory_fraction if same else None)
        said = any("memory share" in text for text in found.unsaid)
        assert same or before.memory_fraction is None or said
    assert tried > 35


def test_sequences_of_all_ranks_and_of_one():
    """vLLM's --max-num-seqs is of a rank, SGLang's --max-running-requests of all."""
    text = "vllm serve Qwen/Qwen3-30B-A3B -dp 4 -ep --max-num-seqs 64"
    found = convert_start(text, start_request({}), "sglang")
    for words in ("--tp-size 4", "--dp-size 4", "--enable-dp-attention", "--ep-size 4", "--max-running-requests 256"):
        assert words in found.text
    back = filled(found.text)
    assert back.plan == filled(text).plan.replace(batch=256)


def test_formats_that_are_none_of_a_server(tmp_path: Path):
    with pytest.raises(InputError, match="this starts a server"):
        convert_start("vllm serve Qwen/Qwen3-8B", start_request({}), "deepspeed")
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-8B -tp 2\n", encoding="utf-8")
    run = run_in_process("convert", str(path), "--format", "trtllm", "--gpu", "h100")
    assert run.exit_code == 2
    run = run_in_process("convert", str(path), "--format", "tensorrt-llm", "--json")
    assert run.exit_code == 0 and "--tp_size 2" in json.loads(run.stdout)["text"]
    assert autoconfig.convert(path, format="sglang").text.startswith("#!/usr/bin/env bash")


@pytest.mark.parametrize(("engine", "own"), [("vllm", "vllm"), ("sglang", "sglang"), ("trtllm-1.2", "tensorrt-llm")])
def test_exported_deployments_are_read_back(engine, own, tmp_path: Path):
    asked = ["--model", "qwen3-30b-a3b", "--gpus", "4", "--gpu", "h100", "--engine", engine, "--isl", "1000", "--osl", "300"]
    fixed = ["--fix", "tp=2", "--fix", "weights=bf16", "--fix", "kv=bf16", "--fix", "batch=64", "--simulate", "0", "--top", "1"]
    run = run_in_process("deployments", *asked, "--aggregated-only", *fixed, "--export", str(tmp_path / "run"), "--json")
    assert run.exit_code == 0, run.output
    exported = json.loads((tmp_path / "run" / "deployment.json").read_text())
    decode = exported["decode"]
    for name in ("serve.sh", "serve.sbatch", "serve.kubernetes.yaml"):
        path = tmp_path / "run" / name
        if not path.exists():
            continue
        start = filled(path.read_text(), path, gpu="h100", set={"MODEL": "Qwen/Qwen3-30B-A3B"})
        assert start.engine == own
        expected = {"tp": 2, "pp": decode["pipeline_parallel_size"], "ep": decode["expert_parallel_size"]}
        assert {key: getattr(start.plan, key) for key in expected} == expected, name
        request = start_request({"gpu": "h100", "set": {"MODEL": "Qwen/Qwen3-30B-A3B"}})
        assert check_start(path.read_text(), request, path).starts == "yes"


def test_the_plan_of_a_file_beside_the_search(tmp_path: Path):
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-30B-A3B -tp 2 -ep --max-num-seqs 32\n", encoding="utf-8")
    asked = {"model": "qwen3-30b-a3b", "gpus": 2, "gpu": "h100", "isl": 1000, "osl": 300, "engine": "vllm", "simulate": 0}
    found = autoconfig.deployments(**asked, include=[str(path)], disaggregated=False)
    (one,) = found.record.included
    assert one.plan.startswith("tp=2,ep=2,weights=bf16,kv=bf16,batch=32,tokens=8192")
    assert one.deployment is not None and one.deployment.users == 32
    with pytest.raises(InputError, match="say engine vllm"):
        autoconfig.deployments(**{**asked, "engine": "sglang"}, include=[str(path)])
    with pytest.raises(InputError, match="serves qwen3-30b-a3b"):
        autoconfig.deployments(**{**asked, "model": "qwen3-8b"}, include=[str(path)])


def test_a_file_says_what_nobody_else_does(tmp_path: Path, monkeypatch):
    """Model, GPUs, engine, release and share of memory are the file's; the GPU where it names one."""
    path = tmp_path / "serve.sh"
    path.write_text(
        "#SBATCH --gres=gpu:h200:2\npip install vllm==0.11.2\nvllm serve Qwen/Qwen3-8B -tp 2 --gpu-memory-utilization 0.7\n",
        encoding="utf-8",
    )
    found = autoconfig.deployments(include=[str(path)], isl=500, osl=100, simulate=0, disaggregated=False).record
    asked = found.question
    assert (asked.model, asked.gpu, asked.num_gpus, asked.engine) == ("qwen3-8b", "h200-sxm-141gb", 2, "vllm")
    (one,) = found.included
    pool = start_json(check_start(path.read_text(), start_request({}), path)).kv_pool_gib
    assert one.deployment.memory_gib.kv_pool == pytest.approx(pool, rel=0.05)
    run = run_in_process("deployments", "--include", str(path), "--isl", "500", "--osl", "100", "--simulate", "0")
    assert run.exit_code == 0 and "--release 0.11.2, --kv-memory-ratio 0.7" in run.output
    run = run_in_process("deployments", "--include", str(path), "--gpu", "l4", "--engine", "sglang", "--isl", "500")
    assert run.exit_code == 2 and "say --engine vllm" in run.output
