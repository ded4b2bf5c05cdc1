"""What a study takes for a measurement of its prediction: the verdicts, by hand-made outcomes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from autoconfig.profiler.folder import JobFolder
from autoconfig.profiler.outcome import Kind, Outcome
from autoconfig.specs.errors import InputError
from autoconfig.specs.measurement import Measurement, RankFigures, Served, step_statistics
from optuna.trial import TrialState, create_trial

from autoconfig.planning.serving_calibration import FACTORS, KIND, NUMBERS, serving_calibration
from autoconfig.serving.request import ServeRequest
from autoconfig.study import trials as names
from autoconfig.study.job_log import noticed, timed_steps
from autoconfig.study.serving.session import SERVING
from autoconfig.study.serving.work import ServingSettings
from autoconfig.study.session import Options
from autoconfig.study.training.session import TRAINING
from autoconfig.study.training.settings import StudySettings
from autoconfig.training.question import Request

OPTIONS = Options(folder=Path("unused"), python="unused")
SMALL = {"model": "gpt3-1.7b", "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 8}


def outcome(seconds: float, **more: object) -> Outcome:
    found = Measurement(job_hash="0" * 64, plan="p", status="ran", exit_code=0, **step_statistics((seconds,) * 3), **more)
    return Outcome(kind=Kind.MEASURED, measurement=found)


@pytest.fixture(scope="module")
def serving():
    request = ServeRequest(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", engine="vllm", isl=512, osl=64)
    return SERVING.ask(ServingSettings(request=request), OPTIONS)


@pytest.mark.parametrize(("name", "times", "kind"), [
    ("ttft_s", 1.0, "measured"), ("ttft_s", 1e5, "measured"), ("ttft_s", 1e7, "implausible"), ("tpot_s", 1e-7, "implausible"),
    ("tpot_s", 1e7, "implausible"), ("tokens_per_s", 1e-7, "implausible"), ("tokens_per_s", 1e300, "implausible"),
])  # fmt: skip
def test_a_served_figure_beyond_its_prediction(serving, name, times, kind):
    seen = replace(serving.candidates.forecast[0], **{name: getattr(serving.candidates.forecast[0], name) * times})
    served = Served(ttft_seconds=seen.ttft_s, tpot_seconds=seen.tpot_s, output_tokens_per_second=seen.tokens_per_s, requests=1)
    (stage,) = serving.stages(0, 0, None)
    found = serving.verdict(outcome(stage.predicted_s, served=served), 0, stage, [stage], Path("unused"))
    assert found.attributes[names.OUTCOME] == kind and (found.state is TrialState.FAIL) == (kind == "implausible")


@pytest.fixture(scope="module")
def training():
    return TRAINING.ask(StudySettings(request=Request(**SMALL)), OPTIONS)


@pytest.mark.parametrize(("times", "kind"), [(1.0, "measured"), (0.0, "implausible"), (1e7, "implausible")])
def test_a_peak_beyond_its_prediction(training, times, kind):
    peak = int(training.candidates.peak_bytes[0] * times)
    (stage,) = training.stages(0, 0, None)
    ranks = (RankFigures(rank=0, pipeline_stage=0, peak_allocated_bytes=peak),)
    found = training.verdict(outcome(stage.predicted_s, ranks=ranks), 0, stage, [stage], Path("unused"))
    assert found.attributes[names.OUTCOME] == kind


def test_emulated_ranks_that_say_nothing(training, monkeypatch):
    """A record without its rank's figures, and layers that took no time."""
    work = replace(training, emulated=True)
    planned = work.stages(0, 0, names.EMULATED)
    peak = int(work.candidates.peak_bytes[0])
    for ranks, kind in (((), "garbage"), ((RankFigures(rank=0, pipeline_stage=0, peak_allocated_bytes=peak),), "implausible")):
        ended = outcome(planned[0].predicted_s, ranks=ranks)
        monkeypatch.setattr("autoconfig.study.training.work.outcome_of", lambda folder, ended=ended: ended)
        monkeypatch.setattr("autoconfig.study.training.work.prepare", lambda folder, job: None)
        monkeypatch.setattr("autoconfig.study.training.work.composed_seconds", lambda *_: -1.0)
        found = work.verdict(ended, 0, planned[-1], planned, Path("unused"))
        assert found.attributes[names.OUTCOME] == kind and found.state is TrialState.FAIL


@pytest.mark.parametrize("attributes", [
    {"measured_step_seconds": math.nan, "predicted_step_seconds": 1.0},
    {"measured_step_seconds": 1e-300, "predicted_step_seconds": 1.0},
    {"measured_tokens_per_s_per_gpu": 1e300, "predicted_tokens_per_s_per_gpu": 5.0},
    {"measured_tpot_seconds": 1e-9, "predicted_tpot_seconds": 0.02}, {"log_ratio": math.inf},
])  # fmt: skip
def test_a_stored_trial_that_is_not_believed(attributes):
    trial = create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs={"outcome": "measured", "plan": "p", **attributes})
    found = names.believed(trial)
    assert found.state is TrialState.FAIL and found.user_attrs["outcome"] == "implausible" and found.values is None
    assert not [name for name in found.user_attrs if name.startswith(("measured", "log"))] and found.user_attrs["plan"] == "p"
    assert trial.state is TrialState.COMPLETE and "measured" in trial.user_attrs["outcome"]
    plain = create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs={"outcome": "measured", "measured_step_seconds": 1.0})
    assert names.believed(plain) is plain


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, 10**400])
def test_a_serving_calibration_that_none_wrote(tmp_path, value):
    body = {"kind": KIND, "schema_version": 1, "engine": "trtllm-1.2", "gpu": "h100-sxm-80gb"}
    constants = dict.fromkeys((*FACTORS, *NUMBERS), 0.5)
    for name in FACTORS if value == 0.0 else constants:
        (tmp_path / "c.json").write_text(json.dumps({**body, "constants": {**constants, name: value}}))
        with pytest.raises(InputError, match="must be numbers from 0"):
            serving_calibration(str(tmp_path / "c.json"))


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


def written(folder, steps, reasons=()):
    """A log of the training core (trainer/training.py) with these steps, and samples of NVML beside it."""
    warm = "".join(f"step {number + 1}/99 (warm-up): 9.8 s, loss 10.1234\n" for number in range(2))
    lines = (f"step {number}/99 (timed): {text} s, loss 1.2345\n" for number, text in enumerate(steps, 3))
    folder.log_file.write_text(f"trainer: starts\n{warm}{''.join(lines)}")
    rows = (
        {"time": 1e9 + at, "gpu": 0, "power_watts": 650.0, "sm_mhz": 1755, "throttle_reasons": mask}
        for at, mask in enumerate(reasons)
    )
    if reasons:
        folder.nvml_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_steps_of_a_log_are_times(folder):
    """What else a job prints in their place is passed over."""
    said = ("0.5", "nan", "inf", "0", "0.0", "-1", "1e-3", "1e999", "--", "e", "1.2.3", "+", "1e", "2")
    assert timed_steps(written(folder, said)) == [0.5, 1e-3, 2.0]


def test_before_the_first_step_there_is_none(folder):
    assert timed_steps(folder) == [] and noticed(folder) == []


def test_a_healthy_job_has_nothing_to_notice(folder):
    """Power at its cap (0x4) is usual at full load, and so is an idle GPU (0x1) at the start."""
    assert noticed(written(folder, ("0.501", "0.5", "0.502", "0.499", "0.5", "0.501"), [1, 4, 4, 4, 4])) == []


@pytest.mark.parametrize(
    ("steps", "reasons", "said"),
    [
        (["0.5"] * 6, [0x20, 0x24, 4, 4], "a GPU was slowed down (sw thermal) in 50% of the samples"),
        (["0.5"] * 6, [0x8] + [4] * 3, "a GPU was slowed down (hw slowdown) in 25% of the samples"),
        ([f"{0.5 + 0.02 * at:.2f}" for at in range(12)], (), "steps grow by 36% within the run"),
        (["0.5"] * 9 + ["2.5"] + ["0.5"] * 9, (), "1 of 19 steps paused, 2 s at most"),
    ],
)
def test_what_speaks_against_a_measurement(folder, steps, reasons, said):
    assert noticed(written(folder, steps, reasons)) == [said]


def test_a_file_that_cannot_be_read_is_no_reason_to_fail(folder):
    folder.log_file.mkdir()
    assert timed_steps(folder) == [] and noticed(folder) == []
