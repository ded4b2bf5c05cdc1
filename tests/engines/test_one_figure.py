"""One start, three edges: check of it, deployments with it beside the search, predict --inference of its row."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from autoconfig.time_model.serving.tables import shipped_calibration

import autoconfig
from autoconfig.engines.check import check_start, start_request
from autoconfig.runs.predict_serving import best_setup, predict_row
from autoconfig.runs.serving_row import read_case

MODELS = {
    "Qwen/Qwen3-8B": ("qwen3-8b", (1, 2, 4)),
    "Qwen/Qwen3-32B": ("qwen3-32b", (2, 4)),
    "Qwen/Qwen3-30B-A3B": ("qwen3-30b-a3b", (1, 2, 4)),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b", (1, 2, 4)),
    "Qwen/Qwen3-0.6B": ("qwen3-0.6b", (1,)),
}
STARTS = {
    "vllm": "vllm serve {model} -tp {tp} --max-num-seqs {seqs} --max-num-batched-tokens {tokens} --kv-cache-dtype auto",
    "sglang": "python -m sglang.launch_server --model-path {model} --tp {tp} --max-running-requests {seqs} "
    "--chunked-prefill-size {tokens} --kv-cache-dtype fp8_e4m3",
    "trtllm-1.2": "trtllm-serve {model} --tp_size {tp} --max_batch_size {seqs} --max_num_tokens {tokens}",
}
RELEASES = {"vllm": ("", "0.11.0", "0.19.1"), "sglang": ("", "0.5.9"), "trtllm-1.2": ("",)}
SHARES = {"vllm": " --gpu-memory-utilization 0.88", "sglang": " --mem-fraction-static 0.82"}


def row_pool(row):
    """GiB of the cache of a GPU that a row is priced with."""
    return float(best_setup(read_case(row), shipped_calibration()).memory.kv_pool_bytes) / 2**30


def test_check_deployments_and_predict_give_the_same_figures_of_fifty_starts(tmp_path: Path):
    rng, path, wrong = random.Random(34), tmp_path / "serve.sh", []
    for _ in range(50):
        model, engine = rng.choice(list(MODELS)), rng.choice(list(STARTS))
        name, degrees = MODELS[model]
        tp, seqs, tokens = rng.choice(degrees), rng.choice((1, 2, 4, 8, 16, 32, 48)), rng.choice((2048, 4096, 8192))
        lengths = {"isl": rng.choice((128, 500, 1000, 2000)), "osl": rng.choice((20, 100, 200))}
        text = STARTS[engine].format(model=model, tp=tp, seqs=seqs, tokens=tokens)
        if release := rng.choice(RELEASES[engine]):
            text = f"pip install {engine}=={release}\n{text}{rng.choice((SHARES[engine], ''))}"
        path.write_text(f"{text}\n", encoding="utf-8")
        checked = check_start(text, start_request({"gpu": "h100", "concurrency": seqs, **lengths}), path)
        assert checked.load is not None and checked.memory is not None, text
        row = predict_row(checked.load.row, shipped_calibration())
        said = {} if engine == "sglang" else {"model": name, "gpus": tp}  # a file says both
        asked = {"gpu": "h100", "simulate": 0, "top": 1, "kv_memory_ratio": checked.memory.memory_fraction, **said, **lengths}
        beside = autoconfig.deployments(**asked, include=[str(path)], disaggregated=False)
        (included,) = beside.record.included
        assert included.deployment is not None, (text, included.why_not)
        benchmark = included.deployment.benchmark
        assert benchmark is not None and benchmark.users == seqs, text
        figures = [
            (checked.load.ttft_ms, checked.load.tpot_ms),
            (row.ttft_ms, row.tpot_ms),
            (benchmark.ttft_seconds * 1e3, benchmark.tpot_seconds * 1e3),
        ]
        pools = [checked.memory.kv_pool_gib, row_pool(checked.load.row), included.deployment.memory_gib.kv_pool]
        wrong += [(text, pools)] * any(one != pytest.approx(pools[0], rel=0.02) for one in pools)
        wrong += [(text, lengths, figures)] * any(one != pytest.approx(figures[0]) for one in figures)
    assert not wrong, wrong[:3]
