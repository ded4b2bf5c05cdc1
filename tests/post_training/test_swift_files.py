"""Scripts of `swift rlhf`, and keys that nothing reads."""

from __future__ import annotations

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import sentences

from autoconfig.formats.post_training.check import check_text, read_file
from autoconfig.formats.post_training.run import placement_of

SWIFT = """NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --reward_funcs accuracy format \\
  --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.5 --vllm_tensor_parallel_size 2 --train_type full \\
  --max_completion_length 2048 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 8 \\
  --sleep_level 1 --offload_optimizer true --offload_model true --deepspeed zero3 --torch_dtype bfloat16
"""


@pytest.fixture(autouse=True)
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check finds no placement beside that of the file, of which nothing is asked here."""
    monkeypatch.setattr("autoconfig.formats.post_training.check.rank", lambda *_: [])


def run_of(text: str, **given: object):
    return read_file(text, given)[1]


def test_a_script_of_swift_rlhf_is_read_with_its_words_and_defaults():
    found = check_text(SWIFT, {})
    run = found.run
    assert found.legal and found.version == "3.12.0" and run.framework == "swift"
    assert (run.model, run.algorithm, run.train_gpus, run.gpus) == ("Qwen/Qwen2.5-7B-Instruct", "grpo", 8, 8)
    placement = run.placement
    assert (run.prompts, run.group, run.minibatch, placement.train.mbs, run.response_cap) == (8, 8, 64, 4, 2048)
    assert (placement.engine.tp, placement.memory_share, placement.engine_awake, placement.offload, run.lora_rank) == (
        2,
        0.5,
        False,
        True,
        0,
    )
    assert found.verdict.padded and found.priced.placement.train.fsdp == 3
    later = check_text(SWIFT.replace("--train_type", "--tuner_type"), {})
    assert (later.version, later.unknown) == ("4.6.0", ())


def test_what_a_script_of_swift_leaves_out_is_as_swift_has_it():
    short = run_of("NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model qwen2.5-7b --use_vllm true")
    assert (short.lora_rank, short.minibatch, short.response_cap) == (8, 16, 512)
    assert (short.placement.train.mbs, short.placement.memory_share) == (1, 0.9)
    assert any("no --deepspeed: every GPU holds all" in one for one in sentences(short.notes))
    two = placement_of(run_of(SWIFT.replace("zero3", "zero2_offload")), 600.0).train
    assert (two.fsdp, two.offload) == (2, 1.0)
    assert run_of(SWIFT.replace("NPROC_PER_NODE=8 ", ""), gpus=16).train_gpus == 16


@pytest.mark.parametrize(
    ("old", "new", "error", "said"),
    [
        ("NPROC_PER_NODE=8 ", "", InputError, "does not set NPROC_PER_NODE: say --gpus N"),
        ("--rlhf_type grpo", "--rlhf_type dpo", UnsupportedError, "rl --algorithm dpo"),
        ("--rlhf_type grpo", "--rlhf_type gkd", UnsupportedError, "gkd is not read, grpo is"),
        ("--train_type full", "--train_type longlora", UnsupportedError, "use lora or full"),
        ("--model Qwen/Qwen2.5-7B-Instruct", "", InputError, "say --model NAME"),
        ("--num_generations 8", "--num_generations 7", InputError, "not a multiple of num_generations 7"),
    ],
)
def test_what_swift_lacks_is_asked_for_and_other_training_refused(old, new, error, said):
    with pytest.raises(error, match=said):
        run_of(SWIFT.replace(old, new))


def test_keys_that_nothing_reads_are_named_and_those_of_no_release_apart():
    found = check_text(f"{SWIFT.rstrip()} --nonsense 3", {})
    assert set(found.unread) == {"reward_funcs", "torch_dtype"}
    assert sentences(found.unknown) == ("nonsense: swift 3.12.0 has no such key",)
