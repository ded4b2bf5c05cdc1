"""Faults put into traces of a priced step as torch.profiler writes them: read and named, whole way through."""

import pytest
from made_traces import ADAM, GEMM, SEND_RECV, MadeTrace

from autoconfig.diagnosis.files import diagnose_texts
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.training.question import request_of
from validation.diagnosis.made_runs import DENSE, expected

QUESTION, PLAN = DENSE
GIVEN = {name: str(value) for name, value in QUESTION.items()}
FLASH = "void pytorch_flash::flash_fwd_kernel<T>(P)"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float>(float*)"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
KERNELS = {"flash_attention_seconds": FLASH, "pointwise_seconds": POINTWISE, "optimizer_seconds": ADAM}
RATE = 45e9
"""Bytes per second of a GPU over the network: nine tenths of the catalogue's."""


def compute(trace, now, name, lasting):
    trace.kernel(name, now, lasting, at=now - 6)
    return now + lasting


def communicate(trace, now, lasting, rate, **call):
    elements = int(lasting * 1e-6 * rate / 2)
    trace.collective(now, lasting, at=now - 50, **call, **{"In msg nelems": elements, "Group size": 4})
    return now + lasting


def one_step(trace, now, fault, lost):
    """The parts of the priced step one behind the other, microseconds; the fault takes `lost` more."""
    parts = {name: 1e6 * seconds for name, seconds in expected(QUESTION, PLAN).parts.items() if seconds}
    if fault == "R06":
        trace.add("user_annotation", LOADER, now, lost)
        now += lost
    for name, lasting in parts.items():
        if name == "gradient_reduction_seconds":
            lasting += lost if fault in ("R02", "R03") else 0.0
            rate = 2e9 if fault == "R02" else RATE
            group = {"name": "_reduce_scatter_base", "group": "DATA_PARALLEL_GROUP"}
            now = communicate(trace, now, lasting, rate, kernel=REDUCE, **group)
        elif name == "tp_communication_seconds":
            now = communicate(trace, now, lasting, 200e9)
        elif name == "host_floor_seconds":
            now += lasting + (lost if fault == "R01" else 0.0)
        elif name in ("pipeline_bubble_seconds", "straggler_seconds", "p2p_seconds"):
            group = {"name": "send", "group": "PIPELINE_MODEL_PARALLEL_GROUP"}
            now = communicate(trace, now, lasting, 1.0, kernel=SEND_RECV, **group)
        else:
            now = compute(trace, now, KERNELS.get(name, GEMM), lasting)
    if fault == "R04":
        now = compute(trace, now, SOFTMAX, lost)
    if fault == "R05":
        trace.call("cudaFree", now, lost)
        now = compute(trace, now + lost, GEMM, 1000)
    return now


def rules(fault, times):
    step = expected(QUESTION, PLAN).step_seconds
    trace, now = MadeTrace(world_size=64), 0.0
    for number in (1, 2):
        start, now = now, one_step(trace, now, fault, 1e6 * (times - 1) * step)
        trace.step(number, start, now - start)
    line = " iteration {:8d}/     500 | elapsed time per iteration (ms): {:.1f} | global batch size:   256 |\n"
    log = "".join(line.format(number, 1e3 * times * step) for number in range(1, 40))
    files = {"rank0.json": trace.json(), "run.log": log}
    found = diagnose_texts(files, PLAN, GIVEN, lambda: request_of(GIVEN), CheckRequest())
    return found.verdict, [one.rule for one in found.causes]


@pytest.mark.parametrize("times", [1.3, 2.0])
@pytest.mark.parametrize("fault", ["R01", "R02", "R03", "R04", "R05", "R06"])
def test_a_fault_in_a_trace_comes_first_and_alone(fault, times):
    assert rules(fault, times) == ("slow", [fault])


def test_a_healthy_trace_has_no_cause():
    assert rules("", 1.0) == ("healthy", [])


def test_without_a_plan_exposed_communication_rules_nothing_out():
    """An all-reduce that nothing hides: only a plan says whether it should be."""
    trace = MadeTrace(world_size=64)
    for number in (1, 2):
        now = compute(trace, start := 3e6 * number, GEMM, 2e6)
        now = communicate(trace, now, 9e5, RATE, name="allreduce", group="DATA_PARALLEL_GROUP")
        trace.step(number, start, now - start)
    found = diagnose_texts({"rank0.json": trace.json()}, None, {}, lambda: request_of({}), CheckRequest())
    assert "R03" not in [rule for rule, _ in found.cleared] and any("R03" in one.rules for one in found.missing)
