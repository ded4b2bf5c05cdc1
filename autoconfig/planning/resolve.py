"""What a request says: its fields, declared once; and the model, GPUs, software and calibration that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from autoconfig.planning.usual_words import usual
from autoconfig.specs.errors import InputError, UnknownNameError, option
from autoconfig.specs.hardware.cluster import CPU_ARCHITECTURE, DEFAULT_GPU, ClusterSpec, GpuSpec, cluster_of, load_gpu
from autoconfig.specs.hardware.cluster_file import cluster_from_mapping, load_cluster
from autoconfig.specs.hardware.local_gpu import find_gpu, gpu_of_file, local_gpu
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.model_catalogue import config_file_of, resolve_model
from autoconfig.specs.remarks import Effect, Remark
from autoconfig.specs.run_settings import unknown_release
from autoconfig.specs.scenario import DOCUMENTED_DEFAULTS, Calibration, Numerics
from autoconfig.specs.software.software import DEFAULT_STACK, SoftwareStack, load_stack, newest_release
from autoconfig.specs.units import real_number, whole_number


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The numbers that a field takes, and how a message says so."""

    low: float
    high: float
    says: str = ""
    without_low: bool = False
    without_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.without_low else self.low <= value
        return above and (value < self.high if self.without_high else value <= self.high)

    def __str__(self) -> str:
        return self.says or f"use {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Field:
    """One thing that a question may say."""

    name: str
    """With underscores; the option is `--name-with-dashes`."""
    help: str
    type: type = str
    default: Any = None
    choices: tuple[str, ...] = ()
    bounds: Bounds | None = None
    range: tuple[int, int | None] | None = None
    """Lowest and highest value, where the command line refuses others by itself."""
    many: bool = False
    """It may be given several times."""
    negative: str = ""
    """Of a switch: the option that turns it off, without dashes in front."""
    parse: Callable[[str | float], float | str] | None = None
    """Reads a number that may have a unit. Raises InputError or ValueError."""
    metavar: str | None = None
    shows_default: bool = True
    """In the help, where there is one."""
    required: bool = False
    """On the command line, which then refuses it by itself."""
    attribute: str = ""
    """The request's name for it, where it is another one."""
    printed: bool = False
    """It changes what is printed, not what is found."""
    group: str = ""
    """The table of data/request_fields.toml in which it stands."""
    brief: str = ""
    """Its line in a command's short help; empty: it stands in --help-all only."""
    remote: bool = True
    """A caller over the network may give it: it names no file, program or terminal of the machine that answers."""
    unit: str = ""
    """What its numbers count; empty of words."""
    example: Any = None
    """A value as somebody would give it; of a switch and of a choice any is one."""

    def value(self, given: Any) -> Any:
        """What a request holds: a number for a text with a unit, a tuple for several values ({"tp": 8} is tp=8), a choice in
        the letters that it is written in. Raises InputError where it is of another kind."""
        if self.many:
            texts = _pairs(given) if isinstance(given, Mapping) else given or ()
            return (texts,) if isinstance(texts, str) else tuple(texts)
        if given is None:
            return None
        if self.type is str and self.parse is None and _are_texts(given):
            raise InputError(f"{option(self.name)}: give one value, not a list")
        if self.choices and isinstance(given, str):
            return given.lower() if given.lower() in self.choices else given
        try:
            return self._number(given)
        except ValueError as error:
            raise InputError(f"{option(self.name)}: {error}") from error

    def _number(self, given: Any) -> Any:
        """A number that may have a unit; as it is what is none. Raises ValueError and InputError."""
        if self.type is int:
            return whole_number(given, self.name)
        if self.type is float and self.parse is None and isinstance(given, str):
            return real_number(given)
        return given if self.parse is None or given == self.default else self.parse(given)


def _are_texts(value: Any) -> bool:
    """Whether a value is a list of texts, and no rows of a trace."""
    return isinstance(value, (list, tuple, set)) and all(isinstance(one, str) for one in value)


def _pairs(given: Mapping[str, Any]) -> Iterable[str]:
    """`KEY=VALUE` of each key, and of each value where it has several."""
    for key, values in given.items():
        for value in values if isinstance(values, list | tuple | set) else (values,):
            yield f"{key}={int(value) if isinstance(value, bool) else value}"


Fields = tuple[Field, ...]


def field_values(fields: Iterable[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was given the values of `fields`, by the request's names; what was not given has the field's default."""
    found = {}
    for field in fields:
        value = given.get(field.name)
        found[field.attribute or field.name] = field.value(field.default if value is None else value)
    return found


def check_bounds(fields: Iterable[Field], request: object) -> None:
    """Raises InputError where a number of a request lies outside its field's bounds (as not-a-number does)."""
    for field in fields:
        if field.bounds is not None:
            value = getattr(request, field.attribute or field.name)
            if value is not None and value not in field.bounds:
                raise InputError(f"{option(field.name)} {str(value)[:20]}: {field.bounds}")


def field_names(*groups: Fields) -> tuple[str, ...]:
    """The names of fields, in order."""
    return tuple(field.name for group in groups for field in group)


def check_names(given: Iterable[str], *groups: Fields) -> None:
    """Raises UnknownNameError for a name that no field has."""
    known = field_names(*groups)
    for name in given:
        if name not in known:
            found, said = usual(name, known)
            raise UnknownNameError("field", name, known, said, field=name, meant=found)


if TYPE_CHECKING:
    from autoconfig.specs.software.checkpoint import Checkpoint

OLDER_STACK = "megatron-lm-2022"
"""Runs on GPUs that the default stack does not run on."""
CPU_STACK = "megatron-local"
HOPPER, WORKSTATION = 9.0, 12.0
"""Compute capabilities."""
"""Runs where there is no GPU."""
INLINE_MODEL = "inline"
"""Name of a model that came as JSON in the question."""


class HardwareNames(Protocol):
    """What a request says of its hardware; None where it says nothing."""

    @property
    def gpus(self) -> int | None: ...
    @property
    def gpus_at_most(self) -> int | None: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpu_table(self) -> str | None: ...
    @property
    def cluster(self) -> str | Mapping[str, Any] | None: ...
    @property
    def gpus_per_node(self) -> int | None: ...
    @property
    def power_limit(self) -> float | None: ...
    @property
    def memory_bandwidth(self) -> float | None: ...
    @property
    def local_files(self) -> bool: ...
    @property
    def measured_here(self) -> bool: ...


def read_model(
    model: str | Mapping[str, Any], *, local_files: bool, like: str | None = None, download: bool = False
) -> tuple[ModelSpec, list[Remark]]:
    """The model of a name or of these fields, with what was assumed; the rest as of `resolve_model`. Raises InputError."""
    if isinstance(model, str):
        return resolve_model(model, paths=local_files, like=like, download=download and local_files)
    from autoconfig.specs.models.huggingface import config_notes, model_from_mapping, read_like

    if like is not None:
        return read_like(model, "model", INLINE_MODEL, like)
    return model_from_mapping(model, "model", INLINE_MODEL), config_notes(model)


def read_checkpoint(model: str | Mapping[str, Any], *, local_files: bool) -> Checkpoint | None:
    """How the files of a model store its weights, where its config, or the table of published ones by the id, says that they
    are quantised; None in 16 bits and for a catalogue name. Raises InputError."""
    from autoconfig.specs.software.checkpoint import checkpoint_named, checkpoint_of, checkpoint_of_file

    if not isinstance(model, str):
        return checkpoint_of(model, "model")
    if (known := checkpoint_named(model)) is not None:
        return known
    file = config_file_of(model) if local_files else None
    return None if file is None else checkpoint_of_file(file)


def read_cluster(asked: HardwareNames, assumed: list[Remark]) -> ClusterSpec:
    """The hardware that a request names; what it leaves out is added to `assumed`. Raises InputError."""
    gpus = asked.gpus if asked.gpus is not None else asked.gpus_at_most
    if gpus is not None and gpus < 1:
        field = "gpus" if asked.gpus is not None else "gpus_at_most"
        raise InputError(f"{option(field)} {gpus}: give a whole number of at least 1")
    if asked.cluster is not None:
        beside = ("gpu", "gpu_table", "gpus_per_node", "power_limit", "memory_bandwidth")
        if given := [option(name) for name in beside if getattr(asked, name) is not None]:
            raise InputError(f"give either {option('cluster')} FILE or {', '.join(given)}, not both: the file has a key for it")
        if asked.gpus_at_most is not None:
            gpus = _whole_nodes(asked.gpus_at_most, _described_cluster(asked, 1).gpus_per_node)
        return _described_cluster(asked, gpus)
    if gpus is None:
        raise InputError(
            f"how many GPUs? say {option('gpus')} N, for example {option('gpus')} 64 (or {option('gpus_at_most')} N)"
        )
    gpu = _gpu(asked, assumed)
    node = asked.gpus_per_node if asked.gpus_per_node is not None else gpu.gpus_per_node
    if asked.gpus_at_most is not None:
        gpus = _whole_nodes(gpus, node)
    bandwidth = None if asked.memory_bandwidth is None else asked.memory_bandwidth * 1e12
    return cluster_of(
        gpu, gpus, gpus_per_node=asked.gpus_per_node, hbm_bytes_per_s=bandwidth, power_limit_watts=asked.power_limit
    )


def _whole_nodes(most: int, node: int) -> int:
    """So many GPUs or fewer: whole nodes, or a part of one."""
    return most - most % node if most > node > 0 else most


def _described_cluster(asked: HardwareNames, gpus: int | None) -> ClusterSpec:
    """The cluster of a file, or of the JSON in the question."""
    if not isinstance(asked.cluster, str):
        return cluster_from_mapping(dict(asked.cluster or {}), gpus)
    if not asked.local_files:
        raise InputError("cluster must be a JSON object (the keys of docs/examples/cluster.json), not the name of a file")
    return load_cluster(asked.cluster, gpus)


def _gpu(asked: HardwareNames, assumed: list[Remark]) -> GpuSpec:
    """The GPU by name, by its file of measured operators, or of this machine. Raises InputError."""
    if not asked.local_files and not asked.measured_here:
        if asked.gpu_table is not None:
            raise InputError(f"say {option('gpu')}: the name of a GPU type")
        if asked.gpu is not None:
            return load_gpu(asked.gpu)
    local = asked.gpu is not None and asked.gpu.strip().lower() == "local"
    if asked.gpu_table is not None:
        gpu, source = gpu_of_file(asked.gpu_table)
        if asked.gpu is not None and not local and find_gpu(asked.gpu).id != gpu.id:
            raise InputError(
                f"{option('gpu')} {asked.gpu} is not what {option('gpu_table')} is about ({gpu.id}); leave {option('gpu')} out"
            )
    elif local:
        gpu, source = local_gpu()
    elif asked.gpu is not None:
        return find_gpu(asked.gpu)
    else:
        gpu = load_gpu(DEFAULT_GPU)
        source = ""
    assumed.append(Remark("gpu", gpu.id, source, Effect.EVERYTHING))
    return gpu


def read_stack(
    name: str | None, gpu: GpuSpec, assumed: list[Remark], calibration: Calibration = DOCUMENTED_DEFAULTS
) -> SoftwareStack:
    """The stack asked for, else the one of the calibration's own runs on such GPUs, else the newest dated release where the GPU
    is one of data centres and of its time, else the default; on GPUs that it does not run on, the last one that does."""
    if name is not None:
        stack = load_stack(name)
        assumed += unknown_release(stack)
        return stack
    if gpu.architecture == CPU_ARCHITECTURE:
        assumed.append(Remark("software", CPU_STACK, "which runs on CPUs", Effect.EVERYTHING))
        return load_stack(CPU_STACK)
    stack = load_stack(DEFAULT_STACK)
    newest = load_stack(newest_release())
    mine = (entry for entry in calibration.entries if entry.own is not None)
    own = {entry.generation for entry in mine if entry.architecture == gpu.architecture}
    if of_the_data_centre(gpu) and (not own or newest.generation in own):
        assumed.append(Remark("software", newest.name, f"the newest release for {gpu.id}", Effect.EVERYTHING))
        return newest
    if gpu.compute_capability is not None and gpu.compute_capability < stack.least_compute_capability:
        older = load_stack(OLDER_STACK)
        assumed.append(Remark("software", older.name, f"because {stack.name} does not run on {gpu.id}", Effect.EVERYTHING))
        return older
    return stack


def of_the_data_centre(gpu: GpuSpec) -> bool:
    """NVIDIA's Hopper and Blackwell, but for workstations' (compute capability 12)."""
    return HOPPER <= (gpu.compute_capability or 0.0) < WORKSTATION


def check_runs(gpu: GpuSpec, numerics: Numerics, stack: SoftwareStack, model: ModelSpec) -> None:
    """The stack runs the model on the GPU in this precision. Raises InputError with what to change."""
    if model.is_sparse:
        if not stack.supports_sparse_attention:
            raise InputError(
                f"software {stack.name} lacks {model.name}'s sparse attention (DSA); say {option('software')} {DEFAULT_STACK}"
            )
        from autoconfig.specs.software.engine import require_sparse_kernels  # engines' tables, which no other question reads

        require_sparse_kernels(model, gpu)
    gpu.peak_flops_per_s(numerics.gemm_precision)
    capability = gpu.compute_capability
    if capability is not None and capability < stack.least_compute_capability:
        raise InputError(
            f"software {stack.name} needs compute capability {stack.least_compute_capability:g}; {gpu.id} has "
            f"{capability:g}: say {option('software')} megatron-lm-2022 or megatron-local"
        )
    if numerics.format.quantised and not stack.supports_fp8:
        raise InputError(
            f"software {stack.name} has no fp8; say {option('precision')} bf16, or {option('software')} {DEFAULT_STACK}"
        )
    gpu.check_format(numerics.format.recipe, numerics.format.least_compute_capability)
