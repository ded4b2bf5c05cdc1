"""Random arguments and damaged files of post-training: always an answer or a refusal (exit 0, 2 or 3), never a traceback."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoconfig.cli.main import cli
from autoconfig.planning.request_fields import POST_TRAINING
from tests.formats.test_rl_files import FRAMEWORKS, VERL, random_cases
from tests.post_training.test_swift_files import SWIFT

SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "20"))
GOOD = {
    "model": ["qwen3-0.6b", "qwen2.5-7b", "qwen3-30b-a3b", "7b", "nemotron-h-8b", "t5-3b", "bert-large"],
    "gpus": ["1", "2", "3", "6", "8", "12", "16", "64"], "gpu": ["h100", "a100-40gb", "b200", "h20", "t4"],
    "algorithm": ["grpo", "dapo", "ppo", "rloo", "dpo", "sft", "rm", "on-policy-distillation", "off-policy-distillation"],
    "framework": ["verl", "verl@0.9.1", "nemo-rl", "openrlhf", "trl", "nemo-aligner", "slime"],
    "prompts": ["1", "7", "64", "512"], "group_size": ["1", "8", "16"], "minibatch": ["1", "64", "500"],
    "prompt_length": ["1", "100", "4096"], "response_length": ["1", "300", "8192"],
    "max_response_length": ["1", "1024", "32768"], "tokens_per_gpu": ["1", "8192", "65536"], "staleness": ["0", "1", "3"],
    "top": ["1", "1000"],
}  # fmt: skip
FIELD = Path(__file__).resolve().parents[1] / "post_training" / "field_rl"
ODD = [
    *("", "0", "-4", "3.5", "1e9", "9" * 12, "9" * 40, "nan", "inf", "-inf", "no", "None", "null", "true", "[]", "{}", "☃"),
    *("h100", "8", "0x10", "1,000", "--json", "/dev/null", "/", "../..", "a" * 3000, "\x00", "\x1b[0m", "tp=8", "16777217"),
]


def asked(*words: str) -> Result:
    """The command line, in this process; an error that it does not know is no exit code of its own."""
    found = CliRunner().invoke(cli, ["rl", *words])
    clean = found.exit_code in (0, 2, 3) and (found.exception is None or isinstance(found.exception, SystemExit))
    assert clean and "Traceback" not in found.output, (words, found.exit_code, found.exception, found.output[-2000:])
    return found


def random_words(rng: random.Random) -> list[str]:
    """A question with some of its options left out, odd, unknown, or said twice."""
    names = [field.name for field in POST_TRAINING if field.name in GOOD]
    words = []
    for name in rng.sample(names, rng.randint(1, len(names))) + ["model", "gpus"] * (rng.random() < 0.8):
        value = rng.choice(ODD) if rng.random() < 0.12 else rng.choice(GOOD[name])
        flag = f"--{name.replace('_', '-')}"
        words += rng.choice([[f"{flag}={value}"], [flag, value]])
    if rng.random() < 0.1:
        words.insert(rng.randint(0, len(words)), rng.choice(["--x", "check", "-", "--", "--calibration=/dev/null", "--gpus"]))
    return words


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randint(0, len(text))]


def without_a_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(True)
    del lines[rng.randrange(len(lines))]
    return "".join(lines)


def other_value(text: str, rng: random.Random) -> str:
    """The value of a line is something odd."""
    lines = text.splitlines(True)
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line or ":" in line or "'" in line] or [0])
    for mark in ("=", ": ", " '"):
        head, found, _ = lines[at].rpartition(mark)
        if found:
            end = "' \\\n" if lines[at].rstrip().endswith("\\") else "\n"
            lines[at] = f"{head}{found}{rng.choice(ODD)}{end}"
            break
    return "".join(lines)


def other_characters(text: str, rng: random.Random) -> str:
    found = list(text)
    for _ in range(rng.randint(1, 8)):
        found[rng.randrange(len(found))] = rng.choice("\x00\t\n'\"\\${}[]:=,#&*!|>%@`-0 9eN\ud800☃")
    return "".join(found)


def twice(text: str, rng: random.Random) -> str:
    lines = text.splitlines(True)
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "".join(lines)


DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (cut, without_a_line, other_value, other_characters, twice)


def damaged(rng: random.Random, texts: list[str]) -> bytes:
    text = rng.choice(texts)
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(DAMAGES)(text, rng) or "\n"
    return text.encode("utf-8", "surrogatepass")


def whole_texts() -> list[str]:
    """Files of every framework."""
    cases = [random_cases(framework, 4, seed=5) for framework in FRAMEWORKS]
    written = [text for found in cases for *_, files in found for text in files.values()]
    return [*written, VERL, SWIFT, *(path.read_text() for path in sorted(FIELD.glob("*.sh")))]


def arguments_end_well(count: int, seed: int) -> set[int]:
    rng = random.Random(seed)
    return {asked(*random_words(rng)).exit_code for _ in range(count)}


def files_end_well(count: int, seed: int, folder) -> set[int]:
    rng, texts, found = random.Random(seed), whole_texts(), set()
    for number in range(count):
        path = folder / f"file{number}"
        path.write_bytes(damaged(rng, texts))
        more = rng.choice([[], ["--gpus", "8"], ["--json"], ["--response-length", "900"]])
        found.add(asked("check", str(path), *more).exit_code)
    return found


def test_random_arguments_and_damaged_files_end_in_0_2_or_3(tmp_path):
    assert arguments_end_well(24, 20) == {0, 2, 3} and files_end_well(8, 20, tmp_path) <= {0, 2, 3}


@pytest.mark.soak
def test_a_thousand_random_argument_lists():
    print(f"seed {SEED}")
    assert arguments_end_well(1000, SEED) == {0, 2, 3}


@pytest.mark.soak
def test_three_hundred_damaged_files(tmp_path):
    print(f"seed {SEED}")
    assert files_end_well(300, SEED, tmp_path) == {0, 2, 3}
