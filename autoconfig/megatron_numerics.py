"""Numerics, workload and software stack in Megatron-LM's arguments."""

from __future__ import annotations

from autoconfig.argument_list import Arguments
from autoconfig.row_model import read_stack
from specs.errors import InputError, UnsupportedError
from specs.model import ModelSpec
from specs.numerics import FP8_RECIPES, Numerics
from specs.software import SoftwareStack
from specs.software_catalogue import DEFAULT_STACK, load_stack

_DROPOUT = 0.1
_FIRST_CORE_YEAR = 2024
"""First year in which Megatron-LM builds its model from megatron-core with Transformer Engine unless told otherwise."""
_OVERLAPS = {
    "--overlap-grad-reduce": "overlap-grad-reduce",
    "--overlap-param-gather": "overlap-param-gather",
    "--tp-comm-overlap": "tp-comm-overlap",
}
_STATE_TYPES = {
    **{"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"},
    **{"fp16": "fp16", "float16": "fp16", "fp8": "fp8"},
}


def read_seq_length(a: Arguments) -> int:
    """Tokens of one sample. Raises InputError where the file does not say it."""
    seq = a.count("--seq-length", "--encoder-seq-length")
    if seq is None:
        raise InputError("--seq-length is not in the file; add it, or say --seq-length N")
    return seq


def read_numerics(a: Arguments, model: ModelSpec, assumed: list[str]) -> Numerics:
    """Types and dropout, with Megatron's defaults. Raises InputError for types that contradict each other."""
    if a.has("--fp16") and a.has("--bf16"):
        raise InputError("--fp16 and --bf16 are given together; drop one of them")
    if a.has("--fp4-format"):
        raise UnsupportedError("--fp4-format: fp4 training cannot be priced yet; check the fp8 or bf16 form of the run")
    fp8 = a.has("--fp8-format", "--fp8-hybrid", "--fp8-e4m3")
    precision = "fp8" if fp8 else "bf16" if a.has("--bf16") else "fp16" if a.has("--fp16") else "fp32"
    if precision == "fp32":
        assumed.append("precision fp32: neither --bf16 nor --fp16 is given")
    recipe = (a.text("--fp8-recipe") or "delayed") if fp8 else "delayed"
    if recipe not in FP8_RECIPES:
        raise InputError(f"--fp8-recipe {recipe[:40]!r}: use one of {', '.join(FP8_RECIPES)}")
    hidden, attention = a.number("--hidden-dropout"), a.number("--attention-dropout")
    capacity = a.number("--moe-expert-capacity-factor", "--moe-train-capacity-factor")
    if capacity is None and a.has("--topk", "--expert-interval") and model.is_moe:
        capacity = 1.0  # Megatron-DeepSpeed's default
    return Numerics(
        precision=precision,
        fp8_recipe=recipe,
        fp8_param_gather=fp8 and a.has("--fp8-param-gather"),
        grad_reduce_dtype=_gradients(a, precision),
        main_params_dtype=_state(a, "--main-params-dtype"),
        exp_avg_dtype=_state(a, "--exp-avg-dtype"),
        exp_avg_sq_dtype=_state(a, "--exp-avg-sq-dtype"),
        hidden_dropout=_DROPOUT if hidden is None else hidden,
        attention_dropout=_DROPOUT if attention is None else attention,
        moe_capacity_factor=capacity if capacity and capacity > 0 else None,
        deterministic=a.has("--deterministic-mode"),
    )


def _gradients(a: Arguments, precision: str) -> str:
    """bf16 runs accumulate in fp32 unless told otherwise; fp16 runs keep 16-bit gradients unless told otherwise."""
    if a.has("--grad-reduce-in-bf16") or (a.text("--main-grads-dtype") or "") in ("bf16", "bfloat16"):
        return "bf16"
    if precision == "fp16" and not a.has("--accumulate-allreduce-grads-in-fp32", "--main-grads-dtype"):
        return "bf16"
    return "fp32"


def _state(a: Arguments, name: str) -> str:
    text = a.text(name) or "fp32"
    if text not in _STATE_TYPES:
        raise InputError(f"{name} {text[:40]!r}: use one of fp32, bf16, fp16, fp8")
    return _STATE_TYPES[text]


def read_software(a: Arguments, named: str | None, model: ModelSpec, assumed: list[str]) -> SoftwareStack:
    """The stack that the arguments show, or the named one, with the kernels and overlaps that they switch on."""
    name = named or _software_name(a, assumed)
    load_stack(name)  # a wrong name is an error of its own
    modern = name in (DEFAULT_STACK, "megatron-local") or name.startswith("megatron-core")
    row = {
        "software": name,
        "attention_kernel": _attention_kernel(a, modern),
        "loss_fusion": "native" if a.has("--cross-entropy-loss-fusion") else "",
        "overlap": "+".join(["given", *(word for flag, word in _OVERLAPS.items() if a.has(flag))]) if modern else "",
        "cuda_graph": "1" if a.has("--enable-cuda-graph", "--external-cuda-graph") else "",
    }
    return read_stack(row, [])


def _software_name(a: Arguments, assumed: list[str]) -> str:
    local = a.text("--transformer-impl") == "local"
    if a.has("--deepspeed"):
        newer = a.has("--use-rotary-position-embeddings", "--use-flash-attn", "--use-flash-attn-v2")
        name = "megatron-deepspeed-2023" if newer else "megatron-deepspeed-2022"
    elif local and a.newest_year() >= _FIRST_CORE_YEAR:
        name = "megatron-local"
    elif a.newest_year() >= _FIRST_CORE_YEAR or a.has("--use-mcore-models") or a.text("--transformer-impl"):
        name = DEFAULT_STACK
    else:
        old = a.newest_year() <= 2021 and not a.has("--sequence-parallel", "--recompute-activations")
        name = "megatron-lm-2021" if old else "megatron-lm-2022"
    assumed.append(f"software {name}, from the arguments used (--software)")
    return name


def _attention_kernel(a: Arguments, modern: bool) -> str:
    backend = a.text("--attention-backend")
    if backend in ("unfused", "local"):
        return "unfused"
    if a.has("--use-flash-attn", "--use-flash-attn-v1", "--use-flash-attn-v2", "--use-flash-attn-triton"):
        return "" if modern else "flash_attention2"
    return ""
