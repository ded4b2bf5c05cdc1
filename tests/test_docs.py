"""Docs that can be trusted: parts of the output, links, commands, the site's navigation, what it makes itself."""

import functools
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import screens
import yaml
from autoconfig.specs.plan import SHORT_TO_LONG, parse_plan
from command_line import run_in_process

from autoconfig.cli.main import COMMANDS, FORMS, load
from autoconfig.planning.calibration_file import shipped
from autoconfig.training.price import report_plan
from autoconfig.training.question import Request, understand
from tools.docs_site.__main__ import loaded_from_elsewhere, site_text, sources, spaced
from tools.docs_site.engine_memory import fractions
from tools.docs_site.made import filled
from tools.docs_site.reference import LISTED, commands, packages

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")])
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


OF_OTHERS = {
    *("pretrain_t5.py", "pretrain_bert.py", "core/datasets/utils.py", "training/initialize.py", "schedules.py"),
    "core/transformer/moe/token_dispatcher.py",
}
"""Files of Megatron-LM that the pages name."""


@functools.cache
def python_files() -> list[str]:
    skipped = {"build", ".venv"}
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    return [f"/{path.as_posix()}" for path in found if path.parts[0] not in skipped]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_named_modules_exist_under_some_folder(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.py)`", page.read_text())) - OF_OTHERS
    missing = sorted(name for name in named if not any(path.endswith(f"/{name}") for path in python_files()))
    assert not missing, f"{page.name} names {missing}"


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
        grouped = words[0] in ("studies", "keys") or words[:2] in (["rl", "check"], ["rl", "calibrate"])
        name = [word for word in words[: 2 if grouped else 1] if not word.startswith("-")]
        helped = help_of(*name, *(word for word in words if word in FORMS))
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= set(re.findall(r"--[\w-]+", helped)), f"{page.name}: {shlex.join(words)}"


def whole_commands() -> list[tuple[str, ...]]:
    """Commands of README and docs that need no file, program or machine; the tutorial's have a test of their own."""
    pages = [page for page in PAGES if page.name not in ("CHANGELOG.md", "tutorial.md")]
    lines = dict.fromkeys(tuple(words) for page in pages for words in command_lines(page, "autoconfig"))
    lists = ("models", "gpus", "software", "engines")
    elsewhere = re.compile(r"[A-Z]{3,}|\.\.\.|\.\w+$|/|[\[<|>]|--profile$|--resume$|local$")
    return [
        words
        for words in lines
        if words[0] in lists or ("--model" in words and words[0] not in ("trace", "emulate"))
        if not any(elsewhere.search(word) for word in words)
    ]


@pytest.mark.service
@pytest.mark.parametrize("words", whole_commands(), ids=" ".join)
def test_a_command_of_the_docs_answers(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_in_process(*words)
    assert done.exit_code == 0 and done.stdout, done.stderr


def test_programs_of_the_docs_are_there():
    """`python -m MODULE` and `MODULE.py` of README, CONTRIBUTING and docs."""
    started = [words for page in PAGES if page.name != "CHANGELOG.md" for words in command_lines(page, "python")]
    modules = {words[words.index("-m") + 1] for words in started if "-m" in words}
    assert {"tools.recorded_answers", "benchmarks.service_load"} <= modules
    for name in filter(re.compile(r"(autoconfig|tools|validation|benchmarks)\.").match, modules):
        path = ROOT / re.sub("^autoconfig/(?=kernels|specs|profiler|trainer)", "", name.replace(".", "/"))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


@functools.cache
def help_of(*words: str) -> str:
    flag = "--help-all" if words[0] in ("search", "explain", "export", "deployments") else "--help"
    done = run_in_process(*words, flag)
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


@pytest.mark.parametrize("page", ["accuracy.md", "time_model.md"])
def test_tables_of_errors_are_those_of_the_shipped_calibration(page):
    assert f"Shipped calibration: {shipped().version}." in (ROOT / "docs" / page).read_text(), "run make accuracy"


README_FIGURES = (
    ("accuracy/memory_and_fit.md", "SimuMax-B200-v1.2, ", 6, "on\nB200 is within"),
    ("accuracy.md", "Korthikanti 2022, Table 5, publisher unknown: ", 3, "Korthikanti et al. 2022"),
    ("accuracy.md", "Narayanan 2021, Table 1, publisher unknown: ", 3, "Narayanan et al. 2021"),
    ("accuracy.md", "NVIDIA dense FP8, H100, publisher unknown: ", 3, "NVIDIA's dense FP8 runs on H100"),
    ("accuracy.md", "2026, mixtures of experts, publisher unknown: ", 3, "mixtures of experts of 2026"),
)
"""Page, beginning of the row and column of the figure, and the words before it in the README."""


@pytest.mark.parametrize(("page", "row", "column", "words"), README_FIGURES, ids=[words for *_, words in README_FIGURES])
def test_the_readmes_figures_are_those_of_the_accuracy_pages(page, row, column, words):
    line = next(line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith(f"| {row}"))
    printed = line.split("|")[column].strip().lstrip("+").partition("%")[0] + "%"
    assert f"{words} {printed}" in (ROOT / "README.md").read_text(), f"{words}: {printed}"


def test_the_readmes_example_is_what_the_command_prints():
    block = (ROOT / "README.md").read_text().split("```")[1]
    printed = run_in_process("search", "--model", "175b", "--gpus", "1024").stdout
    said = [" ".join(line.split()) for line in printed.splitlines()]
    shown = [" ".join(line.split()).split(" ranked in ")[0] for line in block.splitlines() if line.strip() not in ("", "...")]
    assert len(shown) >= 5
    assert [text for text in shown if not any(line.startswith(text) for line in said)] == [], "renew the block in README.md"


TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_the_tutorial_names_the_limits_of_percentiles():
    text = TUTORIAL.read_text(encoding="utf-8").split("## 7. Serving")[1]
    assert all(f"--{name}-{share}" in text for name in ("ttft", "tpot") for share in ("p95", "p99"))


def test_the_tutorial_shows_what_its_commands_print(tmp_path, monkeypatch):
    """In order, in one folder; every line that is shown is there, its figures aside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    blocks = re.findall(r"^```\n\$ autoconfig ([^\n]*)\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    for command, shown in blocks:
        done = run_in_process(*shlex.split(command))
        assert done.exit_code == 0, command
        printed = screens.recorded(done.output).splitlines()
        wanted = [line for line in screens.recorded(shown).splitlines() if line not in ("", "...")]
        assert [line for line in wanted if line.rstrip() not in [one.rstrip() for one in printed]] == [], f"renew {command}"


def test_the_site_names_every_page():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = [page for entry in nav for page in ([entry] if isinstance(entry, str) else next(iter(entry.values())))]
    assert sorted(named) == sorted([*sources(), *packages(), "benchmarks/gpu/README.md"])


def test_the_site_shows_every_command_and_option():
    page = commands()
    for name in LISTED:
        section = page.split(f"## autoconfig {name}\n")[1].split("\n## ")[0]
        for parameter in load(*COMMANDS[name].split(":")).params:
            for option in parameter.opts:
                assert option.startswith("-") is False or option in section, f"{name} {option}"
    for key in SHORT_TO_LONG:
        assert re.search(rf"\b{key}\b", page)


def test_the_site_fills_in_made_blocks():
    page = site_text("docs/engine_memory.md", sources()["docs/engine_memory.md"].read_text(encoding="utf-8"))
    assert "| KV cache | " in page and "```made" not in page
    assert filled("a\n```made\nautoconfig gpus --json\n```\nb").startswith("a\n```text\n$ autoconfig gpus --json\n{")
    for wrong, said in (("table nothing", "no table 'nothing'; there are constants"), ("search", "a made block holds")):
        with pytest.raises(ValueError, match=said):
            filled(f"```made\n{wrong}\n```")


def test_the_reserve_of_sglang_is_the_formula_of_the_page():
    """512 + 1.5 max(chunk, 2048) + 2 g + 1024 tp pp / 8 MiB, at least 10 GiB above 60 GiB: of 0.5.6, three digits."""
    page = (ROOT / "docs" / "engine_memory.md").read_text(encoding="utf-8")
    assert "512 + 1.5 max(chunk, 2048) + 2 g + 1024 tp pp / 8 MiB" in page
    rows = [line.strip("| ").split(" | ") for line in fractions().splitlines()[2:]]
    of_card = {row[0]: [float(share) for share in row[4].split(" / ")] for row in rows}
    reserved = {
        "rtx-4090-24gb": (24564, 512 + 1.5 * 2048 + 2 * 24 + 128, 512 + 1.5 * 2048 + 2 * 80 + 1024),
        "l40s-48gb": (46068, 512 + 1.5 * 4096 + 2 * 32 + 128, 512 + 1.5 * 4096 + 2 * 160 + 1024),
        "h100-sxm-80gb": (81559, 512 + 1.5 * 8192 + 2 * 256 + 128, 512 + 1.5 * 8192 + 2 * 512 + 1024),
    }
    for card, (mib, *reserves) in reserved.items():
        assert of_card[card] == [round(1 - max(one, 10240 if mib > 61440 else 0) / mib, 3) for one in reserves]


def test_a_list_below_a_paragraph_is_a_list_in_the_site():
    text = "Files:\n- one\n  more\n- two\n\n1. first\n```\nCode:\n- no list\n```\n# Title\n- three"
    assert spaced(text) == text.replace("Files:\n", "Files:\n\n")


@pytest.mark.parametrize(("tag", "loads"), [
    ('<script src="https://cdn.example/x.js"></script>', True), ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
    ("@font-face{src:url(https://fonts.example/a.woff)}", True), ('<a href="https://example.org">there</a>', False),
    ('<img src="images/page.png">', False), ('<link rel="canonical" href="https://example.org/page">', False),
])  # fmt: skip
def test_what_a_page_of_the_site_loads_from_elsewhere(tag, loads):
    assert bool(loaded_from_elsewhere(f"<p>{tag}</p>")) is loads


def test_the_changelog_is_a_page_for_users():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert titles[:2] == ["Unreleased", "0.1.0"]
    first = text.split("\n## 0.1.0")[1].splitlines()
    assert len(first) <= 150 and all(line == "" or line.startswith(("- ", "### ")) for line in first[1:])
    changes = text.split("\n## 0.1.0")[0].split("## Unreleased")[1].splitlines()
    assert all(line == "" or line.startswith(("- ", "  ")) for line in changes), "CHANGELOG.md, Unreleased: a line is a change"
