"""No verdict, exit code, order or field hangs on words: the same answers where every remark's text is random words."""

import ast
import csv
import gc
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from autoconfig.specs import remarks
from autoconfig.specs.remarks import Remark, sentence
from click.testing import CliRunner

from autoconfig.cli.main import cli
from autoconfig.formats.post_training import check as rl_check

TESTS = Path(__file__).parents[1]
SCRIPTS = json.loads((TESTS / "megatron" / "public_scripts.json").read_text())
FILES = json.loads((TESTS / "formats" / "public_files.json").read_text())
CONFIGS = json.loads((TESTS / "specs" / "huggingface_configs.json").read_text())
SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "1"))
EVERY = 24
"""One input of so many is asked in `make test`, all of them in `make soak`."""
QUESTIONS = (
    "search --model mixtral-8x7b --gpus 16 --top 2",
    "search --model 7b --gpus 2 --peft lora --top 1 --software nemo-25.09 --precision fp8",
    "explain --model qwen3-30b-a3b --gpus 16 --gpu mi300x tp=1,pp=2,ep=8,mbs=1 --no-binds",
    "deployments --model llama3-8b --gpus 2 --gpu h200 --simulate 0",
    pytest.param("rl --model qwen2.5-7b --gpus 8", marks=pytest.mark.soak),
    "scaling --model 7b --gpus 2,4 --tokens 10B",
    "model 13b",
)

OWN = """--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --vocab-size 32000 --seq-length 4096 --micro-batch-size 1
--max-position-embeddings 4096 --global-batch-size 1 --bf16 --seqlength 4 --new-one 3 --recompute-modules mlp """
"""Arguments of a model that does not fit, with a slip, an unknown and an idle one: every decision on remarks is taken."""


class Scrambled:
    """Texts of remarks as random words, the same for the same text, and back."""

    def __init__(self, seed: int) -> None:
        self.random, self.words = random.Random(seed), dict[str, str]()

    def __call__(self, text: str) -> str:
        if text.strip() and text not in self.words:
            letters = "".join(self.random.choices("bcdfghjklmnpqrstvwxz", k=12))
            self.words[text] = " ".join(re.findall(".{1,4}", letters))
        return self.words.get(text, text)

    def back(self, value: Any) -> Any:
        """What was printed, with the texts instead of the words."""
        if isinstance(value, dict):
            return {key: self.back(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.back(one) for one in value]
        for text, words in reversed(self.words.items()) if isinstance(value, str) else ():
            value = value.replace(words, text)
        return value


@contextmanager
def scrambled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scrambled]:
    """Every remark, made or to be made, says random words, and so do the sentences of fields."""
    scramble, make = Scrambled(SEED), Remark.__init__

    def init(self: Remark, field: str, value: object, why: str, *rest: Any, **more: Any) -> None:
        make(self, field, value, scramble(why), *rest, **more)

    made = [(one, one.why) for one in gc.get_objects() if isinstance(one, Remark)]
    asked = {field: "{}".join(map(scramble, re.split(r"\{.*?\}", words))) for field, words in remarks.ASKED.items()}
    with monkeypatch.context() as patch:
        patch.setattr(Remark, "__init__", init)
        for field, words in remarks.ASKED.items():
            holes = re.findall(r"\{.*?\}", words)
            patch.setitem(remarks.ASKED, field, asked[field].replace("{}", holes[0] if holes else ""))
        for one, why in made:
            object.__setattr__(one, "why", scramble(why))
        try:
            yield scramble
        finally:
            for one, why in made:
                object.__setattr__(one, "why", why)


def printed(*arguments: str) -> tuple[int, Any]:
    """Exit code, and what is printed: JSON as values."""
    done = CliRunner(env={"COLUMNS": "9999"}).invoke(cli, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(done.stdout) if "--json" in arguments and done.exit_code in (0, 3) else done.stdout


def same(monkeypatch: pytest.MonkeyPatch, run: Callable[[], tuple[int, Any]]) -> None:
    """With random words `run` gives the same but for them."""
    before = run()
    with scrambled(monkeypatch) as scramble:
        after = run()
    assert (after[0], scramble.back(after[1])) == before, f"seed {SEED}"


def texts_of_post_training() -> Iterator[tuple[str, str]]:
    """Files of post-training that the tests of formats hold."""
    for path in sorted((TESTS / "formats").glob("test_rl_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if len(text) > 200:
                    yield f"{path.stem}-{name}", text


def inputs() -> Iterator[Any]:
    """(command with options, its file's name, the file's text) of every file of the tests that a command reads."""
    cases: list[tuple[str, list[str], str, str]] = []
    for table, text, gpu in ((SCRIPTS, "script", "a100-80gb"), (FILES, "text", "h100")):
        for row in table["rows"]:
            case = dict(zip(table["columns"], row, strict=True))
            name = re.split(r"[/ ]", case["source"].split(" (")[0])[-1]
            cases.append((f"check-{case['source']}", ["check", *options({"gpu": gpu, **case["given"]})], name, case[text]))
    for path in sorted((*(TESTS / "megatron" / "scripts").iterdir(), *(TESTS / "formats" / "files").iterdir())):
        size = ["--gpus", "64", "--seq-length", "4096"]
        cases.append((f"check-{path.name}", ["check", "--gpu", "h100", *size], path.name, path.read_text()))
    cases += [(f"rl-{name}", ["rl", "check"], "run.yaml", text) for name, text in texts_of_post_training()]
    cases += [(f"model-{name}", ["model"], "config.json", json.dumps(row["config"])) for name, row in CONFIGS.items()]
    for more in ("", "--cpu-offloading", "--fp32-residual-connection"):
        yield pytest.param(["check", "--gpus", "1"], "run.txt", f"{OWN}{more}", id=f"own {more}")
    for number, (name, command, file, text) in enumerate(cases):
        marks = () if number % EVERY == SEED % EVERY else pytest.mark.soak
        yield pytest.param(command, file, text, id=name, marks=marks)


def options(given: dict[str, Any]) -> list[str]:
    """A request's fields as options."""
    found = []
    for name, value in given.items():
        pairs = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else [str(value)]
        for pair in pairs:
            found += [f"--{'set' if name == 'settings' else name.replace('_', '-')}", pair]
    return found


@pytest.mark.long
@pytest.mark.parametrize(("command", "name", "text"), list(inputs()))
def test_no_answer_on_a_file_hangs_on_words(command, name, text, tmp_path, monkeypatch):
    monkeypatch.setattr(rl_check, "rank", lambda *_: [])
    file = tmp_path / (name or "file")
    file.write_text(text, encoding="utf-8")
    verbose = [] if command == ["model"] else ["--verbose"]
    for more in (["--json"], verbose):
        same(monkeypatch, lambda more=more: printed(*command, str(file), *more))


@pytest.mark.long
@pytest.mark.parametrize("question", QUESTIONS)
def test_no_answer_to_a_question_hangs_on_words(question, monkeypatch):
    def run(*more: str) -> tuple[int, Any]:
        code, answer = printed(*question.split(), *more)
        if isinstance(answer, dict):
            answer.get("funnel", {}).pop("seconds", None)
            answer.get("funnel", {}).pop("seconds_by_phase", None)
            return code, answer
        return code, re.sub(r"in [0-9.]+ m?s\b", "", answer)

    same(monkeypatch, lambda: run("--json"))
    if not question.startswith("model"):
        same(monkeypatch, lambda: run("--verbose"))


TABLES = (
    ("training_measurements.csv", ()), ("unseen_measurements.csv", ()), ("t5_bert.csv", ()),
    ("inference_measurements.csv", ("--inference",)), ("post_training_measurements.csv", ("--rl",)),
)  # fmt: skip
ROWS = 10_000 if os.environ.get("AUTOCONFIG_SOAK") else 6
"""Rows of each table that are predicted, spread over it."""


@pytest.mark.long
@pytest.mark.parametrize(("table", "kind"), TABLES)
def test_no_row_of_a_table_hangs_on_words(table, kind, tmp_path, monkeypatch):
    with (TESTS.parent / "validation" / "tables" / table).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    asked, out = tmp_path / table, tmp_path / "out.csv"
    with asked.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([rows[0], *rows[1 :: max(1, len(rows) // ROWS)]])

    def run() -> tuple[int, Any]:
        out.unlink(missing_ok=True)
        code, _ = printed("predict", *kind, str(asked), "--output", str(out))
        return code, list(csv.reader(out.read_text(encoding="utf-8").splitlines()))

    same(monkeypatch, run)


def test_a_sentence_is_made_of_its_record():
    """By hand: a field that can be given, a key of a file, a remark on none."""
    assert sentence(Remark("seq_length", 4096, "as adapters are trained")) == (
        "sequence length 4096, as adapters are trained (--seq-length)"
    )
    assert sentence(Remark("prompts", 1024, "")) == "prompts 1,024 (--prompts)"
    assert sentence(Remark("ep_overlap", False, "")) == "EP overlap off (--ep-overlap)"
    assert sentence(Remark("--optimizer", "sgd", "keeps other state")) == "--optimizer sgd: keeps other state"
    assert sentence(remarks.note("no prefix hits")) == "no prefix hits"
