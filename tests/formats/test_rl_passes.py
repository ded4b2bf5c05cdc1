"""Post-training files: micro-batches of forward passes, what frameworks assert of them, and what the files leave unsaid."""

from __future__ import annotations

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.remarks import sentences
from tables import tabled

from autoconfig.formats.post_training.check import check_file, check_text, read_file
from autoconfig.formats.post_training.export import export_texts
from autoconfig.formats.post_training.run import job_of, placement_of
from autoconfig.post_training.job import PassBatch
from autoconfig.post_training.memory import ASLEEP_BYTES
from autoconfig.post_training.passes import PACKED, pass_seconds
from tests.post_training.rl_question import answered

pytestmark = pytest.mark.usefixtures("unsearched")
ROLLOUT, REF = "actor_rollout_ref.rollout.log_prob", "actor_rollout_ref.ref.log_prob"
VERL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=qwen3-8b \\
  data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.rollout.n=8 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \\
  {ROLLOUT}_micro_batch_size_per_gpu=16 {REF}_micro_batch_size_per_gpu=2"""
PACKING = f"{VERL} actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"
PADDED = f"{VERL} actor_rollout_ref.model.use_remove_padding=False"
NEMO = """defaults: grpo_math_1B.yaml
policy:
  model_name: qwen3-8b
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 4096
  dtensor_cfg: {enabled: true, tensor_parallel_size: 4}
  sequence_packing: {enabled: false}
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""


def placed(text: str):
    _, run = read_file(text, {})
    job = job_of(run, load_gpu("h100"), 100, 500)
    return job, placement_of(run, job.tokens)


@pytest.mark.parametrize(
    ("text", "policy", "reference"),
    [
        (
            VERL,
            PassBatch(tokens_per_gpu=round(16 * 600 / PACKED), samples=16),
            PassBatch(tokens_per_gpu=round(2 * 600 / PACKED), samples=2),
        ),
        (PADDED, PassBatch(mbs=16), PassBatch(mbs=2)),
        (PACKING, PassBatch(tokens_per_gpu=8192), PassBatch(tokens_per_gpu=8192)),
        (
            f"{PACKING} {ROLLOUT}_max_token_len_per_gpu=32768 {REF}_use_dynamic_bsz=False",
            PassBatch(tokens_per_gpu=32768),
            PassBatch(tokens_per_gpu=round(2 * 600 / PACKED), samples=2),
        ),
        (  # of all ranks, of which there are eight
            PADDED.replace("_micro_batch_size_per_gpu=16", "_micro_batch_size=256"),
            PassBatch(mbs=32),
            PassBatch(mbs=2),
        ),
    ],
)
def test_micro_batches_of_log_probabilities_are_those_of_the_file(text, policy, reference):
    _, placement = placed(text)
    assert (placement.forward, placement.reference_forward) == (policy, reference)


def test_each_pass_takes_the_time_of_its_own_micro_batch():
    """A padded pass of few samples is slower than one of many, and the reference's is not the policy's."""
    job, placement = placed(PADDED)
    own, policy = (pass_seconds(job, placement, None, batch) for batch in (PassBatch(), placement.forward))
    reference = pass_seconds(job, placement, None, placement.reference_forward)
    assert policy == pass_seconds(job, placement) and policy < own < reference
    checked = check_text(PADDED, {"prompt_length": 100, "response_length": 500})
    assert checked.priced.phases.reference > checked.priced.phases.logprob
    assert checked.priced.memory.forward_bytes > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VERL.replace(f"{REF}_micro_batch_size_per_gpu=2", ""), "neither actor_rollout_ref.ref.log_prob_micro"),
        (f"{VERL} {ROLLOUT}_micro_batch_size=64", "are both given"),
        (f"{VERL} actor_rollout_ref.actor.ppo_micro_batch_size=16", "actor.ppo_micro_batch_size are both given"),
        (VERL.replace("per_gpu=16", "per_gpu=24"), "log-probabilities: micro-batches of 24 samples do not divide the 256"),
        (f"{PACKING} {ROLLOUT}_use_dynamic_bsz=False", "verl 0.9.1 wants both alike"),
        (f"{PACKING} {REF}_max_token_len_per_gpu=1024", "the reference: a packed micro-batch holds 1,024 tokens"),
    ],
)
def test_what_verl_raises_at_in_passes_is_refused(text, said):
    found = check_text(text, {})
    assert not found.legal and any(said in reason for reason in found.broken), found.broken


@tabled
def test_what_nemo_rl_asserts_of_micro_batches_is_refused(old, new, said):
    assert old in NEMO and not check_text(NEMO, {}).broken
    found = check_text(NEMO.replace(old, new), {})
    assert any(said in reason for reason in found.broken), found.broken


def test_nemo_rl_starts_with_other_batches_of_log_probabilities_where_it_is_told_to():
    """nemo_rl/models/policy/lm_policy.py of v0.7.0; its published recipes set the variable, which no YAML shows."""
    text = NEMO.replace("train_micro_batch_size: 4", "train_micro_batch_size: 4\n  logprob_batch_size: 8")
    forced = f"{text}loss_fn: {{force_on_policy_ratio: true}}\n"
    found, other = (check_text(one, {}) for one in (text, forced))
    assert [any("NRL_IGNORE_TP_ACCURACY_CHECK" in note for note in sentences(one.run.notes)) for one in (found, other)] == [
        True,
        False,
    ]
    assert found.broken == other.broken == () and found.priced.placement.forward == PassBatch(mbs=8)
    assert found.priced.phases.logprob > 0.0 == other.priced.phases.logprob  # nor is a pass of the policy taken
    for threshold, skipped in (("null", True), ("2", False)):
        text = forced.replace("grpo: {", f"grpo: {{seq_logprob_error_threshold: {threshold}, ")
        assert (check_text(text, {}).priced.phases.logprob == 0.0) is skipped
    more = check_text(forced.replace("num_prompts_per_step: 32", "num_prompts_per_step: 64"), {})
    assert any("wants one update of a step" in reason for reason in more.broken)


def test_experts_without_expert_parallelism_are_split_as_the_trainer_splits_them():
    """verl passes null on, for which Megatron-Core takes tp; of a dense model that says nothing."""
    text = PACKING.replace("qwen3-8b", "qwen3-30b-a3b") + " model_engine=megatron"
    text += " actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    job, _ = placed(text)
    run = check_text(text, {}).run
    assert (
        job.policy.is_moe
        and run.etp == 2
        and any("expert_tensor_parallel_size 2: not given" in note for note in sentences(run.notes))
    )
    assert check_text(text.replace("qwen3-30b-a3b", "qwen3-8b"), {}).run.etp == 1


@pytest.mark.parametrize("framework", ["verl", "nemo-rl", "openrlhf", "trl"])
def test_an_export_carries_the_lengths_that_its_seconds_are_of(framework):
    asked = {"model": "qwen2.5-1.5b", "gpus": 8, "framework": framework, "response_length": 700, "prompt_length": 160}
    found = answered(asked)
    one = next(one for one in found.ranked if framework != "trl" or one.placement.colocated)
    text = next(text for name, text in export_texts(found.job, one.placement).items() if name != "accelerate.yaml")
    checked = check_text(text, {"gpus": 8})
    assert (checked.job.prompt_tokens, checked.job.responses.mean) == (160.0, 700.0)
    assert checked.priced.seconds == pytest.approx(one.seconds, rel=1e-3)
    assert check_text(text, {"gpus": 8, "response_length": 300}).job.responses.mean == 300.0


def test_the_gpus_of_the_file_count():
    notes = sentences(check_text(VERL, {"gpus": 64}).run.notes)
    assert any("8 GPUs, as the file says: 64 is for" in note for note in notes)
    assert not any("as the file says" in note for note in sentences(check_text(VERL, {"gpus": 8}).run.notes))


def test_files_that_contradict_themselves_on_gpus_are_refused(tmp_path):
    text = """python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path qwen2.5-7b --actor.num_nodes 1
 --actor.num_gpus_per_node 8 --ref.num_nodes 1 --ref.num_gpus_per_node 4 --train.colocate_all --vllm.num_engines 8
 --vllm.tensor_parallel_size 1 --algo.kl.init_coef 0.01 --algo.advantage.estimator group_norm
 --rollout.n_samples_per_prompt 8""".replace("\n", " ")
    assert any("actor and reference share GPUs, and have 1 x 8 and 1 x 4" in one for one in check_text(text, {}).broken)
    assert not check_text(text.replace("node 4", "node 8"), {}).broken
    grpo = tmp_path / "grpo.yaml"
    grpo.write_text("model_name_or_path: qwen2.5-1.5b\nnum_generations: 8\nper_device_train_batch_size: 8\nuse_vllm: true\n")
    (tmp_path / "accelerate.yaml").write_text("distributed_type: DEEPSPEED\nnum_machines: 3\nnum_processes: 16\n")
    with pytest.raises(InputError, match="16 processes on 3 machines"):
        check_file(grpo, {})
    (tmp_path / "accelerate.yaml").write_text("distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n")
    assert any("--gpus 8 counts" in note for note in sentences(check_file(grpo, {"gpus": 8}).run.notes))
    with pytest.raises(UnsupportedError, match="this is accelerate's file"):
        check_file(tmp_path / "accelerate.yaml", {})


def test_what_offloading_copies_is_said_with_its_seconds():
    """An 8B model's fp32 weights and moments, 12 bytes of a parameter over eight GPUs, and the reference: there and back."""
    offload = " ".join(f"actor_rollout_ref.actor.fsdp_config.{name}_offload=True" for name in ("param", "optimizer"))
    found = check_text(f"{VERL} {offload}", {})
    said = next(note for note in sentences(found.run.notes) if note.startswith("offloading copies"))
    copied = float(said.split()[2])
    assert copied == pytest.approx(2 * (12 + 2) * 8.19e9 / 8 / 2**30, rel=0.05)
    assert not any("offloading copies" in note for note in sentences(check_text(VERL, {}).run.notes))


def test_engines_that_do_not_sleep_keep_their_memory_while_their_gpus_train():
    """verl's free_cache_engine, TRL's vllm_enable_sleep_mode (false where it is not given), OpenRLHF's --vllm.enable_sleep."""
    asleep, awake = (check_text(f"{VERL} actor_rollout_ref.rollout.free_cache_engine={word}", {}) for word in (True, False))
    kept = awake.priced.memory.training_bytes - asleep.priced.memory.training_bytes
    assert kept == pytest.approx(0.5 * load_gpu("h100").memory_bytes - ASLEEP_BYTES)
    trl = "model_name_or_path: qwen2.5-1.5b\nnum_generations: 8\nuse_vllm: true\n"
    for text, found in ((trl, True), (f"{trl}vllm_enable_sleep_mode: true\n", False)):
        assert check_text(text, {"gpus": 8}).priced.placement.engine_awake is found


def test_passes_of_openrlhf_have_a_micro_batch_of_their_own():
    text = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path llama3-8b --rollout.micro_batch_size 16"
    assert read_file(text, {})[1].placement.forward == PassBatch(mbs=16)
    packed = f"{text} --train.dynamic_batch_enable --train.max_tokens_per_gpu 4096 --rollout.max_tokens_per_gpu 9000"
    assert read_file(packed, {})[1].placement.forward == PassBatch(tokens_per_gpu=9000)
    said = "--actor.model_name_or_path llama3-8b --vllm.num_engines 8"
    _, new = read_file(f"python3 -m openrlhf.cli.train_ppo_ray {said}", {})
    _, old = read_file("python3 -m openrlhf.cli.train_ppo_ray --pretrain llama3-8b --vllm_num_engines 8", {})
    assert [(run.placement.train.mbs, run.placement.forward.mbs) for run in (new, old)] == [
        (1, 1),
        (4, 8),
    ]  # defaults of their releases


@tabled
def test_what_verl_runs_beside_and_is_not_priced_is_said(more, said):
    assert any(said in note for note in sentences(check_text(f"{VERL} {more}", {}).run.notes))
    assert not any(said in note for note in sentences(check_text(VERL, {}).run.notes))
