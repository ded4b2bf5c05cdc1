"""Programs around Hugging Face's Trainer: whose defaults hold, where their length stands, and what trains on preferences."""

import json

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE
from autoconfig.specs.remarks import Effect

from autoconfig.formats.check import read_any
from autoconfig.formats.post_training.check import read_file as read_post_training
from autoconfig.formats.readers.hugging_face.preferences import KEYS, algorithm_of
from autoconfig.megatron.check_input import CheckRequest

ASKED = CheckRequest(gpu="h100-sxm-80gb")
LAUNCH = "torchrun --nproc_per_node 8 {} --model_name_or_path {} --per_device_train_batch_size 1 {}\n"


def plain(options, program="run_clm.py", model="meta-llama/Llama-3.1-8B", asked=ASKED):
    return read_any(LAUNCH.format(program, model, options), asked)


@pytest.mark.parametrize(
    ("program", "options", "length"),
    [
        ("run_clm.py", "--block_size 4096 --do_train", 4096),
        ("fastchat/train/train_mem.py", "--model_max_length 2048 --lazy_preprocess True", 2048),
        ("train.py", "--max_seq_length 512", 512),
        ("qlora.py", "--source_max_len 16 --target_max_len 512", 528),
        ("ptuning/main.py", "--max_source_length 64 --max_target_length 128", 192),
    ],
)
def test_a_plain_program_has_the_trainers_defaults_and_its_own_length(program, options, length):
    """transformers.TrainingArguments: gradient_checkpointing, bf16 and fp16 are off."""
    found = plain(options, program)
    scenario = found.question.scenario
    assert scenario.workload.seq_length == length
    assert found.plan.recompute == NONE and scenario.numerics.precision == "fp32"
    assert not found.unknown
    assert {"gradient_checkpointing", "precision"} <= {one.field for one in found.question.assumed}
    given = plain(f"{options} --bf16 --gradient_checkpointing", program)
    assert given.plan.recompute.granularity == "full" and given.question.scenario.numerics.precision == "bf16"


def test_encoders_and_decoders_have_a_length_each():
    workload = plain("--max_source_length 512 --max_target_length 128", "run_summarization.py", "t5-11b").question
    assert (workload.scenario.workload.seq_length, workload.scenario.workload.decoder_seq_length) == (512, 128)


def test_trls_own_program_has_trls_defaults():
    for program, options in (("trl/scripts/sft.py", "--seed 1"), ("sft_gemma3.py", "--packing")):
        found = plain(options, program)
        assert found.plan.recompute.granularity == "full" and found.question.scenario.numerics.precision == "bf16"
        assert found.question.scenario.workload.seq_length == 1024


def test_a_length_that_is_not_said_is_asked_for():
    with pytest.raises(InputError, match="say --seq-length N"):
        plain("--do_train")
    asked = CheckRequest(gpu="h100-sxm-80gb", seq_length=768)
    assert plain("--do_train", asked=asked).question.scenario.workload.seq_length == 768


@pytest.mark.parametrize(("word", "frozen"), [("use_lora", "bf16"), ("lora_enable", "bf16"), ("q_lora", "nf4_single")])
def test_words_of_other_programs_for_adapters(word, frozen):
    found = plain(f"--{word} True --bf16 True --model_max_length 512", "finetune.py").question.scenario.numerics
    assert (found.peft, found.frozen_dtype) == ("lora", frozen)


@pytest.mark.parametrize(
    ("program", "algorithm"),
    [
        ("trl/scripts/dpo.py", "dpo"),
        ("scripts/run_orpo.py", "orpo"),
        ("examples/scripts/reward_modeling.py", "rm"),
        ("kto.py", "kto"),
        ("examples/scripts/dpo_vlm.py", "dpo"),
        ("grpo.py", "grpo"),
        ("-m trl.scripts.dpo", "dpo"),
        ("-m mine.train_reward", "rm"),
    ],
)
def test_programs_of_preferences_are_refused_with_what_plans_them(program, algorithm):
    with pytest.raises(UnsupportedError) as refused:
        plain("--max_length 1024 --bf16", program)
    planned = algorithm if algorithm in ("dpo", "rm", "grpo") else "dpo"
    assert f"autoconfig rl --algorithm {planned}`" in str(refused.value) and "Fits" not in str(refused.value)
    assert (f"no command here prices {algorithm}" in str(refused.value)) == (algorithm in ("orpo", "kto"))
    if not program.startswith("-m"):
        with pytest.raises(InputError, match=f"rl --algorithm {planned}`"):
            read_post_training(LAUNCH.format(program, "a/b", "--max_length 1024"), {"gpus": 8})


def test_names_that_are_of_supervised_training():
    assert not any(map(algorithm_of, ("sft.py", "run_clm.py", "train_reward_sft.py", "trl.scripts.sft", "train.py", "")))


@pytest.mark.parametrize("key", sorted(KEYS))
def test_keys_of_preferences_are_refused(key):
    with pytest.raises(UnsupportedError, match=r"training on preferences|TRL's reinforcement learning"):
        read_any(f"model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\nmax_length: 64\n{key}: 1\n", ASKED)


def test_other_trainers_refuse_preferences_in_the_same_words():
    factory = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: {}\nfinetuning_type: full\ncutoff_len: 64\n"
    axolotl = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 64\nrl: {}\n"
    swift = "swift rlhf --rlhf_type {} --model Qwen/Qwen2.5-7B --max_length 64\n"
    for text in (factory, axolotl, swift):
        for algorithm in ("dpo", "kto"):
            with pytest.raises(UnsupportedError, match=r"It is not priced as that: .*rl --algorithm dpo`"):
                read_any(text.format(algorithm), ASKED)


HELD = (
    "model_name_or_path: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 1\nmax_length: 1024\ndtype: bfloat16\nuse_peft: true\n"
)
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --vocab-size 50257 --micro-batch-size 1 --bf16 {}\n"
)
MORE = {
    "scores that are held": (HELD, "attn_implementation: eager\n", "run.yaml"),
    "modules that are trained whole": (HELD, "modules_to_save: [lm_head]\n", "run.yaml"),
    "a residual stream in fp32": (MEGATRON, "--fp32-residual-connection", "run.sh"),
}


@pytest.mark.parametrize("case", MORE)
def test_what_needs_more_memory_and_is_not_priced_leaves_no_fit(case, autoconfig, tmp_path):
    text, more, name = MORE[case]
    file = tmp_path / name
    words = ("check", str(file), "--gpu", "b200", *(("--gpus", "1") if name.endswith("yaml") else ()))
    file.write_text(text.format(""))
    assert "Fits:" in autoconfig.run(*words).stdout
    file.write_text(text.format(more) if "{}" in text else text + more)
    found = autoconfig.run(*words)
    assert found.exit_code == 2 and "No verdict on memory" in found.stdout and "at least" in found.stdout
    assert "Fits" not in found.stdout
    answer = json.loads(autoconfig.run(*words, "--json").stdout)
    assert answer["fits"] is None and any(one["effect"] == "more_memory" for one in answer["not_modelled"])


def test_a_bound_of_what_needs_more_decides_near_the_limit(autoconfig, tmp_path):
    """Casts of 7.6e9 frozen weights take 14.2 GiB at most: within what an H200 has free, not within what is left of 40 GB."""
    file = tmp_path / "run.yaml"
    file.write_text(HELD.replace("dtype: bfloat16\n", "") + "gradient_checkpointing: false\n")
    found = read_any(file.read_text(), CheckRequest(gpu="h200", gpus=1))
    assert found.more_bytes == pytest.approx(2 * 7.615e9, rel=1e-3)
    assert all(one.effect is Effect.MORE_MEMORY for one in found.not_modelled)
    large, small = (autoconfig.run("check", str(file), "--gpus", "1", "--gpu", gpu) for gpu in ("h200", "a6000"))
    assert large.exit_code == 0 and "Fits:" in large.stdout
    assert small.exit_code == 2 and "at least" in small.stdout
