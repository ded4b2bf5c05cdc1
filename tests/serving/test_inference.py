"""Serving: search, predict, validate and the fit behind them, in process and from the command line."""

import csv
import json
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from autoconfig.specs.errors import AutoconfigError, FileError, InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.json_record import to_json
from autoconfig.specs.software.engine import kernel_age, load_engine
from autoconfig.time_model.serving.iteration import constant_vector
from autoconfig.time_model.serving.tables import shipped_calibration
from tables import tabled, write

from autoconfig.runs.predict_serving import COLUMNS, open_loop, predict_rows, rated_loop, read_table, set_up
from autoconfig.runs.serving_row import MEASURED, read_case
from autoconfig.serving.answer import answer
from autoconfig.serving.deployment_json import deployment_json
from autoconfig.serving.question import understand
from autoconfig.serving.rank import rank
from autoconfig.serving.request import ServeRequest
from validation.fit.serving_fit import Sample, fit, samples_of
from validation.judge.engine_arguments import arguments_of
from validation.sheets.serving import Judged, published_rows, tensor_parallel_order

SMALL = ServeRequest(model="llama3-8b", gpus=2, gpu="h100", isl=500, osl=200, simulate=1)


@pytest.fixture(scope="module")
def small():
    return answer(SMALL)


@pytest.fixture(scope="module")
def rows():
    return published_rows()


def test_the_best_comes_first_and_meets_the_limits():
    found = answer(replace(SMALL, ttft_s=0.5, tpot_s=0.02))
    speeds = [one.tokens_per_s_per_gpu for one in found.reports]
    assert found.reports and all(one.ttft_s <= 0.5 and one.tpot_s <= 0.02 for one in found.reports)
    assert speeds[0] >= 0.98 * max(speeds)
    columns = found.deployments.columns
    within = (columns.ttft_s <= 0.5) & (columns.tpot_s <= 0.02)
    assert speeds[0] >= 0.98 * found.deployments.tokens_per_s_per_gpu[within].max()


@tabled
def test_the_rate_named_beside_a_full_queue_is_served(asked):
    """A full queue's throughput and the answer under a load do not contradict each other: the rate that is named has one."""
    question = replace(SMALL, **asked)
    full = answer(question)
    assert full.sustained is not None and full.sustained <= 0.9 * full.reports[0].requests_per_s
    assert full.sustained >= 0.75 * full.reports[0].requests_per_s
    assert f"(--rate {full.sustained:g})" in full.why[1]
    loaded = answer(replace(question, rate=full.sustained))
    assert loaded.reports and loaded.sustained is None and not loaded.infeasible
    beyond = answer(replace(question, rate=0.99 * full.reports[0].requests_per_s))
    advice = "a lower --rate" if "tpot_s" in asked else "90% of what a full queue gives"
    assert not beyond.reports and advice in beyond.infeasible


def test_formats_that_nobody_asked_for_and_borrowed_constants_are_said(autoconfig):
    asked = ("deployments", "--model", "llama3-8b", "--gpus", "1", "--simulate", "0", "--top", "1")
    text = " ".join(autoconfig.run(*asked, "--engine", "vllm").stdout.split())
    assert "nine in ten measured TPOT" in text
    text = " ".join(autoconfig.run(*asked, "--engine", "megatron").stdout.split())
    assert "megatron has no constants of its own: trtllm-1.2's" in text
    assert "weights in fp8 and cache in fp8 where that serves more" in text
    text = " ".join(autoconfig.run(*asked, "--fix", "weights=bf16", "--fix", "kv=bf16").stdout.split())
    assert "constants of its own" not in text and "where that serves more" not in text
    rows = {row["name"]: row["constants_stand_in"] for row in autoconfig.json("engines")["engines"]}
    own = {rows[name] for name in ("vllm", "sglang", "trtllm-1.2", "trtllm-0.17")}
    assert rows["megatron"] == "trtllm-1.2" and own == {"-"}


def test_the_pareto_frontier_is_one(small):
    user = [one.tokens_per_s_per_user for one in small.pareto]
    gpu = [one.tokens_per_s_per_gpu for one in small.pareto]
    assert len(user) > 3 and user == sorted(user, reverse=True) and gpu == sorted(gpu)


def test_every_deployment_fits_its_memory(small):
    for one in (*small.reports, *small.pareto):
        assert one.max_concurrency >= one.concurrency
        assert one.plan.gpus <= SMALL.gpus


def test_fix_is_kept_and_include_is_one_of_the_columns():
    plan = "tp=2,weights=bf16,kv=bf16,batch=64,tokens=2048"
    found = answer(replace(SMALL, fix=("tp=2", "weights=bf16", "kv=bf16"), disaggregated=False, include=(plan,)))
    assert {(r.plan.decode.tp, r.plan.decode.weights, r.plan.decode.kv) for r in found.reports} == {(2, "bf16", "bf16")}
    _, report, why = found.included[0]
    assert report is not None and not why
    c = found.deployments.columns
    row = np.flatnonzero((c.batch == 64) & (c.tokens == 2048))[0]
    assert report.tpot_s == pytest.approx(float(c.tpot_s[row]))
    assert report.tokens_per_s_per_gpu == pytest.approx(float(found.deployments.tokens_per_s_per_gpu[row]))


def test_a_load_takes_as_few_gpus_as_carry_it():
    found = answer(replace(SMALL, gpus=8, rate=60.0, goal="gpus", tpot_s=0.05))
    best = found.reports[0]
    assert best.requests_per_s == 60.0 and best.gpus <= 8
    more = answer(replace(SMALL, gpus=8, rate=240.0, goal="gpus", tpot_s=0.05))
    assert more.reports[0].gpus >= best.gpus


def test_prefix_hits_and_accepted_drafts_help(small):
    hit = answer(replace(SMALL, prefix_hit=0.8, simulate=0))
    drafts = answer(replace(SMALL, draft_tokens=2, acceptance=0.8, simulate=0))
    assert hit.reports[0].tokens_per_s_per_gpu > small.reports[0].tokens_per_s_per_gpu
    fastest = [max(one.tokens_per_s_per_user for one in found.pareto) for found in (small, drafts)]
    assert fastest[1] > 1.3 * fastest[0]


def test_prefill_instances_hold_their_longest_prompt():
    """70B on one H100 leaves no room for the activations of 32,000 tokens."""
    fixed = ("weights=fp8", "kv=fp8", "pp=1")
    asked = ServeRequest(model="llama3-70b", gpus=8, gpu="h100", isl=32000, osl=500, tpot_s=0.03, simulate=0, fix=fixed)
    found = answer(asked)
    apart = [one for one in (*found.reports, *found.pareto) if one.plan.prefill is not None]
    assert apart and all(one.plan.prefill.tp > 1 for one in apart)
    for one in apart:
        body = to_json(deployment_json(one))
        for memory in (body["memory_gib"], body["prefill_memory_gib"]):
            parts = [memory[name] for name in ("weights", "activations", "runtime", "kv_pool", "kept_free")]
            assert min(parts) > 0 and sum(parts) == pytest.approx(memory["device"])


@pytest.mark.parametrize("rate", [0.0, 24.0])
def test_no_deployment_as_productive_is_faster_than_the_recommended(rate):
    asked = ServeRequest(model="llama3-70b", gpus=8, gpu="h200", isl=1000, osl=500, ttft_s=2.0, tpot_s=0.05, rate=rate)
    d = rank(understand(asked))
    best, speed, user = d.order[0], d.tokens_per_s_per_gpu, d.tokens_per_s_per_user
    alike = d.order[speed[d.order] >= 0.99 * speed[d.order].max()]
    assert speed[best] >= 0.99 * speed[d.order].max() and user[best] >= 0.99 * user[alike].max()


def test_the_answer_says_why_and_counts_in_the_goals_own_figure():
    found = answer(replace(SMALL, tpot_s=0.02, simulate=0))
    d, best = found.deployments, found.reports[0]
    assert found.why[0].startswith(f"most tokens/s/GPU of {len(d.order):,} deployments") and "TPOT <= 20 ms" in found.why[0]
    after = next(line for line in found.why if line.startswith(f"batch {best.plan.decode.batch:,}"))
    assert "TPOT" in after or "fits" in after
    for goal, name in (("tpot", "TPOT"), ("ttft", "TTFT"), ("throughput", "tokens/s/GPU")):
        one = answer(replace(SMALL, goal=goal, tpot_s=0.02, ttft_s=1.0, simulate=0))
        assert len(one.sensitivity) == 2 and all(line.endswith(f" {name}") for line in one.sensitivity)
        assert goal == "throughput" or all("no better" in line for line in one.sensitivity)


def test_prompts_that_do_not_fit_whole_are_the_reason_given():
    fixed = ("weights=fp8", "kv=fp8")
    asked = ServeRequest(model="llama3-70b", gpus=1, gpu="h100", isl=32000, osl=500, fix=fixed, simulate=0)
    found = answer(asked)
    assert not found.reports and "--chunked-prefill" in found.infeasible and "32,000 tokens" in found.infeasible
    assert answer(replace(asked, chunked=True)).reports


def test_a_printed_plan_of_separate_instances_can_be_asked_for():
    asked = ServeRequest(model="llama3-70b", gpus=8, gpu="h200", isl=1000, osl=500, ttft_s=2.0, tpot_s=0.05, simulate=0, top=1)
    best = answer(asked).reports[0]
    assert best.plan.prefill is not None
    large = f"prefill({best.plan.prefill})+decode({best.plan.decode.replace(batch=100000)})"
    mixed = f"prefill({best.plan.prefill})+decode({best.plan.decode.replace(kv='bf16')})"
    again = answer(replace(asked, include=(str(best.plan), large, mixed))).included
    assert again[0][1] is not None and str(again[0][1].plan) == str(best.plan)
    for name in ("tokens_per_s_per_gpu", "ttft_s", "tpot_s", "gpus", "concurrency"):
        assert getattr(again[0][1], name) == pytest.approx(getattr(best, name)), name
    assert [one[1] for one in again[1:]] == [None, None] and "100000" in again[1][2] and "kv=" in again[2][2]


def test_separate_prefill_waits_longer_the_busier_it_is():
    """TTFT of a full queue follows the prefill instances' load, in closed form and simulation alike; a limit is kept."""
    asked = ServeRequest(model="llama3-70b", gpus=8, gpu="h200", isl=1000, osl=500, tpot_s=0.05, simulate=1)
    loose = answer(asked)
    c = loose.deployments.columns
    assert len(np.unique(np.round(c.ttft_s[(c.prefill == c.prefill.max())], 6))) > 10
    best = loose.reports[0]
    assert best.plan.prefill is not None and best.latency is not None
    assert best.latency.ttft_seconds.mean == pytest.approx(best.ttft_s, rel=0.35)
    assert best.latency.ttft_seconds.p99 > 1.3 * best.latency.ttft_seconds.p50
    limited = rank(understand(replace(asked, ttft_s=0.14)))
    rows = limited.columns.prefill >= 0
    assert rows.any() and limited.columns.ttft_s[rows].max() <= 0.14


@pytest.mark.judge
def test_predictions_never_read_what_was_measured(rows):
    chosen = [rows[i] for i in (0, 100, 400, 600, 680, 700, 749, 753, 790, 812)]
    plain = predict_rows(chosen)
    scrambled = [{**row, **dict.fromkeys(MEASURED, "1e9")} for row in chosen]
    assert predict_rows(scrambled) == plain
    assert [p.row for p in plain] == list(range(len(chosen)))
    for row, p in zip(chosen, plain, strict=True):
        encoder = "T5" in row["model"]
        assert p.note.startswith("not predicted") == encoder
        assert encoder or (p.fits and p.out_tok_s_gpu and p.max_concurrency)


def test_published_throughput_is_near(rows):
    """Shipped constants have seen these runs: a broken operator shows at once."""
    dense = [
        r
        for r in rows
        if r["kind"] == "max_throughput" and r["model"] in ("Llama-3.1-8B", "Llama-3.1-70B") and r["weights"] == "fp8"
    ]
    chosen = dense[::12]
    errors = [p.out_tok_s_gpu / float(r["out_tok_s_gpu"]) - 1 for r, p in zip(chosen, predict_rows(chosen), strict=True)]
    assert len(errors) > 10 and np.mean(np.abs(errors)) < 0.08


def test_published_offline_runs_get_the_limits_of_their_release(rows):
    """0.14 from its table, 0.17 computed and rounded to what the cache holds; both split prompts, served runs do not."""

    def first(**cells):
        case = read_case(next(r for r in rows if all(r[k] == v for k, v in cells.items())))
        return set_up(case, case.plans[0], shipped_calibration())

    old = first(backend_version="0.14.0", kind="max_throughput", tp="8", isl="128", osl="2048")
    assert (old.batch, old.tokens, old.chunked) == (8192, 16384, True)
    assert old.running < 400, "logits of 8,192 slots leave half of the cache"
    new = first(backend_version="0.17", gpu="A100-SXM4-80GB", model="Llama-3.1-70B", tp="8", isl="500", osl="2000")
    assert (new.batch, new.tokens, new.chunked) == (512, 2048, True)
    assert not first(backend_version="0.14.0", kind="online_qps").chunked


@pytest.mark.long
def test_an_mlperf_server_rate_is_the_largest_within_its_limits(rows):
    """The scenario's metric: 99th percentiles stand at a limit; half of the rate says half of the speed."""
    served = (r for r in rows if r["kind"] == "mlperf" and r["scenario"] == "Server")
    row = next(r for r in served if r["gpu"] == "H200" and r["n_gpus"] == "1")
    slowdowns = []
    for rate in (14.5, 7.25):
        case = read_case({**row, "offered_qps": str(rate)})
        assert case.limits == (2.0, 0.2)
        setup = set_up(case, case.plans[0], shipped_calibration())
        found = rated_loop(case, setup, case.limits, open_loop(case, setup))
        first, between = (np.nanpercentile(x, 99) for x in (found.served.ttft_s, found.served.tpot_s))
        assert max(first / 2.0, between / 0.2) == pytest.approx(1.0, abs=0.05)
        slowdowns.append(found.slowdown)
    assert 0.7 < slowdowns[0] < 1.3 and slowdowns[1] > 1.5 * slowdowns[0]
    assert read_case({**row, "tpot_limit_ms": ""}).limits is None
    assert read_case({**row, "kind": "online_qps", "isl": "222"}).limits is None


@tabled
def test_a_row_that_cannot_be_read_says_why(rows, change, word):
    with pytest.raises(AutoconfigError, match=word):
        read_case({**rows[60], **change})
    assert predict_rows([{**rows[60], **change}])[0].note.startswith("not predicted")


def test_files_that_are_no_table(tmp_path):
    bad = tmp_path / "a.csv"
    bad.write_text("model,gpu\nx,y\n", encoding="utf-8")
    with pytest.raises(InputError, match="n_gpus"):
        read_table(bad)
    with pytest.raises(FileError):
        read_table(tmp_path / "none.csv")


def test_the_fit_finds_constants_that_made_the_times():
    rng = np.random.default_rng(0)
    age = kernel_age(load_engine("trtllm-0.17"))
    truth = np.array([1.08, 1.2, 1.1, 30.0, 12e-6, 0.2e-3, 3e-6, 0.4 * age, 1.0])
    samples = []
    for moe in (False, True) * 100:
        experts, arithmetic = moe * rng.uniform(0.01, 0.1), rng.uniform(0.0, 1.0)
        features = np.array(
            [
                rng.uniform(0.01, 0.1), experts, rng.uniform(0, 0.02), rng.uniform(0, 1e-5), rng.choice([32.0, 80.0]), 1,
                rng.uniform(1, 2000), experts * arithmetic, 0.0,
            ]
        )  # fmt: skip
        samples.append(
            Sample(
                source="s", engine="trtllm-0.17", gpu="h100-sxm-80gb", moe=moe, counts=np.array([100.0]),
                features=features[None], floors=np.zeros((1, 2)), seconds=float(100.0 * features @ truth),
            )
        )  # fmt: skip
    found = fit(samples, [])
    factors = found.gpus["trtllm-0.17"]["h100-sxm-80gb"]
    assert factors == pytest.approx({"all": 1.08, "experts": 1.2, "arithmetic": 0.4}, abs=0.05)  # pulled to the parent's
    shipped = found.constants(load_engine("trtllm-0.17"), load_gpu("h100"))
    errors = [100.0 * float(one.features[0] @ constant_vector(shipped)) / one.seconds - 1 for one in samples]
    assert np.mean(np.abs(errors)) < 0.02


@pytest.mark.judge
def test_shipped_constants_are_what_the_fit_gives(rows):
    """One generation refitted: the file was not edited by hand."""
    samples, first = samples_of(rows)
    found, shipped = fit(samples, first), shipped_calibration()
    for name, numbers in shipped.engines.items():
        waits = ("request_s", "request_token_s") if name == "trtllm-1.2" else ()  # of benchmarks of users: fit/closed_loop.py
        for key, value in numbers.items():
            assert key in waits or found.engines[name][key] == pytest.approx(value, rel=2e-3, abs=1e-9), (name, key)
        for gpu, factors in shipped.gpus[name].items():
            assert found.gpus[name][gpu] == pytest.approx(factors, rel=2e-3, abs=1e-9), (name, gpu)
    assert all(s.features.min() >= 0 for s in samples)
    assert constant_vector(shipped.constants(understand(SMALL).engine, understand(SMALL).gpu)).shape == (9,)


def test_order_of_tp(rows):
    alike = [
        r
        for r in rows
        if r["source"].endswith("v0.17")
        and r["model"] == "Llama-3.1-70B"
        and r["gpu"].startswith("H200")
        and r["isl"] == "128"
        and r["osl"] == "128"
    ]
    judged = [Judged(row=r, predicted=p) for r, p in zip(alike, predict_rows(alike), strict=True)]
    right, pairs = tensor_parallel_order(judged)
    assert pairs == 6 and right >= 5


SEARCH = ("search", "--inference", "--model", "llama3-8b", "--gpus", "2", "--gpu", "h100", "--isl", "500", "--osl", "200")


def test_the_commands(autoconfig, rows, tmp_path):
    done = autoconfig.run(*SEARCH, "--ttft", "500ms", "--tpot", "20ms", "--verbose")
    assert done.exit_code == 0 and "Recommended" in done.stdout and "KV cache" in done.stdout
    assert autoconfig.run(*SEARCH, "--tpot", "1us").exit_code == 3
    assert autoconfig.run("search", "--inference", "--model", "530b", "--gpus", "1").exit_code == 3
    for wrong in (["--gpus", "0"], ["--fix", "tp=x"], ["--tpot", "soon"], ["--engine", "nvllm"], ["--goal", "gpus"]):
        assert autoconfig.run(*SEARCH, *wrong).exit_code == 2
    assert autoconfig.run("explain", "--inference", "--model", "llama3-8b").exit_code == 2
    assert autoconfig.run("engines").exit_code == 0
    body = json.loads(autoconfig.run(*SEARCH, "--json").stdout)
    assert body["deployments"][0]["plan"]
    table, out = write(tmp_path / "in.csv", [rows[5], rows[749], rows[754]]), tmp_path / "out.csv"
    assert autoconfig.run("predict", "--inference", str(table), "--output", str(out)).exit_code == 0
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS and [r["row"] for r in found] == ["0", "1", "2"]
    assert float(found[0]["pred_out_tok_s_gpu"]) > 0 and float(found[1]["pred_latency_ms"]) > 0
    assert found[2]["pred_fits"] == "" and found[2]["pred_note"].startswith("not predicted")


@pytest.mark.service
@pytest.mark.parametrize("engine", ["trtllm-1.2", "vllm", "sglang", "megatron"])
def test_scripts_are_sound_shell_and_may_be_written_again(autoconfig, tmp_path, engine):
    folder = tmp_path / "run"
    arguments = (*SEARCH, "--engine", engine, "--aggregated-only", "--simulate", "0", "--export", str(folder))
    for _ in range(2):
        assert autoconfig.run(*arguments).exit_code == 0
    scripts = sorted(folder.glob("*.sh"))
    assert {path.name for path in scripts} == {"serve.sh", "benchmark.sh"}
    checker = Path(sysconfig.get_path("scripts")) / "shellcheck"
    scripts.append(folder / "serve.sbatch")
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = (folder / "serve.sh").read_text(encoding="utf-8")
    plan = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))["decode"]
    assert str(plan["max_num_tokens"]) in text and str(plan["tensor_parallel_size"]) in text
    config, deployment, service = yaml.safe_load_all((folder / "serve.kubernetes.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]["containers"][0]
    gpus = plan["tensor_parallel_size"] * plan["pipeline_parallel_size"] * plan["attention_data_parallel_size"]
    assert config["data"]["serve.sh"] == text and pod["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert deployment["spec"]["replicas"] == plan["num_replicas"] and service["spec"]["ports"][0]["port"] == 8000
    assert f"--array=0-{plan['num_replicas'] - 1}\n" in (folder / "serve.sbatch").read_text(encoding="utf-8")
    program, words = arguments_of(folder / "serve.sh")
    assert program in ("trtllm-serve", "vllm", "python3", "torchrun") and "8000" in words
    (folder / "serve.sh").write_text("mine", encoding="utf-8")
    assert autoconfig.run(*arguments).exit_code == 2
    assert autoconfig.run(*arguments, "--force").exit_code == 0
    refused = ("--engine", "megatron", "--fix", "weights=int8", "--export", str(tmp_path / "x"))
    assert autoconfig.run(*SEARCH, *refused).exit_code == 2
