"""Every legal engine layout on N GPUs: tp, pp, attention data parallelism, ep, formats, and what an engine has no arguments
for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

from autoconfig.memory_model.serving import weights_bytes
from autoconfig.specs.errors import UnsupportedError
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.models.parameters import Number
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.checkpoint import Checkpoint, Stored
from autoconfig.specs.software.engine import (
    EngineSpec,
    published_format,
    published_formats,
    stored_as,
    stored_formats,
    supports,
)
from autoconfig.time_model.serving.rows import ServingJob


def limit(engine: EngineSpec, plan: EnginePlan) -> str:
    """What the engine cannot say of this plan and what to try; empty where it can say all of it.

    TensorRT-LLM 1.3, llm_args.py: enable_attention_dp has no size of its own, it splits all of tensor_parallel_size. vLLM 0.33,
    parallel.py: --enable-expert-parallel takes all ranks of tensor and data parallelism. megatron-core 0.19.2, text generation
    server: no option for a quantised cache or for attention data parallelism.
    """
    if engine.framework == "tensorrt-llm" and plan.adp > 1 and plan.tp > 1:
        return "TensorRT-LLM's attention data parallelism has one GPU a rank; --fix tp=1 or --fix adp=1"
    if engine.framework == "vllm" and plan.ep not in (1, plan.tp * plan.adp):
        return f"vLLM's expert parallelism takes all ranks of a stage; --fix ep={plan.tp * plan.adp} or --fix ep=1"
    if engine.framework == "megatron" and (plan.kv != "bf16" or plan.adp > 1):
        return "megatron inference has a cache of 16 bits and no attention data parallelism; --fix kv=bf16, --fix adp=1"
    return ""


def least_tokens(engine: EngineSpec, plan: EnginePlan, batch: Number) -> Number:
    """Tokens of an iteration below which the engine does not start with `batch` sequences of an instance.

    vLLM 0.33, scheduler.py: max_num_batched_tokens is at least max_num_seqs, which all stages of a rank share.
    """
    return batch / plan.adp if engine.framework == "vllm" else 0.0 * batch


def require_runs(engine: EngineSpec, plan: EnginePlan, *, disaggregated: bool) -> None:
    """Raises UnsupportedError where the engine has no arguments for the plan."""
    why = limit(engine, plan)
    if not why and engine.framework == "megatron" and disaggregated:
        why = "megatron inference is not exported disaggregated; --aggregated-only"
    if not why and engine.framework == "megatron" and plan.weights not in ("bf16", "fp8"):
        why = "megatron inference is exported with bf16 or fp8 weights; --fix weights=bf16"
    if why:
        raise UnsupportedError(f"{plan}: {why}")


PIPELINES = (1, 2, 4, 8, 16)
SEARCHED_WEIGHTS = ("bf16", "fp8", "nvfp4")
SEARCHED_KV = ("bf16", "fp8")


def weight_formats(model: ModelSpec, gpu: GpuSpec, asked: Sequence[str]) -> list[str]:
    """Formats to search: those asked for (a quantised checkpoint asks for its own), else every one that the GPU multiplies
    in, by the name of the checkpoint that is served; not 16 bits of a model that is published in fewer."""
    published, searched = published_format(model), list(SEARCHED_WEIGHTS)
    if published and supports(gpu, published):
        searched = [form for form in published_formats(model) if form in (published, *SEARCHED_WEIGHTS[1:])]
    return list(asked) or list(dict.fromkeys(stored_as(model, name, gpu) for name in searched if supports(gpu, name)))


def cache_formats(gpu: GpuSpec, asked: Sequence[str]) -> list[str]:
    """Formats of the cache to search: those asked for, else 16 bits, and fp8 where the GPU multiplies in it.

    The engines' attention kernels read an fp8 cache on such GPUs: FlashAttention 3 (9.0; vLLM v1/attention/backends/
    flash_attn.py, supports_kv_cache_dtype), FlashInfer and TensorRT-LLM's own from 8.9.
    """
    return list(asked) or [name for name in SEARCHED_KV if supports(gpu, name)]


def enumerate_space(
    model: ModelSpec,
    gpu: GpuSpec,
    engine: EngineSpec,
    num_gpus: int,
    per_node: int,
    fixed: Mapping[str, frozenset[object]],
    checkpoint: Checkpoint | None = None,
    *,
    fill: bool = True,
) -> Iterator[EnginePlan]:
    """Layouts with replicas that fill `num_gpus` (without `fill`: as many as there is room for), in the order of the columns;
    memory is not looked at.

    tp divides the query heads, within a link domain or over whole nodes; ep divides the experts and the ranks of a stage;
    attention data parallelism is for mixtures of experts (their experts are shared by all ranks; a dense model's replicas do
    the same). What the engine has no arguments for or refuses (`refused`) is left out. `fixed` holds the values of --fix.
    """
    for plan in arrangements(model, gpu, num_gpus, per_node, fixed, fill=fill):
        if not refused(model, engine, plan, per_node, checkpoint):
            yield plan


def arrangements(
    model: ModelSpec,
    gpu: GpuSpec,
    num_gpus: int,
    per_node: int,
    fixed: Mapping[str, frozenset[object]],
    *,
    fill: bool = True,
) -> Iterator[EnginePlan]:
    """Every way to put the model on the GPUs with the values of `fixed`, whether an engine takes it or not; without `fill` also
    those that leave some of the GPUs unused."""
    weights, caches = (list(map(str, fixed.get(key, ()))) for key in ("weights", "kv"))
    formats = weight_formats(model, gpu, weights), cache_formats(gpu, caches)
    ranks = divisors(num_gpus) if fill else _attention_ranks(model, num_gpus)
    for tp, pp, adp in product(divisors(model.num_attention_heads), PIPELINES, ranks if model.is_moe else [1]):
        stage = tp * adp
        left_over = num_gpus % (stage * pp) if fill else stage * pp > num_gpus
        if pp > model.num_layers or left_over or (min(adp, tp) > 1 and stage > per_node):
            continue
        for ep, form, kv in product(divisors(stage) if model.is_moe else [1], *formats):
            plan = EnginePlan(tp=tp, pp=pp, ep=ep, adp=adp, weights=form, kv=kv, replicas=num_gpus // (stage * pp))
            if all(getattr(plan, key) in values for key, values in fixed.items() if key not in ("batch", "tokens")):
                yield plan


def _attention_ranks(model: ModelSpec, most: int) -> list[int]:
    """Every adp up to `most` that `expert_degrees` has an ep for: a stage divides the experts or, with ep 1, their width."""
    degrees = {*divisors(model.num_moe_experts or 1), *divisors(model.moe_ffn_hidden_size or 1)}
    return sorted(one for one in degrees if one <= most)


def refused(model: ModelSpec, engine: EngineSpec, plan: EnginePlan, per_node: int, checkpoint: Checkpoint | None = None) -> str:
    """Why the engine does not start this plan, in its own words where it has some; empty where it starts."""
    return (
        over_nodes(engine, plan, per_node) or uneven(model, plan) or limit(engine, plan) or cut_groups(model, plan, checkpoint)
    )


def over_nodes(engine: EngineSpec, plan: EnginePlan, per_node: int) -> str:
    """Why the ranks of a stage do not go over nodes as asked; empty where they do.

    vLLM (docs/serving/parallelism_scaling.md: tensor parallel size of all GPUs of all nodes), SGLang (--nnodes) and
    TensorRT-LLM (trtllm-llmapi-launch) do, in whole nodes; megatron inference keeps it within a link domain.
    """
    if plan.tp <= per_node:
        uneven_nodes = plan.tp * plan.adp > per_node and plan.tp * plan.adp % per_node
        return f"attention data parallelism over nodes takes whole nodes of {per_node} GPUs" if uneven_nodes else ""
    if engine.framework == "megatron":
        return f"at most {per_node} GPUs of a link domain, --gpus-per-node"
    return f"tensor parallelism over nodes takes whole nodes of {per_node} GPUs" if plan.tp % per_node else ""


def uneven(model: ModelSpec, plan: EnginePlan) -> str:
    """What tp or ep does not divide; empty where they divide all.

    Engines assert it: heads (vLLM config/model.py, "must be divisible by tensor parallel size"), heads of keys and values or
    their copies (llama.py, SGLang's too), widths (distributed/utils.py, "is not divisible by"), heads of Mamba-2 and of Gated
    DeltaNet's keys (mamba_mixer2.py, qwen3_next.py).
    """
    tp, groups = plan.tp, model.num_query_groups
    if model.num_attention_heads % tp:
        return f"{model.num_attention_heads} attention heads"
    if not model.multi_latent_attention and groups % tp and tp % groups:
        return f"{groups} heads of keys and values, of which tp={tp} is neither a divisor nor a multiple"
    if model.mamba_num_heads % tp or model.linear_num_key_heads % tp:
        return f"{model.mamba_num_heads or model.linear_num_key_heads} heads of its recurrent layers"
    widths = [model.ffn_hidden_size] * model.has_dense_mlp + [model.moe_shared_expert_intermediate_size or 0]
    if odd := next((width for width in widths if width % tp), 0):
        return f"an MLP {odd:,} wide, which is not divisible by {tp}"
    if plan.ep not in expert_degrees(model, tp, plan.adp):
        return f"{model.num_moe_experts} experts {model.moe_ffn_hidden_size:,} wide over ep={plan.ep} of {tp * plan.adp} ranks"
    return ""


def expert_degrees(model: ModelSpec, tp: int, adp: int) -> list[int]:
    """Every ep of a stage of tp x adp ranks: it divides the experts and the ranks, and the rest divides an expert's width; all
    ranks or 1 with attention data parallelism."""
    if not model.is_moe:
        return [1]
    stage, experts, width = tp * adp, model.num_moe_experts or 1, model.moe_ffn_hidden_size
    return [ep for ep in divisors(stage) if experts % ep == 0 and width % (stage // ep) == 0 and (adp == 1 or ep in (1, stage))]


FORMAT_GROUPS = {"fp8_block": (128, 128), "int4": (128, 1), "nvfp4": (16, 1)}
"""Weights of a row that share a scale, and rows that do, in formats that are said without a checkpoint (WEIGHT_BYTES)."""


@cache
def _groups(model: ModelSpec, checkpoint: Checkpoint | None, weights: str) -> dict[str, tuple[int, int]]:
    """Of each part whose weights share scales in groups, attention, mlp and experts: FORMAT_GROUPS' numbers. Engines pad
    MXFP4."""
    if checkpoint is None:
        formats = stored_formats(model, weights)
        forms = {"attention": formats.attention, "mlp": formats.mlp, "experts": formats.experts}
        return {part: FORMAT_GROUPS[form] for part, form in forms.items() if form in FORMAT_GROUPS}
    counted: dict[str, dict[Stored, float]] = {}
    for part, count, stored in checkpoint.modules(model):
        by = counted.setdefault(part, {})
        by[stored] = by.get(stored, 0.0) + count
    most = {part: max(by, key=by.__getitem__) for part, by in counted.items()}
    return {part: (one.group, one.rows) for part, one in most.items() if one.group and one.form != "mxfp4"}


def cut_groups(model: ModelSpec, plan: EnginePlan, checkpoint: Checkpoint | None) -> str:
    """Which matrix the layout would cut inside a group of weights that share a scale, of the checkpoint or of the format that
    `plan.weights` names; empty where it cuts none.

    Engines refuse it (vLLM: layers/quantization/auto_awq.py and auto_gptq.py, "input size is not aligned with the quantized
    weight shape"; fp8.py, validate_fp8_block_shape). Rows of the second matrix are cut by tensor parallelism, blocks also cut
    columns of the first.
    """
    groups = _groups(model, checkpoint, plan.weights)
    heads = model.num_attention_heads
    widths = [("attention's output", "attention", heads * model.value_head_dim, plan.tp)]
    if model.has_dense_mlp:
        widths.append(("the MLP", "mlp", model.ffn_hidden_size, plan.tp))
    if model.moe_shared_expert_intermediate_size:
        widths.append(("the shared expert", "mlp", model.moe_shared_expert_intermediate_size, plan.tp))
    if model.is_moe:
        widths.append(("each of the experts", "experts", model.moe_ffn_hidden_size, plan.tp * plan.adp // plan.ep))
    for name, part, width, ranks in widths:
        group, rows = groups.get(part, (1, 1))
        if width % (ranks * group) and ranks > 1:
            why = "the input size is not aligned with the quantized weight shape"
            if rows > 1:
                why = f"output_size = {width // ranks} is not divisible by block_n = {rows}"
            return f"{name} has {width} rows, which {ranks} ranks cut inside the checkpoint's groups of {group}: {why}"
    return ""


def loads(job: ServingJob) -> bool:
    """Whether weights and runtime alone fit the GPU."""
    return weights_bytes(job.model, job.plan, job.formats) + job.engine.runtime_bytes < job.gpu.memory_bytes
