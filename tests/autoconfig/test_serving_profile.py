"""The measured frontier: real jobs of megatron-core's static engine on a CPU, an Optuna study of them, the prediction."""

import dataclasses
import sys

import pytest
from scipy.stats import spearmanr

from autoconfig.serving.profile import GenerationPoint, calibrated, generation_command, measure, predicted, serving_job
from profiler.launch import environment
from profiler.local import LocalRunner
from specs.errors import InputError
from specs.gpu_catalogue import load_gpu
from specs.model_catalogue import load_model
from time_model.serving_calibration import EngineConstants

TINY = load_model("qwen2.5-0.5b").replace(
    name="tiny",
    num_layers=4,
    hidden_size=256,
    num_attention_heads=4,
    num_query_groups=2,
    kv_channels=64,
    ffn_hidden_size=1024,
    vocab_size=2048,
)
BATCHES, PROMPT, NEW = (1, 4, 16, 64), 64, 12
CPU = dataclasses.replace(
    load_gpu("h100"), id="cpu", flops_per_s={"bf16": 30e9, "fp16": 30e9}, hbm_bytes_per_s=10e9, memory_bytes=8 * 2**30
)
"""A core of a server: an order of magnitude is enough, the calibration scales it."""


def runner(command=None):
    return LocalRunner(command or generation_command(sys.executable, PROMPT, NEW), environment(1))


def shape(points, forecast):
    """Rank correlations of throughput and of time per token over the frontier."""
    speed = spearmanr([p.tokens_per_s for p in points], [p.tokens_per_s for p in forecast]).statistic
    step = spearmanr([p.step_s for p in points], [p.step_s for p in forecast]).statistic
    return float(speed), float(step)


def test_the_measured_frontier_has_the_shape_of_the_calibrated_prediction(tmp_path):
    pytest.importorskip("megatron.core", reason="the jobs run megatron-core's engine")
    found = measure(TINY, tmp_path, runner(), batches=BATCHES, prompt=PROMPT, new=NEW, trials=2)
    assert len(found.points) == 2 and not found.failed  # stopped after two trials
    found = measure(TINY, tmp_path, runner(["false"]), batches=BATCHES, prompt=PROMPT, new=NEW, trials=2)
    assert len(found.points) == 2  # nothing is run again
    found = measure(TINY, tmp_path, runner(), batches=BATCHES, prompt=PROMPT, new=NEW, trials=len(BATCHES))
    assert [p.batch for p in found.points] == list(BATCHES) and not found.failed
    frontier = [p for p in found.points if p.batch in found.frontier]
    assert len(frontier) >= 3
    job = calibrated(serving_job(TINY, CPU), found.points)
    assert job.constants.factor > 0
    speed, step = shape(frontier, [predicted(job, p) for p in frontier])
    assert speed >= 0.9 and step >= 0.9, (speed, step, found.points)


def test_a_calibration_finds_the_constants_that_made_the_points():
    truth = dataclasses.replace(
        serving_job(TINY, CPU), constants=EngineConstants(factor=3.0, host_s=2e-3, sampler_bytes=0.0)
    )
    made = [predicted(truth, GenerationPoint(batch=b, prompt=PROMPT, new=NEW, prompt_s=1.0, step_s=1.0)) for b in BATCHES]
    again = calibrated(serving_job(TINY, CPU), made)
    assert again.constants.factor == pytest.approx(3.0, rel=1e-3) and again.constants.host_s == pytest.approx(2e-3, rel=1e-3)
    assert shape(made, [predicted(again, p) for p in made]) == (pytest.approx(1.0), pytest.approx(1.0))
    upside_down = [dataclasses.replace(p, step_s=1.0 / p.step_s, prompt_s=1.0 / p.prompt_s) for p in made]
    assert min(shape(upside_down, [predicted(again, p) for p in made])) < 0.9


def test_a_job_that_dies_is_a_failed_trial_with_its_last_words(tmp_path):
    def broken(folder, job):
        return ["bash", "-c", "echo no such engine; exit 3"]

    found = measure(TINY, tmp_path, runner(broken), batches=(1, 2), prompt=8, new=4, trials=2)
    assert not found.points and not found.frontier and len(found.failed) == 2 and "no such engine" in found.failed[0]


def test_a_budget_ends_the_study_and_wrong_values_are_refused(tmp_path):
    found = measure(TINY, tmp_path, runner(), batches=(1, 2), prompt=8, new=4, trials=2, budget_s=0.0)
    assert not found.points and not found.failed
    for wrong in ({"batches": ()}, {"batches": (0,)}, {"new": 1}, {"trials": 0}):
        with pytest.raises(InputError, match="at least"):
            measure(TINY, tmp_path, runner(), **{"batches": (1,), "prompt": 8, "new": 4, "trials": 1, **wrong})
