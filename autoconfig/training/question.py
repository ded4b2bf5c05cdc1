"""What a person or program asked, and what it means: names resolved, defaults filled in and said.

`Request` holds the command line's long options with underscores; the HTTP API takes the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.planning.calibration_file import calibration_of
from autoconfig.planning.prices import price_for, price_of
from autoconfig.planning.request_fields import ARCHITECTURE, NUMERICS, QUESTION, SEARCH, SORTS, SWITCHES
from autoconfig.planning.resolve import (
    check_bounds,
    check_runs,
    field_names,
    field_values,
    read_cluster,
    read_model,
    read_stack,
)
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.plan import SHORT_TO_LONG, TrainPlan, parse_keys, parse_plan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import (
    Calibration,
    Numerics,
    Scenario,
)
from autoconfig.training.numerics import AskedNumerics
from autoconfig.training.recompute_rules import recompute_rule
from autoconfig.training.rules import RULE_TEXT
from autoconfig.training.space import Constraints
from autoconfig.training.switches import assumed_switches, check_static_sizes, read_switches
from autoconfig.training.workload import read_workload

DEFAULT_FIT_CHANCE = next(field.default for field in SEARCH if field.name == "fit_chance")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question, as asked. None means not given.

    Over the network `model` and `cluster` are names or the JSON that the files would hold, never paths: `local_files` is False.
    """

    model: str | Mapping[str, Any]
    like: str | None = None
    """Family of Hugging Face as which a config.json is read, whatever its type says."""
    download: bool = False
    """Whether the config.json of a hub's model may be fetched."""
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
    power_limit: float | None = None
    """Watts of one GPU, below its own."""
    memory_bandwidth: float | None = None
    """TB/s of one GPU, where its memory is another."""
    software: str | None = None
    calibration: str | None = None
    """A file of `autoconfig calibrate`; None: the shipped one; `none`: the documented defaults."""
    own_calibration: Calibration | None = None
    """In place of the shipped one, where the caller has measurements of his own."""
    seq_length: int | None = None
    decoder_seq_length: int | None = None
    packed_length: int | None = None
    global_batch_size: int | None = None
    schedule_calls: int | None = None
    """Times that the pipeline's schedule runs in a step; None: once."""
    architecture: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields to change: {"num_layers": 12}."""
    numerics: Mapping[str, object] = field(default_factory=dict)
    """Numerics fields that were given; None counts as not given."""
    zero_stage: int | None = None
    """Sharding of plans that say none: 0 nothing, 1 optimizer state, 2 gradients, 3 weights."""
    switches: Mapping[str, object] = field(default_factory=dict)
    """Dispatcher, CUDA graphs, overlap and fusion of experts, the same way."""
    fix: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    memory_margin: float = 0.0
    fit_chance: float = DEFAULT_FIT_CHANCE
    """Least chance to fit of plans that are ranked."""
    vary: tuple[str, ...] = ()
    """Switches that a search tries all values of."""
    gpus_at_most: int | None = None
    sort_by: str = "step"
    top: int = 20
    tokens: float | None = None
    price: float | str | None = None
    """Money per GPU and hour, of each type as h100-sxm-80gb=2.2 with commas between (planning.prices)."""

    def constants(self) -> Calibration:
        """Those that it is priced with. Raises FileError, InputError."""
        return calibration_of(self.calibration, self.own_calibration, local_files=self.local_files)


def request_of(given: Mapping[str, Any]) -> Request:
    """A Request from what any edge was given, by the names of the fields; what is no field of it is not read. Raises
    InputError."""
    if given.get("model") is None:
        raise InputError(
            f"Missing option '{option('model')}': say {option('model')} 175b (autoconfig models lists them), or a config.json"
        )
    architecture, switches = (
        {name: value for name, value in field_values(group, given).items() if value is not None}
        for group in (ARCHITECTURE, SWITCHES)
    )
    numerics = field_values(NUMERICS, given)
    grouped = field_names(ARCHITECTURE, NUMERICS, SWITCHES)
    rest = [field for field in (*QUESTION, *SEARCH) if field.name not in grouped]
    return Request(architecture=architecture, numerics=numerics, switches=switches, **field_values(rest, given))


def values_of(request: Request) -> dict[str, Any]:
    """What `request_of` makes this request of: values by the names of the fields."""
    grouped = {**request.architecture, **request.numerics, **request.switches}
    rest = {field.name: getattr(request, field.attribute or field.name, None) for field in (*QUESTION, *SEARCH)}
    return {**rest, **grouped}


@dataclass(frozen=True)
class Variant:
    """One setting of the switches that a search tried."""

    words: str
    """Like "dispatcher deepep, ep-overlap on"."""
    step_seconds: float
    """Of its first plan; infinite where it has none."""
    reason: str = ""
    """Why it has none."""

    def __str__(self) -> str:
        return f"{self.words}: {self.reason or f'{self.step_seconds:.4g} s'}"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Request that could be understood."""

    scenario: Scenario
    constraints: Constraints
    assumed: tuple[Remark, ...]
    request: Request
    varied: tuple[Variant, ...] = ()
    """What a search with `vary` tried, fastest first: the first is the setting of this question."""

    @property
    def price(self) -> float | None:
        """Money for one GPU and hour; None where none was given for its type."""
        return price_of(self.request.price, self.scenario.cluster.gpu.id)

    @property
    def own_price(self) -> float | None:
        """The same of a question that is about this type alone. Raises InputError where only others have a price."""
        return price_for(self.request.price, self.scenario.cluster.gpu.id)


def understand(request: Request) -> Question:
    """Resolve every name and default. Raises InputError (and its kinds) with what to change."""
    assumed: list[Remark] = []
    asked = AskedNumerics(request.numerics)
    software = asked.software(request.software, assumed)
    _check(request)
    model, notes = read_model(request.model, local_files=request.local_files, like=request.like, download=request.download)
    assumed += notes
    if request.architecture:
        model = apply_overrides(model, request.architecture)
    cluster = read_cluster(request, assumed)
    calibration = request.constants()
    stack = read_stack(software, cluster.gpu, assumed, calibration)
    counted = cluster.num_gpus if request.gpus_at_most is None else None
    workload = read_workload(request, model, assumed, adapters=asked.trains_adapters, gpus=counted)
    longest = max(workload.seq_length, workload.decoder_seq_length or 0)
    if longest > model.max_position_embeddings:
        assumed.append(raised_positions(model, longest))
        model = model.replace(max_position_embeddings=longest)
    assumed[:0] = unaligned_heads(model)
    numerics = asked.read(model, cluster.gpu, stack, assumed)
    if request.architecture.get("mtp_num_layers") is None:
        model = without_depths(model, numerics, assumed)
    check_runs(cluster.gpu, numerics, stack, model)
    scenario = Scenario(
        model=model,
        cluster=cluster,
        numerics=numerics,
        software=stack,
        workload=workload,
        calibration=calibration,
        given=read_switches(request.switches, model, numerics),
    )
    check_static_sizes(scenario)
    assumed += assumed_switches(scenario)
    constraints = Constraints(
        fixed=_sets(request.fix, "fix"), at_most=_caps(request.max), excluded=_sets(request.exclude, "exclude")
    )
    constraints = with_zero_stage(constraints, request.zero_stage)
    _check_constraints(scenario, constraints)
    for text in request.include:
        with _named("include", text):
            parse_plan(text, cluster.num_gpus)
    return Question(scenario=scenario, constraints=constraints, assumed=tuple(assumed), request=request)


def with_zero_stage(constraints: Constraints, stage: int | None) -> Constraints:
    """The wishes with this sharding, where they name none themselves. Raises InputError for a stage that there is not."""
    if stage is None:
        return constraints
    if stage not in ZERO:
        raise InputError(f"{option('zero_stage')} {stage}: use 0 (nothing is sharded) to 3 (weights, too)", field="zero_stage")
    fixed = {key: frozenset({value}) for key, value in ZERO[stage].items()}
    return replace(constraints, fixed={**fixed, **constraints.fixed})


ZERO: dict[int, dict[str, object]] = {
    0: {"dist_opt": False, "fsdp": 0},
    1: {"dist_opt": True, "fsdp": 0},
    2: {"dist_opt": False, "fsdp": 2},
    3: {"dist_opt": False, "fsdp": 3},
}
"""DeepSpeed's stages in the keys of plans."""


def plan_of(question: Question, text: str) -> TrainPlan:
    """A plan in short form; what it leaves out is the question's sharding, and what people mean with the software. Raises
    PlanError."""
    stage = ZERO.get(-1 if question.request.zero_stage is None else question.request.zero_stage, {})
    said = {part.partition("=")[0].strip() for part in text.split(",")}
    more = "" if said & {"dist_opt", "fsdp"} else "".join(f",{key}={int(value)}" for key, value in stage.items())  # type: ignore[call-overload]
    return question.scenario.read_plan(f"{text}{more}")


def without_depths(model: ModelSpec, numerics: Numerics, assumed: list[Remark]) -> ModelSpec:
    """The model without multi-token prediction where adapters are trained: PEFT puts none on its layers, and transformers does
    not load them (modeling_deepseek_v3.py, modeling_qwen3_next.py: _keys_to_ignore_on_load_unexpected)."""
    if numerics.peft == "none" or not model.mtp_num_layers:
        return model
    assumed.append(Remark("mtp_num_layers", 0, "fine-tuning does not train multi-token prediction"))
    return model.replace(mtp_num_layers=0)


def unaligned_heads(model: ModelSpec) -> list[Remark]:
    """That a head's width is no multiple of 8, which tensor cores want of 16-bit operands; no formula prices it (NVIDIA, Matrix
    Multiplication Background, section 4; flash-attention pads such heads, and cuDNN has no kernel for them)."""
    width = model.query_head_dim
    if not width % 8:
        return []
    why = "no multiple of 8: attention and its GEMMs run slower than priced, tens of per cent on an A100"
    return [Remark("kv_channels", width, why)]


def raised_positions(model: ModelSpec, longest: int) -> Remark:
    """That a model takes more positions than it says."""
    why = f"raised from {model.max_position_embeddings} to the sequence length"
    return Remark("max_position_embeddings", longest, why)


def _check_constraints(scenario: Scenario, constraints: Constraints) -> None:
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
    if isinstance(request.price, int | float) and not 0 < request.price < 1e6:
        raise InputError(f"{option('price')} {request.price}: give money per GPU and hour, above 0 and below 1,000,000")
    if request.sort_by not in SORTS:
        raise InputError(f"{option('sort_by')} {request.sort_by!r}: use {', '.join(SORTS)}")
    if request.vary and request.gpus_at_most is not None:
        raise InputError(f"give either {option('vary')} or {option('gpus_at_most')}, not both", field="vary")
    if request.gpus is not None and request.gpus_at_most is not None:
        raise InputError(f"give either {option('gpus')} N (exactly N) or {option('gpus_at_most')} N (N or fewer), not both")


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
