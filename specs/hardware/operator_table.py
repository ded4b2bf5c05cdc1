"""The file format of measured operators of one GPU, shared by those who write it and those who price with it.

Written by `python -P -m autoconfig.kernels.benchmark` (a machine's own) and by `make tables` (those that ship in
`time_model/data/operators`); read by `time_model.hardware.efficiency`. JSON, one object:

`schema_version`, `kind`, `complete`, `missing` (measured files): this format; whether something is missing, and what.
`gpu`: id of the GPU catalogue, or an id of its own with `gpu_spec`, the fields of `specs.hardware.cluster.GpuSpec`.
`device`, `provenance` (measured files): what the driver calls the device; when, with which software, clocks, power, heat.
`gemm`, `grouped_gemm`, by precision: `axes` (m, n, k; rows, width, groups), `efficiency` (nested lists, last axis innermost):
share of `peak_flops_per_s`; `use`: whether the time model prices with it.
`attention`, by precision: `axes` (head_dim, length), `efficiency` of the causal forward pass, `generation` of the kernels.
`collectives`: null, or `axes.ranks`, `link_bytes_per_s`, and by kind `alpha_s`, `link_share`, `sqrt_s` per number of ranks.
`constants` (measured files): groups of `time_model/data/gpu_efficiency.json` that this file knows better.
`points` (measured files): every measurement: sizes, seconds, quartile spread, repetitions.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from autoconfig.specs.errors import FileError, InputError, UnknownNameError
from autoconfig.specs.files import read_text, write_text
from autoconfig.specs.hardware.cluster import GpuSpec, brief, gpu_from_mapping, gpu_ids, load_gpu

KIND = "megatron-autoconfig operator table"
SCHEMA_VERSION = 1
AXES = {"gemm": ("m", "n", "k"), "attention": ("head_dim", "length"), "grouped_gemm": ("rows", "width", "groups")}
PRECISIONS = ("bf16", "fp8", "tf32", "fp32")
COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
CONSTANTS = {
    "gemm": ("e", "k0_elements", "t0_s", "eb", "r1", "r2"),
    "fp8": ("over_bf16", "backward"),
    "hbm": ("pointwise", "launch_s", "accumulate_exposed"),
    "attention": ("backward", "unfused_gemm", "unfused_head_dim_half", "flash1_share", "flash2_share", "flash3_share"),
    "p2p": ("alpha_s", "link_share", "sqrt_s"),
}
"""Constants that a measured file may say (`p2p` is `nccl.p2p` of gpu_efficiency.json)."""
MAX_FILE_BYTES = 16 * 2**20
MAX_EFFICIENCY = 8.0
"""Shares of a closed form's rate go above 1; shares of a published peak hardly do."""
COMMAND = "autoconfig calibrate --gpu local"
"""Makes a table of this machine; every message that misses one names it."""


def local_folder() -> Path:
    """Where this machine's own tables are kept: `megatron-autoconfig/operators` in `$XDG_DATA_HOME`, else `~/.local/share`."""
    base = os.environ.get("XDG_DATA_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return root / "megatron-autoconfig" / "operators"


def local_tables() -> Iterator[tuple[Path, dict[str, Any]]]:
    """(file, content) of every readable table in `local_folder`, by name; files that are none are passed over."""
    try:
        found = sorted(local_folder().glob("*.json"))
    except OSError:
        return
    for path in found:
        try:
            yield path, read_operator_table(path)
        except InputError:
            continue


def read_operator_table(path: str | Path) -> dict[str, Any]:
    """A measured file, checked; not to be changed (it is kept). Raises FileError or InputError naming the file."""
    shown = brief(str(path))
    try:
        file = Path(path)
        if not file.is_file():
            raise FileError(
                f"operator table {shown} {'is not a file' if file.exists() else 'does not exist'}; make one with {COMMAND}"
            )
        status = file.stat()
        if status.st_size > MAX_FILE_BYTES:
            raise FileError(f"operator table {shown} is larger than {MAX_FILE_BYTES // 2**20} MiB")
        return _read(str(file), status.st_mtime_ns, status.st_size)
    except (OSError, ValueError) as error:
        raise FileError(f"operator table {shown} cannot be read: {getattr(error, 'strerror', None) or error}") from error


@lru_cache(maxsize=16)
def _read(path: str, _modified_ns: int, _size: int) -> dict[str, Any]:
    shown = brief(path)
    try:
        data = json.loads(read_text(Path(path), "an operator table", MAX_FILE_BYTES))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{shown} is not an operator table (not JSON); make one with {COMMAND}") from error
    check_operator_table(data, shown)
    result: dict[str, Any] = data
    return result


def write_operator_table(path: Path, data: Mapping[str, Any]) -> None:
    """As JSON with lists of numbers on one line, beside, then renamed. Raises FileError, or InputError where it is no table."""
    check_operator_table(data, brief(str(path)))
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, re.sub(r"\[[^\[\]{}\"]*\]", lambda match: re.sub(r"\s+", "", match[0]), text) + "\n")


def gpu_of_table(data: Mapping[str, Any], path: str | Path) -> GpuSpec:
    """The GPU that a measured file is about, priced with that file. Raises InputError where its numbers cannot be."""
    if "gpu_spec" not in data:
        return replace(load_gpu(str(data["gpu"])), operator_tables=str(Path(path).absolute()))
    try:
        spec = gpu_from_mapping({**data["gpu_spec"], "operator_tables": ""})
    except (TypeError, InputError) as error:
        raise InputError(f"{brief(str(path))}: gpu_spec: {error}") from error
    return replace(spec, operator_tables=str(Path(path).absolute()))


def check_operator_table(data: Any, name: str) -> None:
    """Raises InputError, naming the file and what is wrong, unless `data` is a measured file of this format."""
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f'{name} is not an operator table: it needs "kind": "{KIND}"; make one with {COMMAND}')
    if data.get("schema_version") != SCHEMA_VERSION:
        said = brief(data.get("schema_version"))
        raise InputError(
            f"{name} is of schema version {said}; this autoconfig reads {SCHEMA_VERSION}: make it again with {COMMAND}"
        )
    try:
        _check_gpu(data)
        check_operators(data)
        _check_constants(data.get("constants", {}))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: malformed operator table ({type(error).__name__}: {brief(str(error))})") from error


def _check_gpu(data: Mapping[str, Any]) -> None:
    device = data["device"]
    if (
        not isinstance(device, dict)
        or device.get("type") not in ("cuda", "cpu")
        or not isinstance(device.get("reported_name"), str)
    ):
        raise InputError('device must say its type ("cuda" or "cpu") and reported_name')
    gpu = data["gpu"]
    if not isinstance(gpu, str) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", gpu):
        raise InputError(f"gpu={brief(gpu)} must be an id of small letters, digits, points and hyphens")
    if "gpu_spec" not in data:
        if gpu not in gpu_ids():
            raise UnknownNameError("GPU", gpu, gpu_ids(), "a GPU that the catalogue lacks needs gpu_spec")
        return
    known = {f.name for f in fields(GpuSpec)} - {"operator_tables"}
    spec = data["gpu_spec"]
    if not isinstance(spec, dict) or set(spec) - known or spec.get("id") != gpu:
        raise InputError("gpu_spec must be an object with the fields of GpuSpec whose id is `gpu`")


def check_operators(data: Mapping[str, Any]) -> None:
    """The operator groups, of shipped and measured files alike. Raises InputError."""
    for operator, names in AXES.items():
        for precision, table in data[operator].items():
            where = f"{operator}.{precision}"
            if precision not in PRECISIONS:
                raise InputError(f"{where}: precisions are {', '.join(PRECISIONS)}")
            if tuple(table["axes"]) != names:
                raise InputError(f"{where}: axes must be {', '.join(names)}")
            for axis, values in table["axes"].items():
                _check_axis(f"{where} axis {axis}", values)
            _check_nested(where, table["efficiency"], [len(values) for values in table["axes"].values()])
            _check_positive(f"{where} peak_flops_per_s", table["peak_flops_per_s"], 1e20)
            if not isinstance(table["use"], bool):
                raise InputError(f"{where}: use must be true or false")
    if data["collectives"] is not None:
        _check_collectives(data["collectives"])


def _check_collectives(data: Mapping[str, Any]) -> None:
    ranks = data["axes"]["ranks"]
    _check_axis("collectives axis ranks", ranks)
    if ranks[0] < 2:
        raise InputError("collectives axis ranks must start at 2 or more")
    _check_positive("collectives link_bytes_per_s", data["link_bytes_per_s"], 1e20)
    for kind, terms in data["kinds"].items():
        if kind not in COLLECTIVE_KINDS:
            raise InputError(f"collectives: kinds are {', '.join(COLLECTIVE_KINDS)}, not {brief(kind)}")
        for key in ("alpha_s", "link_share", "sqrt_s"):
            if not isinstance(terms[key], list) or len(terms[key]) != len(ranks):
                raise InputError(f"collectives {kind} {key}: {len(ranks)} numbers, one per number of ranks")
            for value in terms[key]:
                _check_positive(f"collectives {kind} {key}", value, 1e3, zero=key != "link_share")


def _check_constants(data: Mapping[str, Any]) -> None:
    for group, values in data.items():
        if group not in CONSTANTS:
            raise InputError(f"constants: groups are {', '.join(CONSTANTS)}, not {brief(group)}")
        for key, value in values.items():
            if key not in CONSTANTS[group]:
                raise InputError(f"constants.{group}: keys are {', '.join(CONSTANTS[group])}, not {brief(key)}")
            _check_positive(f"constants.{group}.{key}", value, 1e6, zero=key in ("alpha_s", "sqrt_s", "unfused_head_dim_half"))


def _check_axis(where: str, values: Any) -> None:
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}: a list of at least 1 sizes")
    for value in values:
        _check_positive(where, value, 1e12)
    if any(a >= b for a, b in pairwise(values)):
        raise InputError(f"{where}: sizes must rise")


def _check_nested(where: str, values: Any, lengths: list[int]) -> None:
    if not lengths:
        _check_positive(f"{where} efficiency", values, MAX_EFFICIENCY)
        return
    if not isinstance(values, list) or len(values) != lengths[0]:
        raise InputError(f"{where}: efficiency must have one entry per point of the axes")
    for value in values:
        _check_nested(where, value, lengths[1:])


def _check_positive(where: str, value: Any, most: float, *, zero: bool = False) -> None:
    good = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not good or not (0 <= value <= most if zero else 0 < value <= most):
        raise InputError(f"{where}={brief(value)} must be {'at least' if zero else 'above'} 0 and at most {most:g}")
