"""The factored tables behind `predict`: layers priced once per unique shape, stages once per row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from autoconfig.memory_model import activations, cross, experts, fsdp, recurrent, sparse, state, transients_unfused
from autoconfig.memory_model.activations import (
    MLP_PARTS,
    Number,
    Shape,
    chunk_counts,
    chunks_in_flight,
    kept_by_operator,
    kept_under_selective,
)
from autoconfig.memory_model.alike import alike_in_state, micro_batch_columns
from autoconfig.memory_model.graphs import beside_graphs
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.layouts import Layouts, StageTable, chunks_by_layout, distinct_degrees, rows_with_chunk, stage_table
from autoconfig.specs.models.model import DENSE_KINDS, ModelSpec
from autoconfig.specs.models.parameters import (
    attention_gemms,
    dense_gemm_weights,
    embedding_parameters,
    layer_parameters,
    linear_rows,
    mtp_depths_held,
    mtp_layer_parameters,
    norms_apart,
    padded_vocab_size,
)
from autoconfig.specs.models.pattern import MIXERS
from autoconfig.specs.plan import Recompute
from autoconfig.specs.scenario import TYPE_BYTES, Numerics, Scenario, gathers_fp8
from autoconfig.specs.software.software import StackMemory

Floats = npt.NDArray[np.float64]


def layer_activations(
    model: ModelSpec,
    kind: str,
    numerics: Numerics,
    stack: StackMemory,
    shape: Shape,
    gpu: GpuSpec,
    encoder: Shape | None = None,
) -> dict[str, Number]:
    """All saved tensors of one layer of this kind (ModelSpec.kinds) by part; `sum(...values())` is the layer without
    recomputation. A layer of a hybrid has one norm and one residual, of a decoder behind an encoder three; `encoder`: the
    shape of what it reads."""
    share = 0.5 if model.is_hybrid else 1.5 if kind == "decoder" else 1.0
    parts = {
        "norm_inputs": share * activations.norm_inputs(model, numerics, stack, shape),
        "norm_outputs": share * activations.norm_outputs(model, numerics, stack, shape, kind),
        "norm_statistics": share * activations.norm_statistics(model, stack, shape),
        "dropout_masks": share * activations.dropout_masks(model, numerics, shape),
    }
    if not model.is_hybrid or kind == "attention":
        parts |= activations.attention_activations(model, numerics, stack, shape, gpu)
        if model.is_sparse:
            parts |= sparse.sparse_attention_activations(model, numerics, shape)
    if kind == "mamba":
        parts["mamba_projections"] = recurrent.mamba_projections(model, numerics, shape)
        parts["scan_outputs"] = recurrent.scan_outputs(model, numerics, stack, shape)
    if kind == "gdn":
        parts["gdn_projections"] = recurrent.gdn_projections(model, numerics, shape)
        parts["delta_rule_outputs"] = recurrent.delta_rule_outputs(model, numerics, stack, shape)
    if encoder is not None:
        parts |= cross.cross_attention_activations(model, numerics, stack, shape, encoder, gpu)
    if kind in (*DENSE_KINDS, "mlp"):
        parts["mlp_inside"] = activations.mlp_inside(model, model.ffn_hidden_size, numerics, stack, shape)
    if kind == "moe":
        parts |= experts.expert_activations(model, numerics, stack, shape)
    return parts


@dataclass(frozen=True, kw_only=True)
class KindTable:
    """One kind of layer (ModelSpec.kinds): bytes per layer and micro-batch of u unique shapes, [u] or [u, R]."""

    kept: Floats
    """[u, R] saved from forward to backward (full recomputation: of a layer that is left alone)."""
    whole: Floats
    """[u] what full recomputation brings back."""
    mlp_kept: Floats
    """[u, R] the MLP's part of `kept`."""
    mlp_whole: Floats
    """[u] the MLP's part of `whole`."""
    back_in_mlp: Floats
    back_in_attention: Floats
    mlp_backward: Floats
    """[u] temporaries of the MLP's backward."""
    parts_kept: tuple[dict[str, Floats], ...]
    """Per recompute option: part -> [u]."""


@dataclass(frozen=True, kw_only=True)
class LayerBytes:
    """Layers of n rows: those of their u unique shapes, gathered where a column is asked for."""

    kinds: dict[str, KindTable]
    shape: npt.NDArray[np.int64]
    """[n] number of the row's unique shape."""
    layer_input: Floats
    """[n]"""
    attention_backward: Floats
    """[u]"""
    sublayers: int = 1
    """Layers here in one that full recomputation counts (ModelSpec.sublayers_per_layer)."""


@dataclass(frozen=True, kw_only=True)
class StageTerms:
    """What does not depend on recomputation: [n, S]."""

    state: Floats
    """Weights, gradients, optimizer state, permanent buffers, embedding and final norm activations."""
    state_parts: dict[str, Floats]
    layers_in_flight: dict[str, Floats]
    """Kind -> layers x micro-batches held."""
    chunks_in_flight: Floats
    chunk_layers: Floats
    loss: Floats
    output_layer_backward: Floats
    embedding_backward: Floats
    tied_weight_gradient: Floats
    optimizer_step_bytes: Floats
    absent_gradients: Floats
    """Of the state: gradients that are not there before backward has made them."""
    final_released: Floats
    """Of the state: activations around the final norm, gone when the layers' backward starts."""
    unit_bytes: dict[str, Floats]
    """Moment -> what torch's FSDP holds beside the shards."""

    def take(self, rows: slice) -> StageTerms:
        """These rows; without the parts of the state."""
        return self._each(lambda array: array[rows])

    def _each(self, change: Callable[[Floats], Floats]) -> StageTerms:
        arrays = {f.name: getattr(self, f.name) for f in dataclasses.fields(StageTerms)}
        flight, units = ({k: change(v) for k, v in arrays.pop(name).items()} for name in ("layers_in_flight", "unit_bytes"))
        del arrays["state_parts"]
        changed = {name: change(array) for name, array in arrays.items()}
        return StageTerms(layers_in_flight=flight, unit_bytes=units, state_parts={}, **changed)


def kinds_of(model: ModelSpec) -> tuple[str, ...]:
    """Kinds of layer that the model has, multi-token prediction left out."""
    return tuple(kind for kind in model.kinds if kind in model.layer_kinds)


def _shape(scenario: Scenario, rows: Layouts) -> Shape:
    degrees = {key: getattr(rows, key) for key in ("tp", "sp", "cp", "ep", "etp", "mbs")}
    return Shape.of(seq_length=scenario.workload.seq_length, **degrees)


def layer_tables(scenario: Scenario, layouts: Layouts, recomputes: Sequence[Recompute]) -> LayerBytes:
    """Layer bytes for every row: formulas run once per unique (tp, sp, ep, etp) and `micro_batch_columns`."""
    first, inverse = layouts.unique("tp", "sp", "ep", "etp", also=micro_batch_columns(scenario, layouts))
    rows = layouts.take(first)
    model, numerics, memory = scenario.model, scenario.numerics, scenario.software.memory
    stacks = {kind: scenario.stack(kind) for kind in kinds_of(model)}
    shapes = {kind: _shape(stack, rows) for kind, stack in stacks.items()}
    inputs = [model.layer_kinds.count(kind) * activations.layer_input(model, numerics, x) for kind, x in shapes.items()]
    backward = [_attention_backward(stack.model, numerics, memory, shapes[kind]) for kind, stack in stacks.items()]
    encoder = shapes.get("encoder")
    kinds = {
        kind: _kind_table(stack, kind, shapes[kind], recomputes, encoder if kind == "decoder" else None)
        for kind, stack in stacks.items()
    }
    return LayerBytes(
        kinds=_halves(kinds) if model.sublayers_per_layer > 1 else kinds,
        sublayers=model.sublayers_per_layer,
        shape=inverse,
        layer_input=(sum(inputs) / model.num_layers)[inverse],
        attention_backward=np.maximum.reduce(backward),
    )


def _halves(kinds: dict[str, KindTable]) -> dict[str, KindTable]:
    """The same, each with half of what a layer of the largest mixer and the largest MLP brings back: both come together."""
    parts: tuple[list[Floats], list[Floats]] = ([], [])
    for kind, table in kinds.items():
        parts[kind in MIXERS].append(table.whole)
    pair = sum(np.maximum.reduce(some) for some in parts if some) / 2.0
    return {kind: dataclasses.replace(table, whole=pair) for kind, table in kinds.items()}


def _attention_backward(model: ModelSpec, numerics: Numerics, memory: StackMemory, shape: Shape) -> Floats:
    """Temporaries of attention's backward; in hybrids of the largest layer that looks at other tokens."""
    formula = transients_unfused if memory.separate_weight_gradients else state
    if not model.is_hybrid:
        copy = state.dequantised_weight(model, numerics, shape.tp, "attention")
        return np.asarray(formula.attention_backward(model, numerics, memory, shape) + copy)
    mixers: dict[str, Callable[[], Number]] = {
        "attention": lambda: formula.attention_backward(model, numerics, memory, shape),
        "mamba": lambda: recurrent.mamba_backward(model, numerics, shape),
        "gdn": lambda: recurrent.gdn_backward(model, numerics, shape),
    }
    found = [np.asarray(backward()) for kind, backward in mixers.items() if kind in model.layer_kinds]
    return np.maximum.reduce(found) if found else np.zeros(np.shape(shape.tokens))


def _mlp_backward(
    model: ModelSpec, kind: str, numerics: Numerics, memory: StackMemory, shape: Shape, parts: dict[str, Floats]
) -> Floats:
    """Temporaries of the MLP's backward, of experts also of their forward; 0 in layers without an MLP."""
    if kind in MIXERS:
        return np.zeros_like(shape.tokens)
    moe = kind == "moe"
    if memory.separate_weight_gradients:
        if moe:
            return np.asarray(transients_unfused.expert_backward(model, numerics, shape, parts))
        return np.asarray(transients_unfused.mlp_backward(model, model.ffn_hidden_size, numerics, shape, parts["mlp_inside"]))
    if moe:
        return np.asarray(experts.expert_transients(model, numerics, shape))
    return np.asarray(state.mlp_backward(model, model.ffn_hidden_size, numerics, memory, shape))


def _kind_table(
    scenario: Scenario, kind: str, shape: Shape, recomputes: Sequence[Recompute], encoder: Shape | None = None
) -> KindTable:
    model, numerics, memory = scenario.model, scenario.numerics, scenario.software.memory
    zeros = np.zeros_like(shape.tokens)
    parts = {
        name: np.asarray(size) + zeros
        for name, size in layer_activations(model, kind, numerics, memory, shape, scenario.cluster.gpu, encoder).items()
    }
    each = {
        modules: kept_by_operator(model, kind, numerics, shape, parts)
        if by_operator
        else kept_under_selective(parts, modules, memory, norms_apart(model, kind, memory.norms_fused))
        for modules, by_operator in {r.modules: r.by_operator for r in recomputes}.items()
    }
    kept = [beside_graphs(scenario, kind, shape, r, each[r.modules]) for r in recomputes]
    backward = _mlp_backward(model, kind, numerics, memory, shape, parts)
    backward = backward + state.dequantised_weight(model, numerics, shape.tp, "mlp")

    def mlp(sizes: dict[str, Floats]) -> Floats:
        if model.is_hybrid:  # which layer stands behind a mixer depends on the stage: nothing counts as released
            return zeros
        return sum((sizes[name] for name in MLP_PARTS if name in sizes), zeros)

    def columns(values: Sequence[Floats]) -> Floats:
        return np.stack([v + zeros for v in values], axis=1)

    again = activations.rerun_end(model, numerics, memory, shape)
    if kind == "moe":
        again = np.maximum(again, experts.scored_forward_end(model, numerics, memory, shape))
    # by operator the partial sum is the one that was kept; both reduced outputs, no part of a plain layer, are still there
    beside = 2.0 * numerics.activation_bytes * shape.tokens * model.hidden_size
    more = np.where(again > 0, np.maximum(again + beside / shape.sp - backward, 0.0), 0.0)
    by_operator = [more if r.by_operator else zeros for r in recomputes]
    # a layer that is back has its input, which the checkpoint keeps
    own = activations.layer_input(model, numerics, shape) if memory.frees_gradients else 0.0
    return KindTable(
        kept=columns([sum(k.kept.values(), zeros) for k in kept]),
        whole=sum(parts.values(), zeros) - own + np.maximum(again - backward, 0.0),
        mlp_kept=columns([mlp(k.kept) for k in kept]),
        mlp_whole=mlp(parts),
        back_in_mlp=columns([k.back_in_mlp + more for k, more in zip(kept, by_operator, strict=True)]),
        back_in_attention=columns([k.back_in_attention for k in kept]),
        mlp_backward=backward + zeros,
        parts_kept=tuple(k.kept for k in kept),
    )


def least_state_bytes(scenario: Scenario, layouts: Layouts, *, gradients: bool = True) -> Floats:
    """[n]: a lower bound of what the fullest stage holds all the time: weights, gradients, optimizer state of the mean stage;
    with `gradients` False, of a run that frees these between its steps.

    All of them are linear in the parameters, so those of the mean stage are the mean of those of all stages, which the fullest
    one does not fall short of; what else is always there (buffers, workspaces, caches) is left out and not negative. The mean
    stage has 1/p of the layers, of the embedding and of the output layer.
    """
    model, numerics, gpu = scenario.model, scenario.numerics, scenario.cluster.gpu
    distinct, number = alike_in_state(layouts)
    layouts = layouts.take(distinct)
    share: Number = 1.0 / layouts.pp[:, None]
    mean = StageTable(
        index=np.zeros(share.shape, np.int64),
        layers=model.num_layers * share,
        chunk_layers=model.num_layers * share / layouts.vpp[:, None],
        by_chunk={},
        totals={kind: model.layer_kinds.count(kind) * share for kind in model.kinds[1:]},
        rest=model.kinds[0],
        is_first=share,
        is_last=share,
    )
    fsdp, dist_opt, offload = layouts.fsdp[:, None], layouts.dist_opt[:, None], layouts.offload[:, None]
    fp8 = gathers_fp8(numerics, scenario.software, fsdp)
    total = np.zeros(share.shape)
    for group in _parameter_groups(model, numerics, layouts, mean):
        total = total + state.weight_bytes(group, numerics, scenario.software.memory, gpu, fsdp, fp8)
        kept = gradients and not numerics.optimizer_in_backward
        total = total + (state.gradient_bytes(group, numerics, scenario.software.memory, fsdp) if kept else 0.0)
        total = total + state.optimizer_bytes(group, numerics, dist_opt, fsdp, offload)
    return np.asarray(total[number, 0])


def stage_terms(scenario: Scenario, layouts: Layouts, *, every: bool) -> StageTerms:
    """State, micro-batches in flight and last-stage temporaries per row and priced stage."""
    model, numerics, memory = scenario.model, scenario.numerics, scenario.software.memory
    stages = stage_table(model, layouts, every=every)
    ends = [_shape(scenario.stack(kind), layouts) for kind in (("encoder", "decoder") if model.is_encoder_decoder else ("",))]
    shape = ends[-1]
    pp, vpp = layouts.pp[:, None], layouts.vpp[:, None]
    calls = np.where(pp > 1, scenario.workload.schedule_calls, 1)
    micro_batches = layouts.num_microbatches[:, None] // calls  # of one run of the schedule
    chunks = chunks_in_flight(pp, vpp, stages.index, micro_batches)
    in_flight = state.on_gpu(scenario, pp, _layers_in_flight(model, layouts, stages, chunks))
    parts, optimizer_step, units = _state_terms(scenario, layouts, every)
    embedding = sum(state.embedding_dropout(model, numerics, x) for x in ends)[:, None] * stages.is_first
    parts["embedding_dropout"] = embedding * -(-chunks // vpp)
    vocab = padded_vocab_size(model, layouts.tp)
    parts["retained_logits"] = state.retained_logits(memory, vocab, shape, layouts.pp)[:, None] * stages.is_last
    parts["final_norm"] = sum(state.final_norm(model, numerics, memory, x) for x in ends)[:, None] * stages.is_last
    if model.masked_lm_head:
        parts["masked_lm_head"] = state.masked_lm_head(model, numerics, shape)[:, None] * stages.is_last
    if memory.torch_native:
        received, returned = (np.where(pp > 1, vpp - end, 0) for end in (stages.is_first, stages.is_last))
        waiting = (received + returned) * micro_batches - chunks * received / vpp
        parts["stage_buffers"] = state.stage_buffers(model, numerics, memory, shape)[:, None] * np.maximum(waiting, 0.0)
    depths = state.mtp_loss(memory, vocab, shape, model.mtp_num_layers)
    loss, head, embedding_end, tied = _end_moments(model, numerics, memory, vocab, shape, layouts)
    if memory.separate_weight_gradients:
        parts["gather_buffer"] = np.broadcast_to(
            np.asarray(transients_unfused.gather_buffer(model, numerics, memory, shape))[:, None], stages.index.shape
        )
    late = np.logical_and(memory.torch_native, np.logical_and(layouts.fsdp > 0, layouts.pp > 1))
    late = np.logical_and(late, calls[:, 0] == 1)  # else the shards of the schedule's earlier runs are there
    absent = np.logical_and(memory.frees_gradients, np.logical_or(layouts.num_microbatches == 1, late))[:, None]
    unit_bytes = _unit_bytes(scenario, layouts, units, chunks)
    for name in (fsdp.FIRST_LAYER, "embedding_backward"):  # moments after which the others' shards of gradients are there
        unit_bytes[name] = unit_bytes[name] - late[:, None] * parts["gradient_bytes"]
    if memory.torch_native and not _ends_apart(scenario):
        kept = np.minimum(memory.loss_bytes_per_logit, 4.0) * state.logits_per_rank(memory, vocab, shape)
        sharded = np.logical_and(layouts.fsdp > 0, layouts.pp == 1)
        unit_bytes[fsdp.OUTPUT] = unit_bytes[fsdp.OUTPUT] + stages.is_last * (sharded * kept)[:, None]
    return StageTerms(
        state=sum(parts.values(), np.zeros_like(stages.index, float)),
        state_parts=parts,
        layers_in_flight=in_flight,
        chunks_in_flight=chunks.astype(float),
        chunk_layers=stages.chunk_layers,
        loss=np.where(stages.is_last, (loss + depths)[:, None], -np.inf),
        output_layer_backward=np.where(stages.is_last, (head + depths)[:, None], -np.inf),
        embedding_backward=np.where(stages.is_first, embedding_end[:, None], -np.inf),
        tied_weight_gradient=stages.is_first * tied[:, None],
        optimizer_step_bytes=optimizer_step,
        absent_gradients=absent * parts["gradient_bytes"],
        final_released=parts["final_norm"] if memory.frees_gradients else np.zeros_like(parts["final_norm"]),
        unit_bytes=unit_bytes,
    )


def _state_terms(scenario: Scenario, layouts: Layouts, every: bool) -> tuple[dict[str, Floats], Floats, fsdp.Units]:
    """[n, S]: the parts of the state, what the optimizer's step needs, and the parameters of FSDP's units, worked out once for
    rows alike in it."""
    first, number = alike_in_state(layouts)
    rows, model = layouts.take(first), scenario.model
    stages = stage_table(model, rows, every=every)
    groups = _parameter_groups(model, scenario.numerics, rows, stages)
    found, largest = _state_parts(scenario, rows, groups)
    parts = {name: part[number] for name, part in found.items()}
    table = np.logical_or(model.untie_embeddings_and_output_weights, rows.pp[:, None] > 1)
    ends = [embedding_parameters(model, rows.tp[:, None]), state.output_unit(model, rows.tp[:, None], table)]
    units = fsdp.Units(
        layer=largest[0][number],
        layer_trained=largest[1][number],
        stage=sum(group.parameters for group in groups)[number],
        stage_trained=sum(group.trainable for group in groups)[number],
        embedding=(stages.is_first * ends[0])[number],
        output=(stages.is_last * ends[1])[number],
        shard=groups[0].shard[number],
        whole_table=(
            stages.is_first
            * state.whole_table_gradient(
                model, scenario.numerics, scenario.software.memory, padded_vocab_size(model, rows.tp), rows.tp
            )[:, None]
        )[number],
    )
    steps = [
        state.optimizer_step_bytes(group, scenario.numerics, scenario.software.memory, rows.fsdp[:, None]) for group in groups
    ]
    return parts, sum(steps, np.zeros(1))[number], units


def _ends_apart(scenario: Scenario) -> bool:
    memory, model = scenario.software.memory, scenario.model
    apart = memory.ends_are_units or (memory.mixture_ends_are_units and model.is_moe)
    return apart and model.untie_embeddings_and_output_weights


def _unit_bytes(scenario: Scenario, layouts: Layouts, units: fsdp.Units, chunks: Number) -> dict[str, Floats]:
    """Moment -> [n, S]: what torch's FSDP holds beside the shards; 0 without it."""
    columns = {name: getattr(layouts, name)[:, None] for name in ("fsdp", "pp", "num_microbatches")}
    calls = np.where(columns["pp"] > 1, scenario.workload.schedule_calls, 1)
    sharded = np.logical_and(scenario.software.memory.torch_native, columns["fsdp"] > 0)
    apart = _ends_apart(scenario)
    found = fsdp.unit_bytes(
        units,
        scenario.numerics,
        apart=apart,
        tied=not scenario.model.untie_embeddings_and_output_weights,
        whole=columns["fsdp"] == 2,
        syncs_late=columns["pp"] > 1,
        several=columns["num_microbatches"] > 1,
        all_held=chunks >= columns["num_microbatches"] // calls * layouts.vpp[:, None],
    )
    return {name: np.where(sharded, size, 0.0) for name, size in found.items()}


def _end_moments(
    model: ModelSpec, numerics: Numerics, memory: StackMemory, vocab: Floats, shape: Shape, layouts: Layouts
) -> tuple[Floats, Floats, Floats, Floats]:
    """[n]: temporaries of the loss, of the output layer's and the embedding's backward; a tied weight's waiting gradient."""
    loss, pp = state.loss(memory, vocab, shape), layouts.pp
    embedding = state.embedding_backward(model, numerics, memory, vocab, shape, pp)
    tied = state.tied_weight_gradient(model, numerics, vocab, shape, pp)
    if not memory.separate_weight_gradients:
        return loss, state.output_layer_backward(model, numerics, memory, vocab, shape, pp), embedding, tied
    logits = state.logits_per_rank(memory, vocab, shape)
    loss = loss + transients_unfused.sent_and_received(model, numerics, shape, pp)
    return loss, transients_unfused.output_layer_backward(model, numerics, memory, logits, vocab, shape, pp), embedding, tied


def _layers_in_flight(model: ModelSpec, layouts: Layouts, stages: StageTable, chunks: Floats) -> dict[str, Floats]:
    """Layers x micro-batches held per kind: chunk by chunk, as chunks of a stage hold different kinds, the last one MTP's."""
    rest = stages.chunk_layers * chunks
    short = chunks_by_layout(model, layouts)
    some = np.flatnonzero(short.placed)
    pp, vpp = layouts.pp[some, None], layouts.vpp[some, None]
    for ends, lacks, number in ((stages.is_first, short.first, 0), (stages.is_last, short.last, vpp - 1)):
        rest[some] -= ends[some] * lacks[some, None] * chunk_counts(pp, vpp, chunks[some], number)
    held = {kind: np.zeros_like(rest) for kind in stages.by_chunk}
    for chunk in range(max(map(len, stages.by_chunk.values()), default=0)):
        rows = rows_with_chunk(layouts, chunk)
        counts = chunk_counts(layouts.pp[rows, None], layouts.vpp[rows, None], chunks[rows], chunk)
        for kind, by_chunk in stages.by_chunk.items():
            if chunk < len(by_chunk):
                held[kind][rows] += counts * by_chunk[chunk][rows]
    for layers in held.values():
        rest = rest - layers
    found = {kind: held.get(kind, rest) for kind in kinds_of(model)}
    if not model.mtp_num_layers:
        return found
    pp, vpp = layouts.pp[:, None], layouts.vpp[:, None]
    depths = model.mtp_num_layers * stages.is_last * chunk_counts(pp, vpp, chunks, vpp - 1)
    return {kind: layers + depths * model.mtp_kinds.count(kind) for kind, layers in found.items()}


def _parameter_groups(model: ModelSpec, numerics: Numerics, layouts: Layouts, stages: StageTable) -> list[state.ParameterGroup]:
    """Parameters of every priced stage: one group sharded over dp x cp, and with experts one over their own ranks."""
    tp, etp, ep, gathered = distinct_degrees(layouts)
    dense, experts, gemms, expert_gemms, adapters, scales = (np.zeros_like(stages.index, float) for _ in range(6))
    for kind in kinds_of(model):
        count = stages.layers_of(kind)
        layer = layer_parameters(model, kind, tp, etp, ep)
        dense = dense + count * gathered(layer.dense)
        gemms = gemms + count * gathered(dense_gemm_weights(model, kind, tp))
        if kind == "moe":
            experts = experts + count * gathered(layer.experts)
            expert_gemms = experts
        if numerics.peft == "lora":
            adapters = adapters + count * gathered(state.lora_parameters(model, numerics, kind, tp))
        if numerics.freezes_quantised:
            scales = scales + count * gathered(linear_rows(model, tp))
    if model.mtp_num_layers:
        depth = mtp_layer_parameters(model, tp, etp, ep)
        depths = mtp_depths_held(model)
        dense = dense + stages.is_last * depths * gathered(depth.dense)
        experts = experts + stages.is_last * depths * gathered(depth.experts)
    dense = dense + state.end_parameters(model, layouts, stages)
    frozen = not numerics.trains_all
    trained_table = np.zeros_like(dense) if frozen else stages.is_first * embedding_parameters(model, layouts.tp[:, None])
    shard = (layouts.dp * layouts.cp)[:, None].astype(float)
    groups = [
        state.ParameterGroup(
            parameters=dense + adapters,
            gemm_weights=gemms,
            trainable=adapters if frozen else dense,
            shard=shard,
            rows=scales,
            embedding=trained_table,
        )
    ]
    if model.is_moe:
        expert_shard = np.maximum(shard * layouts.tp[:, None] / (layouts.etp * layouts.ep)[:, None], 1.0)
        trainable = 0.0 * experts if frozen else experts
        groups.append(
            state.ParameterGroup(parameters=experts, gemm_weights=expert_gemms, trainable=trainable, shard=expert_shard)
        )
    return groups


def _state_parts(
    scenario: Scenario, layouts: Layouts, groups: list[state.ParameterGroup]
) -> tuple[dict[str, Floats], tuple[Floats, Floats]]:
    """The parts of the state, and parameters of the largest layer with those of them that are trained."""
    model, numerics, stack, gpu = scenario.model, scenario.numerics, scenario.software, scenario.cluster.gpu
    fsdp, dist_opt, offload = layouts.fsdp[:, None], layouts.dist_opt[:, None], layouts.offload[:, None]
    zeros = np.zeros_like(groups[0].parameters)
    shapes: tuple[Floats, ...] = ()
    tp, etp, ep, gathered = distinct_degrees(layouts)
    largest = np.zeros((2, *np.shape(tp)))
    for kind in kinds_of(model):
        layer = layer_parameters(model, kind, tp, etp, ep)
        shared = 0 if model.is_hybrid or not shapes else len(attention_gemms(model, 1))
        shapes += layer.gemm_shapes[shared:] if kind != "encoder" else ()  # a decoder's layer has all of its shapes
        largest = np.maximum(largest, state.held_and_trained(model, numerics, kind, tp, layer.dense + layer.experts))
    dummies = gathered(state.dummy_weight_gradients(stack.memory, numerics, shapes))
    fp8 = gathers_fp8(numerics, stack, fsdp)
    unit, trained = gathered(largest[0]), gathered(largest[1])
    most = TYPE_BYTES[numerics.grad_reduce_dtype] * trained if numerics.optimizer_in_backward else np.inf
    kept = sum((state.gradient_bytes(g, numerics, stack.memory, fsdp) for g in groups), zeros)
    parts = {
        "weight_bytes": sum((state.weight_bytes(g, numerics, stack.memory, gpu, fsdp, fp8) for g in groups), zeros),
        "gradient_bytes": np.minimum(kept, most),
        "optimizer_bytes": sum((state.optimizer_bytes(g, numerics, dist_opt, fsdp, offload) for g in groups), zeros),
        "dummy_weight_gradients": dummies + zeros,
        "workspace_bytes": state.workspace_bytes(stack.memory, dist_opt, fsdp, groups[0].shard) + zeros,
        "fsdp_unit_bytes": zeros if stack.memory.torch_native else state.fsdp_unit_bytes(unit, trained, numerics, fsdp) + zeros,
    }
    return parts, (unit + zeros, trained + zeros)
