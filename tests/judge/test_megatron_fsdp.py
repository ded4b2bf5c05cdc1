"""Megatron-FSDP's own rules, as `check` has them, put to megatron-core."""

import pytest
from autoconfig.specs.plan import parse_plan

from autoconfig.megatron.argument_list import split_arguments
from autoconfig.megatron.read import connections_violation, fsdp_violations
from autoconfig.megatron.write import mock_arguments
from autoconfig.megatron.write_model import words
from autoconfig.training.question import Request, understand

FSDP = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy"]
SOUND = [*FSDP, "optim_grads_params", "--ckpt-format", "fsdp_dtensor"]


def asked(judge, more, variables=None):
    """One process of 8 GPUs; what `more` repeats counts last, as in argparse."""
    scenario = understand(Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    listed = [*words(mock_arguments(scenario, parse_plan("tp=1,pp=1,mbs=1", 8))), *more]
    broken = [violation.rule for violation in fsdp_violations(split_arguments(listed))]
    return broken, judge.arguments(listed, 8, variables or {}, 9.0)


@pytest.mark.parametrize(
    ("more", "broken"),
    [
        (SOUND, []),
        ([*FSDP, "optim", "--ckpt-format", "fsdp_dtensor"], []),
        ([*FSDP, "optim_grads_params"], ["NV102"]),
        ([*SOUND, "--optimizer", "muon"], ["NV102"]),
        ([*SOUND, "--check-weight-hash-across-dp-replicas-interval", "10"], ["NV102"]),
        ([*FSDP, "no_shard", "--ckpt-format", "fsdp_dtensor", "--init-model-with-meta-device"], ["NV105"]),
        ([*SOUND, "--fsdp-manual-registration"], ["NV108"]),
        ([*SOUND, "--fsdp-manual-registration", "--use-nccl-ub"], []),
    ],
)
def test_the_judge_refuses_what_breaks_a_rule(judge, more, broken):
    ours, answer = asked(judge, more)
    assert ours == broken and answer["accepted"] == (not broken), answer


def test_the_judge_wants_more_than_one_connection(judge):
    _, answer = asked(judge, SOUND, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert not answer["accepted"] and "CUDA_DEVICE_MAX_CONNECTIONS" in answer["message"] and connections_violation("1")


def test_the_distributed_optimizer_is_forced_on_without_a_word(judge):
    scenario = understand(Request(model="llama3-8b", gpus=8, gpu="h100-sxm-80gb", global_batch_size=64)).scenario
    listed = [*words(mock_arguments(scenario, parse_plan("tp=1,pp=1,mbs=1,dist_opt=0", 8))), *SOUND]
    answer = judge.arguments(listed, 8, {}, 9.0)
    assert answer["accepted"] and answer["changed"]["use_distributed_optimizer"] == [False, True]
