"""The measured trade-off: a study of real jobs of megatron-core's static engine on a CPU, killed and resumed; what is proposed;
what measured points teach the prediction."""

import dataclasses
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.profiler.processes import marked
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.software.engine import load_engine
from autoconfig.time_model.serving.tables import EngineConstants
from background import started
from job_help import wait_until
from tables import tabled

from autoconfig.planning.serving_calibration import serving_calibration
from autoconfig.serving.question import understand
from autoconfig.serving.request import ServeRequest
from autoconfig.study.serving.candidates import Round, RoundFigures, candidates_of, predicted, refined
from autoconfig.study.serving.work import ServingSettings, behind, on_frontier, propose
from autoconfig.study.settings import settings_json, settings_of
from autoconfig.study.storage import opened, sqlite_url
from autoconfig.study.training.settings import StudySettings

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("serving profile")]

ROOT = Path(__file__).parents[2]
STUDY, DEADLINE_S = "tiny", 900.0
MODEL = str(ROOT / "docs" / "examples" / "tiny_model.json")
BATCHES = (1, 4, 16, 64) if "AUTOCONFIG_SOAK" in os.environ else (1, 64)
QUESTION = (
    "--model", MODEL, "--gpus", "1", "--device", "cpu", "--profile", "--isl", "64", "--osl", "12",
    "--steps", "12", "--warmup-steps", "1", *(part for batch in BATCHES for part in ("--fix", f"batch={batch}")),
)  # fmt: skip
CPU = dataclasses.replace(
    load_gpu("h100"), id="cpu", architecture="cpu", flops_per_s={"fp32": 30e9, "bf16": 30e9}, hbm_bytes_per_s=10e9,
    memory_bytes=8 * 2**30, link_bytes_per_s=1e9,
)  # fmt: skip
"""A core of a server, as far as the order of magnitude goes."""


def command(place, *arguments):
    """`deployments`; jobs run under an interpreter that leaves a line in the folder of each that it starts."""
    script = place / "python"
    if not script.exists():
        script.write_text(f'#!/bin/bash\ncase "$*" in *"-m autoconfig.trainer"*) echo $$ >> runs.txt;; esac\n'
        f'exec {sys.executable} "$@"\n')  # fmt: skip
        script.chmod(0o755)
    return [
        sys.executable, "-m", "autoconfig", "search", "--inference", *arguments, "--folder", str(place / "work"),
        "--python", str(script),
    ]  # fmt: skip


def start(place, *arguments):
    process = subprocess.Popen(
        command(place, *arguments), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return started(process, place)


def runs(place):
    return {path.parent.name: len(path.read_text().split()) for path in (place / "work").glob("jobs/*/runs.txt")}


def finished(place):
    with opened(sqlite_url(place / "work")) as storage:
        trials = storage.get_all_trials(storage.get_study_id_from_name(STUDY))
    return [(t.number, t.values, t.params, t.user_attrs["outcome"]) for t in trials if t.state.is_finished()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(folder, trials at the kill, answer of the search that went on): killed with -9 while its second job ran."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("the jobs run megatron-core's engine")
    place = tmp_path_factory.mktemp("serving")
    search = start(place, *QUESTION, "--study", STUDY, "--budget", "20m", "--quiet")
    wait_until(lambda: len(runs(place)) == 2 or search.poll() is not None, "no second job")
    search.send_signal(signal.SIGKILL)
    said = search.communicate()[1]
    assert search.returncode == -signal.SIGKILL, said
    before = finished(place)
    again = start(place, "--resume", STUDY, "--budget", "20m", "--json", "--save-calibration", str(place / "learned.json"))
    out, said = again.communicate(timeout=DEADLINE_S)
    assert again.returncode == 0, said
    return place, before, json.loads(out), said


@pytest.mark.judge
def test_a_killed_study_loses_nothing_and_runs_nothing_twice(killed):
    place, before, answer, said = killed
    assert len(before) == 1 and finished(place)[:1] == before
    assert len(finished(place)) == len(BATCHES) and {t[3] for t in finished(place)} == {"measured"}
    assert len(runs(place)) == len(BATCHES) and set(runs(place).values()) == {1}
    assert [pid for job in (place / "work" / "jobs").iterdir() for pid in marked(job)] == []
    assert answer["stopped"] == "every candidate was tried" and answer["candidates"] == len(BATCHES)
    assert re.search(rf"trial {len(BATCHES) - 1}: measured [\d.,]+ tok/s/GPU at [\d.]+ ms, TTFT", said), said  # plain lines


@pytest.mark.soak  # times of a machine that does nothing else
def test_the_measured_frontier_has_the_shape_of_the_calibrated_prediction(killed):
    _, _, answer, _ = killed
    lines = {line["trial"]: line for line in answer["lines"]}
    assert len(answer["frontier"]) >= 3, lines
    assert min(answer["rank_correlation"]) >= 0.9, lines
    front = [lines[trial] for trial in answer["frontier"]]
    assert [line["measured_tpot_s"] for line in front] == sorted(line["measured_tpot_s"] for line in front)
    assert answer["best"]["trial"] == max(front, key=lambda line: line["measured_tokens"])["trial"]
    assert answer["correction"]["operators"] > 0 and answer["correction"]["error_after"] < answer["correction"]["error_before"]


@pytest.mark.judge
def test_studies_and_calibrations_of_serving(killed, autoconfig):
    place = killed[0]
    folder = ("--folder", str(place / "work"))
    listed = json.loads(autoconfig.run("studies", "list", *folder, "--json").output)["studies"]
    assert (listed[0]["kind"], listed[0]["measured"], listed[0]["best_step_seconds"]) == ("inference", len(BATCHES), None)
    shown = autoconfig.run("studies", "show", STUDY, *folder)
    assert "Frontier, fastest user first" in shown.output and "Learned: operators take" in shown.output
    learned = serving_calibration(str(place / "learned.json"))
    spec = json.loads((place / "learned.json").read_text())
    gpu = dataclasses.replace(CPU, id=spec["gpu"])
    assert learned.constants(load_engine("megatron"), gpu).host_s == spec["constants"]["host_s"]
    other = autoconfig.run("search", "--resume", STUDY, *folder)
    assert other.exit_code == 2 and "autoconfig deployments --resume" in other.output
    half = autoconfig.run("search", "--inference", "--resume", STUDY, "--isl", "8", *folder)
    assert half.exit_code == 2 and "--isl" in half.output


@tabled
def test_what_a_study_of_serving_refuses(wrong, said, autoconfig, tmp_path):
    asked = ("--model", MODEL, "--gpus", "1", "--device", "cpu", "--profile", "--study", "x", "--folder", str(tmp_path))
    found = autoconfig.run("search", "--inference", *asked, *wrong)
    assert found.exit_code == 2 and said in found.output, found.output
    assert not list(tmp_path.iterdir())  # said before anything is measured or written


def choices(model="qwen2.5-0.5b", gpus=2, fix=()):
    question = understand(ServeRequest(model=model, gpus=gpus, engine="megatron", isl=64, osl=16, fix=fix))
    return candidates_of(dataclasses.replace(question, gpu=CPU, gpus_per_node=gpus))


def truth(found, constants):
    """What jobs would measure if these constants were the engine's."""
    return found.again(constants)


def test_the_predicted_frontier_is_measured_first_and_a_proposal_is_a_pure_function():
    found = choices()
    assert {row.plan.tp for row in found.rows} == {1, 2} and len(found) == 14
    reality = truth(found, EngineConstants(factor=3.0, communication_factor=5.0, host_s=4e-3, sampler_bytes=0.0))
    measured, order = {}, []
    while (proposal := propose(found, measured, name="s", seed=1, number=len(order))).row is not None:
        assert propose(found, dict(reversed(measured.items())), name="s", seed=1, number=len(order)) == proposal
        measured[proposal.row] = reality[proposal.row]
        order.append(proposal.row)
    assert sorted(order) == list(range(len(found)))
    first = {row for row, kept in enumerate(on_frontier(found.values(found.forecast))) if kept}
    assert set(order[:2]) <= first and found.rows[order[0]].plan.batch != found.rows[order[1]].plan.batch
    front = {row for row, kept in enumerate(on_frontier(found.values(reality))) if kept}
    assert front <= set(order[: len(front) + 4]), "the real frontier is measured early"
    assert all(behind(found.values(reality), row) == 0.0 for row in front)


def test_a_batch_out_of_memory_rules_out_larger_ones_of_its_layout():
    found = choices()
    full = next(row for row, one in enumerate(found.rows) if (one.plan.tp, one.plan.batch) == (1, 8))
    reality, measured, tried = found.forecast, {}, []
    while (row := propose(found, measured, name="s", seed=0, number=len(tried), out_of_memory={full}).row) is not None:
        measured[row] = reality[row]
        tried.append(row)
    plans = [found.rows[row].plan for row in tried]
    assert max(plan.batch for plan in plans if plan.tp == 1) == 4 and max(plan.batch for plan in plans if plan.tp == 2) == 64


@pytest.mark.parametrize("tokens", [None, 256])
def test_measured_rounds_give_the_constants_that_made_them(tokens):
    found = choices(fix=("tp=1",))
    made = EngineConstants(factor=3.0, experts_factor=3.0, host_s=2e-3, sampler_bytes=0.0, request_s=0.03 if tokens else 0.0)
    job = found.rows[0].job
    asked = [Round(batch=b, prompt=64, new=16, tokens=tokens) for b in BATCHES]
    seen = [(job, one, predicted(dataclasses.replace(job, constants=made), one)) for one in asked]
    again = refined(job, seen)
    for name in ("factor", "host_s", "request_s"):
        assert getattr(again, name) == pytest.approx(getattr(made, name), rel=1e-3, abs=1e-9)
    forecast = [predicted(dataclasses.replace(job, constants=again), one) for one in asked]
    assert [f.tokens_per_s for f in forecast] == pytest.approx([m.tokens_per_s for *_, m in seen])


def test_a_communication_factor_is_learned_from_tensor_parallel_points_only():
    found = choices()
    made = EngineConstants(factor=2.0, experts_factor=2.0, communication_factor=7.0, host_s=1e-3, sampler_bytes=0.0)
    reality = found.again(made)
    alone = {row: reality[row] for row, one in enumerate(found.rows) if one.plan.tp == 1}
    assert found.learned(alone).communication_factor == 1.0
    assert found.learned(dict(enumerate(reality))).communication_factor == pytest.approx(7.0, rel=1e-3)


def test_stored_questions_of_serving_come_back():
    asked = ServeRequest(model="llama3-8b", gpus=2, engine="vllm", isl=64, osl=16, tpot_s=0.05, fix=("tp=2",))
    settings = ServingSettings(request=asked, seed=4)
    assert settings_of(settings_json(settings), "x", ServingSettings) == settings
    with pytest.raises(InputError, match="measures serving"):
        settings_of(settings_json(settings), "study x", StudySettings)


def test_a_round_of_a_server_takes_as_many_iterations_as_its_budget_makes():
    job = choices(fix=("tp=1",)).rows[0].job
    one, four = (predicted(job, Round(batch=16, prompt=64, new=16, tokens=tokens)) for tokens in (1024, 256))
    assert isinstance(one, RoundFigures) and four.ttft_s < one.ttft_s and four.tpot_s > one.tpot_s
    assert one == predicted(job, Round(batch=16, prompt=64, new=16))
