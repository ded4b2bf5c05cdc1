"""`import autoconfig`: the commands as functions, their answers as frames, attributes and HTML, the page and the notebook."""

import ast
import html.parser
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from autoconfig.specs.errors import UnknownNameError
from command_line import run_in_process

import autoconfig
from autoconfig.planning.request_fields import QUESTION, SEARCH
from autoconfig.planning.resolve import field_names
from tools import keywords

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "examples" / "plan_a_model.ipynb"
HEAVY = ("numpy", "pandas", "torch", "fastapi", "starlette", "pydantic", "optuna", "sqlalchemy", "click", "rich")
KEYWORDS = {"model": "gpt3-1.7b", "num_layers": 4, "gpus": 8, "gpu": "a100-80gb", "seq_length": 1024, "global_batch_size": 16}
OPTIONS = [word for name, value in KEYWORDS.items() for word in ("--" + name.replace("_", "-"), str(value))]


def functions():
    return {
        name
        for name, value in vars(autoconfig).items()
        if inspect.isfunction(value) and value.__module__ == "autoconfig" and not name.startswith("_")
    }


@pytest.mark.service
def test_importing_it_loads_nothing_heavy():
    code = f"import autoconfig, sys; autoconfig.__version__; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.service
def test_an_answer_loads_pandas_where_a_frame_is_asked_for():
    code = (
        f"import autoconfig, sys; a = autoconfig.search(**{KEYWORDS!r}); a.best.step_seconds; a._repr_html_(); "
        "print('pandas' in sys.modules); a.plans; print('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\nTrue\n"


def test_no_function_has_the_name_of_a_module():
    assert {"search", "explain", "export", "check", "predict", "scaling", "validate", "calibrate"} <= functions()
    assert functions() & {module.name for module in pkgutil.iter_modules(autoconfig.__path__)} == set()
    assert functions() & {path.parent.name for path in ROOT.glob("*/__init__.py")} == set()


def test_a_function_that_is_gone_names_what_does_its_work():
    with pytest.raises(AttributeError, match=r"validate_serving.*validate\(\) has the summary"):
        _ = autoconfig.validate_serving
    assert {one.lane for one in autoconfig.validate().classes} == {"training", "serving", "post-training"}


def test_every_function_stands_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert {name for name in functions() if f"`{name}(" not in text.split("## Functions")[1]} == set()


def test_keywords_are_typed_as_the_fields_are():
    assert keywords.TARGET.read_text(encoding="utf-8") == keywords.text(), "stale: run python -m tools.keywords"


SMALL = {"model": "gpt3-1.7b", "gpus": 8, "seq_length": 2048, "global_batch_size": 32, "top": 3}
QUESTIONS = [
    SMALL,
    {**SMALL, "gpu": "a100-80gb"},
    {**SMALL, "gpu": "b200", "precision": "fp8"},
    {**SMALL, "precision": "fp8", "fp8_recipe": "blockwise"},
    {**SMALL, "fix": ["tp=2"]},
    {**SMALL, "fix": ["tp=2", "tp=4"], "exclude": ["pp=2"]},
    {**SMALL, "max": ["mbs=2"], "include": ["tp=8,mbs=1"]},
    {**SMALL, "tokens": "300B", "price": 2.5},
    {**SMALL, "sort_by": "memory"},
    {**SMALL, "fit_chance": "50%"},
    {**SMALL, "memory_margin": 0.2},
    {**SMALL, "calibration": "none"},
    {**SMALL, "software": "megatron-lm-2022", "gpu": "a100-80gb"},
    {**SMALL, "num_layers": 12, "vocab_size": 32000},
    {**SMALL, "gpus": None, "gpus_at_most": 6},
    {**SMALL, "gpus": 3, "global_batch_size": 33},
    {**SMALL, "model": "llama3-8b", "peft": "lora", "lora_rank": 8, "fix": ["tp=1"]},
    {**SMALL, "model": "mixtral-8x7b", "gpus": 16, "fix": ["tp=1", "pp=1"]},
    {**SMALL, "model": "llama3-70b", "gpus": 4},
    {**SMALL, "gpu": ["h100", "a100-80gb"], "precision": "bf16"},
]


def words(question):
    for name, value in question.items():
        for one in value if isinstance(value, list) else () if value is None else (value,):
            yield from ("--" + name.replace("_", "-"), str(one))


def timeless(body):
    for one in body.get("compared", [body]):
        for name in ("seconds", "seconds_by_phase"):
            one.get("funnel", {}).pop(name, None)
    return body


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_a_search_returns_what_the_command_prints(number):
    question = QUESTIONS[number]
    printed = run_in_process("search", *words(question), "--json").stdout
    found = autoconfig.search(**question)
    said = timeless(json.loads(printed))
    assert timeless(json.loads(json.dumps(found.to_dict()))) == said
    if "compared" not in said:
        assert list(found.plans.get("short", [])) == [plan["short"] for plan in said["plans"]]
        assert (found.best is None) is (not said["plans"])


def test_other_answers_are_what_the_commands_print():
    asked = ["--model", "llama3-8b", "--gpus", "1", "--isl", "500", "--osl", "200", "--tpot", "50ms", "--simulate", "0"]
    served = autoconfig.deployments(model="llama3-8b", gpus=1, isl=500, osl=200, tpot="50ms", simulate=0)
    assert timeless(json.loads(json.dumps(served.to_dict()))) == timeless(
        json.loads(run_in_process("deployments", *asked, "--json").stdout)
    )
    plan = autoconfig.explain("tp=2,mbs=1", **KEYWORDS, binds=False)
    text = run_in_process("explain", *OPTIONS, "--no-binds", "tp=2,mbs=1", "--json").stdout
    assert json.loads(json.dumps(plan.to_dict())) == json.loads(text)
    options = [word for word in OPTIONS if word not in ("--gpus", "8")]
    curve = autoconfig.scaling(**{**KEYWORDS, "gpus": "4,8"})
    printed = run_in_process("scaling", *options, "--gpus", "4,8", "--json").stdout
    assert json.loads(json.dumps(curve.to_dict())) == json.loads(printed)
    trained = autoconfig.rl(model="qwen2.5-7b", gpus="8", top=2)
    printed = run_in_process("rl", "--model", "qwen2.5-7b", "--gpus", "8", "--top", "2", "--json").stdout
    assert trained.to_dict() == json.loads(printed)
    assert trained.best.memory_gib.training == trained.placements["memory_gib.training"][0]


class Tags(html.parser.HTMLParser):
    """Every tag that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen = [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_answers_are_frames_attributes_and_html():
    found = autoconfig.search(**KEYWORDS, top=4)
    assert found.plans["memory.peak_gib"][0] == found.best.memory.peak_gib
    assert found.plans["confidence.fit_probability"][0] == found.best.confidence.fit_probability
    assert found.best.plan.tensor_model_parallel_size == found.plans["plan.tensor_model_parallel_size"][0]
    assert found.funnel.fit > 0 and "funnel" in dir(found)
    with pytest.raises(AttributeError, match=r"has no 'plan'.*funnel"):
        _ = found.plan
    shown = found._repr_html_()
    assert {"table", "svg", "circle", "details"} <= Tags(shown).seen
    assert found.best.short in shown and "Peak memory" in shown and "Time of one step" in shown
    assert found.best.short in repr(found)

    explained = autoconfig.explain(found.best, **KEYWORDS, binds=False)
    assert explained.fits and explained.step_seconds == pytest.approx(found.best.step_seconds)
    assert explained.stages.peak_gib.max() == pytest.approx(found.best.memory.peak_gib)
    assert {"operator", "forward_seconds"} <= set(explained.operators)
    assert "Peak memory of each stage" in explained._repr_html_() and Tags(explained._repr_html_())
    assert Tags(autoconfig.explain("tp=3,mbs=1", **KEYWORDS)._repr_html_()).seen == {"pre"}

    compared = autoconfig.search(**{**KEYWORDS, "gpu": ["a100-80gb", "h100"]})
    assert list(compared.plans.gpu) == ["a100-80gb-sxm", "h100-sxm-80gb"] or len(compared.plans) == 2
    assert compared.best.step_seconds == compared.plans.step_seconds.min()
    assert Tags(compared._repr_html_())


def test_scaling_and_deployments_are_shown():
    served = autoconfig.deployments(model="llama3-8b", gpus=1, gpu="h100", isl="1k", osl=200, tpot="50ms", simulate=0)
    assert served.question.isl == 1024 and served.question.tpot_limit_seconds == pytest.approx(0.05)
    assert served.deployments.plan[0] == served.best.plan and {"table", "svg"} <= Tags(served._repr_html_()).seen
    curve = autoconfig.scaling(**{**KEYWORDS, "gpus": [4, 8]})
    assert list(curve.points.num_gpus) == [4, 8] and curve.best.num_gpus == 8
    assert {"table", "svg"} <= Tags(curve._repr_html_()).seen


def test_words_of_the_command_line_are_read():
    base = {name: value for name, value in KEYWORDS.items() if name != "seq_length"}
    found = autoconfig.search(**base, seq_length="1k", precision="BF16", fix={"tp": [1, 2], "sp": False}, top=50)
    assert found.workload.seq_length == 1024 and found.numerics.precision == "bf16"
    assert set(found.plans["plan.tensor_model_parallel_size"]) == {1, 2}
    listed = autoconfig.search(**KEYWORDS, precision=["bf16", "FP16"])
    assert [one.record.numerics.precision for one in listed.searches] == ["bf16", "fp16"]
    assert autoconfig.search(**{**KEYWORDS, "gpus": "1,024", "global_batch_size": 1024}).cluster.num_gpus == 1024


def test_a_plan_is_exported_and_checked(tmp_path):
    plan = "tp=2,mbs=1"
    written = autoconfig.export(plan, **KEYWORDS, output=tmp_path / "run")
    checked = autoconfig.check(tmp_path / "run" / "train.sh", gpu="a100-80gb")
    assert checked.legal and checked.fits and checked.plan.tensor_model_parallel_size == 2 and "Legal" in repr(checked)
    assert {path.name for path in written.files} == {path.name for path in (tmp_path / "run").glob("[!.]*")}


def test_a_table_may_be_a_frame(tmp_path):
    row = {"model": "llama3-8b", "gpu": "h100", "gpus": 8, "tp": 2, "pp": 1, "mbs": 1, "gbs": 64, "seq": 8192}
    rows = pd.DataFrame([row, {**row, "model": "no-such"}])
    rows.to_csv(tmp_path / "runs.csv", index=False)
    found, same = autoconfig.predict(rows), autoconfig.predict(tmp_path / "runs.csv")
    assert len(found) == 2 and found.rows.equals(same.rows)
    assert found.rows.pred_step_s[0] > 0 and pd.isna(found.rows.pred_step_s[1]) and "not predicted" in found.rows.pred_note[1]


def test_a_plan_to_include_is_a_text_or_an_entry_of_an_answer():
    best = autoconfig.search(**KEYWORDS).best
    for include in (best, [best], best.short, [best.short]):
        assert autoconfig.search(**KEYWORDS, include=include).included[0].short == best.short


def test_an_unknown_keyword_is_an_input_error_with_the_nearest():
    with pytest.raises(UnknownNameError, match="seq_len") as refused:
        autoconfig.search(**KEYWORDS, seq_len=8)
    assert refused.value.nearest[0] == "seq_length" and set(refused.value.known) == {*field_names(QUESTION, SEARCH)}


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], str(PAGE), "exec"), {})
    assert "step" in capsys.readouterr().out and (tmp_path / "run" / "train.sh").is_file()


def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its cells in order, each last line shown as a notebook shows it."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and all(cell["id"] and cell["metadata"] == {} for cell in notebook["cells"])
    names, shown = {}, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            *before, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(before, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
    answers = ["SearchFound", "DataFrame", "ExplainFound", "ComparedFound", "ScalingFound", "DeploymentsFound"]
    assert [type(one).__name__ for one in shown] == answers
    assert all(one._repr_html_() for one in shown) and (tmp_path / "run" / "train.sh").is_file()


def test_the_package_shows_its_functions_and_the_catalogue_as_frames():
    assert {"search", "models", "gpus", "deployments"} <= set(dir(autoconfig)) and not {"Any", "Callable", "Path"} & set(
        dir(autoconfig)
    )
    models, gpus = autoconfig.models(), autoconfig.gpus()
    assert models.set_index("name").loc["llama3-70b", "parameters"] == 70_553_706_496
    assert gpus["id"].str.contains("h100-sxm-80gb").any()
    best = autoconfig.deployments(model="llama3-8b", gpus=1, simulate=0).best
    assert best.short == best.plan
