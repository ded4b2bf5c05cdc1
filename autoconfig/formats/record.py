"""From what a trainer's file says, in its own words, to the record that `autoconfig check` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.formats.words import header_of
from autoconfig.maps.table import Map
from autoconfig.maps.tree import Section, load_json, load_yaml
from autoconfig.megatron.check_input import (
    CheckInput,
    CheckRequest,
    from_script,
    question_of,
    require_format,
)
from autoconfig.megatron.read import with_positions
from autoconfig.megatron.read_vocabulary import model_in
from autoconfig.megatron.shell.commands import Piece, Value, plain_value
from autoconfig.megatron.shell.script import Script
from autoconfig.planning.export_files import priced_in
from autoconfig.planning.resolve import read_cluster
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import load_model, resolve_model
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Numerics, Scenario, Workload
from autoconfig.specs.software.optimizers import is_adam
from autoconfig.specs.software.software import SoftwareStack, StackOptions, load_stack, with_options
from autoconfig.training.numerics import usual_dropout
from autoconfig.training.plan_rules import PipelineSplit
from autoconfig.training.question import Request
from autoconfig.training.space import Constraints
from autoconfig.training.switches import read_switches

Flags = Mapping[str, tuple[str, ...]]
Spell = Callable[[Scenario, TrainPlan], dict[str, tuple[str, ...]]]


FILLED_IN = ("deepspeed", "accelerate", "llama-factory")
"""Formats whose `auto` another program fills in."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file that was recognised."""

    format: str
    text: str
    values: Any
    """Its values; for scripts and Python None."""
    request: CheckRequest
    launch: Document | None = None
    """What accelerate is told: by the file that `export` wrote with this one, or by a command."""
    opened: Callable[[str], str | None] = lambda name: None
    """The text of the file of this name that lies with this one; None where there is none."""

    def beside(self, name: str) -> Document | None:
        """A file that this one names, in YAML or JSON, where it lies with it. Raises InputError where it cannot be read."""
        text = self.opened(name)
        if text is None:
            return None
        try:
            values = load_json(text) if text.lstrip().startswith("{") else load_yaml(text)
        except InputError as error:
            raise InputError(f"{name[:60]} beside it cannot be read: {error}") from error
        request = replace(self.request, settings={})  # nothing but itself says its values
        return replace(self, format="accelerate", text=text, values=values, request=request, launch=None)

    def section(self, path: str = "") -> Section:
        """The mapping at a dotted path, empty where there is none."""
        values = self.values
        for key in filter(None, path.split(".")):
            values = values.get(key) if isinstance(values, dict) else None
        words = frozenset({"auto", "???"} if self.format in FILLED_IN else {"???"})
        mapping = values if isinstance(values, dict) else {}
        return Section(mapping, self.text, self.request.settings, open_words=words, prefix=path)


@dataclass(kw_only=True)
class TrainerRun:
    """A run in the words of a plan; what a file leaves out has the trainer's default."""

    model: ModelSpec
    software: str
    gpus: int | None
    micro_batch: int
    seq_length: int
    decoder_seq_length: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None
    schedule_samples: int | None = None
    """Samples of one replica in one run of the pipeline's schedule, which a larger batch repeats; None: all of a step's."""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    dist_opt: bool = False
    fsdp: int = 0
    offload: float = 0.0
    recompute: Recompute = NONE
    packed_length: int | None = None
    split: PipelineSplit | None = None
    """Where the trainer places the layers itself."""
    options: StackOptions = field(default_factory=StackOptions)
    """Kernels and compilation that the file names."""
    numerics: Mapping[str, Any] = field(default_factory=dict)
    """What the file says; gradients are reduced as the software does where it does not say."""
    assumed: list[Remark] = field(default_factory=list)
    ways: Mapping[str, str] = field(default_factory=dict)
    """The file's words for what may be changed beside the plan: CheckInput.ways."""
    not_modelled: list[Remark] = field(default_factory=list)
    table: Map
    """The map by which the file was read, which knows its harmless keys; others that nothing reads are named as unknown."""


def model_named(
    document: Document,
    name: str | None,
    assumed: list[Remark],
    missing: str = "the file names no model",
    *,
    whole: bool = False,
) -> ModelSpec:
    """The model of --model, else the catalogue's of this name, or (but for `whole` names, which end in a size that counts) the
    one that the name begins with; no path of the file is opened. Raises InputError."""
    if document.request.model is not None:
        model, notes = resolve_model(document.request.model, like=document.request.like)
        assumed += [*notes, Remark("model", model.name, "", Effect.EVERYTHING)]
        return model
    if document.request.like is not None:
        raise InputError(f"{option('like')} is for a config.json: say {option('model')} config.json, too")
    if not name:
        raise InputError(f"{missing}: say --model NAME (see `autoconfig models`) or --model config.json")
    try:
        model = load_model(name)
    except InputError:
        begun = None if whole else model_in(name)
        if begun is None:
            raise InputError(
                f"model {name[:80]!r}: the catalogue does not hold it, and no file that another file names is opened: say "
                "--model NAME, or --model with the path of its config.json"
            ) from None
        model = begun
    assumed.append(Remark("model", model.name, f"which {name[:80]!r} names", Effect.EVERYTHING))
    return model


def other_optimizer(section: Section, *paths: str) -> str:
    """The optimizer that the file names, where its state is another one than Adam's two moments; else empty."""
    name = section.word(*paths) or ""
    return "" if not name or is_adam(name) else name


def record(
    document: Document, run: TrainerRun, section: Section, spell: Spell | None = None, wish: Constraints | None = None
) -> CheckInput:
    """Return the record of a trainer's file. Raises InputError for contradictions and what is missing."""
    request, assumed = document.request, run.assumed
    if request.core_release is not None:
        raise InputError(f"{option('core_release')} is for megatron-core, and this file is for another trainer; drop it")
    question = _question(document, run)
    cluster = read_cluster(question, assumed)
    dp = max(1, cluster.num_gpus // (run.tp * run.pp * run.cp))
    batch = request.global_batch_size or _global_batch(run, dp, assumed)
    seq = request.seq_length or run.seq_length
    workload = _workload(run, seq, batch, _schedule_calls(run, dp, batch, assumed))
    model = with_positions(run.model.replace(mtp_num_layers=0), seq, assumed)  # no trainer but Megatron's has these layers
    stack = with_options(load_stack(request.software or _priced_as(document, run.software)), run.options)
    if request.software is None:
        assumed.append(Remark("software", stack.name, "", Effect.EVERYTHING))
    numerics = _numerics(run, model, stack)
    require_format(cluster.gpu, numerics)
    scenario = Scenario(
        model=model,
        cluster=cluster,
        numerics=numerics,
        software=stack,
        workload=workload,
        given=read_switches(request.switches, model, numerics),
    )
    unread = (path for path in section.unused() if section.flat[path] is not None)
    ignored, unknown = unread_in(section, run.table, unread)
    return CheckInput(
        kind=document.format,
        question=question_of(scenario, tuple(assumed), replace(question, software=stack.name)),
        plan=_plan(run, dp),
        split=run.split,
        unknown=unknown,
        not_modelled=tuple(run.not_modelled),
        notes=(),
        ignored=ignored,
        text=document.text,
        script=None,
        spelled=spell,
        wish=wish,
        ways=run.ways,
    )


def _question(document: Document, run: TrainerRun) -> Request:
    """Return the request for a run, on the GPUs of the header of a file that `export` wrote where nobody says others. Raises
    InputError."""
    request, head = document.request, header_of(document.text)
    question = Request(
        model=run.model.name,
        gpus=_gpus(request.gpus, head.gpus if head is not None and run.gpus is None else run.gpus, run.assumed),
        gpu=request.gpu,
        cluster=request.cluster,
        gpus_per_node=request.gpus_per_node,
        memory_margin=request.memory_margin,
        fit_chance=request.fit_chance,
        own_calibration=request.own_calibration,
    )
    named = head is None or request.gpu or request.cluster
    return question if head is None or named else replace(question, gpu=head.gpu)


def _numerics(run: TrainerRun, model: ModelSpec, stack: SoftwareStack) -> Numerics:
    """Return the types of a run, the trainer's own where its file does not say them."""
    dropout = usual_dropout(model)
    sharded = stack.memory.default_fsdp_grad_dtype if run.fsdp else ""
    usual: dict[str, Any] = {"attention_dropout": dropout, "hidden_dropout": dropout}
    usual["grad_reduce_dtype"] = sharded or stack.memory.default_grad_dtype
    return Numerics(**{**usual, **run.numerics})


def _plan(run: TrainerRun, dp: int) -> TrainPlan:
    first, last = run.split.ends(run.model.num_layers) if run.split else (None, None)
    keys = ("tp", "pp", "vpp", "cp", "ep", "etp", "fsdp", "offload", "recompute")
    return TrainPlan(
        **{key: getattr(run, key) for key in keys},
        sp=run.sp and run.tp > 1,
        dp=dp,
        mbs=run.micro_batch,
        dist_opt=run.dist_opt and not run.fsdp,
        first=first,
        last=last,
    )


def _gpus(request: int | None, written: int | None, assumed: list[Remark]) -> int:
    """The number of GPUs: the caller's, else the file's. Raises InputError where neither says it."""
    gpus = written if request is None else request
    if gpus is None:
        raise InputError(f"the number of GPUs is not known: the file does not say it; say {option('gpus')} N")
    if written is not None and written != gpus:
        assumed.append(Remark("gpus", gpus, f"the file says {written:,}", Effect.EVERYTHING))
    return gpus


def _priced_as(document: Document, software: str) -> str:
    """The software in the header of a file of ours, where it shards as what the file says, else the file's."""
    priced = priced_in(document.text)
    same = priced is not None and load_stack(priced[0]).sharding == load_stack(software).sharding
    return priced[0] if priced is not None and same else software


def unread_in(section: Section, table: Map, paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[Remark, ...]]:
    """(Paths that nothing read and that the map says change nothing, remarks of the others with their values)."""
    ignored: list[str] = []
    unknown: list[Remark] = []
    for path in paths:
        name = section.own_words.get(path, path)
        if table.changes_nothing(path):
            ignored.append(name)
        else:
            unknown.append(Remark(name, str(section.flat[path])[:40], ""))
    return tuple(ignored), tuple(unknown)


def _workload(run: TrainerRun, seq: int, batch: int, calls: int) -> Workload:
    return Workload(
        seq_length=seq,
        global_batch_size=batch,
        packed_length=run.packed_length,
        decoder_seq_length=run.decoder_seq_length,
        schedule_calls=calls,
    )


def _schedule_calls(run: TrainerRun, dp: int, batch: int, assumed: list[Remark]) -> int:
    """How often the pipeline's schedule runs in a step. Raises InputError where the batch is no whole number of runs."""
    if run.schedule_samples is None or run.pp == 1:
        return 1
    each = run.schedule_samples * dp
    if batch % each:
        raise InputError(
            f"contradictory: global batch {batch} is no multiple of the pipeline's local batch {run.schedule_samples} x data "
            f"parallelism {dp}; change one, or --gpus"
        )
    if batch > each:
        why = f"of {run.schedule_samples // run.micro_batch:,} micro-batches, each with a bubble of its own"
        assumed.append(Remark("runs of the pipeline's schedule", batch // each, why))
    return batch // each


def _global_batch(run: TrainerRun, dp: int, assumed: list[Remark]) -> int:
    """Samples of a step, from the batch or the accumulation; both must agree. Raises InputError."""
    accumulated = None if run.accumulation is None else run.accumulation * run.micro_batch * dp
    if run.global_batch is None:
        if accumulated is None:
            assumed.append(
                Remark("global_batch_size", run.micro_batch * dp, "micro-batch x data parallelism: the file gives none")
            )
        return accumulated or run.micro_batch * dp
    if accumulated is not None and accumulated != run.global_batch:
        raise InputError(
            f"contradictory: global batch {run.global_batch}, but micro-batch {run.micro_batch} x accumulation "
            f"{run.accumulation} x data parallelism {dp} is {accumulated}; change one, or --gpus"
        )
    return run.global_batch


def from_words(
    document: Document,
    words: Sequence[Value],
    gpus: int | None,
    *,
    gpus_reason: str = "the file does not say it",
    node: int | None = None,
    model: ModelSpec | None = None,
    spell: Spell | None = None,
    software: str | None = None,
) -> CheckInput:
    """The record of a file whose settings are arguments of Megatron-LM. `node`: processes that it starts on each machine."""
    script = Script(argv=tuple(words), program="", num_gpus=gpus, gpus_per_node=node, gpus_reason=gpus_reason, notes=())
    named = document.request.software or priced_in(document.text)
    request = document.request if named else replace(document.request, software=software)
    return replace(from_script(document.format, document.text, script, request, model=model), spelled=spell)


def with_lora(answer: CheckInput, rank: int | None, targets: object, where: str) -> CheckInput:
    """The record with adapters of this rank on these layers, in Megatron's words for them; None: on all. Raises InputError
    where the rank, `where` in the file, is not said."""
    if rank is None:
        raise InputError(f"the adapters' rank is not in the file: add {where}, or say --set {where}=N")
    scenario = answer.question.scenario
    numerics = replace(scenario.numerics, peft="lora", lora_rank=rank)
    if targets is not None:
        named = targets if isinstance(targets, list) else str(targets).strip("[]").replace(",", " ").split()
        numerics = replace(numerics, lora_target_modules=tuple(map(str, named)))
    return replace(answer, question=replace(answer.question, scenario=replace(scenario, numerics=numerics)))


def not_known(text: str, why: str) -> Value:
    """A word whose value is not known."""
    return (Piece(text=text, unknown=why),)


def word(text: object) -> Value:
    """A word of an argument list."""
    return plain_value(str(text))
