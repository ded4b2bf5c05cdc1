"""How a row of a table of serving runs was laid out: its plan, or every plan that its open cells allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoconfig.row_cells import Row, cell, count_of, degree
from specs.errors import InputError
from specs.gpu import GpuSpec
from specs.model import ModelSpec
from specs.serve_plan import EnginePlan
from specs.serving_formats import kv_format, supports, weight_format

OPEN_DEGREES = (1, 2, 4, 8)
"""Tried where the cell tp is empty."""
EIGHT_BIT_ACTIVATIONS = ("w4a8", "w4a8_awq")
"""Weights in 4 bits beside activations in 8, as TensorRT-LLM's QuantAlgo names them; no table has them."""


@dataclass(frozen=True, kw_only=True)
class _Degrees:
    tp: int
    pp: int
    adp: int

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.adp


def read_plans(row: Row, model: ModelSpec, gpu: GpuSpec, gpus: int, assumed: list[str]) -> tuple[EnginePlan, ...]:
    """The plans of a row; what was assumed goes into `assumed`. Raises InputError naming the cells that make no plan."""
    weights, kv = _formats(row, gpu, assumed)
    plans = []
    for one in _degrees(row, model, gpus, assumed):
        for ep in _expert_degrees(row, model, one):
            replicas = gpus // one.gpus
            plans.append(EnginePlan(tp=one.tp, pp=one.pp, ep=ep, adp=one.adp, weights=weights, kv=kv, replicas=replicas))
    return tuple(plans)


def _degrees(row: Row, model: ModelSpec, gpus: int, assumed: list[str]) -> Sequence[_Degrees]:
    given, pp, adp = count_of(row, "tp"), degree(row, "pp"), degree(row, "attn_dp")
    heads = model.num_attention_heads
    if pp > model.num_layers:
        raise InputError(f"pp {pp} is more than the {model.num_layers} layers of {model.name}")
    if given is None:
        open_ = [tp for tp in OPEN_DEGREES if gpus % (tp * pp * adp) == 0 and heads % tp == 0]
        if not open_:
            raise InputError(f"cell tp is empty, and none of 1, 2, 4, 8 with pp {pp} x attn_dp {adp} divides n_gpus {gpus}")
        assumed.append("tp: the best of " + ", ".join(map(str, open_)))
        return [_Degrees(tp=tp, pp=pp, adp=adp) for tp in open_]
    one = _Degrees(tp=given, pp=pp, adp=adp)
    if gpus % one.gpus and gpus % (given * pp) == 0 and given % adp == 0:
        # TensorRT-LLM and SGLang count attention data parallelism inside of tensor_parallel_size
        one = _Degrees(tp=given // adp, pp=pp, adp=adp)
        assumed.append(f"tp {given} holds attn_dp {adp}: tp {one.tp} x attn_dp {adp}")
    if gpus % one.gpus:
        raise InputError(f"tp {given} x pp {pp} x attn_dp {adp} does not divide n_gpus {gpus}")
    if heads % one.tp:
        raise InputError(f"tp {one.tp} does not divide the {heads} attention heads of {model.name}")
    return [one]


def _expert_degrees(row: Row, model: ModelSpec, one: _Degrees) -> Sequence[int]:
    return [degree(row, "ep")]


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
