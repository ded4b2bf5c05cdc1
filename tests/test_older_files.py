"""Files that revision 75a80efd wrote are read: calibrations, plan.json, a study, the service's database (data/)."""

import json
import sqlite3
from pathlib import Path

import pytest
from autoconfig.api import measurements, searches
from autoconfig.api.store import engine_of, find_key
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.software.engine import load_engine
from command_line import run_in_process
from study_help import fake_python, search, told, trials_of, write_oracle

from autoconfig.planning.serving_calibration import serving_calibration
from autoconfig.post_training.calibration import read_calibration

OLD = Path(__file__).parent / "data" / "written_by_75a80efd"
KEY = "ac_5929a49a1838_BuzREFWHAZGPC3aAo_FisYo4-r6EJmRvHNF_uiWO1Hs"
SEARCH = "11111111-2222-4333-8444-555555555555"


def database(name: str, path: Path) -> Path:
    """The SQLite file of a dump."""
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript((OLD / name).read_text(encoding="utf-8"))
    connection.close()
    return path


def test_calibrations():
    done = run_in_process("search", "--model", "7b", "--gpus", "8", "--calibration", str(OLD / "calibration.json"), "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["calibration"] == "runs-4-d5070cfa"
    assert read_calibration(OLD / "rl_calibration.json").generation == 1.2
    found = serving_calibration(str(OLD / "serving_calibration.json"))
    assert found.constants(load_engine("trtllm-1.2"), load_gpu("h200")).factor == 1.25


def test_a_plan_file():
    done = run_in_process("check", str(OLD / "plan.json"), "--json")
    body = json.loads((OLD / "plan.json").read_text(encoding="utf-8"))
    assert done.exit_code == 0 and json.loads(done.stdout)["short"] == body["short"]


@pytest.mark.service
def test_a_study_goes_on(tmp_path):
    fake_python(tmp_path)
    write_oracle(tmp_path)
    database("study.sql", tmp_path / "work" / "studies.db")
    before = told(trials_of(tmp_path, "s"))
    assert len(before) == 4
    done = search(tmp_path, "--resume", "s", "--budget", "1trials", "--json")
    assert done.returncode == 0, done.stderr
    assert told(trials_of(tmp_path, "s"))[:4] == before
    assert json.loads(done.stdout)["best"]["measured_s"] <= 0.02690661493003257


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_services_database(tmp_path):
    engine = engine_of(f"sqlite:///{database('service.sql', tmp_path / 'service.db')}")
    key = find_key(engine, KEY)
    assert key is not None and key.name == "ours" and key.allows("plan")
    runs, own = measurements.listed(engine, key.id, after=0, limit=9), measurements.current(engine, key.id)
    assert [run.body["metric_step_s"] for run in runs] == [10.0]
    assert own is not None and own.version == "runs-4-d5070cfa"
    stored, result = searches.get(engine, SEARCH), searches.result_of(engine, SEARCH)
    assert stored is not None and stored.state == "done" and stored.body == {"model": "7b", "gpus": 8}
    assert result is not None and json.loads(result)["assumed"]
    engine.dispose()
