"""Docs that can be trusted: parts of the output, links, commands, the Python API's page, generated pages."""

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.json_record import to_json
from autoconfig.specs.plan import SHORT_TO_LONG, parse_plan
from command_line import run_in_process, run_process

import autoconfig
from autoconfig.cli.main import COMMANDS, FORMS, load
from autoconfig.planning.request_fields import QUESTION, SEARCH
from autoconfig.planning.resolve import field_names
from autoconfig.render.training_json import search_json
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
        grouped = words[0] in ("studies", "keys") or words[:2] in (["rl", "check"], ["rl", "calibrate"])
        name = [word for word in words[: 2 if grouped else 1] if not word.startswith("-")]
        helped = help_of(*name, *(word for word in words if word in FORMS))
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= set(re.findall(r"--[\w-]+", helped)), f"{page.name}: {shlex.join(words)}"


@functools.cache
def help_of(*words: str) -> str:
    flag = "--help-all" if words[0] in ("search", "explain", "export", "deployments") else "--help"
    done = run_process(*words, flag, text=True) if words[0] in SERVICE else run_in_process(*words, flag)
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


PAGE = Path(__file__).parents[1] / "docs" / "python.md"
HEAVY = ("numpy", "pandas", "torch", "fastapi", "starlette", "pydantic", "optuna", "sqlalchemy", "click", "rich")
KEYWORDS = {"model": "gpt3-1.7b", "num_layers": 4, "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 16}
OPTIONS = [word for name, value in KEYWORDS.items() for word in ("--" + name.replace("_", "-"), str(value))]


def functions():
    return {
        name
        for name, value in vars(autoconfig).items()
        if inspect.isfunction(value) and value.__module__ == "autoconfig" and not name.startswith("_")
    }


def test_importing_it_loads_nothing_heavy():
    code = f"import autoconfig, sys; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_function_has_the_name_of_a_module():
    assert {"search", "explain", "export", "check", "predict", "scaling", "validate", "calibrate"} <= functions()
    assert functions() & {module.name for module in pkgutil.iter_modules(autoconfig.__path__)} == set()
    assert functions() & {path.parent.name for path in ROOT.glob("*/__init__.py")} == set()


def test_the_readmes_example_is_what_the_command_prints():
    block = (ROOT / "README.md").read_text().split("```")[1]
    printed = run_in_process("search", "--model", "175b", "--gpus", "1024").stdout
    said = [" ".join(line.split()) for line in printed.splitlines()]
    shown = [" ".join(line.split()).split(" ranked in ")[0] for line in block.splitlines() if line.strip() not in ("", "...")]
    assert len(shown) >= 5
    assert [text for text in shown if not any(line.startswith(text) for line in said)] == [], "renew the block in README.md"


def test_a_search_is_the_command_lines():
    import json

    found = to_json(search_json(autoconfig.search(**KEYWORDS, top=3, tokens="1b")))
    said = json.loads(run_in_process("search", *OPTIONS, "--top", "3", "--tokens", "1b", "--json").stdout)
    for body in (found, said):
        del body["funnel"]["seconds"], body["funnel"]["seconds_by_phase"]
    assert json.loads(json.dumps(found)) == said


def test_a_plan_is_explained_exported_and_checked(tmp_path):
    plan = "tp=2,mbs=1"
    report = autoconfig.explain(plan, **KEYWORDS, binds=False).included.report
    assert report is not None and report.fits
    written = autoconfig.export(plan, **KEYWORDS, output=tmp_path / "run")
    assert autoconfig.check(tmp_path / "run" / "train.sh", gpu="a100-80gb").source.plan.tp == 2
    assert {path.name for path in written.files} == {path.name for path in (tmp_path / "run").glob("[!.]*")}


def test_counts_and_types_may_be_lists():
    asked = {name: value for name, value in KEYWORDS.items() if name not in ("gpus", "gpu")}
    listed = autoconfig.scaling(**asked, gpus=[8, 16], gpu=["a100-80gb"])
    text = autoconfig.scaling(**asked, gpus="8:16", gpu="a100-80gb")
    assert [point.num_gpus for point in listed.points] == [point.num_gpus for point in text.points] == [8, 16]


def test_numbers_where_the_command_line_has_text():
    assert [point.num_gpus for point in autoconfig.scaling(model="1.7b", gpus=8, tokens="300B").points] == [8]
    script = ROOT / "tests" / "megatron" / "scripts" / "megatron_2021_gpt_345m_mp.sh"
    assert autoconfig.check(script, set={"X": 1}).source.plan == autoconfig.check(script).source.plan


def test_deployments():
    found = autoconfig.deployments(model="llama3-8b", gpus=1, gpu="h100", isl=500, osl=200, tpot="50ms", simulate=0)
    assert found.reports and found.question.tpot_s == pytest.approx(0.05)


def test_a_plan_of_an_answer_can_be_asked_about_and_one_wish_needs_no_list():
    first = autoconfig.search(**KEYWORDS, fix="tp=2").plans[0].report
    assert first.plan.tp == 2
    explained = autoconfig.explain(first.plan, binds=False, **KEYWORDS)
    assert explained.included.report.step_seconds == pytest.approx(first.step_seconds)


@pytest.mark.parametrize(("ask", "field", "says"), [
    (lambda: autoconfig.search(**KEYWORDS, memory_margin=2.0), "memory_margin", "memory_margin 2.0: give the share"),
    (lambda: autoconfig.search(gpus=8), "model", "say model 175b"),
    (lambda: autoconfig.search(model="1.7b", gpus=8, gpus_at_most=8), "gpus", "gpus N (exactly N) or gpus_at_most N"),
    (lambda: autoconfig.search(model="1.7b", gpus=8, gpu="h10"), "gpu", "unknown GPU 'h10'"),
    (lambda: autoconfig.search(model="1.7b", gpus=8, fix=["zp=8"]), "fix", "fix zp=8: unknown plan key 'zp'"),
    (lambda: autoconfig.search(model="1.7b", gpus="64"), "gpus", "gpus: '64' is no integer"),
    (lambda: autoconfig.search(model="1.7b", gpus=True), "gpus", "gpus: True is no integer"),
    (lambda: autoconfig.deployments(model="llama3-8b", gpus=1, isl="1000"), "isl", "isl: '1000' is no integer"),
    (lambda: autoconfig.explain("tp=2", model="1.7b"), "gpus", "say gpus N, for example gpus 64"),
    (lambda: autoconfig.scaling(model="1.7b"), "gpus", "say gpus COUNTS"),
    (lambda: autoconfig.deployments(model="llama3-8b"), "gpus", "Missing option gpus."),
    (lambda: autoconfig.deployments(model="llama3-8b", gpus=1, ttft="soon"), "ttft", "ttft: 'soon' is no duration"),
])  # fmt: skip
def test_messages_name_keywords(ask, field, says):
    with pytest.raises(InputError) as refused:
        ask()
    assert refused.value.field == field and says in str(refused.value) and "--" not in str(refused.value)


def test_an_unknown_keyword_is_an_input_error_with_the_nearest():
    with pytest.raises(UnknownNameError, match="seq_len") as refused:
        autoconfig.search(**KEYWORDS, seq_len=8)
    assert refused.value.nearest[0] == "seq_length" and set(refused.value.known) == {*field_names(QUESTION, SEARCH)}


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(PAGE), "exec"), {})
    assert "step" in capsys.readouterr().out and (tmp_path / "run" / "train.sh").is_file()


DOCS = Path(__file__).parents[1] / "docs"


def module_of(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return module_of("generate_cli")


def test_the_page_is_fresh(generator):
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "stale: run python docs/generate_cli.py"


def test_every_command_and_option_is_on_the_page(generator):
    page = generator.page()
    for name in generator.DOCUMENTED:
        section = page.split(f"## autoconfig {name}\n")[1].split("\n## ")[0]
        for parameter in load(*COMMANDS[name].split(":")).params:
            for option in parameter.opts:
                assert option.startswith("-") is False or option in section, f"{name} {option}"
    for key in SHORT_TO_LONG:
        assert re.search(rf"\b{key}\b", page)


def test_links_of_the_page_resolve(generator):
    for target in re.findall(r"\]\(([^)]+)\)", generator.page()):
        assert (DOCS / target).is_file(), target


@pytest.fixture(scope="module")
def serving_examples():
    return module_of("generate_inference")


@pytest.mark.parametrize("name", ["70b", "falcon", pytest.param("accuracy", marks=pytest.mark.soak)])
def test_the_examples_of_serving_are_what_the_commands_print(serving_examples, name):
    """`validate --inference` predicts every published row: 40 s."""
    text = serving_examples.PAGE.read_text(encoding="utf-8")
    assert serving_examples.block(name) in text, "stale: run python docs/generate_inference.py"


def test_an_example_of_serving_that_changed_is_written_anew(serving_examples, monkeypatch):
    monkeypatch.setattr(serving_examples, "EXAMPLES", {n: serving_examples.EXAMPLES[n] for n in ("70b", "falcon")})
    text = serving_examples.PAGE.read_text(encoding="utf-8")
    assert "at once in all" in serving_examples.block("70b") and "decode step" in serving_examples.block("falcon")
    assert serving_examples.page(text.replace("at once in all", "at once", 1)) == text
    with pytest.raises(ValueError, match="not one example 70b"):
        serving_examples.page(text.replace("serving example 70b", "serving example"))
