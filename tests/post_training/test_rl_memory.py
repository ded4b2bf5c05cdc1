"""`rl check` on memory of the micro-batch that comes: public reports of runs that died, and random files.

The files of field_rl/ have the settings of public issues (verl 855, 2935; OpenRLHF 346, 519, 1066; slime 1851), written anew.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from autoconfig.memory_model.predict import estimate_memory
from autoconfig.specs.errors import GIB
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import sentences

from autoconfig.formats.post_training.check import RlCheck, check_text
from autoconfig.post_training.calibration import StepCalibration
from autoconfig.post_training.frameworks import section
from autoconfig.post_training.memory import pinned_growth, training_memory
from autoconfig.post_training.micro_batches import fullest, tokens_drawn
from autoconfig.post_training.passes import scenario_of, shared_tokens

FIELD = Path(__file__).with_name("field_rl")
SEED = int(os.environ.get("AUTOCONFIG_SOAK_SEED", "37"))
ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"


@pytest.fixture(autouse=True)
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check finds no placement beside that of the file, of which nothing is asked here."""
    monkeypatch.setattr("autoconfig.formats.post_training.check.rank", lambda *_: [])


def random_file(rng: random.Random) -> tuple[str, dict[str, object]]:
    """A file of verl, OpenRLHF or TRL whose cap is 2 to 16 times the mean, and what is said beside it.

    Its micro-batches are of a number of samples, padded as the framework and its release do or not, or filled up.
    """
    mean, times, size = rng.choice([500, 1000, 2000, 4000]), rng.uniform(2.0, 16.0), rng.choice([1, 2, 4, 8, 16])
    cap = int(mean * times)
    times_the_longest = int((1024 + cap) * rng.uniform(1.0, 8.0))
    model = rng.choice(["qwen2.5-1.5b", "qwen2.5-7b", "llama3.1-8b", "qwen3-14b"])
    given = {"gpu": rng.choice(["h100", "a100-80gb", "h200"]), "prompt_length": 200, "response_length": mean, "gpus": 8}
    kind = rng.choice(["fsdp", "megatron", "openrlhf", "trl"])
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
        flags += rng.choice([[], ["packing_samples"], ["packing_samples", "use_dynamic_batch"]])
        words |= {f"{name}_max_tokens_per_gpu": times_the_longest for name in ("train", "rollout")}
        given["version"] = "0.9.10"
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
    how = rng.choice(["alone", "padded", "filled"])
    values["actor_rollout_ref.model.use_remove_padding"] = how != "padded"
    given["version"] = rng.choice(["0.5.0", "0.7.0", "0.9.1"])
    if how == "filled":
        values |= {f"{actor}.use_dynamic_bsz": True, f"{actor}.ppo_max_token_len_per_gpu": times_the_longest}
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


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + n, marks=pytest.mark.soak) for n in range(1, 10))])
def test_chances_of_random_files_follow_the_largest_micro_batch(seed):
    print(f"seed {seed}")
    rng, verdicts = random.Random(seed), []
    while len(verdicts) < 60:
        text, given = random_file(rng)
        found = check_text(text, given)
        if found.priced is None:
            assert found.broken, text
            continue
        verdicts.append((same_bytes(found), held_to(found)))
    print({pair: verdicts.count(pair) for pair in sorted(set(verdicts))})
    for kind in ("padded", "alone", "filled"):
        assert verdicts.count((kind, "exceeds")) and verdicts.count((kind, "leaves")), verdicts


def same_bytes(found: RlCheck) -> str:
    """Training's peak is that of the training model's formula for the largest of the drawn micro-batches: whether these are
    padded, of a number of samples or filled up."""
    job, placed = found.job, found.priced.placement
    own = int(job.trained / job.updates / placed.train.dp)
    size = min(placed.train.mbs, own) if not placed.tokens_per_gpu else 1
    if placed.samples:
        kind, tokens = "alone", float(np.max(tokens_drawn(job, min(placed.samples, own), packed=True)))
    elif placed.tokens_per_gpu:
        kind, least = "filled", float(np.max(tokens_drawn(job, 1, packed=True)))
        tokens = max(least, min(placed.tokens_per_gpu * placed.train.cp, own * job.tokens))
    else:
        kind, release = "padded", (found.run.framework, found.run.version)
        beside = {"trl": job.trained // placed.train.dp, "openrlhf": size}.get(release[0], size)
        if release == ("verl", "0.9.1") and placed.train.dist_opt:
            beside = own
        capped = release[0] == "verl" and release[1] != "0.9.1" and not placed.train.dist_opt
        tokens = float(job.longest if capped else np.max(tokens_drawn(job, beside, packed=False)))
    tokens = shared_tokens(round(tokens), placed.train)
    plan, cut = placed.train.replace(mbs=size, vpp=1), fullest(job, placed)
    assert (cut.whole, cut.seq_length) == (plan.mbs, tokens), (kind, found.run.framework, found.run.version)
    scenario = scenario_of(job, plan, job.policy, cut)
    assert scenario.workload.seq_length == tokens
    if plan.fsdp and job.framework.fp32_shards:
        scenario = replace(scenario, numerics=replace(scenario.numerics, frozen_dtype="fp32"))
    peak = estimate_memory(scenario, scenario.layouts([plan]), [plan.recompute]).peak_bytes[0, 0]
    assert training_memory(job, placed).peak_bytes == peak
    assert peak + found.priced.memory.overhead_bytes <= found.priced.memory.training_bytes
    return kind


@pytest.mark.parametrize("name", sorted(file.stem for file in FIELD.glob("*.sh")))
def test_files_of_public_reports_are_held_to_the_same(name):
    models = {"d11": "llama3-8b", "d15": "qwen3-30b-a3b"}
    gpu = "a100-80gb" if name.startswith(("d5", "d16")) else "h100"
    found = check_text((FIELD / f"{name}.sh").read_text(), {"gpu": gpu, "gpus": 8, "model": models.get(name.partition("_")[0])})
    held_to(found)
    if name.startswith(("d3", "d9", "d11", "d12b", "d16")):  # reported: out of memory
        assert not found.fit_chance_met


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


def test_verl_without_the_removal_of_padding_trains_on_the_caps_at_every_mean_where_its_release_is_not_known():
    """Up to 0.7.0 it does; 0.9.1 pads to the longest of a micro-batch."""
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    text = text.replace("remove_padding=True", "remove_padding=False").replace("size_per_gpu=8", "size_per_gpu=2")
    for given in ({}, {"version": "0.5.0"}, {"version": "0.7.0"}):
        for mean in (100, 8000):
            found = check_text(text, {"gpu": "a100-80gb", "response_length": mean, **given})
            assert found.verdict.largest_tokens == found.verdict.mean_tokens == 16384
            assert not found.fit_chance_met and found.ends_at.first == 1 and "micro-batch 1 of 512" in found.headline
    newest = check_text(text, {"gpu": "a100-80gb", "response_length": 100, "version": "0.9.1"})
    assert newest.verdict.largest_tokens < 4000 and newest.fit_chance_met


def test_an_assumed_length_says_how_the_verdict_hangs_on_it():
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    said = next(one for one in sentences(check_text(text, {"gpu": "a100-80gb"}).run.notes) if "up to" in one and "fit" in one)
    assert "training and its passes fit with a chance of 90% up to" in said
    mean = int(said.split("up to ")[1].split(" ")[0].replace(",", ""))
    likely, not_any_more = (check_text(text, {"gpu": "a100-80gb", "response_length": mean + more}) for more in (0, 200))
    assert likely.fit_chance_met and not not_any_more.fit_chance_met


def test_a_pass_of_many_padded_samples_is_priced():
    """Its logits alone, six bytes each, are above the GPU (OpenRLHF 1066)."""
    found = check_text((FIELD / "d9_openrlhf_q8b_12k.sh").read_text(), {"gpu": "h100"})
    memory, job = found.priced.memory, found.job
    logits = section("vocabulary")["pass_bytes"] * 32 * found.verdict.largest_tokens * job.policy.vocab_size
    assert memory.device_bytes < logits < memory.forward_bytes and memory.chance < 0.01
    assert "a pass of log-probabilities takes" in memory.reason and "--use_dynamic_batch" in found.filled_words


def band_of(text: str, given: dict[str, object], constants: object = None) -> float:
    """How many times the middle the upper end of the band is."""
    found = check_text(text, {"gpu": "a100-80gb", "version": "0.9.1", **given}, constants).priced
    return found.band[1] / found.seconds


def test_only_dynamic_sampling_widens_the_band_of_a_step_without_a_reference():
    """The spread of its rounds is not in GRPO without a KL term; lengths and release are said."""
    text, said = (FIELD / "d16_verl_min_fsdp.sh").read_text(), {"response_length": 1600, "prompt_length": 200}
    assert "use_kl_loss=False" in text
    loss = "use_kl_loss=True actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"
    with_kl = band_of(text.replace("use_kl_loss=False", loss), said)
    assert band_of(text, said) == pytest.approx(with_kl) and with_kl < 1.45
    filtered = text.replace("trainer.nnodes=1", "trainer.nnodes=1 algorithm.filter_groups.enable=True")
    assert band_of(filtered, said) > 2.0


def test_a_length_that_is_assumed_widens_the_band_and_is_asked_for():
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    assumed = check_text(text, {"gpu": "a100-80gb", "version": "0.9.1"})
    assert [one.field for one in assumed.unknowns] == ["response_length"]
    ends = [check_text(text, {"gpu": "a100-80gb", "version": "0.9.1", "response_length": mean}).priced for mean in (620, 4137)]
    low, high = assumed.priced.band
    assert low < ends[0].seconds < assumed.priced.seconds < ends[1].seconds < high
    release = check_text(text, {"gpu": "a100-80gb", "response_length": 1600})
    assert [one.field for one in release.unknowns] == ["version"]


def test_measured_steps_narrow_the_band_and_say_the_lengths():
    text = (FIELD / "d16_verl_min_fsdp.sh").read_text()
    text = text.replace("trainer.nnodes=1", "trainer.nnodes=1 algorithm.filter_groups.enable=True")
    measured = StepCalibration(framework="verl", model="qwen2.5-7b", gpu="a100-80gb", steps=5, response_tokens=1600)
    assert measured.lengths == {"response_length": 1600}
    before, after = band_of(text, {}), band_of(text, measured.lengths, measured.applied())
    assert before > 2.5 and after == pytest.approx(np.exp(1.645 * 0.15), rel=0.001)


def test_the_chance_of_an_assumed_mean_is_taken_over_the_means_that_such_runs_have():
    """A run that fits at the assumed mean and not at some of those is not called sure."""
    found = check_text((FIELD / "d16_verl_min_fsdp.sh").read_text(), {"gpu": "a100-80gb"})
    assert found.priced.memory.chance > 0.95 and 0.3 < found.chance < 0.8 and not found.fit_chance_met
    assert found.headline.startswith("It may run out of memory") and "at the assumed one" in found.headline
    said = check_text((FIELD / "d16_verl_min_fsdp.sh").read_text(), {"gpu": "a100-80gb", "response_length": 1600})
    assert said.chance == said.priced.memory.chance and said.headline == "It fits: chance 99.3%"


def test_bins_that_exceed_the_gpu_have_no_chance_and_smaller_ones_are_proposed_up_to_the_asked_one():
    """Of a cap of 1,024 tokens: bins of several samples, not of four."""
    text = (FIELD / "d3_verl_r1_14b_grpo.sh").read_text()
    for tokens in (19_500, 20_000, 21_000):
        found = check_text(text, {"response_length": 400, "set": [f"{ACTOR}.ppo_max_token_len_per_gpu={tokens}"]})
        assert found.verdict.first == 1 and found.priced.memory.chance <= 0.1 and not found.fits
        assert found.filled.placement.tokens_per_gpu >= 12 * 1024 and found.filled.memory.training_fit >= 0.9


def test_a_reward_model_on_the_gpus_of_training_holds_its_weights_there():
    """Whole on each of them with ZeRO-2 (OpenRLHF 0.5), of the policy's size where its name says none."""
    text, given = (FIELD / "d11_openrlhf_ppo_8b_zero2.sh").read_text(), {"gpus": 8, "model": "llama3-8b"}
    scored = check_text(text, given)
    without = check_text(re.sub(r"--reward_pretrain \S+", "", text), given)
    for phase in ("generation_bytes", "training_bytes"):
        more = getattr(scored.priced.memory, phase) - getattr(without.priced.memory, phase)
        assert more == pytest.approx(2 * total_parameters(scored.job.policy))
    assert scored.priced.phases.reward > 0 and without.priced.phases.reward == 0
    assert scored.headline == "It does not fit" and scored.priced.memory.chance < 0.01


@pytest.mark.parametrize("kind", ["openrlhf", "trl"])
def test_where_a_file_has_no_words_for_bins_micro_batches_of_fewer_samples_are_proposed(kind):
    if kind == "openrlhf":
        text, given = (FIELD / "d12b_openrlhf_micro2.sh").read_text(), {"response_length": 6000}
        words, samples = "--micro_train_batch_size 1 --micro_rollout_batch_size 1", 1
    else:
        text = (
            "model_name_or_path: qwen2.5-7b\nnum_generations: 8\nper_device_train_batch_size: 16\nuse_vllm: true\n"
            "gradient_accumulation_steps: 2\nmax_completion_length: 4096\nvllm_mode: colocate\n"
        )
        given = {"response_length": 3000, "gpus": 8, "gpu": "h200"}
        words, samples = "per_device_train_batch_size={} gradient_accumulation_steps={}", 0
    found = check_text(text, given)
    assert found.filled is not None and found.fewer >= 1
    assert found.filled_words == words.format(found.fewer, 2 * 16 // found.fewer)
    assert found.fewer == (samples or found.fewer) and found.filled.memory.chance > found.chance
    if kind == "trl":
        changed = text.replace("size: 16", f"size: {found.fewer}").replace("steps: 2", f"steps: {32 // found.fewer}")
        again = check_text(changed, given)
        assert again.job.minibatch == found.job.minibatch
        assert again.priced.memory.training_bytes == pytest.approx(found.filled.memory.training_bytes)


def test_an_optimizer_on_the_host_holds_its_gradients_there_too():
    """16 bytes a parameter (Megatron-LM's HybridDeviceOptimizer, DeepSpeed's estimate), 12 of which leave the GPU. Of these 8
    are pinned: an expert's 1,536 x 2,048 and 2,048 x 768 weights in fp32 are 12 and 6 MiB, of which PyTorch makes 16 and 8."""
    text = (FIELD / "d15_slime_q30b.sh").read_text()
    given = {"model": "qwen3-30b-a3b", "response_length": 2000}
    hosted, kept = (check_text(one, given) for one in (text, text.replace("--optimizer-cpu-offload", "")))
    trained = training_memory(hosted.job, hosted.priced.placement)
    parameters = total_parameters(hosted.job.policy)
    assert 8 * trained.hosted_bytes == pytest.approx((8 + 8 * 4 / 3) * parameters, rel=0.02)
    freed = training_memory(kept.job, kept.priced.placement).state_bytes - trained.state_bytes
    assert trained.hosted_bytes == pytest.approx(freed * (8 + 8 * 4 / 3) / 12)


def test_pinned_copies_are_rounded_up_to_powers_of_two():
    """A layer of Llama-3-8B in fp32 on tp 2: 48, 32, 224 and 112 MiB become 64, 32, 256 and 128; tp 1 doubles each."""
    model = load_model("llama3-8b")
    for tp in (1, 2):
        assert pinned_growth(model, TrainPlan(tp=tp, pp=1, dp=1, mbs=1)) == pytest.approx(480 / 416)


@pytest.mark.parametrize(("gpus", "tp", "actor", "node", "used"), [(8, 4, 102.4, 1007.5, 999.9), (4, 2, 196.0, 1003.1, 984.0)])
def test_two_reports_of_a_full_host_are_not_called_fitting(gpus, tp, actor, node, used):
    """THUDM/slime issue 1851 on 8 GPUs, vllm-project/vime issue 56 on 4: GiB of each trainer's process, of the node and of what
    was used. The trainer's state is most of its process; the node holds more than the state of all."""
    text = (FIELD / "d15_slime_q30b.sh").read_text()
    changes = {"per-node 8": f"per-node {gpus}", "tensor-model-parallel-size 4": f"tensor-model-parallel-size {tp}"}
    changes |= {"expert-model-parallel-size 8": f"expert-model-parallel-size {gpus}", "per-engine 8": f"per-engine {gpus}"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    found, roomy = (check_text(text, {"model": "qwen3-30b-a3b", "host_memory": f"{size}GiB"}) for size in (node, 2 * node))
    memory, trained = found.priced.memory, training_memory(found.job, found.priced.placement)
    assert (trained.hosted_bytes + memory.waiting_bytes / gpus) / GIB == pytest.approx(actor, rel=0.15)
    assert memory.fits and memory.host_bytes / GIB < used
    assert not found.fit_chance_met and roomy.fit_chance_met
    assert f"wait on the host of each node, which is taken to have {node:,.0f} GiB (--host-memory)" in found.headline
