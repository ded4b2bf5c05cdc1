"""One search's worker in this process: budgets, short jobs, pruning, and what another worker finds after it."""

import contextlib
from collections.abc import Iterator

import pytest
from job_help import stand_in_command, wait_until
from study_help import QUESTION, left_over, runs, trials_of, write_oracle

from autoconfig.question import Request
from autoconfig.study.deletion import forget
from autoconfig.study.screen import Quiet
from autoconfig.study.session import Options, Session, open_session
from autoconfig.study.settings import Budget, StudySettings
from profiler.local import LocalRunner
from specs.errors import InputError


class Stop(Exception):
    """The search is killed here."""


class Killed(Quiet):
    """Ends the search at its first look at a running job, which goes on."""

    def tick(self, worker):
        raise Stop


@contextlib.contextmanager
def session(place, **changes) -> Iterator[Session]:
    settings = StudySettings(request=Request(**QUESTION), **changes)
    options = Options(folder=place / "work", python="unused")
    options.folder.mkdir(exist_ok=True)
    with contextlib.closing(open_session("s", settings, options, resume=False)) as found:
        yield found


def outcomes(place) -> list[object]:
    return [t.user_attrs.get("outcome") for t in trials_of(place, "s")]


def test_a_job_outlives_a_killed_search_and_its_time_budget(tmp_path):
    """What it measures counts in the next search; a search that lives cancels it at the budget's end."""
    write_oracle(tmp_path)
    budget = Budget(seconds=2)
    with session(tmp_path) as first:
        runner = LocalRunner(stand_in_command, {"STAND_IN_EVERY_SECONDS": "4"})
        with pytest.raises(Stop):
            first.worker(runner, Killed(), budget).run()
    with session(tmp_path) as second:
        assert second.worker(runner, Quiet(), Budget(trials=1)).run()
    assert outcomes(tmp_path) == ["measured"] and set(runs(tmp_path).values()) == {1}
    with session(tmp_path) as third:
        assert third.worker(runner, Quiet(), budget).run() == "the budget is spent"
    assert outcomes(tmp_path) == ["measured", "cancelled"]
    wait_until(lambda: left_over(tmp_path) == [], "processes are left")


def test_a_study_that_is_deleted_under_its_search(tmp_path):
    """Refused while trials run; forced, the search says so."""
    write_oracle(tmp_path)
    with session(tmp_path) as first:

        class Deletes(Quiet):
            def tick(self, worker):
                if trials_of(tmp_path, "s") == []:
                    return
                with pytest.raises(InputError, match=r"study s has 1 running trial .*--force"):
                    forget(first.storage, "s", tmp_path / "elsewhere", shared=True)
                forget(first.storage, "s", tmp_path / "elsewhere", shared=True, force=True)

        worker = first.worker(LocalRunner(stand_in_command, {"STAND_IN_EVERY_SECONDS": "2"}), Deletes(), Budget(trials=1))
        with pytest.raises(InputError, match="study s is gone: it was deleted under this search"):
            worker.run()
        assert left_over(tmp_path) == []
