"""How each engine's scheduler goes about an iteration, by framework: vLLM V1, SGLang, TensorRT-LLM.

Sources: vllm-project/vllm v1/core/sched/scheduler.py (running sequences first, then waiting ones as they came, prompts cut at
max_num_batched_tokens, the newest preempted) and async_scheduler.py; sgl-project/sglang srt/managers/schedule_policy.py
(PrefillAdder), scheduler.py (a prompt's batch goes before decoding, overlap) and scheduler_recv_skipper.py; NVIDIA/TensorRT-LLM
_torch/pyexecutor/scheduler.py (GUARANTEED_NO_EVICT) and py_executor.py (overlap scheduler).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.specs.software.engine import EngineSpec
from autoconfig.time_model.serving.simulation import PromptBalance, SchedulerLimits


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


def policy_of(engine: EngineSpec) -> Policy:
    """Of the engine; runtimes that are compiled schedule between iterations, and so do those that are not known."""
    found = POLICIES.get(engine.framework)
    if found is None or engine.submission or engine.reserves_slots:
        return Policy(admission="whole" if engine.scheduler_policy == "no_evict" else "prompt", late=False)
    return found


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
    balance: PromptBalance | None = None,
    synchronous: bool = False,
) -> SchedulerLimits:
    """The limits of a run under the engine's policy; `synchronous`: no iteration is put together ahead (ServingJob)."""
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
        late=policy.late and not synchronous,
        receive_every=receive_every,
        ranks=ranks,
        balance=balance if ranks > 1 else None,
    )
