"""Local jobs as real processes: every way to end, nothing left behind, nothing run twice; what is quoted and sampled."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import stand_in
from autoconfig.profiler.folder import LOG_CUT, NAME_DIGITS, cut_logs, folder_of, is_held, prepare, read_json
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.outcome import FINAL, Kind, outcome_of
from autoconfig.profiler.processes import marked, started_at
from autoconfig.profiler.runner import Life, environment, torchrun
from autoconfig.profiler.supervise import Sampler
from autoconfig.specs.measurement import ExitCode
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Workload
from job_help import make_job, runs_of, stand_in_command, wait_for, wait_until

pytestmark = pytest.mark.service

LIMIT_S = 60.0


@pytest.fixture
def runner():
    return LocalRunner(stand_in_command)


@pytest.mark.parametrize(("behaviour", "kind", "said"), [
    (stand_in.MEASURE, Kind.MEASURED, ""), (stand_in.DIE, Kind.CRASHED, "the reason is here"),
    (stand_in.GARBAGE, Kind.GARBAGE, "not valid JSON"), (stand_in.OTHERS, Kind.GARBAGE, "another job"),
    (stand_in.OUT_OF_MEMORY, Kind.OUT_OF_MEMORY, "as told"), (stand_in.FAIL, Kind.FAILED, "as told"),
])  # fmt: skip
def test_how_a_job_ends(runner, new_folder, behaviour, kind, said):
    folder = new_folder(behaviour)
    assert outcome_of(folder) is None
    runner.submit(folder, LIMIT_S)
    assert wait_for(runner, folder) is Life.ENDED
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is kind and said in outcome.message
    assert (outcome.measurement is not None) == (kind in (Kind.MEASURED, Kind.OUT_OF_MEMORY, Kind.FAILED))
    assert marked(folder.path) == [] and not is_held(folder.lock_file)


@pytest.mark.parametrize("behaviour", [stand_in.HANG, stand_in.HIDE])
def test_a_job_that_hangs_is_ended_at_its_limit(runner, new_folder, behaviour):
    """Deaf to SIGTERM, or with a child in another session: everything is gone afterwards."""
    folder = new_folder(behaviour)
    runner.submit(folder, 1.0)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.TIMED_OUT and outcome.kind in FINAL
    assert marked(folder.path) == []


def test_cancel_ends_all_processes(runner, new_folder):
    folder = new_folder(stand_in.HIDE)
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: len(marked(folder.path)) >= 2, "the job has not started its child")
    runner.cancel(folder)
    assert marked(folder.path) == [] and runner.poll(folder) is Life.ENDED
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.CANCELLED and outcome.kind not in FINAL
    runner.cancel(folder)


def test_a_running_job_is_not_started_again(runner, new_folder):
    folder = new_folder(stand_in.HIDE)
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: runs_of(folder) == 1, "the job has not started")
    runner.submit(folder, LIMIT_S)
    LocalRunner(stand_in_command).submit(folder, LIMIT_S)
    assert runner.poll(folder) is Life.RUNNING and runs_of(folder) == 1
    LocalRunner(stand_in_command).cancel(folder)
    assert marked(folder.path) == []


def test_a_dead_watcher_takes_its_job_along(runner, new_folder):
    """kill -9 of the watcher: its command is told by the kernel; the folder says lost, and the job may run again."""
    folder = new_folder(stand_in.SLOW)
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: runs_of(folder) == 1, "the job has not started")
    watcher = read_json(folder.life_file)["pid"]
    ticks = read_json(folder.life_file)["start_ticks"]
    assert started_at(watcher, ticks).pid == watcher and started_at(watcher, ticks + 1) is None
    os.kill(watcher, signal.SIGKILL)
    wait_until(lambda: marked(folder.path) == [], "the job outlives its watcher")
    assert wait_for(runner, folder) is Life.LOST
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.MEASURED
    assert runs_of(folder) == 2 and read_json(folder.launch_file)["attempt"] == 2


def test_a_watcher_holds_nothing_of_its_caller(runner, new_folder):
    """A pipe or lock that the search inherited from a shell ends with the search, not with the job."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    folder = new_folder(stand_in.HIDE)
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: runs_of(folder) == 1, "the job has not started")
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b"", "somebody holds the other end"
    os.close(reader)
    runner.cancel(folder)


def test_a_command_that_does_not_exist(new_folder):
    folder = new_folder()
    runner = LocalRunner(lambda folder, job: ["/no/such/program"])
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder)
    outcome = outcome_of(folder)
    assert outcome is not None and outcome.kind is Kind.CRASHED and "cannot be started" in outcome.message


def test_a_folder_is_named_by_content(tmp_path):
    job = make_job()
    folder = prepare(tmp_path, job)
    assert folder.name == job.content_hash[:NAME_DIGITS] and folder.job() == job
    assert prepare(tmp_path, job.replace()) == folder
    assert folder_of(tmp_path, job.replace(steps=7)) != folder


def test_jobs_of_one_place_take_turns(runner, new_folder):
    """Two searches' jobs never measure beside each other: the second waits, outside its time limit, and may be cancelled."""
    first, second = new_folder(stand_in.HIDE), new_folder(stand_in.MEASURE)
    runner.submit(first, LIMIT_S)
    wait_until(lambda: runs_of(first) == 1, "the job has not started")
    other = LocalRunner(stand_in_command)
    other.submit(second, 10.0)
    assert other.poll(second) is Life.WAITING and runner.poll(first) is Life.RUNNING
    other.cancel(second)
    outcome = outcome_of(second)
    assert outcome is not None and outcome.kind is Kind.CANCELLED and runs_of(second) == 0
    other.submit(second, 10.0)
    wait_until(second.life_file.exists, "no watcher waits for its turn")
    assert other.poll(second) is Life.WAITING and runs_of(second) == 0
    runner.cancel(first)
    wait_for(other, second)
    outcome = outcome_of(second)
    assert outcome is not None and outcome.kind is Kind.MEASURED


QUOTE_LIMIT_S = 120.0


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
    runner.submit(folder, QUOTE_LIMIT_S)
    wait_for(runner, folder)
    found = outcome_of(folder)
    assert found is not None and found.kind is Kind.CRASHED and found.exit_code == ExitCode.MISSING_PACKAGE
    assert "ends: trainer: rank 1: No module named" in found.message and "[train]" in found.message


class NVMLError(Exception):
    pass


def refuse(*_):
    raise NVMLError("Not Supported")


def nvml_stand_in(**changes):
    calls = {
        "NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1, "NVML_VOLATILE_ECC": 0, "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=10**9 * (1 + device)),
        "nvmlDeviceGetPowerUsage": lambda device: 402_500,
        "nvmlDeviceGetClockInfo": lambda device, kind: {1: 1500, 2: 2619}[kind], "nvmlDeviceGetTemperature": lambda *_: 55,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda device: 0x4, "nvmlDeviceGetTotalEccErrors": refuse,
    }  # fmt: skip
    return SimpleNamespace(**{**calls, **changes})


def test_every_gpu_is_sampled_until_the_end(tmp_path, monkeypatch):
    """What a GPU does not report is left out."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml_stand_in())
    samples = tmp_path / "nvml.jsonl"
    sampler = Sampler(samples, period_s=0.01)
    wait_until(lambda: samples.exists() and samples.read_text().count("\n") >= 4, "no second sample")
    sampler.stop()
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [line["gpu"] for line in lines] == [0, 1] * (len(lines) // 2)
    assert lines[1] == {
        "time": pytest.approx(time.time(), abs=60), "gpu": 1, "memory_used_bytes": 2 * 10**9, "power_watts": 402.5,
        "sm_mhz": 1500, "memory_mhz": 2619, "temperature_c": 55, "throttle_reasons": 4,
    }  # fmt: skip


@pytest.mark.parametrize("module", [None, nvml_stand_in(nvmlInit=refuse)])
def test_without_library_or_driver_there_are_no_samples(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    Sampler(tmp_path / "nvml.jsonl").stop()
    assert list(tmp_path.iterdir()) == []


def test_a_watcher_is_small():
    """It starts with every job and lives beside it."""
    code = "import autoconfig.profiler.supervise, sys; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_log_has_a_limit(tmp_path, new_folder):
    """Beyond it the last part stays, with a line that says so, and what the job goes on to print."""
    folder = new_folder()
    with folder.log_file.open("ab") as file:
        file.write(b"".join(b"%07d\n" % number for number in range(1000)))
        file.flush()
        cut_logs(folder.path, most=8000, kept=800)
        assert folder.log_file.stat().st_size == 8000
        file.write(b"more\n")
        file.flush()
        cut_logs(folder.path, most=8000, kept=805)
        file.write(b"last\n")
    lines = folder.log_file.read_text().splitlines()
    assert lines == [LOG_CUT.strip(), *(f"{number:07d}" for number in range(900, 1000)), "more", "last"]


def test_a_job_that_prints_without_end_does_not_fill_the_disk(new_folder, tmp_path):
    """100 MiB at once, then nothing: cut while it runs."""
    folder = new_folder()
    token = tmp_path / "go on"
    shell = f"yes xxxxxxx | head -c 100M; echo printed; while ! [ -e '{token}' ]; do sleep 0.1; done; echo the last line"
    runner = LocalRunner(lambda *_: ["bash", "-c", shell])
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: folder.last_lines(1) == ["printed"] and folder.log_file.stat().st_size < 2**21, "the log is not cut")
    token.touch()
    wait_for(runner, folder)
    text = folder.log_file.read_text()
    assert text.startswith(LOG_CUT) and text.endswith("xxxxxxx\nprinted\nthe last line\n") and len(text) < 2**21
