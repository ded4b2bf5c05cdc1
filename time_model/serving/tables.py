"""Measured operators of a serving engine on one GPU: loads `data/serving/<gpu>.json` (written by `make tables`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.cluster import GpuSpec, load_gpu
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.software.engine import WEIGHT_BYTES, EngineSpec, kernel_age, load_engine
from autoconfig.time_model.collectives import ring_factor
from autoconfig.time_model.hardware.efficiency import GridTable

PATH = resources.files("autoconfig.time_model") / "data" / "serving_calibration.json"


ARITHMETIC = "arithmetic"


@dataclass(frozen=True, kw_only=True)
class StepTerms:
    """What an iteration costs where runs under load were measured from outside: factors of operators, seconds of launches."""

    linear: float = 1.0
    """Of the seconds that the tables' linear layers take beyond the roofline; so for the next."""
    decode_attention: float = 1.0
    prefill_attention: Mapping[str, float] = field(default_factory=dict)
    """The same by kind of attention: heads, latent, sparse (costs.prefill_kind)."""
    experts: Mapping[str, float] = field(default_factory=dict)
    """By format of the experts: of the bytes of touched ones over the bandwidth."""
    experts_rows: float = 1.0
    """Of their rows once in and once out: permuting, quantising, activating and combining pass over them again."""
    pointwise: float = 1.0
    """Of the bytes of norms, residuals and activations."""
    experts_arithmetic: Mapping[str, float] = field(default_factory=dict)
    """By format: of their FLOPs over its peak, added to the former."""
    moe_layer_s: Mapping[str, float] = field(default_factory=dict)
    """By format: launches of one MoE layer, beside layer_s of any layer."""
    delta_layer_s: float = 0.0
    """Launches of one recurrent layer (Gated DeltaNet, Mamba)."""
    sparse_layer_s: float = 0.0
    """Of one layer of sparse attention (DSA)."""
    gathered_layer_s: float = 0.0
    """Of one MoE layer that gathers tokens of attention ranks (attention data parallelism)."""
    synchronous_step_s: float = 0.0
    """Host seconds of an iteration that is put together when the one before has ended; an asynchronous engine hides them."""
    eager_step_s: float = 0.0
    """Of an iteration with prompts, whose operators are launched one by one."""
    eager_layer_s: float = 0.0
    """Of one layer of it."""


@dataclass(frozen=True, kw_only=True)
class EngineConstants:
    """What one iteration costs beside its operators."""

    factor: float = 1.0
    """Operators in the engine over operators alone (gaps, clocks, mixed kernels)."""
    experts_factor: float = 1.0
    """The same for routed experts."""
    experts_arithmetic: float = 0.0
    """Added to it for the part of their seconds that the matrix units set and not the memory: grouped GEMMs of older releases
    reach less of the peak than the measured ones, but read weights as fast."""
    communication_factor: float = 1.0
    """The same for collectives."""
    eager_layer_s: float = 0.0
    """Host seconds to launch one layer operator by operator: a floor of iterations outside of CUDA graphs."""
    eager_sequence_s: float = 0.0
    """Host seconds for a sequence of an iteration in a Python runtime (schedule, sample, hand out); part of it."""
    host_s: float = 0.0
    """Seconds of an iteration in which the GPU waits for the host."""
    sequence_s: float = 0.0
    """The same per sequence of the iteration: scheduling, sampling parameters, detokenising."""
    layer_s: float = 0.0
    """The same per layer: launches that no CUDA graph hides."""
    sampler_bytes: float = 8.0
    """Memory traffic of sampling per logit."""
    request_s: float = 0.0
    """Per request before its first iteration: HTTP, tokenising, queues."""
    request_token_s: float = 0.0
    """Per token of a prompt in the queue of one tokeniser."""
    terms: StepTerms | None = None
    """Routed experts by bytes, arithmetic and launches, and a factor of each operator; None: experts by the measured shares of
    the roofline, and one factor."""
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """tpot, ttft -> least and most of measured over predicted for nine in ten runs whose model, GPU and engine the constants
    had not seen; empty where it is not known."""
    unseen: str = ""
    """The GPU's generation where no run of it was measured under the engine; its bands are then those of generations that the
    constants had not seen."""
    origin: str = ""

    def factor_of(self, part: str) -> float:
        """What a part of the operators' seconds (rows.PARTS) costs."""
        own = {"experts": self.experts_factor, "communication": self.communication_factor}
        if self.terms is not None:
            return {**own, ARITHMETIC: self.experts_factor}.get(part, self.factor)
        return {**own, ARITHMETIC: self.experts_arithmetic}.get(part, self.factor)


_NUMBERS = [f for f in fields(EngineConstants) if f.name not in ("origin", "terms", "request_token_s", "bands", "unseen")]
NUMBERS = {f.name for f in _NUMBERS} - {"factor", "experts_factor", "experts_arithmetic"}


ARCHITECTURES = ((10.0, "blackwell"), (9.0, "hopper"), (0.0, "before"))
"""By the least compute capability."""


def architecture(gpu: GpuSpec) -> str:
    """Whose deviation the GPU has."""
    return next(name for least, name in ARCHITECTURES if (gpu.compute_capability or 0.0) >= least)


@dataclass(frozen=True, kw_only=True)
class PooledTerms:
    """Constants that engines share: each a common value times a factor of the engine, of the architecture and of the kind (the
    experts' format, the kind of attention), near 1 (validation/fit/closed_loop.py)."""

    engines: tuple[str, ...]
    values: Mapping[str, float]
    """Term -> common value."""
    deviations: Mapping[str, Mapping[str, float]]
    """Term -> `level:name` -> factor."""
    bands: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """Engine, or UNSEEN -> as of EngineConstants."""
    seen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Engine -> generations of GPUs (GpuSpec.architecture) that runs were measured on."""

    def of(self, term: str, engine: str, gpu: GpuSpec, kind: str = "") -> float:
        """A term's value; 0 where there is none."""
        own = self.deviations.get(term, {})
        levels = (f"engine:{engine}", f"architecture:{architecture(gpu)}", f"kind:{kind}")
        return self.values.get(term, 0.0) * float(np.prod([own.get(level, 1.0) for level in levels]))

    def constants(self, engine: str, gpu: GpuSpec) -> EngineConstants:
        """Of an engine on a GPU."""

        def by_kind(term: str, kinds: Iterable[str]) -> dict[str, float]:
            return {kind: self.of(term, engine, gpu, kind) for kind in kinds}

        def one(term: str) -> float:
            return self.of(term, engine, gpu)

        known = not self.seen or gpu.architecture in self.seen.get(engine, ())
        return EngineConstants(
            communication_factor=one("communication"),
            layer_s=one("layer_s"),
            sequence_s=one("sequence_s"),
            sampler_bytes=one("sampler_bytes"),
            request_s=one("request_s"),
            request_token_s=one("request_token_s"),
            terms=StepTerms(
                linear=one("linear"),
                decode_attention=one("decode_attention"),
                prefill_attention=by_kind("prefill_attention", PREFILL_KINDS),
                experts=by_kind("experts", WEIGHT_BYTES),
                experts_rows=one("experts_rows"),
                pointwise=one("pointwise"),
                experts_arithmetic=by_kind("experts_arithmetic", WEIGHT_BYTES),
                moe_layer_s=by_kind("moe_layer_s", WEIGHT_BYTES),
                delta_layer_s=one("delta_layer_s"),
                sparse_layer_s=one("sparse_layer_s"),
                gathered_layer_s=one("gathered_layer_s"),
                synchronous_step_s=one("synchronous_step_s"),
                eager_step_s=one("eager_step_s"),
                eager_layer_s=one("eager_layer_s"),
            ),
            bands=self.bands.get(engine if known else UNSEEN, {}),
            unseen="" if known else gpu.architecture,
            origin=f"constants of {engine} under load",
        )


UNSEEN = "another generation"
PREFILL_KINDS = ("heads", "latent", "sparse")
"""Whose attention of prompts has a factor of its own."""


@dataclass(frozen=True, kw_only=True)
class ServingCalibration:
    """`engines`: generation -> numbers of EngineConstants; `gpus`: generation -> GPU id -> {"all": ..., "experts": ...,
    "arithmetic": ...}, the last (EngineConstants.experts_arithmetic) for a year of the generation's age."""

    engines: Mapping[str, Mapping[str, float]]
    gpus: Mapping[str, Mapping[str, Mapping[str, float]]]
    parents: Mapping[str, str]
    """GPU -> the one whose factor stands in."""
    pooled: PooledTerms | None = None
    """Of engines without numbers of their own in `engines`."""

    def constants(self, engine: EngineSpec, gpu: GpuSpec) -> EngineConstants:
        """Constants for this pair, from the nearest generation and GPU that have them; between two generations by date."""
        if self.pooled is not None and engine.name in self.pooled.engines:
            return self.pooled.constants(engine.name, gpu)
        if engine.between:
            name, share = engine.between
            older, newer = self.constants(load_engine(name), gpu), self.constants(load_engine(engine.name), gpu)
            numbers = {f.name: share * getattr(older, f.name) + (1.0 - share) * getattr(newer, f.name) for f in _NUMBERS}
            return EngineConstants(**numbers, origin=f"{share:.2f} x ({older.origin}) and {1 - share:.2f} x ({newer.origin})")
        factor, where = self._factor(engine, gpu.id, "all")
        experts, arithmetic = (self._factor(engine, gpu.id, kind)[0] for kind in ("experts", ARITHMETIC))
        own = self._generation(engine)
        origin = f"constants of {own or 'no engine'}, factor of {where}"
        return EngineConstants(
            factor=factor,
            experts_factor=experts,
            experts_arithmetic=arithmetic * kernel_age(engine),
            origin=origin,
            request_token_s=self.engines[own].get("request_token_s", 0.0) if own else 0.0,
            **self.engine_numbers(engine),
        )

    def engine_numbers(self, engine: EngineSpec) -> dict[str, Any]:
        """What the generation, or the first of its parents that was fitted, has; empty where none was."""
        own = self._generation(engine)
        return {k: v for k, v in self.engines[own].items() if k in NUMBERS} if own else {}

    def factor(self, engine: EngineSpec, gpu: str, kind: str = "all") -> float:
        """Of operators (all), of routed experts alone (experts), or what their arithmetic adds for a year of age."""
        return self._factor(engine, gpu, kind)[0]

    def borrowed_by(self, engine: EngineSpec) -> str:
        """The generation whose constants an engine has that none were fitted for; empty where it has its own."""
        own = self._generation(engine)
        if self.pooled is not None and engine.name in self.pooled.engines:
            return ""
        return own if own is not None and own != engine.name and engine.between is None else ""

    def _generation(self, engine: EngineSpec) -> str | None:
        return next((name for name in _lineage(engine) if name in self.engines), None)

    def _factor(self, engine: EngineSpec, gpu: str, kind: str) -> tuple[float, str]:
        """(factor, where it is from).

        Measured; else the parent GPU's under this generation times what sets the two GPUs apart in the nearest generation that
        has both; else the GPU's, or its parent's, in the nearest generation.
        """
        lineage = _lineage(engine)
        own = self._known(engine.name, gpu, kind)
        if own is not None:
            return own, f"{gpu} under {engine.name}"
        parent = self.parents.get(gpu, "")
        here = self._known(engine.name, parent, kind)
        for name in lineage[1:]:
            mine, theirs = self._known(name, gpu, kind), self._known(name, parent, kind)
            if here is not None and mine is not None and theirs and kind != ARITHMETIC:
                return here * mine / theirs, f"{parent} under {engine.name}, as {gpu} to {parent} under {name}"
        at: str | None = gpu
        while at is not None:
            for name in lineage:
                found = self._known(name, at, kind)
                if found is not None:
                    return found, f"{at} under {name}"
            at = self.parents.get(at)
        return float(kind != ARITHMETIC), "no GPU (operators alone)"

    def _known(self, engine: str, gpu: str, kind: str) -> float | None:
        return self.gpus.get(engine, {}).get(gpu, {}).get(kind)


def _lineage(engine: EngineSpec) -> list[str]:
    names: list[str] = []
    at: str | None = engine.name
    while at is not None and at not in names:
        names.append(at)
        at = load_engine(at).parent
    return names


@cache
def _chips() -> dict[str, Any]:
    """`chips`: GPU -> the chip that stands in for it; `parents`: GPU -> GPU whose factor stands in; `hosts`."""
    return json.loads((FOLDER / "chips.json").read_text(encoding="utf-8"))


def gpu_parents() -> Mapping[str, str]:
    """GPU -> GPU whose factor stands in; written down before fitting."""
    return _chips()["parents"]


def host_slowness(gpu: str) -> float:
    """Times that the Python runtime's work takes on this GPU's host beside an x86 one."""
    return float(_chips()["hosts"].get(gpu, 1.0))


@cache
def shipped_calibration() -> ServingCalibration:
    """The constants that ship with the project."""
    data: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {"engines": {}, "gpus": {}}
    pooled = data.get("pooled")
    terms = None
    if pooled is not None:
        bands = {
            which: {name: (float(low), float(high)) for name, (low, high) in own.items()}
            for which, own in pooled["bands"].items()
        }
        terms = PooledTerms(
            engines=tuple(pooled["engines"]),
            values=pooled["values"],
            deviations=pooled["deviations"],
            bands=bands,
            seen=pooled["seen"],
        )
    return ServingCalibration(engines=data["engines"], gpus=data["gpus"], parents=gpu_parents(), pooled=terms)


NO_CALIBRATION = ServingCalibration(engines={}, gpus={}, parents={})
"""Operators alone."""


Vector = npt.NDArray[np.float64]
FOLDER = resources.files("autoconfig.time_model") / "data" / "serving"
MAX_SHARE = 0.95
"""Share of the roofline that nothing may exceed: more is a working set that stayed in the L2 cache between repetitions (96 MB
on L40S, 128 MB on RTX PRO 6000), which a model's weights and cache do not."""
WEIGHT_ONLY, WEIGHT_ONLY_CHIP = ("int8", "int4"), "a100-80gb"
"""Formats whose GEMMs multiply in 16 bits, and the one chip on which they were measured. Another chip has its own 16-bit share
times what sets the format's share apart from the 16-bit one there: unpacking costs, which 16-bit shares alone leave out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AllReduceTable:
    """Seconds of the engine's one-node all-reduce: log-log between sizes, linear in log2 of the ranks, rate constant beyond."""

    ranks: Vector
    log_bytes: Vector
    log_seconds: Vector
    """[ranks, bytes]"""
    link_bytes_per_s: float | None = None
    """Of the GPU that was measured, one direction; None: of any GPU that asks."""

    def seconds(self, ranks: int, total_bytes: Number, link_bytes_per_s: float | None = None) -> Number:
        """Time of one all-reduce of `total_bytes` over `ranks` GPUs of one node with a link of this rate (None: the table's).

        What the smallest message takes is start-up, the rest goes with the link and its load. Over another link than the
        measured one the rest grows as the link is slower, and no time is below the ring's (collectives.ring_factor: switches
        that reduce, which beat the ring by a few percent, are not known to be there). Beyond the last rank start-up keeps the
        growth of the last doubling that was measured, and the rest grows as 2 (n-1)/n.
        """
        last = float(self.ranks[-1])
        size = np.log(np.maximum(total_bytes, np.exp(self.log_bytes[0])))
        row = np.interp(np.log2(ranks), np.log2(self.ranks), np.arange(len(self.ranks), dtype=np.float64))
        low = int(row)
        high, share = min(low + 1, len(self.ranks) - 1), row - low
        logs = (1.0 - share) * self.log_seconds[low] + share * self.log_seconds[high]
        measured = np.exp(np.interp(size, self.log_bytes, logs) + np.maximum(size - self.log_bytes[-1], 0.0))
        same = self.link_bytes_per_s is None or link_bytes_per_s in (None, self.link_bytes_per_s)
        if same and ranks <= last:
            return measured
        start, (before, end) = float(np.exp(logs[0])), np.exp(self.log_seconds[-2:, 0])
        doublings = max(np.log2(ranks / last), 0.0)
        load = ring_factor("all_reduce", max(float(ranks), last)) / ring_factor("all_reduce", last)
        slower = 1.0 if same else float(self.link_bytes_per_s or 0.0) / float(link_bytes_per_s or 1.0)
        later = doublings * max(end - before, 0.0) / np.log2(last / self.ranks[-2])
        found = start + later + np.maximum(measured - start, 0.0) * load * slower
        return found if same else np.maximum(found, ring_factor("all_reduce", ranks) * total_bytes / link_bytes_per_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServingTables:
    """Shares of the roofline by operator and kind; all-reduce in seconds."""

    chip: str
    """GPU whose rows these are; another than the one asked for where the chip is the same or nearest."""
    gemm: dict[str, GridTable] = field(default_factory=dict)
    """By weight format, those of `elsewhere` included."""
    elsewhere: tuple[str, ...] = ()
    """Formats of WEIGHT_ONLY that were not measured on this chip."""
    decode_attention: dict[str, GridTable] = field(default_factory=dict)
    context_attention: dict[str, GridTable] = field(default_factory=dict)
    experts: dict[str, GridTable] = field(default_factory=dict)
    skew: dict[str, GridTable] = field(default_factory=dict)
    """`format:balance:one` (a rank that holds all experts) and `format:balance:many`: seconds of routed experts under skewed
    routing over those under even routing, by rows an expert and local experts; empty where even routing was not measured.
    balance: `bias` of each expert (DeepSeek-V3, arXiv:2412.19437, section 2.1.2) or auxiliary `loss`, which leaves more skew
    (validation/distil/serving.py, SKEWED; that the bias is what tells the two apart is assumed)."""
    shapes: dict[str, dict[tuple[float, ...], Vector]] = field(default_factory=dict)
    """Logs of the shares of `experts` on its axis of rows, by format, then by (hidden, width, local experts), as measured."""
    latent_attention: dict[str, GridTable] = field(default_factory=dict)
    all_reduce: AllReduceTable

    def experts_share(self, kind: str, rows: Number, hidden: float, width: float, local: float) -> Number:
        """Share of the roofline that `local` experts of `hidden` x `width` reach with `rows` rows each: of this shape where
        it was measured, else of the table over all shapes."""
        table, curve = self.experts[kind], self.shapes.get(kind, {}).get((hidden, width, local))
        if curve is not None:
            return np.exp(np.interp(np.log(rows), table.axes[0], curve))
        return table.at(rows, *(size + 0.0 * rows for size in (hidden, width, local)))


def _chip_of(gpu: GpuSpec) -> str:
    return str(_chips()["chips"].get(gpu.id, gpu.id))


def has_tables(gpu: GpuSpec) -> bool:
    """Whether operators were measured on the GPU or on a chip like it."""
    return (FOLDER / f"{_chip_of(gpu)}.json").is_file()


def serving_tables_of(gpu: GpuSpec) -> ServingTables:
    """Tables of the GPU, or of the chip that stands in for it (data/serving/chips.json). Raises InputError where there is
    none."""
    chip = _chip_of(gpu)
    if not has_tables(gpu):
        known = sorted({*_chips()["chips"], *(p.name.removesuffix(".json") for p in FOLDER.iterdir())} - {"chips"})
        raise InputError(
            f"no serving operators were measured on {gpu.id} or a chip like it, but on "
            f"{', '.join(name for name in known if (FOLDER / f'{name}.json').is_file())} "
            "and cards with these chips; name the nearest"
        )
    return _load(chip)


def even_tables() -> ServingTables:
    """Every operator at its roofline and collectives free, for a device that nobody measured: its constants hold the rest."""

    def one(axes: int) -> GridTable:
        return GridTable(axes=(np.array([0.0, 1.0]),) * axes, logs=np.zeros(2**axes))

    free = AllReduceTable(ranks=np.array([2.0, 4.0]), log_bytes=np.array([0.0, 1.0]), log_seconds=np.full((2, 2), -100.0))
    return ServingTables(
        chip="none",
        gemm={"bf16": one(3)},
        decode_attention={"bf16:64": one(3), "bf16:128": one(3)},
        context_attention={"bf16:64": one(2), "bf16:128": one(2)},
        experts={"bf16": one(4)},
        latent_attention={"decode:bf16": one(3), "context:bf16": one(3)},
        all_reduce=free,
    )


@cache
def _load(chip: str) -> ServingTables:
    data: dict[str, Any] = json.loads((FOLDER / f"{chip}.json").read_text(encoding="utf-8"))
    reduce = data["all_reduce"]
    grids = {
        name: {key: _grid(one) for key, one in data[name].items()}
        for name in ("gemm", "decode_attention", "context_attention", "experts", "latent_attention")
    }
    gemm = grids["gemm"]
    elsewhere = tuple(name for name in WEIGHT_ONLY if name not in gemm)
    for name in elsewhere:
        there = _load(WEIGHT_ONLY_CHIP).gemm  # on the same grid: all files are written with the same axes
        logs = gemm["bf16"].logs + there[name].logs - there["bf16"].logs
        gemm[name] = GridTable(axes=gemm["bf16"].axes, logs=np.minimum(logs, np.log(MAX_SHARE)))
    skews = {
        f"{key}:{balance}:{where}": _grid(grid)
        for key, one in data["experts"].items()
        for balance, places in one["skew"].items()
        for where, grid in places.items()
    }
    return ServingTables(
        chip=chip,
        elsewhere=elsewhere,
        **grids,
        skew=skews,
        shapes={
            key: {tuple(map(float, shape.split("x"))): np.log(curve) for shape, curve in one["shapes"].items()}
            for key, one in data["experts"].items()
        },
        all_reduce=AllReduceTable(
            link_bytes_per_s=load_gpu(chip).link_bytes_per_s,
            ranks=np.array(reduce["axes"]["ranks"], dtype=np.float64),
            log_bytes=np.log(np.array(reduce["axes"]["bytes"], dtype=np.float64)),
            log_seconds=np.log(np.array(reduce["microseconds"]) / 1e6),
        ),
    )


def _grid(data: dict[str, Any]) -> GridTable:
    return GridTable(
        axes=tuple(np.log(np.array(axis, dtype=np.float64)) for axis in data["axes"].values()),
        logs=np.log(np.array(data.get("share", data.get("ratio")), dtype=np.float64)).ravel(),
    )
