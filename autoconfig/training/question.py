"""From what a person or program asked to a Setting: names resolved, defaults filled in and said.

`Request` holds the command line's long options with underscores; the HTTP API takes the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoconfig.planning.request_fields import ARCHITECTURE, NUMERICS, QUESTION, SEARCH, SORTS
from autoconfig.planning.resolve import (
    NO_CALIBRATION,
    check_bounds,
    check_runs,
    field_names,
    field_values,
    named_calibration,
    read_cluster,
    read_model,
    read_stack,
)
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.plan import SHORT_TO_LONG, TrainPlan, parse_keys, parse_plan
from autoconfig.specs.scenario import Calibration, Numerics, Scenario, Workload
from autoconfig.specs.software.software import SoftwareStack
from autoconfig.training.rules import RULE_TEXT, recompute_rule
from autoconfig.training.space import Constraints

DEFAULT_SEQ_LENGTH = 8192
DEFAULT_TOKENS_PER_STEP = 4_194_304
"""About 4 million tokens a step, the usual size of large pre-training runs (Llama 2 paper, section 2.2)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question, as asked. None means not given.

    Over the network `model` and `cluster` are names or the JSON that the files would hold, never paths: `local_files` is False.
    """

    model: str | Mapping[str, Any]
    gpus: int | None = None
    gpu: str | None = None
    gpu_table: str | None = None
    """A file of `python -m autoconfig.kernels.benchmark`: the GPU that it is about, priced with it."""
    measured_here: bool = False
    """The device is this machine's own, and `gpu_table` no file that a caller named but one that a study has measured."""
    cluster: str | Mapping[str, Any] | None = None
    local_files: bool = True
    """Whether names may be files, or the GPU, of this machine."""
    gpus_per_node: int | None = None
    software: str | None = None
    calibration: str | None = None
    """A file of `autoconfig calibrate`; None: the shipped one; `none`: the documented defaults."""
    own_calibration: Calibration | None = None
    """In place of the shipped one, where the caller has measurements of his own."""
    seq_length: int | None = None
    global_batch_size: int | None = None
    architecture: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields to change: {"num_layers": 12}."""
    numerics: Mapping[str, object] = field(default_factory=dict)
    """Numerics fields that were given; None counts as not given."""
    fix: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    memory_margin: float = 0.0
    gpus_at_most: int | None = None
    sort_by: str = "step"
    top: int = 20
    tokens: float | None = None
    price: float | None = None
    """Money per GPU and hour."""


def request_of(given: Mapping[str, Any]) -> Request:
    """A Request from what any edge was given, by the names of the fields; what is no field of it is not read. Raises
    InputError."""
    if given.get("model") is None:
        raise InputError(
            f"Missing option '{option('model')}': say {option('model')} 175b (autoconfig models lists them), or a config.json"
        )
    architecture = {name: given[name] for name in field_names(ARCHITECTURE) if given.get(name) is not None}
    numerics = {name: given.get(name) for name in field_names(NUMERICS)}
    grouped = field_names(ARCHITECTURE, NUMERICS)
    rest = [field for field in (*QUESTION, *SEARCH) if field.name not in grouped]
    return Request(architecture=architecture, numerics=numerics, **field_values(rest, given))


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Request that could be understood."""

    scenario: Scenario
    constraints: Constraints
    assumed: tuple[str, ...]
    request: Request


def understand(request: Request) -> Question:
    """Resolve every name and default. Raises InputError (and its kinds) with what to change."""
    _check(request)
    assumed: list[str] = []
    model, notes = read_model(request.model, local_files=request.local_files)
    assumed += notes
    if request.architecture:
        model = apply_overrides(model, request.architecture)
    cluster = read_cluster(request, assumed)
    stack = read_stack(request.software, cluster.gpu, assumed)
    workload = _workload(request, model, assumed)
    if workload.seq_length > model.max_position_embeddings:
        assumed.append(
            f"max_position_embeddings raised from {model.max_position_embeddings} to the sequence length {workload.seq_length}"
        )
        model = model.replace(max_position_embeddings=workload.seq_length)
    numerics = _numerics(request, model, cluster.gpu, stack, assumed)
    check_runs(cluster.gpu, numerics, stack)
    scenario = Scenario(
        model=model, cluster=cluster, numerics=numerics, software=stack, workload=workload, calibration=_calibration(request)
    )
    constraints = Constraints(
        fixed=_sets(request.fix, "fix"), at_most=_caps(request.max), excluded=_sets(request.exclude, "exclude")
    )
    _check_wish(scenario, constraints)
    for text in request.include:
        with _named("include", text):
            parse_plan(text, cluster.num_gpus)
    return Question(scenario=scenario, constraints=constraints, assumed=tuple(assumed), request=request)


def _calibration(request: Request) -> Calibration:
    if not request.local_files and request.calibration not in (None, NO_CALIBRATION):
        raise InputError(
            f"{option('calibration')} {request.calibration!r}: leave it out for the service's own, or say {NO_CALIBRATION}"
        )
    if request.calibration is None and request.own_calibration is not None:
        return request.own_calibration
    return named_calibration(request.calibration)


def _check_wish(scenario: Scenario, constraints: Constraints) -> None:
    """Wishes that no layout can meet: a value both fixed and excluded, a recomputation that model or precision rules out."""
    for key, values in constraints.fixed.items():
        if values <= constraints.excluded.get(key, frozenset()):
            raise InputError(f"{option('fix')} and {option('exclude')} together leave no value of {key}; drop one of them")
    fixed = constraints.fixed.get("recompute", frozenset())
    broken = [recompute_rule(scenario, option) for option in fixed]
    if fixed and all(broken):
        rule, names = broken[0] or "", " or ".join(sorted(map(str, fixed)))
        raise InputError(f"{option('fix')} recompute={names}: not legal for {scenario.model.name}: {rule}, {RULE_TEXT[rule]}")


def _check(request: Request) -> None:
    check_bounds((*QUESTION, *SEARCH), request)
    if request.sort_by not in SORTS:
        raise InputError(f"{option('sort_by')} {request.sort_by!r}: use {', '.join(SORTS)}")
    if request.gpus is not None and request.gpus_at_most is not None:
        raise InputError(f"give either {option('gpus')} N (exactly N) or {option('gpus_at_most')} N (N or fewer), not both")


def _workload(request: Request, model: ModelSpec, assumed: list[str]) -> Workload:
    seq = request.seq_length
    if seq is None:
        seq = model.default_seq_length or min(model.max_position_embeddings, DEFAULT_SEQ_LENGTH)
        source = (
            _provenance(model, "default_seq_length") if model.default_seq_length else "what the model allows, at most 8,192"
        )
        assumed.append(f"sequence length {seq}, {source} (--seq-length)")
    batch = request.global_batch_size
    if batch is None:
        same = model.default_global_batch_size and seq == (model.default_seq_length or seq)
        batch = model.default_global_batch_size if same else None
        source = _provenance(model, "default_global_batch_size")
        if batch is None:
            batch = max(1, DEFAULT_TOKENS_PER_STEP // max(seq, 1))
            source = f"about {DEFAULT_TOKENS_PER_STEP / 1e6:.0f} million tokens a step"
        assumed.append(f"global batch {batch}, {source} (--global-batch-size)")
    return Workload(seq_length=seq, global_batch_size=batch)


def _provenance(model: ModelSpec, key: str) -> str:
    """Where a default of the model comes from."""
    return (
        "the model's published training"
        if model.published_parameters
        else model.sources.get(key, "as similar models are trained")
    )


def _numerics(request: Request, model: ModelSpec, gpu: GpuSpec, stack: SoftwareStack, assumed: list[str]) -> Numerics:
    given = {key: value for key, value in request.numerics.items() if value is not None}
    if "precision" not in given:
        given["precision"] = "bf16" if "bf16" in gpu.flops_per_s else "fp16"
        assumed.append(f"precision {given['precision']} (--precision)")
    if "grad_reduce_dtype" not in given:
        given["grad_reduce_dtype"] = stack.memory.default_grad_dtype
        assumed.append(f"gradients reduced in {given['grad_reduce_dtype']} (--grad-reduce-dtype)")
    if given["precision"] == "fp8" and "fp8_param_gather" not in given and stack.memory.default_fp8_param_gather:
        given["fp8_param_gather"] = True
        assumed.append(f"fp8_param_gather, as {stack.name} runs fp8")
    default = 0.1 if model.position_embedding_type == "learned_absolute" else 0.0
    missing = [key for key in ("attention_dropout", "hidden_dropout") if key not in given]
    for key in missing:
        given[key] = default
    if missing:
        why = "Megatron's default" if default else "as models of this kind are trained"
        assumed.append(f"{' and '.join(missing)} {default:g}, {why} (--{missing[0].replace('_', '-')})")
    return Numerics(**given)  # type: ignore[arg-type]


def _sets(texts: Iterable[str], field: str) -> dict[str, frozenset[Any]]:
    """`tp=8` twice with other values means either."""
    values: dict[str, set[Any]] = {}
    for text in texts:
        for key, value in _read(text, field).items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(found) for key, found in values.items()}


def _caps(texts: Iterable[str]) -> dict[str, int]:
    caps: dict[str, int] = {}
    for text in texts:
        for key, value in _read(text, "max").items():
            if isinstance(value, bool) or not isinstance(value, int):
                sized = ", ".join(key for key in SHORT_TO_LONG if key not in _UNSIZED)
                raise InputError(f"{option('max')} {text}: {key} has no size; cap one of {sized}")
            caps[key] = min(value, caps.get(key, value))
    return caps


_UNSIZED = ("sp", "recompute", "dist_opt", "fsdp", "offload", "first", "last")


def _read(text: str, field: str) -> dict[str, object]:
    with _named(field, text):
        values = parse_keys(text)
        TrainPlan(**{"tp": 1, "pp": 1, "dp": 1, "mbs": 1, **values})  # type: ignore[arg-type]  # checks every value
        return values


@contextmanager
def _named(field: str, text: str) -> Iterator[None]:
    """Errors inside say which text of which field they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option(field)} {text}: {error.message}") from error
