"""Weight synchronisation by method, what experts wait for the host, and cells of tables that say how a run trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.post_training.frameworks import PhaseConstants, load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.passes import microbatches, scenario_of
from autoconfig.post_training.phases import Phases
from autoconfig.post_training.price import scaled
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.weight_sync import checkpoint_tensors, load_method, sync_seconds
from autoconfig.runs.post_training_row import read_case
from validation.sheets.rl_strangers import judged, publisher_of, recipe_of

JOB = PostTrainingJob(
    policy=load_model("qwen2.5-7b"),
    algorithm=load_algorithm("grpo"),
    framework=load_framework("verl"),
    gpu=load_gpu("h100"),
    prompts=512,
    group=16,
    prompt_tokens=100.0,
    responses=ResponseLengths(mean=1600.0, cap=8192),
    minibatch=512,
)
PLACED = Placement(train=TrainPlan(tp=2, pp=1, dp=4, mbs=1, sp=True), engine=EnginePlan(tp=1, replicas=8), tokens_per_gpu=8192)
GB = 2 * 7.6156e9 / 1e9
"""16-bit weights of Qwen2.5-7B, 7.6156 billion parameters (its model card: 7.61B)."""
ROW = {"policy_model": "Qwen/Qwen2.5-7B-Instruct", "gpus": "8", "gpu": "H100", "framework": "verl", "algorithm": "GRPO"}


def test_converted_weights_follow_the_part_of_a_rank_and_no_replica():
    assert sync_seconds(JOB, PLACED) == pytest.approx(0.6 + 0.7 * GB / 2, rel=0.001)
    deeper = replace(PLACED, train=replace(PLACED.train, tp=4, dp=2))
    assert sync_seconds(JOB, deeper) == pytest.approx(0.6 + 0.7 * GB / 4, rel=0.001)
    more = replace(PLACED, train=replace(PLACED.train, dp=64), engine=EnginePlan(tp=1, replicas=128))
    assert sync_seconds(JOB, more) == sync_seconds(JOB, PLACED)


def test_broadcast_counts_tensors_and_shards_that_wait_on_the_host():
    split = replace(PLACED, colocated=False, train=TrainPlan(tp=1, pp=1, dp=8, mbs=1, fsdp=3, dist_opt=False), offload=False)
    told = 1.0 + 0.167 * GB + 0.005 * (28 * 9 + 3)
    assert sync_seconds(JOB, split) == pytest.approx(told, rel=0.001)
    assert sync_seconds(JOB, replace(split, offload=True)) == pytest.approx(told + 0.07 * GB, rel=0.001)
    assert sync_seconds(replace(JOB, sync_method="delta"), split) < sync_seconds(JOB, split) / 1.5


def test_engines_that_hold_less_are_handed_less_and_fp8_is_half():
    refit = replace(JOB, framework=load_framework("nemo-rl"))
    wide = replace(PLACED, engine=EnginePlan(tp=4, replicas=2))
    assert sync_seconds(refit, wide) == pytest.approx(2.0 + 0.25 * GB / 4, rel=0.001)
    served = replace(JOB, sync_method="checkpoint-engine")
    fp8 = replace(PLACED, engine=EnginePlan(tp=1, replicas=8, weights="fp8"))
    assert sync_seconds(served, fp8) - 0.5 == pytest.approx((sync_seconds(served, PLACED) - 0.5) / 2)


def test_tensors_of_a_checkpoint_are_counted():
    """Qwen3-30B-A3B's index has 48 x (4 + 2 + 2 + 1 + 3 x 128) + 3 entries, 2 of which are the norms of queries and keys."""
    assert checkpoint_tensors(load_model("qwen3-30b-a3b")) == 48 * (4 + 2 + 1 + 3 * 128) + 3


def test_every_framework_names_methods_that_are_there():
    for name in ("verl", "nemo-rl", "openrlhf", "trl", "prime-rl", "deepspeed-chat", "nemo-aligner", "other"):
        assert all(load_method(method) for method in load_framework(name).sync.values())
    with pytest.raises(InputError, match="broadcast"):
        load_method("pigeon")
    with pytest.raises(InputError, match="delta"):
        read_case({**ROW, "sync_method": "pigeon"})


@pytest.mark.parametrize(("framework", "samples", "logprob", "training"), [
    ("nemo-rl", 20.0, 30.0, 120.0),  # 64 x 16 samples, 78.125 ms each: 80 s for two passes, training and collecting
    ("verl", 80.0, 10.0, 100.0),
])  # fmt: skip
def test_who_hands_samples_to_each_phase_takes_the_time_there(framework, samples, logprob, training):
    """GRPO's pass of the policy, pass of the reference, training, and what is left outside of them: a fourth each."""
    job = replace(JOB, framework=load_framework(framework), prompts=64, group=16)
    found = scaled(
        job,
        PLACED,
        Phases(training=100.0, logprob=10.0, reference=10.0),
        PhaseConstants(seconds_per_sample=0.078125, fixed_s=0.0, seconds_per_gb=0.0),
    )
    assert (found.samples, found.logprob, found.reference, found.training) == (samples, logprob, logprob, training)
    assert found.total == 200.0


def test_rows_say_adapters_kernels_and_no_more_samples_than_there_are():
    row = {**ROW, "framework": "prime-rl", "train_backend": "fsdp", "train_plan": "fsdp=1,lora=16", "gpus": "1"}
    case = read_case({**row, "samples_per_step": "2", "seq_len_mean": "16384", "micro_batch": "1", "attention_kernel": "FA3"})
    assert case.job.lora_rank == 16 and case.job.samples == 2
    assert case.placement.tokens_per_gpu >= 16_384, "packed, not padded to a cap that nobody said"
    cut = microbatches(case.job, case.placement.train, case.job.samples, case.placement.tokens_per_gpu)
    scenario = scenario_of(case.job, case.placement.train, case.job.policy, cut)
    assert scenario.software.name == "prime-rl" and scenario.software.time.attention_generation == "flash3"
    with pytest.raises(InputError, match="attention_kernel"):
        read_case({**row, "attention_kernel": "magic"})


def test_a_recipe_weighs_once_and_publishers_are_repositories():
    one = {**ROW, "source": "a", "source_ref": "github:verl-project/verl@1:docs/x.md", "response_len_mean": "100"}
    again = {**one, "framework": "verl 0.5.0", "response_len_mean": "120", "id": "2"}
    assert recipe_of(one) == recipe_of(again)
    found = judged([(one, 0.1), (again, 0.3)])
    assert [(some.rows, round(some.log_error, 3)) for some in found] == [(2, 0.2)]
    assert len(judged([(one, 0.1), ({**again, "gpus": "16"}, 0.3)])) == 2
    assert publisher_of(one) == "verl-project/verl"
    assert publisher_of({"source_ref": "https://github.com/NVIDIA-NeMo/RL/pull/1052"}) == "nvidia-nemo/rl"
