"""Layouts: many plans side by side, one NumPy column per key, so that one formula prices one plan and a million.

`Layouts` has one row per plan without its recomputation; the models return tables [rows, recompute options]. `stage_table`
says which layers each pipeline stage holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.specs.errors import PlanError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.pattern import pattern_letters
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.run_settings import RunSettings, Switches

IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
FloatColumn = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Columns of equal length n. `first` and `last` are always filled: the layers of the first and last stage."""

    tp: IntColumn
    sp: BoolColumn
    pp: IntColumn
    vpp: IntColumn
    first: IntColumn
    last: IntColumn
    cp: IntColumn
    ep: IntColumn
    etp: IntColumn
    dp: IntColumn
    mbs: IntColumn
    dist_opt: BoolColumn
    fsdp: IntColumn
    offload: FloatColumn
    num_gpus: IntColumn
    """Of the run."""
    global_batch_size: IntColumn
    switches: IntColumn
    """Number of the row's settings in `choices`."""
    choices: tuple[RunSettings, ...] = (RunSettings(),)
    """What the rows' runs switch on (`resolve_settings`): few distinct settings."""

    @property
    def num_microbatches(self) -> IntColumn:
        """m = global batch / (mbs dp)."""
        return self.global_batch_size // (self.mbs * self.dp)

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Any) -> Layouts:
        """The rows that an index array, mask or slice selects."""
        return Layouts(**{name: getattr(self, name)[rows] for name in COLUMN_NAMES}, choices=self.choices)

    def with_switches(self, switches: Switches) -> Layouts:
        """The same rows with the settings that they run with."""
        numbers = np.broadcast_to(switches.numbers(self.tp, self.pp, self.vpp, self.ep), self.tp.shape)
        return replace(self, switches=numbers.astype(np.int64), choices=switches.choices)

    def by_settings(self) -> list[tuple[RunSettings, IntColumn]]:
        """(settings, the rows that run with them), of those that some row has."""
        if len(self.choices) == 1:
            return [(self.choices[0], np.arange(len(self)))] if len(self) else []
        groups = ((settings, np.flatnonzero(self.switches == number)) for number, settings in enumerate(self.choices))
        return [(settings, rows) for settings, rows in groups if len(rows)]

    def where(self, holds: Callable[[RunSettings], Any]) -> npt.NDArray[Any]:
        """[n]: what a function says of each row's settings."""
        return np.array([holds(settings) for settings in self.choices])[self.switches]

    def unique(self, *names: str, also: Sequence[npt.ArrayLike] = ()) -> tuple[IntColumn, IntColumn]:
        """(first row of each distinct combination of the columns and of `also`, for every row the position of its
        combination)."""
        span, key = 1, np.zeros(len(self), dtype=np.int64)
        for column in map(np.asarray, (*(getattr(self, name) for name in names), *also)):
            whole = column if column.dtype.kind in "biu" else np.unique(column, return_inverse=True)[1]
            radix = int(whole.max(initial=0)) + 1
            if span * radix >= 2**62:
                distinct, key = np.unique(key, return_inverse=True)
                span = len(distinct)
            span, key = span * radix, key * radix + whole
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        return first, inverse

    def plan(self, row: int, recompute: Recompute, model: ModelSpec) -> TrainPlan:
        """Row `row` as a TrainPlan; first and last are left out where the stages are even."""
        pp, first, last = int(self.pp[row]), int(self.first[row]), int(self.last[row])
        even = model.num_layers % pp == 0 and first == last == model.num_layers // pp
        names = {*COLUMN_NAMES} - {"first", "last", "num_gpus", "global_batch_size", "switches"}
        values: dict[str, Any] = {name: getattr(self, name)[row].item() for name in names}
        values |= {} if even else {"first": first, "last": last}
        return TrainPlan(**values, recompute=recompute)


COLUMN_NAMES = tuple(f.name for f in fields(Layouts) if f.name != "choices")


def layouts_of(
    plans: Sequence[TrainPlan],
    model: ModelSpec,
    global_batch_size: int | Sequence[int],
    num_gpus: int | Sequence[int] | None = None,
) -> Layouts:
    """Columns for single plans with nothing switched on, each with its batch and on its GPUs; as many as it occupies where they
    are not given. Raises PlanError where stages or micro-batches are not whole numbers."""
    batches = [global_batch_size] * len(plans) if isinstance(global_batch_size, int) else global_batch_size
    counts = [num_gpus or plan.world_size for plan in plans] if num_gpus is None or isinstance(num_gpus, int) else num_gpus
    columns: dict[str, list[Any]] = {name: [] for name in COLUMN_NAMES}
    for plan, batch, gpus in zip(plans, batches, counts, strict=True):
        layers = stage_layers(model, plan)
        if batch % (plan.mbs * plan.dp):
            raise PlanError(
                f"global batch {batch} is not a multiple of mbs x dp = {plan.mbs} x {plan.dp} = {plan.mbs * plan.dp}"
            )
        derived = {"first": layers[0], "last": layers[-1], "global_batch_size": batch, "num_gpus": gpus, "switches": 0}
        for name, column in columns.items():
            column.append(derived.get(name, getattr(plan, name, None)))
    kinds: dict[str, Any] = {"sp": np.bool_, "dist_opt": np.bool_, "offload": np.float64}
    values: dict[str, Any] = {name: np.array(column, dtype=kinds.get(name, np.int64)) for name, column in columns.items()}
    return Layouts(**values)


def stage_layers(model: ModelSpec, plan: TrainPlan) -> tuple[int, ...]:
    """Layers of each pipeline stage. Stages not given by first / last share the rest evenly (transformer_config.py:2303-2353).

    Raises PlanError when the rest does not divide.
    """
    given = [x for x in (plan.first, plan.last) if x is not None]
    others = plan.pp - len(given)
    rest = model.num_layers - sum(given)
    if plan.pp == 1:
        if any(x != model.num_layers for x in given):
            raise PlanError(f"first={plan.first},last={plan.last} need pp of at least 2")
        return (model.num_layers,)
    if others < 0 or rest < 0 or (others == 0) != (rest == 0) or (others and rest % others):
        raise PlanError(
            f"{model.num_layers} layers do not divide over pp={plan.pp} with first={plan.first}, last={plan.last}: "
            f"{rest} layers for {others} stages"
        )
    middle = rest // others if others else 0
    layers = [middle] * plan.pp
    layers[0] = plan.first if plan.first is not None else middle
    layers[-1] = plan.last if plan.last is not None else middle
    if min(layers) < 1:
        raise PlanError(f"{model.num_layers} layers over pp={plan.pp} leave a stage without a layer")
    return tuple(layers)


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """What each priced pipeline stage holds: arrays [n, S]."""

    index: IntColumn
    """Stage number r, 0 to pp - 1."""
    layers: IntColumn
    chunk_layers: FloatColumn
    """Of a model chunk; where a layout places them, of all but the shorter first and last one."""
    by_chunk: dict[str, tuple[IntColumn, ...]]
    """Kind (all but `rest`) -> per model chunk its layers of that kind, up to the last chunk that holds some."""
    totals: dict[str, IntColumn]
    """The same, all chunks together."""
    rest: str
    """The kind of most layers."""
    is_first: BoolColumn
    is_last: BoolColumn

    def layers_of(self, kind: str) -> IntColumn:
        """Layers of this kind, all chunks together; none of a kind that the model lacks."""
        if kind == self.rest:
            return self.layers - sum(self.totals.values(), np.zeros_like(self.index))
        return self.totals.get(kind, np.zeros_like(self.index))


def stage_table(model: ModelSpec, layouts: Layouts, *, every: bool = False) -> StageTable:
    """The stages that can be the worst, or with `every` all of them, the last one again where a row has fewer.

    Between the first stages and the last one, stages hold alike layers and ever fewer micro-batches, so the stages 0, 1, ...
    up to the first without a layer of another kind, and the last, bound all others. Layer kinds that alternate through
    the whole depth make every stage of each row a candidate.
    """
    size = int(layouts.pp.max()) if every else int(_priced_stages(model, layouts).max())
    last = layouts.pp[:, None] - 1
    index = np.minimum(np.arange(size)[:, None], last.T).T  # a column lies together: what follows does many rows at a time
    if not every and size > 1:
        index[:, -1] = last[:, 0]
    is_first, is_last = index == 0, index == last
    middle = middle_layers(model, layouts)[:, None]
    layers = np.where(is_first, layouts.first[:, None], np.where(is_last, layouts.last[:, None], middle))
    rest, by_layout = max(model.kinds, key=model.layer_kinds.count), chunks_by_layout(model, layouts)
    each = layers / layouts.vpp[:, None]
    by_chunk = {kind: _by_chunk(model, kind, layouts, index, layers, middle) for kind in model.kinds if kind != rest}
    return StageTable(
        index=index,
        layers=layers,
        chunk_layers=np.where(by_layout.placed[:, None], by_layout.chunk[:, None], each) if by_layout.placed.any() else each,
        is_first=is_first,
        is_last=is_last,
        by_chunk={kind: chunks for kind, (chunks, _) in by_chunk.items()},
        totals={kind: total for kind, (_, total) in by_chunk.items()},
        rest=rest,
    )


def priced_together(model: ModelSpec, layouts: Layouts, most: int) -> list[IntColumn]:
    """Rows in groups of at most so many, in order, apart by the number of stages that `stage_table` needs."""
    stages = _priced_stages(model, layouts)
    groups = [np.flatnonzero(stages == size) for size in np.flatnonzero(np.bincount(stages))]
    return [group[start : start + most] for group in groups for start in range(0, len(group), most)]


def distinct_degrees(layouts: Layouts) -> tuple[FloatColumn, FloatColumn, FloatColumn, Callable[[Any], FloatColumn]]:
    """tp, etp and ep of the distinct combinations, and what makes [n, 1] of a value of each: few rows differ in them."""
    first, number = layouts.unique("tp", "etp", "ep")
    tp, etp, ep = (column[first].astype(float) for column in (layouts.tp, layouts.etp, layouts.ep))
    return tp, etp, ep, lambda value: np.asarray(np.broadcast_to(value, first.shape)[number, None])


def middle_layers(model: ModelSpec, layouts: Layouts) -> IntColumn:
    """Layers of each stage that is neither first nor last; 0 where there is none."""
    between = layouts.pp - 2
    rest = model.num_layers - layouts.first - np.where(layouts.pp > 1, layouts.last, 0)
    return np.where(between > 0, rest // np.maximum(between, 1), 0)


@dataclass(frozen=True, kw_only=True)
class ChunksByLayout:
    """Interleaved stages whose layers are no multiple of vpp: chunks alike, but for a shorter first one of all and a shorter
    last one, as --pipeline-model-parallel-layout places them (megatron-core 0.13.0, pipeline_parallel_layer_layout.py). [n]"""

    placed: BoolColumn
    """The row has such stages."""
    chunk: IntColumn
    """Layers of a chunk of a stage between the first and the last."""
    first: IntColumn
    """Layers that the first chunk of the first stage lacks; 0 where nothing is placed."""
    last: IntColumn
    """The same of the last chunk of the last stage."""


def chunks_by_layout(model: ModelSpec, layouts: Layouts) -> ChunksByLayout:
    """Which rows need a layout, and how long their chunks are."""
    middle, vpp = middle_layers(model, layouts), layouts.vpp
    placed = (vpp > 1) & (layouts.pp > 2) & ((layouts.first % vpp > 0) | (layouts.last % vpp > 0))
    first, last = (np.where(placed, middle - end, 0) for end in (layouts.first, layouts.last))
    return ChunksByLayout(placed=placed, chunk=middle // vpp, first=first, last=last)


def chunk_layers(model: ModelSpec, plan: TrainPlan) -> tuple[tuple[int, ...], ...]:
    """[chunk][stage]: layers of every model chunk. Raises PlanError where the layers do not divide."""
    layers = stage_layers(model, plan)
    chunks = [[count // plan.vpp for count in layers] for _ in range(plan.vpp)]
    if needs_layout(model, plan):
        for chunk in chunks:
            chunk[0], chunk[-1] = chunk[1], chunk[1]
        chunks[0][0] -= layers[1] - layers[0]
        chunks[-1][-1] -= layers[1] - layers[-1]
    return tuple(tuple(chunk) for chunk in chunks)


def needs_layout(model: ModelSpec, plan: TrainPlan) -> bool:
    """The plan's chunks are placed by a layout, and one can: the ends lack at most a chunk (NV044)."""
    if plan.vpp == 1 or plan.pp < 3 or plan.first is plan.last is None:
        return False
    try:
        first, middle, *_, last = stage_layers(model, plan)
    except PlanError:
        return False
    possible = middle % plan.vpp == 0 and max(first, last) <= middle and middle - min(first, last) <= middle // plan.vpp
    return possible and bool(first % plan.vpp or last % plan.vpp)


def layout_text(model: ModelSpec, plan: TrainPlan) -> str:
    """The plan's --pipeline-model-parallel-layout: `Etttt|(tttt|)*14tmL`; E embedding, t a layer, m a depth of multi-token
    prediction, L output layer and loss. Empty where the plan needs none."""
    if not needs_layout(model, plan):
        return ""
    chunks = [count for chunk in chunk_layers(model, plan) for count in chunk]
    first, last, between = ("t" * count for count in (chunks[0], chunks[-1], chunks[1]))
    return f"E{first}|({between}|)*{len(chunks) - 2}{last}{'m' * model.mtp_num_layers}L"


def staged_pattern(model: ModelSpec, plan: TrainPlan) -> str:
    """Megatron's pattern with the layers of every chunk of every stage between its `|`: chunk 0 of all stages, then chunk 1."""
    pattern, sizes = model.pattern, stage_layers(model, plan)
    segments, position = [], 0
    for _ in range(plan.vpp):
        for size in sizes:
            segments.append(pattern_letters(pattern.layers[position : position + size // plan.vpp]))
            position += size // plan.vpp
    return "|".join(segments) + f"/{pattern_letters(pattern.mtp)}" * model.mtp_num_layers


def _is_irregular(model: ModelSpec) -> bool:
    """Layer kinds change after the first MoE layer, so that no few stages stand for all; in hybrids they always do, and
    a decoder's layers are not those of the encoder."""
    if model.is_hybrid or model.is_encoder_decoder:
        return True
    pattern = model.moe_pattern
    start = pattern.index(1) if 1 in pattern else 0
    return model.is_moe and not all(pattern[start:])


def _priced_stages(model: ModelSpec, layouts: Layouts) -> IntColumn:
    """[n]: how many stages `stage_table` needs: all where kinds alternate, else the leading ones and the last.

    Chunk 0 of stage r > 0 starts at layer (first + (r - 1) middle) / v, its other chunks later: from the first r on where that
    is not before the first MoE layer, stages are alike.
    """
    if _is_irregular(model):
        return layouts.pp
    dense = model.moe_pattern.index(1) if 1 in model.moe_pattern else 0
    left = np.maximum(dense * layouts.vpp - layouts.first, 0)
    alike = 1 + -(-left // np.maximum(middle_layers(model, layouts), 1))
    return np.minimum(alike + 2, layouts.pp)


def rows_with_chunk(layouts: Layouts, chunk: int) -> IntColumn | slice:
    """The rows that have a model chunk of this number; few have many."""
    return np.flatnonzero(layouts.vpp > chunk) if chunk else slice(None)


def _by_chunk(
    model: ModelSpec, kind: str, layouts: Layouts, index: IntColumn, layers: IntColumn, middle: IntColumn
) -> tuple[tuple[IntColumn, ...], IntColumn]:
    """Layers of this kind, by chunk and in all. Chunk c of stage r starts at layer c L/v + (layers of stages before r)/v."""
    before = np.concatenate([[0], np.cumsum([found == kind for found in model.layer_kinds])])
    behind = int(np.argmax(before))  # the layer after the last one of this kind
    offset = np.where(index == 0, 0, layouts.first[:, None] + (index - 1) * middle) // layouts.vpp[:, None]
    total, chunks = np.zeros_like(index), []
    by_layout = chunks_by_layout(model, layouts)
    for chunk in range(int(layouts.vpp.max())):
        rows = rows_with_chunk(layouts, chunk)
        vpp, pp = layouts.vpp[rows, None], layouts.pp[rows, None]
        start, size = chunk * (model.num_layers // vpp) + offset[rows], layers[rows] // vpp
        if np.any(by_layout.placed):
            placed, each, lacks_first, lacks_last = (
                getattr(by_layout, name)[rows, None] for name in ("placed", "chunk", "first", "last")
            )
            number = chunk * pp + index[rows]
            short = np.where(number == 0, lacks_first, np.where(number == pp * vpp - 1, lacks_last, 0))
            start = np.where(placed, np.maximum(number * each - lacks_first, 0), start)
            size = np.where(placed, each - short, size)
        start = np.minimum(start, model.num_layers)
        if start.min() >= behind:
            break
        end = np.minimum(start + size, model.num_layers)
        column = np.zeros_like(index)
        column[rows] = before[end] - before[start]
        total[rows] += column[rows]
        chunks.append(column)
    return tuple(chunks), total


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def divisors(number: int) -> list[int]:
    """All positive divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def pareto_front(least: npt.ArrayLike, most: npt.ArrayLike, slack: float = 0.0) -> Ints:
    """Rows that no other row beats in one value without being worse in the other, in the order of `least`.

    `least` is better where it is small, `most` where it is large; of equal rows the first stands for all. With `slack` a row
    is kept only where its `most` exceeds that of the row kept before by more than this share.
    """
    low, high = np.asarray(least, float), np.asarray(most, float)
    if not len(low):
        return np.zeros(0, np.int64)
    order = np.argsort(low, kind="stable")
    ahead = np.concatenate([[True], high[order][1:] > np.maximum.accumulate(high[order])[:-1]])
    front = order[ahead]
    front = front[np.append(low[front][1:] > low[front][:-1], True)]  # of rows with one `least` the last has the most
    if not slack:
        return front
    kept: list[int] = []
    for row in front:
        if not kept or high[row] > high[kept[-1]] * (1 + slack):
            kept.append(row)
    return np.array(kept, np.int64)


def on_front(least: npt.ArrayLike, most: npt.ArrayLike) -> list[bool]:
    """Which rows are on the front; of equal rows all."""
    pairs = np.stack([np.asarray(least, float), np.asarray(most, float)], axis=1)
    front = {tuple(pair) for pair in pairs[pareto_front(*pairs.T)].tolist()}
    return [tuple(pair) in front for pair in pairs.tolist()]


def first_positions(ids: Ints) -> Ints:
    """Position of the first entry of every id (0 or more), ascending; in linear time, unlike a sort of millions."""
    first = np.full(int(ids.max(initial=-1)) + 1, len(ids))
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)  # of entries of one id the last assignment stays: the first entry
    return np.sort(first[first < len(ids)])


def spread(rows: Sequence[int], most: int) -> list[int]:
    """At most so many of the rows, evenly spread, both ends among them."""
    return [rows[int(i)] for i in np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round())]
