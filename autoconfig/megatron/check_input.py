"""What `autoconfig check` is given: a launch script, an argument list or a plan.json, read without running anything."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autoconfig.megatron.argument_list import is_option, megatron_program, name_hint
from autoconfig.megatron.export import read_plan_text
from autoconfig.megatron.read import read_arguments
from autoconfig.megatron.read_vocabulary import SETTING as VOCABULARY
from autoconfig.megatron.refusals import connections_violation
from autoconfig.megatron.shell.commands import Value, plain_value
from autoconfig.megatron.shell.launch import sbatch_words
from autoconfig.megatron.shell.script import Script, read_array, read_script
from autoconfig.megatron.shell.world import resized
from autoconfig.planning.calibration_file import shipped
from autoconfig.planning.export_files import HEADER_CHARACTERS, MADE_BY, MARK, UNWRITTEN, priced_in
from autoconfig.planning.request_fields import CHECK, SWITCHES
from autoconfig.planning.resolve import check_bounds, field_names, field_values, read_cluster
from autoconfig.planning.scheduled_gpu import scheduled_gpu
from autoconfig.planning.work import bounded, require_short
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import ClusterSpec, GpuSpec, gpu_ids
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.scenario import Calibration, Numerics, Scenario
from autoconfig.training.plan_rules import PipelineSplit
from autoconfig.training.price import Violation
from autoconfig.training.question import DEFAULT_FIT_CHANCE, Question, Request, unaligned_heads
from autoconfig.training.space import Constraints
from autoconfig.training.switches import assumed_switches, read_switches

PINNED = frozenset({"primus", "flagscale"})
"""Formats whose launcher brings a Megatron-LM of its own, whose release the file does not say."""


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """A file to check, and what the caller says instead of it. None: as the file says."""

    model: str | None = None
    like: str | None = None
    """Family as which a config.json of `model` is read."""
    gpus: int | None = None
    gpu: str | None = None
    cluster: str | None = None
    gpus_per_node: int | None = None
    power_limit: float | None = None
    memory_bandwidth: float | None = None
    software: str | None = None
    core_release: str | None = None
    """Release of megatron-core that runs the arguments; None: the newest."""
    seq_length: int | None = None
    global_batch_size: int | None = None
    switches: Mapping[str, object] = field(default_factory=dict)
    """Dispatcher, CUDA graphs, overlap and fusion of experts, instead of the file's."""
    memory_margin: float = 0.0
    fit_chance: float = DEFAULT_FIT_CHANCE
    """Least chance to fit of the better plan."""
    own_calibration: Calibration | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of variables that the script does not set: {"NNODES": "4", "1": "first argument"}; of other formats, of keys."""
    without_effect: tuple[str, ...] = ()
    """Arguments or keys that no table has, of which the caller says that they change neither memory nor time."""


def check_request(given: Mapping[str, Any]) -> CheckRequest:
    """Return a CheckRequest from what any edge was given, by the names of the fields. Raises InputError."""
    table = [one for one in CHECK if one.name in CheckRequest.__dataclass_fields__]
    values = field_values(table, given)
    settings = given.get("set") or ()
    request = CheckRequest(
        settings=dict(zip(settings, map(str, settings.values()), strict=True))
        if isinstance(settings, Mapping)
        else read_settings(settings),
        switches={name: given[name] for name in field_names(SWITCHES) if given.get(name) is not None},
        **{name: value for name, value in values.items() if value is not None},
    )
    check_bounds(table, request)
    return request


@dataclass(frozen=True, kw_only=True)
class CheckInput:
    """A file that could be read."""

    kind: str
    question: Question
    plan: TrainPlan
    text: str
    split: PipelineSplit | None = None
    unknown: tuple[Remark, ...] = ()
    """Arguments that nothing knows, which may change memory and time; a slip of a known one (`Effect.EVERYTHING`) any figure; a
    word that belongs to none, nothing."""
    not_modelled: tuple[Remark, ...] = ()
    """Arguments that matter and that no formula reads, with what they change."""
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    script: Script | None = None
    megatron_fsdp: bool = False
    """Sharded by Megatron-FSDP: no rule of torch FSDP2 holds, and no other plan can be written into it."""
    also_broken: tuple[Violation, ...] = ()
    refused: tuple[Violation, ...] = ()
    """Arguments that megatron-core refuses, whatever the plan."""
    spelled: Callable[[Scenario, TrainPlan], dict[str, tuple[str, ...]]] | None = None
    """What a plan is in the file's own words, where these are not Megatron-LM's arguments."""
    resized: tuple[tuple[str, str, str], ...] = ()
    """Of a script that was asked for another number of GPUs than its own: what was changed for it in `text`, old and new."""
    wish: Constraints | None = None
    """Which plans the file's format can say; None: all."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """What may be changed beside the plan (remedies.OPTIONS) -> the file's words for it."""

    @property
    def needs_less(self) -> bool:
        """Whether what is not modelled (weights in fewer bits, state or activations in CPU memory) makes the predicted memory a
        bound: a plan over the limit may fit all the same."""
        return any(remark.effect is Effect.LESS_MEMORY for remark in self.not_modelled)

    @property
    def more_bytes(self) -> float:
        """Return the most that takes on one GPU what is not modelled and needs more memory (scores of all pairs of tokens,
        modules that are trained whole, a teacher); infinite where no bound is known: a plan within the limit may not fit all
        the same."""
        remarks = (*self.not_modelled, *self.question.assumed)
        return sum(remark.most_bytes for remark in remarks if remark.effect is Effect.MORE_MEMORY)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Return keys that nothing here knows, or whose effect has no known direction: no memory can be said with them."""
        return tuple(one.field for one in (*self.unknown, *self.not_modelled) if one.effect <= Effect.MEMORY_AND_TIME)

    def require_taken(self) -> None:
        """Raises UnsupportedError where megatron-core refuses the arguments whatever the plan: for readers that have no words
        for a verdict."""
        if self.refused:
            raise UnsupportedError("megatron-core refuses this file: " + "; ".join(one.text for one in self.refused))


def accepted(source: CheckInput, names: Sequence[str]) -> CheckInput:
    """Return the record where these unknown arguments are of no effect. Raises InputError for one that is not unknown."""
    fields, wanted = [one.field for one in source.unknown if one.effect <= Effect.MEMORY_AND_TIME], set(map(_bare, names))
    for name in names:
        if _bare(name) not in map(_bare, fields):
            there = f"those are {', '.join(fields)}" if fields else "the file has none"
            raise InputError(f"{option('without_effect')} {name[:60]}: no argument that is unknown; {there}")
    unknown = tuple(one for one in source.unknown if _bare(one.field) not in wanted)
    return replace(source, unknown=unknown, ignored=(*source.ignored, *(name for name in fields if _bare(name) in wanted)))


def _bare(name: str) -> str:
    """Return an argument's name as the caller may write it: without dashes in front, `_` for `-`."""
    return name.strip().lstrip("-").replace("-", "_")


@bounded()
def read_check(text: str, request: CheckRequest) -> CheckInput:
    """Return a file's text as a question and a plan. Raises InputError saying what to change or to pass."""
    require_short(text)
    return accepted(_read(text, request), request.without_effect)


def _read(text: str, request: CheckRequest) -> CheckInput:
    if _opens(text, "{", '"}'):
        return _from_plan(text, request)
    is_json = _opens(text, "[", '"]')
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if is_json or first.startswith("--"):
        words = _json_words(text) if is_json else read_array(text, request.settings)
        script = Script(argv=words, program="", num_gpus=None, gpus_reason="an argument list says none", notes=())
        return from_script("arguments", text, script, request)
    for name in request.settings:
        _require_read(name, text)
    script = read_script(text, megatron_program(), request.settings)
    other = resized(text, script, request.gpus, megatron_program(), request.settings) if request.gpus else None
    changes = () if other is None else other.changes
    text, script = (text, script) if other is None else (other.text, other.script)
    changed = ", ".join(f"{name} {new} (it has {old})" for name, old, new in changes)
    notes = [f"{request.gpus:,} GPUs (--gpus): the script is read with {changed}"] if changes else []
    answer = from_script("script", text, script, request)
    return replace(answer, resized=changes, notes=(*notes, *answer.notes, *_otherwise(answer, script, request)))


def _opens(text: str, bracket: str, behind: str) -> bool:
    """Whether a text begins with a bracket of JSON and one of these characters behind it."""
    start = text.lstrip()
    return start.startswith(bracket) and start[1:].lstrip().startswith(tuple(behind))


MAX_TURNED = 8
"""Tests of a script that are also read the other way."""


def _otherwise(source: CheckInput, script: Script, request: CheckRequest) -> list[str]:
    """Return what the plan or the scenario is the other way, where a test of a variable that the file does not set decides
    it."""
    notes = []
    for test, (line, names) in list(script.supposed.items())[:MAX_TURNED]:
        head = f"line {line}: {', '.join(f'${name}' for name in names)} counts as empty, the file does not set it"
        try:
            turned = read_script(source.text, megatron_program(), request.settings, turned=test)
            other = from_script("script", source.text, turned, request)
        except InputError as error:
            notes.append(f"{head}; if {test} said the contrary: {error}")
            continue
        if other.plan != source.plan or other.question.scenario != source.question.scenario:
            ways = f"the plan would be {other.plan} on {other.question.scenario.cluster.num_gpus:,} GPUs"
            notes.append(f"{head}; if {test} said the contrary, {ways}: --set {names[0]}=VALUE")
    return notes


def _require_read(name: str, text: str) -> None:
    """Raises InputError where a script never says the name of a variable that is set for it."""
    if name.isdigit() or name == VOCABULARY or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
        return
    near = difflib.get_close_matches(name[:60], set(re.findall(r"\$\{?([A-Za-z_]\w*)", text)), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"--set {name}: the script reads no variable of this name{hint}")


def exported_gpu(text: str) -> str | None:
    """Return the GPU in the header of a script that `export` wrote (megatron/batch/scripts.py); None for other files."""
    head = text[:HEADER_CHARACTERS]
    match = re.search(r"^# .+ on [\d,]{1,20} x ([a-z0-9.-]{1,60}) \(", head, re.MULTILINE)
    return match[1] if MARK in head and match and match[1] in gpu_ids() else None


def _gpu_of(text: str, gpu: str | None, assumed: list[Remark]) -> str | None:
    """Return the GPU that is named, else the one of the script's header or its scheduler's options."""
    if gpu is None and (own := exported_gpu(text)):
        assumed.append(Remark("gpu", own, "from the header that export wrote", Effect.EVERYTHING))
        return own
    return scheduled_gpu(sbatch_words(text), gpu, assumed)


def left_out_by_export(text: str) -> tuple[str, ...]:
    """Return what a script that `export` wrote says that it leaves out of the model; empty for other files."""
    lines = text.splitlines() if MARK in text[:HEADER_CHARACTERS] else []
    reasons = [line.removeprefix(UNWRITTEN) for line in lines if line.startswith(UNWRITTEN)]
    return tuple(f"priced as it runs, without what export could not write: {reason}" for reason in reasons)


def from_script(kind: str, text: str, script: Script, request: CheckRequest, *, model: ModelSpec | None = None) -> CheckInput:
    """Return the record of an argument list, of a `model` where the list does not say it. Raises InputError."""
    gpus = request.gpus if request.gpus is not None else script.num_gpus
    if gpus is None:
        raise InputError(f"the number of GPUs is not known: {script.gpus_reason}; say {option('gpus')} N")
    assumed: list[Remark] = []
    if script.num_gpus is not None and script.num_gpus != gpus:
        rest = "what it works out from that, its batch too, is read as it stands (--set NAME=VALUE, --global-batch-size N)"
        assumed.append(Remark("gpus", gpus, f"the script itself starts {script.num_gpus:,}; {rest}", Effect.EVERYTHING))
    gpu = request.gpu if request.cluster is not None else _gpu_of(text, request.gpu, assumed)
    question_request = _question_request(request, gpus, gpu)
    question_request, cluster = _with_nodes(question_request, script.gpus_per_node or gpus, assumed)
    read = read_arguments(
        script.words(),
        cluster,
        script.unread(),
        model_name=request.model,
        like=request.like,
        model=model,
        software=request.software,
        exported=priced[0] if (priced := priced_in(text)) else None,
        core_release=request.core_release,
        pinned=kind in PINNED,
        seq_length=request.seq_length,
        global_batch_size=request.global_batch_size,
        program=script.program,
        variables={**request.settings, **script.variables},
    )
    if request.gpus is None:
        _require_gpus(gpus, read.plan)
    _require_megatron(kind, script, read.unknown)
    question_request = replace(question_request, model=read.scenario.model.name, software=read.scenario.software.name)
    require_format(cluster.gpu, read.scenario.numerics)
    chosen = read_switches(request.switches, read.scenario.model, read.scenario.numerics)
    settings = replace(read.scenario.given, **{name: value for name, value in vars(chosen).items() if value is not None})
    scenario = replace(read.scenario, given=settings)
    question = question_of(
        scenario, (*unaligned_heads(scenario.model), *assumed, *read.assumed, *assumed_switches(scenario)), question_request
    )
    return CheckInput(
        kind=kind,
        question=question,
        plan=read.plan,
        split=read.split,
        unknown=tuple(map(_with_hint, read.unknown)),
        not_modelled=read.not_modelled,
        ignored=read.ignored,
        notes=(*script.notes, *(left_out_by_export(text) if request.model is None else ())),
        text=text,
        script=script,
        megatron_fsdp=read.megatron_fsdp,
        refused=read.refused,
        also_broken=(*read.also_broken, *(connections_violation(script.connections) if read.megatron_fsdp else ())),
    )


def _with_nodes(request: Request, each: int, assumed: list[Remark]) -> tuple[Request, ClusterSpec]:
    """Return the question and its cluster, in nodes of `each` GPUs where that is fewer than the usual server has."""
    cluster = read_cluster(request, assumed)
    named = request.cluster is not None or request.gpus_per_node is not None
    if named or each >= min(cluster.num_gpus, cluster.gpus_per_node) or cluster.num_gpus % each:
        return request, cluster
    assumed.append(Remark("gpus_per_node", each, "as the script starts them", Effect.EVERYTHING))
    request = replace(request, gpus_per_node=each)
    return request, read_cluster(request, [])


OF_THE_CALLER = ("memory_margin", "fit_chance", "own_calibration")
OF_THE_HARDWARE = ("cluster", "gpus_per_node", "power_limit", "memory_bandwidth")
"""Fields of a CheckRequest that the question of a search has, too."""


def _question_request(request: CheckRequest, gpus: int, gpu: str | None) -> Request:
    """Return the request of a search for the file's job."""
    alike = {name: getattr(request, name) for name in (*OF_THE_CALLER, *OF_THE_HARDWARE)}
    return Request(model=request.model or "", gpus=gpus, gpu=gpu, **alike)


def _require_gpus(gpus: int, plan: TrainPlan) -> None:
    """Raises InputError where a script that starts one process, as mpirun's do, divides the model over several."""
    if gpus == 1 and (needed := plan.tp * plan.pp * plan.cp * plan.ep) > 1:
        raise InputError(
            f"the number of GPUs is not known: the script starts one process, and divides the model over {needed}; "
            f"say {option('gpus')} N"
        )


def _with_hint(unknown: Remark) -> Remark:
    """Return an unknown argument with the known one that it may be a slip of; as it is where a condition decides it."""
    hint = name_hint(unknown.field) if unknown.field.startswith("--") and not unknown.why else ""
    return replace(unknown, why=f"did you mean {hint}?", effect=Effect.EVERYTHING) if hint else unknown


def _require_megatron(kind: str, script: Script, unknown: tuple[Remark, ...]) -> None:
    """Raises InputError where --model stands for the model of a program whose options are mostly none of Megatron-LM's."""
    names = {word.partition("=")[0] for word in script.words() if word.startswith("--") and is_option(word)}
    foreign = [one.field for one in unknown if one.field.startswith("--")]
    if kind == "script" and not names & SIZES_OF_A_MODEL and len(foreign) > len(names) / 3:
        raise InputError(
            f"{script.program or 'the program'} is none of Megatron-LM: it does not know {len(foreign)} of its {len(names)} "
            f"options ({', '.join(foreign[:3])}), and none of them is of a model"
        )


SIZES_OF_A_MODEL = frozenset({"--num-layers", "--num_layers", "--hidden-size", "--hidden_size", "--encoder-num-layers"})


def require_format(gpu: GpuSpec, numerics: Numerics) -> None:
    """Raises InputError where the GPU does not compute in the run's format, or not with its way to scale it."""
    gpu.peak_flops_per_s(numerics.gemm_precision)
    gpu.check_format(numerics.format.recipe, numerics.format.least_compute_capability)


def question_of(scenario: Scenario, assumed: tuple[Remark, ...], request: Request) -> Question:
    """Return a question that is understood, with the calibration that it is priced with."""
    scenario = replace(scenario, calibration=request.own_calibration or shipped())
    return Question(scenario=scenario, constraints=Constraints(), assumed=assumed, request=request)


def _from_plan(text: str, request: CheckRequest) -> CheckInput:
    scenario, plan = read_plan_text(text)
    own = [one.name for one in fields(CheckRequest) if one.default is None and one.name not in OF_THE_CALLER]
    named = [option(name) for name in (*(name for name in own if getattr(request, name) is not None), *request.switches)]
    if named:
        raise InputError(f"a plan.json says its own model, cluster and workload; drop {', '.join(named)} or change the file")
    question_request = replace(_question_request(request, scenario.cluster.num_gpus, None), model=scenario.model.name)
    question = question_of(scenario, (), replace(question_request, software=scenario.software.name))
    return CheckInput(kind="plan", question=question, plan=plan, text=text)


def _json_words(text: str) -> tuple[Value, ...]:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str | int | float) for word in words):
        raise InputError(
            f'a file that begins with [ must be a JSON list, ["--num-layers", "96", ...]; a plan file has "kind": "{MADE_BY}"'
        )
    return tuple(plain_value(str(word)) for word in words)


def read_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Return `NAME=VALUE` options. Raises InputError for other text."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        plain = name.replace(".", "_").replace("-", "_").isidentifier() and name[0] not in ".-"
        if not equals or not (plain or name.isdecimal()):
            raise InputError(
                f"--set {text[:60]}: write it like --set NNODES=4, or --set 1=VALUE for the script's first argument"
            )
        settings[name] = value
    return settings
