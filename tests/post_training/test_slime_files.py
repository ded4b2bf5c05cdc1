"""slime's launch scripts: Megatron's arguments, SGLang's and its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences

from autoconfig.formats.post_training.check import check_text, read_file
from autoconfig.formats.post_training.run import placement_of

SLIME = (Path(__file__).with_name("field_rl") / "d15_slime_q30b.sh").read_text()
GIVEN = {"model": "qwen3-30b-a3b", "gpu": "h100"}


@pytest.fixture(autouse=True)
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check finds no placement beside that of the file, of which nothing is asked here."""
    monkeypatch.setattr("autoconfig.formats.post_training.check.rank", lambda *_: [])


def run_of(text: str, **given: object):
    return read_file(text, {**GIVEN, **given})[1]


def test_a_script_of_slime_is_read_with_megatrons_arguments_and_sglangs():
    run = run_of(SLIME)
    assert (run.framework, run.version, run.back_end, run.algorithm, run.engine) == (
        "slime",
        "0.3.1",
        "megatron",
        "dapo",
        "sglang",
    )
    assert (run.nodes, run.gpus_per_node, run.placement.colocated) == (1, 8, True)
    placement, train = run.placement, run.placement.train
    assert (train.tp, train.pp, train.cp, train.ep, run.etp) == (4, 1, 1, 8, 1)
    assert (run.prompts, run.group, run.minibatch, run.response_cap) == (32, 8, 256, 8192)
    assert (placement.engine.tp, placement.memory_share, placement.tokens_per_gpu, train.offload) == (8, 0.7, 20480, 1.0)
    assert placement.offload and placement.reference_waits and str(train.recompute) == "full:uniform:1"
    placed = placement_of(run, 1700.0)
    assert (placed.tokens_per_gpu, placed.samples, placed.forward.tokens_per_gpu) == (20480, 0, 20480)


def test_the_optimizer_on_the_host_of_a_node_is_counted_against_its_memory():
    """12 bytes of each of 30.5 B parameters and the engine's weights: a node of 512 GiB does not hold them (slime 1851)."""
    found = check_text(SLIME, GIVEN)
    assert found.legal and found.priced.memory.host_bytes > 14 * 30.5e9
    small = check_text(SLIME, {**GIVEN, "host_memory": "512GiB"})
    assert not small.fits and "wait on the host of each node" in small.priced.memory.reason


def test_keys_of_slime_are_its_own_megatrons_and_sglangs():
    found = check_text(
        SLIME.replace("--colocate", "--colocate --sglang-new-word 3 --use-tis --moe-grouped-gemm --rollout-batch 3"), GIVEN
    )
    assert sentences(found.unknown) == ("rollout_batch: slime 0.3.1 has no such key; rollout_batch_size?",)
    older = check_text(SLIME.replace("--colocate", "--colocate --update-weight-mode full"), {**GIVEN, "version": "0.1.0"})
    assert "not yet in slime 0.1.0" in " ".join(sentences(older.unknown))


def test_micro_batches_of_a_number_of_samples_lose_their_padding():
    fixed = SLIME.replace("--use-dynamic-batch-size --max-tokens-per-gpu 20480", "--micro-batch-size 8")
    run = run_of(fixed)
    assert (run.placement.tokens_per_gpu, run.placement.train.mbs, run.removes_padding) == (0, 8, True)
    found = check_text(fixed.replace("response-len 8192", "response-len 32768"), {**GIVEN, "response_length": 16000})
    assert not found.fits and found.verdict.samples == 8 and found.verdict.first < 512
    assert found.filled_words.startswith("--use-dynamic-batch-size --max-tokens-per-gpu ")
    assert run_of(f"{fixed.rstrip()} {found.filled_words}").placement.tokens_per_gpu == found.filled.placement.tokens_per_gpu


def test_algorithms_and_their_passes():
    grpo = run_of(SLIME.replace("--colocate", "--colocate --use-kl-loss"))
    assert (grpo.algorithm, grpo.no_reference) == ("grpo", False)
    own = run_of(SLIME.replace("--colocate", "--colocate --use-rollout-logprobs --advantage-estimator ppo"))
    assert (own.algorithm, own.no_policy_pass, own.no_reference, own.placement.critic_gpus) == ("ppo", True, True, 0)
    apart = SLIME.replace("--colocate", "--rollout-num-gpus 8").replace("train.py", "train_async.py")
    run = run_of(apart)
    assert (run.engine_gpus, run.placement.staleness, run.placement.offload) == (8, 1, False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--colocate", "", "--rollout-num-gpus is not given, nor --colocate"),
        ("--rollout-batch-size 32", "", "--rollout-batch-size is not given"),
        ("--colocate", "--colocate --advantage-estimator best", "'best': use grpo"),
        ("--tensor-model-parallel-size 4", "--tensor-model-parallel-size four", "a whole number is wanted"),
    ],
)
def test_what_slime_lacks_is_asked_for(old, new, said):
    with pytest.raises(InputError, match=said):
        run_of(SLIME.replace(old, new))


def test_what_cannot_run_is_said():
    assert "--use-dynamic-batch-size wants" in " ".join(
        check_text(SLIME.replace("--max-tokens-per-gpu 20480", ""), GIVEN).broken
    )
    ahead = SLIME.replace("train.py", "train_async.py")
    assert "train_async.py does not run with --colocate" in " ".join(check_text(ahead, GIVEN).broken)
    odd = SLIME.replace("--global-batch-size 256", "--global-batch-size 100")
    assert "does not divide the 256 samples" in " ".join(check_text(odd, GIVEN).broken)


def test_arguments_of_a_sourced_file_are_said_and_the_model_is_the_checkpoints():
    text = "source models/qwen3-4B.sh\n" + SLIME.replace(
        "--colocate", "--colocate ${MODEL_ARGS[@]} --hf-checkpoint Qwen/Qwen3-4B"
    )
    found = check_text(text, {"gpu": "h100"})
    assert found.job.policy.name == "qwen3-4b" and any("that the script sources" in one for one in sentences(found.run.notes))
