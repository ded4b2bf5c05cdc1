"""Docs that can be trusted: parts of the output are functions with a line in docs, links resolve, commands exist."""

import functools
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from autoconfig.specs.plan import parse_plan
from command_line import run_in_process, run_process

from autoconfig.training.price import report_plan
from autoconfig.training.question import Request, understand

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
SERVICE = ("serve", "worker", "keys")
"""Commands of the HTTP service, which the command line looks up beside its own."""
QUESTIONS = [
    (Request(model="175b", gpus=64), "tp=8,pp=4,vpp=3,mbs=1,sp=1"),
    (Request(model="175b", gpus=64, software="megatron-lm-2022"), "tp=8,pp=4,mbs=1,recompute=selective:core_attn"),
    (
        Request(model="llama3-70b", gpus=64, numerics={"grad_reduce_dtype": "bf16", "precision": "fp8"}),
        "tp=4,pp=2,cp=2,mbs=1,sp=1,recompute=full:uniform:2",
    ),
    (Request(model="deepseek-v3", gpus=256), "tp=2,pp=16,ep=8,mbs=1,sp=1,first=4,last=1,recompute=selective:mla_up_proj"),
    (Request(model="llama3-8b", gpus=8), "tp=1,pp=1,mbs=1,dist_opt=0,fsdp=3"),
]


def public_functions(package: str) -> set[str]:
    names: set[str] = set()
    found = importlib.import_module(f"autoconfig.{package}")
    for module in pkgutil.walk_packages(found.__path__, found.__name__ + "."):
        loaded = importlib.import_module(module.name)
        names |= {name for name, value in vars(loaded).items() if callable(value) and not name.startswith("_")}
    return names


@pytest.mark.parametrize(("request_", "plan"), QUESTIONS)
def test_every_part_is_a_function_with_its_line_in_docs(request_: Request, plan: str) -> None:
    scenario = understand(request_).scenario
    report = report_plan(scenario, parse_plan(plan, scenario.cluster.num_gpus))
    memory = {name for stage in report.stages for name in stage.parts}
    for package, parts in (("memory_model", memory), ("time_model", set(report.time_parts))):
        page = (ROOT / "docs" / f"{package}.md").read_text()
        assert parts <= public_functions(package)
        assert not [name for name in parts if f"`{name}" not in page]
    assert sum(report.time_parts.values()) == pytest.approx(report.step_seconds)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    folders = "specs|memory_model|time_model|autoconfig|tests|docs|benchmarks"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def command_lines(page: Path, program: str) -> Iterator[list[str]]:
    """Words of every line of code, and of code within a line, that begins with the program; without comments."""
    text = page.read_text()
    found = re.findall(rf"^ {{4}}(?:\$ )?({program} [^\n]*)", text, re.MULTILINE)
    found += re.findall(
        rf"^(?:\$ )?({program} [^\n]*)", "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)), re.M
    )
    found += re.findall(rf"`({program} [^`\n]*)`", text)
    for line in found:
        yield shlex.split(line.partition(" #")[0].replace("'", ""))[1:]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_commands_have_the_options_that_are_named(page: Path) -> None:
    for words in command_lines(page, "autoconfig"):
        name = [word for word in words[: 2 if words[0] in ("studies", "keys") else 1] if not word.startswith("-")]
        helped = help_of(*name, *(word for word in words if word == "--inference"))
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= set(re.findall(r"--[\w-]+", helped)), f"{page.name}: {shlex.join(words)}"


@functools.cache
def help_of(*words: str) -> str:
    done = run_process(*words, "--help", text=True) if words[0] in SERVICE else run_in_process(*words, "--help")
    assert "Usage: " in done.stdout, words
    return done.stdout


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_make_has_the_targets_that_are_named(page: Path) -> None:
    makefile = "".join(path.read_text() for path in (ROOT / "Makefile", *(ROOT / "benchmarks").glob("*.py")))
    for words in command_lines(page, "make"):
        for word in words:
            name, is_variable, _ = word.partition("=")
            pattern = rf"\$\({name}\)|ifdef {name}|environ.get\(\"{name}\"" if is_variable else rf"^{re.escape(name)}:"
            assert re.search(pattern, makefile, re.MULTILINE) or (ROOT / name).exists(), f"{page.name}: make {word}"
