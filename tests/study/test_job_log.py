"""The logs of a study's own jobs, read by the readers of `diagnose`: steps so far, and what speaks against a measurement."""

import json

import pytest
from autoconfig.profiler.folder import JobFolder

from autoconfig.study.job_log import noticed, timed_steps


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
