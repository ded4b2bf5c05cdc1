"""What a serving question may ask about: drawn lengths, recorded traces, and what the answers say of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.errors import FileError, InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import stored_as
from autoconfig.time_model.serving.iteration import IterationTable, iteration_seconds
from autoconfig.time_model.serving.simulation import sampled_lengths
from autoconfig.time_model.serving.steady import Pricer
from autoconfig.time_model.serving.workload import Drawn, Trace
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.planning.schemas import schema
from autoconfig.serving import traces as trace_module
from autoconfig.serving.answer import answer
from autoconfig.serving.deployment import MAX_PREFILLED, POOLED, _streams, _together, server_of, simulated
from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest
from autoconfig.serving.space import weight_formats
from autoconfig.serving.traces import read_trace as read_recorded


def read_trace(path):
    return read_recorded(path).trace


SMALL = ServeRequest(model="llama3-8b", gpus=1, gpu="h100-sxm-80gb", simulate=1, top=3, disaggregated=False)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,10,4,14,x\n\n7.5,m,30,2,32,x\n"
MOONCAKE = '{"timestamp": 100, "input_length": 10, "output_length": 4, "hash_ids": [1]}\n\n' + (
    '{"timestamp": 2600, "input_length": 30, "output_length": 2}\n'
)


def entry(milliseconds, tokens_in, tokens_out):
    return {"timestamp": milliseconds, "input_length": tokens_in, "output_length": tokens_out}


def written(tmp_path, text, name="trace"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_published_formats_are_read(tmp_path):
    azure = read_trace(written(tmp_path, AZURE))
    assert azure.arrival_s == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-5)
    assert azure.input_tokens.tolist() == [374, 396, 879] and azure.output_tokens.tolist() == [44, 109, 55]
    burst, mooncake = read_trace(written(tmp_path, BURST)), read_trace(written(tmp_path, MOONCAKE))
    for found in (burst, mooncake):
        assert found.arrival_s == pytest.approx([0.0, 2.5]) and found.rate == pytest.approx(0.4)
        assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([10, 30], [4, 2])
    zoned = AZURE.replace(".6805900", "+00:00").replace(".9951690", "+00:00").replace(".2224670", "+00:00")
    assert read_trace(written(tmp_path, zoned)).arrival_s == pytest.approx([0, 4, 5])


@pytest.mark.parametrize(("text", "words"), [
    ("", "is empty; give CSV with the columns TIMESTAMP"),
    ("\n \n", "is empty"),
    ("a,b,c\n1,2,3\n", "line 1: the columns 'a,b,c'"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds 0 requests"),
    (AZURE.replace("396", "many"), "line 3: ContextTokens 'many': a whole number of tokens from 1 to 2,000,000"),
    (AZURE.replace("55\n", "0\n"), "line 4: GeneratedTokens '0'"),
    (AZURE.replace("396", "2000001"), "line 3: ContextTokens '2000001'"),
    (AZURE.replace("396", "\u0663"), "line 3: ContextTokens"),
    (AZURE.replace("50.9951690", "99"), "line 3: TIMESTAMP"),
    (AZURE.replace("2023-11-16 18:15:50.9951690", "nan"), "line 3: TIMESTAMP 'nan': a date and time"),
    (AZURE.replace(":50.", ":40."), "line 3 arrives before the one above it: sort"),
    (AZURE.replace(",109", ""), "line 3 has 2 cells"),
    (AZURE.split("\n2023-11-16 18:15:50")[0], "holds 1 request; a trace needs at least 2"),
    (MOONCAKE.replace("2600", "100"), "no usable span of time"),
    (MOONCAKE.replace('"input_length": 30, ', ""), "line 3 lacks input_length"),
    (MOONCAKE.replace("30,", "30.5,"), "line 3: input_length '30.5'"),
    (MOONCAKE.replace("30,", "true,"), "line 3: input_length 'True'"),
    (MOONCAKE.replace("2600", '"late"'), "line 3: timestamp 'late': a number of milliseconds"),
    (MOONCAKE.replace("2600", "1e400"), "line 3: timestamp 'inf'"),
    (MOONCAKE + "{", "line 4 is not valid JSON"),
    (MOONCAKE + "[1]\n", "line 4 is no object"),
    (MOONCAKE + '{"timestamp": ' + "[" * 100_000, "line 4 is not valid JSON"),
    (b"TIMESTAMP\xff\xfe", "is no text file (UTF-8)"),
    (AZURE + '2023-11-16 18:16:00,"1', "line 5"),
])  # fmt: skip
def test_a_broken_trace_says_where_and_what_is_allowed(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        read_trace(written(tmp_path, text))
    assert words in str(error.value)


def test_traces_that_are_too_large_or_not_there(tmp_path, monkeypatch):
    with pytest.raises(FileError, match="No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(FileError, match="is a folder"):
        read_trace(tmp_path)
    monkeypatch.setattr(trace_module, "CHUNK_BYTES", 20)
    with pytest.raises(FileError, match=r"line \d has more than 20 bytes; give CSV"):
        read_trace(written(tmp_path, AZURE))


@tabled
def test_loads_that_contradict_themselves(change, words):
    with pytest.raises(InputError, match=words):
        understand(ServeRequest(**{"model": "13b", "gpus": 1, "trace": [entry(0, 1, 1), entry(9, 1, 1)], **change}))


def test_averages_over_running_sequences_are_those_of_a_long_queue():
    """A long queue through one slot: what the slot holds over time, counted iteration by iteration."""
    rng = np.random.default_rng(1)
    drawn = Drawn(100.0, 50.0, 60.0, 40.0)
    isl, osl = (
        sampled_lengths(mean, cv, most, 200_000, rng)
        for mean, cv, most in ((100.0, 0.6, drawn.longest_input), (50.0, 0.8, drawn.data.most_output))
    )
    trace = Trace(arrival_s=np.arange(200_000.0), input_tokens=isl, output_tokens=osl)
    few = slice(0, 2000)
    held = np.concatenate([np.full(int(o), i + o) for i, o in zip(isl[few], osl[few], strict=True)])
    context = np.concatenate([i + np.arange(o) + 0.5 for i, o in zip(isl[few], osl[few], strict=True)])
    part = Trace(arrival_s=np.arange(2000.0), input_tokens=isl[few], output_tokens=osl[few])
    assert (part.held_tokens, part.context_tokens) == (pytest.approx(held.mean()), pytest.approx(context.mean()))
    for name in ("isl", "osl", "isl_stddev", "osl_stddev", "held_tokens", "context_tokens"):
        assert getattr(trace, name) == pytest.approx(getattr(drawn, name), rel=0.02), name
    assert trace.longest_tokens <= drawn.longest_tokens
    assert trace.at_rate(8.0).rate == pytest.approx(8.0)


def test_a_trace_of_requests_apart_is_each_request_alone():
    """Requests that never meet: first token after one prefill, then decode steps alone, by the iteration's own formula."""
    rows = [entry(20_000 * k, 200 + 400 * k, 20 + 10 * k) for k in range(4)]
    found = answer(ServeRequest(**{**vars(SMALL), "trace": rows, "fix": ("weights=bf16", "kv=bf16"), "chunked": False}))
    one, question = found.reports[0], found.question
    job = question.job(one.plan.decode)
    first = [float(iteration_seconds(job, 0.0, 1.0, 1.0, row["input_length"])) + job.constants.request_s for row in rows]
    step = [float(iteration_seconds(job, 1.0, row["input_length"] + row["output_length"] / 2, 0.0, 1.0)) for row in rows]
    assert one.latency.requests == 4 and one.latency.goodput_ratio == 1.0
    assert one.latency.ttft_seconds.mean == pytest.approx(np.mean(first), rel=0.05)
    assert one.latency.tpot_seconds.mean == pytest.approx(np.mean(step), rel=0.03)
    assert one.latency.itl_seconds.p50 == pytest.approx(step[2], rel=0.03)
    whole = [f + (row["output_length"] - 1) * s for f, s, row in zip(first, step, rows, strict=True)]
    assert one.latency.e2e_seconds.p99 == pytest.approx(np.percentile(whole, 99), rel=0.05)


@tabled
def test_the_format_of_a_published_checkpoint_is_called_by_its_name(gpu, fix, named):
    question = understand(ServeRequest(model="gpt-oss-120b", gpus=8, gpu=gpu, isl=4000, osl=1000, fix=fix))
    said = next(text for text in sentences(question.assumed) if text.startswith(("weights in", "cache in")))
    assert said.startswith(named) and "nvfp4" not in said
    asked = [stored_as(question.model, form, question.gpu) for form in ("bf16", "fp8", "mxfp4")]
    assert asked == ["bf16", "mxfp4", "mxfp4"]


@pytest.mark.parametrize(
    ("model", "gpu", "forms"),
    [
        ("deepseek-v3", "h200", ["fp8"]),
        ("deepseek-v3", "b200", ["fp8", "nvfp4"]),
        ("deepseek-v3", "a100", ["bf16"]),
        ("kimi-k2.5", "h200", ["int4"]),
        ("kimi-k2.5", "b200", ["int4", "nvfp4"]),
        ("gpt-oss-20b", "a100", ["mxfp4"]),
        ("minimax-m2", "h100", ["fp8"]),
        ("llama3-8b", "h100", ["bf16", "fp8"]),
    ],
)
def test_a_model_is_searched_in_the_formats_that_it_is_published_in(model, gpu, forms):
    assert weight_formats(load_model(model), load_gpu(gpu), []) == forms


def test_the_rate_of_a_trace_is_that_of_poisson_arrivals_alike():
    """Poisson arrivals written down as a trace give what --rate gives, within the noise of 2,000 requests."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / 12.0, 2000)) * 1e3
    rows = [entry(float(t), 500, 100) for t in times]
    common = {**vars(SMALL), "fix": ("weights=fp8", "kv=fp8", "batch=64", "tokens=2048")}
    recorded = answer(ServeRequest(**{**common, "trace": rows})).reports[0].latency
    drawn = answer(ServeRequest(**{**common, "isl": 500, "osl": 100, "rate": 12.0})).reports[0].latency
    assert recorded.requests == 2000
    for name in ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds"):
        assert getattr(recorded, name).mean == pytest.approx(getattr(drawn, name).mean, rel=0.1), name


def test_memory_holds_the_longest_request():
    plain = answer(ServeRequest(**{**vars(SMALL), "isl": 4000, "osl": 4000, "simulate": 0}))
    wide = answer(ServeRequest(**{**vars(SMALL), "isl": 4000, "osl": 4000, "osl_stddev": 4000.0, "simulate": 1}))
    first, spread = plain.reports[0], wide.reports[0]
    assert not first.varies and first.max_concurrency == first.max_concurrency_longest
    assert spread.varies and 1 <= spread.max_concurrency_longest < spread.max_concurrency
    assert float(spread.memory.kv_pool_bytes) >= spread.longest_bytes
    assert spread.latency.e2e_seconds.p99 > 3 * spread.latency.e2e_seconds.p50
    nothing = answer(ServeRequest(**{**vars(SMALL), "isl": 150_000, "isl_stddev": 600_000.0}))
    assert not nothing.reports and "for one sequence of 3,7" in nothing.infeasible and "try more --gpus" in nothing.infeasible
    assert answer(ServeRequest(**{**vars(SMALL), "isl": 150_000})).reports


def burst(requests, seconds):
    """Everything in the first moment, then one late request: the mean rate says little."""
    return [entry(k, 1000, 200) for k in range(requests)] + [entry(1000.0 * seconds, 1000, 200)]


def test_bursts_that_break_the_limits_take_more_gpus():
    common = {**vars(SMALL), "gpus": 4, "trace": burst(60, 300), "tpot_s": 0.05, "simulate": 2}
    easy = answer(ServeRequest(**{**common, "ttft_s": 30.0}))
    found = answer(ServeRequest(**{**common, "ttft_s": 0.3}))
    assert easy.reports[0].gpus == 1 and found.reports
    assert found.reports[0].latency.ttft_seconds.mean <= 0.3
    assert found.reports[0].gpus > 1
    lost = answer(ServeRequest(**{**common, "gpus": 1, "trace": burst(400, 3000), "ttft_s": 0.2}))
    assert not lost.reports and "in the simulation the nearest deployment misses by" in lost.infeasible
    assert " ms of at most " in lost.infeasible
    assert lost.nearest.latency.goodput_ratio < 1.0


def test_separate_prefill_queues_prompts():
    """With prefill instances, first tokens wait for the prompts before them; at a trickle they do not."""
    plans = {**vars(SMALL), "gpus": 2, "disaggregated": True, "simulate": 10, "top": 10, "fix": ("weights=fp8", "kv=fp8")}
    seen = {}
    for rate in (0.05, 6.0):
        found = answer(ServeRequest(**{**plans, "isl": 4000, "osl": 100, "rate": rate}))
        (seen[rate],) = [one.latency for one in found.reports if one.plan.prefill is not None][:1]
    assert seen[0.05].ttft_seconds.p99 == pytest.approx(seen[0.05].ttft_seconds.p50, rel=0.6)
    assert seen[6.0].ttft_seconds.p99 > 1.5 * seen[0.05].ttft_seconds.p50


@pytest.mark.parametrize("rate", [0.0, 300.0])
def test_of_a_thousand_ranks_a_share_is_simulated_with_its_share_of_the_prefill_ranks(rate):
    """Each of them sees four generations of its batch, and prompts wait for several prefill ranks."""
    fix = ("tp=1", "pp=1")
    asked = ServeRequest(model="llama3-70b", gpus=1841, simulate=0, disaggregated=True, rate=rate, top=50, fix=fix)
    one = next(one for one in answer(asked).reports if one.plan.prefill)
    decode, prefill = one.plan.decode, one.plan.prefill.replicas
    assert (decode.adp, decode.pp) == (1, 1)
    (stream,) = _streams(understand(asked), one, server_of(understand(asked), one))
    assert len(stream.osl) >= 4 * decode.batch
    for most in (MAX_PREFILLED // len(stream.osl), 1):
        together = _together(one, decode.replicas, most)
        share = prefill * together / decode.replicas
        assert share == pytest.approx(round(share), rel=0.02 if most > 1 else 0.15) and share >= (POOLED if most > 1 else 1)
    assert simulated(understand(asked), one).tokens_per_second_per_gpu == pytest.approx(one.tokens_per_s_per_gpu, rel=0.1)


def test_answers_list_what_they_assumed(autoconfig, tmp_path):
    bare = autoconfig.run("search", "--inference", "--model", "mixtral-8x7b", "--gpus", "2", "--simulate", "0", "--verbose")
    line = " ".join(" ".join(bare.stdout.split("Assumed: ")[1].split("\n\n")[0].split()).split("; "))
    for words in (
        "GPU h100-sxm-80gb (--gpu)",
        "engine trtllm-1.2 (--engine)",
        "1,000 input tokens (--isl)",
        "1,000 output tokens (--osl)",
        "requests of one length (--isl-stddev)",
        "a queue that is never empty (--rate)",
        "experts: routing as skewed as in the measured rows (--imbalance)",
        "for the cache (--kv-memory-ratio)",
    ):
        assert words in line, words
    given = (*("--gpu", "h100", "--engine", "vllm", "--isl", "9", "--osl", "9", "--rate", "1"), *("--imbalance", "1", "--json"))
    body = json.loads(autoconfig.run("search", "--inference", "--model", "mixtral-8x7b", "--gpus", "2", *given).stdout)
    said = "; ".join(body["question"]["assumed"])
    for option in ("(--gpu)", "(--engine)", "(--isl)", "(--osl)", "(--rate)", "(--imbalance)"):
        assert option not in said, option
    assert "Poisson arrivals" in said


def test_the_command_with_a_trace(autoconfig, tmp_path):
    rows = burst(30, 60)
    path = written(tmp_path, "\n".join(map(json.dumps, rows)))
    asked = (
        "search", "--inference", "--model", "llama3-8b", "--gpus", "1", "--gpu", "h100", "--trace", str(path), "--simulate",
        "1",
    )  # fmt: skip
    shown = autoconfig.run(*asked, "--verbose")
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    for words in ("trace of 31 requests in 60 s", "0.5 requests/s", "TTFT mean", "ITL mean", "E2E mean", "p99"):
        assert words in text, words
    body = json.loads(autoconfig.run(*asked, "--json").stdout)
    Draft202012Validator(schema("serve")).validate(body)
    assert body["question"]["trace"]["requests"] == 31 and body["question"]["trace"]["input_tokens"]["p90"] == 1000
    assert body["deployments"][0]["simulated"]["requests"] == 31
    stretched = json.loads(autoconfig.run(*asked, "--rate", "2", "--json").stdout)["question"]
    assert stretched["requests_per_second"] == 2.0 and stretched["trace"]["seconds"] == pytest.approx(15.0)
    path.write_text("TIMESTAMP\n", encoding="utf-8")
    broken = autoconfig.run(*asked)
    assert broken.exit_code == 2 and "line 1" in broken.stderr and "Traceback" not in broken.stderr


def test_prompts_of_the_closed_form_cost_what_the_drawn_ones_do():
    question = understand(ServeRequest(model="llama3-70b", gpus=1, gpu="h200", isl=12_000, isl_stddev=16_000.0))
    job = question.job(EnginePlan(tp=1, weights="fp8", kv="fp8"))
    drawn = sampled_lengths(12_000, 16 / 12, question.workload.longest_input, 4_000, np.random.default_rng(5))
    table = IterationTable(job, most_length=question.workload.longest_tokens)
    each = np.mean([table.seconds(0.0, 1.0, 1.0, tokens, tokens) for tokens in drawn])
    closed = Pricer(lengths=question.lengths).prices(job).seconds(0.0, 1.0, 1.0, question.lengths.prompt)
    assert float(closed) == pytest.approx(each, rel=0.05)


@pytest.mark.parametrize("gpu", ["t4", "a30", "rtx-4090-48gb", "h100-96gb"])
def test_gpus_without_measurements_borrow_those_of_a_chip_like_theirs(gpu):
    """T4 has no bf16: its products in 16 bits are fp16's."""
    found = answer(replace(SMALL, gpu=gpu, model="qwen3-0.6b", simulate=0))
    assert len(found.deployments.order) and found.deployments.tokens_per_s_per_gpu[found.deployments.order].min() > 0


def test_tensor_parallelism_goes_over_whole_nodes():
    """DeepSeek-V3 in fp8, 671 GB, on two nodes of eight H100, as vLLM's and SGLang's own recipes put it; its all-reduces go
    over the network, so that a node of sixteen is quicker."""
    asked = ServeRequest(
        model="deepseek-v3", gpus=16, gpu="h100", engine="vllm", fix=["tp=16", "ep=1", "batch=16"], tpot_s=60.0, simulate=0
    )
    two, one = answer(asked), answer(replace(asked, gpus_per_node=16))
    tpot = [float(found.deployments.columns.tpot_s[found.deployments.order[0]]) for found in (two, one)]
    assert two.reports[0].plan.decode.tp == 16 and tpot[0] > 1.1 * tpot[1]
    odd = answer(replace(asked, model="llama3.1-405b", gpus=16, gpus_per_node=6, fix=["tp=16"]))
    assert "whole nodes of 6 GPUs" in odd.infeasible
    megatron = answer(replace(asked, model="llama3.1-405b", engine="megatron", fix=["tp=16"]))
    assert "at most 8 GPUs of a link domain" in megatron.infeasible
