"""Traces by hand, whose parts and idle times are known; bad ones; ranks beside each other; the same from Nsight."""

import gzip
import json
import sqlite3

import pytest
from autoconfig.specs.errors import InputError
from hypothesis import given
from hypothesis import strategies as st
from made_traces import ADAM, ALL_REDUCE, GEMM, SEND_RECV, MadeTrace

from autoconfig.evidence.read import read_files, read_texts

US = 1e-6
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NEXT = "torch/utils/data/dataloader.py(733): __next__"


def traced(made, **top):
    evidence = read_texts({"rank0.json": made.json(**top)})
    assert evidence.files[0].kind == "kineto"
    return evidence.traces[0]


def us(found):
    """Microseconds by name."""
    return {name: round(seconds / US, 3) for name, seconds in found.items()}


def two_steps():
    """Steps of 1000 us each; the GPU has drained at each step's end."""
    made = MadeTrace()
    for number, begin in ((3, 0), (4, 1000)):
        made.step(number, begin, 1000)
        made.kernel(GEMM, begin + 50, 200, at=begin + 40)  # 50 us late at the edge of the step
        made.kernel(GEMM, begin + 254, 146, at=begin + 60)  # queued: 4 us between kernels
        made.collective(begin + 300, 150, at=begin + 70)  # 100 us hidden, 50 exposed
        made.kernel("Memcpy DtoH", begin + 440, 40, at=begin + 80, call="cudaMemcpyAsync", category="gpu_memcpy")  # 30 alone
        made.kernel(ADAM, begin + 600, 100, at=begin + 90)  # queued, 120 us: waits
        made.kernel(GEMM, begin + 800, 150, at=begin + 760)  # 100 us late
        made.call("cudaStreamSynchronize", begin + 765, 190)
    return made


def test_parts_and_idleness_of_two_steps():
    trace = traced(two_steps())
    assert (trace.steps, trace.rank, trace.world_size, trace.device) == (2, 0, 8, "NVIDIA H100 80GB HBM3")
    assert us(trace.parts) == {
        "gemm_seconds": 2 * 496,
        "optimizer_seconds": 2 * 100,
        "tp_communication_seconds": 2 * 50,
        "copy": 2 * 30,
    }
    # the last kernel ends 50 us before the step does, the next begins 50 us after it: the host had synchronised
    assert us(trace.idle) == {
        "between_kernels": 2 * 4,
        "waiting": 2 * 120,
        "late_launch": 2 * 100,
        "step_boundary": 50,
        "synchronization": 50 + 50 + 50,
    }
    assert trace.span_s == pytest.approx(2000 * US)
    assert sum(trace.parts.values()) + sum(trace.idle.values()) == pytest.approx(trace.span_s)
    assert trace.step_seconds == pytest.approx((1000 * US, 1000 * US))
    assert (trace.launches, trace.synchronizations, trace.allocations) == (10, 2, 0)
    (use,) = trace.collectives
    assert (use.name, use.group, use.ranks, use.count) == ("all_reduce", "tp", 4, 2)
    assert us({"seconds": use.seconds, "exposed": use.exposed_s}) == {"seconds": 300, "exposed": 100}
    assert use.size_bytes == 2 * 1000 * 2
    assert trace.part("optimizer_seconds") == pytest.approx(100 * US)
    assert trace.unknown_kernel_share == 0


def test_a_host_that_runs_ahead():
    """The GPU works on a step long after the host ended it: steps are counted on the GPU."""
    made = MadeTrace()
    for number in range(3):
        made.step(number, number * 100, 100)
        for part in range(4):
            made.kernel(GEMM, 500 + number * 800 + part * 200, 200, at=number * 100 + 10 + part)
    trace = traced(made)
    assert us(trace.parts) == {"gemm_seconds": 2400} and trace.idle == {}
    assert trace.step_seconds == pytest.approx((800 * US,) * 3)
    assert trace.launches == 12


def late(made):
    """Idleness between two kernels of which the second is launched late, 400 us after the first ended."""
    return traced(made.kernel(GEMM, 0, 100, at=-10).kernel(GEMM, 500, 100, at=480)).idle


@pytest.mark.parametrize(
    ("made", "idle"),
    [
        (MadeTrace(), {"late_launch": 400}),
        (MadeTrace().call("cudaStreamSynchronize", 20, 81), {"synchronization": 400}),
        (MadeTrace().call("hipMemcpyWithStream", 20, 81), {"synchronization": 400}),
        (MadeTrace().call("cudaStreamSynchronize", 150, 3), {"late_launch": 400}),  # nothing to wait for
        (MadeTrace().add("user_annotation", LOADER, 80, 320), {"data": 300, "late_launch": 100}),
        (MadeTrace().add("python_function", NEXT, 100, 380), {"data": 380, "late_launch": 20}),
        (MadeTrace().call("cudaFree", 90, 210).call("cudaMalloc", 300, 100), {"allocation": 300, "late_launch": 100}),
        (MadeTrace().call("cudaFreeAsync", 90, 310), {"allocation": 300, "late_launch": 100}),
        (MadeTrace().call("cudaEventQuery", 90, 310), {"late_launch": 400}),
    ],
    ids=["host", "synchronised", "blocking copy", "idle synchronisation", "data", "in Python", "allocator", "pool", "query"],
)  # fmt: skip
def test_causes_of_idleness(made, idle):
    assert us(late(made)) == idle


def test_kernels_of_a_graph_share_its_launch():
    made = MadeTrace().call("cudaGraphLaunch", 0, 20)
    made.events[-1]["args"]["correlation"] = 77
    for start in (100, 205, 400):
        made.kernel(GEMM, start, 100)
        made.events[-1]["args"]["correlation"] = 77
    trace = traced(made)
    assert us(trace.idle) == {"between_kernels": 5, "waiting": 95}
    assert (trace.graph_launches, trace.launches) == (1, 0)


def test_without_launches_the_cause_is_unknown():
    trace = traced(MadeTrace().kernel(GEMM, 0, 100).kernel(GEMM, 105, 100).kernel(GEMM, 300, 100))
    assert us(trace.idle) == {"between_kernels": 5, "unknown": 95} and trace.steps == 0


@pytest.mark.parametrize(
    ("kernel", "name", "group", "expected"),
    [
        (ALL_REDUCE, "allreduce", "TENSOR_MODEL_PARALLEL_GROUP", "tp_communication_seconds"),
        (ALL_REDUCE, "_reduce_scatter_base", "DATA_PARALLEL_GROUP_WITH_CP", "gradient_reduction_seconds"),
        (ALL_REDUCE, "_allgather_base", "DATA_PARALLEL_GROUP_WITH_CP", "parameter_gather_seconds"),
        (SEND_RECV, "all_to_allv", "EXPERT_MODEL_PARALLEL_GROUP", "expert_exchange_seconds"),
        (SEND_RECV, "send", "PIPELINE_MODEL_PARALLEL_GROUP", "p2p_seconds"),
        (SEND_RECV, "send", "CONTEXT_PARALLEL_GROUP", "cp_communication_seconds"),
        (ALL_REDUCE, "_allgather_base", "mesh_dp_shard_cp", "fsdp_seconds"),
        (ALL_REDUCE, "allreduce", "EMBEDDING_GROUP", "embedding_gradient_seconds"),
        (ALL_REDUCE, "allreduce", "default_pg", "gradient_reduction_seconds"),
        (ALL_REDUCE, "allreduce", "undefined", "communication"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "", "", "expert_exchange_seconds"),
    ],
)
def test_the_group_says_which_part_a_collective_is(kernel, name, group, expected):
    made = MadeTrace().kernel(GEMM, 0, 100, at=-9)
    made = made.collective(100, 50, at=0, kernel=kernel, name=name, group=group) if name else made.kernel(kernel, 100, 50, at=0)
    assert us(traced(made).parts) == {"gemm_seconds": 100, expected: 50}


def test_the_operator_names_the_group_where_the_kernel_does_not():
    made = MadeTrace().kernel(ALL_REDUCE, 0, 50, at=-9, **{"External id": 5})
    about = {"External id": 5, "Collective name": "allreduce", "Process Group Description": "mesh_tp", "Group size": 2}
    (use,) = traced(made.add("cpu_op", "record_param_comms", -20, 30, **about)).collectives
    assert (use.group, use.ranks, use.size_bytes) == ("tp", 2, None)


def test_the_list_of_groups_says_what_a_kernel_leaves_out():
    """Kineto cuts lists of more than 30 ranks off; the groups stand beside the events in full."""
    listed = [{"pg_name": "7", "pg_desc": "CONTEXT_PARALLEL_GROUP", "pg_size": 4, "ranks": [0, 8, 16, 24]}]
    texts = {}
    for rank, duration in ((0, 100), (8, 300)):
        made = MadeTrace(rank=rank, world_size=64)
        made.collective(0, duration, at=-9, group="", **{"Process Group Name": "7", "Process Group Ranks": "[0, ..., 24]"})
        made.top["distributedInfo"]["pg_config"] = listed
        texts[f"{rank}.json"] = made.json()
    evidence = read_texts(texts)
    assert [use.group for trace in evidence.traces for use in trace.collectives] == ["cp", "cp"]
    assert [(one.rank, one.last) for one in evidence.arrivals] == [(0, 1), (8, 0)]


def test_the_world_is_the_data_parallel_group_only_where_no_other_is_named():
    made = MadeTrace().collective(0, 50, group="default_pg").collective(60, 50, group="CONTEXT_PARALLEL_GROUP")
    assert {use.group for use in traced(made).collectives} == {"default_pg", "cp"}


def test_slow_paths_are_named_where_they_matter():
    softmax = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 11>(float*, int)"
    assert traced(MadeTrace().kernel(GEMM, 0, 990).kernel(softmax, 990, 5)).names == frozenset()
    assert traced(MadeTrace().kernel(GEMM, 0, 900).kernel(softmax, 900, 100)).names == {"softmax_kernel"}


def test_unknown_kernels_are_listed():
    trace = traced(MadeTrace().kernel(GEMM, 0, 900).kernel("zzz_kernel", 900, 100))
    assert trace.unknown_kernel_share == pytest.approx(0.1) and trace.unknown_kernels[0][0] == "zzz_kernel"
    assert us(trace.parts)["unknown"] == 100


def test_garbage_collections_are_summed():
    made = (
        two_steps().add("python_function", "Python GC", 100, 50).add("python_function", "<built-in function collect>", 90, 70)
    )
    assert traced(made).collections_s == pytest.approx(70 * US)


event = st.tuples(
    st.integers(0, 2000),
    st.integers(0, 500),
    st.one_of(st.none(), st.integers(-100, 2000)),
    st.sampled_from("ccnm"),
)


@given(
    st.lists(event, min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 300)), max_size=5),
    st.integers(0, 3),
)
def test_parts_and_idleness_always_add_up(events, waits, steps):
    made = MadeTrace()
    for number in range(steps):
        made.step(number, number * 700, 700)
    for start, duration, at, kind in events:
        if kind == "n":
            made.collective(start, duration, at)
        else:
            made.kernel(GEMM, start, duration, at, category="kernel" if kind == "c" else "gpu_memcpy")
    for start, duration in waits:
        made.call("cudaMalloc" if start % 2 else "cudaStreamSynchronize", start, duration)
    for trace in read_texts({"t": made.json()}).traces:
        values = [*trace.parts.values(), *trace.idle.values()]
        assert sum(values) == pytest.approx(trace.span_s, rel=1e-9) and min(values) >= 0
        assert all(0 <= use.exposed_s <= use.seconds + 1e-12 for use in trace.collectives)


def test_bad_traces(tmp_path):
    """Cut off, packed, as a list, with events that are none, without kernels; and what is no trace."""
    whole = two_steps().json()
    cut = read_texts({"t": whole[: len(whole) * 3 // 4]})
    assert "ends within" in cut.files[0].remarks[0] and cut.traces[0].steps >= 1
    (path := tmp_path / "rank3.json.gz").write_bytes(two_steps().packed())
    assert read_files([path]).traces[0].parts == traced(two_steps()).parts
    (path := tmp_path / "cut.json.gz").write_bytes(two_steps().packed()[:-200])
    assert any("too early" in remark for remark in read_files([path]).files[0].remarks)
    listed = read_texts({"a-rank5-b.json": json.dumps(two_steps().events)})
    assert listed.traces[0].rank == 5 and listed.traces[0].steps == 2
    odd = two_steps()
    odd.events += [
        7,
        None,
        {},
        {"ph": "X", "cat": "kernel"},
        {"ph": "X", "cat": "kernel", "name": "x", "ts": float("nan"), "dur": 1},
    ]
    odd.events += [{"ph": "X", "cat": "kernel", "name": "x", "ts": 5, "dur": -1, "args": {}}, {"ph": "X", "cat": [], "name": 3}]
    found = read_texts({"t": odd.json()})
    assert found.files[0].lines_not_understood == 7 and found.traces[0].parts == traced(two_steps()).parts
    without = read_texts({"t": MadeTrace().step(1, 0, 100).add("cpu_op", "aten::mm", 3, 4).json()})
    assert without.traces == () and "ProfilerActivity.CUDA" in without.files[0].remarks[0]
    assert "no step in it" in read_texts({"t": MadeTrace().kernel(GEMM, 0, 10).json()}).files[0].remarks[0]
    for text in (
        '{"schemaVersion": 1, "deviceProperties": []}',
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", nonsense' + "x" * (17 << 20),
        '{"schemaVersion": 1, "traceEvents": [' + "[" * 200_000,
        '{"schemaVersion": 1, traceEvents: []}',
    ):
        with pytest.raises(InputError, match="trace of torch"):
            read_texts({"t": text})


def test_a_trace_of_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("autoconfig.evidence.read.MOST_TRACE_BYTES", 1000)
    with pytest.raises(InputError, match="profile fewer steps"):
        traced(two_steps())
    (path := tmp_path / "t.json.gz").write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * 10_000_000))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        read_files([path])


def of_ranks(*waits, **more):
    """Traces of ranks whose collectives take so many microseconds."""
    texts = {}
    for rank, durations in enumerate(waits):
        made = MadeTrace(rank=rank, world_size=len(waits))
        for number, duration in enumerate(durations):
            made.step(number, number * 1000, 1000)
            made.collective(
                number * 1000 + 900 - duration,
                duration,
                at=number * 1000 + 1,
                **({"group": "dp", "Group size": len(waits)} | more),
            )
        texts[f"{rank}.json"] = made.json()
    return read_texts(texts).arrivals


def test_who_came_last():
    first, *others = of_ranks((100, 100, 100), (400, 300, 100), (500, 350, 103))
    assert (first.rank, first.collectives, first.last) == (0, 3, 2)
    assert first.others_waited_s == pytest.approx((350 + 225) * US)
    assert [one.last for one in others] == [0, 0]


def test_ranks_of_another_group_are_not_compared():
    assert of_ranks((100,), (400,), **{"Group size": 1}) == ()
    assert of_ranks((100,), (400,), **{"Group size": 1, "Process Group Ranks": "[0, 1]"})[0].last == 1
    assert of_ranks((100,), (400,), kernel=SEND_RECV, name="send") == ()  # sent from one to the other: each waits on its own


def test_an_export_of_nsight_says_the_same(tmp_path):
    made = two_steps()
    path = made.nsys(tmp_path / "rank0.sqlite")
    evidence, expected = read_files([path]), traced(made)
    assert evidence.files[0].kind == "nsys"
    found = evidence.traces[0]
    assert us(found.idle) == us(expected.idle) and (found.steps, found.launches, found.synchronizations) == (2, 10, 2)
    # Nsight says nothing of groups
    assert us(found.parts) == {
        "communication" if name == "tp_communication_seconds" else name: spent for name, spent in us(expected.parts).items()
    }
    assert found.device == expected.device and found.rank == 0


def test_bad_exports_of_nsight(tmp_path):
    path = two_steps().nsys(tmp_path / "a.sqlite")
    database = sqlite3.connect(path)
    database.execute("DROP TABLE NVTX_EVENTS")
    database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    database.commit()
    assert read_files([path]).traces[0].steps == 0
    database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'")
    database.commit()
    with pytest.raises(InputError, match="holds no times"):
        read_files([path])
    database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    database.commit()
    database.close()
    with pytest.raises(InputError, match="nsys profile --trace cuda"):
        read_files([path])
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match="damaged"):
        read_files([path])


def test_an_export_of_all_ranks_of_a_node(tmp_path):
    """Correlations count anew in each process: the busiest process is looked at, by itself."""
    path = two_steps().nsys(tmp_path / "node.sqlite", process=7)
    other = MadeTrace().step(3, 0, 1000).kernel(GEMM, 10, 900, at=800).call("cudaMalloc", 0, 2000)
    other.nsys(path, process=8)
    evidence = read_files([path])
    assert us(evidence.traces[0].idle) == us(traced(two_steps()).idle) and evidence.traces[0].steps == 2
    assert evidence.files[0].remarks[0].startswith("2 processes in it")
