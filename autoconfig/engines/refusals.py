"""Why an engine does not start with a plan, whatever the memory: what does not divide, formats and kernels that it lacks; in
the engine's own words where it has some."""

from __future__ import annotations

from collections.abc import Iterator

from autoconfig.serving.space import refused
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.software.engine import load_engine, loads_checkpoint, require_sparse_kernels, supports

_PRICED = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}
"""Generation whose arguments a plan must have."""


def refusal(start: EngineStart) -> str:
    """The first reason; empty where there is none."""
    return next(_refusals(start), "")


def _refusals(start: EngineStart) -> Iterator[str]:
    model, plan = start.model, start.plan
    heads = model.num_attention_heads
    if model.encoder_num_layers:
        yield f"{model.name} has an encoder: what is reckoned here are decoders that generate"
    if start.engine == "vllm" and heads % plan.tp:
        yield f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({plan.tp})."
    if start.pp > model.num_layers:
        yield f"pipeline parallel size ({start.pp}) is more than the {model.num_layers} layers"
    if start.ep > 1 and not model.is_moe:
        yield f"{model.name} has no experts to share out over {start.ep} ranks"
    yield from _formats(start)
    per_node = start.gpus_per_node or start.gpu.gpus_per_node
    if why := refused(model, load_engine(_PRICED[start.engine]), plan, per_node, start.checkpoint):
        yield why


def _formats(start: EngineStart) -> Iterator[str]:
    if start.checkpoint is not None:
        if why := loads_checkpoint(start.engine, start.checkpoint.kind, start.gpu):
            yield why
    elif not supports(start.gpu, start.plan.weights):
        yield f"{start.gpu.id} does not multiply in {start.plan.weights}"
    if start.kv in ("fp8", "nvfp4") and not supports(start.gpu, start.kv):
        yield f"{start.gpu.id} has no kernels for a cache in {start.kv}"
    if start.model.is_sparse:
        try:
            require_sparse_kernels(start.model, start.gpu)
        except UnsupportedError as error:
            yield str(error)
