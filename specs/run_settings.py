"""What a run switches on beside its plan: given in a question, read off NVIDIA's recipes, or usual for its software."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import resources
from math import log2
from typing import Any

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.software.software import DISPATCHERS, SoftwareStack, is_release

FULL_ITERATION, FULL = "full_iteration", "full"
GRAPH_SCOPES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", FULL, FULL_ITERATION)
"""Parts of a layer that may be replayed as CUDA graphs (Megatron's --cuda-graph-scope), and the whole iteration."""
PLAN_COLUMNS = ("gpus", "tp", "pp", "cp", "vpp", "ep", "mbs")
PRETRAIN = "pretrain"


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
FUSED = "mxfp8"
"""How GEMMs are scaled where Transformer Engine fuses a grouped MLP (GroupedMLP_CuTeGEMMSwiGLU_MXFP8, on Blackwell)."""
OF_THE_RELEASE = ("fused_experts", "fp8_attention")
"""Kernels that a run has because its software has them, whatever its plan."""


def settings_of_a_run(settings: RunSettings) -> GivenSettings:
    """All switches of a run as they were."""
    return GivenSettings(**vars(settings), of_a_run=True)


def usual_graphs(model: ModelSpec) -> frozenset[str]:
    """What a run replays that says graphs and no scope: whole layers of dense models; of mixtures what most of NVIDIA's recipes
    with graphs do (releases.csv), the layers' parts before the experts."""
    if not model.is_moe:
        return frozenset({FULL})
    mixers = {"mamba"} if model.is_hybrid and "mamba" in model.layer_kinds else set()
    return frozenset({"attn", "moe_router", "moe_preprocess"} | mixers)


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
    this model nearest to `plan` (kernels: OF_THE_RELEASE), else what most recipes of the release and GPU do, else what the
    stack does. DeepEP gives way
    to all-to-all where links join more than one board (Megatron-Core: "DeepEP only supports Ampere, Hopper, B200 and B300"),
    and usual graphs of the full iteration to none where a given dispatcher's sizes are not static."""
    _refuse_other_vendors(given, model, cluster)
    defaults = _of_stack(model, cluster, software, dropless)
    if software.release and model.is_moe:
        defaults = _of_recipes(defaults, model, cluster, precision, software.release, plan)
    said = {f.name: value for f in fields(RunSettings) if (value := getattr(given, f.name)) is not None}
    found = replace(defaults, **said)
    if found.dispatcher == "deepep" and cluster.link_domain_size > 8:
        found = replace(found, dispatcher="alltoall")
    if found.dispatcher == "hybridep" and cluster.gpu.vendor != NVIDIA:
        found = replace(found, dispatcher="alltoall", fused_experts=False)
    waits = model.is_moe and dropless and not found.static_sizes
    if given.cuda_graphs is None and found.full_iteration and waits:
        found = replace(found, cuda_graphs=frozenset())
    return found


NVIDIA = "nvidia"


def given_way(dispatcher: str | None, found: RunSettings) -> list[Remark]:
    """That the dispatcher that was asked for is not the one that is priced (resolve_settings), where it is not."""
    if dispatcher in (None, found.dispatcher):
        return []
    return [Remark("dispatcher", found.dispatcher, f"as {dispatcher} does not run where links join more than one board")]


def formula_only(model: ModelSpec, cluster: ClusterSpec) -> list[Remark]:
    """For mixtures of experts on another vendor's GPUs, of which no run is published."""
    if not model.is_moe or cluster.gpu.vendor == NVIDIA:
        return []
    why = f"mixtures of experts on {cluster.gpu.name}: formula only, from the data sheet; no run of one was ever compared"
    return [note(why, Effect.EVERYTHING)]


def _refuse_other_vendors(given: GivenSettings, model: ModelSpec, cluster: ClusterSpec) -> None:
    """HybridEP (IBGDA, NVLink) and Transformer Engine's fused grouped MLP (CuTe) are NVIDIA's own. Raises InputError."""
    if cluster.gpu.vendor == NVIDIA or not model.is_moe:
        return
    if given.dispatcher == "hybridep":
        raise InputError(
            f"dispatcher hybridep runs on NVIDIA's GPUs only, not on {cluster.gpu.id}: say {option('dispatcher')} alltoall",
            field="dispatcher",
        )
    if given.fused_experts:
        raise InputError(
            f"fused experts run on NVIDIA's GPUs only, not on {cluster.gpu.id}: leave {option('fused_experts')} out",
            field="fused_experts",
        )


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
    task: str
    """pretrain, sft or lora."""
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
    model, gpu, precision, since = (row[column] for column in ("model", "gpu", "precision", "software"))
    return RecipeSettings(model, gpu, precision, since, row["until"], row["task"], plan, settings, row)


def _month(release: str) -> float:
    """Months of a release nemo-YY.MM[.point] since 2000; a point release is taken as half a month later."""
    year, month, *point = release.removeprefix("nemo-").split(".")
    return 12 * int(year) + int(month) + (0.5 if point else 0.0)


@cache
def _known_releases() -> tuple[str, ...]:
    """Releases that some recipe names, oldest first."""
    return tuple(sorted({r.release for r in recipes()} | {r.until for r in recipes()}))


@cache
def release_neighbours(release: str) -> tuple[str, str, float] | None:
    """(release before, release after, share of the way between them by date) of a release that no recipe names; None for one
    that is known, or before the first or behind the last."""
    known = _known_releases()
    if not is_release(release) or release in known or not known[0] < release < known[-1]:
        return None
    before, after = max(k for k in known if k < release), min(k for k in known if k > release)
    way = (_month(release) - _month(before)) / (_month(after) - _month(before))
    return before, after, min(1.0, max(0.0, way))


def unknown_release(software: SoftwareStack) -> list[Remark]:
    """What a question takes for granted about a release without a file; empty for others."""
    if not software.priced_as:
        return []
    why = f"of which nothing is known here, priced as {software.priced_as}"
    if neighbours := release_neighbours(software.release):
        before, after, share = neighbours
        why += f" with the settings of {before}; a row of a table (predict) lies {share:.0%} of the way from it to {after}"
    return [Remark("software", software.name, why, Effect.EVERYTHING)]


GPU_CLASS = {"h200": "h100", "h800": "h100", "gh200": "h100", "b300": "b200", "gb300": "gb200"}
"""GPU -> the one of its generation and kind of node that stands for both."""


def _kin(gpu: str, other: str) -> bool:
    return GPU_CLASS.get(gpu, gpu) == GPU_CLASS.get(other, other)


@cache
def current_recipes(model: str, gpu: str, precision: str, release: str, task: str = PRETRAIN) -> tuple[RecipeSettings, ...]:
    """The recipes of a model that a release has, or the nearest release before it: of this GPU, else of its class (GPU_CLASS);
    of this precision, else of any; in the order of the table. A release that no recipe names has those of the one before it."""
    release = max((known for known in _known_releases() if known <= release), default=release)
    known = [r for r in recipes() if (r.model, r.task) == (model, task) and _kin(r.gpu, gpu) and r.release <= release]
    known = [r for r in known if r.gpu == gpu] or known
    known = [r for r in known if r.precision == precision] or known
    last = max((r.until for r in known), default="")
    return tuple(r for r in known if r.until >= min(last, release))


@cache
def switches_known(gpu: str, precision: str, release: str, pipelined: bool) -> tuple[frozenset[str], bool] | None:
    """CUDA-graph scopes that a mixture's recipe has had on a GPU of this class in this precision up to a release, and whether
    one with (without) a pipeline has had EP overlap; None where no recipe says, or the release is younger than the table."""
    if release > _known_releases()[-1]:
        return None
    alike = [r for r in recipes() if not _dense(r) and _kin(r.gpu, gpu) and r.precision == precision and r.release <= release]
    overlap = any(r.settings.ep_overlap for r in alike if (r.plan[2] > 1) == pipelined)
    return (frozenset().union(*(r.settings.cuda_graphs for r in alike)), overlap) if alike else None


@cache
def model_switches(model: str, gpu: str, release: str) -> tuple[RunSettings, ...]:
    """Settings of all recipes that a model has had on GPUs of this class up to a release."""
    return tuple(r.settings for r in recipes() if r.model == model and _kin(r.gpu, gpu) and r.release <= release)


def _dense(recipe: RecipeSettings) -> bool:
    return recipe.model.startswith("llama")


def nearest_recipe(
    model: str,
    gpu: str,
    precision: str,
    release: str,
    plan: tuple[int, ...] | None,
    gpus: int | None = None,
    task: str = PRETRAIN,
) -> RecipeSettings | None:
    """Of `current_recipes` the one whose plan (PLAN_COLUMNS) is most like `plan`: each degree that is the same counts one, and
    GPUs at most one against it (a half at twice as many, one from four times on); of two alike the one of a nearer number of
    GPUs, then the later one. Without a plan that of the nearest number of `gpus`."""

    def likeness(item: tuple[int, RecipeSettings]) -> tuple[float, ...]:
        number, recipe = item
        same = 0 if plan is None else sum(a == b for a, b in zip(recipe.plan[1:], plan[1:], strict=True))
        count = gpus if plan is None else plan[0]
        doublings = abs(log2(recipe.plan[0] / count)) if count else 0.0
        return same - min(1.0, doublings / 2.0), -doublings, number

    known = current_recipes(model, gpu, precision, release, task)
    return max(enumerate(known), key=likeness)[1] if known else None


def _of_recipes(
    stack: RunSettings, model: ModelSpec, cluster: ClusterSpec, precision: str, release: str, plan: TrainPlan | None
) -> RunSettings:
    name, gpu = model.name.rstrip("*"), cluster.gpu.id.split("-")[0]
    mine = None if plan is None else (plan.world_size, plan.tp, plan.pp, plan.cp, plan.vpp, plan.ep, plan.mbs)
    if (recipe := nearest_recipe(name, gpu, precision, release, mine, cluster.num_gpus)) is not None:
        current = current_recipes(name, gpu, precision, release)
        return recipe.settings if recipe.plan == mine else _with_kernels_of_the_release(recipe, current, cluster.num_gpus)
    newest: dict[str, RecipeSettings] = {}
    for other in recipes():
        if (other.gpu, other.precision) == (gpu, precision) and other.release <= release and not _dense(other):
            newest[other.model] = other
    return _most(stack, [r.settings for r in newest.values()])


def _with_kernels_of_the_release(recipe: RecipeSettings, known: Sequence[RecipeSettings], gpus: int) -> RunSettings:
    """Its settings with the kernels (OF_THE_RELEASE) that most of the known recipes switch on; where as many do not, those of
    the recipe of the nearest number of GPUs, the later one of two."""
    counted = [r.settings for r in sorted(reversed(known), key=lambda r: abs(log2(r.plan[0] / gpus)))]
    return replace(recipe.settings, **{name: _usual(name, counted) for name in OF_THE_RELEASE})


def _usual(name: str, known: Sequence[RunSettings]) -> Any:
    return Counter(getattr(s, name) for s in known).most_common(1)[0][0]


def _most(stack: RunSettings, known: Sequence[RunSettings]) -> RunSettings:
    """Of each switch what most recipes do; the stack's own where there is none."""
    if not known:
        return stack
    return RunSettings(**{f.name: _usual(f.name, known) for f in fields(RunSettings)})


def without_ring(model: ModelSpec, software: SoftwareStack) -> SoftwareStack:
    """The software with the exchange of keys and values that context parallelism of this model runs: Transformer Engine refuses
    windows in a ring (context_parallel.py, attn_forward_func_with_cp: a2a or all_gather), and sinks in all but a2a
    (dot_product_attention/utils.py, get_attention_backend)."""
    if software.memory.cp_comm_type == "a2a" or not (model.attention_sinks or model.window_size):
        return software
    kind = "a2a" if model.attention_sinks else "allgather"
    return replace(software, memory=replace(software.memory, cp_comm_type=kind))
