"""`autoconfig check` of a serving start: does it start, what does it cache, what will it do at a load, what would be better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoconfig.engines.better import with_better
from autoconfig.engines.edit import diff_lines, edited, own_words
from autoconfig.engines.fields import Filled, IllegalValueError, fill, matters
from autoconfig.engines.flags import NO_SETTING, surely_refused
from autoconfig.engines.load import BetterStart, Load, LoadAnswer, answer_load, check_load
from autoconfig.engines.reading import ReadStart, file_beside, read_start, starts_server
from autoconfig.engines.refusals import asserted, refusal, too_few_gpus, ways_out
from autoconfig.formats.recognise import POST_TRAINING
from autoconfig.megatron.check_input import read_settings
from autoconfig.megatron.shell.launch import sbatch_words
from autoconfig.memory_model.engines.memory import engine_memory
from autoconfig.planning.request_fields import CHECK, CHECK_SERVING
from autoconfig.planning.resolve import check_bounds, field_names, field_values
from autoconfig.planning.work import MAX_CHARACTERS
from autoconfig.specs.engines.architectures import registered
from autoconfig.specs.engines.releases import newest_release
from autoconfig.specs.engines.start import EngineMemory, EngineStart
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.files import read_text, write_new
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping, load_cluster
from autoconfig.specs.remarks import Remark

WANTED = "a start command, a script, a Dockerfile, Kubernetes or compose YAML (docs/check.md)"


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """A start to check, and what the caller says instead of the file. None: as the file says."""

    model: str | Mapping[str, Any] | None = None
    like: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    cluster: str | Mapping[str, Any] | None = None
    release: str | None = None
    server: int | None = None
    isl: int | None = None
    osl: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    trace: Any = None
    settings: Mapping[str, str] = field(default_factory=dict)
    local_files: bool = True


@dataclass(frozen=True, kw_only=True)
class StartAnswer:
    """What is said of a start."""

    read: ReadStart
    filled: Filled
    memory: EngineMemory | None
    """None where the engine refuses the plan, whatever the memory."""
    starts: str
    """yes, no or uncertain."""
    why: str
    load: LoadAnswer | None = None
    ignored: tuple[str, ...] = ()
    """Settings that change nothing here."""
    ways_out: tuple[str, ...] = ()
    """Of a start that is refused: flags with values, each of which alone would make it start."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Flags with values, each of which alone would make it start."""
        return self.ways_out if self.memory is None else self.memory.changes

    @property
    def too_large(self) -> bool:
        """Whether it does not start for its memory, and nothing else is said to stop it."""
        return self.starts == "no" and self.memory is not None and self.memory.starts == "no"

    @property
    def start(self) -> EngineStart:
        """The record that was reckoned with."""
        return self.filled.start

    @property
    def release(self) -> str:
        """The release that was reckoned with."""
        return self.memory.release if self.memory is not None else self.read.release or newest_release(self.read.engine)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Flags that no release, or this one, has."""
        return self.read.unknown

    @property
    def not_modelled(self) -> tuple[Remark, ...]:
        """Settings that change memory or time and that no formula reads."""
        return self.filled.not_modelled

    @property
    def assumed(self) -> tuple[Remark, ...]:
        """What was taken where nothing was said."""
        return self.filled.assumed


def start_request(given: Mapping[str, Any]) -> StartRequest:
    """A StartRequest from what any edge was given, by the names of the fields. Raises InputError."""
    names = [one.name for one in (*CHECK, *CHECK_SERVING) if one.name in StartRequest.__dataclass_fields__]
    of_files = {*names, "set", "apply_to", "force"}
    said = [one.name for one in CHECK if one.name not in of_files and given.get(one.name) not in (None, (), [], one.default)]
    if said:
        raise InputError(f"{option(said[0])} is of training, and this file starts a server", field=said[0])
    fields = [one for one in (*CHECK, *CHECK_SERVING) if one.name in names]
    found = {name: value for name, value in field_values(fields, given).items() if value is not None}
    settings = given.get("set") or ()
    pairs = (
        dict(zip(settings, map(str, settings.values()), strict=True))
        if isinstance(settings, Mapping)
        else read_settings(settings)
    )
    request = StartRequest(settings=pairs, local_files=bool(given.get("local_files", True)), **found)
    check_bounds(fields, request)
    check_load(load_of(request))
    return request


def load_of(request: StartRequest) -> Load:
    """What is asked of the start."""
    return Load(
        isl=request.isl,
        osl=request.osl,
        rate=request.rate or 0.0,
        concurrency=request.concurrency or 0,
        trace=request.trace,
        local_files=request.local_files,
    )


def is_start(text: str) -> bool:
    """Whether a text is to be checked as a serving start: it starts a server, and no training beside it."""
    return len(text) <= MAX_CHARACTERS and starts_server(text) and POST_TRAINING.search(text) is None


def refuse_serving_fields(given: Mapping[str, Any]) -> None:
    """Raises InputError where fields of a serving start are said of another file."""
    said = [name for name in field_names(CHECK_SERVING) if given.get(name) is not None]
    if said:
        raise InputError(
            f"{option(said[0])} is of the start of a serving engine (vllm serve, sglang, trtllm-serve), and this file has none",
            field=said[0],
        )


def check_start(text: str, request: StartRequest, path: Path | None = None) -> StartAnswer:
    """The answer to a start's text; `path`: its file, where it is one, whose folder may hold the YAML that it names. Raises
    InputError: not read, no GPU, a model that nobody knows; UnsupportedError for a release that is not modelled."""
    illegal: dict[str, str] = {}
    while True:
        try:
            read, filled = read_and_fill(text, request, path, without=tuple(illegal))
            break
        except IllegalValueError as error:
            if error.setting in illegal:
                raise
            illegal[error.setting] = str(error)
    ignored = tuple(name for name in read.said if name not in matters(read.engine))
    if why := "; ".join(illegal.values()):
        return StartAnswer(read=read, filled=filled, memory=None, starts="no", why=why, ignored=ignored)
    known, why = registered(read.engine, read.release, filled.architectures)
    if known == "no":
        return StartAnswer(read=read, filled=filled, memory=None, starts="no", why=why, ignored=ignored)
    if why := refusal(filled.start):
        out = tuple(ways_out(filled.start))
        return StartAnswer(read=read, filled=filled, memory=None, starts="no", why=why, ignored=ignored, ways_out=out)
    why, out = asserted(read, filled.start)
    if why:
        return StartAnswer(read=read, filled=filled, memory=None, starts="no", why=why, ignored=ignored, ways_out=out)
    memory = engine_memory(filled.start)
    starts, why = _verdict(read, filled, memory, request.gpus)
    answer = StartAnswer(read=read, filled=filled, memory=memory, starts=starts, why=why, ignored=ignored)
    load = load_of(request)
    if not load.asked:
        return answer
    every, named = read.value_or("scheduler-recv-interval", 1), filled.model_name
    found = answer_load(filled.start, memory, load, every, named)
    found = with_better(found, filled.start, memory, load, every, named)
    if found.better is not None:
        found = replace(found, better=_in_own_words(found.better, text, read, request, path))
    return replace(answer, load=found)


def _in_own_words(better: BetterStart, text: str, read: ReadStart, request: StartRequest, path: Path | None) -> BetterStart:
    """The better start with flags as the file spells them and, where the file so changed reads as that start, its diff."""
    own = replace(better, changes=tuple(own_words(read, better.changes)))
    new = edited(text, read, better.changes)
    try:
        if new is None or _again(new, request, path) != better.start.replace(checkpoint=None):
            return own
    except InputError:
        return own
    return replace(own, diff=diff_lines(text, new), text=new)


def _again(text: str, request: StartRequest, path: Path | None) -> EngineStart:
    """The start of a changed file, without its checkpoint, which no change of flags changes."""
    return read_and_fill(text, request, path)[1].start.replace(checkpoint=None)


def read_and_fill(
    text: str, request: StartRequest, path: Path | None = None, without: Sequence[str] = ()
) -> tuple[ReadStart, Filled]:
    """A start's settings, and its record; `without`: settings that the record leaves out. Raises as `check_start`, and
    IllegalValueError for a value that the engine refuses."""
    beside = file_beside(path) if path is not None and request.local_files else lambda name: None
    read = read_start(text, request.settings, request.release, request.server, beside)
    cluster = None if request.cluster is None else _cluster(request)
    filled = fill(
        replace(read, said={name: one for name, one in read.said.items() if name not in without}),
        model=request.model,
        gpu=request.gpu if cluster is None else replace(cluster.gpu, memory_bytes=cluster.memory_bytes),
        gpus_per_node=request.gpus_per_node if cluster is None else cluster.gpus_per_node,
        local_files=request.local_files,
        like=request.like,
        sbatch=list(sbatch_words(text)),
    )
    return read, filled


def _cluster(request: StartRequest) -> ClusterSpec:
    """The described hardware. Raises InputError, FileError."""
    if request.gpu is not None or request.gpus_per_node is not None:
        names = f"{option('gpu')} and {option('gpus_per_node')}"
        raise InputError(f"give either {option('cluster')} or {names}: the file has keys for them", field="cluster")
    if not isinstance(request.cluster, str):
        return cluster_from_mapping(dict(request.cluster or {}), request.gpus)
    if not request.local_files:
        raise InputError("cluster must be a JSON object (the keys of docs/examples/cluster.json), not the name of a file")
    return load_cluster(request.cluster, request.gpus)


def _verdict(read: ReadStart, filled: Filled, memory: EngineMemory, gpus: int | None = None) -> tuple[str, str]:
    """(yes, no or uncertain, why): settings that nobody has seen leave it open."""
    if read.missing:
        names = ", ".join(read.missing)
        return "uncertain", f"{names}, which the command names, is not here: settings in it may change everything"
    if too_few := _too_few(read, filled.start, gpus):
        return "no", too_few
    flags = [text for text in read.unknown if text.startswith("-") or NO_SETTING in text or " is a setting of " in text]
    if flags and memory.starts != "no":
        return "no" if any(map(surely_refused, flags)) else "uncertain", f"{UNKNOWN} {'; '.join(flags)}"
    known, why = registered(read.engine, read.release, filled.architectures)
    if known == "uncertain" and memory.starts != "no":
        return known, why
    return memory.starts, memory.why


def _too_few(read: ReadStart, start: EngineStart, gpus: int | None) -> str:
    """Why the GPUs that are there, that the command sees or that its container has do not suffice; empty where they do."""
    have, seen, need = read.gpus, read.visible_gpus, start.gpus
    if gpus is not None and need > gpus:
        return f"the command asks for {need} GPUs (tp x pp x dp), and there are {gpus}"
    if seen is not None and need > seen and not _over_nodes(read):
        return too_few_gpus(start, seen)
    if have is not None and need > have and not _over_nodes(read):
        return f"the command asks for {need} GPUs (tp x pp x dp), and the file gives the container {have}"
    return ""


UNKNOWN = "The engine refuses what it does not know:"


def _over_nodes(read: ReadStart) -> bool:
    """Whether the start may have more GPUs than its container: of several nodes, or of Ray's workers."""
    ranks = ("data-parallel-size-local", "data-parallel-rank", "data-parallel-address", "data-parallel-backend")
    names = ("nnodes", "node-rank", "distributed-executor-backend", "pipeline-parallel-size", *ranks)
    return any(name in read.said for name in names)


def check_start_file(path: Path, request: StartRequest) -> StartAnswer:
    """Check the file at `path`. Raises as `check_start`, and FileError."""
    return check_start(read_text(path, WANTED), request, path)


def write_better(answer: StartAnswer, path: Path, *, force: bool) -> None:
    """Write the file with the flags of the better start. Raises InputError where there is none, or none that the file has a
    place for, FileError where `path` is there already (without `force`) or cannot be written."""
    if answer.load is None:
        raise InputError(
            f"{option('apply_to')} writes the better start at a load: say {option('concurrency')} or {option('rate')}"
        )
    if answer.load.better is None:
        raise InputError(f"{option('apply_to')}: no other layout of these GPUs and no other flag does more at this load")
    if not answer.load.better.text:
        changes = "; ".join(" ".join(filter(None, change)) for change in answer.load.better.changes)
        raise InputError(f"{option('apply_to')}: the file has no place for what changes ({changes}); change it by hand")
    write_new(path, answer.load.better.text, force=force)
