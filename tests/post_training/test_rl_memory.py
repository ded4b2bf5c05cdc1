"""`rl check` on memory of the micro-batch that comes: public reports of runs that died, and random files.

The files of field_rl/ have the settings of public issues (verl 855, 2935; OpenRLHF 346, 519, 1066; slime 1851), written anew.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.errors import AutoconfigError
from autoconfig.specs.remarks import sentences

from autoconfig.formats.post_training.check import RlCheck, check_text
from autoconfig.post_training.frameworks import section
from autoconfig.post_training.memory import training_memory
from autoconfig.post_training.micro_batches import fullest, tokens_drawn
from autoconfig.post_training.passes import scenario_of, shared_tokens

FIELD = Path(__file__).with_name("field_rl")
SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "37"))
MEGATRON = "actor_rollout_ref.actor.megatron"


@pytest.fixture(autouse=True)
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check finds no placement beside that of the file, of which nothing is asked here."""
    monkeypatch.setattr("autoconfig.formats.post_training.check.ranked", lambda *_: [])


def random_file(rng: random.Random) -> tuple[str, dict[str, object]]:
    """A file of verl, OpenRLHF or TRL whose cap is 2 to 16 times the mean, and what is said beside it."""
    mean, times, size = rng.choice([500, 1000, 2000, 4000]), rng.uniform(2.0, 16.0), rng.choice([1, 2, 4, 8, 16])
    cap, model = int(mean * times), rng.choice(["qwen2.5-1.5b", "qwen2.5-7b", "llama3.1-8b", "qwen3-14b"])
    given = {"gpu": rng.choice(["h100", "a100-80gb", "h200"]), "prompt_length": 200, "response_length": mean, "gpus": 8}
    kind = rng.choice(["fsdp", "fsdp", "megatron", "openrlhf", "trl"])
    if kind == "trl":
        values = {
            **{"model_name_or_path": model, "num_generations": 8, "per_device_train_batch_size": size, "use_vllm": "true"},
            **{"gradient_accumulation_steps": 4, "max_prompt_length": 1024, "max_completion_length": cap},
            **{"vllm_mode": "colocate", "vllm_enable_sleep_mode": "true"},
        }
        return "".join(f"{key}: {value}\n" for key, value in values.items()), given
    if kind == "openrlhf":
        words = {
            **{"pretrain": model, "train_batch_size": 128, "micro_train_batch_size": size, "rollout_batch_size": 128},
            **{"micro_rollout_batch_size": size, "n_samples_per_prompt": 8, "prompt_max_len": 1024, "generate_max_len": cap},
            **{"actor_num_gpus_per_node": 8, "ref_num_gpus_per_node": 8, "vllm_num_engines": 8, "zero_stage": 3},
        }
        flags = ["colocate_all_models", "vllm_enable_sleep", "gradient_checkpointing", "adam_offload"]
        flags += ["packing_samples"] * rng.randint(0, 1)
        said = [f"--{key} {value}" for key, value in words.items()] + [f"--{flag}" for flag in flags]
        estimator = "--advantage_estimator group_norm --vllm_gpu_memory_utilization 0.6"
        return f"python3 -m openrlhf.cli.train_ppo_ray {estimator} {' '.join(said)}\n", given
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    values = {
        **{"actor_rollout_ref.model.path": model, "algorithm.adv_estimator": "grpo", "data.train_batch_size": 256},
        **{"data.max_prompt_length": 1024, "data.max_response_length": cap, f"{actor}.ppo_mini_batch_size": 64},
        **{f"{actor}.ppo_micro_batch_size_per_gpu": size, f"{rollout}.log_prob_micro_batch_size_per_gpu": size},
        **{f"{rollout}.name": "vllm", f"{rollout}.n": 8, f"{rollout}.gpu_memory_utilization": 0.6},
    }
    if kind == "megatron":
        values |= {f"{MEGATRON}.tensor_model_parallel_size": 4, f"{MEGATRON}.param_offload": True}
        values |= {f"{MEGATRON}.optimizer_offload": True, "actor_rollout_ref.actor.strategy": "megatron"}
    else:
        values |= {f"{actor}.fsdp_config.param_offload": True, f"{actor}.fsdp_config.optimizer_offload": True}
    return f"python3 -m verl.trainer.main_ppo {' '.join(f'{key}={value}' for key, value in values.items())}\n", given


def held_to(found: RlCheck) -> str:
    """Whether the largest of the drawn micro-batches exceeds the GPU, leaves 15 % of it, or neither, with its bar."""
    memory = found.priced.memory
    share = max(memory.training_bytes, memory.forward_bytes) / memory.device_bytes
    if share > 1.0:
        assert memory.chance <= 0.1 and not memory.fits
        return "exceeds"
    if share <= 0.85:
        assert memory.training_fit >= 0.5
        assert (
            memory.chance >= 0.5 or memory.generation_bytes > 0.85 * memory.device_bytes or not memory.engine_holds_a_sequence
        )
        return "leaves"
    return "near"


def test_chances_of_random_files_follow_the_largest_micro_batch():
    print(f"seed {SEED}")
    rng, verdicts = random.Random(SEED), []
    while len(verdicts) < 60:
        text, given = random_file(rng)
        found = check_text(text, given)
        if found.priced is None:
            assert found.broken, text
            continue
        verdicts.append(held_to(found))
        same_bytes(found)
    assert verdicts.count("exceeds") >= 10 and verdicts.count("leaves") >= 10, verdicts


def same_bytes(found: RlCheck) -> None:
    """Training's peak is that of the training model's formula for the largest of the drawn micro-batches."""
    job, placed = found.job, found.priced.placement
    own = job.trained / job.updates / placed.train.dp
    padded = not placed.tokens_per_gpu
    size = int(min(placed.train.mbs if padded else placed.samples, own))
    tokens = shared_tokens(round(float(np.max(tokens_drawn(job, size, packed=not padded)))), placed.train)
    plan, cut = placed.train.replace(mbs=size if padded else 1, vpp=1), fullest(job, placed)
    assert (cut.whole, cut.seq_length) == (plan.mbs, tokens)
    scenario = scenario_of(job, plan, job.policy, cut)
    assert scenario.workload.seq_length == tokens
    if plan.fsdp and job.framework.fp32_shards:
        scenario = replace(scenario, numerics=replace(scenario.numerics, frozen_dtype="fp32"))
    peak = estimate_memory(scenario, scenario.layouts([plan]), [plan.recompute]).peak_bytes[0, 0]
    assert training_memory(job, placed).peak_bytes == peak
    assert peak + found.priced.memory.overhead_bytes <= found.priced.memory.training_bytes


@pytest.mark.parametrize("name", sorted(file.stem for file in FIELD.glob("*.sh")))
def test_files_of_public_reports_are_held_to_the_same(name):
    given = {"gpu": "a100-80gb" if name.startswith(("d5", "d16")) else "h100", "gpus": 8, "model": None}
    try:
        found = check_text((FIELD / f"{name}.sh").read_text(), given)
    except AutoconfigError as error:
        pytest.fail(str(error)) if not name.startswith(("d11", "d15")) else None
        return
    if found.priced:
        held_to(found)


def test_a_run_that_dies_in_a_long_micro_batch_is_told_at_which_and_what_to_set():
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    short, long = (check_text(text, {"gpu": "a100-80gb", "response_length": mean}) for mean in (500, 5000))
    assert short.fits and short.verdict.first is None and short.priced.memory.chance > 0.9
    assert not long.fits and long.verdict.first < 512 and long.priced.memory.chance < 0.01
    assert long.filled.memory.fits and "actor.use_dynamic_bsz=True" in long.filled_words
    changed = text.replace("trainer.nnodes=1", f"trainer.nnodes=1 {long.filled_words}")
    again = check_text(changed, {"gpu": "a100-80gb", "response_length": 5000})
    assert again.legal and again.fits and again.priced.placement.train == long.filled.placement.train
    assert again.priced.placement.tokens_per_gpu == long.filled.placement.tokens_per_gpu


def test_an_assumed_length_says_how_the_verdict_hangs_on_it():
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    said = next(one for one in sentences(check_text(text, {"gpu": "a100-80gb"}).run.notes) if "training fits up to" in one)
    mean = int(said.split("up to ")[1].split(" ")[0].replace(",", ""))
    fits, not_any_more = (check_text(text, {"gpu": "a100-80gb", "response_length": mean + more}) for more in (-100, 200))
    assert fits.fits and not not_any_more.fits


def test_a_pass_of_many_padded_samples_is_priced():
    """Its logits alone, six bytes each, are above the GPU (OpenRLHF 1066)."""
    found = check_text((FIELD / "d9_openrlhf_q8b_12k.sh").read_text(), {"gpu": "h100"})
    memory, job = found.priced.memory, found.job
    logits = section("vocabulary")["pass_bytes"] * 32 * found.verdict.largest_tokens * job.policy.vocab_size
    assert memory.device_bytes < logits < memory.forward_bytes and memory.chance < 0.01
    assert "a pass of log-probabilities takes" in memory.reason and "--use_dynamic_batch" in found.filled_words
