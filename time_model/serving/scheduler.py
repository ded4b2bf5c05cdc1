"""How each engine's scheduler goes about an iteration, by framework: vLLM V1, SGLang, TensorRT-LLM.

Sources: vllm-project/vllm v1/core/sched/scheduler.py (running sequences first, then waiting ones as they came, prompts cut at
max_num_batched_tokens, the newest preempted) and async_scheduler.py; sgl-project/sglang srt/managers/schedule_policy.py
(PrefillAdder), scheduler.py (a prompt's batch goes before decoding, overlap) and scheduler_recv_skipper.py; NVIDIA/TensorRT-LLM
_torch/pyexecutor/scheduler.py (GUARANTEED_NO_EVICT) and py_executor.py (overlap scheduler).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.specs.errors import GIB
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.software.engine import EngineSpec
from autoconfig.time_model.serving.simulation import SchedulerLimits


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What of SchedulerLimits an engine decides."""

    admission: str
    alone: bool = False
    late: bool = True


POLICIES = {
    "vllm": Policy(admission="prompt"),
    "sglang": Policy(admission="estimated", alone=True),
    "tensorrt-llm": Policy(admission="whole"),
}
SGLANG_CHUNKS = ((35.0, 2048), (60.0, 4096), (160.0, 8192), (float("inf"), 16384))
"""Tokens of a prompt's batch (chunked_prefill_size) by the card's memory in GiB, below which it is so (SGLang 0.5.6
srt/server_args.py, _handle_gpu_memory_settings)."""
VLLM_TOKENS = ((70.0, 2048), (float("inf"), 8192))
"""max_num_batched_tokens of the API server (vLLM engine/arg_utils.py, get_batch_defaults)."""


def policy_of(engine: EngineSpec) -> Policy:
    """Of the engine; runtimes that are compiled schedule between iterations, and so do those that are not known."""
    found = POLICIES.get(engine.framework)
    if found is None or engine.submission or engine.reserves_slots:
        return Policy(admission="whole" if engine.scheduler_policy == "no_evict" else "prompt", late=False)
    return found


def default_tokens(engine: EngineSpec, gpu: GpuSpec) -> int:
    """Tokens of an iteration, where nothing else is said."""
    known = {"sglang": SGLANG_CHUNKS, "vllm": VLLM_TOKENS}.get(engine.framework, ())
    return next((tokens for most, tokens in known if gpu.memory_bytes / GIB < most), engine.max_num_tokens)


def scheduler_limits(
    engine: EngineSpec,
    *,
    batch: int,
    tokens: int,
    kv_tokens: float,
    chunked: bool = True,
    steps_per_token: float = 1.0,
    checked: float = 1.0,
    receive_every: int = 1,
    ranks: int = 1,
) -> SchedulerLimits:
    """The limits of a run under the engine's policy."""
    policy = policy_of(engine)
    return SchedulerLimits(
        batch=batch,
        tokens=tokens,
        kv_tokens=kv_tokens,
        chunked=chunked,
        admission=policy.admission,
        steps_per_token=steps_per_token,
        checked=checked,
        alone=policy.alone,
        late=policy.late,
        receive_every=receive_every,
        ranks=ranks,
    )
