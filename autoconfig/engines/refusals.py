"""Why an engine does not start with a plan, whatever the memory: what does not divide, formats and kernels that it lacks; in
the engine's own words where it has some."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoconfig.engines.reading import ReadStart
from autoconfig.memory_model.engines.memory import FLAGS, engine_memory
from autoconfig.memory_model.engines.vllm import limits
from autoconfig.serving.space import refused
from autoconfig.specs.engines.releases import newest_release, version_of
from autoconfig.specs.engines.start import LONGER, EngineStart
from autoconfig.specs.errors import AutoconfigError, UnsupportedError
from autoconfig.specs.software.engine import cache_kernels, load_engine, loads_checkpoint, require_sparse_kernels, supports

_KINDS = {"fp8": "fp8 fp8", "fp8_block": "fp8 fp8_block", "nvfp4": "modelopt nvfp4"}
"""Kind of a checkpoint by the format under which a catalogue model is published."""
_PRICED = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-1.2"}
"""Generation whose arguments a plan must have."""


def refusal(start: EngineStart) -> str:
    """The first reason; empty where there is none."""
    return next(_refusals(start), "")


def ways_out(start: EngineStart) -> Iterator[str]:
    """Flags with values, each of which alone makes a refused start one that starts: the nearest tensor-parallel sizes that are
    smaller and larger, and experts shared out whole."""
    yield from _shorter(start)
    if start.attention_dp or start.dp > 1:
        return
    shared = start.engine == "vllm" and start.ep > 1
    most = start.gpus_per_node or start.gpu.gpus_per_node
    for sizes in (range(start.tp - 1, 0, -1), range(start.tp + 1, most + 1)):
        tried = (start.replace(tp=tp, ep=tp if shared else start.ep) for tp in sizes if shared or tp % start.ep == 0)
        yield from (f"{FLAGS[start.engine][-1]} {other.tp}" for other in itertools.islice(filter(_starts, tried), 1))
    if start.model.is_moe and start.ep == 1 and _starts(start.replace(ep=start.tp)):
        yield {"vllm": "--enable-expert-parallel", "sglang": f"--ep-size {start.tp}"}.get(start.engine, f"--ep_size {start.tp}")


def _shorter(start: EngineStart) -> Iterator[str]:
    if _too_long(start) and _starts(start.replace(max_model_len=start.own_length)):
        flag = {"vllm": "--max-model-len", "sglang": "--context-length"}[start.engine]
        yield f"{flag} {start.own_length}"


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
    if heads % plan.tp:
        yield {
            "vllm": f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({plan.tp}).",
            "sglang": f"{heads} is not divisible by {plan.tp}: {heads} attention heads over --tp-size",
        }.get(start.engine, f"{heads} attention heads are not divisible by tp_size {plan.tp}")
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


def asserted(read: ReadStart, start: EngineStart) -> tuple[str, tuple[str, ...]]:
    """(what the engine's own checks of its arguments say, flags that would pass them), of the first that fails; empty where all
    pass. Read in vllm 0.8.5 to 0.32 and sglang 0.4.6 to 0.5.23, in the modules that each check names."""
    checks = {"vllm": _asserted_by_vllm, "sglang": _asserted_by_sglang, "tensorrt-llm": _asserted_by_trtllm}[start.engine]
    return next(checks(read, start), ("", ()))


Check = tuple[str, tuple[str, ...]]
QUANTISED_AS = {
    "vllm": {
        "awq": ("awq", "awq_marlin", "marlin", "moe_wna16", "auto_awq", "ipex", "inc"),
        "gptq": ("gptq", "gptq_marlin", "gptq_marlin_24", "marlin", "moe_wna16", "gptq_bitblas", "bitblas", "auto_gptq", "inc"),
        "modelopt": ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "petit_nvfp4"),
        "mxfp4": ("mxfp4", "gpt_oss_mxfp4"),
    },
    "sglang": {
        "awq": ("awq", "awq_marlin", "marlin", "moe_wna16"),
        "gptq": ("gptq", "gptq_marlin", "marlin", "moe_wna16"),
        "modelopt": ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed", "petit_nvfp4", "nvfp4_online"),
        "compressed-tensors": ("compressed-tensors", "compressed_tensors", "w8a8_int8", "w8a8_fp8", "auto-round-int8"),
        "fp8": ("fp8", "modelopt_fp4", "nvfp4_online"),
    },
}
"""--quantization that an engine takes beside a checkpoint of a method; else the method alone. vllm config/model.py and
override_quantization_method of each method; sglang srt/configs/model_config.py, compatible_quantization_methods."""
BLOCKS = (1, 8, 16, 32, 64, 128)
"""--block-size of vLLM up to 0.19 (config/cache.py, BlockSize; 256 from 0.12); later ones ask the attention backend."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vllm config/lora.py, MaxLoRARanks."""
NO_FLOAT16 = ("gemma2", "gemma3")
"""vllm config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS."""


def _quantised_otherwise(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    said, own = str(read.value("quantization") or "").lower(), start.checkpoint
    if own is None or said in ("", "none", own.method):
        return
    if said not in QUANTISED_AS[start.engine].get(own.method, (own.method.replace("-", "_"),)):
        yield (
            f"Quantization method specified in the model config ({own.method}) does not match the quantization method "
            f"specified in the `quantization` argument ({said}).",
            (f"--quantization {own.method}",),
        )


def too_few_gpus(start: EngineStart, seen: int) -> str:
    """What the engine says where the environment leaves it fewer GPUs than it asks for: vllm config/parallel.py (from 0.12 on;
    older ones in other words), else CUDA."""
    if start.engine == "vllm" and start.tp * start.pp > seen:
        return f"World size ({start.tp * start.pp}) is larger than the number of available GPUs ({seen}) in this node."
    return f"CUDA error: invalid device ordinal: the command asks for {start.gpus} GPUs, and the environment leaves it {seen}"


def _context_parallel(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    """vllm config/parallel.py and config/model.py, verify_with_parallel_config (the latter read from 0.11.2 on); sglang
    srt/arg_groups/attention_hook.py of 0.5.23."""
    flag = {"vllm": "decode-context-parallel-size", "sglang": "dcp-size"}[start.engine]
    dcp, tp, model = read.value_or(flag, 1), start.tp, start.model
    less = (f"--{flag} 1",)
    if tp % dcp and start.engine == "sglang":
        yield f"--dcp-size {dcp} must divide --tp-size {tp}.", less
    if tp % dcp and read.value_or("prefill-context-parallel-size", 1) == 1:
        yield f"tp_size={tp} must be divisible by dcp_size={dcp}.", less
    old = version_of(start.release or newest_release(start.engine)) < (0, 11, 1)
    if dcp == 1 or model.multi_latent_attention or start.engine != "vllm" or old:
        return
    heads = model.num_query_groups
    if tp <= heads:
        yield (
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({tp}) to be greater than the model's "
            f"total number of KV heads ({heads}). Increase `--tensor-parallel-size` or set `--{flag} 1`.",
            less,
        )
    elif dcp > tp // heads:
        why = f"`--{flag}` ({dcp}) exceeds the maximum supported value ({tp // heads}) for `--tensor-parallel-size` ({tp}) and "
        yield f"{why}{heads} model KV heads.", (f"--{flag} {tp // heads}", *less)
    elif model.num_attention_heads // heads % dcp:
        why = f"The model's number of query heads per KV head ({model.num_attention_heads // heads}) must be divisible by "
        yield f"{why}`--{flag}` ({dcp}) for GQA/MQA.", less


def _asserted_by_vllm(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    yield from _quantised_otherwise(read, start)
    yield from _context_parallel(read, start)
    yield from _dtype(read, start)
    yield from _scheduled_by_vllm(read, start)
    if read.value("enable-expert-parallel") is True and not start.model.is_moe:  # config/model.py
        yield "Number of experts in the model must be greater than 0 when expert parallelism is enabled.", ()
    old = version_of(start.release or newest_release("vllm")) < (0, 20)
    if old and start.block_size is not None and start.block_size not in (*BLOCKS, 256):
        yield f"argument --block-size: invalid choice: {start.block_size} (choose from {', '.join(map(str, BLOCKS))})", ()
    if start.lora_slots and start.lora_rank not in (None, *LORA_RANKS):
        more = next((rank for rank in LORA_RANKS if rank > (start.lora_rank or 0)), LORA_RANKS[-1])
        yield f"max_lora_rank ({start.lora_rank}) must be one of {LORA_RANKS}.", (f"--max-lora-rank {more}",)


def _dtype(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    dtype, capability = str(read.value("dtype") or "auto"), start.gpu.compute_capability or 0.0
    if dtype == "bfloat16" and start.gpu.vendor == "nvidia" and capability < 8.0:  # platforms/cuda.py, check_if_supports_dtype
        why = "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
        yield why + f"Your {start.gpu.name} GPU has compute capability {capability:g}.", ("--dtype half",)
    if dtype in ("half", "float16") and start.model.name.startswith(NO_FLOAT16):
        why = "does not support float16. Reason: Numerical instability. Please use bfloat16 or float32 instead."
        yield f"The model type {start.model.name.partition('-')[0]!r} {why}", ("--dtype bfloat16",)


def _scheduled_by_vllm(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    """vllm config/scheduler.py, verify_max_model_len."""
    most = limits(start)
    if most.tokens < most.seqs:
        why = f"max_num_batched_tokens ({most.tokens}) must be greater than or equal to max_num_seqs ({most.seqs})."
        yield why, (f"--max-num-batched-tokens {most.seqs}", f"--max-num-seqs {most.tokens}")
    whole = read.value("enable-chunked-prefill") is False and version_of(start.release or newest_release("vllm")) >= (0, 11, 1)
    if whole and most.tokens < most.length and start.max_num_batched_tokens is not None:
        why = f"max_num_batched_tokens ({most.tokens}) is smaller than max_model_len ({most.length}). This effectively limits "
        why += "the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences."
        yield why, (f"--max-num-batched-tokens {most.length}", f"--max-model-len {most.tokens}")


def _asserted_by_sglang(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    yield from _quantised_otherwise(read, start)
    yield from _context_parallel(read, start)
    said = read.said.get("nnodes")
    nodes, gpus = (1 if said is None or said.unset else read.value_or("nnodes", 1)), start.tp * start.pp
    if gpus % nodes:  # server_args.py, check_server_args
        yield f"tp_size must be divisible by number of nodes (tp x pp = {gpus}, {nodes} nodes)", ()
    chunk, page = read.value("chunked-prefill-size"), start.block_size or 1
    if isinstance(chunk, int) and chunk > 0 and chunk % page:
        yield f"chunked_prefill_size must be divisible by page_size ({chunk} and {page})", ()
    if start.gpu.vendor == "nvidia" and (start.gpu.compute_capability or 0.0) < 7.5:  # model_executor/model_runner.py
        yield "SGLang only supports sm75 and above.", ()


def _asserted_by_trtllm(read: ReadStart, start: EngineStart) -> Iterator[Check]:
    if start.gpu.vendor != "nvidia" or (start.gpu.compute_capability or 0.0) < 8.0:  # docs, support matrix: Ampere and later
        yield f"TensorRT-LLM supports NVIDIA's GPUs from Ampere on (compute capability 8.0), which {start.gpu.id} is not", ()


def _too_long(start: EngineStart) -> str:
    """What an engine says of a length above the model's own; empty where it takes it. vllm-project/vllm, config/model.py,
    _get_and_verify_max_len; sgl-project/sglang, srt/configs/model_config.py, _derive_context_length (read from 0.5 on).
    TensorRT-LLM only warns."""
    asked, own = start.max_model_len or 0, start.own_length
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
        yield from filter(None, [loads_checkpoint(start.engine, _KINDS.get(start.plan.weights, ""), start.gpu)])
    release = version_of(start.release) if start.release else ()
    if start.kv and (why := cache_kernels(start.engine, start.gpu, start.kv, start.model, release)):
        yield why
    if start.model.is_sparse:
        try:
            require_sparse_kernels(start.model, start.gpu)
        except UnsupportedError as error:
            yield str(error)
