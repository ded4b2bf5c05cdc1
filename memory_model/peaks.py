"""Peaks of the worst stage for whole tables of plans, [layouts, recompute options], without naming a part: for the search.

The same sums as `predict._stage_moments`, arranged so that what depends on less is worked out once: of a layer's shape, of a
chunk's layers, of a stage. Options with whole layers recomputed and those without have different formulas, so they are two
groups. A stage at a moment is state + held + what is back at that moment, and

    held = sum of kinds (layers in flight x kept)                       without full recomputation
    held = share x sum (layers in flight x kept) + checkpoints x input  with it; share, checkpoints: of the chunk's layers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model.activations import (
    checkpoints_per_chunk,
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
    def of(cls, scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute]) -> PeakTables:
        """The tables of these layouts under these options. Options with whole layers recomputed keep the same of a layer that
        they leave alone, so one of them stands for all in the layers' tables."""
        full = np.array([r.granularity == "full" for r in recomputes], bool)
        options = [np.flatnonzero(full == whole) for whole in (False, True)]
        kept = len(options[0])
        layer = layer_tables(scenario, layouts, [recomputes[int(i)] for i in (*options[0], *options[1][:1])])
        columns = slice(0, kept), slice(kept, None)
        groups = [
            _Options.of(layer, [recomputes[int(i)] for i in some], some, columns[whole], bool(whole))
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
            now = _Stage.of(self.layer, terms, rows, stage, at)
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
    """One stage of some rows: columns [n]."""

    shape: Ints
    kinds: Ints
    """Row of `_Options.back`: which kinds of layer the stage holds."""
    flight: dict[str, Floats]
    chunk_layers: Floats
    """The different numbers of layers of a chunk, and for each row which."""
    chunk: Ints
    chunks: Floats
    layer_input: Floats
    state: Floats
    """Without gradients that backward has not made; `first` and `optimizer` have them."""
    waiting: Floats
    """The gradient of a tied weight."""
    last: Floats
    """The larger of the loss and the output layer's backward; -inf on other stages."""
    layers: Floats
    """FSDP's units beside the last layer's backward."""
    next_layer: Floats
    first_layer: Floats
    """The same beside the first layer's, with the gradients that backward has made until then."""
    first: Floats
    """The embedding's backward; -inf on other stages."""
    accumulated: Floats
    """Whole gradients that come when a micro-batch's activations are gone."""
    optimizer: Floats

    @classmethod
    def of(cls, layer: LayerBytes, terms: StageTerms, rows: Ints, stage: int, at: Ints) -> _Stage:
        """The columns of these rows of `terms`; `at`: what rows of the layers they are."""
        flight = {kind: terms.layers_in_flight[kind][rows, stage] for kind in layer.kinds}
        kinds = sum(((held > 0) * 2**bit for bit, held in enumerate(flight.values())), np.zeros(len(rows), np.int64))
        distinct, chunk = _numbered(terms.chunk_layers[rows, stage])
        absent = terms.absent_gradients[rows, stage]
        released = terms.final_released[rows, stage]
        units = {name: size[rows, stage] for name, size in terms.unit_bytes.items()}
        return cls(
            shape=layer.shape[at[rows]],
            kinds=kinds,
            flight=flight,
            chunk_layers=distinct,
            chunk=chunk,
            chunks=terms.chunks_in_flight[rows, stage],
            layer_input=layer.layer_input[at[rows]],
            state=terms.state[rows, stage] - absent,
            waiting=terms.tied_weight_gradient[rows, stage],
            last=np.maximum.reduce(
                [
                    terms.loss[rows, stage] + units["loss"],
                    terms.output_layer_backward[rows, stage] + units["output_layer_backward"],
                    np.where(terms.has_output[rows, stage], units[OUTPUT], -np.inf),
                ]
            ),
            layers=units[LAYERS] - released,
            next_layer=np.where(terms.chunk_layers[rows, stage] > 2, units[NEXT_LAYER] - released, -np.inf),
            first_layer=units[FIRST_LAYER] + absent - released,
            first=terms.embedding_backward[rows, stage] + units["embedding_backward"] + absent - released,
            accumulated=units[ACCUMULATED],
            optimizer=terms.optimizer_step_bytes[rows, stage] + absent,
        )


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
    back: Floats
    """[kinds x u, R or 1]: the larger of both halves of a layer's backward, by the kinds of layer on the stage."""
    sublayers: int
    """Layers here in one that full recomputation counts."""
    by_chunk: dict[tuple[Any, bytes], Floats] = field(default_factory=dict)
    """Formula and numbers of layers -> its table, once it was asked for."""
    returning: Floats
    """[kinds x u, 1]: a whole layer, the largest of the kinds on the stage; with full recomputation alone."""

    @classmethod
    def of(cls, layer: LayerBytes, recomputes: list[Recompute], options: Ints, columns: slice, whole: bool) -> _Options:
        """The tables of the options at these columns."""
        kinds = list(layer.kinds.values())
        combinations = [[k for bit, k in enumerate(kinds) if number >> bit & 1] for number in range(2 ** len(kinds))]
        attention = layer.attention_backward[:, None]
        by_operator = np.array([whole or r.by_operator for r in recomputes][: 1 if whole else None])
        back = [_backward(some, attention, columns, by_operator, whole) for some in combinations]
        returning = [_largest([kind.whole[:, None] for kind in some], attention) for some in combinations]
        return cls(
            recomputes=recomputes,
            sublayers=layer.sublayers,
            chosen=np.arange(len(recomputes)),
            columns=options,
            whole=whole,
            kept={name: np.ascontiguousarray(kind.kept[:, columns]) for name, kind in layer.kinds.items()},
            back=np.concatenate(back),
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
        held = self._held(stage, kept)
        at = stage.kinds * (len(self.back) // 2 ** len(self.kept)) + stage.shape
        during = self.back.take(at, axis=0)
        if self.whole:
            during = self._by_chunk(returning_layers, stage) * self.returning.take(at, axis=0) + during
        if np.any(stage.waiting):
            during += stage.waiting[:, None]
        if np.any(stage.layers) or np.any(stage.first_layer):
            share = 1.0 / np.maximum(stage.chunk_layers[stage.chunk], 1.0)
            before = np.maximum(stage.next_layer[:, None] - held * (share / stage.chunks)[:, None], stage.layers[:, None])
            behind = held * ((1.0 - share) / stage.chunks)[:, None]
            during += np.maximum(before, stage.first_layer[:, None] - behind)
        if np.any(stage.last > -np.inf):
            np.maximum(during, stage.last[:, None], out=during)
        if np.any(stage.first > -np.inf):
            gone = held / stage.chunks[:, None]
            # whole gradients have come in its place; what they are more is added below
            gone -= np.minimum(stage.accumulated[:, None], gone)
            np.maximum(during, (stage.first + stage.waiting)[:, None] - gone, out=during)
        if np.any(stage.accumulated):
            during += np.maximum(stage.accumulated[:, None] - held / stage.chunks[:, None], 0.0)
        during += held
        if np.any(stage.optimizer):
            np.maximum(during, stage.optimizer[:, None], out=during)
        during += stage.state[:, None]
        return during

    def _held(self, stage: _Stage, kept: dict[str, Floats]) -> Floats:
        some = [kept[kind] * flight[:, None] for kind, flight in stage.flight.items() if np.any(flight)]
        held = some[0] if some else np.zeros((len(stage.state), 1))
        for more in some[1:]:
            held += more
        if not self.whole:
            return held
        checkpoints = self._by_chunk(checkpoints_per_chunk, stage)
        checkpoints *= (stage.chunks * stage.layer_input)[:, None]
        checkpoints += self._by_chunk(_left_alone, stage) * held
        return checkpoints

    def _by_chunk(self, formula: Any, stage: _Stage) -> Floats:
        """[n, R] of a formula of the chunk's layers alone, worked out once per number of layers."""
        key = formula, stage.chunk_layers.tobytes()
        if key not in self.by_chunk:
            columns = [
                np.asarray(formula(recompute, stage.chunk_layers, self.sublayers), float) for recompute in self.recomputes
            ]
            self.by_chunk[key] = np.stack(columns, axis=1)
        return np.asarray(self.by_chunk[key][:, self.chosen].take(stage.chunk, axis=0))


def _backward(some: list[KindTable], attention: Floats, columns: slice, by_operator: Any, whole: bool) -> Floats:
    """[u, R]: the larger of both halves of backward on a stage with these kinds of layer: what is back and temporaries."""
    mlp = _largest([kind.mlp_backward[:, None] for kind in some], attention)
    mlp_whole = _largest([kind.mlp_whole[:, None] for kind in some], attention)
    kept = _largest([kind.mlp_kept[:, columns] for kind in some], attention)
    in_mlp, in_attention = (
        0.0 if whole else _largest([getattr(kind, name)[:, columns] for kind in some], attention)
        for name in ("back_in_mlp", "back_in_attention")
    )
    released = np.where(by_operator, mlp_whole, kept)
    return np.asarray(np.maximum(in_mlp + mlp, in_attention - released + attention))


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
