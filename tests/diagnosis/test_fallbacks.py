"""What NCCL and libfabric say of one host and of several, kernels that a plan asks for, retries, the busiest of the experts."""

import pytest

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of
from validation.diagnosis.made_runs import expected

NCCL = "{host}:511:702 [{gpu}] NCCL INFO "
JOB = {"model": "mixtral-8x7b", "gpus": "64", "gpu": "h100", "seq_length": "4096", "global_batch_size": "256"}
PLAN = "tp=2,pp=2,ep=8,mbs=1,sp=1"


def diagnosed(text, plan=None, job=JOB, **files):
    given = dict(job) if plan else {}
    check = CheckRequest(gpu=None if plan else files.pop("gpu", None))
    return diagnose_texts({"run.log": text, **files}, plan, given, lambda: request_of(given), check)


def causes(text, plan=None, **more):
    return [(one.rule, one.certainty) for one in diagnosed(text, plan, **more).causes if one.certainty != "consistent"]


def on(*hosts, said):
    return "".join(f"{NCCL.format(host=host, gpu=gpu)}{said}\n" for host in hosts for gpu in range(2))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (on("gpu-a", "gpu-b", said="Using network Socket"), [("R02", "certain")]),
        (on("gpu-a", said="Using network Socket"), []),  # one node does not use it
        (on("a3-0", "a3-1", said="Using network GPUDirectTCPX_v7"), []),  # a network of its own, whatever its name begins with
        (on("a3-0", "a3-1", said="NET/IB : No device found.") + on("a3-0", "a3-1", said="Using network FasTrak"), []),
        (on("c1", "c2", said="Using network TCP"), [("R02", "certain")]),
        (on("c1", "c2", said="NET/OFI Selected Provider is tcp"), [("R02", "certain")]),
        (on("c1", "c2", said="NET/OFI Selected Provider is efa (found 4 nics)"), []),
        (on("c1", "c2", said="GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"), [("R02", "likely")]),
        (
            on("c1", "c2", said="GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")
            + on("c1", said="GPU Direct RDMA Enabled for HCA 3 'mlx5_3'"),
            [],
        ),
    ],
)
def test_nccl_says_a_fallback_where_a_network_is_used(text, found):
    assert causes(text) == found


IB_OFF, P2P_OFF = "NCCL_IB_DISABLE set by environment to 1.", "NCCL_P2P_DISABLE set by environment to 1."


@pytest.mark.parametrize(
    ("variable", "said", "found"),
    [
        (IB_OFF, "Using network AWS Libfabric", []),  # EFA needs no verbs
        (IB_OFF, "Using network FasTrak", []),
        (IB_OFF, "Using network Socket", [("R02", "certain")]),
        (P2P_OFF, "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", []),
        (P2P_OFF, "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", [("R02", "likely")]),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC", "Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0/GDRDMA", []),
        (
            "NCCL_NET_GDR_LEVEL set by environment to LOC",
            "Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0",
            [("R02", "certain")],
        ),
    ],
)
def test_a_variable_that_nccl_goes_around_is_no_cause(variable, said, found):
    assert causes(on("c1", "c2", said=variable) + on("c1", "c2", said=said)) == found


@pytest.mark.parametrize(
    ("variable", "said", "words"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1", "Using network Socket", "sockets"),
        ("NCCL_NET set by environment to Socket", "Using network Socket", "NCCL_NET=Socket"),
        ("NCCL_NET_GDR_LEVEL set by environment to LOC", "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "NCCL_NET_GDR_LEVEL"),
    ],
)
def test_a_variable_is_named_for_the_facts_that_it_brings_about(variable, said, words):
    (cause,) = diagnosed(on("c1", "c2", said=variable) + on("c1", "c2", said=said)).causes
    assert cause.rule == "R02" and words in cause.words


STEP = "step: {0:2d}  loss:  8.1  memory: 60.01GiB(75.8%)  tps: 410  tflops: 20.1  mfu: 2.0%\n"


@pytest.mark.parametrize(("retries", "found"), [(1, []), (2, []), (6, [("R05", "likely")])])
def test_a_retry_or_two_are_those_of_the_first_steps(retries, found):
    assert causes(f"{retries} CUDA memory allocation retries.\n" + STEP.format(8)) == found


COMPOSER = "[batch={0}/4800]:\n\t Train memory/alloc_retries: {1}\n\t Train throughput/device/tokens_per_sec: 900\n"


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([9, 12, 30, 51], [("R05", "likely")]),  # as torch counts them: from the start of the process
        ([12, 12, 12, 12], []),
        ([0, 0, 1, 1], []),
        ([90, 2, 4, 7], [("R05", "likely")]),  # it began again
    ],
)
def test_retries_are_those_that_a_log_sees_added(counts, found):
    assert causes("".join(COMPOSER.format(10 * n, count) for n, count in enumerate(counts, 1))) == found


def test_flushes_of_deepspeed_are_those_of_one_step():
    line = "[WARNING] [stage3.py:2236:step] {} pytorch allocator cache flushes since last step. this happens when\n"
    assert causes(line.format(2) * 4) == [("R05", "likely")] and causes(line.format(2)) == []


ENTITIES = "#Entity   POWER    TMPTR    SMCLK    GPUTL\nID        W        C\n" + "".join(
    f"GPU {gpu}     {500 + gpu}.1    6{gpu}       {900 if gpu == 5 else 1740}     99\n" for gpu in range(8)
)


def test_the_slow_gpu_of_a_table_of_dcgm_is_named():
    found = diagnosed(ENTITIES)
    assert [(one.rule, one.words.split(" runs")[0]) for one in found.causes] == [("R10", "GPU 5")]
    assert diagnosed(ENTITIES.replace("900", "1740")).causes == ()


ATTENTION = """#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 48 --hidden-size 5120 --num-attention-heads 40 \\
  --ffn-hidden-size 13824 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope \\
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 \\
  --global-batch-size 128 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --bf16 \\
  --use-distributed-optimizer --untie-embeddings-and-output-weights --vocab-size 152064 --attention-backend {0}
"""


def steps(seconds):
    return "".join(
        f" iteration {step:8d}/     900 | elapsed time per iteration (ms): {1e3 * seconds:.1f} | global batch size:   128 |\n"
        for step in range(20, 60)
    )


def test_attention_that_the_plan_itself_asks_for_unfused_is_named_inside_its_band():
    def asked(backend, seconds):
        files = {"pretrain.sh": ATTENTION.format(backend), "run.log": steps(seconds)}
        return diagnose_texts(files, None, {}, lambda: None, CheckRequest(gpu="h100"))

    price = asked("unfused", 10.0).expectation.step_seconds
    found = asked("unfused", price)
    assert found.verdict == "slow" and found.causes[0].rule == "R04" and found.causes[0].certainty == "certain"
    fused = asked("flash", 10.0).expectation.step_seconds
    assert found.causes[0].step_after == pytest.approx(fused, rel=0.02) and fused < 0.95 * price
    assert "R04" not in [one.rule for one in asked("flash", fused).causes]


def ranks(load, lines=12):
    """Timers of the forward pass of every rank; `load`: (line, rank) -> seconds."""
    text = ""
    for line in range(lines):
        text += "times across ranks (ms):\n  forward-compute:\n"
        text += "".join(f"     rank {rank:2d}: {1e3 * load(line, rank):.2f}\n" for rank in range(64))
    return text


def test_the_busiest_experts_may_change_with_the_step():
    asked = {"model": "mixtral-8x7b", "gpus": 64, "gpu": "h100", "seq_length": 4096, "global_batch_size": 256}
    slow = 1.6 * expected({**asked, "moe_imbalance": 1.0}, PLAN).step_seconds
    log = steps(slow).replace("128", "256")
    job = {**JOB, "moe_imbalance": "1"}
    moving = ranks(lambda line, rank: 2.0 if rank % 32 == (5 * line) % 32 else 1.0 + 0.002 * (rank % 4))
    assert diagnosed(log + moving, PLAN, job=job).causes[0].rule == "R08"
    alike = ranks(lambda line, rank: 1.0 + 0.01 * ((rank + line) % 4))
    assert "R08" not in [rule for rule, _ in causes(log + alike, PLAN, job=job)]
