"""The command line: what it prints, writes and refuses, in process and as a real process."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import gpu_ids
from autoconfig.specs.models.model_catalogue import model_names
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.software.software import software_names
from background import started
from jsonschema import Draft202012Validator
from tables import table

import autoconfig as api
from autoconfig.cli.main import COMMANDS, load
from autoconfig.cli.options import ManyOptions
from autoconfig.planning.schemas import schema
from autoconfig.training.rules import RULE_TEXT

SMALL = ("--model", "gpt3-1.7b", "--num-layers", "4", "--gpus", "8", "--gpu", "a100-80gb", "--seq-length", "1024",
         "--global-batch-size", "16")  # fmt: skip
NOTHING_FITS = ("--model", "175b", "--gpus", "8", "--gpu", "a100-80gb")


def words(text):
    """The text with every run of blanks and line ends as one blank: tables and long lines are wrapped."""
    return " ".join(text.split())


# What is printed


def test_search_prints_the_question_the_funnel_the_table_and_the_reasons(autoconfig):
    result = autoconfig.run("search", *SMALL, "--top", "5", "--tokens", "1b", "--price", "2", "--include", "tp=2,mbs=1",
                            "--verbose")  # fmt: skip
    text = words(result.stdout)
    assert result.exit_code == 0 and result.stderr == ""
    for part in ("gpt3-1.7b*", "8 x a100-80gb", "Assumed:", "layouts enumerated", "NV001: tp x pp", "TFLOPS", "MFU",
                 "days", "cost", "Why the first: fastest of", "The next one", "Included tp=2", "slower than the first",
                 "autoconfig explain"):  # fmt: skip
        assert part in text, part
    answer = autoconfig.json("search", *SMALL, "--top", "5")
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] and line.split()[0].rstrip("=").isdigit()]
    assert [row[-1] for row in rows if row[-1].startswith("tp=")] == [plan["short"] for plan in answer["plans"]]


def test_printed_plans_are_accepted_by_every_option_that_takes_one(autoconfig):
    short = autoconfig.json("search", *SMALL)["plans"][2]["short"]
    assert autoconfig.json("search", *SMALL, "--include", short)["included"][0]["layout_rank"] == 3
    explained = autoconfig.json("explain", short, *SMALL)
    assert explained["short"] == short == str(parse_plan(short, 8))
    keys = [part for part in short.split(",") if part.split("=")[0] in ("tp", "pp", "mbs", "recompute")]
    fixed = autoconfig.json("search", *SMALL, *(x for key in keys for x in ("--fix", key)))
    assert short in [plan["short"] for plan in fixed["plans"]]


def test_explain_prints_memory_by_stage_and_time_by_part(autoconfig):
    result = autoconfig.run("explain", "tp=2,pp=2,mbs=1", *SMALL)
    text, whole = words(result.stdout), words(autoconfig.run("explain", "tp=2,pp=2,mbs=1", *SMALL, "--verbose").stdout)
    assert result.exit_code == 0
    for part in ("Plan tp=2,pp=2,dp=2,mbs=1", "Time of one step", "GEMMs", "Memory by pipeline stage, GiB", "stage 0",
                 "stage 1", "weights", "Largest moment", "fits"):  # fmt: skip
        assert part in text and part in whole, part
    assert "gemm_seconds" in whole and "weight_bytes" in whole
    assert re.findall(r"\b\w+_(?:seconds|bytes)\b|mlp_inside", text) == [], "names of formulas are behind --verbose"


def test_explain_says_why_a_plan_is_refused_or_too_large(autoconfig):
    illegal = autoconfig.run("explain", "tp=3", *SMALL)
    assert illegal.exit_code == 2 and "Not legal" in illegal.stdout and RULE_TEXT["NV001"] in words(illegal.stdout)
    assert "The nearest legal plan is" in autoconfig.run("explain", "tp=3", *SMALL).stdout
    nearest = autoconfig.json("explain", "tp=3", *SMALL)["nearest_legal"]
    assert autoconfig.json("explain", nearest, *SMALL)["nearest_legal"] is None
    large = autoconfig.run("explain", "tp=8", *NOTHING_FITS)
    assert large.exit_code == 3 and "does not fit" in large.stdout
    assert autoconfig.json("explain", "tp=8", *NOTHING_FITS)["shortfall_gib"] > 100


def test_nothing_fits_is_exit_code_3_with_the_nearest_miss(autoconfig):
    result = autoconfig.run("search", *NOTHING_FITS, "--include", "tp=8,mbs=1", "--include", "tp=3")
    text = words(result.stdout)
    assert result.exit_code == 3 and result.stderr == ""
    for part in ("NO Nothing fits. The nearest miss is tp=8", "GiB too much", "GPUs of the same kind",
                 "does not fit", "not legal"):  # fmt: skip
        assert part in text, part
    assert "What was tried to make it fit:" in autoconfig.run("search", *NOTHING_FITS, "--verbose").stdout
    body = autoconfig.json("search", *NOTHING_FITS)
    Draft202012Validator(schema("search")).validate(body)
    assert body["plans"] == [] and body["nearest_miss"]["shortfall_gib"] > 0


@pytest.mark.parametrize(("name", "arguments"), [
    ("search", ("search", *SMALL, "--include", "tp=2", "--include", "tp=3", "--tokens", "2b", "--price", "1.5")),
    ("search", ("search", *SMALL, "--sort-by", "memory", "--top", "3")),
    ("search", ("search", "--model", "mixtral-8x7b", "--gpus-at-most", "20", "--seq-length", "4096")),
    ("search", ("search", "--model", "7b", "--gpus", "8", "--precision", "fp8", "--peft", "lora")),
    ("explain", ("explain", "tp=2", *SMALL)),
    ("explain", ("explain", "tp=3", *SMALL)),
    ("explain", ("explain", "pp=4,ep=8,tp=1", "--model", "deepseek-v2-lite", "--gpus", "32", "--num-layers", "28")),
])  # fmt: skip
def test_json_is_valid_under_its_schema(autoconfig, name, arguments):
    Draft202012Validator(schema(name)).validate(autoconfig.json(*arguments))


@pytest.mark.parametrize(("command", "names"), [("models", model_names()), ("gpus", gpu_ids()), ("software", software_names())])
def test_lists_name_everything_in_the_catalogue(autoconfig, command, names):
    body = autoconfig.json(command)
    assert [row.get("name") or row["id"] for row in body[command]] == list(names)
    result = autoconfig.run(command)
    assert result.exit_code == 0
    for name in names:
        assert name in result.stdout


# Help


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_and_every_option_a_text(autoconfig, command, flag):
    found = load(*COMMANDS[command].split(":"))
    short = autoconfig.run(command, flag)
    result = autoconfig.run(command, "--help-all") if isinstance(found, ManyOptions) else short
    assert short.exit_code == result.exit_code == 0 and short.stdout.startswith("Usage:") and result.stdout.startswith("Usage:")
    for parameter in found.params:
        if parameter.param_type_name == "option":
            assert parameter.help, f"{command} {parameter.opts[0]}"
            assert parameter.opts[0] in result.stdout
    assert found.help


@pytest.mark.service
@pytest.mark.parametrize("command", ["search", "explain", "export", "deployments"])
def test_the_help_of_many_options_is_a_screen(autoconfig, command):
    for environment in ({"COLUMNS": "80"}, {}):
        lines = autoconfig.process(command, "--help", text=True, env={**os.environ, **environment}).stdout.splitlines()
        assert len(lines) <= 42 and max(map(len, lines)) <= 80 and any("--help-all" in line for line in lines)
        assert any(line.startswith("  --model ") for line in lines)
    if command == "search":
        assert len(lines) <= 40


def test_options_of_a_plan_are_wishes_and_numbers_are_read_as_people_write_them(autoconfig):
    asked = ("--model", "llama3-8b", "--gpus", "8", "--top", "3")
    wished = autoconfig.json("search", *asked, "--fix", "tp=2", "--fix", "tp=4", "--fix", "mbs=1", "--seq-length", "4096",
                             "--global-batch-size", "1024")  # fmt: skip
    short = autoconfig.json("search", *asked, "--tp", "2", "--tensor-model-parallel-size", "4", "--mbs", "1", "--seq-length",
                            "4k", "--global-batch-size", "1,024")  # fmt: skip
    assert [p["short"] for p in short["plans"]] == [p["short"] for p in wished["plans"]]
    assert short["workload"] == wished["workload"]
    assert autoconfig.json("search", *asked, "--precision", "FP8")["numerics"]["precision"] == "fp8"
    bad = autoconfig.run("search", *asked, "--tp", "two")
    assert bad.exit_code == 2 and "tp" in bad.stderr


def test_gpus_and_precisions_given_twice_are_compared(autoconfig):
    asked = ("--model", "llama3-8b", "--gpus", "8")
    body = autoconfig.json("search", *asked, "--gpu", "h100", "--gpu", "b200", "--precision", "bf16", "--precision", "fp8")
    found = [(one["cluster"]["gpu"], one["numerics"]["precision"]) for one in body["compared"]]
    assert found == [(gpu, form) for gpu in ("h100-sxm-80gb", "b200-180gb") for form in ("bf16", "fp8")]
    for one in body["compared"]:
        Draft202012Validator(schema("search")).validate(one)
    alone = autoconfig.json("search", *asked, "--gpu", "b200", "--precision", "fp8")
    assert alone["plans"][0] == body["compared"][3]["plans"][0]
    text = autoconfig.run("search", *asked, "--gpu", "h100", "--gpu", "b200").stdout
    assert body["compared"][2]["plans"][0]["short"] in text and "8 x b200-180gb, bf16" in text and ", fp8" not in text
    assert "compared" not in autoconfig.json("search", *asked, "--gpu", "h100", "--gpu", "h100"), "a repeated name is one"
    refused = autoconfig.run("search", *asked, "--gpu", "h100", "--gpu", "b200", "--export", "x")
    assert refused.exit_code == 2 and "--export is for one --gpu" in refused.stderr


@pytest.mark.service
def test_a_shell_completes_names(autoconfig):
    typed = {"_AUTOCONFIG_COMPLETE": "bash_complete", "COMP_WORDS": "autoconfig search --model llama3-7", "COMP_CWORD": "3"}
    assert "plain,llama3-70b" in autoconfig.process(text=True, env={**os.environ, **typed}).stdout


# Bad input

BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768, "num_hidden_layers": 12}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512, "num_layers": 6}
LLAMA = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
         "intermediate_size": 1024}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of every kind that a model or a cluster can be asked from."""
    for name, content in (("bert", BERT), ("t5", T5), ("good", LLAMA), ("negative", {**LLAMA, "hidden_size": -1})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "truncated.json").write_text(json.dumps(LLAMA)[:60])
    (tmp_path / "binary.json").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "zeros.json").write_bytes(b"\0" * 100)
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "huge.json").write_bytes(b" " * (2**24 + 10))
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


BAD = table(__file__, "BAD")


@pytest.mark.parametrize(("arguments", "says"), BAD, ids=lambda value: " ".join(value)[-60:])
def test_bad_input_is_one_clear_message_and_exit_code_2(autoconfig, folder, arguments, says):
    before = sorted(p.name for p in folder.iterdir())
    result = autoconfig.run("search", *arguments)
    assert result.exit_code == 2, result.stdout
    assert result.stdout == "" and "Traceback" not in result.stderr
    for say in says:
        assert say in result.stderr, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 or lines[0].startswith("Usage:"), result.stderr
    assert len(lines[-1]) < 900 and lines[-1].lower().startswith("error: ")
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch, autoconfig):
    monkeypatch.setattr("autoconfig.training.answer.answer", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        autoconfig.run("search", *SMALL)


# Real processes


@pytest.mark.service
def test_real_processes_print_and_end_as_in_process(autoconfig):
    good = autoconfig.process("search", *SMALL, "--json")
    assert (good.returncode, good.stderr) == (0, b"")
    Draft202012Validator(schema("search")).validate(json.loads(good.stdout))
    bad = autoconfig.process("search", "--model", "175x", "--gpus", "8")
    assert (bad.returncode, bad.stdout) == (2, b"") and bad.stderr.startswith(b"error: unknown model '175x'")
    usage = autoconfig.process("search", "--frob")
    assert usage.returncode == 2 and usage.stderr.startswith(b"Usage: autoconfig search") and b"Traceback" not in usage.stderr
    assert autoconfig.process("search", *NOTHING_FITS).returncode == 3


@pytest.mark.service
def test_no_process_looks_for_garbage_among_what_it_loaded(autoconfig):
    """Three searches through all objects at the end, and one for every 700 new ones, were an eighth of a search's time."""
    seen = "print(gc.get_freeze_count() > 10_000, *(count['collections'] for count in gc.get_stats()))"
    code = f"import atexit, gc\natexit.register(lambda: {seen})\nfrom autoconfig.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, "gpus", "h100"], cwd=autoconfig.root, capture_output=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(autoconfig.root)}, check=True)  # fmt: skip
    frozen, young, _, old = done.stdout.split()[-4:]
    assert frozen == b"True" and int(young) < 40 and int(old) == 0


@pytest.mark.service
def test_bytes_that_are_no_text_are_refused_or_printed_but_never_a_crash(autoconfig, tmp_path):
    config = os.fsencode(tmp_path) + b"/m\xff\xfe.json"
    with open(config, "w") as file:
        json.dump(LLAMA, file)
    for arguments in ((b"search", b"--model", b"\xff\xfe", b"--gpus", b"8"), (b"search", b"--model", config, b"--gpus", b"8"),
                      (b"explain", b"tp=\xff", b"--model", b"175b", b"--gpus", b"8"),
                      (b"search", b"--model", b"175b", b"--gpus", b"8", b"--output", b"/\xff/x.csv")):  # fmt: skip
        done = autoconfig.process(*arguments)
        assert done.returncode in (0, 2) and b"Traceback" not in done.stderr, done.stderr


@pytest.mark.service
def test_a_reader_that_has_enough_is_no_error(autoconfig):
    command = f"set -o pipefail; {sys.executable} -m autoconfig models | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=autoconfig.root, capture_output=True, timeout=300, check=False,
                          env={**os.environ, "PYTHONPATH": str(autoconfig.root)})  # fmt: skip
    assert done.returncode == 0 and done.stderr == b""


@pytest.mark.service
def test_files_are_written_though_nobody_reads_the_table(autoconfig, tmp_path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "autoconfig", "search", *SMALL, "--export", str(tmp_path / "search")]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=autoconfig.root, timeout=300, check=False,
                          env={**os.environ, "PYTHONPATH": str(autoconfig.root)})  # fmt: skip
    os.close(writer)
    assert done.returncode == 0 and b"Traceback" not in done.stderr and (tmp_path / "search" / "train.sh").is_file()

    def gone(*_):
        raise InputError("the reader is gone")

    monkeypatch.setattr("autoconfig.render.first.deployments.show", gone)
    monkeypatch.setattr("autoconfig.render.first.rl.show", gone)
    served = ("deployments", "--model", "llama3-8b", "--gpus", "1", "--simulate", "0")
    served += ("--report", str(tmp_path / "served.html"))
    for command in (served, ("rl", "--model", "qwen2.5-7b", "--gpus", "8")):
        run = autoconfig.run(*command, "--export", str(tmp_path / command[0]))
        assert "the reader is gone" in run.stderr and list((tmp_path / command[0]).iterdir()), run.stderr
    assert (tmp_path / "served.html").is_file()


SLOW_SEARCH = """
import sys, autoconfig.training.answer as service
rank = service.rank
def slow(*arguments):
    print("started", flush=True)
    while True:
        rank(*arguments)
service.rank = slow
"""
SLOW_WRITE = """
import signal, autoconfig.render.training as training
def slow(columns, path):
    path.write_text("rank,tensor")
    print("started", flush=True)
    signal.pause()
training._write_csv = slow
"""


@pytest.mark.service
@pytest.mark.parametrize("slow", [SLOW_SEARCH, SLOW_WRITE], ids=["search", "write"])
def test_ctrl_c_ends_with_130_without_a_traceback_or_half_a_file(autoconfig, tmp_path, slow):
    code = slow + "\nfrom autoconfig.cli.main import main\nmain()"
    arguments = ["search", *SMALL, "--output", str(tmp_path / "plans.csv")]
    environment = {**os.environ, "PYTHONPATH": str(autoconfig.root)}
    command = [sys.executable, "-c", code, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = started(subprocess.Popen(command, cwd=autoconfig.root, env=environment, **pipes))
    assert process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert (out.replace(b"started\n", b""), err) == (b"", b"interrupted\n")
    assert list(tmp_path.iterdir()) == []


T5_SMALL = {"model_type": "t5", "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128}


def test_a_config_file(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(T5_SMALL), encoding="utf-8")
    found = json.loads(autoconfig.run("model", str(file), "--json").output)
    assert (found["family"], found["parameters"], found["active_parameters"]) == ("t5", 60_506_624, 60_506_624)
    assert api.model(T5_SMALL).parameters == found["parameters"]


def test_active_parameters_and_what_is_left_out() -> None:
    found = api.model("deepseek-v3")
    assert (found.family, found.parameters, found.active_parameters) == ("deepseek", 671_026_419_200, 37_552_297_472)
    assert found.left_out == ("1 multi-token-prediction depth: 11,610,067,968 parameters",)
    assert api.model("mixtral-8x7b").active_parameters == 12_879_925_248


def test_what_cannot_be_planned_is_refused_with_the_reason(autoconfig: SimpleNamespace) -> None:
    done = autoconfig.run("model", "bart")
    assert done.exit_code == 2 and "encoder-decoder" in done.output
    with pytest.raises(UnsupportedError, match="architectures"):
        api.model(T5_SMALL | {"architectures": ["T5EncoderModel"]})


def test_what_a_file_says_and_the_count_does_not_take_is_left_out(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 1003}
    text = {"model_type": "llama", **sizes, "max_position_embeddings": 64}
    file = tmp_path / "config.json"
    for config, like, left_out in (
        ({**text, "num_nextn_predict_layers": 1}, (), "num_nextn_predict_layers, which LlamaForCausalLM of transformers does"),
        ({**text, "model_type": "mine", "gate": "on"}, ("--like", "llama"), "gate, which llama does not read"),
        ({"model_type": "llava", "text_config": text, "vision_config": {"depth": 2}}, (), "the vision parts of a multi-modal"),
    ):
        file.write_text(json.dumps(config), encoding="utf-8")
        found = json.loads(autoconfig.run("model", str(file), *like, "--json").output)
        assert len(found["left_out"]) == 1 and found["left_out"][0].startswith(left_out)
        assert not any("left out" in note for note in found["assumed"])
        assert f"left out: {left_out}" in " ".join(autoconfig.run("model", str(file), *like).output.split())
        assert list(api.model(config, like="llama" if like else None).left_out) == found["left_out"]
