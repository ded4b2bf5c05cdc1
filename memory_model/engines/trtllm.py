"""TensorRT-LLM's law: pool = fraction x (device - weights - activations - runtime), measured by a dry run.

tensorrt_llm/_torch/pyexecutor/_util.py, KvCacheCreator; the terms are those of memory_model.serving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from autoconfig.memory_model.engines.held import held_weights
from autoconfig.memory_model.engines.vllm import PartBytes
from autoconfig.memory_model.serving import StageWeights, activation_bytes, attends, kv_layer_bytes, slot_bytes
from autoconfig.specs.engines.releases import settings
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.models.hybrid import state_layer_bytes
from autoconfig.specs.software.engine import EngineSpec, load_engine, nearest_release


@dataclass(frozen=True, kw_only=True)
class EnginePool:
    """One GPU of a stage."""

    parts: list[PartBytes]
    pool: float
    tokens: int
    token_bytes: float
    block: int
    seqs: int
    batched: int
    fraction: float


def generation(start: EngineStart) -> EngineSpec:
    """The catalogue's generation that stands for the release."""
    return nearest_release("tensorrt-llm", start.release) or load_engine("tensorrt-llm")


def pool(start: EngineStart, stage: StageWeights) -> EnginePool:
    """Weights, activations of the largest iteration, runtime, and what the share leaves for tokens."""
    release, engine = settings("tensorrt-llm", start.release), generation(start)
    seqs = start.max_num_seqs or int(release["max_batch"].value)
    batched = start.max_num_batched_tokens or int(release["max_tokens"].value)
    fraction = start.memory_fraction or float(release["fraction"].value)
    plan, weights = start.plan, held_weights(start, stage)
    length = start.max_model_len or start.own_length
    active = float(activation_bytes(start.model, plan, engine, batched))
    slots = seqs * float(slot_bytes(start.model, plan, engine, length)) if engine.reserves_slots else 0.0
    held = sum(weights.values()) - start.cpu_offload_bytes
    room = fraction * (start.gpu.memory_bytes - held - active - slots - engine.runtime_bytes)
    kinds = [start.model.layer_kinds[layer] for layer in stage.layers]
    attending = sum(attends(start.model, kind) for kind in kinds)
    drafting = attending > 0 and start.draft_method == "mtp"
    token = kv_layer_bytes(start.model, plan.tp, plan.kv) * (attending + drafting)
    states = seqs * sum(state_layer_bytes(start.model, kind, plan.tp) for kind in kinds)
    block = start.block_size or engine.kv_block_tokens
    tokens = int(np.floor(max(room - states, 0.0) / token)) if token else 0
    tokens = min(tokens, start.max_total_tokens or tokens) // block * block
    parts = [
        PartBytes(name=f"weights: {name}", bytes=size, source="the model's files as the engine holds them")
        for name, size in weights.items()
        if size
    ]
    parts += [
        PartBytes(name="activations", bytes=active + slots, source=f"formula: {batched:,} tokens, {seqs:,} sequences"),
        PartBytes(
            name="context, libraries, workspaces",
            bytes=float(engine.runtime_bytes),
            source=engine.sources.get("runtime_bytes", ""),
        ),
        PartBytes(name="kept free", bytes=(1.0 - fraction) / fraction * room, source=f"{fraction:g}"),
    ]
    return EnginePool(
        parts=parts, pool=room, tokens=tokens, token_bytes=token, block=block, seqs=seqs, batched=batched, fraction=fraction
    )
