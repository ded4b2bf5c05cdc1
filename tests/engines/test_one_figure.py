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


LOADS = ("seqs", "fewer users", "rate")


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.soak)])
def test_check_deployments_and_predict_give_the_same_figures(tmp_path: Path, count: int):
    rng, path, wrong, seen = random.Random(34), tmp_path / "serve.sh", [], set()
    for _ in range(count):
        model, engine = rng.choice(list(MODELS)), rng.choice(list(STARTS))
        name, degrees = MODELS[model]
        tp, seqs, tokens = rng.choice(degrees), rng.choice((1, 2, 4, 8, 16, 32, 48)), rng.choice((2048, 4096, 8192))
        lengths = {"isl": rng.choice((128, 500, 1000, 2000)), "osl": rng.choice((20, 100, 200))}
        text = STARTS[engine].format(model=model, tp=tp, seqs=seqs, tokens=tokens)
        if release := rng.choice(RELEASES[engine]):
            text = f"pip install {engine}=={release}\n{text}{rng.choice((SHARES[engine], ''))}"
        path.write_text(f"{text}\n", encoding="utf-8")
        kind = rng.choice(LOADS)
        users = rng.randint(1, seqs) if kind == "fewer users" else seqs
        load = {"rate": rng.choice((0.2, 1.0, 3.0))} if kind == "rate" else {"concurrency": users}
        seen.add((kind, engine))
        checked = check_start(text, start_request({"gpu": "h100", **load, **lengths}), path)
        assert checked.load is not None and checked.memory is not None, text
        row = predict_row(checked.load.row, shipped_calibration())
        said = {} if engine == "sglang" else {"model": name, "gpus": tp}  # a file says both
        asked = {"gpu": "h100", "simulate": 0, "top": 1, "kv_memory_ratio": checked.memory.memory_fraction, **said, **lengths}
        asked |= load if kind == "rate" else {"fix": (f"batch={users}",)} if kind == "fewer users" else {}
        beside = autoconfig.deployments(**asked, include=[str(path)], disaggregated=False)
        (included,) = beside.record.included
        one = included.deployment
        assert one is not None, (text, load, included.why_not)
        if kind == "rate":
            assert one.simulated is not None and one.benchmark is None, text
            means = one.simulated.ttft_seconds.mean, one.simulated.tpot_seconds.mean
            assert (one.ttft_seconds, one.tpot_seconds) == pytest.approx(means), text
        else:
            assert one.benchmark is not None and one.benchmark.users == users, text
            means = one.benchmark.ttft_seconds, one.benchmark.tpot_seconds
        figures = [
            (checked.load.ttft_ms, checked.load.tpot_ms),
            (row.ttft_ms, row.tpot_ms),
            (means[0] * 1e3, means[1] * 1e3),
        ]
        pools = [checked.memory.kv_pool_gib, row_pool(checked.load.row), one.memory_gib.kv_pool]
        wrong += [(text, load, pools)] * any(each != pytest.approx(pools[0], rel=0.02) for each in pools)
        wrong += [(text, load, lengths, figures)] * any(each != pytest.approx(figures[0]) for each in figures)
    assert len(seen) == len(LOADS) * len(STARTS)
    assert not wrong, wrong[:3]


DRAFTS = {
    "mtp": (
        "h200",
        "0.15.0",
        "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --max-num-seqs 64 --speculative-config "
        """'{"method":"mtp","num_speculative_tokens":1}'""",
    ),
    "EAGLE": (
        "h200",
        "0.5.9",
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 "
        "--max-running-requests 32 --speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 3",
    ),
    "ngram": (
        "h100",
        "0.15.0",
        "vllm serve Qwen/Qwen3-8B --max-num-seqs 16 --speculative-config "
        """'{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'""",
    ),
}


@pytest.mark.parametrize("load", [{"concurrency": 8}, {"rate": 1.5}])
@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_of_a_file_count_at_all_three(kind, load, tmp_path: Path):
    """Throughput with drafts is more than without; the share of them that is accepted is assumed alike everywhere."""
    gpu, release, text = DRAFTS[kind]
    path, lengths = tmp_path / "serve.sh", {"isl": 1000, "osl": 200}
    path.write_text(f"{text}\n", encoding="utf-8")
    checked = check_start(text, start_request({"gpu": gpu, "release": release, **load, **lengths}), path).load
    row = predict_row(checked.row, shipped_calibration())
    without = predict_row({**checked.row, "speculative": ""}, shipped_calibration())
    asked = load if "rate" in load else {"fix": (f"batch={load['concurrency']}",)}
    found = autoconfig.deployments(
        gpu=gpu, release=release, simulate=0, top=1, include=[str(path)], disaggregated=False, **asked, **lengths
    )
    one = found.record.included[0].deployment
    means = (one.ttft_seconds, one.tpot_seconds) if "rate" in load else (one.benchmark.ttft_seconds, one.benchmark.tpot_seconds)
    assert (checked.ttft_ms, checked.tpot_ms) == pytest.approx((row.ttft_ms, row.tpot_ms))
    assert (means[0] * 1e3, means[1] * 1e3) == pytest.approx((row.ttft_ms, row.tpot_ms))
    assert row.tpot_ms < 0.9 * without.tpot_ms


def test_a_rate_that_an_included_start_does_not_carry_is_shown_as_check_shows_it(tmp_path: Path):
    path, load = tmp_path / "serve.sh", {"isl": 2000, "osl": 400, "rate": 9.0}
    text = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 16384 --max-num-seqs 128"
    path.write_text(f"{text}\n", encoding="utf-8")
    checked = check_start(text, start_request({"gpu": "h100", "release": "0.15.0", **load}), path).load
    found = autoconfig.deployments(gpu="h100", release="0.15.0", simulate=0, top=1, include=[str(path)], **load)
    one = found.record.included[0].deployment
    assert one.ttft_seconds * 1e3 == pytest.approx(checked.ttft_ms) and "grows without end" in checked.note
    assert one.users == 128 and one.requests_per_second < 0.8 * load["rate"]
