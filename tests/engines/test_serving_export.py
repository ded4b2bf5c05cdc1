"""Start scripts of served models: every kind of deployment as sound shell whose arguments say the plan."""

import json
import math
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.serve_plan import EnginePlan
from scipy import stats
from tables import tabled

from autoconfig.engines.export import export_texts
from autoconfig.engines.start import megatron, sglang, trtllm, vllm
from autoconfig.serving.answer import answer
from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest, request_of
from validation.judge.engine_arguments import arguments_of
from validation.judge.serving_plans import deployments

pytestmark = pytest.mark.xdist_group("serving export")
ENGINES = ("sglang", "vllm", "trtllm-1.2")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """{engine: {case: (report, folder)}}."""
    found = {}
    for engine in ENGINES:
        for name, question, one in deployments(engine):
            if one is None:
                continue
            folder = tmp_path_factory.mktemp(f"{engine}-{name}")
            for file, text in export_texts(question, one).items():
                (folder / file).write_text(text, encoding="utf-8")
            found.setdefault(engine, {})[name] = (question, one, folder)
    return found


def options(folder, script="serve.sh"):
    """{option: value or True} of the first instance."""
    _, words = arguments_of(folder / script)
    read = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            alone = at + 1 == len(words) or words[at + 1].startswith("--")
            read[word] = True if alone else words[at + 1]
    return read


@pytest.mark.service
def test_every_script_is_sound_shell(exported):
    scripts = [path for cases in exported.values() for _, _, folder in cases.values() for path in folder.glob("*.s[hb]*")]
    assert len(scripts) > 100
    checker = Path(sysconfig.get_path("scripts")) / "shellcheck"
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


SERVED = [
    {"model": "llama3-8b", "gpus": 1},
    {"model": "llama3-70b", "gpus": 8, "gpu": "h200", "ttft": "2s", "tpot": "50ms"},
    {"model": "llama3-70b", "gpus": 4, "rate": 2.0, "goal": "gpus", "engine": "vllm"},
    {"model": "qwen3-30b-a3b", "gpus": 2, "tpot": "30ms", "engine": "sglang"},
    {"model": "mixtral-8x7b", "gpus": 3, "isl": 4000, "osl": 200, "engine": "vllm"},
    {"model": "llama3-8b", "gpus": 1, "gpu": "l40s", "ttft": "1s", "tpot": "40ms"},
]
"""With and without limits, odd numbers of GPUs."""


@pytest.mark.service
@pytest.mark.parametrize("question", SERVED, ids=lambda question: " ".join(map(str, question.values())))
def test_the_first_deployment_meets_its_limits_and_its_scripts_are_sound(question, tmp_path):
    found = answer(request_of({**question, "simulate": 0, "top": 1}))
    first, asked = found.reports[0], found.question
    assert first.gpus <= asked.num_gpus and first.memory.kept_free_bytes >= 0 and first.max_concurrency >= first.concurrency
    assert asked.ttft_s is None or first.ttft_s <= asked.ttft_s
    assert asked.tpot_s is None or first.tpot_s <= asked.tpot_s
    for file, text in export_texts(asked, first).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    scripts = list(tmp_path.glob("*.s[hb]*"))
    checker = Path(sysconfig.get_path("scripts")) / "shellcheck"
    done = subprocess.run([checker, *scripts], capture_output=True, text=True, check=False)
    assert scripts and done.returncode == 0, done.stdout


def test_sglang_divides_requests_and_chunk_by_the_attention_ranks(exported):
    """SGLang 0.5.23, parallel_hook.py, handle_data_parallelism."""
    for _, one, folder in (exported["sglang"][name] for name in ("deepseek-v3-64", "deepseek-v3-64-tp2", "mixtral-8x7b-8-adp")):
        plan, read = one.plan.decode, options(folder)
        assert int(read["--attn-dp-size"]) == plan.adp > 1 and int(read["--tp-size"]) == plan.tp * plan.adp
        assert int(read["--chunked-prefill-size"]) == plan.tokens * plan.adp
        seats = int(read["--max-running-requests"])
        assert seats % plan.adp == 0 and plan.batch <= seats < plan.batch + plan.adp
        assert int(read["--max-prefill-tokens"]) == plan.tokens and read["--enable-mixed-chunk"]
    whole = options(exported["sglang"]["llama3-8b-whole"][2])
    assert whole["--chunked-prefill-size"] == "-1" and "--enable-mixed-chunk" not in whole


def test_vllm_has_as_many_tokens_as_sequences_and_experts_on_all_ranks(exported):
    """vLLM 0.33, scheduler.py: max_num_batched_tokens >= max_num_seqs."""
    assert "mixtral-8x7b-8-ep" not in exported["vllm"] and "mixtral-8x7b-8-ep" in exported["sglang"]
    for _, one, folder in exported["vllm"].values():
        for script in {"serve.sh", "prefill.sh", "decode.sh"} & {path.name for path in folder.iterdir()}:
            read = options(folder, script)
            assert int(read["--max-num-batched-tokens"]) >= int(read["--max-num-seqs"])
        if one.plan.prefill is None:
            assert int(read["--max-num-batched-tokens"]) == one.plan.decode.tokens
            assert ("--enable-expert-parallel" in read) == (one.plan.decode.ep > 1)


@pytest.mark.parametrize(
    ("write", "name", "seats"),
    [(vllm, "--max-num-seqs", 140), (trtllm, "--max_batch_size", 70), (sglang, "--max-running-requests", 560)],
)
def test_every_sequence_of_the_plan_has_a_seat(exported, write, name, seats):
    """558 sequences on 4 attention ranks are 140 of the fullest; TensorRT-LLM counts by stages, SGLang divides and floors."""
    question, one, _ = exported["vllm"]["llama3-70b-8-disaggregated"]
    plan = one.plan.decode.replace(tp=1, pp=2, adp=4, ep=1, batch=558)
    assert write(question, "serve", plan).options[name] == seats
    assert seats * {140: 4, 70: 8, 560: 1}[seats] >= plan.batch


@tabled
def test_the_benchmark_prints_the_percentiles_that_were_limited(exported, tails, percentiles, good):
    question, one, _ = exported["vllm"]["llama3-8b-whole"]
    text = export_texts(replace(question, ttft_s=None, tpot_s=None, tails=tails), one)["benchmark.sh"]
    said = dict(line.strip(" \\").partition(" ")[::2] for line in text.splitlines())
    assert (said.get("--metric-percentiles"), said.get("--goodput")) == (percentiles, good)


@pytest.mark.service
def test_the_benchmark_says_what_it_needs_before_it_starts(exported, tmp_path):
    question, one, _ = exported["sglang"]["llama3-8b-whole"]
    script = tmp_path / "benchmark.sh"
    script.write_text(export_texts(question, one)["benchmark.sh"], encoding="utf-8")
    done = subprocess.run(
        ["/bin/bash", str(script)], env={"MODEL": "x", "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127 and "needs vllm bench serve: pip install vllm" in done.stderr and not done.stdout


def test_a_job_of_decode_instances_names_the_port_of_its_script(exported):
    _, one, folder = exported["vllm"]["llama3-70b-8-disaggregated"]
    port = 8000 + one.plan.prefill.replicas
    assert f"FIRST_PORT ({port})" in (folder / "decode.sbatch").read_text(encoding="utf-8")
    assert "FIRST_PORT (8000)" in (folder / "prefill.sbatch").read_text(encoding="utf-8")


@pytest.mark.service
@pytest.mark.parametrize("engine", ["vllm", "trtllm-1.2"])
def test_a_job_finds_its_scripts_from_any_folder(exported, engine, tmp_path):
    """sbatch keeps a copy of the batch script alone and starts it where it was called."""
    folder = exported[engine]["llama3-8b-4"][2]
    (tmp_path / "srun").write_text('#!/bin/bash\nexec "$@"\n', encoding="utf-8")
    server = '#!/bin/bash\necho "$@"\nfor last; do :; done\n[[ $last != *.yaml ]] || cat "$last"\n'
    (tmp_path / {"vllm": "vllm", "trtllm-1.2": "trtllm-serve"}[engine]).write_text(server, encoding="utf-8")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    (tmp_path / "spooled").write_text((folder / "serve.sbatch").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "typed" / "here").mkdir(parents=True)
    (tmp_path / "left").mkdir()
    known = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL": "served", "SLURM_ARRAY_TASK_ID": "1", "TMPDIR": f"{tmp_path}/left"}
    done = subprocess.run(
        ["/bin/bash", str(tmp_path / "spooled")], env={**known, "SLURM_SUBMIT_DIR": str(tmp_path / "typed")},
        cwd=tmp_path / "typed" / "here", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "served" in done.stdout.split() and "8001" in done.stdout.split(), done.stderr
    if engine == "trtllm-1.2":
        assert (folder / "serve.yaml").read_text(encoding="utf-8") in done.stdout
    assert not list((tmp_path / "left").iterdir())


@tabled
def test_both_kinds_of_a_disaggregated_deployment_know_their_part(exported, engine, prefill, decode):
    _, one, folder = exported[engine]["llama3-70b-8-disaggregated"]
    for script, (key, value) in (("prefill.sh", prefill), ("decode.sh", decode)):
        read = options(folder, script)
        read |= json.loads(read.get("--kv-transfer-config", "{}"))
        assert read[key] == value
    assert options(folder, "prefill.sh")["--port"] == "8000"
    assert options(folder, "decode.sh")["--port"] == str(8000 + one.plan.prefill.replicas)
    text = (folder / "decode.sh").read_text(encoding="utf-8")
    assert f"FIRST=$(({one.plan.prefill.gpus} + INSTANCE" in text  # the GPUs behind those of the prefill instances
    program, words = arguments_of(folder / "router.sh")
    assert program == "python3" and words.count("--prefill") == one.plan.prefill.replicas
    assert words.count("--decode") == one.plan.decode.replicas and "http://localhost:8000" in words
    assert '--port "${PORT:-9000}"' in (folder / "benchmark.sh").read_text(encoding="utf-8")
    both = exported[engine]["deepseek-v3-64-disaggregated"]
    plan, read = both[1].plan.prefill, options(both[2], "prefill.sh")
    whole = int(read.get("--max-running-requests", 0)) or int(read["--max-num-seqs"]) * plan.adp
    assert plan.batch < whole == plan.adp * plan.pp  # no rank without a sequence


def test_tensorrt_llm_hands_its_cache_over(exported):
    _, one, folder = exported["trtllm-1.2"]["llama3-70b-8-disaggregated"]
    prefill, decode = (yaml.safe_load((folder / f"{kind}.yaml").read_text(encoding="utf-8")) for kind in ("prefill", "decode"))
    assert prefill["cache_transceiver_config"] == decode["cache_transceiver_config"] != {}
    assert prefill["disable_overlap_scheduler"] and "disable_overlap_scheduler" not in decode
    assert arguments_of(folder / "router.sh")[1][:2] == ["disaggregated", "--config_file"]
    router = yaml.safe_load((folder / "router.yaml").read_text(encoding="utf-8"))
    for servers, plan in (("context_servers", one.plan.prefill), ("generation_servers", one.plan.decode)):
        assert router[servers]["num_instances"] == len(router[servers]["urls"]) == plan.replicas
    assert "deepseek-v3-64-tp2" not in exported["trtllm-1.2"]  # attention data parallelism of tp 2 has no argument


@pytest.mark.parametrize("between", [",", " ", ", "])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_router_takes_instances_parted_by_commas_or_blanks(exported, monkeypatch, engine, between):
    folder = exported[engine]["llama3-70b-8-disaggregated"][2]
    given = {"PREFILL": ["one:8000", "two:8001"], "DECODE": ["three:8000", "four:8001", "five:8002"]}
    for name, instances in given.items():
        monkeypatch.setenv(name, between.join(instances))
    _, words = arguments_of(folder / "router.sh")
    if engine == "trtllm-1.2":
        router = yaml.safe_load((folder / "router.yaml").read_text(encoding="utf-8"))
        found = [router[servers]["urls"] for servers in ("context_servers", "generation_servers")]
    else:
        found = [
            [words[at + 1].removeprefix("http://") for at, word in enumerate(words) if word == kind]
            for kind in ("--prefill", "--decode")
        ]
    assert found == list(given.values())


@pytest.mark.parametrize(
    ("write", "name", "kind"),
    [(trtllm, "--max_num_tokens", "prefill"), (trtllm, "--max_num_tokens", "serve"),
     (megatron, "--inference-dynamic-batching-max-tokens", "serve")],
)  # fmt: skip
@pytest.mark.parametrize("cached", [0.0, 0.8])
def test_a_whole_prompt_with_slack_is_not_refused(exported, write, name, kind, cached):
    """Both engines count all of a prompt, cached or not, against the tokens of an iteration where they do not cut it."""
    question, one, _ = exported["trtllm-1.2"]["llama3-8b-whole"]
    question = replace(question, lengths=replace(question.lengths, cached=cached))
    longest = int(question.workload.longest_input)
    plan = one.plan.decode.replace(kv="bf16", tokens=512)
    assert write(question, kind, plan).options[name] == longest + 128 > 512
    assert write(question, kind, plan.replace(tokens=longest + 200)).options[name] == longest + 200
    assert write(replace(question, chunked=True), kind, plan).options[name] == 512
    if write is trtllm:  # what a prefill instance has prefilled is not counted
        assert write(question, "decode", plan).options[name] == 512


def test_every_file_names_the_release_that_it_is_written_for(exported):
    releases = {"vllm": "vLLM 0.33", "sglang": "SGLang 0.5.23", "trtllm-1.2": "TensorRT-LLM 1.3"}
    routers = {"vllm": "vllm-router 0.1.17", "sglang": "sglang-router 0.3.2", "trtllm-1.2": "TensorRT-LLM 1.3"}
    seen = set()
    for engine, cases in exported.items():
        for _, _, folder in cases.values():
            for path in folder.iterdir():
                head = "\n".join(path.read_text(encoding="utf-8").splitlines()[:4])
                router = path.name.startswith("router.")
                assert (routers if router else releases)[engine] in head, (engine, path.name, head)
                seen.add(path.name)
    assert {"serve.sh", "decode.sbatch", "serve.kubernetes.yaml", "serve.yaml", "router.sh", "benchmark.sh"} <= seen


LENGTHS = {"vllm": "--max-model-len", "sglang": "--context-length", "trtllm-1.2": "--max_seq_len"}


@pytest.mark.parametrize("stddevs", [{}, {"isl_stddev": 1000.0, "osl_stddev": 500.0}])
@pytest.mark.parametrize(("engine", "name"), [*LENGTHS.items()])
def test_a_server_takes_the_models_own_length_or_twice_the_99th_percentile_and_never_the_mean(engine, name, stddevs):
    """The 99th percentile of a gamma distribution is SciPy's; where the cache does not hold the model's own length."""
    fix = ("tp=1", "weights=bf16", "kv=bf16")
    question = understand(
        ServeRequest(model="llama3.1-8b", gpus=1, gpu="h100", engine=engine, isl=1000, osl=500, fix=fix, **stddevs)
    )
    plan = EnginePlan(tp=1, weights="bf16", kv="bf16", batch=8, tokens=2048)
    write = {"vllm": vllm, "sglang": sglang, "trtllm-1.2": trtllm}[engine]
    roomy = write(replace(question, gpu=load_gpu("h200")), "serve", plan).options[name]
    assert roomy == question.model.max_position_embeddings == 131_072
    spread = math.hypot(*stddevs.values())
    most = 1500.0 if not spread else 1500.0 * float(stats.gamma((1500.0 / spread) ** 2).ppf(0.99)) / (1500.0 / spread) ** 2
    tight = write(replace(question, gpu=load_gpu("a10")), "serve", plan).options[name]
    assert max(2.0 * most, question.workload.longest_tokens) == pytest.approx(tight, rel=0.01) and tight > 2 * 1500 - 1


def test_a_script_names_its_release_and_takes_the_models_own_length(exported):
    question, _, folder = exported["vllm"]["llama3-8b-4"]
    assert (folder / "serve.sh").read_text(encoding="utf-8").splitlines()[1] == "# Written by megatron-autoconfig for vLLM 0.33"
    own = question.model.max_position_embeddings
    assert int(options(folder)["--max-model-len"]) == own
    whole = int(options(exported["sglang"]["llama3-8b-4"][2])["--context-length"])
    assert whole == own > question.workload.longest_tokens
    prompts = exported["sglang"]["llama3-8b-whole"]
    assert int(options(prompts[2])["--context-length"]) == prompts[0].workload.longest_tokens + 128, (
        "whole prompts size buffers"
    )


def test_a_cache_in_fp8_is_for_gpus_whose_kernels_read_it(autoconfig):
    asked = ("search", "--inference", "--model", "llama3-8b", "--gpus", "1", "--gpu", "a100", "--simulate", "0", "--top", "3")
    assert {one["decode"]["kv_cache_format"] for one in autoconfig.json(*asked)["deployments"]} == {"bf16"}
    refused = autoconfig.run(*asked, "--fix", "kv=fp8")
    assert refused.exit_code == 2 and "no attention kernel of a100-80gb reads a cache in fp8" in refused.stderr


def test_prefix_hits_are_in_the_benchmark_and_speculation_is_said_to_be_missing(autoconfig, tmp_path):
    asked = ["search", "--inference", "--model", "llama3-8b", "--gpus", "1", "--isl", "1000", "--osl", "100"]
    asked += ["--fix", "weights=bf16", "--engine", "vllm", "--simulate", "0"]
    drafts = ["--draft-tokens", "3", "--acceptance", "0.7"]
    done = autoconfig.run(*asked, *drafts, "--prefix-hit", "0.8", "--export", str(tmp_path / "a"))
    assert done.exit_code == 0 and "not written: speculation with 3 draft tokens a step, 2.53 tokens" in done.stderr
    script = (tmp_path / "a" / "serve.sh").read_text(encoding="utf-8")
    assert "# not written: speculation" in script and "--speculative-config" in done.stderr
    read = options(tmp_path / "a", "benchmark.sh")
    assert (read["--random-prefix-len"], read["--random-input-len"]) == ("800", "200")
    plain = autoconfig.run(*asked, "--export", str(tmp_path / "b"))
    assert "not written" not in plain.stderr and "--random-prefix-len" not in options(tmp_path / "b", "benchmark.sh")
