"""Files as their trainers run them: what a release loads, what lies beside a file, and what a script needs to be told."""

import subprocess

import pytest
from click.testing import CliRunner

from autoconfig.cli.main import cli


def said(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """LoRA of llama3-8b for TRL."""
    folder = tmp_path_factory.mktemp("adapters")
    size = ("--gpus", 8, "--seq-length", 2048, "--global-batch-size", 64)
    said("search", "--model", "llama3-8b", *size, "--peft", "lora", "--format", "trl", "--export", folder / "out")
    return folder / "out" / "sft.yaml"


def peak(file) -> float:
    text = said("check", file)
    return float(text.partition("Peak by stage, GiB: ")[2].partition(",")[0])


def test_frozen_weights_are_loaded_in_sixteen_bits_or_priced_as_float32(adapters):
    """trl 1.16's ModelConfig.dtype is float32: 2 bytes more of each of 8.03e9 parameters."""
    text = adapters.read_text(encoding="utf-8")
    assert "\ndtype: bfloat16\n" in text and "\nbf16: true\n" in text
    text = text.replace("gradient_checkpointing: false", "gradient_checkpointing: true")
    plain = adapters.with_name("plain.yaml")
    plain.write_text(text, encoding="utf-8")
    before = peak(plain)
    for changed in (text.replace("dtype: bfloat16\n", ""), text.replace("dtype: bfloat16", "dtype: float32")):
        plain.write_text(changed, encoding="utf-8")
        assert peak(plain) - before == pytest.approx(2 * 8.03e9 / 2**30, abs=0.2)
        assert "as trl loads them where the file does not say dtype: bfloat16" in said("check", plain, "--verbose")


def test_a_file_names_its_model_or_says_that_it_is_to_be_added(adapters, tmp_path):
    text = adapters.read_text(encoding="utf-8")
    assert "\nmodel_name_or_path: meta-llama/Meta-Llama-3-8B\n" in text
    assert "# add dataset_name; learning_rate is no part" in text
    said("search", "--model", "7b", "--gpus", 8, "--peft", "lora", "--format", "trl", "--export", tmp_path / "out")
    text = (tmp_path / "out" / "sft.yaml").read_text(encoding="utf-8")
    assert "\n# add model_name_or_path: the folder of " in text and "\nmodel_name_or_path" not in text


def test_a_plan_of_pretraining_starts_a_recipe_of_pretraining(tmp_path):
    """Its model is found in a script, too, which has the sizes and no name."""
    said("search", "--model", "qwen3-30b-a3b", "--gpus", 32, "--gpu", "h200", "--tokens", "500B", "--export", tmp_path)
    for name in ("plan.json", "train.sh"):
        text = said("convert", tmp_path / name, "--format", "bridge")
        assert "--recipe qwen3_30b_a3b_pretrain_config $(grep" in text and " dataset.sequence_length=4096 " in text
        assert "not in the file: length of the run: train.train_iters" in text


def test_a_shell_asks_for_the_recipe_of_a_model_that_has_none(tmp_path):
    asked = ("--model", "mixtral-8x7b", "--gpus", 16, "--gpu", "h200", "--peft", "lora", "--export", tmp_path / "out")
    command = said("search", *asked).split("run: ")[1].split(" chance to fit")[0]
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)

    def run(**variables):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "0", **variables}
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)

    assert "RECIPE: no peft recipe of this model is known" in run(MASTER_ADDR="host0").stderr
    assert "MASTER_ADDR: host of node 0" in run(RECIPE="mine").stderr
    started = run(RECIPE="mine_peft_config", MASTER_ADDR="host0").stdout
    assert "--recipe mine_peft_config model.tensor_model_parallel_size=" in started and "--nnodes 2" in started


def test_a_script_with_data_and_no_tokenizer_stops_with_a_message(tmp_path):
    said("search", "--model", "llama3-8b", "--gpus", 8, "--export", tmp_path / "out")
    script = tmp_path / "out" / "train.sh"
    done = subprocess.run(["bash", script], capture_output=True, text=True, env={"DATA_PATH": "/d", "PATH": "/usr/bin:/bin"})
    assert done.returncode != 0 and "TOKENIZER_MODEL: give the tokenizer of the data" in done.stderr


def test_rl_check_reads_the_file_of_accelerate_beside_it_and_values_in_place_of_the_files(tmp_path):
    said("rl", "--model", "qwen2.5-7b", "--gpus", 8, "--framework", "trl", "--export", tmp_path / "out")
    file, beside = tmp_path / "out" / "grpo.yaml", tmp_path / "out" / "accelerate.yaml"
    assert "dtype: float32" in file.read_text(encoding="utf-8")
    plain = said("rl", "check", file)
    assert "grpo on 8 GPUs" in plain and "8 GPUs, as accelerate.yaml beside it says" in plain and "mbs=1" in plain
    assert "mbs=2" in said("rl", "check", file, "--set", "per_device_train_batch_size=2", code=3)  # with logits held, too much
    assert "--set nonsense: write it like" in said("rl", "check", file, "--set", "nonsense", code=2)
    text = beside.read_text(encoding="utf-8")
    beside.write_text(text.replace("num_processes: 8", "num_processes: 4").replace("DEEPSPEED", "FSDP"), encoding="utf-8")
    four = said("rl", "check", file, "--fit-chance", 0.1)  # whether it fits is said elsewhere
    assert "4 GPUs, as accelerate.yaml beside it says; its FSDP is priced as ZeRO-3" in four
    beside.write_text("num_machines: 1\n", encoding="utf-8")
    assert "accelerate.yaml beside it says no num_processes" in said("rl", "check", file, code=2)


def test_an_algorithm_that_is_ranked_and_not_written_is_said_first():
    text = said("rl", "--model", "qwen2.5-7b", "--gpus", 8, "--framework", "trl", "--algorithm", "ppo")
    assert text.startswith("Ranked only, --export writes nothing here: no file of trl 1.16.0 is written for ppo")
    assert "--framework verl or openrlhf" in text
    assert "Ranked only" not in said("rl", "--model", "qwen2.5-7b", "--gpus", 8, "--framework", "verl", "--algorithm", "ppo")


def test_a_batch_script_of_a_deployment_has_the_options_of_slurm(tmp_path):
    asked = ("deployments", "--model", "llama3-8b", "--gpus", 2, "--aggregated-only", "--simulate", 0)
    slurm = ("--partition", "fast", "--account", "me", "--slurm=--qos=high")
    said(*asked, *slurm, "--export", tmp_path / "out")
    text = (tmp_path / "out" / "serve.sbatch").read_text(encoding="utf-8")
    for line in ("#SBATCH --partition=fast", "#SBATCH --account=me", "#SBATCH --qos=high"):
        assert text.index(line) < text.index("set -euo pipefail")
    assert "is for a search that measures: say --profile --study NAME too, or --export DIR" in said(*asked, *slurm, code=2)
