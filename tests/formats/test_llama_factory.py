"""LLaMA-Factory's command lines: read like its YAML files."""

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from tables import tabled

from autoconfig.formats.check import read_any
from autoconfig.formats.edit import changed
from autoconfig.megatron.check import FlagChange
from autoconfig.megatron.check_input import CheckRequest

OPTIONS = (
    "--stage sft --do_train --model_name_or_path Qwen/Qwen2.5-7B --template qwen --cutoff_len 4096 --bf16 true \\\n    "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
)


def read(before, more="--finetuning_type full --deepspeed ds_z3_config.json", **given):
    return read_any(f"#!/bin/bash\n{before} \\\n    {OPTIONS} {more}\n", CheckRequest(gpu="h100", **given))


@tabled
def test_a_command_line_is_read(before, gpus):
    found = read(before)
    assert (found.kind, found.question.scenario.cluster.num_gpus) == ("llama-factory", gpus)
    assert str(found.plan) == f"tp=1,pp=1,dp={gpus},mbs=2,sp=0,recompute=full:uniform:1,fsdp=3"
    assert found.question.scenario.workload.global_batch_size == 2 * 4 * gpus
    assert found.question.scenario.model.name == "qwen2.5-7b" and not found.unknown
    lora = read(before, "--lora_rank 16 --lora_target q_proj,v_proj").question.scenario.numerics
    assert (lora.peft, lora.lora_rank, lora.lora_target_modules) == ("lora", 16, ("linear_qkv",))


def test_what_a_command_line_leaves_elsewhere_is_asked_for():
    with pytest.raises(InputError, match="number of GPUs is not known"):
        read("llamafactory-cli train")
    with pytest.raises(InputError, match=r"the settings stand in examples/a\.yaml, .* check that file"):
        read_any("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train examples/a.yaml\n", CheckRequest(gpu="h100"))
    with pytest.raises(InputError, match="--set fsdp=full_shard"):
        read("accelerate launch --config_file fsdp.yaml src/train.py", "--finetuning_type full", gpus=2)
    with pytest.raises(UnsupportedError, match="stage is dpo"):
        read_any(f"llamafactory-cli train {OPTIONS.replace('stage sft', 'stage dpo')}", CheckRequest(gpu="h100", gpus=8))


def test_a_command_line_is_edited():
    text = f"NPROC_PER_NODE=8 llamafactory-cli train \\\n    {OPTIONS}\n"
    new = [FlagChange(flag="per_device_train_batch_size", old=("2",), new=("1",)),
           FlagChange(flag="disable_gradient_checkpointing", old=None, new=("true",))]  # fmt: skip
    edited = changed(text, new)
    assert edited == text.replace("batch_size 2", "batch_size 1").replace(
        " train ", " train --disable_gradient_checkpointing true "
    )


@tabled
def test_files_that_are_no_training_of_hugging_faces_trainer_in_16_bits_are_refused(more, says):
    """hiyouga/LLaMA-Factory examples/extras/nlg_eval, extras/fp8 and megatron got a verdict, with these keys "unknown"."""
    text = f"model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ncutoff_len: 2048\nbf16: true\n{more}\n"
    with pytest.raises(UnsupportedError, match=says):
        read_any(text, CheckRequest(gpu="h100", gpus=8))
