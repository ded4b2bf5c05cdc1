"""Tools: `make gpu`, recorded answers, the judge of TensorRT-LLM's options, the picture, the host's floor."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import ExitCode, read_measurement
from autoconfig.specs.run_settings import RunSettings
from autoconfig.specs.software.software import load_stack
from tables import tabled

from autoconfig.calibration.gpu_runs import gpu_runs
from autoconfig.engines.export import export_texts
from autoconfig.render.validation import run_rows
from tools import gpu
from tools.architecture import PICTURE, draw
from tools.lower_bounds import EXTRAS, LEFT_OUT, constraints, lower_bounds, project, requirements
from tools.modules_used import Walk
from tools.recorded_answers.compare import compare, report
from tools.recorded_answers.record import chosen, load, normalised
from validation.fit import refit_mixtures, release_docs
from validation.fit.host_floor import ARCHITECTURES, host_seconds, launch_bound_runs, slopes
from validation.judge.serving_plans import deployments
from validation.judge.trtllm_source import Options, command, judge


@pytest.mark.service
def test_the_picture_is_fresh() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "run python -m tools.architecture"


def test_the_table_of_releases_is_fresh() -> None:
    page = release_docs.PAGE.read_text(encoding="utf-8")
    assert page == release_docs.rewritten(page), "run python -m validation.fit.release_docs"
    assert release_docs.changes(RunSettings(), RunSettings(dispatcher="deepep", ep_overlap=True)) == (
        "alltoall -> deepep, EP overlap on"
    )


def test_the_catalogue_holds_what_the_runs_say():
    assert load_stack("transformer-engine").time.host_floor_seconds == pytest.approx(host_seconds(), rel=0.03)
    counts = [len(launch_bound_runs(name)) for name in ARCHITECTURES]
    assert min(counts) > 30 and all(slopes(launch_bound_runs(name)) for name in ARCHITECTURES)


def recording(folder, answers):
    """A recording with these texts: {question: {file: text}}."""
    for question, files in answers.items():
        for name, text in files.items():
            path = folder / question / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def both(tmp_path, old, new):
    return compare(recording(tmp_path / "old", old), recording(tmp_path / "new", new))


def test_equal_recordings_are_alike(tmp_path):
    answers = {"a": {"stdout": "x\n", "files/run/train.sh": "y\n"}, "b": {"stdout": ""}}
    found = both(tmp_path, answers, answers)
    assert found.alike() and found.same == ["a", "b"]
    assert list(report(found)) == ["2 alike, 0 different, 0 only in the old, 0 only in the new recording"]


def test_every_difference_is_found_and_summed_up(tmp_path):
    same = {"same": {"stdout": "x"}}
    old = {"a": {"stdout": "one\ntwo\nthree\n", "exit_code": "0\n"}, "gone": {"stdout": ""}, **same}
    new = {"a": {"stdout": "one\n2\nthree\n", "exit_code": "0\n", "files/x.csv": "1\n"}, "come": {"stdout": ""}, **same}
    found = both(tmp_path, old, new)
    assert not found.alike() and found.different() == ["a"]
    lines = list(report(found))
    assert "-two" in lines and "+2" in lines and "only in the new recording: a/files/x.csv (2 characters)" in lines
    assert lines[-4:] == [
        "different  a: files/x.csv, stdout", "only old   gone", "only new   come",
        "1 alike, 1 different, 1 only in the old, 1 only in the new recording",
    ]  # fmt: skip
    long = both(tmp_path, {"long": {"stdout": "x\n" * 150}}, {"long": {"stdout": "y\n" * 150}})
    assert "... 103 more lines of this file" in "\n".join(report(long))


def test_no_recording_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no recording"):
        compare(tmp_path / "nowhere", tmp_path)


def test_only_what_no_two_runs_have_alike_is_replaced():
    hidden = {"/tmp/x": "<place>", "/tmp/x/env": "<environment>"}
    text = "wrote /tmp/x/env/a and /tmp/x/b at 2026-01-31T23:59:59.5+00:00 for 12345678-1234-1234-1234-123456789abc"
    assert normalised(text, hidden) == "wrote <environment>/a and <place>/b at <time> for <uuid>"
    for kept in ("step 6.10 s at 45.7 GiB", "calibration published-492-11fac8f8", "in 2026-01-31", "a 30.5 s"):
        assert normalised(kept, hidden) == kept


def test_the_questions_can_be_read():
    questions, requests = load()
    assert len(questions) + len(requests) > 100
    assert all(question.input_files() or not question.inputs for question in questions)
    assert chosen(questions, requests, "*") == (questions, requests)
    some, none = chosen(questions, requests, "search-175b*")
    assert len(some) == 2 and not none
    assert chosen(questions, requests, "http-plans") == ([], requests)
    with pytest.raises(ValueError, match="no question is named"):
        chosen(questions, requests, "nothing*")


ROOT = Path(__file__).parents[2]
needs_torch, needs_megatron = (
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("torch", "megatron")
)


def test_ranks_cover_the_named_plans_first_and_last_stage() -> None:
    jobs = [job for _, job in gpu.rank_jobs("cuda", "megatron-local", small=False)]
    assert len({job.content_hash for job in jobs}) == len(jobs) == 3 * (3 * 2 + 2 + 2 + 1 + 2)
    names = {(job.model.name, job.plan.tp, job.plan.pp) for job in jobs}
    assert {("gpt3-175b", 8, 8), ("gpt3-175b", 8, 16), ("gpt3-175b", 4, 16), ("llama3-70b", 4, 4), ("llama3-70b", 8, 2),
            ("llama3-8b", 1, 1), ("mixtral-8x7b", 1, 4)} == names  # fmt: skip
    for job in jobs:
        assert job.rank is not None and job.numerics.precision == "bf16" and job.num_microbatches == 2 * job.plan.pp
        stage = job.rank // (job.plan.tp * job.plan.cp * job.plan.dp)
        assert stage in (0, job.plan.pp - 1)
    assert {job.plan.ep for job in jobs if job.model.is_moe} == {8}


@pytest.mark.soak
@needs_megatron
def test_validate_reads_what_a_cpu_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, emulated ranks and runs of a CPU: all predicted, the same plan once to fit and once not."""
    monkeypatch.setattr(gpu, "MICRO_BATCHES", (1, 64))
    monkeypatch.setattr(gpu, "RECOMPUTE", ("none",))
    for part in gpu.PARTS:
        assert gpu.main(["--part", part, "--device", "cpu", "--set", "tiny", "--output", str(tmp_path)]) == 0
    runs = gpu_runs(tmp_path)
    assert len(runs) == 2 + 2 and {run.part for run in runs} == {"ranks", "sweep"}
    assert all(run.agrees for run in runs)
    places = [path for part in ("ranks", "sweep") for path in sorted(tmp_path.glob(f"*/{part}/*/result.json"))]
    results = [read_measurement(path) for path in places]
    for run, found in zip(runs, results, strict=True):  # no bar: a CPU's kernels keep other tensors than a GPU's
        print(f"{run.plan}: {run.measured_gib} GiB, {run.predicted_gib} predicted")
        ran = run.status == "ran"
        assert run.measured_gib == (found.ranks[0].peak_allocated_bytes / 2**30 if ran else None)
        assert (run.measured_seconds is not None and run.measured_seconds > 0) == ran
    assert sum(run.predicted_seconds is not None for run in runs) == 1 + 2
    lines = run_rows(runs)
    assert [line["GiB"] for line in lines].count("out of memory") == 1 and {line["fits"] for line in lines} == {"right"}


def test_validate_without_results_or_with_a_strange_folder(tmp_path: Path) -> None:
    assert gpu_runs(tmp_path) == ()
    with pytest.raises(InputError, match="is no folder"):
        gpu_runs(tmp_path / "none")
    (tmp_path / "some-gpu" / "ranks" / "0").mkdir(parents=True)
    (tmp_path / "some-gpu" / "ranks" / "0" / "result.json").write_text("{}")
    with pytest.raises(InputError, match="PART=kernels"):
        gpu_runs(tmp_path)


@needs_megatron
def test_a_job_without_a_result_is_named_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    def process(_: gpu.Jobs, place: Path, limit_s: float) -> int:
        (place / "log.txt").write_text("trainer: no such thing\n")
        return ExitCode.CRASHED

    monkeypatch.setattr(gpu.Jobs, "_process", process)
    assert gpu.main(["--part", "ranks", "--device", "cpu", "--set", "tiny", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("no result: tiny gpt3-126m") == 4 and "exit code 1, trainer: no such thing" in said


@pytest.mark.service
@pytest.mark.parametrize(("part", "python", "said"), [("kernels", "/no/such/python", "make gpu needs a Python with torch")])
def test_make_says_what_it_needs(part: str, python: str, said: str) -> None:
    command = ["make", "-s", "gpu", f"PART={part}", f"GPU_PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and said in done.stderr


LLM_ARGS = """
from tensorrt_llm.bindings import Nothing
def Field(default=..., *, status=None, **kwargs):
    return PydanticField(default, **kwargs)
class StrictBaseModel(BaseModel):
    model_config = {"extra": "forbid"}
class CudaGraphConfig(StrictBaseModel):
    max_batch_size: int = Field(default=0)
    enable_padding: bool = Field(default=False)
@Nothing.mirror
class KvCacheConfig(StrictBaseModel, Nothing):
    dtype: str = Field(default="auto", status="beta")
    free_gpu_memory_fraction: Optional[float] = Field(default=0.9)
    @field_validator("free_gpu_memory_fraction")
    @classmethod
    def validate(cls, v):
        if not 0 <= v <= 1:
            raise ValueError("a share")
        return v
class CacheTransceiverConfig(StrictBaseModel):
    backend: Optional[Literal["DEFAULT", "UCX"]] = Field(default=None)
    max_tokens_in_buffer: Optional[int] = Field(default=None)
class BaseLlmArgs(StrictBaseModel):
    enable_chunked_prefill: bool = Field(default=False)
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    cache_transceiver_config: Optional[CacheTransceiverConfig] = Field(default=None)
class TorchLlmArgs(BaseLlmArgs):
    enable_attention_dp: bool = Field(default=False)
    disable_overlap_scheduler: bool = Field(default=False)
    cuda_graph_config: Optional[CudaGraphConfig] = Field(default=None)
"""
SERVE = """
@click.command("serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=ChoiceWithAlias(["pytorch", "tensorrt"], {"trt": "tensorrt"}), default="pytorch")
@click.option("--tensor_parallel_size", "--tp_size", type=int)
@click.option("--pipeline_parallel_size", "--pp_size", type=int)
@click.option("--moe_expert_parallel_size", "--ep_size", type=int)
@click.option("--max_batch_size", type=int)
@click.option("--max_num_tokens", type=int)
@click.option("--max_seq_len", type=int)
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str)
@click.option("--fail_fast", is_flag=True, default=False)
def serve(): ...
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorrt_llm")
    (folder / "llm_args.py").write_text(LLM_ARGS, encoding="utf-8")
    (folder / "serve.py").write_text(SERVE, encoding="utf-8")
    return command(folder / "serve.py"), Options(folder / "llm_args.py")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disaggregated")
    found = ((question, one) for name, question, one in deployments("trtllm-1.2") if name == "llama3-70b-8-disaggregated")
    for file, text in export_texts(*next(found)).items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


exported_deployments = pytest.mark.xdist_group("serving export")
"""Of the worker that works them out for tests/engines."""


@exported_deployments
def test_an_exported_deployment_is_accepted(source, exported):
    assert judge(exported, *source) == []


@exported_deployments
@tabled
def test_what_the_source_does_not_say_is_refused(source, exported, tmp_path, file, old, new, words):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    wrong = judge(copy, *source)
    assert len(wrong) == 1 and words in wrong[0], wrong


def test_constants_of_mixtures_are_found_again():
    """Errors that are linear in the constants' logarithms: the fit finds those that made them; runs of a plan count once."""
    start = dict.fromkeys(refit_mixtures.CONSTANTS, 0.5)
    true = {**start, "expert_host_seconds": 0.6, "grouped_gemm_share": 0.45}
    slopes = np.random.default_rng(1).uniform(0.1, 0.6, (60, len(start)))

    def price(values):
        return slopes @ np.log([values[name] / true[name] for name in start])

    found = refit_mixtures.fitted(price, np.ones(60), start)
    assert all(found[name] == pytest.approx(true[name], rel=0.03) for name in start)
    runs = refit_mixtures.mixtures()
    weight = refit_mixtures.weights(runs)
    assert len(runs) > 60 and 20 < weight.sum() < 0.7 * len(runs)


def test_every_extra_is_tried_or_said_to_be_left_out():
    of_developers = {"dev", "judge", "docs", "release", "all"}
    assert {*EXTRAS, *LEFT_OUT, *of_developers} == set(project()["optional-dependencies"])


def test_every_requirement_has_one_lower_bound():
    found = lower_bounds(project())
    assert set(found) == {name for name, _, _ in requirements(project())} and "megatron-autoconfig" not in found
    assert found["click"] == "8.4"  # 8.3: every command ends at its import
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in constraints(project()))


@pytest.mark.parametrize(("lines", "said"), [(["a"], "no lower bound"), (["a<2"], "no lower"), (["a>=1", "a>=2"], "1 and 2")])
def test_a_requirement_without_one_is_refused(lines, said):
    with pytest.raises(ValueError, match=said):
        lower_bounds({"name": "x", "dependencies": lines, "optional-dependencies": {}}, ())
    assert lower_bounds({"name": "x", "dependencies": ["a[b]>=1.5,<3; python_version<'4'"]}, ()) == {"a": "1.5"}


PROJECT = """
[[tool.importlinter.contracts]]
name = "imports point one way"
layers = ["cli", "training | serving", "planning"]
"""
FILES = {
    "training/answer.py": """
from autoconfig.planning.names import read
from autoconfig.serving.rank import rank
from autoconfig.training.rank import order
def search(request, other):
    order(other)
    found = read(*[request])
    unseen(1)
    return [rank(1, plan=one) for one in found]
def unseen(request):
    return order(request)
def again(request):
    order(request)
    return later(request)
def later(request):
    return request
""",
    "training/rank.py": "def order(plans): return plans",
    "serving/rank.py": """
from autoconfig.planning.names import read
def rank(plan_number, *, plan):
    return read(plan)
""",
    "planning/names.py": "def read(name): return name.strip()",
}


def test_what_is_made_of_a_parameter_is_followed_and_nothing_else(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, text in FILES.items():
        (tmp_path / "autoconfig" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "autoconfig" / name).write_text(text)
    walk = Walk("autoconfig.training.answer", "search", "request", tmp_path)
    assert walk.steps == ["autoconfig.training.answer", "autoconfig.planning.names", "autoconfig.serving.rank"]
    assert walk.climbs == [("autoconfig.planning.names", "autoconfig.serving.rank")] and walk.returns == 0
    assert Walk("autoconfig.training.answer", "search", "other", tmp_path).steps[1:] == ["autoconfig.training.rank"]
    assert Walk("autoconfig.training.answer", "again", "request", tmp_path).returns == 1
