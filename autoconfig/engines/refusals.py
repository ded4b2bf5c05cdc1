"""Why an engine does not start with a plan, whatever the memory: what does not divide, formats and kernels that it lacks; in
the engine's own words where it has some."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoconfig.memory_model.engines.memory import FLAGS, engine_memory
from autoconfig.serving.space import refused
from autoconfig.specs.engines.start import LONGER, EngineStart, derived_length
from autoconfig.specs.errors import AutoconfigError, UnsupportedError
from autoconfig.specs.software.engine import load_engine, loads_checkpoint, require_sparse_kernels, supports

_PRICED = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}
"""Generation whose arguments a plan must have."""


def refusal(start: EngineStart) -> str:
    """The first reason; empty where there is none."""
    return next(_refusals(start), "")


def ways_out(start: EngineStart) -> Iterator[str]:
    """Flags with values, each of which alone makes a refused start one that starts: the nearest tensor-parallel sizes that are
    smaller and larger, and experts shared out whole."""
    if start.attention_dp or start.dp > 1:
        return
    shared = start.engine == "vllm" and start.ep > 1
    most = start.gpus_per_node or start.gpu.gpus_per_node
    for sizes in (range(start.tp - 1, 0, -1), range(start.tp + 1, most + 1)):
        tried = (start.replace(tp=tp, ep=tp if shared else start.ep) for tp in sizes if shared or tp % start.ep == 0)
        yield from (f"{FLAGS[start.engine][-1]} {other.tp}" for other in itertools.islice(filter(_starts, tried), 1))
    if start.model.is_moe and start.ep == 1 and _starts(start.replace(ep=start.tp)):
        yield {"vllm": "--enable-expert-parallel", "sglang": f"--ep-size {start.tp}"}.get(start.engine, f"--ep_size {start.tp}")


def _starts(start: EngineStart) -> bool:
    try:
        return not refusal(start) and engine_memory(start).starts == "yes"
    except AutoconfigError:
        return False


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
    if why := _too_long(start):
        yield why
    yield from _formats(start)
    per_node = start.gpus_per_node or start.gpu.gpus_per_node
    if why := refused(model, load_engine(_PRICED[start.engine]), plan, per_node, start.checkpoint):
        yield why


def _too_long(start: EngineStart) -> str:
    """What an engine says of a length above the model's own; empty where it takes it. vllm-project/vllm, config/model.py,
    _get_and_verify_max_len; sgl-project/sglang, srt/configs/model_config.py, _derive_context_length (read from 0.5 on).
    TensorRT-LLM only warns."""
    asked, own = start.max_model_len or 0, derived_length(start.model)
    if asked <= own or start.longer:
        return ""
    if start.engine == "vllm":
        return (
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len (max_position_embeddings={own} "
            "or model_max_length=None in model's config.json). To allow overriding this maximum, set the env var "
            f"{LONGER['vllm'][0]}=1."
        )
    if start.engine == "sglang" and not start.release.startswith("0.4"):
        return (
            f"User-specified context_length ({asked}) is greater than the derived context_length ({own}). To allow overriding "
            f"this maximum, set the env var {LONGER['sglang'][0]}=1"
        )
    return ""


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
