"""Attention over chosen keys (DSA): FLOPs by hand, time of the measured module, and what is chosen."""

from dataclasses import replace

import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.plan import parse_plan
from autoconfig.time_model.job import TrainingJob, shapes_of
from autoconfig.time_model.operators.layer import BlockCollectives
from autoconfig.time_model.operators.layer_table import price_operators
from autoconfig.time_model.operators.listing import OperatorRow, explain_operators
from autoconfig.time_model.operators.sparse import share_of_peak
from autoconfig.time_model.serving.sparse import indexer_decode_seconds, sparse_prefill_seconds
from small_models import MODELS

from autoconfig.training.question import Request, understand

MODEL, S, K = load_model("deepseek-v3.2"), 8192, 2048


def rows(gpu: str, text: str = "tp=1,pp=16,ep=64,mbs=1,first=4,last=1", seq: int = S) -> dict[str, OperatorRow]:
    request = Request(model="deepseek-v3.2", gpus=1024, gpu=gpu, seq_length=seq, global_batch_size=1024)
    found = explain_operators(understand(request).scenario, parse_plan(text, 1024))
    return {row.operator: row for row in found if row.layer in ("all", "moe")}


def test_flops_are_those_of_the_pairs() -> None:
    found, chosen, before = rows("b200"), S * K - K * K / 2, S * S / 2
    assert found["core attention"].forward_flops == pytest.approx(2 * 128 * (576 + 512) * chosen)
    assert found["indexer scores"].forward_flops == pytest.approx(2 * 64 * 128 * before)
    assert found["indexer loss"].forward_flops == pytest.approx(2 * 128 * 576 * chosen)
    short = rows("b200", seq=1024)
    assert short["core attention"].forward_flops == pytest.approx(2 * 128 * (576 + 512) * 1024**2 / 2), "every key is chosen"


@pytest.mark.parametrize(("gpu", "milliseconds"), [("gb200", 7.4), ("h100", 14.6)])
def test_forward_takes_what_the_module_was_measured_to_take(gpu: str, milliseconds: float) -> None:
    """aiconfigurator-core 0.12.0: the whole module of DeepSeek-V3.2 over 8,192 tokens, in short bursts: at full clock."""
    request = Request(model="deepseek-v3.2", gpus=1024, gpu=gpu, seq_length=S, global_batch_size=1024)
    job = TrainingJob.of(understand(request).scenario)
    x = shapes_of(job.scenario.layouts([parse_plan("tp=1,pp=16,ep=64,mbs=1,first=4,last=1", 1024)]), job)
    starts = ("linear_q_", "linear_kv_", "linear_proj", "indexer.", "core attention", "indexer scores", "choice of keys")
    found = [op for op in price_operators(job, x, BlockCollectives(job, x, 7168.0)) if op.name.startswith(starts)]
    assert float(sum(op.forward for op in found)[0]) == pytest.approx(milliseconds / 1e3, rel=0.03)


def test_the_indexer_is_whole_on_every_rank_and_its_inputs_have_no_gradient() -> None:
    one, four = rows("b200"), rows("b200", "tp=4,pp=16,ep=16,mbs=1,sp=1,first=4,last=1")
    assert one["indexer.linear_wq_b"].forward_flops == four["indexer.linear_wq_b"].forward_flops == 2 * S * 1536 * 64 * 128
    assert one["indexer scores"].forward_flops == four["indexer scores"].forward_flops
    assert four["core attention"].forward_flops == one["core attention"].forward_flops / 4
    assert one["indexer.linear_wk"].dgrad_seconds == 0 < one["indexer.linear_wk"].wgrad_seconds
    assert one["linear_q_down_proj"].dgrad_seconds > 0
    assert "indexer communication" in four and "indexer communication" not in one


def test_model_flops_count_the_chosen_keys() -> None:
    dense = MODEL.replace(dsa_indexer_n_heads=0, dsa_indexer_head_dim=0, dsa_indexer_topk=0)
    assert model_flops_per_token(MODEL, 131_072) < 0.4 * model_flops_per_token(dense, 131_072)
    more = model_flops_per_token(MODEL, 65_536) - model_flops_per_token(MODEL, 32_768)
    assert more == pytest.approx(62 * 64 * 128 * 32_768), "beyond K keys only the indexer's scores grow"


H100 = load_gpu("h100")
MLA = ModelSpec(**MODELS["mla"])


@pytest.mark.parametrize(("capability", "share"), [(9.0, 0.46), (9.9, 0.46), (None, 0.46), (10.0, 0.354), (12.0, 0.354)])
def test_rates_of_chosen_keys(capability, share):
    assert share_of_peak(replace(H100, compute_capability=capability)) == share


def test_chosen_keys_of_an_engine():
    """16 TB a second: FLOPs bind; 1 byte: memory. 6 heads of 12, 512 keys; 12 bytes and 3/8 of a key."""
    model = MLA.replace(dsa_indexer_n_heads=6, dsa_indexer_head_dim=12, dsa_indexer_topk=512)
    fp8, bf16 = 0.46 * H100.flops_per_s["fp8"], 0.46 * H100.flops_per_s["bf16"]
    fast, slow = (replace(H100, hbm_bytes_per_s=rate) for rate in (1e20, 1e3))
    assert indexer_decode_seconds(model, 3.0, 1000.0, fast) == pytest.approx(2 * 72 * 3000 / fp8 + 7.5e-6)
    assert indexer_decode_seconds(model, 3.0, 1000.0, slow) == pytest.approx(12 * 1.03125 * 3000 / 800 + 7.5e-6)
    chosen, before = 1000 * 512 - 0.5 * 512**2, 0.5 * 1000**2
    expected = 2 * (2 * 72 * before / fp8 + 8 * before / 800 + 2 * 24 * (72 + 6) * chosen / bf16) + 7.5e-6
    assert sparse_prefill_seconds(model, 2.0, 24.0, 1000.0, slow) == pytest.approx(expected)
