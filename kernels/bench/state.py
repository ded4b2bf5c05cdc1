"""The output file as it grows: measurements are added, the table is built from them, the file is always a whole one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoconfig.kernels import nvml
from autoconfig.kernels.bench import table as tables
from autoconfig.kernels.bench.device import BenchDevice, Timing, gpu_spec
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.hardware.operator_table import KIND, SCHEMA_VERSION, read_operator_table, write_operator_table

SAVE_EVERY_S = 5.0
SAME = ("type", "reported_name", "threads")
"""What of the device must agree for a file to be gone on with."""
FIELDS = {
    "gemm": ("m", "n", "k"),
    "plan_gemm": ("m", "n", "k"),
    "fp8_slow": ("m", "n", "k"),
    "grouped_gemm": ("rows", "width", "groups"),
    "attention": ("head_dim", "length"),
    "attention_backward": ("head_dim", "length"),
    "score_gemm": ("head_dim", "length", "parallel"),
    "copy": ("bytes",),
    "launch": ("name",),
    "pointwise": ("name",),
    "collectives": ("kind", "ranks", "bytes"),
}
"""What the sizes of a group's points are, by the part of its name before the dot."""


class Results:
    """Measurements of one device, and the file that holds them."""

    def __init__(
        self, path: Path, device: BenchDevice, sizes: tables.Sizes, set_name: str, software: Mapping[str, Any]
    ) -> None:
        """Nothing measured yet; `resume` reads what the file has."""
        self.path, self.device, self.sizes = path, device, sizes
        self.points: dict[str, dict[tables.Key, tuple[float, float, int]]] = {}
        self.kernels: dict[str, str] = {}
        self.generations: dict[str, str] = {}
        self.launch: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        self.skipped: list[str] = []
        self.missing: list[str] = []
        self.provenance: dict[str, Any] = {
            "tool": "autoconfig.kernels.benchmark",
            "set": set_name,
            "software": dict(software),
            "started": _now(),
            "finished": None,
            "driver_before": None,
            "driver_after": None,
            "seconds": 0.0,
        }
        self._started, self._saved, self._before = time.monotonic(), time.monotonic(), 0.0

    def resume(self) -> int:
        """Takes over what the file holds; 0 where there is none. Raises InputError where it is another device's or set's."""
        if not self.path.exists():
            return 0
        data = read_operator_table(self.path)
        device, old = self.device.as_json(), data["provenance"]
        differs = [
            f"{key} {data['device'].get(key)!r}, now {device[key]!r}" for key in SAME if data["device"].get(key) != device[key]
        ]
        for key, now in (("set", self.provenance["set"]), ("torch", self.provenance["software"]["torch"])):
            before = old["set"] if key == "set" else old["software"]["torch"]
            if before != now:
                differs.append(f"{key} {before!r}, now {now!r}")
        if differs:
            raise InputError(
                f"{self.path} was measured otherwise ({'; '.join(differs)}): name another file, or start anew with --fresh"
            )
        for group, rows in data["points"].items():
            self.points[group] = {tuple(row[:-3]): (row[-3], row[-2], row[-1]) for row in rows["rows"]}
        self.kernels, self.generations = dict(data["kernels"]), dict(data["generations"])
        self.launch, self.moved = dict(data["launch"]), dict(data["moved_bytes"])
        self.skipped, self.missing = list(data["skipped"]), list(data["missing"])
        self.provenance |= {key: old[key] for key in ("started", "driver_before")}
        self._before = float(old["seconds"])
        return sum(len(rows) for rows in self.points.values())

    def has(self, group: str, key: tables.Key) -> bool:
        return key in self.points.get(group, {})

    def add(self, group: str, key: tables.Key, timing: Timing) -> None:
        """One measurement; the file is written again every few seconds. Raises FileError where it cannot be written."""
        self.points.setdefault(group, {})[key] = (tables.rounded(timing.seconds), round(timing.spread, 4), timing.repetitions)
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save(complete=False)

    def skip(self, text: str) -> None:
        if text not in self.skipped:
            self.skipped.append(text)

    def save(self, *, complete: bool) -> bool:
        """Write the table; False where too little was measured for one. Raises FileError."""
        self._saved = time.monotonic()
        table = self.table(complete=complete)
        if table is not None:
            write_operator_table(self.path, table)
        return table is not None

    def _of(self, group: str) -> tables.Points:
        return self.points.get(group, {})

    def peaks(self) -> dict[str, float]:
        known = load_gpu(self.device.catalogue_id).flops_per_s if self.device.catalogue_id else {}
        found = {
            group.split(".")[1]: tables.best_rate(points) for group, points in self.points.items() if group.startswith("gemm.")
        }
        return {**{name: tables.rounded(rate) for name, rate in found.items() if rate > 0}, **known}

    def table(self, *, complete: bool) -> dict[str, Any] | None:
        """The file's content; None before copies and some GEMMs were measured."""
        peaks, copies = self.peaks(), self._of("copy")
        if not copies or not peaks:
            return None
        copy_rate = max(2.0 * float(key[0]) / seconds for key, (seconds, _, _) in copies.items())
        driver = self.provenance["driver_after"] or self.provenance["driver_before"] or {}
        known = self.device.catalogue_id
        link = tables.best_link(self._of("collectives"))
        spec = None
        if known is None:
            spec = gpu_spec(
                self.device,
                {
                    "flops_per_s": peaks,
                    "copy_bytes_per_s": tables.rounded(copy_rate),
                    "link_bytes_per_s": tables.rounded(link) if link else None,
                },
                driver,
            )
        hbm = spec["hbm_bytes_per_s"] if spec else load_gpu(self.device.id).hbm_bytes_per_s
        link_rate = spec["link_bytes_per_s"] if spec else load_gpu(self.device.id).link_bytes_per_s
        collectives, p2p = tables.collective_tables(self._of("collectives"), link_rate)
        self.provenance |= {"finished": _now(), "seconds": round(self._before + time.monotonic() - self._started, 1)}
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "complete": complete,
            "gpu": self.device.id,
            **({"gpu_spec": spec} if spec else {}),
            "device": self.device.as_json(),
            "provenance": self.provenance,
            "missing": self.missing,
            "skipped": self.skipped,
            **self._tables(peaks),
            "collectives": collectives,
            "constants": self._constants(peaks, hbm, p2p),
            "copy_bytes_per_s": tables.rounded(copy_rate),
            "launch": {name: tables.rounded(value) for name, value in self.launch.items()},
            "moved_bytes": self.moved,
            "kernels": self.kernels,
            "generations": self.generations,
            "points": {group: self._rows(group) for group in self.points},
        }

    def _tables(self, peaks: Mapping[str, float]) -> dict[str, Any]:
        result: dict[str, dict[str, Any]] = {"gemm": {}, "attention": {}, "grouped_gemm": {}}
        sizes = self.sizes
        gemm_axes = {"m": sizes.m, "n": sizes.nk, "k": sizes.nk}
        grouped_axes = {"rows": sizes.rows, "width": sizes.widths, "groups": sizes.groups}
        for precision, peak in peaks.items():
            table = tables.efficiency_table(self._of(f"gemm.{precision}"), gemm_axes, tables.gemm_flops, peak)
            if table is not None:
                error = tables.held_out_error(self._of(f"plan_gemm.{precision}"), table)
                result["gemm"][precision] = table | ({"held_out": error} if error else {})
            attention = tables.attention_table(self._of(f"attention.{precision}"), sizes, self.parallel, self.launch_s, peak)
            if attention is not None:
                name = f"attention.{precision}"
                result["attention"][precision] = attention | {
                    "kernels": [self.kernels.get(name, "")],
                    "generation": self.generations.get(name, ""),
                }
            grouped = tables.efficiency_table(self._of(f"grouped_gemm.{precision}"), grouped_axes, tables.grouped_flops, peak)
            if grouped is not None:
                result["grouped_gemm"][precision] = grouped | {"kernels": [self.kernels.get(f"grouped_gemm.{precision}", "")]}
        return result

    def _constants(self, peaks: Mapping[str, float], hbm: float, p2p: dict[str, float] | None) -> dict[str, Any]:
        """What the file knows better than gpu_efficiency.json."""
        result: dict[str, Any] = {}
        share = tables.pointwise_share(self._of("pointwise"), self.moved, hbm)
        if share:
            result["hbm"] = {"pointwise": tables.rounded(share), "launch_s": tables.rounded(self.launch_s)}
        attention: dict[str, float] = {}
        main = "bf16" if self._of("attention.bf16") else "fp32"
        backward = tables.backward_rate(self._of(f"attention.{main}"), self._of(f"attention_backward.{main}"), self.launch_s)
        if backward:
            attention["backward"] = tables.rounded(backward)
        unfused = tables.score_gemm_rate(self._of(f"score_gemm.{main}"), peaks.get(main, 0.0))
        if unfused:
            attention |= {"unfused_gemm": tables.rounded(unfused[0]), "unfused_head_dim_half": tables.rounded(unfused[1])}
        if self.device.type == "cpu" and attention:
            attention |= {"flash1_share": 1.0, "flash2_share": 1.0, "flash3_share": 1.0}
        if attention:
            result["attention"] = attention
        slow, fast = self._of("fp8_slow.fp8"), self._of("gemm.fp8")
        ratios = sorted(fast[key][0] / slow[key][0] for key in slow if key in fast)
        if ratios:
            result["fp8"] = {"backward": tables.rounded(min(ratios[len(ratios) // 2], 1.0))}
        if p2p:
            result["p2p"] = p2p
        return result

    @property
    def launch_s(self) -> float:
        """Start-up of one kernel: in a CUDA graph, else as launched."""
        return self.launch.get("graph_device_s", self.launch.get("device_s", 0.0))

    def parallel(self, length: int) -> int:
        return max(self.sizes.least_parallel, self.sizes.attention_rows // length)

    def _rows(self, group: str) -> dict[str, Any]:
        return {
            "fields": [*FIELDS[group.split(".")[0]], "seconds", "spread", "repetitions"],
            "rows": [[*key, *timing] for key, timing in self.points[group].items()],
        }

    def sample_driver(self, when: str) -> None:
        """Clocks, power, temperature and throttling, `before` or `after` the measurements. CPU: nothing."""
        if self.device.type == "cuda":
            self.provenance[f"driver_{when}"] = nvml.sample(self.device.uuid)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
