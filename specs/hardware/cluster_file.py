"""Reads `--cluster FILE`: a JSON (or, by its suffix, TOML) description of the machines. Example: docs/examples/cluster.json.

| key | meaning |
|---|---|
| `gpu` | required: a name of the GPU catalogue, or an object with every number of GpuSpec (see INLINE_GPU_KEYS) |
| `num_gpus` | GPUs of the job; `--gpus` on the command line wins over it; one of the two is required |
| `gpus_per_node` | GPUs under one operating system |
| `link` | nvlink, xgmi or pcie: how GPUs of one node talk; with another kind than the GPU's usual one, give link_gb_per_s too |
| `link_gb_per_s` | all links of one GPU together, one direction, in 10^9 bytes per second |
| `link_domain_size` | GPUs that reach each other at that speed; a multiple or a divisor of gpus_per_node |
| `nic_gbit_per_s_per_gpu` | network per GPU, one direction, in 10^9 bits per second; or instead of it the next two: |
| `nics_per_node`, `nic_gbit_per_s` | network ports of a node, and the speed of one |
| `memory_gib` | memory of one GPU that a run may use: at most the GPU's own, or at least 5 % more of a card made with more |
| `memory_bandwidth` | of one GPU, in 10^12 bytes per second, where its memory is another than the catalogue's |
| `power_limit` | of one GPU in watts, below the GPU's own |
| `name` | a name for reports |

What is left out comes from the usual server of the GPU (`cluster_of`). Anything unknown, negative or not a number is refused.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from autoconfig.specs.errors import FileError, InputError, UnknownNameError, option
from autoconfig.specs.files import read_bytes
from autoconfig.specs.hardware.cluster import MAX_GPUS, ClusterSpec, GpuSpec, brief, cluster_of, gpu_from_mapping, load_gpu

MAX_FILE_BYTES = 1_000_000
LINKS = ("nvlink", "xgmi", "pcie")
WHOLE_NUMBERS: dict[str, float] = {
    "num_gpus": MAX_GPUS,
    "gpus_per_node": 1024,
    "link_domain_size": MAX_GPUS,
    "nics_per_node": 1024,
}
"""Keys that take a whole number, with the most that is believed."""
NUMBERS: dict[str, float] = {
    **{"link_gb_per_s": 1e5, "nic_gbit_per_s_per_gpu": 1e5, "nic_gbit_per_s": 1e5, "memory_gib": 1e5},
    **{"memory_bandwidth": 1000, "power_limit": 1e5},
}
"""Keys that take any positive number, with the most that is believed."""
TEXTS = ("link", "name")
KEYS = ("gpu", *WHOLE_NUMBERS, *NUMBERS, *TEXTS)
INLINE_GPU_KEYS = tuple(f.name for f in fields(GpuSpec) if f.name not in ("aliases", "operator_tables"))
_INLINE_OPTIONAL = {
    *("name", "compute_capability", "power_watts"),
    *(f.name for f in fields(GpuSpec) if f.default_factory is not MISSING),
}
_MAX_TEXT = 200
OTHER_CARD = 1.05
"""Times a GPU's memory from which on a card has other memory: less is the nominal figure, of which a driver keeps a part."""


def load_cluster(path: str | Path, num_gpus: int | None = None) -> ClusterSpec:
    """The cluster that the file describes; `num_gpus` wins over the file's. Raises FileError or InputError naming the file."""
    data = _parse(path)
    try:
        return cluster_from_mapping(data, num_gpus)
    except UnknownNameError as error:
        raise InputError(f"{_shown(path)}: {error}") from error
    except InputError as error:
        raise type(error)(f"{_shown(path)}: {error}") from error


def cluster_from_mapping(data: dict[str, Any], num_gpus: int | None = None) -> ClusterSpec:
    """The cluster that JSON values describe (the keys of this module's table). Raises InputError."""
    for key in data:
        if key not in KEYS:
            raise UnknownNameError("cluster key", brief(key), KEYS, f"known keys: {', '.join(KEYS)}")
    for key, most in (WHOLE_NUMBERS | NUMBERS).items():
        _check_number(data, key, most, whole=key in WHOLE_NUMBERS)
    for key in TEXTS:
        _check_text(data, key)
    gpu = _with_link(_gpu(data), data)
    count = data.get("num_gpus") if num_gpus is None else num_gpus
    if count is None:
        raise InputError(f'the number of GPUs is not said; add "num_gpus" to the file or give {option("gpus")}')
    link_gb_per_s = data.get("link_gb_per_s")
    return cluster_of(
        gpu,
        count,
        gpus_per_node=data.get("gpus_per_node"),
        link_domain_size=data.get("link_domain_size"),
        link_bytes_per_s=None if link_gb_per_s is None else link_gb_per_s * 1e9,
        nic_bytes_per_s=_nic_bytes_per_s(data, gpu),
        memory_bytes=_memory_bytes(data, gpu),
        hbm_bytes_per_s=data["memory_bandwidth"] * 1e12 if "memory_bandwidth" in data else None,
        power_limit_watts=data.get("power_limit"),
        name=data.get("name", ""),
    )


def _parse(path: str | Path) -> dict[str, Any]:
    """The file's top-level object, whatever the file holds. Raises FileError."""
    raw = _read(path)
    is_toml = str(path).lower().endswith(".toml")
    try:
        text = raw.decode("utf-8-sig")
        data = tomllib.loads(text) if is_toml else json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise FileError(f"{_shown(path)} is not a text file in UTF-8 (byte {error.start}); write JSON or TOML") from error
    except FileError as error:
        raise FileError(f"{_shown(path)}: {error}") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise FileError(
            f"{_shown(path)} is not valid {kind}: {brief(str(error) or 'nested too deeply')}; see docs/examples/cluster.json"
        ) from error
    if not isinstance(data, dict):
        raise FileError(f"{_shown(path)} holds a {type(data).__name__}, not an object with keys such as gpu and num_gpus")
    return data


def _read(path: str | Path) -> bytes:
    return read_bytes(Path(path), "a JSON or TOML file of a few lines", MAX_FILE_BYTES)


def _refuse(constant: str) -> NoReturn:
    raise FileError(f"{constant} is not a number that can be used; give a positive number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in {k for k, _ in pairs[:i]})
        raise FileError(f"key {brief(twice)!r} is given twice; keep one")
    return data


def _check_number(data: dict[str, Any], key: str, most: float, *, whole: bool) -> None:
    if key not in data:
        return
    value = data[key]
    kind = int if whole else (int, float)
    good = not isinstance(value, bool) and isinstance(value, kind) and 0 < value <= most and math.isfinite(value)
    if not good or (whole and value < 1):
        raise InputError(
            f"{key}={brief(value)} must be a {'whole number from 1 to' if whole else 'number above 0, at most'} {most:,.0f}"
        )


def _check_text(data: dict[str, Any], key: str) -> None:
    value = data.get(key, "")
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise InputError(f"{key}={brief(value)} must be a printable text of at most {_MAX_TEXT} characters")


def _gpu(data: dict[str, Any]) -> GpuSpec:
    given = data.get("gpu")
    if isinstance(given, str):
        return load_gpu(given)
    if isinstance(given, dict):
        return _inline_gpu(given)
    said = "is missing" if given is None else f"is {brief(given)}"
    raise InputError(f'gpu {said}; give a name of the catalogue such as "h100-sxm-80gb" or an object with the GPU\'s numbers')


def _inline_gpu(given: dict[str, Any]) -> GpuSpec:
    """A GPU that the catalogue lacks, from an object with all its numbers."""
    for key in given:
        if key not in INLINE_GPU_KEYS:
            raise UnknownNameError("key of gpu", brief(key), INLINE_GPU_KEYS, f"known keys: {', '.join(INLINE_GPU_KEYS)}")
    missing = [key for key in INLINE_GPU_KEYS if key not in given and key not in _INLINE_OPTIONAL]
    if missing:
        raise InputError(f"gpu lacks {', '.join(missing)}; give every number of the GPU, or a name of the catalogue")
    for key in ("id", "name", "vendor", "architecture", "link"):
        _check_text(given, key)
    capability = given.get("compute_capability")
    if capability is not None and (
        isinstance(capability, bool) or not isinstance(capability, (int, float)) or not 0 < capability < 1000
    ):
        raise InputError(f"gpu.compute_capability={brief(capability)} must be a number such as 9.0, or left out")
    if not isinstance(given.get("sources", {}), dict):
        raise InputError("gpu.sources must be an object of texts, or left out")
    rates = given["flops_per_s"]
    if isinstance(rates, dict) and not set(rates) <= {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"}:
        raise InputError(f"gpu.flops_per_s has {brief(sorted(rates))}; its keys are fp32, tf32, bf16, fp16, fp8, fp4 and int8")
    return gpu_from_mapping({"name": given["id"], "compute_capability": None, **given})


def _with_link(gpu: GpuSpec, data: dict[str, Any]) -> GpuSpec:
    link = data.get("link", gpu.link).lower()
    if link not in LINKS:
        raise InputError(f"link={brief(link)} is not one of {', '.join(LINKS)}")
    if link != gpu.link and "link_gb_per_s" not in data:
        raise InputError(f"link={link!r} is not the usual link of {gpu.id} ({gpu.link}); say its speed too with link_gb_per_s")
    return gpu if link == gpu.link else replace(gpu, link=link)


def _nic_bytes_per_s(data: dict[str, Any], gpu: GpuSpec) -> float | None:
    """Bytes per second and GPU of either way to say the network; None when the file does not say it."""
    per_gpu = data.get("nic_gbit_per_s_per_gpu")
    ports, speed = data.get("nics_per_node"), data.get("nic_gbit_per_s")
    if per_gpu is not None and (ports is not None or speed is not None):
        raise InputError("give nic_gbit_per_s_per_gpu, or nics_per_node with nic_gbit_per_s, not both")
    if (ports is None) != (speed is None):
        raise InputError("nics_per_node and nic_gbit_per_s belong together; give both, or nic_gbit_per_s_per_gpu")
    if ports is not None and speed is not None:
        per_gpu = ports * speed / data.get("gpus_per_node", gpu.gpus_per_node)
    return None if per_gpu is None else per_gpu * 1e9 / 8


def _memory_bytes(data: dict[str, Any], gpu: GpuSpec) -> int | None:
    if "memory_gib" not in data:
        return None
    memory_bytes = int(data["memory_gib"] * 2**30)
    if not (0 < memory_bytes <= gpu.memory_bytes or memory_bytes >= OTHER_CARD * gpu.memory_bytes):
        raise InputError(
            f"memory_gib={brief(data['memory_gib'])} must be above 0 and at most the {gpu.memory_bytes / 2**30:.2f} GiB of "
            f"{gpu.id} (what its driver counts of its nominal memory), or at least {OTHER_CARD:g} times that for a card that "
            "was made with more"
        )
    return memory_bytes


def _shown(path: object) -> str:
    return brief(str(path))
