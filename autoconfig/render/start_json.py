"""The answer of `check` to a serving start as a JSON record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from autoconfig.engines.check import StartAnswer
from autoconfig.engines.load import LoadAnswer, running_plan
from autoconfig.specs.engines.start import ENGINES, EngineMemory, MemoryPart
from autoconfig.specs.json_record import Keywords, Natural, NotNegative, Positive, record_of
from autoconfig.specs.remarks import AssumedJson, RemarkJson, assumed_json, records, sentences


@dataclass(frozen=True, kw_only=True)
class FlagDifferenceJson:
    """A flag in which another start differs."""

    flag: str
    before: str
    """Empty where it is not given."""
    after: str
    """Empty where it is not given; on: a switch."""


@dataclass(frozen=True, kw_only=True)
class BetterStartJson:
    """Another start on the same GPUs, which does more at the same load and answers the same."""

    changes: tuple[FlagDifferenceJson, ...]
    """With flags as the file spells them."""
    ttft_ms: NotNegative
    tpot_ms: NotNegative
    tokens_per_s: NotNegative
    """Output tokens of the deployment."""
    kv_tokens: Natural
    diff: tuple[str, ...]
    """Lines of the file that go (-) and come (+), read again as this start; empty where the file has no place for them."""


@dataclass(frozen=True, kw_only=True)
class StartHintJson:
    """A change beyond the better start (else the file's) that does more and is not for nothing."""

    change: str
    """Flags, or the checkpoint."""
    why: str
    """What it costs, or rests on."""
    ttft_ms: NotNegative
    tpot_ms: NotNegative
    tokens_per_s: NotNegative


@dataclass(frozen=True, kw_only=True)
class LoadJson:
    """What the start does at a load: means over requests, of the whole deployment."""

    isl: NotNegative
    """Input tokens of a request; with a concurrency the most."""
    osl: NotNegative
    rate: NotNegative
    """Requests per second that arrive; 0: a closed loop."""
    concurrency: Natural
    """Users of a closed loop; 0: arrivals at the rate."""
    ttft_ms: NotNegative | None
    """Null where the load cannot be served; `note` says why."""
    tpot_ms: NotNegative | None
    ttft_range_ms: tuple[float, float] | None
    """Least and most of the mean where the load is 0.9 to 1.1 of the capacity; null elsewhere; so for the next."""
    tpot_range_ms: tuple[float, float] | None
    tokens_per_s: NotNegative | None
    """Output tokens."""
    percentiles: dict[str, dict[str, float]]
    """ttft_ms and tpot_ms: p50, p90, p95, p99 of the simulated requests."""
    row: dict[str, str]
    """The row of `autoconfig predict --inference` that gives the same figures."""
    note: str
    better: BetterStartJson | None
    """Null where neither another layout nor another flag does more."""
    hints: tuple[StartHintJson, ...]
    """Best first: a cache in 8 bits, drafts of the checkpoint's own module, a quantised checkpoint."""


@dataclass(frozen=True, kw_only=True)
class StartPlanJson:
    """How the start spreads over GPUs, in the engine's words."""

    tp: Positive
    pp: Positive
    dp: Positive
    ep: Positive
    attention_dp: bool
    """Data parallelism of attention inside of tp."""
    gpus: Positive
    """Of the deployment."""
    short: str
    """The same as `deployments` writes it: it may be given to --include."""


@dataclass(frozen=True, kw_only=True)
class SettingJson:
    """A setting of the command."""

    name: str
    value: str
    source: str
    """The flag as it stands, or the key and its file."""


@dataclass(frozen=True, kw_only=True)
class StartJson(AssumedJson):
    """Whether the start of a serving engine starts, what its memory holds, and what it does at a load."""

    schema_version: Literal[2] = 2
    """Raised when a name or meaning changes."""
    kind: Annotated[str, Keywords(enum=["start"])] = "start"
    """What the file is."""
    engine: Annotated[str, Keywords(enum=ENGINES)]
    release: str
    """That was reckoned with; empty where none was asked and the plan is refused."""
    release_source: str
    model: str
    """As the command, or the caller, names it."""
    gpu: str
    plan: StartPlanJson
    starts: Annotated[str, Keywords(enum=["yes", "no", "uncertain"])]
    why: str
    """The engine's own message, or what makes it uncertain; empty where it starts."""
    weights_gib: NotNegative | None
    """Of a GPU. Null, as the following, where the engine refuses the plan whatever the memory."""
    weights: str
    """How they are stored."""
    kv_pool_gib: float | None
    """Of a GPU."""
    kv_tokens: Natural | None
    """Of the deployment."""
    blocks: Natural | None
    """Of one rank."""
    block_size: Natural | None
    """Tokens."""
    groups: tuple[str, ...]
    """Layers whose cache is managed together."""
    sequence_gib: NotNegative | None
    """Of one sequence of max_model_len, on a GPU."""
    max_concurrency: NotNegative | None
    """Sequences of max_model_len that one rank's cache holds."""
    max_model_len: Natural | None
    longest_max_model_len: Natural | None
    """The longest that starts; 0: none does."""
    max_num_seqs: Natural | None
    """Of one rank."""
    max_num_batched_tokens: Natural | None
    memory_fraction: NotNegative | None
    least_fraction: NotNegative | None
    """The smallest memory share that starts; null: none does, or it does not decide."""
    binds: str
    """What limits the sequences at once: seqs, pool or states."""
    margin_gib: float | None
    """GiB to the edge, positive where it starts; within band_gib the verdict is uncertain."""
    band_gib: NotNegative | None
    parts: tuple[MemoryPart, ...]
    """Of a GPU, with the source of each."""
    changes: tuple[str, ...]
    """Flags, each of which alone would make it start."""
    load: LoadJson | None
    """Null where no load was asked."""
    settings: tuple[SettingJson, ...]
    """Everything that the command says."""
    other_servers: tuple[str, ...]
    """Further servers that the same file starts."""
    unknown_arguments: tuple[str, ...]
    """Flags that the engine, or this release of it, does not have: it refuses them."""
    not_modelled_arguments: tuple[str, ...]
    """Settings that change memory or time and that no formula reads."""
    not_modelled: tuple[RemarkJson, ...]
    """The same as records."""
    ignored_arguments: tuple[str, ...]
    """Settings without effect on the answer."""
    notes: tuple[str, ...]
    """What the reading of a script left out, with its line."""


def _load_json(load: LoadAnswer) -> LoadJson:
    better = None
    if load.better is not None:
        changes = tuple(FlagDifferenceJson(flag=flag, before=old, after=new) for flag, old, new in load.better.changes)
        better = record_of(BetterStartJson, load.better, changes=changes)
    hints = tuple(StartHintJson(**vars(hint)) for hint in load.hints)
    return record_of(LoadJson, load, row=dict(load.row), better=better, hints=hints)


def start_json(answer: StartAnswer) -> StartJson:
    """The whole answer of `check` to a serving start."""
    start, memory, read = answer.start, answer.memory, answer.read
    settings = (SettingJson(name=name, value=str(one.value), source=one.source) for name, one in read.said.items())
    return StartJson(
        engine=read.engine,
        release=answer.release,
        release_source=read.release_source,
        model=answer.filled.model_name,
        gpu=start.gpu.id,
        plan=record_of(StartPlanJson, start, short=str(start.plan if memory is None else running_plan(start, memory))),
        starts=answer.starts,
        why=answer.why,
        weights=weights_text(answer),
        **_memory(memory),
        changes=answer.changes,
        load=None if answer.load is None else _load_json(answer.load),
        settings=tuple(settings),
        other_servers=read.others,
        unknown_arguments=answer.unknown,
        not_modelled_arguments=sentences(answer.not_modelled),
        not_modelled=records(answer.not_modelled),
        ignored_arguments=answer.ignored,
        notes=read.notes,
        **assumed_json(answer.assumed),
    )


_OF_MEMORY = (
    *("weights_gib", "kv_pool_gib", "kv_tokens", "block_size", "sequence_gib", "max_model_len", "longest_max_model_len"),
    *("max_num_seqs", "max_num_batched_tokens", "memory_fraction", "least_fraction", "margin_gib", "band_gib"),
)
"""Figures of a start's memory that the answer holds as they are."""


def _memory(memory: EngineMemory | None) -> dict[str, Any]:
    """The fields of `StartJson` about memory; None, or empty, where nothing is known of it."""
    if memory is None:
        nothing = dict.fromkeys((*_OF_MEMORY, "blocks", "max_concurrency"))
        return {**nothing, "groups": (), "parts": (), "binds": ""}
    figures = {name: getattr(memory, name) for name in _OF_MEMORY}
    bounded = {"blocks": max(memory.blocks, 0), "max_concurrency": max(memory.max_concurrency, 0.0)}
    return {**figures, **bounded, "groups": memory.groups, "parts": memory.parts, "binds": memory.binds}


def weights_text(answer: StartAnswer) -> str:
    """How the weights are stored, each kind of module by its format."""
    start = answer.start
    if start.checkpoint is None and not start.weights:
        formats = start.formats
        main = {formats.attention, formats.mlp, formats.experts}
        if main == {"bf16"}:
            return "16 bits"
    formats = start.formats
    kinds = [("attention", formats.attention), ("MLP", formats.mlp)]
    kinds += [("experts", formats.experts)] if start.model.is_moe else []
    said = ", ".join(f"{name} {form or 'bf16'}" for name, form in kinds)
    return f"{start.checkpoint}: {said}" if start.checkpoint is not None else said
