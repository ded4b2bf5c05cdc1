"""Local jobs as real processes: every way to end, nothing left behind, nothing run twice."""

import os
import signal

import pytest
import stand_in
from autoconfig.profiler.folder import NAME_DIGITS, folder_of, holder, is_held, prepare, read_json, take, write_json
from autoconfig.profiler.local import LocalRunner
from autoconfig.profiler.outcome import FINAL, Kind, outcome_of
from autoconfig.profiler.processes import marked, started_at
from autoconfig.profiler.runner import Life
from autoconfig.specs.errors import FileError
from job_help import make_job, runs_of, stand_in_command, wait_for, wait_until

LIMIT_S = 60.0


@pytest.fixture
def runner():
    return LocalRunner(stand_in_command)


@pytest.mark.parametrize(
    ("behaviour", "kind", "said"),
    [
        (stand_in.MEASURE, Kind.MEASURED, ""),
        (stand_in.DIE, Kind.CRASHED, "the reason is here"),
        (stand_in.GARBAGE, Kind.GARBAGE, "not valid JSON"),
        (stand_in.OTHERS, Kind.GARBAGE, "another job"),
        (stand_in.OUT_OF_MEMORY, Kind.OUT_OF_MEMORY, "as told"),
        (stand_in.FAIL, Kind.FAILED, "as told"),
    ],
)
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


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be made"):
        prepare(tmp_path / "file", make_job())
    with pytest.raises(FileError, match="cannot be opened"):
        take(tmp_path / "none" / "lock")
    with pytest.raises(FileError, match="cannot be written"):
        write_json(tmp_path / "none" / "x.json", {})


def test_locks(tmp_path):
    path = tmp_path / "lock"
    first = take(path)
    assert first is not None
    first.write("me")
    assert take(path) is None and is_held(path) and holder(path) == "me"
    first.release()
    first.release()
    assert not is_held(path)


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
