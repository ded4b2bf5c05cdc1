"""How a row of a table of serving runs was laid out: its plan, or every plan that its open cells allow."""

from __future__ import annotations

from autoconfig.runs.cells import Row, cell, count_of, degree
from autoconfig.serving.engine_limits import limit
from autoconfig.serving.space import expert_degrees
from autoconfig.specs.errors import InputError
from autoconfig.specs.hardware.gpu import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import EngineSpec
from autoconfig.specs.software.serving_formats import kv_format, supports, weight_format

OPEN_DEGREES = (1, 2, 4, 8)
"""Tried where the cell tp is empty."""
EIGHT_BIT_ACTIVATIONS = ("w4a8", "w4a8_awq")
"""Weights in 4 bits beside activations in 8, as TensorRT-LLM's QuantAlgo names them; no table has them."""


def read_plans(
    row: Row, model: ModelSpec, gpu: GpuSpec, engine: EngineSpec, gpus: int, assumed: list[str]
) -> tuple[EnginePlan, ...]:
    """The plans of a row; what was assumed goes into `assumed`. Raises InputError naming the cells that make no plan."""
    weights, kv = _formats(row, gpu, assumed)
    pp, heads = degree(row, "pp"), model.num_attention_heads
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    given = count_of(row, "tp")
    if given is None:
        found = _open_degrees(row, model, pp, gpus, assumed)
    else:
        tp, adp = _given_degrees(given, pp, degree(row, "attn_dp"), gpus, assumed)
        if heads % tp:
            raise InputError(f"tp {tp} does not divide the {heads} attention heads of {model.name}")
        found = [(tp, adp, degree(row, "ep"))]
    plans = tuple(
        EnginePlan(tp=tp, pp=pp, ep=ep, adp=adp, weights=weights, kv=kv, replicas=gpus // (tp * pp * adp))
        for tp, adp, ep in found
    )
    if given is not None:
        return plans
    runs = tuple(plan for plan in plans if not limit(engine, plan))
    if not runs:
        raise InputError(f"cell tp is empty, and {plans[0]}: {limit(engine, plans[0])}")
    return runs


def _given_degrees(tp: int, pp: int, adp: int, gpus: int, assumed: list[str]) -> tuple[int, int]:
    """(tp, adp) of a row; TensorRT-LLM and SGLang count attention data parallelism inside of tensor_parallel_size."""
    if gpus % (tp * pp * adp) and gpus % (tp * pp) == 0 and tp % adp == 0:
        assumed.append(f"tp {tp} holds attn_dp {adp}: tp {tp // adp} x attn_dp {adp}")
        tp //= adp
    if gpus % (tp * pp * adp):
        raise InputError(f"tp {tp} x pp {pp} x attn_dp {adp} does not divide n_gpus {gpus}")
    return tp, adp


def _open_degrees(row: Row, model: ModelSpec, pp: int, gpus: int, assumed: list[str]) -> list[tuple[int, int, int]]:
    """Every (tp, adp, ep) of a row whose tp is open; of a mixture of experts also adp and ep where their cells are empty."""
    ranks = OPEN_DEGREES if model.is_moe and not cell(row, "attn_dp") else (degree(row, "attn_dp"),)
    found = [
        (tp, adp, ep)
        for tp in OPEN_DEGREES
        for adp in ranks
        if gpus % (tp * pp * adp) == 0 and model.num_attention_heads % tp == 0
        if len(ranks) == 1 or tp * adp <= max(OPEN_DEGREES)
        for ep in ([degree(row, "ep")] if cell(row, "ep") else expert_degrees(model, tp, adp))
        if tp * adp % ep == 0
    ]
    if not found:
        asked = f"pp {pp} x attn_dp {degree(row, 'attn_dp')}" + (f" and ep {ep}" if (ep := degree(row, "ep")) > 1 else "")
        raise InputError(f"cell tp is empty, and none of 1, 2, 4, 8 with {asked} divides n_gpus {gpus}")
    for name, at in (("tp", 0), ("attn_dp", 1), ("ep", 2)):
        values = sorted({one[at] for one in found})
        if not cell(row, name) and (len(values) > 1 or name == "tp"):
            assumed.append(f"{name}: the best of {', '.join(map(str, values))}")
    return found


def _formats(row: Row, gpu: GpuSpec, assumed: list[str]) -> tuple[str, str]:
    text, cache = cell(row, "weights"), cell(row, "kv")
    if not text:
        text = "fp8" if supports(gpu, "fp8") else "bf16"
        assumed.append(f"weights {text}")
    weights = weight_format(text)
    if text.lower().replace("-", "_") in EIGHT_BIT_ACTIVATIONS:
        assumed.append(f"weights {text} priced as {weights}: weights only, products in 16 bits")
    elif not supports(gpu, weights):
        assumed.append(f"{gpu.id} does not multiply in {weights}: weights stored in it, products at its 16-bit rate")
    if not cache:
        cache = "bf16" if weights == "bf16" else "fp8"
        assumed.append(f"KV cache {cache}")
    return weights, kv_format(cache)
