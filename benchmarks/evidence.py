"""How fast what a run leaves behind is read: a made trace of torch.profiler and a made log of Megatron-LM.

    python -m benchmarks.evidence [--smoke]      # 1 GB and 100 MB; --smoke: a thousandth of it

The trace has the events that Kineto writes of a training step with stacks: operators, Python functions, launches, kernels,
flows, collectives with their groups. Each file is read in a process of its own, whose memory is told.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TRACE_BYTES, LOG_BYTES = 1_000_000_000, 100_000_000
KERNELS_PER_STEP = 2_000
KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass::Params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3> >(int)",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(flash::Params)",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::Kernel_traits>(Params)",
)
COLLECTIVE = (
    '"Collective name": "_reduce_scatter_base", "In msg nelems": 8388608, "Out msg nelems": 1048576, "Group size": 8, '
    '"dtype": "BFloat16", "Process Group Name": "3", "Process Group Description": "DATA_PARALLEL_GROUP_WITH_CP"'
)
READ = """
import resource, sys, time
start = time.perf_counter()
from autoconfig.evidence.read import read_files
from autoconfig.evidence.steps import statistics
evidence = read_files(sys.argv[1:])
for trace in evidence.traces:
    total = sum(trace.parts.values()) + sum(trace.idle.values())
    assert abs(total / trace.span_s - 1) < 0.01 and trace.unknown_kernel_share < 0.03 and trace.steps > 0, trace
assert evidence.traces or statistics(evidence.steps).median_s > 0
wall, core = time.perf_counter() - start, time.process_time()
print(f"{wall:.1f} s ({core:.1f} s of one core), {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
"""


def trace_text(size: int) -> Iterator[str]:
    """A trace of about `size` characters, in pieces."""
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {"id": 0, "name": "NVIDIA H100 80GB HBM3"}\n  ],\n'
    yield '  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 64},\n  "traceEvents": [\n'
    written, number = 0, 0
    while written < size:
        begin, step = 20.0 * number, number // KERNELS_PER_STEP
        if number % KERNELS_PER_STEP == 0:
            yield _event(
                "user_annotation", f"ProfilerStep#{step}", 1, begin, 20.0 * KERNELS_PER_STEP, f'"External id": {number}'
            )
        piece = _launch(number, begin)
        written += len(piece)
        number += 1
        yield piece
    yield '  {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {}}\n  ],\n  "traceName": "made"\n}\n'


def _launch(number: int, begin: float) -> str:
    """An operator under its Python function, its launch and its kernel; each hundredth is a collective."""
    operator = f'"External id": {number}, "Record function id": 0, "Concrete Inputs": ["", "0", "1"], "Ev Idx": {number}'
    kernel, stream, more = KERNELS[number % len(KERNELS)], 7, ""
    if number % 100 == 99:
        kernel, stream, more = (
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            20,
            f", {COLLECTIVE}",
        )
    on_gpu = (
        f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": {number},\n'
        '      "registers per thread": 128, "shared memory": 49152, "blocks per SM": 15.515152, "warps per SM": 62.060608,\n'
        f'      "grid": [2048, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 62{more}'
    )
    flow = f'"pid": 1, "tid": 1, "ts": {begin + 1:.3f}, "cat": "ac2g", "name": "ac2g"'
    return "".join(
        (
            _event("python_function", "torch/nn/modules/module.py(1532): _call_impl", 1, begin, 19.0, f'"Python id": {number}'),
            _event("cpu_op", "aten::linear", 1, begin, 18.0, operator),
            _event("cuda_runtime", "cudaLaunchKernel", 1, begin + 1, 5.0, f'"cbid": 211, "correlation": {number}'),
            _event("kernel", kernel, 0, begin + 9, 18.5 if more else 15.0, on_gpu),
            f'  {{\n    "ph": "s", "id": {number}, {flow}\n  }},\n',
            f'  {{\n    "ph": "f", "id": {number}, {flow}, "bp": "e"\n  }},\n',
        )
    )


def _event(category: str, name: str, pid: int, start: float, duration: float, arguments: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": 7,\n    "ts": {start:.3f}, '
        f'"dur": {duration:.3f},\n    "args": {{\n      {arguments}\n    }}\n  }},\n'
    )


def log_text(size: int) -> Iterator[str]:
    """A log of about `size` characters: iterations, timers, and as much again of other lines."""
    written, step = 0, 0
    while written < size:
        step += 1
        piece = (
            f" [2025-03-05 {step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}] iteration {step:8d}/ 500000 | "
            f"consumed samples: {step * 512:12d} | elapsed time per iteration (ms): {5000 + step % 97}.5 | throughput per GPU "
            f"(TFLOP/s/GPU): 401.{step % 10} | learning rate: 1.5E-04 | global batch size:   512 | "
            f"lm loss: 2.{step % 997:03d}E+00 | loss scale: 1.0 | grad norm: 0.132 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |\n"
            "(min, max) time across ranks (ms):\n"
            f"    forward-backward ...............................: (4100.2, 4200.{step % 10})\n"
            f"    optimizer ......................................: (340.56, 340.9{step % 10})\n"
        )
        piece += "".join(f"INFO:some.module: worker {step % 8} took {step * 7919 % 1013} items\n" for _ in range(6))
        written += len(piece)
        yield piece


def read_rate(kind: str, pieces: Iterator[str]) -> str:
    """Write a made file, read it in a process of its own, say what that took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, kind)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
        size = path.stat().st_size / 1e6
        output = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True).stdout
    line = f"{kind} of {size:,.0f} MB: {output.strip()}"
    print(line)
    return line


def main(*, smoke: bool) -> None:
    """Read both made files."""
    share = 1000 if smoke else 1
    read_rate("trace of torch.profiler", trace_text(TRACE_BYTES // share))
    read_rate("log of Megatron-LM", log_text(LOG_BYTES // share))


if __name__ == "__main__":
    main(smoke="--smoke" in sys.argv[1:])
