"""One deployment in full: what it carries, how fast it answers, what its memory holds."""

from __future__ import annotations

from dataclasses import dataclass

from autoconfig.memory_model.serving import ServingMemory, weight_parts_bytes
from autoconfig.serving.disaggregated import prefill_memory
from autoconfig.serving.question import ServeQuestion
from autoconfig.serving.rank import Deployments
from autoconfig.specs.serve_plan import EnginePlan, ServePlan
from autoconfig.time_model.serving.costs import iteration_parts
from autoconfig.time_model.serving.steady import prompts_per_iteration


@dataclass(frozen=True, kw_only=True)
class Latency:
    """A simulated finalist: seconds, mean and percentiles."""

    requests: int
    """Whose latency was counted."""
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    itl_s: dict[str, float]
    """Over all tokens; the others over requests."""
    e2e_s: dict[str, float]
    tokens_per_s_per_gpu: float
    goodput_ratio: float
    """Share of requests that meet both limits."""


@dataclass(frozen=True, kw_only=True)
class DeploymentReport:
    """One deployment in full. Throughput per GPU of the deployment, speed per user, latency means of the closed form."""

    plan: ServePlan
    requests_per_s: float
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    ttft_s: float
    tpot_s: float
    """0, as tokens/s/user, where answers are one token."""
    gpus: int
    concurrency: int
    memory: ServingMemory
    weight_parts: dict[str, float]
    max_concurrency: int
    """Sequences of average length that memory holds in all decode instances."""
    longest_bytes: float
    """Cache of the longest request on one GPU."""
    max_concurrency_longest: int
    """Sequences as long as the longest that memory holds in all decode instances."""
    step_parts: dict[str, float]
    """Seconds of a decode iteration by part."""
    mixed_parts: dict[str, float]
    """The same with the prompts that an iteration carries (of a prefill instance: one prompt alone)."""
    prefill_memory: ServingMemory | None = None
    """Of a GPU of a separate prefill instance; a sequence is there a mean prompt."""
    latency: Latency | None = None
    cost_per_million_tokens: float | None = None

    @property
    def varies(self) -> bool:
        """The longest request holds more than one of average length."""
        return self.longest_bytes > float(self.memory.kv_bytes_per_sequence)


def report(question: ServeQuestion, found: Deployments, row: int) -> DeploymentReport:
    """A row of the columns in full."""
    plan, c = found.plan(row), {name: float(values[row]) for name, values in found.columns.items()}
    decode = plan.decode
    per_gpu = c["requests_per_s"] * question.lengths.osl / c["gpus"]
    job = question.job(decode)
    lengths = question.lengths
    memory = decode_memory(question, decode)
    longest = question.longest_bytes(decode, memory)
    running = c["batch"] / (decode.adp * decode.pp)
    checked = 1.0 + lengths.drafted
    parts = iteration_parts(job, running, lengths.average, 0.0, 1.0, checked)
    if plan.prefill is None:
        prompts = float(prompts_per_iteration(lengths, running, plan.decode.tokens, question.chunked))
        mixed = iteration_parts(job, running, lengths.average, prompts, lengths.prompt, checked)
    else:
        mixed = iteration_parts(question.job(plan.prefill), 0.0, 1.0, 1.0, lengths.prompt)
    cost = question.price / 3600.0 / per_gpu * 1e6 if question.price else None
    return DeploymentReport(
        plan=plan,
        requests_per_s=c["requests_per_s"],
        tokens_per_s_per_gpu=per_gpu,
        tokens_per_s_per_user=1.0 / c["tpot_s"] if c["tpot_s"] else 0.0,
        ttft_s=c["ttft_s"],
        tpot_s=c["tpot_s"],
        gpus=int(c["gpus"]),
        concurrency=int(c["batch"]) * decode.replicas,
        memory=memory,
        weight_parts=weight_parts_bytes(question.model, decode, job.formats),
        max_concurrency=int(memory.max_concurrency) * decode.adp * decode.replicas,
        longest_bytes=longest,
        max_concurrency_longest=int(max(float(memory.kv_pool_bytes), 0.0) // longest) * decode.adp * decode.replicas,
        step_parts={name: float(s) for name, s in parts.items()},
        mixed_parts={name: float(s) for name, s in mixed.items()},
        prefill_memory=prefill_memory(question, plan.prefill) if plan.prefill else None,
        cost_per_million_tokens=cost,
    )


def decode_memory(question: ServeQuestion, plan: EnginePlan) -> ServingMemory:
    """Of one GPU of an instance at its own limits of sequences and tokens."""
    return question.memory(question.job(plan), float(plan.batch), float(plan.tokens))
