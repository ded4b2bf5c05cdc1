"""Records of what a run left behind; every reader of this package makes them, and none says what they mean.

Seconds, GiB (2**30 bytes), watts, MHz and shares between 0 and 1, whatever the tool printed. None: the tool did not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

MOST_TEXT = 200
"""Characters of a line that are kept."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a fact stands."""

    file: str
    """Name as given."""
    line: int | None = None
    """From 1; None in a trace or a database."""
    text: str = ""
    """The line, without colours and at most MOST_TEXT characters of it."""

    def saying(self, text: str) -> Origin:
        """The file, with what was computed from it."""
        return Origin(file=self.file, text=text)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file that was given, and what was made of it."""

    name: str
    kind: str
    """log, nccl-tests, nvml, kineto, nsys, launch (a script or configuration: left to the readers of `formats`)."""
    formats: tuple[str, ...] = ()
    """Names of data/log_lines.toml that read a line of it, most lines first."""
    lines_read: int = 0
    """Lines that a format read; events of a trace."""
    lines_not_understood: int = 0
    window: str = ""
    """What is covered: `steps 14 to 200`, `2 steps of rank 0`."""
    remarks: tuple[str, ...] = ()
    """Truncated, restarted, several ranks: said where the file is listed."""


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """What a line says of one step, or of the mean of the steps since the line before it.

    Several lines may speak of the same step: of other ranks, or one figure each.
    """

    origin: Origin
    format: str
    """Name of data/log_lines.toml."""
    step: int | None = None
    steps_total: int | None = None
    rank: int | None = None
    start: int = 0
    """How often the program had begun again before, by what it prints at its start."""
    seconds: float | None = None
    """Of one step."""
    running_mean: bool = False
    """Mean from the start of the run, warm-up, evaluation and saves in it: Hugging Face, ms-swift, DeepSpeed's RunningAvg."""
    at: float | None = None
    """Time of day that the line prints: seconds since 1970, read as UTC."""
    elapsed: float | None = None
    """Seconds since the start of the run, as printed."""
    tokens_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    """Of the whole job."""
    samples_per_s: float | None = None
    """Of the whole job."""
    tflops_per_gpu: float | None = None
    """As printed; by which formula, the tool says."""
    mfu: float | None = None
    memory_gib: float | None = None
    memory_share: float | None = None
    """Of the device."""
    samples: int | None = None
    """Consumed so far."""
    tokens: int | None = None
    """Consumed so far."""
    batch_size: int | None = None
    """Sequences of a step."""
    unread: bool = False
    """It prints a time of its step that cannot be read (`nan`)."""
    skipped: int | None = None
    """Iterations skipped so far (loss scale, NaN)."""
    power_watts: float | None = None
    energy_joules: float | None = None
    """Of a GPU and step."""
    fields: dict[str, float] = field(default_factory=dict)
    """Other figures of the line, in the format's own words and units."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A step that took much longer than the others."""

    step: int | None
    seconds: float
    excess: float
    """Seconds above the median step."""


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """Of the steps of one file after its warm-up."""

    count: int
    """Lines behind the median."""
    steps: float
    """Steps that they are of."""
    first: int | None
    last: int | None
    """Numbers of the first and last step that count."""
    warmup_dropped: int
    """Lines of the warm-up of all starts."""
    warmup_s: float = 0.0
    """Seconds that the longest of them took more than settled ones, all its steps together."""
    median_s: float
    p10: float
    p90: float
    robust_sd: float
    """1.4826 times the median deviation from the median, over the median."""
    drift: float
    """Median of the second half over that of the first, less 1."""
    slope: float
    """Growth over the window by the median of slopes (Theil and Sen), over the median."""
    growing: bool
    """The steps get slower by 5 % or more within the window, steadily or by one jump that lasts, and not by noise."""
    rising: bool = False
    """Each step is slower than the one before, and not by one of them alone."""
    growth_s: float = 0.0
    """Mean of the steps' level over `start_s`, less that: what growth costs a step of the window."""
    start_s: float = 0.0
    """Median of the first steps that count: before the jump where there is one, else of the first tenth."""
    jump: int | None = None
    """Number of the first step of a higher level, where growth is one jump; None where it is none, or lines have no numbers."""
    jump_s: float = 0.0
    """What each step behind the jump takes more."""
    starts: tuple[float, ...] = ()
    """Numbers of the first steps that count of each further start of the program."""
    by_clock: bool = False
    """No line prints a step's time: what passes between lines stands for it."""
    mean_s: float
    """With warm-up and pauses."""
    warming_up: bool = False
    """Only the first steps of the run are known."""
    mean_includes_warmup: bool
    """What the run printed is a mean over warm-up, too: no series to take it out of."""
    pauses: tuple[Pause, ...] = ()
    pause_period: float | None = None
    """Steps between pauses, where they come at a period; None where they drift or are too few."""
    outside_s: float | None = None
    """Seconds a step that the clock counts and no step holds: evaluation, checkpoints, pauses. None without times of day."""
    resolution: float = 0.0
    """Relative rounding of the printed figures."""


@dataclass(frozen=True, kw_only=True)
class Interlude:
    """What a run does between two steps, as its log says."""

    origin: Origin
    kind: str
    """checkpoint, evaluation."""
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Timer:
    """A timer of a step: Megatron's, DeepSpeed's and InternEvo's."""

    origin: Origin
    name: str
    """As printed."""
    seconds_min: float
    seconds_max: float
    """Over ranks; equal where one figure is printed."""
    by_rank: dict[int, float] = field(default_factory=dict)
    step: int | None = None
    level: int | None = None
    """Of Megatron's --timing-log-level that prints it; level 2 synchronises around each part: such a step is no measurement."""


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """The caching allocator of a rank, as printed."""

    origin: Origin
    rank: int | None = None
    step: int | None = None
    allocated_gib: float | None = None
    max_allocated_gib: float | None = None
    reserved_gib: float | None = None
    max_reserved_gib: float | None = None
    device_used_gib: float | None = None
    device_gib: float | None = None
    retries: int | None = None
    """Since the start of the process, as torch counts them."""
    since_last: bool = False
    """`retries` are those since the line before it."""


@dataclass(frozen=True, kw_only=True)
class LinkFact:
    """What NCCL or nccl-tests says of the network."""

    origin: Origin
    kind: str
    """network (which is used), nodes (of a communicator), interface (devices that it found), no_device, transport (via what
    channels go; each kind once), gpu_direct, version, bandwidth (of a test)."""
    value: str = ""
    """`Socket`, `IB`, `NET/IB/0/GDRDMA`, `P2P/CUMEM`, `SHM/direct/direct`, `Disabled`; of a bandwidth what it is of."""
    rank: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    bus_bytes_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of the environment that a log shows."""

    origin: Origin
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Warned:
    """What a library warns of itself: that it falls back to something slower."""

    origin: Origin
    kind: str
    """plain_torch_layers, unfused_attention, recompile_limit, preempted; straggler, cpu_throttled of what watches a run."""
    count: int | None = None
    """Events so far, as the last line says them, else lines of the kind."""


@dataclass(frozen=True, kw_only=True)
class TrainingSign:
    """What a line shows of the kind of training."""

    origin: Origin
    kind: str
    """loss (of any), adapters, preferences, reinforcement, fine-tuning."""


@dataclass(frozen=True, kw_only=True)
class ClockSample:
    """A GPU as nvidia-smi, DCGM or our own sampler saw it."""

    origin: Origin
    gpu: int | None = None
    name: str = ""
    """As the driver names it; empty: not said."""
    at: float | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    power_watts: float | None = None
    limit_watts: float | None = None
    own_watts: float | None = None
    """The limit that the driver has by default."""
    temperature_c: float | None = None
    utilization: float | None = None
    memory_used_gib: float | None = None
    reasons: frozenset[str] = frozenset()
    """Why the clock is lowered: power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake, sync_boost, application, idle."""


@dataclass(frozen=True, kw_only=True)
class StackSample:
    """What a thread of Python did at a moment, or how long it was in a function."""

    origin: Origin
    frames: tuple[str, ...]
    """`name (file:line)`, the innermost first; of py-spy top one function."""
    seconds: float | None = None
    """In the function and what it calls; None: one moment."""


@dataclass(frozen=True, kw_only=True)
class SlowestRank:
    """The least and largest value of a figure and whose they are: Megatron's straggler line (--log-straggler), scores of
    NVIDIA's resiliency extension."""

    origin: Origin
    figure: str
    """step_seconds, power_watts, temperature_c, utilization, sm_mhz, tflops; relative_performance and individual_performance of
    NVIDIA's resiliency extension."""
    least: float
    least_rank: int
    most: float
    most_rank: int


@dataclass(frozen=True, kw_only=True)
class PhaseSeconds:
    """A phase of a step of reinforcement learning, or another named part of a step."""

    origin: Origin
    name: str
    """As printed: `timing_s/gen` of verl is `gen`, `generation` of NeMo-RL."""
    seconds: float
    step: int | None = None
    share: float | None = None
    """As printed."""


@dataclass(frozen=True, kw_only=True)
class EngineLine:
    """A line of an inference engine's own counters."""

    origin: Origin
    engine: str
    """vllm or sglang."""
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_cache_share: float | None = None
    preempted: int | None = None
    """Sequences since the line before (v1), or that wait swapped out (v0)."""
    prefix_hit_share: float | None = None
    accept_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A row of torch.profiler's table."""

    origin: Origin
    name: str
    seconds: float
    """Of the device itself; of the two rows of totals also the host's. 0 where the table is of the host alone."""
    share: float
    """Of the device's time."""
    calls: int
    host_share: float = 0.0
    """Of the host's time, in the call itself."""
    host_total_share: float = 0.0
    """Of the host's time, with what it calls."""
    part: str
    """As in TraceParts.parts; "" for an operator of torch or a kernel that is not known."""


@dataclass(frozen=True, kw_only=True)
class CollectiveUse:
    """Collectives of one kind in one group, in one rank's trace; over all steps of it."""

    name: str
    """all_gather, reduce_scatter, all_reduce, send_recv, all_to_all, broadcast, other."""
    group: str
    """tp, cp, dp, ep, pp, fsdp as far as the trace says it, its own description otherwise, "" without one."""
    ranks: int | None
    count: int
    seconds: float
    exposed_s: float
    """While no compute kernel ran."""
    size_bytes: float | None = None
    """Sum of the messages (the larger side of each), where the trace says it."""


@dataclass(frozen=True, kw_only=True)
class TraceParts:
    """One rank's trace by what the GPU did. `parts` and `idle` add up to `span_s`: each instant is counted once.

    Computation is named first, then communication that no computation hides, then copies, then idleness by its cause.
    """

    origin: Origin
    rank: int | None
    world_size: int | None
    device: str
    steps: int
    """Whole steps that the trace holds; 0: it says nothing of steps, and `span_s` is all of it."""
    span_s: float
    """Of these steps together."""
    step_seconds: tuple[float, ...]
    parts: dict[str, float]
    """Names of `explain` (gemm_seconds, flash_attention_seconds, tp_communication_seconds, ...), and: unfused_attention,
    cast, copy, communication (of a group that the trace does not say), unknown. Communication: exposed seconds only."""
    idle: dict[str, float]
    """late_launch, synchronization, data, allocation, waiting, between_kernels, step_boundary, unknown."""
    collectives: tuple[CollectiveUse, ...] = ()
    kernel_seconds: float = 0.0
    """Of all kernels, each by itself."""
    unknown_kernel_share: float = 0.0
    """Of `kernel_seconds`."""
    unknown_kernels: tuple[tuple[str, float], ...] = ()
    """(name, seconds), longest first, at most 10."""
    launches: int = 0
    """Kernels that the host launched one by one; of the steps together."""
    graph_launches: int = 0
    synchronizations: int = 0
    allocations: int = 0
    """cudaMalloc and cudaFree inside steps."""
    collections_s: float = 0.0
    """Seconds in Python's garbage collector, where the trace shows Python."""
    names: frozenset[str] = frozenset()
    """Fallbacks seen: softmax_kernel, fp32_gemm, eager_norm, scalar_loop_scan."""

    def part(self, name: str) -> float:
        """Seconds of a part for each step of the trace."""
        return (self.parts.get(name, 0.0) + self.idle.get(name, 0.0)) / max(1, self.steps)

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return self.span_s / max(1, self.steps)


@dataclass(frozen=True, kw_only=True)
class LastArrival:
    """How often one rank came last to collectives that several traces hold: its own kernel is the shortest."""

    rank: int
    collectives: int
    """That the ranks have in common."""
    last: int
    others_waited_s: float
    """Median wait of the other ranks, summed over the collectives that it came last to."""


@dataclass(frozen=True, kw_only=True)
class DumpedPlan:
    """The arguments that a log of Megatron-LM prints at its start."""

    origin: Origin
    text: str
    """The lines of them: `formats.check.read_any` reads them as `check` does."""
    world_size: int | None
    values: dict[str, str] = field(default_factory=dict)
    """As printed, by argument's name with underscores."""


@dataclass(frozen=True, kw_only=True)
class LogHost:
    """A host whose NCCL wrote to the log, with its first line."""

    origin: Origin
    name: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that the files hold, in the order of the files."""

    files: tuple[SourceFile, ...] = ()
    steps: tuple[StepLine, ...] = ()
    interludes: tuple[Interlude, ...] = ()
    timers: tuple[Timer, ...] = ()
    memory: tuple[MemoryLine, ...] = ()
    links: tuple[LinkFact, ...] = ()
    hosts: tuple[LogHost, ...] = ()
    variables: tuple[Variable, ...] = ()
    warnings: tuple[Warned, ...] = ()
    """The first of each kind."""
    trainings: tuple[TrainingSign, ...] = ()
    """The first of each kind."""
    clocks: tuple[ClockSample, ...] = ()
    slowest: tuple[SlowestRank, ...] = ()
    stacks: tuple[StackSample, ...] = ()
    phases: tuple[PhaseSeconds, ...] = ()
    engines: tuple[EngineLine, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    traces: tuple[TraceParts, ...] = ()
    arrivals: tuple[LastArrival, ...] = ()
    plans: tuple[DumpedPlan, ...] = ()
    """At most one of each file."""

    def of_file(self, name: str) -> Evidence:
        """What one file holds."""
        kinds: dict[str, Any] = {
            kind: tuple(record for record in getattr(self, kind) if record.origin.file == name) for kind in WITH_ORIGIN
        }
        return replace(self, files=tuple(file for file in self.files if file.name == name), arrivals=(), **kinds)


WITH_ORIGIN = tuple(one.name for one in fields(Evidence) if one.name not in ("files", "arrivals"))
"""Fields of Evidence whose records say where they stand."""
