"""What a search ranks for a trainer is what it writes and what `check` reads: seconds, bytes, verdicts of random questions."""

import os
import random

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.formats.check import check_file
from autoconfig.formats.export import export_texts
from autoconfig.formats.narrow import search_sayable
from autoconfig.megatron.check_input import CheckRequest

FILES = {"trl": "sft.yaml", "llama-factory": "train.yaml", "axolotl": "axolotl.yaml", "bridge": "overrides.txt"}
MODELS = (
    *("llama3-8b", "qwen2.5-7b", "qwen2.5-1.5b", "qwen3-4b", "mistral-7b", "phi3-mini", "llama3.2-1b", "qwen2.5-14b"),
    *("gemma2-9b", "falcon-7b", "opt-13b", "gpt-j-6b", "qwen2.5-32b", "llama3-70b", "olmo2-7b", "gpt-neox-20b"),
)
MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite", "glm4.5-air", "qwen3-next-80b-a3b", "deepseek-v3")
"""Megatron-Bridge's alone: with recurrent layers, CUDA graphs, multi-token prediction that adapters leave out."""
GPUS = ("a100-80gb", "a100-40gb", "h100-sxm-80gb", "h200", "b200", "rtx-4090-24gb", "l40s", "a6000")
LORA = {"peft": "lora", "lora_rank": 16}
KINDS = {
    "all weights": {},
    "adapters": LORA,
    "qlora": {**LORA, "frozen_dtype": "nf4"},
    "qlora, quantised once": {**LORA, "frozen_dtype": "nf4_single"},
    "adapters beside int8": {**LORA, "lora_rank": 4, "frozen_dtype": "int8"},
    "pure bf16": {"weights_are_masters": True},
    "8-bit Adam": {"optimizer": "adam8bit"},
    "pure bf16, paged": {"weights_are_masters": True, "optimizer": "paged_adam8bit"},
    "adapters, 8-bit Adam": {**LORA, "optimizer": "adam8bit"},
    "fp16": {"precision": "fp16"},
    "on the CPU": {"fix": ("offload=1",)},
    "packed": {"packed_length": 300},
    "compiled": {"compile": True},
    "compiled adapters": {**LORA, "compile": True},
    "Adafactor": {"optimizer": "adafactor"},
    "bf16, Adafactor": {"weights_are_masters": True, "optimizer": "adafactor"},
    "packed adapters": {**LORA, "packed_length": 500},
}
OF_BRIDGE = ("adapters", "packed", "packed adapters")
"""What `--export` writes for Megatron-Bridge of them."""
NO_REQUEST = dict.fromkeys(("fix", "exclude", "max", "include"), ())


def draw(rng, form, kind):
    """A question of this kind."""
    return {
        "model": rng.choice(MODELS if form != "bridge" else (*MODELS, *MIXTURES)),
        "gpu": rng.choice(GPUS),
        "gpus": rng.choice((1, 1, 2, 4, 8, 16) if form != "bridge" else (4, 8, 16, 32)),
        "seq_length": rng.choice((512, 1024, 2048, 4096)),
        "global_batch_size": rng.choice((8, 16, 32, 64, 96, 128)),
        **KINDS[kind],
    }


def figures(report):
    """What a user decides by."""
    return [report.step_seconds, float(report.peak_bytes), report.confidence.fit_probability, float(report.fits)]


def compared(question, form, folder):
    """How many plans of the answer were written and read back as themselves; 0 where nothing fits or it is refused."""
    folder.mkdir()
    given = {**NO_REQUEST, "export": str(folder), "software": None, "peft": None, "packed_length": None, **question}
    try:
        answer, _ = search_sayable(given, form)
    except InputError:
        return 0
    scenario = answer.question.scenario
    for at, one in enumerate(answer.plans[:3]):
        place = folder / str(at)
        place.mkdir()
        for name, text in export_texts(scenario, one.report.plan, one.report, form).items():
            (place / name).write_text(text)
        again = check_file(place / FILES[form], CheckRequest())
        assert again.report is not None, (question, form, again.violations)
        assert figures(again.report) == pytest.approx(figures(one.report), rel=1e-9), (question, form, one.report.plan)
        assert again.source.question.scenario.numerics == scenario.numerics, (question, form)
        assert not (again.source.unknown or again.source.not_modelled), (question, form, again.source.unknown)
    return len(answer.plans[:3])


def asked(count, seed, folder):
    """Plans that were compared in `count` questions that have any, over all formats and kinds."""
    rng, found, tried = random.Random(seed), [], 0
    pairs = [(form, kind) for form in FILES for kind in KINDS if form != "bridge" or kind in OF_BRIDGE]
    while len(found) < count:
        form, kind = rng.choice(pairs)
        tried += 1
        assert tried < 10 * count, "most questions have no plan"
        question = draw(rng, form, kind)
        if plans := compared(question, form, folder / str(tried)):
            found.append((form, kind, plans))
    return found


def test_fifteen_questions_of_fine_tuning_are_read_back_as_they_were_ranked(tmp_path):
    found = asked(15, 20261128, tmp_path)
    assert len({form for form, _, _ in found}) == len(FILES) and len({kind for _, kind, _ in found}) >= 8


@pytest.mark.soak
def test_a_hundred_questions_of_fine_tuning_are_read_back_as_they_were_ranked(tmp_path):
    seed = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "2"))
    print(f"seed {seed}")
    found = asked(100, seed, tmp_path)
    assert len(found) == 100 and len({kind for _, kind, _ in found}) >= len(KINDS) - 3


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_says_another_batch_is_another_answer(form, tmp_path):
    """The comparison sees what differs."""
    question = {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 8, "seq_length": 2048, "global_batch_size": 64, **LORA}
    assert compared(question, form, tmp_path / "run")
    file = tmp_path / "run" / "0" / FILES[form]
    before = check_file(file, CheckRequest()).report
    batch = "train.global_batch_size=" if form == "bridge" else "gradient_accumulation_steps: "
    lines = [f"{batch}768" if line.startswith(batch) else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines))
    assert check_file(file, CheckRequest()).report.step_seconds > 2 * before.step_seconds


def test_a_search_for_trl_answers_in_pure_bf16_where_copies_do_not_fit(autoconfig, tmp_path):
    asked = ("search", "--model", "qwen2.5-7b", "--gpu", "a100-80gb", "--seq-length", "2048", "--global-batch-size", "16")
    one = autoconfig.run(*asked, "--gpus", "1", "--format", "trl", "--export", str(tmp_path / "run"))
    assert one.exit_code == 0 and "answered is pure bf16 (--weights-are-masters), 8 bytes a parameter for 16" in one.stderr
    assert "another way: optimizer state in CPU memory (DeepSpeed) (--fix offload=1)" in one.stderr
    assert "--weights-are-masters" in one.stdout  # the command that explains the first plan asks the same question
    checked = autoconfig.run("check", str(tmp_path / "run" / "sft.yaml"))
    assert checked.exit_code == 0 and "Fits:" in checked.stdout
    several = autoconfig.run(*asked, "--gpus", "8", "--format", "trl")
    assert several.exit_code == 0 and "answered is" not in several.stderr
    assert "other ways to train all weights: pure bf16 (--weights-are-masters)" in several.stderr
    small = autoconfig.run(*asked[:4], "rtx-4090-24gb", *asked[5:], "--gpus", "1", "--format", "trl", "--fix", "fsdp=0")
    assert small.exit_code == 3
    said_so = autoconfig.run(*asked, "--gpus", "1", "--format", "trl", "--optimizer", "adamw")
    assert said_so.exit_code == 3 and "answered is" not in said_so.stderr


@pytest.mark.parametrize("model", ["glm4.5-air", "qwen3-next-80b-a3b"])
def test_overrides_leave_out_what_adapters_do_not_train_and_say_what_is_replayed(model, tmp_path):
    asked = {"model": model, "gpu": "h200", "gpus": 64, "seq_length": 4096, "global_batch_size": 64, **LORA}
    assert compared(asked, "bridge", tmp_path / "run")
    said = (tmp_path / "run" / "0" / "overrides.txt").read_text()
    assert "model.mtp_num_layers=null" in said
    assert ("model.cuda_graph_impl=transformer_engine" in said) == (model == "qwen3-next-80b-a3b")


def test_a_way_that_loses_no_update_is_answered_where_it_is_as_fast(autoconfig):
    """A large batch hides the host's Adam, and pure bf16 leaves room for a smaller micro-batch only."""
    asked = ("search", "--model", "qwen2.5-7b", "--gpu", "a100-80gb", "--gpus", "1", "--format", "trl")
    large = autoconfig.run(*asked, "--global-batch-size", "1024", "--seq-length", "4096")
    assert "answered is optimizer state in CPU memory (DeepSpeed) (--fix offload=1), no rounding" in large.stderr
    assert large.stderr.count("another way: ") == 2 and "another way: optimizer state in CPU" not in large.stderr
