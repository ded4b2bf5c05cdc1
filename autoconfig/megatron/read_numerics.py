"""Numerics and sequence length in Megatron-LM's arguments."""

from __future__ import annotations

from autoconfig.megatron.argument_list import Arguments
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.numerics import FP8_RECIPES, Numerics

_DROPOUT = 0.1
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
