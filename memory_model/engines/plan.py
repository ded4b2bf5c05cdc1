"""Memory of a deployment's plan by the law of its engine, for arrays of batch and token limits at once.

vLLM and SGLang by memory_model.engines, as engine_memory reckons a start; TensorRT-LLM's generations and megatron-core by
memory_model.serving.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from autoconfig.memory_model.engines import sglang, vllm
from autoconfig.memory_model.engines.held import held_weights, stages
from autoconfig.memory_model.serving import ServingMemory, StageWeights, kv_sequence_bytes, serving_memory
from autoconfig.specs.engines.releases import settings
from autoconfig.specs.engines.start import ENGINES, EngineStart
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec, ModuleFormats

NODE_RANKS = 8
"""Attention ranks of a node, as SGLang's rule for its share was made for."""
BY_START = ("vllm", "sglang")
"""Frameworks whose memory is that of a start."""


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What a question says of its engines' starts beside the plan; None: the engine's default by release."""

    release: str = ""
    max_num_seqs: int | None = None
    """Of one attention rank; None: the plan's batch, which is what exported scripts say."""
    max_model_len: int | None = None
    eager: bool = False
    lora_slots: int = 0
    lora_rank: int | None = None
    draft_method: str = ""
    draft_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ServedPlan:
    """A plan of one engine on one GPU type, ready to be asked."""

    model: ModelSpec
    plan: EnginePlan
    formats: ModuleFormats
    gpu: GpuSpec
    engine: EngineSpec
    kv_memory_ratio: float | None = None
    options: StartOptions = StartOptions()

    @property
    def by_start(self) -> bool:
        """Whether the engine's law is that of its start."""
        return self.engine.framework in BY_START

    @property
    def start(self) -> EngineStart:
        """The start of one instance; sequences and tokens are given with each question."""
        plan, inside = self.plan, self.engine.framework == "sglang" and self.plan.adp > 1
        return EngineStart(
            engine=self.engine.framework,
            release=self.options.release,
            model=self.model,
            gpu=self.gpu,
            stored=self.formats,
            tp=plan.tp * plan.adp if inside else plan.tp,
            pp=plan.pp,
            dp=plan.adp,
            ep=plan.ep,
            attention_dp=inside,
            kv=plan.kv,
            memory_fraction=self.kv_memory_ratio,
            max_model_len=self.options.max_model_len,
            max_num_seqs=self.options.max_num_seqs,
            eager=self.options.eager,
            lora_slots=self.options.lora_slots,
            lora_rank=self.options.lora_rank,
            draft_method=self.options.draft_method,
            draft_tokens=self.options.draft_tokens,
        )

    def limits(self) -> tuple[int, int]:
        """(sequences of an attention rank, tokens of its iteration) that the engine's scheduler takes by default."""
        if self.engine.framework == "vllm":
            found = vllm.limits(self.start)
            return found.seqs, found.tokens
        if self.engine.framework == "sglang":
            return self.engine.max_batch_size, sglang.capacity(self.start).chunk
        return self.engine.max_batch_size, self.engine.max_num_tokens

    def share(self, tokens: int) -> float:
        """The engine's share of memory, said or by default, for so many tokens of a step."""
        if self.kv_memory_ratio is not None:
            return self.kv_memory_ratio
        if self.engine.framework == "vllm":
            return float(settings("vllm", self.options.release)["fraction"].value)
        if self.engine.framework == "sglang":
            return self._sglang_share(tokens)
        return self.engine.kv_memory_ratio

    def _sglang_share(self, tokens: int) -> float:
        """SGLang's default for the ranks of one node: its rule counts every attention rank and leaves nothing beyond a node, so
        that exported scripts say this share."""
        start, plan = self.start, self.plan
        if start.attention_dp:
            ranks = min(start.dp, NODE_RANKS)
            start = start.replace(dp=ranks, tp=plan.tp * ranks, ep=1)
        return sglang.default_fraction(start.replace(max_num_batched_tokens=tokens))[0]

    def memory(self, *, length: Number, batch: Number | None = None, tokens: Number | None = None) -> ServingMemory:
        """Of one GPU for sequences of `length` tokens; `batch`: sequences of an instance that run (or its limit)."""
        batch = self.plan.batch if batch is None else batch
        tokens = self.plan.tokens if tokens is None else tokens
        if self.engine.framework == "vllm":
            return self._vllm(length, np.asarray(batch), np.asarray(tokens))
        if self.engine.framework == "sglang":
            return self._sglang(length, np.asarray(batch), np.asarray(tokens))
        ratio = self.kv_memory_ratio
        parts = (self.model, self.plan, self.formats, self.gpu, self.engine)
        return serving_memory(*parts, length=length, batch=batch, tokens=tokens, kv_memory_ratio=ratio)

    def sequence_bytes(self, length: float, tokens: float | None = None) -> float:
        """Cache of one sequence of `length` tokens on one rank."""
        if not self.by_start:
            return float(kv_sequence_bytes(self.model, self.plan, self.engine, length))
        return float(self.memory(length=length, tokens=tokens).kv_bytes_per_sequence)

    def _vllm(self, length: Number, batch: Number, tokens: Number) -> ServingMemory:
        start, plan = self.start, self.plan
        seqs = np.asarray(self.options.max_num_seqs or np.ceil(batch / plan.adp))
        release = settings("vllm", start.release)
        graphs = vllm.charged_graphs(
            start, np.minimum(np.minimum(2 * seqs, int(release["graph_max_batch"].value)), np.maximum(tokens, seqs))
        )
        outside = vllm.non_torch(start)[0] * vllm.GIB
        found = []
        for stage in _ends(stages(start)):
            weights = sum(held_weights(start, stage).values())
            peak: Number = 0.0
            for size in vllm.peaks(start, stage, seqs, tokens).values():
                peak = np.maximum(peak, size)
            pool = self.share(0) * self.gpu.memory_bytes - weights - peak - outside - graphs
            layout = vllm.layout_of(start, stage)
            flight = tokens * (plan.pp + 1) if release["steps_in_flight"].value else tokens
            need = layout.blocks_of(np.ceil(length), flight) * layout.block_bytes
            found.append((float(np.min(pool / np.maximum(need, 1.0))), weights, peak, pool, need))
        _, weights, peak, pool, need = min(found, key=lambda one: one[0])
        return ServingMemory(
            weights_bytes=weights + 0.0 * pool,
            activation_bytes=peak + 0.0 * pool,
            runtime_bytes=outside + graphs + 0.0 * pool,
            kv_pool_bytes=pool,
            kv_bytes_per_sequence=need + 0.0 * pool,
            device_bytes=float(self.gpu.memory_bytes),
        )

    def _sglang(self, length: Number, batch: Number, tokens: Number) -> ServingMemory:
        start = self.start
        asked = self.options.max_num_seqs
        rows = np.unique(np.broadcast_to(tokens, np.broadcast(batch, tokens).shape))
        made = {float(one): self._sglang_at(start, length, int(one), asked) for one in rows.ravel()}
        shape = np.broadcast(batch, tokens).shape

        def of(name: str) -> Number:
            values = np.array([getattr(made[float(one)], name) for one in np.broadcast_to(tokens, shape).ravel()])
            return values.reshape(shape) if shape else values[0]

        names = ("weights_bytes", "activation_bytes", "runtime_bytes", "kv_pool_bytes", "kv_bytes_per_sequence")
        return ServingMemory(**{name: of(name) for name in names}, device_bytes=float(self.gpu.memory_bytes))

    def _sglang_at(self, start: EngineStart, length: Number, tokens: int, asked: int | None) -> ServingMemory:
        """With so many tokens of a step. Activations and graphs are what the share keeps free for them."""
        ranks = start.dp if start.attention_dp else 1
        said = start.replace(max_num_batched_tokens=tokens, max_num_seqs=asked * ranks if asked else None)
        fraction = self.share(tokens)
        context = sglang.context_gib(start)[0] * vllm.GIB
        loading = float(settings("sglang", start.release)["loading"].value) * vllm.GIB
        before = self.gpu.memory_bytes - context
        found = []
        for stage in _ends(stages(start)):
            weights = sum(held_weights(start, stage).values())
            pool = fraction * before - weights - loading
            held = sglang.pool_tokens(said, stage, pool)
            whole = float(np.ceil(float(length) / held.page) * held.page)
            room = held.tokens / whole
            each = pool / room if room and held.states else held.cell * whole
            if held.states:
                each = pool / max(min(room, held.running), 1e-9)
            found.append((room, weights, pool, each))
        _, weights, pool, each = min(found, key=lambda one: one[0])
        return ServingMemory(
            weights_bytes=weights,
            activation_bytes=(1.0 - fraction) * before,
            runtime_bytes=context + loading,
            kv_pool_bytes=pool,
            kv_bytes_per_sequence=each,
            device_bytes=float(self.gpu.memory_bytes),
        )


def _ends(found: list[StageWeights]) -> list[StageWeights]:
    """First and last stage and the largest between: the others hold no more."""
    middle = max(found[1:-1], key=lambda stage: len(stage.layers), default=None)
    return [found[0], *([middle] if middle else []), *(found[-1:] if len(found) > 1 else [])]


def check_options(engine: EngineSpec, options: StartOptions) -> None:
    """Raises InputError where the options are of another engine, UnsupportedError where its release is not modelled."""
    if engine.framework in ENGINES and engine.framework in BY_START:
        settings(engine.framework, options.release)
        return
    said = replace(options, draft_tokens=0)
    if said != StartOptions(max_model_len=options.max_model_len, eager=options.eager):
        raise InputError(
            f"{option('release')}, {option('max_num_seqs')}, {option('max_loras')} and {option('draft_method')} are read with "
            f"{option('engine')} vllm or sglang; {engine.name} says its release by its name and its sequences by "
            f"{option('fix')} batch"
        )
