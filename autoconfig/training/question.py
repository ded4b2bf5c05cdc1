"""From what a person or program asked to a Setting: names resolved, defaults filled in and said.

`Request` holds the command line's long options with underscores; the HTTP API takes the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autoconfig.planning.calibration_file import NO_CALIBRATION, calibrated, named_calibration
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import ClusterSpec, cluster_of
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping, load_cluster
from autoconfig.specs.hardware.gpu import CPU_ARCHITECTURE, GpuSpec
from autoconfig.specs.hardware.gpu_catalogue import load_gpu
from autoconfig.specs.hardware.local_gpu import find_gpu, gpu_of_file, local_gpu
from autoconfig.specs.models.huggingface import model_from_mapping
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import resolve_model
from autoconfig.specs.models.overrides import apply_overrides
from autoconfig.specs.numerics import Numerics, Workload
from autoconfig.specs.plan import SHORT_TO_LONG, TrainPlan, parse_keys, parse_plan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import SoftwareStack
from autoconfig.specs.software.software_catalogue import DEFAULT_STACK, load_stack
from autoconfig.time_model.calibration import DOCUMENTED_DEFAULTS, Calibration
from autoconfig.training.rules import RULE_TEXT, recompute_rule
from autoconfig.training.space import Wish

DEFAULT_GPU = "h100-sxm-80gb"
OLDER_STACK = "megatron-lm-2022"
"""Runs on GPUs that the default stack does not run on."""
CPU_STACK = "megatron-local"
"""Runs where there is no GPU."""
DEFAULT_SEQ_LENGTH = 8192
DEFAULT_TOKENS_PER_STEP = 4_194_304
"""About 4 million tokens a step, the usual size of large pre-training runs (Llama 2 paper, section 2.2)."""
SORTS = ("step", "memory", "cost")


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


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Request that could be understood."""

    scenario: Scenario
    wish: Wish
    assumed: tuple[str, ...]
    request: Request
    calibration: Calibration = DOCUMENTED_DEFAULTS
    """The one that the scenario carries."""


def understand(request: Request) -> Question:
    """Resolve every name and default. Raises InputError (and its kinds) with what to change."""
    _check(request)
    assumed: list[str] = []
    model, notes = read_model(request)
    assumed += notes
    model = apply_overrides(model, request.architecture)
    cluster = read_cluster(request, assumed)
    stack = _stack(request, cluster.gpu, assumed)
    workload = _workload(request, model, assumed)
    if workload.seq_length > model.max_position_embeddings:
        assumed.append(
            f"max_position_embeddings raised from {model.max_position_embeddings} to the sequence length {workload.seq_length}"
        )
        model = model.replace(max_position_embeddings=workload.seq_length)
    numerics = _numerics(request, model, cluster.gpu, stack, assumed)
    _check_runs(cluster.gpu, numerics, stack)
    calibration = _calibration(request)
    scenario = Scenario(model=model, cluster=cluster, numerics=numerics, software=stack, workload=workload)
    scenario = calibrated(scenario, calibration)
    wish = Wish(
        fixed=_sets(request.fix, "--fix", workload),
        at_most=_caps(request.max),
        excluded=_sets(request.exclude, "--exclude", workload),
    )
    _check_wish(scenario, wish)
    for text in request.include:
        with _named(f"--include {text}"):
            parse_plan(text, cluster.num_gpus)
    return Question(scenario=scenario, wish=wish, assumed=tuple(assumed), request=request, calibration=calibration)


MXFP8_LEAST_COMPUTE_CAPABILITY = 10.0
"""Microscaling formats are Blackwell's (Transformer Engine, MXFP8BlockScaling)."""


def _check_runs(gpu: GpuSpec, numerics: Numerics, stack: SoftwareStack) -> None:
    """The stack runs on the GPU in this precision. Raises InputError with what to change."""
    gpu.peak_flops_per_s(numerics.gemm_precision)
    capability = gpu.compute_capability
    if capability is not None and capability < stack.least_compute_capability:
        raise InputError(
            f"software {stack.name} needs compute capability {stack.least_compute_capability:g}; {gpu.id} has "
            f"{capability:g}: say --software megatron-lm-2022 or megatron-local"
        )
    if numerics.precision == "fp8" and not stack.supports_fp8:
        raise InputError(f"software {stack.name} has no fp8; say --precision bf16, or --software {DEFAULT_STACK}")
    if (
        numerics.precision == "fp8"
        and numerics.fp8_recipe == "mxfp8"
        and capability is not None
        and capability < MXFP8_LEAST_COMPUTE_CAPABILITY
    ):
        raise InputError(
            f"the mxfp8 recipe needs compute capability {MXFP8_LEAST_COMPUTE_CAPABILITY:g} (Blackwell); {gpu.id} has "
            f"{capability:g}: say --fp8-recipe delayed, tensorwise or blockwise"
        )


def _calibration(request: Request) -> Calibration:
    if not request.local_files and request.calibration not in (None, NO_CALIBRATION):
        raise InputError(f"--calibration {request.calibration!r}: leave it out for the service's own, or say {NO_CALIBRATION}")
    if request.calibration is None and request.own_calibration is not None:
        return request.own_calibration
    return named_calibration(request.calibration)


def _check_wish(scenario: Scenario, wish: Wish) -> None:
    """Wishes that no layout can meet: a value both fixed and excluded, a recomputation that model or precision rules out."""
    for key, values in wish.fixed.items():
        if values <= wish.excluded.get(key, frozenset()):
            raise InputError(f"--fix and --exclude together leave no value of {key}; drop one of them")
    fixed = wish.fixed.get("recompute", frozenset())
    broken = [recompute_rule(scenario, option) for option in fixed]
    if fixed and all(broken):
        rule, names = broken[0] or "", " or ".join(sorted(map(str, fixed)))
        raise InputError(f"--fix recompute={names}: not legal for {scenario.model.name}: {rule}, {RULE_TEXT[rule]}")


def _check(request: Request) -> None:
    if not 0.0 <= request.memory_margin < 1.0:
        raise InputError(
            f"--memory-margin {request.memory_margin!r}: give the share of GPU memory to keep free, from 0 to below 1"
        )
    if request.sort_by not in SORTS:
        raise InputError(f"--sort-by {request.sort_by!r}: use {', '.join(SORTS)}")
    if not 1 <= request.top <= 100_000:
        raise InputError(f"--top {request.top}: give a number of plans from 1 to 100,000")
    if request.price is not None and not 0 < request.price < 1e6:
        raise InputError(f"--price {request.price!r}: give money per GPU and hour, above 0 and below 1,000,000")
    if request.gpus is not None and request.gpus_at_most is not None:
        raise InputError("give either --gpus N (exactly N) or --gpus-at-most N (N or fewer), not both")


INLINE_MODEL = "inline"
"""Name of a model that came as JSON in the question."""


def read_model(request: Request) -> tuple[ModelSpec, list[str]]:
    """The model that a request names or carries, with the assumptions made. Raises InputError."""
    if isinstance(request.model, str):
        return resolve_model(request.model, paths=request.local_files)
    return model_from_mapping(request.model, "model", INLINE_MODEL), []


def read_cluster(request: Request, assumed: list[str]) -> ClusterSpec:
    """The hardware that a request names; what it leaves out is added to `assumed`. Raises InputError."""
    gpus = request.gpus if request.gpus is not None else request.gpus_at_most
    if gpus is not None and gpus < 1:
        option = "--gpus" if request.gpus is not None else "--gpus-at-most"
        raise InputError(f"{option} {gpus}: give a whole number of at least 1")
    if request.cluster is not None:
        if request.gpu is not None or request.gpu_table is not None or request.gpus_per_node is not None:
            raise InputError("give either --cluster FILE or --gpu, --gpu-table and --gpus-per-node, not both")
        if request.gpus_at_most is not None:
            node = _described_cluster(request, 1).gpus_per_node
            gpus = request.gpus_at_most if request.gpus_at_most < node else request.gpus_at_most // node * node
        return _described_cluster(request, gpus)
    if gpus is None:
        raise InputError("how many GPUs? say --gpus N, for example --gpus 64 (or --gpus-at-most N)")
    gpu = _gpu(request, assumed)
    node = request.gpus_per_node if request.gpus_per_node is not None else gpu.gpus_per_node
    if request.gpus_at_most is not None and gpus > node > 0:
        gpus -= gpus % node  # N or fewer: whole nodes
    return cluster_of(gpu, gpus, gpus_per_node=request.gpus_per_node)


def _described_cluster(request: Request, gpus: int | None) -> ClusterSpec:
    """The cluster of a file, or of the JSON in the question."""
    if not isinstance(request.cluster, str):
        return cluster_from_mapping(dict(request.cluster or {}), gpus)
    if not request.local_files:
        raise InputError("cluster must be a JSON object (the keys of docs/examples/cluster.json), not the name of a file")
    return load_cluster(request.cluster, gpus)


def _gpu(request: Request, assumed: list[str]) -> GpuSpec:
    """The GPU by name, by its file of measured operators, or of this machine. Raises InputError."""
    if not request.local_files and not request.measured_here:
        if request.gpu is None or request.gpu_table is not None:
            raise InputError("say --gpu: the name of a GPU type")
        return load_gpu(request.gpu)
    local = request.gpu is not None and request.gpu.strip().lower() == "local"
    if request.gpu_table is not None:
        gpu, source = gpu_of_file(request.gpu_table)
        if request.gpu is not None and not local and find_gpu(request.gpu).id != gpu.id:
            raise InputError(f"--gpu {request.gpu} is not what --gpu-table is about ({gpu.id}); leave --gpu out")
    elif local:
        gpu, source = local_gpu()
    elif request.gpu is not None:
        return find_gpu(request.gpu)
    else:
        gpu = load_gpu(DEFAULT_GPU)
        source = f"{gpu.id} (say --gpu to name another)"
    assumed.append(f"GPU {source}" if request.gpu is None and request.gpu_table is None else source)
    return gpu


def _stack(request: Request, gpu: GpuSpec, assumed: list[str]) -> SoftwareStack:
    """The stack asked for, else the default; on GPUs that it does not run on, the last one that does."""
    if request.software is not None:
        return load_stack(request.software)
    if gpu.architecture == CPU_ARCHITECTURE:
        assumed.append(f"software {CPU_STACK}, which runs on CPUs (--software)")
        return load_stack(CPU_STACK)
    stack = load_stack(DEFAULT_STACK)
    if gpu.compute_capability is not None and gpu.compute_capability < stack.least_compute_capability:
        older = load_stack(OLDER_STACK)
        assumed.append(f"software {older.name}, because {stack.name} does not run on {gpu.id} (--software)")
        return older
    return stack


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


def _sets(texts: Iterable[str], option: str, workload: Workload) -> dict[str, frozenset[Any]]:
    """`tp=8` twice with other values means either."""
    values: dict[str, set[Any]] = {}
    for text in texts:
        for key, value in _read(text, option).items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(found) for key, found in values.items()}


def _caps(texts: Iterable[str]) -> dict[str, int]:
    caps: dict[str, int] = {}
    for text in texts:
        for key, value in _read(text, "--max").items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(
                    f"--max {text}: {key} has no size; cap one of {', '.join(k for k in SHORT_TO_LONG if k not in _UNSIZED)}"
                )
            caps[key] = min(value, caps.get(key, value))
    return caps


_UNSIZED = ("sp", "recompute", "dist_opt", "fsdp", "offload", "first", "last")


def _read(text: str, option: str) -> dict[str, object]:
    with _named(f"{option} {text}"):
        values = parse_keys(text)
        TrainPlan(**{"tp": 1, "pp": 1, "dp": 1, "mbs": 1, **values})  # type: ignore[arg-type]  # checks every value
        return values


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Errors inside say which option they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


Progress = Callable[[str], None]
"""Told in a few words what is being worked on."""
