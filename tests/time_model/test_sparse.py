"""Attention over chosen keys (DSA): FLOPs by hand, time of the measured module, and what is chosen."""

import pytest
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import model_flops_per_token
from autoconfig.specs.plan import parse_plan
from autoconfig.time_model.job import TrainingJob, shapes_of
from autoconfig.time_model.operators.layer import BlockCollectives
from autoconfig.time_model.operators.layer_table import price_operators
from autoconfig.time_model.operators.listing import OperatorRow, explain_operators
from autoconfig.time_model.serving.sparse import indexer_decode_seconds, sparse_prefill_seconds

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


def test_serving_reads_the_indexers_keys_and_the_chosen_ones() -> None:
    gpu = load_gpu("h200")
    near, far = (float(indexer_decode_seconds(MODEL, 64.0, length, gpu)) for length in (8_192.0, 131_072.0))
    assert 10 < far / near < 16
    short, long = (float(sparse_prefill_seconds(MODEL, 1.0, 16.0, length, gpu)) for length in (16_384.0, 32_768.0))
    assert 2 < long / short < 4, "between the chosen keys, linear, and the indexer's scores, quadratic"
