"""Whole searches through the command line: real processes for the search and for every job."""

import contextlib
import importlib.util
import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time

import optuna
import pytest
from background import left_over
from job_help import wait_until
from study_help import (
    ARGUMENTS,
    QUESTION,
    candidates,
    fake_python,
    kill,
    run,
    runs,
    search,
    start,
    told,
    trials_of,
    write_oracle,
)

from autoconfig.study.storage import DATABASE, open_study, opened, sqlite_url
from autoconfig.study.this_machine import TABLE, operator_table, table_file
from autoconfig.study.training.settings import StudySettings
from autoconfig.training.question import Request

pytestmark = pytest.mark.service

PROFILE = ("--profile", "--study", "s")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="make test installs megatron-core")


@pytest.fixture
def place(tmp_path):
    fake_python(tmp_path)
    write_oracle(tmp_path)
    return tmp_path


def test_a_study_finds_the_measured_best(place):
    """The answer as JSON; the same question again goes on with the same study and measures nothing twice."""
    done = search(place, *ARGUMENTS, *PROFILE, "--budget", "5m", "--json", "--save-calibration", str(place / "cal.json"))
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    oracle = {plan: s for plan, s in json.loads((place / "oracle.json").read_text()).items() if s != "oom"}
    assert body["stopped"].startswith("settled")
    assert body["best"]["measured_s"] <= 1.01 * min(oracle.values())
    assert body["correction"] == pytest.approx(0.9, abs=0.05)
    assert len(body["lines"]) < len(oracle)
    calibration = json.loads((place / "cal.json").read_text())
    assert calibration["version"].startswith("study-s-")
    before = told(trials_of(place, "s"))
    again = search(place, *ARGUMENTS, *PROFILE, "--budget", "5m", "--json")
    assert again.returncode == 0 and told(trials_of(place, "s")) == before
    assert set(runs(place).values()) == {1} and left_over(place) == []
    assert body["tokens_per_money"] is None
    tokens, money = 1024 * 8, body["best"]["measured_s"] / 3600 * 8 * 2.5
    for price in ("2.5", "$2.50/h", "h100=4,a100-80gb=2.5"):
        priced = search(place, "--resume", "s", "--budget", "1m", "--json", "--price", price)
        assert json.loads(priced.stdout)["tokens_per_money"] == pytest.approx(tokens / money), priced.stderr
    for price, said in (("soon", "price 'soon'"), ("0", "above 0"), ("h100=4", "add a100-80gb=PRICE")):
        refused = search(place, "--resume", "s", "--budget", "1m", "--json", "--price", price)
        assert refused.returncode == 2 and said in refused.stderr and not refused.stdout, refused.stderr


def test_a_resumed_study_asks_the_stored_question(place):
    first = search(place, *ARGUMENTS, *PROFILE, "--budget", "2trials")
    assert first.returncode == 0 and len(told(trials_of(place, "s"))) == 2, first.stderr
    assert "trial 0: tp=" in first.stderr and "Winner:" in first.stdout
    assert "budget: 1 trial left" in first.stderr and "budget: 0 trials left" in first.stderr
    more = search(place, "--resume", "s", "--budget", "2trials", "--quiet")
    assert more.returncode == 0 and len(told(trials_of(place, "s"))) == 4
    assert more.stderr.startswith("resume:")
    same = search(place, *ARGUMENTS, "--resume", "s", "--budget", "1trial", "--quiet")
    assert same.returncode == 0 and len(told(trials_of(place, "s"))) == 5
    other = search(place, *ARGUMENTS, "--seed", "7", "--resume", "s")
    assert other.returncode == 2 and "seed: 0 stored, 7 given" in other.stderr
    unknown = search(place, "--resume", "sss")
    assert unknown.returncode == 2 and "unknown study 'sss'; did you mean s?" in unknown.stderr


@pytest.mark.judge
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_killed_at_any_moment(place, kills):
    """kill -9 of the search at random moments: no finished trial lost or changed, none run twice, nothing left running, and
    the trials are those of an undisturbed run."""
    budget = ("--budget", "6trials" if kills < 5 else "12trials", "--quiet")
    calm = search(place, *ARGUMENTS, *PROFILE, *budget, folder="calm")
    assert calm.returncode == 0, calm.stderr
    generator, kept = random.Random(int(os.environ.get("AUTOCONFIG_SOAK_SEED", "20261121"))), []
    for number in range(kills):
        process = start(place, *ARGUMENTS, *PROFILE, *budget, STAND_IN_EVERY_SECONDS="0.2")
        jobs = len(runs(place)) + generator.randrange(0, 4)
        wait_until(lambda jobs=jobs, process=process: len(runs(place)) >= jobs or process.poll() is not None, "no job starts")
        time.sleep(generator.uniform(0.0, 1.5))
        kill(process)
        now = told(trials_of(place, "s")) if (place / "work" / "studies.db").exists() else []
        assert now[: len(kept)] == kept
        kept = now
        print(f"kill {number + 1}: {len(kept)} trials finished, {len(runs(place))} jobs started")
    wanted = told(trials_of(place, "s", "calm"))
    left = len(wanted) - len(kept)
    if left > 0:
        last = search(place, *ARGUMENTS, *PROFILE, "--budget", f"{left}trials", "--quiet")
        assert last.returncode == 0, last.stderr
    assert told(trials_of(place, "s"))[: len(wanted)] == wanted
    assert set(runs(place).values()) == {1}
    wait_until(lambda: left_over(place) == [], "processes of jobs are left")


def test_ctrl_c_twice_cancels(place):
    process = start(place, *ARGUMENTS, *PROFILE, STAND_IN_EVERY_SECONDS="300")
    wait_until(lambda: runs(place), "no job has started")
    process.send_signal(signal.SIGINT)
    while "finishing what runs" not in (line := process.stderr.readline()):
        assert line, "it ended without a word of the first Ctrl-C"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "cancelling what runs" in err, err
    assert [t.user_attrs["outcome"] for t in trials_of(place, "s")] == ["cancelled"] and left_over(place) == []
    again = search(place, "--resume", "s", "--budget", "1trial", "--quiet")
    assert again.returncode == 0, again.stderr
    _, second = trials_of(place, "s")
    assert second.user_attrs["outcome"] in ("measured", "out_of_memory"), "run to its end this time"
    assert left_over(place) == []


def test_two_searches_in_one_folder(place):
    process = start(place, *ARGUMENTS, *PROFILE, STAND_IN_EVERY_SECONDS="300")
    wait_until(lambda: runs(place), "no job has started")
    second = search(place, *ARGUMENTS, "--profile", "--study", "other")
    assert second.returncode == 2 and f"in use by a search (process {process.pid}" in second.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 130 and left_over(place) == []


@pytest.mark.parametrize(("option", "said"), [
    ("size=300k", r"No space left|disk"), ("ro", "Read-only file system; give another --folder"),
])  # fmt: skip
def test_a_folder_that_is_full_or_read_only(place, option, said):
    """The search stops with a message, and leaves no process."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = place / "work"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        done = search(place, *ARGUMENTS, *PROFILE, "--budget", "2m")
        assert done.returncode == 2 and "Traceback" not in done.stderr and re.search(said, done.stderr), done.stderr
        assert left_over(place) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_jobs_that_all_fail(place):
    """The first five jobs end without a result: the search says how, and stops."""
    (place / "python-with-torch").write_text('#!/bin/bash\ncase "$*" in "-c "*) exit 0;; esac\necho no luck; exit 3\n')
    done = search(place, *ARGUMENTS, *PROFILE)
    assert done.returncode == 3 and "the first 5 jobs all failed" in done.stderr and "no luck" in done.stderr


def test_a_study_that_measured_nothing(place):
    """Its exit code is that of a question without an answer, whatever stopped it."""
    (place / "oracle.json").write_text(json.dumps({str(plan): "oom" for plan in candidates().plans}))
    done = search(place, *ARGUMENTS, *PROFILE, "--budget", "1trials")
    assert done.returncode == 3 and "nothing was measured (the budget of trials is spent)" in done.stderr, done.stderr
    assert [t.user_attrs["outcome"] for t in trials_of(place, "s")] == ["out_of_memory"]
    write_oracle(place)
    assert search(place, "--resume", "s", "--budget", "1trials").returncode == 0


@pytest.mark.parametrize(
    "wrong", ["NaN", "1e300", *(pytest.param(one, marks=pytest.mark.soak) for one in ("Infinity", "-1", "0", "1e-300"))]
)
def test_a_job_that_measures_nonsense(place, wrong):
    """An outcome with a name (each value's: tests/profiler/test_implausible.py); the study goes on, and so does its resume."""
    assert search(place, *ARGUMENTS, *PROFILE, "--budget", "1trials", folder="first").returncode == 0
    plan = trials_of(place, "s", "first")[0].user_attrs["plan"]
    text = (place / "oracle.json").read_text()
    (place / "oracle.json").write_text(json.dumps({**json.loads(text), plan: "wrong"}).replace('"wrong"', wrong))
    done = search(place, *ARGUMENTS, *PROFILE, "--budget", "3trials", "--json")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    found = [t.user_attrs["outcome"] for t in trials_of(place, "s")]
    assert found[0] == "implausible" and "measured" in found[1:]
    again = search(place, "--resume", "s", "--budget", "1trials", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["best"]["plan"] != plan
    assert run(place, "studies", "list", "--folder", str(place / "work"), "--json").returncode == 0


@pytest.mark.parametrize("seconds", [math.inf, *(pytest.param(one, marks=pytest.mark.soak) for one in (1e-300, 1e300))])
def test_a_record_of_an_earlier_version_that_measured_nonsense(place, seconds):
    """Stored as measured; it wins nothing, and nothing is learned of it."""
    write_oracle(place)
    assert search(place, *ARGUMENTS, *PROFILE, "--budget", "1trials").returncode == 0
    plan = trials_of(place, "s")[0].user_attrs["plan"]
    with opened(sqlite_url(place / "work")) as storage, contextlib.closing(sqlite3.connect(place / "work" / DATABASE)) as file:
        number = storage.get_all_trials(storage.get_study_id_from_name("s"))[0]._trial_id
        stored = {"measured_step_seconds": seconds, "log_ratio": math.log(min(seconds, 1e308) / 0.5)}
        for name, value in stored.items():
            row = (json.dumps(value), number, name)
            assert file.execute("UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = ? AND key = ?", row).rowcount
        file.commit()
    done = search(place, "--resume", "s", "--budget", "1trials", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {line["plan"]: line["outcome"] for line in said["lines"]}[plan] == "implausible"
    assert said["best"]["plan"] != plan and 0.5 < said["correction"] < 2
    (row,) = json.loads(run(place, "studies", "list", "--folder", str(place / "work"), "--json").stdout)["studies"]
    assert 0 < row["best_step_seconds"] < 100


@pytest.mark.parametrize(("arguments", "said"), [
    (("--profile",), "a profiling search has a name"),
    (("--study", "s"), "--study names a profiling study: say --profile too"),
    (("--budget", "3m"), "--budget is for a search that measures"),
    (("--quiet",), "--quiet is for a search that measures"),
    ((*PROFILE, "--budget", "soon"), "write it like 30m"),
    ((*PROFILE, "--objective", "cost"), "say --price too"),
    ((*PROFILE, "--price", "cheap"), "price 'cheap'"),
    ((*PROFILE, "--price", "h100=4"), "add a100-80gb=PRICE"),
    ((*PROFILE, "--objective", "cost", "--price", "h100=-4"), "price of h100 '-4'"),
    ((*PROFILE, "--export", "there"), "--export is not for --profile"),
    ((*PROFILE, "--python", "/no/such/python"), "--python /no/such/python cannot be started: No such file"),
    ((*PROFILE, "--device", "cpu"), "leave --gpu, --gpu-table and --cluster out"),
    ((*PROFILE, "--jobs", "2"), "use --runner slurm"),
    ((*PROFILE, "--storage", "mysql://a:b@c/d"), "give sqlite:///FILE or postgresql://"),
    (("--resume", "a", "--study", "b"), "name two studies"),
    (("--resume", "a"), "no studies in autoconfig-profile"),
    (("--profile", "--study", "s" * 201), "1 to 200 printable characters"),
    pytest.param(PROFILE, "no job can be measured here: torch finds no usable GPU, jobs need 8",
                 marks=[needs_torch, pytest.mark.soak]),
    pytest.param((*PROFILE, "--gpus-here", "1"), "torch finds no usable GPU, jobs need 1", marks=needs_torch),
])  # fmt: skip
def test_arguments_that_make_no_sense(tmp_path, monkeypatch, arguments, said):
    """Refused before anything is measured or written."""
    from click.testing import CliRunner

    from autoconfig.cli.main import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = CliRunner().invoke(cli, ["search", *ARGUMENTS, *arguments])
    assert done.exit_code == 2 and said in done.output, done.output
    assert "measuring" not in done.output and list(tmp_path.iterdir()) == []


def test_studies(place):
    assert search(place, *ARGUMENTS, *PROFILE, "--budget", "2trials", "--quiet").returncode == 0
    folder = ("--folder", str(place / "work"))

    def studies(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(place, "studies", *arguments)

    listed = json.loads(studies("list", *folder, "--json").stdout)["studies"]
    assert [(s["name"], s["trials"]) for s in listed] == [("s", 2)]
    assert len(json.loads(studies("show", "s", *folder, "--json").stdout)["lines"]) == 2
    assert studies("delete", "t", *folder).returncode == 2
    with opened(sqlite_url(place / "work")) as storage:  # as a study on a CPU does, once its operators were measured
        table, jobs = table_file(place / "work", "s"), list((place / "work" / "jobs").iterdir())
        for name in ("s", "r"):
            kept = optuna.create_study(study_name=name, storage=storage, load_if_exists=True)
            kept.set_user_attr(TABLE, {"operators": name})
            operator_table(kept, place / "work", sys.executable, print)
    assert studies("delete", "s", *folder).returncode == 0
    assert not table.exists() and table_file(place / "work", "r").exists(), "only the deleted study's operators go"
    assert list((place / "work" / "jobs").iterdir()) == jobs
    assert studies("delete", "r", *folder).returncode == 0
    with opened(sqlite_url(place / "work")) as storage:  # a CPU study that was stopped while its operators were measured
        open_study(storage, "q", StudySettings(request=Request(**QUESTION), device="cpu"), resume=False, wanted=StudySettings)
    unmeasured = studies("show", "q", *folder)
    assert unmeasured.returncode == 2 and "has measured nothing yet" in unmeasured.stderr
    assert studies("delete", "q", *folder).returncode == 0
    assert "no studies yet" in studies("list", *folder).stdout
    assert run(place, "studies", "list", "--folder", str(place)).returncode == 2
