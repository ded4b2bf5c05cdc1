"""Job: what one process group of `python -m autoconfig.trainer` is to run. job.json in, result.json (a Measurement) out.

The same content is the same job: `content_hash` names its folder, so that no job runs twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from autoconfig.specs.errors import FileError, InputError, PlanError, option
from autoconfig.specs.json_record import Keywords, Positive, canonical_json, from_json, to_json
from autoconfig.specs.layouts import stage_layers
from autoconfig.specs.models.model import PER_LAYER, ModelSpec
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.scenario import Numerics, Workload
from autoconfig.specs.software.software import StackMemory

SCHEMA_VERSION = 1
MODES = ("run", "emulate", "generate")
DEVICES = ("cpu", "cuda")
SOFTWARE = ("megatron-local", "transformer-engine")
"""Stacks that the training core can build; names of `specs/catalogue/software`."""
ATTENTION_KERNELS = ("flash", "unfused")
_NOT_CONTENT = ("name", "default_seq_length", "default_global_batch_size", "published_parameters", "norm_epsilon", "router")
"""Fields of ModelSpec that the training core does not read: two names of one architecture are one job."""
ENGINES = ("megatron", "vllm")
"""What a job of mode `generate` runs: megatron-core's static engine, or vLLM's server."""
MAX_TOKENS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Requests of a job of mode `generate`: `mbs` of them at once, each of `prompt` tokens and answered with `new`."""

    prompt: Positive
    new: Annotated[int, Keywords(minimum=2)]
    engine: Annotated[str, Keywords(enum=ENGINES)] = "megatron"
    tokens: Positive | None = None
    """Tokens of one iteration of a server (max_num_batched_tokens); the static engine takes all prompts at once."""

    def __post_init__(self) -> None:
        if self.tokens is not None and not 1 <= self.tokens <= MAX_TOKENS:
            raise InputError(f"generation.tokens={self.tokens} must be from 1 to {MAX_TOKENS:,}, or null")
        for name, least in (("prompt", 1), ("new", 2)):
            if not least <= getattr(self, name) <= MAX_TOKENS:
                raise InputError(f"generation.{name}={getattr(self, name)} must be from {least} to {MAX_TOKENS:,} tokens")
        if self.engine not in ENGINES:
            raise InputError(f"generation.engine={self.engine!r} is not one of {', '.join(ENGINES)}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job. Raises InputError (PlanError where it is the plan) for values that no run can have."""

    model: ModelSpec
    plan: TrainPlan
    workload: Workload
    numerics: Numerics = field(default_factory=Numerics)
    mode: Annotated[str, Keywords(enum=MODES)] = "run"
    """`run`: plan.world_size processes train. `emulate`: one process does what `rank` of them would do. `generate`: an engine
    answers requests (`generation`); a step is a round, every request from its prompt to its last token."""
    device: Annotated[str, Keywords(enum=DEVICES)] = "cuda"
    """cpu (gloo, memory counted by live storages) or cuda (NCCL, torch's allocator)."""
    software: Annotated[str, Keywords(enum=SOFTWARE)] = "megatron-local"
    """transformer-engine, or megatron-local: megatron-core's own layers with the operators of `kernels/`."""
    attention_kernel: Annotated[str, Keywords(enum=ATTENTION_KERNELS)] = "flash"
    """`flash`: Transformer Engine's, or torch's scaled_dot_product_attention with megatron-local. `unfused`: megatron-core's
    own, which keeps the scores."""
    steps: int = 5
    """Optimizer steps that are timed."""
    warmup_steps: int = 2
    """Steps before them. With at least one, the optimizer state exists before memory is measured."""
    seed: int = 1234
    device_memory_bytes: int | None = None
    """Limit of each rank: allocations above it end the job as out of memory. None: the device's own."""
    rank: int | None = None
    """Which rank `emulate` stands for, 0 to plan.world_size - 1."""
    generation: Generation | None = None
    """What `generate` is asked."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("mode", MODES),
            ("device", DEVICES),
            ("software", SOFTWARE),
            ("attention_kernel", ATTENTION_KERNELS),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name, low, high in (("steps", 1, 10**6), ("warmup_steps", 0, 10**6), ("seed", 0, 2**31 - 1)):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name}={getattr(self, name)} must be from {low} to {high:,}")
        if self.device_memory_bytes is not None and self.device_memory_bytes < 1:
            raise InputError(f"device_memory_bytes={self.device_memory_bytes} must be at least 1, or null for no limit")
        self._check_rank()
        self._check_generation()
        stage_layers(self.model, self.plan)
        samples = self.plan.mbs * self.plan.dp
        if self.workload.global_batch_size % samples:
            raise PlanError(
                f"global_batch_size={self.workload.global_batch_size} is not a multiple of mbs x dp = "
                f"{self.plan.mbs} x {self.plan.dp} = {samples}"
            )

    def _check_generation(self) -> None:
        asked = self.generation
        if (self.mode == "generate") != (asked is not None):
            raise InputError("mode generate needs generation (prompt and new tokens); leave it out of the other modes")
        if asked is not None and self.workload.seq_length != asked.prompt + asked.new:
            raise InputError(f"seq_length={self.workload.seq_length} must be prompt + new = {asked.prompt + asked.new}")

    def _check_rank(self) -> None:
        if self.mode != "emulate" and self.rank is not None:
            raise InputError(f"rank={self.rank} is for mode emulate; leave it out of mode {self.mode}")
        if self.mode == "emulate" and (self.rank is None or not 0 <= self.rank < self.plan.world_size):
            raise InputError(f"mode emulate needs rank from 0 to {self.plan.world_size - 1} (tp x pp x cp x dp of {self.plan})")

    @property
    def num_microbatches(self) -> int:
        """m = global batch / (mbs dp)."""
        return self.workload.global_batch_size // (self.plan.mbs * self.plan.dp)

    @property
    def num_processes(self) -> int:
        """Processes to start: one per rank, one for an emulated rank."""
        return 1 if self.mode == "emulate" else self.plan.world_size

    @property
    def content_hash(self) -> str:
        """64 hexadecimal digits: sha256 of the canonical JSON, without names that change nothing in the run."""
        content = job_json(self)
        if content["generation"] is None:  # the hash of every other job is what it was before there were such jobs
            del content["generation"]
        if content["numerics"]["optimizer"] == "adamw":
            del content["numerics"]["optimizer"]
        if not content["numerics"]["optimizer_in_backward"]:
            del content["numerics"]["optimizer_in_backward"]
        if not content["numerics"]["weights_are_masters"]:  # likewise: results that were kept stay results
            del content["numerics"]["weights_are_masters"]
        if content["workload"]["schedule_calls"] == 1:
            del content["workload"]["schedule_calls"]
        content["model"] = {key: value for key, value in content["model"].items() if key not in _NOT_CONTENT}
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    def replace(self, **changes: Any) -> Job:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)

    def shortened(self, *, layers_per_chunk: int | None = None, num_microbatches: int | None = None) -> Job:
        """The same job at a lower fidelity: every stage cut to `layers_per_chunk` layers a model chunk, fewer micro-batches.

        Stages become even; a per-layer pattern of experts keeps its first layers. Raises InputError for more than the job has.
        """
        job = self
        if layers_per_chunk is not None:
            layers = layers_per_chunk * self.plan.pp * self.plan.vpp
            if not 1 <= layers <= self.model.num_layers:
                raise InputError(f"layers_per_chunk={layers_per_chunk}: {layers} layers, the model has {self.model.num_layers}")
            given = {name: getattr(self.model, name) for name in PER_LAYER}
            kept = {name: value[:layers] for name, value in given.items() if isinstance(value, tuple)}
            model = self.model.replace(num_layers=layers, **kept)
            job = job.replace(model=model, plan=self.plan.replace(first=None, last=None))
        if num_microbatches is not None:
            if not 1 <= num_microbatches <= self.num_microbatches:
                raise InputError(f"num_microbatches={num_microbatches}: the job has {self.num_microbatches}")
            batch = num_microbatches * self.plan.mbs * self.plan.dp
            job = job.replace(workload=dataclasses.replace(self.workload, global_batch_size=batch))
        return job


def job_json(job: Job) -> dict[str, Any]:
    """The content of job.json: `schema_version`, the plan in its short form, everything else by field name."""
    return {"schema_version": SCHEMA_VERSION, **to_json(job), "plan": str(job.plan)}


def job_text(job: Job) -> str:
    """job.json as text."""
    return json.dumps(job_json(job), indent=2, allow_nan=False) + "\n"


def read_job_text(text: str, where: str = "job") -> Job:
    """The job that this JSON text describes. Raises InputError, PlanError with what is wrong and where."""
    try:
        body = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({str(error)[:120]}); is the file complete?") from None
    if not isinstance(body, dict):
        raise InputError(f"{where}: a job is a JSON object, as `Job` of specs/job.py is written")
    version = body.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise InputError(f"{where}: schema_version {version!r}; this version reads {SCHEMA_VERSION}")
    plan = body.pop("plan", None)
    if not isinstance(plan, str):
        raise InputError(f"{where}: plan must be a text like tp=2,pp=1,dp=1,mbs=1,sp=1,recompute=none, not {str(plan)[:60]!r}")
    return from_json(Job, {**body, "plan": parse_plan(plan, 1)}, where)  # dp is printed always; left out by hand, it is 1


def read_job(path: Path) -> Job:
    """The job in this file. Raises FileError when it cannot be read, else as `read_job_text`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FileError(f"job {str(path)[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return read_job_text(text, path.name)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


TRACE_SCHEMA_VERSION = 1
MAX_PROCESSES = 3
"""Traces at a time, so many as are traced by default: on two cores they end together, where two would leave one core waiting
for the third. Each takes up to 2 GB."""
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "temporary")
"""Why a byte is held: model state (three), saved for a backward, as wide as the vocabulary, anything else."""


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """Ranks of one job to trace, with the memory facts of the software stack that the stand-ins need."""

    job: Job
    ranks: tuple[int, ...]
    memory: StackMemory
    copies_attention_output: bool = False
    """The GPU's attention kernel is batch-first: above micro-batch 1 its output is kept in both orders."""

    def __post_init__(self) -> None:
        world = self.job.plan.world_size
        for rank in self.ranks:
            if not 0 <= rank < world:
                raise InputError(f"rank {rank}: the plan {self.job.plan} has the ranks 0 to {world - 1}")


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """Storages of one kind that one layer keeps for its backward."""

    module: str
    operator: str
    bytes: int
    """Of each."""
    count: int


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One traced rank; bytes."""

    rank: int
    pipeline_stage: int
    seconds: float
    num_microbatches: int
    """That the trace ran: enough for the real number in flight."""
    peak_bytes: int
    peak_phase: str
    """forward, backward or between."""
    by_category: dict[str, int]
    by_module: dict[str, dict[str, int]]
    """Module (layer numbers left out) -> category -> bytes at the peak; largest first."""
    state_bytes: int
    """Weights, gradient buffers, optimizer state and everything else that is alive before the first micro-batch."""
    after_bytes: int = 0
    """Alive after the last micro-batch: the state, and what the stack keeps from then on (caches, workspaces)."""
    saved_tensors: list[SavedTensor] = field(default_factory=list)


def request_text(request: TraceRequest) -> str:
    """The request as JSON."""
    body = {
        "schema_version": TRACE_SCHEMA_VERSION,
        "job": job_json(request.job),
        "ranks": list(request.ranks),
        "memory": to_json(request.memory),
        "copies_attention_output": request.copies_attention_output,
    }
    return json.dumps(body, allow_nan=False)


def read_request(text: str, where: str = "trace request") -> TraceRequest:
    """The request that `request_text` wrote. Raises InputError."""
    try:
        body = json.loads(text)
        version, job, ranks = body["schema_version"], json.dumps(body["job"]), tuple(body["ranks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: not a trace request ({error})") from None
    if version != TRACE_SCHEMA_VERSION:
        raise InputError(f"{where}: schema_version {version!r}; this version reads {TRACE_SCHEMA_VERSION}")
    memory = from_json(StackMemory, body.get("memory", {}), f"{where}.memory")
    copies = body.get("copies_attention_output") is True
    return TraceRequest(job=read_job_text(job, f"{where}.job"), ranks=ranks, memory=memory, copies_attention_output=copies)


def read_rank(values: dict[str, Any]) -> RankTrace:
    """One line of the trace's output."""
    saved = [from_json(SavedTensor, item, "saved tensor") for item in values.pop("saved_tensors", [])]
    return RankTrace(**values, saved_tensors=saved)


def pipeline_stage(plan: TrainPlan, rank: int) -> int:
    """Stage of a rank in Megatron's default order tp-cp-ep-dp-pp: the ranks of one stage are consecutive."""
    return rank // (plan.world_size // plan.pp)


def read_stages(text: str | None, plan: TrainPlan) -> tuple[int, ...]:
    """Pipeline stages to trace: `all`, or numbers like `0,3`; without a word the first, the one in the middle and the last.

    A stage between them holds the layers of a middle stage and fewer micro-batches than those before it, so the first bounds
    what it keeps. Raises InputError.
    """
    if text is None:
        return tuple(sorted({0, plan.pp // 2, plan.pp - 1}))
    if text.strip() == "all":
        return tuple(range(plan.pp))
    try:
        stages = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise InputError(f"{option('stages')} {text!r}: all, or numbers of pipeline stages like 0,{plan.pp - 1}") from None
    if odd := [stage for stage in stages if not 0 <= stage < plan.pp]:
        raise InputError(f"{option('stages')} {odd[0]}: the plan {plan} has the pipeline stages 0 to {plan.pp - 1}")
    return stages


def ranks_of_stages(plan: TrainPlan, stages: Sequence[int], *, both_ends: bool) -> tuple[int, ...]:
    """The first rank of each stage; with `both_ends` also the last one.

    Stages are distinct: each holds another number of micro-batches, or other layers, or the embedding or the head. The
    ranks of one stage are alike but for the rounding of shards, which its last rank shows.
    """
    per_stage = plan.world_size // plan.pp
    places = (0, per_stage - 1) if both_ends else (0,)
    return tuple(dict.fromkeys(stage * per_stage + place for stage in stages for place in places))
