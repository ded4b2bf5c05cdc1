"""Jobs under Slurm."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stand_in
from autoconfig.api.work.workflow import check_measuring
from autoconfig.profiler.folder import LOG_CUT, prepare, read_json, write_json
from autoconfig.profiler.outcome import Kind, outcome_of
from autoconfig.profiler.processes import marked
from autoconfig.profiler.runner import Life, RunnerError, torchrun
from autoconfig.profiler.slurm import SlurmOptions, SlurmRunner, _call
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Workload
from background import started
from job_help import DEADLINE_S, make_job, runs_of, stand_in_command, wait_for, wait_until
from study_help import ARGUMENTS, environment, fake_python, runs, search, search_command, trials_of

from autoconfig.study.session import Options
from autoconfig.study.worker import MAX_ATTEMPTS
from tests.api.conftest import start

LIMIT_S = 600.0
SHARED = ("--oversubscribe",)
"""Jobs of these tests run beside each other on one node."""
pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture(scope="module")
def runner(slurm) -> SlurmRunner:
    return SlurmRunner(stand_in_command, SlurmOptions(extra=SHARED))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module", autouse=True)
def hanging(runner, jobs):
    """Submitted first, because Slurm's shortest time limit is a minute; the last test looks at it."""
    folder = prepare(jobs, make_job(stand_in.HIDE, 77))
    runner.submit(folder, 1.0)
    yield folder
    runner.cancel(folder)


def outcome(folder):
    found = outcome_of(folder)
    assert found is not None
    return found


def start_now(runner, folder) -> bool:
    """A job that is queued again waits for two minutes by itself; while its first run is being ended it cannot be told."""
    update = ["scontrol", "update", f"jobid={read_json(folder.life_file)['slurm_job_id']}", "starttime=now"]
    return runner.poll(folder) is not Life.WAITING or subprocess.run(update, check=False).returncode == 0


def test_a_worker_is_refused_a_partition_that_is_not_there(slurm, tmp_path):
    def check(partition: str | None) -> None:
        check_measuring(Options(folder=tmp_path, runner="slurm", python="python", slurm=SlurmOptions(partition=partition)))

    check("main")
    check(None)
    with pytest.raises(RunnerError, match="--partition nowhere: Slurm has no such partition"):
        check("nowhere")


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
    assert outcome(folder).kind is kind, outcome(folder).message
    assert runs_of(folder) == 1


def test_a_job_is_found_again_by_its_name(runner, jobs, tmp_path, monkeypatch):
    """The search was killed after sbatch and before it wrote the job's number; a squeue that fails then is no missing job."""
    folder = prepare(jobs, make_job(stand_in.HIDE, 1))
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder, Life.RUNNING)
    number = read_json(folder.life_file)["slurm_job_id"]
    folder.life_file.unlink()
    (tmp_path / "squeue").write_text("#!/bin/sh\necho slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    with monkeypatch.context() as broken:
        broken.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with pytest.raises(RunnerError, match="squeue does not answer: slurm_load_jobs error"):
            runner.submit(folder, LIMIT_S)
    runner.submit(folder, LIMIT_S)
    assert read_json(folder.life_file)["slurm_job_id"] == number
    wait_until(lambda: runs_of(folder) == 1, "the job has not started")
    runner.cancel(folder)
    assert outcome(folder).kind is Kind.CANCELLED and runs_of(folder) == 1
    wait_until(lambda: marked(folder.path) == [], "processes of a cancelled job are left")


def test_several_jobs_are_one_array(runner, jobs):
    """One sbatch; each task has its own folder, outcome and life, is found again by the array's name and its number, cancelled
    alone, and runs again when it is requeued."""
    kinds = (stand_in.MEASURE, stand_in.HIDE, stand_in.OUT_OF_MEMORY, stand_in.SLOW)
    folders = [prepare(jobs, make_job(kind, 8)) for kind in kinds]
    runner.submit_together([(folder, LIMIT_S) for folder in folders])
    numbers = [read_json(folder.life_file)["slurm_job_id"] for folder in folders]
    assert [number.partition("_")[2] for number in numbers] == ["0", "1", "2", "3"]
    assert len({number.partition("_")[0] for number in numbers}) == 1
    measured, hiding, too_large, slow = folders
    wait_until(lambda: runs_of(slow) == 1, "the task has not started")
    subprocess.run(["scontrol", "requeue", numbers[3]], check=True)
    wait_until(lambda: runs_of(hiding) == 1, "the task has not started")
    hiding.life_file.unlink()
    runner.submit_together([(hiding, LIMIT_S)])
    assert read_json(hiding.life_file)["slurm_job_id"] == numbers[1]
    runner.cancel(hiding)
    assert outcome(hiding).kind is Kind.CANCELLED and runs_of(hiding) == 1
    wait_until(lambda: marked(hiding.path) == [], "processes of a cancelled task are left")
    wait_until(lambda: start_now(runner, slow), "the job cannot be told to start")
    for folder, kind in ((measured, Kind.MEASURED), (too_large, Kind.OUT_OF_MEMORY), (slow, Kind.MEASURED)):
        wait_for(runner, folder)
        assert outcome(folder).kind is kind, outcome(folder).message
        assert "started" in folder.last_lines()
    assert [runs_of(folder) for folder in folders] == [1, 1, 1, 2]


def test_a_job_that_died_is_known_after_slurm_forgot_it(runner, jobs):
    folder = prepare(jobs, make_job(stand_in.DIE, 9))
    runner.submit(folder, LIMIT_S)
    wait_for(runner, folder)
    folder.end_file.unlink()
    write_json(folder.life_file, {"slurm_job_id": "4000000"})
    assert runner.poll(folder) is Life.ENDED
    assert outcome(folder).kind is Kind.CRASHED and "exit code 1" in outcome(folder).message


def test_a_job_of_several_nodes(slurm, jobs, tmp_path):
    """srun starts torchrun on each node; they meet at the first one of the job, by Slurm's own list. (Here both tasks are on
    the one node there is: the later --nodes counts.)"""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho task $SLURM_PROCID of $SLURM_STEP_NUM_TASKS: "$@"\n')
    python.chmod(0o755)
    options = SlurmOptions(nodes=2, extra=("--nodes=1", "--ntasks-per-node=2", "--overcommit", *SHARED))
    plan, work = TrainPlan(tp=2, pp=1, dp=2, mbs=1), Workload(seq_length=16, global_batch_size=2)
    folder = prepare(jobs, make_job(stand_in.MEASURE, 30, plan=plan, workload=work))
    runner = SlurmRunner(torchrun(str(python), 2), options)
    runner.submit(folder, LIMIT_S)
    assert "#SBATCH --nodes=2\n" in (folder.path / "job.sbatch").read_text()
    wait_for(runner, folder)
    launch = f"-m torch.distributed.run --nproc-per-node=2 --nnodes=2 --rdzv-backend=c10d --rdzv-id={folder.name}"
    core = f"--rdzv-endpoint={slurm}:29511 -m autoconfig.trainer --job {folder.job_file}"
    said = sorted(line for line in folder.last_lines() if line.startswith("task"))
    assert said == [f"task {n} of 2: {launch} {core}" for n in (0, 1)]


def test_a_job_has_its_nodes_alone(slurm, jobs):
    """All their CPUs, which one task would not get; an option of the user's that says otherwise is not gainsaid."""
    asked = []
    for number, extra in enumerate(((), ("--oversubscribe",), ("-c 1",))):
        runner = SlurmRunner(stand_in_command, SlurmOptions(extra=("--hold", *extra)))
        folder = prepare(jobs, make_job(stand_in.MEASURE, 20 + number))
        runner.submit(folder, LIMIT_S)
        show = ["squeue", "--noheader", f"--jobs={read_json(folder.life_file)['slurm_job_id']}", "--format=%h"]
        asked.append(subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip())
        runner.cancel(folder)
    assert asked == ["NO", "YES", "YES"]


def test_a_refused_job_says_why(slurm, jobs):
    runner = SlurmRunner(stand_in_command, SlurmOptions(partition="nowhere"))
    with pytest.raises(RunnerError, match=r"sbatch refuses.*partition"):
        runner.submit(prepare(jobs, make_job(stand_in.MEASURE, 4)), LIMIT_S)


def test_a_search_whose_jobs_go_through_slurm(slurm, tmp_path):
    """Two jobs at once, begun as one array, from the command line to the measured table."""
    fake_python(tmp_path)
    question = [{"8": "2"}.get(word, word) for word in ARGUMENTS]
    slurm_options = ("--runner", "slurm", "--jobs", "2", "--slurm=--oversubscribe")
    options = ("--profile", "--study", "s", "--budget", "3trials", "--quiet", *slurm_options)
    done = search(tmp_path, *question, "--gpus-per-node", "2", *options)
    assert done.returncode == 0, done.stderr
    trials = trials_of(tmp_path, "s")
    assert [t.user_attrs["outcome"] for t in trials] == ["measured"] * 3, [t.user_attrs for t in trials]
    numbers = {read_json(path)["slurm_job_id"] for path in (tmp_path / "work" / "jobs").glob("*/life.json")}
    assert len(numbers) == 3 and set(runs(tmp_path).values()) == {1}
    assert sum("_" in number for number in numbers) == 2, "the first two are one array"


def test_a_signal_to_all_of_a_search_cancels_it(slurm, tmp_path):
    """As `kill -- -PGID` and Ctrl-C send it, at whatever program of Slurm runs just then."""
    fake_python(tmp_path)
    question = [{"8": "2"}.get(word, word) for word in ARGUMENTS]
    slurm_options = ("--runner", "slurm", "--slurm=--oversubscribe", "--gpus-per-node", "2")
    command = search_command(tmp_path, *question, "--profile", "--study", "s", "--quiet", *slurm_options)
    process = started(subprocess.Popen(
        command, env=environment(tmp_path, STAND_IN_EVERY_SECONDS="600"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ), tmp_path)  # fmt: skip
    wait_until(lambda: runs(tmp_path), "no job was started")
    for _ in range(40):  # two looks at the queue
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.01)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and "does not answer" not in said and "Traceback" not in said, said
    assert [t.user_attrs["outcome"] for t in trials_of(tmp_path, "s")] == ["cancelled"]


def test_a_program_that_a_signal_ended_is_called_again(tmp_path, monkeypatch):
    """As systemd does it: to every process of a service, in whatever group."""
    (tmp_path / "squeue").write_text(f"#!/bin/bash\necho >> {tmp_path}/calls\n"
                                     f"[ $(wc -l < {tmp_path}/calls) = 3 ] || kill -TERM $$\necho 17\n")  # fmt: skip
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = _call(["squeue"])
    assert (done.returncode, done.stdout) == (0, "17\n")
    assert _call(["bash", "-c", "ps -o pgid= $$"]).stdout.strip() != str(os.getpgid(0))


def test_the_log_of_a_job_has_a_limit(runner, jobs, tmp_path):
    """100 MiB at once, then nothing: cut while it runs."""
    token = tmp_path / "go on"
    shell = f"yes xxxxxxx | head -c 100M; echo printed; while ! [ -e '{token}' ]; do sleep 0.1; done; echo the last line"
    talking = SlurmRunner(lambda *_: ["bash", "-c", shell], SlurmOptions(extra=SHARED))
    folder = prepare(jobs, make_job(stand_in.MEASURE, 901))
    talking.submit(folder, LIMIT_S)
    wait_until(lambda: folder.last_lines(1) == ["printed"] and folder.log_file.stat().st_size < 2**21, "the log is not cut")
    token.touch()
    wait_for(talking, folder)
    text = folder.log_file.read_text()
    assert text.startswith(LOG_CUT) and text.endswith("xxxxxxx\nprinted\nthe last line\n") and len(text) < 2**21
    assert read_json(folder.exit_file)["exit_code"] == 0 and marked(folder.path) == []


@pytest.mark.soak  # a minute is Slurm's shortest limit
def test_a_job_killed_by_its_time_limit(runner, hanging):
    wait_for(runner, hanging)
    assert outcome(hanging).kind is Kind.TIMED_OUT
    wait_until(lambda: marked(hanging.path) == [], "processes are left")


def set_node(node: str, state: str) -> None:
    """A node that registers by itself refuses to be resumed: it is up then."""
    subprocess.run(["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"], check=state == "down")


def run_again(runner, node, folder) -> None:
    """Until the job has ended. The node is resumed as often as it takes: Slurm drains one that still has the first run."""

    def ended() -> bool:
        if runner.poll(folder) is Life.WAITING:
            set_node(node, "resume")
            start_now(runner, folder)
        return runner.poll(folder) is Life.ENDED

    wait_until(ended, "the job does not run again")


def test_a_job_whose_node_is_set_down(runner, slurm, jobs):
    """Last, because everything on the node goes. Slurm queues the job again, and it runs once the node is back, or fails where
    slurmd still holds the first run: then it is lost, no crash, and a further submit runs it. A job that may not be queued
    again is lost."""
    again = prepare(jobs, make_job(stand_in.SLOW, 5))
    never = prepare(jobs, make_job(stand_in.SLOW, 6))
    strict = SlurmRunner(stand_in_command, SlurmOptions(extra=("--no-requeue", *SHARED)), {"STAND_IN_SECONDS": "600"})
    runner.submit(again, LIMIT_S)
    strict.submit(never, LIMIT_S)
    for folder in (again, never):
        wait_until(lambda folder=folder: runs_of(folder) == 1, "the job has not started")
    set_node(slurm, "down")
    wait_for(runner, again, Life.WAITING, Life.ENDED)
    wait_for(runner, never)
    assert outcome(never).kind is Kind.LOST and "NODE_FAIL" in outcome(never).message
    run_again(runner, slurm, again)
    while outcome(again).kind is Kind.LOST and read_json(again.launch_file)["attempt"] < MAX_ATTEMPTS:
        runner.submit(again, LIMIT_S)
        run_again(runner, slurm, again)
    assert outcome(again).kind is Kind.MEASURED and runs_of(again) == 2, outcome(again).message


ROOT = Path(__file__).parents[2]
QUESTION = (
    "model=gpt3-126m", "gpus=2", "gpu=h100-sxm-80gb", "software=megatron-local", "seq_length=32", "global_batch_size=4",
    "num_layers=2", "hidden_size=64", "num_attention_heads=4", "vocab_size=512", "precision=fp32", 'fix=["tp=2", "mbs=1"]',
)  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = start(f"sqlite:///{tmp_path_factory.mktemp('service')}/s.db", "--workers", "1", "--search-workers", "0")
    yield running
    running.stop()


def submit(service, folder: Path, *question: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MEGATRON_PATH": str(Path(__file__).with_name("cpu_program")),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, ROOT / "examples" / "slurm_submit.py", "--service", service.url, "--folder", folder]
    return subprocess.run([*command, *question], env=environment, capture_output=True, text=True, timeout=300, check=False)


def queued(job: str) -> str:
    """The state of a job that waits or runs; empty once it has ended. `sbatch --wait` would look every half minute."""
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={job}", "--states=PENDING,RUNNING,COMPLETING"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_training_starts_with_the_answer(slurm, service, tmp_path):
    done = submit(service, tmp_path / "run", *QUESTION)
    wait_until(lambda: not queued(done.stdout.strip()), "the job is still in the queue")
    log = "\n".join(file.read_text() for file in (tmp_path / "run").glob("*.log"))
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr + log
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "ran" and result["plan"].startswith("tp=2,") and result["step_seconds"] > 0
    assert result["plan"] in done.stderr and "calibration" in done.stderr
    assert len(result["ranks"]) == 2


def test_refusals_submit_nothing(service, tmp_path):
    for question, code, said in (
        (("model=lama3-70b", "gpus=2", "gpu=h100-sxm-80gb"), 2, "llama3-70b"),
        (("model=1t", "gpus=2", "gpu=l40s-48gb"), 3, "no plan fits"),
        (("model",), 2, "gpus=64"),
    ):
        done = submit(service, tmp_path / "none", *question)
        assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "none").exists()
