"""Why an engine does not start with a plan, whatever the memory: heads and experts that do not divide, blocks of scales that
are cut, formats and kernels that it lacks; in the engine's own words."""

from __future__ import annotations

from collections.abc import Iterator

from autoconfig.serving.space import cut_groups, limit
from autoconfig.specs.engines.start import EngineStart
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.software.engine import load_engine, loads_checkpoint, require_sparse_kernels, supports


def refusal(start: EngineStart) -> str:
    """The first reason; empty where there is none."""
    return next(_refusals(start), "")


def _refusals(start: EngineStart) -> Iterator[str]:
    model, plan = start.model, start.plan
    if model.encoder_num_layers:
        yield f"{model.name} has an encoder: what is reckoned here are decoders that generate"
    heads, experts = model.num_attention_heads, model.num_moe_experts or 0
    if heads % plan.tp:
        yield (
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({plan.tp})."
            if start.engine == "vllm"
            else f"{heads} attention heads are not divisible by {plan.tp} tensor-parallel ranks"
        )
    if start.pp > model.num_layers:
        yield f"pipeline parallel size ({start.pp}) is more than the {model.num_layers} layers"
    if model.linear_num_key_heads % plan.tp or model.mamba_num_heads % plan.tp:
        yield f"the recurrent layers' heads are not divisible by {plan.tp} tensor-parallel ranks"
    if start.ep > 1 and not model.is_moe:
        yield f"{model.name} has no experts to share out over {start.ep} ranks"
    if start.ep > 1 and experts and experts % start.ep and start.engine != "vllm":
        yield f"{experts} experts are not divisible by {start.ep} expert-parallel ranks"
    yield from _formats(start)
    if why := limit(load_engine(_PRICED[start.engine]), plan):
        yield why


_PRICED = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}
"""Generation whose arguments a plan must have."""


def _formats(start: EngineStart) -> Iterator[str]:
    if start.checkpoint is not None:
        if why := loads_checkpoint(start.engine, start.checkpoint.kind, start.gpu):
            yield why
        if cut := cut_groups(start.model, start.plan, start.checkpoint):
            yield f"{cut}{_said_by(start)}"
    elif not supports(start.gpu, start.plan.weights):
        yield f"{start.gpu.id} does not multiply in {start.plan.weights}"
    if start.kv in ("fp8", "nvfp4") and not supports(start.gpu, start.kv):
        yield f"{start.gpu.id} has no kernels for a cache in {start.kv}"
    if start.model.is_sparse:
        try:
            require_sparse_kernels(start.model, start.gpu)
        except UnsupportedError as error:
            yield str(error)


def _said_by(start: EngineStart) -> str:
    """What vLLM and SGLang print of blocks that are cut."""
    checkpoint = start.checkpoint
    if checkpoint is None or start.engine == "tensorrt-llm" or not start.model.is_moe:
        return ""
    width = start.model.moe_ffn_hidden_size // max(start.tp // start.ep, 1)
    group = checkpoint.main.group
    if checkpoint.main.rows < 2 or not group or width % group == 0:
        return ""
    return f" (The output_size of gate's and up's weight = {width} is not divisible by weight quantization block_n = {group}.)"
