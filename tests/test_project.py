"""What somebody who joins relies on: the tiers of CONTRIBUTING, forms, hooks, the check of a release."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autoconfig.cli.main import COMMANDS
from tools import release

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
"""Elements that a form of GitHub may have."""


def section(title: str) -> str:
    return CONTRIBUTING.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_tiers_are_those_that_ci_runs():
    named = set(re.findall(r"^\| `make ([a-z]+)", section("Tiers of tests"), re.MULTILINE))
    run = set(re.findall(r"^make ([a-z]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE))
    assert run == {"test", "docs", "ray", "bounds", "judge"} and run < named


def test_the_workflow_runs_what_everybody_can_run():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12"] and {"run": ".ci/run"} in job["steps"]
    assert all((ROOT / step["run"].split()[-1]).exists() for step in job["steps"] if "run" in step)


def test_every_marker_has_its_place_among_the_tiers():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    markers = set(re.findall(r'^  "(\w+): ', text.split("\nmarkers = [")[1].split("\n]")[0], re.MULTILINE))
    assert not [name for name in markers if f"`{name}`" not in CONTRIBUTING and f"`make {name}`" not in CONTRIBUTING]


def test_what_programs_write_is_there():
    table = re.findall(r"^\| (.*?) \| (.*?) \|$", section("What programs write"), re.MULTILINE)[1:]
    files = [name for row in table for name in re.findall(r"`([\w./]+)`", row[0])]
    assert len(table) == 8 and [name for name in files if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("form", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes(form):
    body = yaml.safe_load(form.read_text(encoding="utf-8"))
    fields = [one for one in body["body"] if one["type"] != "markdown"]
    assert {"name", "description", "body"} <= set(body) and {one["type"] for one in body["body"]} <= KINDS
    assert len({one["id"] for one in fields}) == len(fields) and all(one["attributes"]["label"] for one in fields)
    assert any(one.get("validations", {}).get("required") for one in fields)


def test_hooks_need_no_network_and_run_what_is_there():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert [one["repo"] for one in config["repos"]] == ["local"] and {hook["language"] for hook in hooks} == {"system"}
    installed = Path(sys.executable).parent
    assert all((installed / Path(hook["entry"].split()[0]).name).exists() for hook in hooks)
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)


def test_the_support_page_names_every_command_and_the_versions_that_judge():
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}`" not in page and f"`{name} " not in page] == []
    extras = release.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = [line for line in extras["judge"] if "==" in line]
    pinned += (ROOT / "validation" / "judge" / "post_training.txt").read_text(encoding="utf-8").splitlines()
    shown = {"torch": "torch", "megatron-core": "", "transformers": "transformers", "verl": "verl", "trl": "TRL"}
    shown |= {"openrlhf": "OpenRLHF", "llamafactory": "LLaMA-Factory", "axolotl": "axolotl"}
    versions = dict(line.split("==") for line in pinned if "==" in line)
    assert [name for name, words in shown.items() if f"{words} {versions[name]}" not in page] == []


@pytest.mark.service
def test_a_release_takes_a_python_that_can_make_environments(tmp_path, monkeypatch):
    here = ".".join(map(str, sys.version_info[:2]))
    for folder, script in (("broken", "exit 1"), ("other", "echo 3.9 /x"), ("right", f"echo {here} {sys.executable}")):
        program = tmp_path / folder / f"python{here}"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(release.shutil, "which", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}/broken:{tmp_path}/other")
    assert release.interpreter(here) is None
    monkeypatch.setenv("PATH", f"{tmp_path}/broken:{tmp_path}/other:{tmp_path}/right")
    assert release.interpreter(here) == Path(sys.executable)


@pytest.mark.service
def test_a_release_says_what_failed():
    with pytest.raises(release.CommandError, match=r"false ended with 1"):
        release.run("false")
    assert release.run("echo", "done") == "done\n"


def test_no_page_holds_a_path_of_somebodys_machine():
    tracked = subprocess.run(
        ["git", "ls-files", "*.md", "*.yml", "*.yaml", "Makefile"], cwd=ROOT, capture_output=True, text=True
    )
    pages = [ROOT / name for name in tracked.stdout.splitlines()]
    assert [str(page) for page in pages if re.search(r"/(?:home|Users)/\w|/root/", page.read_text(encoding="utf-8"))] == []
