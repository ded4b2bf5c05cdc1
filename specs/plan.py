"""TrainPlan and its short form, the one notation that every table prints and every command reads.

    tp=4,pp=8,vpp=6,mbs=2,sp=1,recompute=none

Reading back what was printed gives the same plan (property-tested).
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources

from autoconfig.specs.errors import InputError, PlanError, UnknownKeyError, option
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.software.software import DISPATCHERS, SoftwareStack

OP = "op"
"""torchtitan's selective activation checkpointing by operator (`selective_ac_option = "op"`): the layer is run again, but what
attention and every second matrix product put out is kept (torchtitan/distributed/activation_checkpoint.py, 2024 and 2025)."""
MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", OP)
"""What selective recomputation can name, in the order in which it is printed: Megatron's --recompute-modules that this project
prices, and `op`."""


@dataclass(frozen=True)
class Recompute:
    """`none`, `selective:MODULE+MODULE`, `full:uniform:N` or `full:block:N`."""

    granularity: str = "none"
    """none, selective or full (Megatron's --recompute-granularity)."""
    modules: tuple[str, ...] = ()
    method: str = ""
    """uniform or block with full recomputation (--recompute-method)."""
    num_layers: int = 0
    """uniform: layers per checkpoint; block: layers recomputed per virtual stage (--recompute-num-layers)."""

    def __post_init__(self) -> None:
        if self.granularity == "selective":
            unknown = [m for m in self.modules if m not in MODULES]
            if unknown or not self.modules:
                raise PlanError(f"recompute modules {'+'.join(self.modules) or '(none)'}: allowed are {', '.join(MODULES)}")
            object.__setattr__(self, "modules", tuple(m for m in MODULES if m in self.modules))
        elif self.granularity == "full":
            if self.method not in ("uniform", "block") or self.num_layers < 1:
                raise PlanError(f"full recomputation is full:uniform:N or full:block:N with N at least 1, not {self}")
        elif self.granularity != "none":
            raise PlanError(
                f"recompute {self.granularity!r}: use none, selective:MODULE+MODULE, full:uniform:N or full:block:N"
            )

    @property
    def by_operator(self) -> bool:
        """Whole layers are run again but for the outputs of some operators."""
        return OP in self.modules

    def __str__(self) -> str:
        if self.granularity == "selective":
            return "selective:" + "+".join(self.modules)
        if self.granularity == "full":
            return f"full:{self.method}:{self.num_layers}"
        return "none"

    @classmethod
    def parse(cls, text: str) -> Recompute:
        """Read what `str()` prints; `selective` alone means core_attn and `full` alone uniform, 1 layer. Raises PlanError."""
        head, _, rest = text.strip().partition(":")
        if head == "none" and not rest:
            return NONE
        if head == "selective":
            return cls("selective", tuple(rest.split("+")) if rest else ("core_attn",))
        if head == "full":
            method, _, count = (rest or "uniform:1").partition(":")
            if not count:
                count = "1"
            if not (count.isascii() and count.isdigit() and len(count) < 7):
                raise PlanError(f"recompute {text!r}: {count!r} is not a number of layers")
            return cls("full", (), method, int(count))
        raise PlanError(
            f"recompute {text!r}: use none, selective:MODULE+MODULE, full:uniform:N or full:block:N "
            f"(modules: {', '.join(MODULES)})"
        )


NONE = Recompute()


MAX_DEGREE = 1_000_000

SHORT_TO_LONG = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
    "mbs": "micro_batch_size",
    "sp": "sequence_parallel",
    "recompute": "recompute",
    "first": "decoder_first_pipeline_num_layers",
    "last": "decoder_last_pipeline_num_layers",
    "dist_opt": "use_distributed_optimizer",
    "fsdp": "fsdp",
    "offload": "optimizer_offload_fraction",
}
"""Keys of the short form -> Megatron's long names (used in JSON, Python and exported files)."""


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """How one training run is laid out. Field names are the short keys; `SHORT_TO_LONG` gives Megatron's."""

    tp: int
    pp: int
    dp: int
    mbs: int
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    recompute: Recompute = NONE
    first: int | None = None
    """Layers of the first pipeline stage where stages are uneven."""
    last: int | None = None
    dist_opt: bool = True
    """Optimizer state sharded over data-parallel ranks (ZeRO-1, Megatron's distributed optimizer)."""
    fsdp: int = 0
    """0 off; 2 gradients sharded too (ZeRO-2); 3 weights too (FSDP, ZeRO-3)."""
    offload: float = 0.0
    """Share of the optimizer state kept in CPU memory."""

    def __post_init__(self) -> None:
        for key in ("tp", "pp", "dp", "mbs", "vpp", "cp", "ep", "etp"):
            _check_degree(key, getattr(self, key))
        for key in ("first", "last"):
            if getattr(self, key) is not None:
                _check_degree(key, getattr(self, key))
        if self.fsdp not in (0, 2, 3):
            raise PlanError(f"fsdp={self.fsdp}: use 0 (off), 2 (gradients and optimizer state) or 3 (weights too)")
        if not 0.0 <= self.offload <= 1.0:
            raise PlanError(f"offload={self.offload}: use a share from 0 to 1")

    def __str__(self) -> str:
        return format_plan(self)

    @property
    def world_size(self) -> int:
        """GPUs that the plan occupies: tp x pp x cp x dp."""
        return self.tp * self.pp * self.cp * self.dp

    def replace(self, **changes: object) -> TrainPlan:
        """A copy with some fields changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def _check_degree(key: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DEGREE:
        raise PlanError(f"{key}={value!r} must be a whole number from 1 to {MAX_DEGREE:,}")


def format_plan(plan: TrainPlan) -> str:
    """The short form: tp, pp, dp, mbs, sp and recompute always, everything else where it is not the default."""
    parts = [f"tp={plan.tp}", f"pp={plan.pp}"]
    parts += [f"{key}={getattr(plan, key)}" for key in ("vpp", "cp", "ep", "etp") if getattr(plan, key) != 1]
    parts += [f"dp={plan.dp}", f"mbs={plan.mbs}", f"sp={int(plan.sp)}", f"recompute={plan.recompute}"]
    parts += [f"{key}={getattr(plan, key)}" for key in ("first", "last") if getattr(plan, key) is not None]
    if plan.dist_opt == bool(plan.fsdp):
        parts.append(f"dist_opt={int(plan.dist_opt)}")
    if plan.fsdp:
        parts.append(f"fsdp={plan.fsdp}")
    if plan.offload:
        parts.append(f"offload={plan.offload!r}")
    return ",".join(parts)


def check_commas(text: str) -> None:
    """Raises PlanError where a value holds another `key=`: the keys of a short form are separated by commas."""
    if any(part.count("=") > 1 for part in text.split(",")):
        mended = re.sub(r"[\s;|&,]+(?=[A-Za-z_]+\s*=)", ",", re.sub(r"\s*=\s*", "=", text.strip()))
        hint = f"; write it with commas: {mended}" if all(part.count("=") == 1 for part in mended.split(",")) else ""
        raise PlanError(f"plan {text!r} has no comma between its keys{hint or '; write it like tp=8,pp=8,mbs=1'}")


def read_short_form(text: str, known: Collection[str], value_of: Callable[[str, str], object]) -> dict[str, object]:
    """`"tp=8,sp=1"` by key, values as `value_of(key, text)` reads them. Raises PlanError for keys not among `known`."""
    check_commas(text)
    values: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        key = key.lower()
        if key not in known:
            raise UnknownKeyError("plan key", key, known, text)
        if not equals or not value:
            raise PlanError(f"plan {text!r}: {key} has no value; write {key}=...")
        if key in values:
            raise PlanError(f"plan {text!r}: {key} is given twice")
        values[key] = value_of(key, value)
    return values


def parse_keys(text: str) -> dict[str, object]:
    """`"tp=8,sp=1"` as {"tp": 8, "sp": True}: only the keys that were given. Raises PlanError with what is allowed."""
    values = read_short_form(text, SHORT_TO_LONG, _parse_value)
    if not values:
        raise PlanError("empty plan; write it like tp=8,pp=8,mbs=1,sp=1,recompute=none")
    return values


def _parse_value(key: str, text: str) -> object:
    if key == "recompute":
        return Recompute.parse(text)
    if key == "offload":
        try:
            return float(text)
        except ValueError:
            raise PlanError(f"offload={text!r} is not a number from 0 to 1") from None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise PlanError(f"{key}={text!r} is not a whole number")
    number = int(text)
    if key in ("sp", "dist_opt"):
        if number not in (0, 1):
            raise PlanError(f"{key}={text}: use 0 or 1")
        return bool(number)
    return number


def parse_plan(text: str, num_gpus: int, *, dist_opt: bool = True, sp: bool = False) -> TrainPlan:
    """A whole plan; keys left out take the documented defaults, dp the rest of `num_gpus`. Raises PlanError.

    Defaults (docs/specs.md): tp, pp, vpp, cp, ep, etp 1; mbs 1; recompute none; even stages; dp = N / (tp pp cp); sp as given
    where tp is above 1 (a question gives 1 for stacks that have it); dist_opt as given (False for stacks without a distributed
    optimizer), and 0 where fsdp is given.
    """
    values = parse_keys(text)
    usual = {"tp": 1, "pp": 1, "mbs": 1, "dist_opt": dist_opt and not values.get("fsdp"), "sp": sp and values.get("tp", 1) != 1}
    filled = {**usual, **values}
    if "dp" not in filled:
        size = int(filled["tp"]) * int(filled["pp"]) * int(filled.get("cp", 1))  # type: ignore[call-overload]
        filled["dp"] = max(1, num_gpus // size) if size else 1
    return TrainPlan(**filled)  # type: ignore[arg-type]


FULL_ITERATION, FULL = "full_iteration", "full"
GRAPH_SCOPES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", FULL, FULL_ITERATION)
"""Parts of a layer that may be replayed as CUDA graphs (Megatron's --cuda-graph-scope), and the whole iteration."""
PLAN_COLUMNS = ("gpus", "tp", "pp", "cp", "vpp", "ep", "mbs")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Switches of one run."""

    dispatcher: str = "alltoall"
    cuda_graphs: frozenset[str] = frozenset()
    """Some of GRAPH_SCOPES; empty: the host launches every kernel."""
    ep_overlap: bool = False
    """Dispatch and combine of one micro-batch run beside the compute of another (--overlap-moe-expert-parallel-comm)."""
    fused_experts: bool = False
    """One kernel for the experts' GEMM, activation and quantisation (Transformer Engine's fused grouped MLP)."""
    fp8_attention: bool = False
    fp8_output: bool = False
    """The output layer's GEMM is quantised like those of the layers (fp8_output_proj)."""
    offload_layers: int = 0
    """Layers whose saved activations wait in host memory (cpu_offloading_num_layers; one pipeline stage only)."""

    def graphed(self, part: str) -> bool:
        """Whether this part of a layer is replayed."""
        return bool(self.cuda_graphs & {part, FULL, FULL_ITERATION})

    @property
    def full_iteration(self) -> bool:
        return FULL_ITERATION in self.cuda_graphs

    @property
    def static_sizes(self) -> bool:
        """Whether the host knows the sizes of all tensors of dropless experts before a step: HybridEP alone fills buffers of a
        fixed size; with the others the host waits for the rows of each expert, which no graph of the iteration can
        (megatron-core 0.19.2, moe/token_dispatcher.py: cuda_sync_point)."""
        return self.dispatcher == "hybridep"

    def beside(self, recompute: Recompute) -> RunSettings:
        """Those switches that Megatron runs with this recomputation: with `full` neither EP overlap nor CUDA graphs but of the
        full iteration, with `moe` neither EP overlap nor graphs of the router (NV081, NV146, NV152: megatron-core 0.19.2,
        transformer_config.py)."""
        graphs = self.cuda_graphs
        if recompute.granularity == "full":
            graphs = graphs & {FULL_ITERATION}
        elif "moe" in recompute.modules:
            graphs = graphs - {"moe_router", "moe_preprocess"}
        else:
            return self
        return replace(self, cuda_graphs=graphs, ep_overlap=False)


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """The switches that a question gives; None: the default of its release, GPU and model."""

    dispatcher: str | None = None
    cuda_graphs: frozenset[str] | None = None
    ep_overlap: bool | None = None
    fused_experts: bool | None = None
    fp8_attention: bool | None = None
    fp8_output: bool | None = None
    offload_layers: int | None = None
    of_a_run: bool = False
    """They are those of a run that ran: no rule judges them."""

    def __post_init__(self) -> None:
        if self.dispatcher is not None and self.dispatcher not in DISPATCHERS:
            raise InputError(f"dispatcher {self.dispatcher!r} is not one of {', '.join(DISPATCHERS)}", field="dispatcher")
        if odd := (self.cuda_graphs or frozenset()) - {*GRAPH_SCOPES}:
            raise InputError(
                f"cuda_graphs {' '.join(sorted(odd))!r}: known are none, {', '.join(GRAPH_SCOPES)} ({option('cuda_graphs')})",
                field="cuda_graphs",
            )


NOTHING_GIVEN = GivenSettings()


def settings_of_a_run(settings: RunSettings) -> GivenSettings:
    """All switches of a run as they were."""
    return GivenSettings(**vars(settings), of_a_run=True)


def read_graphs(text: str) -> frozenset[str]:
    """Scopes from a text with blanks, commas or plus signs between them; `none` is the empty set."""
    words = text.replace(",", " ").replace("+", " ").split()
    return frozenset() if words in (["none"], ["0"]) else frozenset(words)


@cache
def resolve_settings(
    given: GivenSettings,
    model: ModelSpec,
    cluster: ClusterSpec,
    software: SoftwareStack,
    *,
    precision: str,
    dropless: bool,
    plan: TrainPlan | None = None,
) -> RunSettings:
    """The switches of a run in `precision` (bf16, or how a quantised format is scaled): what is given, else the recipe of
    this model nearest to `plan`, else what most recipes of the release and GPU do, else what the stack does. DeepEP gives way
    to all-to-all where links join more than one board (Megatron-Core: "DeepEP only supports Ampere, Hopper, B200 and B300"),
    and usual graphs of the full iteration to none where a given dispatcher's sizes are not static."""
    defaults = _of_stack(model, cluster, software, dropless)
    if software.release and model.is_moe:
        defaults = _of_recipes(defaults, model, cluster, precision, software.release, plan)
    said = {f.name: value for f in fields(RunSettings) if (value := getattr(given, f.name)) is not None}
    found = replace(defaults, **said)
    if found.dispatcher == "deepep" and cluster.link_domain_size > 8:
        found = replace(found, dispatcher="alltoall")
    waits = model.is_moe and dropless and not found.static_sizes
    if given.cuda_graphs is None and found.full_iteration and waits:
        found = replace(found, cuda_graphs=frozenset())
    return found


def _of_stack(model: ModelSpec, cluster: ClusterSpec, software: SoftwareStack, dropless: bool) -> RunSettings:
    time, wide = software.time, cluster.link_domain_size > 8
    if not model.is_moe:
        return RunSettings(cuda_graphs=frozenset({FULL} if time.cuda_graphs else ()))
    dispatcher = time.moe_dispatcher_wide if wide and time.moe_dispatcher_wide else time.moe_dispatcher
    parts = ("attn", "moe_router", "moe_preprocess") if wide and time.moe_graphs_wide else ()
    return RunSettings(
        dispatcher=dispatcher,
        cuda_graphs=frozenset({FULL} if time.cuda_graphs else parts),
        ep_overlap=time.moe_ep_overlap and dropless and not wide,
    )


@dataclass(frozen=True)
class RecipeSettings:
    """One row of releases.csv."""

    model: str
    gpu: str
    precision: str
    release: str
    until: str
    """The last release that has it, of those that the table knows."""
    plan: tuple[int, ...]
    settings: RunSettings
    row: Mapping[str, str]


@cache
def recipes() -> tuple[RecipeSettings, ...]:
    """All recipes, in the order of the table."""
    path = resources.files("autoconfig.specs") / "catalogue" / "software" / "releases.csv"
    return tuple(_recipe(row) for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def _recipe(row: Mapping[str, str]) -> RecipeSettings:
    flags = {name: row[name] == "1" for name in ("ep_overlap", "fused_experts", "fp8_attention", "fp8_output")}
    settings = RunSettings(dispatcher=row["dispatcher"], cuda_graphs=read_graphs(row["cuda_graphs"]), **flags)
    plan = tuple(int(row[column]) for column in PLAN_COLUMNS)
    return RecipeSettings(row["model"], row["gpu"], row["precision"], row["software"], row["until"], plan, settings, row)


def nearest_recipe(model: str, gpu: str, precision: str, release: str, plan: tuple[int, ...] | None) -> RecipeSettings | None:
    """Of the release's recipes, or those of the nearest one before it, the one whose plan (PLAN_COLUMNS) is most like `plan`;
    the last one without a plan or where two are alike. Of another precision where there is none of this one."""
    known = [r for r in recipes() if (r.model, r.gpu) == (model, gpu) and r.release <= release]
    known = [r for r in known if r.precision == precision] or known
    last = max((r.until for r in known), default="")
    current = [r for r in known if r.until >= min(last, release)]
    if not current:
        return None
    same = [0 if plan is None else sum(a == b for a, b in zip(r.plan, plan, strict=True)) for r in current]
    return max(enumerate(current), key=lambda item: (same[item[0]], item[0]))[1]


def _of_recipes(
    stack: RunSettings, model: ModelSpec, cluster: ClusterSpec, precision: str, release: str, plan: TrainPlan | None
) -> RunSettings:
    name, gpu = model.name.rstrip("*"), cluster.gpu.id.split("-")[0]
    mine = None if plan is None else (plan.world_size, plan.tp, plan.pp, plan.cp, plan.vpp, plan.ep, plan.mbs)
    if (recipe := nearest_recipe(name, gpu, precision, release, mine)) is not None:
        return recipe.settings
    newest: dict[str, RecipeSettings] = {}
    for other in recipes():
        dense = other.model.startswith("llama")
        if (other.gpu, other.precision) == (gpu, precision) and other.release <= release and not dense:
            newest[other.model] = other
    return _most(stack, [r.settings for r in newest.values()])


def _most(stack: RunSettings, known: Sequence[RunSettings]) -> RunSettings:
    """Of each switch what most recipes do; the stack's own where there is none."""
    if not known:
        return stack
    return RunSettings(**{f.name: Counter(getattr(s, f.name) for s in known).most_common(1)[0][0] for f in fields(RunSettings)})
