"""Jobs on a Ray cluster: real daemons of three nodes on this machine, and whole studies beside which nodes are killed."""

import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import stand_in
from autoconfig.profiler import ray_cluster, ray_seat
from autoconfig.profiler.folder import prepare, read_json
from autoconfig.profiler.outcome import Kind, outcome_of
from autoconfig.profiler.processes import marked
from autoconfig.profiler.ray_cluster import RayRunner, Share, check_cluster
from autoconfig.profiler.runner import Life, RunnerError, torchrun
from background import left_over
from job_help import make_job, runs_of, stand_in_command, wait_for, wait_until
from study_help import ARGUMENTS, environment, fake_python, runs, search_command, start, trials_of, write_oracle

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("default")]
LIMIT_S = 600.0
NODE = {"num_cpus": 8, "num_gpus": 8, "object_store_memory": 80 * 2**20}
"""What a node says that it has: nothing here touches a GPU."""
SOON = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 4}
"""A dead node is missed after some 4 s; after some 20 by default."""
WORKERS = 2


class Nodes:
    """A head and two further nodes, each with daemons of its own."""

    added = 0

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": SOON})
        self.address = self.cluster.address
        self.workers: list[Any] = []
        self.fill_up()

    def kill(self, number: int = -1) -> None:
        """kill -9 of all that runs on a node."""
        self.cluster.remove_node(self.workers.pop(number), allow_graceful=False)

    def fill_up(self) -> None:
        while len(self.workers) < WORKERS:
            self.added += 1  # an address of its own: a search attaches to the node that has its machine's, the head
            self.workers.append(self.cluster.add_node(**NODE, node_ip_address=f"127.0.1.{self.added}"))
        self.cluster.wait_for_nodes()


@pytest.fixture(scope="module")
def nodes():
    if not importlib.util.find_spec("ray"):
        pytest.fail("ray is missing: make ray") if os.environ.get("CI") else pytest.skip("ray is missing: make ray")
    found = Nodes()
    yield found
    ray = sys.modules["ray"]
    ray.shutdown()
    found.cluster.shutdown()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def runner(nodes) -> RayRunner:
    return RayRunner(stand_in_command, nodes.address, Share(cpus=8))


def groups(runner: RayRunner) -> list[str]:
    """Placement groups that hold or wait for something."""
    table = runner._ray.util.placement_group_table()
    return [one["name"] for one in table.values() if one["state"] != "REMOVED"]


@pytest.mark.parametrize(("behaviour", "kind"), [
    (stand_in.MEASURE, Kind.MEASURED),
    (stand_in.OUT_OF_MEMORY, Kind.OUT_OF_MEMORY),
    (stand_in.DIE, Kind.CRASHED),
    (stand_in.GARBAGE, Kind.GARBAGE),
])  # fmt: skip
def test_how_a_job_ends(runner, jobs, behaviour, kind):
    folder = prepare(jobs, make_job(behaviour))
    assert runner.poll(folder) is Life.LOST
    runner.submit(folder, LIMIT_S)
    assert wait_for(runner, folder) is Life.ENDED
    found = outcome_of(folder)
    assert found.kind is kind, found.message
    assert runs_of(folder) == 1 and groups(runner) == []


def test_a_job_is_found_again_and_cancelled(runner, nodes, jobs):
    """By another search, which knows the folder only; nothing of it is left, and its nodes are free."""
    folder = prepare(jobs, make_job(stand_in.HIDE, 1))
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder, Life.RUNNING)
    wait_until(lambda: runs_of(folder) == 1, "the job has not started")
    other = RayRunner(stand_in_command, nodes.address, Share(cpus=8))
    other.submit(folder, LIMIT_S)
    assert other.poll(folder) is Life.RUNNING and len(marked(folder.path / "1.0")) >= 2
    other.cancel(folder)
    assert outcome_of(folder).kind is Kind.CANCELLED and runs_of(folder) == 1
    assert left_over(folder.path) == [] and groups(runner) == []


def test_a_job_that_nobody_looks_at_gives_its_nodes_back(runner, jobs, monkeypatch):
    monkeypatch.setattr(ray_seat, "LINGER_S", 0.1)
    folder = prepare(jobs, make_job(stand_in.MEASURE, 3))
    runner.submit(folder, LIMIT_S)
    wait_until(lambda: groups(runner) == [], "the group is held")
    assert outcome_of(folder).kind is Kind.MEASURED


def test_a_job_has_a_time_limit(runner, jobs):
    folder = prepare(jobs, make_job(stand_in.HIDE, 2))
    runner.submit(folder, 0.5)
    wait_for(runner, folder)
    assert outcome_of(folder).kind is Kind.TIMED_OUT and left_over(folder.path) == []


def test_a_job_waits_for_its_nodes(runner, nodes, jobs):
    """Of four jobs that want a node each, three run; a waiting one can be cancelled."""
    folders = [prepare(jobs, make_job(stand_in.HIDE, number)) for number in range(10, 14)]
    runner.submit_together([(folder, LIMIT_S) for folder in folders])
    wait_until(lambda: [runner.poll(f) for f in folders].count(Life.RUNNING) == 3, "three jobs do not run")
    waiting = next(folder for folder in folders if runner.poll(folder) is Life.WAITING)
    for folder in [waiting, *folders]:
        runner.cancel(folder)
        assert outcome_of(folder).kind is Kind.CANCELLED
    assert runs_of(waiting) == 0 and groups(runner) == []


def test_a_lost_node(runner, nodes, jobs):
    """Its job is lost, with what it started there, and runs again elsewhere."""
    folders = [prepare(jobs, make_job(stand_in.HIDE, number)) for number in range(20, 23)]
    runner.submit_together([(folder, LIMIT_S) for folder in folders])
    wait_until(lambda: all(runs_of(folder) for folder in folders), "a job has not started")
    nodes.kill()
    wait_until(lambda: any(runner.poll(folder) is Life.ENDED for folder in folders), "no job is lost")
    (lost,) = [folder for folder in folders if runner.poll(folder) is Life.ENDED]
    assert outcome_of(lost).kind is Kind.LOST and "its node or actor died" in outcome_of(lost).message
    wait_until(lambda: left_over(lost.path) == [], "processes of a lost node's job are left")
    for folder in set(folders) - {lost}:
        runner.cancel(folder)
    nodes.fill_up()
    runner.submit(lost, LIMIT_S)
    wait_until(lambda: runs_of(lost) == 2, "the job has not started again")
    assert read_json(lost.launch_file)["attempt"] == 2
    runner.cancel(lost)


def test_a_job_of_several_nodes(nodes, jobs, tmp_path):
    """torchrun starts on each of three nodes; they meet at one address."""
    python = tmp_path / "python"
    wait = 'until [ "$(wc -l < meet.txt)" = 3 ]; do sleep 0.1; done'
    python.write_text(f'#!/bin/bash\necho "$@" >> meet.txt\n{wait}\nexec {sys.executable} -S {stand_in.__file__}\n')
    python.chmod(0o755)
    runner = RayRunner(torchrun(str(python), 3), nodes.address, Share(nodes=3, gpus=8, cpus=1))
    folder = prepare(jobs, make_job(stand_in.MEASURE, 30))
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder)
    assert outcome_of(folder).kind is Kind.MEASURED, outcome_of(folder).message
    lines = (folder.path / "meet.txt").read_text().splitlines()
    assert len(lines) == 3 and len(set(lines)) == 1 and "--nnodes=3" in lines[0]
    host, _, port = lines[0].partition("--rdzv-endpoint=")[2].split()[0].rpartition(":")
    assert socket.gethostbyname(host) and int(port) > 0
    assert groups(runner) == []


def ray_search(place: Path, nodes: Nodes, *more: str, **variables: str) -> subprocess.Popen[str]:
    where = ("--runner", "ray", "--ray-address", nodes.address)
    return start(place, *ARGUMENTS, "--profile", "--study", "s", *where, *more, **variables)


@pytest.fixture
def place(tmp_path):
    fake_python(tmp_path)
    write_oracle(tmp_path)
    return tmp_path


def test_a_study_outlives_two_workers(nodes, runner, place):
    """Two of three nodes are killed while each has a job; a seed says after how many others. In the end every trial has one
    outcome, no plan has two, and only the jobs of the killed nodes were begun a second time."""
    nodes.fill_up()
    token = place / "token"
    process = ray_search(place, nodes, "--jobs", "3", "--budget", "9trials", "--json", STAND_IN_TOKEN=str(token))
    generator = random.Random(int(os.environ.get("AUTOCONFIG_SOAK_SEED", "20261129")))
    folder = place / "work" / "jobs"

    def at_work() -> int:
        """Jobs that have begun and have no result; of a killed node, too."""
        return sum(runs(place).values()) - len(list(folder.glob("*/result.json")))

    for _ in range(2):
        for _ in range(generator.randrange(0, 3)):
            wait_until(lambda: not token.exists(), "no job takes a token")
            token.touch()
        wait_until(lambda: process.poll() is not None or (not token.exists() and at_work() == 3), "not every node has a job")
        assert process.poll() is None, process.stderr.read()
        nodes.kill()
        wait_until(lambda: len(left_over(place)) == 1 + len(nodes.workers), "a killed node's job lives on")
    while process.poll() is None:
        token.touch()
        time.sleep(0.05)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    trials = trials_of(place, "s")
    assert len(trials) == 9 and {t.user_attrs["outcome"] for t in trials} <= {"measured", "out_of_memory"}
    assert len({t.user_attrs["job"] for t in trials}) == 9, "a job was told twice"
    attempts = [read_json(path / "launch.json")["attempt"] for path in folder.iterdir()]
    assert sorted(attempts) == sorted(runs(place).values()) == [1] * 7 + [2] * 2
    assert len(json.loads(out)["lines"]) == len({t.user_attrs["plan"] for t in trials})
    assert left_over(place) == [] and groups(runner) == []
    nodes.fill_up()


def test_ctrl_c_twice_leaves_nothing(nodes, runner, place):
    process = ray_search(place, nodes, "--jobs", "2", STAND_IN_EVERY_SECONDS="300")
    wait_until(lambda: len(runs(place)) == 2, "no job has started")
    process.send_signal(signal.SIGINT)
    while "finishing what runs" not in (line := process.stderr.readline()):
        assert line, "it ended without a word of the first Ctrl-C"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert {t.user_attrs["outcome"] for t in trials_of(place, "s")} == {"cancelled"}
    assert left_over(place) == [] and groups(runner) == []


def test_a_killed_search_is_followed_by_another(nodes, runner, place):
    process = ray_search(place, nodes, "--jobs", "2", "--budget", "4trials", STAND_IN_EVERY_SECONDS="2")
    wait_until(lambda: len(runs(place)) == 2, "no job has started")
    process.kill()
    process.communicate()
    again = ray_search(place, nodes, "--jobs", "2", "--budget", "4trials")
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert set(runs(place).values()) == {1} and left_over(place) == [] and groups(runner) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "rubbish", "ray://127.0.0.1:10001"])
def test_a_cluster_that_is_not_there(place, address):
    command = search_command(place, *ARGUMENTS, "--profile", "--study", "s", "--runner", "ray", "--ray-address", address)
    done = subprocess.run(command, env=environment(place), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert ("no Ray cluster answers at" if address.endswith(":1") else "give HOST:PORT") in done.stderr, done.stderr
    assert not (place / "work").exists()


def test_something_else_answers(nodes, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(RunnerError, match="is no Ray cluster"):
        check_cluster(f"127.0.0.1:{other.getsockname()[1]}", Share())


def test_a_cluster_that_is_too_small(nodes):
    check_cluster(nodes.address, Share(nodes=3, gpus=8, cpus=8))
    with pytest.raises(RunnerError, match="needs 4 nodes with 8 CPUs and 8 GPUs each, and of its 3 3 have them"):
        check_cluster(nodes.address, Share(nodes=4, gpus=8, cpus=8))
    with pytest.raises(RunnerError, match="1 node with 1 CPU and 16 GPUs each, and of its 3 none has"):
        check_cluster(nodes.address, Share(gpus=16))
