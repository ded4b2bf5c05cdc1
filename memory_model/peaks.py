"""Peaks of the worst stage for whole tables of plans, [layouts, recompute options], or of every stage with its parts named.

What depends on less is worked out once: of a layer's shape, of a chunk's layers, of a stage. Options with whole layers
recomputed and those without have different formulas, so they are two groups. A stage at a moment (`_Options.moments`, the only
place where parts are added up) is state + held + what is back at that moment, and

    held = sum of kinds (layers in flight x kept)                       without full recomputation
    held = share x sum (layers in flight x kept) + checkpoints x input  with it; share, checkpoints: of the chunk's layers

The search asks for the larger half of a layer's backward alone, which is one table; named parts keep both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import compress, product
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.activations import (
    checkpoints_per_chunk,
    mlp_released,
    recomputed_activations,
    recomputed_layers_per_chunk,
    returning_layers,
)
from autoconfig.memory_model.fsdp import ACCUMULATED, FIRST_LAYER, LAYERS, NEXT_LAYER, OUTPUT
from autoconfig.memory_model.tables import KindTable, LayerBytes, StageTerms, layer_tables, stage_terms
from autoconfig.specs.layouts import Layouts, priced_together
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import Scenario

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Parts = dict[str, Floats]
MOMENTS = (
    "mlp_backward", "attention_backward", "loss", "output_layer_backward", FIRST_LAYER, "embedding_backward",
    "optimizer_step_bytes",
)  # fmt: skip
AT_A_MOMENT = (
    *("layer_input", "recomputed_activations", "mlp_released"),
    *(name for name in MOMENTS if name != FIRST_LAYER),
    *("tied_weight_gradient", "chunk_released"),
)
"""Parts beside those of the state and of what layers keep, in the order in which they are shown."""
ROWS_PER_BLOCK = 8192
"""Rows whose stages are worked out at once."""
ROWS_AT_ONCE = 2048
"""Rows combined with all options at once, so that temporaries stay in the processor's cache."""
ROUNDING = 1e-12
"""Share by which sums in another order may differ: bounds are lowered by it."""


@dataclass(frozen=True, kw_only=True)
class PeakTables:
    """Of n layouts under R recompute options: what all their stages draw on."""

    scenario: Scenario
    layouts: Layouts
    layer: LayerBytes
    groups: list[_Options]
    least_kept: dict[str, Floats]
    """Kind -> [u] the least that one layer keeps without full recomputation; infinite where every option recomputes fully."""
    checkpoints: bool
    """Some option recomputes whole layers."""

    @classmethod
    def of(cls, scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute], *, named: bool = False) -> PeakTables:
        """The tables of these layouts under these options, with `named` both halves of a layer's backward by part. Options with
        whole layers recomputed keep the same of a layer that they leave alone, so one of them stands for all."""
        full = np.array([r.granularity == "full" for r in recomputes], bool)
        options = [np.flatnonzero(full == whole) for whole in (False, True)]
        kept = len(options[0])
        layer = layer_tables(scenario, layouts, [recomputes[int(i)] for i in (*options[0], *options[1][:1])])
        columns = slice(0, kept), slice(kept, None)
        groups = [
            _Options.of(layer, [recomputes[int(i)] for i in some], some, columns[whole], whole=bool(whole), named=named)
            for whole, some in enumerate(options)
            if len(some)
        ]
        least = {kind: table.kept[:, :kept].min(axis=1, initial=np.inf) for kind, table in layer.kinds.items()}
        return cls(
            scenario=scenario, layouts=layouts, layer=layer, groups=groups, least_kept=least, checkpoints=bool(full.any())
        )

    def peaks(self, rows: Ints) -> Floats:
        """[rows, R]: the peak of the worst stage."""
        found = np.empty((len(rows), sum(len(group.columns) for group in self.groups)))
        for block in priced_together(self.scenario.model, self.layouts.take(rows), ROWS_PER_BLOCK) if len(rows) else []:
            for terms, at in self._stages(rows[block]):
                _, worst = self._worst(terms, rows[block[at]], self.groups)
                for group, table in zip(self.groups, worst, strict=True):
                    found[block[at][:, None], group.columns] = table
        return found

    def detailed(self) -> tuple[Floats, Ints, Parts]:
        """([n, R, S] bytes of every stage at its largest moment, which of MOMENTS that is, those bytes by part), of `named`
        tables; rows with fewer stages repeat their last one."""
        terms = stage_terms(self.scenario, self.layouts, every=True)
        (rows, stages), options = terms.state.shape, sum(len(group.columns) for group in self.groups)
        stage = _Stage.of(self.layer, terms, np.repeat(np.arange(rows), stages), np.ravel)
        state = {name: np.broadcast_to(size, (rows, stages)).reshape(-1, 1) for name, size in terms.state_parts.items()}
        peak, moment = np.empty((rows * stages, options)), np.empty((rows * stages, options), np.int64)
        kept = [
            group.names_kept(int(at))
            for group, at in sorted(
                ((group, at) for group in self.groups for at in range(len(group.columns))),
                key=lambda one: one[0].columns[one[1]],
            )
        ]
        names = dict.fromkeys(name for some in kept for name in (*state, *some, *AT_A_MOMENT))
        parts = {name: np.zeros((rows * stages, options)) for name in names}
        for group in self.groups:
            peak[:, group.columns], moment[:, group.columns], sizes = group.detailed(stage, state)
            for name, size in sizes.items():
                parts[name][:, group.columns] = size

        def by_stage(table: Any) -> Any:
            return table.reshape(rows, stages, options).transpose(0, 2, 1)

        return by_stage(peak), by_stage(moment), {name: by_stage(size) for name, size in parts.items()}

    def fits(self, limit: Floats, legal: Mask, run: Callable[[Callable[[Ints], None], Sequence[Ints]], Iterable[None]]) -> Mask:
        """[n, R]: the plan is legal and its peak within the limit [n]. `run` is `map`, or that of a pool of threads."""
        fits = np.zeros(legal.shape, bool)

        def look(block: Ints) -> None:
            for terms, at in self._stages(block):
                some = block[at]
                groups = [group.only(legal[some]) for group in self.groups]
                groups = [group for group in groups if len(group.columns)]
                rows, worst = self._worst(terms, some, groups, limit[some])
                for group, peaks in zip(groups, worst, strict=True):
                    fits[some[rows][:, None], group.columns] = peaks <= limit[some[rows], None]

        list(run(look, priced_together(self.scenario.model, self.layouts, ROWS_PER_BLOCK)))
        fits &= legal
        return fits

    def _stages(self, rows: Ints) -> Iterator[tuple[StageTerms, slice]]:
        """The stages of some rows, ROWS_AT_ONCE at a time, and which of the rows they are."""
        terms = stage_terms(self.scenario, self.layouts.take(rows), every=False)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            at = slice(start, min(start + ROWS_AT_ONCE, len(rows)))
            yield terms.take(at), at

    def _worst(
        self, terms: StageTerms, at: Ints, groups: Sequence[_Options], limit: Floats | None = None
    ) -> tuple[Ints, list[Floats]]:
        """(positions in `at`, for each group the worst stage's peak [positions, options of the group]) of the rows `at`.

        With a limit, rows that no option can bring below it are left out: those whose least bytes are above it, and those
        whose every option is above it on the first stage, which has the most micro-batches in flight. The peak of one stage is
        at most that of the worst one.
        """
        rows = np.arange(len(at)) if limit is None else np.flatnonzero(self._least(terms, at) <= limit)
        if not groups:
            return rows[:0], []
        worst = [np.zeros((len(rows), len(group.columns))) for group in groups]
        kept = [group.kept_by(self.layer.shape[at[rows]]) for group in groups]
        for stage in range(terms.state.shape[1]):

            def pick(table: Any, cells: tuple[Ints, int] = (rows, stage)) -> Any:
                return table[cells]

            now = _Stage.of(self.layer, terms, at[rows], pick)
            for group, layers, table in zip(groups, kept, worst, strict=True):
                np.maximum(table, group.peaks(now, layers), out=table)
            if limit is not None and stage == 0:
                hopeful = np.minimum.reduce([table.min(axis=1) for table in worst]) <= limit[rows]
                if not hopeful.all():
                    rows, worst = rows[hopeful], [table[hopeful] for table in worst]
                    kept = [{kind: table[hopeful] for kind, table in layers.items()} for layers in kept]
        return rows, worst

    def _least(self, terms: StageTerms, at: Ints) -> Floats:
        """[n]: bytes that no option saves: the state of the stage that holds most of it, and on the first stage the state and
        the least activations: what the most frugal option without full recomputation keeps of each kind of layer, or, as
        checkpoints are at least one to a chunk, one layer's input for every chunk in flight."""
        shape, first = self.layer.shape[at], np.zeros(len(terms.state))
        for kind, least in self.least_kept.items():
            flight = terms.layers_in_flight[kind][:, 0]
            first += np.where(flight > 0, np.maximum(flight, 1e-300) * least[shape], 0.0)
        if self.checkpoints:
            first = np.minimum(first, terms.chunks_in_flight[:, 0] * self.layer.layer_input[at])
        return np.asarray(
            np.maximum(terms.state.max(axis=1), (terms.state[:, 0] - terms.absent_gradients[:, 0] + first) * (1 - ROUNDING))
        )


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One stage of some rows, or every stage of them behind one another: columns [n]."""

    shape: Ints
    kinds: Ints
    """Row of the tables of `_Options.halves`: which kinds of layer the stage holds."""
    flight: dict[str, Floats]
    chunk_layers: Floats
    """The different numbers of layers of a chunk, and for each row which."""
    chunk: Ints
    chunks: Floats
    layer_input: Floats
    state: Floats
    absent: Floats
    """Of the state: gradients that backward has not made."""
    released: Floats
    """Of the state: activations around the final norm, gone when the layers' backward starts."""
    waiting: Floats
    """The gradient of a tied weight."""
    ends: dict[str, Floats]
    """The loss, backward of the output layer and of the embedding; -inf on other stages."""
    units: dict[str, Floats]
    """Moment -> what torch's FSDP holds; whole gradients that come when a micro-batch's activations are gone."""
    optimizer: Floats

    @classmethod
    def of(cls, layer: LayerBytes, terms: StageTerms, at: Ints, pick: Callable[[Any], Any]) -> _Stage:
        """The columns that `pick` takes of `terms`' [rows, stages]; `at`: what rows of the layers they are."""
        flight = {kind: pick(terms.layers_in_flight[kind]) for kind in layer.kinds}
        kinds = sum(((held > 0) * 2**bit for bit, held in enumerate(flight.values())), np.zeros(len(at), np.int64))
        distinct, chunk = _numbered(pick(terms.chunk_layers))
        return cls(
            shape=layer.shape[at],
            kinds=kinds,
            flight=flight,
            chunk_layers=distinct,
            chunk=chunk,
            chunks=pick(terms.chunks_in_flight),
            layer_input=layer.layer_input[at],
            state=pick(terms.state),
            absent=pick(terms.absent_gradients),
            released=pick(terms.final_released),
            waiting=pick(terms.tied_weight_gradient),
            ends={name: pick(getattr(terms, name)) for name in ("loss", "output_layer_backward", "embedding_backward")},
            units={name: pick(size) for name, size in terms.unit_bytes.items()},
            optimizer=pick(terms.optimizer_step_bytes),
        )


def _some(**columns: Floats) -> Parts:
    """Columns [n] that are not 0 everywhere, as [n, 1]."""
    return {name: column[:, None] for name, column in columns.items() if np.any(column)}


def _total(parts: Parts) -> Floats:
    return reduce(np.add, parts.values()) if parts else np.zeros((1, 1))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Recompute options of one granularity and what they make of each unique shape u."""

    recomputes: list[Recompute]
    chosen: Ints
    """Which of them are asked for; not all with full recomputation, where the layers of a chunk decide what is legal."""
    columns: Ints
    """The numbers of these among the options of the question."""
    whole: bool
    """Full recomputation."""
    kept: dict[str, Floats]
    """Kind -> [u, R] bytes of one layer; [u, 1] with full recomputation, which changes none of them."""
    parts_kept: dict[str, tuple[Parts, ...]]
    """Kind -> the same of each option by part [u]."""
    halves: dict[str, Parts]
    """Moment of a layer's backward -> part -> [kinds x u, R or 1], by the kinds of layer on the stage; of tables that are not
    named one moment and part, the larger of both."""
    sublayers: int
    """Layers here in one that full recomputation counts."""
    by_chunk: dict[tuple[Any, bytes], Floats] = field(default_factory=dict)
    """Formula and numbers of layers -> its table, once it was asked for."""
    returning: Floats
    """[kinds x u, 1]: a whole layer, the largest of the kinds on the stage; with full recomputation alone."""

    @classmethod
    def of(
        cls, layer: LayerBytes, recomputes: list[Recompute], options: Ints, columns: slice, *, whole: bool, named: bool
    ) -> _Options:
        """The tables of the options at these columns."""
        kinds = list(layer.kinds.values())
        combinations = [[*compress(kinds, bits[::-1])] for bits in product((0, 1), repeat=len(kinds))]
        attention = layer.attention_backward[:, None]
        by_operator = np.array([whole or r.by_operator for r in recomputes][: 1 if whole else None])
        halves = [_backward(some, attention, columns, by_operator, whole) for some in combinations]
        if not named:
            halves = [{"": {"": np.asarray(np.maximum(*map(_total, both.values())))}} for both in halves]
        returning = [_largest([kind.whole[:, None] for kind in some], attention) for some in combinations]
        return cls(
            recomputes=recomputes,
            sublayers=layer.sublayers,
            chosen=np.arange(len(recomputes)),
            columns=options,
            whole=whole,
            kept={name: np.ascontiguousarray(kind.kept[:, columns]) for name, kind in layer.kinds.items()},
            parts_kept={name: kind.parts_kept[columns] for name, kind in layer.kinds.items()},
            halves={
                moment: {part: np.concatenate(np.broadcast_arrays(*(both[moment][part] for both in halves))) for part in parts}
                for moment, parts in halves[0].items()
            },
            returning=np.concatenate(returning),
        )

    def only(self, legal: Mask) -> _Options:
        """Without the options that are legal [n, R] for no row, where that saves something."""
        if not self.whole:
            return self
        chosen = np.flatnonzero(legal[:, self.columns].any(axis=0))
        return replace(self, chosen=chosen, columns=self.columns[chosen])

    def kept_by(self, shape: Ints) -> dict[str, Floats]:
        """Kind -> [n, R]: what a layer of each row keeps."""
        return {kind: table.take(shape, axis=0) for kind, table in self.kept.items()}

    def peaks(self, stage: _Stage, kept: dict[str, Floats]) -> Floats:
        """[n, R]: the stage's peak under every option of the group."""
        held = _total(self._held(stage, kept))
        most: Any = None
        for _, parts in self.moments(stage, held):
            size = _total(parts)
            most = size if most is None else np.maximum(most, size, out=most)
        for size in (*_beside(stage, held).values(), held):
            most += size
        if np.any(stage.optimizer):
            np.maximum(most, stage.optimizer[:, None], out=most)
        most += stage.state[:, None]
        return np.asarray(most)

    def moments(self, stage: _Stage, held: Floats) -> Iterator[tuple[str, Parts]]:
        """(one of MOMENTS but the last, what it takes by part [n, R or 1] beside the state, `held` and `_beside`); those that
        no row has are left out. Gone are activations around the final norm, when the layers' backward starts, and those of
        layers whose backward is over."""
        layers, units = self._halves(stage), stage.units
        gone, made = _some(final_norm=-stage.released), _some(gradient_bytes=stage.absent)
        if gone or made or np.any(units[LAYERS]) or np.any(units[FIRST_LAYER]):
            number, last = stage.chunk_layers[stage.chunk], units[LAYERS][:, None]
            share = 1.0 / np.maximum(number, 1.0)
            one, behind = (held * (some / stage.chunks)[:, None] for some in (share, 1.0 - share))
            following = np.where(number > 2, units[NEXT_LAYER], -np.inf)[:, None]
            second = following - one > last  # FSDP holds more beside the backward of the layer before the last
            then = {"fsdp_unit_bytes": np.where(second, following, last), "chunk_released": np.where(second, -one, 0.0)}
            yield from ((name, {**parts, **then, **gone}) for name, parts in layers.items())
            then = {**_some(fsdp_unit_bytes=units[FIRST_LAYER]), "chunk_released": -behind}
            yield FIRST_LAYER, {**_larger(*layers.values()), **then, **gone, **made}
        else:
            yield from layers.items()
        for name in ("loss", "output_layer_backward"):
            if np.any(stage.ends[name] > -np.inf):
                yield name, {name: stage.ends[name][:, None], **_some(fsdp_unit_bytes=units[name])}
        if np.any(units[OUTPUT]):  # the reduction of the output layer's gradients may hold more than its backward
            size = np.where(stage.ends["output_layer_backward"] > -np.inf, units[OUTPUT], -np.inf)
            yield "output_layer_backward", {"fsdp_unit_bytes": size[:, None]}
        name = "embedding_backward"
        if np.any(stage.ends[name] > -np.inf):
            chunk = held / stage.chunks[:, None]
            sizes = _some(embedding_backward=stage.ends[name], tied_weight_gradient=stage.waiting)
            if np.any(units[name]) or np.any(units[ACCUMULATED]):  # whole gradients have come in the place of activations
                sizes["fsdp_unit_bytes"] = units[name][:, None] + np.minimum(units[ACCUMULATED][:, None], chunk)
            yield name, {**sizes, "chunk_released": -chunk, **gone, **made}

    def detailed(self, stage: _Stage, state: Parts) -> tuple[Floats, Ints, Parts]:
        """([n, R] bytes at each row's largest moment, which that is, those bytes by part); `state`: its parts [n, 1]."""
        kept = self._held(stage, self.kept_by(stage.shape))
        held = _total(kept)
        beside = _beside(stage, held)
        moments = [(name, parts, _total({"": held, **beside})) for name, parts in self.moments(stage, held)]
        moments.append((MOMENTS[-1], {MOMENTS[-1]: stage.optimizer[:, None]}, np.zeros((1, 1))))
        moments.sort(key=lambda moment: MOMENTS.index(moment[0]))
        shape = len(stage.state), len(self.columns)
        sizes = np.stack([np.broadcast_to(_total(parts) + base, shape) for _, parts, base in moments])
        chosen = sizes.argmax(axis=0)
        number = np.array([MOMENTS.index(name) for name, _, _ in moments])[chosen]
        before_step = number < len(MOMENTS) - 1
        parts = {name: np.broadcast_to(size, shape).copy() for name, size in state.items()}
        named = [(before_step, {**self._kept_parts(stage), **beside, "layer_input": kept.get("layer_input", np.zeros((1, 1)))})]
        named += [(chosen == at, moment) for at, (_, moment, _) in enumerate(moments)]
        for where, some in named:
            for name, size in some.items():
                parts[name] = parts.get(name, 0.0) + np.where(where, size, 0.0)
        return stage.state[:, None] + sizes.max(axis=0), number, parts

    def names_kept(self, option: int) -> list[str]:
        """Parts that layers keep under one of the options."""
        return [name for parts in self.parts_kept.values() for name in parts[0 if self.whole else option]]

    def _kept_parts(self, stage: _Stage) -> Parts:
        """[n, R]: what layers keep, by part."""
        left = self._by_chunk(_left_alone, stage) if self.whole else 1.0
        found: Parts = {}
        for kind, options in self.parts_kept.items():
            for name in dict.fromkeys(name for option in options for name in option):
                each = np.stack(
                    [option[name] if name in option else np.zeros(len(self.kept[kind])) for option in options], axis=1
                )
                size = stage.flight[kind][:, None] * each.take(stage.shape, axis=0) * left
                found[name] = found[name] + size if name in found else size
        return found

    def _halves(self, stage: _Stage) -> dict[str, Parts]:
        """Moment -> part -> [n, R or 1] of a layer's backward."""
        at = stage.kinds * (len(self.returning) // 2 ** len(self.kept)) + stage.shape
        found = {
            moment: {name: table.take(at, axis=0) for name, table in parts.items()} for moment, parts in self.halves.items()
        }
        if self.whole:
            layers = self._by_chunk(returning_layers, stage)
            again = {"recomputed_activations": recomputed_activations(layers, self.returning.take(at, axis=0))}
            found = {moment: {**parts, **again} for moment, parts in found.items()}
        waiting = _some(tied_weight_gradient=stage.waiting)
        return {moment: {**parts, **waiting} for moment, parts in found.items()}

    def _held(self, stage: _Stage, kept: dict[str, Floats]) -> Parts:
        """What is saved from forward to backward [n, R], with full recomputation inputs of checkpointed layers apart."""
        some = [kept[kind] * flight[:, None] for kind, flight in stage.flight.items() if np.any(flight)]
        held = some[0] if some else np.zeros((len(stage.state), 1))
        for more in some[1:]:
            held += more
        if not self.whole:
            return {"": held}
        checkpoints = self._by_chunk(checkpoints_per_chunk, stage)
        checkpoints *= (stage.chunks * stage.layer_input)[:, None]
        return {"layer_input": checkpoints, "": self._by_chunk(_left_alone, stage) * held}

    def _by_chunk(self, formula: Any, stage: _Stage) -> Floats:
        """[n, R] of a formula of the chunk's layers alone, worked out once per number of layers."""
        key = formula, stage.chunk_layers.tobytes()
        if key not in self.by_chunk:
            columns = [
                np.asarray(formula(recompute, stage.chunk_layers, self.sublayers), float) for recompute in self.recomputes
            ]
            self.by_chunk[key] = np.stack(columns, axis=1)
        return np.asarray(self.by_chunk[key][:, self.chosen].take(stage.chunk, axis=0))


def _beside(stage: _Stage, held: Floats) -> Parts:
    """What a stage has until the optimizer's step beside its state and what is held: no gradients that backward has not made,
    and what of whole ones in a pipeline exceeds the activations of a micro-batch, which are gone when they come."""
    accumulated = stage.units[ACCUMULATED]
    more = np.maximum(accumulated[:, None] - held / stage.chunks[:, None], 0.0) if np.any(accumulated) else None
    return {**({} if more is None else {"fsdp_unit_bytes": more}), **_some(gradient_bytes=-stage.absent)}


def _larger(one: Parts, *others: Parts) -> Parts:
    """The parts of whichever is more at each place, of two or of one."""
    if not others:
        return one
    (other,) = others
    first = _total(one) >= _total(other)
    return {name: np.where(first, one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def _backward(some: list[KindTable], attention: Floats, columns: slice, by_operator: Any, whole: bool) -> dict[str, Parts]:
    """Moment -> part -> [u, R]: both halves of a layer's backward on a stage with these kinds of layer; with full recomputation
    without the layers that are back."""
    mlp, mlp_whole = (_largest([getattr(k, name)[:, None] for k in some], attention) for name in ("mlp_backward", "mlp_whole"))
    kept, in_mlp, in_attention = (
        _largest([getattr(kind, name)[:, columns] for kind in some], attention)
        for name in ("mlp_kept", "back_in_mlp", "back_in_attention")
    )
    again = [{} if whole else {"recomputed_activations": size} for size in (in_mlp, in_attention)]
    gone = {"mlp_released": -mlp_released(by_operator, mlp_whole, kept)}
    return {
        "mlp_backward": {**again[0], "mlp_backward": mlp},
        "attention_backward": {**again[1], **gone, "attention_backward": attention},
    }


def _largest(columns: list[Floats], like: Floats) -> Floats:
    return np.maximum.reduce(columns) if columns else np.zeros_like(like)


def _left_alone(recompute: Recompute, chunk_layers: Floats, _: int) -> Floats:
    """Share of a chunk's layers that full recomputation leaves alone."""
    return np.asarray(1.0 - recomputed_layers_per_chunk(recompute, chunk_layers) / chunk_layers)


def _numbered(values: Floats) -> tuple[Floats, Ints]:
    """(numbers among which all values are, position of each value): whole numbers of layers are their own positions."""
    whole = values.astype(np.int64)
    if not np.array_equal(whole, values):
        distinct, position = np.unique(values, return_inverse=True)
        return distinct, position
    size = 1 << int(whole.max(initial=1)).bit_length()  # few different sizes, so that tables are used again
    return np.maximum(np.arange(float(size)), 1.0), whole
