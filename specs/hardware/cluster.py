"""GPUs and clusters: the catalogue, which GPU this machine reports, and how many of which GPU with which links a run has."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import CatalogueError, InputError, UnknownNameError, UnsupportedError, option

CPU_ARCHITECTURE = "cpu"
"""Architecture of a machine's own CPU, measured in place of a GPU (kernels.benchmark)."""


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU type. Rates are per GPU, dense (no sparsity) and per direction."""

    id: str
    """Canonical id, for example `h100-sxm-80gb`."""
    name: str
    vendor: str
    architecture: str
    """volta, turing, ampere, ada, hopper, blackwell, cdna3 or cdna4; cpu or unknown of a machine's own device, measured."""
    compute_capability: float | None
    """CUDA compute capability; None for other vendors."""
    memory_bytes: int
    """Total device memory as the driver reports it to a process (`torch.cuda.get_device_properties().total_memory`)."""
    hbm_bytes_per_s: float
    flops_per_s: dict[str, float] = field(hash=False)
    """Dense peak by precision: fp32, tf32, bf16, fp16, fp8, fp4, int8 (those that the GPU has)."""
    num_sms: int
    """Streaming multiprocessors (compute units on AMD)."""
    link: str
    """nvlink, xgmi or pcie: how GPUs of one node talk."""
    link_bytes_per_s: float
    """All links of one GPU together, one direction."""
    link_domain_size: int
    """GPUs that reach each other over `link` in the usual server (8 in a DGX H100, 72 in an NVL72 rack)."""
    gpus_per_node: int
    """GPUs under one operating system in the usual server."""
    nic_bytes_per_s: float
    """Network bandwidth per GPU of the usual server, one direction."""
    power_watts: float | None = None
    """Power limit as delivered (TDP); None where no source says it of the GPU alone."""
    aliases: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict, hash=False, compare=False)
    operator_tables: str = ""
    """File of operators measured on this very machine (specs.operator_table); empty: the tables that ship."""

    @property
    def sixteen_bit_flops_per_s(self) -> float:
        """Dense peak of products in 16 bits: bf16, or fp16 where there is no bf16 (Volta, Turing)."""
        return self.flops_per_s.get("bf16", self.flops_per_s.get("fp16", self.flops_per_s.get("fp32", 0.0)))

    def check_format(self, recipe: str, least: float) -> None:
        """Raises InputError where the GPU is before this compute capability, which a way to scale a format needs."""
        if self.compute_capability is not None and self.compute_capability < least:
            raise InputError(
                f"the {recipe} recipe needs compute capability {least:g} (Blackwell); {self.id} has "
                f"{self.compute_capability:g}: say {option('precision')} fp8, and {option('fp8_recipe')} delayed, "
                "tensorwise or blockwise"
            )

    def peak_flops_per_s(self, precision: str) -> float:
        """Dense peak for a training precision; tf32 means fp32 where there is none. Raises InputError naming what there is."""
        if precision == "tf32" and "tf32" not in self.flops_per_s:
            precision = "fp32"
        if precision not in self.flops_per_s:
            raise InputError(f"{self.id} has no {precision} matrix unit; it has {', '.join(sorted(self.flops_per_s))}")
        return self.flops_per_s[precision]


DEFAULT_GPU = "h100-sxm-80gb"
_FOLDER = Path(__file__).parents[1] / "catalogue" / "gpus"
_HINT = "autoconfig gpus lists them all"
_PREFIX_WORDS = frozenset({"nvidia", "amd", "instinct", "tesla", "geforce", "dgx", "hgx"})
_MAX_NAME = 100
LOCAL_MEMORY_TOLERANCE = 0.10
"""nvidia-smi counts memory that the driver reserves, total_memory does not (2 % apart), and ECC takes 6 % of GDDR memory."""
_SMI_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_S = 20.0


@cache
def gpu_ids() -> tuple[str, ...]:
    """Canonical ids of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def load_gpu(name: str) -> GpuSpec:
    """The GPU with this id or alias, or whose id alone begins with these whole words (l40 is not l40s). Raises UnknownNameError
    naming the candidates, UnsupportedError for kinds of accelerator that are left out on purpose (catalogue/refused.json)."""
    return _load(_resolve(_normal(name), name))


def _normal(name: str) -> str:
    """`"NVIDIA A100_SXM4 80GB"` as `"a100-sxm4-80gb"`."""
    if not isinstance(name, str) or len(name) > _MAX_NAME:
        raise InputError(f"a GPU is named by a text of at most {_MAX_NAME} characters, such as {DEFAULT_GPU}; {_HINT}")
    words = [word for word in re.split(r"[\s_\-]+", name.strip().lower()) if word]
    while len(words) > 1 and words[0] in _PREFIX_WORDS:
        words.pop(0)
    return "-".join(words)


@cache
def _resolve(wanted: str, given: str) -> str:
    """The canonical id that `wanted` (a normalised name) stands for; `given` is for the message."""
    ids = gpu_ids()
    if wanted in ids:
        return wanted
    whole_words = [gpu for gpu in ids if gpu.startswith(wanted + "-")] if wanted else []
    if len(whole_words) == 1:
        return whole_words[0]
    joined = {name.replace("-", ""): gpu for name, gpu in {**{gpu: gpu for gpu in ids}, **_aliases()}.items()}
    if wanted.replace("-", "") in joined:  # rtx4090 for rtx-4090
        return joined[wanted.replace("-", "")]
    raise _unknown(wanted, given, whole_words)


def _unknown(wanted: str, given: str, whole_words: list[str]) -> InputError:
    """Why a name is no GPU of the catalogue; `whole_words`: ids that begin with it."""
    ids = gpu_ids()
    candidates = whole_words or [gpu for gpu in ids if wanted and gpu.startswith(wanted)]
    if len(candidates) > 1:
        more = f"one of {', '.join(candidates)}" if len(candidates) > 3 else ""
        return UnknownNameError("GPU", given, candidates, more, field="gpu")
    if kind := _other_kind(wanted):
        return UnsupportedError(
            f"GPU {given[:40]!r} is {kind}: no formula here was held to one; plan for a GPU of the catalogue ({_HINT}), or "
            f'give its numbers as "gpu" of a {option("cluster")} file and take the answer as a bound',
            field="gpu",
        )
    number = _first_number(wanted)  # a GPU of another number is another GPU: p100 is no h100
    names, form = (*ids, *_aliases()), wanted.partition("-")[2]  # but h1000-sxm-80gb is h100-sxm-80gb with a slip
    alike = [name for name in names if not number or _first_number(name) == number or (form and name.partition("-")[2] == form)]
    return UnknownNameError("GPU", given, alike, _HINT, field="gpu")


def _first_number(name: str) -> str:
    found = re.search(r"[0-9]+", name)
    return found[0] if found else ""


@cache
def _other_kinds() -> dict[str, list[str]]:
    return dict(json.loads((_FOLDER.parent / "refused.json").read_text(encoding="utf-8"))["gpus"])


def _other_kind(wanted: str) -> str:
    """What an accelerator is that the catalogue leaves out on purpose, by the beginning of its name; else empty."""
    words = ((kind, one) for kind, names in _other_kinds().items() for one in names)
    ends = {True: "(?![a-z])", False: "(?![a-z0-9])"}  # gaudi3 is a gaudi; m40 is no m4
    return next((kind for kind, one in words if re.match(re.escape(one) + ends[one[-1].isalpha()], wanted)), "")


@cache
def _aliases() -> dict[str, str]:
    """Every alias with its canonical id; reads all files, so it is asked for only when an id does not answer."""
    found: dict[str, str] = {}
    for gpu in gpu_ids():
        for alias in _raw(gpu)["aliases"]:
            if found.setdefault(alias, gpu) != gpu:
                raise CatalogueError(f"alias {alias!r} is in both gpus/{found[alias]}.json and gpus/{gpu}.json")
    return found


@cache
def _raw(gpu: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_FOLDER / f"{gpu}.json").read_text(encoding="utf-8"))
    if data.get("id") != gpu:
        raise CatalogueError(f"gpus/{gpu}.json says its id is {data.get('id')!r}")
    return data


@cache
def _load(gpu: str) -> GpuSpec:
    try:
        return gpu_from_mapping(_raw(gpu))
    except (TypeError, InputError) as error:
        raise CatalogueError(f"gpus/{gpu}.json: {error}") from error


def gpu_from_mapping(data: dict[str, Any]) -> GpuSpec:
    """A GpuSpec from JSON values. Raises TypeError for missing or unknown keys, InputError for values that cannot be."""
    spec = GpuSpec(**{**data, "aliases": tuple(data.get("aliases", ()))})
    whole = ("memory_bytes", "num_sms", "link_domain_size", "gpus_per_node")
    numbers = {name: getattr(spec, name) for name in (*whole, "hbm_bytes_per_s", "link_bytes_per_s", "nic_bytes_per_s")}
    if not isinstance(spec.flops_per_s, dict) or not spec.flops_per_s:
        raise InputError('flops_per_s must say at least one precision, for example {"bf16": 989.4e12}')
    if spec.power_watts is not None:
        numbers["power_watts"] = spec.power_watts
    numbers |= {f"flops_per_s.{precision}": rate for precision, rate in spec.flops_per_s.items()}
    for key, value in numbers.items():
        kind = int if key in whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < 1e20 or not math.isfinite(value):
            raise InputError(f"{key}={brief(value)} must be a positive {'whole ' if key in whole else ''}number below 1e20")
    return spec


def brief(value: object) -> str:
    """A value for a message: printable and never longer than a line."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to print"
    text = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= 80 else text[:77] + "..."


def reported_gpu(tried: list[str]) -> tuple[str, float] | None:
    """(name, memory in bytes) of this machine's GPUs as the driver says it; None, and why in `tried`, where there is none.

    Raises InputError where they are of several types.
    """
    found = _read_nvidia_smi(tried) or _read_nvml(tried)
    if len({name for name, _ in found}) > 1:
        kinds = ", ".join(sorted({name for name, _ in found}))
        raise InputError(f"this machine holds GPUs of several types ({kinds}); name one with {option('gpu')}")
    return found[0] if found else None


def match_reported_gpu(name: str, memory_bytes: float) -> GpuSpec:
    """The catalogue's entry for a GPU as a driver names it, with its memory. Raises InputError when none agrees with both."""
    seen = f"this machine's GPU is {name[:_MAX_NAME]!r} with {memory_bytes / 2**30:.1f} GiB"
    if not memory_bytes > 0:
        raise InputError(f"{seen}; its memory could not be read; name the GPU with {option('gpu')} ({_HINT})")
    wanted = _normal(name[:_MAX_NAME])
    named = [_resolve(wanted, name)] if wanted in gpu_ids() or wanted in _aliases() else []
    others = [gpu for gpu in gpu_ids() if wanted and gpu.startswith(wanted + "-")]  # of another memory, by the same name
    candidates = [*dict.fromkeys((*named, *others))]
    for gpu in candidates:
        spec = _load(gpu)
        if abs(memory_bytes / spec.memory_bytes - 1.0) <= LOCAL_MEMORY_TOLERANCE:
            return spec
    known = (
        f"the catalogue knows {', '.join(candidates)} by that name, with other memory"
        if candidates
        else "the catalogue has no such GPU"
    )
    raise InputError(
        f"{seen}; {known}; name the nearest with {option('gpu')} ({_HINT}) or describe it in a {option('cluster')} file"
    )


def _read_nvidia_smi(tried: list[str]) -> list[tuple[str, float]]:
    """(name, memory in bytes) per GPU as nvidia-smi reports it; an empty list and a line in `tried` when it cannot."""
    import subprocess  # here, for no other question needs it

    try:
        done = subprocess.run(_SMI_QUERY, capture_output=True, text=True, errors="replace", timeout=_SMI_TIMEOUT_S, check=False)
    except FileNotFoundError:
        tried.append("nvidia-smi is not installed")
        return []
    except (OSError, subprocess.TimeoutExpired) as error:
        tried.append(f"nvidia-smi failed: {type(error).__name__}")
        return []
    rows = [re.fullmatch(r"\s*(\S.*?)\s*,\s*([0-9.]+)\s*", line) for line in done.stdout.splitlines()]
    found = [(row[1], float(row[2]) * 2**20) for row in rows if row and row[2].count(".") <= 1 and row[2] != "."]
    if done.returncode or not found:
        text = " ".join((done.stderr or done.stdout).split())[:120]
        tried.append(f"nvidia-smi exited {done.returncode}" + (f": {text}" if text else " and listed no GPU"))
        return []
    return found


def _read_nvml(tried: list[str]) -> list[tuple[str, float]]:
    """The same through nvidia-ml-py, where it is installed and nvidia-smi is not (slim containers)."""
    try:
        import pynvml
    except ImportError:
        tried.append("nvidia-ml-py is not installed")
        return []
    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
            found = [
                (name.decode() if isinstance(name, bytes) else str(name), float(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
                for name, handle in zip(names, handles, strict=True)
            ]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        tried.append(f"NVML: {error}")
        return []
    if not found:
        tried.append("NVML lists no GPU")
    return found


MAX_GPUS = 1_000_000
MIN_POWER_SHARE = 0.35
"""Of a GPU's own power limit: the lowest limit that a measurement stands behind (time_model/operators/kernels.py)."""
MAX_BYTES = 1e20
"""Of a rate or a memory: beyond, products of them leave the range of a float; no machine comes near."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The hardware of one run. Bandwidths are per GPU and per direction, in bytes per second."""

    gpu: GpuSpec
    num_gpus: int
    gpus_per_node: int
    link_domain_size: int
    """GPUs that reach each other at `link_bytes_per_s`; a multiple or a divisor of gpus_per_node."""
    link_bytes_per_s: float
    nic_bytes_per_s: float
    memory_bytes: int
    """Memory of one GPU that a run may use before margins; the GPU's own unless the cluster file says less."""
    hbm_bytes_per_s: float
    """Memory bandwidth of one GPU; the GPU's own unless a variant with other memory is said."""
    power_limit_watts: float | None = None
    """Power limit of one GPU where it is set below the GPU's own."""
    name: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.num_gpus <= MAX_GPUS:
            raise InputError(f"{self.num_gpus} GPUs: give a whole number from 1 to {MAX_GPUS:,}")
        if self.gpus_per_node < 1 or self.link_domain_size < 1:
            raise InputError(
                f"gpus_per_node={self.gpus_per_node} and link_domain_size={self.link_domain_size} must be at least 1"
            )
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            nearest = self.num_gpus // self.gpus_per_node * self.gpus_per_node
            raise InputError(
                f"{self.num_gpus} GPUs in nodes of {self.gpus_per_node} leave a node partly used; "
                f"use {nearest} or {nearest + self.gpus_per_node} GPUs, or say what a node has ({option('gpus_per_node')} N)",
                field="gpus",
            )
        if self.num_nodes > 1 and self.link_domain_size % self.gpus_per_node and self.gpus_per_node % self.link_domain_size:
            raise InputError(
                f"link_domain_size={self.link_domain_size} is neither a multiple nor a divisor of "
                f"gpus_per_node={self.gpus_per_node}; give whole nodes or equal parts of a node"
            )
        rates = (self.link_bytes_per_s, self.nic_bytes_per_s, self.memory_bytes, self.hbm_bytes_per_s)
        if not all(1 <= value <= MAX_BYTES for value in rates):
            raise InputError(f"link, network and memory bandwidth and memory must be from 1 to {MAX_BYTES:g} bytes (a second)")
        if self.power_limit_watts is not None:
            _check_power(self.power_limit_watts, self.gpu)

    @property
    def num_nodes(self) -> int:
        """Nodes in use (at least one)."""
        return max(1, self.num_gpus // self.gpus_per_node)


def cluster_of(
    gpu: GpuSpec,
    num_gpus: int,
    *,
    gpus_per_node: int | None = None,
    link_domain_size: int | None = None,
    link_bytes_per_s: float | None = None,
    nic_bytes_per_s: float | None = None,
    memory_bytes: int | None = None,
    hbm_bytes_per_s: float | None = None,
    power_limit_watts: float | None = None,
    name: str = "",
) -> ClusterSpec:
    """The usual server of `gpu`, with what the caller knows better. Raises InputError as ClusterSpec does."""
    per_node = min(gpu.gpus_per_node, max(1, num_gpus)) if gpus_per_node is None else gpus_per_node
    domain = link_domain_size
    if domain is None:
        domain = gpu.link_domain_size if gpus_per_node is None else _domain_with_nodes_of(gpu, gpus_per_node)
    return ClusterSpec(
        gpu=gpu,
        num_gpus=num_gpus,
        gpus_per_node=per_node,
        link_domain_size=domain,
        link_bytes_per_s=gpu.link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s,
        nic_bytes_per_s=gpu.nic_bytes_per_s if nic_bytes_per_s is None else nic_bytes_per_s,
        memory_bytes=gpu.memory_bytes if memory_bytes is None else memory_bytes,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s if hbm_bytes_per_s is None else hbm_bytes_per_s,
        power_limit_watts=power_limit_watts,
        name=name,
    )


def _check_power(watts: float, gpu: GpuSpec) -> None:
    if gpu.power_watts is None:
        raise InputError(
            f"{option('power_limit')}: the power of {gpu.id} alone is not known, so what a limit costs is not: leave it out"
        )
    if not MIN_POWER_SHARE <= watts / gpu.power_watts <= 1.0:
        raise InputError(
            f"{option('power_limit')} {watts:g}: {gpu.id} has {gpu.power_watts:g} W; use "
            f"{MIN_POWER_SHARE * gpu.power_watts:.0f} to {gpu.power_watts:g} W"
        )


def _domain_with_nodes_of(gpu: GpuSpec, gpus_per_node: int) -> int:
    """Link domain when nodes differ from the usual server's: a rack keeps its whole nodes, bridged pairs stay pairs."""
    if gpu.link_domain_size > gpu.gpus_per_node:
        return max(gpus_per_node, gpu.link_domain_size // max(1, gpus_per_node) * gpus_per_node)
    if gpu.link_domain_size < gpu.gpus_per_node:
        return min(gpus_per_node, gpu.link_domain_size)
    return gpus_per_node
