"""A trace of torch.profiler written by hand, event by event; times in microseconds."""

import gzip
import json
import sqlite3

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass::Params)"
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, FusedAdamMathFunctor>(int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class MadeTrace:
    """Events of one rank. A kernel that is launched `at` has a call of the runtime of 5 us behind it."""

    def __init__(self, rank=0, world_size=8, device="NVIDIA H100 80GB HBM3"):
        self.events, self.correlation = [], 0
        self.top = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": device}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        }

    def add(self, category, name, start, duration, pid=1, **arguments):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": 7, "ts": start, "dur": duration, "args": arguments}
        )
        return self

    def kernel(self, name, start, duration, at=None, stream=7, call="cudaLaunchKernel", category="kernel", **arguments):
        self.correlation += 1
        if at is not None:
            self.add("cuda_runtime", call, at, 5, correlation=self.correlation)
        return self.add(
            category, name, start, duration, pid=0, device=0, stream=stream, correlation=self.correlation, **arguments
        )

    def collective(
        self, start, duration, at=None, kernel=ALL_REDUCE, name="allreduce", group="TENSOR_MODEL_PARALLEL_GROUP", **more
    ):
        arguments = {
            "Collective name": name, "Process Group Description": group, "Group size": 4, "dtype": "BFloat16",
            "In msg nelems": 1000, "Out msg nelems": 1000,
        }  # fmt: skip
        return self.kernel(kernel, start, duration, at, stream=20, **(arguments | more))

    def step(self, number, start, duration):
        return self.add("user_annotation", f"ProfilerStep#{number}", start, duration)

    def call(self, name, start, duration):
        return self.add("cuda_runtime", name, start, duration, correlation=0)

    def json(self, **top):
        return json.dumps(self.top | {"traceEvents": self.events, "traceName": "x"} | top, indent=1)

    def packed(self):
        return gzip.compress(self.json().encode())

    def nsys(self, path, process=7):
        """The same as an export of Nsight Systems, added to what is there."""
        there = path.exists()
        database, names = sqlite3.connect(path), {}
        if there:
            names = {text: number for number, text in database.execute("SELECT id, value FROM StringIds")}
        known, owner = len(names), process << 24

        def word(text):
            return names.setdefault(text, len(names) + 1)

        tables = """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
                shortName INT, demangledName INT, globalPid INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
                bytes INT, globalPid INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
            CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT, textId INT, globalTid INT);
            CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
            """
        database.executescript("" if there else tables)
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?)", (self.top["deviceProperties"][0]["name"],))
        for event in self.events:
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            correlation, name = event["args"].get("correlation"), event["name"]
            if event["cat"] == "kernel":
                row = (start, end, 0, event["args"]["stream"], correlation, word(name[:20]), word(name), owner)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            elif event["cat"] == "gpu_memcpy":
                row = (start, end, 0, event["args"]["stream"], correlation, 0, owner)
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            elif event["cat"] == "cuda_runtime":
                row = (start, end, owner + 1, correlation, word(f"{name}_v7000"))
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            else:
                database.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, ?)",
                    (start, end, name.replace("ProfilerStep#", "step "), owner + 1),
                )
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in names.items() if number > known]
        )
        database.commit()
        database.close()
        return path
