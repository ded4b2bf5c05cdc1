"""The database's URL, whose password no other user of the machine is to see."""

import os
import re
import subprocess
import sys

import psutil
import pytest
from command_line import run_in_process
from job_help import wait_until

URL = "postgresql://user:secret@127.0.0.1:1/none"


@pytest.mark.service
def test_no_process_of_a_service_has_its_database_among_its_arguments(tmp_path):
    """Neither the service nor a worker that it starts, nor is it inherited further than to the workers."""
    database = f"sqlite:///{tmp_path}/secret.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--workers", "1", "--search-workers", "1"],
        env={**os.environ, "AUTOCONFIG_DATABASE": database}, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert re.search("listening on", process.stderr.readline())
        wait_until(lambda: [one for one in commands(process) if "worker" in one], "no worker was started")
        said = commands(process)
    finally:
        process.terminate()
        process.stderr.close()
        process.wait(60)
    assert (tmp_path / "secret.db").exists() and not [words for words in said if "secret.db" in " ".join(words)]


def commands(process: subprocess.Popen[str]) -> list[list[str]]:
    return [one.cmdline() for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]]


@pytest.mark.parametrize(("words", "variable"), [
    (("keys", "list"), "AUTOCONFIG_DATABASE"), (("studies", "list"), "AUTOCONFIG_STORAGE"),
])  # fmt: skip
def test_a_url_with_a_password_belongs_into_the_environment(words, variable, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = "--" + variable.partition("_")[2].lower()
    warned = f"sees the password of {name}: give the URL as {variable}"
    given = run_in_process(*words, name, URL)
    assert given.exit_code == 2 and warned in given.stderr and "secret" not in given.stderr
    assert warned not in run_in_process(*words, name, URL.replace(":secret", "")).stderr
    monkeypatch.setenv(variable, URL)
    taken = run_in_process(*words)
    assert taken.exit_code == 2 and "127.0.0.1" in taken.stderr and warned not in taken.stderr and "secret" not in taken.stderr
    assert variable not in os.environ  # what a command starts does not inherit it
