"""Storages that many workers share: SQLite and a real PostgreSQL, the same tests for both."""

import json
import multiprocessing
import shutil
from collections import Counter
from pathlib import Path

import optuna
import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from background import left_over
from postgres_help import postgres_server
from study_help import ARGUMENTS, fake_python, runs, start, trials_of, write_oracle
from tables import tabled

from autoconfig.study.settings import differences, settings_json, settings_of
from autoconfig.study.storage import open_storage, open_study, opened
from autoconfig.study.training.settings import StudySettings
from autoconfig.training.question import Request

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("storages")]
WRITERS = 5


def write(url: str, writer: int, each: int) -> None:
    """A process of its own: forked, so that it need not import again."""
    study = optuna.load_study(study_name=f"many {each}", storage=open_storage(url))
    for number in range(each):
        trial = study.ask()
        trial.suggest_categorical("tp", [1, 2, 4, 8])
        trial.set_user_attr("writer", writer)
        trial.set_user_attr("number", number)
        study.tell(trial, float(1000 * writer + number))


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else request.getfixturevalue("postgres")


def settings(**changes) -> StudySettings:
    return StudySettings(request=Request(model="gpt3-126m", gpus=2, architecture={"num_layers": 2}), **changes)


@pytest.mark.parametrize("each", [6, pytest.param(20, marks=pytest.mark.soak)])
def test_concurrent_updates_lose_nothing(url, each):
    with opened(url) as storage:
        optuna.create_study(study_name=f"many {each}", storage=storage)
    writers = [multiprocessing.get_context("fork").Process(target=write, args=(url, n, each)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    trials = trials_of(Path(), f"many {each}", url=url)
    assert [t.number for t in trials] == list(range(WRITERS * each))
    seen = {(t.user_attrs["writer"], t.user_attrs["number"]): t for t in trials}
    assert len(seen) == WRITERS * each
    assert all(t.value == 1000 * w + n and set(t.params) == {"tp"} for (w, n), t in seen.items())


def test_questions_that_carry_their_model_and_cluster_are_read_back():
    model, cluster = {"hidden_size": 256, "tie_word_embeddings": False}, {"gpu": "h100-sxm-80gb", "nodes": {"count": 2}}
    given = StudySettings(request=Request(model=model, cluster=cluster, local_files=False))
    assert settings_of(json.loads(json.dumps(settings_json(given))), "x", StudySettings) == given
    with pytest.raises(InputError, match="is not a text or an object"):
        settings_of({**settings_json(given), "request": {"model": 3}}, "x", StudySettings)


def test_a_study_keeps_its_question(url):
    with opened(url) as storage, opened(url) as other:
        _, stored = open_study(storage, "kept", settings(seed=3), resume=False, wanted=StudySettings)
        assert stored == settings(seed=3)
        _, again = open_study(other, "kept", None, resume=True, wanted=StudySettings)
        assert again == stored and settings_of(settings_json(stored), "x", StudySettings) == stored
        with pytest.raises(InputError, match="seed: 3 stored, 4 given"):
            open_study(storage, "kept", settings(seed=4), resume=False, wanted=StudySettings)
        with pytest.raises(UnknownNameError, match="did you mean kept"):
            open_study(storage, "kep", None, resume=True, wanted=StudySettings)
    assert differences(stored, settings(seed=3)) == []


@pytest.mark.soak
def test_four_workers_share_one_study(postgres, tmp_path):
    """Each in its own folder. No plan is measured twice, numbers have no gap, and every worker's trials are told."""
    fake_python(tmp_path)
    write_oracle(tmp_path)
    options = ("--profile", "--study", "four", "--storage", postgres, "--budget", "5trials", "--quiet")
    workers = [start(tmp_path, *ARGUMENTS, *options, folder=f"w{n}", STAND_IN_EVERY_SECONDS="1") for n in range(4)]
    ended = [(worker.communicate(timeout=400), worker.returncode) for worker in workers]
    assert [code for _, code in ended] == [0] * 4, [err for (_, err), _ in ended]
    trials = trials_of(tmp_path, "four", url=postgres)
    assert [t.number for t in trials] == list(range(len(trials)))
    assert all(t.state.is_finished() for t in trials)
    kept = [t for t in trials if t.user_attrs["outcome"] != "duplicate"]
    assert len({t.user_attrs["plan"] for t in kept}) == len(kept)
    assert len(Counter(t.user_attrs["owner"] for t in kept)) > 1
    started = Counter(name for n in range(4) for name in runs(tmp_path, f"w{n}"))
    assert set(started.values()) == {1} and len(started) == len(kept)
    assert left_over(tmp_path) == []


@tabled
def test_storages_that_cannot_be_used(bad, said):
    with pytest.raises(InputError, match=said) as error:
        open_storage(bad)
    assert "secret" not in str(error.value)


def test_postgres_programs_are_there():
    """tools/install_services.sh put them there."""
    assert list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb")
