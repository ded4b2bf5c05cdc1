"""What a run switches on beside its plan: given in a question, read off NVIDIA's recipes, or usual for its software."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from importlib import resources
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import ClusterSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.software.software import DISPATCHERS, SoftwareStack, StackOptions, bucket_bytes, with_options

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

    def replays(self, part: str) -> bool:
        """Whether graphs of this part, or of the full iteration, are named."""
        return bool(self.cuda_graphs & {part, FULL_ITERATION})

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
    compile: bool | None = None
    loss: str | None = None
    async_tp: bool | None = None
    zero_bucket: int | None = None
    own_overlap: bool | None = None
    """Of DeepSpeed's overlap_comm: True: not said, so that it is on at ZeRO's stage 3 alone; else on."""
    expandable_segments: bool | None = None
    """How the software runs its layers, loss, communication and allocator: StackOptions of the same names."""
    of_a_run: bool = False
    """They are those of a run that ran: no rule judges them."""

    def said(self) -> dict[str, Any]:
        """Those that are given, by name."""
        return {f.name: value for f in fields(RunSettings) if (value := getattr(self, f.name)) is not None}

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
FLEXIBLE = ("deepep", "hybridep")
"""Dispatchers that send a token once to each rank or link domain."""


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


NVIDIA = "nvidia"
OVER_BOARDS = 8
"""GPUs of a link domain above which DeepEP does not run (megatron-core: "only supports Ampere, Hopper, B200 and B300")."""
USUAL_SEQUENCE = 8_192
"""The longest sequence of NVIDIA's recipes that graph attention (catalogue/software/releases.csv). Masks grow with its square:
a longer question leaves attention out of its usual graphs (131,072 tokens would need 4 GiB a layer)."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """The switches of a question's runs: one choice for each kind of plan that they depend on."""

    choices: tuple[RunSettings, ...]
    """Without equal ones."""
    number: tuple[int, int, int, int]
    """Of the choice of a plan: at 1 where tp x ep is above 1, 2 more where EP overlap can run in it."""
    given: GivenSettings

    def numbers(self, tp: Number, pp: Number, vpp: Number, ep: Number) -> Number:
        """The position in `choices` of plans with these degrees."""
        return np.array(self.number)[np.where(tp * ep > 1, 1, 0) + np.where(overlap_can_run(pp, vpp, ep), 2, 0)]

    @property
    def widest(self) -> RunSettings:
        """Those of a plan that every switch can run in."""
        return self.choices[self.number[-1]]

    def of(self, plan: TrainPlan) -> RunSettings:
        """Those of one plan: beside its recomputation, usual switches give way."""
        found = self.choices[int(self.numbers(plan.tp, plan.pp, plan.vpp, plan.ep))]
        return replace(found.beside(plan.recompute), **self.given.said() | {"dispatcher": found.dispatcher})


def overlap_can_run(pp: Number, vpp: Number, ep: Number) -> Number:
    """Where the combined 1F1B schedule can run: several ranks of experts, and one stage or interleaved ones (megatron-core
    0.19.2, transformer_config.py: overlap_moe_expert_parallel_comm)."""
    return (ep > 1) & ((pp == 1) | (vpp > 1))


@cache
def resolve_settings(
    given: GivenSettings,
    model: ModelSpec,
    cluster: ClusterSpec,
    software: SoftwareStack,
    *,
    precision: str,
    dropless: bool,
    seq_length: int,
) -> Switches:
    """The switches of runs in `precision` (bf16, or how a quantised format is scaled): what is given, else what most recipes
    of the release have for models of this kind on such GPUs, else what the stack does; of a plan that a usual switch cannot run
    in what is left of it. A given DeepEP gives way to all-to-all where links join more than one board, as in the software.
    Raises InputError for kernels of another vendor."""
    _refuse_other_vendors(given, model, cluster)
    usual = None
    if software.release:
        usual = usual_settings(kind_of(model), cluster.gpu.id.split("-")[0], recipe_class(cluster), precision, software.release)
    usual = _of_stack(model, cluster, software, dropless) if usual is None else usual
    choices = []
    for overlaps in (False, True):
        for flexible in (False, True):
            found = _possible(usual, given, model, cluster, precision, flexible=flexible, overlaps=overlaps)
            found = replace(found, cuda_graphs=_graphs(found, given, model, seq_length, dropless=dropless))
            choices.append(replace(found, **given.said() | {"dispatcher": found.dispatcher}))
    distinct = tuple(dict.fromkeys(choices))
    a, b, c, d = (distinct.index(choice) for choice in choices)
    return Switches(choices=distinct, number=(a, b, c, d), given=given)


def _possible(
    usual: RunSettings,
    given: GivenSettings,
    model: ModelSpec,
    cluster: ClusterSpec,
    precision: str,
    *,
    flexible: bool,
    overlaps: bool,
) -> RunSettings:
    """The usual settings that model, cluster, precision and plan leave, and the dispatcher that runs."""
    if not model.is_moe:
        return replace(usual, dispatcher="alltoall", ep_overlap=False, fused_experts=False)
    dispatcher = _dispatcher(usual, given, cluster, flexible=flexible)
    overlap = overlaps and dispatcher != "allgather" and precision != "fp32" and model.mtp_num_layers <= 1
    return replace(
        usual,
        dispatcher=dispatcher,
        ep_overlap=usual.ep_overlap and overlap,
        fused_experts=usual.fused_experts and precision == FUSED and cluster.gpu.vendor == NVIDIA,
        fp8_output=usual.fp8_output and precision == FUSED,
    )


def _dispatcher(usual: RunSettings, given: GivenSettings, cluster: ClusterSpec, *, flexible: bool) -> str:
    """The dispatcher that runs: the one given, else the usual one where cluster and plan have it."""
    name = given.dispatcher or usual.dispatcher
    if name == "deepep" and cluster.link_domain_size > OVER_BOARDS:
        return "alltoall"
    runs = flexible and (name != "hybridep" or cluster.gpu.vendor == NVIDIA)
    return name if runs or given.dispatcher is not None or name not in FLEXIBLE else "alltoall"


def _graphs(found: RunSettings, given: GivenSettings, model: ModelSpec, seq_length: int, *, dropless: bool) -> frozenset[str]:
    """The usual graphs that the model has parts for and whose sizes the host knows."""
    waits = model.is_moe and dropless
    if found.full_iteration:
        return frozenset() if waits and not found.static_sizes else found.cuda_graphs
    if given.offload_layers:
        return frozenset()
    lacking = {"moe"} if waits else set()
    lacking |= {"moe", "mlp"} if (found.ep_overlap if given.ep_overlap is None else given.ep_overlap) else set()
    lacking |= {"mlp"} if 0 not in model.moe_pattern else set()
    lacking |= set() if model.is_moe else {part for part in GRAPH_SCOPES if part.startswith("moe")}
    lacking |= set() if "mamba" in model.layer_kinds else {"mamba"}
    lacking |= {"attn"} if seq_length > USUAL_SEQUENCE else set()
    return found.cuda_graphs - lacking


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
        if cluster.gpu.vendor != NVIDIA:
            return RunSettings()
        graphs = frozenset({FULL_ITERATION} if time.full_iteration_graphs else ())
        return RunSettings(cuda_graphs=graphs, fp8_attention=time.fp8_attention)
    dispatcher = time.moe_dispatcher_wide if wide and time.moe_dispatcher_wide else time.moe_dispatcher
    parts = ("attn", "moe_router", "moe_preprocess") if wide and time.moe_graphs_wide else ()
    return RunSettings(
        dispatcher=dispatcher,
        cuda_graphs=frozenset(parts),
        ep_overlap=time.moe_ep_overlap and dropless and not wide,
    )


def kind_of(model: ModelSpec) -> str:
    """The kind of model that recipes are counted by: dense, mixture, or hybrid (with experts or without)."""
    return "hybrid" if model.is_hybrid else "mixture" if model.is_moe else "dense"


def recipe_class(cluster: ClusterSpec) -> str:
    """Which GPUs' recipes stand for these: h100 (Hopper), b200 (Blackwell on boards of eight), gb200 (NVL72); else none."""
    gpu = cluster.gpu
    if gpu.architecture == "hopper":
        return "h100"
    if gpu.architecture != "blackwell":
        return ""
    return "gb200" if cluster.link_domain_size > OVER_BOARDS else "b200"


@cache
def usual_settings(kind: str, gpu: str, class_: str, precision: str, release: str) -> RunSettings | None:
    """Of each switch what most pretraining recipes of the release do for models of a kind: on this GPU in this precision, else
    on its class of GPUs (`recipe_class`), else in any precision; None where there is none. Of a model those recipes count that
    came last, together one vote; of as many votes the later recipes'. A scope of graphs is usual that most replay: those of the
    full iteration replay every part."""
    voters = _voters(kind, gpu, class_, precision, max((one for one in _known_releases() if one <= release), default=release))
    if not voters:
        return None
    of_model = Counter(r.model for r in voters)

    def most(value: Callable[[RunSettings], Any]) -> Any:
        votes: dict[Any, Fraction] = {}
        for r in voters:
            votes[value(r.settings)] = votes.get(value(r.settings), Fraction(0)) + Fraction(1, of_model[r.model])
        return max(votes, key=lambda one: votes[one])

    others = {f.name: most(attrgetter(f.name)) for f in fields(RunSettings) if f.name != "cuda_graphs"}
    whole = most(lambda settings: settings.full_iteration)
    parts = {part for part in GRAPH_SCOPES[:-2] if most(methodcaller("replays", part))}
    return RunSettings(cuda_graphs=frozenset({FULL_ITERATION} if whole else parts), **others)


def _voters(kind: str, gpu: str, class_: str, precision: str, release: str) -> list[RecipeSettings]:
    """The recipes that `usual_settings` counts, those of later releases first."""
    alive = [r for r in recipes() if (r.row["kind"], r.task) == (kind, PRETRAIN) and r.release <= release <= r.until]
    alike = [r for r in alive if class_ and GPU_CLASS.get(r.gpu, r.gpu) == class_]
    mine = [r for r in alike if r.gpu == gpu]
    in_precision = ([r for r in some if r.precision == precision] for some in (mine, alike))
    pool = next(filter(None, (*in_precision, mine, alike)), [])
    newest: dict[tuple[str, str], str] = {}
    for r in pool:
        newest[r.model, r.gpu] = max(r.release, newest.get((r.model, r.gpu), ""))
    return sorted((r for r in pool if r.release == newest[r.model, r.gpu]), key=lambda r: r.release, reverse=True)


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


@cache
def _known_releases() -> tuple[str, ...]:
    """Releases that some recipe names, oldest first."""
    return tuple(sorted({r.release for r in recipes()} | {r.until for r in recipes()}))


def unknown_release(software: SoftwareStack) -> list[Remark]:
    """What a question takes for granted about a release without a file; empty for others."""
    if not software.priced_as:
        return []
    why = f"of which nothing is known here, priced as {software.priced_as}"
    return [Remark("software", software.name, why, Effect.EVERYTHING)]


GPU_CLASS = {"h200": "h100", "h800": "h100", "gh200": "h100", "b300": "b200", "gb300": "gb200"}
"""GPU -> the one of its generation and kind of node that stands for both."""


def without_ring(model: ModelSpec, software: SoftwareStack) -> SoftwareStack:
    """The software with the exchange of keys and values that context parallelism of this model runs: Transformer Engine refuses
    windows in a ring (context_parallel.py, attn_forward_func_with_cp: a2a or all_gather), and sinks in all but a2a
    (dot_product_attention/utils.py, get_attention_backend)."""
    if software.memory.cp_comm_type == "a2a" or not (model.attention_sinks or model.window_size):
        return software
    kind = "a2a" if model.attention_sinks else "allgather"
    return replace(software, memory=replace(software.memory, cp_comm_type=kind))


MOST_ELEMENTS = 10**11


def with_run_options(stack: SoftwareStack, given: GivenSettings) -> SoftwareStack:
    """The stack as the question runs it. Raises InputError for what the stack has not."""
    if given.compile is not None and stack.sharding == "megatron":
        raise InputError(f"{option('compile')} is of torch's trainers, and {stack.name} has kernels of its own: leave it out")
    if given.zero_bucket is not None and stack.sharding != "deepspeed":
        raise InputError(f"{option('zero_bucket')} is DeepSpeed's, and the software is {stack.name}: leave it out")
    if given.zero_bucket is not None and not 1 <= given.zero_bucket <= MOST_ELEMENTS:
        raise InputError(f"{option('zero_bucket')} {given.zero_bucket}: give 1 to {MOST_ELEMENTS:,} elements, like 500000000")
    if given.loss not in (None, "plain", "chunked", "fused"):
        raise InputError(f"{option('loss')} {given.loss[:20]!r}: use plain, chunked or fused")
    options = StackOptions(
        loss_fusion=given.loss or ("compiled" if given.compile else ""),
        compiled=given.compile,
        async_tp=given.async_tp,
        bucket_bytes=None
        if given.zero_bucket is None
        else bucket_bytes(given.zero_bucket, given.zero_bucket, overlaps=None if given.own_overlap else True),
        expandable_segments=given.expandable_segments,
    )
    return stack if options == StackOptions() else with_options(stack, options)
