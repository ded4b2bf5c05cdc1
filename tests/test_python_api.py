"""The Python API: it loads nothing before it is asked, gives the command line's answers, and names its keywords in messages."""

import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnknownNameError
from autoconfig.specs.json_record import to_json
from command_line import run_in_process

import autoconfig
from autoconfig.planning.fields import field_names
from autoconfig.planning.request_fields import QUESTION, SEARCH
from autoconfig.render.training_json import search_json

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
HEAVY = ("numpy", "pandas", "torch", "fastapi", "starlette", "pydantic", "optuna", "sqlalchemy", "click", "rich")
QUESTIONS = {"model": "gpt3-1.7b", "num_layers": 4, "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 16}
OPTIONS = [word for name, value in QUESTIONS.items() for word in ("--" + name.replace("_", "-"), str(value))]


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


def test_a_search_is_the_command_lines():
    import json

    found = to_json(search_json(autoconfig.search(**QUESTIONS, top=3, tokens="1b")))
    said = json.loads(run_in_process("search", *OPTIONS, "--top", "3", "--tokens", "1b", "--json").stdout)
    for body in (found, said):
        del body["funnel"]["seconds"], body["funnel"]["seconds_by_phase"]
    assert json.loads(json.dumps(found)) == said


def test_a_plan_is_explained_exported_and_checked(tmp_path):
    plan = "tp=2,mbs=1"
    report = autoconfig.explain(plan, **QUESTIONS, binds=False).included.report
    assert report is not None and report.fits
    written = autoconfig.export(plan, **QUESTIONS, output=tmp_path / "run")
    assert autoconfig.check(tmp_path / "run" / "train.sh", gpu="a100-80gb").source.plan.tp == 2
    assert {path.name for path in written.files} == {path.name for path in (tmp_path / "run").iterdir()}


def test_counts_and_types_may_be_lists():
    asked = {name: value for name, value in QUESTIONS.items() if name not in ("gpus", "gpu")}
    listed = autoconfig.scaling(**asked, gpus=[8, 16], gpu=["a100-80gb"])
    text = autoconfig.scaling(**asked, gpus="8:16", gpu="a100-80gb")
    assert [point.num_gpus for point in listed.points] == [point.num_gpus for point in text.points] == [8, 16]


def test_deployments():
    found = autoconfig.search_serving(model="llama3-8b", gpus=1, gpu="h100", isl=500, osl=200, tpot="50ms", simulate=0)
    assert found.reports and found.question.tpot_s == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("ask", "field", "says"),
    [
        (lambda: autoconfig.search(**QUESTIONS, memory_margin=2.0), "memory_margin", "memory_margin 2.0: give the share"),
        (lambda: autoconfig.search(gpus=8), "model", "say model 175b"),
        (lambda: autoconfig.search(model="1.7b", gpus=8, gpus_at_most=8), "gpus", "gpus N (exactly N) or gpus_at_most N"),
        (lambda: autoconfig.search(model="1.7b", gpus=8, gpu="h10"), "gpu", "unknown GPU 'h10'"),
        (lambda: autoconfig.search(model="1.7b", gpus=8, fix=["zp=8"]), "fix", "fix zp=8: unknown plan key 'zp'"),
        (lambda: autoconfig.explain("tp=2", model="1.7b"), "gpus", "say gpus N, for example gpus 64"),
        (lambda: autoconfig.scaling(model="1.7b"), "gpus", "say gpus COUNTS"),
        (lambda: autoconfig.search_serving(model="llama3-8b"), "gpus", "Missing option gpus."),
        (lambda: autoconfig.search_serving(model="llama3-8b", gpus=1, ttft="soon"), "ttft", "ttft: 'soon' is no duration"),
    ],
)
def test_messages_name_keywords(ask, field, says):
    with pytest.raises(InputError) as refused:
        ask()
    assert refused.value.field == field and says in str(refused.value) and "--" not in str(refused.value)


def test_an_unknown_keyword_is_an_input_error_with_the_nearest():
    with pytest.raises(UnknownNameError, match="seq_len") as refused:
        autoconfig.search(**QUESTIONS, seq_len=8)
    assert refused.value.nearest[0] == "seq_length" and set(refused.value.known) == {*field_names(QUESTION, SEARCH)}


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(PAGE), "exec"), {})
    assert "step" in capsys.readouterr().out and (tmp_path / "run" / "train.sh").is_file()
