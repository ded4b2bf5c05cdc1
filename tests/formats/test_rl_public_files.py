"""Files of post-training as they are published: what they lie over, what they leave to who starts them, how they start."""

from __future__ import annotations

import pytest
from autoconfig.specs.errors import AutoconfigError, InputError, UnsupportedError
from autoconfig.specs.plan import NONE
from autoconfig.specs.remarks import sentences
from tables import tabled

from autoconfig.formats.post_training.check import check_file, check_text, read_file
from autoconfig.formats.post_training.run import placement_of
from autoconfig.post_training.memory import training_memory
from autoconfig.post_training.passes import PACKED

pytestmark = pytest.mark.usefixtures("unsearched")
CLASSIC = """python3 -m openrlhf.cli.train_ppo_ray --pretrain qwen2.5-7b --actor_num_nodes 1 --actor_num_gpus_per_node 8 \\
  --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --advantage_estimator group_norm \\
  --n_samples_per_prompt 8 --rollout_batch_size 128 --train_batch_size 1024 --micro_train_batch_size 8 \\
  --vllm_gpu_memory_utilization 0.6 --deepspeed_enable_sleep --packing_samples --gradient_checkpointing"""
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=qwen3-8b \\
  custom_reward_function.path=recipes/reward.py data.train_batch_size=1024 data.max_prompt_length=512 \\
  data.max_response_length=1024 actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.rollout.n=5 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.actor.use_kl_loss=True \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \\
  actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.rollout.gpu_memory_utilization=0.6"""
BASE = """policy:
  model_name: qwen3-32b
  train_global_batch_size: 2048
  max_total_sequence_length: 4096
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 4}
  generation: {vllm_cfg: {tensor_parallel_size: 4}}
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 32}
cluster: {gpus_per_node: 8, num_nodes: 4}
"""


def test_a_nemo_rl_file_lies_over_those_that_it_names(tmp_path):
    """As its shipped recipes do, in chains that end at grpo_math_1B.yaml, whose values are known."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "one.yaml").write_text(f"defaults: ../grpo_math_1B.yaml\n{BASE}")
    two = "defaults: ../one.yaml\npolicy: {megatron_cfg: {pipeline_model_parallel_size: 2}}\n"
    (tmp_path / "recipes" / "two.yaml").write_text(two)
    last = tmp_path / "recipes" / "three.yaml"
    last.write_text("defaults: [two.yaml]\nlogger: {log_dir: x}\ncluster: {num_nodes: 8}\n")
    run = check_file(last, {}).run
    train, engine = run.placement.train, run.placement.engine
    assert (run.model, train.tp, train.pp, run.nodes, engine.tp, run.prompts) == ("qwen3-32b", 4, 2, 8, 4, 64)
    assert run.placement.memory_share == 0.6  # of grpo_math_1B.yaml, which is not there


def test_a_nemo_rl_file_over_one_that_is_not_there_gets_no_verdict(tmp_path):
    alone = tmp_path / "grpo.yaml"
    alone.write_text("defaults: ./grpo-qwen3-235b-16n8g.yaml\ncluster: {num_nodes: 32}\ngrpo: {num_prompts_per_step: 64}\n")
    with pytest.raises(InputError, match=r"grpo-qwen3-235b-16n8g\.yaml is not there"):
        check_file(alone, {})
    with pytest.raises(InputError, match="is not known"):
        check_text(alone.read_text(), {})
    alone.write_text("defaults: grpo.yaml\n")
    with pytest.raises(InputError, match="files lie over each other"):
        check_file(alone, {})


def test_more_new_tokens_than_a_sample_holds_are_refused():
    text = "defaults: grpo_math_1B.yaml\n" + BASE.replace("generation: {", "generation: {max_new_tokens: 4097, ")
    with pytest.raises(InputError, match=r"no token for a prompt .* raise the first, or lower the second to at most 4,096"):
        read_file(text, {})


def test_micro_batches_without_padding_hold_the_tokens_of_their_sequences():
    """verl's 8B example on 8 H100: 32 sequences to a micro-batch run, as padding is removed."""
    _, run = read_file(VERL, {})
    assert placement_of(run, 356.0).tokens_per_gpu == round(32 * 356 / PACKED)
    padded = VERL.replace("use_remove_padding=True", "use_remove_padding=False")
    _, run = read_file(padded, {})
    assert (placement_of(run, 356.0).tokens_per_gpu, placement_of(run, 356.0).train.mbs) == (0, 32)
    assert check_text(VERL, {}).fits and not check_text(padded, {}).fits


def test_classic_flags_of_openrlhf_are_those_of_its_newest_release_with_them():
    found = check_text(CLASSIC, {})
    assert (found.version, sentences(found.unknown), found.broken) == ("0.9.10", (), ())
    run = found.run
    assert (run.algorithm, run.prompts, run.minibatch) == ("grpo", 128, 1024)
    assert (run.placement.memory_share, run.placement.offload) == (0.6, True)
    older = check_text(f"{CLASSIC} --prompt_max_len 512 --generate_max_len 4096 --bf16", {})
    assert (older.version, sentences(older.unknown)) == ("0.8.11", ())
    assert (older.run.prompt_cap, older.run.response_cap) == (512, 4096)
    assert any("gone from openrlhf 0.11.2" in text for text in sentences(check_text(CLASSIC, {"version": "0.11.2"}).unknown))


@pytest.mark.parametrize(
    ("added", "release"),
    [
        ("--flash_attn --packing_samples", "0.7.5"),
        ("--flash_attn --prompt_max_len 512 --pretrain_data a/b --ptx_coef 0.1 --wandb_group x", "0.6.4"),
        ("--flash_attn --grad_accum_dtype fp32 --vllm_sync_with_ray --max_ckpt_mem 9 --perf --enable_ema", "0.7.5"),
        ("--attn_implementation flash_attention_2 --prompt_max_len 512", "0.8.11"),
        ("--use_dynamic_batch --max_len 4096", "0.9.10"),
    ],
)
def test_the_release_of_openrlhf_is_the_newest_that_takes_most_flags(added, release):
    assert run_of(f"{CLASSIC} {added}").version == release


def test_older_releases_of_openrlhf_have_their_own_defaults_and_assertions():
    text = CLASSIC.replace("--vllm_gpu_memory_utilization 0.6", "")
    shares = {release: run_of(text, version=release).placement.memory_share for release in ("0.5.9", "0.6.4", "0.8.11")}
    assert shares == {"0.5.9": 0.4, "0.6.4": 0.95, "0.8.11": 0.95}
    apart = f"{CLASSIC.replace('--colocate_all_models', '')} --vllm_num_engines 16"
    said = {release: " ".join(run_of(apart, version=release).refused) for release in ("0.5.9", "0.6.4", "0.7.5")}
    assert "use a divisor of them" in said["0.5.9"] and not said["0.6.4"] and not said["0.7.5"]
    odd = f"{CLASSIC} --rollout_batch_size 130"
    assert "--rollout_batch_size 130 does not divide" in " ".join(run_of(odd, version="0.6.4").refused)
    assert placement_of(run_of(f"{CLASSIC} --zero_stage 2"), 600.0).train.fsdp == 2


def test_train_ppo_without_ray_has_all_models_on_the_gpus_that_start_it():
    text = "deepspeed --num_gpus 4 --module openrlhf.cli.train_ppo --pretrain llama3-8b --zero_stage 2 --bf16 --adam_offload"
    found = check_text(f"{text} --prompt_max_len 1024 --generate_max_len 1024 --micro_train_batch_size 2 --flash_attn", {})
    run = found.run
    assert (run.algorithm, run.train_gpus, run.gpus, run.engine) == ("ppo", 4, 4, "hf")
    assert found.job.critic is not None and not found.fits
    with pytest.raises(InputError, match="does not say its GPUs: say --gpus N"):
        run_of(text.replace("--num_gpus 4 ", ""))
    assert run_of(text.replace("--num_gpus 4 ", ""), gpus=16).nodes == 2


def test_flags_that_openrlhf_adds_in_a_loop_are_known():
    text = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path qwen2.5-7b"
    assert check_text(f"{text} --actor.adam.lr 1e-6 --critic.adam.lr 9e-6", {}).unknown == ()


def test_a_model_s_folder_elsewhere_is_known_by_its_name():
    elsewhere = VERL.replace("path=qwen3-8b", "path=/user/me/models/Qwen/Qwen3-8B-Base")
    found = check_text(elsewhere, {})
    assert found.job.policy.name == "qwen3-8b" and any("not on this machine" in note for note in sentences(found.run.notes))
    with pytest.raises(AutoconfigError, match="no such file"):
        check_text(VERL.replace("path=qwen3-8b", "path=/user/me/models/mine"), {})


def test_what_stays_beside_verls_engines_are_fp32_weights_and_moments():
    """FSDP's fp32 shards are their own master weights, gradients are freed: 12 bytes a parameter. The reference may wait."""
    found, waits = check_text(VERL, {}), check_text(f"{VERL} actor_rollout_ref.ref.fsdp_config.param_offload=True", {})
    parameters = 8190735360
    assert training_memory(found.job, found.priced.placement).state_bytes == pytest.approx(12 * parameters / 8, rel=0.001)
    saved = found.priced.memory.generation_bytes - waits.priced.memory.generation_bytes
    assert saved == pytest.approx(2 * parameters / 8, rel=0.001)


def test_a_trl_file_has_the_keys_and_defaults_of_its_release():
    """As TRL's own documentation writes one, and with keys that left before 1.0."""
    least = "model_name_or_path: qwen2.5-0.5b\nreward_funcs: [accuracy_reward]\ndataset_name: x\n"
    assert check_text(least, {"gpus": 8}).legal
    old = f"{least}torch_dtype: bfloat16\nmax_prompt_length: 512\nuse_vllm: true\n"
    assert len(sentences(check_text(old, {"gpus": 8, "version": "1.16.0"}).unknown)) == 2
    assert check_text(old, {"gpus": 7}).version == "0.24.0"  # of those that have both
    found = check_text(old, {"gpus": 7, "version": "0.24.0"})
    assert (sentences(found.unknown), found.run.gpus - found.run.train_gpus, found.run.algorithm) == (
        (),
        1,
        "dapo",
    )  # vllm_mode: server
    _, older = read_file(old, {"gpus": 7, "version": "0.16.1"})
    assert (older.algorithm, older.placement.train.recompute) == ("grpo", NONE)  # beta 0.04, no gradient checkpointing


def run_of(text: str, **given: object):
    """The run of a text, with all that its check notes."""
    return read_file(text, given)[1]


def test_engines_of_verls_experimental_trainers_have_gpus_of_their_own():
    """verl/experimental/one_step_off_policy and fully_async_policy have a section `rollout` for them."""
    text = f"{VERL} actor_rollout_ref.hybrid_engine=False trainer.nnodes=2 trainer.n_gpus_per_node=6"
    text = text.replace("trainer.main_ppo", "experimental.one_step_off_policy.main_ppo")
    text += " rollout.nnodes=2 rollout.n_gpus_per_node=2 actor_rollout_ref.actor.ppo_mini_batch_size=24"
    text += " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10"
    text = text.replace("log_prob_micro_batch_size_per_gpu=32", "log_prob_micro_batch_size_per_gpu=10")
    found = check_text(text.replace("data.train_batch_size=1024", "data.train_batch_size=1008"), {})
    assert (sentences(found.unknown), found.broken) == ((), ())
    assert (found.run.train_gpus, found.run.engine_gpus, found.run.placement.staleness) == (12, 4, 1)
    assert not any("starts, read as" in note for note in sentences(found.run.notes))
    many = f"{text} data.train_batch_size=0 async_training.require_batches=4 async_training.trigger_parameter_sync_step=2"
    assert run_of(many).prompts == 24 * 4 * 2
    assert any("rollout.nnodes" in name for name in sentences(check_text(f"{VERL} rollout.nnodes=2", {}).unknown))


def test_micro_batches_of_verl_divide_the_samples_of_a_rank():
    """verl/workers/engine/utils.py asserts it, and verl/workers/config/actor.py that there are some."""
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"
    odd = VERL.replace(micro, micro.replace("32", "33"))
    assert check_text(VERL, {}).broken == () and odd != VERL
    assert "micro-batches of 33 samples do not divide the" in check_text(odd, {}).broken[0]
    packed = " actor_rollout_ref.actor.use_dynamic_bsz=True"
    assert not check_text(odd + packed, {}).broken and not check_text(VERL.replace(micro, "") + packed, {}).broken
    with pytest.raises(InputError, match="ppo_micro_batch_size_per_gpu is not given, nor"):
        check_text(VERL.replace(micro, ""), {})


def test_the_separate_trainer_of_verl_has_engines_apart():
    """verl/trainer/ppo/v1/trainer_separate_async.py asks for rollout.nnodes, and reads no hybrid_engine."""
    apart = f"{VERL} trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1"
    placement = run_of(apart).placement
    assert (placement.colocated, placement.engine.gpus, placement.staleness) == (False, 8, 1)


def test_no_term_of_kl_means_no_reference_model():
    """verl/trainer/ppo/utils.py: need_reference_policy."""
    ppo = VERL.replace("=grpo", "=gae")
    with_kl, without = check_text(ppo, {}), check_text(ppo.replace("use_kl_loss=True", "use_kl_loss=False"), {})
    assert (with_kl.job.algorithm.reference_passes, without.job.algorithm.reference_passes) == (1, 0)
    assert without.job.algorithm.critic and without.priced.memory.generation_bytes < with_kl.priced.memory.generation_bytes


def test_what_is_started_and_not_priced_is_said():
    assert sentences(run_of(VERL).notes) == ()
    rewarded = f"{VERL} reward_model.enable=True reward_model.model.path=sfairXC/FsfairX-LLaMA3-RM-v0.1"
    assert any("sfairXC/FsfairX-LLaMA3-RM-v0.1" in note for note in sentences(run_of(rewarded).notes))
    served = f"{VERL} reward.reward_model.enable=True reward.reward_model.model_path=Skywork/Skywork-Reward-V2"
    assert any("Skywork/Skywork-Reward-V2" in note for note in sentences(run_of(served).notes))
    dropped = f"{VERL} algorithm.filter_groups.enable=True data.gen_batch_size=3072"
    assert any("responses of 3 times the prompts" in note for note in sentences(run_of(dropped).notes))
    split = VERL.replace("python3 -m verl.trainer.main_ppo", "python3 main_ppo_split.py")
    assert any("main_ppo_split.py starts" in note for note in sentences(run_of(split).notes))
    with pytest.raises(UnsupportedError, match="by distillation here, from a teacher"):
        run_of(f"{VERL} distillation.enabled=True distillation.n_gpus_per_node=4")
    two = CLASSIC.replace("--colocate_all_models ", "--zero_stage 1 --reward_pretrain a/b --dynamic_filtering ")
    notes = " ".join(sentences(run_of(two).notes))
    wanted = ("stage 1 is priced", "a reward model (a/b)", "dynamic sampling", "reference model has GPUs")
    assert [said for said in wanted if said not in notes] == []


def test_what_a_script_leaves_open_is_said_with_set_and_heard():
    device = "DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}\nEXTRA=()\n"
    device += 'if [ "$DEVICE" = npu ]; then EXTRA=(trainer.nnodes=2); fi\n'
    with pytest.raises(InputError, match="say --set DEVICE=VALUE"):
        run_of(f'{device}{VERL} "${{EXTRA[@]}}"')
    assert run_of(f'{device}{VERL} "${{EXTRA[@]}}"', set=("DEVICE=npu",)).nodes == 2
    with pytest.raises(InputError, match=r"'TO_BE_FILLED'; a whole number is wanted: say --set trainer.nnodes=N"):
        run_of(f"export N=TO_BE_FILLED\n{VERL} trainer.nnodes=$N")


@tabled
def test_files_without_generation_are_refused_with_what_reads_or_plans_them(text, said):
    with pytest.raises(UnsupportedError, match=said):
        run_of(text)


def test_a_command_of_trl_whose_values_are_in_another_file_is_not_read_without_it():
    with pytest.raises(InputError, match=r"--config recipes/a\.yaml has values .* check that file"):
        run_of("accelerate launch grpo.py --config recipes/a.yaml --vllm_mode colocate", gpus=8, model="qwen2.5-7b")
    alone = run_of("accelerate launch grpo.py --model_name_or_path qwen2.5-7b --max_completion_length 1024 --use_vllm", gpus=8)
    assert (alone.framework, alone.response_cap, alone.engine) == ("trl", 1024, "vllm")


def test_engines_of_nemo_rl_are_read_from_the_section_of_their_kind():
    text = "defaults: grpo_math_1B.yaml\n" + BASE
    sglang = text.replace("generation: {", "generation: {backend: sglang, sglang_cfg: {tp_size: 2, mem_fraction_static: 0.7}, ")
    run = run_of(sglang)
    assert (run.engine, run.placement.engine.tp, run.placement.memory_share) == ("sglang", 2, 0.7)
    own = text.replace("generation: {", "generation: {backend: megatron, ")
    run = run_of(own)
    engine = run.placement.engine
    assert (run.engine, engine.tp, engine.pp, run.placement.memory_share) == ("megatron", 4, 4, 0.6)


def test_experts_are_split_as_the_release_splits_them():
    """verl's expert_tensor_parallel_size is null, for which Megatron-Core takes tp; NeMo-RL's base has 1."""
    experts = f"{VERL} model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    experts += " actor_rollout_ref.actor.megatron.expert_model_parallel_size=4"
    said = f"{experts} actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1"
    assert (run_of(experts).etp, run_of(said).etp) == (2, 1)
    assert (
        any("expert_tensor_parallel_size 2: not given" in note for note in sentences(run_of(experts).notes))
        and sentences(run_of(said).notes) == ()
    )
    assert (placement_of(run_of(experts), 356.0).train.etp, placement_of(run_of(said), 356.0).train.etp) == (2, 1)
    nemo = ("defaults: grpo_math_1B.yaml\n" + BASE).replace("enabled: true,", "enabled: true, expert_model_parallel_size: 4,")
    assert run_of(nemo).etp == 1
    assert run_of(nemo.replace("parallel_size: 4,", "parallel_size: 4, expert_tensor_parallel_size: 2,", 1)).etp == 2
