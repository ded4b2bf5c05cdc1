"""Random argument lists of `deployments` and `predict --inference`: exit code 0, 2 or 3, no traceback; few in
`make test`, 2,000 of each in `make soak`."""

import csv
import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tables import table

from autoconfig.cli.serving import deployments_command
from autoconfig.planning.request_fields import SERVING_PROFILE
from autoconfig.planning.resolve import field_names
from autoconfig.planning.schemas import schema
from autoconfig.runs.predicted import OUR_ERROR
from tests.cli.test_fuzz import CONFIG, GARBAGE
from validation.sheets.serving import published_rows

VALUES = table(__file__, "good_values")
OF_A_STUDY = field_names(SERVING_PROFILE)
"""Of --profile, which starts jobs: tests/study/test_serving_profile.py."""
PARAMETERS = [p for p in deployments_command.params if p.name not in OF_A_STUDY]
SWITCHES = sorted({o for p in PARAMETERS if getattr(p, "is_flag", False) for o in (*p.opts, *p.secondary_opts)})
MODELS = table(__file__, "models")
GPUS = ["h100", "h200", "b200", "l40s", "a100", "v100-16gb", "mi300x", "gh200", "rtx-4090-24gb"]
ODD = table(__file__, "odd_arguments")
ROWS = published_rows()[::25]


def test_every_option_of_the_command_is_drawn():
    options = {o for p in PARAMETERS for o in p.opts} - {"--model", "--gpus", "--gpu"}
    assert options == {*VALUES, *SWITCHES} - {"--aggregated-only", "--whole-prompts"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Files that a random argument list may name."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "folder").mkdir()
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{k / 2},{100 + k},{1 + k % 60}\n" for k in range(90))
    mooncake = "".join(f'{{"timestamp": {k * 300}, "input_length": {5 + 90 * k}, "output_length": 9}}\n' for k in range(40))
    texts = {
        "azure.csv": azure, "mooncake.jsonl": mooncake, "late.csv": azure + "0,5,5\n", "empty.csv": "",
        "good.json": json.dumps(CONFIG),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    return folder


@st.composite
def searches(draw):
    """Most are near a question that works."""

    def rarely(one_in=12):
        return draw(st.integers(1, one_in)) == 1

    arguments = ["search", "--inference"]
    if not rarely(30):
        arguments += ["--model", draw(GARBAGE if rarely() else st.sampled_from(MODELS))]
    if not rarely(30):
        arguments += ["--gpus", draw(GARBAGE if rarely() else st.sampled_from(["1", "2", "4", "8", "12", "16"]))]
    arguments += ["--gpu", draw(GARBAGE if rarely() else st.sampled_from(GPUS))] if not rarely(3) else []
    for name in draw(st.lists(st.sampled_from([*VALUES, *SWITCHES]), max_size=5, unique=True)):
        arguments.append(name)
        if name in VALUES and not rarely(30):
            arguments.append(draw(GARBAGE if rarely() else st.sampled_from(VALUES[name])))
    if rarely(30):
        arguments.insert(draw(st.integers(0, len(arguments))), draw(GARBAGE))
    return arguments


@st.composite
def tables(draw):
    """Rows of the published table with some cells changed, left out, or of other rows."""
    rows = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        row = dict(draw(st.sampled_from(ROWS)))
        for name in draw(st.lists(st.sampled_from(sorted(row)), max_size=4)):
            row[name] = draw(st.one_of(GARBAGE, st.just(""), st.sampled_from([other[name] for other in ROWS])))
        rows.append(row)
    columns = draw(st.lists(st.sampled_from(sorted(ROWS[0])), max_size=2)) if draw(st.integers(0, 5)) == 0 else []
    return [{k: v for k, v in row.items() if k not in columns} for row in rows], columns


def ends_well(done, arguments):
    assert done.exit_code in (0, 2, 3), (arguments, done.output)
    assert "Traceback" not in done.output, arguments
    assert done.exit_code != 2 or done.stderr, arguments
    if done.exit_code != 2 and "--json" in arguments and done.stdout.startswith("{"):
        body = json.loads(done.stdout)
        Draft202012Validator(schema("serve")).validate(body)
        assert (done.exit_code == 3) == (not body["deployments"]), arguments
        assert body["deployments"] or body["miss"], arguments


def run_searches(autoconfig, count):
    codes = Counter()

    @settings(max_examples=count, deadline=None, derandomize=count < 100, suppress_health_check=list(HealthCheck))
    @given(searches())
    def every_search_ends_well(arguments):
        done = autoconfig.run(*arguments)
        ends_well(done, arguments)
        codes[done.exit_code] += 1

    every_search_ends_well()
    print("search", dict(codes))
    assert codes[0] > count / 8 and codes[2] > count / 8, f"the lists are too alike: {codes}"


def run_predictions(autoconfig, workplace, count):
    codes = Counter()

    @settings(max_examples=count, deadline=None, derandomize=count < 100, suppress_health_check=list(HealthCheck))
    @given(tables(), st.sampled_from([["in.csv", "--output", "out.csv"]] * 15 + ODD), GARBAGE, st.integers(1, 15))
    def every_table_ends_well(table, files, odd, one_in):
        rows, left_out = table
        columns = [name for name in ROWS[0] if name not in left_out]
        with (workplace / "in.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        arguments = ["predict", "--inference", *files, *([odd] if one_in == 15 else [])]
        done = autoconfig.run(*arguments)
        ends_well(done, [*arguments, rows])
        if done.exit_code == 0:
            assert OUR_ERROR not in (workplace / "out.csv").read_text(encoding="utf-8"), rows
        codes[done.exit_code] += 1

    every_table_ends_well()
    print("predict", dict(codes))
    assert codes[0] > count / 8 and codes[2] > count / 8, f"the tables are too alike: {codes}"


@pytest.mark.judge
def test_random_questions(autoconfig, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    run_searches(autoconfig, 8)
    run_predictions(autoconfig, workplace, 8)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_random_questions(autoconfig, workplace, monkeypatch, part):
    monkeypatch.chdir(workplace)
    run_searches(autoconfig, 500)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(2))
def test_two_thousand_random_tables(autoconfig, workplace, monkeypatch, part):
    monkeypatch.chdir(workplace)
    run_predictions(autoconfig, workplace, 1000)
