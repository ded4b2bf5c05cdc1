"""Random argument lists: every one ends in exit code 0, 2 or 3, no traceback; few in `make test`, many in `make soak`."""

import json
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tables import table

from autoconfig.cli.main import COMMANDS, load
from autoconfig.planning.schemas import schema

LOADED = {name: load(*place.split(":")) for name, place in COMMANDS.items()}
NAMED_APART = {"--model", "--output", "--cluster", "--gpus"}
FLAGS = {
    name: sorted(
        {o for p in command.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)} - NAMED_APART
    )
    for name, command in LOADED.items()
}
SWITCHES = {o for c in LOADED.values() for p in c.params if getattr(p, "is_flag", False) for o in (*p.opts, *p.secondary_opts)}
GOOD_VALUES = table(__file__, "good_values")
PLANS = table(__file__, "plans")
KEYS = table(__file__, "keys")
GARBAGE = st.one_of(
    st.sampled_from(["", "0", "-1", "nan", "inf", "-inf", "1e400", "9" * 40, "1e-300", "0x10", "\uff11\uff12", "\u0663",
                     "1,5", "--", "-", "=", ",",
                     "../", "/dev/null", "\0", "[bold]x[/bold]", "[/]", "%s", "{}", "tp=8,", "tp==", "tp=8,tp=8"]),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip
MODELS = table(__file__, "models")
FILES = table(__file__, "files")
CONFIG = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
          "intermediate_size": 1024}  # fmt: skip


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Files that a random argument list may name, and the folder in which it runs."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "folder").mkdir()
    contents = {
        "good.json": CONFIG, "bert.json": {"model_type": "bert"}, "wrong.json": {**CONFIG, "hidden_size": "wide"},
        "moe.json": {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        "cluster.json": {"gpu": "h100", "num_gpus": 16, "gpus_per_node": 4},
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "truncated.json").write_text(json.dumps(CONFIG)[:40])
    (folder / "binary.json").write_bytes(os.urandom(500))
    (folder / "empty.json").write_bytes(b"")
    return folder


def value_of(flag, draw):
    """Mostly a value that makes sense."""
    sensible = PLANS if flag == "--include" else KEYS if flag in ("--fix", "--max", "--exclude") else GOOD_VALUES.get(flag)
    return draw(GARBAGE if draw(st.integers(0, 19)) == 0 else st.sampled_from(sensible or ["1", "2", "64"]))


@st.composite
def argument_lists(draw):
    """A command line: most are near one that works, the others anything."""

    def rarely(one_in=10):
        return draw(st.integers(1, one_in)) == 1

    command = draw(st.sampled_from(["search"] * 8 + ["explain"] * 4 + ["models", "gpus", "software", "", "serach"]))
    arguments = [command] if command else []
    asks = command in ("search", "explain")
    if command == "explain":
        arguments.append(draw(GARBAGE if rarely() else st.sampled_from(PLANS)))
    if asks and not rarely(20):
        arguments += ["--model", draw(GARBAGE if rarely() else st.sampled_from(FILES if rarely(4) else MODELS))]
    if asks and not rarely(20):
        arguments += ["--gpus", value_of("--gpus", draw)]
    if command == "search" and rarely(4):
        arguments += [
            "--output",
            draw(GARBAGE if rarely(4) else st.sampled_from(["a.csv", "b.parquet", "folder", "x/y.csv", "c.txt"])),
        ]
    if asks and rarely():
        arguments += ["--cluster", draw(GARBAGE if rarely(4) else st.sampled_from(FILES))]
    known = FLAGS.get("search" if rarely(20) else command, ["-h"])
    for flag in draw(st.lists(st.sampled_from(known or ["--json"]), max_size=0 if rarely(4) else 3)):
        arguments.append(flag)
        if flag not in SWITCHES and not rarely(20):
            arguments.append(value_of(flag, draw))
    if rarely(20):
        arguments.insert(draw(st.integers(0, len(arguments))), draw(GARBAGE))
    return arguments


def check(arguments, returncode, stdout, stderr):
    assert returncode in (0, 2, 3), (arguments, stderr)
    assert "Traceback" not in stderr, arguments
    assert returncode != 2 or stderr or "Not legal" in stdout or '"legal": false' in stdout, arguments
    if returncode in (0, 3) and "--json" in arguments and arguments[0] in ("search", "explain") and stdout.startswith("{"):
        Draft202012Validator(schema(arguments[0])).validate(json.loads(stdout))


@pytest.mark.judge
@pytest.mark.parametrize("count", [48, pytest.param(2000, marks=pytest.mark.soak)])
def test_random_arguments(autoconfig, workplace, monkeypatch, count):
    monkeypatch.chdir(workplace)
    codes = Counter()

    @settings(max_examples=count, deadline=None, derandomize=count < 1000, suppress_health_check=list(HealthCheck))
    @given(argument_lists())
    def every_argument_list_ends_well(arguments):
        result = autoconfig.run(*arguments)
        check(arguments, result.exit_code, result.stdout, result.stderr)
        codes[result.exit_code] += 1
        left = {p.name for p in workplace.iterdir()} - {*FILES, "a.csv", "b.parquet"}
        assert not [name for name in left if name.startswith(".")], arguments

    every_argument_list_ends_well()
    print(dict(codes))
    assert codes[0] + codes[3] > count / 8 and codes[2] > count / 8, f"the lists are too alike: {codes}"


@pytest.mark.service
@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_random_processes(autoconfig, workplace, count):
    @settings(max_examples=count, deadline=None, derandomize=count < 50, suppress_health_check=list(HealthCheck))
    @given(argument_lists())
    def every_process_ends_well(arguments):
        encoded = [
            text.replace("\0", "").encode("utf-8", "surrogateescape" if text.isprintable() else "replace") for text in arguments
        ]
        done = autoconfig.process(*encoded, cwd=workplace)
        check(arguments, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    every_process_ends_well()
