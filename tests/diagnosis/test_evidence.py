"""Causes that lines of logs prove alone, and lines that prove none."""

import pytest

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of

NCCL = "n1:7:9 [0] NCCL INFO "
FAST_PATH = "The fast path is not available because one of the required library is not installed. Falling back to torch"
PREEMPTED = (
    "WARNING 05-09 00:49:33 scheduler.py:1057 Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because there is "
    "not enough KV cache space. total_num_cumulative_preemption={0}\n"
)
VLLM = (
    "INFO 09-02 11:05:{0:02d} loggers.py:123] Engine 000: Avg prompt throughput: 310.2 tokens/s, Avg generation throughput: "
    "620.1 tokens/s, Running: 30 reqs, Waiting: 2 reqs,{1} GPU KV cache usage: {2}%, Prefix cache hit rate: 0.0%\n"
)
SWAPPED = (
    "INFO 02-11 08:00:01 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 410.7 tokens/s, "
    "Running: 21 reqs, Swapped: {0} reqs, Pending: 0 reqs, GPU KV cache usage: 93.4%, CPU KV cache usage: 31.0%.\n"
)
TABLE = "Self CPU time total: 8.000s\nSelf CUDA time total: {seconds}s\n"
COLUMNS = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "Self CUDA", "Self CUDA %")
NO_KERNEL = "       0.000us         0.00%       0.000us       0.000us"


def table(*rows, device="2.000"):
    """key_averages().table() of torch.profiler: rows are (name, % of the host's time, seconds of the host, calls)."""
    lines = []
    for name, share, seconds, calls in rows:
        cells = (f"{share:.2f}%", f"{seconds:.3f}s", f"{share:.2f}%", f"{seconds:.3f}s", f"{1e3 * seconds / calls:.3f}ms")
        lines.append(f"{name:>55}" + "".join(f"  {cell:>12}" for cell in cells) + NO_KERNEL + f"  {calls:>12}")
    head = "".join(f"  {name:>12}" for name in COLUMNS) + "    CUDA total  CUDA time avg    # of Calls"
    return "\n".join([head, *lines]) + "\n" + TABLE.format(seconds=device)


LOADER = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter._...", 60.0, 4.8, 50)
WAITS = ("cudaEventSynchronize", 55.0, 4.4, 900)
FREED = (("hipMalloc", 25.0, 2.0, 400), ("hipFree", 30.0, 2.4, 390))
LAUNCHES = ("cudaLaunchKernel", 40.0, 3.2, 90000)
REDUCTION = "time (ms) | fwd: 100.0 | bwd: 2000.0 | bwd_inner: 300.0 | bwd_allreduce: {ms} | step: 50.0"
NCCL_TEST = (
    "  1073741824     268435456     float     sum      -1   91000   11.80   {rate}      0   91000   11.80   {rate}      0"
)
COMMUNICATOR = "comm 0x5 rank 0 nRanks 32 nNodes {nodes} localRanks 8 localRank 0 MNNVL 0"
NEOX = (
    "rank=0 time (ms) | train_batch: 87510.72 | batch_input: 78.66 | forward: 2844.74 | pipe_send_output: 5377.75 | "
    "comms: 74766.41 | backward: 8724.91 | reduce_grads: 29651.29 | step: 29300.81"
)
"""EleutherAI/gpt-neox#126."""
ONE_NODE = {"model": "llama3-8b", "gpus": "8", "seq_length": "8192", "global_batch_size": "64"}


def rules(text, plan=None, **given):
    found = diagnose_texts({"evidence.log": text}, plan, given, lambda: request_of(given), CheckRequest())
    return found.verdict, [one.rule for one in found.causes if one.certainty != "consistent"]


@pytest.mark.parametrize(
    ("text", "verdict", "named"),
    [
        (NCCL + "Using network Socket", "not_enough", []),  # which NCCL names on one node, too
        (NCCL + "Using network Socket\n" + NCCL.replace("n1", "n2") + "Using network Socket", "slow", ["R02"]),
        (NCCL + "Using network Socket\n" + NCCL + COMMUNICATOR.format(nodes=4), "slow", ["R02"]),
        (NCCL + "NCCL_IB_DISABLE set by environment to 1.\n" + NCCL + COMMUNICATOR.format(nodes=1), "not_enough", []),
        (NCCL + "NCCL_IB_DISABLE set by environment to 1.", "slow", ["R02"]),
        (NCCL + "Using network IB", "not_enough", []),
        (NCCL + "Using network Socket\n" + NCCL + "Channel 00 : 0[0] -> 1[1] via P2P/CUMEM", "not_enough", []),
        (NCCL_TEST.format(rate="2.31"), "slow", ["R02"]),
        (NCCL_TEST.format(rate="22.12"), "not_enough", []),
        (NCCL_TEST.format(rate="2.31").replace("1073741824", "4194304"), "not_enough", []),  # bound by its start-up
        (REDUCTION.format(ms="1700.0"), "slow", ["R02"]),
        (REDUCTION.format(ms="200.0"), "not_enough", []),
        (NEOX, "slow", ["R02"]),
        (FAST_PATH, "slow", ["R04"]),
        ("torch._dynamo hit config.recompile_limit (8)", "not_enough", []),
        (PREEMPTED.format(1), "not_enough", []),  # vLLM warns of the first one
        (PREEMPTED.format(1) + PREEMPTED.format(51), "slow", ["R17"]),
        (2 * PREEMPTED.partition(" because")[0].join(("", "\n")), "slow", ["R17"]),  # older releases count none
        (PREEMPTED.format(1) + "".join(VLLM.format(n, "", 61.0) for n in range(9)), "not_enough", []),
        ("".join(VLLM.format(n, " Preemptions: 4," if n % 3 else "", 88.0) for n in range(9)), "slow", ["R17"]),
        ("".join(VLLM.format(n, " Preemptions: 1," if n == 3 else "", 88.0) for n in range(9)), "not_enough", []),
        (3 * SWAPPED.format(6), "slow", ["R17"]),
        (3 * SWAPPED.format(0), "not_enough", []),
        (TABLE.format(seconds="2.000"), "slow", ["R01"]),
        (TABLE.format(seconds="7.000"), "not_enough", []),
        (table(LAUNCHES), "slow", ["R01"]),
        (table(LOADER), "slow", ["R06"]),
        (table(LOADER, device="7.600"), "not_enough", []),
        (table(*FREED), "slow", ["R05"]),
        (table(("cudaMalloc", 30.0, 2.4, 40)), "slow", ["R01"]),
        (table(("cudaMalloc", 30.0, 2.4, 40), device="7.000"), "not_enough", []),
        (table(("cudaMalloc", 30.0, 2.4, 160), ("cudaFree", 3.0, 0.2, 2), device="6.000"), "not_enough", []),
        (table(("enumerate(DataLoader)#_MultiProcessingDataLoaderIter...", 20.0, 1.6, 50), LAUNCHES), "slow", ["R06", "R01"]),
        ("CUDA_LAUNCH_BLOCKING=1", "slow", ["R01"]),
        ("+ export CUDA_LAUNCH_BLOCKING=0", "not_enough", []),
        ('declare -x AMD_SERIALIZE_KERNEL="3"', "slow", ["R01"]),
        ("TORCH_NCCL_BLOCKING_WAIT=1", "not_enough", []),
        ("NVTE_FLASH_ATTN=0\nNVTE_FUSED_ATTN=0", "slow", ["R04"]),
        ("NVTE_FLASH_ATTN=0\nNVTE_FUSED_ATTN=1", "not_enough", []),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING=1", "slow", ["R05"]),
        ("nothing that any tool prints", "not_enough", []),
    ],
)
def test_a_line_without_a_plan(text, verdict, named):
    assert rules(text) == (verdict, named)


def test_what_a_profilers_table_shows_of_the_host_decides_the_remedy():
    found = diagnose_texts({"t": table(WAITS)}, None, {}, lambda: request_of({}), CheckRequest()).causes
    assert [one.rule for one in found] == ["R01"] and ".item()" in found[0].remedy and "900 calls" in found[0].figures
    copies = ("cudaMemcpyAsync", 58.0, 4.6, 700)
    found = diagnose_texts({"t": table(copies)}, None, {}, lambda: request_of({}), CheckRequest()).causes
    assert "pinned" in found[0].remedy and "700 calls" in found[0].figures
    found = diagnose_texts({"t": table(LAUNCHES)}, None, {}, lambda: request_of({}), CheckRequest()).causes
    assert "graphs" in found[0].remedy


def test_a_variable_is_no_cause_inside_the_band():
    nodes = {**ONE_NODE, "gpus": "16", "gpu": "h100"}
    assert rules("CUDA_LAUNCH_BLOCKING=1", "tp=2,mbs=1,sp=1", step="3.2s", **nodes) == ("healthy", [])
    assert rules("CUDA_LAUNCH_BLOCKING=1", "tp=2,mbs=1,sp=1", step="7s", **nodes) == ("slow", ["R01"])


def test_a_network_that_one_node_does_not_use_is_no_cause():
    text = NCCL + "Using network Socket\n"
    assert rules(text, "tp=2,mbs=1,sp=1", step="9s", **ONE_NODE) == ("slow", [])
    nodes = {**ONE_NODE, "gpus": "64", "global_batch_size": "512"}
    assert rules(text, "tp=2,mbs=1,sp=1", step="15s", **nodes)[1] == ["R02"]


def certainties(text, plan=None, **given):
    found = diagnose_texts({"evidence.log": text}, plan, given, lambda: request_of(given), CheckRequest())
    return [(one.rule, one.certainty) for one in found.causes]


def test_a_network_that_is_switched_off_is_no_cause_on_one_node():
    for line in ("NCCL_IB_DISABLE=1", "NCCL_NET=Socket", NCCL + "NCCL_NET_GDR_LEVEL set by environment to LOC"):
        assert certainties(line, "tp=2,mbs=1,sp=1", **ONE_NODE) == []
        assert certainties(line, "tp=2,mbs=1,sp=1", **{**ONE_NODE, "gpus": "32"}) == [("R02", "certain")]


@pytest.mark.parametrize("line", [NCCL + "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", "export NCCL_P2P_DISABLE=1"])
def test_host_memory_is_a_fault_where_gpus_have_links_of_their_own(line):
    question = {**ONE_NODE, "model": "llama3.2-1b", "seq_length": "2048"}
    assert certainties(line, "tp=2,mbs=1,sp=1", **question, gpu="a100-80gb") == [("R02", "certain")]
    assert certainties(line, "tp=2,mbs=1,sp=1", **question, gpu="rtx-4090-24gb") == []
    assert certainties(line) == [("R02", "likely")]


def test_what_small_tests_and_a_log_of_one_host_leave_open_is_said():
    small = NCCL_TEST.format(rate="11.50").replace("1073741824", "4194304")
    for text, needed in ((small, "-e 8G"), (NCCL + "Using network Socket", "second host")):
        given = {**ONE_NODE, "gpus": "32"} if "e 8G" in needed else {}
        found = diagnose_texts(
            {"a": text}, "tp=2,mbs=1,sp=1" if given else None, given, lambda given=given: request_of(given), CheckRequest()
        )
        assert (found.verdict, found.causes) == ("not_enough", ())
        assert any(needed in one.evidence and "R02" in one.rules for one in found.missing)


SMI = "index, {name}clocks.sm [MHz], clocks.max.sm [MHz], power.draw [W], power.limit [W], utilization.gpu [%]\n"
SAMPLE = "{gpu}, {name}{mhz} MHz, 1410 MHz, {draw} W, {limit} W, 100 %\n"


@pytest.mark.parametrize(
    ("name", "mhz", "draw", "limit", "named"),
    [
        ("", 1020, 394, 400, []),  # all that its limit leaves it
        ("NVIDIA A100-SXM4-80GB, ", 1020, 394, 400, []),
        ("NVIDIA A100-SXM4-80GB, ", 1020, 247, 250, [("R10", "certain")]),  # a limit below the GPU's own
        ("A GPU of no catalogue, ", 1020, 247, 250, []),
        ("", 1020, 190, 400, [("R10", "likely")]),  # neither its limit nor idleness lowers it
    ],
)
def test_a_clock_that_the_power_limit_leaves_is_no_fault(name, mhz, draw, limit, named):
    rows = "".join(SAMPLE.format(gpu=gpu, name=name, mhz=mhz + gpu, draw=draw, limit=limit) for gpu in range(8))
    assert certainties(SMI.format(name="name, " if name else "") + rows) == named


def test_one_preemption_leaves_open_whether_requests_wait():
    found = diagnose_texts({"a": PREEMPTED.format(1)}, None, {}, lambda: request_of({}), CheckRequest())
    assert any("cache usage" in one.evidence and "R17" in one.rules for one in found.missing)


@pytest.mark.parametrize("text", ["4.1 s/it\n8.2 s/it\n", "was:\ntps: 8000\nis:\ntps: 4000\n", "mfu 0.45\nmfu 0.22\n"])
def test_two_figures_that_differ_are_of_two_runs(text):
    assert rules(text) == ("not_enough", [])
    found = diagnose_texts({"a": text}, "tp=2,mbs=1,sp=1", ONE_NODE, lambda: request_of(ONE_NODE), CheckRequest())
    assert (found.verdict, found.causes, found.measured) == ("not_enough", (), None)
    assert any("--step" in one.evidence for one in found.missing)


def test_two_tables_of_phases_are_no_series():
    """NeMo-RL's tables of two releases in one issue: the longer one behind the shorter is no growth."""
    table = "Total step time: {0}.00s\ngeneration: {1}.00s\npolicy_training: 40.00s\n"
    assert "R11" not in rules(table.format(100, 60) + "and now:\n" + table.format(160, 120))[1]
