"""`autoconfig trace`, `emulate` and generation jobs as a user runs them, with this interpreter as the one that has torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.job import MAX_PROCESSES, Generation, Job, job_text, ranks_of_stages, read_stages
from autoconfig.specs.measurement import ExitCode, read_measurement
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Workload
from jsonschema import Draft202012Validator
from tables import tabled

from autoconfig.planning.schemas import schema

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torchrun")]
ROOT = Path(__file__).parents[2]
TINY = {
    "num_layers": 4, "hidden_size": 128, "num_attention_heads": 8, "num_query_groups": 4, "kv_channels": 16,
    "ffn_hidden_size": 256, "vocab_size": 512,
}  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("software", ["megatron-local-flash", pytest.param("transformer-engine", marks=pytest.mark.soak)])
def test_trace_prints_its_schema(autoconfig, ready: str, software: str) -> None:
    ended = autoconfig.run(
        "trace", "--model", "llama3-8b", "--gpus", "8", "--software", software, "--seq-length", "512",
        "--global-batch-size", "8", "--num-layers", "2", "tp=2,pp=2,mbs=1,sp=1", "--stages", "all", "--python", ready, "--json",
    )  # fmt: skip
    assert ended.exit_code == 0, ended.stderr
    body = json.loads(ended.stdout)
    Draft202012Validator(schema("trace")).validate(body)
    places = [(rank["rank"], rank["pipeline_stage"]) for rank in body["ranks"]]
    assert places == [(rank, rank // 4) for rank in (0, 3, 4, 7)]
    assert (body["stages_traced"], body["stages_left_out"]) == ([0, 1], [])
    assert body["stack"] == ("transformer-engine" if software == "transformer-engine" else "megatron-local")
    for rank in body["ranks"]:
        assert sum(rank["by_category_gib"].values()) == pytest.approx(rank["peak_gib"])
        terms = {term["term"]: term for term in rank["difference"]}
        assert sum(term["formula_gib"] for term in terms.values()) == pytest.approx(rank["formula_gib"])
        if software != "transformer-engine" or rank["pipeline_stage"] in (0, 3):  # its middle stages are 2.5 % low here
            assert rank["formula_gib"] == pytest.approx(rank["peak_gib"], rel=0.02)
        assert rank["saved_tensors"]


def test_stages_to_trace() -> None:
    plan = parse_plan("tp=2,pp=8,mbs=1,sp=1", 64)
    assert read_stages(None, plan) == (0, 4, 7)
    assert len(read_stages(None, plan)) == MAX_PROCESSES, "on two cores none waits for a third that begins last"
    assert ranks_of_stages(plan, (0, 4, 7), both_ends=False) == (0, 32, 56)
    assert read_stages("all", plan) == tuple(range(8)) and read_stages("7, 1", plan) == (7, 1)
    assert ranks_of_stages(plan, (7, 1), both_ends=True) == (56, 63, 8, 15)
    assert read_stages(None, parse_plan("tp=2,pp=2,mbs=1", 4)) == (0, 1)
    assert read_stages(None, parse_plan("tp=2,mbs=1", 2)) == (0,)
    for odd in ("8", "first", "-1"):
        with pytest.raises(InputError, match="--stages"):
            read_stages(odd, plan)


@tabled
def test_bad_questions_end_with_one_line(autoconfig, arguments: list[str], message: str) -> None:
    ended = autoconfig.run("trace", "--model", "llama3-8b", "--gpus", "8", *arguments)
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [["trace"], ["emulate", "--rank", "0", "--device", "cpu"]], ids=lambda command: command[0])
def test_recomputation_that_never_ends_is_refused(autoconfig, command: list[str]) -> None:
    plan = "tp=2,mbs=1,sp=1,recompute=selective:mlp"
    for software in ("megatron-local-flash", "transformer-engine"):
        ended = autoconfig.run(*command, "--model", "gpt3-126m", "--gpus", "2", "--software", software, plan)
        assert ended.exit_code == 2 and "recompute=selective:mlp" in ended.stderr and "Traceback" not in ended.stderr


def job(plan: str, seq_length: int, **changes: object) -> Job:
    return Job(
        model=load_model("llama3-8b").replace(name="tiny", **TINY),
        plan=parse_plan(plan, 2),
        workload=Workload(seq_length=seq_length, global_batch_size=4),
        numerics=Numerics(attention_dropout=0.0, hidden_dropout=0.0),
        device="cpu",
        steps=1,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.soak
@pytest.mark.parametrize(("plan", "seq_length"), [
    ("tp=2,mbs=1,sp=1,dp=1", 64),  # model state is most of it: a copy that gloo makes of the gradients would show
    ("pp=2,mbs=1,dp=1,recompute=full:uniform:1", 512),
])  # fmt: skip
def test_emulated_ranks_hold_what_real_ranks_hold(plan: str, seq_length: int, start, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(job_text(job(plan, seq_length)))
    run = start(2, "-m", "autoconfig.trainer", "--job", str(tmp_path / "job.json"))
    assert run.wait() == 0, run.communicate()
    real = read_measurement(tmp_path / "result.json")
    for rank in (0, 1):
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "job.json").write_text(job_text(job(plan, seq_length, mode="emulate", rank=rank)))
        command = [sys.executable, "-P", "-m", "autoconfig.trainer", "--job", str(folder / "job.json")]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        emulated = read_measurement(folder / "result.json").ranks[0]
        assert (emulated.rank, emulated.pipeline_stage) == (rank, real.ranks[rank].pipeline_stage)
        assert set(emulated.bytes_by_category) == set(real.ranks[rank].bytes_by_category)
        for category, size in real.ranks[rank].bytes_by_category.items():
            assert emulated.bytes_by_category[category] == pytest.approx(size, rel=0.02), category
        assert emulated.layer_seconds["dense.forward"] > 0
        assert emulated.layer_seconds["dense.backward"] > 0
        assert ("dense.recompute" in emulated.layer_seconds) == ("recompute=full" in plan)


pytest.importorskip("megatron.core", reason="the training core generates with megatron-core")
TINY_QWEN = load_model("qwen2.5-0.5b").replace(
    num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=2, kv_channels=16, ffn_hidden_size=128, vocab_size=256
)


def make_job(tp=1, pp=1, **changes):
    values = {
        "model": TINY_QWEN, "plan": TrainPlan(tp=tp, pp=pp, dp=1, mbs=3), "numerics": Numerics(precision="fp32"),
        "workload": Workload(seq_length=14, global_batch_size=3), "generation": Generation(prompt=8, new=6), "device": "cpu",
        "mode": "generate", "steps": 2, "warmup_steps": 1,
    }  # fmt: skip
    return Job(**{**values, **changes})


def run(folder, job, python=sys.executable):
    """The result; one rank needs no torchrun."""
    folder.mkdir()
    (folder / "job.json").write_text(job_text(job))
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={job.num_processes}", "--standalone"]
    command = [python, *(launcher if job.num_processes > 1 else ["-P"]), "-m", "autoconfig.trainer", "--job"]
    done = subprocess.run(
        [*command, str(folder / "job.json")], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert (folder / "result.json").exists(), done.stderr
    return read_measurement(folder / "result.json")


@pytest.mark.soak
def test_tensor_ranks_generate_what_one_rank_does(tmp_path):
    alone, two = run(tmp_path / "1", make_job()), run(tmp_path / "2", make_job(tp=2))
    assert alone.status == two.status == "ran" and len(two.ranks) == 2
    assert alone.served.answers_digest == two.served.answers_digest
    for found in (alone.served, two.served):
        assert found.requests == 6 and len(found.ttft_samples) == len(found.tpot_samples) == 2
        assert found.output_tokens_per_second == pytest.approx(3 * 6 / (found.ttft_seconds + 5 * found.tpot_seconds))
    weights = [found.ranks[0].bytes_by_category["weights"] for found in (alone, two)]
    assert weights[1] < 0.6 * weights[0]
    assert len(alone.step_seconds_samples) == 2 and len(alone.warmup_seconds) == 1


@pytest.mark.parametrize(("changes", "code", "said"), [
    ({"device_memory_bytes": 300_000}, ExitCode.OUT_OF_MEMORY, "the limit is 300,000"),
    pytest.param({"generation": Generation(prompt=8, new=6, engine="vllm")}, ExitCode.BAD_JOB, "generation.engine=megatron",
                 marks=pytest.mark.judge),
])  # fmt: skip
def test_how_a_generation_that_cannot_run_ends(changes, code, said, ready, tmp_path):
    found = run(tmp_path / "job", make_job(**changes), ready)
    assert found.exit_code == code and said in found.message and found.served is None
    assert json.loads((tmp_path / "job" / "job.json").read_text())["mode"] == "generate"
