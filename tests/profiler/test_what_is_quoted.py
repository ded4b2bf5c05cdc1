"""Which line of a job's log its outcome quotes."""

import importlib.util

import pytest
from autoconfig.profiler.folder import prepare, write_json
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.outcome import EXITED, Kind, outcome_of
from autoconfig.profiler.runner import environment, torchrun
from autoconfig.specs.measurement import ExitCode, Measurement, measurement_text
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Workload
from job_help import make_job, wait_for

LIMIT_S = 120.0
TORCHRUN = "traceback : To enable traceback see: https://pytorch.org\n" + 60 * "=" + "\n"


@pytest.mark.xdist_group("torchrun")
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core: make test installs it")
def test_a_rank_other_than_0_that_fails_first_is_heard(tmp_path):
    """Only rank 1's interpreter has no megatron-core: torchrun ends rank 0 for it before that has anything to say."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if os.environ.get('RANK') == '1': sys.modules['megatron'] = None\n"
        "if os.environ.get('RANK') == '0': time.sleep(60)\n"
    )
    runner = LocalRunner(torchrun(), {**environment(1), "PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"})
    two = make_job(plan=TrainPlan(tp=1, pp=1, dp=2, mbs=1), workload=Workload(seq_length=16, global_batch_size=2))
    folder = prepare(tmp_path / "jobs", two)
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder)
    found = outcome_of(folder)
    assert found is not None and found.kind is Kind.CRASHED and found.exit_code == ExitCode.MISSING_PACKAGE
    assert "ends: trainer: rank 1: No module named" in found.message and "[train]" in found.message


@pytest.mark.parametrize("said_afterwards", ["terminated: rank 0: ended by a signal", "peer lost: rank 3 lost a peer"])
def test_the_reason_is_quoted_and_not_what_followed_from_it(new_folder, said_afterwards):
    """Ranks that are ended say so after the one that failed; below them torchrun lists every rank of a node."""
    folder = new_folder()
    lines = ["step 1", "trainer: rank 1: the reason", f"trainer: {said_afterwards}", *["  rank : 1"] * 200, TORCHRUN]
    folder.log_file.write_text("\n".join(lines))
    write_json(folder.end_file, {"reason": EXITED, "exit_code": 1})
    found = outcome_of(folder)
    assert found is not None and found.message.endswith("ends: trainer: rank 1: the reason")


def test_a_reason_that_the_result_gives_is_not_said_twice(new_folder):
    folder = new_folder()
    folder.log_file.write_text(f"trainer: crashed: rank 0: ValueError: no\n{TORCHRUN}")
    job = folder.job()
    failed = Measurement(
        job_hash=job.content_hash, plan=str(job.plan), status="failed", exit_code=1, message="rank 0: ValueError: no"
    )
    folder.result_file.write_text(measurement_text(failed))
    found = outcome_of(folder)
    assert found is not None and found.message == f"rank 0: ValueError: no; log {folder.log_file}"
